"""Decorators that compile loops over tasks.

They allocate nothing, so arrays need no reference counts. Numba keeps these nevertheless, by atomic instructions at
every call that takes an array, unless it is told not to: they were half of a simulation's time.
"""

from __future__ import annotations

from typing import Any

from numba import njit

__all__ = ["compiled", "inlined"]

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}

compiled = njit(**_OPTIONS)
"""Compiles a function that allocates nothing; one that does is refused by Numba."""

inlined = njit(**_OPTIONS, forceinline=True)
"""The same, written into the functions that call it: passing dozens of arrays takes as long as simulating a task."""
