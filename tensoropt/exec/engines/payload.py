"""The bytes that a collective sends from each rank, by the convention that the cost model uses too."""

from __future__ import annotations

__all__ = ["KINDS", "payload_bytes"]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute", "move")
"""Every kind of collective. The C++ ops number them in this order."""


def payload_bytes(kind: str, in_bytes: int, size: int) -> int:
    """Return the bytes that one member of a group sends, in a bandwidth-optimal algorithm.

    Args:
        kind: One of ``KINDS``.
        in_bytes: Bytes of this rank's input tensor.
        size: Members of the group; for ``permute`` and ``move`` 1 if the rank sends nothing.

    Returns:
        Bytes, rounded down. Headers and the traffic of a non-optimal algorithm are not in it.

    Raises:
        ValueError: for another kind.
    """
    others = size - 1
    if kind == "all_gather":
        return others * in_bytes
    if kind == "all_reduce":
        return 2 * others * in_bytes // size
    if kind in ("permute", "move"):
        return in_bytes if others else 0
    if kind in ("reduce_scatter", "all_to_all", "broadcast"):
        return others * in_bytes // size
    raise ValueError(f"Collective {kind!r}: nothing says what it sends. Add it to payload_bytes.")
