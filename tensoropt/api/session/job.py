"""The job that this process is one rank of: its topology, its plan, its executor."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tensoropt.api.find.deferred_plan import DeferredPlan
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.draws import of_other_numbers
from tensoropt.api.frontend.imported_model import (
    MINI_PARALLELISM,
    ImportedModel,
    check_device_count,
    import_model,
    storable_variables,
)
from tensoropt.api.frontend.placeholders import training_placeholders
from tensoropt.api.mirror.model import Model, model_to_plan
from tensoropt.api.session.agreement import ValueDigests
from tensoropt.api.session.deferring import Deferral
from tensoropt.api.session.pipeline_session import PipelineSession
from tensoropt.api.session.reference import InitialValues
from tensoropt.api.session.rehearsal import DescribedRanks, Rehearsal
from tensoropt.api.session.seeds import Seeds, resolve_seeds, with_seeds
from tensoropt.api.session.session_config import merged_config
from tensoropt.api.session.variants import Variants
from tensoropt.api.session.world import World
from tensoropt.cluster import Topology
from tensoropt.errors import ClusterError, PlanError, SessionError
from tensoropt.exec.engines.select import check_collectives, make_engine
from tensoropt.exec.program.checkpoint import set_state, state_of
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.fetch import Fetch, groups_read_together
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId
from tensoropt.logs import is_launched
from tensoropt.measure.hardware import collect
from tensoropt.plan.plan import Plan
from tensoropt.stages import announce, came_to, stage, working

__all__ = ["Job", "asked_ranks", "current_job", "graph_of", "job_beside", "job_of", "planned_as", "rehearsing"]

_log = logging.getLogger("tensoropt")
_Value = TypeVar("_Value")
_NOT_BUILT = (
    "there is no execution graph yet. Call plan = tensoropt.find_strategy(…) and "
    "tensoropt.build_execution_graph(plan=plan) first."
)


@dataclass
class Job:
    """State of this process between ``init`` and the end, for one model at a time."""

    world: World = field(default_factory=World)
    topology: Topology | None = None
    rehearsal: Rehearsal | None = None  # the job only plans, up to the first training step
    imported: weakref.WeakKeyDictionary[Model, ImportedModel] = field(default_factory=weakref.WeakKeyDictionary)
    executor: Executor | None = None
    model: Model | None = None
    seeds: Seeds = field(default_factory=dict)
    shares: bool | None = None  # whether ranks feed their shares of what has an open size; None where contents tell
    saw_shares: bool = False  # contents have told of shares
    remeasure: bool = False  # operators too, since init(refresh=True)
    config: Any = None  # of build_execution_graph
    session_config: Any = None  # of the script's last session that has one
    _planner: Planner | None = None
    deferral: Deferral | None = None  # of the plan, until the first training run
    variants: Variants | None = None
    pipelines: PipelineSession | None = None  # of the model that runs
    fetched: dict[Any, tuple[Any, Any]] = field(default_factory=dict)  # of it: fetches, by their identity or name
    read: dict[Any, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)  # of pipelines, by fetches
    drawing: set[int] = field(default_factory=set)  # the numbers of sessions that have given initial values
    lock: threading.Lock = field(default_factory=threading.Lock)  # of the thread whose turn it is
    _initial: list[InitialValues] = field(default_factory=list)  # of what the script has initialized since the build

    def __post_init__(self) -> None:
        """Takes note of the job."""
        _made[:] = [*(each for each in _made if each() is not None), weakref.ref(self)]

    def start(self, topology: Topology | None, refresh: bool) -> Topology:
        """Starts MPI and collects the hardware, once."""
        what = f"init({'' if topology is None else 'topology=…'}{'refresh=True' if refresh else ''})"
        with stage("init", what):
            found = self._start(topology, refresh, what)
            came_to(str(found))
        return found

    def start_once(self) -> None:
        """Starts MPI and collects the hardware, if nobody did."""
        if self.world.comm is None or self.topology is None:  # MPI alone, for a script that asked for its rank
            self.start(None, False)

    def _start(self, topology: Topology | None, refresh: bool, what: str) -> Topology:
        if self.rehearsal is not None and self.rehearsal.topology is not None:
            self.topology = self.rehearsal.topology
            self.world.comm = DescribedRanks(self.topology.device_count)
            return self.topology
        self.world.start()
        with self.world.step(what):
            if topology is not None and topology.device_count != self.world.size:
                raise PlanError(
                    f"init(topology={topology.name!r}): has {topology.device_count} devices, the job has "
                    f"{self.world.size} "
                    "ranks. Leave topology out to have it collected, or plan without init for another cluster."
                )
        if topology is not None:
            self.topology = topology
        elif self.topology is None or refresh:
            self.remeasure = refresh
            self.topology = collect(self.world.comm, refresh=refresh)
        return self.topology

    def import_model(
        self, batch_size: int | None = None, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> ImportedModel:
        """The current model as it is now, which becomes the one that is planned and built.

        Raises:
            PlanError: a size is asked for, and no input leaves that open.
        """
        with stage("import"):
            model = model_to_plan()
            imported = import_model(model, batch_size, shapes=shapes)
            graph = imported.graph
            own = graph.batch_size()
            if batch_size is not None and own not in (None, batch_size) and not training_placeholders(model):
                raise PlanError(
                    f"batch_size={batch_size}: no placeholder leaves its first dimension open, the model's batch is "
                    f"{own}. Leave batch_size out, or give placeholders the shape [None, …]."
                )
            self.imported[model] = imported
            came_to(f"{len(graph.operators)} operators, {len(graph.variables())} of them variables")
        return imported

    def imported_model(self) -> ImportedModel:
        """The current model as it was when it was planned last; as it is now if it never was."""
        return self.imported.get(model_to_plan()) or import_model(model_to_plan())

    def planner(self, feed: str) -> Planner:
        """The planner of the model that was imported last; the one before, with what it found, if nothing changed.

        Args:
            feed: of ``find_strategy``.

        Raises:
            PlanError: an unknown way to feed.
            GraphError: a model in which there is nothing to plan.
        """
        imported = self.imported_model()
        if self._planner is None or not self._planner.suits(imported, feed):
            model = model_to_plan()
            self._planner = Planner(imported, feed, model)
            if self._planner.feed != feed and self.world.size > 1:
                announce("find_strategy: a batch of one sample is fed whole on every rank, as with feed='global'")
            if self.world.rank == 0 and not imported.graph.after_gradients() & imported.graph.training:
                _log.warning(
                    "nothing minimizes a loss of the model: what is planned is a step that computes all that can be "
                    "fetched, without gradients. %s to plan training%s",
                    model.terms.train,
                    _gradients_of_tensorflow(imported.graph.operators),
                )
            if self.world.rank == 0:
                for what in of_other_numbers(imported.graph):
                    _log.warning("%s: other numbers than one process has", what)
        return self._planner

    def build(self, plan: Plan, imported: ImportedModel, collectives: str, config: Any) -> None:
        """Makes the executor of a plan and gives the variables their initial values.

        Where the plan is for fewer devices than there are ranks, the surplus ranks end here.

        Raises:
            SystemExit: on a surplus rank.
        """
        self.start_once()
        self.deferral = None
        with stage("build", "build_execution_graph"):
            self._build(plan, imported, collectives, config)
            came_to(f"collectives through '{self.require_executor('build').state.engine.name}'")

    def build_later(self, plan: DeferredPlan, collectives: str) -> None:
        """Takes a plan that is made at the first training run; until then nothing is built that is not needed.

        Raises:
            EngineError: collectives that cannot be used here.
        """
        self.start_once()
        with self.world.step("build_execution_graph"):
            check_collectives(collectives)
        self._close_executor()
        self.model = model_to_plan()
        self._forget_initial()
        self.begin(self.model.graph)
        rehearsal = self.rehearsal
        shares = rehearsal.shares if rehearsal is not None and self.shares is None else self.shares
        self.deferral = Deferral(self.world, self.model, plan, collectives, shares)

    def begin(self, graph: Any) -> None:
        """Goes over to a model's graph: makes the session of its pipelines, if there is none. Collective.

        They run before there is an execution graph, too.
        """
        self.fetched.clear()
        self.read.clear()
        if self.pipelines is not None and self.pipelines.graph is graph:
            return
        self.start_once()
        if self.pipelines is not None:
            self.pipelines.close()
        self.pipelines = PipelineSession(graph, self.world.draw_seed())

    def _close_executor(self) -> None:
        if self.executor is not None:
            self.executor.state.close()
            self.executor.state.engine.close()
        self.executor = self.variants = None

    def _build(self, plan: Plan, imported: ImportedModel, collectives: str, config: Any) -> None:
        if self.rehearsal is not None:
            self.rehearsal.end(plan)
        model = model_to_plan()
        if plan.mesh.size < self.world.size and plan.option == MINI_PARALLELISM:
            self._end_surplus_ranks(plan, imported, collectives)
        executor, seeds = self.make_executor(plan, imported, model, collectives, config)
        self._close_executor()
        self._use(executor, model, imported, seeds)
        self._forget_initial()
        self.initialize()
        # The script's own first initializer gives what TensorFlow's gives: the first random numbers.
        self._forget_initial()
        self.drawing.clear()

    def _use(self, executor: Executor, model: Model, imported: ImportedModel, seeds: Seeds) -> None:
        self.executor, self.model, self.seeds = executor, model, seeds
        self.variants = Variants(self.world, model, imported, executor, self.shares, self._may_share, self.more_seeds)
        self.begin(model.graph)
        self._planner = None  # its tables are large, and training needs the memory

    def _may_share(self) -> bool:
        """Tells whether what is as large as the planned batch may be a rank's share."""
        return self.saw_shares if self.shares is None else self.shares

    def prepared(self, fetches: Sequence[Fetch], feeds: Mapping[Any, Any]) -> Variants:
        """Returns what runs fetches: by the plan, which is searched and built now if it waited for them; collective.

        Raises:
            FeedError: a training run does not feed a placeholder that it needs, or feeds what does not fit.
            SessionError: before ``build_execution_graph``.
            TensorOptError: what a search may raise.
        """
        if self.deferral is not None:
            self._go_on(self.deferral, fetches, feeds)
        self.require_executor("run")
        if self.variants is None:
            raise SessionError(f"run: {_NOT_BUILT}")
        return self.variants

    def _go_on(self, deferral: Deferral, fetches: Sequence[Fetch], feeds: Mapping[Any, Any]) -> None:
        """Searches and builds the plan that waited, if fetches train."""
        found = deferral.planned(fetches, feeds)
        if found is None:
            return
        plan, imported = found
        with (self.model or model_to_plan()).graph.as_default():
            if self.executor is None:
                self.build(plan, imported, deferral.collectives, self.local_config())
                self._initialize_since(deferral)
            else:
                self._rebuild(plan, imported, deferral.collectives)
        deferral.found(plan)
        self.deferral = None

    def _store(self, deferral: Deferral) -> None:
        """Builds what stores the variables, until the plan that is waited for replaces it; collective."""
        plan, imported = deferral.stored(self.require_topology("run"))
        if self.rehearsal is not None:
            raise SessionError(
                "The script runs something before its first training step, by which the plan's sizes are known, and "
                "devices are needed for it. Give them before (--batch-size, or batch_size= or example= of "
                "find_strategy), or leave out what runs before."
            )
        with (self.model or model_to_plan()).graph.as_default(), stage("build", "build_execution_graph"):
            self._build(plan, imported, deferral.collectives, self.local_config())
            came_to("variables alone, until the first training run")
        self._initialize_since(deferral)

    def _initialize_since(self, deferral: Deferral) -> None:
        for names in deferral.initialized:
            self.initialize(names)
        deferral.initialized.clear()

    def _rebuild(self, plan: Plan, imported: ImportedModel, collectives: str) -> None:
        """Goes on with another plan of the same model, whose variables get the values that they have now."""
        old, model = self.require_executor("run"), self.model or model_to_plan()
        with stage("build", "build_execution_graph"):
            executor, _ = self.make_executor(plan, imported, model, collectives, self.local_config(), self.more_seeds())
            initialized = old.state.initialized - (old.state.outside & executor.state.outside)
            kept = [name for name in executor.state.names if name in initialized]
            for group in groups_read_together(kept, lambda name: executor.graph[name].outputs[0].size_bytes):
                values = dict(zip(group, old.run([*map(TensorId, group)]), strict=True))
                executor.state.set_variables(values.pop, group)
            set_state(executor, state_of(old))
            made_since = [name for name in executor.state.names if name not in old.state.names]
            self._close_executor()
            self._use(executor, model, imported, self.seeds)
            self.initialize(made_since)
            came_to(f"collectives through '{executor.state.engine.name}'")

    def _end_surplus_ranks(self, plan: Plan, imported: ImportedModel, collectives: str) -> None:
        """Goes on with as many ranks as the plan has devices, which are the cluster's first as the ranks are the job's.

        All that can fail for the plan's sake is checked before, while all ranks are there.

        Raises:
            SystemExit: on the other ranks.
        """
        with self.world.step("checking the plan"):
            check_collectives(collectives)
            plan.check(imported.graph)
        self._agree_on(plan, imported)
        self._close_executor()  # its collectives are those of all ranks
        count, size = plan.mesh.size, self.world.size
        if not self.world.keep_first(count):
            _log.debug("ends, since the plan needs %d of the job's %d ranks", count, size)
            raise SystemExit(0)
        ending = f"rank {count} ends" if count == size - 1 else f"ranks {count} to {size - 1} end"
        announce(f"{ending}, since the plan needs {count} of the job's {size} ranks")
        try:
            self.topology = None if self.topology is None else self.topology.with_device_count(count)
        except ClusterError:  # the plan was made for a cluster of another shape; init() collects the one that is left
            self.topology = None

    def _agree_on(self, plan: Plan, imported: ImportedModel) -> None:
        self.world.agree_on_model(imported)
        self.world.agree("plan", repr(plan.to_json()))

    def make_executor(
        self,
        plan: Plan,
        imported: ImportedModel,
        model: Model,
        collectives: str,
        config: Any,
        seeds: Seeds | None = None,
        *,
        apart: bool = False,
    ) -> tuple[Executor, Seeds]:
        """An executor whose variables have no values yet, and the seeds that it uses.

        Args:
            plan: what it runs by.
            imported: the graph of ``model``.
            collectives: see :func:`tensoropt.build_execution_graph`, as for ``config``.
            seeds: of random operators; by default drawn.
            apart: whether none of its variables is one that eager code has.
        """
        if self.rehearsal is not None:
            self.rehearsal.end(plan)
        self.start_once()
        with self.world.step("checking the plan"):
            check_collectives(collectives)
            check_device_count(plan, self.world.size)
            if plan.mesh.size != self.world.size:
                raise PlanError(
                    f"Plan: needs {plan.mesh.size} of this job's {self.world.size} ranks, which are all still there. "
                    "Call build_execution_graph first: it ends the surplus ranks."
                )
            plan.check(imported.graph)
        self._agree_on(plan, imported)
        engine = make_engine(collectives, plan.mesh.shape)
        if seeds is None:
            seeds = resolve_seeds(model.graph, self.world.draw_seed())
        outside = None if apart or model.outside is None else model.outside.handle
        graph, agree = with_seeds(imported.graph, seeds), self.world.agree
        state = DeviceState(graph, plan, engine, agree=agree, gather=self.world.gather, config=config, outside=outside)
        return Executor(state, guard=self.world.guard, terms=model.terms), seeds

    def initialize(self, names: Collection[str] | None = None, feeds: Mapping[str, Any] | None = None) -> None:
        """Gives variables their initial values.

        Args:
            names: of the variables; by default all but those whose initial value the script has yet to feed.
            feeds: what is fed to their initializers, by the tensor's name.
        """
        executor, model = self.require_executor("global_variables_initializer"), self.model
        if model is None:
            raise SessionError("The job has no model; call build_execution_graph first.")
        missing = {*(names or ())} - executor.state.names
        made_since = missing & storable_variables(model) if missing else missing
        if made_since and self.variants is not None:
            self.variants.add_variables(made_since)
        digests: ValueDigests | None = None
        what = "giving variables their initial values"
        with self.world.step(what), stage(what, if_long=True):
            every = executor.state.names
            given: Callable[[str], Any]
            if model.outside is not None:  # eager code has the values, and the graph no initializers
                given, chosen = model.outside.value, [name for name in every if names is None or name in names]
            else:
                sources = self._initial_sources(model, every if names is None else names)
                if names is None:
                    names = [name for name in every if not sources[name].waits_for_feeds(name)]
                chosen = [name for name in every if name in names]
                for source in self._initial:
                    source.begin([name for name in chosen if sources[name] is source], feeds)

                def given(name: str) -> Any:
                    return sources[name](name)

            def initial(name: str) -> np.ndarray:
                return np.asarray(given(name))

            digests = ValueDigests(initial) if self.world.size > 1 else None
            executor.state.set_variables(digests or initial, chosen)
        if digests is not None:
            with working("comparing initial values"):
                digests.agree(self.world.comm, executor.graph)

    def begin_draws(self, session: int) -> None:
        """Begins all random numbers anew where another session than before gives variables their initial values.

        Random operators of TensorFlow have their states in the session.
        """
        if self.drawing and session not in self.drawing:
            self._forget_initial()
            if self.executor is not None:
                self.executor.state.begin_states()
        self.drawing.add(session)

    def _initial_sources(self, model: Model, names: Collection[str]) -> dict[str, InitialValues]:
        """Returns the source of each variable's initial value: the first copy of the model that had the variable."""
        if not self._initial or not all(any(source.has(name) for source in self._initial) for name in names):
            self._initial.append(InitialValues(model.graph, self.seeds))
        last = self._initial[-1]
        return {name: next((source for source in self._initial if source.has(name)), last) for name in names}

    def _forget_initial(self) -> None:
        for source in self._initial:
            source.close()
        self._initial.clear()

    def more_seeds(self) -> Seeds:
        """The job's seeds, with those of random operators that the script has made since; collective."""
        base = next((seed for seed, _ in self.seeds.values()), None)
        graph = (self.model or model_to_plan()).graph
        found = resolve_seeds(graph, self.world.draw_seed() if base is None else base)
        self.seeds = {**found, **self.seeds}
        return self.seeds

    def require_executor(self, what: str) -> Executor:
        """The executor.

        Where the plan waits for the first training run, there is one until then that stores variables.

        Raises:
            SessionError: before ``build_execution_graph``.
        """
        self.require_built(what)
        if self.executor is None and self.deferral is not None:
            self._store(self.deferral)
        if self.executor is None:
            raise SessionError(f"{what}: {_NOT_BUILT}")
        return self.executor

    def require_built(self, what: str) -> None:
        """Checks that ``build_execution_graph`` was called.

        Raises:
            SessionError: it was not.
        """
        self.world.require_member(what)
        if self.executor is None and self.deferral is None:
            raise SessionError(f"{what}: {_NOT_BUILT}")

    def require_topology(self, what: str) -> Topology:
        """The job's devices.

        Raises:
            SessionError: before ``init``.
        """
        if self.topology is None:
            raise SessionError(f"{what}: the devices are unknown. Call tensoropt.init() first.")
        return self.topology

    def local_config(self) -> Any:
        """Returns the config of the local session, as known by now.

        Raises:
            SessionError: ``build_execution_graph`` and a session say different things.
        """
        return merged_config(self.config, self.session_config)

    def configured(self, config: Any) -> Any:
        """Sets the config of ``build_execution_graph``; returns it merged with the config of an earlier session.

        Raises:
            SessionError: the configs say different things.
        """
        merged = merged_config(config, self.session_config)
        self.config = config
        return merged

    def configure(self, config: Any) -> None:
        """Takes the config of a session: for the execution graph that is to be built, or that has not run yet.

        Raises:
            SessionError: if ``build_execution_graph`` was given one that says something else.
        """
        merged = merged_config(self.config, config)
        if self.executor is not None and config not in (self.session_config, self.config):
            if not self.executor.state.configure(merged) and self.world.rank == 0:
                _log.warning("Session(config=…) has no effect: the execution graph has run before, by another config")
        self.session_config = config


_made: list[weakref.ref[Job]] = []  # those that there are, in order
_jobs = [Job()]


def current_job() -> Job:
    """The job of this process, or the one beside it that is at work."""
    return _jobs[-1]


def asked_ranks() -> World:
    """The processes of the job, for a script that asks which one it is.

    Before ``init`` this starts MPI, if a launcher started the process: else each rank would take itself for the only
    one.
    """
    job = current_job()
    if job.rehearsal is None and is_launched():
        job.world.start()
    return job.world


@contextlib.contextmanager
def rehearsing(rehearsal: Rehearsal) -> Iterator[None]:
    """The job of this process is a rehearsal, while this lasts."""
    before = list(_jobs)
    _jobs[:] = [Job(rehearsal=rehearsal)]
    try:
        yield
    finally:
        _jobs[:] = before


@contextlib.contextmanager
def job_beside(job: Job | None = None) -> Iterator[Job]:
    """A job of the same ranks for another model, which is the current one while this lasts.

    Args:
        job: one that was made before.
    """
    first = _jobs[0]
    first.world.require_member("a step of another model")
    if job is None:
        job = Job(remeasure=first.remeasure)
    job.world, job.rehearsal = first.world, first.rehearsal
    job.topology = job.topology or first.topology
    _jobs.append(job)
    try:
        yield job
    finally:
        _jobs.remove(job)


@contextlib.contextmanager
def job_of(caller: str, plan: Any) -> Iterator[Job]:
    """The job with the model that a plan is for as its current one: of a script, a function or a Keras model.

    Where nothing that was planned here is what the plan is for, it is the current job, with its model.

    Raises:
        PlanError: it is no plan, or there is no model.
    """
    known = planned_as(caller, plan)
    if known is None and model_to_plan().is_empty:
        raise PlanError(
            f"{caller}: the plan is for the graph {plan.fingerprint}, and nothing here was planned as that one. Build "
            "and plan the model, or train a step of the function or Keras model, and keep it."
        )
    if known is None:
        yield current_job()
        return
    job, model = known
    with contextlib.nullcontext() if job is current_job() else job_beside(job), model.graph.as_default():
        yield job


def planned_as(caller: str, plan: Any) -> tuple[Job, Model] | None:
    """The job and the model that a plan is for, if they are here.

    Raises:
        PlanError: it is no plan.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"{caller}: plan must be a Plan, got {type(plan).__name__}. Give what find_strategy or a comparison's "
            "plan(method) returned, or the tensoropt_plan of a function or Keras model."
        )
    for job in (current_job(), *filter(None, (each() for each in _made))):
        for model, imported in job.imported.items():
            if imported.graph.fingerprint() == plan.fingerprint and _is_here(model):
                return job, model
    return None


def _gradients_of_tensorflow(operators: Iterable[Operator]) -> str:
    """A sentence on gradients that TensorFlow's own functions made; empty if there are none."""
    scope = re.compile(r"(.*/)?gradients(_\d+)?/.")
    first = next((op for op in operators if op.inputs and scope.match(op.name)), None)
    if first is None:
        return ""
    return (
        f". {first} is of gradients that TensorFlow's own functions made, which every device computes whole: derive "
        "optimizers from tensoropt.train.Optimizer, and call tensoropt.gradients"
    )


def _is_here(model: Model) -> bool:
    """Tells whether a model can be the current one: ``reset_default_graph`` has not left it."""
    with model.graph.as_default():
        return model_to_plan() is model


def graph_of(caller: str, plan: Any) -> Graph:
    """The graph that a plan is for, or that of the current model.

    Raises:
        PlanError: it is no plan, or there is none.
    """
    if isinstance(plan, Plan) and plan.graph is not None:
        return plan.graph
    with job_of(caller, plan) as job:
        return job.imported_model().graph
