"""``tensoropt verify``: a script's model on several ranks and in plain TensorFlow, compared."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tensoropt.cli.answers import answer_of_rank, run_ranks
from tensoropt.cli.hosts import read_hosts
from tensoropt.cli.launcher import find_launcher, launch, refuse_ranks
from tensoropt.cli.output import NO, Json, UsageError, answer, example
from tensoropt.cli.scripts import BEFORE_SCRIPT, Arguments, BatchSize, Script, check_script, rehearsed

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "verify",
        context_settings=BEFORE_SCRIPT,
        epilog=example(
            "tensoropt verify -n 2 script.py", "tensoropt verify -n 4 --option plan.json --steps 1 train.py"
        ),
    )(_verify)


def _verify(
    script: Script,
    arguments: Arguments = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="How many ranks, one for each device.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Training steps that are compared.")] = 3,
    option: Annotated[
        str | None, typer.Option(help="Of find_strategy, or a plan's file; by default the script's own.")
    ] = None,
    batch_size: BatchSize = None,
    hosts: Annotated[Path | None, typer.Option(help="A file of hosts; see tensoropt run.")] = None,
    mpirun: Annotated[str | None, typer.Option(help="The launcher; by default this environment's own.")] = None,
    as_json: Json = False,
) -> None:
    """Checks that many ranks compute what plain TensorFlow does.

    SCRIPT's model is trained by its plan on several ranks, and in one process, on random batches. Losses, gradients
    and variables are compared after each step. The exit code is 1 if one differs by more than rounding; the
    operator that differs first is named. What the script does from its first training step on is not run.
    """
    check_script("verify", script)
    refuse_ranks("verify")
    given = () if hosts is None else read_hosts(hosts, ranks)
    asked = [str(steps), option or "", str(batch_size or ""), script, *(arguments or ())]
    program = [sys.executable, "-m", "tensoropt.cli.verify", *asked]
    done = run_ranks(launch(find_launcher(mpirun), ranks, program, given))
    if len(done.answers) != 1:
        raise UsageError(
            f"verify: the job of {ranks} ranks failed, see above. Where the script is not the "
            "cause, tensoropt doctor says if any job runs."
        )
    (found,) = done.answers
    if "wrong" in found:
        raise UsageError(found["wrong"])
    answer(as_json, found, lambda: typer.echo(found["text"]))
    if not found["equal"]:
        raise typer.Exit(NO)


def _compare_on_ranks(steps: str, option: str, batch_size: str, script: str, *arguments: str) -> None:
    """Rehearses the script on each rank, and compares its steps under the plan with those of the original."""
    from tensoropt.api.mirror.tensorflow_loading import load_tensorflow

    load_tensorflow()
    from tensoropt.api.session.rehearsal import Rehearsal
    from tensoropt.api.session.verify import verify
    from tensoropt.errors import VerificationError
    from tensoropt.exec.engines.launch import start_mpi

    rehearsal = Rehearsal(
        None,
        after=lambda plan: verify(plan, int(steps)),
        option=option or None,
        batch_size=int(batch_size) if batch_size else None,
    )
    found: dict[str, Any]
    try:
        verification = rehearsed("verify", script, arguments, rehearsal)
        found = {"equal": True, "text": str(verification), **asdict(verification)}
    except VerificationError as error:
        found = {"equal": False, "text": str(error)}
    except UsageError as error:  # the script fails or never trains, on all ranks
        found = {"wrong": str(error)}
    if start_mpi().rank == 0:
        answer_of_rank(found)


if __name__ == "__main__":
    _compare_on_ranks(*sys.argv[1:5], *sys.argv[5:])
