"""Random numbers: the same ones however they are split.

TensorFlow's generators cannot start in the middle, so every device makes all numbers and keeps its piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec

# Arithmetic operations per number: Philox's ten rounds, and what makes numbers of another distribution of them.
_FLOPS = {"Uniform": 30.0, "TruncatedNormal": 130.0, "Normal": 100.0, "Gamma": 300.0, "Poisson": 300.0}


def _piece(ctx: Lowering, *inputs: Any) -> Any:
    return ctx.slice_output(ctx.emit(inputs)[0])


def _stateful(ctx: Lowering, *inputs: Any) -> Any:
    """An op without any seed would draw other numbers on every device; it gets one that follows from its name."""
    seeds = {"seed": ctx.op.attrs["seed"], "seed2": ctx.op.attrs["seed2"]}
    if not any(seeds.values()):
        seeds["seed2"] = 1 + zlib.crc32(ctx.op.name.encode())
    return ctx.slice_output(ctx.emit(inputs, attrs=seeds)[0])


def _rule(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    per_number = next((flops for kind, flops in _FLOPS.items() if kind in op.type), 30.0)
    rule = movement(
        inputs,
        op.outputs,
        tuple(((),) * spec.rank for spec in inputs),
        tuple(passed(spec.rank) for spec in op.outputs),
    )
    return replace(rule, replicated_flops=per_number * sum(spec.elements for spec in op.outputs))


_SEEDS = {"seed": 7, "seed2": 11}
_FLOAT = {"dtype": "float32"}
_KEY = (np.array([3], np.uint64), np.array([5, 8], np.uint64), 1)


@register_op(
    "RandomUniform",
    lower=_stateful,
    static={0: "shape"},
    shared=True,
    samples=[
        Sample("RandomUniform", ([24, 6],), _FLOAT | _SEEDS),
        Sample("RandomUniform", ([12],), {"dtype": "float64"} | _SEEDS),
    ],
)
@register_op(
    "RandomStandardNormal",
    lower=_stateful,
    static={0: "shape"},
    shared=True,
    samples=[Sample("RandomStandardNormal", ([6, 8, 3],), _FLOAT | _SEEDS)],
)
@register_op(
    "TruncatedNormal",
    lower=_stateful,
    static={0: "shape"},
    shared=True,
    samples=[Sample("TruncatedNormal", ([12, 8],), _FLOAT | _SEEDS)],
)
@register_op(
    "RandomUniformInt",
    lower=_stateful,
    static={0: "shape"},
    shared=True,
    samples=[Sample("RandomUniformInt", ([24, 4], integers(high=3), integers(low=5, high=99)), _SEEDS)],
)
@register_op(
    "RandomPoissonV2",
    lower=_stateful,
    static={0: "shape"},
    shared=True,
    samples=[Sample("RandomPoissonV2", ([6], floats(4, low=0.5, high=9.0)), _FLOAT | _SEEDS)],
)
@register_op("RandomShuffle", lower=_stateful, shared=True, samples=[Sample("RandomShuffle", (floats(12, 4),), _SEEDS)])
@register_op(
    "Multinomial",
    lower=_stateful,
    static={1: "number of samples"},
    shared=True,
    samples=[Sample("Multinomial", (floats(12, 5), 8), _SEEDS)],
)
def random(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The numbers are splittable, what they depend on is whole. One instance a device keeps one state, as one
    process would."""
    return _rule(op, inputs)


@register_op(
    "RandomGamma",
    lower=_stateful,
    static={0: "shape"},
    shared=True,
    samples=[Sample("RandomGamma", ([6, 4], floats(8, low=0.5, high=3.0)), _SEEDS)],
)
def gamma(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """As other random numbers; the one distribution whose parameters TensorFlow has a gradient for."""
    return replace(_rule(op, inputs), saved_inputs=(0,), saved_outputs=(0,))


@register_op(
    "StatelessRandomUniform",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomUniform", ([12, 6], integers(2)), _FLOAT)],
)
@register_op(
    "StatelessRandomNormal",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomNormal", ([4, 24], integers(2)), _FLOAT)],
)
@register_op(
    "StatelessTruncatedNormal",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessTruncatedNormal", ([24], integers(2)), _FLOAT)],
)
@register_op(
    "StatelessRandomUniformInt",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomUniformInt", ([12, 2], integers(2), integers(high=3), integers(low=5, high=99)))],
)
@register_op(
    "StatelessMultinomial",
    lower=_piece,
    static={1: "number of samples"},
    samples=[Sample("StatelessMultinomial", (floats(12, 5), 8, integers(2)))],
)
@register_op(
    "StatelessRandomUniformV2",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomUniformV2", ([12, 6], *_KEY), _FLOAT)],
)
@register_op(
    "StatelessRandomNormalV2",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomNormalV2", ([8, 3], *_KEY), _FLOAT)],
)
@register_op(
    "StatelessTruncatedNormalV2",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessTruncatedNormalV2", ([24, 2], *_KEY), _FLOAT)],
)
@register_op(
    "StatelessRandomUniformIntV2",
    lower=_piece,
    static={0: "shape"},
    samples=[
        Sample("StatelessRandomUniformIntV2", ([12, 4], *_KEY, integers(high=3), integers(low=5, high=99))),
    ],
)
@register_op(
    "StatelessRandomUniformFullIntV2",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomUniformFullIntV2", ([24], *_KEY), {"dtype": "int32"})],
)
def stateless_random(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The numbers are splittable, what they depend on is whole."""
    return _rule(op, inputs)


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "StatelessRandomGetKeyCounter",
    lower=_same,
    samples=[Sample("StatelessRandomGetKeyCounter", (integers(2),))],
)
@register_op(
    "StatelessRandomGetKeyCounterAlg",
    lower=_same,
    samples=[Sample("StatelessRandomGetKeyCounterAlg", (integers(2),))],
)
@register_op("StatelessRandomGetAlg", lower=_same, samples=[Sample("StatelessRandomGetAlg", ())])
def key(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A few numbers, the same on every device."""
    return movement(
        inputs, op.outputs, [((),) * spec.rank for spec in inputs], [((),) * spec.rank for spec in op.outputs]
    )
