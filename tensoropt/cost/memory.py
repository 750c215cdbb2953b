"""Bytes per device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh

__all__ = ["piece_bytes"]


def piece_bytes(spec: TensorSpec, states: NDArray[np.int8], mesh: Mesh) -> NDArray[np.float64]:
    """Bytes of a device's piece of a tensor.

    Args:
        spec: of the whole tensor.
        states: ``(K, axes)``, layouts as :meth:`tensoropt.layout.ReshardTable.numbers` takes them. A summand is as
            large as the sum.
        mesh: the factor mesh.

    Returns:
        ``(K,)``.
    """
    pieces = np.where(states >= 0, np.array(mesh.shape, dtype=np.int64), 1).prod(axis=1, dtype=np.int64)
    return np.asarray(spec.size_bytes / pieces)
