"""What the papers tell of the strategies that searches find, with the models' own sizes and few devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from benchmarks.paper.setting import without_updates
from benchmarks.paper.whole_space import Mover, modules_of, whole_space
from tensoropt.cluster import preset
from tensoropt.cost import AnalyticCost
from tensoropt.mcmc import Simulator, network_of
from tensoropt.pase import fastest_point
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.space.propagation import Actions
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace
from tests.effort import left_to_ci
from tests.examples.small_models import imported

pytestmark = pytest.mark.tf


def _fastest(
    model: str, cluster: str, devices: int, batch_size: int, *, updates: bool = True, **sizes: Any
) -> tuple[SearchSpace, Plan]:
    """The fastest strategy of a model whose inputs are fed by data parallelism."""
    found = imported(model, batch_size, **sizes)
    graph = found.graph if updates else without_updates(found.graph)
    cost = AnalyticCost(preset(cluster, devices=devices))
    fed = (Configuration(("d0",) * len(cost.mesh.axes)),)
    inputs = {op.name: fed for op in found.graph.of_type("Placeholder") if op.outputs[0].shape}
    space = SearchSpace(graph, cost, reuse=True, allowed=inputs)
    best = fastest_point(with_repeated_cells(space))
    return space, space.plan(best.assignments[0], "pase", alternatives=best.alternatives[0])


def _pieces(space: SearchSpace, plan: Plan, operator: str) -> dict[str, int]:
    """Into how many pieces each iteration axis of an operator is cut."""
    configuration = plan.configuration(operator)
    return {
        axis: space.mesh.extent(configuration.mesh_axes(axis))
        for axis in space.rules[operator].split
        if configuration.mesh_axes(axis)
    }


def test_alexnets_convolutions_share_the_batch_and_its_dense_layers_alternate() -> None:
    """PaSE section IV-C: out- and in-channels by 4 and 8, by 8 and 4, by 4 and 8, so that nothing moves between."""
    space, plan = _fastest("alexnet", "1080ti", 8, 128)
    for number in range(1, 5):
        assert _pieces(space, plan, f"conv{number}/Conv2D") == {"n": 8}
    dense = [_pieces(space, plan, f"{layer}/MatMul") for layer in ("fc6", "fc7", "logits")]
    assert dense == [{"n": 2, "k": 4}, {"n": 4, "k": 2}, {"n": 2, "k": 4}]
    # What one gives by 2 or 4 the next reads so: only sums are left to make, of outputs in pieces.
    for layer in ("fc7", "logits"):
        between = [edge for edge in plan.edges if edge.consumer == f"{layer}/MatMul" and edge.position == 0]
        assert [step for edge in between for step in plan.edges[edge].forward if not step.kind.is_local] == []


@left_to_ci("a benchmark, which users do not run")
def test_inceptions_modules_share_the_batch_but_for_parts_of_the_last() -> None:
    """PaSE section IV-C: "data parallelism for modules A-D", for E "a hybrid of data+parameter parallelism"."""
    modules = [("a", 64), ("b", 0), ("c", 192), ("d", 0), ("e", 0)]
    space, plan = _fastest("inception3", "1080ti", 4, 64, modules=modules)
    pieces = defaultdict(list)
    for op in space.operators:
        if op.type == "Conv2D":
            pieces[op.name.removeprefix("module_")[0]].append(_pieces(space, plan, op.name))
    for kind in "sabcd":  # the stem, too
        assert all(split == {"n": 4} for split in pieces[kind]), kind
    hybrid = [split for split in pieces["e"] if split != {"n": 4}]
    assert hybrid
    assert all(split.get("n", 1) > 1 and {*split} & {"c", "f"} for split in hybrid)
    assert {*_pieces(space, plan, "logits/MatMul")} & {"k", "n"}


def test_nmt_splits_its_softmax_by_words_and_never_synchronises_its_embeddings() -> None:
    """FlexFlow section 8.4: parameters in parallel for softmax layers, no synchronisation for embeddings.

    There one device looks words up; here, where operators run on all devices, each looks all of them up.
    """
    space, plan = _fastest("nmt", "p100", 4, 256, updates=False, steps=4)
    assert _pieces(space, plan, "logits/einsum/Einsum") == {"n": 4}
    (loss,) = [op.name for op in space.operators if op.type == "SparseSoftmaxCrossEntropyWithLogits"]
    assert _pieces(space, plan, loss) == {"c": 4}
    table = plan.configuration("logits/kernel")
    assert table.output_layouts(space.rules["logits/kernel"], 0).value.dims == ((), space.mesh.axes)
    for language in ("source", "target"):
        assert "i0" not in _pieces(space, plan, f"{language}_embedding/Gather")  # which is the sentences


def _whole(space: SearchSpace, plan: Plan) -> tuple[Mover, Callable[[Mapping[str, Actions]], float]]:
    """Moves from a plan in the whole space, and how many times as long as the plan a step takes then."""
    mover = Mover(whole_space(space), np.random.default_rng(0))
    current = mover.lifted({op.name: plan.configuration(op.name) for op in space.operators})
    assert current is not None
    mover.take(current)
    network = network_of(mover.space, overlap=True)  # FlexFlow's simulator
    simulator = Simulator(network, current)
    before_s = simulator.makespan_s

    def ratio(decisions: Mapping[str, Actions]) -> float:
        moved = mover.moved(decisions)
        if moved is None or not network.allows(np.array(moved)):
            return np.inf
        simulator.reset(moved)
        return simulator.makespan_s / before_s

    return mover, ratio


@left_to_ci("a benchmark, which users do not run")
def test_side_by_side_branches_of_inception_pay_only_where_they_are_alike_and_few() -> None:
    """FlexFlow section 8.4 tells of branches side by side.

    On 16 P100 with 64 images each, all costs are proportional to the work, so that half of the devices take twice as
    long: a module's branches on halves of the devices cost more than they save of synchronisation. Those of row and
    column in the last module, of equal work, cost nearly nothing between two neighbours.
    """
    space, plan = _fastest("inception3", "p100", 16, 1024, modules=[("a", 32), ("e", 0)])
    mover, ratio = _whole(space, plan)
    last = len(space.mesh.axes) - 1
    modules = modules_of(mover.space)
    found = {module[0][0]: ratio(mover.side_by_side(module, last)) for module in modules}
    assert found["module_a_1/branch1_1/Conv2D"] > 1.01
    assert found["module_e_2/branch2_1/Conv2D"] > 1.01
    assert found["module_e_2/branch2_row/Conv2D"] < 1.002
    across_hosts = ratio(mover.side_by_side(modules[-1], 0))
    assert across_hosts > 1.02


def test_nmts_embedding_on_few_devices_is_faster_than_on_all_but_not_than_in_columns() -> None:
    """FlexFlow section 8.4: "a small number of GPUs for embedding layers", since they have little to compute."""
    space, plan = _fastest("nmt", "p100", 4, 256, updates=False, steps=4)
    mover, ratio = _whole(space, plan)
    found = {
        configuration: ratio({"source_embedding/Gather": configuration.actions})
        for configuration in mover.space.choices("source_embedding/Gather")
    }
    few = min(time for configuration, time in found.items() if configuration.at)
    columns = min(time for configuration, time in found.items() if "p1" in configuration.actions)
    assert columns <= few < 1
