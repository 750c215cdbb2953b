"""Ops that work point by point, with NumPy's broadcasting."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule, elementwise
from tensoropt.graph.sample import Operand, Sample, booleans, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import GradientFromOutput, Traits

# What a transcendental function costs beside an addition, in the vectorised code of today's CPUs and GPUs.
TRANSCENDENTAL_FLOPS = 10.0
_NOTHING: tuple[int, ...] = ()
_POINTWISE = Traits()


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Op types that cost and keep the same.

    Attributes:
        types: space-separated.
        flops: per point.
        saved_inputs: what TensorFlow's gradient reads of the inputs.
        saved_outputs: and of the outputs.
        low: least value in the samples.
        high: greatest.
        dtype: the samples' dtype.
        traits: how they behave; those in :data:`_FROM_OUTPUT` have their gradient from there.
    """

    types: str
    flops: float = 1.0
    saved_inputs: tuple[int, ...] = _NOTHING
    saved_outputs: tuple[int, ...] = _NOTHING
    low: float = -2.0
    high: float = 2.0
    dtype: str = "float32"
    traits: Traits = _POINTWISE

    def operand(self, *shape: int) -> Operand:
        """An operand in the range."""
        return Operand(shape, self.dtype, self.low, self.high)

    def declare(self, samples: Iterable[Sample]) -> None:
        """Registers all types."""

        def rule(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
            return elementwise(
                inputs,
                op.outputs,
                flops_per_point=self.flops,
                saved_inputs=self.saved_inputs,
                saved_outputs=self.saved_outputs,
            )

        every = list(samples)
        for op_type in self.types.split():
            own = replace(self.traits, gradient_from_output=_FROM_OUTPUT.get(op_type))
            register_op(op_type, lower=_same, samples=[s for s in every if s.type == op_type], traits=own)(rule)


# Gradients that follow from the output alone.
_FROM_OUTPUT: dict[str, GradientFromOutput] = {
    "Acosh": lambda ctx, y, dy: dy / ctx.tf.sinh(ctx.tf.math.conj(y)),
    "Asinh": lambda ctx, y, dy: dy / ctx.tf.cosh(ctx.tf.math.conj(y)),
    "Elu": lambda ctx, y, dy: ctx.tf.raw_ops.EluGrad(gradients=dy, outputs=y),
    "Erfinv": lambda ctx, y, dy: dy * (0.5 * math.sqrt(math.pi)) * ctx.tf.exp(ctx.tf.square(y)),
    "Exp": lambda ctx, y, dy: dy * ctx.tf.math.conj(y),
    "Inv": lambda ctx, y, dy: ctx.tf.raw_ops.ReciprocalGrad(y=ctx.tf.math.conj(y), dy=dy),
    "Ndtri": lambda ctx, y, dy: dy * math.sqrt(2.0 * math.pi) * ctx.tf.exp(ctx.tf.square(y) / 2.0),
    "Reciprocal": lambda ctx, y, dy: ctx.tf.raw_ops.ReciprocalGrad(y=ctx.tf.math.conj(y), dy=dy),
    "Relu": lambda ctx, y, dy: ctx.tf.raw_ops.ReluGrad(gradients=dy, features=y),
    "Relu6": lambda ctx, y, dy: ctx.tf.raw_ops.Relu6Grad(gradients=dy, features=y),
    "Rsqrt": lambda ctx, y, dy: ctx.tf.raw_ops.RsqrtGrad(y=ctx.tf.math.conj(y), dy=dy),
    "Selu": lambda ctx, y, dy: ctx.tf.raw_ops.SeluGrad(gradients=dy, outputs=y),
    "Sigmoid": lambda ctx, y, dy: ctx.tf.raw_ops.SigmoidGrad(y=ctx.tf.math.conj(y), dy=dy),
    "Sqrt": lambda ctx, y, dy: ctx.tf.raw_ops.SqrtGrad(y=ctx.tf.math.conj(y), dy=dy),
    "Tanh": lambda ctx, y, dy: ctx.tf.raw_ops.TanhGrad(y=ctx.tf.math.conj(y), dy=dy),
}

_SLOW = TRANSCENDENTAL_FLOPS
_ALIAS = Traits(alias=True, passes_gradient=True)
_BARRIER = Traits(alias=True, blocks_gradient=True)
# TensorFlow's graph optimizer takes them for activations behind a bias.
_ACTIVATION = Traits(fused_onto=("BiasAdd",))
_SUM = Traits(passes_gradient=True)

_UNARY = (
    _Kind("Identity", 1.0, traits=replace(_ALIAS, unfused=True, passes_rows=True)),
    _Kind("Snapshot", 1.0, traits=Traits(alias=True)),
    _Kind("StopGradient PreventGradient", 1.0, traits=_BARRIER),
    _Kind("CheckNumerics", 1.0, traits=replace(_ALIAS, has_effect=True)),
    _Kind("Neg", 1.0, traits=Traits(linear=(0,), passes_rows=True)),
    _Kind("DeepCopy OnesLike ZerosLike", 1.0),
    _Kind("Sign Floor Ceil Round Rint IsNan IsInf IsFinite", 1.0),
    _Kind("Abs Square", 1.0, (0,)),
    _Kind("Relu Relu6", 1.0, (), (0,), -4.0, 8.0, traits=_ACTIVATION),
    _Kind("LeakyRelu", 2.0, (0,), traits=_ACTIVATION),
    _Kind("Elu", _SLOW, (), (0,), traits=_ACTIVATION),
    _Kind("Selu", _SLOW, (), (0,)),
    _Kind("Sigmoid Tanh Exp", _SLOW, (), (0,)),
    _Kind("Softplus Expm1 Sin Cos Sinh Cosh Atan Erf Erfc", _SLOW, (0,)),
    _Kind("Softsign", 3.0, (0,)),
    _Kind("Tan Asin Acos Atanh", _SLOW, (0,), (), -0.9, 0.9),
    _Kind("Erfinv", _SLOW, (), (0,), -0.9, 0.9),
    _Kind("Asinh", _SLOW, (), (0,)),
    _Kind("Acosh", _SLOW, (), (0,), 1.2, 3.0),
    _Kind("Log Log1p Lgamma Digamma", _SLOW, (0,), (), 0.3, 4.0),
    _Kind("Sqrt Rsqrt Reciprocal Inv", 4.0, (), (0,), 0.3, 4.0),
    _Kind("Ndtri", _SLOW, (), (0,), 0.1, 0.9),
    _Kind("BesselI0", 2 * _SLOW, (0,), (), 0.2, 3.0),
    _Kind("BesselI1 BesselI0e BesselI1e", 2 * _SLOW, (0,), (0,), 0.2, 3.0),
    _Kind("BesselJ0 BesselY0 BesselK0", 2 * _SLOW, (0,), (), 0.5, 3.0),
    _Kind("BesselJ1 BesselY1 BesselK0e BesselK1 BesselK1e", 2 * _SLOW, (0,), (0,), 0.5, 3.0),
    _Kind("Dawsn", 2 * _SLOW, (0,), (0,), 0.2, 0.9),
    _Kind("Expint FresnelCos FresnelSin Spence", 2 * _SLOW, (0,), (), 0.2, 0.9),
    _Kind("PopulationCount", dtype="int32", low=0, high=99),
    _Kind("FakeQuantWithMinMaxArgs", 4.0, (0,)),
    _Kind("LogicalNot", dtype="bool", low=0, high=2),
    _Kind("Invert", dtype="int32", low=-9, high=9),
    _Kind("Conj Real Imag", 1.0, dtype="complex64"),
    _Kind("ComplexAbs", 4.0, (0,), (0,), dtype="complex64"),
    _Kind("Angle", _SLOW, (0,), dtype="complex64"),
)

_MESSAGES: dict[str, dict[str, Any]] = {"CheckNumerics": {"message": "sample"}}

for _kind in _UNARY:
    _kind.declare(Sample(_type, (_kind.operand(4, 6),), _MESSAGES.get(_type, {})) for _type in _kind.types.split())

_BINARY = (
    _Kind("Add AddV2 Sub", traits=_SUM),
    _Kind("Mul MulNoNan", 2.0, (0, 1), traits=Traits(multilinear=True)),
    _Kind("SquaredDifference", 2.0, (0, 1)),
    _Kind("RealDiv Div DivNoNan", 4.0, (0, 1), (), 0.5, 3.0, traits=Traits(linear=(0,))),
    _Kind("FloorDiv", 4.0, (), (), 0.5, 3.0),
    _Kind("FloorMod", 4.0, (0, 1), (), 0.5, 3.0),
    _Kind("Mod TruncateMod", 4.0, (0, 1), (), 0.5, 3.0),
    _Kind("TruncateDiv", 4.0, low=1, high=9, dtype="int32"),
    _Kind("Maximum Minimum", 1.0, (0, 1)),
    _Kind("Pow", 2 * _SLOW, (0, 1), (0,), 0.5, 3.0),
    _Kind("Atan2 Xdivy Xlogy Xlog1py", _SLOW, (0, 1), (), 0.5, 3.0),
    _Kind("Igamma Igammac", 5 * _SLOW, (0, 1), (), 0.5, 3.0),
    _Kind("Equal NotEqual", low=0, high=3, dtype="int32"),
    _Kind("Less LessEqual Greater GreaterEqual"),
    _Kind("LogicalAnd LogicalOr", low=0, high=2, dtype="bool"),
    _Kind("BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift", low=0, high=9, dtype="int32"),
    _Kind("Polygamma Zeta", 5 * _SLOW, (0, 1), (), 1.5, 4.0),
    _Kind("NextAfter", 4.0, low=0.5, high=3.0, dtype="float64"),
    _Kind("Complex"),
)


def _binary_samples(kind: _Kind) -> Iterable[Sample]:
    for op_type in kind.types.split():
        yield Sample(op_type, (kind.operand(4, 6), kind.operand(4, 6)))
        yield Sample(op_type, (kind.operand(2, 1, 4), kind.operand(6, 1)))
        yield Sample(op_type, (kind.operand(), kind.operand(6, 2)))


for _kind in _BINARY:
    _kind.declare(_binary_samples(_kind))

# Gradients in the graph itself: TensorFlow's, and those of a user's own.
_GRADIENTS = (
    _Kind("ReluGrad LeakyReluGrad", 1.0, (1,)),
    _Kind("Relu6Grad", 1.0, (1,), (), -4.0, 8.0),
    _Kind("EluGrad SeluGrad SoftplusGrad", _SLOW, (0, 1)),
    _Kind("SigmoidGrad TanhGrad ReciprocalGrad InvGrad", 3.0, (0, 1)),
    _Kind("SqrtGrad", 4.0, (0,), (0,), 0.5, 2.0),
    _Kind("RsqrtGrad", 4.0, (0, 1), (), 0.5, 2.0),
    _Kind("SoftsignGrad", 4.0),
)

for _kind in _GRADIENTS:
    _kind.declare(Sample(_type, (_kind.operand(4, 6), _kind.operand(4, 6))) for _type in _kind.types.split())

_Kind("ApproximateEqual").declare([Sample("ApproximateEqual", (floats(4, 6), floats(4, 6)), {"tolerance": 0.5})])
_Kind("Betainc", 5 * _SLOW, (0, 1, 2)).declare(
    [Sample("Betainc", tuple(floats(4, 6, low=0.2, high=0.9) for _ in range(3)))]
)
_Kind("ClipByValue", 2.0, (0, 1, 2)).declare(
    [
        Sample("ClipByValue", (floats(4, 6), floats(low=-0.5, high=-0.3), floats(low=0.3, high=0.5))),
        Sample("ClipByValue", (floats(4, 6), floats(4, 6, low=-0.5, high=-0.3), floats(4, 6, low=0.3, high=0.5))),
    ]
)
_Kind("Bucketize", 4.0).declare([Sample("Bucketize", (floats(4, 6),), {"boundaries": [-0.5, 0.0, 0.25]})])
for _type in ("FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel"):
    _limits = () if _type.endswith("Vars") else (6,)
    _Kind(_type, 4.0, (0, 1, 2)).declare(
        [Sample(_type, (floats(4, 6), floats(*_limits, low=-0.8, high=-0.5), floats(*_limits, low=0.5, high=0.8)))]
    )
_Kind("SelectV2", 1.0, (0,)).declare(
    [
        Sample("SelectV2", (booleans(4, 6), floats(4, 6), floats(4, 6))),
        Sample("SelectV2", (booleans(6), floats(4, 1), floats())),
        Sample("SelectV2", (booleans(3, 1, 1), floats(4, 2), floats(1, 2))),
    ]
)
_Kind("Cast", traits=Traits(converts=True, linear=(0,), passes_rows=True)).declare(
    [
        Sample("Cast", (floats(4, 6),), {"DstT": "float64"}),
        Sample("Cast", (floats(4, 6, low=-9, high=9),), {"DstT": "int32"}),
        Sample("Cast", (booleans(4, 6),), {"DstT": "float32"}),
    ]
)


def _two_at_a_time(ctx: Lowering, *terms: Any) -> list[Any]:
    # The order in which TensorFlow's AddN adds three or more differs from run to run: see
    # exec/program/summation_order.py.
    return ctx.emit(terms) if len(terms) <= 2 else [functools.reduce(operator.add, terms)]


@register_op(
    "AddN",
    lower=_two_at_a_time,
    samples=[
        Sample("AddN", ([floats(4, 6), floats(4, 6), floats(4, 6)],)),
        Sample("AddN", ([floats(4, 6)],)),
    ],
    traits=Traits(passes_gradient=True, unfused=True),
)
def add_n(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The sum of tensors that are all of one shape."""
    return elementwise(inputs, op.outputs, flops_per_point=float(len(inputs) - 1))


@register_op(
    "Select",
    lower=_same,
    samples=[
        Sample("Select", (booleans(4, 6), floats(4, 6), floats(4, 6))),
        Sample("Select", (booleans(4), floats(4, 6), floats(4, 6))),
        Sample("Select", (booleans(), floats(4, 6), floats(4, 6))),
    ],
)
def select(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """TensorFlow 1's choice: a vector of conditions chooses rows, that is along the first dimension."""
    rule = elementwise(inputs[1:], op.outputs, saved_inputs=(0,))
    dims = rule.outputs[0][: inputs[0].rank]
    return OpRule(
        sizes=rule.sizes,
        inputs=(dims, *rule.inputs),
        outputs=rule.outputs,
        split=rule.split,
        flops=rule.flops,
        backward_flops=rule.backward_flops,
        saved_inputs=rule.saved_inputs,
    )


@register_op(
    "Bitcast",
    lower=_same,
    samples=[
        Sample("Bitcast", (floats(4, 6),), {"type": "int32"}),
        Sample("Bitcast", (floats(4, 6),), {"type": "uint16"}),
        Sample("Bitcast", (integers(4, 6, 2),), {"type": "int64"}),
    ],
)
def bitcast(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Dimensions pass through, but for the one that TensorFlow adds or takes where the sizes of elements differ."""
    shared = min(inputs[0].rank, op.outputs[0].rank)
    shape = inputs[0].shape[:shared]
    names = [(f"d{place}",) for place in range(shared)]
    return OpRule(
        sizes=tuple((f"d{place}", extent) for place, extent in enumerate(shape)),
        inputs=((*names, *((),) * (inputs[0].rank - shared)),),
        outputs=((*names, *((),) * (op.outputs[0].rank - shared)),),
        split=tuple(f"d{place}" for place, extent in enumerate(shape) if extent > 1),
        flops=float(op.outputs[0].elements),
    )


@register_op(
    "L2Loss",
    lower=_same,
    samples=[Sample("L2Loss", (floats(4, 6),)), Sample("L2Loss", (floats(2, 3, 4),))],
)
def l2_loss(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Half the sum of squares: a partial sum over every axis."""
    rule = elementwise((), inputs, flops_per_point=2.0)
    return OpRule(
        sizes=rule.sizes,
        inputs=rule.outputs,
        outputs=((),),
        split=rule.split,
        reduced=frozenset(rule.split),
        flops=rule.flops,
        backward_flops=rule.flops / 2,
        saved_inputs=(0,),
    )
