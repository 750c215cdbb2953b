"""The engine ``mpi``: TensorFlow ops in C++ that hand a tensor's own buffer to MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tensoropt.errors import EngineError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.launch import agree_on_success, mpi_version, start_mpi
from tensoropt.exec.engines.mpi_library import MpiLibrary, compile_library
from tensoropt.exec.engines.payload import KINDS
from tensoropt.exec.engines.process_group import Group
from tensoropt.exec.engines.transport import communicator_of
from tensoropt.exec.engines.watch import Activity, current_watch

__all__ = ["MpiEngine"]


class MpiEngine(CollectiveEngine):
    """Collectives as TensorFlow ops that call MPI on the tensor's own buffer.

    The ops are compiled on first use and cached (see ``mpi_library``). On GPUs they take tensors in the host's memory,
    which TensorFlow copies there and back.

    16-bit floats are reduced pairwise, in float32, and rounded after each pair. Integers wrap around.
    """

    name: ClassVar[str] = "mpi"
    device: ClassVar[str | None] = None

    def __init__(self, mesh_shape: Sequence[int]) -> None:
        """Start MPI and load the ops; collective.

        Raises:
            EngineError: MPI is missing, the mesh has another size than the world, or the ops can be compiled
                or loaded not on all ranks.
        """
        world = start_mpi()
        super().__init__(mesh_shape, world.rank, world.size)
        from mpi4py import MPI

        try:
            library = MpiLibrary(compile_library(mpi_version()))
        except EngineError as error:
            agree_on_success(world, "Making the engine 'mpi'", error)
            raise
        agree_on_success(world, "Making the engine 'mpi'", None)
        self._library = library
        self._meter = library.new_meter()
        self._world = world.Dup()
        self._world.Set_errhandler(MPI.ERRORS_RETURN)
        self._communicators: dict[tuple[int, ...], Any] = {}
        current_watch().follow(self._activity)

    def counted_bytes(self) -> dict[str, int]:
        """See the base class. Counted in the ops, from the tensors that they were given."""
        return dict(zip(KINDS, self._library.read_meter(self._meter, len(KINDS)), strict=True))

    def reset_counts(self) -> None:
        """See the base class."""
        self._library.reset_meter(self._meter)

    def start_journal(self, collectives: int) -> None:
        """Note when each of so many collectives begins and ends from now on; forget what was noted before."""
        self._library.start_journal(self._meter, collectives)

    def read_journal(self) -> list[tuple[int, int, int]]:
        """Return begin, end and processor time of each collective since :meth:`start_journal`, in nanoseconds.

        Begin and end are on the host's clock, which its ranks share. The processor time is that of the thread that runs
        the collective: a rank that waits for a core takes none. Nothing is noted before the first
        :meth:`start_journal`.
        """
        return self._library.read_journal(self._meter)

    def close(self) -> None:
        """See the base class. Collective; not needed before the interpreter's exit."""
        from mpi4py import MPI

        current_watch().unfollow(self._activity)
        if MPI.Is_finalized():
            return
        for communicator in self._communicators.values():
            communicator.Free()
        self._communicators.clear()
        if self._world != MPI.COMM_NULL:
            self._world.Free()

    def _activity(self) -> Activity:
        return self._library.activity(self._meter)

    def _handle(self, group: Group) -> dict[str, int]:
        """Return the attributes that every op has, with the communicator of a group, made on first use.

        Making one is collective over the group's members, which get here in the same order, since they emit the same
        collectives; others may never do.
        """
        if group.axes not in self._communicators:
            self._communicators[group.axes] = communicator_of(self._world, group)
        return {"communicator": self._communicators[group.axes].py2f(), "meter": self._meter}

    def _emit_all_reduce(self, x: tf.Tensor, group: Group, op: str) -> tf.Tensor:
        return self._library.ops.tensoropt_all_reduce(x, op=op, name="all_reduce", **self._handle(group))

    def _emit_all_gather(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        return self._library.ops.tensoropt_all_gather(x, size=group.size, name="all_gather", **self._handle(group))

    def _emit_reduce_scatter(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        return self._library.ops.tensoropt_reduce_scatter(x, name="reduce_scatter", **self._handle(group))

    def _emit_all_to_all(self, x: tf.Tensor, group: Group) -> tf.Tensor:
        return self._library.ops.tensoropt_all_to_all(x, name="all_to_all", **self._handle(group))

    def _emit_broadcast(self, x: tf.Tensor, group: Group, root: int) -> tf.Tensor:
        return self._library.ops.tensoropt_broadcast(x, root=root, name="broadcast", **self._handle(group))

    def _emit_permute(self, x: tf.Tensor, sources: tuple[int, ...]) -> tf.Tensor:
        return self._library.ops.tensoropt_permute(
            x,
            source=sources[self.rank],
            destination=sources.index(self.rank),
            communicator=self._world.py2f(),
            meter=self._meter,
            name="permute",
        )

    def _emit_move(self, x: tf.Tensor, source: int | None, target: int | None, shape: tuple[int, ...]) -> tf.Tensor:
        return self._library.ops.tensoropt_move(
            x,
            source=-1 if source is None else source,
            destination=-1 if target is None else target,
            shape=shape,
            communicator=self._world.py2f(),
            meter=self._meter,
            name="move",
        )
