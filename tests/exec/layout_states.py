"""What the devices hold of a tensor in some layout, and engines that run one device after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.exec.engines.payload import payload_bytes
from tensoropt.exec.engines.process_group import Group
from tensoropt.layout import Layout, Mesh

__all__ = ["InTurns", "mistake", "pieces", "row_mistake", "row_pieces", "whole_tensor"]

Rows = tuple[np.ndarray, np.ndarray]  # values, indices


def whole_tensor(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """A tensor of small integers, whose sums are exact."""
    return np.random.default_rng([seed, *shape]).integers(-50, 50, tuple(shape)).astype(np.float64)


@functools.lru_cache(maxsize=4096)
def _slices(layout: Layout, shape: tuple[int, ...], mesh: Mesh, rank: int) -> tuple[slice, ...]:
    return layout.slices(shape, mesh, rank)


def pieces(whole: np.ndarray, layout: Layout, mesh: Mesh, seed: int = 0) -> list[np.ndarray]:
    """What each rank holds of ``whole``; partial sums are random summands."""
    random = np.random.default_rng([seed, 1])
    count = mesh.extent(layout.partial)
    summands = [random.integers(-50, 50, whole.shape).astype(whole.dtype) for _ in range(count - 1)]
    summands.append(whole - sum(summands, np.zeros_like(whole)))
    return [
        summands[mesh.group_index(rank, layout.partial)][_slices(layout, whole.shape, mesh, rank)]
        for rank in range(mesh.size)
    ]


def mistake(found: Sequence[np.ndarray], whole: np.ndarray, layout: Layout, mesh: Mesh) -> str | None:
    """What is wrong if ``found`` are not the ranks' pieces of ``whole`` in ``layout``, else None."""
    for rank in range(mesh.size):
        expected = whole[_slices(layout, whole.shape, mesh, rank)]
        total = sum((found[member] for member in mesh.group_members(rank, layout.partial)), np.zeros(()))
        if np.shape(total) != expected.shape:
            return f"rank {rank} holds shape {np.shape(total)}, the layout says {expected.shape}"
        if not np.array_equal(total, expected):
            return f"rank {rank} holds other values than its piece"
    return None


def row_pieces(layout: Layout, shape: tuple[int, ...], mesh: Mesh, seed: int = 0) -> tuple[np.ndarray, list[Rows]]:
    """A random gradient as rows: the whole of it, and what each rank holds.

    Rows that belong to nobody here have the index -1 and values that would be noticed anywhere: NaN.
    """
    random = np.random.default_rng([seed, 2])
    whole = np.zeros(shape)
    extent = layout.local_shape(shape, mesh)[0]
    held: dict[tuple[int, int], Rows] = {}
    result = []
    for rank in range(mesh.size):
        key = (mesh.group_index(rank, layout.partial), mesh.group_index(rank, layout.dims[0]))
        if key not in held:
            indices = random.integers(-1, extent, 5)
            values = random.integers(-50, 50, (5, *shape[1:])).astype(np.float64)
            values[indices < 0] = np.nan
            held[key] = values, indices
            np.add.at(whole, indices[indices >= 0] + key[1] * extent, values[indices >= 0])
        values, indices = held[key]
        piece = (slice(None), *layout.slices(shape, mesh, rank)[1:])
        result.append((values[piece], indices))
    return whole, result


def row_mistake(found: Sequence[Rows], whole: np.ndarray, layout: Layout, mesh: Mesh) -> str | None:
    """What is wrong if ``found`` are not rows of ``whole`` in ``layout``, else None.

    Rows of other pieces may be there, by -2 less their indices in the whole.
    """
    local = layout.local_shape(whole.shape, mesh)
    dense = []
    for rank, (values, indices) in enumerate(found):
        if values.shape[1:] != local[1:]:
            return f"rank {rank} has rows of shape {values.shape[1:]}, the layout says {local[1:]}"
        if np.any(indices >= local[0]) or np.any(indices < -1 - whole.shape[0]):
            return f"rank {rank} has indices {indices.min()}..{indices.max()} in a piece of {local[0]} rows"
        piece = np.zeros(local)
        np.add.at(piece, indices[indices >= 0], values[indices >= 0])
        dense.append(piece)
    return mistake(dense, whole, layout, mesh)


class _NotYet(Exception):
    """A rank needs what the others have not brought to its next collective."""


class _Turn:
    """The engine of one rank in its turn: answers the collectives whose inputs are all there."""

    def __init__(self, owner: InTurns, rank: int) -> None:
        self.rank = rank
        self.size = owner.mesh.size
        self._owner = owner
        self._next = 0

    def all_reduce(self, x: Any, axes: Sequence[int], *, op: str = "sum") -> Any:
        combine = {"sum": np.add, "max": np.maximum}[op]
        return self._meet("all_reduce", x, axes, lambda group, xs: functools.reduce(combine, xs))

    def all_gather(self, x: Any, axes: Sequence[int]) -> Any:
        return self._meet("all_gather", x, axes, lambda group, xs: np.stack(xs))

    def reduce_scatter(self, x: Any, axes: Sequence[int]) -> Any:
        return self._meet("reduce_scatter", x, axes, lambda group, xs: sum(y[group.index] for y in xs))

    def all_to_all(self, x: Any, axes: Sequence[int]) -> Any:
        return self._meet("all_to_all", x, axes, lambda group, xs: np.stack([y[group.index] for y in xs]))

    def permute(self, x: Any, sources: Sequence[int]) -> Any:
        if sorted(sources) != list(range(self.size)):
            raise AssertionError(f"{sources} is not a permutation")
        moved = 1 if sources[self.rank] == self.rank else 2
        axes = self._owner.mesh.axes
        return self._meet("permute", x, axes, lambda group, xs: xs[sources[self.rank]], size=moved)

    def _meet(
        self,
        kind: str,
        x: Any,
        axes: Sequence[int],
        combine: Callable[[Group, list[np.ndarray]], np.ndarray],
        size: int | None = None,
    ) -> Any:
        group = self._owner.group(tuple(axes), self.rank)
        brought = self._owner.meeting(self._next, self.rank, kind, tuple(axes), np.asarray(x))
        self._next += 1
        if any(member not in brought for member in group.members):
            raise _NotYet
        self._owner.count(self._next - 1, self.rank, payload_bytes(kind, np.asarray(x).nbytes, size or group.size))
        return tf.constant(combine(group, [brought[member] for member in group.members]))


class InTurns:
    """Runs a function of every rank's engine, eagerly and in one thread, over and over until all collectives met.

    A rank that needs what others have not brought yet is left, and starts anew in the next round with the results
    of the collectives that are complete by then.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.sent_bytes: list[int] = [0] * mesh.size
        self._groups: dict[tuple[tuple[int, ...], int], Group] = {}
        self._brought: dict[int, dict[int, np.ndarray]] = {}
        self._kinds: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._counted: set[tuple[int, int]] = set()

    def run(self, function: Callable[[Any], Any]) -> list[Any]:
        """What ``function(engine)`` gives on each rank; :attr:`sent_bytes` are those of this run."""
        self.sent_bytes = [0] * self.mesh.size
        self._brought, self._kinds, self._counted = {}, {}, set()
        results: dict[int, Any] = {}
        while len(results) < self.mesh.size:
            known = len(results) + sum(map(len, self._brought.values()))
            for rank in range(self.mesh.size):
                if rank not in results:
                    try:
                        results[rank] = function(_Turn(self, rank))
                    except _NotYet:
                        continue
            if len(results) + sum(map(len, self._brought.values())) == known:
                raise AssertionError("the ranks wait for one another")
        return [results[rank] for rank in range(self.mesh.size)]

    def group(self, axes: tuple[int, ...], rank: int) -> Group:
        if (axes, rank) not in self._groups:
            self._groups[axes, rank] = Group.of(self.mesh.shape, axes, rank)
        return self._groups[axes, rank]

    def meeting(
        self, number: int, rank: int, kind: str, axes: tuple[int, ...], value: np.ndarray
    ) -> dict[int, np.ndarray]:
        if self._kinds.setdefault(number, (kind, axes)) != (kind, axes):
            raise AssertionError(f"rank {rank} emits {kind} over {axes}, another rank {self._kinds[number]}")
        brought = self._brought.setdefault(number, {})
        brought[rank] = value
        return brought

    def count(self, number: int, rank: int, size: int) -> None:
        if (number, rank) not in self._counted:
            self._counted.add((number, rank))
            self.sent_bytes[rank] += size
