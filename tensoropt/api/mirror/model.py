"""The model under construction: a private TensorFlow graph and the differentiations recorded on it.

The private graph is only ever *described*: no session runs it as a whole and no variable of it is allocated,
so it may hold more than any machine's memory. It is created on the first mirrored call and then becomes the
calling thread's default graph (TensorFlow's graph mode) until :func:`reset_default_graph` replaces it or
:func:`leave_graph` returns the thread to what it was. That is why operators (``a + b``) and plain ``tf.``
calls on its tensors work outside any ``with`` block. Each thread enters it on its own first mirrored call.

A graph that a script makes itself (``tensoropt.Graph()``) is a model of its own.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tensoropt.api.mirror.augmented_assignment import give_variables_operators
from tensoropt.api.mirror.random_counters import give_graphs_counters, mark_script_graph
from tensoropt.api.mirror.shapes import give_sizes_values
from tensoropt.errors import SessionError
from tensoropt.terms import FEEDS, Terms

__all__ = [
    "GradientCall",
    "GradientOutput",
    "MergedRows",
    "Model",
    "Outside",
    "begin_aside",
    "begin_model",
    "current_model",
    "forget_model",
    "fresh_model",
    "leave_graph",
    "model_to_plan",
    "reset_default_graph",
    "tensor_key",
]


@dataclass(frozen=True, slots=True)
class GradientOutput:
    """One gradient of a :class:`GradientCall`.

    Attributes:
        name: of the operator that it becomes (``gradients/dense/kernel``).
        source: name of the tensor that it is the gradient of, or of the operation that makes a variable's handle.
        values: name of the gradient's tensor; of its rows, if it is given as rows (``tf.IndexedSlices``).
        indices: name of the tensor that says which rows these are; None for a whole gradient.
    """

    name: str
    source: str
    values: str
    indices: str | None = None


@dataclass(frozen=True, slots=True)
class GradientCall:
    """One differentiation: losses, what they are differentiated by, and the tensors that TensorFlow made for it.

    Attributes:
        losses: names of the scalars whose sum is differentiated.
        outputs: the gradients that there are.
        stopped: names of tensors that count as constants.
        inside: names of the operations that TensorFlow made. Devices have their own in the place of them.
    """

    losses: tuple[str, ...]
    outputs: tuple[GradientOutput, ...]
    stopped: tuple[str, ...]
    inside: frozenset[str]

    @property
    def crossed(self) -> tuple[str, ...]:
        """The names of the tensors by which losses are differentiated, or at which gradients stop."""
        return (*(one.source for one in self.outputs if ":" in one.source), *self.stopped)

    def renamed(self, names: Mapping[str, str]) -> GradientCall:
        """The differentiation in a graph in which some tensors have other names."""
        return replace(
            self,
            losses=tuple(names.get(name, name) for name in self.losses),
            outputs=tuple(replace(one, source=names.get(one.source, one.source)) for one in self.outputs),
            stopped=tuple(names.get(name, name) for name in self.stopped),
        )


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Rows of a gradient of which those with equal indices were added up.

    Attributes:
        values: name of the tensor of the rows before.
        indices: name of the tensor of their indices.
        merged_values: name of the operation that gives the rows after.
        merged_indices: name of the operation that gives their indices.
        inside: names of the operations that TensorFlow made for it.
    """

    values: str
    indices: str
    merged_values: str
    merged_indices: str
    inside: frozenset[str]


def tensor_key(tensor: Any) -> Any:
    """Returns a key that identifies a tensor, of any graph or of none, as long as the tensor exists."""
    graph = getattr(tensor, "graph", None) if not hasattr(tensor, "numpy") else None
    return id(tensor) if graph is None else (id(graph), tensor.name)


class Outside(Protocol):
    """Variables of eager code, by the names that they have in a model's graph."""

    def value(self, name: str) -> Any:
        """The whole value that a variable has there."""

    def handle(self, name: str) -> Any:
        """The variable's handle, an eager tensor."""


class Model:
    """The private graph with the differentiations recorded on it.

    Attributes:
        outside: the variables that eager code has of the graph's, if these are such.
        pins: gives what is pinned of the storage of variables, if anything is (:class:`tensoropt.api.find.pins.Pins`).
        origins: the user's operations behind those of the graph, by name, where these are copies.
        producers: what ``tf.train``'s queues are made of (:class:`~tensoropt.api.mirror.producers.Producer`).
        terms: in which errors speak of its inputs.
        parts: placeholders that are parts of sparse or ragged tensors, as far as such were fed.
        copies: for tensors of the user's behind those of the graph, by :func:`tensor_key`, the names of their copies.

    Invariants: a call's names are names of this model's graph; the graph's root variable scope makes resource
    variables, whatever TensorFlow's global setting is.
    """

    def __init__(self, graph: Any = None) -> None:
        """Begins a model.

        Args:
            graph: an empty ``tf.Graph`` to build in; by default one that is made on first use.
        """
        self._graph: Any = None
        if graph is not None:
            self._take(graph)
        self.outside: Outside | None = None
        self.pins: Callable[[], Any] | None = None
        self.terms: Terms = FEEDS
        self.parts: set[str] = set()
        self.origins: dict[str, Any] = {}
        self.copies: dict[Any, str] = {}
        self.producers: list[Any] = []
        self._gradient_calls: list[GradientCall] = []
        self._merged_rows: list[MergedRows] = []
        self._lock = threading.Lock()

    @property
    def graph(self) -> Any:
        """The private ``tf.Graph``, created on first use."""
        if self._graph is None:
            import tensorflow as tf

            with self._lock:
                if self._graph is None:
                    self._take(tf.Graph())
        return self._graph

    def _take(self, graph: Any) -> None:
        import tensorflow as tf

        give_sizes_values()
        give_variables_operators()
        give_graphs_counters()
        mark_script_graph(graph)
        with graph.as_default():
            tf.compat.v1.get_variable_scope().set_use_resource(True)
        self._graph = graph

    @property
    def is_empty(self) -> bool:
        """True if the model's graph has no operations."""
        return self._graph is None or not self._graph.get_operations()

    @property
    def seed(self) -> int | None:
        """The graph-level random seed, or None if it was never set."""
        return None if self._graph is None else self._graph.seed

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self.graph.seed = seed

    @property
    def gradient_calls(self) -> tuple[GradientCall, ...]:
        """Every differentiation, in the order of the calls."""
        return tuple(self._gradient_calls)

    @gradient_calls.setter
    def gradient_calls(self, calls: Iterable[GradientCall]) -> None:
        with self._lock:
            self._gradient_calls = list(calls)

    def add_gradient_call(self, call: GradientCall) -> None:
        """Records a differentiation; of one that gives none what TensorFlow made, which may read others."""
        with self._lock:
            if call.outputs:
                self._gradient_calls.append(call)
            elif self._gradient_calls:
                last = self._gradient_calls[-1]
                self._gradient_calls[-1] = replace(last, inside=last.inside | call.inside)

    @property
    def merged_rows(self) -> tuple[MergedRows, ...]:
        """All rows that were merged, in the order of the calls."""
        return tuple(self._merged_rows)

    def add_merged_rows(self, rows: MergedRows) -> None:
        """Records that rows were merged."""
        with self._lock:
            self._merged_rows.append(rows)

    def enter(self) -> AbstractContextManager[Any]:
        """Make the private graph the default for a mirrored call.

        With no ``with graph.as_default()`` around, the thread enters the graph to stay. Inside one, or inside
        ``tf.init_scope``, the graph is entered for the returned context only, so that the blocks still nest.
        Inside a function that is being traced (a ``tf.function``, the body of a loop) the call builds there.

        Returns:
            A context to make the call in.
        """
        import tensorflow as tf
        from tensorflow.python.framework import ops  # The stack of default graphs has no public reader.

        graph = self.graph
        if not tf.executing_eagerly():
            default = tf.compat.v1.get_default_graph()
            if default is graph or default.building_function:
                return contextlib.nullcontext(graph)
        stack = ops._default_graph_stack.stack
        if len(stack) == 1 and stack[0] is not graph and stack[0] is _entered_graph():
            leave_graph()  # Another thread replaced the model since this thread's last call.
            stack = ops._default_graph_stack.stack
        if stack:
            return graph.as_default()
        context = graph.as_default()
        context.__enter__()
        _thread.entered = (graph, context)
        return contextlib.nullcontext(graph)


_thread = threading.local()
_model = Model()
_begun: list[weakref.ref[Model]] = []  # those of graphs that the script makes itself, in order
_any_aside = False  # whether there is any that begin_aside made


def _entered_graph() -> Any:
    """The graph this thread entered to stay, if any."""
    entered = getattr(_thread, "entered", None)
    return None if entered is None else entered[0]


def current_model() -> Model:
    """The model that mirrored calls build: that of the script's own graph where one is the default."""
    if _begun or _any_aside:
        from tensorflow.python.framework import ops

        stack = ops._default_graph_stack.stack
        graph: Any = stack[-1] if stack else None
        while getattr(graph, "building_function", False):
            graph = graph.outer_graph
        own: Model | None = getattr(graph, "tensoropt_model", None)
        if own is not None:
            return own
    return _model


def begin_model(graph: Any) -> Model:
    """The model of a graph that the script makes itself, which is to keep it."""
    model = Model(graph)
    _begun[:] = [ref for ref in _begun if ref() is not None]
    _begun.append(weakref.ref(model))
    return model


def begin_aside(terms: Terms) -> Model:
    """A model with a graph of its own that only its owner plans: the current one where its graph is the default.

    Args:
        terms: in which errors speak of its inputs.
    """
    global _any_aside
    import tensorflow as tf

    graph: Any = tf.Graph()
    model = graph.tensoropt_model = Model(graph)
    model.terms = terms
    _any_aside = True
    return model


def model_to_plan() -> Model:
    """The model that a step of the job is for: the current one or, if it is empty, the last that is not."""
    current = current_model()
    if not current.is_empty:
        return current
    own = [model for ref in reversed(_begun) if (model := ref()) is not None]
    return next((model for model in own if not model.is_empty), current)


def leave_graph() -> None:
    """Return this thread to the default graph, or to eager mode, that it was in before mirrored calls.

    The model is kept: the next mirrored call enters its graph again.

    Raises:
        SessionError: If called inside a ``with`` block that made another graph the default.
    """
    from tensorflow.python.framework import ops

    entered = getattr(_thread, "entered", None)
    if entered is None:
        return
    stack = ops._default_graph_stack.stack
    if len(stack) != 1 or stack[0] is not entered[0]:
        raise SessionError(
            "The private graph can only be left or reset where it is the only default graph: "
            f"{len(stack)} are entered here. Call this outside every `with graph.as_default()` block."
        )
    _thread.entered = None
    entered[1].__exit__(None, None, None)


def reset_default_graph() -> None:
    """Forget the model and start an empty one, which becomes this thread's default graph.

    Tensors and variables of the old model can no longer be used with mirrored calls.

    Raises:
        SessionError: If called inside a ``with`` block that made another graph the default.
    """
    forget_model()
    _model.enter()


def forget_model() -> None:
    """Forgets the model, and leaves its graph: the next mirrored call begins another one."""
    global _model
    leave_graph()
    _model = Model()
    _begun.clear()


@contextlib.contextmanager
def fresh_model() -> Iterator[None]:
    """Begins with no model, and comes back to the one before: a script that is run within a process has its own."""
    global _model
    before = _model, list(_begun)
    forget_model()
    try:
        yield
    finally:
        with contextlib.suppress(SessionError):  # the script has entered a graph, and ended in it
            leave_graph()
        _model, _begun[:] = before
