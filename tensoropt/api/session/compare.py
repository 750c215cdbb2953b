"""``compare``: every search and every baseline on one model and one cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.api.arguments import check_micro_batches, check_sizes, listed, where_to_plan
from tensoropt.api.find.deferred_plan import as_plan
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.mirror.model import Model, model_to_plan
from tensoropt.api.session.costs import settle_costs
from tensoropt.api.session.job import Job, current_job, graph_of, job_of, planned_as
from tensoropt.cluster import Topology
from tensoropt.errors import GraphError, PlanError, TensorOptError
from tensoropt.graph.graph import Graph
from tensoropt.plan.plan import Plan
from tensoropt.search.comparison import Comparison, ComparisonRow
from tensoropt.search.finding import Known
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, Options, alike, finder_of, finders, known_names
from tensoropt.simulate.simulated_step import step_seconds
from tensoropt.space.traffic import sent_bytes
from tensoropt.stages import doing, stage

__all__ = ["compare", "compared", "methods_of"]

_log = logging.getLogger("tensoropt")


def compare(
    model: Any = None,
    topology: Topology | str | None = None,
    *,
    methods: Sequence[str | Options] | None = None,
    memory_bytes: float | None = None,
    batch_size: int | None = None,
    feed: str = "data_parallel",
    costs: str | None = None,
    overlap: bool = False,
    recompute: bool | None = None,
    micro_batches: int | None = None,
) -> Comparison:
    """Compares the strategies that all searches and baselines choose, by their predicted costs.

    Nothing runs; with ``topology`` it needs neither MPI nor devices. All methods are priced by the same tables.
    ``ft``, ``pase`` and ``optcnn`` search over the operators that decide, which the others follow. Methods
    that offer several strategies show the fastest that fits. One that does not apply is in the table with its reason.

    Times are predicted in two ways: all added (TensorOpt Eq. 1), by which methods choose, and simulated (FlexFlow
    section 5), by which ``mcmc`` chooses. When a plan runs, collectives keep devices busy, and so they do in simulated
    steps: these are shorter than the sum only where devices do different things. ``overlap`` lets links move data while
    devices compute, as FlexFlow does, for machines that can.

    Ctrl-C ends a comparison, which keeps what it has: chains give their best so far, and rows of what was not finished
    say so. Before the first method is done, there is nothing to keep, and it raises as usual.

    Args:
        model: a loss of the model under construction, by default the model as it is; a logical :class:`Graph`; or a
            plan, for the model that it is for, such as the ``tensoropt_plan`` of a function or Keras model.
        topology: the cluster, or a preset's name; by default the one that ``init`` collected.
        methods: searches and baselines by name, of which those by Markov chains may have options
            (``tensoropt.Mcmc(seconds=10)``); by default all there are (`tensoropt.search.finders`), those last that
            begin where others are best. One that is there again, with other options, has a number
            behind its name: ``mcmc (2)``.
        memory_bytes: limit per device; by default the device's memory less a reserve of a tenth of the plan.
        batch_size: size of the first dimension of placeholders that leave it open.
        feed: see :func:`find_strategy`.
        costs: see there; a ``Graph`` has analytic ones, as a plan of a model that is gone.
        overlap: whether simulated times have communication beside computation, and methods by Markov chains that are
            given by name search so; ``tensoropt.Mcmc(…)`` has its own.
        recompute: whether operators may be made again in the backward pass; of a plan as there, else not.
        micro_batches: how many a step has; of a plan as there, else one. Steps of several, or in which operators are
            made again, are not simulated.

    Returns:
        The table: ``show()`` prints it, ``to_json()`` gives it as text, and ``plan("megatron")`` is the strategy of a
        row, for :func:`show_strategy` or :func:`find_strategy`.

    Raises:
        PlanError: an unknown method, a batch that devices do not divide, an unknown way to feed, an ``overlap`` that is
            neither True nor False.
        MicroBatchError: a step cannot be split in time.
        GraphError: a loss of another model, or one that nothing minimizes.
        SessionError: before ``init``, if no topology is given.

    Example::

        loss = create_model(...)
        tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
        tensoropt.compare(loss, tensoropt.cluster.preset("p100")).show()
    """
    model = as_plan(model)
    asked = None if methods is None else listed("compare", "methods", methods, "['ft', 'megatron']")
    names = "all" if asked is None else [getattr(method, "name", method) for method in asked]
    what = f"compare(methods={names}, memory_bytes={memory_bytes}, feed={feed!r}, recompute={recompute}, "
    what += f"micro_batches={micro_batches!r})"
    is_here = isinstance(model, Plan) and planned_as("compare", model) is not None
    with job_of("compare", model) if is_here else contextlib.nullcontext(current_job()) as job:
        where = where_to_plan("compare", topology, job.topology)
        with job.world.step(what):
            chosen = methods_of(asked, memory_bytes, overlap, batch_size)
            if micro_batches is not None:
                check_micro_batches("compare", micro_batches, auto=False)
            planner = _planner(job, model, is_here, batch_size, feed)
        imported = planner.imported
        job.world.agree_on_model(imported)
        split = (planner.of_plan(model) if isinstance(model, Plan) else planner).with_steps(micro_batches, recompute)
        if imported.tf_graph is not None:
            settle_costs(job, split, where, costs)
        with stage("compare"):
            found = job.world.on_rank_0(what, lambda: compared(split, where, chosen, memory_bytes, overlap))
    rows = [
        row if row.plan is None else dataclasses.replace(row, plan=row.plan.of(imported.graph)) for row in found.rows
    ]
    return dataclasses.replace(found, rows=tuple(rows))


def _planner(job: Job, model: Any, is_here: bool, batch_size: int | None, feed: str) -> Planner:
    """The planner of a loss's model, of a graph, or of what a plan is for."""
    if isinstance(model, Plan | Graph):
        if batch_size is not None:
            raise PlanError(
                f"compare: batch_size is of a model's open placeholders; a {type(model).__name__} has all sizes, got "
                f"{batch_size}. Leave it out."
            )
        if is_here:
            return job.planner(feed)
        graph = graph_of("compare", model) if isinstance(model, Plan) else model
        return Planner(ImportedModel(graph, None, ()), feed, Model())
    _check_loss(model)
    job.import_model(batch_size)
    return job.planner(feed)


def compared(
    planner: Planner, topology: Topology, methods: Sequence[Finder], memory_bytes: float | None, overlap: bool
) -> Comparison:
    """As :func:`compare` with methods of :func:`methods_of`, of a model that is imported, on this rank alone."""
    limit = MemoryLimit.of(topology.device.memory_bytes, memory_bytes)
    began = time.perf_counter()
    space = planner.space(topology)
    space.problem  # noqa: B018  # priced here, once for all methods
    tables_s = time.perf_counter() - began
    rows: list[ComparisonRow] = []
    known: list[Known] = []
    for number, method in enumerate(methods, 1):
        doing(f"{number} of {len(methods)} methods, {method.name}")
        try:
            row, interrupted = _row(planner, topology, method, limit, known, overlap)
        except KeyboardInterrupt:
            if not rows:
                raise  # there is nothing to keep
            row = ComparisonRow(method.name, method.kind, reason="ended by Ctrl-C before it had a strategy")
            interrupted = True
        rows.append(row)
        _log.debug("compare: %s took %.3g s", row.method, row.search_s or 0.0)
        if interrupted:
            reason = "not compared: Ctrl-C ended the comparison"
            rows += [ComparisonRow(one.name, one.kind, reason=reason) for one in methods[len(rows) :]]
            break
    return Comparison(
        topology.name, topology.device_count, str(limit), planner.batch(), overlap, tables_s, _told_apart(rows)
    )


def _told_apart(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    """Rows of one method with their numbers, from the second on."""
    counts: Counter[str] = Counter()
    result = []
    for row in rows:
        counts[row.method] += 1
        number = counts[row.method]
        result.append(row if number == 1 else dataclasses.replace(row, method=f"{row.method} ({number})"))
    return tuple(result)


def _row(
    planner: Planner, topology: Topology, method: Finder, limit: MemoryLimit, known: list[Known], overlap: bool
) -> tuple[ComparisonRow, bool]:
    """A method's row, and whether Ctrl-C ended it with the best so far; what it found is known from then on.

    Raises:
        KeyboardInterrupt: Ctrl-C, before there was anything.
    """
    if method.prepare is not None:
        method.prepare()
    began = time.perf_counter()
    try:
        found = planner.find(topology, method, limit, known)
    except TensorOptError as error:
        reason = str(error).removeprefix(f"{method.kind} {method.name!r}: ")
        return ComparisonRow(method.name, method.kind, search_s=time.perf_counter() - began, reason=reason), False
    search_s = time.perf_counter() - began
    space, frontier = found.space, found.frontier
    point = found.fastest(limit)
    plan = planner.plan_found(topology, found, point, method.name, limit)
    # Of stages through which micro-batches go at once, a plan has the time and the memory.
    memory_bytes = plan.memory_bytes if plan.micro_batches > 1 else found.fullest_bytes(point)
    simulated_s = step_seconds(space, point, overlap=overlap) if planner.is_simulated else None
    fits = memory_bytes <= limit.limit_bytes
    if fits and simulated_s is not None:
        known.append(Known(simulated_s, space, point.assignment))
    row = ComparisonRow(
        method.name,
        method.kind,
        time_s=plan.time_s,
        simulated_time_s=simulated_s,
        memory_bytes=memory_bytes,
        network_time_s=float(space.network_seconds(point.assignment, point.alternatives)[0]),
        network_bytes=sent_bytes(plan),
        search_s=search_s,
        fits=fits,
        strategies=len(frontier),
        exact=frontier.exact if len(frontier) > 1 else None,
        searched=frontier.searched,
        plan=plan,
    )
    return row, found.interrupted


def methods_of(
    methods: Sequence[Any] | None, memory_bytes: float | None, overlap: Any, batch_size: int | None = None
) -> tuple[Finder, ...]:
    """The methods of some names, or all.

    Raises:
        PlanError: one is unknown, there is none, or the memory or the batch is no number above 0.
    """
    chosen = [_finder(method, overlap) for method in ([one.name for one in finders()] if methods is None else methods)]
    if not chosen:
        raise PlanError("compare: methods must have at least one, got none. Leave it out for all.")
    check_sizes("compare", batch_size, memory_bytes)
    if not isinstance(overlap, bool | np.bool_):
        raise PlanError(f"compare: overlap must be True or False, got {overlap!r}. Leave it out for what runs.")
    return tuple(chosen)


def _finder(method: Any, overlap: Any) -> Finder:
    """A method's finder; one that is given by name searches as the table is simulated, if it has an option for it."""
    finder = finder_of(method)
    if finder is None:
        raise PlanError(
            f"compare: method {method!r} is unknown.{alike(method)} Use some of {known_names()}, or "
            "tensoropt.Mcmc(…); all, by default."
        )
    options: Any = finder.options
    if isinstance(method, str) and hasattr(options, "overlap"):
        return dataclasses.replace(finder, options=dataclasses.replace(options, overlap=bool(overlap)))
    return finder


def _check_loss(loss: Any) -> None:
    """Checks the loss: it must be of the model under construction, or None for the model as it is."""
    if loss is None:
        return
    built = model_to_plan()
    if getattr(loss, "graph", None) is not built.graph:
        raise GraphError(
            f"compare: model must be a loss of the model under construction, or a logical Graph, got {loss!r}. "
            "Compare before the next reset_default_graph, or leave model out."
        )
    names = [name for call in built.gradient_calls for name in call.losses]
    if getattr(loss, "name", None) not in names:
        raise GraphError(
            f"compare: nothing minimizes {loss.name!r}; there are gradients of {names}. Call "
            "optimizer.minimize(loss) first."
        )
