"""Frontier tracking (TensorOpt, section 3): Algorithm 2, and what the paper leaves open in it."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.ft.bounds import Bounds
from tensoropt.ft.cost_graph import CostGraph, build_cost_graph
from tensoropt.ft.dominance import drop_dominated
from tensoropt.ft.elimination_order import Order, fewest_points_order, least_table_order
from tensoropt.ft.factors import EliminationState, Factor, TooLongError, choice, nothing, unit
from tensoropt.ft.linear import LinearGraph, eliminate_simple, first_operator, topological_rank
from tensoropt.ft.origin import unroll
from tensoropt.ft.reduction import reduce_problem
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.problem.frontier_tables import FrontierTable
from tensoropt.problem.problem import FloatArray, IntArray, Problem
from tensoropt.problem.units import coarsest_step
from tensoropt.storage.document import quoted

__all__ = ["MAX_JOINT_CONFIGURATIONS", "METHODS", "cost_graph_of", "track_frontier"]

METHODS = ("ldp", "elimination")

MAX_JOINT_CONFIGURATIONS = 1 << 25
"""The largest elimination that is done as a whole: joint configurations of a variable and its neighbours.

33 million take some ten seconds and, at one point each in the result, up to a gigabyte. Four variables of 76
configurations are just below."""

BOUND_FROM = 1_000_000
"""Candidates of what is left to do, as tables are now, from which bounds are worked out."""

SHORT = 20_000_000
"""Candidates after which what seemed short is begun again with bounds."""

COMPARE_FROM = 1 << 20
"""Joint configurations of the largest elimination that bounds left, from which configurations are compared with one
another."""

LEAVE_FROM = 20_000
"""Candidates of one elimination from which it waits for the bounds."""

ROUNDS = ((16, 1),)
"""How often bounds are worked out, each time on what the last ones left: pairs of weights, and configurations per
variable and pair of weights that the narrow pass takes."""

ROUNDS_OF_ONE_COST = ((2, 1), (2, 4), (2, 16))
"""The rounds where only time, or only memory, counts. Frontiers are single points then, narrow passes take little, and
often only a wider pass finds what makes the exact search short.
"""

LONGEST = 500_000_000
"""Candidates after which the exact search is given up where heuristics are allowed: some ten seconds."""

NARROW_LONGEST = 100_000_000
"""Candidates after which the narrow search is given up."""

NARROWER = (24, 7)
"""Where it is too long, it is tried again with the configurations of so many strategies of the hull only,
and at last with those of one after the other."""

NARROW_EPSILON = 0.02
"""How far the narrow pass thins. What it finds is close to the frontier either way."""

FEW_STEPS = 20_000
"""So many steps of the grid of costs between the ends of the hull bound the points of a frontier well enough that the
narrow pass need not thin."""


@dataclass(frozen=True, slots=True)
class _Options:
    method: str
    heuristics: bool
    limit: int
    epsilon: float
    longest: float
    steps: tuple[float, float]


def track_frontier(
    problem: Problem,
    *,
    method: str = "ldp",
    heuristics: bool = True,
    epsilon: float = 0.0,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    max_joint_configurations: int = MAX_JOINT_CONFIGURATIONS,
    longest: float | None = None,
) -> Frontier:
    """All strategies of which none beats another in both time and memory (Algorithm 2).

    Initialization, elimination until the marked linear graph is left, LDP on it, unrolling. Where node and edge
    elimination end before the graph is linear, variables are merged with their neighbours in the order of fewest points
    (branch elimination), or in that of least tables where that would make too large a one. If both do, the variable
    with the most neighbours is fixed (heuristic elimination, the result is not exact) or, with ``heuristics=False``,
    conditioned on: the rest is solved for each of its configurations, which is exact on any graph.

    Where much is left to do, bounds from message passing say which configurations and partial points can still end
    on the frontier. If even so an elimination would take too long and heuristics are allowed, the result is what a
    narrow search found that the bounds started from (``narrow``; not exact).

    The result does not depend on the number of threads.

    Args:
        problem: tables of costs.
        method: ``ldp``, or ``elimination`` for FT-Elimination: node by node down to two.
        heuristics: whether heuristic elimination, or a narrow search, is allowed.
        epsilon: for every strategy there is a point with at most ``1 + epsilon`` times its time and at most
            its memory. 0.0 for the exact frontier.
        threads: threads to share the work among; by default one per processor.
        progress: called with (variables decided, variables) as the search goes on.
        max_joint_configurations: what is too large a table.
        longest: candidates after which the exact search is given up where heuristics are allowed; by default those of
            some ten seconds.

    Returns:
        the frontier; ``exact`` says whether it is, ``eliminations`` what was done.

    Raises:
        ProblemError: an option is out of range.
        InfeasibleError: no strategy has a finite cost; the message names the nodes that cannot stand
            together.
    """
    _check(method, epsilon, threads, max_joint_configurations)
    began = time.perf_counter()
    workers = threads if threads is not None else os.cpu_count() or 1
    steps = (
        coarsest_step((*problem.node_time_s, *problem.edge_time_s), problem.time_unit_s),
        coarsest_step((*problem.node_memory_bytes, *problem.edge_memory_bytes), problem.memory_unit_bytes),
    )
    options = _Options(
        method, heuristics, max_joint_configurations, epsilon, LONGEST if longest is None else longest, steps
    )
    with ThreadPoolExecutor(workers) if workers > 1 else nullcontext() as pool:
        graph = cost_graph_of(problem, pool, exact=epsilon == 0.0, progress=progress)
        state = graph.state
        result = _solve(graph, options)
    if result.table.points == 0:
        names = ", ".join(quoted(name) for v in state.conflict for name in state.names[v])
        raise InfeasibleError(
            f"Problem nodes {names}: some strategy must have a finite cost, but their configurations are "
            "impossible together. Allow more configurations there."
        )
    assignments, alternatives = unroll(
        result.origin, np.arange(result.table.points), problem.nodes, problem.nodes + len(problem.edges)
    )
    return frontier_of(
        problem,
        assignments,
        alternatives,
        exact=state.exact,
        eliminations=state.steps,
        seconds=time.perf_counter() - began,
    )


def cost_graph_of(
    problem: Problem,
    pool: ThreadPoolExecutor | None = None,
    *,
    exact: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> CostGraph:
    """The graph of a problem without what is impossible, before anything is eliminated.

    Args:
        problem: tables of costs.
        pool: threads to share the work among.
        exact: whether the result is to be.
        progress: see :func:`track_frontier`.
    """
    reduced = reduce_problem(problem)
    variable = {node: v for v, nodes in enumerate(reduced.members) for node in nodes}
    state = EliminationState(
        names=tuple(tuple(problem.names[i] for i in nodes) for nodes in reduced.members),
        rank=topological_rank(len(reduced.members), [(variable[u], variable[v]) for u, v in problem.edges.tolist()]),
        ratio=0.0,
        pool=pool,
        exact=exact,
        progress=progress,
    )
    return build_cost_graph(problem, reduced, state)


def _check(method: Any, epsilon: Any, threads: Any, limit: Any) -> None:
    if method not in METHODS:
        raise ProblemError(
            f"track_frontier method: must be one of {', '.join(map(repr, METHODS))}, got {method!r}. Choose one."
        )
    if not (isinstance(epsilon, int | float | np.integer | np.floating) and 0.0 <= epsilon < math.inf):
        raise ProblemError(
            f"track_frontier epsilon: must be >= 0 and finite, got {epsilon!r}. Give the relative error allowed."
        )
    if threads is not None and not (isinstance(threads, int | np.integer) and threads >= 1):
        raise ProblemError(
            f"track_frontier threads: must be >= 1, got {threads!r}. Leave it out for one per processor."
        )
    if not (isinstance(limit, int | np.integer) and limit >= 1):
        raise ProblemError(
            f"track_frontier max_joint_configurations: must be >= 1, got {limit!r}. Leave it out for the default."
        )


def _solve(graph: CostGraph, options: _Options) -> Factor:
    """The frontier of a graph, part by part."""
    parts = graph.components()
    solved = [_solve_part(graph.part(variables), options) for variables in parts]
    decided = [graph.merged(())] if any(not factor.scope for factor in graph.factors()) else []
    # Small ones first, so that the long products come last.
    first, *others = sorted([*decided, *solved], key=lambda f: f.table.points) or [unit()]
    result = first
    for factor in others:
        result = graph.state.join(result, factor, (), (), {})
    if len(parts) > 1:
        graph.state.record("product", [variables[0] for variables in parts])
    return result


def _solve_part(graph: CostGraph, options: _Options) -> Factor:
    """The frontier of a connected graph."""
    if options.method == "ldp":
        line = LinearGraph(graph)

        def marked() -> list[int]:
            line.extend()
            return line.marked

        eliminate_simple(graph, marked, LEAVE_FROM)
        if len(line.marked) == len(graph.sizes):
            return _finish(graph, line.marked, "ldp", options)
    else:
        first = first_operator(graph)
        last = max(graph.sizes, key=lambda v: graph.state.rank[v])
        ends = [first, last]
        eliminate_simple(graph, lambda: ends, LEAVE_FROM)
        if len(graph.sizes) <= 2:
            return _finish(graph, sorted(graph.sizes, key=lambda v: graph.state.rank[v]), "final", options)
    return _finish(graph, None, "branch", options)


def _finish(graph: CostGraph, order: list[int] | None, kind: str, options: _Options) -> Factor:
    """Eliminates all variables, in the given order or that of fewest points.

    If that takes long, bounds are worked out: a narrow pass finds strategies, then the exact one goes on without
    what those beat.
    """
    if not _is_long(graph):
        short = _try_short(graph, order, kind, options)
        if short is not None:
            return short
    epsilon = math.expm1(math.log1p(options.epsilon) / 2)
    known: list[Factor] = []
    one_cost = any(not any(costs(f).any() for f in graph.factors()) for costs in (_times, _memories))
    planned: Order | None = None
    for weights, near in ROUNDS_OF_ONE_COST if one_cost else ROUNDS:
        bounds = Bounds.of(graph, epsilon, weights, options.steps)
        if bounds is None:
            break
        # The narrow pass thins, so the fastest and the smallest strategy come from message passing itself.
        known.append(bounds.hull(graph))
        thin = 0.0 if _steps_between(known[-1].table, options.steps) < FEW_STEPS else NARROW_EPSILON
        narrow = _narrow_enough(graph, bounds, order, near, thin, min(NARROW_LONGEST, options.longest))
        if narrow is not None:
            known.append(narrow)
        known = [choice(known)]
        # Where points may go for others that are almost as good, these have to be in the result.
        table = known[0].table
        bounds.learn(table.time_s, table.memory_bytes, only=options.epsilon > 0.0)
        if not bounds.gap and (options.epsilon > 0.0 or any(options.steps)):
            return known[0]
        alive = bounds.alive()
        if not all(map(len, alive.values())):
            return known[0]
        before = sum(graph.sizes.values())
        left = graph.restricted(alive, graph.state, bounds.restricted(alive))
        expected = planned = fewest_points_order(left)
        if expected.largest >= COMPARE_FROM:
            # Beside what is left of its neighbours, a configuration is more often dominated than beside all there was.
            drop_dominated(alive, [(f.scope, f.table) for f in graph.factors() if f.scope for _ in range(f.copies)])
            left = graph.restricted(alive, graph.state, bounds.restricted(alive))
            planned = None
        graph = left
        helped = one_cost or sum(graph.sizes.values()) <= before * 0.9
        if not helped or not _is_long(graph, expected):
            break
    longest = options.longest if options.heuristics else math.inf
    whole = graph if known else graph.copy()
    steps = len(graph.state.steps)
    # Every variable is eliminated, and its result thinned, once.
    with graph.state.within(math.expm1(math.log1p(epsilon) / len(graph.sizes)), longest):
        try:
            result = _eliminate_all(graph, order, kind, options, planned=planned)
        except TooLongError:
            del graph.state.steps[steps:]
            if not known:
                with whole.state.within(0.0, math.inf):
                    return _fix(whole, options)
            graph.state.exact = False
            graph.state.record("narrow", sorted(graph.sizes))
            return choice(known)
    # What only equals a known strategy may be missing.
    return choice([result, *known])


def _try_short(graph: CostGraph, order: list[int] | None, kind: str, options: _Options) -> Factor | None:
    """The frontier without bounds; None if it takes longer than it seemed. Then products that were made are kept."""
    if not _can_be_bounded(graph):
        return _eliminate_all(graph, order, kind, options)
    state = graph.state
    steps, exact = len(state.steps), state.exact
    try:
        with state.within(state.ratio, min(SHORT, options.longest) if options.heuristics else SHORT):
            return _eliminate_all(graph.copy(), order, kind, options, fix=True)
    except TooLongError:
        del state.steps[steps:]
        state.exact = exact
        return None


def _can_be_bounded(graph: CostGraph) -> bool:
    """Tells whether message passing applies: two or more variables, and tables over at most two of them each."""
    return len(graph.sizes) >= 2 and all(len(f.scope) <= 2 for f in graph.factors())


def _is_long(graph: CostGraph, order: Order | None = None) -> bool:
    """Tells whether bounds pay off for a graph eliminated in ``order``; by default, the order of fewest points."""
    if not _can_be_bounded(graph):
        return False
    # Every point is looked at once at least.
    if sum(factor.copies * factor.table.points for factor in graph.factors()) >= BOUND_FROM:
        return True
    return (order or fewest_points_order(graph)).candidates >= BOUND_FROM


def _times(factor: Factor) -> FloatArray:
    return factor.table.time_s


def _memories(factor: Factor) -> FloatArray:
    return factor.table.memory_bytes


def _steps_between(table: FrontierTable, steps: tuple[float, float]) -> float:
    """Into how many steps the ends of a frontier are apart, in the cost of which it is fewer."""
    apart = np.ptp(table.time_s), np.ptp(table.memory_bytes)
    return min(float(length / step) if step > 0.0 else math.inf for length, step in zip(apart, steps, strict=True))


def _narrow_enough(
    graph: CostGraph, bounds: Bounds, order: list[int] | None, count: int, thin: float, longest: float
) -> Factor | None:
    """Strategies near the frontier; None if even the narrowest search is too long."""
    first = bounds.near(count)
    for epsilon in sorted({thin, NARROW_EPSILON}):
        found = _narrow(graph, bounds, order, first, epsilon, longest)
        if found is not None:
            return found
    for several in NARROWER:
        found = _narrow(graph, bounds, order, bounds.near(0, slice(several)), NARROW_EPSILON, longest)
        if found is not None:
            return found
    singles = []
    for number in range(bounds.strategies):
        found = _narrow(graph, bounds, order, bounds.near(0, slice(number, number + 1)), NARROW_EPSILON, longest)
        if found is not None:
            singles.append(found)
    return choice(singles) if singles else None


def _narrow(
    graph: CostGraph, bounds: Bounds, order: list[int] | None, near: dict[int, IntArray], epsilon: float, longest: float
) -> Factor | None:
    """Strategies of some configurations, thinned; None if that is too long."""
    ratio = math.expm1(math.log1p(epsilon) / len(graph.sizes))
    state = dataclasses.replace(graph.state, steps=[], progress=None, ratio=ratio, left=longest)
    try:
        quick = graph.restricted(near, state, bounds.relaxed(epsilon).restricted(near))
        for v in fewest_points_order(quick).variables if order is None else order:
            quick.eliminate(v, "narrow")
    except TooLongError:
        return None
    return quick.merged(())


def _eliminate_all(
    graph: CostGraph,
    order: list[int] | None,
    kind: str,
    options: _Options,
    *,
    planned: Order | None = None,
    fix: bool = False,
) -> Factor:
    """Eliminates in the given order, or in that of fewest points, which may have been worked out before."""
    if order is None:
        order, largest, _ = planned or fewest_points_order(graph)
        if largest > options.limit:
            order, largest = least_table_order(graph)
        if largest > options.limit:
            if graph.state.left < math.inf and not fix:
                raise TooLongError(largest)
            with graph.state.within(0.0, graph.state.left):
                return _fix(graph, options)
    for v in order:
        made = graph.eliminate(v, _kind(graph, v, kind))
        if graph.limits is not None and made.table.points == 0:
            return nothing()  # that beats what is known
    return graph.merged(())


def _kind(graph: CostGraph, variable: int, kind: str) -> str:
    return "node" if kind == "branch" and len(graph.neighbours(variable)) <= 2 else kind


def _fix(graph: CostGraph, options: _Options) -> Factor:
    """Decides the variable with the most neighbours ahead of the others: by heuristic, or one way after
    another."""
    state = graph.state
    hub = max(graph.sizes, key=lambda v: (len(graph.neighbours(v)), graph.sizes[v], -state.rank[v]))
    near = graph.neighbours(hub)
    if options.heuristics:
        state.exact = False
        for configuration in _preference(graph, hub):
            state.record("heuristic", (hub,), near, configuration)
            result = _solve(graph.fixed(hub, configuration), options)
            if result.table.points:
                break
        return result
    state.record("condition", (hub,), near)
    return choice([_solve(graph.fixed(hub, k), options) for k in range(graph.sizes[hub])])


def _preference(graph: CostGraph, variable: int) -> list[int]:
    """A variable's configurations, best first: time plus memory at best, each relative to the least there
    is."""
    least = [np.zeros(graph.sizes[variable]), np.zeros(graph.sizes[variable])]
    for factor in graph.around(variable):
        axis = factor.scope.index(variable)
        for which, costs in enumerate((factor.table.time_s, factor.table.memory_bytes)):
            cells = _cell_minima(factor.table.offsets, costs).reshape(factor.table.shape)
            least[which] = least[which] + np.moveaxis(cells, axis, 0).reshape(len(least[which]), -1).min(axis=1)
    score = np.zeros(graph.sizes[variable])
    for costs in least:
        low = costs.min()
        score = score + (costs / low if 0.0 < low < math.inf else costs)
    return np.argsort(score, kind="stable").tolist()


def _cell_minima(offsets: IntArray, costs: FloatArray) -> FloatArray:
    minima = np.full(len(offsets) - 1, np.inf)
    full = np.diff(offsets) > 0
    if full.any():
        minima[full] = np.minimum.reduceat(costs, offsets[:-1][full])
    return minima
