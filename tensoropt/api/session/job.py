"""The job that this process is one rank of: its topology, its plan, its executor."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tensorflow as tf

from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.effects import is_plain_read
from tensoropt.api.frontend.imported_model import (
    MINI_PARALLELISM,
    ImportedModel,
    check_device_count,
    import_model,
    sink_of,
)
from tensoropt.api.mirror.model import Model, current_model
from tensoropt.api.session.agreement import ValueDigests, agree_on_nodes
from tensoropt.api.session.reference import InitialValues
from tensoropt.api.session.seeds import Seeds, resolve_seeds, with_seeds
from tensoropt.cluster import Topology
from tensoropt.errors import ClusterError, CollectiveError, FeedError, PlanError, SessionError, TensorOptError
from tensoropt.exec.engines.guard import Guard
from tensoropt.exec.engines.launch import agree, install_abort_hook, keep_first_ranks, start_mpi
from tensoropt.exec.engines.select import check_collectives, make_engine
from tensoropt.exec.engines.watch import current_watch
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.training import Training
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.logs import set_up_logging
from tensoropt.measure.hardware import collect
from tensoropt.plan.plan import Plan
from tensoropt.stages import announce, came_to, stage, working

__all__ = ["Job", "current_job"]

_log = logging.getLogger("tensoropt")
_Value = TypeVar("_Value")


@dataclass
class Job:
    """State of this process between ``init`` and the end.

    ``left`` says that the plan needs fewer ranks than the job has, and that this one is not needed.
    """

    comm: Any = None
    topology: Topology | None = None
    guard: Guard | None = None
    imported: weakref.WeakKeyDictionary[Model, ImportedModel] = field(default_factory=weakref.WeakKeyDictionary)
    executor: Executor | None = None
    model: Model | None = None
    seeds: Seeds = field(default_factory=dict)
    left: bool = False
    remeasure: bool = False  # operators too, since init(refresh=True)
    _known: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    _planner: Planner | None = None
    _running: threading.Lock = field(default_factory=threading.Lock)
    _initial: InitialValues | None = None  # of what the script has initialized since build_execution_graph

    @property
    def rank(self) -> int:
        """This process's rank; 0 before ``init``."""
        return 0 if self.comm is None else int(self.comm.rank)

    @property
    def size(self) -> int:
        """Number of ranks; 1 before ``init``."""
        return 1 if self.comm is None else int(self.comm.size)

    def start(self, topology: Topology | None, refresh: bool) -> Topology:
        """Starts MPI and collects the hardware, once."""
        what = f"init({'' if topology is None else 'topology=…'}{'refresh=True' if refresh else ''})"
        with stage("init", what):
            found = self._start(topology, refresh, what)
            came_to(str(found))
        return found

    def _start(self, topology: Topology | None, refresh: bool, what: str) -> Topology:
        if self.comm is None:
            comm = start_mpi()
            set_up_logging(comm.rank)
            install_abort_hook(comm)
            self.guard = Guard(comm)
            self.comm = comm
        with self.step(what):
            if topology is not None and topology.device_count != self.size:
                raise PlanError(
                    f"init(topology={topology.name!r}): has {topology.device_count} devices, the job has {self.size} "
                    "ranks. Leave topology out to have it collected, or plan without init for another cluster."
                )
        if topology is not None:
            self.topology = topology
        elif self.topology is None or refresh:
            self.remeasure = refresh
            self.topology = collect(self.comm, refresh=refresh)
        return self.topology

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """The part of a step that needs no other rank; an error in it ends the step on all ranks.

        Raises:
            CollectiveError: if it fails on another rank, or another rank takes another step.
        """
        self._require_member(what)
        if self.guard is None:
            yield
            return
        with self.guard.step(what):
            yield

    def _require_member(self, what: str) -> None:
        if self.left:
            raise SessionError(
                f"{what}: rank {self.rank} is not needed for the plan and has left the job. Let its program end, as "
                "build_execution_graph asked it to by SystemExit."
            )

    def agree(self, what: str, value: str) -> None:
        """Checks that a value is the same on all ranks.

        Raises:
            CollectiveError: on every rank, if it is not.
        """
        if self.guard is not None and self.size > 1:
            with current_watch().waiting(f"comparing the {what}"):
                agree(self.comm, what, value)

    def agree_on_model(self, imported: ImportedModel) -> None:
        """Checks that all ranks have built the same model, with the same constants and seeds.

        Raises:
            CollectiveError: on every rank, if they have not.
        """
        if self.guard is not None and self.size > 1:
            with working("comparing the model"):
                agree_on_nodes(self.comm, imported)
        self.agree("model", imported.graph.fingerprint())

    def import_model(self, batch_size: int | None = None) -> ImportedModel:
        """The current model as it is now, which becomes the one that is planned and built."""
        with stage("import"):
            imported = self.imported[current_model()] = import_model(current_model(), batch_size)
            graph = imported.graph
            came_to(f"{len(graph.operators)} operators, {len(graph.variables())} of them variables")
        return imported

    def imported_model(self) -> ImportedModel:
        """The current model as it was when it was planned last; as it is now if it never was."""
        return self.imported.get(current_model()) or import_model(current_model())

    def planner(self, feed: str) -> Planner:
        """The planner of the model that was imported last; the one before, with what it found, if nothing changed.

        Raises:
            PlanError: an unknown way to feed.
            GraphError: a model in which there is nothing to plan.
        """
        imported = self.imported_model()
        if self._planner is None or not self._planner.suits(imported, feed):
            self._planner = Planner(imported, feed, current_model())
            if not imported.steps and self.rank == 0:
                _log.warning(
                    "nothing minimizes a loss of the model: what is planned is a step that computes all that can be "
                    "fetched, without gradients. Call optimizer.minimize(loss) first to plan training"
                )
        return self._planner

    def on_rank_0(self, what: str, make: Callable[[], _Value]) -> _Value:
        """``make()`` of rank 0, on every rank; its error too.

        Raises:
            TensorOptError: what ``make`` raised on rank 0; other exceptions are a CollectiveError on other ranks.
        """
        if self.guard is None or self.size == 1:
            return make()
        self.guard.meet(what)
        outcome: tuple[Any, TensorOptError | None] = (None, None)
        failure: Exception | None = None
        if self.rank == 0:
            try:
                with working(what):
                    outcome = (make(), None)
            except Exception as error:  # whatever it is, the other ranks must hear of it instead of waiting
                failure = error
                described = f"{what}: failed on rank 0: {type(error).__name__}: {error}"
                outcome = (None, error if isinstance(error, TensorOptError) else CollectiveError(described))
        with current_watch().waiting(what):
            value, error_of_0 = self.comm.bcast(outcome, root=0)
        if failure is not None:
            raise failure
        if error_of_0 is not None:
            error_of_0.failed_rank = 0
            raise error_of_0
        return value

    def build(self, plan: Plan, imported: ImportedModel, collectives: str, config: Any) -> None:
        """Makes the executor of a plan and gives the variables their initial values.

        Where the plan is for fewer devices than there are ranks, the surplus ranks end here.

        Raises:
            SystemExit: on a surplus rank.
        """
        if self.comm is None:
            self.start(None, False)
        with stage("build", "build_execution_graph"):
            self._build(plan, imported, collectives, config)
            came_to(f"collectives through '{self.require_executor('build').engine.name}'")

    def _build(self, plan: Plan, imported: ImportedModel, collectives: str, config: Any) -> None:
        model = current_model()
        if plan.mesh.size < self.size and plan.option == MINI_PARALLELISM:
            self._end_surplus_ranks(plan, imported, collectives)
        executor, seeds = self.make_executor(plan, imported, model, collectives, config)
        if self.executor is not None:
            self.executor.close()
            self.executor.engine.close()
        self.executor, self.model, self.seeds = executor, model, seeds
        self._known.clear()
        self._planner = None  # its tables are large, and training needs the memory
        self._forget_initial()
        self.initialize()
        # The script's own first initializer gives what TensorFlow's gives: the first random numbers.
        self._forget_initial()

    def _end_surplus_ranks(self, plan: Plan, imported: ImportedModel, collectives: str) -> None:
        """Goes on with as many ranks as the plan has devices, which are the cluster's first as the ranks are the job's.

        All that can fail for the plan's sake is checked before, while all ranks are there.

        Raises:
            SystemExit: on the other ranks.
        """
        with self.step("checking the plan"):
            check_collectives(collectives)
            plan.check(imported.graph)
        self._agree_on(plan, imported)
        if self.executor is not None:  # its collectives are those of all ranks
            self.executor.close()
            self.executor.engine.close()
            self.executor = None
        if self.guard is not None:
            self.guard.close()
            self.guard = None
        count, size = plan.mesh.size, self.size
        if not keep_first_ranks(count):
            self.left = True
            _log.debug("ends, since the plan needs %d of the job's %d ranks", count, size)
            raise SystemExit(0)
        ending = f"rank {count} ends" if count == size - 1 else f"ranks {count} to {size - 1} end"
        announce(f"{ending}, since the plan needs {count} of the job's {size} ranks")
        self.comm = start_mpi()
        self.guard = Guard(self.comm)
        try:
            self.topology = None if self.topology is None else self.topology.with_device_count(count)
        except ClusterError:  # the plan was made for a cluster of another shape; init() collects the one that is left
            self.topology = None

    def _agree_on(self, plan: Plan, imported: ImportedModel) -> None:
        self.agree_on_model(imported)
        self.agree("plan", repr(plan.to_json()))

    def make_executor(
        self,
        plan: Plan,
        imported: ImportedModel,
        model: Model,
        collectives: str,
        config: Any,
        seeds: Seeds | None = None,
    ) -> tuple[Executor, Seeds]:
        """An executor whose variables have no values yet, and the seeds that it uses."""
        if self.comm is None:
            self.start(None, False)
        with self.step("checking the plan"):
            check_collectives(collectives)
            check_device_count(plan, self.size)
            if plan.mesh.size != self.size:
                raise PlanError(
                    f"Plan: needs {plan.mesh.size} of this job's {self.size} ranks, which are all still there. Call "
                    "build_execution_graph first: it ends the surplus ranks."
                )
            plan.check(imported.graph)
        self._agree_on(plan, imported)
        engine = make_engine(collectives, plan.mesh.shape)
        if seeds is None:
            drawn = int.from_bytes(os.urandom(3), "big") + 1 if self.rank == 0 else None
            seeds = resolve_seeds(imported.tf_graph, int(self.comm.bcast(drawn, root=0)))
        executor = Executor(
            with_seeds(imported.graph, seeds),
            plan,
            engine,
            trainings(model, imported),
            agree=self.agree,
            guard=self.guard,
            config=config,
        )
        return executor, seeds

    def initialize(self, names: Collection[str] | None = None) -> None:
        """Gives variables their initial values; to all of them, by default, and then optimizers empty slots."""
        executor, model = self.require_executor("global_variables_initializer"), self.model
        if model is None:
            raise SessionError("The job has no model; call build_execution_graph first.")
        chosen = [name for name in executor.variables if names is None or name in names]
        digests: ValueDigests | None = None
        with self.step("giving variables their initial values"):
            if self._initial is None:
                self._initial = InitialValues(model.graph, self.seeds)
            self._initial.begin(chosen)
            digests = ValueDigests(self._initial) if self.size > 1 else None
            executor.set_variables(digests or self._initial, chosen)
            if len(chosen) == len(executor.variables):
                executor.reset_optimizers()
        if digests is not None:
            with working("comparing initial values"):
                digests.agree(self.comm, executor.graph)

    def _forget_initial(self) -> None:
        if self._initial is not None:
            self._initial.close()
            self._initial = None

    def require_executor(self, what: str) -> Executor:
        """The executor.

        Raises:
            SessionError: before ``build_execution_graph``.
        """
        self._require_member(what)
        if self.executor is None:
            raise SessionError(
                f"{what}: there is no execution graph yet. Call plan = tensoropt.find_strategy(…) and "
                "tensoropt.build_execution_graph(plan=plan) first."
            )
        return self.executor

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Runs nested fetches; see :func:`tensoropt.run`.

        Threads of the only rank take turns. Those of several ranks would take them in another order on each.

        Raises:
            SessionError: with several ranks, if another thread is in a run.
        """
        if not self._running.acquire(blocking=self.size == 1):
            error = SessionError(
                f"run: another thread of rank {self.rank} is in a run. With {self.size} ranks all must take the same "
                "steps in the same order, which threads do not. Call run from one thread, and let others fill a "
                "queue for it."
            )
            with self._running:  # the other ranks hear of it instead of this thread's step
                if self.guard is not None:
                    self.guard.meet("run", error)
            raise error
        try:
            return self._run(fetches, feed_dict)
        finally:
            self._running.release()

    def _run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        try:
            executor = self.require_executor("run")
            resolved = [self._resolved(item) for item in tf.nest.flatten(fetches)]
            feeds = {self._feed_name(key): value for key, value in (feed_dict or {}).items()}
        except Exception as error:
            if self.guard is not None:
                self.guard.meet("run", error)
            raise
        initialized = {name for item in resolved if isinstance(item, _Initialize) for name in item.variables}
        if initialized:
            self.initialize(initialized)
        wanted = [item for item in resolved if not isinstance(item, _Initialize)]
        unique = list(dict.fromkeys(wanted))
        values = dict(zip(unique, executor.run(unique, feeds), strict=True)) if unique else {}
        results = [None if isinstance(item, _Initialize) else values[item] for item in resolved]
        return tf.nest.pack_sequence_as(fetches, results)

    def _resolved(self, item: Any) -> Any:
        """What the executor calls a fetch; looked up once per object."""
        key = item if isinstance(item, str) else id(item)
        known = self._known.get(key)
        if known is None or known[0] is not item:
            self._known[key] = known = (item, self._fetch(item))
        return known[1]

    def _fetch(self, item: Any) -> Any:
        model = self.model or current_model()
        name = item if isinstance(item, str) else getattr(item, "name", None)
        if name is None:
            raise SessionError(
                f"Fetch {item!r}: must be a tensor, a variable or an operation of the model, or the name of one."
            )
        graph = None if isinstance(item, str) else getattr(item, "graph", model.graph)
        if graph not in (None, model.graph):
            raise SessionError(
                f"Fetch {item!r}: is of another model than the one that build_execution_graph built. "
                "Fetch what was made after the last reset_default_graph, or build the other model's graph."
            )
        try:
            # A variable is its read, and what an assignment returns is a read that comes after it.
            element = model.graph.as_graph_element(item if isinstance(item, tf.Variable) else name)
        except (KeyError, TypeError, ValueError) as error:
            raise SessionError(
                f"Fetch {item!r}: the model has no such tensor, variable or operation. Use 'name:0' for an output of "
                "an operation and 'name' for the operation."
            ) from error
        if isinstance(element, tf.Operation):
            variables = _initializes(element) if traits(element).is_group else frozenset()
            return _Initialize(variables) if variables else element.name
        if is_plain_read(element.op, {}):
            return TensorId(element.op.inputs[0].op.name)
        return TensorId(element.op.name, element.value_index)

    def _feed_name(self, key: Any) -> str:
        if isinstance(key, str):
            return key.split(":")[0]
        if not isinstance(key, tf.Tensor) or not traits(key.op).is_input:
            raise FeedError(f"Feed {key!r}: only placeholders can be fed. Make one with tensoropt.placeholder.")
        if self.model is not None and key.graph is not self.model.graph:
            raise FeedError(
                f"Feed {key!r}: is of another model than the one that build_execution_graph built. "
                "Feed what was made after the last reset_default_graph, or build the other model's graph."
            )
        return str(key.op.name)


@dataclass(frozen=True)
class _Initialize:
    """A fetch that gives variables their initial values."""

    variables: frozenset[str]


def trainings(model: Model, imported: ImportedModel) -> list[Training]:
    """The model's training steps as the executor takes them."""
    result = []
    for step in model.train_steps:
        if step.op not in imported.steps:  # made after planning
            continue
        marker = imported.tf_graph.get_operation_by_name(step.op)
        result.append(
            Training(
                step.op,
                sink_of(step.loss).op,
                step.variables,
                functools.partial(step.optimizer.build, tf),
                {argument: sink_of(name) for argument, name in step.optimizer.tensors.items()},
                step.optimizer_index,
                step.global_step,
                tuple(op.name for op in marker.control_inputs),
            )
        )
    return result


def _initializes(operation: Any) -> frozenset[str]:
    """The variables whose initializers a NoOp groups, as ``global_variables_initializer`` does; none if it does not."""
    with operation.graph.as_default():
        names = {variable.initializer.name: variable.op.name for variable in tf.compat.v1.global_variables()}
    found: set[str] = set()
    pending, seen = [operation], {operation}
    while pending:
        # Where variables have devices, TensorFlow groups the groups of each of them.
        for control in pending.pop().control_inputs:
            if control.name in names:
                found.add(names[control.name])
            elif not traits(control).is_group:
                return frozenset()
            elif control not in seen:
                seen.add(control)
                pending.append(control)
    return frozenset(found)


_job = Job()


def current_job() -> Job:
    """The job of this process."""
    return _job
