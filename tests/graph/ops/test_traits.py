"""What declarations say of how ops behave, where it is not TensorFlow's gradients that tell."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import (
    declaration,
    heavy_gradient_kernels,
    merged_gradient_kernels,
    registered_types,
    traits,
)
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.graph.traits import Role, Traits
from tests.graph.ops.test_missing_splits import TRIED, Op
from tests.op_harness import samples_of

pytestmark = pytest.mark.tf

_SPEC = TensorSpec((4,), "float32")


def _operator(op_type: str, *inputs: str) -> Operator:
    return Operator(op_type.lower(), op_type, tuple(map(TensorId, inputs)), (_SPEC,))


def test_of_a_type_that_is_not_declared_nothing_is_known() -> None:
    assert traits(_operator("NoSuchOp")) == Traits()


def test_a_graph_knows_its_variables_and_inputs() -> None:
    types = (
        "Variable",
        "Placeholder",
        "PlaceholderWithDefault",
        "Const",
        "Fanout",
        "Sink",
        "NoOp",
        "Gradient",
        "MergeRows",
    )
    graph = Graph(tuple(_operator(op_type) for op_type in types))
    assert [op.type for op in graph.variables()] == ["Variable"]
    assert [op.type for op in graph.inputs()] == ["Placeholder", "PlaceholderWithDefault"]
    assert [op.type for op in graph.operators if traits(op).must_be_fed] == ["Placeholder"]
    assert [op.type for op in graph.operators if traits(op).is_source] == list(types[:4])
    assert {traits(op).role for op in graph.operators} == {*Role}


def test_traits_are_of_tensorflows_operations_too() -> None:
    with tf.Graph().as_default():
        assert traits(tf.identity(tf.constant(1.0)).op).alias
        assert traits(tf.constant(1.0).op).is_constant


def test_op_types_that_traits_name_are_declared() -> None:
    for op_type in registered_types():
        own = declaration(op_type).traits
        assert {*own.fused_onto, *own.merged_with} <= {*registered_types()}, op_type


def test_kernels_of_gradients_follow_from_declarations() -> None:
    assert {"Conv3DBackpropFilterV2", "Conv2DBackpropInput", "MatMul", "Einsum"} <= heavy_gradient_kernels()
    assert merged_gradient_kernels() == {"BiasAddGrad", "Conv2DBackpropFilter"}


# What gives zeros or False for an index that there is not.
_LENIENT = ("InTopKV2", "OneHot")


@pytest.mark.parametrize("op_type", [op_type for op_type in TRIED if declaration(op_type).traits.indices])
def test_indices_are_below_the_bound_that_is_declared(op_type: str) -> None:
    for sample in samples_of(op_type):
        op = Op(sample)
        for position, bound in traits(op.operator).indices.items():
            inputs = list(op.inputs)
            for index, runs in ((-1, True), (0, op_type in _LENIENT)):
                inputs[position] = np.full_like(inputs[position], bound(op.operator, op.specs) + index)
                assert (op.run(inputs) is not None) == runs, (sample, index)
