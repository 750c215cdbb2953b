"""One model of :mod:`benchmarks.accuracy` on one number of ranks; rank 0 writes a file of JSON."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tensoropt
from benchmarks.accuracy_halves import TURN_STEPS
from benchmarks.accuracy_machine import Others, Reference
from benchmarks.accuracy_memory import memory_parts
from benchmarks.accuracy_methods import strategies_of_methods
from benchmarks.accuracy_models import MODELS, batch, sizes
from benchmarks.accuracy_sample import SAMPLES, Strategy, sample_strategies, told_apart
from tensoropt.api.session.costs import settle_costs
from tensoropt.api.session.job import current_job
from tensoropt.cost import packing_of
from tensoropt.exec.engines.launch import start_mpi
from tensoropt.exec.program import resharding
from tensoropt.exec.program.executor import Executor
from tensoropt.mcmc import Network, network_of, simulate
from tensoropt.measure import operators
from tensoropt.measure.machine import Machine
from tensoropt.measure.trace import kernel_seconds
from tensoropt.plan.plan import Plan
from tensoropt.plan.tensor_reuse import reverse_steps

# Random strategies that are drawn for each that is wanted, where some may be too alike.
_SURPLUS = 12
_WARM_UP = 2
_TRACED = 4
_SCOPE = "tensoropt_move"
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast")
_MOST_COLLECTIVES = 10_000


@dataclass(slots=True)
class _Run:
    """A strategy with what executes it, and what was measured on this rank.

    Attributes:
        kernels: seconds by name, traced.
        memory: bytes by what they are.
        steps_s: seconds of each step without a trace.
        processor_s: processor time of each of them.
        journals: when each collective of these steps began and ended, and its processor time, in seconds.
        references_s: what the reference took then.
    """

    strategy: Strategy
    plan: Plan
    executor: Executor
    variants: Any  # the job's, which run by the executor
    kernels: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    steps_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    journals: list[NDArray[np.float64]] = field(default_factory=list)
    references_s: list[float] = field(default_factory=list)

    def steps(self, job: Any, step: Callable[[], Any]) -> list[tuple[float, float, NDArray[np.float64]]]:
        """A turn of steps, measured, after one that is not: seconds, processor time, and the journal of each."""
        engine: Any = self.executor.state.engine
        step()
        result = []
        for _ in range(TURN_STEPS):
            job.world.comm.Barrier()
            engine.start_journal(_MOST_COLLECTIVES)
            processor_s, start_s = time.process_time(), time.perf_counter()
            step()
            took = time.perf_counter() - start_s, time.process_time() - processor_s
            result.append((*took, 1e-9 * np.array(engine.read_journal(), np.float64).reshape(-1, 3)))
        return result

    def keep(self, steps: list[tuple[float, float, NDArray[np.float64]]], reference_s: float) -> None:
        """Adds a turn's steps to what was measured."""
        for took_s, processor_s, journal in steps:
            self.steps_s.append(took_s)
            self.processor_s.append(processor_s)
            self.journals.append(journal)
            self.references_s.append(reference_s)


def main() -> None:
    """Runs the strategies."""
    flags = _flags()
    _name_moves()
    reduce = np.min if flags.least else np.median
    tracer = _Tracer(reduce)
    started = time.perf_counter()
    others = Others(start_mpi(), flags.patience)
    others.wait()
    topology = others.undisturbed(lambda: tensoropt.init(refresh=others.repeated > 0))
    tensoropt.set_random_seed(7)
    from examples import models

    job = current_job()
    crowding = Machine.of(job.world.comm).crowding
    arguments = sizes(flags.model, crowded=crowding > 1)
    models.MODELS[MODELS[flags.model][0]](**arguments)
    imported = job.import_model()
    planner = job.planner("data_parallel")
    reference = Reference(job.world.comm)
    profiled_s = _watch_profile(reference, others)
    settle_costs(job, planner, topology, flags.costs)
    profiled_s.append(reference.seconds())
    measured_s = time.perf_counter() - started
    space = planner.space(topology)
    mine = _inputs(flags.model, imported.graph, job)

    def step() -> Any:
        return tensoropt.run(imported.steps[0], mine)

    def profiled() -> Any:
        now = others.undisturbed(lambda: tensoropt.init(refresh=True))
        settle_costs(job, planner, now, flags.costs)
        return planner.space(now)

    runs = []
    for strategy in job.world.on_rank_0("sampling", lambda: _strategies(flags, planner, topology, space)):
        plan_it = functools.partial(space.plan, strategy.assignment, "accuracy", alternatives=strategy.alternatives)
        plan = job.world.on_rank_0("planning", plan_it)
        tensoropt.build_execution_graph(plan=plan)
        run = _Run(strategy, plan, job.require_executor("measuring"), job.variants)
        for _ in range(_WARM_UP):
            step()
        run.kernels, run.memory = tracer.trace(step, run.executor.state.tf_graph)
        runs.append(run)
        job.executor = job.variants = None  # kept open
    spaces = [space]
    # The machine's speed may change, so all is profiled again, amid the steps and after them.
    for turns in np.array_split(np.arange(-(-flags.steps // TURN_STEPS)), max(flags.profiles - 1, 1)):
        _take_turns(job, runs * len(turns), step, reference, others)
        if len(spaces) < flags.profiles:
            spaces.append(profiled())
    entries = _entries(job, flags, spaces, runs, crowding, float(np.mean(profiled_s)), reduce)
    if job.world.rank == 0:
        report = {
            "model": flags.model,
            "ranks": job.world.size,
            "sample": flags.sample,
            "sizes": arguments,
            "crowding": crowding,
            "profile_seconds": measured_s,
            "reference_s": profiled_s,
            "repeated": others.repeated,
            "disturbed": others.disturbed,
            "seconds": time.perf_counter() - started,
            "strategies": entries,
        }
        flags.out.write_text(json.dumps(report) + "\n", encoding="utf-8")


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--sample", choices=SAMPLES, default=SAMPLES[0])
    parser.add_argument("--strategies", type=int, default=20)
    parser.add_argument("--apart", type=float, default=0.0, help="share by which predicted times differ at least")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--profiles", type=int, default=2, help="before, amid and after the steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", default="measured")
    parser.add_argument("--least", action="store_true", help="the least instead of the median, on a busy machine")
    parser.add_argument("--operators", action="store_true", help="write what each operator took and was to take")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to spend on waiting for other programs")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _inputs(model: str, graph: Any, job: Any) -> dict[str, NDArray[Any]]:
    """This rank's share of a batch, by the names of the placeholders' tensors."""
    specs = {op.name: (op.outputs[0].shape, op.outputs[0].dtype) for op in graph.of_type("Placeholder")}
    mine = {}
    for name, array in batch(model, specs, 3).items():
        count = len(array) // job.world.size
        mine[f"{name}:0"] = array[job.world.rank * count : (job.world.rank + 1) * count]
    return mine


def _strategies(flags: argparse.Namespace, planner: Any, topology: Any, space: Any) -> list[Strategy]:
    """What to execute."""
    chosen: list[Strategy] = []
    if flags.sample != "random":
        found = functools.partial(planner.find, topology)
        least = flags.strategies if flags.sample == "methods" else 0
        chosen = strategies_of_methods(planner.frontier(topology), lambda name: found(name).frontier, least)
    if flags.sample != "methods":
        count = (_SURPLUS if flags.apart > 0 else 1) * flags.strategies - len(chosen)
        chosen += sample_strategies(space.problem, count, flags.seed)
    if flags.apart > 0:
        chosen = told_apart(space.problem, chosen, flags.apart)[: flags.strategies]
    return chosen


def _take_turns(job: Any, runs: Sequence[_Run], step: Callable[[], Any], reference: Reference, others: Others) -> None:
    """A turn of steps of each, and what the reference takes before and after it."""
    before_s = reference.seconds()
    for run in runs:
        job.executor, job.variants = run.executor, run.variants
        steps = others.undisturbed(functools.partial(run.steps, job, step))
        after_s = reference.seconds()
        run.keep(steps, (before_s + after_s) / 2)
        before_s = after_s


def _entries(
    job: Any,
    flags: argparse.Namespace,
    spaces: Sequence[Any],
    runs: Sequence[_Run],
    crowding: float,
    profiled_s: float,
    reduce: Callable[..., Any],
) -> list[dict[str, Any]]:
    """What to report of each strategy; nothing but on rank 0. Collective."""
    networks = [(each, network_of(each, overlap=True), network_of(each)) for each in spaces if job.world.rank == 0]
    entries = []
    for number, run in enumerate(runs):
        entry = _entry(job, spaces, run, crowding, profiled_s, reduce)
        if job.world.rank == 0:
            simulated_s = [[_simulated(each, run.strategy, one) for one in kinds] for each, *kinds in networks]
            entry["simulated_s"] = np.mean(simulated_s, axis=0).tolist()
            if flags.operators:
                entry["operators"] = _by_operator(run.plan, run.kernels)
                entry["kernels_by_name"] = run.kernels
                entry["moves"] = _by_collective(run, entry.pop("transfers_s"))
            entries.append(entry)
            _say(flags.model, job.world.size, number, entry)
    return entries


def _predicted(space: Any, run: _Run) -> tuple[float, float, float]:
    """What a strategy's step takes in a space, of that the network, and of that packing."""
    chosen = run.strategy.assignment, run.strategy.alternatives
    return (
        float(space.problem.costs(*chosen)[0][0]),
        float(space.network_seconds(*chosen)[0]),
        packing_seconds(space, run.plan),
    )


def _simulated(space: Any, strategy: Strategy, network: Network) -> float:
    """A step as simulated. Tasks keep all copies; what it takes to make some again is added in full."""
    again_s = 0.0
    if strategy.alternatives is not None:
        times_s, _ = space.problem.costs(
            np.array([strategy.assignment] * 2), np.array([strategy.alternatives, [0] * len(strategy.alternatives)])
        )
        again_s = float(times_s[0] - times_s[1])
    return float(simulate(space, strategy.assignment, network=network).makespan_s) + again_s


def _by_collective(run: _Run, transfers_s: list[float]) -> list[tuple[str, int, float]]:
    """Kind, input bytes and seconds of each collective; they run in the order in which they were made."""
    ops = [
        op for op in run.executor.state.tf_graph.get_operations() if op.name in run.kernels and _is_collective(op.name)
    ]
    sizes = [int(op.inputs[0].shape.num_elements()) * int(op.inputs[0].dtype.size) for op in ops]
    return [(op.type, size, took) for op, size, took in zip(ops, sizes, transfers_s, strict=True)]


def _watch_profile(reference: Reference, others: Others) -> list[float]:
    """Times the reference whenever operators are measured, from now on."""
    profiled_s: list[float] = []
    run_probes = operators.run_probes

    def watched(*arguments: Any) -> Any:
        profiled_s.append(reference.seconds())
        return others.undisturbed(lambda: run_probes(*arguments))

    # Measuring calls it by this name; a plain assignment to a module's function does not pass the type check.
    setattr(operators, "run_probes", watched)  # noqa: B010
    return profiled_s


def _entry(
    job: Any, spaces: Sequence[Any], run: _Run, crowding: float, profiled_s: float, reduce: Callable[..., Any]
) -> dict[str, Any]:
    """Measured figures of one strategy, ranks' combined, and predicted ones, the mean of all spaces'. Collective."""
    kernels = run.kernels.items()
    packing_s = sum(took for name, took in kernels if _SCOPE in name and not _is_collective(name))
    compute_s = sum(took for name, took in kernels if _SCOPE not in name and not _is_collective(name))
    packing_s, compute_s = (float(np.mean(job.world.comm.allgather(took))) for took in (packing_s, compute_s))
    steps_s = np.max(job.world.comm.allgather(run.steps_s), axis=0)
    took_s = float(reduce(steps_s))
    journal = np.array(job.world.comm.allgather(run.journals))
    processor_s = np.array(job.world.comm.allgather(run.processor_s))
    parts = max(job.world.comm.allgather(run.memory), key=lambda of_rank: sum(of_rank.values()))
    if job.world.rank:
        return {}
    inside_s = journal[..., 1] - journal[..., 0]  # of each rank, step and collective
    # The rank that comes last to a collective waits for nobody: its time is the network's.
    transfer_s = inside_s.min(axis=0)
    busy_s = processor_s - journal[..., 2].sum(axis=2)
    collectives_s = float(reduce(transfer_s.sum(axis=1)))
    waiting_s = float(reduce((inside_s - transfer_s).sum(axis=2).mean(axis=0)))
    if crowding > 1:
        # A rank that waits leaves its core to another one, and one that does not may wait for a core. What a step takes
        # longer than the ranks' own work, by the processor's clock, is the network's.
        packing_s, waiting_s = packing_s * crowding, 0.0
        collectives_s = max(float(reduce(steps_s - busy_s.mean(axis=0) * crowding)), 0.0)
    plan = run.plan
    predictions = [_predicted(space, run) for space in spaces]
    predicted_s, network_s, to_pack_s = np.mean(predictions, axis=0).tolist()
    peak: Any = plan.notes["peak_memory"]
    drifts = np.array(run.references_s) / profiled_s
    return {
        "kind": run.strategy.kind,
        "time_s": [predicted_s, took_s],
        "predicted_s": [step_s for step_s, *_ in predictions],
        # The same, if the machine had stayed as fast as when operators were profiled.
        "steady_time_s": [predicted_s, float(reduce(steps_s / drifts))],
        "network_s": [network_s, collectives_s + packing_s],
        "memory_bytes": [float(peak["memory_bytes"]), float(sum(parts.values()))],
        # What the times are made of; operators take what is left, with what TensorFlow takes between kernels.
        "compute_s": [predicted_s - network_s, took_s - collectives_s - packing_s - waiting_s],
        "packing_s": [to_pack_s, packing_s],
        "collectives_s": [network_s - to_pack_s, collectives_s],
        "waiting_s": waiting_s,
        "traced_compute_s": compute_s,
        "collectives": inside_s.shape[2],
        # Of all ranks together, collectives included: a step that leaves work out shows here.
        "processor_s": float(reduce(processor_s.sum(axis=0))),
        "kernels": len(run.kernels),
        "additive_bytes": float(plan.memory_bytes),
        "predicted_parts": peak["parts"],
        "measured_parts": parts,
        "predicted_at": f"{peak['operator']}, {'backward' if peak['backward'] else 'forward'}",
        "steps_s": steps_s.tolist(),
        "drifts": drifts.tolist(),
        "transfers_s": np.median(transfer_s, axis=0).tolist(),
    }


def packing_seconds(space: Any, plan: Any) -> float:
    """What packing and unpacking the buffers of collectives takes in a plan, copies that are made again included."""
    price = packing_of(space.cost)
    if price is None:
        return 0.0
    total = 0.0
    for edge, entry in plan.edges.items():
        if edge.consumer not in space.graph.training:
            continue
        spec = space.graph.spec(edge.tensor)
        outermost = next((dim for dim, extent in enumerate(spec.shape) if extent > 1), 0)
        given = plan.configuration(edge.tensor.op).output_layouts(space.rules[edge.tensor.op], edge.tensor.index)
        wanted = plan.configuration(edge.consumer).input_layouts(space.rules[edge.consumer], edge.position)
        ways = [(given.value, entry.forward)] * (2 if entry.keep == "before" else 1)
        if entry.keep == "after":
            ways.append((wanted.value, reverse_steps(given.value, entry.forward)))
        for layout, steps in (*ways, (wanted.gradient, entry.backward)):
            for step in steps:
                strided = sum(dim is not None and dim != outermost for dim in (step.dim, step.to_dim))
                size = np.array([float(np.prod(layout.local_shape(spec.shape, plan.mesh)) * spec.itemsize)])
                if not step.kind.is_local:
                    total += float(price(step.kind, size, plan.mesh.extent(step.axes), np.array([strided]))[0])
                layout = step.apply(layout)
    return total


def _say(model: str, ranks: int, number: int, entry: dict[str, Any]) -> None:
    parts = []
    for key, scale, unit in (("time_s", 1e3, "ms"), ("network_s", 1e3, "ms"), ("memory_bytes", 2**-20, "MiB")):
        predicted, measured = (value * scale for value in entry[key])
        parts.append(f"{key.split('_')[0]} {predicted:8.2f} / {measured:8.2f} {unit}")
    print(f"{model} x{ranks} #{number:2} {entry['kind']:9} " + "  ".join(parts), file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------- measuring


def _name_moves() -> None:
    """Lets the kernels around a collective be told from an operator's own."""
    apply = resharding._apply

    def named(step: Any, *arguments: Any) -> Any:
        if step.kind.is_local:
            return apply(step, *arguments)
        with tf.name_scope(_SCOPE):
            return apply(step, *arguments)

    setattr(resharding, "_apply", named)  # noqa: B010  # a plain assignment has another type


def _is_collective(name: str) -> bool:
    return name.rsplit("/", 1)[-1].rstrip("0123456789_") in _COLLECTIVES


class _Tracer:
    """Takes TensorFlow's trace of what an executor runs, when it is switched on."""

    def __init__(self, reduce: Callable[[Any], Any]) -> None:
        self.stats: list[Any] | None = None
        self.reduce = reduce
        make_callable = tf.compat.v1.Session._make_callable_from_options

        def traceable(session: Any, options: Any) -> Any:
            plain = make_callable(session, options)
            slow = type(options)()
            slow.CopyFrom(options)
            slow.run_options.trace_level = tf.compat.v1.RunOptions.FULL_TRACE
            traced: list[Any] = []

            def call(*feeds: Any) -> Any:
                if self.stats is None:
                    return plain(*feeds)
                if not traced:
                    traced.append(make_callable(session, slow))
                metadata = tf.compat.v1.RunMetadata()
                values = traced[0](*feeds, run_metadata=metadata)
                self.stats.append(metadata.step_stats)
                return values

            return call

        tf.compat.v1.Session._make_callable_from_options = traceable

    def trace(self, step: Callable[[], Any], graph: Any) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of each kernel, reduced over several steps, and bytes by what they are, where they are most."""
        runs, traces = [], []
        for _ in range(_TRACED + 1):
            self.stats = []
            step()
            runs.append(kernel_seconds(self.stats[-1]))
            traces.append(self.stats[-1])
        self.stats = None
        # Bytes hardly differ from step to step.
        memories = [memory_parts(trace, graph) for trace in traces[-2:]]
        # The first one builds the traced program anew.
        names = runs[-1].keys()
        seconds = {name: float(self.reduce([run.get(name, 0.0) for run in runs[1:]])) for name in names}
        return seconds, max(memories, key=lambda memory: sum(memory.values()))


def _by_operator(plan: Any, kernels: dict[str, float]) -> dict[str, list[float]]:
    """Predicted and measured seconds by operator; what belongs to none is under an empty name."""
    names = sorted(plan.operators, key=len, reverse=True)
    result = {name: [entry.time_s, 0.0] for name, entry in plan.operators.items()}
    result["moves"] = [sum(entry.time_s for entry in plan.edges.values()), 0.0]
    result[""] = [0.0, 0.0]
    for kernel, took in kernels.items():
        if _SCOPE in kernel or _is_collective(kernel):
            owner = "moves"
        else:
            marks = ("/{}/", "/{}_grad/", "/update_{}/")
            owner = next((name for name in names if any(mark.format(name) in f"/{kernel}/" for mark in marks)), "")
        result[owner][1] += took
    return result


if __name__ == "__main__":
    main()
