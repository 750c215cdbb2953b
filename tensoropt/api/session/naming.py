"""Translation of a script's fetches and feeds into the executor's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.effects import is_plain_read
from tensoropt.api.frontend.initializers import initialized_by
from tensoropt.api.frontend.input_pipelines import Pipelines
from tensoropt.api.frontend.reader import noted_tensors
from tensoropt.api.mirror.model import Model
from tensoropt.api.session.pipeline_session import Piped
from tensoropt.errors import FeedError, SessionError, did_you_mean
from tensoropt.exec.program.fetch import Fetch
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId

__all__ = ["Initialize", "check_feedable", "feed_of", "fetch_of", "tensor_name"]


@dataclass(frozen=True)
class Initialize:
    """A fetch that gives variables their initial values, and runs other operations after."""

    variables: frozenset[str]
    others: tuple[str | Piped, ...]


def fetch_of(model: Model, item: Any, pipelines: Pipelines) -> Fetch | Initialize | Piped:
    """Translates a fetch into the executor's terms.

    Raises:
        SessionError: the fetch is nothing of the model.
    """
    name = item if isinstance(item, str) else getattr(item, "name", None)
    if name is None:
        raise SessionError(
            f"Fetch {item!r}: must be a tensor, a variable or an operation of the model, or the name of one."
        )
    graph = None if isinstance(item, str) else getattr(item, "graph", model.graph)
    if graph not in (None, model.graph):
        raise SessionError(
            f"Fetch {item!r}: is of another model than the one that build_execution_graph built. "
            "Fetch what was made after the last reset_default_graph, or build the other model's graph."
        )
    try:
        # A variable is its read, and what an assignment returns is a read that comes after it.
        element = model.graph.as_graph_element(item if isinstance(item, tf.Variable) else name)
    except (KeyError, TypeError, ValueError) as error:
        raise SessionError(
            f"Fetch {item!r}: the model has no such tensor, variable or operation. Use 'name:0' for an output of "
            f"an operation and 'name' for the operation.{did_you_mean(name, _names(model))}"
        ) from error
    if isinstance(element, tf.Operation):
        if element.name in pipelines.inside:
            return Piped(element.name)
        variables, names = initialized_by(element)
        others = tuple(Piped(other) if other in pipelines.inside else other for other in names)
        return Initialize(variables, others) if variables or others != names else str(element.name)
    if element.op.name in pipelines.inside:
        return Piped(element.name)
    noted = noted_tensors(model.gradient_calls, model.merged_rows)
    if element.name in noted:
        return noted[element.name]
    if is_plain_read(element.op, {}):
        return TensorId(element.op.inputs[0].op.name)
    return TensorId(element.op.name, element.value_index)


def _names(model: Model) -> Iterator[str]:
    """Yields the names of all operations and tensors that can be fetched."""
    for op in model.graph.get_operations():
        yield op.name
        yield from (tensor.name for tensor in op.outputs)


def feed_of(model: Model, key: Any, pipelines: Pipelines) -> str | TensorId:
    """Translates the key of a feed into the executor's terms: a placeholder's name, or any other tensor.

    Raises:
        FeedError: the key is no tensor of the model, or one that TensorFlow does not read any more when it runs.
    """
    if isinstance(key, str):
        name = tensor_name(key)
        try:
            key = model.graph.get_tensor_by_name(name)
        except (KeyError, ValueError) as error:
            raise FeedError(f"Feed '{name}': the model has no such tensor. Feed placeholders or tensors.") from error
    if isinstance(key, tf.Variable) and key.graph is model.graph:
        return TensorId(key.op.name)
    if not isinstance(key, tf.Tensor) or not hasattr(key, "op"):
        raise FeedError(f"Feed {key!r}: must be a placeholder or another tensor of the model, or its name.")
    if key.graph is not model.graph:
        raise FeedError(
            f"Feed {key!r}: is of another model than the one that build_execution_graph built. "
            "Feed what was made after the last reset_default_graph, or build the other model's graph."
        )
    if key.name in pipelines.places:
        return pipelines.places[key.name]
    if traits(key.op).is_input or key.op.name in pipelines.inside:
        return str(key.op.name)
    found = TensorId(key.op.name, key.value_index)
    check_feedable(model.graph, [found])
    return found


def check_feedable(graph: Any, keys: Iterable[Any]) -> None:
    """Checks that nothing in a ``tf.Graph`` was made from the values of tensors when it was built; it need not have
    them.

    Raises:
        FeedError: something was.
    """
    for key in keys:
        if not isinstance(key, TensorId):
            continue
        try:
            feedable = graph.is_feedable(graph.get_tensor_by_name(str(key)))
        except KeyError:
            continue
        if not feedable:
            raise FeedError(
                f"Feed '{key}': its value is built into branches, loops, shapes, axes or lookups, which would not see "
                "what is fed. Make it a placeholder (placeholder_with_default has a value), or build the model anew."
            )


def tensor_name(key: Any) -> str:
    """The name of a tensor that is fed."""
    name = key if isinstance(key, str) else str(getattr(key, "name", key))
    return name if ":" in name else f"{name}:0"
