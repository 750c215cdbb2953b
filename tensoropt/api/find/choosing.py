"""The options and searches of ``find_strategy`` (TensorOpt section 4.1): from a planner to one plan."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any

from tensoropt.api.find.planner import Planner
from tensoropt.api.find.remedies import remedies
from tensoropt.api.frontend.imported_model import MINI_PARALLELISM
from tensoropt.api.garbage import collecting_new_objects
from tensoropt.cluster import Topology
from tensoropt.cluster.scaling import device_counts, scaled
from tensoropt.errors import InfeasibleError, MicroBatchError, PlanError, ProblemError, did_you_mean
from tensoropt.finders.pipeline import Pipeline
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import Frontier, FrontierPoint
from tensoropt.search.options import OPTIONS, MemoryLimit, choose
from tensoropt.search.registry import Finder, alike, finder_of, get_finder, known_names

__all__ = [
    "AUTO",
    "DATA_PARALLEL",
    "FT",
    "MINI_TIME",
    "NAMES",
    "PROFILING",
    "check_option",
    "check_search",
    "fastest_that_fits",
    "find_plan",
    "plan_of_point",
    "plan_that_holds",
]

_log = logging.getLogger("tensoropt")
AUTO = "auto"
COLUMNS = "columns"
DATA_PARALLEL = "data_parallel"
FASTEST = "pase"
FT = "ft"
MINI_TIME = "mini_time"
PIPELINE = "pipeline"
PROFILING = "profiling"
_UNSHARED = "the batch cannot be shared"
_CLOSE = 0.01
"""How much slower than the best a plan may be for which no frontier is tracked."""
_SMALL = 400
"""Operators up to which the frontier of a model is tracked instead."""
_PIPELINES_UP_TO = 64
"""Devices up to which pipelines are searched where nobody asks for them: each number of micro-batches is a search."""
_TIGHTENED = 4
"""How often a plan's peak may tighten the limit within which another one is searched."""
NAMES = (*sorted([*OPTIONS, MINI_PARALLELISM, PROFILING]), DATA_PARALLEL)


def check_option(option: str) -> None:
    """Checks the name of an option.

    Raises:
        PlanError: the option is unknown; the message lists the known options.
    """
    if option not in NAMES:
        if finder_of(option) is not None:
            raise PlanError(f"find_strategy: option {option!r} is a search, not an option. Give search={option!r}.")
        raise PlanError(
            f"find_strategy: option {option!r} is unknown.{did_you_mean(option, NAMES)} Use one of "
            f"{', '.join(map(repr, NAMES))}, a point of find_frontier's, a Plan, or the path of a saved one."
        )


def check_search(search: Any, option: object) -> Finder:
    """The finder of a search, if it offers what an option chooses from.

    Args:
        search: its name, or options such as `tensoropt.Mcmc`.
        option: of ``find_strategy``.

    Raises:
        PlanError: an unknown search, or one that does not go with the option.
    """
    finder = finder_of(search)
    if finder is None:
        raise PlanError(
            f"find_strategy: search {search!r} is unknown.{alike(search)} Use one of {known_names()}, or "
            "tensoropt.Mcmc(…)."
        )
    if finder.name == FT or (finder.name, option) == (DATA_PARALLEL, DATA_PARALLEL):
        return finder
    if not isinstance(option, str):
        raise PlanError(
            f"find_strategy: a plan, or a point of a frontier, is found already, got it with search={finder.name!r}. "
            "Leave search out, or give the name of an option."
        )
    allowed = (MINI_TIME,) if finder.offers == "fastest" else tuple(OPTIONS)
    if option not in allowed:
        raise PlanError(
            f"find_strategy: search={finder.name!r} takes the option {' or '.join(map(repr, allowed))}, got "
            f"{option!r}. Leave search out: frontier tracking takes them all."
        )
    return finder


@collecting_new_objects()
def find_plan(
    planner: Planner,
    topology: Topology,
    option: str,
    memory_bytes: float | None,
    finder: Finder | None = None,
    micro_batches: int | str = 1,
) -> Plan:
    """Searches a plan.

    Args:
        planner: for the model.
        topology: the devices, of which ``mini_parallelism`` takes no more than it needs.
        option: ``mini_time``, ``mini_memory``, ``turning_point``, ``mini_parallelism`` or ``data_parallel``.
        memory_bytes: limit per device; by default the device's less the reserve.
        finder: what finds strategies, see :func:`check_search`; frontier tracking by default.
        micro_batches: how many a step has; ``auto`` for those of the fastest pipeline, where that is faster than one
            whole batch; where no plan of a whole batch fits, for the number that gives the best plan.

    Raises:
        MicroBatchError: the step cannot be split into so many.
        PlanError: devices that do not divide the batch, or a baseline that does not apply to the model.
        InfeasibleError: nothing fits in the memory; the message says what would.
    """
    limit = MemoryLimit.of(topology.device.memory_bytes, memory_bytes)
    if micro_batches != AUTO:
        return _find_plan(planner.with_steps(int(micro_batches)), topology, option, limit, finder)
    if finder is not None and finder.name == PIPELINE:
        return _fastest_pipeline(planner, topology, limit)

    def split(steps: Planner) -> Plan:
        return _find_plan(steps, topology, option, limit, finder)

    best: Plan | None = None
    if planner.undivided(topology.device_count) is None and not planner.fits(topology, limit.limit_bytes):
        best = planner.fastest_split(topology, limit, split, lambda plan: plan.time_s)
    if best is None:
        best = _find_plan(planner, topology, option, limit, finder)
    is_tracking = finder is None or finder.name == FT
    if option != MINI_TIME or not is_tracking or not 1 < topology.device_count <= _PIPELINES_UP_TO:
        return best
    try:
        pipeline = _fastest_pipeline(planner, topology, limit, faster_than_s=best.time_s)
    except (MicroBatchError, InfeasibleError, PlanError) as error:
        _log.debug("pipelines: %s", error)
        return best
    return pipeline if pipeline.time_s < best.time_s else best


def _fastest_pipeline(
    planner: Planner, topology: Topology, limit: MemoryLimit, faster_than_s: float = math.inf
) -> Plan:
    """The fastest pipeline of all numbers of micro-batches, most of which rests least and is tried first.

    Raises:
        MicroBatchError: the step cannot be split; so does InfeasibleError, where none fits or takes less than
            ``faster_than_s``, and PlanError.
    """
    best, failure = None, None
    for times in reversed(planner.numbers_of_micro_batches(in_stages=True)):
        finder = get_finder(Pipeline(faster_than_s))
        try:
            plan = _find_plan(planner.with_steps(times), topology, MINI_TIME, limit, finder)
        except (MicroBatchError, InfeasibleError) as error:
            failure = failure or error
            continue
        if plan.time_s < faster_than_s:
            best, faster_than_s = plan, plan.time_s
    if best is None:
        raise failure or PlanError(
            f"{_subject(MINI_TIME, topology)}: a pipeline needs micro-batches, and no number of them divides the "
            "batch. Use another batch size."
        )
    return best


def _find_plan(planner: Planner, topology: Topology, option: str, limit: MemoryLimit, finder: Finder | None) -> Plan:
    """Searches a plan of steps in as many micro-batches as the planner's."""
    if option == MINI_PARALLELISM:
        return _mini_parallelism(planner, topology, limit)
    search = FT if finder is None else finder.name
    if DATA_PARALLEL in (option, search):  # the option and the baseline are one
        plan = planner.data_parallel_plan(topology, limit)
        if plan.memory_bytes > limit.limit_bytes:
            raise InfeasibleError(
                f"{_subject(DATA_PARALLEL, topology)}: needs {plan.memory_bytes:,.0f} bytes per device, the limit is "
                f"{limit}. Data parallelism holds all variables on every device. "
                f"{remedies(planner, topology, limit, data_parallel=True)}"
            )
        return plan
    if finder is not None and search != FT:
        return _plan_of_search(planner, topology, option, limit, finder)
    if not planner.has_frontier(topology) and planner.surpasses(topology, limit.limit_bytes):
        raise _nothing_fits(planner, topology, limit, option, planner.least_bytes(topology))
    fastest = fastest_that_fits(planner, topology, MINI_TIME, limit) if option == MINI_TIME else None
    if fastest is not None:
        return fastest[0]
    frontier = planner.frontier(topology)
    try:
        point = choose(frontier, option, limit.limit_bytes)
    except InfeasibleError as error:
        raise _nothing_fits(planner, topology, limit, option, float(frontier.memory_bytes[0])) from error
    return plan_that_holds(planner, topology, frontier, point, option, limit)[0]


def fastest_that_fits(
    planner: Planner, topology: Topology, option: str, limit: MemoryLimit
) -> tuple[Plan, FrontierPoint] | None:
    """The fastest plan within a memory limit, with its point, found without a frontier.

    Most plans fit, and the one of least time is found in a tenth of a frontier's time; where it does not fit, columns
    take a third. Of small models a frontier is exact, and as quick.

    Returns:
        None if a frontier is known already, if nothing fits, or if what was found may be slower than the best by more
        than a hundredth.
    """
    if planner.has_frontier(topology):
        return None
    held, allowed = topology.device.memory_bytes, limit
    columns = 0 if len(planner.space(topology).operators) <= _SMALL else _TIGHTENED
    for search in (FASTEST, *[COLUMNS] * columns):
        try:
            found = planner.find(topology, search, allowed)
        except (InfeasibleError, PlanError, ProblemError):
            return None  # tables too large, for which frontier tracking has heuristics; or it says what is wrong
        point = found.frontier.point(0)
        if found.fullest_bytes(point) > allowed.limit_bytes:
            continue
        if search == COLUMNS and (point.gap is None or point.gap > _CLOSE):
            return None
        plan = planner.plan_found(topology, found, point, option, limit)
        if plan.peak_bytes <= held:
            return plan, point
        # Searches add up what operators keep; temporaries come on top of that.
        allowed = MemoryLimit(point.memory_bytes - (plan.peak_bytes - held), limit.source)
    return None


def plan_that_holds(
    planner: Planner, topology: Topology, frontier: Frontier, point: FrontierPoint, option: str, limit: MemoryLimit
) -> tuple[Plan, FrontierPoint]:
    """The plan of a point, or of the largest smaller one whose peak, buffer by buffer, the device holds; and its point.

    Searches add up what operators keep; temporaries may come on top of that, more than the reserve for them.
    """
    plan = planner.plan(topology, point, option, limit)
    held = topology.device.memory_bytes
    if plan.peak_bytes <= held:
        return plan, point
    low, high, holds = 0, point.index, None
    while low < high:
        middle = (low + high) // 2
        lesser = frontier.point(middle)
        smaller = planner.plan(topology, lesser, option, limit)
        if smaller.peak_bytes <= held:
            low, holds = middle + 1, (smaller, lesser)
        else:
            high = middle
    if holds is None:
        _log.warning(
            "%s: the plan's peak is predicted to be %s bytes, the device holds %s. It may run out of memory: use more "
            "devices, or a smaller batch",
            _subject(option, topology),
            f"{plan.peak_bytes:,.0f}",
            f"{held:,.0f}",
        )
    return holds or (plan, point)


def _plan_of_search(planner: Planner, topology: Topology, option: str, limit: MemoryLimit, finder: Finder) -> Plan:
    """The plan of another search than frontier tracking, whose strategies need not be those that fit."""
    found = planner.find(topology, finder, limit)
    try:
        point = found.choose(option, limit)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"find_strategy(search={finder.name!r}) on {topology.device_count} devices of {topology.name}: {error} "
            "Use search='ft', which finds all that fit, or more devices."
        ) from error
    return planner.plan_found(topology, found, point, finder.name, limit)


def plan_of_point(planner: Planner, point: FrontierPoint, memory_bytes: float | None) -> Plan:
    """The plan of a point that was taken from this model's frontier.

    Raises:
        PlanError: a point without a model, or of another model.
        InfeasibleError: it takes more than ``memory_bytes``.
    """
    source = point.provenance
    if source is None:
        raise PlanError(
            "find_strategy: a point must say which model and devices it is for, got one of a bare Problem. Take it "
            "from tensoropt.find_frontier's frontier."
        )
    graph = planner.imported.graph.fingerprint()
    if source.graph != graph:
        raise PlanError(
            f"find_strategy: the point is for the graph {source.graph}, this one is {graph}. The model, its shapes "
            "or its names changed; call find_frontier again."
        )
    if memory_bytes is not None and point.memory_bytes > memory_bytes:
        raise InfeasibleError(
            f"find_strategy: the point takes {point.memory_bytes:,.0f} bytes per device, the limit is "
            f"{memory_bytes:,.0f} bytes (memory_bytes). Take frontier.best(memory_bytes={memory_bytes:.0f})."
        )
    limit = MemoryLimit.of(source.topology.device.memory_bytes, memory_bytes)
    return planner.with_steps(source.micro_batches, source.recompute).plan(
        source.topology, point, "frontier_point", limit
    )


def _mini_parallelism(planner: Planner, topology: Topology, limit: MemoryLimit) -> Plan:
    """The fastest plan on the fewest devices that hold one, from few to many.

    Counts are those that make a regular part of the cluster; one that cannot share the batch, or that is known to be
    too few, is passed by without a search.
    """
    passed_by: dict[str, str] = {}
    for count in device_counts(topology):
        if planner.undivided(count) is not None:
            passed_by[str(count)] = _UNSHARED
            continue
        misfit = planner.misfit(count)
        if misfit is not None:
            passed_by[str(count)] = misfit
            continue
        bound, why = planner.least_possible(count)
        if bound > limit.limit_bytes:
            passed_by[str(count)] = why
            continue
        part = scaled(topology, count)
        least = planner.least_bytes(part)  # takes a fraction of the time of a frontier
        if least <= limit.limit_bytes:
            # Where a graph is too large for exact searches, the two may differ.
            least = float(planner.frontier(part).memory_bytes[0])
        if least <= limit.limit_bytes:
            frontier = planner.frontier(part)
            best = frontier.best(limit.limit_bytes)
            plan, _ = plan_that_holds(planner, part, frontier, best, MINI_PARALLELISM, limit)
            notes = {**plan.notes, "fewer_devices": passed_by, "devices_of_job": topology.device_count}
            return dataclasses.replace(plan, notes=notes)
        passed_by[str(count)] = f"the least that any strategy takes is {least:,.0f} bytes per device"
    tried = "; ".join(f"{count} devices: {reason}" for count, reason in passed_by.items() if reason != _UNSHARED)
    unshared = ", ".join(count for count, reason in passed_by.items() if reason == _UNSHARED)
    raise InfeasibleError(
        f"{_subject(MINI_PARALLELISM, topology)}: no number of them holds a strategy within {limit}. {tried}"
        f"{f'; {_UNSHARED} by {unshared} devices' if unshared else ''}. {remedies(planner, topology, limit)}"
    )


def _nothing_fits(
    planner: Planner, topology: Topology, limit: MemoryLimit, option: str, least: float
) -> InfeasibleError:
    return InfeasibleError(
        f"{_subject(option, topology)}: a strategy must fit in {limit}, but the least that any takes is "
        f"{least:,.0f} bytes: {least - limit.limit_bytes:,.0f} bytes are missing. "
        f"{remedies(planner, topology, limit)}"
    )


def _subject(option: str, topology: Topology) -> str:
    return f"find_strategy(option={option!r}) on {topology.device_count} devices of {topology.name}"
