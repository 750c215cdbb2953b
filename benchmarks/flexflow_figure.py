"""FlexFlow's figure 11 on real ranks: what strategies are simulated to take beside what their steps take.

    mpirun -n 4 python -m benchmarks.flexflow_figure --models nmt inception

Each model runs by known strategies, by those that searches find, and by the one that Markov chains find in the whole of
SOAP (samples, operators, attributes, parameters): with operators on a part of the ranks and images in pieces. All are
simulated with collectives that keep devices busy, as they do when they run. What matters to a search is the order.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

import tensoropt
from benchmarks.arguments import positive
from benchmarks.paper.whole_space import search_whole_space, whole_space
from tensoropt.api.session.job import current_job
from tensoropt.cluster import Topology
from tensoropt.errors import TensorOptError
from tensoropt.mcmc import Stop
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.simulate import simulate

__all__ = ["main"]

_SOAP, _SMALLEST = "soap", "mini_memory"
_METHODS = (
    "data_parallel", "model_parallel", "gnmt", "one_weird_trick", "optcnn", "megatron", "ft", _SMALLEST, "mcmc", _SOAP,
)  # fmt: skip
_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "nmt": ("nmt", {"batch_size": 64, "layers": 2, "hidden": 128, "steps": 4, "vocabulary": 2048}),
    "inception": (
        "inception3",
        {
            "batch_size": 16,
            "image_size": 75,
            "width": 0.25,
            "modules": (("a", 32), ("b", 0), ("c", 128), ("d", 0), ("e", 0)),
            "classes": 64,
        },
    ),
}
_WARM_UP, _TURNS = 2, 3


@dataclass(slots=True)
class _Strategy:
    """A strategy of a model, and what its steps take."""

    names: list[str]
    plan: Plan
    simulated_s: float
    program: tuple[Any, Any] = (None, None)
    steps_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Row:
    """A strategy as it was simulated and as it ran.

    Attributes:
        model: its name.
        methods: that choose the strategy.
        placed: operators that are on a part of the ranks.
        simulated_s: seconds of a step.
        step_s: seconds of a step, the median of the slowest rank's.
    """

    model: str
    methods: tuple[str, ...]
    placed: int
    simulated_s: float
    step_s: float


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(_MODELS), default=sorted(_MODELS))
    parser.add_argument("--steps", type=positive, default=10, help="of each strategy in a turn")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the search of SOAP")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    topology = tensoropt.init()
    rows: list[Row] = []
    for name in flags.models:
        rows += _rows(name, topology, flags)
    if tensoropt.world_rank() == 0:
        for name in flags.models:
            _show([row for row in rows if row.model == name])
        if flags.json is not None:
            flags.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def _rows(name: str, topology: Topology, flags: argparse.Namespace) -> Iterator[Row]:
    from examples import models

    tensoropt.reset_default_graph()
    tensoropt.set_random_seed(7)
    function, sizes = _MODELS[name]
    models.MODELS[function](**sizes)
    tensoropt.find_strategy()  # measures operators
    job = current_job()
    comm, imported = job.world.comm, job.imported_model()
    strategies = job.world.on_rank_0("finding strategies", lambda: list(_strategies(topology, flags.seconds)))
    random, feeds = np.random.default_rng(3), {}
    for op in imported.graph.of_type("Placeholder"):
        shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
        whole = random.integers(0, 64, shape) if dtype.startswith("int") else random.normal(size=shape)
        count = shape[0] // comm.size
        feeds[f"{op.name}:0"] = whole[comm.rank * count :][:count].astype(dtype)
    for strategy in strategies:
        tensoropt.build_execution_graph(plan=strategy.plan.of(imported.graph))
        strategy.program = job.executor, job.variants
        job.executor = job.variants = None  # kept open
    for _ in range(_TURNS):
        for strategy in strategies:
            job.executor, job.variants = strategy.program
            seconds = []
            for _ in range(_WARM_UP + flags.steps):
                comm.Barrier()
                began = time.perf_counter()
                tensoropt.run(imported.steps[0], feeds)
                seconds.append(time.perf_counter() - began)
            strategy.steps_s += np.max(comm.allgather(seconds[_WARM_UP:]), axis=0).tolist()
    for strategy in strategies:
        placed = sum(bool(strategy.plan.configuration(op).at) for op in imported.graph.training)
        step_s = statistics.median(strategy.steps_s)
        yield Row(name, tuple(strategy.names), placed, strategy.simulated_s, step_s)


def _strategies(topology: Topology, seconds: float) -> Iterator[_Strategy]:
    """Every method's strategy, those of several methods once."""
    planner = current_job().planner("data_parallel")
    space = planner.space(topology)
    whole = whole_space(space)
    found: dict[tuple[Configuration, ...], _Strategy] = {}
    known: list[Mapping[str, Configuration]] = []
    for method in _METHODS:
        try:
            if method == _SOAP:
                chosen = search_whole_space(whole, known, stop=Stop(seconds=seconds)).configurations
            else:
                of = planner.find(topology, "ft" if method == _SMALLEST else method)
                point = of.frontier.point(0) if method == _SMALLEST else of.frontier.best()
                chosen = of.space.configurations(point.assignment)
        except TensorOptError:
            continue  # it does not apply to the model
        known.append(chosen)
        key = tuple(chosen.values())
        if key in found:
            found[key].names.append(method)
            continue
        alone = space.of_one_strategy(chosen)
        zeros = [0] * len(alone.operators)
        found[key] = _Strategy([method], alone.plan(zeros, method), simulate(alone, zeros).makespan_s)
    yield from found.values()


def _show(rows: list[Row]) -> None:
    table = Table("strategy", "placed", "simulated, ms", "measured, ms", title=rows[0].model, box=box.SIMPLE)
    for row in sorted(rows, key=lambda row: row.simulated_s):
        table.add_row(
            ", ".join(row.methods), str(row.placed), f"{row.simulated_s * 1e3:.1f}", f"{row.step_s * 1e3:.1f}"
        )
    Console().print(table)
    both = [[row.simulated_s for row in rows], [row.step_s for row in rows]]
    print(f"rank correlation of {len(rows)} strategies: {spearmanr(*both).statistic:.2f}")


if __name__ == "__main__":
    main()
