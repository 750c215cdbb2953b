"""The registry of ops: everything about an op type, declared once."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tensoropt.errors import OpError
from tensoropt.graph.lowering import Lower
from tensoropt.graph.operator import Operator
from tensoropt.graph.rule import OpRule, replicated
from tensoropt.graph.sample import Sample
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits, Typed

__all__ = [
    "OpDeclaration",
    "declaration",
    "has_rule",
    "heavy_gradient_kernels",
    "is_declared",
    "merged_gradient_kernels",
    "register_op",
    "registered_types",
    "rule_of",
    "traits",
]

_UNDECLARED = Traits()

Rule = Callable[[Operator, Sequence[TensorSpec]], OpRule]


@dataclass(frozen=True, slots=True)
class OpDeclaration:
    """All that is known of an op type.

    Attributes:
        rule: gives the iteration space of one operator.
        lower: builds its local part: ``lower(context, *inputs)``; None where the device's program does it itself
            (variables, inputs, fan-outs).
        static: operands that carry shapes, axes or paddings, by position (negative from the end), and what they
            are. They must be known when the graph is imported, and are not inputs of the :class:`Operator`.
        shared: whether one op draws for all programs on a device, where its state cannot be given (random ops).
        samples: operators that the contract test runs under every configuration.
        traits: how it behaves; :func:`traits` is asked for them.
        unsplit: splits that would be right but that the rule leaves out on purpose, with the reason, as the contract
            test names them.
    """

    types: tuple[str, ...]
    rule: Rule
    lower: Lower | None
    static: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    shared: bool = False
    samples: tuple[Sample, ...] = ()
    traits: Traits = _UNDECLARED
    unsplit: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


_REGISTRY: dict[str, OpDeclaration] = {}


def register_op(
    *types: str,
    lower: Lower | None,
    static: Mapping[int, str] | None = None,
    shared: bool = False,
    samples: Sequence[Sample] = (),
    traits: Traits = _UNDECLARED,
    unsplit: Mapping[str, str] | None = None,
) -> Callable[[Rule], Rule]:
    """Declares op types; decorates the function that gives their rule.

    Args:
        types: TensorFlow's op types that the declaration serves.
        lower: see :class:`OpDeclaration`; there is no default, so that nothing is lowered by oversight.
        static: see :class:`OpDeclaration`.
        shared: see :class:`OpDeclaration`.
        samples: at least one per type that is lowered.
        traits: see :class:`OpDeclaration`.
        unsplit: see :class:`OpDeclaration`.

    Raises:
        OpError: if a type is declared twice, or has no sample for the contract test.
    """

    def add(rule: Rule) -> Rule:
        fixed = MappingProxyType(dict(static or {}))
        left_out = MappingProxyType(dict(unsplit or {}))
        entry = OpDeclaration(types, rule, lower, fixed, shared, tuple(samples), traits, left_out)
        for op_type in types:
            if op_type in _REGISTRY:
                other = _REGISTRY[op_type].rule
                raise OpError(
                    f"{op_type}: declared twice, by {other.__module__}.{other.__qualname__} and "
                    f"{rule.__module__}.{rule.__qualname__}. Keep one."
                )
            if lower is not None and not any(sample.type == op_type for sample in entry.samples):
                raise OpError(f"{op_type}: declared without a sample. The contract test needs at least one.")
            _REGISTRY[op_type] = entry
        return rule

    return add


def registered_types() -> tuple[str, ...]:
    """All declared op types, sorted."""
    _load()
    return tuple(sorted(_REGISTRY))


def has_rule(op_type: str) -> bool:
    """Tells whether an op type is declared."""
    _load()
    return op_type in _REGISTRY


def declaration(op_type: str) -> OpDeclaration:
    """The declaration of an op type.

    Raises:
        OpError: if there is none.
    """
    _load()
    try:
        return _REGISTRY[op_type]
    except KeyError:
        raise OpError(f"{op_type}: no rule is declared. It can only run replicated.") from None


def traits(op: Typed) -> Traits:
    """Returns the traits of an operator, ours or TensorFlow's; default traits for a type that is not declared."""
    _load()
    entry = _REGISTRY.get(op.type)
    return _UNDECLARED if entry is None else entry.traits


@functools.cache
def heavy_gradient_kernels() -> frozenset[str]:
    """TensorFlow's op types that compute the gradients of products and of convolutions."""
    known = [declaration(op_type).traits for op_type in registered_types()]
    heavy = [own for own in known if own.is_product or own.is_convolution]
    return frozenset(kernel for own in heavy for kernel in own.gradient_kernels if kernel is not None)


@functools.cache
def merged_gradient_kernels() -> frozenset[str]:
    """TensorFlow's op types of which it makes one op on CPUs where two read one gradient: see ``merged_with``."""
    found: set[str] = set()
    for own in (declaration(op_type).traits for op_type in registered_types()):
        for other in (declaration(op_type).traits for op_type in own.merged_with):
            kernels = [*own.gradient_kernels[1:2], *other.gradient_kernels[1:2]]
            found.update(kernel for kernel in kernels if len(kernels) == 2 and kernel is not None)
    return frozenset(found)


def is_declared(op: Operator, inputs: Sequence[TensorSpec]) -> bool:
    """Tells whether an operator is split and built by the declaration of its type.

    If not, the operator runs whole on every device. Operators that read or write strings do, too: devices cannot
    exchange strings.
    """
    return has_rule(op.type) and all(spec.dtype != "string" for spec in (*inputs, *op.outputs))


def rule_of(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The rule of an operator; one that :func:`is_declared` denies is replicated.

    Raises:
        OpError: if the declared rule does not fit the operator's tensors.
    """
    if not is_declared(op, inputs):
        return replicated(inputs, op.outputs, float(sum(spec.elements for spec in (*inputs, *op.outputs))))
    rule = declaration(op.type).rule(op, inputs)
    for what, dims_list, specs in (("input", rule.inputs, inputs), ("output", rule.outputs, op.outputs)):
        if len(dims_list) != len(specs):
            raise OpError(f"{op}: its rule has {len(dims_list)} {what}s, the operator {len(specs)}.")
        for index, (dims, spec) in enumerate(zip(dims_list, specs, strict=True)):
            if len(dims) != spec.rank:
                raise OpError(f"{op}: its rule gives {what} {index} {len(dims)} dimensions, it is {spec}.")
    if not all(inputs[halo.input].is_movable for halo in rule.halos):
        return rule.without_halos()  # a rim whose size a run decides cannot be sent
    return rule


@functools.cache
def _load() -> None:
    """Registers the declarations: importing their modules does it."""
    importlib.import_module("tensoropt.graph.ops")
