"""The ops of a subgraph on one device, one by one, so that TensorFlow knows their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.exec.program.generators import Draws
from tensoropt.graph.called_functions import rename_called
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import drawn, generator_of, is_counted, numbers_skipped, seeds_of

__all__ = ["body_outputs"]

_NUMBERS = itertools.count()


def body_outputs(op: Operator, inputs: Sequence[Any], draws: Draws) -> list[Any]:
    """The outputs of a ``Subgraph`` in the default graph.

    Args:
        op: the operator.
        inputs: its inputs.
        draws: what its random ops draw by; states go on by as many numbers as a run says that there are. An op that
            has none draws by TensorFlow's kernel.
    """
    random = {draw.name: draw for draw in op.draws}
    body = _with_own_functions(op.body)
    made = {f"input{place}:0": tensor for place, tensor in enumerate(inputs)}
    piece = _piece(body)
    for node in body.node:
        if f"{node.name}:0" in made:  # stands for an input
            continue
        draw = random.get(node.name)
        if draw is not None and generator_of(draw) in draws.generators:
            _import(op, piece, made)
            piece = _piece(body)
            if node.name not in draws.drawn:
                draws.drawn[node.name] = _drawn(draw, node, made, draws)
            made[f"{node.name}:0"] = draws.drawn[node.name]
        else:
            added = piece.node.add()
            added.CopyFrom(node)
            if draw is not None and not is_counted(draw):
                added.attr["seed"].i, added.attr["seed2"].i = seeds_of(draw)
    _import(op, piece, made)
    return [made[name] for name in op.results]


def _with_own_functions(body: Any) -> Any:
    """A body whose functions have names that nothing else in this process has.

    TensorFlow derives the names of functions for a loop's gradients from the loop's, for whatever they are gradients.
    """
    if not body.library.function:
        return body
    own = tf.compat.v1.GraphDef()
    own.CopyFrom(body)
    number = next(_NUMBERS)
    names = {one.signature.name: f"{one.signature.name}_{number}" for one in own.library.function}
    for one in own.library.function:
        one.signature.name = names[one.signature.name]
    for node in [*own.node, *(node for one in own.library.function for node in one.node_def)]:
        rename_called(node, names)
    return own


def _piece(body: Any) -> Any:
    """A graph for some of the ops, which may call what all of them may."""
    return tf.compat.v1.GraphDef(versions=body.versions, library=body.library)


def _import(op: Operator, piece: Any, made: dict[str, Any]) -> None:
    """Adds ops to the default graph, and their outputs to those that are ``made``."""
    names = {node.name for node in piece.node}
    before = {_key(name) for node in piece.node for name in node.input}
    given = {key: made[key] for key in before if key.lstrip("^").split(":")[0] not in names}
    # TensorFlow's gradient of a loop gives the loop more inputs, and cannot where it waits for an operation: so what it
    # reads waits, and what reads nothing does.
    waits = list(tf.compat.v1.get_default_graph()._current_control_dependencies())
    if waits:
        given = {key: x if key.startswith("^") else tf.identity(x) for key, x in given.items()}
    with tf.control_dependencies(None):
        found = tf.graph_util.import_graph_def(piece, input_map=given, return_elements=sorted(names), name=op.name)
    for operation in found if waits else ():
        if not operation.inputs:
            operation._add_control_inputs(waits)
    for name, operation in zip(sorted(names), found, strict=True):
        made |= {f"{name}:{place}": tensor for place, tensor in enumerate(operation.outputs)}
        with tf.control_dependencies([operation]):
            made[f"^{name}"] = operation.outputs[0] if operation.outputs else tf.constant(0)


def _drawn(draw: Operator, node: Any, made: Mapping[str, Any], draws: Draws) -> Any:
    """The numbers of a random op."""
    shape, *rest = (made[_key(name)] for name in node.input if not name.startswith("^"))
    (_, counts, _), limits = (rest[:3], rest[3:]) if is_counted(draw) else ((None,) * 3, rest)
    dtype = tf.as_dtype(node.attr["dtype" if "dtype" in node.attr else "Tout"].type)
    with tf.control_dependencies([made[name] for name in node.input if name.startswith("^")]):
        count = tf.reduce_prod(tf.cast(shape, tf.int64))
        state = draws.next_state(draw, numbers_skipped(count), counts)
        return drawn(tf, draw.type, state, shape, limits, dtype)


def _key(name: str) -> str:
    """A tensor by its whole name; what only must run first as it is."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"
