"""Files that are damaged or hostile: our own short error, or what they say; never anything else."""

from __future__ import annotations

import io
import json
import logging
import random
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensoropt.cluster import CollectiveProfile, ProfileEntry, Topology, preset
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.cost.op_profile import Curve, OpProfile, OpTime
from tensoropt.errors import ClusterError, PlanError, ProblemError, TensorOptError
from tensoropt.measure.cache import OPERATORS, TOPOLOGIES, Kept
from tensoropt.plan.plan import Plan
from tensoropt.problem import Elimination, Frontier, Problem, load_problem, save_problem
from tensoropt.problem.provenance import Provenance
from tensoropt.search.comparison import Comparison, ComparisonRow
from tensoropt.search.parallelism import ParallelismProfile, ParallelismRow
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import mlp
from tests.storage.mutations import assert_refused_or_the_same, mutated_bytes, mutated_document

pytestmark = pytest.mark.pure

MUTATIONS = 1000
KEY = {"hosts": ["a", "b"], "cores": [1.5]}


def plan() -> Plan:
    space = SearchSpace(mlp(), AnalyticCost(cpu(4)))
    chosen = np.random.default_rng(0)
    assignment = [int(chosen.integers(len(space.choices(op.name)))) for op in space.operators]
    return space.plan(assignment, "random", {"exact": True, "seed": 0})


def topology() -> Topology:
    base = preset("v100", hosts=2)
    entries = [ProfileEntry(kind, (1, 2), (1024, 4096), (1e-5, 2e-5)) for kind in ("all_reduce", "permute")]
    return Topology("two", base.levels, base.device, CollectiveProfile.of(entries))


def frontier() -> Frontier:
    return Frontier(
        ("a", "b"),
        np.array([9.0, 3.0, 2.5]),
        np.array([100.0, 120.0, 300.0]),
        np.array([[0, 0], [0, 1], [1, 1]]),
        np.zeros((3, 3), np.int64),
        True,
        (Elimination("heuristic", ("a",), ("b",), 1), Elimination("ldp", ("b",))),
        0.25,
        Provenance("abc", preset("k80"), "global"),
        "meshes of 2 dimensions",
    )


def op_profile() -> OpProfile:
    times = {"MatMul:1": OpTime("MatMul", 1e-3, 2e-3, 1e-3, (8,), (), (1, 2, 3), "MatMul:0")}
    return OpProfile(
        times, {"sum": Curve((1, 2), (1e-6, 2e-6))}, 1e-4, frozenset({"Odd:1"}), {"collective all_reduce over 0": 2.0}
    )


def profile() -> ParallelismProfile:
    rows = (
        ParallelismRow.of(2, 0.1, 0.01, 1e6, 2e6, batch=8, price_per_device_hour=3.0),
        ParallelismRow(4, reason="no"),
    )
    return ParallelismProfile("two", "1 GiB", 8, 3.0, rows)


def comparison() -> Comparison:
    rows = (
        ComparisonRow("ft", "search", 1.0, 1.0, 5.0, 0.1, 6.0, 0.5, True, 3, True, None, "all", plan()),
        ComparisonRow("zero1", "baseline", reason="does not apply"),
    )
    return Comparison("two", 4, "1 GiB", 8, True, 0.5, rows)


def _normal(data: Any) -> Any:
    """A document with what may be left out, and in the order of ours where none is meant."""
    if isinstance(data, list):
        return [_normal(item) for item in data]
    if not isinstance(data, dict):
        return data
    normal = {name: _normal(item) for name, item in data.items()}
    if "levels" in normal:
        normal["levels"] = [{"shared": False, **level} for level in normal["levels"]]
        profile = normal.get("profile")
        normal["profile"] = profile and sorted(profile, key=lambda entry: (entry["kind"], entry["group"]))
        device = normal.get("device")
        if isinstance(device, dict):
            usual = {"wide_products": False, "product_efficiency": 1.0, "fusion": "none"}
            normal["device"] = {name: each for name, each in device.items() if each != usual.get(name, ...)}
    if "edges" in normal:
        normal["edges"].sort(key=lambda edge: (edge["tensor"], edge["consumer"], edge["position"]))
    return normal


def _check(kind: str, damaged: Callable[[bytes, Any, random.Random], bytes], tmp_path: Path) -> tuple[int, int]:
    """Refused and taken mutations of one kind of file."""
    path = tmp_path / "file"

    def from_file(load: Callable[[Path], Any]) -> Callable[[bytes], Any]:
        def read(written: bytes) -> Any:
            path.write_bytes(written)
            return load(path)

        return read

    kinds: dict[str, tuple[type[TensorOptError], Any, Callable[[bytes], Any]]] = {
        "plan": (PlanError, plan(), from_file(Plan.load)),
        "topology": (ClusterError, topology(), from_file(Topology.load)),
        "frontier": (ProblemError, frontier(), Frontier.from_json),
        "profile": (ProblemError, profile(), ParallelismProfile.from_json),
        "comparison": (ProblemError, comparison(), Comparison.from_json),
    }
    error, made, read = kinds[kind]

    def again(value: Any) -> Any:
        written = value.to_json()
        return _normal(json.loads(written if isinstance(written, str) else json.dumps(written)))

    document = json.loads(json.dumps(made.to_json()))
    document = json.loads(document) if isinstance(document, str) else document
    whole = json.dumps(document).encode()
    assert not assert_refused_or_the_same(read, whole, error, again, _normal)
    seeded = random.Random(kind)
    written = [damaged(whole, document, seeded) for _ in range(MUTATIONS)]
    refused = sum(assert_refused_or_the_same(read, one, error, again, _normal) for one in written)
    return refused, MUTATIONS - refused


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plan", "topology", "frontier", "profile", "comparison"])
def test_documents_with_one_place_changed(kind: str, tmp_path: Path) -> None:
    refused, taken = _check(kind, lambda _, document, seeded: mutated_document(document, seeded).encode(), tmp_path)
    assert refused > MUTATIONS // 2 and taken > 0


@pytest.mark.parametrize("kind", ["plan", "topology", "frontier"])
def test_documents_with_bytes_changed(kind: str, tmp_path: Path) -> None:
    refused, _ = _check(kind, lambda whole, _, seeded: mutated_bytes(whole, seeded), tmp_path)
    assert refused > MUTATIONS // 4


@pytest.mark.parametrize("kind", [TOPOLOGIES, OPERATORS], ids=lambda kind: kind.name)
def test_damaged_cache_is_ignored_with_a_warning(
    kind: Kept[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "cache"))
    caplog.set_level(logging.WARNING)
    kind.store(KEY, topology() if kind is TOPOLOGIES else op_profile())
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    seeded = random.Random(kind.name)
    ignored = 0
    for turn in range(MUTATIONS):
        changed = mutated_document(json.loads(whole), seeded).encode() if turn % 2 else mutated_bytes(whole, seeded)
        path.write_bytes(changed)
        caplog.clear()
        if kind.load(KEY) is None:
            ignored += 1
            assert "Ignoring the cached" in caplog.text and all(len(r.getMessage()) <= 800 for r in caplog.records)
    assert MUTATIONS // 4 < ignored < MUTATIONS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh": [2.9, 2]}, "field 'mesh' must be an integer, got 2.9"),
        ({"mesh": [True, 2]}, "field 'mesh' must be a number, got True"),
        ({"mesh": [2**30, 2]}, "a mesh has at most 1048576 devices"),
        ({"mesh": [10**400]}, "field 'mesh' must be a finite number"),
        ({"time_s": -1.0}, "field 'time_s' must be at least 0, got -1.0"),
        ({"time_s": float("nan")}, "field 'time_s' must be a finite number, got nan"),
        ({"schema_version": True}, "schema_version is True"),
        ({"times": 1}, "unknown field 'times'"),
        ({"notes": {"peak_memory": {"memory_bytes": 1}}}, "notes.peak_memory: field 'operator' is missing"),
    ],
)
def test_plans_that_mean_something_else_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_json(plan().to_json() | changes)


def test_an_edge_that_is_there_twice_is_refused() -> None:
    data = plan().to_json()
    with pytest.raises(PlanError, match="is there twice"):
        Plan.from_json(data | {"edges": data["edges"] + data["edges"][:1]})


def _problem() -> Problem:
    return Problem(
        ["a", "b"], [[1.0, 2.0], [3.0]], [[5.0, 4.0], [6.0]], [(0, 1)], [[[1.0], [0.5]]], [[[1.0], [2.0]]], [0, 1]
    )


def _tables(problem: Problem) -> list[Any]:
    named = (problem.node_time_s, problem.node_memory_bytes, problem.edge_time_s, problem.edge_memory_bytes)
    groups = None if problem.groups is None else problem.groups.tolist()
    return [problem.names, problem.edges.tolist(), groups, [[table.tolist() for table in some] for some in named]]


@pytest.mark.slow
def test_archives_with_bytes_changed(tmp_path: Path) -> None:
    path = tmp_path / "problem.npz"
    save_problem(_problem(), path)
    whole, tables, seeded = path.read_bytes(), _tables(_problem()), random.Random(1)
    refused = 0
    for _ in range(MUTATIONS):
        path.write_bytes(mutated_bytes(whole, seeded))
        try:
            assert _tables(load_problem(path)) == tables
        except ProblemError as error:
            refused += 1
            assert len(str(error)) <= 500
    assert MUTATIONS // 2 < refused < MUTATIONS


def _archive(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def _members(tmp_path: Path) -> dict[str, bytes]:
    save_problem(_problem(), tmp_path / "whole.npz")
    with zipfile.ZipFile(tmp_path / "whole.npz") as archive:
        return {info.filename.removesuffix(".npy"): archive.read(info) for info in archive.infolist()}


@pytest.mark.slow
def test_arrays_with_bytes_changed(tmp_path: Path) -> None:
    """The archive's own checksums are right: somebody put it together like this."""
    members, seeded, path = _members(tmp_path), random.Random(2), tmp_path / "problem.npz"
    refused = 0
    for _ in range(MUTATIONS):
        name = seeded.choice(sorted(members))
        changed = mutated_bytes(members[name], seeded)
        _archive(path, {**members, name: changed})
        try:
            found = load_problem(path)
        except ProblemError as error:
            refused += 1
            assert len(str(error)) <= 500
            continue
        stated = np.load(io.BytesIO(changed), allow_pickle=False)
        assert stated.size * stated.itemsize <= len(changed)
        assert all(np.all(table >= 0) for tables in (found.node_time_s, found.edge_time_s) for table in tables)
    assert MUTATIONS // 4 < refused < MUTATIONS


def _npy(array: Any, shape: tuple[int, ...] | None = None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array))
    text = stream.getvalue()
    if shape is not None:
        was, now = (f"'shape': {some}, }}".encode() for some in (np.shape(array), shape))
        text = text.replace(was.ljust(len(now)), now, 1).replace(was + b" " * (len(now) - len(was)), now, 1)
    return text


@pytest.mark.parametrize("shape", [(10**12,), (10**30,), (2**40, 2**40)])
def test_an_array_that_claims_more_than_it_has_allocates_nothing(shape: tuple[int, ...], tmp_path: Path) -> None:
    content = _npy(np.ones(2), shape)
    assert str(shape).encode() in content
    _archive(tmp_path / "p.npz", {**_members(tmp_path), "node_time_s_0": content})
    start_s = time.perf_counter()
    with pytest.raises(ProblemError, match=r"reading array 'node_time_s_0' failed: ValueError: an array of shape"):
        load_problem(tmp_path / "p.npz")
    assert time.perf_counter() - start_s < 1


def test_an_archive_that_unpacks_to_more_than_there_is_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensoropt.problem.archive.available_memory_bytes", lambda: 20_000_000)
    zeros = _npy(np.zeros(750_000))
    _archive(tmp_path / "p.npz", {**_members(tmp_path), "node_time_s_0": zeros})
    with pytest.raises(ProblemError, match="shape must equal"):  # 6 MB fit
        load_problem(tmp_path / "p.npz")
    more = _npy(np.ones(750_000))
    _archive(tmp_path / "p.npz", {**_members(tmp_path), "node_time_s_0": zeros, "node_time_s_1": more})
    with pytest.raises(
        ProblemError, match=r"must fit into half of the 20,000,000 bytes .* 'node_time_s_1' has 6,000,128"
    ):
        load_problem(tmp_path / "p.npz")


def test_an_array_of_objects_or_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", names=np.array(["a", "b"], object))
    with pytest.raises(ProblemError, match="it has Python objects, which may run anything"):
        load_problem(tmp_path / "p.npz")
    _archive(tmp_path / "p.npz", _members(tmp_path))
    with zipfile.ZipFile(tmp_path / "p.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("node_time_s_0.npy", _npy(np.ones(2)))
    with pytest.raises(ProblemError, match="array 'node_time_s_0' is there twice"):
        load_problem(tmp_path / "p.npz")
