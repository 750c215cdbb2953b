"""A user's script, run by a command up to its first training step."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensoropt.api.session.rehearsal import Reached, Rehearsal
from tensoropt.cli.output import UsageError
from tensoropt.errors import TensorOptError
from tensoropt.stages import stage

if TYPE_CHECKING:
    from tensoropt.api.find.planner import Planner
    from tensoropt.cluster import Topology

__all__ = [
    "BEFORE_SCRIPT",
    "Arguments",
    "BatchSize",
    "MicroBatches",
    "Recompute",
    "Script",
    "Shares",
    "check_script",
    "ready",
    "rehearsed",
    "steps_of",
]

BEFORE_SCRIPT = {"allow_interspersed_args": False}
"""Settings of commands whose own options stand before the script: what comes after it is the script's."""

Script = Annotated[str, typer.Argument(help="A Python file that trains by tensoropt.", metavar="SCRIPT")]
Arguments = Annotated[list[str] | None, typer.Argument(help="What the script is given.", metavar="ARGS…")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="The batch of all devices, where the script leaves its size open.")
]
Shares = Annotated[
    bool, typer.Option("--shares", help="Batches of open size that the script feeds are one rank's share.")
]

MicroBatches = Annotated[
    str | None, typer.Option(help="Parts of a step's batch in time, or auto; by default the script's own.")
]
Recompute = Annotated[
    bool | None,
    typer.Option(
        "--recompute/--no-recompute",
        help="Make outputs again in the backward pass; by default as the script has it.",
    ),
]


def steps_of(caller: str, micro_batches: str | None, recompute: bool | None) -> tuple[int | str | None, bool | None]:
    """The steps that a rehearsal asks for in the place of the script's.

    Raises:
        UsageError: a number of micro-batches that is none.
    """
    if micro_batches is None or micro_batches == "auto":
        return micro_batches, recompute
    if not micro_batches.isdecimal() or int(micro_batches) < 1:
        raise UsageError(
            f"{caller}: --micro-batches must be a whole number of at least 1, or auto, got '{micro_batches}'. Give 4, "
            "for example."
        )
    return int(micro_batches), recompute


def check_script(caller: str, script: str) -> None:
    """Checks that the path of a script is a file.

    Raises:
        UsageError: it is not.
    """
    path = Path(script)
    if path.is_file():
        return
    what = "is a folder" if path.is_dir() else "is not there"
    raise UsageError(
        f"{caller}: the script '{script}' {what}. Give the path of a Python file; the command's own options stand "
        "before it."
    )


def ready(caller: str, script: str) -> None:
    """Checks that a script is there, and only then loads TensorFlow, quietly.

    Raises:
        UsageError: there is none.
    """
    check_script(caller, script)
    from tensoropt.api.mirror.tensorflow_loading import load_tensorflow

    load_tensorflow()


def rehearsed(caller: str, script: str, arguments: Sequence[str], rehearsal: Rehearsal) -> Any:
    """Runs a script up to its first training step. What it prints goes to standard error.

    Args:
        caller: the command, for errors.
        script: its path.
        arguments: that it is given.
        rehearsal: what it is run for.

    Returns:
        What the rehearsal makes: by default the plan.

    Raises:
        UsageError: the script fails, or it ends and never trains.
        TensorOptError: what planning raises.
    """
    from tensoropt.api.mirror.model import fresh_model  # these take TensorFlow
    from tensoropt.api.session.job import rehearsing

    ended, make = "", rehearsal.instead
    if make is not None:

        def instead(planner: Planner, topology: Topology, micro_batches: int | str) -> Any:
            with stage(caller, if_long=True):
                return make(planner, topology, micro_batches)

        rehearsal.instead = instead
    try:
        with fresh_model(), rehearsing(rehearsal), _as_main(script, arguments), contextlib.redirect_stdout(sys.stderr):
            runpy.run_path(script, run_name="__main__")
    except Reached:
        pass
    except TensorOptError:
        if rehearsal.reached is None:
            raise
    except SystemExit as error:
        ended = f", with the exit code {error.code}" if error.code else ""
    except Exception as error:
        if rehearsal.reached is None:
            traceback.print_exception(type(error), error, _of_script(error, script))
            raise UsageError(f"{caller}: '{script}' failed before it trained, see above. Mend the script.") from error
    if rehearsal.reached is not None:  # also in a script that catches everything, and goes on
        return rehearsal.reached.result
    raise UsageError(
        f"{caller}: '{script}' ended{ended} and never came to a training step. A script builds an execution graph, "
        "fits a model after tensoropt.keras.parallelize, or calls a tensoropt.function; give it the arguments with "
        "which it trains."
    )


@contextlib.contextmanager
def _as_main(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """The script's own arguments and folder, as Python gives them to it."""
    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [script, *arguments], [str(Path(script).resolve().parent)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def _of_script(error: BaseException, script: str) -> Any:
    """The part of a traceback that begins in the script."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != script:
        place = place.tb_next
    return place or error.__traceback__
