"""Pipelines of every number of stages and micro-batches: their losses, and how long devices rest, beside predictions.

    mpirun -n 2 python -m benchmarks.bubbles --models transformer vgg

A device rests while it computes nothing: it waits for another stage, or sends and receives. Losses are compared with
those of TensorFlow alone in one process, from the same initial values, and so are TensorFlow's own where it begins with
values that differ by 1e-7: deep networks make that a thousand times more in a few steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import tensoropt
from benchmarks.arguments import positive
from benchmarks.models import MODELS, SHORT
from benchmarks.step_worker import Planned, one_process, trainer
from benchmarks.step_worker import models as models_of
from tensoropt.api.session.job import current_job
from tensoropt.cluster import Topology
from tensoropt.finders.pipeline import fastest_that_fits, pipelines
from tensoropt.plan.plan import Plan
from tensoropt.search.finding import NO_LIMIT
from tensoropt.search.measurement import Measurement
from tensoropt.space.space import SearchSpace

__all__ = ["Row", "main"]

_OPTIMIZER = "sgd"
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A pipeline as it was predicted and as it ran.

    Attributes:
        model: its name.
        stages: how many.
        rounds: in which a micro-batch goes through them.
        micro_batches: of a step.
        off: the largest difference of a loss from one process's, relative to that.
        off_itself: that of one process which begins with weights times (1 + 1e-7).
        step_s: seconds of a step, the median.
        predicted_s: the plan's.
        rest: the share of the step in which a device computes nothing, the mean of all devices.
        predicted_rest: the plan's.
    """

    model: str
    stages: int
    rounds: int
    micro_batches: int
    off: float
    off_itself: float
    step_s: float
    predicted_s: float
    rest: float
    predicted_rest: float


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted({*MODELS, *SHORT})
    parser.add_argument("--models", nargs="+", choices=known, help="by default transformer, and vgg or cnn")
    parser.add_argument("--short", action="store_true", help="small models of the same kinds, to try the program")
    parser.add_argument("--times", type=positive, nargs="+", default=[2, 4, 8], help="micro-batches of a step")
    parser.add_argument("--steps", type=positive, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    flags.models = flags.models or ["transformer", "cnn" if flags.short else "vgg"]
    topology = tensoropt.init()
    rows = [row for name in flags.models for row in _rows(name, topology, flags)]
    if tensoropt.world_rank() == 0:
        _show(rows)
        if flags.json is not None:
            flags.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def _rows(name: str, topology: Topology, flags: argparse.Namespace) -> Iterator[Row]:
    model = models_of(flags.short)[name]
    job = current_job()
    comm, count = job.world.comm, flags.steps
    alone = None
    if comm.rank == 0:
        begun = [one_process(model, _OPTIMIZER, scale) for scale in (1.0, 1 + 1e-7)]
        alone = [trainer(model, 0, 1, step)(_WARM_UP + count)["losses"] for step in begun]
    wanted, other = np.array(comm.bcast(alone))
    tensoropt.reset_default_graph()
    planned = Planned(model, _OPTIMIZER)
    for times in flags.times:
        for rounds, plan, predicted_rest in _plans(times, topology):
            train = trainer(model, comm.rank, comm.size, planned.step(plan))
            losses = train(_WARM_UP)["losses"]
            with tensoropt.measuring() as found:
                losses += train(count)["losses"]
            yield Row(
                name,
                plan.notes["pipeline"]["stages"],
                rounds,
                times,
                float(np.max(np.abs(np.array(losses) / wanted - 1))),
                float(np.max(np.abs(other / wanted - 1))),
                found.result.step_s,
                plan.time_s,
                _rest(found.result),
                predicted_rest,
            )


def _plans(times: int, topology: Topology) -> Iterator[tuple[int, Plan, float]]:
    """The fastest pipeline of each number of stages and rounds, after the rounds; and how long its devices rest.

    That is a share of the step.
    """
    tensoropt.find_strategy(search="pipeline", micro_batches=times)  # measures operators
    planner = current_job().planner("data_parallel").with_steps(times)
    for rounds, space in pipelines(planner.space(topology)):
        point, _ = fastest_that_fits(space, NO_LIMIT)
        plan = space.plan(point.assignment, "pipeline", alternatives=point.alternatives)
        yield rounds, plan, _predicted_rest(plan, space)


def _rest(measured: Measurement) -> float:
    work = [
        sum(kernel.seconds for kernel in kernels if not kernel.collective) / len(rank.traced)
        for rank in measured.ranks
        for kernels in rank.traced
    ]
    return 1 - sum(work) / len(measured.ranks) / measured.step_s


def _predicted_rest(plan: Plan, space: SearchSpace) -> float:
    work = np.zeros(plan.mesh.size)
    for op in space.operators:
        work[list(plan.configuration(op.name).devices(plan.mesh))] += plan.operators[op.name].time_s
    return float(1 - work.mean() / plan.time_s)


def _show(rows: list[Row]) -> None:
    columns = (
        "model",
        "stages",
        "rounds",
        "parts",
        "losses off",
        "(itself)",
        "ms",
        "(predicted)",
        "rests",
        "(predicted)",
    )
    table = Table(*columns, box=box.SIMPLE)
    for row in rows:
        table.add_row(
            row.model,
            str(row.stages),
            str(row.rounds),
            str(row.micro_batches),
            f"{row.off:.0e}",
            f"{row.off_itself:.0e}",
            f"{row.step_s * 1e3:.1f}",
            f"{row.predicted_s * 1e3:.1f}",
            f"{row.rest:.0%}",
            f"{row.predicted_rest:.0%}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
