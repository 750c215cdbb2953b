"""Feeding tensors that are no placeholders: who reads one reads what is fed, and what makes it need not run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.errors import FeedError
from tensoropt.graph.differentiation import differentiated_edges
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId

__all__ = ["check_not_differentiated", "copies", "fed_array"]


def fed_array(graph: Graph, tensor: TensorId, value: Any) -> np.ndarray:
    """Checks a value that is fed to a tensor, and returns it as a whole array.

    Raises:
        FeedError: the tensor is not in the graph or cannot be fed, or the value has another shape or dtype.
    """
    if tensor.op not in graph:
        raise FeedError(
            f"Feed '{tensor}': is not in the graph that was planned. Make it before find_strategy; what only "
            "initializers, shapes and axes read is not in it either."
        )
    op, spec = graph[tensor.op], graph.spec(tensor)
    if traits(op).is_variable:
        raise FeedError(
            f"Feed '{tensor.op}': is a variable, whose readers would not see what is fed. Set it by load(value), or by "
            "an assignment that reads a placeholder."
        )
    if isinstance(value, tf.Variable) or tf.is_symbolic_tensor(value):
        raise FeedError(f"{op}: wants an array of {spec}, got '{value.name}', which has no value before it runs.")
    dtype = tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype
    try:
        array = np.asarray(value, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise FeedError(f"{op}: wants an array of {spec}, got {type(value).__name__}: {error}.") from error
    if array.shape != spec.shape:
        raise FeedError(
            f"{op}: wants the whole {spec}, got shape {array.shape}. Only placeholders take a rank's share of a batch."
        )
    return array


def copies(graph: Graph, tensor: TensorId) -> list[TensorId]:
    """A tensor, and the copies of it that readers of a constant have."""
    op = graph[tensor.op]
    if not traits(op).is_constant:
        return [tensor]
    names = itertools.takewhile(graph.__contains__, (f"{op.name}/copy{number}" for number in itertools.count(1)))
    # A script may have such a name, too.
    alike = (name for name in names if traits(graph[name]).is_constant and graph[name].outputs == op.outputs)
    return [tensor, *map(TensorId, alike)]


def check_not_differentiated(graph: Graph, needed: Sequence[Operator], fed: Iterable[TensorId]) -> None:
    """Checks that no gradient among the operators that are needed flows through a tensor that is fed.

    Raises:
        FeedError: one does.
    """
    edges = [edge for tensor in fed for edge in graph.consumers(tensor) if edge in graph.differentiable]
    if not edges:
        return
    # Other gradients of the graph may flow there: a critic is fed the actions that its actor is trained by.
    differentiated = differentiated_edges(graph, needed)
    for edge in edges:
        if edge in differentiated:
            raise FeedError(
                f"{graph[edge.tensor.op]}: is fed and in the middle of what the training step differentiates: "
                f"gradients flow back through it from {graph[edge.consumer]}. Feed a placeholder in its place, made by "
                "tensoropt.placeholder_with_default(tensor, shape), which cuts them off there, or fetch without "
                "the training step."
            )
