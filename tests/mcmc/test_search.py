"""Markov chains: seeded, bounded, within memory, and never better than the best."""

from __future__ import annotations

import dataclasses
import io
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console
import rich.progress

from tensoropt.baselines.data_parallel import data_parallel
from tensoropt.cluster.presets import p100
from tensoropt.cluster.scaling import scaled
from tensoropt.cost import AnalyticCost
from tensoropt.errors import InfeasibleError, PlanError, ProblemError
from tensoropt.mcmc import Chain, Mcmc, Stop, chains, mcmc, network_of, search_strategy, simulate
from tensoropt.mcmc.chain import Report
from tensoropt.mcmc.options import Initial
from tensoropt.pase import fastest_point
from tensoropt.problem import Problem, brute_force
from tensoropt.space.space import SearchSpace
from tests.ft.random_problems import random_problem
from tests.plan.small_graphs import mlp

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace(mlp(), AnalyticCost(scaled(p100(), 4)))


def _problem(seed: int, *, alternatives: bool = False) -> Problem:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, size=5).tolist()
    edges = [(0, 1), (2, 1), (1, 3), (3, 4), (4, 0)]
    more = (2,) if alternatives else ()

    def table(*shape: int) -> np.ndarray:
        result = rng.exponential(size=(*shape, *more))
        return np.where(rng.random(result.shape) < 0.1, np.inf, result)

    times = [table(sizes[a], sizes[b]) for a, b in edges]
    return Problem(
        [f"n{node}" for node in range(5)],
        [rng.exponential(size=size) for size in sizes],
        [rng.integers(0, 100, size=size).astype(float) for size in sizes],
        edges,
        times,
        [np.where(np.isfinite(time), rng.integers(0, 50, size=time.shape), np.inf) for time in times],
    )


@pytest.mark.parametrize("alternatives", [False, True])
def test_an_additive_search_never_reports_below_the_optimum_and_mostly_finds_it(alternatives: bool) -> None:
    reached = 0
    for seed in range(30):
        problem = _problem(seed, alternatives=alternatives)
        try:
            best = brute_force(problem).best().time_s
        except InfeasibleError:
            with pytest.raises(InfeasibleError, match="no possible strategy was found"):
                mcmc(problem, Mcmc(iterations=10))
            continue
        found = mcmc(problem, Mcmc(iterations=2000, seed=seed, beta=3.0))
        assert len(found) == 1
        assert not found.exact
        assert found.best().time_s >= best
        reached += found.best().time_s == best
    assert reached >= 27


@pytest.mark.parametrize("power", [-900, -60, 60, 900])
def test_a_problem_may_be_in_any_unit(power: int) -> None:
    for seed in range(3, 6):
        problem = _problem(seed)
        times = [tuple(time * 2.0**power for time in some) for some in (problem.node_time_s, problem.edge_time_s)]
        scaled = dataclasses.replace(problem, node_time_s=times[0], edge_time_s=times[1])
        one = mcmc(problem, Mcmc(iterations=300, seed=seed, beta=3.0))
        other = mcmc(scaled, Mcmc(iterations=300, seed=seed, beta=3.0 * 2.0**-power))
        assert other.assignments.tolist() == one.assignments.tolist()
        assert other.time_s[0] == one.time_s[0] * 2.0**power


def test_small_and_huge_costs_beside_one_another_are_told_apart() -> None:
    # What is meant never to be taken may be a large number, if not so large that a problem refuses it.
    times = [[2e-14, 1e-14, 1e-6], [3e-14, 4e-14, 1e-6], [1e-14, 2e-14, 1e-6]]
    problem = Problem(["a", "b", "c"], times, [[0.0] * 3] * 3, [(0, 1)], [1e-14 - np.diag([1e-14] * 3)])
    assert mcmc(problem, Mcmc(iterations=300, initial=([2, 2, 2],))).time_s[0] == brute_force(problem).best().time_s


def test_a_search_repeats_itself(space: SearchSpace) -> None:
    results = [search_strategy(space, Mcmc(iterations=1500, seed=3, chains=2)) for _ in range(2)]
    assert results[0].time_s == results[1].time_s
    assert [c.assignment for c in results[0].chains] == [c.assignment for c in results[1].chains]
    assert [(c.proposals, c.accepted, c.best_at) for c in results[0].chains] == [
        (c.proposals, c.accepted, c.best_at) for c in results[1].chains
    ]
    other = search_strategy(space, Mcmc(iterations=1500, seed=4, chains=2))
    assert [c.accepted for c in other.chains] != [c.accepted for c in results[0].chains]


@pytest.mark.slow
def test_chains_on_processes_find_what_they_find_one_after_another(space: SearchSpace) -> None:
    one = search_strategy(space, Mcmc(iterations=600, seed=5, chains=2))
    two = search_strategy(space, Mcmc(iterations=600, seed=5, chains=2, processes=2))
    assert (one.time_s, one.assignment, one.best_chain) == (two.time_s, two.assignment, two.best_chain)


def test_full_and_delta_simulation_make_the_same_search_whether_it_ends_early_or_not(space: SearchSpace) -> None:
    network = network_of(space)
    first = [0] * len(space.operators)
    found = [
        Chain(network, first, seed=1, delta=delta, early=early).run(Stop(iterations=1500))
        for delta, early in ((True, True), (True, False), (False, False))
    ]
    assert len({(one.cost_ticks, one.assignment, one.accepted, one.best_at) for one in found}) == 1


def test_the_best_takes_what_it_says_and_no_more_than_the_first(space: SearchSpace) -> None:
    first = [0] * len(space.operators)
    result = search_strategy(space, Mcmc(iterations=1500, patience=1.0, initial=(first, "random")))
    assert simulate(space, result.assignment).makespan_s == result.time_s
    assert result.time_s <= simulate(space, first).makespan_s
    assert 0 < result.acceptance_rate < 1
    assert result.memory_bytes is None
    assert [chain.stopped_by for chain in result.chains] == ["iterations"] * 2


def test_chains_begin_at_what_baselines_and_searches_give(space: SearchSpace) -> None:
    indices = space.assignment(data_parallel(space))
    of_pase = fastest_point(space.problem).best()
    for cost in ("simulated", "additive"):
        firsts: list[Initial] = ["data_parallel", indices, data_parallel(space)]
        found = [search_strategy(space, Mcmc(iterations=5, initial=(first,), cost=cost, seed=2)) for first in firsts]
        assert found[0].assignment == found[1].assignment == found[2].assignment
    best = search_strategy(space, Mcmc(iterations=5, initial=(of_pase,), cost="additive"))
    assert best.time_s == pytest.approx(of_pase.time_s)
    assert found[0].time_s > best.time_s


def test_nothing_exceeds_a_memory_limit(space: SearchSpace) -> None:
    free = search_strategy(space, Mcmc(iterations=2000, seed=1))
    problem = space.problem
    used = float(problem.costs(np.array(free.assignment))[1][0])
    limit = 0.7 * used
    result = search_strategy(space, Mcmc(iterations=4000, seed=1), memory_bytes=limit)
    assert result.memory_bytes is not None
    assert result.memory_bytes <= limit
    assert result.memory_bytes == problem.costs(np.array(result.assignment))[1][0]
    assert result.time_s >= free.time_s
    additive = search_strategy(space, Mcmc(iterations=4000, seed=1, cost="additive"), memory_bytes=limit)
    assert additive.memory_bytes is not None
    assert additive.memory_bytes <= limit


@pytest.mark.parametrize("limit", [np.inf, 1e30, 2.0**70])
def test_a_limit_that_nothing_exceeds_may_be_infinite(space: SearchSpace, limit: float) -> None:
    wanted = search_strategy(space, Mcmc(iterations=300), memory_bytes=1e15)
    found = search_strategy(space, Mcmc(iterations=300), memory_bytes=limit)
    assert (found.assignment, found.memory_bytes) == (wanted.assignment, wanted.memory_bytes)
    frontier = mcmc(_problem(0), Mcmc(iterations=300), memory_bytes=limit)
    same = mcmc(_problem(0), Mcmc(iterations=300), memory_bytes=1e15)
    assert frontier.assignments.tolist() == same.assignments.tolist()


def test_what_cannot_fit_is_refused(space: SearchSpace) -> None:
    with pytest.raises(InfeasibleError, match=r"operator '.*' has no configuration within 1 bytes per device"):
        search_strategy(space, Mcmc(iterations=10), memory_bytes=1)
    largest = max(float(np.min(table)) for table in space.problem.node_memory_bytes)
    with pytest.raises(InfeasibleError, match="none of the strategies that 50 proposals led to fits"):
        search_strategy(space, Mcmc(iterations=50), memory_bytes=largest)


def test_patience_and_budgets_end_a_chain(space: SearchSpace) -> None:
    network = network_of(space)
    first = [0] * len(space.operators)
    patient = Chain(network, first).run(Stop(iterations=10**9))
    assert patient.stopped_by == "patience"
    assert patient.proposals - patient.best_at >= patient.proposals / 2
    assert Chain(network, first).run(Stop(seconds=1e-9)).stopped_by == "seconds"


def test_an_interrupt_keeps_the_best_so_far(space: SearchSpace) -> None:
    def interrupting(after: int) -> Report:
        def report(made: int, taken: int, best_s: float) -> None:
            if made >= after:
                raise KeyboardInterrupt

        return report

    network = network_of(space)
    first = [0] * len(space.operators)
    result = Chain(network, first).run(Stop(iterations=10**6), interrupting(1000))
    assert result.stopped_by == "interrupt"
    assert 1000 <= result.proposals < 2000
    assert result.cost_ticks < Chain(network, first).simulator.makespan


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("processes", "begun", "at_terminal"), [(1, 1, False), (2, 2, False), (2, 2, True)])
def test_ctrl_c_ends_all_chains_and_begins_no_others(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch, processes: int, begun: int, at_terminal: bool
) -> None:
    def interrupt(board: chains.Board) -> None:
        if not board[0] and sum(made > 0 for made in board[1::3]) == begun:
            # A terminal sends it to all processes of its group.
            others = [child.pid for child in multiprocessing.active_children()] if at_terminal else []
            for process in (*others, os.getpid()):
                os.kill(process or 0, signal.SIGINT)

    monkeypatch.setattr(chains, "_show_nothing", interrupt)
    result = search_strategy(space, Mcmc(seconds=20.0, patience=1.0, chains=3, processes=processes))
    assert [chain.stopped_by for chain in result.chains] == ["interrupt"] * begun


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_before_anything_fits_is_passed_on(space: SearchSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(board: chains.Board) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(chains, "_show_nothing", interrupt)
    largest = max(float(np.min(table)) for table in space.problem.node_memory_bytes)
    with pytest.raises(KeyboardInterrupt):
        search_strategy(space, Mcmc(chains=2, patience=1.0), memory_bytes=largest)


@pytest.mark.slow
def test_processes_of_a_script_that_cannot_be_imported_are_explained(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from tensoropt.mcmc import Mcmc, mcmc\n"
        "from tensoropt.problem import Problem\n"
        "mcmc(Problem(['a'], [[1.0]], [[0.0]]), Mcmc(iterations=1, chains=2, processes=2))\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1
    assert "ProblemError: MCMC: each of 2 processes must import the script that started it" in run.stderr
    assert '`if __name__ == "__main__":`' in run.stderr.splitlines()[-1]


@pytest.mark.slow
def test_nothing_is_compiled_after_kernels_were_loaded() -> None:
    program = """
import pkgutil, importlib, tensoropt.mcmc, tensoropt.simulate
from numba.core.registry import CPUDispatcher
from benchmarks.paper.whole_space import search_whole_space, whole_space
from tests.benchmarks.test_whole_space import _first, _odd
found = {}
for package in (tensoropt.mcmc, tensoropt.simulate):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, CPUDispatcher):
                found[value.py_func.__qualname__] = value
tensoropt.mcmc.load_kernels()
before = {name: len(value.signatures) for name, value in found.items()}
space = _odd()
search_whole_space(whole_space(space), [_first(space)], moves=20, stop=tensoropt.mcmc.Stop(iterations=100))
tensoropt.mcmc.search_strategy(space, tensoropt.mcmc.Mcmc(iterations=100), memory_bytes=1e12)
tensoropt.mcmc.search_strategy(space, tensoropt.mcmc.Mcmc(iterations=100, cost="additive"), memory_bytes=1e12)
more = [name for name, value in found.items() if len(value.signatures) != before[name]]
print(len(found) > 20, sum(map(bool, before.values())) > 10, more)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (run.stdout, run.returncode) == ("True True []\n", 0), run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_progress_of_all_chains_is_shown_and_changes_nothing(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    written = io.StringIO()
    console = rich.console.Console(file=written, force_terminal=True, width=200, _environ={"TERM": "xterm"})
    monkeypatch.setattr(rich.progress, "get_console", lambda: console)
    shown, quiet = (
        search_strategy(space, Mcmc(iterations=2000, chains=2, patience=1.0, processes=processes, progress=progress))
        for progress in (True, False)
    )
    assert shown.time_s == quiet.time_s
    assert re.search(r"best [\d.]+ ms, \d+ proposals, \d+ % taken", written.getvalue())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": 0}, "budget of seconds must be positive and finite, got 0"),
        ({"seconds": -1.0}, "budget of seconds must be positive and finite, got -1"),
        ({"iterations": 0}, "budget of iterations must be positive and finite, got 0"),
        ({"iterations": 500.5}, r"iterations must be a whole number, got 500\.5\. Give the proposals to make"),
        ({"patience": 0.0}, "patience is a share of the search so far"),
    ],
)
def test_chains_that_would_not_end_well_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Stop(**wrong)


def test_wrong_chains_and_strategies_are_refused(space: SearchSpace) -> None:
    with pytest.raises(ProblemError, match="beta must be positive and finite, got 0"):
        Chain(network_of(space), [0] * len(space.operators), beta=0.0)
    without = dict(data_parallel(space))
    without.popitem()
    with pytest.raises(PlanError, match=f"must name all {len(space.operators)} operators of training, 1 are missing"):
        search_strategy(space, Mcmc(initial=(without,)))


def test_problems_that_cannot_be_searched_are_refused() -> None:
    tied = Problem(["a", "b"], [[1.0, 2.0]] * 2, [[0.0, 0.0]] * 2, groups=[0, 0])
    with pytest.raises(ProblemError, match=r"configuration 0 of operator 'b', and 1 of another one of its group"):
        mcmc(tied, Mcmc(iterations=1, initial=([1, 0],)))
    with pytest.raises(ProblemError, match="an initial strategy is 'random' or a configuration index per operator"):
        mcmc(tied, Mcmc(iterations=1, initial=("data_parallel",)))
    impossible = Problem(["a"], [[np.inf]], [[np.inf]])
    with pytest.raises(InfeasibleError, match="each of the 1 configurations of operator 'a' has an infinite cost"):
        mcmc(impossible, Mcmc(iterations=1))
    with pytest.raises(ProblemError, match="must have a configuration for each of 1 operators, got 2"):
        mcmc(Problem(["a"], [[1.0]], [[0.0]]), Mcmc(iterations=1, initial=([0, 0],)))
    with pytest.raises(ProblemError, match="configuration 1 of operator 'a'"):
        mcmc(Problem(["a"], [[1.0, np.inf]], [[0.0, np.inf]]), Mcmc(iterations=1, initial=([1],)))


def test_nodes_of_a_group_move_as_one() -> None:
    reached = 0
    for seed in range(20):
        # A hub, a chain, pairs that repeat, with edges within groups and groups that are tied by several.
        problem = random_problem("hub" if seed % 2 else "series_parallel", seed, nodes=5)
        groups = np.arange(problem.nodes)
        for node in range(1, problem.nodes):
            if problem.configurations(node) == problem.configurations(0):
                groups[node] = 0
        problem = dataclasses.replace(problem, groups=groups)
        try:
            best = brute_force(problem).best()
        except InfeasibleError:
            continue
        found = mcmc(problem, Mcmc(iterations=2000, seed=seed, beta=3.0))
        assert len({found.assignments[0, node] for node in np.flatnonzero(groups == 0)}) == 1
        assert found.time_s[0] >= best.time_s * (1 - 1e-9)
        reached += bool(found.time_s[0] <= best.time_s * (1 + 1e-9))
    assert reached >= 12


def test_what_takes_infinite_memory_is_not_chosen() -> None:
    problem = Problem(["a"], [[[1.0, 2.0], [0.5, np.inf]]], [[[np.inf, 1.0], [np.inf, 1.0]]])
    found = mcmc(problem, Mcmc(iterations=20))
    assert (found.time_s.tolist(), found.memory_bytes.tolist()) == ([2.0], [1.0])


def test_a_chain_that_finds_nothing_that_fits_leaves_what_others_found() -> None:
    # Only the first of 2^40 strategies fits.
    names = [f"n{i}" for i in range(40)]
    problem = Problem(names, [[2.0, 1.0]] * 40, [[1.0, 100.0]] * 40)
    alone = mcmc(problem, Mcmc(iterations=5, initial=([0] * 40,)), memory_bytes=40.0)
    found = mcmc(problem, Mcmc(iterations=5, initial=([0] * 40, [1] * 40)), memory_bytes=40.0)
    assert found.assignments.tolist() == alone.assignments.tolist() == [[0] * 40]
    with pytest.raises(InfeasibleError, match="none of the strategies"):
        mcmc(problem, Mcmc(iterations=5, initial=([1] * 40,)), memory_bytes=40.0)
