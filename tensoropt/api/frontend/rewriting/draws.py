"""Random ops in branches and loops: each draw at the place in the op's numbers where TensorFlow makes it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.attributes import keep_shapes
from tensoropt.api.frontend.draws import counted_draw
from tensoropt.api.frontend.rewriting.rewriter import Handler, Rewriter, Scope
from tensoropt.api.frontend.rewriting.values import Value, or_zeros, select
from tensoropt.graph.ops.random import DRAWN_BY_STATE

__all__ = ["DRAW_HANDLERS"]


def _drawn(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    if rewriter.probing or (scope.guard is None and scope.turn is None):
        return None
    conditions = [*(() if scope.guard is None else (scope.guard,)), *scope.draws]
    shape, *limits = (rewriter.tensor(scope.value(x), op) for x in op.inputs)
    if scope.guard is not None and not all(map(rewriter.known.is_known, limits)):
        # Where the branch is not taken there may be nothing between them.
        def legal(*given: Any) -> list[Any]:
            return [select(scope.guard, x, tf.constant(place, x.dtype)) for place, x in enumerate(given)]

        limits = rewriter.build(legal, *limits, of=op, scope=scope, name="limits")
    generator = f"{scope.path}{op.name}"
    op_type, attrs = counted_draw(op.node_def, generator, shape)
    key, algorithm = (rewriter.constant(x, op) for x in (np.zeros(1, np.uint64), np.int32(0)))
    count: Any = op.outputs[0].shape.num_elements()
    if count is None:
        found = rewriter.known.value(shape)
        count = shape if found is None else int(np.prod(found, dtype=np.int64))
    operands = [shape, key, _counts(rewriter, generator, count, conditions, op, scope), algorithm, *limits]
    made = rewriter.make(op_type, operands, [op.outputs[0].dtype], attrs, rewriter.name(op, scope), op)
    keep_shapes(made.outputs, op.outputs)
    rewriter.finish(made, scope.before(op))
    return made.outputs


def _counts(rewriter: Rewriter, generator: str, count: Any, conditions: Sequence[Any], op: Any, scope: Scope) -> Any:
    """How many numbers a run draws before these, and with these; later draws of the state go on from there.

    Args:
        rewriter: makes the tensor.
        generator: the name of the state.
        count: how many these are, or their shape where only a run knows the number.
        conditions: under which they are drawn.
        op: the user's random op.
        scope: of it.
    """
    before = rewriter.drawn.get(generator, 0)
    if not conditions and isinstance(before, int) and isinstance(count, int):
        rewriter.drawn[generator] = before + count
        return rewriter.constant(np.asarray([before, before + count], np.uint64), op)

    def add() -> tuple[Any, Any]:
        more = tf.constant(count, tf.int64) if isinstance(count, int) else tf.reduce_prod(tf.cast(count, tf.int64))
        if conditions:
            more = or_zeros(functools.reduce(tf.logical_and, conditions), more)
        first = tf.constant(before, tf.int64) if isinstance(before, int) else before
        return first + more, tf.cast(tf.stack([first, first + more]), tf.uint64)

    rewriter.drawn[generator], counts = rewriter.build(add, of=op, scope=scope, name="counts")
    return counts


DRAW_HANDLERS: dict[str, Handler] = dict.fromkeys(DRAWN_BY_STATE, _drawn)
