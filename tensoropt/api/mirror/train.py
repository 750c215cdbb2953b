"""Optimizers with TensorFlow's constructors: they record what to train instead of building the update.

``minimize`` makes one operation without effect in the private graph and records a ``TrainStep``; the
gradients, their synchronisation and the update are built on every rank from the plan. All other names of
``tensoropt.train`` (learning-rate decays, global step helpers) are TensorFlow's own, mirrored.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any, NoReturn

import tensorflow as tf

from tensoropt.api.mirror.model import Model, OptimizerSpec, TrainStep, current_model
from tensoropt.errors import GraphError
from tensoropt.graph.registry import traits

__all__ = [
    "AdagradOptimizer",
    "AdamOptimizer",
    "GradientDescentOptimizer",
    "GradientHandle",
    "MomentumOptimizer",
    "Optimizer",
    "RMSPropOptimizer",
]

_DEFAULT_LEARNING_RATE = 0.01


class GradientHandle:
    """The gradient of a loss with respect to a variable, before any device has computed it.

    It is to be passed, unchanged, from ``compute_gradients`` to ``apply_gradients``; using it in an op
    raises.

    Attributes:
        name: Name of the handle (``gradients/dense/kernel``).
        loss: Name of the loss tensor.
        variable: Name of the variable.
        dtype: The variable's dtype.
        shape: The variable's shape.
    """

    __slots__ = ("dtype", "loss", "model", "name", "shape", "variable")

    def __init__(self, model: Model, loss: Any, variable: Any) -> None:
        self.model = model
        self.loss: str = loss.name
        self.variable: str = variable.op.name
        self.name = f"gradients/{self.variable}"
        self.dtype = variable.dtype
        self.shape = variable.shape

    def __repr__(self) -> str:
        return f"<GradientHandle {self.name!r} of {self.loss!r} shape={self.shape} dtype={self.dtype.name}>"

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise GraphError(
            f"Gradient {self.name!r}: it cannot be used in an operation, since it exists only once the job "
            "runs. "
            "Pass it to apply_gradients unchanged. Clipping or scaling gradients is not supported yet; "
            "scale the "
            "loss or the learning rate instead."
        )

    __tf_tensor__ = __array__ = __iter__ = __getitem__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class Optimizer:
    """What all optimizers share; make one of the subclasses."""

    GATE_NONE = 0
    GATE_OP = 1
    GATE_GRAPH = 2

    def __init__(self, use_locking: bool, name: str, kind: str, hyperparameters: dict[str, Any]) -> None:
        """Keep the constructor's arguments.

        Args:
            use_locking: Accepted and without effect: one process updates each shard.
            name: The optimizer's name.
            kind: See ``OptimizerSpec``.
            hyperparameters: Numbers, bools, scalar tensors of the private graph, or functions that return
                one.
        """
        del use_locking
        if not name:
            raise GraphError(f"{type(self).__name__}: an optimizer needs a name. Got {name!r}.")
        self._name = name
        self._kind = kind
        self._hyperparameters = hyperparameters
        self._indices: dict[int, tuple[Model, int]] = {}

    def get_name(self) -> str:
        """The name given at construction."""
        return self._name

    @property
    def slot_count(self) -> int:
        """How many tensors of a variable's own shape are kept for each variable."""
        flags = {key: value for key, value in self._hyperparameters.items() if isinstance(value, bool)}
        return OptimizerSpec(self._kind, tuple(flags.items()), self._name).slot_count

    def minimize(
        self,
        loss: Any,
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Any:
        """Record a training step that lowers ``loss``.

        Args:
            loss: A floating-point scalar of the private graph.
            global_step: An integer variable that each step adds 1 to.
            var_list: The variables to train; default all trainable ones. Those that the loss does not depend
                on are left out.
            gate_gradients: ``GATE_NONE``, ``GATE_OP`` or ``GATE_GRAPH``. Without effect: it changes the order
                of computation within TensorFlow, not the numbers.
            aggregation_method: Without effect, as ``gate_gradients``.
            colocate_gradients_with_ops: Without effect: the plan places everything.
            name: Name of the returned operation; default the optimizer's.
            grad_loss: Not supported.

        Returns:
            An operation to be given to ``tensoropt.run``. Control dependencies that are active now are its
            control inputs, so they run before the step.

        Raises:
            GraphError: If an argument cannot be honoured or does not belong to the private graph.
        """
        pairs = self.compute_gradients(
            loss, var_list, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )
        return self.apply_gradients(pairs, global_step=global_step, name=name)

    def compute_gradients(
        self,
        loss: Any,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: Any = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[GradientHandle | None, Any]]:
        """Pair each variable with a handle of its gradient, or with None if the loss does not depend on it.

        The arguments and errors are those of :meth:`minimize`.
        """
        del aggregation_method, colocate_gradients_with_ops
        subject = f"Optimizer {self._name!r}"
        model = current_model()
        if gate_gradients not in (self.GATE_NONE, self.GATE_OP, self.GATE_GRAPH):
            raise GraphError(
                f"{subject}: gate_gradients must be GATE_NONE, GATE_OP or GATE_GRAPH (0, 1, 2). Got {gate_gradients!r}."
            )
        if grad_loss is not None:
            raise GraphError(
                f"{subject}: grad_loss is not supported. Got {grad_loss!r}. Multiply the loss by it instead."
            )
        _check_loss(loss, model, subject)
        with model.enter():
            variables = _trained_variables(var_list, model, subject)
            reached = _reached_variables(loss)
        pairs = [(GradientHandle(model, loss, v) if v.handle.name in reached else None, v) for v in variables]
        if all(handle is None for handle, _ in pairs):
            raise GraphError(
                f"{subject}: loss {loss.name!r} depends on none of the {len(variables)} variables to train "
                f"({', '.join(v.op.name for v in variables)}). Check for stop_gradient or integer ops "
                "between them."
            )
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> Any:
        """Record the training step of gradients from :meth:`compute_gradients`.

        Args:
            grads_and_vars: Its pairs, unchanged; some may be left out.
            global_step: See :meth:`minimize`.
            name: See :meth:`minimize`.
            skip_gradients_aggregation: Not supported: each gradient is that of the whole batch.

        Returns:
            See :meth:`minimize`.

        Raises:
            GraphError: If a gradient is anything else than a handle for its variable, or they are of two
                losses.
        """
        subject = f"Optimizer {self._name!r}"
        model = current_model()
        if skip_gradients_aggregation:
            raise GraphError(f"{subject}: skip_gradients_aggregation is not supported. Leave it out.")
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        if not pairs:
            raise GraphError(f"{subject}: there is no gradient to apply. Pass what compute_gradients returned.")
        for gradient, variable in pairs:
            _check_gradient(gradient, variable, model, subject)
        losses = sorted({gradient.loss for gradient, _ in pairs})
        if len(losses) > 1:
            raise GraphError(
                f"{subject}: the gradients of one step must be of one loss. Got {', '.join(losses)}. "
                "Add the losses and compute the gradients of the sum."
            )
        with model.enter():
            step_name = None if global_step is None else _check_global_step(global_step, model, subject)
            spec = self._spec(model)
            op = tf.compat.v1.no_op(name=name or self._name)
            model.add_train_step(
                TrainStep(
                    op=op.name,
                    loss=losses[0],
                    variables=tuple(variable.op.name for _, variable in pairs),
                    gradients=tuple(gradient.name for gradient, _ in pairs),
                    optimizer=spec,
                    optimizer_index=self._index(model),
                    global_step=step_name,
                )
            )
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TRAIN_OP, op)
        return op

    def _spec(self, model: Model) -> OptimizerSpec:
        """The optimizer as data; functions are called and tensors named. Called inside the model's graph."""
        values = tuple((key, self._plain(key, value, model)) for key, value in self._hyperparameters.items())
        return OptimizerSpec(self._kind, values, self._name)

    def _plain(self, key: str, value: Any, model: Model) -> float | bool | str:
        if isinstance(value, bool):
            return value
        if callable(value):
            value = value()
        if isinstance(value, tf.Variable):
            value = tf.convert_to_tensor(value, name=f"{self._name}/{key}")
        if isinstance(value, tf.Tensor):
            if value.graph is not model.graph:
                raise GraphError(
                    f"Optimizer {self._name!r}: {key} is the tensor {value.name!r} of another graph. "
                    "Compute it with tensoropt's functions after the last reset_default_graph."
                )
            if value.shape.rank not in (0, None):
                raise GraphError(
                    f"Optimizer {self._name!r}: {key} must be a scalar. Got {value.name!r} of shape {value.shape}."
                )
            return str(value.name)
        if not isinstance(value, numbers.Real):
            raise GraphError(
                f"Optimizer {self._name!r}: {key} must be a number, a scalar tensor or a function that "
                "returns one. "
                f"Got {value!r}."
            )
        return float(value)

    def _index(self, model: Model) -> int:
        """The number of this object among the model's optimizers, the same for every step it makes."""
        if id(model) not in self._indices:
            self._indices[id(model)] = (
                model,
                model.next_optimizer_index(),
            )  # Holding the model keeps its id taken.
        return self._indices[id(model)][1]


class GradientDescentOptimizer(Optimizer):
    """``variable -= learning_rate * gradient``.

    TensorFlow requires ``learning_rate``; here it defaults to 0.01, so that the paper's Listing 1 runs as
    printed.
    """

    def __init__(
        self,
        learning_rate: Any = _DEFAULT_LEARNING_RATE,
        use_locking: bool = False,
        name: str = "GradientDescent",
    ) -> None:
        super().__init__(use_locking, name, "gradient_descent", {"learning_rate": learning_rate})


class MomentumOptimizer(Optimizer):
    """Gradient descent with momentum, Nesterov's with ``use_nesterov``."""

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        hyperparameters = {
            "learning_rate": learning_rate,
            "momentum": momentum,
            "use_nesterov": bool(use_nesterov),
        }
        super().__init__(use_locking, name, "momentum", hyperparameters)


class AdamOptimizer(Optimizer):
    """Adam, in the form of TensorFlow 1 (epsilon outside the bias correction)."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
        use_own_namescope_for_non_slot_vars: bool = False,
    ) -> None:
        del use_own_namescope_for_non_slot_vars  # Names of variables that no logical graph has.
        hyperparameters = {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(use_locking, name, "adam", hyperparameters)


class AdagradOptimizer(Optimizer):
    """Adagrad."""

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if not initial_accumulator_value > 0.0:
            raise GraphError(
                f"Optimizer {name!r}: initial_accumulator_value must be above 0. Got {initial_accumulator_value!r}."
            )
        hyperparameters = {
            "learning_rate": learning_rate,
            "initial_accumulator_value": initial_accumulator_value,
        }
        super().__init__(use_locking, name, "adagrad", hyperparameters)


class RMSPropOptimizer(Optimizer):
    """RMSProp, with momentum, and centred on the gradient's mean with ``centered``."""

    def __init__(
        self,
        learning_rate: Any,
        decay: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: Any = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        hyperparameters = {
            "learning_rate": learning_rate,
            "decay": decay,
            "momentum": momentum,
            "epsilon": epsilon,
            "centered": bool(centered),
        }
        super().__init__(use_locking, name, "rmsprop", hyperparameters)


def _check_loss(loss: Any, model: Model, subject: str) -> None:
    if callable(loss):
        raise GraphError(f"{subject}: a function as loss needs eager mode. Call it and pass the tensor it returns.")
    if not isinstance(loss, tf.Tensor) or not hasattr(loss, "op") or loss.graph is not model.graph:
        raise GraphError(
            f"{subject}: the loss must be a tensor of the private graph. Got {loss!r}. "
            "Compute it with tensoropt's functions after the last reset_default_graph."
        )
    if not loss.dtype.is_floating:
        raise GraphError(f"{subject}: loss {loss.name!r} must be floating point. Got {loss.dtype.name}. Cast it.")
    if loss.shape.rank != 0:
        raise GraphError(
            f"{subject}: loss {loss.name!r} must be a scalar. Got shape {loss.shape}. Use tensoropt.reduce_mean."
        )


def _trained_variables(var_list: Any, model: Model, subject: str) -> list[Any]:
    """The variables to train, each a resource variable of the model's graph and named once."""
    variables = tf.compat.v1.trainable_variables() if var_list is None else tf.nest.flatten(var_list)
    if not variables:
        raise GraphError(f"{subject}: there is no variable to train. Make one with tensoropt.get_variable.")
    seen: set[str] = set()
    for variable in variables:
        _check_variable(variable, model, subject)
        if variable.handle.name in seen:
            raise GraphError(f"{subject}: variable {variable.op.name!r} is twice in var_list. Give each once.")
        seen.add(variable.handle.name)
        if variable.constraint is not None:
            raise GraphError(
                f"{subject}: variable {variable.op.name!r} has a constraint, which no step would apply. "
                "Make it "
                "without one; add a penalty to the loss instead."
            )
    return list(variables)


def _check_variable(variable: Any, model: Model, subject: str) -> None:
    handle = getattr(variable, "handle", None)
    if not isinstance(variable, tf.Variable) or handle is None or getattr(handle, "graph", None) is not model.graph:
        raise GraphError(
            f"{subject}: {variable!r} is not a variable of the private graph. Make it with "
            "tensoropt.get_variable "
            "after the last reset_default_graph."
        )


def _check_gradient(gradient: Any, variable: Any, model: Model, subject: str) -> None:
    if not isinstance(gradient, GradientHandle):
        raise GraphError(
            f"{subject}: apply_gradients takes the handles that compute_gradients returned, unchanged. "
            f"Got {gradient!r}. Changing gradients is not supported yet; change the loss instead."
        )
    _check_variable(variable, model, subject)
    if gradient.model is not model or gradient.variable != variable.op.name:
        raise GraphError(
            f"{subject}: a gradient is applied to the variable it belongs to. Got {gradient.name!r} with "
            f"{variable.op.name!r}. Pass the pairs of compute_gradients."
        )


def _check_global_step(global_step: Any, model: Model, subject: str) -> str:
    """The name of the global step's variable."""
    _check_variable(global_step, model, f"{subject}, global_step")
    if not global_step.dtype.is_integer or global_step.shape.rank != 0:
        raise GraphError(
            f"{subject}: global_step must be an integer scalar. Got "
            f"{global_step.dtype.name}{global_step.shape} "
            f"({global_step.op.name!r}). Use tensoropt.train.get_or_create_global_step()."
        )
    return str(global_step.op.name)


def _reached_variables(loss: Any) -> set[str]:
    """Names of the variable handles that a gradient of the loss can flow to.

    It flows back through floating-point, complex and variant tensors, and stops where the user stopped it.
    """
    handles: set[str] = set()
    seen = {loss.name}
    pending = [loss]
    while pending:
        op = pending.pop().op
        if traits(op).blocks_gradient:
            continue
        for tensor in op.inputs:
            if tensor.name in seen:
                continue
            seen.add(tensor.name)
            if tensor.dtype == tf.resource:
                handles.add(tensor.name)
            elif not (tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype == tf.variant):
                continue
            pending.append(tensor)
    return handles
