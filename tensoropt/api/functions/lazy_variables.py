"""Variables without storage: their initial values are made when somebody asks for them, or for devices, one by one."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # to be in eager mode inside of a graph has no public name
from tensorflow.python.ops.resource_variable_ops import ResourceVariable, UninitializedVariable  # nor have these

from tensoropt.api.functions.variable_holders import hold, unnoticed

__all__ = ["KEPT_BYTES", "Unmade", "made_later"]

KEPT_BYTES = 2**20
"""Variables of at most so many bytes are always whole with the script."""
_PASSED_ON = ("trainable", "caching_device", "name", "constraint", "synchronization", "aggregation")


class Unmade:
    """Holds a variable that has no value yet.

    Attributes:
        digest: tells what makes the value: ranks with the same one make the same value.
    """

    def __init__(self, graph: Any) -> None:
        """Takes a graph of which the one output is the value."""
        self._graph = graph
        self.digest = hashlib.sha256(graph.as_graph_def().SerializeToString(deterministic=True)).digest()

    def value(self) -> Any:
        """The value, as an eager tensor."""
        with context.eager_mode():
            return tf.convert_to_tensor(_made_by(self._graph))

    def asked(self, variable: Any) -> None:
        """Gives the variable its value, before eager code reads or writes it for the first time."""
        hold(variable, None)
        self.made(variable)

    def read(self, variables: Sequence[Any]) -> None:
        """Gives the variables their values, before a function of TensorFlow's reads them."""
        for variable in variables:
            self.asked(variable)

    def made(self, variable: Any) -> None:
        """Gives the variable its value."""
        with context.eager_mode(), unnoticed():
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=self.value())


@contextlib.contextmanager
def made_later() -> Iterator[None]:
    """Large variables that are made meanwhile have no storage before somebody asks for their values.

    So it is for those whose initial value is a function of nothing but constants, such as Keras's initializers and the
    slots of its optimizers. Small ones of these are made at once, in eager mode: a function that is traced would have
    two more of their own for each. What gives an initial value is called once: it may draw by NumPy.
    """

    def make(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        initial = arguments.get("initial_value")
        if not callable(initial) or (graph := _traced(initial, arguments.get("dtype"))) is None:
            return next_creator(**arguments)
        (value,) = graph.outputs
        passed = {name: arguments[name] for name in _PASSED_ON if arguments.get(name) is not None}
        with tf.init_scope():
            if value.shape.num_elements() * value.dtype.size <= KEPT_BYTES:
                return ResourceVariable(_made_by(graph), dtype=value.dtype, shape=value.shape, **passed)
            variable = UninitializedVariable(shape=value.shape, dtype=value.dtype, **passed)
        hold(variable, Unmade(graph))
        return variable

    with tf.variable_creator_scope(make):
        yield


def _made_by(graph: Any) -> Any:
    """The output of a graph, as an array: by the kernels of eager mode, none of them rewritten."""
    (value,) = graph.outputs
    known = tf.get_static_value(value)
    if known is not None:
        return known
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        return session.run(value)


def _traced(initial: Callable[[], Any], dtype: Any) -> Any:
    """The graph of an initial value that may be made at any time; None for others."""
    graph = tf.__internal__.FuncGraph("initial")
    with graph.as_default():
        try:
            value = tf.convert_to_tensor(initial(), dtype)
        except Exception:  # of any kind: it is the script's function, which may be for eager mode only
            return None
    if (
        not value.shape.is_fully_defined()
        or graph.captures
        or any(op.op_def.is_stateful for op in graph.get_operations())
    ):
        return None
    graph.outputs = [value]
    return graph
