"""Values that are known before a graph runs: shapes, axes and paddings, as rules of ops go by them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from tensoropt.api.frontend.draws import is_draw
from tensoropt.api.frontend.effects import is_stateful
from tensoropt.api.frontend.functions import function_attrs
from tensoropt.graph.registry import declaration, has_rule, traits

__all__ = ["is_static", "keep_static", "may_vary", "static_operands", "static_value", "value_with"]


def may_vary(op: Any) -> bool:
    """Tells whether an operation may give different results in two runs, though its operands are equal."""
    own = traits(op)
    if own.is_input:  # a default can be fed, too
        return True
    if not op.inputs:
        return not own.is_constant
    return is_stateful(op) or is_draw(op) or bool(function_attrs(op))


def static_operands(op: Any) -> dict[int, str]:
    """Returns the operands of an operation whose values its rule depends on: by place, the description of each."""
    declared = declaration(op.type).static if has_rule(op.type) else {}
    count = len(op.inputs)
    return {place % count: what for place, what in declared.items()} if count else {}


def is_static(tensor: Any) -> bool:
    """Tells whether a tensor has a :func:`static_value`, without computing the value."""
    pending, seen = [tensor], {tensor.name}
    while pending:
        tensor = pending.pop()
        if tf.get_static_value(tensor) is not None:
            continue
        if _has_no_value(tensor):
            return False
        pending += [x for x in tensor.op.inputs if x.name not in seen]
        seen.update(x.name for x in tensor.op.inputs)
    return True


def static_value(tensor: Any) -> Any:
    """The value of a tensor that depends on nothing but constants and static shapes, else None."""
    value = tf.get_static_value(tensor)
    if value is not None:
        return value
    keep_static(tensor, ())
    # What TensorFlow does not fold by itself is computed, in a graph that holds nothing else.
    return value_with(tensor, {})


def value_with(tensor: Any, given: Mapping[str, NDArray[Any]]) -> Any:
    """The value of a tensor if some that it depends on, by their names, were constants; None if that is not enough."""
    with tf.Graph().as_default() as scratch:
        copy = _constant_copy(tensor, scratch, {name: tf.constant(value) for name, value in given.items()})
        if copy is None:
            return None
        with tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={"GPU": 0})) as session:
            return session.run(copy)


def keep_static(tensor: Any, but: Container[str]) -> None:
    """Lets nobody feed a tensor, nor what that is computed from, up to tensors of some names."""
    pending = [tensor]
    while pending:
        tensor = pending.pop()
        if tensor.name in but or not tensor.graph.is_feedable(tensor):
            continue
        tensor.graph.prevent_feeding(tensor)
        if tf.get_static_value(tensor) is None and not _has_no_value(tensor):
            pending += tensor.op.inputs


def _constant_copy(tensor: Any, scratch: Any, made: dict[str, Any]) -> Any:
    """``tensor`` rebuilt in ``scratch`` from constants; None if it depends on anything else."""
    if tensor.name not in made:
        value = tf.get_static_value(tensor)
        op = tensor.op
        if value is not None:
            made[tensor.name] = tf.constant(value)
        elif _has_no_value(tensor):
            made[tensor.name] = None
        else:
            operands = [_constant_copy(operand, scratch, made) for operand in op.inputs]
            made[tensor.name] = None
            if all(operand is not None for operand in operands):
                attrs = {key: item for key, item in op.node_def.attr.items() if not key.startswith("_")}
                copy = scratch.create_op(op.type, operands, [out.dtype for out in op.outputs], attrs=attrs)
                made |= {out.name: twin for out, twin in zip(op.outputs, copy.outputs, strict=True)}
    return made[tensor.name]


def _has_no_value(tensor: Any) -> bool:
    """Tells whether a tensor is none that can be computed before a run."""
    return tensor.dtype in (tf.resource, tf.variant) or may_vary(tensor.op)
