"""Gradient tapes in a function that is traced: their gradients are noted, as those of ``tensoropt.gradients`` are.

A tape records what is computed while it is entered, and takes all else for constant. In a graph that is what operations
were made meanwhile; tensors that these read from outside are given to TensorFlow as such constants.

What of TensorFlow is replaced for the time of a trace, and by whose private names, stands here alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for

from tensoropt.api.mirror.gradients import differentiate, keep_read, loss_scalars
from tensoropt.api.mirror.model import GradientCall
from tensoropt.errors import GraphError
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import is_differentiable

__all__ = ["Noted", "noting_gradients"]

_NAME = "gradients"
_PATCHED = ("gradient", "watch", "reset", "_push_tape", "_pop_tape")
_lock = threading.RLock()  # of the class, which all threads share
_active = threading.local()


@dataclass
class _Recorded:
    """The record of a tape: spans of operations of one graph, by their numbers, and the objects that it watches."""

    graph: Any
    spans: list[list[int]] = field(default_factory=list)
    watched: dict[int, tuple[Any, int]] = field(default_factory=dict)  # by id, with the number of operations then

    def operations(self) -> set[Any]:
        made = self.graph.get_operations()
        return {op for begin, *end in self.spans for op in made[begin : end[0] if end else None]}


class Noted:
    """The differentiations that tapes have made, by graph."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Any, list[GradientCall]]] = {}

    def add(self, graph: Any, call: GradientCall) -> None:
        """Notes one."""
        self._calls.setdefault(id(graph), (graph, []))[1].append(call)

    def of(self, graph: Any) -> list[GradientCall]:
        """Returns the gradient calls in a graph, in the order of the calls."""
        return self._calls.get(id(graph), (graph, []))[1]

    def keep_read(self, graph: Any, readers: Iterable[Any]) -> None:
        """Leaves operations of a graph that readers need beside the gradients out of its gradient calls."""
        calls = self.of(graph)
        calls[:] = keep_read(calls, readers)


@contextlib.contextmanager
def noting_gradients() -> Iterator[Noted]:
    """While this lasts, tapes of this thread note their gradients in functions that are traced.

    Those in other threads, and in eager code, are as always.
    """
    noted = Noted()
    tape, forward = tf.GradientTape, tf.autodiff.ForwardAccumulator
    with _lock:
        own = {name: getattr(tape, name) for name in _PATCHED}
        enter, vectorized = forward.__enter__, parallel_for._pfor_impl
        before = getattr(_active, "noted", None)
        _active.noted = noted
        for name, made in _replacements(own).items():
            setattr(tape, name, made)
        forward.__enter__ = _refused(enter)
        parallel_for._pfor_impl = _written_out(vectorized)
        try:
            yield noted
        finally:
            _active.noted = before
            forward.__enter__ = enter
            parallel_for._pfor_impl = vectorized
            for name, original in own.items():
                setattr(tape, name, original)


def _graph() -> Any:
    """The graph of the function that is traced, if gradients are noted there."""
    if getattr(_active, "noted", None) is None or tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    return graph if graph.building_function else None


def _refused(enter: Callable[..., Any]) -> Callable[..., Any]:
    def entered(accumulator: Any) -> Any:
        if _graph() is None:
            return enter(accumulator)
        raise GraphError(
            "ForwardAccumulator: it is not supported in a step that is planned. Take a product with the Jacobian by "
            "two tapes: of the gradient with output_gradients=u, for a u of ones that the outer tape watches, the "
            "gradient by u with output_gradients=direction."
        )

    return entered


def _written_out(vectorized: Callable[..., Any]) -> Callable[..., Any]:
    """``tf.vectorized_map``, in which tapes are TensorFlow's own, as :func:`tensoropt.api.mirror.gradients` has it."""

    def mapped(*args: Any, **kwargs: Any) -> Any:
        graph = _graph()
        if graph is None:
            return vectorized(*args, **kwargs)
        begin = len(graph.get_operations())
        with _unnoted():
            found = vectorized(*args, **kwargs)
        _active.noted.keep_read(graph, graph.get_operations()[begin:])
        return found

    return mapped


def _replacements(own: dict[str, Any]) -> dict[str, Any]:
    def push(tape: Any) -> None:
        own["_push_tape"](tape)
        graph = _graph()
        if graph is not None:
            recorded = tape.__dict__.setdefault("_tensoropt_recorded", _Recorded(graph))
            recorded.spans.append([len(recorded.graph.get_operations())])

    def pop(tape: Any) -> None:
        own["_pop_tape"](tape)
        recorded = getattr(tape, "_tensoropt_recorded", None)
        if recorded is not None and recorded.spans and len(recorded.spans[-1]) == 1:
            recorded.spans[-1].append(len(recorded.graph.get_operations()))

    def reset(tape: Any) -> None:
        tape.__dict__.pop("_tensoropt_recorded", None)
        own["reset"](tape)

    def watch(tape: Any, tensor: Any) -> None:
        own["watch"](tape, tensor)
        recorded = getattr(tape, "_tensoropt_recorded", None)
        if recorded is not None:
            for each in tf.nest.flatten(tensor):
                handle = _handle(each)
                watched = each if handle is None else handle
                recorded.watched.setdefault(id(watched), (watched, len(recorded.graph.get_operations())))

    def gradient(
        tape: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        graph = _graph()
        if graph is None or tape._tape is None:
            return own["gradient"](tape, target, sources, output_gradients, unconnected_gradients)
        if tape._recording and not tape._persistent:
            tape._pop_tape()
        recorded = getattr(tape, "_tensoropt_recorded", None)
        if recorded is None or recorded.graph is not graph:
            raise GraphError(
                "GradientTape.gradient: it is called in another function, loop or branch than the one that entered the "
                "tape. Call it where the tape is entered, and a jacobian without experimental_use_pfor=False, which is "
                "a loop."
            )
        if getattr(graph.outer_graph, "building_function", False):
            raise GraphError(
                f"GradientTape.gradient: it is called in '{graph.name}', a function, loop or branch inside of the one "
                "that is traced, where devices cannot make gradients of their own. Call it in the step itself: leave "
                "@tf.function out of the functions that the step calls, loop over Python's range where a tape is in "
                "the loop, not over tf.range or a dataset, or write the tape around the loop."
            )
        flat = tf.nest.flatten(sources)
        weights = tf.nest.flatten(output_gradients) if output_gradients is not None else []
        found = _gradients(graph, tape, recorded, tf.nest.flatten(target), flat, weights)
        if tf.UnconnectedGradients(unconnected_gradients) is tf.UnconnectedGradients.ZERO:
            found = [tf.zeros_like(x) if each is None else each for x, each in zip(flat, found, strict=True)]
        if not tape._persistent:
            tape._watched_variables = tape._tape.watched_variables()
            tape._tape = None
        return tf.nest.pack_sequence_as(sources, found)

    return {
        "gradient": gradient,
        "watch": watch,
        "reset": reset,
        "_push_tape": push,
        "_pop_tape": pop,
    }


def _gradients(
    graph: Any, tape: Any, recorded: _Recorded, targets: list[Any], sources: list[Any], weights: list[Any]
) -> list[Any]:
    """The gradients of what a tape has recorded, noted; None for each source that no target depends on."""
    targets = _read(targets, graph, recorded)
    captured = {id(outer): inner for outer, inner in graph.captures}
    targets = [captured.get(id(target), target) for target in targets]
    inside = recorded.operations()
    reached, beside = _reached(tape, recorded, inside)
    watched = {id(captured.get(key, each)) for key, (each, _) in recorded.watched.items()}
    pairs = [
        # What is watched is recorded, too; a tensor of its own, as it may be what is asked for.
        (y if y.op in reached else tf.identity(y), weights[place] if place < len(weights) else None)
        for place, y in enumerate(targets)
        if _is_of(y, graph) and (y.op in reached or id(y) in watched)
    ]
    places = [place for place, source in enumerate(sources) if _is_recorded(tape, recorded, source, reached)]
    found: list[Any] = [None] * len(sources)
    if not pairs or not places:
        return found
    stopped = {
        tensor.name: tensor
        for op in inside
        for tensor in op.inputs
        if tensor.op not in inside and tensor.op.inputs and is_differentiable(tensor.dtype)
    }
    asked = [_variable(captured.get(id(sources[place]), sources[place])) for place in places]
    handles = [_handle(source) for source in asked]
    belongs = [
        source.name if handle is None else captured[id(handle)].op.name
        for source, handle in zip(asked, handles, strict=True)
    ]
    stopped |= {x.name: x for x in _depending(beside, graph, set(belongs))}
    with tf.name_scope(_NAME) as scope:
        losses, constants = loss_scalars([y for y, _ in pairs], [weight for _, weight in pairs])
        # In the order in which they were made, which is that of all processes.
        constants += [stopped[name] for name in sorted(stopped)]
        with _unnoted():  # gradient functions of the script may have tapes of their own
            made, call = differentiate(losses, asked, belongs, constants, scope)
    if call.outputs:
        _active.noted.add(graph, call)
    for place, each in zip(places, made, strict=True):
        found[place] = each
    return found


@contextlib.contextmanager
def _unnoted() -> Iterator[None]:
    """While this lasts, tapes of this thread are TensorFlow's own."""
    noted, _active.noted = getattr(_active, "noted", None), None
    try:
        yield
    finally:
        _active.noted = noted


def _read(targets: list[Any], graph: Any, recorded: _Recorded) -> list[Any]:
    """Targets, with what is read of variables among them, which the tape records, as in TensorFlow."""
    begin = len(graph.get_operations())
    read = [target if _handle(target) is None else tf.convert_to_tensor(target) for target in targets]
    if len(recorded.spans[-1]) == 2:  # otherwise the tape still records, and its last span has them
        recorded.spans.append([begin, len(graph.get_operations())])
    return read


def _reached(tape: Any, recorded: _Recorded, inside: set[Any]) -> tuple[set[Any], list[Any]]:
    """Those of a tape's operations that depend on what it watches, and what else of the tape's these read."""
    since = {key: number for key, (_, number) in recorded.watched.items()}
    if tape._watch_accessed_variables:
        since |= {id(variable.handle): 0 for variable in tape._tape.watched_variables() if variable.trainable}
    begins = {inner.name: since[id(outer)] for outer, inner in recorded.graph.captures if id(outer) in since}
    begins |= {each.name: number for each, number in recorded.watched.values() if _is_of(each, recorded.graph)}
    reached: set[Any] = set()
    beside: dict[str, Any] = {}
    for number, op in enumerate(recorded.graph.get_operations()):
        if op not in inside or traits(op).blocks_gradient:
            continue
        if any(x.op in reached or begins.get(x.name, number + 1) <= number for x in op.inputs):
            beside |= {x.name: x for x in op.inputs if x.op.inputs and x.op in inside and x.op not in reached}
            reached.add(op)
    return reached, list(beside.values())


def _depending(tensors: list[Any], graph: Any, sources: set[str]) -> Iterator[Any]:
    """Those of some tensors that are made of sources, which the tape began to watch when it had recorded the tensors.

    Args:
        tensors: of a graph.
        graph: that graph.
        sources: names of tensors, and of operations that give variables.
    """
    depends: set[Any] = set()
    for op in graph.get_operations() if tensors else ():
        if any(x.op in depends or x.name in sources or x.op.name in sources for x in op.inputs):
            depends.add(op)
    return (x for x in tensors if x.op in depends and is_differentiable(x.dtype))


def _is_of(tensor: Any, graph: Any) -> bool:
    return getattr(tensor, "graph", None) is graph


def _is_recorded(tape: Any, recorded: _Recorded, source: Any, reached: set[Any]) -> bool:
    """Tells whether a tape has recorded a source: a variable that it watches and that was read, or a tensor."""
    handle = _handle(source)
    if handle is None and _is_of(source, recorded.graph):
        return id(source) in recorded.watched or source.op in reached
    if not any(outer is (source if handle is None else handle) for outer, _ in recorded.graph.captures):
        return False
    if handle is None:  # of eager code
        return id(source) in recorded.watched
    return (tape._watch_accessed_variables and _variable(source).trainable) or id(handle) in recorded.watched


def _handle(source: Any) -> Any:
    return getattr(source, "handle", None)


def _variable(source: Any) -> Any:
    """TensorFlow's variable of a variable; Keras has its own around them."""
    value = getattr(source, "value", None)
    return value if isinstance(value, tf.Variable) and not isinstance(source, tf.Variable) else source
