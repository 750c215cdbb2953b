"""``tensoropt.gradients``: TensorFlow's own gradients, of which the model takes note.

What TensorFlow makes is one process's; devices make their own in the place of it (the operator ``Gradient``). The
tensors that come out are ordinary ones, and so is all that is computed from them.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gradients_util

from tensoropt.api.garbage import collecting_new_objects
from tensoropt.api.mirror.model import GradientCall, GradientOutput, MergedRows, Model, current_model
from tensoropt.errors import GraphError

__all__ = [
    "differentiate",
    "gradients",
    "gradients_at_once",
    "keep_read",
    "loss_scalars",
    "merged_rows",
    "vectorized_map",
    "waiting",
]

_thread = threading.local()


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
) -> list[Any]:
    """``tf.gradients``: the gradients of the sum of ``ys`` with respect to each of ``xs``.

    Args:
        ys: a tensor, or several, to be differentiated.
        xs: variables and tensors to differentiate by.
        grad_ys: for each of ``ys`` a tensor of its shape that its elements are weighed by; None weighs them by 1.
        name: of what is made.
        colocate_gradients_with_ops: without effect: the plan places everything.
        gate_gradients: without effect on numbers.
        aggregation_method: how TensorFlow sums gradients.
        stop_gradients: tensors that count as constants.
        unconnected_gradients: what is given where ``ys`` do not depend on one of ``xs``: None, or zeros.

    Returns:
        For each of ``xs`` a tensor of its shape, ``tf.IndexedSlices`` where TensorFlow gives rows, or None.

    Raises:
        GraphError: for tensors of another graph. When the model is imported, for one reading of a variable in the place
            of the variable.
    """
    del colocate_gradients_with_ops, gate_gradients
    model = current_model()
    with model.enter():
        found = gradients_at_once(ys, xs, grad_ys, name, aggregation_method, stop_gradients, unconnected_gradients)
        return waiting(found)


@collecting_new_objects()
def gradients_at_once(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    aggregation_method: Any = None,
    stop_gradients: Any = None,
    unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
) -> list[Any]:
    """Returns the gradients as :func:`gradients` does, but without the surrounding ``tf.control_dependencies``."""
    model = current_model()
    with model.enter():
        sources = tf.nest.flatten(xs)
        for source in sources:
            _check_source(source, model)
        graph = tf.compat.v1.get_default_graph()
        if graph is not model.graph:
            raise GraphError(
                "gradients: they cannot be computed inside of a loop, a branch or a function. Compute them outside of "
                "it, of what it gives."
            )
        with tf.name_scope(name) as scope:
            weights = tf.nest.flatten(grad_ys) if grad_ys is not None else []
            losses, stopped = loss_scalars(tf.nest.flatten(ys), weights, model)
            stops = tf.nest.flatten([] if stop_gradients is None else stop_gradients)
            stopped += [x for tensor in stops for x in _stopped_with(tensor)]
            belongs = [source.handle.op.name if hasattr(source, "handle") else source.name for source in sources]
            found, call = differentiate(losses, sources, belongs, stopped, scope, name, aggregation_method)
        if not getattr(_thread, "in_map", False):
            model.add_gradient_call(call)
        if tf.UnconnectedGradients(unconnected_gradients) is tf.UnconnectedGradients.ZERO:
            return [
                tf.zeros_like(x) if gradient is None else gradient for x, gradient in zip(sources, found, strict=True)
            ]
        return found


def _stopped_with(tensor: Any) -> list[Any]:
    """The tensors that count as constants with one: TensorFlow stops at operations, but not at calls of functions."""
    op = tf.convert_to_tensor(tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor).op
    is_call = gradients_util._IsPartitionedCall(op) or op.graph._is_function(op.type)
    return [] if is_call else [x for x in op.outputs if x.dtype not in (tf.resource, tf.variant)]


def vectorized_map(fn: Callable[..., Any], elems: Any, fallback_to_while_loop: bool = True, warn: bool = True) -> Any:
    """``tf.vectorized_map``. Of each operation of a turn it makes one for all turns, also of those of gradients.

    So gradients in it are not noted: they are operations as all others.

    Args:
        fn: of one element of each of ``elems``.
        elems: tensors, in any structure, that are gone through along their first dimension.
        fallback_to_while_loop: whether an operation that is not made for all turns at once may be in a loop.
        warn: whether to say so.
    """
    model = current_model()
    with model.enter(), _in_map():
        graph = tf.compat.v1.get_default_graph()
        begin = len(graph.get_operations())
        found = tf.vectorized_map(fn, elems, fallback_to_while_loop, warn)
        if graph is model.graph:
            model.gradient_calls = keep_read(model.gradient_calls, graph.get_operations()[begin:])
        return found


@contextlib.contextmanager
def _in_map() -> Iterator[None]:
    before = getattr(_thread, "in_map", False)
    _thread.in_map = True
    try:
        yield
    finally:
        _thread.in_map = before


def keep_read(calls: Sequence[GradientCall], readers: Iterable[Any]) -> list[GradientCall]:
    """Differentiations without those of TensorFlow's operations that readers need beside the gradients themselves.

    Args:
        calls: differentiations in one graph.
        readers: operations that are made of any operation of that graph, as those of a vectorized map are.
    """
    inside = frozenset().union(*(call.inside for call in calls))
    given = {name for call in calls for output in call.outputs for name in (output.values, output.indices) if name}
    left = _without_read(inside, readers, given)
    return [replace(call, inside=call.inside & left) for call in calls]


def waiting(found: list[Any]) -> list[Any]:
    """Gradients that come after what ``tf.control_dependencies`` around ask for, which so runs whenever they do.

    What TensorFlow made for the gradients comes after it, but devices have their own in the place of that.
    """
    graph = tf.compat.v1.get_default_graph()
    before = sorted(graph._current_control_dependencies(), key=lambda op: op.name)
    if not before:
        return found
    # In a context of their own: what reads what was made in one does not wait any more.
    with tf.control_dependencies(None), tf.control_dependencies(before):
        return [
            tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
            if isinstance(gradient, tf.IndexedSlices)
            else None
            if gradient is None
            else tf.identity(gradient)
            for gradient in found
        ]


def merged_rows(values: Any, indices: Any) -> tuple[Any, Any]:
    """Rows of which those with equal indices are added up, as TensorFlow's optimizers want them.

    Args:
        values: ``(rows, ...)``.
        indices: ``(rows,)``.

    Returns:
        The rows that are left, and their indices; how many, only a run knows.
    """
    model = current_model()
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    unique, place = tf.unique(indices)
    summed = tf.math.unsorted_segment_sum(values, place, tf.shape(unique)[0])
    inside = frozenset(op.name for op in graph.get_operations()[before:])
    with tf.control_dependencies(None):
        rows, numbers = tf.identity(summed, name="merged_rows"), tf.identity(unique, name="merged_indices")
    model.add_merged_rows(MergedRows(values.name, indices.name, rows.op.name, numbers.op.name, inside))
    return rows, numbers


def _check_source(source: Any, model: Model) -> None:
    graph = getattr(getattr(source, "handle", source), "graph", None)
    if graph is not model.graph and not getattr(graph, "building_function", False):
        raise GraphError(
            f"gradients: {source!r} is of no use here, as it is not a tensor or variable of the model. Make it with "
            "tensoropt's functions after the last reset_default_graph."
        )


def loss_scalars(ys: Sequence[Any], weights: Sequence[Any], model: Model | None = None) -> tuple[list[Any], list[Any]]:
    """Scalars whose sum has the gradients that are asked for, and the weights in them, which count as constants.

    They are constants for these gradients alone: a gradient of these gradients may be taken by them.

    Args:
        ys: what is differentiated.
        weights: for each of them what its elements are weighed by, or None; those that are missing are 1.
        model: of which they must be; by default they may be of any.

    Raises:
        GraphError: one is of another graph.
    """
    losses: list[Any] = []
    constants: list[Any] = []
    for number, y in enumerate(ys):
        tensor = tf.convert_to_tensor(y)
        if model is not None and tensor.graph is not model.graph and not tensor.graph.building_function:
            raise GraphError(
                f"gradients: the loss {tensor.name!r} is a tensor of another graph. Compute it with tensoropt's "
                "functions after the last reset_default_graph."
            )
        weight = weights[number] if number < len(weights) else None
        if weight is not None:
            constants.append(tf.identity(tf.cast(tf.convert_to_tensor(weight), tensor.dtype)))
            tensor = tensor * tf.math.conj(constants[-1])
        if tensor.dtype.is_complex and (weight is not None or model is None):  # as tapes, but not `tf.gradients`
            tensor = tf.math.real(tensor)  # whose gradient is the weight
        loss = tf.reduce_sum(tensor) if tensor.shape.rank != 0 else tensor
        # Each counts, and goes by its name.
        losses.append(tf.identity(loss) if any(loss.name == other.name for other in losses) else loss)
    return losses, constants


def differentiate(
    losses: Sequence[Any],
    sources: Sequence[Any],
    belongs: Sequence[str],
    stopped: Sequence[Any],
    scope: str,
    name: str = "gradients",
    aggregation_method: Any = None,
) -> tuple[list[Any], GradientCall]:
    """TensorFlow's gradients in the default graph, and what a model notes of them.

    Args:
        losses: scalars of the default graph.
        sources: variables and tensors to differentiate by.
        belongs: for each of them the name that :class:`GradientOutput` has for it.
        stopped: tensors that count as constants.
        scope: what names of gradients begin with.
        name: of what TensorFlow makes.
        aggregation_method: how TensorFlow sums gradients.

    Returns:
        For each source a tensor, rows or None; the note has no outputs if there is no gradient.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with warnings.catch_warnings():  # of rows that it makes whole, which nobody computes
        warnings.filterwarnings("ignore", "Converting sparse IndexedSlices")
        made = tf.gradients(
            losses,
            sources,
            name=name,
            aggregation_method=aggregation_method,
            stop_gradients=list(stopped) or None,
        )
    found = _distinct(made, {op.name for op in graph.get_operations()[before:]})
    operations = graph.get_operations()
    # Of a loop that is differentiated TensorFlow makes one that also gathers what its gradient reads.
    inside = _without_read({op.name for op in operations[before:]}, operations[:before])
    found = [_of_shape(source, gradient) for source, gradient in zip(sources, found, strict=True)]
    outputs = [
        _output(scope, number, belonging, gradient)
        for number, (belonging, gradient) in enumerate(zip(belongs, found, strict=True))
        if gradient is not None
    ]
    names = tuple(loss.name for loss in losses)
    return found, GradientCall(names, tuple(outputs), tuple(tensor.name for tensor in stopped), inside)


def _distinct(made: Sequence[Any], inside: set[str]) -> list[Any]:
    """Gradients that are tensors of their own: none of the forward pass, and no two the same."""
    seen: set[str] = set()

    def own(tensor: Any) -> Any:
        if tensor.op.name in inside and tensor.name not in seen:
            seen.add(tensor.name)
            return tensor
        return tf.identity(tensor)

    return [_each(own, gradient) for gradient in made]


def _without_read(inside: Set[str], readers: Iterable[Any], given: Set[str] = frozenset()) -> frozenset[str]:
    """The operations that were made for gradients, but for those that others need beside the gradients.

    Args:
        inside: names of the operations that were made for gradients.
        readers: the other operations.
        given: names of the tensors that are gradients, which may be read.
    """
    left = set(inside)
    pending = [tensor for op in readers for tensor in op.inputs]
    while pending:
        tensor = pending.pop()
        if tensor.op.name in left and tensor.name not in given:
            left.remove(tensor.op.name)
            pending += tensor.op.inputs
    return frozenset(left)


def _each(change: Callable[[Any], Any], gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), change(gradient.indices), gradient.dense_shape)
    return change(gradient)


def _of_shape(source: Any, gradient: Any) -> Any:
    """Rows whose whole shape is what they are rows of has, and nothing that TensorFlow made for the gradient."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    shape = tf.shape(source, out_type=gradient.indices.dtype)
    return tf.IndexedSlices(gradient.values, gradient.indices, shape)


def _output(scope: str, number: int, belongs: str, gradient: Any) -> GradientOutput:
    name = f"{scope}{number}/{belongs.split(':')[0]}"
    if isinstance(gradient, tf.IndexedSlices):
        return GradientOutput(name, belongs, gradient.values.name, gradient.indices.name)
    return GradientOutput(name, belongs, gradient.name)
