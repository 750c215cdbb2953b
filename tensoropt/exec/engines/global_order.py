"""The one order of all collectives of a program, of which each rank's are a part."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Emitted", "why_not_in_order"]

Emitted = tuple[str, tuple[int, ...]]
"""A collective as a rank emits it, and the ranks that take part in it."""


def why_not_in_order(ranks: Sequence[Sequence[Emitted]]) -> str | None:
    """The reason why ranks cannot run their collectives, each one after the other; None if they can.

    A collective runs when it is next on all of its ranks, and blocks them until then.

    Args:
        ranks: the collectives of each rank, in its order.

    Example:
        >>> send, back = ("send", (0, 1)), ("back", (0, 1))
        >>> why_not_in_order([[send, back], [send, back]])
        >>> why_not_in_order([[send, back], [back, send]])
        'Rank 0 is at: send, of ranks 0, 1; rank 1 is at: back, of ranks 0, 1.'
    """
    at = [0] * len(ranks)
    waiting = set(range(len(ranks)))
    while waiting:
        rank = waiting.pop()
        while at[rank] < len(ranks[rank]):
            there = ranks[rank][at[rank]]
            members = there[1]
            if any(at[other] == len(ranks[other]) or ranks[other][at[other]] != there for other in members):
                break
            for other in members:
                at[other] += 1
            waiting |= set(members)
            waiting.discard(rank)
    left = [rank for rank, done in enumerate(at) if done < len(ranks[rank])]
    if not left:
        return None
    said = [
        f"rank {rank} is at: {ranks[rank][at[rank]][0]}, of ranks {', '.join(map(str, ranks[rank][at[rank]][1]))}"
        for rank in left
    ]
    return f"R{'; '.join(said)[1:]}."
