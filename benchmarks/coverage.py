"""Keras models beside Keras alone: which can be imported, planned and trained, and whether numbers are the same.

    python -m benchmarks.coverage --json coverage.json
    python -m benchmarks.coverage --models lstm gru unet --ranks 4 --sizes

Each model is imported and planned for 16 devices of a preset, without any, and trained for some steps by Keras alone
and on ranks of this machine, by the plans of several options: where a model is small, that of least time splits next
to nothing, that of least memory most operators. It is *equal* if, by each of them and in each step, what it says
(losses, metrics) differs by no more than five times what Keras alone differs by up to that step when its inputs are
scaled by 1 ± 1e-7 (where these are integers, its weights), as networks with batch normalization amplify rounding a
thousandfold in a step. So the table has both of the first step and of the last. With
``--last`` the last batch has fewer rows, as at the end of an epoch. Seconds are of processors, which other work on the
machine disturbs least. Models of keras-hub need that package.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import output_file, positive
from benchmarks.coverage_models import MODELS, SIZES
from benchmarks.coverage_worker import BATCH, MARK
from benchmarks.launch import ROOT, command_of

__all__ = ["difference", "judged", "measured", "row"]

_WORKER = "benchmarks.coverage_worker"
_HUB = "hub_"
OPTIONS = ("mini_time", "data_parallel", "mini_memory")
_ROUNDING, _TIMES = 1e-5, 5.0  # differences that are none: relative, or so many times the spread


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--sizes", action="store_true", help="import all further sizes of keras.applications, too")
    parser.add_argument("--devices", type=positive, default=16, help="to plan for (default %(default)s)")
    parser.add_argument("--ranks", type=positive, default=2, help="to train on (default %(default)s)")
    parser.add_argument("--steps", type=positive, default=5)
    parser.add_argument(
        "--options", nargs="+", default=OPTIONS, help="of parallelize, to train by (default " + " ".join(OPTIONS) + ")"
    )
    parser.add_argument("--last", type=positive, default=BATCH, help="rows of the last batch (default %(default)s)")
    parser.add_argument("--seconds", type=positive, default=600, help="for each program (default %(default)s)")
    parser.add_argument("--json", type=output_file, default=None, metavar="FILE")
    flags = parser.parse_args()
    console = Console(stderr=True)
    has_hub = importlib.util.find_spec("keras_hub") is not None
    left_out = [name for name in flags.models if name.startswith(_HUB) and not has_hub]
    if left_out:
        console.print(f"keras-hub is not installed, so {', '.join(left_out)} are left out: pip install keras-hub")
    found: dict[str, dict[str, Any]] = {}
    names = [name for name in flags.models if name not in left_out]
    for name in [*names, *(SIZES if flags.sizes else ())]:
        console.print(name, markup=False)
        found[name] = measured(name, flags)
        if flags.json is not None:
            report = {"devices": flags.devices, "ranks": flags.ranks, "options": flags.options}
            report |= {"last": flags.last, "models": found}
            flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _show(found, flags)


def measured(model: str, flags: argparse.Namespace) -> dict[str, Any]:
    """The figures of a model; ``errors`` has what failed, by task."""
    result: dict[str, Any] = {}
    if model in SIZES:
        tasks: tuple[tuple[str, int | None], ...] = (("import", None),)
    else:
        tasks = (("plan", None), ("alone", None), ("ranks", flags.ranks))
    for task, ranks in tasks:
        given = [task, model, "--devices", str(flags.devices), "--steps", str(flags.steps)]
        given += ["--last", str(flags.last), "--options", *flags.options]
        try:
            result[task] = _run(given, ranks, flags.seconds)
        except RuntimeError as error:
            result.setdefault("errors", {})[task] = str(error)
    if "alone" in result and "ranks" in result:
        for option, found in result["ranks"]["options"].items():
            if "error" in found:
                result.setdefault("errors", {})[option] = found["error"]
            else:
                found |= judged(result["alone"]["logs"], found["logs"])
    return result


def _run(arguments: list[str], ranks: int | None, seconds: int) -> dict[str, Any]:
    """What a worker says.

    Raises:
        RuntimeError: it failed, with its last lines, or took too long.
    """
    command, environment = command_of(_WORKER, arguments, ranks, {"TENSOROPT_COSTS": "analytic"})
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"took longer than {seconds} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if "Error" in line] or done.stderr.splitlines()[-3:]
        raise RuntimeError("\n".join(said[-3:])[-1500:] or f"exit code {done.returncode}")
    return dict(json.loads(lines[-1].removeprefix(MARK)))


def difference(mine: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """The largest relative difference of what two trainings say of a step.

    Raises:
        ValueError: they do not say the same things.
    """
    if mine.keys() != theirs.keys():
        raise ValueError(f"one says {sorted(mine)}, the other {sorted(theirs)}")
    worst = 0.0
    for name, value in mine.items():
        apart = abs(value - theirs[name]) / max(abs(value), 1e-3)
        worst = max(worst, apart if apart == apart else float("inf"))
    return worst


def judged(alone: Sequence[Sequence[Mapping[str, float]]], ranks: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Whether ranks say in each step what Keras alone says, which was also trained with inputs scaled a little.

    A spread is the largest up to its step.
    """
    apart = [difference(*each) for each in zip(alone[0], ranks, strict=True)]
    scaled = [max(difference(steps[0], other) for other in steps[1:]) for steps in zip(*alone, strict=True)]
    spread = list(itertools.accumulate(scaled, max))
    equal = all(one <= max(_TIMES * other, _ROUNDING) for one, other in zip(apart, spread, strict=True))
    return {"differences": apart, "spreads": spread, "equal": equal}


def row(model: str, found: Mapping[str, Any]) -> list[str]:
    """A line of the table: model, operators, those without a rule, seconds, memory, and of all options the worst."""
    about = found.get("plan") or found.get("import") or {}
    rules = " ".join(f"{op_type}:{count}" for op_type, count in sorted(about.get("without_rule", {}).items()))
    imported = about["trace_processor_s"] + about["import_processor_s"] if about else None
    trained = [by for by in found.get("ranks", {}).get("options", {}).values() if "equal" in by]
    ranks = found.get("ranks", {}).get("peak_rss_bytes")
    return [
        model,
        f"{about['operators']:,}" if about else "",
        (rules or "0") if about else "",
        "" if imported is None else f"{imported:.1f}",
        f"{about['plan_processor_s']:.1f}" if "plan_processor_s" in about else "",
        f"{about['memory_bytes'] / 2**20:.1f}" if "memory_bytes" in about else "",
        f"{max(by['split'] for by in trained):.0%}" if trained else "",
        ("yes" if all(by["equal"] for by in trained) else "NO") if trained else "",
        _ends([by["differences"] for by in trained]) if trained else "",
        _ends([trained[0]["spreads"]]) if trained else "",
        "" if ranks is None else f"{ranks / 2**20:.0f}",
        "; ".join(f"{task}: {text.splitlines()[-1][:80]}" for task, text in found.get("errors", {}).items()),
    ]


def _ends(trainings: Sequence[Sequence[float]]) -> str:
    """The worst of the first step and of the last."""
    return ", ".join(f"{max(steps[place] for steps in trainings):.1e}" for place in (0, -1))


def _show(found: Mapping[str, Mapping[str, Any]], flags: argparse.Namespace) -> None:
    table = Table(title=f"Keras models: planned for {flags.devices} devices, trained on {flags.ranks} ranks")
    for name in (
        "model",
        "operators",
        "without a rule",
        "import s",
        "plan s",
        "MiB a device",
        "split",
        "equal",
        "differs",
        "spread",
        "MiB of a rank",
        "failed",
    ):
        table.add_column(name, overflow="fold", justify="left" if name in ("model", "failed") else "right")
    for model, about in found.items():
        table.add_row(*row(model, about))
    Console(width=None if sys.stdout.isatty() else 180).print(table)


if __name__ == "__main__":
    main()
