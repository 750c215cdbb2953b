"""`Source`: what passes of the front end take and give."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tensoropt.api.frontend.parts import Part
from tensoropt.api.mirror.model import GradientCall, MergedRows, Model
from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator

__all__ = ["Request", "Source"]


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
class Source:
    """A model on its way to operators.

    Attributes:
        request: what is wanted of it.
        model: TensorFlow's graph as the script has built it, with the gradients in it.
        own: names of the operations that the script may fetch.
        origins: the script's operation behind each one that was made of it, by name.
        initial: names of the operations that give variables their initial values.
        part: what of the model is imported; None for all.
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
    part: Part | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=lambda: MappingProxyType({}))
    graph: Any = None
    refused: Mapping[str, Exception] = field(default_factory=lambda: MappingProxyType({}))
    operators: tuple[Operator, ...] = ()
    training: frozenset[str] = frozenset()
    differentiable: frozenset[Edge] = frozenset()

    @property
    def gradient_calls(self) -> tuple[GradientCall, ...]:
        """The differentiations of what is imported."""
        return tuple(self.model.gradient_calls) if self.part is None else self.part.gradients

    @property
    def merged_rows(self) -> tuple[MergedRows, ...]:
        """The merges of gradients' rows in the imported part."""
        return tuple(self.model.merged_rows) if self.part is None else self.part.merged

    def without(self, refused: Mapping[str, Exception]) -> Source:
        """The model without some operations of its graph, and without the gradients that they give.

        Args:
            refused: why, by name.
        """

        def is_there(*tensors: str | None) -> bool:
            return refused.keys().isdisjoint(name.split(":")[0] for name in tensors if name is not None)

        found = (
            replace(call, outputs=tuple(one for one in call.outputs if is_there(one.values, one.indices)))
            for call in self.gradient_calls
        )
        calls = tuple(call for call in found if call.outputs)
        rows = tuple(one for one in self.merged_rows if is_there(one.values, one.indices))
        part = self.part
        if (calls, rows) != (self.gradient_calls, self.merged_rows):
            names = (op.name for op in self.model.graph.get_operations())
            part = Part(frozenset(names) - refused.keys(), calls, rows)
        return replace(self, part=part, refused=refused)
