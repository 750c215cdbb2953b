"""Operators of a piece of TensorFlow's graph, and what a training step begins at."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from tensoropt.api.frontend.effects import has_effect, saves
from tensoropt.api.frontend.reader import Reader
from tensoropt.api.frontend.walks import reached
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits

__all__ = ["import_operators", "training_roots"]


def import_operators(
    graph: Any, roots: Sequence[Any], *, known: Iterable[str] = (), sources: Mapping[str, Any] | None = None
) -> list[Operator]:
    """The operators that ``roots`` (``tf.Operation``) need, in the order in which they were built."""
    return Reader(graph, (), (), sources or {}).operators(roots, known=known)


def training_roots(
    graph: Any, gradients: Iterable[str], differentiated_by: Container[str], initializers: Container[str]
) -> list[Any]:
    """The operations of a training step that change something: those after a gradient, and updates of variables.

    Args:
        graph: a ``tf.Graph``.
        gradients: names of the operations that give gradients.
        differentiated_by: names of the variables that losses are differentiated by.
        initializers: names of operations that give variables their initial values.
    """

    def after(op: Any) -> list[Any]:
        readers = [*(consumer for tensor in op.outputs for consumer in tensor.consumers()), *op._control_outputs]
        return [reader for reader in readers if reader.name not in initializers]

    given = [graph.get_operation_by_name(name) for name in gradients]
    seen = reached((reader for one in given for reader in after(one)), after)
    found = [op for op in seen if has_effect(op) and not saves(op)]
    for op in graph.get_operations():
        by_loss = traits(op).updates and any(tensor.op.name in differentiated_by for tensor in op.inputs)
        if by_loss and op not in seen:
            found.append(op)
    return found
