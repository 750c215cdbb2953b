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
from tensoropt.graph.traits import Traits, Typed

# Arithmetic operations per number: Philox's ten rounds, and what makes numbers of another distribution of them.
_FLOPS = {
    "Uniform": 30.0,
    "TruncatedNormal": 130.0,
    "Normal": 100.0,
    "Gamma": 300.0,
    "Poisson": 300.0,
    "Binomial": 300.0,
}


def _piece(ctx: Lowering, *inputs: Any) -> Any:
    return ctx.slice_output(ctx.emit(inputs)[0])


def seeds_of(op: Operator) -> tuple[int, int]:
    """An op without any seed would draw other numbers on every device; it gets one that follows from its name."""
    seeds = int(op.attrs["seed"]), int(op.attrs["seed2"])
    return seeds if any(seeds) else (0, 1 + zlib.crc32(generator_of(op).encode()))


def generator_of(op: Operator) -> str:
    """The name of the generator that an operator, or an op in a subgraph, draws by."""
    return str(op.attrs.get(GENERATOR, op.name))


def _seeds(ctx: Lowering) -> dict[str, int]:
    return dict(zip(("seed", "seed2"), seeds_of(ctx.op), strict=True))


def draws_by_state(op: Typed) -> bool:
    """Tells whether an op draws random numbers from a given state, not from a state within TensorFlow's kernel."""
    return op.type in _TWINS


def twin_of(op_type: str) -> str:
    """The type of TensorFlow's op that gives the numbers of another one from a given state."""
    return _TWINS[op_type]


def is_counted(op: Operator) -> bool:
    """Tells whether an operator is one of several draws of a random op, or may be left out of a run.

    Its last input has the counts of :meth:`~tensoropt.graph.lowering.Lowering.next_state`.
    """
    return GENERATOR in op.attrs


def _stateful(ctx: Lowering, *inputs: Any) -> Any:
    return ctx.slice_output(ctx.emit(inputs, attrs=_seeds(ctx))[0])


# TensorFlow skips so many numbers of its generator for each one that it gives, since some draws take several.
_SKIPPED = 256
_PHILOX = 1


def _by_state(ctx: Lowering, *inputs: Any) -> Any:
    """The numbers of TensorFlow's op by the op that is given where they begin, so that this can be saved."""
    (output,) = ctx.op.outputs
    *limits, counts = inputs if is_counted(ctx.op) else (*inputs, None)
    state = ctx.next_state(numbers_skipped(output.elements), counts)
    if state is None:
        return _stateful(ctx, *limits)
    return ctx.slice_output(drawn(ctx.tf, ctx.op.type, state, ctx.op.static[0], limits, output.dtype))


def numbers_skipped(count: Any) -> Any:
    """Returns the advance of the state of an op that draws ``count`` numbers."""
    return _SKIPPED * count


def drawn(tf: Any, op_type: str, state: Any, shape: Any, limits: Sequence[Any], dtype: Any) -> Any:
    """The numbers of an op that :func:`draws_by_state`.

    Args:
        tf: TensorFlow.
        op_type: the op's.
        state: of its generator.
        shape: of what it gives.
        limits: of integers, the smallest and the one after the largest.
        dtype: of the numbers.
    """
    # The state is on the CPU, as is what is made of it; the numbers are made where TensorFlow would make them.
    with tf.device("/CPU:0"):
        seed, position, seed2 = tf.unstack(tf.bitcast(state, tf.uint64))
        key, counter = tf.reshape(seed, [1]), tf.stack([position, seed2])
    twin = getattr(tf.raw_ops, _TWINS[op_type])
    if limits:
        low, high = limits
        return twin(shape=shape, key=key, counter=counter, alg=_PHILOX, minval=low, maxval=high)
    return twin(shape=shape, key=key, counter=counter, alg=_PHILOX, dtype=dtype)


_TWINS = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}

DRAWN_BY_STATE = tuple(_TWINS)
"""The types of ops that :func:`draws_by_state`."""

GENERATOR = "generator"
"""The attribute of a draw that names its generator, if others may draw by it."""


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
    lower=_by_state,
    static={0: "shape"},
    shared=True,
    samples=[
        Sample("RandomUniform", ([24, 6],), _FLOAT | _SEEDS),
        Sample("RandomUniform", ([12],), {"dtype": "float64"} | _SEEDS),
    ],
)
@register_op(
    "RandomStandardNormal",
    lower=_by_state,
    static={0: "shape"},
    shared=True,
    samples=[Sample("RandomStandardNormal", ([6, 8, 3],), _FLOAT | _SEEDS)],
)
@register_op(
    "TruncatedNormal",
    lower=_by_state,
    static={0: "shape"},
    shared=True,
    samples=[Sample("TruncatedNormal", ([12, 8],), _FLOAT | _SEEDS)],
)
@register_op(
    "RandomUniformInt",
    lower=_by_state,
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
@register_op(
    "ParameterizedTruncatedNormal",
    lower=_stateful,
    static={0: "shape"},
    shared=True,
    samples=[
        Sample(
            "ParameterizedTruncatedNormal",
            ([6, 4], floats(6), floats(6, low=0.5), floats(6, low=-3, high=-2), floats(6, low=2, high=3)),
            _SEEDS,
        )
    ],
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


def _gamma(ctx: Lowering, alpha: Any) -> Any:
    """The numbers, and TensorFlow's gradient of them, as another program may have the op that draws them."""
    sample = ctx.emit([alpha], attrs=_seeds(ctx))[0]

    def backward(gradient: Any) -> list[Any]:
        """The gradient of a draw by its parameter, summed over the draws of a parameter."""
        tf = ctx.tf
        slope = tf.raw_ops.RandomGammaGrad(alpha=tf.broadcast_to(alpha, tf.shape(sample)), sample=sample)
        draws = tf.range(tf.rank(sample) - tf.rank(alpha))
        return [tf.reduce_sum(gradient * slope, draws)]

    return ctx.slice_output(ctx.with_gradient([alpha], [sample], backward)[0])


@register_op(
    "RandomGamma",
    lower=_gamma,
    static={0: "shape"},
    shared=True,
    samples=[Sample("RandomGamma", ([6, 4], floats(8, low=0.5, high=3.0)), _SEEDS)],
)
def gamma(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """As other random numbers; the one distribution whose parameters TensorFlow has a gradient for."""
    return replace(_rule(op, inputs), saved_inputs=(0,), saved_outputs=(0,))


@register_op(
    "StatelessRandomUniformFullInt",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomUniformFullInt", ([12], integers(2)), {"dtype": "int32"})],
)
@register_op(
    "StatelessRandomPoisson",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomPoisson", ([6, 4], integers(2), floats(4, low=0.5, high=9)), _FLOAT)],
)
@register_op(
    "StatelessRandomBinomial",
    lower=_piece,
    static={0: "shape"},
    samples=[
        Sample(
            "StatelessRandomBinomial",
            ([6, 4], integers(2), floats(4, low=3, high=9), floats(4, low=0.1, high=0.9)),
            _FLOAT,
        )
    ],
)
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


@register_op(
    "StatelessRandomGammaV2",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomGammaV2", ([6, 4], integers(2), floats(4, low=0.5, high=3.0)))],
)
@register_op(
    "StatelessRandomGammaV3",
    lower=_piece,
    static={0: "shape"},
    samples=[Sample("StatelessRandomGammaV3", ([6, 4], *_KEY, floats(4, low=0.5, high=3.0)))],
)
def stateless_gamma(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """As :func:`gamma`."""
    return replace(_rule(op, inputs), saved_inputs=(len(inputs) - 1,), saved_outputs=(0,))


@register_op(
    "StatelessParameterizedTruncatedNormal",
    lower=_piece,
    static={0: "shape"},
    samples=[
        Sample(
            "StatelessParameterizedTruncatedNormal",
            ([12], integers(2), floats(), floats(low=0.5), floats(low=-3, high=-2), floats(low=2, high=3)),
        )
    ],
)
def stateless_truncated_normal(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """As other random numbers; of all parameters there is a gradient."""
    return replace(_rule(op, inputs), saved_inputs=tuple(range(1, len(inputs))), saved_outputs=(0,))


_DRAWN = {"num_true": 2, "num_sampled": 5, "unique": True, "range_max": 40, **_SEEDS}


def _candidates(ctx: Lowering, classes: Any) -> list[Any]:
    return ctx.emit([classes], attrs=_seeds(ctx))


@register_op(
    "LogUniformCandidateSampler",
    "UniformCandidateSampler",
    "FixedUnigramCandidateSampler",
    lower=_candidates,
    shared=True,
    samples=[
        Sample("LogUniformCandidateSampler", (integers(12, 2, high=40, dtype="int64"),), _DRAWN),
        Sample("UniformCandidateSampler", (integers(6, 2, high=40, dtype="int64"),), _DRAWN),
        Sample(
            "FixedUnigramCandidateSampler",
            (integers(6, 2, high=4, dtype="int64"),),
            {**_DRAWN, "num_sampled": 3, "range_max": 4, "unigrams": [1.0, 4.0, 2.0, 3.0]},
        ),
    ],
)
def candidates(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The classes of a sampled softmax, the same on every device; how often true ones are expected is splittable."""
    examples = passed(2, whole={1})
    rule = movement(inputs, op.outputs, (examples,), (((),), examples, ((),)), internal=("d0",))
    return replace(rule, replicated_flops=30.0 * op.outputs[0].elements, flops=float(inputs[0].elements))


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


@register_op(
    "StatelessShuffle",
    lower=_same,
    samples=[Sample("StatelessShuffle", (floats(3, 6), *_KEY))],
    traits=Traits(in_place=False),
)
def stateless_shuffle(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Rows change places, columns pass through."""
    dims = passed(inputs[0].rank, whole={0})
    return movement(inputs, op.outputs, (dims, *(((),) * spec.rank for spec in inputs[1:])), (dims,))
