"""Frontier tracking on saved problems.

``python -m benchmarks.ft FILE.npz ... [--epsilon E] [--threads N] [--method M] [--exact] [--json OUT]`` prints, per
problem, the seconds of the search (after the compiled loops were loaded), its processor seconds, the points of the
frontier, whether it is exact, and the most memory that the process has taken so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

from tensoropt.ft import METHODS, track_frontier
from tensoropt.problem import Problem, load_problem

__all__ = ["main", "measure"]


def measure(path: str, **options: Any) -> dict[str, Any]:
    """The figures of one problem."""
    problem = load_problem(path)
    began, processor = time.perf_counter(), time.process_time()
    frontier = track_frontier(problem, **options)
    return {
        "problem": Path(path).stem,
        "nodes": problem.nodes,
        "edges": len(problem.edges),
        "configurations": max(problem.configurations(i) for i in range(problem.nodes)),
        "seconds": time.perf_counter() - began,
        "processor_seconds": time.process_time() - processor,
        "points": len(frontier),
        "exact": frontier.exact,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", help="files of save_problem")
    parser.add_argument("--epsilon", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--method", choices=METHODS, default="ldp")
    parser.add_argument("--exact", action="store_true", help="never give up the exact search, however long it takes")
    parser.add_argument("--json", help="file for the figures")
    flags = parser.parse_args()
    # Compiled loops are loaded (at the very first time, compiled) before anything is measured.
    track_frontier(Problem("ab", [[1.0, 2.0]] * 2, [[2.0, 1.0]] * 2, [(0, 1)], [[[0.0, 1.0], [1.0, 0.0]]]))
    rows = []
    for path in flags.problems:
        row = measure(
            path, epsilon=flags.epsilon, threads=flags.threads, method=flags.method, heuristics=not flags.exact
        )
        rows.append(row)
        print(
            "{problem}: {nodes} nodes, {edges} edges, up to {configurations} configurations: {seconds:.2f} s "
            "({processor_seconds:.2f} s of processors), {points} points, exact: {exact}, peak "
            "{peak:.2f} GB".format(**row, peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20),
            flush=True,
        )
    if flags.json:
        Path(flags.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
