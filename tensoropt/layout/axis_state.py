"""Sharding states: each mesh axis's effect on a tensor as a number, so that layouts are rows of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["AT", "PARTIAL", "REPLICATED", "States", "at_state", "is_placed"]

# (K, axes): one row per layout. A mesh axis that splits a dimension has the dimension's number.
States = NDArray[np.int8]

# The states of a mesh axis along which a tensor is not split. At coordinate i it has the state AT - i.
REPLICATED, PARTIAL, AT = -1, -2, -3


def at_state(coordinate: int) -> int:
    """The state of a mesh axis along which only the devices with this coordinate have the tensor.

    Example:
        >>> at_state(1)
        -4
    """
    return AT - coordinate


def is_placed(states: States) -> NDArray[np.bool_]:
    """Returns which entries say that a tensor is at one place along an axis."""
    return np.asarray(states <= AT)
