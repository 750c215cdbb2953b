"""``compare``: every search and every baseline on one model and one cluster."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tensoropt.pase  # noqa: F401  # registers its search
from tensoropt.api.arguments import check_sizes, listed, where_to_plan
from tensoropt.api.chains import Chains, fastest_that_fits
from tensoropt.api.costs import settle_costs
from tensoropt.api.job import current_job
from tensoropt.api.mcmc import MCMC, MCMC_SOAP, Mcmc, as_mcmc
from tensoropt.api.model import Model, current_model
from tensoropt.api.planning import Planner
from tensoropt.api.strategy import ImportedModel
from tensoropt.baselines import BASELINES
from tensoropt.cluster import Topology
from tensoropt.errors import GraphError, PlanError, TensorOptError
from tensoropt.graph.graph import Graph
from tensoropt.mcmc import load_kernels
from tensoropt.search.comparison import Comparison, ComparisonRow
from tensoropt.search.options import MemoryLimit
from tensoropt.search.traffic import sent_bytes
from tensoropt.stages import doing, stage

__all__ = ["METHODS", "compare"]

_log = logging.getLogger("tensoropt")


_SEARCHES = ("ft", "pase", MCMC, MCMC_SOAP)

METHODS = ("ft", "pase", *BASELINES, MCMC, MCMC_SOAP)
"""What is compared, in this order: ``mcmc`` begins where others are best, and ``mcmc_soap`` there too."""


def compare(
    model: Any = None,
    topology: Topology | str | None = None,
    *,
    methods: Sequence[str | Mcmc] | None = None,
    memory_bytes: float | None = None,
    batch_size: int | None = None,
    feed: str = "data_parallel",
    costs: str | None = None,
    slots: Mapping[str, int] | None = None,
    overlap: bool = False,
) -> Comparison:
    """Which strategy every search and every baseline chooses, and what it is predicted to cost.

    Nothing runs; with ``topology`` it needs neither MPI nor devices. All methods are priced by the same tables.
    ``ft``, ``pase`` and ``optcnn`` search over the operators that decide, which the others follow. ``mcmc_soap``
    searches FlexFlow's whole space: it may run operators on a part of the devices and cut images by height and width,
    which is compared but does not execute yet. No other method but those that place layers on devices may do so. Of a
    method that offers several strategies, the fastest that fits is shown. One that does not apply is in the table with
    its reason.

    Times are predicted in two ways: all added (TensorOpt Eq. 1), by which methods choose, and simulated (FlexFlow
    section 5), by which ``mcmc`` and ``mcmc_soap`` choose. When a plan runs, collectives keep devices busy, and so they
    do in simulated steps: these are shorter than the sum only where devices do different things. ``overlap`` lets links
    move data while devices compute, as FlexFlow does, for machines that can.

    Ctrl-C ends a comparison, which keeps what it has: chains give their best so far, and rows of what was not finished
    say so. Before the first method is done, there is nothing to keep, and it raises as usual.

    Args:
        model: a loss of the model under construction, by default the model as it is; or a logical :class:`Graph`.
        topology: the cluster, or a preset's name; by default the one that ``init`` collected.
        methods: some of :data:`METHODS`, of which those by Markov chains may have options
            (``tensoropt.Mcmc(seconds=10)``); by default all. One that is there again, with other options, has a number
            behind its name: ``mcmc (2)``.
        memory_bytes: limit per device; by default the device's memory less a reserve of a tenth of the plan.
        batch_size: size of the first dimension of placeholders that leave it open.
        feed: see :func:`find_strategy`.
        costs: see :func:`find_strategy`; a ``Graph`` has analytic ones.
        slots: of a ``Graph``: for each trained variable, how many tensors of its shape its optimizer keeps.
        overlap: whether simulated times have communication beside computation, and methods by Markov chains that are
            given by name search so; ``tensoropt.Mcmc(…)`` has its own.

    Returns:
        The table: ``show()`` prints it, ``to_json()`` gives it as text, and ``plan("megatron")`` is the strategy of a
        row, for :func:`show_strategy`, or for :func:`find_strategy` if it is one that executes.

    Raises:
        PlanError: an unknown method, a batch that devices do not divide, an unknown way to feed, an ``overlap`` that is
            neither True nor False.
        GraphError: a loss of another model, or one that nothing minimizes.
        SessionError: before ``init``, if no topology is given.

    Example::

        loss = create_model(...)
        tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
        tensoropt.compare(loss, tensoropt.cluster.preset("p100")).show()
    """
    job = current_job()
    where = where_to_plan("compare", topology, job.topology)
    asked = list(METHODS) if methods is None else listed("compare", "methods", methods, "['ft', 'megatron']")
    names = [method.name if isinstance(method, Mcmc) else method for method in asked]
    what = f"compare(methods={names}, memory_bytes={memory_bytes}, feed={feed!r})"
    with job.step(what):
        chosen = _checked(asked, memory_bytes, batch_size, overlap)
        if isinstance(model, Graph):
            _check_graph(model, slots, batch_size)
            planner = Planner(ImportedModel(model, None, dict(slots or {}), ()), feed, Model())
        else:
            _check_loss(model, slots)
            job.import_model(batch_size)
            planner = job.planner(feed)
    job.agree_on_model(planner.imported)
    if not isinstance(model, Graph):
        settle_costs(job, planner, where, costs)
    with stage("compare"):
        return job.on_rank_0(what, lambda: _compare(planner, where, chosen, memory_bytes, overlap))


def _compare(
    planner: Planner, topology: Topology, methods: Sequence[str | Mcmc], memory_bytes: float | None, overlap: bool
) -> Comparison:
    limit = MemoryLimit.of(topology.device.memory_bytes, memory_bytes)
    began = time.perf_counter()
    space = planner.space(topology)
    space.problem  # noqa: B018  # priced here, once for all methods
    tables_s = time.perf_counter() - began
    chains = Chains(planner, topology, overlap=overlap)
    rows: list[ComparisonRow] = []
    for number, method in enumerate(methods, 1):
        doing(f"{number} of {len(methods)} methods, {method if isinstance(method, str) else method.name}")
        try:
            row, interrupted = _row(chains, method, limit)
        except KeyboardInterrupt:
            if not rows:
                raise  # there is nothing to keep
            row, interrupted = _without(method, "ended by Ctrl-C before it had a strategy"), True
        rows.append(row)
        _log.debug("compare: %s took %.3g s", row.method, row.search_s or 0.0)
        if interrupted:
            rows += [_without(one, "not compared: Ctrl-C ended the comparison") for one in methods[len(rows) :]]
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


def _row(chains: Chains, method: str | Mcmc, limit: MemoryLimit) -> tuple[ComparisonRow, bool]:
    """A method's row, and whether Ctrl-C ended it with the best so far.

    Raises:
        KeyboardInterrupt: Ctrl-C, before there was anything.
    """
    options = as_mcmc(method)
    if options is not None and options is not method:
        options = dataclasses.replace(options, overlap=chains.overlap)
    name = method if isinstance(method, str) else method.name
    kind = "search" if name in _SEARCHES else "baseline"
    if options is not None:
        load_kernels()  # which is no part of a search
    planner, topology = chains.planner, chains.topology
    began = time.perf_counter()
    try:
        found = planner.found_by(topology, name) if options is None else chains.search(options, limit)
    except TensorOptError as error:
        reason = str(error).removeprefix(f"baseline {name!r}: ")
        return ComparisonRow(name, kind, search_s=time.perf_counter() - began, reason=reason), False
    search_s = time.perf_counter() - began
    where, frontier = found.space, found.frontier
    point = fastest_that_fits(frontier, limit)
    memory_bytes = found.fullest_bytes(point)
    simulated_s = chains.seconds(where, point)
    if memory_bytes <= limit.limit_bytes:
        chains.remember(where, simulated_s, point)
    plan = planner.plan_found(topology, found, point, name, limit)
    row = ComparisonRow(
        name,
        kind,
        time_s=point.time_s,
        simulated_time_s=simulated_s,
        memory_bytes=memory_bytes,
        network_time_s=float(where.network_seconds(point.assignment, point.alternatives)[0]),
        network_bytes=sent_bytes(plan, where),
        search_s=search_s,
        fits=memory_bytes <= limit.limit_bytes,
        strategies=len(frontier),
        exact=frontier.exact if len(frontier) > 1 else None,
        searched=frontier.searched,
        plan=plan,
    )
    return row, found.interrupted


def _without(method: str | Mcmc, reason: str) -> ComparisonRow:
    """The row of a method that Ctrl-C left without a strategy."""
    name = method if isinstance(method, str) else method.name
    return ComparisonRow(name, "search" if name in _SEARCHES else "baseline", reason=reason)


def _checked(
    methods: Sequence[Any], memory_bytes: float | None, batch_size: int | None, overlap: Any
) -> tuple[str | Mcmc, ...]:
    unknown = [method for method in methods if not isinstance(method, Mcmc) and method not in METHODS]
    if unknown:
        raise PlanError(
            f"compare: method {unknown[0]!r} is unknown. Use some of {', '.join(map(repr, METHODS))}, or "
            "tensoropt.Mcmc(…); all, by default."
        )
    if not methods:
        raise PlanError("compare: methods must have at least one, got none. Leave it out for all.")
    check_sizes("compare", batch_size, memory_bytes)
    if not isinstance(overlap, bool | np.bool_):
        raise PlanError(f"compare: overlap must be True or False, got {overlap!r}. Leave it out for what runs.")
    return tuple(methods)


def _check_graph(graph: Graph, slots: Any, batch_size: int | None) -> None:
    """Lets arguments through that go with a logical graph."""
    if batch_size is not None:
        raise PlanError(
            f"compare: batch_size is of a model's open placeholders; a Graph has all sizes, got {batch_size}. Leave it "
            "out."
        )
    variables = [op.name for op in graph.of_type("Variable")]
    counts = {} if slots is None else slots
    right = isinstance(counts, Mapping) and all(
        name in variables and isinstance(count, int | np.integer) and count >= 0 for name, count in counts.items()
    )
    if not right:
        raise PlanError(
            f"compare: slots must say of some variables how many tensors an optimizer keeps of each, got {slots!r}. "
            f"Variables are {', '.join(map(repr, variables)) or 'none'}; give for example {{name: 1}}."
        )


def _check_loss(loss: Any, slots: Mapping[str, int] | None) -> None:
    """Lets a loss of the model under construction through, or None for the model as it is."""
    if slots is not None:
        raise PlanError("compare: slots are of a Graph; a model's optimizers say how many they keep. Leave slots out.")
    if loss is None:
        return
    built = current_model()
    if getattr(loss, "graph", None) is not built.graph:
        raise GraphError(
            f"compare: model must be a loss of the model under construction, or a logical Graph, got {loss!r}. "
            "Compare before the next reset_default_graph, or leave model out."
        )
    names = [step.loss for step in built.train_steps]
    if getattr(loss, "name", None) not in names:
        raise GraphError(
            f"compare: nothing minimizes {loss.name!r}; training steps have the losses {names}. Call "
            "optimizer.minimize(loss) first."
        )
