"""One operator of the logical graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tensoropt.graph.spec import TensorId, TensorSpec

__all__ = ["Operator", "body_input"]


@dataclass(frozen=True, slots=True)
class Operator:
    """A TensorFlow op, a variable, a fan-out or a loss, with tensors that are all of static shape.

    Attributes:
        name: the user's own name for it.
        type: TensorFlow's op type, or one of ours: ``Variable``, ``Fanout``, ``Sink``, ``Subgraph``.
        inputs: the tensors that it reads; operands that are fixed by the graph are in ``static`` instead.
        outputs: what it makes.
        attrs: attributes as Python values.
        static: operands that carry shapes, axes and the like, by their position among TensorFlow's operands.
        control_inputs: operators that run before it.
        source: ``file:line`` of the user's call.
        node: TensorFlow's own attribute values, opaque here; lowering passes them on.
        handles: positions among ``inputs`` at which TensorFlow's op takes the variable itself, not its value.
        functions: TensorFlow's definitions of the functions that the op calls, opaque here.
        body: for a ``Subgraph``, TensorFlow's definition of the ops that it is, opaque here: a graph in which
            placeholders, by the names of :func:`body_input`, stand for its inputs.
        results: the tensors of ``body`` that are its outputs.
        draws: the ops of ``body`` that draw numbers by a state that they are given, by their types, names and seeds.
    """

    name: str
    type: str
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    static: Mapping[int, Any] = field(default_factory=lambda: MappingProxyType({}))
    control_inputs: tuple[str, ...] = ()
    source: str | None = None
    node: Any = field(default=None, compare=False, repr=False)
    handles: tuple[int, ...] = ()
    functions: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    body: Any = field(default=None, compare=False, repr=False)
    results: tuple[str, ...] = field(default=(), compare=False, repr=False)
    draws: tuple[Operator, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return f"{self.type} '{self.name}'{where}"


def body_input(place: int) -> str:
    """The placeholder for an input in the body of a ``Subgraph``, by a name that TensorFlow gives to nothing else."""
    return f".input{place}"
