"""The time to pack and unpack the buffers of collectives, for cost models that know it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensoropt.layout import PackingCost, StepKind

__all__ = ["KnowsPacking", "packing_of"]


@runtime_checkable
class KnowsPacking(Protocol):
    """A cost model whose steps cost their collective alone, and that prices the copies around it apart."""

    def packing_seconds(
        self, kind: StepKind, bytes_in: NDArray[np.float64], extent: int, strided: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Seconds that copies add to steps.

        Args:
            kind: of the steps.
            bytes_in: input bytes per device, of each.
            extent: devices in a group.
            strided: for each step along how many of its dimensions pieces are not contiguous.
        """
        ...


def packing_of(cost: object) -> PackingCost | None:
    """Returns a cost model's packing cost, for :class:`tensoropt.layout.Resharder`; None if the model has none."""
    return cost.packing_seconds if isinstance(cost, KnowsPacking) else None
