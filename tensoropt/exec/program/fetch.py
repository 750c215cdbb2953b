"""Fetches: the tensors and operations that a program is asked for."""

from __future__ import annotations

from collections.abc import Iterable

from tensoropt.graph.spec import TensorId

__all__ = ["Fetch", "names_of"]

# What a user fetches: the whole value of a tensor, or an operation run for its effect.
Fetch = TensorId | str


def names_of(fetches: Iterable[Fetch]) -> list[str]:
    """The operators that are fetched, or whose tensors are."""
    return [fetch if isinstance(fetch, str) else fetch.op for fetch in fetches]
