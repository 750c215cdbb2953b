"""Sums of several terms in the order that the graph gives, so that ranks with the same terms get the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["add_in_order", "keep_order"]

# Grappler's mark on sums that it has merged already; it leaves these alone.
_DONE = "_grappler_ArithmeticOptimizer_AddOpsRewriteStage"


def add_in_order(terms: Sequence[Any]) -> Any:
    """The sum of tensors of one shape, two at a time.

    TensorFlow's ``AddN`` begins with a term whose memory nobody else reads any more, for it writes the sum there. Which
    one that is depends on what else has run so far, so with three terms or more the same step gives other bits on other
    ranks. The order of two makes no difference.
    """
    total = terms[0]
    for term in terms[1:]:
        total = tf.add_n([total, term])
    return total


def keep_order(graph: Any, first: int) -> None:
    """Keeps TensorFlow's optimizer from making one ``AddN`` of sums of two (see :func:`add_in_order`).

    Args:
        graph: the local graph.
        first: number of its first operation that is concerned.
    """
    for op in graph.get_operations()[first:]:
        if op.op_def.is_aggregate:
            op._set_attr(_DONE, tf.compat.v1.AttrValue(b=True))
