"""The ops of a subgraph on one device, one by one, so that TensorFlow knows their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import function as functions  # graphs take functions by no public name

from tensoropt.exec.program.generators import Draws
from tensoropt.graph.called_functions import rename_called
from tensoropt.graph.operator import Operator, body_input
from tensoropt.graph.ops.random import drawn, generator_of, is_counted, numbers_skipped, seeds_of

__all__ = ["add_functions", "body_outputs"]

_NUMBERS = itertools.count()


def body_outputs(op: Operator, inputs: Sequence[Any], draws: Draws) -> tuple[list[Any], list[Any]]:
    """The outputs of a ``Subgraph`` in the default graph, and its operations.

    Args:
        op: the operator.
        inputs: its inputs.
        draws: what its random ops draw by; states go on by as many numbers as a run says that there are. An op that
            has none draws by TensorFlow's kernel.
    """
    random = {draw.name: draw for draw in op.draws}
    body = _with_own_functions(op.body)
    add_functions(body.library.function)
    # TensorFlow's gradient of a loop gives the loop more inputs, and cannot where it waits for an operation: so what it
    # reads waits, and what reads nothing does.
    waits = list(tf.compat.v1.get_default_graph()._current_control_dependencies())

    def taken(x: Any) -> list[Any]:
        return [tf.identity(x) if waits else x]

    made = {body_input(place): taken(x) for place, x in enumerate(inputs)}
    operations: dict[str, Any] = {}
    with tf.name_scope(op.name):
        for node in body.node:
            if node.name in made:  # stands for an input
                continue
            given = [_named(name, made) for name in node.input if not name.startswith("^")]
            before = [operations[name[1:]] for name in node.input if name.startswith("^")]
            draw = random.get(node.name)
            if draw is not None and generator_of(draw) in draws.generators:
                if node.name not in draws.drawn:
                    with tf.control_dependencies(before):
                        draws.drawn[node.name] = _drawn(draw, node, given, draws)
                operations[node.name] = draws.drawn[node.name].op
                made[node.name] = taken(draws.drawn[node.name])  # drawn for another subgraph, maybe
                continue
            attrs = dict(node.attr)
            if draw is not None and not is_counted(draw):
                for key, seed in zip(("seed", "seed2"), seeds_of(draw), strict=True):
                    attrs[key] = tf.compat.v1.AttrValue(i=seed)
            operations[node.name] = _operation(node, given, attrs, before if given else [*before, *waits])
            made[node.name] = operations[node.name].outputs
    return [_named(name, made) for name in op.results], list(operations.values())


def _named(name: str, made: Mapping[str, Sequence[Any]]) -> Any:
    """A tensor by its name, which has no number where that is 0."""
    operation, _, number = name.partition(":")
    return made[operation][int(number or 0)]


def add_functions(definitions: Sequence[Any]) -> None:
    """Adds functions to the default graph, as `import_graph_def` does, which walks all of the graph's operations."""
    holder = tf.compat.v1.GraphDef()
    holder.library.function.extend(definitions)
    for each in functions.from_library(holder.library):
        each.add_to_graph(tf.compat.v1.get_default_graph())


def _operation(node: Any, inputs: Sequence[Any], attrs: Mapping[str, Any], before: Sequence[Any]) -> Any:
    """Adds an op to the default graph."""
    with tf.control_dependencies(None):
        made = tf.compat.v1.get_default_graph()._create_op_internal(node.op, list(inputs), name=node.name, attrs=attrs)
    if before:
        made._add_control_inputs(list(before))
    return made


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


def _drawn(draw: Operator, node: Any, inputs: Sequence[Any], draws: Draws) -> Any:
    """The numbers of a random op."""
    shape, *rest = inputs
    (_, counts, _), limits = (rest[:3], rest[3:]) if is_counted(draw) else ((None,) * 3, rest)
    dtype = tf.as_dtype(node.attr["dtype" if "dtype" in node.attr else "Tout"].type)
    count = tf.reduce_prod(tf.cast(shape, tf.int64))
    state = draws.next_state(draw, numbers_skipped(count), counts)
    return drawn(tf, draw.type, state, shape, limits, dtype)
