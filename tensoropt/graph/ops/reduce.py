"""Reductions over axes that are known when the graph is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.softmax import widened
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.sample import Operand, Sample, booleans, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

_AXES = {1: "axes"}


def _axes(op: Operator, rank: int) -> tuple[int, ...]:
    """The reduced dimensions, ascending."""
    return tuple(sorted({int(axis) % rank for axis in np.atleast_1d(op.static[1])})) if rank else ()


def _rule(
    op: Operator,
    inputs: Sequence[TensorSpec],
    *,
    reduced: bool = False,
    internal: bool = False,
    flops_per_point: float = 1.0,
    keeps: bool = False,
) -> OpRule:
    """Kept axes pass through; reduced ones leave partial sums, or are combined inside, or are not split."""
    x = inputs[0]
    gone = _axes(op, x.rank)
    names = [f"d{place}" for place in range(x.rank)]
    output: Dims = tuple(
        () if place in gone else (name,)
        for place, name in enumerate(names)
        if place not in gone or op.attrs["keep_dims"]
    )
    summed = frozenset(names[place] for place in gone)
    return OpRule(
        sizes=tuple(zip(names, x.shape, strict=True)),
        inputs=(tuple((name,) for name in names),),
        outputs=(output,),
        split=tuple(
            name
            for name, extent in zip(names, x.shape, strict=True)
            if extent > 1 and (reduced or internal or name not in summed)
        ),
        reduced=summed if reduced else frozenset(),
        internal=summed if internal else frozenset(),
        flops=flops_per_point * x.elements,
        backward_flops=float(x.elements),
        saved_inputs=(0,) if keeps else (),
        saved_outputs=(0,) if keeps else (),
    )


def _gone(ctx: Lowering, x: Any) -> list[str]:
    """Names of the reduced axes."""
    return [f"d{place}" for place in _axes(ctx.op, len(x.shape))]


def _samples(op_type: str, make: Callable[..., Operand]) -> list[Sample]:
    return [
        Sample(op_type, (make(4, 6), [1])),
        Sample(op_type, (make(4, 6), 0), {"keep_dims": True}),
        Sample(op_type, (make(2, 3, 4), [-1, 0])),
        Sample(op_type, (make(2, 6), [0, 1])),
        Sample(op_type, (make(2, 6), np.zeros(0, np.int32))),
    ]


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


_LINEAR = Traits(linear=(0,))


@register_op(
    "Sum",
    lower=_same,
    static=_AXES,
    samples=[*_samples("Sum", floats), *_samples("Sum", integers)],
    traits=_LINEAR,
)
def total(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Over a split axis every device has a partial sum."""
    return _rule(op, inputs, reduced=True)


def _mean(ctx: Lowering, x: Any) -> list[Any]:
    (mean,) = ctx.emit([x])
    pieces = 1
    for axis in _gone(ctx, x):
        pieces *= ctx.pieces(axis)
    return [mean if pieces == 1 else mean / ctx.tf.constant(pieces, mean.dtype)]


@register_op(
    "Mean",
    lower=_mean,
    static=_AXES,
    samples=[*_samples("Mean", floats), *_samples("Mean", integers)],
    traits=_LINEAR,
)
def mean(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Over a split axis every device has its share of the mean; the mean of integers is rounded, so is not split."""
    return _rule(op, inputs, reduced=inputs[0].is_differentiable)


def _extreme(ctx: Lowering, x: Any) -> list[Any]:
    tf, gone = ctx.tf, _gone(ctx, x)
    (local,) = ctx.emit([x])
    if all(ctx.pieces(axis) == 1 for axis in gone):
        return [local]
    result = ctx.all_reduce(local, gone, op="max" if ctx.op.type == "Max" else "min", gradient=None)
    if not x.dtype.is_floating:
        return [result]
    places = _axes(ctx.op, len(x.shape))
    kept = [1 if place in places else size for place, size in enumerate(x.shape.as_list())]

    def backward(gradient: Any) -> list[Any]:
        # As TensorFlow does: elements that tie share the gradient equally.
        wide = widened(ctx, gradient)
        chosen = tf.cast(tf.equal(x, tf.reshape(result, kept)), wide.dtype)
        count = ctx.all_reduce(tf.reduce_sum(chosen, places, keepdims=True), gone, gradient=None)
        return [tf.cast(chosen / count * tf.reshape(wide, kept), x.dtype)]

    return ctx.with_gradient([x], [result], backward)


def _tied(op_type: str) -> list[Sample]:
    ties = np.array([[1, 5, 5, 2, 5, 3], [4, 0, 0, 0, 4, 4]], np.float32)
    return [Sample(op_type, (ties, [1])), Sample(op_type, (ties, [0, 1]))]


@register_op(
    "Max",
    "Min",
    lower=_extreme,
    static=_AXES,
    samples=[
        *_samples("Max", floats),
        *_samples("Max", integers),
        *_tied("Max"),
        *_samples("Min", floats),
        *_tied("Min"),
    ],
)
def extreme(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Over a split axis devices compare their results, and backward count their ties."""
    return _rule(op, inputs, internal=True, keeps=True)


def _logical(ctx: Lowering, x: Any) -> list[Any]:
    (local,) = ctx.emit([x])
    # Of booleans the greatest is their or, the least their and.
    return [ctx.all_reduce(local, _gone(ctx, x), op="max" if ctx.op.type == "Any" else "min", gradient=None)]


@register_op(
    "All", "Any", lower=_logical, static=_AXES, samples=[*_samples("All", booleans), *_samples("Any", booleans)]
)
def logical(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Over a split axis devices combine their results."""
    return _rule(op, inputs, internal=True)


@register_op("Prod", lower=_same, static=_AXES, samples=_samples("Prod", floats))
def product(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Only kept axes are split: products are not sums, and engines do not multiply."""
    return replace(_rule(op, inputs, keeps=True), saved_outputs=())


def _norm(ctx: Lowering, x: Any) -> list[Any]:
    gone = _gone(ctx, x)
    if all(ctx.pieces(axis) == 1 for axis in gone):
        return ctx.emit([x])
    tf = ctx.tf
    wide = widened(ctx, x)
    squares = tf.reduce_sum(tf.square(wide), _axes(ctx.op, len(x.shape)), keepdims=ctx.op.attrs["keep_dims"])
    return [tf.cast(tf.sqrt(ctx.all_reduce(squares, gone, gradient="complete")), x.dtype)]


@register_op("EuclideanNorm", lower=_norm, static=_AXES, samples=_samples("EuclideanNorm", floats))
def norm(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Over a split axis devices add their sums of squares; not of complex numbers, whose squares are not those."""
    is_real = inputs[0].dtype in ("float16", "bfloat16", "float32", "float64")
    return _rule(op, inputs, internal=is_real, keeps=True, flops_per_point=2.0)
