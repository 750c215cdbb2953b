"""Layers on devices: which ones, and where."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensoropt.baselines import apply_baseline
from tensoropt.baselines.gnmt import gnmt
from tensoropt.cluster import preset
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.graph.graph import Graph
from tensoropt.search import get_finder
from tensoropt.space.space import SearchSpace
from tensoropt.space.stages import _ends, _of_parts, _partition, is_recurrent, stages
from tests.examples.small_models import imported, small_space
from tests.plan.small_graphs import mlp, tied

pytestmark = pytest.mark.tf


def _space(graph: Graph, devices: int, *, placements: bool = False) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(preset("p100", devices=devices)), reuse=True, placements=placements)


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
def test_stages_are_the_best_of_all_cuts(devices: int) -> None:
    rng = np.random.default_rng(devices)
    for _ in range(20):
        work = rng.random(4)
        stage = _partition(work, np.zeros(5), devices, 1)
        assert (np.diff(stage) >= 0).all() and stage.max() < devices
        worst = max(work[stage == device].sum() for device in range(devices))
        best = min(
            max(part.sum() for part in np.split(work, cut))
            for cut in itertools.combinations_with_replacement(range(5), devices - 1)
        )
        assert worst == pytest.approx(best)


@pytest.mark.parametrize(("devices", "times"), [(1, 4), (2, 2), (2, 8), (3, 4), (4, 3)])
def test_stages_of_a_pipeline_are_cut_where_it_takes_least(devices: int, times: int) -> None:
    rng = np.random.default_rng(devices)
    for _ in range(20):
        work, cuts = rng.random(6), np.array([0.0, *rng.random(5) * rng.choice([0.1, 1.0, 5.0]), 0.0])
        of_all = []
        for inner in itertools.combinations(range(1, 6), devices - 1):
            ends = [0, *inner, 6]
            of_all.append(_pipeline_seconds(work, cuts, ends, times))
        stage = _partition(work, cuts, devices, times)
        found = np.searchsorted(stage, np.arange(devices + 1))
        assert (np.diff(stage) >= 0).all()
        assert _pipeline_seconds(work, cuts, found.tolist(), times) == pytest.approx(min(of_all))


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_stages_may_be_cut_such_that_the_fullest_holds_the_least(devices: int) -> None:
    rng = np.random.default_rng(devices)
    for _ in range(20):
        held = [_of_parts(amounts) for amounts in rng.random((devices, 6))]
        ends = _ends(held, np.maximum)
        fullest = [
            max(part[a, b] for part, (a, b) in zip(held, itertools.pairwise([0, *cuts, 6]), strict=True))
            for cuts in itertools.combinations_with_replacement(range(7), devices - 1)
        ]
        of_ends = zip(held, itertools.pairwise(ends.tolist()), strict=True)
        assert max(part[a, b] for part, (a, b) in of_ends) == pytest.approx(min(fullest))


def test_stages_in_rounds_take_turns_along_the_layers() -> None:
    model = imported("rnnlm", 8, layers=4, hidden=16, steps=1, vocabulary=32)
    space = SearchSpace(model.graph, AnalyticCost(preset("p100", devices=4)), reuse=True, micro_batches=4)
    once = stages(space, (0,), as_pipeline=True)
    twice = stages(space, (0,), as_pipeline=True, rounds=2)
    assert once.keys() == twice.keys()
    products = [op.name for op in space.operators if op.type == "Einsum" and op.name in once]
    assert [name for name, _ in itertools.groupby(once[name] for name in products)] == [0, 1]
    assert [name for name, _ in itertools.groupby(twice[name] for name in products)] == [0, 1, 0, 1]
    few = SearchSpace(mlp(), AnalyticCost(preset("p100", devices=2)), reuse=True, micro_batches=2)
    assert set(stages(few, (0,), as_pipeline=True, rounds=2).values()) == {0, 1}


def _pipeline_seconds(work: np.ndarray, cuts: np.ndarray, ends: list[int], times: int) -> float:
    parts = [work[a:b].sum() + cuts[a] + cuts[b] if a < b else 0.0 for a, b in itertools.pairwise(ends)]
    return sum(parts) + (times - 1) * max(parts)


def test_model_parallelism_puts_consecutive_layers_on_one_device_each() -> None:
    space = _space(mlp(), 2, placements=True)
    found = get_finder("model_parallel").find(_space(mlp(), 2))
    assert get_finder("model_parallel").places
    chosen = space.assignment(found.space.configurations(found.frontier.assignments[0]))
    plan = space.plan(chosen, "model_parallel")
    # Either space rounds its costs to a unit of its own.
    costs = found.frontier.time_s[0], found.frontier.memory_bytes[0]
    assert (plan.time_s, plan.memory_bytes) == pytest.approx(costs, rel=1e-12)
    where = {op.name: str(plan.configuration(op.name)) for op in space.operators}
    assert where["h"] == where["w1"] == where["a"] == where["b1"] == "@0"
    assert where["y"] == where["w2"] == where["s"] == "@1"
    assert where["loss:0/sink"] == "*"
    kinds = [step.kind.value for entry in plan.edges.values() for step in entry.forward]
    assert sorted(kinds) == ["broadcast", "send"]  # of the loss, and of what the second layer reads
    whole = space.plan([space.choices(op.name).index(space.choices(op.name)[-1]) for op in space.operators], "whole")
    # Each device has less than all, and more than its own layer's weights.
    memory = space.device_memory(chosen)
    assert found.devices_differ and memory.max() == found.fullest_bytes(found.frontier.point(0)) < whole.memory_bytes
    assert memory[0] > 2 * space.graph["w1"].outputs[0].size_bytes


def test_gnmt_shares_the_batch_between_hosts_and_puts_layers_on_the_devices_of_each() -> None:
    model = imported("rnnlm", 16, layers=2, hidden=16, steps=3, vocabulary=32)
    space = _space(model.graph, 16)
    chosen = gnmt(space)
    stage = stages(space, space.mesh.axes[-2:])
    hosts = 2  # of four mesh axes
    for op in space.operators:
        actions = chosen[op.name].actions
        if op.name in stage and op.type not in ("Sink", "Mean"):
            assert set(actions[:hosts]) != {None}, op  # samples
            assert actions[hosts:] == (f"@{stage[op.name] // 2}", f"@{stage[op.name] % 2}"), op
    for op in space.graph.of_type("Variable"):
        assert set(chosen[op.name].actions[:hosts]) == {None}
        assert all(action.startswith("@") for action in chosen[op.name].actions[hosts:] if action is not None)
    layers = {
        layer: {
            stage[op.name]
            for op in space.operators
            if any(t.op.startswith(f"layer{layer}/") for t in op.inputs) and op.name in stage
        }
        for layer in (1, 2)
    }
    assert all(len(devices) <= 2 for devices in layers.values())
    assert max(layers[1]) <= min(layers[2])


def test_steps_of_a_recurrent_layer_are_on_one_device() -> None:
    space = small_space("nmt")
    stage = stages(space, space.mesh.axes[-2:])
    readers: dict[str, set[int]] = {}
    for op in space.operators:
        for tensor in op.inputs:
            if "recurrent_weights" in tensor.op and op.name in stage:
                readers.setdefault(tensor.op, set()).add(stage[op.name])
    assert len(readers) == 4
    assert all(len(devices) == 1 for devices in readers.values())


def test_a_recurrent_network_uses_weights_step_after_step() -> None:
    assert is_recurrent(small_space("rnn"))
    assert is_recurrent(_space(tied(), 2))
    assert not is_recurrent(small_space("bert_large"))  # looks words up and multiplies by one table
    assert not is_recurrent(_space(mlp(), 2))


def test_gnmt_is_for_recurrent_networks() -> None:
    with pytest.raises(PlanError, match="'gnmt': does not apply because it is for recurrent networks"):
        apply_baseline("gnmt", _space(mlp(), 2))


def test_gnmt_needs_several_devices_in_a_host() -> None:
    topology = preset("v100", hosts=2)
    level = type(topology.levels[1])("device", 1, 1e-6, 1e9)
    alone = SearchSpace(tied(), AnalyticCost(type(topology)("2x1", (topology.levels[0], level), topology.device)))
    with pytest.raises(PlanError, match="'gnmt': does not apply because hosts of 2x1 have one device each"):
        apply_baseline("gnmt", alone)


def test_one_level_of_devices_is_one_host() -> None:
    space = SearchSpace(tied(), AnalyticCost(cpu(2)))
    assert str(gnmt(space)["h"]) == "@0"


def test_model_parallelism_needs_several_devices() -> None:
    with pytest.raises(PlanError, match="'model_parallel': does not apply because one device has all layers"):
        apply_baseline("model_parallel", _space(mlp(), 1))
