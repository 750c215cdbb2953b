"""What a proposal may change: one operator, or one that decides together with those that follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

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
from tensoropt.mcmc.memory import more_memory
from tensoropt.mcmc.network import Network
from tensoropt.search.stages import Ints

__all__ = ["Moves", "apply", "restore"]


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Operators that decide, and what each of their configurations makes of those that follow them.

    Attributes:
        leaders: ``(L,)``, the operators that decide, ascending.
        choices: ``(L,)``, how many configurations each of them has.
        members: for each of them the operators that it decides for, itself among them, ascending.
        blob: the same for compiled loops.
    """

    leaders: Ints
    choices: Ints
    members: tuple[Ints, ...]
    blob: Ints

    @classmethod
    def of_each(cls, network: Network) -> Moves:
        """Every operator decides for itself."""
        return cls.of(network, np.arange(network.operators), [None] * network.operators)

    @classmethod
    def of(cls, network: Network, leaders: Ints, index: Sequence[Ints | None]) -> Moves:
        """Some operators decide for others.

        Args:
            network: the tasks.
            leaders: ``(N,)``, for each operator the one that decides for it.
            index: for each operator its configuration by that of the one that decides, None for the same.

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
        deciding = np.unique(leaders)
        members = tuple(np.flatnonzero(leaders == leader) for leader in deciding.tolist())
        tables: dict[bytes, int] = {}
        parts: list[Ints] = []
        total = 0
        at = []
        for some in members:
            for op in some.tolist():
                table = np.ascontiguousarray(given[op], np.int64)
                key = table.tobytes()
                if key not in tables:
                    tables[key] = total
                    parts.append(table)
                    total += len(table)
                at.append(tables[key])
        arrays = {
            MEMBER_FIRST: np.cumsum([0, *map(len, members)]).astype(np.int64),
            MEMBER_OP: np.concatenate([*members, np.zeros(0, np.int64)]).astype(np.int64),
            MEMBER_TABLE: np.array(at, np.int64),
            MEMBER_CHOICE: np.concatenate([*parts, np.zeros(0, np.int64)]),
        }
        return cls(deciding, network.choices[deciding], members, blob.pack({}, arrays))

    def place(self, assignment: Ints, number: int, choice: int) -> None:
        """Gives a leader a configuration, and those that follow it theirs."""
        moves = self.blob
        for place in range(*moves[moves[MEMBER_FIRST] + number : moves[MEMBER_FIRST] + number + 2].tolist()):
            table = moves[MEMBER_CHOICE] + moves[moves[MEMBER_TABLE] + place]
            assignment[moves[moves[MEMBER_OP] + place]] = moves[table + choice]

    def assignment(self, chosen: Sequence[int] | Ints) -> Ints:
        """A configuration of every operator, from one of each leader."""
        result = np.zeros(sum(map(len, self.members)), np.int64)
        for number, choice in enumerate(chosen):
            self.place(result, number, int(choice))
        return result


@njit(cache=True, nogil=True)
def apply(net: Any, moves: Any, memory: Any, assignment: Any, work: Any, number: int, choice: int) -> int:
    """Gives a leader a configuration, and those that follow it theirs, in ``assignment``; :func:`restore` undoes it.

    Args:
        net: of the network.
        moves: see :class:`Moves`.
        memory: see :class:`tensoropt.mcmc.memory.Memory`.
        assignment: the strategy; changed.
        work: of a simulation; notes which operators have moved, and from where.
        number: of the leader.
        choice: its new configuration.

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


@njit(cache=True, nogil=True)
def restore(work: Any, assignment: Any, path: Any) -> None:
    """Takes a change back that is not wanted."""
    for number in range(work[CHANGED] - 1, -1, -1):
        path[work[work[CHANGED_SLOT] + number]] = work[work[CHANGED_PATH] + number]
    for number in range(work[MOVED]):
        assignment[work[work[MOVED_OP] + number]] = work[work[MOVED_FROM] + number]
