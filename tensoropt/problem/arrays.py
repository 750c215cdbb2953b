"""Arrays of costs and of indices: what is accepted as one, and tables that are there several times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoropt.errors import ProblemError

__all__ = ["FloatArray", "IntArray", "cost_array", "distinct_tables", "int_array", "same_memory", "sum_over"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def cost_array(name: str, value: Any) -> FloatArray:
    """Checks one cost array: numbers, none negative or NaN. Returns a read-only float64 view.

    Raises:
        ProblemError: it has others; the message begins with ``name``.
    """
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "biufO":  # NumPy would drop imaginary parts, and read numbers in text
            raise TypeError(f"of dtype {given.dtype}")
        array = given.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise ProblemError(
            f"Problem {name}: costs must be real numbers, got {type(value).__name__} ({error}). "
            "Give an array of float64."
        ) from error
    if array.size and not (array.min() >= 0.0):  # also false for NaN
        where = tuple(int(i) for i in np.argwhere(~(array >= 0.0))[0])
        raise ProblemError(
            f"Problem {name}: every cost must be >= 0 (+inf for an impossible one), got {array[where]} at "
            f"index {where}. Correct the cost, or use +inf where the configuration does not exist."
        )
    return _read_only(array)


def int_array(name: str, value: Any) -> IntArray:
    """Checks one array of indices. Returns a read-only int64 view.

    Raises:
        ProblemError: these are no integers; the message begins with ``name``.
    """
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ProblemError(f"Problem {name}: indices must be integers, got dtype {array.dtype}. Give an integer array.")
    return _read_only(array.astype(np.int64, copy=False))


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def same_memory(array: npt.NDArray[Any]) -> tuple[object, ...]:
    """Equal for views of the same numbers, while they exist: by it, tables that are shared are worked on once."""
    return (array.__array_interface__["data"][0], array.shape, array.strides)


def distinct_tables(tables: Iterable[FloatArray]) -> tuple[list[FloatArray], list[int]]:
    """Tables without those that share the memory of an earlier one, and how often each is there."""
    objects: dict[int, list[FloatArray]] = {}
    for table in tables:
        objects.setdefault(id(table), []).append(table)
    found: dict[tuple[object, ...], int] = {}
    firsts: list[FloatArray] = []
    counts: list[int] = []
    for several in objects.values():
        place = found.setdefault(same_memory(several[0]), len(firsts))
        if place == len(firsts):
            firsts.append(several[0])
            counts.append(0)
        counts[place] += len(several)
    return firsts, counts


def sum_over(tables: Iterable[FloatArray], of: Callable[[FloatArray], float]) -> float:
    """The sum of a number of every table, which is worked out once per table that is shared."""
    return sum(of(table) * count for table, count in zip(*distinct_tables(tables), strict=True))
