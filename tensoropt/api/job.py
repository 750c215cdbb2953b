"""The job that this process is one rank of: its topology, its plan, its executor."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tensorflow as tf

from tensoropt.api.model import Model, current_model
from tensoropt.api.reference import InitialValues
from tensoropt.api.seeds import Seeds, resolve_seeds, with_seeds
from tensoropt.api.strategy import ImportedModel, import_model, sink_of
from tensoropt.cluster import Topology, collect
from tensoropt.errors import FeedError, PlanError, SessionError, TensorOptError
from tensoropt.exec.engines.launch import agree, install_abort_hook, start_mpi
from tensoropt.exec.engines.select import make_engine
from tensoropt.exec.executor import Executor
from tensoropt.exec.training import Training
from tensoropt.graph.spec import TensorId
from tensoropt.plan.plan import Plan

__all__ = ["Job", "current_job"]

_log = logging.getLogger("tensoropt")
_Value = TypeVar("_Value")


@dataclass
class Job:
    """State of this process between ``init`` and the end."""

    comm: Any = None
    topology: Topology | None = None
    imported: dict[int, ImportedModel] = field(default_factory=dict)
    executor: Executor | None = None
    model: Model | None = None
    seeds: Seeds = field(default_factory=dict)
    _known: dict[Any, tuple[Any, Any]] = field(default_factory=dict)

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
        if self.comm is None:
            comm = start_mpi()
            install_abort_hook(comm)
            self.comm = comm
        if topology is not None:
            if topology.device_count != self.size:
                raise PlanError(
                    f"init(topology={topology.name!r}): has {topology.device_count} devices, the job has {self.size} "
                    "ranks. Leave topology out to have it collected, or plan without init for another cluster."
                )
            self.topology = topology
        elif self.topology is None or refresh:
            self.topology = collect(self.comm, refresh=refresh)
        return self.topology

    def import_model(self, batch_size: int | None = None) -> ImportedModel:
        """The model as it is now."""
        return import_model(current_model(), batch_size)

    def on_rank_0(self, what: str, make: Callable[[], _Value]) -> _Value:
        """``make()`` of rank 0, on every rank; its error too.

        Raises:
            TensorOptError: what ``make`` raised on rank 0.
        """
        if self.comm is None or self.size == 1:
            return make()
        outcome: tuple[str, Any]
        if self.rank == 0:
            try:
                outcome = ("value", make())
            except TensorOptError as error:
                outcome = ("error", error)
        else:
            outcome = ("none", None)
        kind, value = self.comm.bcast(outcome if self.rank == 0 else None, root=0)
        if kind == "error":
            _log.debug("%s failed on rank 0", what)
            raise value
        return value

    def build(self, plan: Plan, imported: ImportedModel, collectives: str, config: Any) -> None:
        """Makes the executor of a plan and gives the variables their initial values."""
        if self.executor is not None:
            self.executor.close()
            self.executor = None
        model = current_model()
        executor, seeds = self.make_executor(plan, imported, model, collectives, config)
        self.executor, self.model, self.seeds = executor, model, seeds
        self._known.clear()
        self.initialize()

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
        plan.check(imported.graph)
        if plan.mesh.size != self.size:
            raise PlanError(
                f"Plan: is for {plan.mesh.size} devices, this job has {self.size}. Run it with "
                f"mpirun -n {plan.mesh.size}, or call find_strategy again."
            )
        if self.comm is None:
            self.start(None, False)
        agree(self.comm, "graph", imported.graph.fingerprint())
        agree(self.comm, "plan", repr(plan.to_json()))
        engine = make_engine(collectives, plan.mesh.shape)
        if seeds is None:
            drawn = int.from_bytes(os.urandom(3), "big") + 1 if self.rank == 0 else None
            seeds = resolve_seeds(imported.tf_graph, int(self.comm.bcast(drawn, root=0)))
        executor = Executor(
            with_seeds(imported.graph, seeds),
            plan,
            engine,
            trainings(model, imported),
            agree=lambda what, value: agree(self.comm, what, value),
            config=config,
        )
        return executor, seeds

    def initialize(self) -> None:
        """Gives all variables their initial values, and optimizers empty slots."""
        executor, model = self.require_executor("global_variables_initializer"), self.model
        if model is None:
            raise SessionError("The job has no model; call build_execution_graph first.")
        initial = InitialValues(model.graph, self.seeds)
        try:
            executor.set_variables(initial)
            executor.reset_optimizers()
        finally:
            initial.close()

    def require_executor(self, what: str) -> Executor:
        """The executor.

        Raises:
            SessionError: before ``build_execution_graph``.
        """
        if self.executor is None:
            raise SessionError(
                f"{what}: there is no execution graph yet. Call plan = tensoropt.find_strategy(…) and "
                "tensoropt.build_execution_graph(plan=plan) first."
            )
        return self.executor

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """Runs nested fetches; see :func:`tensoropt.run`."""
        executor = self.require_executor("run")
        flat = tf.nest.flatten(fetches)
        resolved = [self._resolved(item) for item in flat]
        feeds = {_feed_name(key): value for key, value in (feed_dict or {}).items()}
        if any(item is _INITIALIZE for item in resolved):
            self.initialize()
        wanted = [item for item in resolved if item is not _INITIALIZE]
        unique = list(dict.fromkeys(wanted))
        values = dict(zip(unique, executor.run(unique, feeds), strict=True)) if unique else {}
        results = [None if item is _INITIALIZE else values[item] for item in resolved]
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
        if isinstance(item, tf.Variable):
            return TensorId(item.op.name)
        element = model.graph.as_graph_element(name)
        if isinstance(element, tf.Operation):
            if element.type == "NoOp" and _initializes(element):
                return _INITIALIZE
            return element.name
        if element.op.type == "ReadVariableOp":
            return TensorId(element.op.inputs[0].op.name)
        return TensorId(element.op.name, element.value_index)


_INITIALIZE = object()


def trainings(model: Model, imported: ImportedModel) -> list[Training]:
    """The model's training steps as the executor takes them."""
    result = []
    for step in model.train_steps:
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


def _initializes(operation: Any) -> bool:
    """Whether a NoOp is ``global_variables_initializer``'s: a group of variables' initializers."""
    with operation.graph.as_default():
        names = {variable.initializer.name for variable in tf.compat.v1.global_variables()}
    controls = [control.name for control in operation.control_inputs]
    return bool(controls) and all(name in names for name in controls)


def _feed_name(key: Any) -> str:
    if isinstance(key, str):
        return key.split(":")[0]
    if not isinstance(key, tf.Tensor) or key.op.type not in ("Placeholder", "PlaceholderWithDefault"):
        raise FeedError(f"Feed {key!r}: only placeholders can be fed. Make one with tensoropt.placeholder.")
    return str(key.op.name)


_job = Job()


def current_job() -> Job:
    """The job of this process."""
    return _job
