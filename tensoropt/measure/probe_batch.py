"""Measures operators in TensorFlow: each lowered as the executor lowers it, at the local shapes of a configuration.

All probes of a batch are one graph that runs like a training step: forward one after another, then backward in reverse
order, so that what the backward pass reads has left the caches as it would have. All ranks run the same graph at once,
so they contend for memory as they do when they train, and for caches where they share cores.

TensorFlow's own trace says how long each kernel took, to be trusted for how they compare; a trace makes ranks that
share cores look slow, so they take turns at it. What a pass takes in a step, with what TensorFlow takes between its
kernels, a clock says that is read before and after each pass of each probe. What reads it waits for kernels of a
graphics card, too: TensorFlow hands on to the host only what the card has done.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tensoropt.errors import EngineError
from tensoropt.graph.spec import TensorSpec
from tensoropt.measure.machine import COLD_WORK_BYTES
from tensoropt.measure.measuring_session import session_as_built
from tensoropt.measure.probes import Probe
from tensoropt.measure.trace import Held, held_by, kernel_seconds

__all__ = ["RUNS", "BatchTimes", "Measured", "measure_batch"]

_SCOPE = re.compile(r"\b(in|w|f|g|b)([0-9]+)/")
# Of a small operator that a step repeats, code and tensors are in caches: it runs once before it is measured.
_SMALL_BYTES = 2**18
RUNS = 5
"""How often a batch runs, for medians, unless it is said."""
# How often the clock is read with nothing between, to know what reading it takes.
_PASSES_OF_NOTHING = 9


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of one probe on this rank.

    Attributes:
        forward_s: in the kernels of the forward pass, traced.
        backward_s: in the kernels of the backward pass, traced.
        forward_reduced_bytes: input bytes of each all_reduce that the lowering emits forward, which the times leave
            out.
        backward_reduced_bytes: input bytes of each all_reduce that the lowering emits backward.
        scratch_bytes: memory that kernels held beside the operator's outputs: at most forward, kept for the backward
            pass beside the outputs that the rule names, and at most backward.
    """

    forward_s: float
    backward_s: float
    forward_reduced_bytes: tuple[int, ...] = ()
    backward_reduced_bytes: tuple[int, ...] = ()
    scratch_bytes: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The measurements of a batch of probes on this rank.

    Attributes:
        probes: per probe; None for a probe that cannot be built or run by itself.
        failures: by a probe's number, why it is None.
        passes_s: ``(runs, 2 * probes)``, each probe's forward and backward pass by the clock, in runs without a trace.
    """

    probes: tuple[Measured | None, ...]
    failures: dict[int, str]
    passes_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))


def measure_batch(
    probes: Sequence[Probe],
    *,
    turn: Callable[[], AbstractContextManager[None]],
    spread: Callable[[set[int]], set[int]],
    crowd: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    clock: Callable[[], float] = time.perf_counter,
    runs: int = RUNS,
    traced_runs: int | None = None,
) -> BatchTimes:
    """Measures probes on this rank while the others do the same. Collective.

    Of several traced runs each kernel's median counts.

    Args:
        probes: the same ones on every rank, in the same order.
        turn: a context in which this rank runs, entered and left by all ranks together.
        spread: the union over ranks of what failed.
        crowd: a context in which all ranks run at once, also those that share a core.
        clock: seconds, to be read around each pass while all ranks run at once.
        runs: how many count without a trace, after one that is thrown away.
        traced_runs: how many count with it; as many, by default.
    """
    failures: dict[int, str] = {}
    while True:
        batch = _Batch(probes, set(failures), clock)
        failures |= batch.failures
        session = session_as_built(batch.graph)
        try:
            with turn():
                refused = _broken(session, batch, failures)
            broken = spread(set(failures) | refused)
            if broken - batch.left_out:
                failures |= {number: failures.get(number, "failed on another rank") for number in broken}
                continue
            if len(broken) == len(probes):
                return BatchTimes((None,) * len(probes), failures, passes_s=np.zeros((runs, 2 * len(probes))))
            traced = []
            for _ in range(traced_runs or runs):
                with turn():
                    stats = _trace(session, batch)
                traced.append(kernel_seconds(stats))
            held = held_by(stats, _pass_of, lambda name: (_pass_of(name) or ("", 0))[0] == "b")
            passes_s = _clocked_seconds(session, batch, crowd, runs)
        finally:
            session.close()
        return BatchTimes(_measured(batch, _traced_seconds(batch, traced), held, failures), failures, passes_s)


def _pass_of(name: str) -> tuple[str, int] | None:
    """Returns a kernel's pass (``f`` forward, ``b`` backward) and its probe's number; None for other kernels."""
    match = _SCOPE.match(name)
    return None if match is None or match[1] not in "fb" else (match[1], int(match[2]))


def _clocked_seconds(
    session: Any, batch: _Batch, crowd: Callable[[], AbstractContextManager[None]], runs: int
) -> NDArray[np.float64]:
    """Measures each pass of each probe by the clock: ``(runs, 2 * probes)``."""
    call = session.make_callable(batch.target, [batch.value])
    result = np.zeros((runs + 1, 2 * len(batch.probes)))
    for of_run in result:
        batch.readings.clear()
        with crowd():
            call(0.5)
        took = {key: end_s - start_s for key, (start_s, end_s) in batch.readings.items()}
        # What a pass of nothing takes, it takes to read the clock.
        least_s = float(np.median([seconds for (which, _), seconds in took.items() if which == "n"]))
        for (which, number), seconds in took.items():
            if which != "n":
                of_run[2 * number + (which == "b")] = max(seconds - least_s, 0.0)
    return result[1:]


def _traced_seconds(batch: _Batch, runs: Sequence[dict[str, float]]) -> NDArray[np.float64]:
    """Seconds of each probe's passes, by their kernels' medians."""
    passes_s = np.zeros(2 * len(batch.built))
    for name in sorted(runs[0]):
        if (part := _pass_of(name)) is not None:
            passes_s[2 * part[1] + (part[0] == "b")] += np.median([run.get(name, 0.0) for run in runs])
    return passes_s


def _measured(
    batch: _Batch, seconds: NDArray[np.float64], held: dict[Any, Held], failures: dict[int, str]
) -> tuple[Measured | None, ...]:
    result: list[Measured | None] = []
    for number, built in enumerate(batch.built):
        if built is None or number in failures:
            result.append(None)
            continue
        talk = tuple(built.talk)
        result.append(
            Measured(
                float(seconds[2 * number]),
                float(seconds[2 * number + 1]),
                talk[: built.forward_talks],
                talk[built.forward_talks :],
                _scratch(built, batch.probes[number].saved_outputs, held, number),
            )
        )
    return tuple(result)


def _scratch(built: _Built, saved: Sequence[int], held: Mapping[Any, Held], number: int) -> tuple[int, int, int]:
    """Returns the scratch memory beside outputs and gradients; outputs that are an input's buffer take none."""
    forward, backward = (held.get((which, number), Held(0, 0)) for which in "fb")
    outputs = sum(map(_bytes, built.outputs))
    kept = sum(_bytes(built.outputs[index]) for index in saved)
    return (
        max(0, forward.peak_bytes - outputs),
        max(0, forward.kept_bytes - kept),
        max(0, backward.peak_bytes - sum(map(_bytes, built.gradients))),
    )


def _is_warm(probe: Probe) -> bool:
    return probe.is_repeated and sum(spec.size_bytes for spec in probe.local_inputs()) < _SMALL_BYTES


def _bytes(tensor: Any) -> int:
    if not isinstance(tensor, tf.Tensor) or not tensor.shape.is_fully_defined():
        return 0
    return int(tensor.shape.num_elements()) * int(tensor.dtype.size)


def _broken(session: Any, batch: _Batch, failures: dict[int, str]) -> set[int]:
    """The probes whose kernels refuse their input, in a first run that also warms up."""
    try:
        session.run(batch.initial)
        _trace(session, batch)
    except tf.errors.OpError as error:
        match = _SCOPE.match("" if error.op is None else error.op.name) or _SCOPE.search(error.message)
        # Without a name no probe can be spared: all are priced without a measurement.
        broken = set(range(len(batch.probes))) if match is None else {int(match[2])}
        failures |= {number: f"{type(error).__name__}: {error.message}" for number in broken}
        return broken
    return set()


def _trace(session: Any, batch: _Batch) -> Any:
    metadata = tf.compat.v1.RunMetadata()
    # The executor itself times kernels of the host. A fuller trace would start TensorFlow's profiler, which writes some
    # lines of log for each.
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
    session.run(batch.target, {batch.value: 0.5}, options=options, run_metadata=metadata)
    return metadata.step_stats


@dataclass(slots=True)
class _Built:
    """The tensors of one probe in a graph."""

    inputs: list[Any]
    outputs: list[Any]
    talk: list[int]
    forward_talks: int
    gradients: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """A graph with all probes of a batch in one chain.

    Attributes:
        probes: what to measure.
        left_out: numbers of those that are not part of the graph.
        clock: is read before and after each pass.
        built: tensors of each probe; None for those that are left out or cannot be built.
        failures: why they cannot be built.
        graph: all of it.
        value: a placeholder that all numbers are made of.
        target: the end of the chain.
        initial: initializes variables.
        readings: of the clock, before and after each pass (``f`` and ``b``) of a run, and before and after nothing
            (``n``), by that and the probe's number.
    """

    probes: Sequence[Probe]
    left_out: set[int]
    clock: Callable[[], float]
    built: list[_Built | None] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    graph: Any = None
    value: Any = None
    target: Any = None
    initial: Any = None
    readings: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.compat.v1.set_random_seed(1)
            # Not a constant, which TensorFlow would compute with once and for all.
            self.value = tf.compat.v1.placeholder(tf.float32, [], name="value")
            self.target = tf.no_op()
            self.built = [self._forward(number, probe) for number, probe in enumerate(self.probes)]
            for number in reversed(range(len(self.probes))):
                self._backward(number, self.probes[number])
            for number in range(_PASSES_OF_NOTHING):
                begun = self._read_clock("n", number, [self.target])
                if tf.config.list_physical_devices("GPU"):  # the way there and back is no part of what a kernel takes
                    with tf.control_dependencies(begun):
                        begun = [self.value + 1.0]
                self.target = tf.group(*self._read_clock("n", number, begun))
            self.initial = tf.compat.v1.global_variables_initializer()

    def _forward(self, number: int, probe: Probe) -> _Built | None:
        if number in self.left_out:
            return None
        talk: list[int] = []
        try:
            with tf.control_dependencies([self.target]), tf.name_scope(f"in{number}"):
                inputs = [
                    self._made_up(spec, *probe.integers(place)) for place, spec in enumerate(probe.local_inputs())
                ]
                with tf.control_dependencies(inputs):
                    between = [tf.fill([COLD_WORK_BYTES // 4], self.value)] if probe.is_cold else []
            if _is_warm(probe):
                with tf.control_dependencies([self.target, *inputs]), tf.name_scope(f"w{number}"):
                    between += [x for x in probe.forward(inputs, []) if x is not None]
            begun = self._read_clock("f", number, [self.target, *inputs, *between])
            with tf.control_dependencies(begun), tf.name_scope(f"f{number}"):
                outputs = probe.forward(inputs, talk)
        except Exception as error:  # an op that cannot stand alone is priced without a measurement
            self.failures[number] = f"{type(error).__name__}: {error}"
            return None
        ended = self._read_clock("f", number, [*begun, *(x for x in outputs if x is not None)])
        self.target = tf.group(*ended, *inputs)
        return _Built(inputs, outputs, talk, len(talk))

    def _backward(self, number: int, probe: Probe) -> None:
        built = self.built[number]
        if built is None or not probe.wanted:
            return
        try:
            ys = [built.outputs[index] for index in probe.outgoing]
            xs = [built.inputs[index] for index in probe.wanted]
            with tf.control_dependencies([self.target]), tf.name_scope(f"g{number}"):
                incoming = [self._made_up(TensorSpec(tuple(y.shape.as_list()), y.dtype.name), 0, 1) for y in ys]
            before = [self.target, *incoming]
            if _is_warm(probe):
                with tf.control_dependencies(before), tf.name_scope(f"w{number}"):
                    before += [g for g in tf.gradients(ys, xs, incoming) if g is not None]
            begun = self._read_clock("b", number, before)
            with tf.control_dependencies(begun), tf.name_scope(f"b{number}"):
                made = [g for g in tf.gradients(ys, xs, incoming) if g is not None]
        except Exception as error:  # see above
            self.failures[number] = f"{type(error).__name__}: {error}"
            return
        flat = [g.values if isinstance(g, tf.IndexedSlices) else g for g in made]
        built.gradients = flat
        self.target = tf.group(*self._read_clock("b", number, [*begun, *flat]), *incoming)

    def _read_clock(self, which: str, number: int, after: list[Any]) -> list[Any]:
        """Reads the clock once all of ``after`` is there; returns the ops that the next work has to wait for."""

        def read() -> None:
            self.readings.setdefault((which, number), []).append(self.clock())

        with tf.control_dependencies(after), tf.name_scope("clock"):
            return [tf.numpy_function(read, [], [])]

    def _made_up(self, spec: TensorSpec, low: int, bound: int) -> Any:
        dtype = tf.as_dtype(spec.dtype)
        if dtype.is_floating or dtype.is_complex:
            value = tf.cast(self.value, dtype)
            filled = tf.fill(spec.shape, value)
            if spec.rank < 2 or spec.shape[-1] != spec.shape[-2]:
                return filled
            # Matrices that have an inverse, and a root.
            return tf.linalg.set_diag(filled, tf.fill(spec.shape[:-1], value + value))
        if dtype.is_integer:
            # The same in every run: whether an op takes them is known after the first one.
            seed = tf.stack([tf.cast(2 * self.value, tf.int32), 1])
            drawn = tf.random.stateless_uniform(spec.shape, seed, low, bound, tf.int32)
            return drawn if dtype == tf.int32 else tf.cast(drawn, dtype)
        if dtype.is_bool:
            return tf.fill(spec.shape, self.value > 0)
        raise EngineError(f"Profile: inputs of {spec} cannot be made up. The op is priced without a measurement.")
