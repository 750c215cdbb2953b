"""TensorFlow's optimizers, whose gradients are those of :mod:`tensoropt.api.mirror.gradients`.

Everything else is TensorFlow's own, of every optimizer: what they make of gradients are ordinary operations, and
their slots are ordinary variables.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tensoropt.api.garbage import collecting_new_objects
from tensoropt.api.mirror.gradients import gradients_at_once, merged_rows, waiting
from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = ["Optimizer"]

_DEFAULT_LEARNING_RATE = 0.01
_MERGING = "_resource_apply_sparse_duplicate_indices"


class Optimizer(tf.compat.v1.train.Optimizer):
    """``tf.compat.v1.train.Optimizer`` in the model's graph; optimizers of one's own are made of it as there."""

    _applies = False  # whether gradients are computed to be applied at once

    @collecting_new_objects()
    def minimize(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """As in TensorFlow: computes gradients of ``loss`` and applies them."""
        self._applies = True  # the updates, too, wait for what tf.control_dependencies around ask for
        try:
            with current_model().enter():
                return super().minimize(loss, *args, **kwargs)
        finally:
            self._applies = False

    def compute_gradients(
        self,
        loss: Any,
        var_list: Any = None,
        gate_gradients: int = tf.compat.v1.train.Optimizer.GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Any, Any]]:
        """As in TensorFlow: pairs of gradients and variables; a gradient is None where there is none.

        Raises:
            GraphError: a loss that is a function, or a tensor of another graph.
        """
        if callable(loss):
            raise GraphError(
                f"Optimizer {self._name!r}: a function as loss needs eager mode. Call it and pass the tensor."
            )
        model = current_model()
        with model.enter():
            given = tf.compat.v1.trainable_variables() if var_list is None else tf.nest.flatten(var_list)
            variables = list(given)
            if not variables:
                raise GraphError(
                    f"Optimizer {self._name!r}: there is no variable to train. Make one with tensoropt.get_variable."
                )
            found = gradients_at_once(loss, variables, grad_loss, aggregation_method=aggregation_method)
            found = found if self._applies else waiting(found)
            if gate_gradients == self.GATE_GRAPH:
                found = tf.tuple(found)
            return list(zip(found, variables, strict=True))

    @collecting_new_objects()
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """As in TensorFlow: an operation that updates the variables."""
        with current_model().enter():
            return super().apply_gradients(grads_and_vars, *args, **kwargs)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, handle: Any, indices: Any) -> Any:
        values, rows = merged_rows(grad, indices)
        return self._resource_apply_sparse(values, handle, rows)


@functools.cache
def _mirrored(name: str) -> type:
    """TensorFlow's optimizer of that name, as one of ours."""
    twin = getattr(tf.compat.v1.train, name)
    own: dict[str, Any] = {"__doc__": twin.__doc__, "__module__": "tensoropt.train"}
    if getattr(twin, _MERGING) is not getattr(tf.compat.v1.train.Optimizer, _MERGING):
        own[_MERGING] = getattr(twin, _MERGING)  # it takes rows as they are
    if name == "GradientDescentOptimizer":
        own["__init__"] = _gradient_descent
    return type(name, (Optimizer, twin), own)


def _gradient_descent(
    self: Any, learning_rate: Any = _DEFAULT_LEARNING_RATE, use_locking: bool = False, name: str = "GradientDescent"
) -> None:
    # TensorFlow requires a learning rate; with one, TensorOpt's listing 1 runs as printed.
    tf.compat.v1.train.GradientDescentOptimizer.__init__(self, learning_rate, use_locking, name)


def __getattr__(name: str) -> Any:
    twin = None if name.startswith("_") else getattr(tf.compat.v1.train, name, None)
    if not isinstance(twin, type) or not issubclass(twin, tf.compat.v1.train.Optimizer):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _mirrored(name)
