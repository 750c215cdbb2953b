"""``tf.compat.v1.train.Scaffold`` of a model: what gives a monitored session's variables their values."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import Model, current_model
from tensoropt.api.session.saver import Saver

__all__ = ["Scaffold", "default_saver"]

_savers: weakref.WeakKeyDictionary[Model, Saver] = weakref.WeakKeyDictionary()


class Scaffold(tf.compat.v1.train.Scaffold):
    """``tf.compat.v1.train.Scaffold``.

    ``ready_op`` and ``ready_for_local_init_op`` have no meaning: variables have values since
    ``build_execution_graph``.
    """

    _init_op: Any
    _local_init_op: Any
    _summary_op: Any
    _saver: Any

    def finalize(self) -> Scaffold:
        """Makes what was not given; the graph may be added to afterwards, which TensorFlow forbids.

        Returns:
            The scaffold itself.
        """
        keys = tf.compat.v1.GraphKeys
        with current_model().enter():
            if self._init_op is None:
                self._init_op = self.get_or_default("init_op", keys.INIT_OP, tf.compat.v1.global_variables_initializer)
            if self._local_init_op is None:
                self._local_init_op = self.get_or_default("local_init_op", keys.LOCAL_INIT_OP, _local_initializer)
            if self._summary_op is None:
                self._summary_op = self.get_or_default("summary_op", keys.SUMMARY_OP, tf.compat.v1.summary.merge_all)
            if self._saver is None:
                self._saver = default_saver()
            self._saver.build()
        return self


def default_saver() -> Any:
    """The saver in the collection ``SAVERS`` or, where there is none, one of all variables, the same each time.

    Raises:
        RuntimeError: there are several in the collection.
    """
    model = current_model()
    given = model.graph.get_collection(tf.compat.v1.GraphKeys.SAVERS)
    if len(given) > 1:
        raise RuntimeError(
            f"The collection SAVERS has {len(given)} savers. Say which one to use by Scaffold(saver=…) or "
            "CheckpointSaverHook(saver=…)."
        )
    if given:
        return given[0]
    if model not in _savers:
        _savers[model] = Saver(sharded=True, allow_empty=True)
    return _savers[model]


def _local_initializer() -> Any:
    """Initializes local variables and tables; None where there is nothing."""
    variables = tf.compat.v1.local_variables()
    if not variables and not tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS):
        return None
    return tf.group(tf.compat.v1.variables_initializer(variables), tf.compat.v1.tables_initializer())
