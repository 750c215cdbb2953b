"""Compiled Markov chains: proposals, their cost, and whether they are taken."""

from __future__ import annotations

from typing import Any

from numba import njit

from tensoropt.mcmc.blob import EDGE_FROM, EDGE_TO, IN_EDGE, IN_FIRST, OUT_EDGE, OUT_FIRST, TASKS
from tensoropt.mcmc.delta import change, commit, restore
from tensoropt.mcmc.kernels import find_paths, simulate

__all__ = ["memory_of", "run_delta", "run_full"]

# Entries of a chain's state, and of what it gives back.
NEXT, COST, BEST, BEST_AT, ACCEPTED, MEMORY, FEASIBLE, MARK = range(8)
# Patience is for improvements by more than this share: a search does not go on for less.
_LEAST_SHARE = 1000
_ANY = 2**62


@njit(cache=True, nogil=True)
def memory_of(memory: Any, assignment: Any) -> int:
    """Bytes of a strategy."""
    total = 0
    for op in range(len(assignment)):
        total += memory.node[memory.node_base[op] + assignment[op]]
    for edge in range(len(memory.edge_from)):
        total += _edge_bytes(memory, edge, assignment[memory.edge_from[edge]], assignment[memory.edge_to[edge]])
    return total


@njit(cache=True, nogil=True)
def _edge_bytes(memory: Any, edge: int, start: int, end: int) -> int:
    return int(memory.edge[memory.edge_base[edge] + start * memory.width[edge] + end])


@njit(cache=True, nogil=True)
def _more_memory(net: Any, memory: Any, assignment: Any, op: int, choice: int) -> int:
    """By how many bytes a change makes a strategy larger."""
    now = assignment[op]
    more = memory.node[memory.node_base[op] + choice] - memory.node[memory.node_base[op] + now]
    for some in range(net[net[IN_FIRST] + op], net[net[IN_FIRST] + op + 1]):
        edge = net[net[IN_EDGE] + some]
        other = assignment[net[net[EDGE_FROM] + edge]]
        more += _edge_bytes(memory, edge, other, choice) - _edge_bytes(memory, edge, other, now)
    for some in range(net[net[OUT_FIRST] + op], net[net[OUT_FIRST] + op + 1]):
        edge = net[net[OUT_EDGE] + some]
        other = assignment[net[net[EDGE_TO] + edge]]
        more += _edge_bytes(memory, edge, choice, other) - _edge_bytes(memory, edge, now, other)
    return int(more)


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _take(memory: Any, state: Any, number: int, cost: int, more: int, assignment: Any, best: Any) -> None:
    state[COST] = cost
    state[MEMORY] += more
    state[ACCEPTED] += 1
    if (memory.limit < 0 or state[MEMORY] <= memory.limit) and (cost < state[BEST] or not state[FEASIBLE]):
        if not state[FEASIBLE] or cost < state[MARK] - state[MARK] // _LEAST_SHARE:
            state[BEST_AT], state[MARK] = number, cost
        state[BEST], state[FEASIBLE] = cost, 1
        best[:] = assignment


@njit(cache=True, nogil=True)
def run_delta(
    net: Any,
    frame: Any,
    first: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    rows: Any,
    routes: Any,
    memory: Any,
    room: int,
    assignment: Any,
    operators: Any,
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
        first: where each path's stages begin.
        pool: ticks and signatures of stages.
        path: of each slot.
        work: the timeline, and room to work in.
        stages: the most of any path.
        rows: where each row of routes begins.
        routes: the path of each route.
        memory: see :class:`tensoropt.mcmc.memory.Memory`.
        room: how many tasks a timeline may have before a change.
        assignment: the strategy; changed.
        operators: of the proposals.
        choices: of the proposals.
        slack: by how many ticks each may be slower.
        offset: the number of the first proposal.
        state: of the chain.
        best: the best strategy.
    """
    while state[NEXT] < len(operators):
        if work[TASKS] > room:
            return False
        number = state[NEXT]
        state[NEXT] += 1
        op, choice = operators[number], choices[number]
        if choice == assignment[op]:
            continue
        more = _more_memory(net, memory, assignment, op, choice) if memory.limit >= 0 else 0
        limit = _limit(memory, state, more, slack[number])
        if limit < 0:
            continue
        cost = change(net, frame, first, pool, path, work, stages, rows, routes, assignment, op, choice, limit)
        if cost < 0:
            restore(work, path)
            continue
        commit(work)
        assignment[op] = choice
        _take(memory, state, offset + number, cost, more, assignment, best)
    return True


@njit(cache=True, nogil=True)
def run_full(
    net: Any,
    frame: Any,
    first: Any,
    pool: Any,
    path: Any,
    work: Any,
    stages: int,
    rows: Any,
    routes: Any,
    memory: Any,
    room: int,
    assignment: Any,
    operators: Any,
    choices: Any,
    slack: Any,
    offset: int,
    state: Any,
    best: Any,
) -> bool:
    """The same with every proposal simulated from nothing: its task graph is made, then all tasks are simulated."""
    while state[NEXT] < len(operators):
        if work[TASKS] > room:
            return False
        number = state[NEXT]
        state[NEXT] += 1
        op, choice = operators[number], choices[number]
        now = assignment[op]
        if choice == now:
            continue
        more = _more_memory(net, memory, assignment, op, choice) if memory.limit >= 0 else 0
        limit = _limit(memory, state, more, slack[number])
        if limit < 0:
            continue
        assignment[op] = choice
        find_paths(net, rows, routes, assignment, path)
        tasks = work[TASKS]
        cost = simulate(net, frame, first, pool, path, work, stages) if path.min() >= 0 else -1
        if cost < 0 or cost > limit:
            assignment[op] = now
            work[TASKS] = tasks
            continue
        _take(memory, state, offset + number, cost, more, assignment, best)
    return True
