"""Pipelines: consecutive layers on groups of devices, through which micro-batches go one behind the other."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tensoropt.errors import InfeasibleError, PlanError, ProblemError
from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.plan.configuration import Configuration, at, is_legal
from tensoropt.plan.places import At, is_everywhere, load_of, parted, share_of_pass
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import Frontier, FrontierPoint, frontier_of
from tensoropt.search.columns import SpaceColumns, with_less
from tensoropt.search.finding import Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, get_finder, register
from tensoropt.space.propagation import Actions, follow, placed
from tensoropt.space.side_by_side import SideBySide
from tensoropt.space.space import SearchSpace
from tensoropt.space.stages import small_stages, stages

__all__ = ["Pipeline", "fastest_that_fits", "least_seconds", "less_on_the_fullest", "pipelines", "small_pipelines"]

# So often, for each stage, one that holds too much is searched again: its neighbours have changed since.
_TRIES = 2
# How much slower a pipeline is than the best where more stages are not tried: two rounds of as many may still gain.
_MUCH_SLOWER = 1.25


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Options of the search for a pipeline.

    Attributes:
        faster_than_s: pipelines that take so many seconds or more are of no use, and are passed by where a bound tells.
    """

    faster_than_s: float = math.inf

    @property
    def name(self) -> str:
        """The name of the finder."""
        return "pipeline"


def _find(space: SearchSpace, limit: MemoryLimit, start: Start, options: Pipeline) -> Found:
    """The fastest pipeline that fits, of all numbers of stages that are whole groups of devices, outermost first.

    Layers of a stage are consecutive, and cut where micro-batches go through all stages soonest, if each stage were one
    device (:func:`tensoropt.space.stages.stages`); if none of these pipelines fits, where the fullest stage holds least
    (:func:`tensoropt.space.stages.small_stages`). Inside of its stage each operator may be split in any way: the
    search is that of the space of all strategies with these stages. More stages are tried until as many, in one round,
    are much slower than the best pipeline, or their bound (:func:`least_seconds`) has begun to rise and says so. Those
    are not searched whose bound says that they are no faster than what is known.

    Raises:
        PlanError: the step has no micro-batches, or there is one device.
        InfeasibleError: none fits, or is fast enough, or the model has no two layers that can be on devices of their
            own.
    """
    began = time.perf_counter()
    if space.steps is None or space.mesh.size == 1:
        raise PlanError(
            "search 'pipeline': does not apply because micro-batches go through its stages one behind the other, which "
            f"are on devices of their own, got micro_batches={1 if space.steps is None else space.steps.times} and "
            f"{space.mesh.size} devices. Give micro_batches=4, for example, or leave search out."
        )
    best: Found | None = None
    least, smallest, is_any_slow = options.faster_than_s, math.inf, False
    impossible: tuple[SearchSpace, InfeasibleError] | None = None

    def tried() -> Iterator[tuple[int, SearchSpace]]:
        yield from pipelines(space)
        if best is None and smallest > limit.limit_bytes and (smallest < math.inf or not is_any_slow):
            yield from small_pipelines(space)

    fewer_s = math.inf  # the bound of fewer stages, in one round
    for rounds, inner in tried():
        bound_s = least_seconds(inner)
        if rounds == 1:
            if bound_s > max(fewer_s, _MUCH_SLOWER * least):
                is_any_slow = True
                break
            fewer_s = bound_s
        if bound_s >= least:
            is_any_slow = True
            continue
        try:
            point, plan = fastest_that_fits(inner, limit)
        except InfeasibleError as error:  # what cannot be sent is read in another stage
            impossible = inner, error
            continue
        if not _has_stages(plan):
            continue
        smallest = min(smallest, plan.memory_bytes)
        if plan.memory_bytes > limit.limit_bytes:
            continue
        is_any_slow |= plan.time_s >= least
        if rounds == 1 and best is not None and plan.time_s > _MUCH_SLOWER * least:
            break
        if plan.time_s < least:
            least = plan.time_s
            alone = frontier_of(
                inner.problem,
                point.assignment,
                point.alternatives,
                exact=False,
                eliminations=(),
                seconds=time.perf_counter() - began,
            )
            best = Found(inner, alone, {"rounds": rounds} if rounds > 1 else {})
    if best is None and is_any_slow:
        raise InfeasibleError(
            f"search 'pipeline': every pipeline takes {options.faster_than_s:.4g} s a step or more, or does not fit."
        )
    if smallest == math.inf:
        reason = "all its layers must be on the same devices, or there is one alone"
        if impossible is not None:
            reason = f"{_apart(impossible[0])} must be on the same devices"
        raise InfeasibleError(
            f"search 'pipeline': no stages of this model can run: {reason}. Leave search out: micro_batches do without "
            "stages."
        ) from (None if impossible is None else impossible[1])
    if best is None:
        raise InfeasibleError(
            f"search 'pipeline': every pipeline that was found takes {smallest:,.0f} bytes per device or more, the "
            f"limit is {limit}."
        )
    return best


def least_seconds(space: SearchSpace) -> float:
    """A bound of the time of all strategies of a space with stages, of no search.

    Operators, and messages from one part to another, take what they take at least, each alone. What a device does for
    all micro-batches is done one after the other: behind what leads to its first part, and before the backward passes
    to which its last one leads.
    """
    steps, mesh = space.steps, space.mesh
    if steps is None:
        return 0.0
    least_s = {op.name: float(space.node_tables(op.name)[0].min()) for op in space.operators}
    where = {op.name: space.choices(op.name)[0].at for op in space.operators}
    everywhere = dict.fromkeys((op.name for op in space.graph.operators), ())
    places = parted(space.graph, {**everywhere, **where}, frozenset(), steps)

    def message_s(edge: Edge) -> float:
        time_s = space.edge_tables(edge)[0] if places.crosses(edge) else np.zeros(1)
        return float(time_s.min()) if np.isfinite(time_s).any() else 0.0  # what cannot be sent, a search says

    each = [name for name in least_s if steps.is_each(name)]
    load = load_of(places, each, steps.times, least_s.__getitem__, message_s)
    # The longest ways to a part, and the shortest, by which messages may come; in seconds, forward and backward.
    before, behind = dict.fromkeys(load.seconds, 0.0), dict.fromkeys(load.seconds, 0.0)
    first, last = dict.fromkeys(load.seconds, math.inf), dict.fromkeys(load.seconds, math.inf)
    for source, number in sorted(load.moved):
        forward, backward = (
            load.seconds[source] / steps.times * share_of_pass(source in load.learnt, back) for back in (False, True)
        )
        before[number] = max(before[number], before[source] + forward)
        first[number] = min(first[number], before[source] + forward)
        if (source, number) in load.returns:
            behind[number] = max(behind[number], behind[source] + backward)
            last[number] = min(last[number], behind[source] + backward)
    busy_s, once_s = np.zeros(mesh.size), np.zeros(mesh.size)
    begin_s, end_s = np.full(mesh.size, math.inf), np.full(mesh.size, math.inf)
    devices = {part.number: list(mesh.devices_at(part.at)) for part in places.parts(each)}
    for number, there in devices.items():
        busy_s[there] += load.seconds[number]
        begin_s[there] = np.minimum(begin_s[there], min(before[number], first[number]))
        end_s[there] = np.minimum(end_s[there], min(behind[number], last[number]))
    for (source, number), seconds in load.moved.items():
        ways = 1 + ((source, number) in load.returns)
        busy_s[[*{*devices[source], *devices[number]}]] += seconds * steps.times * ways
    once: dict[At, float] = defaultdict(float)
    for name, seconds in least_s.items():
        once[where[name]] += 0.0 if steps.is_each(name) else seconds
    for place, seconds in once.items():
        once_s[list(mesh.devices_at(place))] += seconds
    rest_s = np.where(busy_s > 0.0, begin_s + end_s, 0.0)
    return space.cost.iteration_seconds + float((busy_s + rest_s).max()) + float(once_s.max())


def _has_stages(plan: Plan) -> bool:
    """Tells whether more than one part of the devices computes something."""
    return len({entry.configuration.at for entry in plan.operators.values()} - {()}) > 1


def _apart(space: SearchSpace) -> str:
    """Two operators whose stages differ although what one gives the other cannot be sent."""
    tables = enumerate(space.edges)
    edge = next((edge for number, edge in tables if not np.isfinite(space.problem.edge_tables(number)[0]).any()), None)
    return "some operators" if edge is None else f"{space.graph[edge.tensor.op]} and {space.graph[edge.consumer]}"


def fastest_that_fits(space: SearchSpace, limit: MemoryLimit) -> tuple[FrontierPoint, Plan]:
    """The fastest strategy of a space with stages, if every stage holds it; else one near the fastest that all hold, or
    the smallest.

    What a stage holds is no other's. So where one holds too much, the others stay as they are, and the stage has the
    fastest strategy within the limit. Of few layers in a stage, a border chosen for one stage may cost the other more.

    Raises:
        InfeasibleError: what must be on the same devices is on different stages.
    """

    def planned(frontier: Frontier) -> tuple[FrontierPoint, Plan]:
        point = frontier.point(len(frontier) - 1)
        picks = point.alternatives
        return point, space.plan(point.assignment, "pipeline", alternatives=picks, peak=False, moves=False)

    try:
        point, plan = planned(get_finder("pase").find(space).frontier)
    except ProblemError:  # a table would be too large
        point, plan = planned(get_finder("ft").find(space).frontier)
    places = {entry.configuration.at for entry in plan.operators.values()}
    for _ in range(_TRIES * len(places)):
        if plan.memory_bytes <= limit.limit_bytes:
            return point, plan
        less = less_on_the_fullest(space, point, plan, limit.limit_bytes)
        if less is None:
            break
        point, plan = planned(less)
    return (point, plan) if plan.memory_bytes <= limit.limit_bytes else planned(space.kept(SpaceColumns).smallest)


def less_on_the_fullest(space: SearchSpace, point: FrontierPoint, plan: Plan, limit_bytes: float) -> Frontier | None:
    """A strategy in which the fullest stage has the fastest that it may hold, and the others have what they had.

    Returns:
        None if the stage holds too much in any strategy.
    """
    parts = SideBySide.of(plan, space.steps) if space.steps is not None else None
    if parts is None:
        return None
    held, place = parts.held_bytes(), parts.places.at
    fullest = int(held.argmax())
    here = {at for at in {*place.values()} if at and fullest in space.mesh.devices_at(at)}
    free = [place[op.name] in here for op in space.operators]
    times = [parts.flying(op.name) for op in space.operators] + [parts.flying_on(edge) for edge in space.edges]
    return with_less(space, point, np.array(free), times, float(held[fullest]) - limit_bytes)


def pipelines(space: SearchSpace) -> Iterator[tuple[int, SearchSpace]]:
    """The spaces of all strategies with stages, of each number that is a product of outermost mesh extents.

    Micro-batches go through the stages in one round: each has consecutive layers. And then in two: each has two runs of
    layers, so that more is sent and devices rest less (interleaved stages).

    Yields:
        How many rounds, and the space.
    """
    for count in range(1, len(space.mesh.axes) + 1):
        axes = space.mesh.axes[:count]
        once, twice = (stages(space, axes, as_pipeline=True, rounds=rounds) for rounds in (1, 2))
        yield 1, _inside(space, axes, once)
        if twice != once:  # they are equal where there are fewer layers than parts
            yield 2, _inside(space, axes, twice)


def small_pipelines(space: SearchSpace) -> Iterator[tuple[int, SearchSpace]]:
    """Spaces as :func:`pipelines` gives them, in one round, with stages of which the fullest holds the least."""
    for count in range(1, len(space.mesh.axes) + 1):
        axes = space.mesh.axes[:count]
        stage_of = small_stages(space, axes)
        if stage_of != stages(space, axes, as_pipeline=True):
            yield 1, _inside(space, axes, stage_of)


def _inside(space: SearchSpace, axes: tuple[int, ...], stage_of: Mapping[str, int]) -> SearchSpace:
    """The space of all strategies with stages along some mesh axes."""
    mesh, rest = space.mesh, space.mesh.axes[len(axes) :]
    stage_of = dict(stage_of)
    for op in reversed(space.operators):
        if traits(op).is_input and op.name in stage_of:  # where it is read first
            readers = [stage_of[edge.consumer] for edge in space.edges if edge.tensor.op == op.name]
            stage_of[op.name] = min(readers, default=0)
    firsts = map(mesh.coordinates, mesh.devices_at([(axis, 0) for axis in rest]))
    coordinates: list[Actions] = [tuple(at(first[axis]) for axis in axes) for first in firsts]

    def decide(op: Operator, followed: Actions) -> list[Actions]:
        if traits(op).is_input and "d0" in space.rules[op.name].split:
            followed = placed(followed, rest, "d0")
        for axis, action in zip(axes, coordinates[stage_of[op.name]], strict=True):
            followed = placed(followed, [axis], action)
        return [followed]

    chosen = follow(space, decide, beyond=True).configurations
    allowed: dict[str, tuple[Configuration, ...]] = {}
    for op in space.operators:
        place: Actions = chosen[op.name].actions[: len(axes)] if chosen[op.name].at else (None,) * len(axes)
        if op.name in stage_of:
            place = coordinates[stage_of[op.name]]
        if is_everywhere(space.graph, op):
            place = (None,) * len(axes)
        if space.rules[op.name].pinned:  # where the variable is
            variable = op.inputs[space.rules[op.name].pinned[0]].op
            place = allowed[variable][0].actions[: len(axes)]
        if traits(op).is_input:
            shared = Configuration((*place, *("d0" for _ in rest)))
            whole = Configuration((*place, *(None for _ in rest)))
            allowed[op.name] = (shared if is_legal(shared, space.rules[op.name], mesh) else whole,)
            continue
        own = [each for each in space.choices(op.name) if each.actions[: len(axes)] == (None,) * len(axes)]
        inside = [Configuration((*place, *each.actions[len(axes) :])) for each in own]  # kept or made again: both
        allowed[op.name] = tuple(dict.fromkeys(inside))
    return SearchSpace(
        space.whole,
        space.cost,
        allowed=allowed,
        reuse=space.reuse,
        recompute=space.recompute,
        placements=True,
        micro_batches=space.steps.times if space.steps is not None else 1,
        resharder=space.resharder,
    )


register(Finder("pipeline", "search", "fastest", _find, places=True, options=Pipeline()))
