"""The same seed on one process and on all: losses, gradients and variables must be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoropt.api.job import Job, current_job
from tensoropt.api.model import Model, TrainStep, current_model
from tensoropt.api.reference import InitialValues, Reference
from tensoropt.api.seeds import Seeds
from tensoropt.api.strategy import ImportedModel
from tensoropt.errors import SessionError, VerificationError
from tensoropt.exec.fetch import Fetch, GradientOf
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId
from tensoropt.plan.plan import Plan

__all__ = ["Verification", "reference_losses", "verify"]

Feeds = Mapping[str, np.ndarray]
_FOLLOWED = ("Fanout", "Identity", "Cast", "Reshape", "ExpandDims", "Squeeze", "Transpose", "StopGradient")


@dataclass(frozen=True, slots=True)
class Verification:
    """What was compared, and the largest differences.

    Differences are relative to the largest value of the tensor that they are in (absolute below 1).
    """

    steps: int
    loss_difference: float
    gradient_difference: float
    variable_difference: float

    def __str__(self) -> str:
        return (
            f"{self.steps} steps equal one process's: largest relative difference of losses "
            f"{self.loss_difference:.2g}, gradients {self.gradient_difference:.2g}, "
            f"variables {self.variable_difference:.2g}"
        )


def verify(
    plan: Plan,
    steps: int = 3,
    *,
    feeds: Callable[[int], Mapping[Any, Any]] | None = None,
    train_op: Any = None,
    tolerance: float = 1e-4,
    collectives: str = "auto",
) -> Verification:
    """Trains a fresh copy of the model by the plan and another by plain TensorFlow on rank 0, and compares.

    The job's own variables are not touched. All ranks must call it.

    Args:
        plan: for the current model.
        steps: how many training steps.
        feeds: whole batches by step, the same on every rank; by default random ones that fit the placeholders.
        train_op: which training step, if the model has several.
        tolerance: largest relative difference that is taken for rounding.
        collectives: see :func:`tensoropt.build_execution_graph`.

    Raises:
        VerificationError: naming the first operator, gradient or variable that differs, on every rank.
        SessionError: if the model trains nothing, or several steps and none was chosen.
    """
    job, model = current_job(), current_model()
    with job.step("verify"):
        imported = job.imported_model()
        step = _step(model, train_op)
        batches = [_named(feeds(i)) if feeds is not None else random_feeds(imported.graph, i) for i in range(steps)]
    run = _Run(job, model, imported, plan, step, collectives)
    try:
        differences = run.train(batches, tolerance)
    finally:
        run.close()
    if isinstance(differences, int):
        failed = differences
        again = _Run(job, model, imported, plan, step, collectives, run.seeds)
        try:
            raise VerificationError(again.locate(batches[: failed + 1], tolerance))
        finally:
            again.close()
    return Verification(steps, *differences)


def reference_losses(loss: Any, train_op: Any, feeds: Iterable[Mapping[Any, Any]]) -> list[float]:
    """The loss curve of one process with the job's seeds: plain TensorFlow on rank 0, the result on every rank.

    Args:
        loss: the loss tensor.
        train_op: the training step.
        feeds: whole batches, one per step.

    Raises:
        SessionError: before ``build_execution_graph``.
    """
    job, model = current_job(), current_model()
    with job.step("reference_losses"):
        job.require_executor("reference_losses")
        step = _step(model, train_op)

    def run() -> list[float]:
        reference = Reference(model, job.seeds)
        try:
            return [float(reference.run_step(step.op, loss.name, (), _named(batch))[0]) for batch in feeds]
        finally:
            reference.close()

    return job.on_rank_0("reference_losses", run)


class _Run:
    """A distributed copy of the model, and on rank 0 one of plain TensorFlow."""

    def __init__(
        self,
        job: Job,
        model: Model,
        imported: ImportedModel,
        plan: Plan,
        step: TrainStep,
        collectives: str,
        seeds: Seeds | None = None,
    ) -> None:
        self._job = job
        self._graph = imported.graph
        self._step = step
        self._plan = plan
        self._executor, self.seeds = job.make_executor(plan, imported, model, collectives, None, seeds)
        with job.step("verify: initial values"):
            initial = InitialValues(imported.tf_graph, self.seeds)
            self._executor.set_variables(initial)
            initial.close()
            self._reference = Reference(model, self.seeds, imported.tf_graph) if job.rank == 0 else None

    def train(self, batches: list[dict[str, np.ndarray]], tolerance: float) -> tuple[float, float, float] | int:
        """Largest differences, or the number of the first step with one beyond ``tolerance``."""
        worst = [0.0, 0.0, 0.0]
        for number, batch in enumerate(batches):
            mine, theirs = self._train_step(batch)
            found = self._agree([_difference(mine[0], theirs[0]), _worst(mine[1:], theirs[1:])])
            worst = [max(worst[0], found[0]), max(worst[1], found[1]), 0.0]
            if not max(found) <= tolerance:
                return number
        names = [op.name for op in self._graph.of_type("Variable")]
        mine = self._executor.run([TensorId(name) for name in names], {})
        theirs = [self._reference.variable(name) for name in names] if self._reference else mine
        worst[2] = self._agree([_worst(mine, theirs)])[0]
        if not worst[2] <= tolerance:
            return len(batches) - 1
        return worst[0], worst[1], worst[2]

    def locate(self, batches: list[dict[str, np.ndarray]], tolerance: float) -> str:
        """What differs first in the last of the batches."""
        for batch in batches[:-1]:
            self._train_step(batch)
        for op in self._forward():
            # Outputs that only TensorFlow's own gradient reads have no consumer here, and need not exist.
            outputs = [TensorId(op.name, index) for index in range(len(op.outputs))]
            tensors = [tensor for tensor in outputs if tensor.index == 0 or self._graph.consumers(tensor)]
            mine = self._executor.run(tensors, _needed(self._graph, op, batches[-1]))
            theirs = self._values(op, tensors, batches[-1], mine)
            difference = self._agree([_worst(mine, theirs)])[0]
            if not difference <= tolerance:
                return self._message(op, "value", difference, tolerance)
        mine, theirs = self._train_step(batches[-1])
        found = self._agree([_difference(a, b) for a, b in zip(mine[1:], theirs[1:], strict=True)])
        for name, difference in reversed(list(zip(self._step.variables, found, strict=True))):
            if not difference <= tolerance:
                return self._message(self._graph[name], "gradient", difference, tolerance)
        for name in (op.name for op in self._graph.of_type("Variable")):
            value = self._executor.run([TensorId(name)], {})[0]
            other = self._reference.variable(name) if self._reference else value
            difference = self._agree([_difference(value, other)])[0]
            if not difference <= tolerance:
                return self._message(self._graph[name], "value after the update", difference, tolerance)
        return (
            "verify: a difference was seen and could not be seen again, so the numbers vary from run to run. "
            "Look for operators that depend on timing."
        )

    def close(self) -> None:
        self._executor.close()
        if self._reference is not None:
            self._reference.close()

    def _train_step(self, batch: dict[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
        step = self._step
        fetches: list[Fetch] = [
            _tensor_id(step.loss),
            *(GradientOf(step.op, name) for name in step.variables),
            step.op,
        ]
        mine = self._executor.run(fetches, batch)[:-1]
        with self._job.step("verify: a step of one process"):
            if self._reference is None:
                return mine, mine
            loss, gradients = self._reference.run_step(step.op, step.loss, step.variables, batch)
        return mine, [loss, *gradients]

    def _forward(self) -> list[Operator]:
        hidden = ("Fanout", "Sink", "NoOp", "Variable", "Placeholder", "PlaceholderWithDefault", "Const")
        needed = self._graph.needed_for([f"{self._step.loss}/sink"])
        return [op for op in needed if op.type not in hidden and op.outputs]

    def _values(
        self, op: Operator, tensors: list[TensorId], batch: dict[str, np.ndarray], mine: list[Any]
    ) -> list[Any]:
        with self._job.step("verify: a value of one process"):
            if self._reference is None:
                return mine
            return self._reference.run([str(tensor) for tensor in tensors], _needed(self._graph, op, batch))

    def _agree(self, found: list[float]) -> list[float]:
        """Rank 0's numbers, on every rank."""
        if self._job.size == 1:
            return found
        return list(self._job.comm.bcast(found, root=0))

    def _message(self, op: Operator, what: str, difference: float, tolerance: float) -> str:
        return (
            f"{op}: its {what} differs from one process's by {difference:.3g} (relative; {tolerance:.3g} is allowed) "
            f"under configuration {self._plan.configuration(op.name)} on {self._plan.mesh}. "
            "It is the first that does, so its rule, its lowering or a reshard of its inputs is wrong. "
            "Please report it with the plan (Plan.save)."
        )


def random_feeds(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Random whole batches for the placeholders of the training step.

    Integers stay below what their readers index: a vocabulary, a number of classes, a depth.
    """
    rng = np.random.default_rng(seed)
    result = {}
    for op in graph.of_type("Placeholder"):
        if op.name not in graph.training:
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
        if op.type in ("GatherV2", "ResourceGather") and edge.position == 1:
            axis = int(op.static.get(2, 0)) if op.type == "GatherV2" else 0
            bounds.append(graph.spec(op.inputs[0]).shape[axis])
        elif op.type == "SparseSoftmaxCrossEntropyWithLogits" and edge.position == 1:
            bounds.append(graph.spec(op.inputs[0]).shape[1])
        elif op.type == "OneHot":
            bounds.append(int(op.static.get(1, 2)))
        elif op.type in _FOLLOWED:
            bounds.append(_bound(graph, op.name))
    return min(bounds, default=2)


def _needed(graph: Graph, op: Operator, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = {other.name for other in graph.needed_for([op.name])}
    return {name: value for name, value in batch.items() if name in names}


def _step(model: Model, train_op: Any) -> TrainStep:
    steps = model.train_steps
    if train_op is not None:
        name = train_op if isinstance(train_op, str) else train_op.name
        chosen = model.train_step(name)
        if chosen is None:
            raise SessionError(f"'{name}': is no training step. Give what an optimizer's minimize returned.")
        return chosen
    if len(steps) != 1:
        raise SessionError(f"The model has {len(steps)} training steps; choose one with train_op=….")
    return steps[0]


def _named(feeds: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    return {
        (key if isinstance(key, str) else key.name).split(":")[0]: np.asarray(value) for key, value in feeds.items()
    }


def _tensor_id(name: str) -> TensorId:
    op, _, index = name.partition(":")
    return TensorId(op, int(index or 0))


def _worst(mine: list[Any], theirs: list[Any]) -> float:
    return max((_difference(a, b) for a, b in zip(mine, theirs, strict=True)), default=0.0)


def _difference(mine: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest value (absolute below 1); infinite where one is not finite."""
    a, b = np.asarray(mine, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if a.shape != b.shape:
        return float("inf")
    if a.size == 0:
        return 0.0
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    if not np.all(np.isfinite(apart)):
        return float("inf")
    finite = np.abs(b[np.isfinite(b)])
    return float(apart.max() / max(1.0, finite.max() if finite.size else 1.0))
