"""A local program as a function of its feeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tensoropt.errors import EngineError

__all__ = ["callable_of"]


def callable_of(session: Any, values: Sequence[Any], feeds: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """A function of the feeds that gives a value per fetch, None for an operation.

    What ``Session.make_callable`` gives goes through ``Session.run``, whose Python takes twice as long as a small step.

    The function raises an EngineError if TensorFlow ends a step before all that is fetched has run. By keyword it takes
    ``options`` (``tf.compat.v1.RunOptions``) and ``run_metadata`` (``RunMetadata``), which it fills.
    """
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        return session.make_callable(list(values), list(feeds), accept_options=True)
    fetched = [value for value in values if not isinstance(value, tf.Operation)]
    operations = [value for value in values if isinstance(value, tf.Operation)]
    # Where ops never come to run, since they wait for one another, TensorFlow ends the step and says nothing; a value
    # that is not there comes back as an empty array. This one has a shape that tells it from that.
    needed = [*operations, *(tensor.op for tensor in fetched)]
    with session.graph.as_default(), tf.control_dependencies(needed):
        done = tf.timestamp(name="done")
    made: dict[bytes, Any] = {}

    def made_by(options: Any) -> Any:
        key = b"" if options is None else options.SerializeToString(deterministic=True)
        if key not in made:
            made[key] = make(
                config_pb2.CallableOptions(
                    feed=[feed.name for feed in feeds],
                    fetch=[tensor.name for tensor in (*fetched, done)],
                    target=[operation.name for operation in operations],
                    run_options=options,
                )
            )
        return made[key]

    run = made_by(None)
    is_operation = [isinstance(value, tf.Operation) for value in values]

    def call(*arrays: np.ndarray, options: Any = None, run_metadata: Any = None) -> list[Any]:
        if options is None and run_metadata is None:
            *results, ended = run(*arrays)
        else:
            *results, ended = made_by(options)(*arrays, run_metadata=run_metadata)
        if np.ndim(ended):
            names = ", ".join(op.name for op in needed[:3])
            raise EngineError(
                f"Session: TensorFlow ended a step before all of its operations ran. What {names} needs waits for "
                "itself, as TensorFlow has merged operations. Variables may have been updated in part. Start the job "
                "anew with TF_ENABLE_ONEDNN_OPTS=0 in its environment, with which fewer are merged, or by another plan."
            )
        found = iter(results)
        return [None if nothing else next(found) for nothing in is_operation]

    return call
