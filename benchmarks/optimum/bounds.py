"""Bounds of the makespan that add up over operators, and the mean of them that bounds best."""

from __future__ import annotations

import numpy as np

from benchmarks.optimum.bound_tables import BoundTables, bound_tables, joined
from benchmarks.optimum.critical_chain import longest_chain, waiting_slots
from benchmarks.optimum.relaxation import Relaxation
from tensoropt.errors import ProblemError
from tensoropt.mcmc.moves import Moves
from tensoropt.problem.problem import FloatArray
from tensoropt.simulate import Network
from tensoropt.simulate.full_simulation import find_paths
from tensoropt.space.work import Ints

__all__ = ["best_bounds"]

_ROUNDS = 100
_KEPT = 6
_RATE = 0.3


def best_bounds(network: Network, moves: Moves, start: Ints) -> Relaxation:
    """Bounds of all strategies, each the mean of several.

    No schedule is shorter than what one kind of resource has to do; nor than what one does before a task that waits for
    it, that task, and what it does after, and so on for chains of tasks (`benchmarks.optimum.critical_chain`). Each of
    these adds up over operators and edges, and so does a mean of some. Which mean is best is found as in a game: the
    strategy that is best by the mean so far shows which bounds to give more weight, and a chain along which it takes
    long.

    Args:
        network: the tasks.
        moves: operators that decide.
        start: ``(N,)``, a good strategy.

    Raises:
        ProblemError: operators may be placed, or are too entangled.
    """
    network.add_all_rows()
    if network.placed_axes():
        raise ProblemError(
            f"Optimum: some operators may be placed along mesh axes {network.placed_axes()}, where devices do not "
            "all do the same. Use a space without placements."
        )
    kinds = 1 + len(network.levels)
    after = waiting_slots(network)
    known: dict[int, Ints] = {}
    path = np.zeros(network.slots, np.int64)

    def load_of(assignment: Ints) -> FloatArray:
        find_paths(network.graph, assignment, path)
        for number in np.unique(path).tolist():
            if number not in known:
                known[number] = network.load(number)
        return np.array([known[number] for number in path.tolist()], np.float64).reshape(-1, kinds)

    def chains(load: FloatArray) -> FloatArray:
        found = []
        for kind in range(kinds):
            if load[:, kind].any():
                weight, _ = longest_chain(after, load[:, kind], load.sum(axis=1))
                found.append(np.where(weight[:, None] == 2, 1.0, (weight[:, None] == 1) * np.eye(kinds)[kind]))
        return np.stack(found, axis=1) if found else np.zeros((network.slots, 0, kinds))

    alone = np.tile(np.eye(kinds), (network.slots, 1, 1))
    parts = np.concatenate([alone, chains(load_of(start))], axis=1)
    tables = bound_tables(network, moves, parts)
    weights = np.full(parts.shape[1], 1.0 / parts.shape[1])
    means: list[tuple[float, FloatArray]] = []
    for turn in range(_ROUNDS):
        relaxed = Relaxation.of(_mean(tables, weights[:, None]))
        means.append((float(relaxed.least()[0]), weights))
        load = load_of(moves.assignment(relaxed.best()))
        new = chains(load)
        each = np.einsum("sfk,sk->f", parts, load)
        fresh = np.einsum("sfk,sk->f", new, load)
        longer = fresh > each.max() * (1 + 1e-9)
        if longer.any():
            parts = np.concatenate([parts, new[:, longer]], axis=1)
            tables = joined(tables, bound_tables(network, moves, new[:, longer]))
            each = np.concatenate([each, fresh[longer]])
            weights = np.concatenate([weights * 0.9, np.full(int(longer.sum()), 0.1 / longer.sum())])
        scale = max(float(each.max()), 1.0)
        gain = _RATE / np.sqrt(1 + turn / 10) * (each - each.max()) / scale * 100
        weights = weights * np.exp(gain)
        weights /= weights.sum()
    means.sort(key=lambda pair: -pair[0])
    chosen = list(np.eye(parts.shape[1])[::-1])
    chosen += [np.pad(weights, (0, parts.shape[1] - len(weights))) for _, weights in means[:_KEPT]]
    return Relaxation.of(_mean(tables, np.stack(chosen[::-1], axis=1)))


def _mean(tables: BoundTables, weights: FloatArray) -> BoundTables:
    """Means of bounds, ``(bounds, W)`` weights of each."""
    return [table @ weights for table in tables[0]], {ends: table @ weights for ends, table in tables[1].items()}
