"""All ranks of a mesh in one TensorFlow graph: their collectives become plain ops between their parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tensoropt.layout import Mesh

__all__ = ["Lockstep"]

_Result = TypeVar("_Result")


class Lockstep:
    """All ranks of a mesh build into one graph: threads that take turns and meet at each collective.

    A thread runs only while it holds the lock, and lets go of it only while it waits for the others.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._turn = threading.Condition()
        self._rounds: list[dict[int, tuple[str, Any]]] = []
        self._counts = [0] * mesh.size
        self._ended: set[int] = set()
        self._errors: list[BaseException] = []

    def run(self, work: Callable[[Any], _Result]) -> list[_Result]:
        """``work(engine)`` of every rank, in the order of ranks."""
        results: dict[int, _Result] = {}

        def rank_main(rank: int) -> None:
            with self._turn:
                try:
                    results[rank] = work(_LockstepEngine(self, rank))
                except BaseException as error:
                    self._errors.append(error)
                finally:
                    self._ended.add(rank)
                    self._turn.notify_all()

        threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(self._mesh.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return [results[rank] for rank in range(self._mesh.size)]

    def exchange(self, rank: int, what: str, tensor: Any) -> list[Any]:
        """Waits until every rank is at its collective of the same number; gives all their tensors."""
        number = self._counts[rank]
        self._counts[rank] += 1
        while len(self._rounds) <= number:
            self._rounds.append({})
        present = self._rounds[number]
        present[rank] = (what, tensor)
        self._turn.notify_all()
        while len(present) < self._mesh.size:
            if self._errors or any(other not in present for other in sorted(self._ended)):
                raise RuntimeError(f"Rank {rank} is at its collective {number}, {what}; others ended without it.")
            self._turn.wait()
        kinds = sorted({kind for kind, _ in present.values()})
        if len(kinds) > 1:
            raise RuntimeError(f"Collective {number} is {kinds} on different ranks.")
        return [present[other][1] for other in range(self._mesh.size)]

    def members(self, rank: int, axes: Sequence[int]) -> tuple[int, ...]:
        """The group of a rank."""
        return self._mesh.group_members(rank, axes)


class _LockstepEngine:
    """The engine of one rank: its collectives are ordinary ops on the tensors of all ranks."""

    def __init__(self, world: Lockstep, rank: int) -> None:
        self._world = world
        self.rank = rank

    def _gathered(self, what: str, tensor: Any, axes: Sequence[int]) -> list[Any]:
        everyone = self._world.exchange(self.rank, f"{what} {tuple(axes)} {tensor.dtype.name} {tensor.shape}", tensor)
        return [everyone[member] for member in self._world.members(self.rank, axes)]

    def all_reduce(self, tensor: Any, axes: Sequence[int], *, op: str = "sum") -> Any:
        """See the engines."""
        stacked = tf.stack(self._gathered(f"all_reduce[{op}]", tensor, axes))
        if op == "sum":
            return tf.reduce_sum(stacked, 0)
        if tensor.dtype == tf.bool:
            return tf.reduce_any(stacked, 0) if op == "max" else tf.reduce_all(stacked, 0)
        return tf.reduce_max(stacked, 0) if op == "max" else tf.reduce_min(stacked, 0)

    def all_gather(self, tensor: Any, axes: Sequence[int]) -> Any:
        """See the engines."""
        return tf.stack(self._gathered("all_gather", tensor, axes))

    def shift(self, tensor: Any, axes: Sequence[int], by: int) -> Any:
        """See the engines."""
        gathered = self._gathered(f"shift[{by}]", tensor, axes)
        number = self._world.members(self.rank, axes).index(self.rank)
        return tf.identity(gathered[(number - by) % len(gathered)])
