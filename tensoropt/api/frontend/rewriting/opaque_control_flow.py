"""Branches and loops that stay TensorFlow's: one operator each, which every device runs whole."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_util_v2

from tensoropt.api.frontend.attributes import HINTS, types_of
from tensoropt.api.frontend.functions import function_of, name_functions_by_content
from tensoropt.api.frontend.rewriting.rewriter import CannotRewrite, Rewriter, Scope
from tensoropt.api.frontend.rewriting.values import TensorList, Value, VariableValue
from tensoropt.errors import GraphError

__all__ = ["kept"]

_STATELESS = "Stateless"


def kept(rewriter: Rewriter, op: Any, scope: Scope, reason: str) -> Sequence[Value]:
    """The op again, with functions that take the values of variables in place of variables.

    Args:
        rewriter: makes it.
        op: a branch or a loop.
        scope: of it.
        reason: why it cannot become plain ops.

    Raises:
        CannotRewrite: if it stands where it may have to run though its branch is not taken; then that is kept.
        GraphError: if it cannot be kept, since it assigns to variables.
    """
    if rewriter.probing or scope.guard is not None:
        raise CannotRewrite(reason)
    loop = "body" in op.node_def.attr
    lead = 0 if loop else 1  # branches do not get the condition
    arguments = [scope.value(x) for x in op.inputs]
    places = {
        attr: len(value.list.func) or 1
        for attr, value in op.node_def.attr.items()
        if value.HasField("func") or value.list.func
    }
    attrs = {key: value for key, value in op.node_def.attr.items() if key not in HINTS}
    stateful = False
    branches: list[Any] = []
    for attr, count in places.items():
        names = []
        for place in range(count):
            # A loop's condition gives a truth, all other functions what the op gives.
            # Ranks compare what they have made, so names count nothing that differs between processes.
            called = f"{getattr(rewriter.graph, 'name', '')}/{scope.prefix}{op.name}/{attr}/{place}"
            made = _function(rewriter, op, called, function_of(op, attr, place), arguments[lead:], reason, loop)
            branches.append(made)
            stateful |= any(each.op_def.is_stateful for each in made.get_operations())
            names.append(control_flow_util_v2.create_new_tf_function(made))
        attrs[attr] = tf.compat.v1.AttrValue()
        if op.node_def.attr[attr].HasField("func"):
            attrs[attr].func.name = names[0]
        else:
            for name in names:
                attrs[attr].list.func.add(name=name)
    waits = rewriter.before_read(op, scope, arguments)
    operands = [rewriter.content(value, op, scope, "value", waits) for value in arguments]
    dtypes = [x.dtype for x in operands] if loop else [x.dtype for x in op.outputs]
    attrs["T" if loop else "Tin"] = types_of(operands[lead:])
    if loop:
        attrs["output_shapes"] = tf.compat.v1.AttrValue()
        attrs["output_shapes"].list.shape.extend(
            (x.shape if old.dtype == tf.resource else old.shape).as_proto()
            for x, old in zip(operands, op.outputs, strict=True)
        )
    kind = op.type.removeprefix(_STATELESS)
    name = rewriter.name(op, scope) if loop and scope.outer is None else rewriter.free(f"{scope.prefix}{op.name}/kept")
    made = rewriter.make(kind if stateful else f"{_STATELESS}{kind}", operands, dtypes, attrs, name, op)
    before = scope.before(op)
    if before:
        made._add_control_inputs(before)
    if stateful:
        rewriter.effects.append(made)
    values: list[Value] = []
    for place, (new, old) in enumerate(zip(made.outputs, op.outputs, strict=True)):
        if new.dtype != tf.variant and new.shape.is_compatible_with(old.shape) and old.dtype != tf.resource:
            new.set_shape(old.shape)
        given = [] if loop else [branch.outputs[place].shape for branch in branches]
        if given and all(shape == given[0] for shape in given) and given[0].is_fully_defined():
            new.set_shape(given[0])
        values.append(arguments[place] if loop and old.dtype == tf.resource else new)
    return values


def _function(
    rewriter: Rewriter, op: Any, called: str, function: Any, arguments: Sequence[Value], reason: str, loop: bool
) -> Any:
    """A function of values that does what ``function`` does."""
    with rewriter.graph.as_default():
        readable = re.sub(r"\W", "_", called).strip("_")
        made: Any = func_graph.FuncGraph(f"{readable[-80:]}_{zlib.crc32(called.encode()):08x}")
    inner = rewriter.beside(made)
    given: dict[int, Value] = {}
    inputs = []
    with made.as_default():
        for place, (value, x) in enumerate(zip(arguments, function.inputs, strict=True)):
            dtype, shape = _held(value)
            is_variable = x.dtype == tf.resource
            # What is carried from turn to turn may change its shape, as the function says.
            fixed = is_variable or (not loop and shape.is_compatible_with(x.shape))
            stand = tf.compat.v1.placeholder(dtype, shape if fixed else x.shape)
            inputs.append(stand)
            given[place] = VariableValue(stand) if is_variable else stand
    try:
        found = inner.call(function, given, Scope(op.graph), op, "body")
        outputs = [_given_back(inner, op, value) for value in found.values()]
    except CannotRewrite as inside:
        raise GraphError(
            f"{op.type} '{op.name}': cannot become plain operators, since {reason}; nor can it run as one operator, "
            f"since {inside}. Let a loop carry what it would assign, and assign after it, or give it a number of turns "
            "that is known (maximum_iterations)."
        ) from inside
    for each in made.get_operations():
        if "seed2" in each.node_def.attr and not each.get_attr("seed") and not each.get_attr("seed2"):
            each._set_attr("seed2", tf.compat.v1.AttrValue(i=1 + (zlib.crc32(f"{op.name}/{each.name}".encode()) >> 1)))
    made.inputs, made.outputs = inputs, outputs
    made.control_outputs = list(inner.effects)
    # TensorFlow knows functions by their names, for as long as the process lives.
    definition = made.as_graph_def()
    name_functions_by_content(definition)
    content = definition.SerializeToString(deterministic=True)
    made.name += f"_{zlib.crc32(content + repr([x.name for x in outputs]).encode()):08x}"
    return made


def _held(value: Value) -> tuple[Any, Any]:
    if isinstance(value, TensorList):
        return tf.variant, tf.TensorShape([])
    if isinstance(value, VariableValue):
        return value.tensor.dtype, value.tensor.shape
    if value.dtype == tf.resource:
        if "dtype" not in value.op.node_def.attr:
            return value.dtype, value.shape
        return tf.as_dtype(value.op.get_attr("dtype")), tf.TensorShape(value.op.get_attr("shape"))
    return value.dtype, value.shape


def _given_back(rewriter: Rewriter, op: Any, value: Value) -> Any:
    return value.tensor if isinstance(value, VariableValue) else rewriter.tensor(value, op)
