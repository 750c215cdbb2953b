"""Seconds per training step: searched strategies, data parallelism, one process, and Horovod, side by side.

    python -m benchmarks.step --ranks 2 --json step.json
    python -m benchmarks.step --models vgg lstm --optimizer adam --options mini_time data_parallel mini_memory
    python -m benchmarks.step --front-end keras
    python -m benchmarks.step --hosts 2 --rate 1gbit

All variants of a model are there at once and train in turns of some steps, so that a machine whose speed drifts is fair
to all. All have the same allocator, MPI and thread settings; the rivals are tuned beyond that, one setting after the
other, by turns of the same kind: one process, which has all cores, in how many operators run side by side, and Horovod
in its cycle time, its fusion threshold, and what its ranks and its own thread are bound to.

The front end ``keras`` has the same models written in Keras beside these: by ``tensoropt.keras.parallelize``, by Keras
alone, by Horovod, and by TensorFlow's MultiWorkerMirroredStrategy. They begin with the same weights, so their losses
are compared with the one process's, too.

With ``--hosts 2`` ranks are on two hosts (network namespaces, so as root) with a link of some rate between them, one
rank and one thread on each. Beside one rank alone stand data parallelism, ``mini_time`` and a pipeline, with what was
predicted in brackets; for each model and rate they take turns in one job. Horovod follows, tuned in its cycle time and
its fusion threshold. *Each its own* says what one machine for both hosts costs: both train the whole model at once, and
share its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import step_hosts
from benchmarks.models import MODELS, OPTIMIZERS, SHORT
from benchmarks.rivals import DEFAULTS, KERAS, MIRRORED, alternatives, has_horovod, summary, tune
from benchmarks.step_worker import OPTIONS
from benchmarks.turns import Setting, Team
from benchmarks.two_hosts import why_no_hosts

__all__ = ["measured"]

_WORKER, _KERAS_WORKER = "benchmarks.step_worker", "benchmarks.step_keras_worker"
_CAUSE_LINES = 6

_RIVALS = {"": ("one_process", "horovod"), KERAS: ("one_process", "horovod", "mirrored")}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted({*MODELS, *SHORT}), default=sorted(MODELS))
    parser.add_argument("--short", action="store_true", help="small models of the same kinds, to try the program")
    parser.add_argument("--options", nargs="+", choices=OPTIONS, default=list(OPTIONS[:2]), help="of find_strategy")
    parser.add_argument("--front-end", choices=("tf1", "keras"), default="tf1", help="keras: both (default tf1 alone)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--hosts", type=int, choices=(2,), default=None, help="a rank on each, in place of --ranks")
    parser.add_argument(
        "--rate",
        nargs="+",
        type=step_hosts.rate,
        default=list(step_hosts.RATES),
        metavar="RATE",
        help=f"of the link between hosts; {step_hosts.ONE_MACHINE}: on one machine (default: %(default)s)",
    )
    parser.add_argument("--turns", type=int, default=6, help="of each variant (default %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="of a turn (default %(default)s)")
    parser.add_argument(
        "--tuning-turns", type=int, default=2, help="of each setting; 0: no tuning (default %(default)s)"
    )
    parser.add_argument("--cached", action="store_true", help="go by earlier measurements of operators and links")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    flags = parser.parse_args()
    known = SHORT if flags.short else MODELS
    unknown = sorted(set(flags.models) - set(known))
    if unknown:
        parser.error(f"--models: {', '.join(unknown)} not among {', '.join(known)}")
    if flags.hosts and set(flags.rate) != {step_hosts.ONE_MACHINE} and why_no_hosts():
        parser.error(f"--hosts: cannot make hosts here, which are network namespaces: {why_no_hosts()}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("benchmarks.step: ended from outside"))  # with its programs
    names = ("front_end", "ranks", "optimizer", "turns", "steps", "short", "cached")
    report: dict[str, Any] = {name: getattr(flags, name) for name in names} | {"cores": _cores(), "models": {}}
    console = Console(stderr=True)
    if not has_horovod():
        console.print("Horovod is not installed, so it is left out: make horovod")
    if flags.hosts:
        step_hosts.measure(flags, report, console)
        return
    for name in flags.models:
        report["models"][name] = measured(name, flags, console)
        _show(name, report["models"][name], flags)
        if flags.json is not None:
            flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measured(model: str, flags: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All variants of a model."""
    arguments = ("--model", model, "--optimizer", flags.optimizer, *(["--short"] if flags.short else []))
    teams: dict[str, Team] = {}
    tuned: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:

        def start(name: str, setting: Setting) -> Team:
            console.print(f"{model}: starts {name}", markup=False)
            team = Team(_KERAS_WORKER if name.startswith(KERAS) else _WORKER, setting)
            stack.callback(team.end)
            return team

        # TensorFlow then looks for Keras 2, in vain. To load Keras 3 takes half of a start; Horovod needs it, too.
        fast, whole = {"TF_USE_LEGACYKERAS": "1"}, {"TF_USE_LEGACYKERAS": ""}
        ends = ("", KERAS) if flags.front_end == "keras" else ("",)
        for end in ends:
            for number, option in enumerate(flags.options):
                refresh = ["--refresh"] if number == 0 and not end and not flags.cached else []
                setting = Setting(
                    (*arguments, "--variant", end + option, *refresh), flags.ranks, whole if end else fast
                )
                teams[end + option] = start(end + option, setting)
        groups = alternatives(flags.ranks, _cores())
        for rival in (end + rival for end in ends for rival in _RIVALS[end]):
            if "horovod" in rival and not has_horovod():
                continue
            extra = {**(fast if rival == "one_process" else whole), **groups[rival][0][DEFAULTS][0]}
            setting = Setting(
                (*arguments, "--variant", rival), None if rival.endswith("one_process") else flags.ranks, extra
            )
            with _noting(rival, failed):
                teams[rival], tuned[rival] = tune(rival, setting, groups[rival], flags, start)
        for number in range(flags.turns):
            console.print(f"{model}: turn {number + 1} of {flags.turns}", markup=False)
            for name, team in teams.items():
                if name not in failed:
                    with _noting(name, failed):
                        team.turn(flags.steps)
        found = {name: (team.turns_s, team.losses, team.about) for name, team in teams.items() if name not in failed}
        return summary(found, tuned, flags.options[0], failed)


@contextmanager
def _noting(variant: str, failed: dict[str, str]) -> Iterator[None]:
    """Takes note of why TensorFlow's strategy does not run; nothing else may fail."""
    try:
        yield
    except RuntimeError as error:
        if variant != MIRRORED:
            raise
        failed[variant] = _cause(str(error))


def _cause(printed: str) -> str:
    """The last error in what a program printed."""
    lines = [line.strip() for line in printed.splitlines()]
    errors = [number for number, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    if not errors:
        return lines[-1]
    return " ".join(line for line in lines[errors[-1] :][:_CAUSE_LINES] if line)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _show(model: str, found: Mapping[str, Any], flags: argparse.Namespace) -> None:
    ours = flags.options[0]
    table = Table(title=f"{model}, {flags.ranks} ranks, {flags.optimizer}, {flags.turns} turns of {flags.steps} steps")
    for header in ("variant", "ms a step", "turns, ms", f"times {ours}", "profile, s", "search, s", "loss differs by"):
        table.add_column(header, justify="left" if header == "variant" else "right", no_wrap=header == "variant")
    for name, entry in found["variants"].items():
        ratio = found[f"speedup_of_{ours}_over"].get(name)
        table.add_row(
            name,
            f"{entry['median_s'] * 1e3:.1f}",
            f"{entry['least_turn_s'] * 1e3:.1f}-{entry['longest_turn_s'] * 1e3:.1f}",
            "" if ratio is None else f"{ratio:.2f}",
            *(f"{entry[key]:.1f}" if key in entry else "" for key in ("profile_s", "search_s")),
            f"{entry['max_loss_difference']:.2g}",
        )
    console = Console()
    console.width = max(console.width, 110)  # a column that is cut off says nothing
    console.print(table)
    for name, cause in found.get("failed", {}).items():
        console.print(f"{name}: does not run: {cause}", markup=False)
    for name, entry in found["variants"].items():
        if "tried" in entry:
            tried = ", ".join(f"{setting} {median_s * 1e3:.1f}" for setting, median_s in entry["tried"].items())
            console.print(f"{name}: {', '.join(entry['chosen'])}; of these, in ms: {tried}", markup=False)


if __name__ == "__main__":
    main()
