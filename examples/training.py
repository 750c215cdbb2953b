"""What the examples share: their flags, their training loop and their closing report."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import tensoropt

Batch = dict[Any, np.ndarray]


def parser(description: str | None, *, steps: int, batch: int) -> argparse.ArgumentParser:
    """The flags that all examples take."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--steps", type=int, default=steps, help="training steps (default %(default)s)")
    result.add_argument("--batch", type=int, default=batch, help="samples per step, of all ranks (default %(default)s)")
    result.add_argument("--option", default="mini_time", help="for find_strategy, or the path of a saved plan")
    result.add_argument("--memory", type=float, default=None, metavar="BYTES", help="limit per device")
    result.add_argument("--micro-batches", type=_parts, default=1, metavar="N", help="parts of a step, or auto")
    result.add_argument("--recompute", action="store_true", help="allow outputs to be made again in the backward pass")
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--collectives", default="auto", choices=("auto", "mpi", "mpi4py", "horovod"))
    result.add_argument("--save-plan", type=Path, default=None, metavar="FILE", help="write the plan as JSON")
    result.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the results as JSON")
    return result


def _parts(text: str) -> int | str:
    return text if text == "auto" else int(text)


def share(array: np.ndarray) -> np.ndarray:
    """This rank's part of a batch: each rank loads its own data, as in data parallelism."""
    count = len(array) // tensoropt.world_size()
    return array[tensoropt.world_rank() * count :][:count]


def batches(arrays: dict[Any, np.ndarray], size: int, steps: int, seed: int) -> Iterator[Batch]:
    """Whole batches, the same on every rank, shuffled anew each epoch."""
    rng = np.random.default_rng(seed)
    total = len(next(iter(arrays.values())))
    order = np.empty(0, dtype=np.int64)
    for _ in range(steps):
        if len(order) < size:
            order = rng.permutation(total)
        chosen, order = order[:size], order[size:]
        yield {placeholder: array[chosen] for placeholder, array in arrays.items()}


def train(
    flags: argparse.Namespace,
    loss: Any,
    train_op: Any,
    arrays: dict[Any, np.ndarray],
    test: Callable[[], dict[str, float]],
) -> dict[str, Any]:
    """Searches a strategy, trains by it, and compares the loss curve with one process's.

    Args:
        flags: of :func:`parser`.
        loss: the loss tensor.
        train_op: what ``minimize`` returned.
        arrays: the training samples, by placeholder.
        test: called after training; gives the figures to report.

    Returns:
        The report, which rank 0 has printed (and written to ``--json``).
    """
    main = tensoropt.world_rank() == 0
    console = Console()
    plan = tensoropt.find_strategy(
        flags.option, memory_bytes=flags.memory, micro_batches=flags.micro_batches, recompute=flags.recompute
    )
    if flags.option == "profiling":  # which has printed its table, and is for choosing how to start the next job
        return json.loads(plan.to_json())
    if main and flags.save_plan is not None:
        plan.save(flags.save_plan)
    tensoropt.show_strategy(plan)
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives=flags.collectives)
    losses: list[float] = []
    seconds: list[float] = []
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]}"),
    )
    with Progress(*columns, console=console, disable=not main) as progress:
        task = progress.add_task("training", total=flags.steps, loss="")
        for batch in batches(arrays, flags.batch, flags.steps, flags.seed):
            started = time.perf_counter()
            value, _ = tensoropt.run([loss, train_op], {key: share(array) for key, array in batch.items()})
            seconds.append(time.perf_counter() - started)
            losses.append(float(value))
            progress.update(task, advance=1, loss=f"{losses[-1]:.4f}")
    figures = test()
    reference = tensoropt.reference_losses(loss, train_op, batches(arrays, flags.batch, flags.steps, flags.seed))
    report = {
        "ranks": tensoropt.world_size(),
        "steps": flags.steps,
        "final_loss": losses[-1],
        "reference_loss": reference[-1],
        "max_loss_difference": float(np.max(np.abs(np.subtract(losses, reference)))),
        **figures,
        "seconds_per_step": float(np.median(seconds)),
        "strategy": tensoropt.strategy_rows(plan),
    }
    if main:
        for name, value in report.items():
            if name != "strategy":
                shown = f"{value:.6g}" if isinstance(value, float) else str(value)
                console.print(f"{name.replace('_', ' ')}: {shown}")
        if flags.json is not None:
            flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report
