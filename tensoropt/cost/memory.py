"""Bytes per device."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensoropt.cost.cost_model import OpCall
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import PARTIAL, Mesh

__all__ = ["KnowsScratch", "piece_bytes"]


@runtime_checkable
class KnowsScratch(Protocol):
    """A cost model that measured what kernels take beside the tensors of their operator."""

    def scratch_bytes(self, call: OpCall) -> tuple[float, float, float]:
        """Bytes at most at once forward, kept for the backward pass, and at most at once backward."""
        ...


def piece_bytes(spec: TensorSpec, states: NDArray[np.int8], mesh: Mesh) -> NDArray[np.float64]:
    """Bytes of a device's piece of a tensor.

    Args:
        spec: of the whole tensor.
        states: ``(K, axes)``, layouts as :meth:`tensoropt.layout.ReshardTable.numbers` takes them. A part of a
            sum is as large as the sum, but for what its dtype is wider.
        mesh: the factor mesh.

    Returns:
        ``(K,)``.
    """
    pieces = np.where(states >= 0, np.array(mesh.shape, dtype=np.int64), 1).prod(axis=1, dtype=np.int64)
    itemsize = np.where((states == PARTIAL).any(axis=1), spec.sum_itemsize, spec.itemsize)
    return np.asarray(spec.elements * itemsize / pieces)
