"""Gradients that a script gives itself: traced where its function would be called, and written down."""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops as tf_ops

from tensoropt.api.frontend.attributes import types_of
from tensoropt.api.frontend.effects import writes_in
from tensoropt.api.frontend.rewriting.rewriter import Rewriter, Scope
from tensoropt.api.frontend.rewriting.values import TensorList, Value, VariableValue, select
from tensoropt.api.frontend.walks import needs, reached
from tensoropt.errors import GraphError
from tensoropt.graph.gradient_graphs import COUNT, GRADIENT, GRADIENT_TYPE, GRAPH, RESULTS, WRT, traced_gradient
from tensoropt.graph.spec import is_differentiable

__all__ = ["gated", "own_gradient"]

_RECOMPUTES = "recompute_grad.<locals>.inner.<locals>.grad_wrapper"
"""The name of the gradient functions that ``tf.recompute_grad`` makes."""

_lock = threading.Lock()


def own_gradient(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    """An op whose gradient is a function of the script: its outputs, with what that function makes.

    ``tf.custom_gradient`` makes an IdentityN of what it gives and of what it takes; ``gradient_override_map`` and
    ``tf.RegisterGradient`` an op of any type.

    Raises:
        GraphError: if the function fails, or needs what cannot be had here.
    """
    if not rewriter.is_differentiated(op, scope):
        # Optimizers pass all gradients through one IdentityN, which need not be split alike.
        return [rewriter.tensor(scope.value(x), op) for x in op.inputs] if op.type == "IdentityN" else None
    read = [rewriter.tensor(scope.value(x), op) for x in op.inputs]
    # Of what an IdentityN gives, only the function's results are read.
    count = max(
        (place + 1 for place, x in enumerate(op.outputs) if rewriter.user.readers(x) or _is_result(x)), default=1
    )
    if op.type == "IdentityN":
        given = read[: len(op.outputs)]
    else:
        given = list(rewriter.copy(op, scope, read, rewriter.free(f"{scope.prefix}{op.name}/values")).outputs)
    if rewriter.probing:
        return given
    known = rewriter.user.origin(op)
    with known.graph.as_default():
        graph: Any = func_graph.FuncGraph(f"{op.name}_gradient")
        with graph.as_default():
            incoming = [tf.compat.v1.placeholder(x.dtype, x.shape) for x in given]
            try:
                found = tf_ops.get_gradient_function(known)(known, *incoming)
            except Exception as error:  # whatever the script's function raises
                raise GraphError(
                    f"{op.type} '{op.name}': its gradient function fails: {type(error).__name__}: {error}"
                ) from error
            listed = list(found) if isinstance(found, list | tuple) else [found]
            # What the function's closure holds may be given back as it is: it comes into the graph, too.
            gradients: list[Any] = [
                None if each is None else tf.identity(tf.convert_to_tensor(each)) for each in listed
            ]
    if _is_block_again(known, graph):
        return read
    count = max(count, 1 + max((place for place, x in enumerate(incoming) if x.consumers()), default=0))
    # In TensorFlow 1's graphs nothing runs what a gradient function writes.
    writes = next(writes_in(graph), None) if isinstance(known.graph, func_graph.FuncGraph) else None
    if writes is not None:
        raise GraphError(
            f"{op.type} '{op.name}': its gradient function writes a variable, by {writes.type} '{writes.name}'. A "
            "plan's gradients write nothing: write the variable in the step, of what the tape gives."
        )
    captured = [(rewriter.user.here(outside), inside) for outside, inside in graph.captures]
    values = [_value(rewriter, outside, op, given, scope) for outside, _ in captured]
    cut = [_cut(rewriter, rewriter.content(value, op, scope, "read"), op, scope) for value in values]
    wrt = [
        place
        for place, (x, each) in enumerate(zip(read, gradients, strict=True))
        if each is not None and not rewriter.known.is_constant(x)
    ]
    # Outputs first, whose own gradients are cut; then what has gradients; then all else that is read.
    outputs = [_cut(rewriter, x, op, scope) for x in given[:count]]
    inputs = [*outputs, *(read[place] for place in wrt), *cut]
    body = tf.Graph()
    inner = rewriter.beside(body)
    place_of = len(outputs) + len(wrt)
    arguments: dict[str, Value] = {}
    with body.as_default():
        for place, x in enumerate(incoming):
            arguments[x.name] = tf.compat.v1.placeholder(x.dtype, given[place].shape, name=f"dy{place}")
        for place, ((_, inside), value) in enumerate(zip(captured, values, strict=True)):
            taken = inputs[place_of + place]
            stand = tf.compat.v1.placeholder(taken.dtype, taken.shape, name=f"input{place_of + place}")
            arguments[inside.name] = VariableValue(stand) if _is_variable(value) else stand
    inner_scope = Scope(graph, "gradient/", outer=scope, caller=op, is_gradient=True)
    inner_scope.values |= arguments
    for name in arguments:
        inner_scope.operations[name.split(":")[0]] = []
    inner.run([gradients[place].op for place in wrt], inner_scope)
    results = [inner.tensor(inner_scope.value(gradients[place]), op) for place in wrt]
    places = [len(outputs) + number for number in range(len(wrt))]
    name = rewriter.name(op, scope)
    made = _traced(rewriter, op, name, inputs, count, body=body, results=results, wrt=places)
    return [*made, *given[count:]]


def _is_block_again(op: Any, gradient: Any) -> bool:
    """Tells whether a gradient is that of what an op's first inputs are computed from, computed once more.

    ``tf.recompute_grad`` makes such gradients, also for ``keras.remat``. Written out, the block then has an equal one,
    and the plan says what is computed again. But what the block's closure holds counts as constant in TensorFlow's: so
    nothing may be read that could have a gradient, beside the block's arguments, by their copies, and variables.

    Args:
        op: an op with a gradient function.
        gradient: the graph of that function's ops.
    """
    made = _nonlocals(_nonlocals(tf_ops.get_gradient_function(op)).get("tape_grad_fn"))
    function: Any = made.get("grad_fn")
    if getattr(function, "__module__", "") != tf.recompute_grad.__module__ or function.__qualname__ != _RECOMPUTES:
        return False
    arguments = Counter(x.name for x in op.inputs[made["flat_result_len"] : len(op.inputs) - len(made["variables"])])
    return all(
        len(inside.consumers()) == arguments[outside.name]
        for outside, inside in gradient.captures
        if is_differentiable(inside.dtype) and tf.get_static_value(outside) is None
    )


def _nonlocals(function: Any) -> Mapping[str, Any]:
    return inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}


def _value(rewriter: Rewriter, outside: Any, op: Any, given: Sequence[Any], scope: Scope) -> Value:
    """The value that an op's gradient function reads for a tensor from outside of it.

    Args:
        rewriter: makes the value.
        outside: the tensor.
        op: the op, which is being made.
        given: what stands for its outputs, without its gradient.
        scope: of the op.

    Raises:
        GraphError: the tensor is computed from the op's outputs, which are not there yet.
    """
    if hasattr(outside, "numpy") and outside.dtype not in (tf.resource, tf.variant):  # of a function's eager code
        return rewriter.constant(outside.numpy(), op)
    if outside.op is op:
        return given[outside.value_index]
    if outside.graph is op.graph and outside.name not in scope.values and op in reached([outside.op], needs):
        raise GraphError(
            f"{op.type} '{op.name}': its gradient function reads '{outside.name}', which is computed from what "
            f"'{op.name}' gives. Compute it in the gradient function, of op.outputs."
        )
    return rewriter.value(outside, scope)


def _is_result(x: Any) -> bool:
    return any(x is other for other in getattr(x.graph, "outputs", ()))


def gated(rewriter: Rewriter, value: Value, condition: Any, of: Any, scope: Scope) -> Value:
    """A value whose gradient is 0 where a condition does not hold, even if what comes back is infinite or NaN.

    The side that is not taken of a branch has gradients of 0, and 0 times what is infinite there would be NaN.
    """
    if isinstance(value, TensorList):
        return replace(value, conditions=(*value.conditions, condition))  # few of its tensors are read
    if isinstance(value, VariableValue) or not is_differentiable(value.dtype):
        return value
    if rewriter.probing or rewriter.known.is_constant(value):
        return value
    if (value.name, condition.name) not in rewriter.gates:
        body = tf.Graph()
        with body.as_default():
            dy = tf.compat.v1.placeholder(value.dtype, value.shape, name="dy0")
            holds = tf.compat.v1.placeholder(tf.bool, [], name="input1")
            result = select(holds, dy, tf.raw_ops.ZerosLike(x=dy))  # point by point, of any part of the tensor
        name = rewriter.free(f"{scope.prefix}{of.name}/gate")
        made = _traced(rewriter, of, name, [value, condition], 1, body=body, results=[result], wrt=[0])
        rewriter.gates[value.name, condition.name] = made[0]
    return rewriter.gates[value.name, condition.name]


def _traced(
    rewriter: Rewriter,
    op: Any,
    name: str,
    inputs: Sequence[Any],
    count: int,
    *,
    body: Any,
    results: Sequence[Any],
    wrt: Sequence[int],
) -> list[Any]:
    _register()
    attr = tf.compat.v1.AttrValue
    attrs = {
        GRADIENT_TYPE: attr(s=GRADIENT.encode()),
        GRAPH: attr(s=body.as_graph_def().SerializeToString(deterministic=True)),
        COUNT: attr(i=count),
        "T": types_of(x.dtype for x in inputs),
        WRT: attr(),
        RESULTS: attr(),
    }
    attrs[WRT].list.i.extend(wrt)
    attrs[RESULTS].list.s.extend(x.name.encode() for x in results)
    made = rewriter.make("IdentityN", inputs, [x.dtype for x in inputs], attrs, name, op)
    for new, old in zip(made.outputs, inputs, strict=True):
        new.set_shape(old.shape)
    return list(made.outputs[:count])


def _is_variable(value: Value) -> bool:
    return isinstance(value, VariableValue) or (isinstance(value, tf.Tensor) and value.dtype == tf.resource)


def _cut(rewriter: Rewriter, x: Any, op: Any, scope: Scope) -> Any:
    """A tensor that a gradient function reads; a constant for gradients, if these are not differentiated themselves."""
    if not is_differentiable(x.dtype) or rewriter.known.is_constant(x):
        return x
    if rewriter.user.is_differentiated_twice:
        return x
    return rewriter.build(tf.stop_gradient, x, of=op, scope=scope, name="cut")


def _gradient(op: Any, *incoming: Any) -> list[Any]:
    return traced_gradient(tf, op.node_def.attr, op.inputs, incoming)


@functools.cache
def _registered() -> None:
    tf.RegisterGradient(GRADIENT)(_gradient)


def _register() -> None:
    with _lock:
        _registered()
