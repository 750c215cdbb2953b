"""One model of :mod:`benchmarks.accuracy` on one number of ranks; rank 0 writes a file of JSON."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt
from benchmarks.accuracy_memory import memory_parts
from benchmarks.accuracy_models import MODELS, batch
from benchmarks.accuracy_sample import sample_strategies
from tensoropt.api.costs import settle_costs
from tensoropt.api.job import current_job
from tensoropt.cost import packing_of
from tensoropt.exec import resharding
from tensoropt.exec.op_profiler import kernel_seconds

_WARM_UP = 3
_TRACED = 4
_SCOPE = "tensoropt_move"
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast")


def main() -> None:
    """Runs the strategies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--strategies", type=int, default=20)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", default="measured")
    parser.add_argument("--least", action="store_true", help="the least instead of the median, on a busy machine")
    parser.add_argument("--operators", action="store_true", help="write what each operator took and was to take")
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args()
    _name_moves()
    tracer = _Tracer(np.min if flags.least else np.median)
    started = time.perf_counter()
    topology = tensoropt.init()
    tensoropt.set_random_seed(7)
    from examples import models

    function, arguments, _ = MODELS[flags.model]
    models.MODELS[function](**arguments)
    job = current_job()
    imported = job.import_model()
    planner = job.planner("data_parallel")
    settle_costs(job, planner, topology, flags.costs)
    measured_s = time.perf_counter() - started
    space = planner.space(topology)
    train_op = imported.steps[0]
    specs = {op.name: (op.outputs[0].shape, op.outputs[0].dtype) for op in imported.graph.of_type("Placeholder")}
    mine = {}
    for name, array in batch(flags.model, specs, 3).items():
        count = len(array) // job.size
        mine[f"{name}:0"] = array[job.rank * count : (job.rank + 1) * count]
    chosen = job.on_rank_0("sampling", lambda: sample_strategies(space.problem, flags.strategies, flags.seed))
    entries = []
    for number, (kind, assignment) in enumerate(chosen):
        plan = job.on_rank_0("planning", functools.partial(space.plan, assignment, "accuracy"))
        tensoropt.build_execution_graph(plan=plan)

        def step() -> Any:
            return tensoropt.run(train_op, mine)

        for _ in range(_WARM_UP):
            step()
        seconds = []
        for _ in range(flags.steps):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        kernels, memory = tracer.trace(step, job.require_executor("tracing").tf_graph)
        took_s = float(tracer.reduce(seconds))
        entry = _entry(job, space, plan, assignment, took_s, kernels, memory)
        if job.rank == 0:
            entry["kind"] = kind
            entry["steps_s"] = seconds
            if flags.operators:
                entry["operators"] = _by_operator(plan, kernels)
                entry["kernels_by_name"] = kernels
            entries.append(entry)
            _say(flags.model, job.size, number, entry)
    if job.rank == 0:
        report = {
            "model": flags.model,
            "ranks": job.size,
            "profile_seconds": measured_s,
            "seconds": time.perf_counter() - started,
            "strategies": entries,
        }
        flags.out.write_text(json.dumps(report) + "\n", encoding="utf-8")


def _entry(
    job: Any,
    space: Any,
    plan: Any,
    assignment: tuple[int, ...],
    took_s: float,
    kernels: dict[str, float],
    memory: dict[str, float],
) -> dict[str, Any]:
    """Measured and predicted figures of one strategy; what ranks measured is combined. Collective."""
    names = sorted(name for name in kernels if _is_collective(name))
    # The rank that comes last to a collective waits for nobody: its time is the network's.
    every = job.comm.allgather([kernels[name] for name in names])
    collectives_s = float(np.sum(np.min(np.array(every), axis=0))) if names else 0.0
    packing_s = sum(took for name, took in kernels.items() if _SCOPE in name and not _is_collective(name))
    compute_s = sum(took for name, took in kernels.items() if _SCOPE not in name and not _is_collective(name))
    packing_s, compute_s = (float(np.mean(job.comm.allgather(took))) for took in (packing_s, compute_s))
    took_s = float(max(job.comm.allgather(took_s)))
    parts = max(job.comm.allgather(memory), key=lambda of_rank: sum(of_rank.values()))
    if job.rank:
        return {}
    network_s, to_pack_s = float(space.network_seconds(assignment)[0]), packing_seconds(space, plan)
    peak = plan.notes["peak_memory"]
    return {
        "time_s": [float(plan.time_s), took_s],
        "network_s": [network_s, collectives_s + packing_s],
        "memory_bytes": [float(peak["memory_bytes"]), float(sum(parts.values()))],
        # What the times are made of. Predicted times of operators hold what TensorFlow takes between kernels.
        "compute_s": [float(plan.time_s) - network_s, compute_s],
        "packing_s": [to_pack_s, packing_s],
        "collectives_s": [network_s - to_pack_s, collectives_s],
        "between_kernels_s": took_s - compute_s - packing_s - sum(kernels[name] for name in names),
        "collectives": len(names),
        "kernels": len(kernels),
        "additive_bytes": float(plan.memory_bytes),
        "predicted_parts": peak["parts"],
        "measured_parts": parts,
        "predicted_at": f"{peak['operator']}, {'backward' if peak['backward'] else 'forward'}",
    }


def packing_seconds(space: Any, plan: Any) -> float:
    """What packing and unpacking the buffers of collectives takes in a plan that makes no copy again."""
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
        for layout, steps in ((given.value, entry.forward), (wanted.gradient, entry.backward)):
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
