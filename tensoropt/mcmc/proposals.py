"""Compiled Markov chains: proposals, their cost, and whether they are taken."""

from __future__ import annotations

from tensoropt.mcmc.integer_sums import Sums, change_of
from tensoropt.mcmc.memory_limit import Memory
from tensoropt.mcmc.moves import MoveSets
from tensoropt.simulate.changes import begin_change, move, undo
from tensoropt.simulate.compiled import compiled, inlined
from tensoropt.simulate.delta_simulation import commit, simulate_delta
from tensoropt.simulate.full_simulation import find_paths, simulate_full
from tensoropt.simulate.simulation_state import DeviceClasses, Graph, Records, State, record
from tensoropt.space.work import Ints

__all__ = ["PROGRESS", "PROPOSAL", "run_additive", "run_delta", "run_full", "take"]

PROPOSAL = record("set choice slack")
"""Which operators change together, the new configuration of the first one, and by how many ticks it may be slower."""

PROGRESS = record("next early cost bytes accepted feasible best best_at noted limit more")
"""Of a chain: the place of the next proposal in its batch; whether simulations end once they are beyond what is taken;
ticks and bytes of the strategy; how many proposals were taken; whether a strategy was seen that fits; the ticks of the
best that does, the number of the last proposal that made it much better, and the ticks then; up to how many ticks the
present proposal is taken, and how many bytes more it holds."""

# Patience is for improvements by more than this share: a search does not go on for less.
_LEAST_SHARE = 1000
_ANY = 2**62


@inlined
def _limit(memory: Memory, chain: Records, more: int, slack: int) -> int:
    """The cost up to which a proposal is taken, -1 if it is not, whatever it costs.

    A chain that starts with a strategy that does not fit first goes down in memory, whatever the time.
    """
    if memory.limit >= 0:
        if chain[0].bytes > memory.limit:
            return _ANY if more <= 0 else -1
        if chain[0].bytes + more > memory.limit:
            return -1
    return int(chain[0].cost + slack)


@compiled
def take(memory: Memory, chain: Records, number: int, cost: int, assignment: Ints, best: Ints) -> None:
    """Makes a proposal the strategy, and the best one if it is: of equal ones the first stays the best."""
    now = chain[0]
    now.cost = cost
    now.bytes += now.more
    now.accepted += 1
    if (memory.limit < 0 or now.bytes <= memory.limit) and (cost < now.best or not now.feasible):
        if not now.feasible or cost < now.noted - now.noted // _LEAST_SHARE:
            now.best_at, now.noted = number, cost
        now.best, now.feasible = cost, 1
        for op in range(len(assignment)):
            best[op] = assignment[op]


@inlined
def _next_proposal(
    graph: Graph, state: State, moves: MoveSets, memory: Memory, proposals: Records, chain: Records
) -> int:
    """Applies the next proposal that changes something and may be taken; its number, -1 if none is left."""
    now = chain[0]
    while now.next < len(proposals):
        number, proposal = now.next, proposals[now.next]
        now.next += 1
        now.more = 0
        begin_change(state)
        for place in range(moves.first[proposal.set], moves.first[proposal.set + 1]):
            op, new = moves.operator[place], moves.choice[moves.table[place] + proposal.choice]
            if state.assignment[op] != new:
                if memory.limit >= 0:
                    now.more += change_of(memory.held, state.assignment, op, new)[0]
                move(state, op, new)
        if state.progress[0].moved == 0:
            continue
        now.limit = _limit(memory, chain, now.more, proposal.slack)
        if now.limit >= 0:
            return int(number)
        undo(graph, state)
    return -1


@compiled
def run_delta(
    graph: Graph,
    devices: DeviceClasses,
    state: State,
    moves: MoveSets,
    memory: Memory,
    room: int,
    proposals: Records,
    made: int,
    chain: Records,
    best: Ints,
) -> bool:
    """Makes proposals from ``chain[0].next`` on, by delta simulation; False if the timeline needs more room first.

    Args:
        graph: of all strategies, with the rows of routes that proposals need.
        devices: that are told apart.
        state: the strategy and its timeline; changed.
        moves: which operators change together.
        memory: the limit.
        room: how many tasks a timeline may have before a change.
        proposals: ``(K,)`` of ``PROPOSAL``.
        made: how many proposals were made before these.
        chain: ``(1,)`` of ``PROGRESS``; changed.
        best: ``(N,)``, the best strategy; changed.
    """
    now = chain[0]
    while state.progress[0].tasks <= room:
        number = _next_proposal(graph, state, moves, memory, proposals, chain)
        if number < 0:
            return True
        cost = simulate_delta(graph, devices, state, now.limit if now.early else _ANY)
        if cost < 0 or cost > now.limit:
            undo(graph, state)
            continue
        commit(graph, state)
        take(memory, chain, made + number, cost, state.assignment, best)
    return False


@compiled
def run_full(
    graph: Graph,
    devices: DeviceClasses,
    state: State,
    moves: MoveSets,
    memory: Memory,
    room: int,
    proposals: Records,
    made: int,
    chain: Records,
    best: Ints,
) -> bool:
    """Tries proposals with full simulations: the task graph of each is made, then all its tasks are simulated."""
    progress = state.progress[0]
    while progress.tasks <= room:
        number = _next_proposal(graph, state, moves, memory, proposals, chain)
        if number < 0:
            return True
        tasks = progress.tasks
        possible = find_paths(graph, state.assignment, state.path)
        cost = simulate_full(graph, devices, state) if possible else -1
        if cost < 0 or cost > chain[0].limit:
            undo(graph, state)
            progress.tasks = tasks
            continue
        take(memory, chain, made + number, cost, state.assignment, best)
    return False


@compiled
def run_additive(
    costs: Sums,
    moves: MoveSets,
    memory: Memory,
    proposals: Records,
    made: int,
    assignment: Ints,
    before: Ints,
    chain: Records,
    best: Ints,
) -> None:
    """Goes through proposals whose cost is a sum: of a move, only what changes is added up.

    Args:
        costs: ticks.
        moves: which operators change together.
        memory: the limit.
        proposals: ``(K,)`` of ``PROPOSAL``.
        made: how many proposals were made before these.
        assignment: ``(N,)``, the strategy; changed.
        before: ``(N,)``, room for the configurations that operators had.
        chain: ``(1,)`` of ``PROGRESS``; changed.
        best: ``(N,)``, the best strategy; changed.
    """
    now = chain[0]
    for number in range(len(proposals)):
        proposal = proposals[number]
        first, end = moves.first[proposal.set], moves.first[proposal.set + 1]
        slower = impossible = moved = 0
        for place in range(first, end):
            op, new = moves.operator[place], moves.choice[moves.table[place] + proposal.choice]
            before[place - first] = assignment[op]
            if assignment[op] != new:
                ticks, pairs = change_of(costs, assignment, op, new)
                slower += ticks
                impossible += pairs
                assignment[op] = new
                moved += 1
        if moved == 0:
            continue
        down = memory.limit >= 0 and now.bytes > memory.limit  # in memory first, whatever the time
        wanted = impossible == 0 and (down or slower <= proposal.slack)
        now.more = 0
        for place in range(first, end):
            op, old = moves.operator[place], before[place - first]
            # Few are wanted, so their bytes are added up on the way back.
            if wanted and memory.limit >= 0 and assignment[op] != old:
                now.more -= change_of(memory.held, assignment, op, old)[0]
            assignment[op] = old
        if wanted and now.cost + slower <= _limit(memory, chain, now.more, proposal.slack):
            for place in range(first, end):
                assignment[moves.operator[place]] = moves.choice[moves.table[place] + proposal.choice]
            take(memory, chain, made + number, now.cost + slower, assignment, best)
