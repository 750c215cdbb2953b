"""How far the default frontier is from all that there is.

    python -m benchmarks.gap --json gap.json
    python -m benchmarks.gap --model lenet rnnlm --devices 8

A search leaves things out: operators follow those that decide, costs are told apart up to a point, steps of a
recurrent layer take one configuration. For every model this says what that costs. All figures are shares:

- *time*: by how much a strategy of the frontier takes longer, at most, than another one of no more memory. Compared
  are all memories from that of its smallest strategy on.
- *memory*: by how much a strategy of the frontier is larger, at most, than another one that is as fast. Compared are
  all times from that of its fastest strategy on.

- *apart*: so much slower and so much larger than any of them a strategy of the frontier may be, for every strategy to
  have one (the multiplicative epsilon indicator of Zitzler et al., "Performance assessment of multiobjective
  optimizers", 2003). It is small where *memory* is large by a strategy that is a hair slower.

The first two are there twice, as nobody knows all strategies:

- *found*: beside the strategies that much longer searches find, of all operators, and where that had to be ended also
  of the operators that decide with costs as they are. The gap is at least this.
- *proven*: beside lower bounds, so that the gap is at most this. Where all operators were searched to the end, those
  strategies are the bounds, and nothing is left open. Elsewhere bounds are lines: for a weight of time and one of
  memory no strategy costs less than so much (`tensoropt.problem.lower_bounds`), each operator with a configuration of
  its own, steps of recurrent layers too. The lines lie below the convex hull of the true frontier, so this is too
  much where that is not convex, or has few strategies far from one another.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import output_file, positive
from benchmarks.models import MODELS as TRAINED
from benchmarks.paper.setting import Options, planner
from examples.models import MODELS, PER_DEVICE_BATCH
from tensoropt.api.find.planner import Planner
from tensoropt.cluster.presets import v100
from tensoropt.cluster.scaling import scaled
from tensoropt.ft import track_frontier
from tensoropt.ft.lower_bounds import lower_bounds
from tensoropt.ft.space_frontier import SpaceTracker
from tensoropt.problem import Frontier
from tensoropt.problem.lower_bounds import LowerBounds
from tensoropt.space.space import SearchSpace

__all__ = ["Excess", "above", "apart", "beside", "measure"]

_LONGEST = 4_000_000_000
"""Candidates after which the search of all operators ends: some minutes of a core for the largest models."""
_EQUAL = 1e-12
"""Relative: what is this close is the same."""


class Excess(NamedTuple):
    """By which shares a frontier is above others, at most.

    Attributes:
        time: at equal memory.
        memory: at equal time.
    """

    time: float
    memory: float


def beside(frontier: Frontier, other: Frontier) -> Excess:
    """What a frontier's strategies exceed those of another one by, at the memories and the times that both have."""
    times, memories = frontier.time_s, frontier.memory_bytes  # times descend as memories ascend
    within = np.searchsorted(memories, other.memory_bytes * (1 + _EQUAL), side="right") - 1
    slower = times[within[within >= 0]] / other.time_s[within >= 0] - 1
    as_fast = np.searchsorted(-times, -other.time_s * (1 + _EQUAL))
    larger = memories[as_fast[as_fast < len(times)]] / other.memory_bytes[as_fast < len(times)] - 1
    return Excess(float(max(slower.max(initial=0.0), 0.0)), float(max(larger.max(initial=0.0), 0.0)))


def apart(frontier: Frontier, other: Frontier) -> float:
    """The least share such that for each of another frontier's strategies one is at most so much slower and larger."""
    slower = frontier.time_s[:, None] / other.time_s
    larger = frontier.memory_bytes[:, None] / other.memory_bytes
    return max(float(np.maximum(slower, larger).min(axis=0).max()) - 1.0, 0.0)


def above(frontier: Frontier, bounds: LowerBounds) -> Excess:
    """What a frontier's strategies may exceed any by, at most, at the memories and the times that it has.

    From one strategy's memory up to the next one's, the frontier offers the first one's time, and the least that there
    may be is less and less: so the next one's memory counts. Times are the same the other way round.
    """
    times, memories = frontier.time_s, frontier.memory_bytes
    least_s = bounds.least_time_s(np.append(memories[1:], np.inf))
    least_bytes = bounds.least_memory_bytes(np.append(np.inf, times[:-1]))
    return Excess(float((times / least_s).max() - 1), float((memories / least_bytes).max() - 1))


def measure(space: SearchSpace, longest: float = _LONGEST) -> dict[str, Any]:
    """The figures of one space of strategies."""
    began = time.process_time()
    tracker = SpaceTracker(space)
    frontier = tracker.frontier()
    search_s = time.process_time() - began
    began = time.process_time()
    bounds = lower_bounds(space.problem)
    bounds_s = time.process_time() - began
    row: dict[str, Any] = {
        "operators": len(space.operators),
        "points": len(frontier),
        "exact": frontier.exact,
        "searched": frontier.searched,
        "search_cpu_s": search_s,
        "bounds_cpu_s": bounds_s,
    }
    began = time.process_time()
    whole = track_frontier(space.problem, longest=longest)
    known = [whole]
    if not whole.exact:
        contraction = tracker.contraction
        known.append(contraction.expand(track_frontier(contraction.problem, longest=longest)))
    found = Excess(*(max(several) for several in zip(*(beside(frontier, one) for one in known), strict=True)))
    row["found"] = found._asdict()
    row["apart"] = max(apart(frontier, one) for one in known)
    row["proven"] = (found if whole.exact else above(frontier, bounds))._asdict()
    row["above_bounds"] = above(frontier, bounds)._asdict()
    row["whole"] = {"points": len(whole), "exact": whole.exact, "cpu_s": time.process_time() - began}
    return row


def _trained(name: str) -> Planner:
    """The planner of a model that benchmarks train, by plain gradient descent."""
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model

    model = TRAINED[name]
    tensoropt.reset_default_graph()
    built = model.build(tensoropt, model.batch_size)
    tensoropt.train.GradientDescentOptimizer(model.learning_rate).minimize(built.loss)
    made = current_model()
    return Planner(import_model(made), "data_parallel", made)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the command line says."""
    names = sorted({*MODELS, *TRAINED})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=names, default=names)
    parser.add_argument("--devices", nargs="+", type=positive, default=[8, 16], help="of the V100 preset")
    parser.add_argument("--longest", type=float, default=_LONGEST, help="candidates of the search of all operators")
    parser.add_argument("--json", type=output_file, metavar="FILE")
    flags = parser.parse_args(arguments)
    rows: dict[str, dict[str, Any]] = {}
    for name in flags.model:
        for devices in flags.devices:
            sizes = {"batch_size": PER_DEVICE_BATCH[name] * devices} if name in PER_DEVICE_BATCH else {}
            plans = _trained(name) if name in TRAINED else planner(name, Options(sizes={name: sizes}))
            row = measure(plans.space(scaled(v100(), devices)), flags.longest)
            rows[f"{name}, {devices} devices"] = row
            print(f"{name}, {devices} devices: {_said(row)}", flush=True)
            _write(flags.json, rows)
    _show(rows)


def _said(row: dict[str, Any]) -> str:
    gaps = {kind: row[kind] for kind in ("found", "proven")}
    parts = [f"{kind} {gap['time']:.2%} of time, {gap['memory']:.2%} of memory" for kind, gap in gaps.items()]
    seconds = row["search_cpu_s"], row["bounds_cpu_s"], row["whole"]["cpu_s"]
    return (
        f"{'; '.join(parts)}; {row['apart']:.2%} apart ({', '.join(f'{one:.1f}' for one in seconds)} s of processors)"
    )


def _write(path: Path | None, rows: dict[str, dict[str, Any]]) -> None:
    if path is not None:
        path.write_text(json.dumps({"cluster": "v100", "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _show(rows: dict[str, dict[str, Any]]) -> None:
    table = Table(title="the default frontier above all strategies, at most: found and proven")
    for header in (
        "model",
        "points",
        "exact",
        "time",
        "memory",
        "apart",
        "time, proven",
        "memory, proven",
        "whole searched",
    ):
        table.add_column(header, justify="left" if header == "model" else "right")
    for name, row in rows.items():
        found, proven = ([f"{row[kind][cost]:.2%}" for cost in ("time", "memory")] for kind in ("found", "proven"))
        shares = [*found, f"{row['apart']:.2%}", *proven]
        table.add_row(
            name, str(row["points"]), str(row["exact"]), *shares, "exactly" if row["whole"]["exact"] else "in part"
        )
    Console(width=132).print(table)


if __name__ == "__main__":
    main()
