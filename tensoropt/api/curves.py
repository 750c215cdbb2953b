"""What work takes that is alike at every size, measured on all ranks: see ``OpProfile.curves``."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2

from tensoropt.api.machine import Machine, at_once
from tensoropt.api.model import OptimizerSpec
from tensoropt.cost import Curve
from tensoropt.exec.engines.guard import Guard
from tensoropt.exec.op_profiler import RUNS, Measured, measure_batch
from tensoropt.exec.probes import FunctionProbe, Probe
from tensoropt.graph.spec import TensorSpec

__all__ = ["CURVES", "iteration_seconds", "measure_curves", "optimizer_key", "run_probes"]

_log = logging.getLogger("tensoropt")
CURVES = ("sum", "slice", "transpose", "mask", "feed")
_CURVE_BYTES = tuple(2**exponent for exponent in (10, 14, 17, 19, 20, 21, 22, 24))
_ROW_ELEMENTS = 128
_ITERATIONS = 60
# What is smaller and was made some operators ago is still in a core's own cache.
_WARM_BYTES = 2**18
# Between iterations, as a step's kernels would: this leaves caches with nothing that an iteration needs.
_WORK_BYTES = 2**23
# By how much less or more a batch may take without a trace, lest a disturbance decide on all of its operators.
_LEAST_PACE, _MOST_PACE = 0.8, 1.5


def optimizer_key(spec: OptimizerSpec) -> str:
    """What decides how long an optimizer's update takes, but for the variable."""
    return " ".join((spec.kind, *spec.slot_names))


def run_probes(
    machine: Machine, comm: Any, probes: Sequence[Probe], runs: int = RUNS
) -> list[tuple[float, float, Measured] | None]:
    """Seconds forward and backward of each probe, of all ranks together. Collective.

    They are what kernels take, traced, on average over ranks, times how much longer all passes of the batch take by the
    clock the slowest rank, each time another one: ranks meet in collectives, many times in a step. A single pass is too
    short for a clock. Where ranks share cores, others work while one waits, and traces in turns do not show how they
    take a core's caches from one another, each kernel in its own way: there each pass takes the mean of the ranks'
    processor time, times how many share a core.

    Args:
        machine: of this rank.
        comm: of all ranks.
        probes: the same ones on every rank.
        runs: how often each runs; medians count.

    Returns:
        With what this rank measured; None for a probe that cannot be measured.
    """
    is_crowded = machine.crowding > 1
    clock = time.process_time if is_crowded else time.perf_counter
    # No clock of the host's tells what GPUs do. Ranks agree, or they would wait for one another.
    has_gpus = any(comm.allgather(bool(tf.config.list_physical_devices("GPU"))))
    times = measure_batch(
        probes,
        turn=lambda: machine.together(comm),
        spread=lambda mine: set().union(*comm.allgather(mine)),
        crowd=lambda: at_once(comm),
        clock=None if has_gpus else clock,
        runs=runs,
        traced_runs=1 if is_crowded and not has_gpus else runs,
    )
    for number, reason in sorted(times.failures.items()):
        _log.debug("profile: probe %d cannot be measured: %s", number, reason)
    mine = [(0.0, 0.0) if entry is None else (entry.forward_s, entry.backward_s) for entry in times.probes]
    kernels_s = np.mean(comm.allgather(mine), axis=0).reshape(-1)
    every = comm.allgather((times.traced_s, times.plain_s, times.passes_s))
    passes_s = np.array([of_rank for *_, of_rank in every])
    if has_gpus:
        seconds = kernels_s * machine.crowding * _pace(every)
    elif is_crowded:
        seconds = np.median(passes_s, axis=1).mean(axis=0) * machine.crowding
    else:
        slowest_s = np.median(passes_s.max(axis=0), axis=0)
        seconds = kernels_s * _bounded_pace(float(slowest_s.sum()), float(kernels_s.sum()))
    return [
        None if entry is None else (float(forward), float(backward), entry)
        for entry, (forward, backward) in zip(times.probes, seconds.reshape(-1, 2), strict=True)
    ]


def _pace(ranks: Sequence[tuple[float, tuple[float, ...], NDArray[np.float64]]]) -> float:
    """How many times longer work takes than its kernels do, traced, on average over ranks.

    Without a trace kernels take less, but there is what TensorFlow takes between them; and the slowest rank sets the
    pace, as if ranks met after every operator.

    Args:
        ranks: of each what was measured of a batch: traced seconds, seconds of runs without a trace, and seconds of
            every pass of a probe in traced runs.
    """
    traced_s = float(np.mean([rank[0] for rank in ranks]))
    plain_s = np.array([rank[1] for rank in ranks])
    passes_s = np.array([rank[2] for rank in ranks])
    if not plain_s.size or not passes_s.any():
        return 1.0
    slowest_s = float(np.median(plain_s.max(axis=0)))
    waiting = float(np.median(passes_s.max(axis=0).sum(axis=1)) / np.median(passes_s.sum(axis=2).max(axis=0)))
    return _bounded_pace(slowest_s * waiting, traced_s)


def _bounded_pace(took_s: float, traced_s: float) -> float:
    return float(np.clip(took_s / traced_s, _LEAST_PACE, _MOST_PACE)) if traced_s > 0 else 1.0


def measure_curves(machine: Machine, comm: Any, optimizers: Sequence[OptimizerSpec]) -> dict[str, Curve]:
    """See ``OpProfile.curves``."""
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
    for spec in optimizers:
        probes += [FunctionProbe((_vector(size),), _update_builder(spec, size)) for size in _CURVE_BYTES]
    measured = iter(run_probes(machine, comm, probes))
    curves = {}
    for name in kinds:
        curves[name] = _curve(_CURVE_BYTES, [_mean([next(measured) for _ in _coldness(size)]) for size in _CURVE_BYTES])
    for spec in optimizers:
        sizes = tuple(size * (2 + spec.slot_count) for size in _CURVE_BYTES)
        curves[f"update {optimizer_key(spec)}"] = _curve(sizes, [next(measured) for _ in sizes])
    curves["feed"] = _feed_curve(machine, comm)
    return curves


def _coldness(size_bytes: int) -> tuple[bool, ...]:
    return (False,) if size_bytes < _WARM_BYTES else (False, True)


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


def _update_builder(spec: OptimizerSpec, size_bytes: int) -> Callable[[Any], list[Any]]:
    def build(gradient: Any) -> list[Any]:
        with tf.control_dependencies(None):
            variable = tf.compat.v1.Variable(tf.zeros([size_bytes // 4]), use_resource=True)
            given = {name: tf.constant(0.01) for name in spec.tensors}
        return [spec.build(tf, given).apply_gradients([(gradient, variable)])]

    return build


def _feed_curve(machine: Machine, comm: Any) -> Curve:
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
                    with machine.together(comm):
                        start = time.perf_counter()
                        run(array)
                        least = min(least, time.perf_counter() - start)
                seconds.append(least)
    # What a run takes with next to nothing fed is the iteration's.
    above = np.maximum(np.mean(comm.allgather(seconds), axis=0) - seconds[0], 1e-9) * machine.crowding
    above = comm.bcast(above, root=0)
    return Curve(_CURVE_BYTES, _ascending(above))


def iteration_seconds(comm: Any, guard: Guard) -> float:
    """A run of a program that computes nothing, with the guard's meeting before it."""
    with tf.Graph().as_default() as graph:
        fed = tf.compat.v1.placeholder(tf.float32, [1])
        result = tf.identity(fed)
        with tf.compat.v1.Session(graph=graph) as session:
            run = _runner(session, [result], tf.no_op(), fed)
            array = np.ones(1, np.float32)
            work = np.zeros(_WORK_BYTES // 4, np.float32)
            seconds = []
            for _ in range(_ITERATIONS):
                work += 1
                start = time.perf_counter()
                guard.meet("measuring an iteration")
                run(array)
                seconds.append(time.perf_counter() - start)
    return float(np.mean(comm.allgather(float(np.median(seconds)))))


def _runner(session: Any, fetches: Sequence[Any], target: Any, fed: Any) -> Callable[[Any], Any]:
    """As the executor runs programs, where TensorFlow has it."""
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        return session.make_callable([*fetches, target], [fed])
    names = [tensor.name for tensor in fetches]
    return make(config_pb2.CallableOptions(feed=[fed.name], fetch=names, target=[target.name]))
