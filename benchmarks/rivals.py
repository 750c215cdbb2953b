"""Rivals in benchmarks of steps: in what they are tuned, and how what we have compares with them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from benchmarks.step_worker import JIT, OPTIONS
from benchmarks.turns import Setting, Turns
from tensoropt.exec.engines.launch import MPI_DEFAULTS

__all__ = ["DEFAULTS", "KERAS", "MIRRORED", "Groups", "alternatives", "has_horovod", "summary", "tune"]

KERAS = "keras_"
"""What names of variants begin with that are written in Keras."""
MIRRORED = "keras_mirrored"
"""TensorFlow's own strategy, which may not run: then the table says why."""
DEFAULTS = "defaults"
"""The name of the setting that a rival begins with."""

_Ranks = TypeVar("_Ranks", bound=Turns)
# What differs from a rival's defaults, by name; of each group one is chosen.
Groups = Sequence[Mapping[str, tuple[Mapping[str, str], bool]]]


def tune(
    rival: str, setting: Setting, groups: Groups, flags: argparse.Namespace, start: Callable[[str, Setting], _Ranks]
) -> tuple[_Ranks, dict[str, Any]]:
    """The ranks of a rival's fastest setting, and what was tried: of each group the fastest stays, by turns.

    Args:
        rival: its name.
        setting: to begin with.
        groups: of :func:`alternatives`.
        flags: how many ``tuning_turns`` of how many ``steps`` each setting has.
        start: makes the ranks of a setting, which has a name.
    """
    team, chosen = start(rival, setting), list[str]()
    tried: dict[str, float] = {}
    for group in groups if flags.tuning_turns else ():
        settings, tries = {DEFAULTS: setting}, {DEFAULTS: team}
        for name, (more, bound) in group.items():
            if name != DEFAULTS:
                environment = {**setting.environment, **more}
                settings[name] = replace(setting, environment=environment, bind=setting.bind and bound)
                tries[name] = start(f"{rival} with {', '.join([*chosen, name])}", settings[name])
        if len(tries) == 1:
            continue
        team.turns_s.clear()
        for _ in range(flags.tuning_turns):
            for other in tries.values():
                other.turn(flags.steps)
        medians = {name: _median(other.turns_s) for name, other in tries.items()}
        for name, median_s in medians.items():
            tried[", ".join(chosen if name == DEFAULTS else [*chosen, name]) or DEFAULTS] = median_s
        best = min(medians, key=lambda name: medians[name])
        for name, other in tries.items():
            if name != best:
                other.end()
        team, setting = tries[best], settings[best]
        chosen += [] if best == DEFAULTS else [best]
    # What was measured while settings were compared does not count.
    team.turns_s.clear()
    about = {"environment": dict(setting.environment), "bound": setting.bind}
    return team, {"tried": tried, "chosen": chosen or [DEFAULTS], **about}


def alternatives(ranks: int, cores: int, hosts: int = 1) -> dict[str, Groups]:
    """What rivals are tuned in.

    Args:
        ranks: Horovod's.
        cores: of this machine.
        hosts: that the ranks are on.
    """
    every = {"TF_NUM_INTRAOP_THREADS": str(cores), "OMP_NUM_THREADS": str(cores), "TF_NUM_INTEROP_THREADS": "1"}
    one_process: Groups = [
        {
            DEFAULTS: (every, True),
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
    fragments: Mapping[str, tuple[Mapping[str, str], bool]] = {"sends fragments": (MPI_DEFAULTS, True)}
    horovod: Groups = [
        {DEFAULTS: nothing, **{f"cycle {ms} ms": ({"HOROVOD_CYCLE_TIME": ms}, True) for ms in ("0.5", "2")}},
        {
            DEFAULTS: nothing,
            **{f"fusion {size} MiB": ({"HOROVOD_FUSION_THRESHOLD": str(size * 2**20)}, True) for size in (0, 4)},
        },
        {DEFAULTS: nothing, **(binding if hosts == 1 else fragments)},  # mpirun binds nothing on hosts
    ]
    # By default Keras compiles what it runs, where all layers can be.
    jit: Mapping[str, tuple[Mapping[str, str], bool]] = {DEFAULTS: nothing, "no XLA": ({JIT: "0"}, True)}
    return {
        "one_process": one_process,
        "horovod": horovod,
        "keras_one_process": [*one_process, jit],
        "keras_horovod": horovod,
        MIRRORED: [{DEFAULTS: nothing}],
    }


def has_horovod() -> bool:
    """Whether Horovod is installed."""
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
    keras = [name for name in variants if name.startswith(KERAS) and name.removeprefix(KERAS) in OPTIONS]
    if keras:
        result["keras_over_tf1"] = {
            name: result["variants"][name]["median_s"] / result["variants"][name.removeprefix(KERAS)]["median_s"]
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
