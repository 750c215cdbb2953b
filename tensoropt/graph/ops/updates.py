"""Optimizers' steps on variables, and writes to some of their rows: where the variable is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule, replicated
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Role, Traits

__all__ = ["NO_ROW"]

# In the place of an index: what is there counts for nothing.
NO_ROW = -1


def _on_variable(op: Operator, inputs: Sequence[TensorSpec], dims: Sequence[Dims]) -> OpRule:
    """The rule of a write to what the first input holds; what it takes in place must lie as it is."""
    if op.attrs.get("whole"):
        return replace(replicated(inputs, ()), pinned=op.handles)
    variable = inputs[0]
    rule = movement(inputs, (variable,), dims, (passed(variable.rank),), flops=float(variable.elements))
    return replace(rule, outputs=(), pinned=op.handles)


def _row_inputs(op: Operator, inputs: Sequence[TensorSpec]) -> tuple[int, int]:
    """Returns the places of the rows and of their indices in an optimizer's step for some rows."""
    del op
    indices = next(i for i, spec in enumerate(inputs) if spec.rank == 1 and not spec.is_differentiable)
    return indices - 1, indices


def _scattered(op: Operator, inputs: Sequence[TensorSpec]) -> tuple[int, int]:
    """The places of what is written to rows, and of their indices."""
    del op, inputs
    return 2, 1


@register_op(
    "ResourceApplyAdaMax",
    "ResourceApplyAdadelta",
    "ResourceApplyAdagrad",
    "ResourceApplyAdagradDA",
    "ResourceApplyAdagradV2",
    "ResourceApplyAdam",
    "ResourceApplyAdamWithAmsgrad",
    "ResourceApplyAddSign",
    "ResourceApplyCenteredRMSProp",
    "ResourceApplyFtrl",
    "ResourceApplyFtrlV2",
    "ResourceApplyGradientDescent",
    "ResourceApplyKerasMomentum",
    "ResourceApplyMomentum",
    "ResourceApplyPowerSign",
    "ResourceApplyProximalAdagrad",
    "ResourceApplyProximalGradientDescent",
    "ResourceApplyRMSProp",
    lower=None,
    traits=Traits(on_variable=True, has_effect=True, updates=True, adds=True),
)
def update(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Point by point over a variable, its slots and its gradient; hyperparameters are single numbers."""
    whole = passed(inputs[0].rank)
    return _on_variable(op, inputs, [whole if spec.rank else () for spec in inputs])


@register_op(
    "ResourceSparseApplyAdadelta",
    "ResourceSparseApplyAdagrad",
    "ResourceSparseApplyAdagradDA",
    "ResourceSparseApplyAdagradV2",
    "ResourceSparseApplyCenteredRMSProp",
    "ResourceSparseApplyFtrl",
    "ResourceSparseApplyFtrlV2",
    "ResourceSparseApplyKerasMomentum",
    "ResourceSparseApplyMomentum",
    "ResourceSparseApplyProximalAdagrad",
    "ResourceSparseApplyProximalGradientDescent",
    "ResourceSparseApplyRMSProp",
    lower=None,
    traits=Traits(on_variable=True, has_effect=True, updates=True, adds=True, rows=_row_inputs),
)
def update_rows(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """An optimizer's step for some rows: every device is given all rows, and takes the rows of its piece."""
    values, indices = _row_inputs(op, inputs)
    whole, row = passed(inputs[0].rank), passed(inputs[0].rank, whole=(0,))
    dims = [whole if spec.shape == inputs[0].shape else ((),) * spec.rank for spec in inputs]
    dims[values], dims[indices] = row, ((),)
    return _on_variable(op, inputs, dims)


@register_op(
    "ResourceScatterAdd",
    "ResourceScatterSub",
    lower=None,
    traits=Traits(on_variable=True, has_effect=True, adds=True, rows=_scattered),
)
@register_op(
    "ResourceScatterDiv",
    "ResourceScatterMax",
    "ResourceScatterMin",
    "ResourceScatterMul",
    "ResourceScatterUpdate",
    lower=None,
    traits=Traits(on_variable=True, has_effect=True, rows=_scattered),
)
def scatter(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Writes rows of a variable: every device is given all of them, and takes those that it has."""
    variable, indices, values = inputs
    whole = ((),) * indices.rank
    row = (*whole, *passed(variable.rank)[1:]) if values.rank else ()
    return _on_variable(op, inputs, (passed(variable.rank), whole, row))


@register_op("MergeRows", lower=None, traits=Traits(Role.MERGED_ROWS, in_place=False))
def merge_rows(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Rows of a gradient in which no index is twice: the first ones that there are, and then no rows."""
    row = passed(inputs[0].rank, whole=(0,))
    split = [name for dim in row for name in dim]
    return movement(inputs, op.outputs, (row, ((),)), (row, ((),)), internal=split, flops=float(inputs[0].elements))
