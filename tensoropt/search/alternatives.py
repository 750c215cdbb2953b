"""Alternatives to a plan: second-best splits of its layers, and known layouts, with their costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tensoropt.errors import PlanError, TensorOptError
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.plan.summary import PlanSummary, split_text
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.frontier import FrontierPoint
from tensoropt.problem.problem import IntArray, Problem
from tensoropt.search.columns import best_within
from tensoropt.search.explanation import Explanation, Rival, RunnerUp, differing_text
from tensoropt.search.finding import Found
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import get_finder
from tensoropt.space.dimensions import words_of
from tensoropt.space.followers import follow
from tensoropt.space.repeated_cells import repeated_cells, with_repeated_cells
from tensoropt.space.space import SearchSpace
from tensoropt.stages import doing

__all__ = ["RIVALS", "WEIGHS_MEMORY", "explained", "runner_up"]

RIVALS = ("data_parallel", "megatron", "zero2", "zero3")
"""The layouts that people know."""

WEIGHS_MEMORY = ("mini_memory", "turning_point", "frontier_point")
"""Options by which a plan is chosen for its memory, too."""

_WHOLE = 1000
"""Operators up to which runner-ups are searched over all operators; beyond, over those that decide."""

_AS_GOOD = 1e-6


def explained(plan: Plan, space: SearchSpace, find: Callable[[str], Found] | None = None) -> Explanation:
    """A plan explained, with all that needs its model.

    Second-best strategies are those that the plan's option could have chosen: they keep to its memory limit, or, for an
    option that weighs memory itself (:data:`WEIGHS_MEMORY`), take no more than the plan. All are compared with the plan
    as the space's costs have it, which may have been measured again since.

    Args:
        plan: of the space.
        space: of all strategies of its model on its cluster.
        find: what gives a baseline's strategies; by default in the space.

    Raises:
        PlanError: the plan says nothing of its operators.
    """
    limit = _limit(plan)
    explanation = Explanation.of(plan)
    found = find or (lambda name: get_finder(name).find(space, limit))
    try:
        assignment, alternatives = space.strategy_of(plan)
    except PlanError:
        mine = PlanSummary(plan)
        missing = "the plan has configurations that the searched space has not, such as operators on some devices only"
        explanation = dataclasses.replace(explanation, missing=missing)
    else:
        mine = PlanSummary(space.plan(assignment.tolist(), plan.option, alternatives=alternatives, peak=False))
        runner_ups = tuple(_runner_ups(mine, space, _chooses_within(plan, limit), assignment.tolist()))
        explanation = dataclasses.replace(explanation, runner_ups=runner_ups, missing=None)
    rivals = tuple(_rival(name, mine, space, found, limit) for name in RIVALS)
    return dataclasses.replace(explanation, rivals=rivals)


def runner_up(
    space: SearchSpace,
    name: str,
    configuration: Configuration,
    limit: MemoryLimit,
    near: Sequence[int] | None = None,
) -> FrontierPoint | None:
    """The fastest strategy that fits in which an operator is not split as it is now.

    Configurations count as the same that cut every iteration axis into as many pieces: they read the same, whichever
    mesh axes they take. Where the limit binds, the result is exact for small models only (:func:`best_within`).

    Args:
        space: of all strategies.
        name: of the operator.
        configuration: that it has now.
        limit: what a device may hold.
        near: the strategy that it has it in.

    Returns:
        None if there is none.
    """
    cuts = _cuts(space, configuration)
    same = [_cuts(space, other) == cuts for other in space.choices(name)]
    if all(same):
        return None
    place = next(number for number, op in enumerate(space.operators) if op.name == name)
    problem = _forbidden(space.kept(with_repeated_cells), place, np.flatnonzero(same))
    if len(space.operators) <= _WHOLE:
        found = best_within(problem, limit.limit_bytes, near)
    else:
        leaders, index = space.kept(follow)
        whole = dataclasses.replace(problem, groups=None)
        deciding = Contraction(whole, space.kept(repeated_cells)[leaders], index)
        start = None if near is None else deciding.deciding(near)
        inner = best_within(deciding.problem, limit.limit_bytes, start)
        found = None if inner is None else deciding.expand(inner)
    return None if found is None else found.point(0)


def _runner_ups(mine: PlanSummary, space: SearchSpace, limit: MemoryLimit, near: Sequence[int]) -> Iterator[RunnerUp]:
    """Yields the second-best split of each layer that is split; equal layers count as one."""
    groups = mine.layer_groups()
    for number, group in enumerate(groups, 1):
        doing(f"{number} of {len(groups)} layers")
        name = mine.principal(group[0].name)
        if name is None or not set(mine.configuration(name).actions) - {None}:
            continue
        layers, words = tuple(layer.name for layer in group), space.kept(words_of)[name]
        split = split_text(mine.configuration(name), words, space.mesh)
        point = runner_up(space, name, mine.configuration(name), limit, near)
        if point is None:
            yield RunnerUp(layers, name, split, None, None, None, None, "no other strategy takes as little memory")
            continue
        other = PlanSummary(space.plan(point.assignment, "runner-up", alternatives=point.alternatives, peak=False))
        instead = split_text(other.configuration(name), words, space.mesh)
        plan, lost_s = other.plan, other.plan.time_s - mine.plan.time_s
        parts = differing_text(mine, other)
        why = parts if lost_s >= 0 else f"{_verdict(mine, other)}: {parts}"
        yield RunnerUp(layers, name, split, instead, plan.time_s, lost_s, plan.memory_bytes, why)


def _rival(name: str, mine: PlanSummary, space: SearchSpace, find: Callable[[str], Found], limit: MemoryLimit) -> Rival:
    try:
        found = find(name)
        point = found.fastest(limit)
    except TensorOptError as error:
        reason = str(error).removeprefix(f"baseline {name!r}: ")
        return Rival(name, None, None, None, reason)
    plan = found.space.plan(point.assignment, name, alternatives=point.alternatives, peak=False)
    fits = found.fullest_bytes(point) <= limit.limit_bytes
    return Rival(name, plan.time_s, plan.memory_bytes, fits, _why(mine, PlanSummary(plan), fits))


def _why(mine: PlanSummary, other: PlanSummary, fits: bool) -> str:
    """Returns the reason why a layout loses to a plan, in a sentence."""
    misfit = "" if fits else ", and does not fit"
    parts = differing_text(mine, other)
    return f"{_verdict(mine, other)}{misfit}" + ("" if parts == "the same" else f": {parts}")


def _verdict(mine: PlanSummary, other: PlanSummary) -> str:
    """Returns how another plan's time compares, and its memory if it is faster."""
    one, two = mine.plan, other.plan
    if abs(two.time_s - one.time_s) <= _AS_GOOD * one.time_s:
        return "as fast"
    if two.time_s > one.time_s:
        return f"{two.time_s / one.time_s:.3g} times slower"
    more = two.memory_bytes / one.memory_bytes
    memory = f"{more:.3g} times the memory" if more > 1 + _AS_GOOD else "no more memory"
    return f"{one.time_s / two.time_s:.3g} times faster with {memory}"


def _chooses_within(plan: Plan, limit: MemoryLimit) -> MemoryLimit:
    """Returns the memory limit of strategies that may be chosen in a plan's place."""
    if plan.option not in WEIGHS_MEMORY:
        return limit
    return MemoryLimit(min(limit.limit_bytes, plan.memory_bytes * (1 + _AS_GOOD)), "the plan's own")


def _limit(plan: Plan) -> MemoryLimit:
    noted = plan.notes.get("memory_limit_bytes")
    if isinstance(noted, int | float) and not isinstance(noted, bool):
        return MemoryLimit(float(noted), "the plan's")
    return MemoryLimit(float("inf"), "no limit")


def _cuts(space: SearchSpace, configuration: Configuration) -> tuple[tuple[str, int], ...]:
    """Returns the number of pieces into which a configuration cuts each iteration axis."""
    pieces: dict[str, int] = {}
    for size, action in zip(space.mesh.shape, configuration.actions, strict=True):
        if action is not None:
            pieces[action] = pieces.get(action, 1) * size
    return tuple(sorted(pieces.items()))


def _forbidden(problem: Problem, node: int, configurations: Sequence[int] | IntArray) -> Problem:
    """The problem in which a node may not have some configurations."""
    times = list(problem.node_time_s)
    times[node] = times[node].copy()
    times[node][configurations] = np.inf
    return dataclasses.replace(problem, node_time_s=tuple(times))
