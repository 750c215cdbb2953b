"""Variables, inputs, constants, fan-outs, sinks, assignments: what holds the graph together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, elementwise, replicated
from tensoropt.graph.sample import Sample
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Role, Traits


@register_op("Variable", lower=None, traits=Traits(Role.VARIABLE))
@register_op("Placeholder", lower=None, traits=Traits(Role.INPUT))
@register_op("PlaceholderWithDefault", lower=None, traits=Traits(Role.INPUT, has_default=True))
def stored(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A tensor that is there: any of its dimensions may be split. Each device holds or is fed its piece.

    A variable that an op without a rule reads or writes in place (``whole``) is stored whole.
    """
    if op.attrs.get("whole"):
        return replace(replicated((), op.outputs), saved_outputs=())
    return replace(elementwise((), op.outputs, flops_per_point=0.0), inputs=tuple(((),) * s.rank for s in inputs))


def _constant(ctx: Lowering) -> Any:
    shape = ctx.op.outputs[0].shape
    pieces = tuple(slice(ctx.offset(f"d{i}"), ctx.offset(f"d{i}") + ctx.local_size(f"d{i}")) for i in range(len(shape)))
    return ctx.tf.constant(np.asarray(ctx.op.attrs["value"])[pieces], dtype=ctx.op.outputs[0].dtype)


@register_op(
    "Const",
    lower=_constant,
    samples=[Sample("Const", (), {"value": np.arange(48, dtype=np.float32).reshape(6, 8), "dtype": "float32"})],
    traits=Traits(Role.CONSTANT),
)
def constant(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Each device keeps its piece."""
    return elementwise(inputs, op.outputs, flops_per_point=0.0)


@register_op("Fanout", lower=None, traits=Traits(Role.FANOUT, alias=True, passes_gradient=True))
def fanout(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A tensor that several operators read: a reshard that they share is paid once, gradients are summed here."""
    rule = elementwise(inputs, op.outputs, flops_per_point=0.0)
    return replace(rule, defer_gradient=op.attrs.get("gradient", True))


@register_op("Sink", lower=None, traits=Traits(Role.SINK, alias=True, passes_gradient=True))
def sink(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A loss: every device needs the whole of it."""
    return replace(replicated(inputs, op.outputs), saved_inputs=(), saved_outputs=())


@register_op("Gradient", lower=None, traits=Traits(Role.GRADIENT, in_place=False))
def gradient(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The gradient of losses by a tensor, where the tensor is: each device has the gradient of its piece.

    Given as rows (``tf.IndexedSlices``), every device has all of them, but of a row only what it has of the tensor's
    rows, and the indices of the whole tensor.
    """
    (source,) = inputs
    if op.attrs.get("whole"):
        return replace(replicated(inputs, op.outputs), saved_inputs=(), saved_outputs=(), pinned=(0,))
    if len(op.outputs) == 1:
        return replace(elementwise(inputs, op.outputs, flops_per_point=0.0), pinned=(0,))
    whole = elementwise(inputs, (source,), flops_per_point=0.0)
    return replace(
        whole,
        outputs=(((), *whole.outputs[0][1:]), ((),)),
        internal=frozenset(whole.split),
        pinned=(0,),
    )


@register_op("NoOp", lower=None, traits=Traits(Role.GROUP))
def no_op(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A group of other operations."""
    return replicated(inputs, op.outputs)


@register_op("ReadVariableOp", lower=None, traits=Traits(on_variable=True, reads_variable=True))
def read(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Reads a variable after operations that change it, where it is stored."""
    if op.attrs.get("whole"):
        return replace(replicated(inputs, op.outputs), saved_inputs=(), saved_outputs=(), pinned=(0,))
    return replace(elementwise(inputs, op.outputs, flops_per_point=0.0), pinned=(0,))


@register_op("AssignVariableOp", lower=None, traits=Traits(on_variable=True, has_effect=True, replaces=True))
@register_op(
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    lower=None,
    traits=Traits(on_variable=True, has_effect=True, adds=True),
)
def assign(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Writes a variable where it is stored: the value is split as the variable is."""
    if op.attrs.get("whole"):
        return replace(replicated(inputs, ()), pinned=(0,))
    return replace(elementwise(inputs, (inputs[0],)), outputs=(), pinned=(0,))
