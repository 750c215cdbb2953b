"""How well costs are predicted, as in TensorOpt's table 2: random strategies, executed.

    python -m benchmarks.accuracy --json accuracy.json
    python -m benchmarks.accuracy --quick --json quick.json

For each model and number of ranks, one job plans by measured costs and executes random strategies (see
``accuracy_sample``) one after another, or with ``--sample methods`` those that searches and baselines choose (see
``accuracy_methods``). Compared are

- *time* of a step: the median of several, the slowest rank's. Strategies take turns, a few steps at a time;
- *network*: what collectives take in these steps, and, from TensorFlow's trace, what packs and unpacks their buffers.
  Of each collective the rank counts that came last, since the others wait in it for the slowest. Where ranks share
  cores: what the step takes longer than the ranks' own work, by the processor's clock, with that packing;
- *memory*: the most that is held at any time of a step, in bytes that tensors and kernels asked for (what the allocator
  adds to them depends on what was free before), with the model's variables. Predicted is the peak that the plan notes.

The error is |predicted - measured| / measured, its mean over the strategies is reported, and its signed mean. Beside it
stands Spearman's rank correlation of predicted and measured time, and that of the measured times of every other turn
with those of the turns between (*halves*), with the one in brackets that a perfect prediction would therefore reach.
A second table takes the times apart: operators,
packing of collectives' buffers, collectives, and what ranks wait for one another in them, which predicted times of
operators include; and says how far the memory is off that searches add up. ``benchmarks.simulated`` has the simulator's
times of the same steps.

What other programs disturb is measured again (``--patience``). The machine's speed changes while all this goes on, so
operators and collectives are profiled before the steps, between them and after them (``--profiles``), and the mean of
all predictions counts. A fixed reference is timed before and after each turn of steps, too, and *steady time* compares
with steps that are divided by how much longer it took then than during the profiles.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from benchmarks.accuracy_halves import agreement_of_halves, best_possible
from benchmarks.accuracy_models import MODELS
from benchmarks.accuracy_sample import SAMPLES
from benchmarks.launch import launch

_QUANTITIES = ("time_s", "network_s", "memory_bytes")
_STEADY = "steady_time_s"
_PARTS = ("compute_s", "packing_s", "collectives_s")
# TensorOpt table 2, mean errors of time, network time and memory.
_PAPER = {
    "rnn": (0.0716, 0.0716, 0.0486),
    "wide_resnet": (0.0762, 0.0305, 0.0447),
    "transformer": (0.0502, 0.0723, 0.0098),
}
_WIDTH = 132
# Below this share of the step, the error of the network's time says nothing.
_LEAST_NETWORK_SHARE = 0.01


def main() -> None:
    """Runs the benchmark."""
    parser = flag_parser(__doc__, sample=SAMPLES[0], strategies=20, seed=1, profile_seconds=90.0)
    parser.add_argument("--costs", choices=("measured", "analytic"), default="measured")
    parser.add_argument("--quick", action="store_true", help="3 strategies of 2 models")
    parser.add_argument("--least", action="store_true", help="the least of the steps instead of the median")
    parser.add_argument("--cache", type=Path, help="keep measured costs here; by default all is measured anew")
    flags = parser.parse_args()
    if flags.quick:
        flags.models, flags.strategies = ["rnn", "vgg16"], 3
    started = time.perf_counter()
    results = known_results(flags)
    for model, ranks in pairs_without(results, flags):
        results.append(_run(flags, model, ranks))
        _show([results[-1]], Console(stderr=True, width=_WIDTH))
        _write(flags, results, time.perf_counter() - started)
    _show(results, Console(width=_WIDTH))


def flag_parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Of the flags that :func:`measured`, :func:`known_results` and :func:`pairs_without` go by.

    Args:
        description: of the benchmark.
        defaults: of ``sample``, ``strategies``, ``seed`` and ``profile_seconds``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--sample", choices=SAMPLES, help="(default %(default)s)")
    parser.add_argument("--strategies", type=int, help="of each model (default %(default)s)")
    parser.add_argument("--steps", type=int, default=21, help="measured for each strategy (default %(default)s)")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--profiles", type=int, default=3, help="how often costs are measured (default %(default)s)")
    parser.add_argument("--profile-seconds", type=float, help="budget of each (default %(default)s)")
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        help="seconds to wait for other programs (default %(default)s)",
    )
    parser.add_argument("--resume", action="store_true", help="keep the results that the file of --json has")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.set_defaults(**defaults)
    return parser


def known_results(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """The results in the file of ``--json``, if there is one and ``--resume`` says to keep them."""
    if not flags.resume or flags.json is None or not flags.json.exists():
        return []
    return list(json.loads(flags.json.read_text(encoding="utf-8"))["results"])


def pairs_without(results: list[dict[str, Any]], flags: argparse.Namespace) -> list[tuple[str, int]]:
    """Models and numbers of ranks of ``--models`` and ``--ranks`` that have no result."""
    done = {(result["model"], result["ranks"]) for result in results}
    return [(model, ranks) for ranks in flags.ranks for model in flags.models if (model, ranks) not in done]


def _write(flags: argparse.Namespace, results: list[dict[str, Any]], seconds: float) -> None:
    if flags.json is None:
        return
    report = {
        "machine": {"cores": len(os.sched_getaffinity(0)), "load_average": os.getloadavg()},
        "costs": flags.costs,
        "seconds": seconds,
        "paper_table_2": {model: dict(zip(_QUANTITIES, errors, strict=True)) for model, errors in _PAPER.items()},
        "results": results,
    }
    flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _run(flags: argparse.Namespace, model: str, ranks: int) -> dict[str, Any]:
    arguments = ["--costs", flags.costs, *["--least"] * flags.least]
    result = measured(flags, model, ranks, arguments, flags.cache)
    return {**result, **summary(result["strategies"])}


def measured(
    flags: argparse.Namespace, model: str, ranks: int, arguments: list[str], cache: Path | None = None
) -> dict[str, Any]:
    """What ``accuracy_worker`` reports of one model on some ranks; costs are measured anew without a cache."""
    arguments = ["--model", model, *arguments]
    for name in ("sample", "strategies", "steps", "profiles", "seed", "patience"):
        arguments += [f"--{name}", str(getattr(flags, name))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        extra = {
            "TENSOROPT_CACHE_DIR": str(cache or Path(folder) / "cache"),
            "TENSOROPT_PROFILE_SECONDS": str(flags.profile_seconds),
            "TENSOROPT_PROFILE_ROUNDS": "3",  # the machine's speed changes from second to second
            "TENSOROPT_COLLECTIVES": "mpi",  # the engine that keeps a journal
            "TENSOROPT_STALL_SECONDS": "0",  # ranks wait for whichever measures, however long
        }
        launch("benchmarks.accuracy_worker", [*arguments, "--out", str(path)], ranks, extra)
        return dict(json.loads(path.read_text(encoding="utf-8")))


def summary(strategies: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors and rank correlation of the strategies of one model."""
    figures: dict[str, Any] = {"errors": {}, "bias": {}}
    for quantity in (*_QUANTITIES, _STEADY):
        if any(quantity not in entry for entry in strategies):
            continue
        pairs = np.array([entry[quantity] for entry in strategies if _counts(entry, quantity)]).reshape(-1, 2)
        relative = (pairs[:, 0] - pairs[:, 1]) / pairs[:, 1]
        figures["errors"][quantity] = float(np.mean(np.abs(relative))) if len(pairs) else None
        figures["bias"][quantity] = float(np.mean(relative)) if len(pairs) else None
    times = np.array([entry["time_s"] for entry in strategies])
    for part in _PARTS:
        sums = np.sum([entry[part] for entry in strategies if part in entry] or [[0.0, 0.0]], axis=0)
        figures[part] = [float(total) / len(strategies) for total in sums]
    waiting = [entry["waiting_s"] for entry in strategies if "waiting_s" in entry]
    figures["waiting_s"] = float(np.mean(waiting)) if waiting else 0.0
    additive = [
        entry["additive_bytes"] / entry["memory_bytes"][1] - 1 for entry in strategies if "additive_bytes" in entry
    ]
    figures["additive_bias"] = float(np.mean(additive)) if additive else None
    figures["spearman"] = float(spearmanr(times[:, 0], times[:, 1])[0]) if len(times) > 2 else None
    figures["spearman_of_halves"] = agreement_of_halves(strategies)
    return figures


def halves(result: dict[str, Any]) -> str:
    """How well the measurement agrees with itself, and what a prediction can reach at best, for a table."""
    agreement = result.get("spearman_of_halves")
    return "-" if agreement is None else f"{agreement:.3f} ({best_possible(agreement):.3f})"


def _counts(entry: dict[str, Any], quantity: str) -> bool:
    return quantity != "network_s" or entry["network_s"][1] >= _LEAST_NETWORK_SHARE * entry["time_s"][1]


def _show(results: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="mean error of predicted costs (signed mean)")
    for header in (
        "model",
        "ranks",
        "strategies",
        "time",
        "network",
        "memory",
        "steady time",
        "Spearman",
        "halves",
        "all s",
    ):
        table.add_column(header, justify="left" if header == "model" else "right")
    for result in results:
        errors = [
            "-" if error is None else f"{100 * error:.1f} % ({100 * result['bias'][quantity]:+.1f})"
            for quantity, error in ((each, result["errors"].get(each)) for each in (*_QUANTITIES, _STEADY))
        ]
        spearman = "-" if result["spearman"] is None else f"{result['spearman']:.3f}"
        table.add_row(
            result["model"],
            str(result["ranks"]),
            str(len(result["strategies"])),
            *errors,
            spearman,
            halves(result),
            f"{result['seconds']:.0f}",
        )
    console.print(table)
    console.print(_parts(results))


def _parts(results: list[dict[str, Any]]) -> Table:
    """What times are made of, and the error of the memory that adds up."""
    table = Table(title="predicted / measured ms per step")
    for header in ("model", "ranks", "operators", "packing", "collectives", "waiting", "additive memory"):
        table.add_column(header, justify="left" if header == "model" else "right")
    for result in results:
        parts = [f"{1e3 * result[part][0]:.2f} / {1e3 * result[part][1]:.2f}" for part in _PARTS]
        additive = "-" if result["additive_bias"] is None else f"{100 * result['additive_bias']:+.1f} %"
        waiting = f"- / {1e3 * result['waiting_s']:.2f}"
        table.add_row(result["model"], str(result["ranks"]), *parts, waiting, additive)
    return table


if __name__ == "__main__":
    main()
