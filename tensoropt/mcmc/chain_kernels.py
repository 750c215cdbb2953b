"""Compiled Markov chains: proposals, their cost, and whether they are taken."""

from __future__ import annotations

from typing import Any

from tensoropt.mcmc.blob import MOVED, TASKS
from tensoropt.mcmc.compiled import compiled
from tensoropt.mcmc.delta import change, commit
from tensoropt.mcmc.kernels import find_paths, simulate
from tensoropt.mcmc.moves import apply, restore

__all__ = ["run_delta", "run_full", "take"]

# Entries of a chain's state, and of what it gives back.
NEXT, COST, BEST, BEST_AT, ACCEPTED, MEMORY, FEASIBLE, MARK, LIMIT, MORE, EARLY = range(11)
# Patience is for improvements by more than this share: a search does not go on for less.
_LEAST_SHARE = 1000
_ANY = 2**62


@compiled
def _limit(memory: Any, state: Any, more: int, slack: int) -> int:
    """The cost up to which a proposal is taken, -1 if it is not, whatever it costs.

    A chain that starts with a strategy that does not fit first goes down in memory, whatever the time.
    """
    if memory.limit >= 0:
        if state[MEMORY] > memory.limit:
            return _ANY if more <= 0 else -1
        if state[MEMORY] + more > memory.limit:
            return -1
    return int(state[COST] + slack)


@compiled
def take(memory: Any, state: Any, number: int, cost: int, assignment: Any, best: Any) -> None:
    """Makes a proposal the strategy, and the best one if it is; ``state[MORE]`` is by how many bytes it is larger."""
    state[COST] = cost
    state[MEMORY] += state[MORE]
    state[ACCEPTED] += 1
    if (memory.limit < 0 or state[MEMORY] <= memory.limit) and (cost < state[BEST] or not state[FEASIBLE]):
        if not state[FEASIBLE] or cost < state[MARK] - state[MARK] // _LEAST_SHARE:
            state[BEST_AT], state[MARK] = number, cost
        state[BEST], state[FEASIBLE] = cost, 1
        for op in range(len(assignment)):
            best[op] = assignment[op]


@compiled
def _next_proposal(
    net: Any,
    moves: Any,
    memory: Any,
    path: Any,
    work: Any,
    assignment: Any,
    sets: Any,
    choices: Any,
    slack: Any,
    state: Any,
) -> int:
    """Makes the next proposal that changes something and may be taken, the assignment; its number, -1 if none is left.

    ``state[LIMIT]`` is up to what cost it is taken, ``state[MORE]`` by how many bytes it is larger.
    """
    while state[NEXT] < len(sets):
        number = state[NEXT]
        state[NEXT] += 1
        more = apply(net, moves, memory, assignment, work, sets[number], choices[number])
        if work[MOVED] == 0:
            continue
        limit = _limit(memory, state, more, slack[number])
        if limit >= 0:
            state[LIMIT], state[MORE] = limit, more
            return int(number)
        restore(net, work, assignment, path)
    return -1


@compiled
def run_delta(
    net: Any,
    frame: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    rows: Any,
    routes: Any,
    moves: Any,
    memory: Any,
    room: int,
    assignment: Any,
    sets: Any,
    choices: Any,
    slack: Any,
    offset: int,
    state: Any,
    best: Any,
) -> bool:
    """Goes through proposals from ``state[NEXT]`` on, by delta simulation; False if the timeline needs more room first.

    Args:
        net: of the network.
        frame: of the classes.
        pool: the stages of paths.
        path: of each slot.
        work: the timeline, and room to work in.
        stages: the most of any path.
        rows: where each row of routes begins.
        routes: the path of each route.
        moves: see :class:`tensoropt.mcmc.moves.Moves`.
        memory: see :class:`tensoropt.mcmc.memory.Memory`.
        room: how many tasks a timeline may have before a change.
        assignment: the strategy; changed.
        sets: of the proposals: which operators change together.
        choices: of the proposals: of the first operator of each.
        slack: by how many ticks each may be slower.
        offset: the number of the first proposal.
        state: of the chain; ``state[EARLY]`` is 1 for simulations that end once they are beyond what is taken.
        best: the best strategy.
    """
    while work[TASKS] <= room:
        number = _next_proposal(net, moves, memory, path, work, assignment, sets, choices, slack, state)
        if number < 0:
            return True
        limit = state[LIMIT] if state[EARLY] else _ANY
        cost = change(net, frame, pool, path, work, stages, rows, routes, assignment, limit)
        if cost < 0 or cost > state[LIMIT]:
            restore(net, work, assignment, path)
            continue
        commit(pool, path, work, stages)
        take(memory, state, offset + number, cost, assignment, best)
    return False


@compiled
def run_full(
    net: Any,
    frame: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    rows: Any,
    routes: Any,
    moves: Any,
    memory: Any,
    room: int,
    assignment: Any,
    sets: Any,
    choices: Any,
    slack: Any,
    offset: int,
    state: Any,
    best: Any,
) -> bool:
    """The same with every proposal simulated from nothing: its task graph is made, then all tasks are simulated."""
    while work[TASKS] <= room:
        number = _next_proposal(net, moves, memory, path, work, assignment, sets, choices, slack, state)
        if number < 0:
            return True
        tasks = work[TASKS]
        possible = find_paths(net, rows, routes, assignment, path)
        cost = simulate(net, frame, pool, path, work, stages) if possible else -1
        if cost < 0 or cost > state[LIMIT]:
            restore(net, work, assignment, path)
            work[TASKS] = tasks
            continue
        take(memory, state, offset + number, cost, assignment, best)
    return False
