"""The model under construction: a private TensorFlow graph and the training steps recorded on it.

The private graph is only ever *described*: no session runs it as a whole and no variable of it is allocated,
so it may hold more than any machine's memory. It is created on the first mirrored call and then becomes the
calling thread's default graph (TensorFlow's graph mode) until :func:`reset_default_graph` replaces it or
:func:`leave_graph` returns the thread to what it was. That is why operators (``a + b``) and plain ``tf.``
calls on its tensors work outside any ``with`` block. Each thread enters it on its own first mirrored call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tensoropt.errors import GraphError, SessionError

__all__ = ["Model", "OptimizerSpec", "TrainStep", "current_model", "leave_graph", "reset_default_graph"]

#: Per kind: the name of TensorFlow's class in ``tf.compat.v1.train`` and the slots it keeps for each
#: variable.
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gradient_descent": ("GradientDescentOptimizer", ()),
    "momentum": ("MomentumOptimizer", ("momentum",)),
    "adam": ("AdamOptimizer", ("m", "v")),
    "adagrad": ("AdagradOptimizer", ("accumulator",)),
    "rmsprop": ("RMSPropOptimizer", ("rms", "momentum")),
}


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An optimizer as data.

    Attributes:
        kind: ``gradient_descent``, ``momentum``, ``adam``, ``adagrad`` or ``rmsprop``.
        hyperparameters: Pairs of the constructor's argument and its value, in the constructor's order. A
            value is a number, a bool, or, for one that the graph computes, the name of its tensor
            (``decay/Mul:0``).
        name: The optimizer's name, which TensorFlow also gives to its slots.

    Invariants: ``kind`` is known and no hyperparameter is given twice.
    """

    kind: str
    hyperparameters: tuple[tuple[str, float | bool | str], ...]
    name: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise GraphError(
                f"Optimizer {self.name!r}: kind {self.kind!r} is unknown. Use one of {', '.join(sorted(_KINDS))}."
            )
        keys = [key for key, _ in self.hyperparameters]
        if len(keys) != len(set(keys)):
            raise GraphError(f"Optimizer {self.name!r}: a hyperparameter is given twice. Got {keys}. Give each once.")

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The tensors of a variable's own shape that the optimizer keeps for each variable."""
        slots = _KINDS[self.kind][1]
        return (*slots, "mg") if dict(self.hyperparameters).get("centered") else slots

    @property
    def slot_count(self) -> int:
        """How many tensors of a variable's own shape the optimizer keeps for each variable."""
        return len(self.slot_names)

    @property
    def tensors(self) -> dict[str, str]:
        """The hyperparameters that the graph computes: argument to tensor name."""
        return {key: value for key, value in self.hyperparameters if isinstance(value, str)}

    def build(self, tf: Any, hyperparameters: Mapping[str, Any] | None = None) -> Any:
        """Make TensorFlow's own optimizer, to be used in a local graph.

        Args:
            tf: The ``tensorflow`` module.
            hyperparameters: Values that replace the recorded ones; needed for each of :attr:`tensors`, where
                it is the local graph's tensor.

        Returns:
            A ``tf.compat.v1.train.Optimizer``.

        Raises:
            GraphError: If a computed hyperparameter has no local tensor, or one is given that is not in the
                spec.
        """
        given = dict(hyperparameters or {})
        arguments: dict[str, Any] = dict(self.hyperparameters)
        unknown = sorted(given.keys() - arguments.keys())
        if unknown:
            raise GraphError(
                f"Optimizer {self.name!r}: it has no hyperparameter {', '.join(unknown)}. "
                f"Give only {', '.join(arguments)}."
            )
        missing = sorted(self.tensors.keys() - given.keys())
        if missing:
            raise GraphError(
                f"Optimizer {self.name!r}: {', '.join(missing)} is computed by the graph (tensor "
                f"{', '.join(self.tensors[key] for key in missing)}), so build needs the local graph's "
                "tensor for it. "
                f"Got {sorted(given)}."
            )
        return getattr(tf.compat.v1.train, _KINDS[self.kind][0])(**{**arguments, **given}, name=self.name)


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One call of ``minimize``: what a run of its operation trains.

    Attributes:
        op: Name of the operation that ``minimize`` returned. It does nothing in the private graph; its
            control inputs are the operations that must run before the step.
        loss: Name of the loss tensor (``loss:0``).
        variables: Names of the variables trained (``dense/kernel``), each reachable from the loss, in the
            order of ``var_list``.
        gradients: Names of the gradients' handles, one for each variable.
        optimizer: The optimizer as data.
        optimizer_index: Equal for steps of one optimizer object, which share its slots.
        global_step: Name of the variable that a step adds 1 to, if any.

    Invariants: at least one variable, none twice, and as many gradients as variables.
    """

    op: str
    loss: str
    variables: tuple[str, ...]
    gradients: tuple[str, ...]
    optimizer: OptimizerSpec
    optimizer_index: int = 0
    global_step: str | None = None

    def __post_init__(self) -> None:
        if not self.variables or len(set(self.variables)) != len(self.variables):
            raise GraphError(
                f"Train step {self.op!r}: a step trains at least one variable and each once. Got "
                f"{self.variables}. "
                "Give var_list distinct variables that the loss depends on."
            )
        if len(self.gradients) != len(self.variables):
            raise GraphError(
                f"Train step {self.op!r}: there must be one gradient for each of the {len(self.variables)} "
                "variables. "
                f"Got {len(self.gradients)}. Pass what compute_gradients returned."
            )


class Model:
    """The private graph with the training steps recorded on it.

    Invariants: a step's names are names of this model's graph; the graph's root variable scope makes resource
    variables, whatever TensorFlow's global setting is.
    """

    def __init__(self) -> None:
        self._graph: Any = None
        self._train_steps: dict[str, TrainStep] = {}
        self._lock = threading.Lock()
        self._optimizers = 0

    @property
    def graph(self) -> Any:
        """The private ``tf.Graph``, created on first use."""
        if self._graph is None:
            import tensorflow as tf

            with self._lock:
                if self._graph is None:
                    graph = tf.Graph()
                    with graph.as_default():
                        tf.compat.v1.get_variable_scope().set_use_resource(True)
                    self._graph = graph
        return self._graph

    @property
    def seed(self) -> int | None:
        """The graph-level random seed, or None if it was never set."""
        return None if self._graph is None else self._graph.seed

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self.graph.seed = seed

    @property
    def train_steps(self) -> tuple[TrainStep, ...]:
        """Every recorded step, in the order of the calls."""
        return tuple(self._train_steps.values())

    def train_step(self, op: str) -> TrainStep | None:
        """The step whose operation is called ``op``, if there is one."""
        return self._train_steps.get(op)

    def add_train_step(self, step: TrainStep) -> None:
        """Record a step.

        Raises:
            GraphError: If a step of this operation is already recorded.
        """
        with self._lock:
            if step.op in self._train_steps:
                raise GraphError(f"Train step {step.op!r}: an operation can be recorded once. Give it another name.")
            self._train_steps[step.op] = step

    def next_optimizer_index(self) -> int:
        """A number that no other optimizer of this model has."""
        with self._lock:
            self._optimizers += 1
            return self._optimizers - 1

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


def _entered_graph() -> Any:
    """The graph this thread entered to stay, if any."""
    entered = getattr(_thread, "entered", None)
    return None if entered is None else entered[0]


def current_model() -> Model:
    """The model that mirrored calls build."""
    return _model


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
    global _model
    leave_graph()
    _model = Model()
    _model.enter()
