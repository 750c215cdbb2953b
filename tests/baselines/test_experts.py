"""What experts' strategies do, operator by operator."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest

from tensoropt.baselines import apply_baseline
from tensoropt.cluster import preset
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.graph.graph import Graph
from tensoropt.plan.plan import Plan
from tensoropt.space.propagation import follow
from tensoropt.space.space import SearchSpace
from tests.examples.small_models import imported, small_space
from tests.plan.small_graphs import mlp, tied

pytestmark = pytest.mark.tf


def _space(graph: Graph, devices: int = 4, *, reuse: bool = True) -> SearchSpace:
    return SearchSpace(graph, AnalyticCost(preset("p100", devices=devices)), reuse=reuse)


def _plan(name: str, space: SearchSpace, point: int = 0) -> Plan:
    found = apply_baseline(name, space)
    return space.plan(found.assignments[point], name, alternatives=found.alternatives[point])


def _moved(plan: Plan) -> Counter[str]:
    """How often each kind of collective is in a plan's forward pass."""
    steps = [step for entry in plan.edges.values() for step in entry.forward]
    return Counter(step.kind.value for step in steps if not step.kind.is_local)


def _of(plan: Plan, operator: str) -> str:
    return str(plan.configuration(operator))


# ---------------------------------------------------------------------------------------------- one weird trick


def test_one_weird_trick_splits_convolutions_by_sample_and_dense_layers_by_output() -> None:
    plan = _plan("one_weird_trick", small_space("alexnet"))
    for number in range(1, 6):
        assert _of(plan, f"conv{number}/Conv2D") == "n,n"
        assert _of(plan, f"conv{number}/kernel") == "*,*"
    for layer in ("fc6", "fc7", "logits"):
        assert _of(plan, f"{layer}/MatMul") == "n,n"
        assert _of(plan, f"{layer}/kernel") == "d1,d1"
        assert _of(plan, f"{layer}/bias") == "d0,d0"
        # Every device needs all inputs of a dense layer: PaSE section IV-C finds that this is what it loses by.
        steps = [edge for edge, entry in plan.edges.items() if edge.consumer == f"{layer}/MatMul" and entry.forward]
        assert [[step.kind.value for step in plan.edges[edge].forward] for edge in steps] == [["all_gather"]]


def test_one_weird_trick_shares_the_batch_where_devices_do_not_divide_the_outputs() -> None:
    model = imported("alexnet", 16, image_size=67, hidden=64, classes=6)
    plan = _plan("one_weird_trick", _space(model.graph))
    assert _of(plan, "fc7/MatMul") == "n,n"
    assert _of(plan, "logits/MatMul") == "m,n"


def test_one_weird_trick_needs_convolutions_and_dense_layers() -> None:
    with pytest.raises(
        PlanError, match=r"'one_weird_trick': does not apply because .* 0 convolutions and 2 dense layers"
    ):
        apply_baseline("one_weird_trick", _space(mlp()))


# ---------------------------------------------------------------------------------------------- megatron


def test_megatron_splits_columns_then_rows_and_reduces_once() -> None:
    space = _space(mlp())
    plan = _plan("megatron", space)
    assert (_of(plan, "h"), _of(plan, "a"), _of(plan, "y")) == ("n,n", "d1,d1", "k,k")
    assert (_of(plan, "w1"), _of(plan, "b1"), _of(plan, "w2")) == ("d1,d1", "d0,d0", "d0,d0")
    assert _of(plan, "x") == "*,*"
    assert _moved(plan) == {"all_reduce": 1}


def test_megatron_splits_heads_hidden_units_and_the_vocabulary() -> None:
    space = small_space("transformer")
    found = apply_baseline("megatron", space)
    assert len(found) == 2  # two groups of two devices, and one of four
    plan = _plan("megatron", space, int(np.argmin(found.memory_bytes)))
    splits = {_of(plan, op.name) for op in space.operators if op.type == "ResourceGather"}
    assert splits in ({"v,v"}, {"i0,v"})
    inner = {str(plan.configuration(op.name).actions[1]) for op in space.operators if "MatMul" in op.type}
    assert inner == {"b1"}  # heads of queries and keys
    (loss,) = [op for op in space.operators if op.type == "SparseSoftmaxCrossEntropyWithLogits"]
    assert plan.configuration(loss.name).actions[1] == "c"
    moved = _moved(plan)
    assert moved["all_gather"] == 0
    # Lookups in two languages, three attentions, two feed-forward layers, and the loss.
    assert moved["all_reduce"] == 2 + 3 + 2 + 1


def test_megatron_refuses_weights_that_it_would_split_both_ways() -> None:
    with pytest.raises(
        PlanError, match=r"'megatron': does not apply because weights 'w.*' are used by columns in one pl"
    ):
        apply_baseline("megatron", _space(tied()))


def test_megatron_refuses_convolutions() -> None:
    with pytest.raises(PlanError, match=r"'megatron': does not apply because .* is a convolution"):
        apply_baseline("megatron", small_space("lenet"))


def test_megatron_needs_a_product_of_what_a_product_made() -> None:
    told = "no product sums over what the product before it made, split over groups of 4 or 2 devices"
    with pytest.raises(PlanError, match=told):
        apply_baseline("megatron", _space(mlp(width=7)))


def test_megatron_has_groups_that_sizes_divide_and_shares_the_batch_among_them() -> None:
    space = _space(mlp(width=6))
    assert len(apply_baseline("megatron", space)) == 1  # two groups of two devices; four do not divide the width
    plan = _plan("megatron", space)
    assert (_of(plan, "h"), _of(plan, "a"), _of(plan, "y")) == ("m,n", "d0,d1", "m,k")
    assert (_of(plan, "w1"), _of(plan, "w2")) == ("*,d1", "*,d0")


def test_megatron_needs_several_devices() -> None:
    with pytest.raises(PlanError, match=r"'megatron': does not apply because one device has nothing to share"):
        apply_baseline("megatron", _space(mlp(), 1))


# ---------------------------------------------------------------------------------------------- Mesh-TensorFlow


def test_the_hybrid_splits_batch_and_model_by_one_mesh_dimension_each() -> None:
    space = small_space("transformer")
    found = apply_baseline("mesh_tensorflow_hybrid", space)
    for point in range(len(found)):
        plan = _plan("mesh_tensorflow_hybrid", space, point)
        model = {
            axis
            for op in space.operators
            if op.type == "ResourceGather"
            for axis, action in enumerate(plan.configuration(op.name).actions)
            if action == "v"
        }
        assert len(model) == 1
        inputs = [plan.configuration(op.name).actions for op in space.operators if op.type == "Placeholder"]
        assert all(actions[axis] is None for actions in inputs for axis in model)
        assert all(set(actions) == {"d0", None} for actions in inputs)


def test_the_hybrid_is_for_attention() -> None:
    with pytest.raises(PlanError, match=r"'mesh_tensorflow_hybrid': does not apply because it is for Transformers"):
        apply_baseline("mesh_tensorflow_hybrid", _space(mlp()))


def test_the_hybrid_needs_two_mesh_dimensions() -> None:
    model = imported("transformer", 16, layers=1, width=16, heads=4, length=8, vocabulary=32)
    with pytest.raises(
        PlanError, match="no mesh of two dimensions of 2 devices divides both the batch and a dimension"
    ):
        apply_baseline("mesh_tensorflow_hybrid", _space(model.graph, 2))


# ---------------------------------------------------------------------------------------------- ZeRO


@functools.cache
def _dense() -> SearchSpace:
    return _space(mlp(batch=8, width=16, classes=4))


def test_zero_stores_pieces_and_moves_them_by_gathering_and_scattering() -> None:
    space = _dense()
    plan = _plan("zero3", space)
    for variable in space.graph.of_type("Variable"):
        assert (
            plan.mesh.extent(
                plan.configuration(variable.name).output_layouts(space.rules[variable.name], 0).value.used_axes
            )
            == 4
        )
    back = Counter(
        step.kind.value
        for edge, entry in plan.edges.items()
        if space.graph[edge.tensor.op].type == "Variable"
        for step in entry.backward
    )
    assert back == {"reduce_scatter": 3}
    assert _moved(plan)["all_gather"] == 3


def test_zero_2_keeps_the_gathered_weights_and_zero_3_does_not() -> None:
    space = _dense()
    whole, two, three = (
        float(apply_baseline(name, space).memory_bytes[0]) for name in ("data_parallel", "zero2", "zero3")
    )
    sizes = {op.name: op.outputs[0].size_bytes for op in space.graph.of_type("Variable")}
    every = sum(sizes.values())
    # A variable and its gradient: two whole ones, or two quarters. The backward pass reads weights, not biases.
    assert two == pytest.approx(whole - 2 * every + 2 * every / 4 + sizes["w1"] + sizes["w2"])
    assert three == pytest.approx(whole - 2 * every + 2 * every / 4)


def test_zero_1_is_zero_2_without_micro_batches() -> None:
    assert _plan("zero1", _dense()).edges == _plan("zero2", _dense()).edges


def test_zero_3_needs_tensor_reuse() -> None:
    with pytest.raises(PlanError, match=r"'zero3': does not apply because variables are gathered again"):
        apply_baseline("zero3", _space(mlp(), reuse=False))


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
def test_zero_shares_the_batch_as_data_parallelism_does(name: str) -> None:
    with pytest.raises(PlanError, match=rf"'{name}': does not apply because .*has a batch of 6, which 4 devices"):
        apply_baseline(name, _space(mlp(batch=6)))
    with pytest.raises(PlanError, match=rf"'{name}': does not apply because one device stores everything"):
        apply_baseline(name, _space(mlp(), 1))


# ---------------------------------------------------------------------------------------------- following


def test_following_alone_is_data_parallelism() -> None:
    space = _space(mlp())
    axes = len(space.mesh.axes)
    found = follow(space, lambda op, followed: [("d0",) * axes if op.type == "Placeholder" else followed])
    chosen = apply_baseline("data_parallel", space)
    assert space.assignment(found.configurations) == tuple(chosen.assignments[0].tolist())
    assert found.torn == ()
