"""Draws of random ops that a run may leave out, or does several times: in branches, and in turns of loops.

TensorFlow runs such an op only where its branch is taken, and once in each turn; the op goes on in its numbers from run
to run. Devices have one op for each turn, which run in any case. So each draws at a place that is counted: behind as
many numbers as the op has given before the run, and before in the run. In the graph it is TensorFlow's op that is given
a state, of which the counter is replaced by two counts: of the run's numbers before these, and with these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tensoropt.api.frontend.effects import is_stateful
from tensoropt.graph.gradient_graphs import GRAPH
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import DRAWN_BY_STATE, GENERATOR, twin_of

__all__ = ["DRAWN_APART", "counted_draw", "draw_attrs", "draws_by_kernel", "is_draw", "of_other_numbers", "original_of"]

DRAWN_APART = "_tensoropt_drawn_apart"
"""The attribute of a random op in a turn or a branch that is drawn in any case, by a state that no other turn has."""

_ORIGINAL = "_tensoropt_draw"
_TYPES = frozenset(map(twin_of, DRAWN_BY_STATE))


def counted_draw(node: Any, generator: str, shape: Any) -> tuple[str, dict[str, Any]]:
    """The type and the attributes of the draw that stands for a random op.

    Args:
        node: the op's definition.
        generator: the name of the state that the draws of all turns have.
        shape: the op's operand.
    """
    attr = tf.compat.v1.AttrValue
    original = tf.compat.v1.NodeDef(name=generator, op=node.op)
    for key, value in node.attr.items():
        if not key.startswith("_"):
            original.attr[key].CopyFrom(value)
    dtype = node.attr["Tout" if "Tout" in node.attr else "dtype"].type
    attrs = {"dtype": attr(type=dtype), "Tshape": attr(type=shape.dtype.as_datatype_enum)}
    return twin_of(node.op), {**attrs, _ORIGINAL: attr(s=original.SerializeToString(deterministic=True))}


def is_draw(op: Any) -> bool:
    """Tells whether an operation is a counted draw, whose numbers differ from run to run."""
    return op.type in _TYPES and _ORIGINAL in op.node_def.attr


def draw_attrs(original: Any) -> dict[str, Any]:
    """The attributes of the operator for a draw, but for those of its numbers."""
    return {"seed": original.attr["seed"].i, "seed2": original.attr["seed2"].i, GENERATOR: original.name}


def original_of(attrs: Any) -> Any:
    """The definition of the random op that a counted draw stands for, with the state's name; None of another op.

    Args:
        attrs: of the operation's definition.
    """
    return tf.compat.v1.NodeDef.FromString(attrs[_ORIGINAL].s) if _ORIGINAL in attrs else None


def draws_by_kernel(op: Any) -> bool:
    """Tells whether an operation draws numbers by a state that only TensorFlow's kernel knows."""
    return is_stateful(op) and op.type not in DRAWN_BY_STATE and "seed2" in op.node_def.attr


def of_other_numbers(graph: Graph) -> list[str]:
    """What of a model draws other numbers than one process, each as the beginning of a sentence."""
    apart = [op for op in graph.operators if any(DRAWN_APART in attrs for attrs in _attrs_of(op))]
    whole = [op for op in graph.operators if op.body is not None and _draws_inside(op.body)]
    behind = [op for op in graph.operators if GRAPH in (op.node or {}) and _draws_behind(op.node)]
    said = []
    if behind:
        said.append(
            f"random ops in the gradient functions of {len(behind)} ops (first: {behind[0]}) have seeds of their own, "
            "and begin anew with each set of fetches"
        )
    if apart:
        said.append(
            f"{len(apart)} random ops in branches and loops (first: {apart[0]}) are drawn in any case, each turn by a "
            "seed of its own, as only uniform and normal numbers are counted"
        )
    if whole:
        said.append(
            f"random ops in {len(whole)} loops or branches that are one operator (first: {whole[0]}) begin anew with "
            "each set of fetches"
        )
    return said


def _attrs_of(op: Operator) -> list[Any]:
    return [op.node or {}] if op.body is None else [node.attr for node in op.body.node]


def _draws_behind(attrs: Any) -> bool:
    """Tells whether the traced gradient of an operation draws numbers."""
    body = tf.compat.v1.GraphDef.FromString(attrs[GRAPH].s)
    return _any_draws(body.node) or _draws_inside(body)


def _draws_inside(body: Any) -> bool:
    return _any_draws(node for function in body.library.function for node in function.node_def)


def _any_draws(nodes: Iterable[Any]) -> bool:
    return any("seed2" in node.attr and op_def_registry.get(node.op).is_stateful for node in nodes)
