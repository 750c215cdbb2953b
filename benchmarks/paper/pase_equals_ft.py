"""Whether PaSE's best strategy is as fast as the fastest point of frontier tracking's exact frontier.

Two searches, each with eliminations and bounds of its own, solve the same tables: those of the operators that decide,
with everything that edges may keep, on FlexFlow's P100 cluster.
"""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path

from benchmarks.paper.setting import Options, Report, planner
from examples.models import PER_DEVICE_BATCH
from tensoropt.cluster.presets import p100
from tensoropt.cluster.scaling import scaled
from tensoropt.ft import track_frontier
from tensoropt.pase import find_best_strategy
from tensoropt.problem import Problem
from tensoropt.problem.single_cost import single_cost
from tensoropt.space.followers import contracted

__all__ = ["compared", "run"]

_MODELS = (
    "alexnet",
    "bert_large",
    "inception3",
    "lenet",
    "nmt",
    "resnet101",
    "rnn",
    "rnnlm",
    "rnntc",
    "transformer",
    "transformer_s",
    "vgg16",
    "wide_resnet",
)
_DEVICES = (4, 8, 16, 32, 64)
_ROUNDING = 1e-12


def run(options: Options, plot: Path | None = None) -> Report:
    """Compares on each model and number of devices. There is nothing to draw."""
    rows: Report = {}
    for model in options.models or _MODELS:
        for devices in options.devices or _DEVICES:
            batch = {"batch_size": PER_DEVICE_BATCH[model] * devices} if model in PER_DEVICE_BATCH else {}
            sizes = {**batch, **options.sizes.get(model, {})}
            space = planner(model, dataclasses.replace(options, sizes={model: sizes})).space(scaled(p100(), devices))
            rows[f"{model}, {devices} devices"] = compared(contracted(space).problem, options.threads)
    return {"table": "PaSE = FT", "rows": rows, "differ": [name for name, row in rows.items() if not row["equal"]]}


def compared(problem: Problem, threads: int | None = None) -> Report:
    """Both searches on one problem.

    Of several strategies of least time frontier tracking wants the one of least memory, and so its tables have a trace
    of memory in them. PaSE gets the same tables, and then those without the trace, which is below 1e-9 of the time.
    """
    timed = single_cost(problem, "time")
    began = time.process_time()
    best = find_best_strategy(timed, parts=True)
    pase_cpu_s = time.process_time() - began
    began = time.process_time()
    frontier = track_frontier(timed, threads=threads)
    ft_cpu_s = time.process_time() - began
    gave_up_at_s = None
    if not frontier.exact:  # it says so; without heuristics it goes on, however long it takes
        gave_up_at_s = float(frontier.time_s[-1])
        began = time.process_time()
        frontier = track_frontier(timed, threads=threads, heuristics=False)
        ft_cpu_s += time.process_time() - began
    plain = find_best_strategy(problem, parts=True)
    fastest_s = float(frontier.time_s[-1])
    return {
        "nodes": problem.nodes,
        "most_configurations": max(problem.configurations(node) for node in range(problem.nodes)),
        "pase_s": best.cost,
        "ft_s": fastest_s,
        "ft_with_heuristics_s": gave_up_at_s,
        "without_trace_s": plain.cost,
        "ft_is_exact": frontier.exact,
        "equal": frontier.exact
        and len(frontier) == 1
        and math.isclose(best.cost, fastest_s, rel_tol=_ROUNDING)
        and best.cost * (1 - 1e-9 - _ROUNDING) <= plain.cost <= best.cost * (1 + _ROUNDING),
        "pase_cpu_s": pase_cpu_s,
        "ft_cpu_s": ft_cpu_s,
    }
