"""Simulated against measured steps, as in FlexFlow's section 8.2: strategies that somebody would choose, executed.

    python -m benchmarks.simulated --models rnn --ranks 2 --json simulated.json

The strategies are those that searches and baselines choose (``accuracy_methods``), then random ones
(``accuracy_sample``); ``--sample methods`` or ``random`` takes only those. Good strategies often take the same time to
a hundredth, and then have no order that could be measured: on a shared virtual machine medians of the same steps differ
by some hundredths. So predicted times differ by ``--apart`` at least; 0 takes all strategies. An order takes more steps
than an error does: of 21 steps, one half often agrees with the other less than is asked of a prediction here.

Three predictions of the same steps stand beside what was measured: the *sum* of what operators and moves take; the step
that FlexFlow's simulator makes of the same costs, in which links are devices of their own and work while devices
compute (*simulated*; ``overlap=True`` elsewhere); and the simulator's step if collectives keep devices busy instead
(*blocking*), by which searches and ``compare`` go by default.

The last one is what this machine does. The executor runs a rank's operators one after another, with collectives among
them in one agreed order, and its only thread is inside MPI for as long as a collective lasts. Where the simulator sums
a gradient beside the rest of the backward pass, this machine does not; the difference of *simulated* and *blocking* is
what that overlap would save. On devices that are alike and do the same there is nothing else to simulate, and
*blocking* is the sum.

Costs are measured before, between and after the steps (``--profiles``), as the machine's speed changes, and the means
of all predictions count. *Steady* is *blocking* beside steps that are divided by how much longer a fixed reference took
then than during the profiles, and *halves* is how well the measured times agree with themselves, both as in
``benchmarks.accuracy``.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from benchmarks.accuracy import flag_parser, halves, known_results, measured, pairs_without
from benchmarks.accuracy_halves import agreement_of_halves

_KINDS = ("sum", "simulated", "blocking")
_STEADY = "steady"
_COLUMNS = (*_KINDS, _STEADY)
_KEPT = ("compute_s", "packing_s", "collectives_s", "collectives", "processor_s")
_WIDTH = 132


def main() -> None:
    """Runs the benchmark."""
    parser = flag_parser(__doc__, sample="both", strategies=12, steps=60, seed=2, profile_seconds=60.0)
    parser.add_argument("--apart", type=float, default=0.03, help="share of predicted time (default %(default)s)")
    parser.add_argument("--of", type=Path, nargs="+", help="reports of benchmarks.accuracy, instead of measuring")
    flags = parser.parse_args()
    results = known_results(flags)
    if flags.of:
        for path in flags.of:
            results += [compared(report) for report in json.loads(path.read_text(encoding="utf-8"))["results"]]
        _write(flags, results)
    else:
        for model, ranks in pairs_without(results, flags):
            results.append(compared(measured(flags, model, ranks, ["--apart", str(flags.apart)])))
            _show([results[-1]], Console(stderr=True, width=_WIDTH))
            _write(flags, results)
    _show(results, Console(width=_WIDTH))


def _write(flags: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    if flags.json is not None:
        machine = {"cores": len(os.sched_getaffinity(0)), "load_average": os.getloadavg()}
        text = json.dumps({"machine": machine, "results": results}, indent=1) + "\n"
        flags.json.write_text(text, encoding="utf-8")


def compared(report: dict[str, Any]) -> dict[str, Any]:
    """Steps of one model as predicted and measured, with mean errors and rank correlations."""
    entries = report["strategies"]
    steps_s = {"sum": [entry["time_s"][0] for entry in entries]}
    for column, kind in enumerate(_KINDS[1:]):
        steps_s[kind] = [entry["simulated_s"][column] for entry in entries]
    steps_s["measured"] = [entry["time_s"][1] for entry in entries]
    steps_s[_STEADY] = [entry["steady_time_s"][1] for entry in entries]
    pairs = {kind: (np.array(steps_s[kind]), np.array(steps_s["measured"])) for kind in _KINDS}
    pairs[_STEADY] = np.array(steps_s[_KINDS[-1]]), np.array(steps_s[_STEADY])
    return {
        "model": report["model"],
        "ranks": report["ranks"],
        "sample": report.get("sample", "random"),
        "kinds": [entry["kind"] for entry in entries],
        "steps_s": steps_s,
        # The sum by each profile alone.
        "profiles_s": [entry.get("predicted_s") for entry in entries],
        # What the sum and the measured step are made of, as ``benchmarks.accuracy`` reports them.
        **{name: [entry.get(name) for entry in entries] for name in _KEPT},
        "errors": {kind: float(np.abs(found / truth - 1).mean()) for kind, (found, truth) in pairs.items()},
        "bias": {kind: float((found / truth - 1).mean()) for kind, (found, truth) in pairs.items()},
        "spearman": {
            kind: float(spearmanr(found, truth)[0]) if len(entries) > 2 else None
            for kind, (found, truth) in pairs.items()
        },
        "spearman_of_halves": agreement_of_halves(entries),
    }


def _show(results: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="steps as predicted and as measured: mean error (signed mean), Spearman")
    for header in ("model", "ranks", "strategies", "measured ms", *_COLUMNS, "halves"):
        table.add_column(header, justify="left" if header == "model" else "right")
    for result in results:
        steps_s = result["steps_s"]["measured"]
        cells = []
        for kind in _COLUMNS:
            error, bias = 100 * result["errors"][kind], 100 * result["bias"][kind]
            spearman = result["spearman"][kind]
            order = "-" if spearman is None else f"{spearman:.3f}"
            cells.append(f"{error:.1f} % ({bias:+.1f}), {order}")
        spread = f"{1e3 * min(steps_s):.1f} - {1e3 * max(steps_s):.1f}"
        table.add_row(result["model"], str(result["ranks"]), str(len(steps_s)), spread, *cells, halves(result))
    console.print(table)


if __name__ == "__main__":
    main()
