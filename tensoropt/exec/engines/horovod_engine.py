"""The engine ``horovod``: collectives through Horovod's process sets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tensoropt.errors import EngineError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.launch import agree, start_mpi
from tensoropt.exec.engines.payload import KINDS, payload_bytes
from tensoropt.exec.engines.process_group import Group, partition

__all__ = ["HorovodEngine"]

_Coded = tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]

# Horovod is one per process, and refuses a second process set of the same ranks.
_process_sets: dict[tuple[int, ...], Any] = {}


class HorovodEngine(CollectiveEngine):
    """Collectives through Horovod, with one process set for each group of ranks.

    On GPUs Horovod uses NCCL if it was built with it, and tensors stay where they are. Untested on machines
    with GPUs. Horovod agrees on what comes next once in a cycle, of 1 ms by default (HOROVOD_CYCLE_TIME),
    which is the shortest time of a collective.

    Horovod knows fewer dtypes than TensorFlow. The others are moved as bits, and reduced in a dtype that
    holds them: bfloat16 in float32, small integers in int32, complex numbers as pairs.
    """

    name: ClassVar[str] = "horovod"
    device: ClassVar[str | None] = None

    def __init__(self, mesh_shape: Sequence[int]) -> None:
        """Start Horovod, if nobody has yet; collective.

        Raises:
            EngineError: Horovod or MPI is missing, or the mesh has another size than the world.
        """
        world = start_mpi()
        try:
            import horovod.tensorflow as hvd
        except ImportError as error:
            raise EngineError(
                f"The engine 'horovod' needs Horovod. Got {error}. Build it with 'make horovod', or use "
                "another engine: 'mpi' or 'mpi4py'."
            ) from error
        super().__init__(mesh_shape, world.rank, world.size)
        if hvd.is_initialized() and hvd.size() != world.size:
            # Started with ranks that were surplus, and have shut it down by ending.
            hvd.shutdown()
            _process_sets.clear()
        if not hvd.is_initialized():
            from mpi4py import MPI

            # A communicator is understood only by a Horovod that was built with MPI.
            whole = world.size == MPI.COMM_WORLD.size
            hvd.init(None if whole else world, process_sets="dynamic")
        self._hvd = hvd
        self._world = world
        self._emissions = 0
        self._counts = dict.fromkeys(KINDS, 0)
        self._lock = threading.Lock()

    def counted_bytes(self) -> dict[str, int]:
        """See the base class. Counted in a callback before each collective, from the size of the tensor."""
        with self._lock:
            return dict(self._counts)

    def reset_counts(self) -> None:
        """See the base class."""
        with self._lock:
            self._counts = dict.fromkeys(KINDS, 0)

    def close(self) -> None:
        """See the base class. Horovod itself goes on until the interpreter's exit: others may use it."""

    # ----------------------------------------------------------------------------------------------- emission

    def _emit_all_reduce(self, x: tf.Tensor, group: Group, op: str) -> tf.Tensor:
        coded, decode = _reducible(x, op, _REDUCES[op])
        coded = self._counted("all_reduce", x, coded, group.size)
        hvd_op = {"sum": self._hvd.Sum, "max": self._hvd.Max, "min": self._hvd.Min}[op]
        return decode(self._hvd.allreduce(coded, op=hvd_op, **self._where(group, "all_reduce")))

    def _emit_all_gather(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        coded, decode = _movable(x)
        coded = self._counted("all_gather", x, tf.expand_dims(coded, 0), group.size)
        return decode(_from_sorted(self._hvd.allgather(coded, **self._where(group, "all_gather")), group))

    def _emit_reduce_scatter(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        coded, decode = _reducible(_to_sorted(x, group), "sum", _REDUCES["scatter"])
        coded = self._counted("reduce_scatter", x, coded, group.size)
        y = self._hvd.reducescatter(coded, op=self._hvd.Sum, **self._where(group, "reduce_scatter"))
        return decode(tf.squeeze(y, [0]))

    def _emit_all_to_all(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        coded, decode = _movable(_to_sorted(x, group))
        coded = self._counted("all_to_all", x, coded, group.size)
        y = self._hvd.alltoall(coded, **self._where(group, "all_to_all"))
        return decode(_from_sorted(tf.ensure_shape(y, coded.shape), group))

    def _emit_broadcast(self, x: tf.Tensor, group: Group, root: int) -> tf.Tensor:
        coded, decode = _movable(x)
        coded = self._counted("broadcast", x, coded, group.size)
        # Horovod wants the root's rank in the world, also inside a process set.
        return decode(self._hvd.broadcast(coded, group.members[root], **self._where(group, "broadcast")))

    def shift(self, x: tf.Tensor, axes: Sequence[int], by: int) -> tf.Tensor:
        """See :meth:`CollectiveEngine.shift`; all groups at once, as there are no messages between two ranks."""
        groups = [Group.of(self.mesh_shape, tuple(axes), rank) for rank in range(self.size)]
        return self.permute(x, [group.members[(group.index - by) % group.size] for group in groups])

    def _emit_permute(self, x: tf.Tensor, sources: tuple[int, ...]) -> tf.Tensor:
        coded, decode = _movable(x)
        moved = 1 if sources[self.rank] == self.rank else 2
        coded = self._counted("permute", x, tf.expand_dims(coded, 0), moved)
        destination = sources.index(self.rank)
        splits = tf.constant([int(rank == destination) for rank in range(self.size)], tf.int32)
        y, _ = self._hvd.alltoall(coded, splits, name=self._unique("permute"), ignore_name_scope=True)
        return decode(tf.squeeze(tf.ensure_shape(y, coded.shape), [0]))

    def _unique(self, kind: str) -> str:
        """Return a name by which Horovod matches the ranks' tensors: the same on all of them, used once."""
        self._emissions += 1
        return f"tensoropt_{self._emissions}_{kind}"

    def _where(self, group: Group, kind: str) -> dict[str, Any]:
        """Return the arguments that all of Horovod's collectives have.

        Process sets are made on first use, by all ranks in the same order: that of emission.
        """
        for members in partition(self.mesh_shape, group.axes):
            self._add_process_set(tuple(sorted(members)))
        process_set = _process_sets[tuple(sorted(group.members))]
        return {"name": self._unique(kind), "ignore_name_scope": True, "process_set": process_set}

    def _add_process_set(self, ranks: tuple[int, ...]) -> None:
        if ranks in _process_sets:
            return
        if len(ranks) == self.size:
            _process_sets[ranks] = self._hvd.global_process_set
            return
        agree(self._world, "ranks of Horovod's next process set", str(ranks))
        try:
            _process_sets[ranks] = self._hvd.add_process_set(list(ranks))
        except ValueError as error:
            raise EngineError(
                f"The engine 'horovod' must add the process set {list(ranks)}. Got {error}. Let tensoropt "
                "start Horovod, or call hvd.init(process_sets='dynamic')."
            ) from error

    def _counted(self, kind: str, x: tf.Tensor, coded: tf.Tensor, size: int) -> tf.Tensor:
        """Return ``coded``, whose use comes after the bytes of ``x`` were counted.

        Its shape goes through the callback. That also hides from TensorFlow that the tensor may be constant:
        Horovod's ops are not stateful, so that constant folding would run one with a constant input, out of its
        order and while other ranks do not.
        """

        def count(elements: np.ndarray, shape: np.ndarray) -> np.ndarray:
            with self._lock:
                self._counts[kind] += payload_bytes(kind, int(elements) * x.dtype.size, size)
            return shape

        with tf.device("/cpu:0"):
            shape = tf.numpy_function(
                count,
                [tf.size(x, tf.int64), tf.shape(coded, tf.int64)],
                tf.int64,
                stateful=True,
                name=f"count_{kind}",
            )
        counted = tf.reshape(coded, shape)
        counted.set_shape(coded.shape)
        # Horovod's ops have gradients, which know nothing of partial sums.
        return tf.stop_gradient(counted)


# ----------------------------------------------------------------------------------------------- member order
# A process set is sorted by rank; a group is in the order of its axes.


def _to_sorted(x: tf.Tensor, group: Group) -> tf.Tensor:
    """Order the slices for the members by their ranks."""
    order = [group.members.index(rank) for rank in sorted(group.members)]
    return x if order == sorted(order) else tf.gather(x, order)


def _from_sorted(x: tf.Tensor, group: Group) -> tf.Tensor:
    """Order slices that are sorted by rank as the members are."""
    ranks = sorted(group.members)
    order = [ranks.index(rank) for rank in group.members]
    return x if order == sorted(order) else tf.gather(x, order)


# ----------------------------------------------------------------------------------------------------- dtypes

_MOVES = (
    *(tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64),
    *(tf.float16, tf.float32, tf.float64, tf.bool),
)
_REDUCES = {
    "sum": (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64),
    # Horovod's float16 can only be added.
    "max": (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float32, tf.float64),
    "min": (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float32, tf.float64),
    "scatter": (tf.int32, tf.int64, tf.float16, tf.float32, tf.float64),
}
_WIDER = {
    **{tf.bool: tf.uint8, tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.uint32: tf.int64},
    **{tf.int8: tf.int32, tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32},
}
_SAME_BITS = {tf.bfloat16: tf.uint16, tf.uint32: tf.int32, tf.uint64: tf.int64, tf.complex64: tf.int64}


def _movable(x: tf.Tensor) -> _Coded:
    """Return ``x`` in a dtype that Horovod moves, and the way back."""
    dtype = x.dtype.base_dtype
    if dtype in _MOVES:
        return x, lambda y: y
    if dtype is tf.complex128:  # as pairs: TensorFlow has no other dtype of 16 bytes
        return tf.stack([tf.math.real(x), tf.math.imag(x)], -1), _complex
    return tf.bitcast(x, _SAME_BITS[dtype]), lambda y: tf.bitcast(y, dtype)


def _reducible(x: tf.Tensor, op: str, known: tuple[tf.DType, ...]) -> _Coded:
    """Return ``x`` in a dtype that Horovod reduces, and the way back.

    Sums of integers wrap around as in their own dtype.
    """
    dtype = x.dtype.base_dtype
    if dtype in known:
        return x, lambda y: y
    if dtype.is_complex:
        return tf.stack([tf.math.real(x), tf.math.imag(x)], -1), _complex
    if dtype is tf.uint64:
        # Signed and unsigned sums have the same bits; flipping the top bit keeps the order.
        top = tf.constant(0 if op == "sum" else np.iinfo(np.int64).min, tf.int64)
        coded = tf.bitwise.bitwise_xor(tf.bitcast(x, tf.int64), top)
        return coded, lambda y: tf.bitcast(tf.bitwise.bitwise_xor(y, top), tf.uint64)
    return tf.cast(x, _WIDER[dtype]), lambda y: tf.cast(y, dtype)


def _complex(pairs: tf.Tensor) -> tf.Tensor:
    return tf.complex(pairs[..., 0], pairs[..., 1])
