"""The moves of proposals: sets of operators that change together, as one that decides and those that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.problem.problem import FloatArray
from tensoropt.space.work import Ints

__all__ = ["MoveSets", "Moves", "Region"]


class MoveSets(NamedTuple):
    """Sets of operators that change together, for compiled loops.

    Attributes:
        first: ``(M + 1,)``, where the members of each set begin.
        operator: of each member.
        table: where the table of each member begins in ``choice``.
        choice: for each configuration of the first operator of a set, that of a member.
    """

    first: Ints
    operator: Ints
    table: Ints
    choice: Ints


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
        sets: the members of each.
    """

    choices: Ints
    singles: int
    chances: FloatArray
    sets: MoveSets

    @classmethod
    def of_each(cls, choices: Ints) -> Moves:
        """Every operator decides for itself; ``(N,)`` numbers of configurations."""
        return cls.of(choices, np.arange(len(choices)), [None] * len(choices))

    @classmethod
    def of(cls, choices: Ints, leaders: Ints, index: Sequence[Ints | None], regions: Sequence[Region] = ()) -> Moves:
        """Some operators decide for others.

        Args:
            choices: ``(N,)``, how many configurations each operator has.
            leaders: ``(N,)``, for each operator the one that decides for it.
            index: for each operator its configuration by that of the one that decides, None for the same.
            regions: of several that decide.

        Raises:
            ProblemError: these are not about such operators and configurations.
        """
        pairs = zip(leaders.tolist(), index, strict=True) if len(leaders) == len(index) else ()
        given = [np.arange(int(choices[leader])) if by is None else by for leader, by in pairs]
        legal = len(given) == len(choices) and all(
            int(leaders[leaders[op]]) == leaders[op]
            and by.shape == (int(choices[leaders[op]]),)
            and 0 <= int(by.min()) <= int(by.max()) < int(choices[op])
            for op, by in enumerate(given)
        )
        if not legal:
            raise ProblemError(
                f"Moves: each of {len(choices)} operators must have one that decides for it, which decides for "
                f"itself, and a configuration for each of that one's; got {len(given)}, not all of which do. Give "
                "those of the same space as the choices."
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
        arrays = MoveSets(
            np.cumsum([0, *map(len, sets)]).astype(np.int64),
            pairs_of[:, 0].copy(),
            pairs_of[:, 1].copy(),
            np.concatenate([*tables, np.zeros(0, np.int64)]),
        )
        number = {size: sizes.count(size) for size in set(sizes)}
        chances = np.cumsum([size**-0.5 / number[size] for size in sizes])
        return cls(choices[heads], len(followers), chances, arrays)

    @property
    def members(self) -> list[Ints]:
        """The operators of each set."""
        return np.split(self.sets.operator, self.sets.first[1:-1])

    def place(self, assignment: Ints, number: int, choice: int) -> None:
        """Gives the first operator of a set a configuration, and the others theirs."""
        sets = self.sets
        some = slice(sets.first[number], sets.first[number + 1])
        assignment[sets.operator[some]] = sets.choice[sets.table[some] + choice]

    def changed(self, numbers: Ints, choices: Ints) -> tuple[Ints, Ints]:
        """All operators of sets, and the configurations that they get by those of the first ones."""
        sets = self.sets
        sizes = sets.first[numbers + 1] - sets.first[numbers]
        members = np.repeat(sets.first[numbers] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
        return sets.operator[members], sets.choice[sets.table[members] + np.repeat(choices, sizes)]

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
