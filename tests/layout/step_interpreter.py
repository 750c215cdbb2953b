"""Runs reshard steps on NumPy arrays, one per device: what each kind of step means, in the simplest way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensoropt.layout import Layout, Mesh, Step, StepKind

__all__ = ["Pieces", "problem_of", "run", "scattered"]

# What each device holds; None is nothing.
Pieces = list[NDArray[np.float64] | None]


def scattered(whole: NDArray[np.float64], layout: Layout, mesh: Mesh, random: np.random.Generator) -> Pieces:
    """A tensor in a layout; summands are random integers that add up."""
    result: Pieces = []
    summands: dict[tuple[int, ...], list[NDArray[np.float64]]] = {}
    for rank in range(mesh.size):
        if not layout.holds(mesh, rank):
            result.append(None)
            continue
        # Devices that differ along partial axes only hold the summands of one piece, copies along the others are equal.
        axes = [axis for axis in mesh.axes if axis in {a for dim in layout.dims for a in dim}]
        key = tuple(mesh.coordinates(rank)[axis] for axis in axes)
        if key not in summands:
            piece = whole[layout.slices(whole.shape, mesh, rank)]
            parts = [random.integers(-9, 10, piece.shape).astype(float) for _ in range(mesh.extent(layout.partial) - 1)]
            summands[key] = [*parts, piece - sum(parts, np.zeros(piece.shape))]
        result.append(summands[key][mesh.group_index(rank, layout.partial)])
    return result


def run(steps: Sequence[Step], pieces: Pieces, layout: Layout, mesh: Mesh) -> tuple[Pieces, Layout]:
    """The pieces after the steps, and the layout that they should have."""
    for step in steps:
        pieces, layout = _step(step, pieces, layout, mesh), step.apply(layout)
    return pieces, layout


def problem_of(pieces: Pieces, whole: NDArray[np.float64], layout: Layout, mesh: Mesh) -> str | None:
    """What is wrong with pieces that should be ``whole`` in this layout."""
    for rank, piece in enumerate(pieces):
        if (piece is not None) != layout.holds(mesh, rank):
            return f"rank {rank} holds {piece}"
        if piece is None:
            continue
        total = np.zeros(piece.shape)
        for member in mesh.group_members(rank, layout.partial):
            term = pieces[member]
            total += np.nan if term is None else term
        if not np.array_equal(total, whole[layout.slices(whole.shape, mesh, rank)]):
            return f"rank {rank} holds the wrong values"
    return None


def _step(step: Step, pieces: Pieces, layout: Layout, mesh: Mesh) -> Pieces:
    if step.kind is StepKind.PERMUTE:
        return [pieces[source] for source in step.permutation(layout, mesh)]
    result: Pieces = []
    for rank in range(mesh.size):
        group = [pieces[member] for member in mesh.group_members(rank, step.axes)]
        place = mesh.group_index(rank, step.axes)
        along = tuple(mesh.coordinates(rank)[axis] for axis in step.axes)
        root = 0
        for axis, coordinate in zip(step.axes, step.at or step.to_at or (), strict=bool(step.at or step.to_at)):
            root = root * mesh.shape[axis] + coordinate
        result.append(_member(step, group, place, along, root))
    return result


def _member(step: Step, group: Pieces, place: int, along: tuple[int, ...], root: int) -> NDArray[np.float64] | None:
    """What the device at ``place`` of a group has after a step."""
    kind = step.kind
    present = [piece for piece in group if piece is not None]
    if not present:
        return None
    if kind.leaves:
        origin = group[root]
        assert origin is not None and len(present) == 1
        if kind is StepKind.BROADCAST:
            return origin
        if kind is StepKind.SEND:
            return origin if along == step.to_at else None
        if kind is StepKind.FILL:
            return origin if along == step.at else np.zeros(origin.shape)
        assert step.dim is not None
        return np.split(origin, len(group), step.dim)[place]
    assert len(present) == len(group)
    if kind.arrives and along != step.to_at:
        return None
    if kind in (StepKind.REDUCE, StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER):
        total = np.sum(present, axis=0)
        return np.split(total, len(group), step.dim)[place] if kind is StepKind.REDUCE_SCATTER else total  # type: ignore[arg-type]
    if kind in (StepKind.GATHER, StepKind.ALL_GATHER):
        return np.concatenate(present, axis=step.dim or 0)
    if kind is StepKind.ALL_TO_ALL:
        assert step.dim is not None and step.to_dim is not None
        return np.concatenate([np.split(piece, len(group), step.to_dim)[place] for piece in present], axis=step.dim)
    mine = present[place]
    if kind is StepKind.TO_PARTIAL:
        return mine if place == 0 else np.zeros(mine.shape)
    if kind is StepKind.DROP:
        return mine
    assert kind is StepKind.SLICE and step.dim is not None
    return np.split(mine, len(group), step.dim)[place]
