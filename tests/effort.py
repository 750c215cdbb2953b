"""How much tests try, in three steps: `make test`, `make test-all` as CI does, `make test-thorough`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

__all__ = [
    "EVERY_CASE",
    "GRAPHS",
    "NO_TIME",
    "THOROUGH",
    "covering",
    "left_to_ci",
    "some",
    "time_is_up",
    "why_left_out",
]

NO_TIME = "no time is left (TENSOROPT_TEST_MINUTES) for cases that stand for no kind"
GRAPHS = int(os.environ.get("TENSOROPT_TEST_GRAPHS", "5"))
"""Random graphs on four ranks; each takes some seconds."""

EVERY_CASE = GRAPHS >= 20
"""Whether all cases are tried that run under mpirun, as CI does, or those that stand for a kind."""

THOROUGH = GRAPHS >= 200
"""Whether each case is tried by all its plans, too, and each operator in all its forms: more than an hour."""

_MINUTES = float(os.environ.get("TENSOROPT_TEST_MINUTES", "inf"))
_BEGAN = time.monotonic()

Choice = TypeVar("Choice")


def time_is_up() -> bool:
    """Tells whether the tests have run for so many minutes as `TENSOROPT_TEST_MINUTES` gives them.

    Jobs of cases that stand for no kind are not begun then: where CI has a limit and a slow machine, a part of them is
    worth more than none.
    """
    return time.monotonic() - _BEGAN > 60.0 * _MINUTES


def left_to_ci(reason: str) -> pytest.MarkDecorator:
    """A mark of tests that `make test` leaves out, as it tries their kind by others.

    CI runs them while there is time.
    """
    return pytest.mark.left_to_ci(reason)


def why_left_out(reason: str) -> str | None:
    """Returns why a test that is :func:`left_to_ci` does not run now; None if it does."""
    if not EVERY_CASE:
        return f"{reason}: CI runs it"
    return NO_TIME if time_is_up() else None


def some(choices: Sequence[Choice], out_of: int = 3) -> Sequence[Choice]:
    """Returns all choices if tests are thorough, else the last one of each so many, and so the last one of all.

    Lists of plans begin with those that split little and end with random ones, which split most.

    Args:
        choices: what there is to try, such as plans.
        out_of: one of how many is tried.
    """
    return choices if THOROUGH else choices[::-1][::out_of][::-1]


def covering(*choices: Sequence[Any], rounds: int = 2) -> list[tuple[Any, ...]]:
    """Returns combinations, in which each choice of each list stands at least so many times, next to others.

    All combinations of three lists take an hour where these take minutes.

    Args:
        choices: the lists.
        rounds: how often the longest list is gone through, the others shifted each time.
    """
    longest = max(map(len, choices))
    return [
        tuple(each[(number + place * turn) % len(each)] for place, each in enumerate(choices))
        for turn in range(rounds)
        for number in range(longest)
    ]
