"""Sums of several terms in the order of the graph, so that ranks with the same terms get the same bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["keep_order"]

# Grappler's mark on sums that it has merged already; it leaves these alone.
_MERGED = "_grappler_ArithmeticOptimizer_AddOpsRewriteStage"


def keep_order(graph: Any, first: int) -> None:
    """Keeps TensorFlow's optimizer from making one sum of many terms out of sums of two.

    TensorFlow's ``AddN`` begins with the first term whose memory nobody else reads any more, for it writes the sum
    there. Which one that is depends on what has run so far. So of three terms or more, ranks that hold copies of the
    same terms may get sums that differ in the last bits; the order of two makes no difference. Nor do all terms have to
    be there before the first two are added.

    Args:
        graph: the local graph.
        first: number of its first operation that is concerned.
    """
    for op in graph.get_operations()[first:]:
        if op.op_def.is_aggregate:
            op._set_attr(_MERGED, tf.compat.v1.AttrValue(b=True))
