"""Chains over the whole space: operators move with what follows them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.paper.whole_space import Mover, modules_of, search_whole_space, whole_space
from tensoropt.baselines.data_parallel import data_parallel
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import InfeasibleError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.mcmc import Stop, simulate
from tensoropt.mcmc.device_memory import DeviceMemory
from tensoropt.plan.configuration import Configuration
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import operator

pytestmark = pytest.mark.pure

_PLAIN = {"transpose_a": False, "transpose_b": False}
_REST = ("left", "left/relu", "right", "right/relu", "wl", "wr")


def _branches(rows: int, width: int) -> Graph:
    """Two dense layers side by side on one input, each with an activation, and their sum."""
    shape, weights = (rows, width), (width, width)
    operators = (
        operator("x", "Placeholder", (), shape),
        operator("x/fanout0", "Fanout", ("x",), shape),
        operator("wl", "Variable", (), weights),
        operator("left", "MatMul", ("x/fanout0", "wl"), shape, _PLAIN),
        operator("left/relu", "Relu", ("left",), shape),
        operator("wr", "Variable", (), weights),
        operator("right", "MatMul", ("x/fanout0", "wr"), shape, _PLAIN),
        operator("right/relu", "Relu", ("right",), shape),
        operator("sum", "AddV2", ("left/relu", "right/relu"), shape),
        operator("loss", "Mean", ("sum",), (), {"keep_dims": False}, static={1: (0, 1)}),
        operator("loss:0/sink", "Sink", ("loss",), ()),
    )
    edges = frozenset(
        Edge(tensor, op.name, position)
        for op in operators
        for position, tensor in enumerate(op.inputs)
        if not tensor.op.startswith("x")
    )
    return Graph(operators, frozenset(op.name for op in operators), edges)


def _odd() -> SearchSpace:
    """Layers of odd sizes, which two devices can share in no way but one each."""
    return SearchSpace(_branches(1023, 2047), AnalyticCost(cpu(2)))


def _first(space: SearchSpace) -> dict[str, Configuration]:
    return space.configurations(space.assignment(data_parallel(space)))


def test_branches_of_sizes_that_do_not_divide_run_side_by_side() -> None:
    space = _odd()
    whole = whole_space(space)
    assert modules_of(whole) == ((("left",), ("right",)),)
    found = search_whole_space(whole, [_first(space)], moves=100, stop=Stop(iterations=500))
    places = {name: found.configurations[name].at for name in _REST}
    # A layer is in one place, its activation and weights with it, and the other layer in the other.
    assert places["left"] == places["left/relu"] == places["wl"]
    assert places["right"] == places["right/relu"] == places["wr"]
    assert {place for name in ("left", "right") for _, place in places[name]} == {0, 1}
    assert found.simulated_s < 0.6 * found.first_s
    assert found.taken > 0
    alone = whole.of_one_strategy(found.configurations)
    assert simulate(alone, (0,) * len(alone.operators)).makespan_s == found.simulated_s


def test_a_search_repeats_itself_and_is_never_slower_than_its_beginning() -> None:
    space = SearchSpace(_branches(8, 4), AnalyticCost(cpu(4)))
    one, other = (
        search_whole_space(whole_space(space), [_first(space)], moves=50, stop=Stop(iterations=200)) for _ in range(2)
    )
    assert one.configurations == other.configurations
    assert one.simulated_s == other.simulated_s <= one.first_s


def test_a_move_takes_along_what_follows() -> None:
    space = _odd()
    mover = Mover(whole_space(space), np.random.default_rng(0))
    current = mover.lifted(_first(space))
    assert current is not None
    mover.take(current)
    moved = mover.moved(mover.at(["left"], 0, 1))
    assert moved is not None
    changed = [op.name for op, (a, b) in zip(space.operators, zip(current, moved, strict=True), strict=True) if a != b]
    assert changed == ["wl", "left", "left/relu"]
    assert mover.moved({}) is None  # nothing moves


def test_what_does_not_fit_is_no_result() -> None:
    space = _odd()
    whole = whole_space(space)
    with pytest.raises(
        InfeasibleError,
        match=r"none of the strategies that \d+ moves and a chain from there led to fits 10 bytes per device",
    ):
        search_whole_space(whole, [_first(space)], moves=5, stop=Stop(iterations=10), memory_bytes=10)
    with pytest.raises(InfeasibleError, match=r"must have one of the 1 strategies to begin at, and has none\. Give"):
        unknown = {op.name: Configuration(("sideways",)) for op in space.operators}
        search_whole_space(whole, [unknown])


def test_a_limit_below_the_beginning_is_kept_and_below_the_fastest_costs_time() -> None:
    space = SearchSpace(_branches(1024, 2048), AnalyticCost(cpu(2)))
    whole, first = whole_space(space), _first(space)

    def fullest(chosen: Mapping[str, Configuration]) -> float:
        alone = whole.of_one_strategy(chosen)
        return float(alone.device_memory((0,) * len(alone.operators)).max())

    free = search_whole_space(whole, [first], moves=50, stop=Stop(iterations=500))
    limit = 0.6 * fullest(first)
    found = search_whole_space(whole, [first], moves=50, stop=Stop(iterations=500), memory_bytes=limit)
    assert fullest(found.configurations) <= limit < fullest(free.configurations) < fullest(first)
    assert found.simulated_s > free.simulated_s


def test_the_fullest_device_of_one_strategy_after_the_other() -> None:
    whole = whole_space(SearchSpace(_branches(1023, 2047), AnalyticCost(cpu(4))))
    memory, rng = DeviceMemory(whole, np.inf), np.random.default_rng(0)
    for _ in range(20):
        chosen = [int(rng.integers(len(whole.choices(op.name)))) for op in whole.operators]
        parts = len(whole.operators) + len(whole.edges)
        assert 0 <= memory.fullest(chosen) - whole.device_memory(chosen).max() <= parts


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupting(mover: Mover) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Mover, "propose", interrupting)
    space = _odd()
    found = search_whole_space(whole_space(space), [_first(space)])
    assert found.interrupted
    assert found.simulated_s < 0.6 * found.first_s  # branches were tried side by side before
