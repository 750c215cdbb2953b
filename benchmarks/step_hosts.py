"""The table of :mod:`benchmarks.step` for two hosts of one rank each, by the rate of the link between them."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.launch import launch
from benchmarks.rivals import alternatives, has_horovod, summary, tune
from benchmarks.turns import Setting, Team
from benchmarks.two_hosts import bits_per_s, two_hosts

__all__ = ["ONE_MACHINE", "RATES", "measure", "rate", "steps_of_turn", "table"]

ONE_MACHINE = "none"
"""In place of a rate: two ranks on this machine."""
RATES = ("100mbit", "1gbit", "5gbit", ONE_MACHINE)
_WAYS = ("one_process", "each_alone", "data_parallel", "mini_time", "pipeline", "horovod")
_WORKER, _RIVAL = "benchmarks.step_hosts_worker", "benchmarks.step_worker"
_TURN_S, _LEAST_STEPS = 3.0, 2


def rate(text: str) -> str:
    """An argument: a rate, or none.

    Raises:
        ArgumentTypeError: it is neither.
    """
    try:
        if text != ONE_MACHINE:
            bits_per_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, or be {ONE_MACHINE} for one machine") from error
    return text


def measure(flags: argparse.Namespace, report: dict[str, Any], console: Console) -> None:
    """Measures all models by all rates, and shows the table; the report has each as soon as it is measured."""
    report["hosts"] = []
    with tempfile.TemporaryDirectory(prefix="step-hosts-") as folder:
        for model in flags.models:
            for each in flags.rate:
                console.print(f"{model}, {each}: measures", markup=False)
                report["hosts"].append({"model": model, "rate": each, **_measured(model, each, flags, Path(folder))})
                _show(report["hosts"][-1:], console)
                if flags.json is not None:
                    flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _show(report["hosts"], Console())


def steps_of_turn(seconds: float, most: int) -> int:
    """How many steps a turn has that take so long each: fewer long ones."""
    return max(_LEAST_STEPS, min(most, int(_TURN_S / seconds)))


def _measured(model: str, each: str, flags: argparse.Namespace, folder: Path) -> dict[str, Any]:
    arguments = ["--model", model, "--optimizer", flags.optimizer, *(["--short"] if flags.short else [])]
    # Links are no machines of this user, whose cache they have no business in; the loops that are compiled stay in it.
    extra = {"TENSOROPT_CACHE_DIR": str(folder / "cache"), "TENSOROPT_COSTS": "measured"}
    out = folder / "measured.json"
    ours = [*arguments, "--turns", str(flags.turns), "--steps", str(flags.steps), "--out", str(out)]
    hosts = nullcontext(list[str]()) if each == ONE_MACHINE else two_hosts(folder, 1, rate=each)
    with hosts as launcher, ExitStack() as stack:
        launch(_WORKER, ours, 2, extra, launcher=launcher)
        found = json.loads(out.read_text(encoding="utf-8"))
        variants, tuned = found.pop("variants"), {}
        if has_horovod():

            def start(_: str, setting: Setting) -> Team:
                team = Team(_RIVAL, setting)
                stack.callback(team.end)
                return team

            common_s = summary(variants, {}, "data_parallel")["variants"]["data_parallel"]["median_s"]
            fewer = argparse.Namespace(steps=steps_of_turn(common_s, flags.steps), tuning_turns=flags.tuning_turns)
            setting = Setting((*arguments, "--variant", "horovod"), 2, launcher=tuple(launcher))
            groups = alternatives(2, len(os.sched_getaffinity(0)), 1 if each == ONE_MACHINE else 2)["horovod"]
            team, tuned["horovod"] = tune("horovod", setting, groups, fewer, start)
            for _ in range(flags.turns):
                team.turn(fewer.steps)
            variants["horovod"] = team.turns_s, team.losses, team.about
    return {**found, **summary(variants, tuned, "mini_time", found["failed"])}


def table(found: Sequence[Mapping[str, Any]]) -> tuple[Table, list[str]]:
    """The table in milliseconds a step, and under it a line for each plan.

    Args:
        found: what was measured of each model on each link: :func:`benchmarks.step.summary` with ``model``, ``rate``
            and ``link_bytes_per_s``.
    """
    columns = Table(box=box.MARKDOWN, pad_edge=False)
    names = ("one rank", "each its own", "data parallelism", "`mini_time`", "pipeline", "Horovod")
    for header in ("model", "link", "measured", *names, "times one rank", "times Horovod"):
        columns.add_column(header, no_wrap=True)
    lines = []
    for one in found:
        variants, speedups = one["variants"], one["speedup_of_mini_time_over"]
        cells = []
        for way in _WAYS:
            entry = variants.get(way)
            cells.append("" if entry is None else f"{entry['median_s'] * 1e3:.1f}")
            if entry is not None and "predicted_s" in entry:
                cells[-1] += f" ({entry['predicted_s'] * 1e3:.1f})"
        ratios = [f"{speedups[way]:.2f}" if way in speedups else "" for way in ("one_process", "horovod")]
        link = "one machine" if one["rate"] == ONE_MACHINE else one["rate"]
        measured = f"{one['link_bytes_per_s'] * 8e-9:.3g} Gbit/s"
        columns.add_row(one["model"], link, measured, *cells, *ratios)
        lines.append(f"- {one['model']}, {link}: {variants['mini_time']['said']}.")
        lines += [f"- {one['model']}, {link}: no {way}: {why}" for way, why in one.get("failed", {}).items()]
    return columns, lines


def _show(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    columns, lines = table(found)
    console.width = max(console.width, 200)  # a column that is cut off says nothing
    console.print(columns)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
