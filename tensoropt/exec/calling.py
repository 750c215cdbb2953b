"""A local program as a function of its feeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

__all__ = ["callable_of"]


def callable_of(session: Any, values: Sequence[Any], feeds: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """A function of the feeds that gives a value per fetch, None for an operation.

    What ``Session.make_callable`` gives goes through ``Session.run``, whose Python takes twice as long as a small step.
    """
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        return session.make_callable(list(values), list(feeds))
    fetched = [value for value in values if not isinstance(value, tf.Operation)]
    operations = [value for value in values if isinstance(value, tf.Operation)]
    if operations:
        # TensorFlow says nothing if an operation never comes to run, since others wait for one another, whatever else
        # is fetched; that a value is missing, it does.
        with operations[0].graph.as_default(), tf.control_dependencies(operations):
            fetched.append(tf.timestamp(name="done"))
    options = config_pb2.CallableOptions(
        feed=[feed.name for feed in feeds],
        fetch=[tensor.name for tensor in fetched],
        target=[operation.name for operation in operations],
    )
    run = make(options)
    is_operation = [isinstance(value, tf.Operation) for value in values]

    def call(*arrays: np.ndarray) -> list[Any]:
        found = iter(run(*arrays))
        return [None if nothing else next(found) for nothing in is_operation]

    return call
