"""Seconds per training step: searched strategies, data parallelism, one process, and Horovod, side by side.

    python -m benchmarks.step --ranks 2 --json step.json
    python -m benchmarks.step --models vgg lstm --optimizer adam --options mini_time data_parallel mini_memory
    python -m benchmarks.step --front-end keras

All variants of a model are there at once and train in turns of some steps, so that a machine whose speed drifts is fair
to all. All have the same allocator, MPI and thread settings; the rivals are tuned beyond that, one setting after the
other, by turns of the same kind: one process, which has all cores, in how many operators run side by side, and Horovod
in its cycle time, its fusion threshold, and what its ranks and its own thread are bound to.

The front end ``keras`` has the same models written in Keras beside these: by ``tensoropt.keras.parallelize``, by Keras
alone, by Horovod, and by TensorFlow's MultiWorkerMirroredStrategy. They begin with the same weights, so their losses
are compared with the one process's, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.models import MODELS, OPTIMIZERS, SHORT
from benchmarks.step_worker import JIT, OPTIONS
from benchmarks.turns import Setting, Team

__all__ = ["alternatives", "measured", "summary"]

_WORKER, _KERAS_WORKER = "benchmarks.step_worker", "benchmarks.step_keras_worker"
_KERAS = "keras_"  # what names of variants begin with
_MIRRORED = "keras_mirrored"  # TensorFlow's own strategy, which may not run: then the table says why
_DEFAULTS = "defaults"
_CAUSE_LINES = 6

_RIVALS = {"": ("one_process", "horovod"), _KERAS: ("one_process", "horovod", "mirrored")}

# What differs from a rival's defaults, by name; of each group one is chosen.
Groups = Sequence[Mapping[str, tuple[Mapping[str, str], bool]]]


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted({*MODELS, *SHORT}), default=sorted(MODELS))
    parser.add_argument("--short", action="store_true", help="small models of the same kinds, to try the program")
    parser.add_argument("--options", nargs="+", choices=OPTIONS, default=list(OPTIONS[:2]), help="of find_strategy")
    parser.add_argument("--front-end", choices=("tf1", "keras"), default="tf1", help="keras: both (default tf1 alone)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("benchmarks.step: ended from outside"))  # with its programs
    names = ("front_end", "ranks", "optimizer", "turns", "steps", "short", "cached")
    report: dict[str, Any] = {name: getattr(flags, name) for name in names} | {"cores": _cores(), "models": {}}
    console = Console(stderr=True)
    if not _has_horovod():
        console.print("Horovod is not installed, so it is left out: make horovod")
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
            team = Team(_KERAS_WORKER if name.startswith(_KERAS) else _WORKER, setting)
            stack.callback(team.end)
            return team

        # TensorFlow then looks for Keras 2, in vain. To load Keras 3 takes half of a start; Horovod needs it, too.
        fast, whole = {"TF_USE_LEGACY_KERAS": "1"}, {"TF_USE_LEGACY_KERAS": ""}
        ends = ("", _KERAS) if flags.front_end == "keras" else ("",)
        for end in ends:
            for number, option in enumerate(flags.options):
                refresh = ["--refresh"] if number == 0 and not end and not flags.cached else []
                setting = Setting(
                    (*arguments, "--variant", end + option, *refresh), flags.ranks, whole if end else fast
                )
                teams[end + option] = start(end + option, setting)
        groups = alternatives(flags.ranks, _cores())
        for rival in (end + rival for end in ends for rival in _RIVALS[end]):
            if "horovod" in rival and not _has_horovod():
                continue
            extra = {**(fast if rival == "one_process" else whole), **groups[rival][0][_DEFAULTS][0]}
            setting = Setting(
                (*arguments, "--variant", rival), None if rival.endswith("one_process") else flags.ranks, extra
            )
            with _noting(rival, failed):
                teams[rival], tuned[rival] = _tune(rival, setting, groups[rival], flags, start)
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
        if variant != _MIRRORED:
            raise
        failed[variant] = _cause(str(error))


def _cause(printed: str) -> str:
    """The last error in what a program printed."""
    lines = [line.strip() for line in printed.splitlines()]
    errors = [number for number, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    if not errors:
        return lines[-1]
    return " ".join(line for line in lines[errors[-1] :][:_CAUSE_LINES] if line)


def _tune(
    rival: str, setting: Setting, groups: Groups, flags: argparse.Namespace, start: Callable[[str, Setting], Team]
) -> tuple[Team, dict[str, Any]]:
    """The team of a rival's fastest setting, and what was tried: of each group the fastest stays, by turns."""
    team, chosen = start(rival, setting), list[str]()
    tried: dict[str, float] = {}
    for group in groups if flags.tuning_turns else ():
        settings, tries = {_DEFAULTS: setting}, {_DEFAULTS: team}
        for name, (more, bound) in group.items():
            if name != _DEFAULTS:
                environment = {**setting.environment, **more}
                settings[name] = Setting(setting.arguments, setting.ranks, environment, setting.bind and bound)
                tries[name] = start(f"{rival} with {', '.join([*chosen, name])}", settings[name])
        if len(tries) == 1:
            continue
        team.turns_s.clear()
        for _ in range(flags.tuning_turns):
            for other in tries.values():
                other.turn(flags.steps)
        medians = {name: _median(other.turns_s) for name, other in tries.items()}
        for name, median_s in medians.items():
            tried[", ".join(chosen if name == _DEFAULTS else [*chosen, name]) or _DEFAULTS] = median_s
        best = min(medians, key=lambda name: medians[name])
        for name, other in tries.items():
            if name != best:
                other.end()
        team, setting = tries[best], settings[best]
        chosen += [] if best == _DEFAULTS else [best]
    # What was measured while settings were compared does not count.
    team.turns_s.clear()
    about = {"environment": dict(setting.environment), "bound": setting.bind}
    return team, {"tried": tried, "chosen": chosen or [_DEFAULTS], **about}


def alternatives(ranks: int, cores: int) -> dict[str, Groups]:
    """What rivals are tuned in.

    Args:
        ranks: Horovod's.
        cores: of this machine.
    """
    every = {"TF_NUM_INTRAOP_THREADS": str(cores), "OMP_NUM_THREADS": str(cores), "TF_NUM_INTEROP_THREADS": "1"}
    one_process: Groups = [
        {
            _DEFAULTS: (every, True),
            **({f"{cores} operators at once": ({"TF_NUM_INTEROP_THREADS": str(cores)}, True)} if cores > 1 else {}),
        }
    ]
    nothing: tuple[Mapping[str, str], bool] = ({}, True)
    affinity = ",".join(str(rank % cores) for rank in range(ranks))
    binding: Mapping[str, tuple[Mapping[str, str], bool]] = {
        # A thread is Horovod's own, which talks to MPI: it stays on a core, and what computes goes where there is room.
        f"unbound ranks, threads on {affinity}": ({"HOROVOD_THREAD_AFFINITY": affinity}, False),
        **({} if ranks > cores else {"unbound ranks": ({}, False)}),  # those that share cores are unbound anyway
    }
    horovod: Groups = [
        {_DEFAULTS: nothing, **{f"cycle {ms} ms": ({"HOROVOD_CYCLE_TIME": ms}, True) for ms in ("0.5", "2")}},
        {
            _DEFAULTS: nothing,
            **{f"fusion {size} MiB": ({"HOROVOD_FUSION_THRESHOLD": str(size * 2**20)}, True) for size in (0, 4)},
        },
        {_DEFAULTS: nothing, **binding},
    ]
    # By default Keras compiles what it runs, where all layers can be.
    jit: Mapping[str, tuple[Mapping[str, str], bool]] = {_DEFAULTS: nothing, "no XLA": ({JIT: "0"}, True)}
    return {
        "one_process": one_process,
        "horovod": horovod,
        "keras_one_process": [*one_process, jit],
        "keras_horovod": horovod,
        _MIRRORED: [{_DEFAULTS: nothing}],
    }


def _has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None


def summary(
    variants: Mapping[str, tuple[list[list[float]], list[float], Mapping[str, Any]]],
    tuned: Mapping[str, Mapping[str, Any]],
    ours: str,
    failed: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """What was measured of a model.

    Args:
        variants: seconds of each step by turn, losses of all steps, and what was said of the start, by variant.
        tuned: how rivals were, by variant.
        ours: the variant whose speed is compared with the others'.
        failed: why what did not run did not, by variant.
    """
    reference = np.array(variants["one_process"][1])
    result: dict[str, Any] = {"variants": {}}
    for name, (turns_s, losses, about) in variants.items():
        medians = [float(np.median(turn)) for turn in turns_s]
        steps = min(len(losses), len(reference))
        result["variants"][name] = {
            "median_s": _median(turns_s),
            "least_turn_s": min(medians),
            "longest_turn_s": max(medians),
            "turn_medians_s": medians,
            "max_loss_difference": float(np.abs(np.array(losses[:steps]) - reference[:steps]).max()),
            **about,
            **tuned.get(name, {}),
        }
    best = result["variants"][ours]["median_s"]
    result[f"speedup_of_{ours}_over"] = {
        name: entry["median_s"] / best for name, entry in result["variants"].items() if name != ours
    }
    keras = [name for name in variants if name.startswith(_KERAS) and name.removeprefix(_KERAS) in OPTIONS]
    if keras:
        result["keras_over_tf1"] = {
            name: result["variants"][name]["median_s"] / result["variants"][name.removeprefix(_KERAS)]["median_s"]
            for name in keras
        }
    if failed:
        result["failed"] = dict(failed)
    if "horovod" in variants:
        rival = result["variants"]["horovod"]["median_s"]
        result["speedup_over_horovod"] = {
            name: rival / entry["median_s"] for name, entry in result["variants"].items() if name != "horovod"
        }
    return result


def _median(turns_s: Sequence[Sequence[float]]) -> float:
    return float(np.median([second for turn in turns_s for second in turn]))


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
