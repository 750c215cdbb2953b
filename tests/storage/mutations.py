"""Damage done to files, by a seeded generator: what disks, other programs and people with intent do to them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["assert_refused_or_the_same", "mutated_bytes", "mutated_document"]

_FIGURES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2.9, -1e-9, 1e308, 10**18, 10**400, 2**53 + 1, float("nan"), float("inf"),
    "", "0", "x" * 3000, "\ud800", "\uff11", [], {}, [[]], [True], {"a": 1},
)  # fmt: skip


def mutated_document(document: Any, random: random.Random) -> str:
    """JSON text of a document in which one place is another."""
    changed = copy.deepcopy(document)
    places = list(_places(changed))
    parent, key = random.choice(places)
    kind = random.randrange(8)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[random.choice(["unknown", f"{key} ", key.upper() + "_"])] = parent[key]
    elif kind == 2 and isinstance(parent, list):
        parent.insert(random.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
    elif kind == 3:
        other, place = random.choice(places)
        parent[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(parent[key])
    elif kind == 4 and isinstance(parent[key], int | float):
        parent[key] = random.choice([-parent[key], parent[key] + 0.5, str(parent[key]), bool(parent[key])])
    elif kind == 5:
        deep = random.choice([50, 5_000, 200_000])
        parent[key] = "@"
        return json.dumps(changed).replace('"@"', "[" * deep + "]" * deep, 1)
    elif kind == 6 and isinstance(parent, dict):
        text = json.dumps(changed)
        field = f"{json.dumps(key)}: "
        return text.replace(field, f"{field}{json.dumps(random.choice(_FIGURES[:8]))}, {field}", 1)
    else:
        parent[key] = random.choice(_FIGURES)
    return json.dumps(changed)


def mutated_bytes(whole: bytes, random: random.Random) -> bytes:
    """A file that was cut short, overwritten in places, or has bytes too many or too few."""
    kind = random.randrange(5)
    place = random.randrange(len(whole))
    if kind == 0:
        return whole[:place]
    if kind == 1:
        return whole[:place] + whole[place + random.randrange(1, 9) :]
    if kind == 2:
        return whole[:place] + random.randbytes(random.randrange(1, 9)) + whole[place:]
    changed = bytearray(whole)
    for _ in range(random.choice([1, 1, 4])):
        changed[random.randrange(len(whole))] ^= 1 << random.randrange(8) if kind == 3 else random.randrange(1, 256)
    return bytes(changed)


def assert_refused_or_the_same(
    read: Callable[[bytes], Any],
    written: bytes,
    error: type[Exception],
    again: Callable[[Any], Any],
    normal: Callable[[Any], Any],
) -> bool:
    """Whether a file was refused; if it was taken, it must mean what it says, to the last field.

    Args:
        read: of the kind of file.
        written: the file.
        error: that a file is refused with, in at most 500 characters; any other fails the test.
        again: the document of what was read, as it would be written, normal.
        normal: a document in the one way of several that mean the same.
    """
    try:
        value = read(written)
    except error as refusal:
        assert 0 < len(str(refusal)) <= 500, written[:200]
        return True
    assert _alike(again(value), normal(json.loads(written))), written[:2000]
    return False


def _alike(ours: Any, given: Any) -> bool:
    """Equal, and no truth value for a number; integers may be floats."""
    if isinstance(ours, dict) and isinstance(given, dict):
        return ours.keys() == given.keys() and all(_alike(ours[key], given[key]) for key in ours)
    if isinstance(ours, list | tuple) and isinstance(given, list):
        return len(ours) == len(given) and all(map(_alike, ours, given))
    if type(ours) is float and type(given) is int:
        return ours == float(given)  # the float that is next to it
    return isinstance(ours, bool) == isinstance(given, bool) and bool(ours == given)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a document, as what holds it and its key."""
    found = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        found += _places(value[key])
    return found
