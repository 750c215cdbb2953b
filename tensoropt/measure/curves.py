"""Time curves over size of work that is alike at every size, measured on all ranks: see ``OpProfile.curves``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.framework import op_def_registry

from tensoropt.cost import Curve
from tensoropt.exec.engines.guard import Guard
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorSpec
from tensoropt.measure.machine import COLD_WORK_BYTES, WARM_BYTES, Machine
from tensoropt.measure.probe_seconds import run_probes
from tensoropt.measure.probes import FunctionProbe, Probe

__all__ = ["CURVES", "Update", "iteration_seconds", "measure_curves", "updates_of"]

CURVES = ("sum", "slice", "transpose", "mask", "feed")
_CURVE_BYTES = tuple(2**exponent for exponent in (10, 14, 17, 19, 20, 21, 22, 24))
_ROW_ELEMENTS = 128
_ITERATIONS = 60


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer's step for a variable, whose time is to be known.

    Attributes:
        op: one operator of its type.
        inputs: of that operator.
    """

    op: Operator
    inputs: tuple[TensorSpec, ...]

    @property
    def tensors(self) -> int:
        """How many tensors of the variable's size it reads or writes."""
        return sum(spec.rank > 0 for spec in self.inputs)


def updates_of(graph: Graph) -> dict[str, Update]:
    """One of each type of the updates in a graph, but for those of rows and of single numbers."""
    found: dict[str, Update] = {}
    for op in graph.operators:
        inputs = graph.input_specs(op)
        if traits(op).updates and traits(op).rows is None and inputs[0].rank:
            found.setdefault(op.type, Update(op, inputs))
    return found


def measure_curves(machine: Machine, updates: Mapping[str, Update]) -> dict[str, Curve]:
    """See ``OpProfile.curves``; ``updates`` are by op type. Collective."""
    kinds: dict[str, Callable[[int], FunctionProbe]] = {
        "sum": lambda size: FunctionProbe((_vector(size), _vector(size)), lambda x, y: [tf.add_n([x, y])]),
        "slice": lambda size: FunctionProbe((_matrix(size),), _half_of_each_row),
        "transpose": lambda size: FunctionProbe((_matrix(size),), _cut_and_stacked),
        # The zeros are there: TensorFlow makes them once and for all.
        "mask": lambda size: FunctionProbe((_vector(size),), lambda x: [tf.where(False, x, x)]),
    }
    # What is moved was made just now (an activation) or long ago (a weight): half of the probes are cold, of those that
    # are too large for a cache to keep meanwhile.
    probes: list[Probe] = [
        dataclasses.replace(make(size), is_cold=is_cold)
        for make in kinds.values()
        for size in _CURVE_BYTES
        for is_cold in _coldness(size)
    ]
    for update in updates.values():
        probes += [FunctionProbe((_vector(size),), _update_builder(update, size)) for size in _CURVE_BYTES]
    measured = iter(run_probes(machine, probes))
    curves = {}
    for name in kinds:
        curves[name] = _curve(_CURVE_BYTES, [_mean([next(measured) for _ in _coldness(size)]) for size in _CURVE_BYTES])
    for key, update in updates.items():
        sizes = tuple(size * update.tensors for size in _CURVE_BYTES)
        curves[f"update {key}"] = _curve(sizes, [next(measured) for _ in sizes])
    curves["feed"] = _feed_curve(machine)
    return curves


def _coldness(size_bytes: int) -> tuple[bool, ...]:
    return (False,) if size_bytes < WARM_BYTES else (False, True)


def _mean(measured: Sequence[Any]) -> tuple[float] | None:
    """Forward seconds on average over the probes that could be measured."""
    seconds = [entry[0] for entry in measured if entry is not None]
    return (float(np.mean(seconds)),) if seconds else None


def _curve(sizes: Sequence[int], measured: Sequence[Any]) -> Curve:
    seconds = [1e-9 if entry is None else max(entry[0], 1e-9) for entry in measured]
    return Curve(tuple(sizes), _ascending(seconds))


def _ascending(seconds: Sequence[float]) -> tuple[float, ...]:
    """Other programs only add time, so no size takes longer than a larger one."""
    return tuple(float(second) for second in np.minimum.accumulate(np.asarray(seconds)[::-1])[::-1])


def _vector(size_bytes: int) -> TensorSpec:
    return TensorSpec((size_bytes // 4,), "float32")


def _matrix(size_bytes: int) -> TensorSpec:
    return TensorSpec((size_bytes // 4 // _ROW_ELEMENTS, _ROW_ELEMENTS), "float32")


def _half_of_each_row(x: Any) -> list[Any]:
    return [tf.slice(x, [0, 0], [-1, _ROW_ELEMENTS // 2])]


def _cut_and_stacked(x: Any) -> list[Any]:
    """As a reshard along the second of two dimensions prepares its pieces."""
    return [tf.transpose(tf.reshape(x, [-1, 2, _ROW_ELEMENTS // 2]), [1, 0, 2])]


def _update_builder(update: Update, size_bytes: int) -> Callable[[Any], list[Any]]:
    op = update.op
    definition = op_def_registry.get(op.type)
    flags = {attr.name for attr in definition.attr if attr.type == "bool"}

    def operand(place: int, spec: TensorSpec, gradient: Any) -> Any:
        if place in op.handles and spec.rank:
            return tf.compat.v1.Variable(tf.ones([size_bytes // 4]), use_resource=True).handle
        if place in op.handles:
            return tf.compat.v1.Variable(tf.constant(0.5), use_resource=True).handle
        return gradient if spec.rank else tf.constant(0.5 if spec.is_differentiable else 1, _single(spec).dtype)

    def build(gradient: Any) -> list[Any]:
        with tf.control_dependencies(None):
            operands = [operand(place, spec, gradient) for place, spec in enumerate(update.inputs)]
        names = [argument.name for argument in definition.input_arg]
        arguments = dict(zip(names, operands, strict=True)) | {key: op.attrs[key] for key in sorted(flags)}
        return [getattr(tf.raw_ops, op.type)(**arguments)]

    return build


def _single(spec: TensorSpec) -> TensorSpec:
    """In single precision, in which updates are measured."""
    return TensorSpec(spec.shape, "float32") if spec.is_differentiable else spec


def _feed_curve(machine: Machine) -> Curve:
    seconds = []
    with tf.Graph().as_default() as graph:
        fed = tf.compat.v1.placeholder(tf.float32, [None])
        read = tf.identity(fed)
        with tf.compat.v1.Session(graph=graph) as session:
            run = _runner(session, [], read.op, fed)
            for size in _CURVE_BYTES:
                array = np.ones(size // 4, np.float32)
                least = np.inf
                for _ in range(5):
                    with machine.in_turn():
                        start = time.perf_counter()
                        run(array)
                        least = min(least, time.perf_counter() - start)
                seconds.append(least)
    # What a run takes with next to nothing fed is the iteration's.
    above = np.maximum(np.mean(machine.comm.allgather(seconds), axis=0) - seconds[0], 1e-9) * machine.crowding
    return Curve(_CURVE_BYTES, _ascending(machine.comm.bcast(above)))


def iteration_seconds(machine: Machine, guard: Guard) -> float:
    """A run of a program that computes nothing, with the guard's meeting before it."""
    with tf.Graph().as_default() as graph:
        fed = tf.compat.v1.placeholder(tf.float32, [1])
        result = tf.identity(fed)
        with tf.compat.v1.Session(graph=graph) as session:
            run = _runner(session, [result], tf.no_op(), fed)
            array = np.ones(1, np.float32)
            # Between iterations, as a step's kernels would: this leaves caches with nothing that an iteration needs.
            work = np.zeros(COLD_WORK_BYTES // 4, np.float32)
            seconds = []
            for _ in range(_ITERATIONS):
                work += 1
                start = time.perf_counter()
                guard.meet("measuring an iteration")
                run(array)
                seconds.append(time.perf_counter() - start)
    return float(np.mean(machine.comm.allgather(float(np.median(seconds)))))


def _runner(session: Any, fetches: Sequence[Any], target: Any, fed: Any) -> Callable[[Any], Any]:
    """As the executor runs programs, where TensorFlow has it."""
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        return session.make_callable([*fetches, target], [fed])
    names = [tensor.name for tensor in fetches]
    return make(config_pb2.CallableOptions(feed=[fed.name], fetch=names, target=[target.name]))
