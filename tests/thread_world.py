"""Ranks as threads of one process: the engine's own lowering, with collectives exchanged in memory.

Each thread builds its own ``tf.Graph`` and runs its own session, made with ``session_config()``. Everything
is as under ``mpirun`` but the transport, so a test of lowering needs neither MPI nor processes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tensoropt.errors import CollectiveError
from tensoropt.exec.engines.mpi4py_engine import Mpi4pyEngine
from tensoropt.exec.engines.process_group import Group
from tensoropt.exec.engines.transport import Transport

__all__ = ["ThreadComm", "ThreadEngine", "ThreadWorld", "run_threads", "session_config"]

Result = TypeVar("Result")

_STALL_S = 60.0
_POLL_S = 0.5
_GRACE_S = 5.0


class WorldAborted(Exception):
    """Another rank failed first, whose error is the one to look at."""


@dataclasses.dataclass
class _Meeting:
    """One collective under way: what each member brought, and how many have left."""

    labels: dict[int, str] = dataclasses.field(default_factory=dict)
    brought: dict[int, object] = dataclasses.field(default_factory=dict)
    left: int = 0


class ThreadWorld:
    """Where the threads meet.

    A member's k-th collective in a group meets the other members' k-th, as in MPI. A meeting where labels
    (kind, shape, dtype) differ, an error in any thread, and a wait that is too long all end the whole world.
    """

    def __init__(self, size: int, stall_s: float = _STALL_S) -> None:
        self.size = size
        self.failure: BaseException | None = None
        self._stall_s = stall_s
        self._changed = threading.Condition()
        self._meetings: dict[tuple[object, ...], _Meeting] = {}
        self._entered: dict[tuple[object, ...], int] = {}
        self._waiting: dict[int, str] = {}

    def exchange(self, rank: int, members: tuple[int, ...], label: str, value: object) -> list:
        """Bring a value, and return what all members brought, in their order.

        Values are shared by the threads: they must not be changed afterwards.
        """
        with self._changed:
            count = self._entered.get((members, rank), 0)
            self._entered[members, rank] = count + 1
            key = (members, count)
            meeting = self._meetings.setdefault(key, _Meeting())
            meeting.labels[rank] = label
            meeting.brought[rank] = value
            self._waiting[rank] = f"{label} with ranks {members}"
            if len(meeting.brought) == len(members) and len(set(meeting.labels.values())) > 1:
                described = "; ".join(f"rank {r}: {meeting.labels[r]}" for r in members)
                self._fail(CollectiveError(f"Members must emit the same collective. Got {described}."))
            self._changed.notify_all()
            deadline = time.monotonic() + self._stall_s
            while len(meeting.brought) < len(members) and self.failure is None:
                if time.monotonic() > deadline:
                    self._fail(CollectiveError(self._describe_stall()))
                self._changed.wait(_POLL_S)
            if self.failure is not None:
                raise WorldAborted(f"rank {rank} left {label}, because: {self.failure}")
            del self._waiting[rank]
            meeting.left += 1
            if meeting.left == len(members):
                del self._meetings[key]
            return [meeting.brought[member] for member in members]

    def abort(self, failure: BaseException) -> None:
        """End the world with a rank's error, unless it has ended before."""
        with self._changed:
            self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        if self.failure is None:
            self.failure = failure
        self._changed.notify_all()

    def _describe_stall(self) -> str:
        lines = [
            f"rank {rank}: {'waits in ' + self._waiting[rank] if rank in self._waiting else 'in no collective'}"
            for rank in range(self.size)
        ]
        return f"A collective must be over within {self._stall_s:g} s. Got " + "; ".join(lines) + "."


class ThreadComm:
    """The few methods of an mpi4py communicator that control messages use, for one rank of a thread world."""

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self._world = world
        self.rank = rank
        self.size = world.size

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def allgather(self, value: object) -> list:
        return self._exchange("control allgather", value)

    def bcast(self, value: object, root: int = 0) -> object:
        return self._exchange(f"control bcast from {root}", value)[root]

    def barrier(self) -> None:
        self._exchange("control barrier", None)

    Barrier = barrier

    def _exchange(self, label: str, value: object) -> list:
        # Control messages are a group of their own, as an MPI communicator would be.
        return self._world.exchange(self.rank, tuple(range(self.size)), label, value)


class ThreadTransport(Transport):
    """One rank's collectives in a thread world, computed with NumPy."""

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self._world = world
        self.rank = rank
        self.size = world.size

    def all_reduce(self, x: np.ndarray, group: Group, op: str) -> np.ndarray:
        return _reduce(self._exchange(f"all_reduce[{op}]", x, group.members), op)

    def all_gather(self, x: np.ndarray, group: Group) -> np.ndarray:
        return np.stack(self._exchange("all_gather", x, group.members))

    def reduce_scatter(self, x: np.ndarray, group: Group) -> np.ndarray:
        arrays = self._exchange("reduce_scatter", x, group.members)
        return _reduce([array[group.index] for array in arrays], "sum")

    def all_to_all(self, x: np.ndarray, group: Group) -> np.ndarray:
        return np.stack([array[group.index] for array in self._exchange("all_to_all", x, group.members)])

    def broadcast(self, x: np.ndarray, group: Group, root: int) -> np.ndarray:
        return self._exchange(f"broadcast[{root}]", x, group.members)[root].copy()

    def permute(self, x: np.ndarray, sources: tuple[int, ...]) -> np.ndarray:
        arrays = self._exchange(f"permute{list(sources)}", x, tuple(range(self.size)))
        return arrays[sources[self.rank]].copy()

    def move(self, x: np.ndarray, source: int | None, target: int | None, shape: tuple[int, ...]) -> np.ndarray:
        # One message after the other, in the order of receivers, as ranks in a circle would all wait otherwise.
        result = np.empty((0,), x.dtype)
        pairs = {(target, self.rank)} if target is not None else set()
        pairs |= {(self.rank, source)} if source is not None else set()
        for to, sender in sorted(pairs):
            both = tuple(sorted((to, sender)))
            arrays = self._world.exchange(self.rank, both, f"move to {to} {x.dtype}", np.array(x))
            if to == self.rank:
                result = arrays[both.index(sender)].copy()
        if source is not None:
            assert result.shape == tuple(shape), f"rank {self.rank} wants {shape}, rank {source} sent {result.shape}"
        return result

    def close(self) -> None:
        return None

    def _exchange(self, label: str, x: np.ndarray, members: tuple[int, ...]) -> list[np.ndarray]:
        # A copy: TensorFlow may use the buffer again as soon as the callback returns, before others have read
        # it.
        return self._world.exchange(self.rank, members, f"{label} {x.dtype} {x.shape}", np.array(x))


class ThreadEngine(Mpi4pyEngine):
    """The engine that ``run_threads`` gives to each thread.

    Attributes:
        comm: For control messages, in place of MPI's world.
    """

    def __init__(self, mesh_shape: Sequence[int], world: ThreadWorld, rank: int) -> None:
        super().__init__(mesh_shape, ThreadTransport(world, rank))
        self.comm = ThreadComm(world, rank)


def _reduce(arrays: list[np.ndarray], op: str) -> np.ndarray:
    """Reduce in the order of members, 16-bit floats in float32."""
    dtype = arrays[0].dtype
    short = dtype.itemsize == 2 and dtype.kind not in "iu"
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    wide = [array.astype(np.float32) for array in arrays] if short else arrays
    return np.asarray(functools.reduce(combine, wide)).astype(dtype)


def session_config() -> tf.compat.v1.ConfigProto:
    """Return a session's configuration with threads of its own, so that no rank blocks another."""
    return tf.compat.v1.ConfigProto(
        use_per_session_threads=True,
        inter_op_parallelism_threads=2,
        intra_op_parallelism_threads=1,
        device_count={"GPU": 0},
    )


def _share_one_core() -> None:
    """Keep this thread, and those that it starts, on one core, another one for each process of the tests.

    Building graphs holds the interpreter's lock. On several cores, threads would spend as much again handing it over.
    """
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        os.sched_setaffinity(0, {cores[process % len(cores)]})


def run_threads(
    n: int,
    mesh_shape: Sequence[int],
    fn: Callable[[ThreadEngine], Result],
    *,
    stall_s: float = _STALL_S,
) -> list[Result]:
    """Run ``fn(engine)`` in ``n`` threads, which are the ranks of one world.

    ``fn`` makes its own graph (``with tf.Graph().as_default():``) and its own session
    (``tf.compat.v1.Session(config=session_config())``).

    Args:
        n: Number of ranks.
        mesh_shape: Sizes of the mesh axes; their product is ``n``.
        fn: What each rank does; ``engine.rank`` tells them apart, ``engine.comm`` takes control messages.
        stall_s: Seconds after which a collective that some member has not reached ends the world.

    Returns:
        What ``fn`` returned, by rank.

    Raises:
        CollectiveError: Members met with different collectives, or a collective stalled.
        BaseException: The first error of any rank, which ends all others.
    """
    if math.prod(mesh_shape) != n:
        raise ValueError(f"the mesh {tuple(mesh_shape)} holds {math.prod(mesh_shape)} ranks, not {n}")
    world = ThreadWorld(n, stall_s)
    results: dict[int, Result] = {}

    def run(rank: int) -> None:
        try:
            _share_one_core()
            results[rank] = fn(ThreadEngine(mesh_shape, world, rank))
        except BaseException as error:
            world.abort(error)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and world.failure is None:
            thread.join(_POLL_S)
    if world.failure is not None:
        for thread in threads:  # one that hangs outside of any collective is left behind: it is a daemon
            thread.join(_GRACE_S)
    if world.failure is not None:
        raise world.failure
    return [results[rank] for rank in range(n)]
