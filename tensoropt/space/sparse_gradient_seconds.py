"""The time to bring a gradient that is given as rows (``IndexedSlices``) to its table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensoropt.cost import CostModel
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import PARTIAL, StepKind, is_placed
from tensoropt.space.choices import States

__all__ = ["rows_seconds"]


def rows_seconds(cost: CostModel, spec: TensorSpec, elements: int, made: States, need: States) -> NDArray[np.float64]:
    """Seconds to move the rows of a table's gradient: they are gathered over the axes to sum over.

    Rows that are at one place are then sent to another one, or to all.

    Args:
        cost: the cost model.
        spec: of the table.
        elements: how many elements the rows have.
        made: ``(M, axes)``, layouts of the gradient that lookups make.
        need: ``(K, axes)``, layouts that the table needs.

    Returns:
        ``(M, K)``.
    """
    sources, row = np.unique(made, axis=0, return_inverse=True)
    targets, column = np.unique(need, axis=0, return_inverse=True)
    extents = np.array(cost.mesh.shape, dtype=np.int64)
    # Rows are split by everything that splits the lookup.
    used = np.where((sources >= 0) | (sources == PARTIAL), extents, 1).prod(axis=1, dtype=np.int64)
    held = np.broadcast_to((elements * spec.itemsize / used)[:, None], (len(sources), len(targets))).copy()
    first, wanted = _axes(sources, 0)[:, None], _axes(targets, 0)[None, :]
    # Rows stay where the leading axes that split the table's first dimension are the same.
    differ = first ^ wanted
    lowest = differ & -differ
    rest = np.where(differ == 0, 0, first & ~(lowest - 1))
    gathered = [(_axes(sources, PARTIAL)[:, None] & ~_axes(targets, PARTIAL)[None, :]) | rest]
    for dim in range(1, spec.rank):
        have, want = _axes(sources, dim)[:, None], _axes(targets, dim)[None, :]
        gathered.append(np.where(have != want, have, 0))
    seconds = np.zeros(held.shape)
    for axes in gathered:
        for group in np.unique(axes[axes != 0]).tolist():
            where = axes == group
            members = tuple(axis for axis in cost.mesh.axes if group >> axis & 1)
            seconds[where] += cost.step_seconds(StepKind.ALL_GATHER, members, np.maximum(1.0, held[where]))
            held[where] *= cost.mesh.extent(members)
    if is_placed(sources).any():
        seconds += _leaving_seconds(cost, sources, targets, held)
    return np.asarray(seconds[np.ix_(row.reshape(-1), column.reshape(-1))])


def _leaving_seconds(
    cost: CostModel, sources: States, targets: States, held: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds to bring rows away from the places where they are, ``(sources, targets)``."""
    here, there = sources[:, None, :], targets[None, :, :]
    leaves = is_placed(here) & (here != there) & (there != PARTIAL)
    bits = 1 << np.arange(sources.shape[1], dtype=np.int64)
    seconds = np.zeros(held.shape)
    for kind, moved in ((StepKind.SEND, leaves & is_placed(there)), (StepKind.BROADCAST, leaves & ~is_placed(there))):
        groups = (moved * bits).sum(axis=2)
        for group in np.unique(groups[groups != 0]).tolist():
            members = tuple(axis for axis in cost.mesh.axes if group >> axis & 1)
            where = groups == group
            idle = members if kind is StepKind.SEND else ()
            seconds[where] += cost.step_seconds(kind, members, np.maximum(1.0, held[where]), idle)
    return seconds


def _axes(states: States, state: int) -> NDArray[np.int64]:
    """For each layout the mesh axes in a state, as bits."""
    return np.asarray(((states == state) * (1 << np.arange(states.shape[1], dtype=np.int64))).sum(axis=1))
