"""Seconds per training step: searched strategy, data parallelism, one process, and Horovod, side by side.

    python -m benchmarks.step --model large_softmax --ranks 2 --json step.json

Every variant runs several times in turn, so that a machine whose speed drifts is fair to all.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.launch import launch
from benchmarks.models import MODELS

# What tuning found best for Horovod here; its defaults are measured as well.
_HOROVOD_TUNED = {"HOROVOD_CYCLE_TIME": "0.5"}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="large_softmax")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3, help="how often each variant runs (default %(default)s)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    flags = parser.parse_args()
    variants: dict[str, tuple[int | None, dict[str, str]]] = {
        "mini_time": (flags.ranks, {}),
        "data_parallel": (flags.ranks, {}),
        "one_process": (None, {}),
    }
    if importlib.util.find_spec("horovod") is not None:
        variants["horovod"] = (flags.ranks, _HOROVOD_TUNED)
        variants["horovod_defaults"] = (flags.ranks, {})
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    console = Console(stderr=True)
    order = [(number, name) for number in range(flags.rounds) for name in variants]
    for _, name in track(order, description="measuring", console=console):
        ranks, extra = variants[name]
        arguments = ["--model", flags.model, "--steps", str(flags.steps), "--variant", name.removesuffix("_defaults")]
        output = launch("benchmarks.step_worker", arguments, ranks, extra)
        runs[name].append(json.loads(output.strip().splitlines()[-1]))
    report = _report(flags, runs)
    _show(report)
    if flags.json is not None:
        flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    os.sync()


def _report(flags: argparse.Namespace, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    result: dict[str, Any] = {"model": flags.model, "ranks": flags.ranks, "steps": flags.steps, "variants": {}}
    reference = np.array(runs["one_process"][0]["losses"])
    for name, measured in runs.items():
        result["variants"][name] = {
            "median_s": float(np.median([np.median(run["seconds"]) for run in measured])),
            "round_medians_s": [float(np.median(run["seconds"])) for run in measured],
            "max_loss_difference": float(max(np.abs(np.array(run["losses"]) - reference).max() for run in measured)),
            **({"strategy": measured[-1]["strategy"]} if "strategy" in measured[-1] else {}),
        }
    best = result["variants"]["mini_time"]["median_s"]
    result["speedup_of_mini_time_over"] = {
        name: entry["median_s"] / best for name, entry in result["variants"].items() if name != "mini_time"
    }
    return result


def _show(report: dict[str, Any]) -> None:
    table = Table(title=f"{report['model']}, {report['ranks']} ranks, median of {report['steps']} steps")
    for header in ("variant", "ms per step", "rounds, ms", "mini_time is faster by", "largest loss difference"):
        table.add_column(header, justify="left" if header == "variant" else "right")
    for name, entry in report["variants"].items():
        ratio = report["speedup_of_mini_time_over"].get(name)
        table.add_row(
            name,
            f"{entry['median_s'] * 1e3:.1f}",
            " ".join(f"{value * 1e3:.1f}" for value in entry["round_medians_s"]),
            "" if ratio is None else f"{ratio:.2f}",
            f"{entry['max_loss_difference']:.2g}",
        )
    console = Console()
    console.print(table)
    for row in report["variants"]["mini_time"].get("strategy", []):
        console.print(f"{row['operator']:60} {row['mesh']} {', '.join(row['splits'])}", markup=False)


if __name__ == "__main__":
    main()
