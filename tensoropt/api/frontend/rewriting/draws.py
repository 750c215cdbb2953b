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
from tensoropt.api.frontend.rewriting.values import Value
from tensoropt.graph.ops.random import DRAWN_BY_STATE

__all__ = ["DRAW_HANDLERS"]


def _drawn(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    if rewriter.probing or (scope.guard is None and not scope.repeats):
        return None
    conditions = [*(() if scope.guard is None else (scope.guard,)), *scope.draws]
    shape, *limits = (rewriter.tensor(scope.value(x), op) for x in op.inputs)
    generator = f"{scope.path}{op.name}"
    op_type, attrs = counted_draw(op.node_def, generator, shape)
    key, algorithm = (rewriter.constant(x, op) for x in (np.zeros(1, np.uint64), np.int32(0)))
    operands = [shape, key, _counts(rewriter, generator, conditions, op, scope), algorithm, *limits]
    made = rewriter.make(op_type, operands, [op.outputs[0].dtype], attrs, rewriter.name(op, scope), op)
    keep_shapes(made.outputs, op.outputs)
    rewriter.finish(made, scope.before(op))
    return made.outputs


def _counts(rewriter: Rewriter, generator: str, conditions: Sequence[Any], op: Any, scope: Scope) -> Any:
    """How many draws a run makes before this one, and with this one; later draws of the state go on from there."""
    before = rewriter.drawn.get(generator, 0)
    if not conditions and isinstance(before, int):
        rewriter.drawn[generator] = before + 1
        return rewriter.constant(np.asarray([before, before + 1], np.uint64), op)

    def add(*counted: Any) -> tuple[Any, Any]:
        holds = functools.reduce(tf.logical_and, conditions) if conditions else True
        one = tf.cast(holds, tf.int64)
        first = counted[0] if counted else tf.constant(before, tf.int64)
        return first + one, tf.cast(tf.stack([first, first + one]), tf.uint64)

    given = () if isinstance(before, int) else (before,)
    rewriter.drawn[generator], counts = rewriter.build(add, *given, of=op, scope=scope, name="counts")
    return counts


DRAW_HANDLERS: dict[str, Handler] = dict.fromkeys(DRAWN_BY_STATE, _drawn)
