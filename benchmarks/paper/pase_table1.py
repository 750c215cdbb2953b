"""PaSE's table I: seconds of its search, beside the paper's; and its figure 5: dependent sets of two orders.

Models and sizes are the paper's as far as it gives them: batches of 128 images and of 64 sentences, the vocabulary of
the Billion Word benchmark (padded to a multiple of 64, so that it can be split), "Transformer (big)". Costs are the
paper's, on its first cluster.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import time
from pathlib import Path
from typing import Any

from benchmarks.paper.published import PASE_TABLE_1_SECONDS
from benchmarks.paper.setting import Options, Report, planner, without_updates
from tensoropt.cluster.presets import gtx1080ti
from tensoropt.cluster.scaling import scaled
from tensoropt.cost import PaseCost
from tensoropt.pase import MAX_TABLE_ENTRIES, TimeTables, VertexOrder, breadth_first, find_best_strategy, generate_seq
from tensoropt.problem import Problem
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace

__all__ = ["MODELS", "run"]

MODELS: dict[str, dict[str, Any]] = {
    "alexnet": {"batch_size": 128},
    "inception3": {"batch_size": 128},
    "rnnlm": {"batch_size": 64, "vocabulary": 793_472},
    "transformer": {"batch_size": 64, "width": 1024},
    "resnet101": {"batch_size": 128},
}
_DEVICES = (4, 8, 16, 32, 64)
_LONGEST = 2e9
"""Candidates of the breadth-first order that are worked through to time it: a few seconds."""


def run(options: Options, plot: Path | None = None) -> Report:
    """Times the search on each model and number of devices. There is nothing to draw."""
    # Compiled loops are loaded (at the very first time, compiled) before anything is measured.
    importlib.import_module("tensoropt.pase.kernels")
    rows: Report = {}
    for model in options.models or tuple(MODELS):
        sizes = {**MODELS.get(model, {}), **options.sizes.get(model, {})}
        imported = planner(model, dataclasses.replace(options, sizes={model: sizes})).imported
        for devices in options.devices or _DEVICES:
            wall, cpu = time.perf_counter(), time.process_time()
            cost = PaseCost(scaled(gtx1080ti(), devices))
            problem = with_repeated_cells(SearchSpace(without_updates(imported.graph), cost))
            built = _since(wall, cpu)
            rows[f"{model}, {devices} devices"] = {
                "devices": devices,
                "sizes": sizes,
                "operators": problem.nodes,
                "edges": len(problem.edges),
                "most_configurations": max(problem.configurations(i) for i in range(problem.nodes)),
                "flop_per_byte": cost.flop_per_byte,
                "tables": built,
                **_searched(problem),
                "paper_s": PASE_TABLE_1_SECONDS.get(model, {}).get(devices),
            }
    return {"table": "PaSE I", "rows": rows}


def _searched(problem: Problem) -> Report:
    wall, cpu = time.perf_counter(), time.process_time()
    best = find_best_strategy(problem)
    found = _since(wall, cpu)
    tables, _ = TimeTables.of(problem)
    near, sizes = tables.neighbours(), tables.sizes
    breadth = breadth_first(near)
    return {
        "search": found,
        "cost_s": best.cost,
        "vertices": len(best.order),
        "generate_seq": _described(generate_seq(near, sizes), sizes),
        "breadth_first": {**_described(breadth, sizes), "search": _breadth_first_seconds(problem, breadth, sizes)},
    }


def _described(order: VertexOrder, sizes: list[int]) -> Report:
    """How large an order's dependent sets are, and the tables over them before any configuration is ruled out."""
    lengths = [len(members) for members in order.dependent_sets]
    return {
        "largest_dependent_set": max(lengths),
        "dependent_set_sizes": lengths,
        "log10_of_largest_table": math.log10(max(order.table_entries(sizes))),
    }


def _breadth_first_seconds(problem: Problem, order: VertexOrder, sizes: list[int]) -> Report | str:
    """Seconds of the plain recurrence in that order, or why it was not run."""
    entries = order.table_entries(sizes)
    if max(entries) > MAX_TABLE_ENTRIES:
        return f"too large: {max(entries):.3g} entries in one table"
    work = sum(sizes[v] * several for v, several in zip(order.vertices, entries, strict=True))
    if work > _LONGEST:
        return f"too long: {work:.3g} candidates"
    wall, cpu = time.perf_counter(), time.process_time()
    find_best_strategy(problem, order="breadth_first", prune=False)
    return _since(wall, cpu)


def _since(wall: float, cpu: float) -> Report:
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
