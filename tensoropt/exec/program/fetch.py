"""Fetches: the tensors and operations that a program is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tensoropt.graph.spec import TensorId

__all__ = ["SET_BYTES", "TOGETHER_BYTES", "Fetch", "groups_read_together", "names_of"]

# What a user fetches: the whole value of a tensor, or an operation run for its effect.
Fetch = TensorId | str
SET_BYTES = 4 * 2**20
"""So much of several variables is computed and set in one run, which TensorFlow prepares anew for each set of them."""
TOGETHER_BYTES = 64 * 2**20  # so much of them is brought together


def names_of(fetches: Iterable[Fetch]) -> list[str]:
    """The operators that are fetched, or whose tensors are."""
    return [fetch if isinstance(fetch, str) else fetch.op for fetch in fetches]


def groups_read_together(
    names: Iterable[str], bytes_of: Callable[[str], int], most_bytes: int | None = None
) -> Iterator[list[str]]:
    """Variables in groups that are brought together; each program that brings some takes its time to build."""
    most_bytes = TOGETHER_BYTES if most_bytes is None else most_bytes
    group: list[str] = []
    size = 0
    for name in sorted(names):
        own = bytes_of(name)
        if group and size + own > most_bytes:
            yield group
            group, size = [], 0
        group.append(name)
        size += own
    if group:
        yield group
