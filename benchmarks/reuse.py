"""Memory and seconds per step when gathered variables are kept for the backward pass, or gathered again in it.

    python -m benchmarks.reuse --ranks 2 --layers 8 --width 2048 --json reuse.json

A perceptron whose variables are stored in pieces (ZeRO-3) and whose batch is split: every layer gathers its variable.
Peak memory is the process's own, less what it had before the first step; variables and slots are not in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.launch import launch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
# Every large buffer is mapped by itself and given back when it is freed, so that resident memory is what is alive.
# Two threads for ops: with one, updates of variables wait until the last collective is over, and gradients with them.
_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_NUM_INTEROP_THREADS": "2",
}
_KEEPS = ("both", "before")


def main() -> None:
    """Runs every variant under mpirun, or one of them as a rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument("--keep", choices=_KEEPS, default=None, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.keep is not None:
        _rank(flags)
        return
    report: dict[str, Any] = {name: getattr(flags, name) for name in ("ranks", "layers", "width", "batch", "steps")}
    report["variables_bytes"] = 4 * flags.layers * flags.width**2
    report["variants"] = {}
    for keep in _KEEPS:
        arguments = [f"--{name}={getattr(flags, name)}" for name in ("layers", "width", "batch", "steps")]
        output = launch("benchmarks.reuse", [*arguments, f"--keep={keep}"], flags.ranks, _SETTINGS)
        report["variants"][keep] = json.loads(output.strip().splitlines()[-1])
    table = Table(title=f"{flags.layers} layers, {report['variables_bytes'] / 2**20:.0f} MiB of variables")
    for header in ("kept copy", "peak of a step, MiB", "ms per step", "loss after the last step"):
        table.add_column(header, justify="left" if header == "kept copy" else "right")
    for keep, entry in report["variants"].items():
        numbers = (f"{entry['peak_bytes'] / 2**20:.0f}", f"{entry['median_s'] * 1e3:.1f}", f"{entry['losses'][-1]:.9g}")
        table.add_row(keep, *numbers)
    Console().print(table)
    if flags.json is not None:
        flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _rank(flags: argparse.Namespace) -> None:
    """One variant on one rank; rank 0 prints one line of JSON."""
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model
    from tensoropt.cluster.presets import cpu
    from tensoropt.cost import AnalyticCost
    from tensoropt.plan.configuration import Configuration
    from tensoropt.plan.tensor_reuse import keep_choices
    from tensoropt.space.space import SearchSpace

    tensoropt.init()
    tensoropt.set_random_seed(7)
    x = tensoropt.placeholder(tensoropt.float32, [flags.batch, flags.width], name="x")
    h = x
    for layer in range(flags.layers):
        w = tensoropt.get_variable(f"w{layer}", [flags.width, flags.width])
        h = tensoropt.nn.relu(tensoropt.matmul(h, w))
    loss = tensoropt.reduce_mean(tensoropt.square(h))
    train_op = tensoropt.train.GradientDescentOptimizer(0.5).minimize(loss)
    imported = import_model(current_model())
    space = SearchSpace(imported.graph, AnalyticCost(cpu(tensoropt.world_size())))
    splits = {"Variable": "d0", "Placeholder": "d0", "Relu": "d0", "Square": "d0", "MatMul": "m"}
    splits |= {"Gradient": "d0", "ResourceApplyGradientDescent": "d0"}
    chosen = {}
    for op in space.operators:
        choices = space.choices(op.name)
        wanted = Configuration((splits.get(op.type),) * len(space.mesh.axes))
        chosen[op.name] = wanted if wanted in choices else choices[-1]
    plan = space.plan(space.assignment(chosen), "sharded variables")
    edges = {
        edge: dataclasses.replace(entry, keep=flags.keep)
        if entry.forward and flags.keep in keep_choices(imported.graph, space.rules, edge)
        else entry
        for edge, entry in plan.edges.items()
    }
    tensoropt.build_execution_graph(plan=dataclasses.replace(plan, edges=edges))
    rows = flags.batch // tensoropt.world_size()
    batch = np.random.default_rng(tensoropt.world_rank()).normal(size=(rows, flags.width)).astype(np.float32)
    tensoropt.run(loss, {x: batch})
    _CLEAR.write_text(_RESET_PEAK)
    before_bytes = _status_bytes("VmRSS")
    losses, seconds = [], []
    for _ in range(flags.steps):
        started = time.perf_counter()
        losses.append(float(tensoropt.run([loss, train_op], {x: batch})[0]))
        seconds.append(time.perf_counter() - started)
    report = {
        "peak_bytes": _status_bytes("VmHWM") - before_bytes,
        "median_s": statistics.median(seconds),
        "losses": losses,
    }
    if tensoropt.world_rank() == 0:
        print(json.dumps(report))


def _status_bytes(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
