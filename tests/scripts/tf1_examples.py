"""Trains the scripts of examples/tf1 by several strategies in one job, or their plain twins, and writes their losses.

The scripts are run as they are; only which strategy ``find_strategy`` gives is this program's.

Arguments: a folder, ``plain`` or ``tensoropt``, then ``<script>=<choice>,<choice>,…`` for each script.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.races import no_races

FOLDER = Path(__file__).parents[2] / "examples/tf1"
STEPS = 20
BASELINES = ("zero3",)
POINT = "point "  # then which share of the frontier's points is left of it
RESUMES = "resume"  # the script that goes on from its last checkpoint


def run_script(path: Path, names: Any, checkpoints: Path) -> list[float]:
    """The losses of a script's first steps; of the one that resumes, in two runs.

    Args:
        path: the script.
        names: the module that it calls ``tf``.
        checkpoints: where it may save; the same on all ranks.
    """
    losses: list[Any] = []
    resumes = path.stem == RESUMES
    for steps in (STEPS // 2, STEPS) if resumes else (STEPS,):
        names.reset_default_graph()
        with _flags_of_its_own(names.flags.FLAGS) as flags:
            script = _loaded(path)
            flags([path.name])
            losses += script.train(steps, *([str(checkpoints)] if resumes else []))
    return [float(each) for each in losses]


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _flags_of_its_own(flags: Any) -> Iterator[Any]:
    """Forgets afterwards the flags that a script has defined, as the next one may define the same."""
    before = set(flags)
    yield flags
    for name in set(flags) - before:
        delattr(flags, name)


def _choosing(choice: str, find_strategy: Callable[..., Any], find_frontier: Callable[[], Any]) -> Callable[..., Any]:
    """What takes the place of ``find_strategy``."""

    def find(option: str) -> Any:
        assert option == "mini_time", option
        if choice.startswith(POINT):
            frontier = find_frontier()
            return find_strategy(frontier.point(int((len(frontier) - 1) * float(choice.removeprefix(POINT)))))
        return find_strategy(search=choice) if choice in BASELINES else find_strategy(option=choice)

    return find


@no_races()
def main(folder: str, kind: str, *asked: str) -> None:
    """Writes, as ``<kind>.json``, for each script and choice the losses, or the error as a text."""
    names = importlib.import_module("tensorflow.compat.v1" if kind == "plain" else "tensoropt")
    own = () if kind == "plain" else (names.find_strategy, names.find_frontier)
    found: dict[str, dict[str, Any]] = {}
    for each in asked:
        name, _, choices = each.partition("=")
        found[name] = {}
        for choice in choices.split(","):
            if own:
                names.find_strategy = _choosing(choice, *own)  # type: ignore[attr-defined]
            path = (FOLDER / "plain" if kind == "plain" else FOLDER) / f"{name}.py"
            checkpoints = Path(folder) / f"{kind} {name} {choice}"
            try:
                found[name][choice] = run_script(path, names, checkpoints)
            except Exception:
                found[name][choice] = traceback.format_exc()
        if kind == "plain" or names.world_rank() == 0:
            (Path(folder) / f"{kind}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
