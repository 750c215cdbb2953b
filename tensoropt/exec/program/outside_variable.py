"""Variables of eager code as variables of a local graph: one storage for both, so no copy can be older than another.

Sessions and eager code look resources up apart, and no session is fed a handle. But a handle that a Python function
gives to an op keeps its pointer to the storage. A variable of the local graph, whose value is that handle, holds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # to be in eager mode inside of a graph has no public name
from tensorflow.python.ops.handle_data_util import set_handle_data  # nor have shapes behind handles
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable  # nor variables of given handles

__all__ = ["REPLACED_BYTES", "OutsideVariable"]

REPLACED_BYTES = 2**20
"""Variables of more bytes whose value steps replace are not stored outside: see :meth:`OutsideVariable.assign`."""


class OutsideVariable(BaseResourceVariable):
    """A variable of the default graph in the storage of a variable of eager code.

    Attributes:
        link: the operation by which a session finds the storage, to be run first.
    """

    def __init__(self, handle: Any, shape: tuple[int, ...], dtype: str, name: str) -> None:
        """Adds the variable to the graph.

        Args:
            handle: the eager variable's.
            shape: of the value.
            dtype: TensorFlow's name of it.
            name: what names of operations begin with.
        """
        self._of_eager_code = handle
        with tf.name_scope(f"{name}/"):
            holder = tf.raw_ops.VarHandleOp(dtype=tf.resource, shape=[], shared_name=f"{name}/outside")
            given = tf.py_function(lambda: handle, [], tf.resource)
            self.link = tf.raw_ops.AssignVariableOp(resource=holder, value=given)
            here = tf.raw_ops.ReadVariableOp(resource=holder, dtype=tf.resource, name="handle")
            here.set_shape([])
            set_handle_data(here, handle._handle_data)
            value = tf.raw_ops.ReadVariableOp(resource=here, dtype=dtype)
        super().__init__(
            trainable=True,
            shape=shape,
            dtype=tf.as_dtype(dtype),
            handle=here,
            name=name,
            unique_id=name,
            handle_name=name,
            graph_element=value,
            in_graph_mode=True,
        )

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """An operation that replaces the value.

        ``AssignVariableOp`` looks for the storage by name, and would make another one. This one takes the handle's, in
        which the value is copied; each read of the variable is a copy from then on.
        """
        del use_locking
        with tf.name_scope(name or "assign"):
            here = [0] * min(1, self.shape.rank)
            assign = tf.raw_ops.ResourceStridedSliceAssign(
                ref=self.handle,
                begin=tf.constant(here, tf.int32),
                end=tf.constant(here, tf.int32),
                strides=tf.constant([1] * len(here), tf.int32),
                value=value,
                begin_mask=len(here),
                end_mask=len(here),
            )
            return self._lazy_read(assign) if read_value else assign

    def load(self, value: np.ndarray, session: Any = None) -> None:
        """Sets the value, which there need not be any before."""
        del session
        with context.eager_mode():
            whole = tf.convert_to_tensor(value, self.dtype)
            tf.raw_ops.AssignVariableOp(resource=self._of_eager_code, value=whole)
