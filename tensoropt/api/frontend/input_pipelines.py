"""The input pipelines of a model (``tf.data``): what of its graph they are, and what of them the model reads.

A pipeline is no part of the logical graph: each rank runs it in a session of TensorFlow's own, and feeds what it gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tensoropt.api.frontend.effects import is_pipeline, makes_handle
from tensoropt.api.mirror.model import GradientCall

__all__ = ["Pipelines", "pipelines_of"]


@dataclass(frozen=True, slots=True)
class Pipelines:
    """The input pipelines in a graph.

    Attributes:
        inside: names of the operations that they consist of, and of those that only these read.
        elements: the tensors that the model reads of them, by the names of the placeholders in their place.
    """

    inside: frozenset[str] = frozenset()
    elements: Mapping[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, str]:
        """The names of placeholders by those of the tensors in whose places they are."""
        return {tensor.name: place for place, tensor in self.elements.items()}

    def redirected(self, calls: Iterable[GradientCall]) -> tuple[GradientCall, ...]:
        """Differentiations whose tensors are the placeholders where they are those of pipelines."""
        tensors = {name: f"{place}:0" for name, place in self.places.items()}
        return tuple(
            replace(
                call,
                outputs=tuple(replace(one, source=tensors.get(one.source, one.source)) for one in call.outputs),
                stopped=tuple(tensors.get(name, name) for name in call.stopped),
            )
            for call in calls
        )


def pipelines_of(graph: Any) -> Pipelines:
    """The input pipelines in a ``tf.Graph``."""
    operations = graph.get_operations()
    inside = {op.name for op in operations if is_pipeline(op)}
    if not inside:
        return Pipelines()
    for op in reversed(operations):
        readers = [reader for tensor in op.outputs for reader in tensor.consumers()] + op._control_outputs
        if readers and not makes_handle(op) and all(reader.name in inside for reader in readers):
            inside.add(op.name)
    read = [
        tensor
        for op in operations
        if op.name in inside
        for tensor in op.outputs
        if any(reader.name not in inside for reader in tensor.consumers())
    ]
    return Pipelines(frozenset(inside), {f"{x.op.name}/element{x.value_index}": x for x in read})
