"""Settings from the environment that steer what ranks do together: those of rank 0, on every rank.

A launch by ssh passes the variables of the shell to some ranks only. Ranks that went by their own would take different
steps, and wait for one another.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import Any

from tensoropt.errors import TensorOptError
from tensoropt.exec.engines.ranks import written_ranks
from tensoropt.storage.document import quoted

__all__ = ["MOST_S", "SETTINGS", "agree_on_settings", "number_setting", "setting"]

_log = logging.getLogger("tensoropt")

SETTINGS = (
    "TENSOROPT_COLLECTIVES",
    "TENSOROPT_COSTS",
    "TENSOROPT_PROFILE_ROUNDS",
    "TENSOROPT_PROFILE_SECONDS",
    "TENSOROPT_STALL_SECONDS",
)
"""Every variable that decides what ranks do together. Where a rank keeps its files is its own affair."""

MOST_S = 1e9
"""The most seconds that a setting may be, some thirty years: clocks and timers take no more."""

# What rank 0 has, of the variables in which ranks differ. The others are read when they are needed, so that a program
# may set them, on all ranks as everything.
_agreed: dict[str, str] = {}


def setting(name: str) -> str:
    """The text of a variable: rank 0's where ranks differ; empty if it is not set.

    Args:
        name: one of ``SETTINGS``.
    """
    if name not in SETTINGS:
        raise KeyError(f"{name}: is not among the settings that ranks agree on; add it to SETTINGS")
    return _agreed[name] if name in _agreed else os.environ.get(name, "")


def number_setting(
    name: str,
    unset: float,
    most: float,
    error: type[TensorOptError],
    wanted: str,
    *,
    least: float = 0,
    whole: bool = False,
) -> float:
    """The number that a variable has.

    Args:
        name: one of ``SETTINGS``.
        unset: what counts where it is not set.
        most: the largest one.
        error: what is raised.
        wanted: what it must be, in words.
        least: the smallest one.
        whole: whether it has no fraction.

    Raises:
        TensorOptError: of the type ``error``: it is no number, or not within the limits.
    """
    text = setting(name)
    try:
        number = float(text) if text else unset
    except ValueError:
        number = math.nan
    if not least <= number <= most or (whole and number % 1):
        raise error(
            f"{name}: must be {wanted}, got {quoted(text)}. Give {most:.0f} at most, or leave it unset for {unset:g}."
        )
    return number


def agree_on_settings(comm: Any) -> None:
    """Makes rank 0's settings those of all ranks, with a warning on rank 0 for each that differs; collective.

    Args:
        comm: an mpi4py communicator, or anything with its ``allgather`` and ``rank``.
    """
    ranks = comm.allgather(tuple(os.environ.get(name, "") for name in SETTINGS))
    _agreed.clear()
    for name, texts in zip(SETTINGS, zip(*ranks, strict=True), strict=True):
        if len(set(texts)) == 1:
            continue
        _agreed[name] = texts[0]
        if comm.rank == 0:
            _log.warning("%s", _difference(name, texts))


def _difference(name: str, texts: Sequence[str]) -> str:
    who = {text: [rank for rank, other in enumerate(texts) if other == text] for text in dict.fromkeys(texts)}
    parts = ", ".join(f"{repr(text) if text else 'not set'} on {written_ranks(ranks)}" for text, ranks in who.items())
    used = f"{texts[0]!r}, which rank 0 has, is used" if texts[0] else "it counts as not set, as on rank 0,"
    return f"{name} differs between ranks: {parts}; {used} on all. Pass it to every rank (mpirun -x {name})."
