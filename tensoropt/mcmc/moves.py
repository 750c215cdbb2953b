"""What a proposal may change: one operator, or one that decides together with those that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.mcmc import blob
from tensoropt.mcmc.blob import (
    CHANGED,
    CHANGED_PATH,
    CHANGED_SLOT,
    MEMBER_CHOICE,
    MEMBER_FIRST,
    MEMBER_OP,
    MEMBER_TABLE,
    MOVED,
    MOVED_FROM,
    MOVED_OP,
)
from tensoropt.mcmc.compiled import compiled
from tensoropt.mcmc.links import link
from tensoropt.mcmc.memory import more_memory
from tensoropt.mcmc.network import Network
from tensoropt.search.problem import FloatArray
from tensoropt.search.stages import Ints

__all__ = ["Moves", "Region", "apply", "restore"]


class Region(NamedTuple):
    """Operators that decide, and are near one another.

    Attributes:
        leaders: the first one, which the others go by, then these.
        by_first: for each its configuration by the first one's, ``(K,)``.
        sizes: so many of them, from the first on, make a set that changes together.
    """

    leaders: tuple[int, ...]
    by_first: tuple[Ints, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Sets of operators that change together, and what each configuration of the first of a set makes of the others.

    Attributes:
        choices: ``(M,)``, how many configurations the first operator of each set has.
        singles: the first so many sets are of one operator that decides and those that follow it; each operator is in
            one of them. The others are larger.
        chances: ``(M,)``, running totals of how often each set is drawn: sets of one size in all by one over the size's
            square root.
        blob: the sets for compiled loops.
    """

    choices: Ints
    singles: int
    chances: FloatArray
    blob: Ints

    @classmethod
    def of_each(cls, network: Network) -> Moves:
        """Every operator decides for itself."""
        return cls.of(network, np.arange(network.operators), [None] * network.operators)

    @classmethod
    def of(cls, network: Network, leaders: Ints, index: Sequence[Ints | None], regions: Sequence[Region] = ()) -> Moves:
        """Some operators decide for others.

        Args:
            network: the tasks.
            leaders: ``(N,)``, for each operator the one that decides for it.
            index: for each operator its configuration by that of the one that decides, None for the same.
            regions: of several that decide.

        Raises:
            ProblemError: these are not about the network's operators and configurations.
        """
        pairs = zip(leaders.tolist(), index, strict=True) if len(leaders) == len(index) else ()
        given = [np.arange(int(network.choices[leader])) if by is None else by for leader, by in pairs]
        legal = len(given) == network.operators and all(
            int(leaders[leaders[op]]) == leaders[op]
            and by.shape == (int(network.choices[leaders[op]]),)
            and 0 <= int(by.min()) <= int(by.max()) < int(network.choices[op])
            for op, by in enumerate(given)
        )
        if not legal:
            raise ProblemError(
                f"Moves: each of {network.operators} operators must have one that decides for it, which decides for "
                f"itself, and a configuration for each of that one's; got {len(given)}, not all of which do. Give "
                "those of the same space as the network."
            )
        followers: dict[int, list[int]] = {leader: [] for leader in np.unique(leaders).tolist()}
        for op, leader in enumerate(leaders.tolist()):
            followers[leader].append(op)
        known: dict[bytes, int] = {}
        tables: list[Ints] = []
        total = 0

        def place(table: Ints) -> int:
            nonlocal total
            key = table.tobytes()
            if key not in known:
                known[key] = total
                tables.append(table)
                total += len(table)
            return known[key]

        sets = [[(op, place(given[op])) for op in some] for some in followers.values()]
        heads = list(followers)
        sizes = [1] * len(sets)
        for region in regions:
            ends, members = [0], []
            for leader, by in zip(region.leaders, region.by_first, strict=True):
                members += [(op, place(given[op][by])) for op in followers[leader]]
                ends.append(len(members))
            sets += [members[: ends[size]] for size in region.sizes]
            heads += [region.leaders[0]] * len(region.sizes)
            sizes += region.sizes
        pairs_of = np.array([pair for some in sets for pair in some], np.int64).reshape(-1, 2)
        arrays = {
            MEMBER_FIRST: np.cumsum([0, *map(len, sets)]).astype(np.int64),
            MEMBER_OP: pairs_of[:, 0].copy(),
            MEMBER_TABLE: pairs_of[:, 1].copy(),
            MEMBER_CHOICE: np.concatenate([*tables, np.zeros(0, np.int64)]),
        }
        number = {size: sizes.count(size) for size in set(sizes)}
        chances = np.cumsum([size**-0.5 / number[size] for size in sizes])
        return cls(network.choices[heads], len(followers), chances, blob.pack({}, arrays))

    @property
    def members(self) -> list[Ints]:
        """The operators of each set."""
        moves = self.blob
        first = moves[moves[MEMBER_FIRST] : moves[MEMBER_FIRST] + len(self.choices) + 1]
        return np.split(moves[moves[MEMBER_OP] : moves[MEMBER_OP] + first[-1]], first[1:-1])

    def place(self, assignment: Ints, number: int, choice: int) -> None:
        """Gives the first operator of a set a configuration, and the others theirs."""
        moves = self.blob
        for place in range(*moves[moves[MEMBER_FIRST] + number : moves[MEMBER_FIRST] + number + 2].tolist()):
            table = moves[MEMBER_CHOICE] + moves[moves[MEMBER_TABLE] + place]
            assignment[moves[moves[MEMBER_OP] + place]] = moves[table + choice]

    def assignment(self, chosen: Sequence[int] | Ints) -> Ints:
        """A configuration of every operator, from one of each that decides."""
        result = np.zeros(sum(map(len, self.members[: self.singles])), np.int64)
        for number, choice in enumerate(chosen):
            self.place(result, number, int(choice))
        return result

    def draw(self, first: FloatArray, second: FloatArray) -> tuple[Ints, Ints]:
        """Sets, and configurations of their first operators, from random numbers of [0, 1)."""
        sets = np.searchsorted(self.chances, first * self.chances[-1], side="right")
        return sets, (second * self.choices[sets]).astype(np.int64)


@compiled
def apply(net: Any, moves: Any, memory: Any, assignment: Any, work: Any, number: int, choice: int) -> int:
    """Gives the operators of a set configurations, in ``assignment``; :func:`restore` undoes it.

    Args:
        net: of the network.
        moves: see :class:`Moves`.
        memory: see :class:`tensoropt.mcmc.memory.Memory`.
        assignment: the strategy; changed.
        work: of a simulation; notes which operators have moved, and from where.
        number: of the set.
        choice: the new configuration of its first operator.

    Returns:
        by how many bytes the strategy becomes larger; 0 if there is no limit.
    """
    more = 0
    count = 0
    for place in range(moves[moves[MEMBER_FIRST] + number], moves[moves[MEMBER_FIRST] + number + 1]):
        op = moves[moves[MEMBER_OP] + place]
        new = moves[moves[MEMBER_CHOICE] + moves[moves[MEMBER_TABLE] + place] + choice]
        if assignment[op] != new:
            if memory.limit >= 0:
                more += more_memory(net, memory, assignment, op, new)
            work[work[MOVED_OP] + count], work[work[MOVED_FROM] + count] = op, assignment[op]
            assignment[op] = new
            count += 1
    work[MOVED] = count
    work[CHANGED] = 0
    return int(more)


@compiled
def restore(net: Any, work: Any, assignment: Any, path: Any) -> None:
    """Takes a change back that is not wanted."""
    for number in range(work[CHANGED] - 1, -1, -1):
        slot, old = work[work[CHANGED_SLOT] + number], work[work[CHANGED_PATH] + number]
        if (path[slot] == 0) != (old == 0):
            link(net, work, slot, old == 0)
        path[slot] = old
    for number in range(work[MOVED]):
        assignment[work[work[MOVED_OP] + number]] = work[work[MOVED_FROM] + number]
