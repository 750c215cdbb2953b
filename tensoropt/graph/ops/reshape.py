"""Reshapes: the same elements in the same order under another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

__all__ = ["common_factors"]


def common_factors(before: Sequence[int], after: Sequence[int]) -> tuple[Dims, Dims, dict[str, int]]:
    """Writes two shapes of the same elements as products of common axes, as far as there are any.

    Both are read from the left. Where both start at the same element, the greatest common divisor of the two
    dimensions is an axis of both: its pieces are the same runs of elements on both sides. Where there is no common
    divisor, what is left up to the next common start is a minor axis or, if it is a whole dimension, none at all.
    Dimensions of size 1 have no axes.

    Returns:
        The dimensions of both shapes, and the sizes of the axes. Axis ``d<i>`` is the major part of dimension ``i``
        of ``after``, ``d<i>_<k>`` a minor one.

    Example:
        >>> common_factors((6, 20), (6, 4, 5))[:2]
        ((('d0',), ('d1', 'd2')), (('d0',), ('d1',), ('d2',)))
        >>> common_factors((6, 4), (4, 6))[:2]
        ((('d0', 'r0'), ()), (('d0', 'r1'), ()))
    """
    left: list[list[str]] = [[] for _ in before]
    right: list[list[str]] = [[] for _ in after]
    sizes: dict[str, int] = {}

    def rest(names: list[str], extent: int) -> None:
        if names:
            name = f"r{sum(axis.startswith('r') for axis in sizes)}"
            sizes[name] = extent
            names.append(name)

    if math.prod(before) == 0:
        return ((),) * len(before), ((),) * len(after), {}
    i = j = 0
    have, want = 1, 1  # what is left of dimensions i - 1 and j - 1
    while True:
        while have == 1 and i < len(before):
            have, i = before[i], i + 1
        while want == 1 and j < len(after):
            want, j = after[j], j + 1
        if have == 1 and want == 1:
            break
        common = math.gcd(have, want)
        if common > 1:
            minor = len(right[j - 1])
            name = f"d{j - 1}_{minor}" if minor else f"d{j - 1}"
            sizes[name] = common
            left[i - 1].append(name)
            right[j - 1].append(name)
            have //= common
            want //= common
            continue
        rest(left[i - 1], have)
        rest(right[j - 1], want)
        while have != want:
            if have < want:
                rest(left[i], before[i])
                have, i = have * before[i], i + 1
            else:
                rest(right[j], after[j])
                want, j = want * after[j], j + 1
        have = want = 1
    return tuple(map(tuple, left)), tuple(map(tuple, right)), sizes


# Its output is the input's buffer under another shape.
_VIEW = Traits(alias=True, passes_gradient=True, unfused=True)


def _reshape(ctx: Lowering, x: Any) -> Any:
    return ctx.tf.reshape(x, ctx.output_shape())


@register_op(
    "Reshape",
    lower=_reshape,
    static={1: "shape"},
    samples=[
        Sample("Reshape", (floats(24, 6), [24, 6])),
        Sample("Reshape", (floats(12, 4, 6), [48, 6])),
        Sample("Reshape", (floats(6, 4, 24), [6, 4, 12, 2])),
        Sample("Reshape", (floats(6, 4, 12, 2), [6, 4, -1])),
        Sample("Reshape", (floats(8, 6), [12, 4])),
        Sample("Reshape", (floats(24), [1, 24, 1])),
        Sample("Reshape", (floats(4, 1, 2, 3, 6), [8, 3, 6])),
        Sample("Reshape", (floats(24, 4), [8, 6, 2])),
        Sample("Reshape", (integers(12, 6), [72])),
    ],
    traits=_VIEW,
)
@register_op(
    "ExpandDims",
    lower=_reshape,
    static={1: "axis"},
    samples=[
        Sample("ExpandDims", (floats(12, 6), -1)),
        Sample("ExpandDims", (floats(12, 6), 0)),
        Sample("ExpandDims", (floats(12, 8), 1)),
    ],
    traits=_VIEW,
)
@register_op(
    "Squeeze",
    lower=_reshape,  # TensorFlow's op without squeeze_dims would drop a dimension of which one element is local, too
    samples=[
        Sample("Squeeze", (floats(12, 1, 6, 1),), {"squeeze_dims": [-1]}),
        Sample("Squeeze", (floats(1, 2, 1, 12),)),
        Sample("Squeeze", (floats(2, 1, 3),)),
    ],
    traits=_VIEW,
)
@register_op(
    "EnsureShape",
    lower=_reshape,
    samples=[Sample("EnsureShape", (floats(12, 6),), {"shape": [None, 6]})],
    traits=_VIEW,
)
def reshape(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Splittable where a run of elements is a piece on both sides: ``[b, s, e] -> [b*s, e]`` by ``b`` and ``e``."""
    before, after, sizes = common_factors(inputs[0].shape, op.outputs[0].shape)
    return movement(inputs, op.outputs, (before,), (after,), sizes=sizes)
