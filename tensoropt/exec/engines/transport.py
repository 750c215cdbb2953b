"""Collectives on NumPy arrays: what the engine ``mpi4py`` calls from its Python callbacks."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from tensoropt.exec.engines.launch import start_mpi
from tensoropt.exec.engines.process_group import Group

__all__ = ["MpiTransport", "Transport", "communicator_of"]


class Transport(abc.ABC):
    """Collectives on arrays, blocking, called by all members of a group in the same order.

    An input belongs to the caller and is valid during the call only; a result belongs to the caller.
    Arguments were checked when the graph was built.

    Attributes:
        rank: This rank of the world.
        size: Ranks in the world.
    """

    rank: int
    size: int

    def prepare(self, group: Group) -> None:
        """Get ready for collectives of a group; called by its members in the same order, at graph building."""
        del group

    @abc.abstractmethod
    def all_reduce(self, x: np.ndarray, group: Group, op: str) -> np.ndarray:
        """Return the elementwise reduction over the members."""

    @abc.abstractmethod
    def all_gather(self, x: np.ndarray, group: Group) -> np.ndarray:
        """Return the members' arrays, stacked: ``[n, ...]``."""

    @abc.abstractmethod
    def reduce_scatter(self, x: np.ndarray, group: Group) -> np.ndarray:
        """Return this member's slice of the sum: ``[n, ...]`` → ``[...]``."""

    @abc.abstractmethod
    def all_to_all(self, x: np.ndarray, group: Group) -> np.ndarray:
        """Return the slices that the members hold for this one: ``[n, ...]`` → ``[n, ...]``."""

    @abc.abstractmethod
    def broadcast(self, x: np.ndarray, group: Group, root: int) -> np.ndarray:
        """Return the array of member ``root``."""

    @abc.abstractmethod
    def permute(self, x: np.ndarray, sources: tuple[int, ...]) -> np.ndarray:
        """Return the array of rank ``sources[self.rank]`` of the world."""

    @abc.abstractmethod
    def move(self, x: np.ndarray, source: int | None, target: int | None, shape: tuple[int, ...]) -> np.ndarray:
        """Send to rank ``target`` of the world, and return the array of ``source``: one of no elements if None."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what the transport holds."""


class MpiTransport(Transport):
    """Through any object that is used like an mpi4py communicator.

    16-bit floats are reduced in float32, small integers in int32.
    """

    def __init__(self, comm: Any | None = None) -> None:
        """Use ``comm``, by default the world's; collective.

        Raises:
            EngineError: MPI is missing.
        """
        world = start_mpi() if comm is None else comm
        self._world = world.Dup()
        self.rank = int(world.Get_rank())
        self.size = int(world.Get_size())
        self._communicators: dict[tuple[int, ...], Any] = {}

    def prepare(self, group: Group) -> None:
        """See the base class."""
        if group.axes not in self._communicators:
            self._communicators[group.axes] = communicator_of(self._world, group)

    def all_reduce(self, x: np.ndarray, group: Group, op: str) -> np.ndarray:
        """See the base class."""
        send, dtype = _reducible(x)
        result = np.empty_like(send)
        self._communicators[group.axes].Allreduce(send, result, _operation(op, x.dtype))
        return result.astype(dtype, copy=False)

    def all_gather(self, x: np.ndarray, group: Group) -> np.ndarray:
        """See the base class."""
        result = np.empty((group.size, *x.shape), x.dtype)
        self._communicators[group.axes].Allgather(_bytes(x), _bytes(result))
        return result

    def reduce_scatter(self, x: np.ndarray, group: Group) -> np.ndarray:
        """See the base class."""
        send, dtype = _reducible(x)
        result = np.empty(send.shape[1:], send.dtype)
        self._communicators[group.axes].Reduce_scatter_block(send, result, _operation("sum", x.dtype))
        return result.astype(dtype, copy=False)

    def all_to_all(self, x: np.ndarray, group: Group) -> np.ndarray:
        """See the base class."""
        result = np.empty(x.shape, x.dtype)
        self._communicators[group.axes].Alltoall(_bytes(x), _bytes(result))
        return result

    def broadcast(self, x: np.ndarray, group: Group, root: int) -> np.ndarray:
        """See the base class."""
        result = np.array(x, order="C")
        self._communicators[group.axes].Bcast(_bytes(result), root)
        return result

    def permute(self, x: np.ndarray, sources: tuple[int, ...]) -> np.ndarray:
        """See the base class."""
        if sources[self.rank] == self.rank:
            return np.array(x)
        result = np.empty(x.shape, x.dtype)
        self._world.Sendrecv(_bytes(x), sources.index(self.rank), recvbuf=_bytes(result), source=sources[self.rank])
        return result

    def move(self, x: np.ndarray, source: int | None, target: int | None, shape: tuple[int, ...]) -> np.ndarray:
        """See the base class."""
        from mpi4py import MPI

        result = np.empty((0,) if source is None else shape, x.dtype)
        sent = x if target is not None else np.empty(0, x.dtype)
        ends = [MPI.PROC_NULL if rank is None else rank for rank in (target, source)]
        self._world.Sendrecv(_bytes(sent), ends[0], recvbuf=_bytes(result), source=ends[1])
        return result

    def close(self) -> None:
        """See the base class. Collective."""
        for communicator in self._communicators.values():
            communicator.Free()
        self._communicators.clear()
        self._world.Free()


def communicator_of(world: Any, group: Group) -> Any:
    """Make the communicator of a group; collective over its members."""
    everyone = world.Get_group()
    members = everyone.Incl(group.members)
    communicator = world.Create_group(members, len(group.axes))
    members.Free()
    everyone.Free()
    return communicator


def _bytes(x: np.ndarray) -> np.ndarray:
    """View an array as bytes, which MPI moves whatever they mean. No copy: ours are contiguous."""
    return np.asarray(x, order="C").reshape(-1).view(np.uint8)


def _reducible(x: np.ndarray) -> tuple[np.ndarray, np.dtype]:
    """Return an array that MPI reduces rightly, and the dtype of the result.

    16-bit floats (bfloat16 is of kind 'V') are unknown to MPI 3. Sums of small integers saturate in Open MPI's
    vectorised reductions, where TensorFlow's and NumPy's wrap around.
    """
    if x.dtype.itemsize > 2 or x.dtype == np.bool_:
        return np.asarray(x, order="C"), x.dtype
    return x.astype(np.int32 if x.dtype.kind in "iu" else np.float32), x.dtype


def _operation(op: str, dtype: np.dtype) -> Any:
    from mpi4py import MPI

    if dtype == np.bool_:
        return {"max": MPI.LOR, "min": MPI.LAND}[op]
    return {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}[op]
