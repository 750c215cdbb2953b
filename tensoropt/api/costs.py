"""Which costs a search goes by: measured on the devices of the job, or analytic for any others.

What is measured is kept per machine in the cache directory, so that a model is measured once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tensoropt.api.model import OptimizerSpec
from tensoropt.cluster import Topology, probe
from tensoropt.cluster.cache import load_document, store_document
from tensoropt.cost import AnalyticCost, Curve, OpProfile, OpTime, gradient_positions, profile_key
from tensoropt.errors import ClusterError, PlanError
from tensoropt.exec.engines.guard import FAILURE_PATIENCE_S, Guard
from tensoropt.exec.op_profiler import BatchTimes, FunctionProbe, OperatorProbe, Probe, measure_batch
from tensoropt.graph.registry import declaration, has_rule
from tensoropt.graph.spec import TensorSpec
from tensoropt.search.space import SearchSpace

__all__ = ["COSTS", "check_costs", "measure_profile_of", "optimizer_key", "settle_costs"]

_log = logging.getLogger("tensoropt")
COSTS = ("measured", "analytic")
_VARIABLE = "TENSOROPT_COSTS"
_BUDGET_VARIABLE = "TENSOROPT_PROFILE_SECONDS"
_BUDGET_S = 30.0
# To build a probe and its gradient, and to read its part of the traces; an estimate, for the progress bar.
_PROBE_S = 0.02
_BATCH_BYTES = 2**30
_BATCH_PROBES = 100
_SHOWN_FROM_S = 2.0
_CURVE_BYTES = tuple(2**exponent for exponent in (10, 14, 17, 19, 20, 21, 22, 24))
_ROW_ELEMENTS = 128
_ITERATIONS = 60
_KERNELS = 1000
_POLL_S = 2e-4


def check_costs(costs: str | None) -> str | None:
    """``costs``, or what the environment variable TENSOROPT_COSTS says; None to choose by what there is.

    Raises:
        PlanError: if it is neither.
    """
    chosen = os.environ.get(_VARIABLE) or costs
    if chosen is not None and chosen not in COSTS:
        source = _VARIABLE if os.environ.get(_VARIABLE) else "find_strategy: costs"
        raise PlanError(f"{source} must be one of {', '.join(map(repr, COSTS))}, got {chosen!r}.")
    return chosen


def settle_costs(job: Any, planner: Any, topology: Topology, costs: str | None) -> None:
    """Lets a planner go by measured costs where they can be had, and measures what is missing. Collective.

    Args:
        job: the current job.
        planner: a ``Planner``.
        topology: what is planned for.
        costs: ``measured`` or ``analytic``; None measures if the devices are the job's. TENSOROPT_COSTS wins.

    Raises:
        PlanError: another name, or measured costs of devices that are not here.
        CollectiveError: if measuring fails on another rank.
    """
    chosen = check_costs(costs)
    reason = _unmeasurable(job, topology)
    if chosen == "measured" and reason is not None:
        raise PlanError(
            f"find_strategy(costs='measured'): {reason}. Call tensoropt.init() under mpirun and leave topology out, or "
            "use costs='analytic'."
        )
    if chosen == "analytic" or reason is not None:
        planner.calibrate(None)
        return
    if planner.undivided(topology.device_count) is not None:
        return  # the search will say so
    optimizers = list({optimizer_key(step.optimizer): step.optimizer for step in planner.model.train_steps}.values())
    space = planner.space(topology)
    planner.calibrate(measure_profile_of(job, topology, space, optimizers, refresh=job.remeasure))
    job.remeasure = False


def _unmeasurable(job: Any, topology: Topology) -> str | None:
    """Why operators cannot be measured for a topology; None if they can."""
    if job.comm is None or job.guard is None:
        return "operators are measured on the devices of a job, and there is none"
    if job.topology is None or topology.fingerprint() != job.topology.fingerprint():
        return f"{topology} is not what this job runs on"
    if topology.device_count > 1 and topology.profile is None:
        return f"the collectives of {topology} were not measured"
    return None


def optimizer_key(spec: OptimizerSpec) -> str:
    """What decides how long an optimizer's update takes, but for the variable."""
    return " ".join((spec.kind, *spec.slot_names))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One distinct thing to measure."""

    probe: OperatorProbe
    analytic_s: float
    count: int


def measure_profile_of(
    job: Any,
    topology: Topology,
    space: SearchSpace,
    optimizers: Sequence[OptimizerSpec],
    *,
    refresh: bool = False,
    budget_s: float | None = None,
) -> OpProfile:
    """What operators of a space take on this job's devices: from the cache, and measured where it lacks something.

    Collective over the job. The most important operators are measured first; what the budget has no time for is left to
    the analytic model.

    Args:
        job: has ``comm`` and ``guard``.
        topology: the job's.
        space: whose operators and configurations are to be known.
        optimizers: whose updates are.
        refresh: measure even what the cache has.
        budget_s: seconds for measuring; the environment variable TENSOROPT_PROFILE_SECONDS, or 30, by default.

    Raises:
        CollectiveError: if measuring fails on another rank.
    """
    guard: Guard = job.guard
    what = "measuring operators"
    guard.meet(what)
    try:
        with guard.waiting(what):
            budget_s = _budget_s() if budget_s is None else budget_s
            return _measure(job, topology, space, optimizers, refresh, budget_s)
    except Exception as error:
        # The others may wait for this rank's turn.
        guard.meet(what, error, patience_s=FAILURE_PATIENCE_S)
        raise


def _measure(
    job: Any,
    topology: Topology,
    space: SearchSpace,
    optimizers: Sequence[OptimizerSpec],
    refresh: bool,
    budget_s: float,
) -> OpProfile:
    comm = job.comm
    machine = _Machine.of(comm)
    candidates = _candidates(topology, space, comm.rank)
    names = [f"update {optimizer_key(spec)}" for spec in optimizers]
    known, chosen, curves = comm.bcast(_choose(machine, candidates, names, refresh) if comm.rank == 0 else None, root=0)
    if not chosen and not curves:
        return known
    start = time.perf_counter()
    expected_s = min(budget_s, machine.turns * _PROBE_S * len(chosen)) + (_SHOWN_FROM_S if curves else 0.0)
    order = {key: position for position, key in enumerate(candidates)}
    batches = _batches([(key, candidates[key]) for key in chosen])
    times: dict[str, OpTime] = {}
    lines: dict[str, Curve] = {}
    iteration_s = 0.0
    with _progress(comm.rank == 0 and expected_s > _SHOWN_FROM_S, len(batches) + bool(curves)) as advance:
        kernel_s = _kernel_seconds(machine, comm)
        if curves:
            iteration_s = _iteration_seconds(comm, job.guard)
            lines = _measured_curves(machine, comm, optimizers, kernel_s)
            advance()
        for number, batch in enumerate(batches):
            spent_s = time.perf_counter() - start
            if not comm.bcast(spent_s * (number + 1) <= budget_s * max(number, 1), root=0):
                break  # another batch would take as long as those before, and more than there is
            batch.sort(key=lambda item: order[item[0]])  # runs are like steps then
            measured = _run_batch(machine, comm, [candidate.probe for _, candidate in batch], kernel_s)
            for (key, candidate), entry in zip(batch, measured, strict=True):
                if entry is not None:
                    forward_s, backward_s, reduced, reduced_back = entry
                    times[key] = OpTime(
                        candidate.probe.op.type, forward_s, backward_s, candidate.analytic_s, reduced, reduced_back
                    )
            advance()
    profile = known.with_more(OpProfile(times, lines, iteration_s))
    if comm.rank == 0:
        store_document("ops", machine.key, profile.to_json())
        _log.info(
            "measured %d operators in %.1f s; %d are known now, %d of this model are left to the analytic model",
            len(times),
            time.perf_counter() - start,
            len(profile.times),
            len(candidates.keys() - profile.times.keys()),
        )
    return comm.bcast(profile, root=0)


# ------------------------------------------------------------------------------------------------------- what to do


def _candidates(topology: Topology, space: SearchSpace, rank: int) -> dict[str, _Candidate]:
    """Everything that the space can ask for, by its key."""
    analytic = AnalyticCost(topology)
    found: dict[str, _Candidate] = {}
    for op in space.operators:
        if has_rule(op.type) and declaration(op.type).lower is None:
            continue
        rule, inputs = space.rules[op.name], space.graph.input_specs(op)
        wanted, outgoing = gradient_positions(space.graph, op)
        for configuration in space.choices(op.name):
            key = profile_key(op, rule, inputs, configuration, space.mesh, wanted, outgoing)
            if key in found:
                before = found[key]
                found[key] = _Candidate(before.probe, before.analytic_s, before.count + 1)
            else:
                probed = OperatorProbe(op, rule, inputs, configuration, space.mesh, rank, wanted, outgoing)
                seconds = analytic.op_seconds(op, rule, inputs, configuration, gradients=len(wanted))
                found[key] = _Candidate(probed, seconds, 1)
    return found


def _choose(
    machine: _Machine, candidates: Mapping[str, _Candidate], curves: Sequence[str], refresh: bool
) -> tuple[OpProfile, list[str], bool]:
    """What is known, and what to measure: operators, the most important ones first, and whether the curves."""
    known = OpProfile()
    document = None if refresh else load_document("ops", machine.key)
    if document is not None:
        try:
            known = OpProfile.from_json(document)
        except ClusterError as error:
            _log.warning("Ignoring the cached profile of operators: %s", error)
    missing = [key for key in candidates if key not in known.times]
    missing.sort(key=lambda key: (-candidates[key].analytic_s * candidates[key].count, key))
    wanted = ["sum", "slice", "transpose", "mask", "feed", *curves]
    return known, missing, any(name not in known.curves for name in wanted)


def _batches(chosen: Sequence[tuple[str, _Candidate]]) -> list[list[tuple[str, _Candidate]]]:
    """Runs of what memory has room for at once."""
    result: list[list[tuple[str, _Candidate]]] = []
    room = 0.0
    for key, candidate in chosen:
        size = 2 * sum(spec.size_bytes for spec in candidate.probe.local_inputs())
        size += 2 * sum(spec.size_bytes for spec in candidate.probe.op.outputs)
        if not result or size > room or len(result[-1]) >= _BATCH_PROBES:
            result.append([])
            room = _BATCH_BYTES
        result[-1].append((key, candidate))
        room -= size
    return result


def _budget_s() -> float:
    text = os.environ.get(_BUDGET_VARIABLE, "")
    try:
        value = float(text) if text else _BUDGET_S
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise PlanError(f"{_BUDGET_VARIABLE}: must be a number of seconds from 0, got {text!r}. Leave it unset for 30.")
    return value


# ------------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class _Machine:
    """The ranks' hosts.

    Attributes:
        key: describes them; what is measured is kept under it.
        crowding: by how much a rank's work takes longer because ranks share cores.
        turns: how many turns ranks take, so that no more run at once than there are cores.
        turn: this rank's.
    """

    key: Mapping[str, Any]
    crowding: float
    turns: int
    turn: int

    @classmethod
    def of(cls, comm: Any) -> _Machine:
        """Collective over ``comm``."""
        mine = (os.uname().nodename, probe.cpu_model(), probe.affinity())
        ranks = comm.allgather(mine)
        hosts = [host for host, _, _ in ranks]
        shares = [0.0] * len(ranks)
        for host in sorted(set(hosts)):
            members = [index for index, other in enumerate(hosts) if other == host]
            for index, share in zip(members, probe.cores_per_rank([ranks[i][2] for i in members]), strict=True):
                shares[index] = share
        crowding = max(1.0, 1.0 / min(shares))
        turns = int(np.ceil(crowding - 1e-9))
        place = hosts[: comm.rank].count(hosts[comm.rank])
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS")
        key = {
            "hosts": sorted(set(hosts)),
            "ranks_per_host": max(hosts.count(host) for host in hosts),
            "cpus": sorted({cpu for _, cpu, _ in ranks}),
            "cores": min(shares),
            "tensorflow": tf.__version__,
            "environment": [os.environ.get(name, "") for name in names],
        }
        per_turn = -(-hosts.count(hosts[comm.rank]) // turns)
        return cls(key, crowding, turns, place // per_turn)

    @contextlib.contextmanager
    def together(self, comm: Any) -> Iterator[None]:
        """This rank's turn: at most as many ranks as cores are in it at the same time."""
        for _ in range(self.turn):
            _meet(comm)
        _meet(comm)
        yield
        for _ in range(self.turns - self.turn):
            _meet(comm)


def _meet(comm: Any) -> None:
    """A barrier that leaves the core to those who work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_S)


def _run_batch(
    machine: _Machine, comm: Any, probes: Sequence[Probe], kernel_s: float
) -> list[tuple[float, float, tuple[int, ...], tuple[int, ...]] | None]:
    """Seconds forward and backward and reduced bytes per probe: the mean of the ranks, crowding included.

    ``kernel_s`` is what TensorFlow takes to start one kernel after another.
    """
    times = measure_batch(
        probes,
        turn=lambda: machine.together(comm),
        spread=lambda mine: set().union(*comm.allgather(mine)),
    )
    for number, reason in sorted(times.failures.items()):
        _log.debug("profile: probe %d cannot be measured: %s", number, reason)
    mine = [
        (0.0, 0.0)
        if entry is None
        else (
            entry.forward_s + kernel_s * entry.forward_kernels,
            entry.backward_s + kernel_s * entry.backward_kernels,
        )
        for entry in times.probes
    ]
    mean = np.mean(comm.allgather(mine), axis=0) * machine.crowding
    return _with_talk(times, mean)


def _with_talk(times: BatchTimes, mean: Any) -> list[tuple[float, float, tuple[int, ...], tuple[int, ...]] | None]:
    return [
        None
        if entry is None
        else (float(forward), float(backward), entry.forward_reduced_bytes, entry.backward_reduced_bytes)
        for entry, (forward, backward) in zip(times.probes, mean, strict=True)
    ]


def _measured_curves(
    machine: _Machine, comm: Any, optimizers: Sequence[OptimizerSpec], kernel_s: float
) -> dict[str, Curve]:
    """See ``OpProfile.curves``."""
    kinds: dict[str, Callable[[int], Probe]] = {
        "sum": lambda size: FunctionProbe((_vector(size), _vector(size)), lambda x, y: [tf.add_n([x, y])]),
        "slice": lambda size: FunctionProbe(
            (_matrix(size),), lambda x: [tf.slice(x, [0, 0], [-1, _ROW_ELEMENTS // 2])]
        ),
        "transpose": lambda size: FunctionProbe((_matrix(size),), _cut_and_stacked),
        "mask": lambda size: FunctionProbe((_vector(size),), lambda x: [tf.where(False, x, tf.zeros_like(x))]),
    }
    probes: list[Probe] = [make(size) for make in kinds.values() for size in _CURVE_BYTES]
    for spec in optimizers:
        probes += [FunctionProbe((_vector(size),), _update_builder(spec, size)) for size in _CURVE_BYTES]
    measured = iter(_run_batch(machine, comm, probes, kernel_s))
    curves = {}
    for name in kinds:
        curves[name] = _curve(_CURVE_BYTES, [next(measured) for _ in _CURVE_BYTES])
    for spec in optimizers:
        sizes = tuple(size * (2 + spec.slot_count) for size in _CURVE_BYTES)
        curves[f"update {optimizer_key(spec)}"] = _curve(sizes, [next(measured) for _ in sizes])
    curves["feed"] = _feed_curve(machine, comm)
    return curves


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


def _kernel_seconds(machine: _Machine, comm: Any) -> float:
    """Of starting one kernel after another, without what any of them does."""
    with tf.Graph().as_default() as graph:
        ends = [tf.compat.v1.placeholder(tf.float32, [])]
        for _ in range(_KERNELS):
            ends.append(tf.negative(ends[-1]))  # TensorFlow skips over an identity
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            runs = [session.make_callable(end.op, [ends[0]]) for end in (ends[1], ends[-1])]
            least = [np.inf, np.inf]
            for _ in range(8):
                with machine.together(comm):
                    for index, run in enumerate(runs):
                        start = time.perf_counter()
                        run(np.float32(1))
                        least[index] = min(least[index], time.perf_counter() - start)
    return float(np.mean(comm.allgather(max(least[1] - least[0], 0.0) / (_KERNELS - 1))))


def _feed_curve(machine: _Machine, comm: Any) -> Curve:
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


def _iteration_seconds(comm: Any, guard: Guard) -> float:
    """A run of a program that computes nothing, with the guard's meeting before it."""
    with tf.Graph().as_default() as graph:
        fed = tf.compat.v1.placeholder(tf.float32, [1])
        result = tf.identity(fed)
        with tf.compat.v1.Session(graph=graph) as session:
            run = _runner(session, [result], tf.no_op(), fed)
            array = np.ones(1, np.float32)
            seconds = []
            for _ in range(_ITERATIONS):
                start = time.perf_counter()
                guard.meet("measuring an iteration")
                run(array)
                seconds.append(time.perf_counter() - start)
    return float(np.mean(comm.allgather(float(np.percentile(seconds, 25)))))


def _runner(session: Any, fetches: Sequence[Any], target: Any, fed: Any) -> Callable[[Any], Any]:
    """As the executor runs programs, where TensorFlow has it."""
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        return session.make_callable([*fetches, target], [fed])
    names = [tensor.name for tensor in fetches]
    return make(config_pb2.CallableOptions(feed=[fed.name], fetch=names, target=[target.name]))


@contextlib.contextmanager
def _progress(shown: bool, steps: int) -> Iterator[Callable[[], None]]:
    """Tells people what takes so long."""
    if not shown:
        yield lambda: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        _log.info("measuring operators, in %d batches", steps)
        yield lambda: None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring operators", total=steps)
        yield lambda: progress.advance(task)
