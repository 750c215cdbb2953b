"""`Problem`: what it accepts, what it refuses, what strategies cost, and its file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem import Problem, evaluate, load_problem, save_problem

pytestmark = pytest.mark.pure

INF = math.inf


def example(**changes: Any) -> Problem:
    """Two nodes of 2 and 3 configurations, joined by two edges, the second with two alternatives."""
    fields: dict[str, Any] = {
        "names": ["matmul", "bias"],
        "node_time_s": [[0.1, 0.2], [1.0, 2.0, 3.0]],
        "node_memory_bytes": [[30.0, 20.0], [3.0, 2.0, 1.0]],
        "edges": [(0, 1), (0, 1)],
        "edge_time_s": [np.full((2, 3), 0.7), np.stack([np.full((2, 3), 0.01), np.full((2, 3), 0.5)], axis=-1)],
        "edge_memory_bytes": [None, np.stack([np.full((2, 3), 64.0), np.full((2, 3), 8.0)], axis=-1)],
        "groups": None,
    }
    return Problem(**{**fields, **changes})


def test_costs_are_the_sums_of_the_entries() -> None:
    time, memory = example().costs([[0, 2], [1, 0]], [[0, 0, 0, 0], [0, 0, 0, 1]])
    assert time.tolist() == pytest.approx([3.81, 2.4], rel=1e-15)
    assert memory.tolist() == [30.0 + 1.0 + 64.0, 20.0 + 3.0 + 8.0]


def test_every_strategy_has_the_constants() -> None:
    time, memory = example(constant_time_s=5.0, constant_memory_bytes=100).costs([[0, 2], [1, 0]])
    assert time.tolist() == pytest.approx([8.81, 6.91], rel=1e-15)
    assert memory.tolist() == [195.0, 187.0]


def test_costs_of_an_impossible_strategy_are_infinite_in_both() -> None:
    problem = example(node_time_s=[[0.1, INF], [1.0, 2.0, 3.0]])
    time, memory = problem.costs([[1, 0], [0, 0]])
    assert time[0] == memory[0] == INF and np.isfinite([time[1], memory[1]]).all()


def test_evaluate_gives_the_frontier_over_alternatives() -> None:
    time, memory = evaluate(example(), [0, 2])
    assert time.tolist() == pytest.approx([4.3, 3.81], rel=1e-15)
    assert memory.tolist() == [30.0 + 1.0 + 8.0, 30.0 + 1.0 + 64.0]


def test_evaluate_leaves_out_alternatives_that_do_not_exist_and_that_never_pay() -> None:
    table = np.stack([np.full((2, 3), 0.4), np.full((2, 3), INF), np.full((2, 3), 0.5)], axis=-1)
    memory = np.stack([np.full((2, 3), 1.0), np.full((2, 3), 0.0), np.full((2, 3), 2.0)], axis=-1)
    problem = example(edge_time_s=[np.zeros((2, 3)), table], edge_memory_bytes=[None, memory])
    time, bytes_ = evaluate(problem, [0, 0])
    assert time.tolist() == pytest.approx([1.5], rel=1e-15) and bytes_.tolist() == [34.0]


def test_evaluate_of_one_choice_gives_one_point() -> None:
    time, memory = evaluate(example(), [0, 2], [0, 0, 0, 1])
    assert (time.tolist(), memory.tolist()) == (pytest.approx([4.3], rel=1e-15), [39.0])


def test_evaluate_names_the_impossible_node() -> None:
    problem = example(node_time_s=[[0.1, INF], [1.0, 2.0, 3.0]])
    with pytest.raises(InfeasibleError, match=r"node 'matmul': configuration 1 is impossible"):
        evaluate(problem, [1, 0])


def test_evaluate_names_the_impossible_edge() -> None:
    table = np.zeros((2, 3))
    table[1, 2] = INF
    problem = example(edge_time_s=[table, np.zeros((2, 3))], edge_memory_bytes=None)
    with pytest.raises(InfeasibleError, match=r"edge 0 \('matmul' -> 'bias'\): configurations 1 and 2"):
        evaluate(problem, [1, 2])


def test_evaluate_refuses_an_alternative_that_does_not_exist() -> None:
    problem = example(
        node_time_s=[[[0.1, INF], [0.2, 0.3]], [1.0, 2.0, 3.0]], node_memory_bytes=[np.ones((2, 2)), [1.0] * 3]
    )
    with pytest.raises(InfeasibleError, match="chosen alternatives must exist"):
        evaluate(problem, [0, 0], [1, 0, 0, 0])


def test_evaluate_takes_one_assignment() -> None:
    with pytest.raises(ProblemError, match="evaluate takes 1 assignment, got 2"):
        evaluate(example(), [[0, 0], [0, 1]])


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([0], r"one configuration index per node, 2, got shape \(1,\)"),
        ([0, 3], r"configuration of 'bias' must be in 0..2, got 3"),
        ([-1, 0], r"configuration of 'matmul' must be in 0..1, got -1"),
        ([0.5, 0.0], "indices must be integers, got dtype float64"),
    ],
)
def test_assignment_that_breaks_the_format_is_refused(assignment: list[float], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        example().costs(assignment)


def test_assignment_that_splits_a_group_is_refused() -> None:
    problem = Problem("abc", [[1.0, 2.0]] * 3, [[1.0, 2.0]] * 3, groups=[5, 0, 5])
    assert problem.costs([1, 0, 1])[0].tolist() == [5.0]
    with pytest.raises(
        ProblemError, match=r"nodes of group 5 must take one configuration, got 1 for 'a' and 0 for 'c'"
    ):
        problem.costs([1, 0, 0])


@pytest.mark.parametrize(
    ("alternatives", "message"),
    [
        ([0, 0, 0], r"shape must be \(1, 4\), one per point, node and edge, got \(1, 3\)"),
        ([0, 0, 0, 2], r"edge 1 \('matmul' -> 'bias'\) must be in 0..1, got 2..2"),
        ([1, 0, 0, 0], r"'matmul' must be in 0..0, got 1..1"),
    ],
)
def test_alternatives_that_break_the_format_are_refused(alternatives: list[int], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        example().costs([0, 0], alternatives)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": []}, "at least 1 node, got 0"),
        ({"names": ["x", "x"]}, "names: every name must be unique, got 'x' at 0 and 1"),
        ({"names": ["x"]}, "node_time_s: needs one array per node, 1 for names, got 2"),
        ({"node_memory_bytes": [[1.0, 2.0]]}, "node_memory_bytes: needs one array per node, 2 for names, got 1"),
        ({"node_time_s": [[], [1.0]]}, r"node_time_s\[0\] \('matmul'\): shape must be \(K,\) or \(K, P\).*got \(0,\)"),
        ({"node_time_s": [1.0, [1.0]]}, r"node_time_s\[0\].*got \(\)"),
        (
            {"node_memory_bytes": [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]]},
            r"node_memory_bytes\[0\] \('matmul'\): shape must equal that of node_time_s\[0\], \(2,\), got \(3,\)",
        ),
        (
            {"node_time_s": [[0.1, -2.0], [1.0] * 3]},
            r"node_time_s\[0\]: every cost must be >= 0.*got -2.0 at index \(1,\)",
        ),
        ({"node_memory_bytes": [[0.1, np.nan], [1.0] * 3]}, r"node_memory_bytes\[0\]: every cost.*got nan"),
        ({"node_time_s": [["fast", "slow"], [1.0] * 3]}, r"node_time_s\[0\]: costs must be real numbers"),
        ({"node_time_s": [[1.0 + 2.0j, 1.0], [1.0] * 3]}, r"node_time_s\[0\]: costs .* \(of dtype complex128\)"),
        ({"node_time_s": [["1", "2"], [1.0] * 3]}, r"node_time_s\[0\]: costs must be real .* \(of dtype <U1\)"),
        ({"edges": [[0, 1, 0]]}, r"edges: shape must be \(E, 2\), got \(1, 3\)"),
        ({"edges": [[0.0, 1.0]]}, "edges: indices must be integers, got dtype float64"),
        ({"edges": [[0, 1], [0, 2]]}, r"edges\[1\]: node indices must be in 0..1, got \(0, 2\)"),
        ({"edges": [[0, 1]]}, "edge_time_s: needs one array per edge, 1 for edges, got 2"),
        ({"edge_memory_bytes": [None]}, "edge_memory_bytes: needs one array per edge, 2 for edges, got 1"),
        (
            {"edges": [[0, 1], [1, 0]]},
            r"edge_time_s\[1\] \('bias' -> 'matmul'\): shape must be \(3, 2\) or \(3, 2, 'P'\), got \(2, 3, 2\)",
        ),
        (
            {"edge_memory_bytes": [None, np.zeros((2, 3))]},
            r"edge_memory_bytes\[1\] .*shape must equal that of edge_time_s\[1\], \(2, 3, 2\), got \(2, 3\)",
        ),
        ({"constant_time_s": -1.0}, r"constant_time_s: every cost must be >= 0.*got -1.0"),
        ({"constant_time_s": INF}, r"constant_time_s: must be one finite number, got inf"),
        ({"constant_memory_bytes": [1.0]}, r"constant_memory_bytes: must be one finite number, got \[1.0\]"),
        ({"groups": [0]}, r"groups: shape must be \(2,\), one number per node, got \(1,\)"),
        (
            {"groups": [7, 7]},
            "nodes of group 7 must have equally many configurations, got 2 for 'matmul' and 3 for 'bias'",
        ),
    ],
)
def test_array_that_breaks_the_format_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        example(**changes)


def test_tables_are_read_only_and_those_given_stay_writable() -> None:
    table = np.zeros((2, 3))
    problem = example(edges=[(0, 1)], edge_time_s=[table], edge_memory_bytes=None)
    assert np.shares_memory(problem.edge_time_s[0], table) and table.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        problem.edge_time_s[0][0, 0] = 1.0


def test_saved_problem_loads_unchanged(tmp_path: Path) -> None:
    problem = Problem(
        ["größe/1", "b"],
        [[0.1, INF], [1.0, 2.0]],
        [[1.0, 2.0], [3.0, 4.0]],
        [(0, 1), (1, 0)],
        [np.eye(2), np.ones((2, 2, 3))],
        [None, np.full((2, 2, 3), 5.0)],
        [3, 3],
        0.25,
        7.0,
    )
    path = tmp_path / "problem.data"
    save_problem(problem, path)
    loaded = load_problem(path)
    assert loaded.names == problem.names
    for field in ("node_time_s", "node_memory_bytes", "edge_time_s", "edge_memory_bytes"):
        for a, b in zip(getattr(loaded, field), getattr(problem, field), strict=True):
            assert np.array_equal(a, b) and a.shape == b.shape
    assert np.array_equal(loaded.edges, problem.edges)
    assert loaded.groups is not None and loaded.groups.tolist() == [3, 3]
    assert (loaded.constant_time_s, loaded.constant_memory_bytes) == (0.25, 7.0)
    with np.load(path) as arrays:
        assert "edge_memory_bytes_0" not in arrays.files  # zero everywhere


def arrays_of_another_program() -> dict[str, Any]:
    return {
        "names": np.array(["a", "b"]),
        "edges": np.array([[0, 1]], dtype=np.int32),
        "node_time_s_0": np.array([1, 2]),
        "node_memory_bytes_0": np.array([2.0, 1.0], dtype=np.float32),
        "node_time_s_1": np.array([5.0]),
        "node_memory_bytes_1": np.array([5.0]),
        "edge_time_s_0": np.array([[1.0], [1.0]]),
    }


def test_file_written_by_another_program_loads(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", **arrays_of_another_program())
    problem = load_problem(tmp_path / "p.npz")
    assert problem.names == ("a", "b") and problem.groups is None
    assert problem.constant_time_s == problem.constant_memory_bytes == 0.0
    assert evaluate(problem, [1, 0])[0].tolist() == [8.0]


def test_file_without_edges_loads(tmp_path: Path) -> None:
    arrays = {k: v for k, v in arrays_of_another_program().items() if not k.startswith("edge_")}
    np.savez(tmp_path / "p.npz", **{**arrays, "edges": np.zeros((0, 2))})
    assert len(load_problem(tmp_path / "p.npz").edges) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": None}, r"array 'names' is missing"),
        ({"edges": None}, r"array 'edges' is missing"),
        ({"node_time_s_1": None}, r"array 'node_time_s_1' is missing \(names has 2 nodes\)"),
        ({"node_memory_bytes_0": None}, r"array 'node_memory_bytes_0' is missing"),
        ({"edge_time_s_0": None}, r"array 'edge_time_s_0' is missing \(edges has 1 rows\)"),
        ({"edge_time_s_1": np.ones((2, 1))}, r"array 'edge_time_s_1' is unknown for 2 nodes and 1 edges"),
        ({"node_times_0": np.ones(2)}, r"array 'node_times_0' is unknown"),
        ({"names": np.array([1, 2])}, r"array 'names' must be one-dimensional text"),
        ({"node_time_s_0": np.ones(3)}, r"node_memory_bytes\[0\] \('a'\): shape must equal"),
        ({"names": np.array([b"\xff", b"b"])}, r"array 'names' must be text or UTF-8, got what cannot be read"),
        ({"node_time_s_0": np.array([1 + 2j, 3])}, r"node_time_s\[0\]: costs must be real .*of dtype complex128"),
        ({"names": np.array(["a", "b"], dtype=object)}, r"must be an .npz archive of plain arrays"),
    ],
)
def test_malformed_file_is_refused_by_array(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    arrays = {k: v for k, v in {**arrays_of_another_program(), **changes}.items() if v is not None}
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(ProblemError, match=message):
        load_problem(tmp_path / "p.npz")


def test_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(ProblemError, match=r"must be an .npz archive of plain arrays, but reading it failed"):
        load_problem(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(ProblemError, match=r"must be an .npz archive, got a single array"):
        load_problem(tmp_path / "one.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_anywhere_in_a_file_is_refused_if_it_is_seen(save: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    save(path, **arrays_of_another_program())
    whole = path.read_bytes()
    refused = set()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            load_problem(path)
        except ProblemError as error:  # anything else fails the test
            refused.add(str(error).partition("failed: ")[2].partition(":")[0])
    path.write_bytes(whole[:-30])
    with pytest.raises(ProblemError, match=r"must be an .npz archive of plain arrays, but reading it failed: "):
        load_problem(path)
    assert {"BadZipFile", "NotImplementedError"} <= refused
    assert ("error" in refused) == (save is np.savez_compressed)  # zlib's


def test_damage_names_the_array(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, **arrays_of_another_program())
    whole = path.read_bytes()
    place = whole.rindex(np.array([2.0, 1.0], dtype=np.float32).tobytes())
    path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
    with pytest.raises(ProblemError, match=r"reading array 'node_memory_bytes_0' failed: BadZipFile: Bad CRC-32"):
        load_problem(path)


def test_tables_that_are_shared_are_one_object_and_are_changed_once() -> None:
    time, memory = np.ones((2, 2)), np.zeros((2, 2))
    problem = Problem(
        ["a", "b", "c"], [[1.0, 2.0]] * 3, [[0.0, 0.0]] * 3, [(0, 1), (1, 2)], [time, time], [memory, memory]
    )
    assert problem.edge_time_s[0] is problem.edge_time_s[1]
    calls: list[int] = []

    def doubled(time_s: np.ndarray, memory_bytes: np.ndarray, axes: int) -> tuple[np.ndarray, np.ndarray]:
        calls.append(axes)
        return 2 * time_s, memory_bytes

    changed = problem.with_tables(doubled)
    assert calls == [1, 2, 0]
    assert changed.edge_time_s[0] is changed.edge_time_s[1]
    assert np.array_equal(changed.edge_time_s[0], 2 * time)
    assert np.array_equal(changed.node_time_s[2], [2.0, 4.0])
