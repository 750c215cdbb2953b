"""The Typer app: every command under its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import tensoropt
from tensoropt.cli import calibrate, clusters, doctor, planning, plans, run, verify
from tensoropt.cli.output import guarded

__all__ = ["app", "main"]

app = typer.Typer(
    name="tensoropt",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module in (doctor, run, planning, plans, verify, clusters, calibrate):
    _module.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tensoropt {tensoropt.__version__}")
        raise typer.Exit()


@app.callback()
def _tensoropt(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Trains a TensorFlow or Keras script on many devices by the best parallelization strategy that fits.

    Exit codes: 0 all is well, 1 the answer is no or a check failed, 2 the input is wrong; `run` ends as the script
    does.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command, and ends the process with its exit code.

    Args:
        arguments: what stands after the command's name; by default this process's.
    """
    sys.exit(guarded(app, arguments))
