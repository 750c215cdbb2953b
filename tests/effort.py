"""How much tests try: some by default, far more in CI."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

__all__ = ["GRAPHS", "THOROUGH", "covering", "some"]

GRAPHS = int(os.environ.get("TENSOROPT_TEST_GRAPHS", "5"))
"""Random graphs on four ranks; each takes some seconds."""

THOROUGH = GRAPHS >= 200
"""Whether to try what takes minutes more, as CI does."""

Choice = TypeVar("Choice")


def some(choices: Sequence[Choice], of: str, out_of: int = 3) -> Sequence[Choice]:
    """Returns all choices in CI, else one of so many, rounded up, which differ from test to test.

    Tests that each try the whole of a list try much of it many times; those that each try another part of it still
    try all of it together. The same test has the same part in every run and on every rank.

    Args:
        choices: what there is to try, such as strategies.
        of: which test it is for.
        out_of: one of how many is tried.
    """
    if THOROUGH:
        return choices
    count = -(-len(choices) // out_of)
    first = zlib.crc32(of.encode())
    return [choices[(first + number * out_of) % len(choices)] for number in range(count)]


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
