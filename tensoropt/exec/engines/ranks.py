"""How messages write which ranks they are about, and what these have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["written_holders", "written_ranks"]


def written_ranks(ranks: Sequence[int]) -> str:
    """Sorted ranks, briefly.

    >>> written_ranks([0, 1, 2, 5])
    'ranks 0-2, 5'
    >>> written_ranks([3])
    'rank 3'
    """
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and parts[-1][-1] == rank - 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    ranges = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
    return f"rank{'s' * (len(ranks) > 1)} {ranges}"


def written_holders(texts: Iterable[str]) -> str:
    """Lists the different values that ranks have, each with its ranks.

    Args:
        texts: the value of each rank, from rank 0 on.

    >>> written_holders(["seed=1", "seed=1", "seed=2"])
    'seed=1 on ranks 0-1; seed=2 on rank 2'
    """
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    return "; ".join(f"{text} on {written_ranks(who)}" for text, who in ranks.items())
