"""Copies of what is stored: whether they are equal, and how they are made equal again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.exec.program.local_graph import LocalGraph
from tensoropt.exec.program.outside_variable import OutsideVariable
from tensoropt.graph.spec import TensorId

__all__ = ["LEVEL_STEPS", "copies_apart", "level"]

# So many training steps lie between one levelling and the next. Copies that a kernel rounds differently are apart by
# the last bits of a few steps; Adam makes steps of full length out of such bits where a gradient should be 0, so they
# are not to add up for a whole training. A levelling sends what a step of data parallelism sends, and less than half.
LEVEL_STEPS = 1000


def level(local: LocalGraph) -> Any:
    """An operation that gives all copies the value of the first one, one tensor after the other.

    To be built in a program of its own.
    """
    before: list[Any] = []
    for name, variable in sorted(local.variables.items()):
        used = local.layout_of(TensorId(name)).used_axes
        axes = tuple(axis for axis in local.plan.mesh.axes if axis not in used)
        if local.plan.mesh.extent(axes) > 1:
            with tf.control_dependencies(before):
                own = variable.read_value()
                first = local.engine.broadcast(own, axes)
                if isinstance(variable, OutsideVariable) and own.dtype != tf.bool:
                    # Exact between numbers that are close, as copies are; after `assign` each read would be a copy.
                    before = [variable.assign_sub(own - first, read_value=False)]
                else:
                    before = [variable.assign(first, read_value=False)]
    return tf.group(*before)


def copies_apart(stored: Sequence[Mapping[str, tuple[np.ndarray, tuple[slice, ...]]]]) -> list[str]:
    """Describes the variables' pieces that differ in any bit between ranks that store the same part.

    Args:
        stored: of each rank, the result of ``Executor.stored``.
    """
    found = []
    for key in sorted({key for pieces in stored for key in pieces}):
        first: dict[str, tuple[int, np.ndarray]] = {}
        for rank, (piece, part) in ((rank, pieces[key]) for rank, pieces in enumerate(stored) if key in pieces):
            other_rank, other = first.setdefault(str(part), (rank, piece))
            if piece.tobytes() != other.tobytes():
                apart = np.max(np.abs(np.subtract(piece, other, dtype=np.complex128)))
                found.append(f"variable '{key}': the copies of ranks {other_rank} and {rank} are apart by {apart:.3g}")
    return found
