"""`Source`: what passes of the front end take and give."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tensoropt.api.mirror.model import GradientCall, MergedRows, Model
from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator

__all__ = ["Part", "Request", "Source"]


@dataclass(frozen=True, slots=True)
class Request:
    """The part of a model to import, and the sizes to import it with.

    Attributes:
        batch_size: the first dimension of placeholders that leave it open; None if it is not given.
        shapes: of placeholders, by name, in the place of their own; None if none are given.
        only: names of operations, or of operators that are gradients; None for all that train or may be fetched.
    """

    batch_size: int | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    only: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Some operations of a model, with all that they need.

    Attributes:
        operations: their names; a gradient is by the name of our operator, and needs its losses and what it is of.
        gradients: the differentiations of which they need gradients, with no others.
        merged: the rows among them.
    """

    operations: frozenset[str]
    gradients: tuple[GradientCall, ...]
    merged: tuple[MergedRows, ...]

    @classmethod
    def whole(cls, model: Model) -> Part:
        """All operations of a model."""
        names = frozenset(op.name for op in model.graph.get_operations())
        return cls(names, tuple(model.gradient_calls), tuple(model.merged_rows))


@dataclass(frozen=True, slots=True)
class Source:
    """A model on its way to operators.

    Attributes:
        request: what is wanted of it.
        model: TensorFlow's graph as the script has built it, with the gradients in it.
        own: names of the operations that the script may fetch.
        origins: the script's operation behind each one that was made of it, by name.
        initial: names of the operations that give variables their initial values.
        part: what of the model is imported; the first pass has all of it.
        shapes: of the placeholders that leave sizes open, by name.
        graph: TensorFlow's graph of static shapes, without what computes gradients; None before there is one.
        refused: why an operation that was asked for has no operator, by name.
        operators: in an order in which they may run.
        training: names of the operators of the training step.
        differentiable: the edges over which gradients flow.
    """

    request: Request
    model: Model
    own: Collection[str] = ()
    origins: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    initial: frozenset[str] = frozenset()
    part: Part = Part(frozenset(), (), ())
    shapes: Mapping[str, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))
    graph: Any = None
    refused: Mapping[str, Exception] = field(default_factory=lambda: MappingProxyType({}))
    operators: tuple[Operator, ...] = ()
    training: frozenset[str] = frozenset()
    differentiable: frozenset[Edge] = frozenset()
