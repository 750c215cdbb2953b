"""The engine ``mpi4py``: collectives in Python callbacks, where there is no compiler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.payload import KINDS, payload_bytes
from tensoropt.exec.engines.process_group import Group
from tensoropt.exec.engines.transport import MpiTransport, Transport
from tensoropt.exec.engines.watch import Activity, current_watch

__all__ = ["Mpi4pyEngine"]


class Mpi4pyEngine(CollectiveEngine):
    """Collectives through ``tf.numpy_function`` and mpi4py, or any other ``Transport``.

    Slower than the engine ``mpi``, by a call of Python and a copy for each collective. GPU tensors are copied
    to the host and back by TensorFlow.
    """

    name: ClassVar[str] = "mpi4py"

    def __init__(self, mesh_shape: Sequence[int], transport: Transport | None = None) -> None:
        """Start the transport; collective.

        Args:
            mesh_shape: Sizes of the axes of the factor mesh.
            transport: What moves the arrays; MPI by default.

        Raises:
            EngineError: MPI is missing, or the mesh has another size than the world.
        """
        self._transport = MpiTransport() if transport is None else transport
        super().__init__(mesh_shape, self._transport.rank, self._transport.size)
        self._counts = dict.fromkeys(KINDS, 0)
        self._lock = threading.Lock()
        self._entered, self._current, self._since_s = 0, "", 0.0
        current_watch().follow(self._activity)

    def counted_bytes(self) -> dict[str, int]:
        """See the base class. Counted in the callbacks, from the arrays that they were given."""
        with self._lock:
            return dict(self._counts)

    def reset_counts(self) -> None:
        """See the base class."""
        with self._lock:
            self._counts = dict.fromkeys(KINDS, 0)

    def close(self) -> None:
        """See the base class. Collective; not needed before the interpreter's exit."""
        current_watch().unfollow(self._activity)
        self._transport.close()

    def _activity(self) -> Activity:
        with self._lock:
            waiting_s = time.monotonic() - self._since_s if self._since_s else None
            return Activity(self._entered, self._current, waiting_s)

    def _emit(self, kind: str, x: tf.Tensor, size: int, exchange: Callable[[np.ndarray], np.ndarray]) -> tf.Tensor:
        name = tf.compat.v1.get_default_graph().unique_name(kind, mark_as_used=False)

        def callback(array: np.ndarray) -> np.ndarray:
            array = np.asarray(array)  # TensorFlow passes a scalar as a NumPy scalar
            with self._lock:
                self._counts[kind] += payload_bytes(kind, array.nbytes, size)
                self._entered, self._current, self._since_s = self._entered + 1, name, time.monotonic()
            try:
                return exchange(array)
            finally:
                with self._lock:
                    self._since_s = 0.0

        # Stateful, so that no optimiser removes or merges it.
        return tf.numpy_function(callback, [x], x.dtype, stateful=True, name=kind)

    def _emit_all_reduce(self, x: tf.Tensor, group: Group, op: str) -> tf.Tensor:
        self._transport.prepare(group)
        return self._emit("all_reduce", x, group.size, lambda a: self._transport.all_reduce(a, group, op))

    def _emit_all_gather(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        self._transport.prepare(group)
        return self._emit("all_gather", x, group.size, lambda a: self._transport.all_gather(a, group))

    def _emit_reduce_scatter(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        self._transport.prepare(group)
        return self._emit("reduce_scatter", x, group.size, lambda a: self._transport.reduce_scatter(a, group))

    def _emit_all_to_all(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        self._transport.prepare(group)
        return self._emit("all_to_all", x, group.size, lambda a: self._transport.all_to_all(a, group))

    def _emit_broadcast(self, x: tf.Tensor, group: Group, root: int) -> tf.Tensor:
        self._transport.prepare(group)
        return self._emit("broadcast", x, group.size, lambda a: self._transport.broadcast(a, group, root))

    def _emit_permute(self, x: tf.Tensor, sources: tuple[int, ...]) -> tf.Tensor:
        moved = 1 if sources[self.rank] == self.rank else 2
        return self._emit("permute", x, moved, lambda a: self._transport.permute(a, sources))

    def _emit_move(self, x: tf.Tensor, source: int | None, target: int | None, shape: tuple[int, ...]) -> tf.Tensor:
        sends = 1 if target is None else 2
        return self._emit("move", x, sends, lambda a: self._transport.move(a, source, target, shape))
