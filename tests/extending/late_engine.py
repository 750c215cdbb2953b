"""An engine around another one: each rank comes late to its collectives, by times of its own.

Whatever runs right only because ranks happen to be equally fast shows with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.mpi4py_engine import Mpi4pyEngine
from tensoropt.exec.engines.process_group import Group
from tensoropt.exec.engines.select import ENGINES

__all__ = ["LateEngine"]

_LATEST_S = 0.002


class LateEngine(CollectiveEngine):
    """The engine ``mpi4py``, before each of whose collectives a rank sleeps for up to 2 ms."""

    name: ClassVar[str] = "late"

    def __init__(self, mesh_shape: Sequence[int]) -> None:
        """Make the inner engine; collective.

        Raises:
            EngineError: As the inner engine.
        """
        self._inner = Mpi4pyEngine(mesh_shape)
        super().__init__(mesh_shape, self._inner.rank, self._inner.size)
        self._random = np.random.default_rng(self.rank)

    def counted_bytes(self) -> dict[str, int]:
        """See the base class."""
        return self._inner.counted_bytes()

    def reset_counts(self) -> None:
        """See the base class."""
        self._inner.reset_counts()

    def close(self) -> None:
        """See the base class."""
        self._inner.close()

    def _late(self, x: tf.Tensor) -> tf.Tensor:
        def sleep(array: np.ndarray) -> np.ndarray:
            time.sleep(self._random.uniform(0, _LATEST_S))
            return np.array(array)  # TensorFlow may use the buffer again

        y = tf.numpy_function(sleep, [x], x.dtype, stateful=True, name="late")
        y.set_shape(x.shape)
        return y

    def _emit_all_reduce(self, x: tf.Tensor, group: Group, op: str) -> tf.Tensor:
        return self._inner._emit_all_reduce(self._late(x), group, op)

    def _emit_all_gather(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        return self._inner._emit_all_gather(self._late(x), group)

    def _emit_reduce_scatter(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        return self._inner._emit_reduce_scatter(self._late(x), group)

    def _emit_all_to_all(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        return self._inner._emit_all_to_all(self._late(x), group)

    def _emit_broadcast(self, x: tf.Tensor, group: Group, root: int) -> tf.Tensor:
        return self._inner._emit_broadcast(self._late(x), group, root)

    def _emit_permute(self, x: tf.Tensor, sources: tuple[int, ...]) -> tf.Tensor:
        return self._inner._emit_permute(self._late(x), sources)

    def _emit_move(self, x: tf.Tensor, source: int | None, target: int | None, shape: tuple[int, ...]) -> tf.Tensor:
        return self._inner._emit_move(self._late(x), source, target, shape)


ENGINES[LateEngine.name] = LateEngine
