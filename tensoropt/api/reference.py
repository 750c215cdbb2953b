"""The same model in one process with plain TensorFlow: what initial values are, and what numbers must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.framework import meta_graph

from tensoropt.api.model import Model
from tensoropt.api.seeds import Seeds, with_seeds_in_meta_graph
from tensoropt.errors import SessionError
from tensoropt.exec.building import share_slots

__all__ = ["InitialValues", "Reference"]

_VARIABLE_OPS = ("VarHandleOp", "ReadVariableOp", "VarIsInitializedOp")


def _copy(graph: Any, seeds: Seeds) -> Any:
    """A copy of a ``tf.Graph`` with seeds, whose variables are in its collections."""
    with graph.as_default():  # TensorFlow exports no graph of a thread that is in eager mode
        meta = with_seeds_in_meta_graph(tf.compat.v1.train.export_meta_graph(graph=graph), seeds)
    copy = tf.Graph()
    with copy.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    return copy


class InitialValues:
    """Whole initial values of variables, by the initializers of the logical graph.

    Each rank works out the whole of one variable at a time and keeps its piece, so values do not depend on the
    layout and no message is needed; the price is one whole variable of memory at a time.
    """

    def __init__(self, graph: Any, seeds: Seeds) -> None:
        self._graph = _copy(graph, seeds)
        with self._graph.as_default():
            self._variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
        self._session = tf.compat.v1.Session(graph=self._graph)
        self._drawn: set[str] = set()

    def __call__(self, name: str) -> np.ndarray:
        """The whole initial value of a variable.

        Raises:
            SessionError: if it is not in TensorFlow's collection of global variables, or cannot be computed alone.
        """
        if name not in self._variables:
            raise SessionError(
                f"Variable '{name}': is not in the collection GLOBAL_VARIABLES, so its initializer is unknown. "
                "Make it with tensoropt.get_variable."
            )
        initial = self._variables[name].initializer.inputs[1]
        drawn = _stateful_ops(initial)
        if drawn & self._drawn:
            # Variables that start from the same random numbers (a variable and its moving average) draw them once
            # when TensorFlow initialises all together; here a session of its own draws them for each.
            self._session.close()
            self._session = tf.compat.v1.Session(graph=self._graph)
            self._drawn.clear()
        self._drawn |= drawn
        try:
            return np.asarray(self._session.run(initial))
        except tf.errors.OpError as error:
            raise SessionError(
                f"Variable '{name}': its initial value cannot be computed: {error.message}. "
                "An initial value may not depend on feeds or on other variables."
            ) from error

    def close(self) -> None:
        """Ends the session and frees the copy."""
        self._session.close()


def _stateful_ops(tensor: Any) -> set[str]:
    """Names of the operations that a tensor is computed by and that give something else each time, or may."""
    found: set[str] = set()
    pending, seen = [tensor.op], {tensor.op.name}
    while pending:
        op = pending.pop()
        if op.op_def.is_stateful and op.type not in _VARIABLE_OPS:
            found.add(op.name)
        for other in (*(value.op for value in op.inputs), *op.control_inputs):
            if other.name not in seen:
                seen.add(other.name)
                pending.append(other)
    return found


class Reference:
    """The model trained by TensorFlow alone, with the same seeds: the numbers that every plan must give."""

    def __init__(self, model: Model, seeds: Seeds, graph: Any = None) -> None:
        """Copies the model and adds TensorFlow's own gradients and updates.

        Args:
            model: the model.
            seeds: of its random operators.
            graph: the ``tf.Graph`` to copy, if not the model's own (open shapes filled in).
        """
        self._graph = _copy(model.graph if graph is None else graph, seeds)
        self._gradients: dict[tuple[str, str], Any] = {}
        self._updates: dict[str, Any] = {}
        with self._graph.as_default():
            self._variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
            self._reads = {name: variable.read_value() for name, variable in self._variables.items()}
            self._optimizers: dict[int, Any] = {}
            for step in model.train_steps:
                self._add(step)
            # TensorFlow's remapper fuses what is fetched, such as the sigmoid of a swish, and then does not find it.
            config = tf.compat.v1.ConfigProto()
            config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
            self._session = tf.compat.v1.Session(graph=self._graph, config=config)
            self._session.run([v.initializer for v in tf.compat.v1.global_variables()])

    def run(self, fetches: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Runs tensors (``name:0``) and operations of the logical graph by name; None for an operation."""
        values = self._session.run(
            [self._updates.get(name) or self._graph.as_graph_element(name) for name in fetches],
            {f"{name}:0": value for name, value in feeds.items()},
        )
        return list(values)

    def run_step(
        self, step: str, loss: str, variables: Sequence[str], feeds: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """One training step: the loss and the gradients that it used."""
        gradients = [self._gradients[step, name] for name in variables]
        loss_value, values, _ = self._session.run(
            [self._graph.get_tensor_by_name(loss), gradients, self._updates[step]],
            {f"{name}:0": value for name, value in feeds.items()},
        )
        return np.asarray(loss_value), values

    def variable(self, name: str) -> np.ndarray:
        """The value of a variable."""
        return np.asarray(self._session.run(self._reads[name]))

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    def _add(self, step: Any) -> None:
        spec = step.optimizer
        tensors = {key: self._graph.get_tensor_by_name(name) for key, name in spec.tensors.items()}
        optimizer = spec.build(tf, tensors)
        share_slots(self._optimizers.setdefault(step.optimizer_index, optimizer), optimizer)
        variables = [self._variables[name] for name in step.variables]
        loss = self._graph.get_tensor_by_name(step.loss)
        marker = self._graph.get_operation_by_name(step.op)
        with tf.control_dependencies(list(marker.control_inputs)):
            pairs = optimizer.compute_gradients(loss, variables)
        global_step = None if step.global_step is None else self._variables[step.global_step]
        # A variable that its own gradient does not depend on may otherwise be updated before the loss reads it.
        with tf.control_dependencies([*marker.control_inputs, loss]):
            update = optimizer.apply_gradients(pairs, global_step=global_step)
        for (gradient, _), name in zip(pairs, step.variables, strict=True):
            self._gradients[step.op, name] = tf.convert_to_tensor(gradient)
        # The marker does nothing by itself; what waits for it waits for the step.
        marker._add_control_input(update)
        self._updates[step.op] = marker
