"""Searching: ``find_strategy``, ``find_frontier`` and ``profile_strategies`` (TensorOpt section 4.1)."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, overload

from tensoropt.api.arguments import NUMBERS, check_micro_batches, check_sizes, listed, where_to_plan
from tensoropt.api.find.choosing import AUTO, PROFILING, check_option, check_search, find_plan, plan_of_point
from tensoropt.api.find.deferred_plan import DeferredPlan, as_plan
from tensoropt.api.find.device_counts import check_counts, profile
from tensoropt.api.find.outcome import describe_outcome
from tensoropt.api.find.plans import is_plan_file
from tensoropt.api.frontend.imported_model import MINI_PARALLELISM, ImportedModel, load_plan
from tensoropt.api.frontend.placeholders import example_shapes, training_placeholders
from tensoropt.api.mirror.model import model_to_plan
from tensoropt.api.session.costs import settle_costs, settle_costs_of
from tensoropt.api.session.fetches import flat_feeds, note_parts
from tensoropt.api.session.job import Job, current_job
from tensoropt.cluster import Topology
from tensoropt.errors import PlanError
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import Frontier, FrontierPoint
from tensoropt.search.parallelism import ParallelismProfile
from tensoropt.search.registry import Finder, Options
from tensoropt.stages import announce, came_to, stage

__all__ = ["check_request", "find_frontier", "find_strategy", "profile_strategies"]

# These end before a run, or change how many ranks feed one.
_NOT_DEFERRED = (PROFILING, MINI_PARALLELISM)
# At most so many times a plan is searched, while operators of the last one had to be measured.
_SEARCHES = 4


@overload
def find_strategy(  # type: ignore[overload-overlap]  # a name is a str too, and the first that matches counts
    option: Literal["profiling"],
    *,
    memory_bytes: float | None = None,
    topology: Topology | str | None = None,
    batch_size: int | None = None,
    example: Mapping[Any, Any] | None = None,
    feed: str = "data_parallel",
    costs: str | None = None,
    search: str | Options = "ft",
    micro_batches: int | str = 1,
    recompute: bool = False,
) -> ParallelismProfile: ...


@overload
def find_strategy(
    option: str | os.PathLike[str] | Plan | FrontierPoint = "mini_time",
    *,
    memory_bytes: float | None = None,
    topology: Topology | str | None = None,
    batch_size: int | None = None,
    example: Mapping[Any, Any] | None = None,
    feed: str = "data_parallel",
    costs: str | None = None,
    search: str | Options = "ft",
    micro_batches: int | str = 1,
    recompute: bool = False,
) -> Plan: ...


def find_strategy(
    option: str | os.PathLike[str] | Plan | FrontierPoint = "mini_time",
    *,
    memory_bytes: float | None = None,
    topology: Topology | str | None = None,
    batch_size: int | None = None,
    example: Mapping[Any, Any] | None = None,
    feed: str = "data_parallel",
    costs: str | None = None,
    search: str | Options = "ft",
    micro_batches: int | str = 1,
    recompute: bool = False,
) -> Plan | ParallelismProfile:
    """Searches a parallelization strategy for the model built so far.

    Rank 0 searches, all ranks get its plan. With ``topology`` it needs neither MPI nor devices.

    Where placeholders leave sizes open, and neither ``batch_size`` nor ``example`` gives them, the search waits for the
    first training run, which feeds them. What is returned until then goes to ``build_execution_graph``, and has figures
    only afterwards.

    Args:
        option: one of

            - ``mini_time``: least time per iteration within the memory. The fastest strategy of all is searched first,
              and the frontier is tracked only where that does not fit;
            - ``mini_memory``: least memory;
            - ``turning_point``: the knee of the frontier, beyond which more memory hardly saves time (TensorOpt
              section 5.1), or the fastest that fits where the knee does not;
            - ``mini_parallelism``: least time on the fewest devices that fit. Under MPI, ``build_execution_graph``
              then ends the ranks that are not needed;
            - ``profiling``: no plan but a table of what each number of devices would give, which is printed on rank 0
              and returned; :func:`profile_strategies` takes a range and a price;
            - ``data_parallel``;
            - a point of :func:`find_frontier`'s frontier, for the cluster that it was found for;
            - a plan, or the path of a saved one, which is checked against the model; with ``topology`` it may be one
              with operators at places where they can be compared, but not run.
        memory_bytes: limit per device; by default the device's memory less a reserve of a tenth of the plan (16 GB
            hold a plan of 14.5).
        topology: plan for this cluster, or for the preset of this name; by default for the one that ``init`` collected.
        batch_size: size of the first dimension of placeholders that leave it open.
        example: a whole batch: for placeholders that leave sizes open an array of the shape that will be fed. A
            placeholder of unknown shape that is not in it, such as a learning rate, is a single number.
        feed: ``data_parallel``: each rank feeds its share of the batch, and the plan counts what it takes to
            bring it where it is needed; ``global``: every rank has the whole batch.
        costs: ``measured``: operators are timed on this job's devices, once per machine; ``analytic``; by default
            measured where the job's own devices are planned for. The environment variable ``TENSOROPT_COSTS`` wins.
        search: what finds strategies, all by the same costs; ``ft`` (of large models) and ``mcmc`` over the operators
            that decide. What was searched, and by which time, a plan notes (``plan.notes["searched"]``):

            - ``ft``, frontier tracking, which every option chooses from;
            - ``pase``, the fastest strategy whatever memory it takes, found sooner (option ``mini_time``);
            - ``mcmc``, what Markov chains come to within the memory by simulated time (option ``mini_time``);
              :class:`tensoropt.Mcmc` has its options, such as ``Mcmc(seconds=10, seed=1, initial=("ft", "random"))``
              or, as FlexFlow has it, ``Mcmc(overlap=True)``: links move data while devices compute;
            - a baseline of `tensoropt.baselines`, such as ``megatron`` (options ``mini_time``,
              ``mini_memory`` and ``turning_point``, of what it offers).
        micro_batches: into how many parts a step splits the batch in time, one after the other, to take less memory;
            the numbers are those of the whole batch. ``auto`` splits where no strategy fits without, into as many as
            give the fastest plan, eight at most; with ``mini_time`` also where a pipeline is faster.
        recompute: whether outputs of operators may be made again in the backward pass instead of being kept for it,
            each where it pays: less memory, more computing, the same numbers but for roundings.

    Returns:
        The plan; for ``profiling`` the profile.

    Raises:
        PlanError: an unknown option or search, or two that do not go together; a plan or point that does not fit; a
            batch that devices do not divide; a baseline that does not apply to the model.
        GraphError: nothing was built that can be planned.
        ClusterError: no preset is called so.
        MicroBatchError: a step cannot be split in time; the message names the operator that needs the whole batch.
        InfeasibleError: nothing fits in the memory; the message says what would.
        SessionError: before ``init``, if no topology is given.
    """
    job, option = current_job(), as_plan(option)
    if job.rehearsal is not None:
        option, memory_bytes, search, batch_size = job.rehearsal.asked(option, memory_bytes, search, batch_size)
        micro_batches, recompute = job.rehearsal.asked_steps(micro_batches, recompute)
    if isinstance(option, FrontierPoint) and topology is None and option.provenance is not None:
        topology = option.provenance.topology
    where = where_to_plan("find_strategy", topology, job.topology)
    given = _is_given(option)
    named = f"point {option.index} of a frontier" if isinstance(option, FrontierPoint) else repr(option)
    what = f"find_strategy(option={'a plan' if given else named}, memory_bytes={memory_bytes}, feed={feed!r}, "
    what += f"search={getattr(search, 'name', None) or repr(search)}, recompute={recompute}, "
    what += f"micro_batches={micro_batches!r})"
    request = _Request(
        option, given, named, memory_bytes, topology is None, where, feed, costs, search, recompute, what, micro_batches
    )
    with job.world.step(what):
        check_sizes("find_strategy", batch_size, memory_bytes)
        check_micro_batches("find_strategy", micro_batches)
        finder = check_request(option, search)
        shapes = _shapes_of("find_strategy", example)
        opened = training_placeholders(model_to_plan()) if batch_size is None and shapes is None else {}
        if opened and request.may_wait:
            find = functools.partial(_find_for_feeds, job, request, finder)
            deferred = DeferredPlan(named, opened, feed, find, model_to_plan().terms)
            announce(f"find_strategy: waits {deferred.waits()}")
            return cast(Plan, deferred)
    return _find(job, request, finder, batch_size, shapes)


@dataclass(frozen=True, slots=True)
class _Request:
    """The request that ``find_strategy`` got, without the sizes of feeds."""

    option: str | os.PathLike[str] | Plan | FrontierPoint
    given: bool  # whether the option is a plan
    named: str
    memory_bytes: float | None
    runs: bool
    where: Topology
    feed: str
    costs: str | None
    search: str | Options
    recompute: bool
    what: str
    micro_batches: int | str

    @property
    def may_wait(self) -> bool:
        """True if a run will follow, on as many ranks as there are now, so that the plan may wait for it."""
        return self.runs and not isinstance(self.option, FrontierPoint) and self.option not in _NOT_DEFERRED


def _find_for_feeds(
    job: Job, request: _Request, finder: Finder, shapes: Mapping[str, Sequence[int]], feed: str
) -> tuple[Plan, ImportedModel]:
    """The plan for what is fed."""
    plan = _find(job, dataclasses.replace(request, feed=feed), finder, None, shapes)
    return cast(Plan, plan), job.imported_model()


def _shapes_of(caller: str, example: Mapping[Any, Any] | None) -> dict[str, tuple[int, ...]] | None:
    """The shapes of an example, in which sparse and ragged tensors may be fed as a run takes them."""
    note_parts(model_to_plan(), example)
    return example_shapes(caller, model_to_plan(), None if example is None else dict(flat_feeds(example)))


def _find(
    job: Job,
    request: _Request,
    finder: Finder,
    batch_size: int | None,
    shapes: Mapping[str, Sequence[int]] | None,
) -> Plan | ParallelismProfile:
    option, where, what = request.option, request.where, request.what
    feed, costs, memory_bytes = request.feed, request.costs, request.memory_bytes
    with job.world.step(what):
        imported = job.import_model(batch_size, shapes)
        if request.given:
            return load_plan(option, imported.graph, where.device_count, runs=request.runs)  # type: ignore[arg-type]
        if isinstance(option, FrontierPoint):
            feed, costs = _check_point(option, where, feed, costs)
        planner, times = job.planner(feed).with_steps(recompute=request.recompute), request.micro_batches
        split = planner if times == AUTO else planner.with_steps(int(times))
    job.world.agree_on_model(imported)
    settle_costs(job, split, where, costs)
    if job.rehearsal is not None:
        job.rehearsal.end_at_search(split, where, times)
    if isinstance(option, FrontierPoint):
        point = option
        with stage("search"):
            return job.world.on_rank_0(what, lambda: plan_of_point(planner, point, memory_bytes)).of(imported.graph)
    if option == PROFILING:
        with stage("search"):
            table = job.world.on_rank_0(what, lambda: profile(planner, where, None, memory_bytes, None, times))
        table.show()
        return table
    outcome = ""

    def find() -> Plan:
        nonlocal outcome
        plan = find_plan(planner, where, str(option), memory_bytes, finder, times)
        outcome = describe_outcome(planner, where, plan)
        return plan

    for left in reversed(range(_SEARCHES)):
        with stage("search"):
            plan = job.world.on_rank_0(what, find).of(imported.graph)
            came_to(str(plan.notes.get("searched", "")))
        if not (left and settle_costs_of(job, planner, where, plan)):
            break
    announce(outcome)
    return plan


def find_frontier(
    topology: Topology | str | None = None,
    *,
    batch_size: int | None = None,
    example: Mapping[Any, Any] | None = None,
    feed: str = "data_parallel",
    costs: str | None = None,
    recompute: bool = False,
    micro_batches: int = 1,
) -> Frontier:
    """All strategies for the model built so far that are worth having: the trade-off between time and memory.

    Rank 0 searches, all ranks get its frontier. With ``topology`` it needs neither MPI nor devices. A point of it,
    such as ``frontier.turning_point()`` or ``frontier.best(memory_bytes=…)``, is an option of :func:`find_strategy`.

    Args:
        topology: search for this cluster, or the preset of this name; by default for the one that ``init`` collected.
        batch_size: as of :func:`find_strategy`; so are ``example``, ``feed`` and ``costs``.
        recompute: see :func:`find_strategy`.
        micro_batches: how many a step has, see there.

    Raises:
        PlanError: a batch that devices do not divide, or an unknown way to feed.
        GraphError: nothing was built that can be planned.
        MicroBatchError: a step cannot be split in time.
        SessionError: before ``init``, if no topology is given.
    """
    job = current_job()
    where = where_to_plan("find_frontier", topology, job.topology)
    what = f"find_frontier(feed={feed!r}, recompute={recompute}, micro_batches={micro_batches!r})"
    with job.world.step(what):
        check_sizes("find_frontier", batch_size, None)
        check_micro_batches("find_frontier", micro_batches, auto=False)
        imported = job.import_model(batch_size, _shapes_of("find_frontier", example))
        planner = job.planner(feed).with_steps(micro_batches, recompute)
    job.world.agree_on_model(imported)
    settle_costs(job, planner, where, costs)
    with stage("search"):
        frontier = job.world.on_rank_0(what, lambda: planner.frontier(where))
        came_to(f"a frontier of {len(frontier.time_s)} strategies")
    return frontier


def profile_strategies(
    devices: Sequence[int] | None = None,
    *,
    topology: Topology | str | None = None,
    price_per_device_hour: float | None = None,
    memory_bytes: float | None = None,
    batch_size: int | None = None,
    example: Mapping[Any, Any] | None = None,
    feed: str = "data_parallel",
    recompute: bool = False,
    micro_batches: int | str = 1,
) -> ParallelismProfile:
    """Predicts the cost of the model built so far on different numbers of devices, without running the model.

    For each count the fastest strategy that fits is searched, on rank 0. Counts on which the job cannot run, because
    they do not divide the batch or nothing fits, stay in the table with the reason.

    Args:
        devices: the counts, up to any size; beyond the cluster's, the outermost level grows. By default the powers of
            two that are regular parts of the cluster, and all of it.
        topology: a cluster of the kind, or a preset's name; by default the one that ``init`` collected.
        price_per_device_hour: in any unit, for the columns of cost.
        memory_bytes: as of :func:`find_strategy`; so are ``batch_size``, ``example``, ``feed`` and ``recompute``.
        micro_batches: as there, but ``auto`` splits steps only on numbers of devices where nothing fits without; there
            are no pipelines.

    Raises:
        PlanError: no count or one below 1, a negative price, an unknown way to feed.
        GraphError: nothing was built that can be planned.
        SessionError: before ``init``, if no topology is given.
    """
    job = current_job()
    where = where_to_plan("profile_strategies", topology, job.topology)
    asked = None if devices is None else listed("profile_strategies", "devices", devices, "[2, 4, 8]")
    what = f"profile_strategies(devices={asked}, memory_bytes={memory_bytes}, feed={feed!r}, recompute={recompute}, "
    what += f"micro_batches={micro_batches!r})"
    with job.world.step(what):
        check_sizes("profile_strategies", batch_size, memory_bytes)
        check_micro_batches("profile_strategies", micro_batches)
        counts = None if asked is None else check_counts(asked)
        price: Any = price_per_device_hour
        if price is not None and not (isinstance(price, NUMBERS) and price >= 0):
            raise PlanError(
                f"profile_strategies: price_per_device_hour must be a number of at least 0, got {price!r}. "
                "Leave it out to get no costs."
            )
        imported = job.import_model(batch_size, _shapes_of("profile_strategies", example))
        planner = job.planner(feed).with_steps(recompute=recompute)
    job.world.agree_on_model(imported)
    settle_costs(job, planner if micro_batches == AUTO else planner.with_steps(int(micro_batches)), where, None)

    def make() -> ParallelismProfile:
        return profile(planner, where, counts, memory_bytes, price_per_device_hour, micro_batches)

    with stage("search"):
        return job.world.on_rank_0(what, make)


def _check_point(point: FrontierPoint, where: Topology, feed: str, costs: str | None) -> tuple[str, str | None]:
    """Returns the feed and costs of a point; the point must be for the named cluster, if one was named."""
    source = point.provenance
    if source is None:
        return feed, costs
    if source.topology.fingerprint() != where.fingerprint():
        raise PlanError(
            f"find_strategy: the point is for {source.topology}, topology= is {where}. Leave topology out, or call "
            "find_frontier for that one."
        )
    return source.feed, source.costs


def check_request(option: Any, search: Any) -> Finder:
    """The finder that is asked for, if the option is one and the search has it.

    Args:
        option: of :func:`find_strategy`.
        search: of :func:`find_strategy`.

    Raises:
        PlanError: an unknown option or search, or two that do not go together.
    """
    given = _is_given(option)
    finder = check_search(search, None if given else option)
    if not given and not isinstance(option, FrontierPoint):
        check_option(str(option))
    return finder


def _is_given(option: Any) -> bool:
    """Tells whether an option is a plan, or the path of one, and not the name of a search or a point."""
    if isinstance(option, Plan) or is_plan_file(option):
        return True
    if isinstance(option, FrontierPoint | str):
        return False
    raise PlanError(
        "find_strategy: option must be a name such as 'mini_time', a Plan, the path of a saved one, or a point of "
        f"find_frontier's, got {option!r}."
    )
