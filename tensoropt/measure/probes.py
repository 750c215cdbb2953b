"""Pieces of a local graph that can be measured by themselves: what ``probe_batch.py`` builds and runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tensoropt.exec.program.lowering import OpLowering, lower_operator
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.gather import counts_through_samples
from tensoropt.graph.registry import declaration, has_rule, traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Operand
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration

__all__ = ["FunctionProbe", "OperatorProbe", "Probe", "can_be_measured"]


class Probe(Protocol):
    """A piece of a local graph to be measured."""

    @property
    def wanted(self) -> tuple[int, ...]:
        """Positions of the inputs that get a gradient."""
        ...

    @property
    def outgoing(self) -> tuple[int, ...]:
        """Positions of the outputs that bring one."""
        ...

    @property
    def saved_outputs(self) -> tuple[int, ...]:
        """Positions of the outputs that its backward pass reads."""
        ...

    @property
    def is_cold(self) -> bool:
        """True if other work runs before the operator, once its inputs are made, so that no cache has them."""
        ...

    @property
    def is_repeated(self) -> bool:
        """True if a step does the operator again and again, as an unrolled loop does."""
        ...

    def local_inputs(self) -> tuple[TensorSpec, ...]:
        """Shapes and dtypes of this device's inputs."""
        ...

    def integers(self, position: int) -> tuple[int, int]:
        """The least value and the bound of values that are legal for an integer input."""
        ...

    def forward(self, inputs: Sequence[Any], talk: list[int]) -> list[Any]:
        """Builds the outputs; bytes that would be reduced over devices are noted in ``talk``, also in the gradient."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorProbe:
    """One operator under one configuration: ``rank``'s piece of it."""

    op: Operator
    rule: OpRule
    input_specs: tuple[TensorSpec, ...]
    configuration: Configuration
    mesh: Mesh
    rank: int
    wanted: tuple[int, ...]
    outgoing: tuple[int, ...]
    is_repeated: bool = False

    @property
    def saved_outputs(self) -> tuple[int, ...]:
        """See :class:`Probe`."""
        return self.rule.saved_outputs if self.wanted else ()

    @property
    def is_cold(self) -> bool:
        """See :class:`Probe`."""
        return False

    def local_inputs(self) -> tuple[TensorSpec, ...]:
        """See :class:`Probe`."""
        layouts = [self.configuration.input_layouts(self.rule, i).value for i in range(len(self.input_specs))]
        return tuple(
            TensorSpec(layout.local_shape(spec.shape, self.mesh), spec.dtype)
            for spec, layout in zip(self.input_specs, layouts, strict=True)
        )

    def local_outputs(self) -> tuple[TensorSpec, ...]:
        """Shapes and dtypes of this device's outputs."""
        layouts = [self.configuration.output_layouts(self.rule, i).value for i in range(len(self.op.outputs))]
        return tuple(
            TensorSpec(layout.local_shape(spec.shape, self.mesh), spec.dtype)
            for spec, layout in zip(self.op.outputs, layouts, strict=True)
        )

    def integers(self, position: int) -> tuple[int, int]:
        """See :class:`Probe`: from what the op's samples begin with, and in range for whatever the input may index."""
        local = self.local_inputs()
        low, is_fixed = _least_sample(self.op, position)
        if is_fixed:
            return low, low + 1
        if (count := traits(self.op).indices.get(position)) is not None:
            bound = count(self.op, local)
            if counts_through_samples(self.op):
                layout = self.configuration.input_layouts(self.rule, 0).value
                low += layout.slices(self.input_specs[0].shape, self.mesh, self.rank)[0].start or 0
                bound += low
        else:
            indexed = [spec for spec in (*local, *self.local_outputs()) if spec.is_differentiable]
            bound = min((size for spec in indexed for size in spec.shape), default=2)
        return low, max(low + 1, bound)

    def forward(self, inputs: Sequence[Any], talk: list[int]) -> list[Any]:
        """See :class:`Probe`."""
        engine: Any = _Listener(self.rank, talk)
        context = OpLowering(self.op, self.rule, self.input_specs, self.configuration, self.mesh, engine)
        return lower_operator(context, inputs)


@dataclass(frozen=True, slots=True)
class FunctionProbe:
    """Any other piece, such as an optimizer's update: ``build`` takes the inputs, gives tensors or operations."""

    inputs: tuple[TensorSpec, ...]
    build: Callable[..., list[Any]]
    wanted: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    saved_outputs: tuple[int, ...] = ()
    is_cold: bool = False
    is_repeated: bool = False

    def local_inputs(self) -> tuple[TensorSpec, ...]:
        """See :class:`Probe`."""
        return self.inputs

    def integers(self, position: int) -> tuple[int, int]:
        """See :class:`Probe`."""
        return 0, 2

    def forward(self, inputs: Sequence[Any], talk: list[int]) -> list[Any]:
        """See :class:`Probe`."""
        del talk
        return self.build(*inputs)


def can_be_measured(op: Operator) -> bool:
    """Tells whether an operator may be run on made-up tensors any number of times.

    A declared operator may, unless it has an effect, such as printing. For other operators, TensorFlow's definition
    must say that they are stateless; ops that write, print or check are not. Python functions of users have a token
    attribute.
    """
    if has_rule(op.type):
        return declaration(op.type).lower is not None and not declaration(op.type).traits.has_effect
    definition = op_def_registry.get(op.type)
    if definition is None or definition.is_stateful or op.functions:
        return False
    return not any(attr.name == "token" for attr in definition.attr)


def _least_sample(op: Operator, position: int) -> tuple[int, bool]:
    """The least integer of an op's samples at an input, and whether they write that input's values out.

    It is 0 where they have none, or less. Values are written out where few are legal, such as an algorithm's number.
    """
    found: list[Any] = []
    for sample in declaration(op.type).samples if has_rule(op.type) else ():
        static = {place % len(sample.operands) for place in declaration(op.type).static}
        lists = [
            many if isinstance(many, list) else [many]
            for place, many in enumerate(sample.operands)
            if place not in static
        ]
        inputs = [one for many in lists for one in many]
        if sample.type == op.type and position < len(inputs):
            found.append(inputs[position])
    least = min((one.low if isinstance(one, Operand) else np.min(one) for one in found), default=0)
    return max(0, math.ceil(least)), bool(found) and not any(isinstance(one, Operand) for one in found)


class _Listener:
    """Stands for the engine: devices do not talk, what they would say is noted."""

    def __init__(self, rank: int, talk: list[int]) -> None:
        self.rank = rank
        self._talk = talk

    def all_reduce(self, tensor: Any, axes: Sequence[int], *, op: str = "sum") -> Any:
        """The tensor itself."""
        del axes, op
        self._talk.append(int(np.prod(tensor.shape.as_list(), dtype=np.int64)) * tensor.dtype.size)
        return tf.identity(tensor)

    def shift(self, tensor: Any, axes: Sequence[int], by: int) -> Any:
        """The tensor itself. What moves is not noted: costs know it from the halos of the rule."""
        del axes, by
        return tf.identity(tensor)
