"""The same seed on one process and on all: losses, gradients and variables must be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensoropt.api.find.deferred_plan import as_plan
from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.frontend.reader import SINK
from tensoropt.api.mirror.model import Model, model_to_plan
from tensoropt.api.session.difference import Expected, Tolerance, difference, expected_gradients, tolerance_of
from tensoropt.api.session.job import Job, current_job, job_of
from tensoropt.api.session.reference import InitialValues, Reference, whole_gradients
from tensoropt.api.session.seeds import Seeds
from tensoropt.errors import SessionError, VerificationError
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.fetch import Fetch
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.plan import Plan
from tensoropt.stages import working

__all__ = ["Verification", "reference_losses", "verify"]

Feeds = Mapping[str, np.ndarray]
_HELD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification: the largest differences, and the number of compared steps.

    Differences of losses and gradients are relative to the largest value of the tensor that they are in, those of
    variables to the largest change of a step (see :mod:`tensoropt.api.session.difference`).

    Attributes:
        steps: the number of compared steps.
        loss_difference: the largest of losses.
        gradient_difference: the largest of gradients.
        variable_difference: the largest of variables, where updates use the plan's gradients in both.
        plan: the plan that was verified, in words.
    """

    steps: int
    loss_difference: float
    gradient_difference: float
    variable_difference: float
    plan: str = ""

    def __str__(self) -> str:
        by = f" by {self.plan}" if self.plan else ""
        return (
            f"{self.steps} steps{by} equal one process's on every rank: largest relative difference of losses "
            f"{self.loss_difference:.2g}, gradients {self.gradient_difference:.2g}, changes of variables by these "
            f"gradients {self.variable_difference:.2g}. If losses differ nevertheless, compare the data, the seeds, "
            "the batch and the learning rate"
        )


def verify(
    plan: Plan,
    steps: int = 3,
    *,
    feeds: Callable[[int], Mapping[Any, Any]] | None = None,
    train_op: Any = None,
    tolerance: float | None = None,
    collectives: str = "auto",
) -> Verification:
    """Trains a fresh copy of the model by the plan and another by plain TensorFlow on rank 0, and compares.

    Compared are, on every rank and after every step, the loss, the gradients, and what the rank stores: its pieces of
    the variables, those of optimizers too. One process's update goes by the gradients of the plan, once these are
    compared, so that rounding does not lead the two apart. The job's own variables are not touched. All ranks must
    call it.

    Args:
        plan: for the current model.
        steps: how many training steps.
        feeds: whole batches by step, the same on every rank; by default random ones that fit the placeholders.
        train_op: which training step, if the model has several.
        tolerance: largest relative difference that is taken for rounding; by default what
            :data:`tensoropt.api.session.difference.TOLERANCES` has for the coarsest dtype that a value is computed in.
        collectives: see :func:`tensoropt.build_execution_graph`.

    Raises:
        VerificationError: naming the first operator, gradient, variable or slot that differs, on every rank.
        PlanError: if it is no plan, or its model is not here.
        SessionError: if the model trains nothing, or several steps and none was chosen.
    """
    plan = as_plan(plan)
    with job_of("verify", plan) as job:
        model = model_to_plan()
        with job.world.step("verify"):
            imported = job.imported_model()
            step = _step(imported, train_op)
            batches = [_named(feeds(i)) if feeds is not None else random_feeds(imported.graph, i) for i in range(steps)]
        run = _Run(job, model, imported, plan, step, collectives, tolerance)
        try:
            differences = run.train(batches)
        finally:
            run.close()
        if isinstance(differences, int):
            failed = differences
            again = _Run(job, model, imported, plan, step, collectives, tolerance, run.seeds)
            try:
                raise VerificationError(again.locate(batches[: failed + 1]))
            finally:
                again.close()
        split = sum(any(entry.configuration.actions) for entry in plan.operators.values())
        told = f"{plan.option} on {plan.mesh.size} devices, where {split} of {len(plan.operators)} operators are split,"
        return Verification(steps, *differences, told)


def reference_losses(loss: Any, train_op: Any, feeds: Iterable[Mapping[Any, Any]]) -> list[float]:
    """The loss curve of one process with the job's seeds: plain TensorFlow on rank 0, the result on every rank.

    Args:
        loss: the loss tensor.
        train_op: the training step.
        feeds: whole batches, one per step.

    Raises:
        SessionError: before ``build_execution_graph``.
    """
    job, model = current_job(), model_to_plan()
    with job.world.step("reference_losses"):
        job.require_executor("reference_losses")
        step = _step(job.imported_model(), train_op)

    def run() -> list[float]:
        reference = Reference(model, job.seeds)
        try:
            return [float(reference.run_step(step, loss.name, (), _named(batch))[0]) for batch in feeds]
        finally:
            reference.close()

    return job.world.on_rank_0("reference_losses", run)


@dataclass(frozen=True, slots=True)
class _Found:
    """One comparison: the largest difference of all ranks, the rank that has it, and what is allowed."""

    difference: float
    rank: int
    allowed: float

    @property
    def is_wrong(self) -> bool:
        return not self.difference <= self.allowed


class _Run:
    """A distributed copy of the model, and on rank 0 one of plain TensorFlow."""

    def __init__(
        self,
        job: Job,
        model: Model,
        imported: ImportedModel,
        plan: Plan,
        step: str,
        collectives: str,
        tolerance: float | None,
        seeds: Seeds | None = None,
    ) -> None:
        self._job = job
        self._graph = imported.graph
        self._step = step
        needed = imported.graph.needed_for([step])
        names = {op.name for op in needed if traits(op).is_gradient}
        calls = [call for call in model.gradient_calls if names & {output.name for output in call.outputs}]
        self._losses = list(dict.fromkeys(name for call in calls for name in call.losses))
        self._outputs = [output for call in calls for output in call.outputs if output.name in names]
        self._shapes = {
            output.name: imported.graph.spec(imported.graph[output.name].inputs[0]).shape for output in self._outputs
        }
        self._plan = plan
        self._tolerances = _tolerances(self._graph, tolerance)
        with working("verify: building"):
            self._executor, self.seeds = job.make_executor(plan, imported, model, collectives, None, seeds, apart=True)
        given = None if model.outside is None else _given_values(job, model.outside.value, self._executor)
        with job.world.step("verify: initial values"):
            if given is None:
                initial = InitialValues(model.graph, self.seeds)
                self._executor.state.set_variables(initial)
                initial.close()
            self._reference = Reference(model, self.seeds, given) if job.world.rank == 0 else None
            self._stored = self._reference.stored() if self._reference else {}

    def train(self, batches: list[dict[str, np.ndarray]]) -> tuple[float, float, float] | int:
        """Largest differences, or the number of the first step with one that is no rounding."""
        worst = [0.0, 0.0, 0.0]
        for number, batch in enumerate(batches):
            for kind, found in enumerate(list(one.values()) for one in self._train_step(batch)):
                if any(one.is_wrong for one in found):
                    return number
                worst[kind] = max([worst[kind], *(one.difference for one in found)])
        return worst[0], worst[1], worst[2]

    def locate(self, batches: list[dict[str, np.ndarray]]) -> str:
        """Describes the first difference in the last of the batches."""
        for batch in batches[:-1]:
            self._train_step(batch)
        for operators in self._forward():
            message = self._locate_value(operators, batches[-1])
            if message is not None:
                return message
        losses, gradients, stored = self._train_step(batches[-1])
        for name, found in losses.items():
            if found.is_wrong:
                return self._message(f"loss '{name}': its value", _tensor_id(name).op, found)
        for output, found in reversed(gradients.items()):
            if found.is_wrong:
                belongs = self._graph[output].inputs[0].op
                return self._message(f"{self._graph[belongs]}: its gradient", belongs, found)
        for name, found in stored.items():
            if found.is_wrong:
                return self._message(f"{self._graph[name]}: its value after the update", name, found)
        return (
            "verify: a difference was seen and could not be seen again, so the numbers vary from run to run. "
            "Look for operators that depend on timing."
        )

    def close(self) -> None:
        self._executor.state.close()
        if self._reference is not None:
            self._reference.close()

    def _train_step(
        self, batch: dict[str, np.ndarray]
    ) -> tuple[dict[str, _Found], dict[str, _Found], dict[str, _Found]]:
        """A step of both; how losses, gradients and what is stored differ."""
        fetches: list[Fetch] = [
            *(_tensor_id(name) for name in self._losses),
            *(TensorId(f"{name}{SINK}") for name in self._losses),  # what gradients begin with, on every device
            *(TensorId(output.name) for output in self._outputs),
            *(TensorId(output.name, 1) for output in self._outputs if output.indices is not None),
            self._step,
        ]
        found = dict(zip(fetches, self._executor.run(fetches, batch), strict=True))
        mine = [
            found[TensorId(output.name, index)]
            for output in self._outputs
            for index in range(1 if output.indices is None else 2)
        ]
        with self._job.world.step("verify: a step of one process"):
            if self._reference is not None:
                theirs, own, made_of = self._reference.follow_step(self._step, self._losses, self._outputs, batch, mine)
                after, before = self._reference.stored(), self._stored
                self._stored = after
            stored, names = self._executor.state.stored(), sorted(self._executor.state.names)
        tolerance = self._tolerances[_tensor_id(self._losses[0]).op]
        on_0 = self._reference is not None
        values = [found[fetch] for fetch in fetches[: 2 * len(self._losses)]]
        of_losses = self._compare_values(values, [*theirs, *theirs] if on_0 else [None] * len(values), tolerance)
        of_gradients = self._compare_values(
            whole_gradients(self._outputs, mine, self._shapes),
            expected_gradients(whole_gradients(self._outputs, own, self._shapes), tolerance)
            if on_0
            else [None] * len(self._outputs),
            tolerance,
        )
        of_stored = self._agree(
            [
                self._compare(
                    stored.get(name, (None, ()))[0],
                    Expected.changed(before[name], after[name], tolerance, made_of.get(name, 0.0)) if on_0 else None,
                    tolerance,
                    stored.get(name, (None, ()))[1],
                )
                for name in names
            ],
            tolerance,
        )
        pairs = zip(of_losses, of_losses[len(self._losses) :], strict=False)
        return (
            {name: max(pair, key=lambda one: one.difference) for name, pair in zip(self._losses, pairs, strict=True)},
            dict(zip((output.name for output in self._outputs), of_gradients, strict=True)),
            dict(zip(names, of_stored, strict=True)),
        )

    def _forward(self) -> Iterator[list[Operator]]:
        """The operators of the forward pass in order, as many at a time as one may well hold the values of."""
        several: list[Operator] = []
        held = 0
        for op in self._graph.needed_for(f"{name}{SINK}" for name in self._losses):
            if traits(op).role is not None or not op.outputs:
                continue
            size = sum(spec.size_bytes for spec in op.outputs)
            if several and held + size > _HELD_BYTES:
                yield several
                several, held = [], 0
            several.append(op)
            held += size
        yield several

    def _locate_value(self, operators: list[Operator], batch: dict[str, np.ndarray]) -> str | None:
        """The first of the operators whose value differs."""
        tensors, feeds = [], _needed(self._graph, operators, batch)
        for op in operators:
            # Outputs that only TensorFlow's own gradient reads have no consumer here, and need not exist.
            outputs = [TensorId(op.name, index) for index in range(len(op.outputs))]
            tensors += [tensor for tensor in outputs if tensor.index == 0 or self._graph.consumers(tensor)]
        mine = self._executor.run(tensors, feeds)
        observed = []
        with self._job.world.step("verify: values of one process"):
            if self._reference is not None:
                observed = self._reference.run_operators([str(tensor) for tensor in tensors], feeds)
        for index, tensor in enumerate(tensors):
            tolerance = self._tolerances[tensor.op]
            wanted = Expected.of(observed[index].value) if observed else None
            if self._compare_values([mine[index]], [wanted], tolerance)[0].is_wrong:
                # It may be what rounding leaves of numbers that cancel.
                if self._reference is not None:
                    wanted = Expected.of(observed[index].value, self._reference.noise(observed[index]))
                found = self._compare_values([mine[index]], [wanted], tolerance)[0]
                if found.is_wrong:
                    return self._message(f"{self._graph[tensor.op]}: its value", tensor.op, found)
        return None

    def _compare_values(
        self, mine: Sequence[Any], theirs: Sequence[Expected | None], tolerance: Tolerance
    ) -> list[_Found]:
        """How whole values differ from those that rank 0 gives; other ranks give None for them."""
        pairs = zip(mine, theirs, strict=True)
        return self._agree([self._compare(value, other, tolerance) for value, other in pairs], tolerance)

    def _compare(self, mine: Any, theirs: Any, tolerance: Tolerance, part: tuple[slice, ...] = ()) -> float:
        """How this rank's value differs from a part of the ``Expected`` that rank 0 gives, and others give None for.

        A rank that has nothing of it gives None for its value, which differs from nothing.
        """
        whole = theirs if self._job.world.size == 1 else self._job.world.comm.bcast(theirs, root=0)
        return 0.0 if mine is None else difference(mine, whole.part(part), tolerance)

    def _agree(self, found: list[float], tolerance: Tolerance) -> list[_Found]:
        """The largest of all ranks, on every rank."""
        ranks = [found] if self._job.world.size == 1 else self._job.world.comm.allgather(found)
        result = []
        for values in zip(*ranks, strict=True):
            rank = max(range(len(values)), key=lambda index: values[index])
            result.append(_Found(values[rank], rank, tolerance.relative))
        return result

    def _message(self, subject: str, operator: str, found: _Found) -> str:
        return (
            f"{subject} differs from one process's by {found.difference:.3g} on rank {found.rank} "
            f"(relative; {found.allowed:.3g} is allowed)"
            + (f" under configuration {self._plan.configuration(operator)}" if operator else "")
            + f" on {self._plan.mesh}. "
            "It is the first that does, so its rule, its lowering or a reshard of its inputs is wrong. "
            "Please report it with the plan (Plan.save)."
        )


def _given_values(job: Job, values: Callable[[str], Any], executor: Executor) -> dict[str, np.ndarray]:
    """Gives variables from outside of a graph, such as a Keras model's, the values that they have by now; collective.

    Returns:
        The values, on rank 0.
    """
    found: dict[str, np.ndarray] = {}

    def value(name: str) -> np.ndarray:
        trained = job.executor is not None and name in job.executor.state.names
        here = np.asarray(job.require_executor("verify").run([TensorId(name)])[0] if trained else values(name))
        if job.world.rank == 0:
            found[name] = here
        return here

    executor.state.set_variables(value)
    return found


def _tolerances(graph: Graph, relative: float | None) -> dict[str, Tolerance]:
    """For each operator that of the coarsest dtype that its value is computed in."""
    dtypes: dict[str, frozenset[str]] = {}
    for op in graph.operators:
        own = frozenset(spec.dtype for spec in op.outputs)
        dtypes[op.name] = own.union(*(dtypes[tensor.op] for tensor in op.inputs))
    found = {name: tolerance_of(sorted(known)) for name, known in dtypes.items()}
    if relative is None:
        return found
    return {name: replace(tolerance, relative=relative) for name, tolerance in found.items()}


def random_feeds(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Random whole batches for the placeholders of the training step.

    Integers stay below what their readers index: a vocabulary, a number of classes, a depth.
    """
    rng = np.random.default_rng(seed)
    result = {}
    for op in graph.inputs():
        if op.name not in graph.training or not traits(op).must_be_fed:
            continue
        spec = op.outputs[0]
        if spec.dtype == "bool":
            result[op.name] = rng.integers(0, 2, spec.shape).astype(bool)
        elif spec.is_differentiable:
            result[op.name] = rng.uniform(0.0, 1.0, spec.shape).astype(np.float32)
        else:
            result[op.name] = rng.integers(0, _bound(graph, op.name), spec.shape).astype(np.int64)
    return result


def _bound(graph: Graph, name: str) -> int:
    bounds = []
    for edge in (edge for op in graph.operators for edge in graph.consumers(TensorId(op.name)) if op.name == name):
        op = graph[edge.consumer]
        own = traits(op)
        if edge.position in own.indices:
            bounds.append(own.indices[edge.position](op, graph.input_specs(op)))
        elif own.alias or own.moves or own.converts:
            bounds.append(_bound(graph, op.name))
    return min(bounds, default=2)


def _needed(graph: Graph, operators: list[Operator], batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = {other.name for other in graph.needed_for([op.name for op in operators])}
    return {name: value for name, value in batch.items() if name in names}


def _step(imported: ImportedModel, train_op: Any) -> str:
    """The name of a training step."""
    if train_op is not None:
        name = train_op if isinstance(train_op, str) else train_op.name
        graph = imported.graph
        if name not in graph or not any(traits(op).is_gradient for op in graph.needed_for([name])):
            raise SessionError(f"'{name}': is no training step. Give what an optimizer's minimize returned.")
        return str(name)
    if len(imported.steps) != 1:
        raise SessionError(f"The model has {len(imported.steps)} training steps; choose one with train_op=….")
    return imported.steps[0]


def _named(feeds: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    return {
        (key if isinstance(key, str) else key.name).split(":")[0]: np.asarray(value) for key, value in feeds.items()
    }


def _tensor_id(name: str) -> TensorId:
    op, _, index = name.partition(":")
    return TensorId(op, int(index or 0))
