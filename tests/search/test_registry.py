"""The contract of all finders: every search and every baseline, by being registered."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import InfeasibleError, PlanError, ProblemError
from tensoropt.graph.graph import Graph
from tensoropt.mcmc.options import Mcmc
from tensoropt.problem import Frontier, Problem, brute_force
from tensoropt.search import Finder, finders, get_finder, register_baseline, register_search, registry
from tensoropt.search.finding import Found
from tensoropt.search.options import MemoryLimit
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import mlp, tied

pytestmark = pytest.mark.pure

_GRAPHS: Mapping[str, tuple[Callable[..., Graph], int]] = {
    "mlp": (mlp, 4),
    "wide_mlp": (functools.partial(mlp, width=48), 2),
    "tied": (tied, 2),
}


@functools.cache
def graph_space(name: str) -> SearchSpace:
    """All strategies of a small graph that run."""
    make, devices = _GRAPHS[name]
    return SearchSpace(make(), AnalyticCost(cpu(devices)), reuse=True)


@functools.cache
def least_bytes(name: str) -> float:
    return float(get_finder("ft").find(graph_space(name)).frontier.memory_bytes[0])


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registry of this test's own."""
    finders()
    monkeypatch.setattr(registry, "_FINDERS", dict(registry._FINDERS))
    yield


def check_finder(finder: Finder, name: str) -> Found | None:
    """Asserts what every finder promises, on one of the small graphs; None where it does not apply."""
    space, limit = graph_space(name), MemoryLimit(1.5 * least_bytes(name), "test")
    try:
        found = finder.find(space)
    except PlanError as error:
        assert f"{finder.kind} {finder.name!r}: does not apply because" in str(error)
        return None
    frontier = found.frontier
    # Its points cost what the tables say.
    time_s, memory_bytes = found.space.problem.costs(frontier.assignments, frontier.alternatives)
    assert (time_s.tolist(), memory_bytes.tolist()) == (frontier.time_s.tolist(), frontier.memory_bytes.tolist())
    if finder.offers == "fastest":
        assert len(frontier) == 1
    # It repeats itself.
    again = finder.find(space).frontier
    assert again.assignments.tolist() == frontier.assignments.tolist()
    assert again.alternatives.tolist() == frontier.alternatives.tolist()
    # What it is said to find within a limit fits, or nothing is said to.
    try:
        limited = finder.find(space, limit)
        assert limited.fullest_bytes(limited.choose("mini_time", limit)) <= limit.limit_bytes
    except InfeasibleError as error:
        assert "bytes are missing" in str(error) or "fits" in str(error)
    # Its plans run.
    plan = found.space.plan(frontier.assignments[0], finder.name, alternatives=frontier.alternatives[0])
    plan.check(found.space.graph, runs=True)
    assert finder.places is found.devices_differ
    return found


@pytest.mark.parametrize("graph", _GRAPHS)
@pytest.mark.parametrize("finder", finders(), ids=lambda finder: finder.name)
def test_every_finder_keeps_its_promises(finder: Finder, graph: str) -> None:
    found = check_finder(finder, graph)
    if found is None:
        return
    everything = get_finder("ft").find(graph_space(graph)).frontier
    if not finder.places:  # then it is a strategy of the space, none of which beats the frontier
        for time_s, memory_bytes in zip(found.frontier.time_s, found.frontier.memory_bytes, strict=True):
            assert everything.best(float(memory_bytes)).time_s <= time_s * (1 + 1e-12)
    if finder.offers == "frontier":
        assert found.frontier.time_s.tolist() == everything.time_s.tolist()


def test_a_finder_is_the_file_of_its_name() -> None:
    files = registry._files()
    for finder in finders():
        assert files[finder.name].startswith("tensoropt.finders" if finder.kind == "search" else "tensoropt.baselines")


def test_only_what_is_asked_for_is_loaded() -> None:
    code = """
import sys
from tensoropt.search import get_finder
packages = ("numba", "tensorflow", "tensoropt.mcmc", "tensoropt.pase", "tensoropt.ft")
for name in (None, "megatron", "ft", "pase"):
    name and get_finder(name)
    print(name, *(package for package in packages if package in sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.split("\n") == [
        "None",
        "megatron",
        "ft tensoropt.ft",
        "pase tensoropt.pase tensoropt.ft",
        "",
    ]


def test_what_begins_at_others_comes_last() -> None:
    places = {finder.name: place for place, finder in enumerate(finders())}
    assert places["ft"] < places["pase"] < places["data_parallel"] < places["megatron"] < places["mcmc"]
    late = [finder.begins_at_others for finder in finders()]
    assert late == sorted(late) and get_finder("mcmc").begins_at_others


def test_options_are_of_the_finder_of_their_name() -> None:
    options = Mcmc(iterations=5)
    assert (get_finder(options).name, get_finder(options).options) == ("mcmc", options)
    assert get_finder("mcmc").options == Mcmc()

    class Stranger:
        name = "mcmc"

    with pytest.raises(PlanError, match=r"search <.*Stranger .*>: must be one of 'columns', 'ft', .*'mcmc'"):
        get_finder(Stranger())


def test_an_unknown_finder_is_an_error_that_lists_the_known() -> None:
    for name in ("magic", "placement"):  # the second one is a file that registers nothing
        with pytest.raises(PlanError, match=rf"search '{name}': must be one of 'columns', 'ft', .*'data_parallel'"):
            get_finder(name)


def test_what_needs_a_space_does_not_solve_tables() -> None:
    assert registry.get_solver("pase")(Problem(["a"], [[2.0, 1.0]], [[0.0, 0.0]])).time_s.tolist() == [1.0]
    with pytest.raises(ProblemError, match="search 'megatron': must be one of tables alone"):
        registry.get_solver("megatron")


@pytest.mark.usefixtures("own_registry")
def test_a_function_of_tables_searches_operators_that_decide() -> None:
    @register_search("all_of_them", offers="frontier")
    def all_of_them(problem: Problem) -> Frontier:
        return brute_force(problem)

    assert get_finder("all_of_them") in finders()
    space = graph_space("tied")
    found = get_finder("all_of_them").find(space)
    assert "operators that decide" in (found.frontier.searched or "")
    assert np.isclose(found.frontier.time_s.min(), get_finder("pase").find(space).frontier.time_s[0], rtol=1e-12)


@pytest.mark.usefixtures("own_registry")
def test_a_name_is_registered_once() -> None:
    with pytest.raises(
        ProblemError,
        match=r"search 'pase': a name may be registered once, got tensoropt\.finders\.pase\._find and .*other",
    ):

        @register_baseline("pase")
        def other(space: SearchSpace) -> Frontier:
            return brute_force(space.problem)
