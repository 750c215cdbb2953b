"""Trains a model with a large softmax in three ways, one after the other, and shows what each of them takes.

    python examples/large_softmax.py --ranks 2

One process of plain TensorFlow on all cores; data parallelism; the strategy that is found. Then the same with Adam and
a memory limit that data parallelism does not keep to. Each way has processes of its own, so that none has another's
memory.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

_WARM_UP = 5  # steps that count for losses only
_LIMIT = 0.75  # of what data parallelism would take
_MIB = 2**20
_OPTIMIZERS = {"sgd": "plain gradient descent", "adam": "Adam"}
# For all ways alike: glibc keeps the pages of large buffers for the next step.
_KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
_THREADS = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")


def model(tf: Any, flags: argparse.Namespace, optimizer: str) -> tuple[Any, Any, dict[str, Any]]:
    """The loss, the training step, and what is fed; ``tf`` is TensorFlow 1's interface, or tensoropt."""
    ids = tf.placeholder(tf.int32, [flags.batch], name="ids")
    labels = tf.placeholder(tf.int32, [flags.batch], name="labels")

    def variable(name: str, shape: list[int], seed: int) -> Any:
        return tf.get_variable(
            name, shape, tf.float32, initializer=tf.random_normal_initializer(stddev=0.02, seed=seed)
        )

    words = variable("words", [flags.vocabulary, 256], 1)
    hidden = tf.nn.relu(tf.matmul(tf.gather(words, ids), variable("hidden", [256, 512], 2)))
    logits = tf.matmul(hidden, variable("softmax", [512, flags.vocabulary], 3))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    makers = {"sgd": lambda: tf.train.GradientDescentOptimizer(0.5), "adam": lambda: tf.train.AdamOptimizer(0.001)}
    return loss, makers[optimizer]().minimize(loss), {"ids": ids, "labels": labels}


def batches(flags: argparse.Namespace) -> list[dict[str, np.ndarray]]:
    """Frequent words and what follows each of them; the same in every way."""
    rng = np.random.default_rng(flags.seed)
    words = (rng.zipf(1.5, (flags.steps, flags.batch)) % flags.vocabulary).astype(np.int32)
    return [{"ids": row, "labels": (row * 7 + 3) % flags.vocabulary} for row in words]


# ------------------------------------------------------------------------------------------ in processes of their own


def alone(flags: argparse.Namespace) -> dict[str, Any]:
    """Plain TensorFlow, on all cores."""
    import tensorflow

    tf = tensorflow.compat.v1
    tf.disable_eager_execution()
    loss, train, feeds = model(tf, flags, flags.optimizer)
    before = forget_peak()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        call = session.make_callable([loss, train], list(feeds.values()))
        return measured(lambda batch: float(call(*(batch[name] for name in feeds))[0]), flags, before)


def planned(flags: argparse.Namespace) -> dict[str, Any]:
    """Searches all plans: the predictions. Plans lie in files then, so that those that train need not measure."""
    import tensoropt

    tensoropt.init()
    found: dict[str, Any] = {}
    for optimizer in _OPTIMIZERS:
        tensoropt.reset_default_graph()
        model(tensoropt, flags, optimizer)
        common = tensoropt.find_strategy("data_parallel")
        limit = None if optimizer == "sgd" else _LIMIT * common.memory_bytes
        plans = {"data_parallel": common, "mini_time": tensoropt.find_strategy(memory_bytes=limit)}
        for option, plan in plans.items():
            found[f"{optimizer} {option}"] = plan.memory_bytes
            if tensoropt.world_rank() == 0:
                plan.save(plan_file(flags, optimizer, option))
        found[f"{optimizer} limit"] = limit
    return found


def trained(flags: argparse.Namespace) -> dict[str, Any]:
    """This rank's part of a plan."""
    import tensoropt

    tensoropt.init()
    loss, train, feeds = model(tensoropt, flags, flags.optimizer)
    plan = tensoropt.find_strategy(plan_file(flags, flags.optimizer, flags.way))
    before = forget_peak()
    tensoropt.build_execution_graph(plan=plan)
    rank, share = tensoropt.world_rank(), flags.batch // tensoropt.world_size()

    def step(batch: dict[str, np.ndarray]) -> float:
        mine = {feeds[name]: array[rank * share : (rank + 1) * share] for name, array in batch.items()}
        return float(tensoropt.run([loss, train], mine)[0])

    return measured(step, flags, before)


def measured(step: Callable[[dict[str, np.ndarray]], float], flags: argparse.Namespace, before: int) -> dict[str, Any]:
    """Losses, the seconds of a step, and the most bytes that this process takes beyond ``before``."""
    losses, seconds = [], []
    for number, batch in enumerate(batches(flags)):
        if number == _WARM_UP:
            forget_peak()  # initial values, and what is made once
        started = time.perf_counter()
        losses.append(step(batch))
        seconds.append(time.perf_counter() - started)
    return {
        "losses": losses,
        "seconds": float(np.median(seconds[_WARM_UP:])),
        "bytes": resident_bytes("VmHWM") - before,
    }


def forget_peak() -> int:
    """Gives freed pages back to the system, and lets this process's peak begin anew; what it holds now."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resident_bytes("VmRSS")


def resident_bytes(which: str) -> int:
    """What this process holds by Linux's books: now (``VmRSS``), or at most since its peak began (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def plan_file(flags: argparse.Namespace, optimizer: str, option: str) -> Path:
    """Where a plan lies."""
    return Path(flags.folder) / f"{optimizer}_{option}.json"


_WAYS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "alone": alone,
    "planned": planned,
    "data_parallel": trained,
    "mini_time": trained,
}


# ---------------------------------------------------------------------------------------------------- side by side


def run(flags: argparse.Namespace, way: str, optimizer: str = "sgd") -> dict[str, Any]:
    """Starts a way, and gives what it says."""
    output = Path(flags.folder) / "said.json"
    line = [sys.executable, __file__, "--way", way, "--optimizer", optimizer, "--folder", flags.folder]
    for name in ("vocabulary", "batch", "steps", "seed"):
        line += [f"--{name}", str(getattr(flags, name))]
    environment = {name: value for name, value in os.environ.items() if name not in _THREADS} | _KEEP_PAGES
    if way != "planned":  # whose stages are worth seeing
        environment |= {"TENSOROPT_LOG": "warning", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if way != "alone":
        line = [sys.executable, "-m", "tensoropt", "run", "-n", str(flags.ranks), *line[1:]]
    # TensorFlow alone greets on standard error.
    said = subprocess.PIPE if way == "alone" else None
    done = subprocess.run([*line, "--json", str(output)], env=environment, stderr=said, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr or "")
        sys.exit(f"large_softmax: {way} ended with {done.returncode}; its own words stand above")
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def compare(flags: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Runs all ways, and shows tables; what was measured."""
    plans = run(flags, "planned")
    report: dict[str, Any] = {"ranks": flags.ranks, "cores": os.cpu_count(), "planned": plans}
    names = {
        "alone": f"one process, {os.cpu_count()} cores",
        "data_parallel": f"data parallelism, {flags.ranks} ranks",
        "mini_time": f"the plan found, {flags.ranks} ranks",
    }
    for optimizer, words in _OPTIMIZERS.items():
        limit = plans[f"{optimizer} limit"]
        ways = ("alone", "data_parallel", "mini_time") if limit is None else ("alone", "mini_time")
        held = "" if limit is None else f", at most {limit / _MIB:.0f} MiB a rank"
        rows = report[optimizer] = {}
        for way in ways:
            console.print(f"{flags.steps} steps, {words}{held}: {names[way]}", highlight=False)
            rows[way] = run(flags, way, optimizer)
        show(f"{words}{held}", rows, plans, optimizer, names, console)
        console.print(verdict(rows, plans, optimizer), highlight=False)
    return report


def show(
    title: str,
    rows: Mapping[str, dict[str, Any]],
    plans: Mapping[str, Any],
    optimizer: str,
    names: Mapping[str, str],
    console: Console,
) -> None:
    """The table of one optimizer."""
    table = Table(title=title)
    for header in ("", "step, ms", "MiB a process", "planned", "loss"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for way, name in names.items():
        memory = plans.get(f"{optimizer} {way}")
        cells = [name, "-", "does not fit", "-" if memory is None else f"{memory / _MIB:.0f}", "-"]
        if way in rows:
            row = rows[way]
            cells[1], cells[2] = f"{row['seconds'] * 1e3:.1f}", f"{row['bytes'] / _MIB:.0f}"
            cells[4] = f"{row['losses'][0]:.3f} → {row['losses'][-1]:.3f}"
        table.add_row(*cells)
    console.print(table)


def verdict(rows: dict[str, dict[str, Any]], plans: dict[str, Any], optimizer: str) -> str:
    """The sentence that matters."""
    found, one = rows["mini_time"], rows["alone"]
    difference = float(np.max(np.abs(np.subtract(found["losses"], one["losses"]))))
    beside = f"{one['seconds'] / found['seconds']:.2f} times one process on all cores"
    if "data_parallel" in rows:
        beside = f"{rows['data_parallel']['seconds'] / found['seconds']:.2f} times data parallelism, {beside}"
    else:
        needed, limit = plans[f"{optimizer} data_parallel"], plans[f"{optimizer} limit"]
        beside += f", where data parallelism lacks {(needed - limit) / _MIB:.0f} MiB a rank"
    return f"[bold]{beside}; same losses to {difference:.1g}[/bold]\n"


def main() -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the results as JSON")
    for name in ("way", "optimizer", "folder"):
        parser.add_argument(f"--{name}", default=None, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.steps <= _WARM_UP:
        parser.error(f"--steps: must be more than {_WARM_UP}, which are not timed, got {flags.steps}")
    if flags.batch % flags.ranks:
        parser.error(f"--batch: must be divided by {flags.ranks} ranks, got {flags.batch}")
    if flags.way is not None:
        report = _WAYS[flags.way](flags)
    else:
        with tempfile.TemporaryDirectory() as flags.folder:
            report = compare(flags, Console(width=None if "COLUMNS" in os.environ else 90))
    if flags.json is not None and os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
