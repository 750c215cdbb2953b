"""Searches for one model, on clusters of several sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from tensoropt.api.find.pins import Pins
from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.garbage import collecting_new_objects
from tensoropt.api.mirror.model import Model
from tensoropt.baselines import apply_baseline
from tensoropt.baselines.data_parallel import data_parallel
from tensoropt.cluster import Topology
from tensoropt.cluster.scaling import scaled
from tensoropt.cost import AnalyticCost, CostModel, OpProfile, ProfiledCost
from tensoropt.errors import GraphError, InfeasibleError, MicroBatchError, PlanError, ProblemError, did_you_mean
from tensoropt.ft.space_frontier import SpaceTracker
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import has_rule
from tensoropt.layout import Mesh, StepKind
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import Frontier, FrontierPoint
from tensoropt.problem.provenance import Provenance
from tensoropt.search.columns import SpaceColumns, least_alone
from tensoropt.search.finding import NO_LIMIT, Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.search.registry import Finder, Options, get_finder
from tensoropt.space.flops import peak_flops_per_s, step_flops
from tensoropt.space.space import SearchSpace, feed_layout
from tensoropt.stages import doing

__all__ = ["FEEDS", "Planner"]

_log = logging.getLogger("tensoropt")
_Found = TypeVar("_Found")
FEEDS = ("data_parallel", "global")
_EVERYWHERE = "every operator on all devices"
_AS_PRICED = "as priced; TensorFlow's ops run one by one"
# Of micro-batches, all numbers are tried that are not larger, and beyond some of those up to the last. What stages of a
# pipeline do with each micro-batch is in the program once more, which takes long to build and to start.
_FEW_MICRO_BATCHES, _MOST_MICRO_BATCHES = 8, 64
# Costs of a point are the same sums of the same tables; the slack is for the decimals of a file.
_COST_TOLERANCE = 1e-9
_LISTED = 4  # types of operations in a group that a warning names


class Planner:
    """Searches strategies of one imported model.

    The space and what was found in it last are kept: options and points are mostly asked for one after
    another, on one cluster.

    Attributes:
        imported: the model.
        feed: how inputs come: ``data_parallel``, each rank its share of the batch (TensorOpt section 4.2), or
            ``global``, every rank the whole.
        model: what was imported.
        micro_batches: how many a step has.
        recompute: whether operators may be made again in the backward pass.
    """

    def __init__(
        self, imported: ImportedModel, feed: str, model: Model, micro_batches: int = 1, recompute: bool = False
    ) -> None:
        """Takes a model.

        Raises:
            PlanError: an unknown way to feed.
            GraphError: a model in which there is nothing to plan.
        """
        if feed not in FEEDS:
            raise PlanError(
                f"find_strategy: feed {feed!r} is unknown.{did_you_mean(feed, FEEDS)} Use one of "
                f"{', '.join(map(repr, FEEDS))}."
            )
        if not imported.graph.training:
            raise GraphError(
                "The model has nothing to plan: there must be a training step, or at least an operator that computes "
                "something, got placeholders at most. Build a loss and call optimizer.minimize(loss)."
            )
        self.imported = imported
        self._asked = feed
        self.feed = "global" if imported.graph.batch_size() == 1 else feed  # nobody can share one sample
        self.model = model
        self.micro_batches = micro_batches
        self.recompute = recompute
        self._steps = {(micro_batches, recompute): self}  # planners of the same model
        self._space: tuple[str, SearchSpace] | None = None
        self._frontier: tuple[str, Frontier] | None = None
        self._least: dict[int, float] = {}  # by device count, where it is exact
        self._alone: dict[int, float] = {}  # by device count, `least_alone`
        self._warned = False
        self._profile: OpProfile | None = None

    def with_steps(self, micro_batches: int | None = None, recompute: bool | None = None) -> Planner:
        """The planner of the same model with other steps, which goes by the same measurements; it is made once.

        Args:
            micro_batches: how many a step has; as here if None.
            recompute: whether operators may be made again; as here if None.
        """
        key = (micro_batches or self.micro_batches, self.recompute if recompute is None else recompute)
        if key not in self._steps:
            other = self._steps[key] = type(self)(self.imported, self._asked, self.model, *key)
            other._steps, other._profile, other._warned = self._steps, self._profile, True
        return self._steps[key]

    def of_plan(self, plan: Plan) -> Planner:
        """The planner whose steps are as those of a plan of this model."""
        return self.with_steps(plan.micro_batches, bool(plan.again))

    def numbers_of_micro_batches(self, *, in_stages: bool = False) -> tuple[int, ...]:
        """The numbers of micro-batches above one that are tried where none is asked for, ascending.

        They are the divisors of the batch up to eight, and of those up to 64 each that is twice the one before or more.

        Args:
            in_stages: whether they are to go through a pipeline; there are no more than eight then.
        """
        batch, found = self.imported.graph.batch_size() or 1, [1]
        for times in range(2, (_FEW_MICRO_BATCHES if in_stages else _MOST_MICRO_BATCHES) + 1):
            if batch % times == 0 and (times <= _FEW_MICRO_BATCHES or times >= 2 * found[-1]):
                found.append(times)
        return tuple(found[1:])

    def fastest_split(
        self,
        topology: Topology,
        limit: MemoryLimit,
        find: Callable[[Planner], _Found | None],
        seconds: Callable[[_Found], float],
    ) -> _Found | None:
        """The fastest of what is found for steps in micro-batches, of more and more until more are slower.

        Args:
            topology: the devices.
            limit: of each; numbers in which nothing fits are passed by, mostly without a search.
            find: by the planner of such steps; None or an error where there is nothing.
            seconds: of what was found, which the bound of all strategies that fit bounds, too.
        """
        best: tuple[Planner, _Found] | None = None
        for times in self.numbers_of_micro_batches():
            steps = self.with_steps(times)
            try:
                if steps.surpasses(topology, limit.limit_bytes):
                    continue
                # More parts have more to start.
                if best is not None and steps.is_slower(topology, limit.limit_bytes, seconds(best[1]), best[0]):
                    break
                found = find(steps) if steps.fits(topology, limit.limit_bytes) else None
            except (MicroBatchError, InfeasibleError) as error:
                _log.debug("%d micro-batches: %s", times, error)
                continue
            if found is not None and best is not None and seconds(found) >= seconds(best[1]):
                break
            best = best if found is None else (steps, found)
        return None if best is None else best[1]

    def suits(self, imported: ImportedModel, feed: str) -> bool:
        """Tells whether this planner's results hold for another import of the model."""
        mine = self.imported
        return (mine.graph.fingerprint(), self._asked) == (imported.graph.fingerprint(), feed)

    def calibrate(self, profile: OpProfile | None) -> None:
        """Goes by what was measured of this machine's operators from now on; by the analytic model if None."""
        if profile != self._profile:
            for planner in self._steps.values():
                planner._profile, planner._space, planner._frontier = profile, None, None

    @property
    def profile(self) -> OpProfile | None:
        """The profile of this machine's operators; None where costs follow the analytic model."""
        return self._profile

    @property
    def _costs(self) -> Literal["analytic", "measured"]:
        return "analytic" if self._profile is None else "measured"

    def _cost(self, topology: Topology) -> CostModel:
        if self._profile is None:
            return AnalyticCost(topology, self.imported.graph)
        return ProfiledCost(topology, self.imported.graph, self._profile)

    # ---------------------------------------------------------------------------------------------------- the model

    def inputs(self) -> tuple[Operator, ...]:
        """Returns the inputs of the training step, without scalars."""
        graph = self.imported.graph
        return tuple(op for op in graph.inputs() if op.outputs[0].shape and op.name in graph.training)

    def batch(self) -> int | None:
        """Samples per step: the first dimension that all inputs have; None if they have different ones."""
        sizes = {op.outputs[0].shape[0] for op in self.inputs()}
        return sizes.pop() if len(sizes) == 1 else None

    def undivided(self, devices: int) -> str | None:
        """Why ``devices`` cannot share the batch; None if they can."""
        batch = self.imported.graph.batch_size()
        if self.feed != "data_parallel" or batch is None or batch % devices == 0:
            return None
        op = next(op for op in self.inputs() if op.outputs[0].shape[0] == batch)
        return f"{op}: its batch of {batch} cannot be shared by {devices} devices: {batch} % {devices} != 0"

    def misfit(self, devices: int) -> str | None:
        """Returns the reason why the script's pins do not fit so many devices; None if they do, or there are none."""
        pins = self._pins()
        return None if pins is None else pins.misfit(devices)

    @property
    def is_pinned(self) -> bool:
        """True if the script has pinned how some variables are stored."""
        return self.model.pins is not None

    def _apart(self, search: str) -> PlanError:
        return PlanError(
            f"find_strategy(search={search!r}): has no strategy that stores variables as layout_map has it. Leave "
            "search out: frontier tracking keeps to it."
        )

    def _pins(self) -> Pins | None:
        found: Pins | None = None if self.model.pins is None else self.model.pins()
        return found

    def least_possible(self, devices: int, *, any_batch: bool = False) -> tuple[float, str]:
        """A bound on bytes per device that needs no search, and its reason as a clause.

        Variables, those of optimizers too, take their equal shares. And where the least on fewer devices is known, *k*
        times as many do not take less than a *k*-th of it: leaving out the mesh axes that they have more makes no piece
        more than *k* times as large. Nor do *k* times as many micro-batches take less than that of what operators take
        at least, each alone.

        Args:
            devices: how many.
            any_batch: whether it must be a bound for every size of the batch.
        """
        graph = self.imported.graph
        total = sum(op.outputs[0].size_bytes for op in graph.variables() if op.name in graph.training)
        shares = total / devices
        bounds = [(shares, f"variables alone take {shares:,.0f} bytes per device")]
        known = [(1, fewer, least) for fewer, least in sorted(self._least.items())]
        for steps in self._steps.values():
            parts, rest = divmod(self.micro_batches, steps.micro_batches)
            if not rest and steps.recompute == self.recompute:
                known += [(parts, fewer, least) for fewer, least in sorted(steps._alone.items())]
        for parts, fewer, least in known:
            if not any_batch and devices % fewer == 0 and (devices, 1) != (fewer, parts):
                bound = least * fewer / devices / parts
                reason = f"since {least:,.0f} are needed on {fewer} device{'s' * (fewer > 1)}"
                reason += f" in micro-batches {parts} times as large" * (parts > 1)
                bounds.append((bound, f"no strategy takes less than {bound:,.0f} bytes per device, {reason}"))
        return max(bounds, key=lambda bound: bound[0])

    # --------------------------------------------------------------------------------------------------- the search

    def searched_on(self, fingerprint: str) -> Topology | None:
        """The cluster of a space that is kept, for any steps, if it has this fingerprint."""
        spaces = (planner._space for planner in self._steps.values())
        found = (space[1].cost.topology for space in spaces if space is not None and space[0] == fingerprint)
        return next(found, None)

    def space(self, topology: Topology) -> SearchSpace:
        """All strategies on a cluster; the space of before, if the cluster is the same.

        Raises:
            PlanError: if the devices do not divide the batch that they are to share, or what is pinned.
        """
        key = topology.fingerprint()
        if self._space is None or self._space[0] != key:
            undivided = self.undivided(topology.device_count)
            if undivided is not None:
                raise PlanError(
                    f"{undivided}. Use a batch that {topology.device_count} divides, another number of ranks, "
                    "or feed='global', by which every rank is fed the whole batch."
                )
            cost = self._cost(topology)
            cost.iteration_seconds += self._gathering_seconds(cost)
            if not self._warned:
                _warn_of_missing_rules(self.imported.graph, cost)
                self._warned = True
            inputs = [self._piece(op) for op in self.inputs()]
            allowed = _fed(inputs, cost.mesh) if self.feed == "data_parallel" else {}
            pins = self._pins()
            if pins is not None:
                allowed |= pins.configurations(self.imported.graph, cost.mesh)
            doing(f"pricing strategies on {topology.device_count} devices")
            space = SearchSpace(
                self.imported.graph,
                cost,
                allowed=allowed,
                reuse=True,
                recompute=self.recompute,
                micro_batches=self.micro_batches,
            )
            self._space = key, space
        return self._space[1]

    def _gathering_seconds(self, cost: CostModel) -> float:
        """The time in which ranks bring their shares of the batch together, as micro-batches have rows of each."""
        if self.micro_batches == 1 or self.feed != "data_parallel" or not cost.mesh.axes:
            return 0.0
        layouts = [(op.outputs[0], feed_layout(op.outputs[0], cost.mesh)) for op in self.inputs()]
        shares = np.array([spec.size_bytes / cost.mesh.size for spec, layout in layouts if layout is not None], float)
        return float(cost.step_seconds(StepKind.ALL_GATHER, cost.mesh.axes, shares).sum())

    def space_with(self, topology: Topology, plan: Plan) -> SearchSpace:
        """A space that has a plan of this model's steps on a cluster: of all strategies, or where operators are on a
        part of the devices, of the plan alone.
        """
        is_placed = any(entry.configuration.at for entry in plan.operators.values())
        return self.space_of(topology, plan) if is_placed else self.space(topology)

    def space_of(self, topology: Topology, plan: Plan) -> SearchSpace:
        """The space of a plan of this model's steps alone."""
        strategy = {op: entry.configuration for op, entry in plan.operators.items()}
        return self.space(topology).of_one_strategy(strategy)

    def _piece(self, op: Operator) -> tuple[str, int]:
        """An input, and how many samples of it a micro-batch has."""
        samples = op.outputs[0].shape[0]
        return op.name, samples // self.micro_batches if samples == self.imported.graph.batch_size() else samples

    def has_frontier(self, topology: Topology) -> bool:
        """Tells whether the frontier of a cluster is known already, so that asking for it takes no time."""
        return self._frontier is not None and self._frontier[0] == topology.fingerprint()

    @collecting_new_objects()
    def frontier(self, topology: Topology) -> Frontier:
        """All strategies on a cluster that are worth having.

        Raises:
            PlanError: if the devices do not divide the batch that they are to share.
        """
        key = topology.fingerprint()
        if self._frontier is None or not self.has_frontier(topology):
            space = self.space(topology)
            with _compiling(f"tracking the frontier on {topology.device_count} devices"):
                found = get_finder("ft").find(space).frontier
            provenance = Provenance(
                self.imported.graph.fingerprint(),
                topology,
                self.feed,
                self._costs,
                self.micro_batches,
                self.recompute,
            )
            self._frontier = key, dataclasses.replace(found, provenance=provenance)
        return self._frontier[1]

    def find(
        self, topology: Topology, search: str | Options | Finder, limit: MemoryLimit = NO_LIMIT, start: Start = ()
    ) -> Found:
        """Runs a search or a baseline for a cluster.

        Args:
            topology: the cluster.
            search: by its name, with the defaults of its options; or options.
            limit: see `Finder.find`.
            start: see `Finder.find`.

        Raises:
            PlanError: the search does not apply to the model, or the devices do not divide the batch.
            InfeasibleError: no strategy is possible, or the search found none that fits.
        """
        finder = search if isinstance(search, Finder) else get_finder(search)
        if self.is_pinned and finder.places:
            raise self._apart(finder.name)
        if finder.simulates and not self.is_simulated:
            raise PlanError(
                f"search {finder.name!r}: goes by simulated steps of whole batches in which nothing is made again, got "
                f"micro_batches={self.micro_batches}, recompute={self.recompute}. Leave search out, or micro_batches "
                "and recompute."
            )
        try:
            return finder.find(self.space(topology), limit, start)
        except ProblemError as error:
            if not self.is_pinned:
                raise
            raise self._apart(finder.name) from error

    @property
    def is_simulated(self) -> bool:
        """True if the simulator knows such steps: of whole batches, in which nothing is made again."""
        return self.micro_batches == 1 and not self.recompute

    def least_bytes(self, topology: Topology) -> float:
        """The least memory per device that any strategy takes.

        Raises:
            PlanError: if the devices do not divide the batch that they are to share.
        """
        found = self.space(topology).kept(SpaceTracker).smallest
        least = float(found.memory_bytes[0])
        if found.exact:
            self._least[topology.device_count] = least
        return least

    def fits(self, topology: Topology, limit_bytes: float) -> bool:
        """Tells whether a strategy keeps to a limit; that none does, bounds mostly tell without a search.

        Raises:
            PlanError: if the devices do not divide the batch that they are to share.
        """
        if self.surpasses(topology, limit_bytes):
            return False
        fits = self.space(topology).kept(SpaceColumns).fits(limit_bytes)
        if not fits:
            self.least_bytes(topology)  # was found on the way, and bounds that of more devices
        return fits

    def surpasses(self, topology: Topology, limit_bytes: float) -> bool:
        """Tells whether bounds without a search say that no strategy keeps to a limit.

        Raises:
            PlanError: if the devices do not divide the batch that they are to share.
        """
        count = topology.device_count
        if self.least_possible(count)[0] > limit_bytes:
            return True
        self._alone[count] = self.space(topology).kept(least_alone)
        return self._alone[count] > limit_bytes

    def is_slower(self, topology: Topology, limit_bytes: float, time_s: float, found_by: Planner) -> bool:
        """Tells whether bounds say that no strategy within a limit is faster than one of other steps.

        Args:
            topology: the devices.
            limit_bytes: of each.
            time_s: of that strategy.
            found_by: the planner of its steps. What memory was worth there mostly bounds these steps by one search.

        Raises:
            InfeasibleError: no strategy is possible.
        """
        columns = self.space(topology).kept(SpaceColumns)
        price = found_by.space(topology).kept(SpaceColumns).price(limit_bytes)
        by_price = 0.0 if price is None else columns.least_s(limit_bytes, price)
        return by_price >= time_s or columns.least_s(limit_bytes) >= time_s

    def alone_seconds(self, topology: Topology, limit_bytes: float) -> float | None:
        """Returns the time of a step on one device of a cluster; None if the step does not fit."""
        space = SearchSpace(self.imported.graph, self._cost(scaled(topology, 1)))
        only = apply_baseline("data_parallel", space)  # by which one device has the whole batch
        return float(only.time_s[0]) if only.memory_bytes[0] <= limit_bytes else None

    def network_seconds(self, topology: Topology, point: FrontierPoint) -> float:
        """The part of a strategy's time that is communication."""
        return float(self.space(topology).network_seconds(point.assignment, point.alternatives)[0])

    # ---------------------------------------------------------------------------------------------------- the plans

    @collecting_new_objects()
    def plan(self, topology: Topology, point: FrontierPoint, option: str, limit: MemoryLimit) -> Plan:
        """The plan of a point of this model's frontier on a cluster.

        Raises:
            PlanError: if it is no point of that frontier: the tables give it other costs.
        """
        space = self.space(topology)
        self._check_point(space, point)
        notes = self._notes(topology, limit, space) | {"exact": point.exact, "searched": point.searched} | _gap(point)
        if self._frontier is not None and self.has_frontier(topology):
            frontier = self._frontier[1]
            heuristic = [str(step) for step in frontier.eliminations if step.kind == "heuristic"]
            notes |= {
                "heuristic_eliminations": heuristic,
                "search_seconds": frontier.seconds,
            }
            if heuristic:
                _log.debug("the search fixed %d operators by heuristics: %s", len(heuristic), "; ".join(heuristic))
        return space.plan(point.assignment, option, notes, alternatives=point.alternatives)

    def plan_found(
        self, topology: Topology, found: Found, point: FrontierPoint, search: str, limit: MemoryLimit
    ) -> Plan:
        """The plan of a point of what a search found."""
        space = found.space
        notes = {
            **self._notes(topology, limit, space),
            "search_seconds": found.frontier.seconds,
            **_gap(point),
            **found.notes,
        }
        if point.searched is not None:
            notes["searched"] = point.searched
        return space.plan(point.assignment, search, notes, alternatives=point.alternatives)

    def data_parallel_plan(self, topology: Topology, limit: MemoryLimit) -> Plan:
        """The plan by which every device holds all variables and computes its share of the batch.

        Raises:
            PlanError: some variables are pinned.
        """
        if self.is_pinned:
            raise self._apart("data_parallel")
        space = self.space(topology)
        return space.plan(space.assignment(data_parallel(space)), "data_parallel", self._notes(topology, limit, space))

    def _notes(self, topology: Topology, limit: MemoryLimit, space: SearchSpace) -> dict[str, object]:
        return {
            "feed": self.feed,
            "memory_limit_bytes": limit.limit_bytes if math.isfinite(limit.limit_bytes) else None,  # JSON has no inf
            "memory_limit": str(limit),
            "topology": topology.fingerprint(),
            "costs": self._costs,
            "step_flops": sum(space.kept(step_flops).values()),
            "peak_flops_per_s": space.kept(peak_flops_per_s),
            **({} if space.coarsening.placed_blocks else {"space": _EVERYWHERE}),
            **({} if topology.device.fusion == "none" else {"kernels": f"{topology.device.fusion}, {_AS_PRICED}"}),
        }

    def _check_point(self, space: SearchSpace, point: FrontierPoint) -> None:
        problem = space.problem
        terms = problem.nodes + len(problem.edges)
        if len(point.assignment) == problem.nodes and len(point.alternatives) == terms:
            time, memory = problem.costs(np.array(point.assignment), np.array([point.alternatives]))
            given = (point.time_s, point.memory_bytes)
            if np.allclose((time[0], memory[0]), given, rtol=_COST_TOLERANCE, atol=0.0):
                return
        raise PlanError(
            f"find_strategy: the frontier's point of {point.time_s:.6g} s and {point.memory_bytes:,.0f} bytes must "
            "cost the same in this model's tables, but does not: operators were measured anew since, or it was made by "
            "another version of tensoropt. Call find_frontier again."
        )


@contextlib.contextmanager
def _compiling(what: str) -> Iterator[None]:
    """Says what is done, and once that loops are compiled for it, if they are."""
    from numba.core import event  # a fifth of a second, for what searches without compiled loops

    class Listener(event.Listener):
        told = False

        def on_start(self, _: Any) -> None:
            if not self.told:
                self.told = True
                doing(f"{what}, by loops that are compiled once")

        def on_end(self, _: Any) -> None:
            """Does nothing: further compilations follow."""

    doing(what)
    with event.install_listener("numba:compile", Listener()):
        yield


def _gap(point: FrontierPoint) -> dict[str, object]:
    return {} if point.gap is None else {"bound_s": point.bound_s, "gap": point.gap}


def _fed(inputs: Sequence[tuple[str, int]], mesh: Mesh) -> dict[str, tuple[Configuration, ...]]:
    """Inputs with the one configuration in which each rank loads its share of the batch.

    What ranks cannot share is no batch; they load it whole, so it is free.
    """
    shared = [name for name, samples in inputs if samples % mesh.size == 0]
    return dict.fromkeys(shared, (Configuration(("d0",) * len(mesh.axes)),)) if mesh.size > 1 else {}


def _listed(op: Operator) -> str:
    """What an operator is a group of, the first few of each type once."""
    types = list(dict.fromkeys(str(op.attrs.get("ops", "")).split()))
    more = f", and {len(types) - _LISTED} more" if len(types) > _LISTED else ""
    return f"({', '.join(types[:_LISTED])}{more})" if types else ""


def _warn_of_missing_rules(graph: Graph, cost: CostModel) -> None:
    missing: dict[str, list[Operator]] = {}
    for op in graph.operators:
        if not has_rule(op.type) and op.name in graph.training and op.outputs:  # what gives nothing is a check
            missing.setdefault(" ".join(filter(None, (op.type, _listed(op)))), []).append(op)
    for op_type, operators in sorted(missing.items()):
        size = sum(spec.size_bytes for op in operators for spec in (*graph.input_specs(op), *op.outputs))
        _log.warning(
            "%s has no rule: %d operators (first: %s) run replicated, every device doing all of their work on "
            "%s bytes of tensors, about %.3g s per step",
            op_type,
            len(operators),
            operators[0],
            f"{size:,}",
            cost.traffic_seconds(size),
        )
