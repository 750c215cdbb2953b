"""Table 3: seconds of the search: FT-LDP, FT-Elimination, FT-LDP with one thread; and of all that a user waits for.

The methods are timed on one problem: the operators that decide, costs in steps (``resolution``). ``exact_in_steps``
says that a method found all of that problem's frontier; it says nothing of strategies in which other operators
decide, nor of costs told apart more finely. What a user gets is the ``frontier``, whose own ``exact`` is of all
operators' strategies.

``wait`` is how long a user waits for that from a script's model on: the graph (TensorFlow's, and ours made of it),
the tables, and the whole search, which is more than any method's time. Of the first row, TensorFlow's own start
belongs to the graph.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import resource
import statistics
import time
from pathlib import Path

from benchmarks.paper.published import TABLE_3_SECONDS
from benchmarks.paper.setting import Options, Report, planner
from tensoropt.api.find.planner import Planner
from tensoropt.cluster.presets import v100
from tensoropt.cluster.scaling import scaled
from tensoropt.ft.space_frontier import SpaceTracker

__all__ = ["METHODS", "run"]

_MODELS = ("wide_resnet", "rnn", "transformer")
METHODS = ("ldp", "elimination", "one_thread")

_RUNS = 9
_ENOUGH_S = 1.0
"""Runs of a search that is repeated, and seconds after which it is not."""


def run(options: Options, plot: Path | None = None, methods: tuple[str, ...] = METHODS) -> Report:
    """Times each method; wall-clock and CPU seconds, since a machine may be shared. There is nothing to draw.

    Where devices cannot share a model's batch, it is raised to the next number of samples that they can.
    """
    rows: Report = {}
    _compile()
    for model in options.models or _MODELS:
        for devices in options.devices or (16,):
            wall = time.perf_counter()
            usual = planner(model, options)
            graph_s = time.perf_counter() - wall
            wall = time.perf_counter()
            plans = _shared_by(devices, usual, model, options)
            if plans is not usual:
                graph_s = time.perf_counter() - wall
            wall, cpu = time.perf_counter(), time.process_time()
            space = plans.space(scaled(v100(), devices))
            tracker = SpaceTracker(space)
            problem, resolution = tracker.rounded, tracker.resolution
            row: Report = {
                "devices": devices,
                "sizes": dict(options.sizes.get(model, {})),
                "batch": plans.batch(),
                "batch_of_the_model": usual.batch(),
                "operators": space.problem.nodes,
                "deciding": problem.nodes,
                "edges": len(problem.edges),
                "resolution": {"time_s": resolution.time_s, "memory_bytes": resolution.memory_bytes},
                "most_configurations": max(problem.configurations(i) for i in range(problem.nodes)),
                "tables": {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu},
                "paper_s": TABLE_3_SECONDS.get(model) if devices == 16 else None,
            }
            for method in methods:
                row[method] = _timed(tracker, method, options)
            row["frontier"] = found = _all_timed(tracker, options)
            parts = {"graph_s": graph_s, "tables_s": row["tables"]["wall_s"], "search_s": found["wall_s"]}
            row["wait"] = {**parts, "wall_s": sum(parts.values())}
            row["peak_process_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            rows[f"{model}, {devices} devices"] = row
    return {"table": 3, "epsilon": options.epsilon, "rows": rows}


def _shared_by(devices: int, usual: Planner, model: str, options: Options) -> Planner:
    """The model with a batch that devices can share."""
    batch = usual.batch()
    if batch is None or usual.undivided(devices) is None:
        return usual
    raised = {**options.sizes.get(model, {}), "batch_size": -(-batch // devices) * devices}
    return planner(model, dataclasses.replace(options, sizes={**options.sizes, model: raised}))


def _compile() -> None:
    """Loads compiled loops, or compiles them the first time that a machine runs them, before anything is timed."""
    for kernels in (
        "ft.kernels",
        "ft.message_kernels",
        "problem.kernels",
        "problem.cell_kernels",
        "problem.unit_kernels",
    ):
        importlib.import_module(f"tensoropt.{kernels}")


def _all_timed(tracker: SpaceTracker, options: Options) -> Report:
    """The search that a user waits for: all of `SpaceTracker.frontier`."""
    tracker.threads = options.threads
    wall, cpu = time.perf_counter(), time.process_time()
    found = tracker.frontier(epsilon=options.epsilon)
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "points": len(found),
        "exact": found.exact,
        "searched": found.searched,
    }


def _timed(tracker: SpaceTracker, method: str, options: Options) -> Report:
    """The median of several runs, of which long searches have one, and how long the first one took."""
    tracker.threads = 1 if method == "one_thread" else options.threads
    walls: list[float] = []
    cpus: list[float] = []
    while not walls or (len(walls) < _RUNS and sum(walls) < _ENOUGH_S):
        gc.collect()  # of the model's building, which takes longer than a short search
        wall, cpu = time.perf_counter(), time.process_time()
        found = tracker.between(method="elimination" if method == "elimination" else "ldp", epsilon=options.epsilon)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {
        "wall_s": statistics.median(walls),
        "cpu_s": statistics.median(cpus),
        "first_wall_s": walls[0],
        "runs": len(walls),
        "points": len(found),
        "exact_in_steps": found.exact and not tracker.contraction.restricts,
    }
