"""``compare``: every search and every baseline on one model and one cluster."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tensoropt.pase  # noqa: F401  # registers its search
from tensoropt.api.arguments import check_sizes, listed, where_to_plan
from tensoropt.api.costs import settle_costs
from tensoropt.api.job import current_job
from tensoropt.api.model import Model, current_model
from tensoropt.api.planning import Planner
from tensoropt.api.strategy import ImportedModel
from tensoropt.api.whole_space import only, search_whole_space, whole_space
from tensoropt.baselines import BASELINES
from tensoropt.baselines.data_parallel import data_parallel
from tensoropt.cluster import Topology
from tensoropt.errors import GraphError, PlanError, TensorOptError
from tensoropt.graph.graph import Graph
from tensoropt.mcmc import Network, Simulator, load_kernels, network_of, search_strategy
from tensoropt.plan.configuration import Configuration
from tensoropt.search.comparison import Comparison, ComparisonRow
from tensoropt.search.options import MemoryLimit
from tensoropt.search.result import Frontier, FrontierPoint, frontier_of
from tensoropt.search.space import SearchSpace
from tensoropt.search.traffic import sent_bytes

__all__ = ["METHODS", "compare"]

_log = logging.getLogger("tensoropt")


_MCMC = "mcmc"
_SOAP = "mcmc_soap"
_SEARCHES = ("ft", "pase", _MCMC, _SOAP)
# Of each chain: it starts near what is good, and tables of large models are simulated in seconds.
_PROPOSALS = 20_000
_CHAINS = 2

METHODS = ("ft", "pase", *BASELINES, _MCMC, _SOAP)
"""What is compared, in this order: ``mcmc`` begins where others are best, and ``mcmc_soap`` there too."""


def compare(
    model: Any = None,
    topology: Topology | str | None = None,
    *,
    methods: Sequence[str] | None = None,
    memory_bytes: float | None = None,
    batch_size: int | None = None,
    feed: str = "data_parallel",
    costs: str | None = None,
    slots: Mapping[str, int] | None = None,
) -> Comparison:
    """Which strategy every search and every baseline chooses, and what it is predicted to cost.

    Nothing runs; with ``topology`` it needs neither MPI nor devices. All methods are priced by the same tables.
    ``ft``, ``pase`` and ``optcnn`` search over the operators that decide, which the others follow. ``mcmc_soap``
    searches FlexFlow's whole space: it may run operators on a part of the devices and cut images by height and width,
    which is compared but does not execute yet. No other method but those that place layers on devices may do so. Of a
    method that offers several strategies, the fastest that fits is shown. One that does not apply is in the table with
    its reason.

    Times are predicted in two ways: all added (TensorOpt Eq. 1), by which methods choose, and simulated, with tasks of
    devices and links side by side (FlexFlow section 5), by which ``mcmc`` and ``mcmc_soap`` choose.

    Args:
        model: a loss of the model under construction, by default the model as it is; or a logical :class:`Graph`.
        topology: the cluster, or a preset's name; by default the one that ``init`` collected.
        methods: some of :data:`METHODS`; by default all.
        memory_bytes: limit per device; by default the device's memory less a reserve of a tenth of the plan.
        batch_size: size of the first dimension of placeholders that leave it open.
        feed: see :func:`find_strategy`.
        costs: see :func:`find_strategy`; a ``Graph`` has analytic ones.
        slots: of a ``Graph``: for each trained variable, how many tensors of its shape its optimizer keeps.

    Returns:
        The table: ``show()`` prints it, ``to_json()`` gives it as text, and ``plan("megatron")`` is the strategy of a
        row, for :func:`show_strategy`, or for :func:`find_strategy` if it is one that executes.

    Raises:
        PlanError: an unknown method, a batch that devices do not divide, an unknown way to feed.
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
    what = f"compare(methods={asked}, memory_bytes={memory_bytes}, feed={feed!r})"
    with job.step(what):
        chosen = _checked(asked, memory_bytes, batch_size)
        if isinstance(model, Graph):
            _check_graph(model, slots, batch_size)
            planner = Planner(ImportedModel(model, None, dict(slots or {}), ()), feed, Model())
        else:
            _check_loss(model, slots)
            job.import_model(batch_size)
            planner = job.planner(feed)
    job.agree("model", planner.imported.graph.fingerprint())
    if not isinstance(model, Graph):
        settle_costs(job, planner, where, costs)
    return job.on_rank_0(what, lambda: _compare(planner, where, chosen, memory_bytes))


def _compare(planner: Planner, topology: Topology, methods: Sequence[str], memory_bytes: float | None) -> Comparison:
    limit = MemoryLimit.of(topology.device.memory_bytes, memory_bytes)
    began = time.perf_counter()
    space = planner.space(topology)
    space.problem  # noqa: B018  # priced here, once for all methods
    tables_s = time.perf_counter() - began
    common = _Simulation(space)
    rows = []
    for method in methods:
        rows.append(_row(planner, topology, method, limit, common))
        _log.info("compare: %s took %.3g s", method, rows[-1].search_s or 0.0)
    return Comparison(topology.name, topology.device_count, str(limit), planner.batch(), tables_s, tuple(rows))


class _Simulation:
    """Simulated times of strategies of a space, whose tasks are made once."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._known: list[tuple[float, tuple[int, ...]]] = []  # seconds of strategies that fit
        self._placed: list[dict[str, Configuration]] = []  # those of other spaces

    @functools.cached_property
    def network(self) -> Network:
        """The tasks."""
        return network_of(self.space)

    def seconds(self, point: FrontierPoint) -> float:
        """Of a strategy. Tasks keep all copies; what it takes to make some again is added in full."""
        kept = float(self.space.problem.costs(np.array(point.assignment))[0][0])
        return Simulator(self.network, point.assignment).makespan_s + max(0.0, point.time_s - kept)

    def remember(self, seconds: float, point: FrontierPoint) -> None:
        """Takes a strategy that fits as one to begin at."""
        self._known.append((seconds, tuple(point.assignment)))

    def remember_placed(self, space: SearchSpace, point: FrontierPoint) -> None:
        """Takes a strategy of another space that fits as one that ``mcmc_soap`` may begin at."""
        self._placed.append(_configurations(space, point.assignment))

    def search_soap(self, limit: MemoryLimit, slots: Mapping[str, int]) -> tuple[SearchSpace, Frontier]:
        """The same over the whole space, and the space of what was found.

        It begins at the best that is known, or at data parallelism.
        """
        first = [*self._placed, *(_configurations(self.space, known) for _, known in sorted({*self._known}))]
        first = first or [_configurations(self.space, self.space.assignment(data_parallel(self.space)))]
        whole = whole_space(self.space, slots)
        found = search_whole_space(whole, first, slots=slots, memory_bytes=limit.limit_bytes, proposals=_PROPOSALS)
        where = only(whole, found.configurations, slots)
        assignment = np.zeros(len(where.operators), np.int64)
        return where, frontier_of(where.problem, assignment, exact=False, eliminations=(), seconds=found.seconds)

    def search(self, limit: MemoryLimit) -> Frontier:
        """The strategy of least simulated time that Markov chains find (FlexFlow section 6).

        They begin at the two best of what is known, or at data parallelism where nothing is.
        """
        space = self.space
        first = [assignment for _, assignment in sorted({*self._known})[:_CHAINS]]
        first = first or [space.assignment(data_parallel(space))]
        found = search_strategy(
            space, initial=first, memory_bytes=limit.limit_bytes, iterations=_PROPOSALS, network=self.network
        )
        return frontier_of(space.problem, found.assignment, exact=False, eliminations=(), seconds=found.seconds)


def _row(
    planner: Planner, topology: Topology, method: str, limit: MemoryLimit, simulation: _Simulation
) -> ComparisonRow:
    kind = "search" if method in _SEARCHES else "baseline"
    if method in (_MCMC, _SOAP):
        load_kernels()  # which is no part of a search
    began = time.perf_counter()
    try:
        if method == _MCMC:
            where, found = simulation.space, simulation.search(limit)
        elif method == _SOAP:
            where, found = simulation.search_soap(limit, planner.imported.slots)
        else:
            where, found = planner.found_by(topology, method)
    except TensorOptError as error:
        reason = str(error).removeprefix(f"baseline {method!r}: ")
        return ComparisonRow(method, kind, search_s=time.perf_counter() - began, reason=reason)
    search_s = time.perf_counter() - began
    point = _chosen(found, limit)
    memory_bytes = point.memory_bytes
    apart = where is not simulation.space
    if apart:  # devices have different amounts, of which the greatest counts
        memory_bytes = float(where.device_memory(point.assignment, point.alternatives).max())
    simulated_s = (_Simulation(where) if apart else simulation).seconds(point)
    if memory_bytes <= limit.limit_bytes and apart:
        simulation.remember_placed(where, point)
    elif memory_bytes <= limit.limit_bytes:
        simulation.remember(simulated_s, point)
    plan = planner.plan_found(topology, where, found, point, method, limit)
    return ComparisonRow(
        method,
        kind,
        time_s=point.time_s,
        simulated_time_s=simulated_s,
        memory_bytes=memory_bytes,
        network_time_s=float(where.network_seconds(point.assignment, point.alternatives)[0]),
        network_bytes=sent_bytes(plan, where),
        search_s=search_s,
        fits=memory_bytes <= limit.limit_bytes,
        strategies=len(found),
        exact=found.exact if len(found) > 1 else None,
        searched=found.searched,
        plan=plan,
    )


def _configurations(space: SearchSpace, assignment: Sequence[int]) -> dict[str, Configuration]:
    """The configurations of a strategy by operator."""
    return {op.name: space.choices(op.name)[index] for op, index in zip(space.operators, assignment, strict=True)}


def _chosen(found: Frontier, limit: MemoryLimit) -> FrontierPoint:
    """The fastest that fits, or the smallest."""
    fits = float(found.memory_bytes.min()) <= limit.limit_bytes
    return found.best(limit.limit_bytes) if fits else found.point(int(found.memory_bytes.argmin()))


def _checked(methods: Sequence[str], memory_bytes: float | None, batch_size: int | None) -> tuple[str, ...]:
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise PlanError(
            f"compare: method {unknown[0]!r} is unknown. Use some of {', '.join(map(repr, METHODS))}; all, by default."
        )
    if not methods:
        raise PlanError("compare: methods must have at least one, got none. Leave it out for all.")
    check_sizes("compare", batch_size, memory_bytes)
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
