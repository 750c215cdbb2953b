"""Tensors repeated along dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits


def _tile(ctx: Lowering, x: Any) -> list[Any]:
    have, want = ctx.input_shape(0), ctx.output_shape()
    return ctx.emit([x], static={1: [after // max(before, 1) for before, after in zip(have, want, strict=True)]})


@register_op(
    "Tile",
    lower=_tile,
    static={1: "multiples"},
    samples=[
        Sample("Tile", (floats(12, 6), [1, 2])),
        Sample("Tile", (floats(1, 6, 4), [24, 1, 3])),
        Sample("Tile", (floats(2, 3), [4, 6])),
    ],
    traits=Traits(moves=True, passes_rows=False),
)
def tile(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A repeated dimension is splittable between its copies, by ``t<i>``; any other passes through as ``d<i>``."""
    before: list[tuple[str, ...]] = []
    after: list[tuple[str, ...]] = []
    sizes: dict[str, int] = {}
    for position, times in enumerate(np.asarray(op.static[1]).tolist()):
        own = (f"d{position}",) if inputs[0].shape[position] > 1 else ()
        copies = (f"t{position}",) if times > 1 else ()
        sizes |= {name: times for name in copies}
        before.append(own)
        after.append((*copies, *own))
    return movement(
        inputs,
        op.outputs,
        (tuple(before),),
        (tuple(after),),
        sizes=sizes,
        backward_flops=op.outputs[0].elements,
    )


def _broadcast_to(ctx: Lowering, x: Any) -> list[Any]:
    return ctx.emit([x], static={1: ctx.output_shape()})


@register_op(
    "BroadcastTo",
    lower=_broadcast_to,
    static={1: "shape"},
    samples=[
        Sample("BroadcastTo", (floats(6), [12, 6])),
        Sample("BroadcastTo", (floats(8, 1, 3), [8, 12, 3])),
        Sample("BroadcastTo", (floats(), [24])),
    ],
    traits=Traits(moves=True),
)
def broadcast_to(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """All dimensions of the output are splittable; what is broadcast along one is whole on every device."""
    output = op.outputs[0]
    dims: Dims = passed(output.rank)
    skipped = output.rank - inputs[0].rank
    own = tuple(
        dim if extent == whole else ()
        for dim, extent, whole in zip(dims[skipped:], inputs[0].shape, output.shape[skipped:], strict=True)
    )
    return movement(inputs, op.outputs, (own,), (dims,), backward_flops=output.elements)
