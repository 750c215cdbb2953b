"""Rewriting a user's graph: what needs it, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from tensoropt.api.frontend.device_graph import Part, device_graph, given_in, merged_from
from tensoropt.api.frontend.functions import function_attrs, is_call
from tensoropt.api.frontend.meta_graphs import exported
from tensoropt.api.frontend.rewriting.calls import CALL_HANDLERS, VARIABLE_HANDLERS, guarded
from tensoropt.api.frontend.rewriting.gradients import own_gradient
from tensoropt.api.frontend.rewriting.lists import LIST_HANDLERS, materialize
from tensoropt.api.frontend.rewriting.loops import LOOP_HANDLERS
from tensoropt.api.frontend.rewriting.rewriter import OWN_GRADIENT, Rewriter
from tensoropt.api.frontend.rewriting.rows import ROW_HANDLERS, writes_open_rows
from tensoropt.api.mirror.model import Model

__all__ = ["Rewritten", "is_rewritten", "needs_rewriting", "rewritten"]

_BY_TYPE = (CALL_HANDLERS, LIST_HANDLERS, LOOP_HANDLERS, ROW_HANDLERS, VARIABLE_HANDLERS)
_HANDLERS = {op_type: handler for each in _BY_TYPE for op_type, handler in each.items()} | {OWN_GRADIENT: own_gradient}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A graph that was made of a user's.

    Attributes:
        graph: a ``tf.Graph`` with all ops of the user's by their own names, and more.
        origins: the user's op behind each of its ops, by name.
    """

    graph: Any
    origins: Mapping[str, Any]


def needs_rewriting(model: Model) -> bool:
    """Whether a model has ops that call functions or write rows of unknown number, or gradients of its own."""
    inside = frozenset().union(*(call.inside for call in model.gradient_calls))
    return any(is_rewritten(op) for op in model.graph.get_operations() if op.name not in inside)


def is_rewritten(op: Any) -> bool:
    """Whether devices have plain ops in the place of an op.

    It calls functions, has a gradient of its own, or writes rows of which only a run knows how many there are.
    """
    calls = op.type in CALL_HANDLERS or function_attrs(op) or is_call(op)
    return bool("_gradient_op_type" in op.node_def.attr or calls or writes_open_rows(op))


def rewritten(model: Model, shapes: Mapping[str, Sequence[int]], part: Part | None = None) -> Rewritten:
    """Makes a model's graph again as plain ops, for devices (see :func:`device_graph`).

    Args:
        model: the model.
        shapes: of placeholders that it leaves open, by name.
        part: what is made again, without collections; by default all.

    Raises:
        GraphError: naming the op that cannot be made again, and why.
    """
    graph = model.graph
    calls, merged = (model.gradient_calls, model.merged_rows) if part is None else (part.gradients, part.merged)
    # The sizes of rows follow from those of what is fed.
    open_rows = any(output.indices is not None for call in calls for output in call.outputs)
    sized = device_graph(model, shapes, part, cut=False) if shapes and open_rows else graph
    target = tf.Graph()
    target.seed = graph.seed
    rewriter = Rewriter(target, _HANDLERS, guarded, materialize)
    rewriter.taken_from(graph, model.origins, model.copies)
    losses = {name for call in model.gradient_calls for name in call.losses}
    rewriter.differentiates(losses, graph, len(model.gradient_calls))
    every = model.gradient_calls, model.merged_rows
    inside = frozenset().union(*(one.inside for made in every for one in made))
    given = given_in(sized, calls, inside)
    names = None if part is None else part.operations | {name.split(":")[0] for name in given}
    rewriter.rewrite(graph, shapes, inside, given, merged_from(merged), names)
    if part is None:
        meta = exported(graph, target)
        meta.graph_def.Clear()
        with target.as_default():
            meta_graph.import_scoped_meta_graph(meta)  # its collections, such as the variables
    return Rewritten(target, rewriter.origins)
