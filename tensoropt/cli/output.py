"""How commands answer: text for people or JSON for scripts, exit codes, and errors of one line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tensoropt.errors import TensorOptError, did_you_mean
from tensoropt.storage import write_whole
from tensoropt.storage.document import cause_of

__all__ = ["BAD_INPUT", "FINE", "NO", "UsageError", "answer", "example", "guarded", "table", "write"]

FINE, NO, BAD_INPUT = 0, 1, 2
"""Exit codes: all is well; the answer is no, or a check failed; the input is not what it must be."""

_NAME, _COLUMNS = "tensoropt", 120

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
"""The type of every command's ``--json``."""

# Typer's own, or that of the package click, by Typer's version.
_OF_OPTIONS: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


_NO_COMMAND = re.compile(r"No such command '([^']*)'")


class UsageError(TensorOptError):
    """A command was given what it cannot work with."""


def example(*lines: str) -> str:
    """Returns the end of a command's ``--help``: examples, one a line."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


def answer(as_json: bool, value: Any, show: Callable[[], None]) -> None:
    """Prints a result on standard output.

    Args:
        as_json: whether as JSON.
        value: what JSON has of it.
        show: prints it for people.
    """
    if as_json:
        sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")
    else:
        show()
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; columns after the first are to the right if they have figures."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns):
        cells = [row[place] for row in rows if row[place]]
        figures = bool(cells) and all(cell[:1].isdigit() or cell in ("–", "inf") for cell in cells)
        drawn.add_column(name, justify="right" if place and figures else "left", no_wrap=place == 0, overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    # A pipe has no width, for which Rich takes 80 columns.
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _COLUMNS).print(drawn)


def write(option: str, path: Path, text: str) -> None:
    """Writes a file that was asked for, whole or not at all.

    Raises:
        UsageError: there can be no such file.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        raise UsageError(
            f"{option}: '{path}' cannot be written: {cause_of(error)}. Give a file in a folder that exists and has "
            "room."
        ) from error


def guarded(run: Callable[..., Any], arguments: Sequence[str] | None) -> int:
    """Runs a Typer app; what it is given that is wrong becomes one line.

    Returns:
        The exit code.
    """
    try:
        code = run(args=arguments, prog_name=_NAME, standalone_mode=False)
    except _OF_OPTIONS as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else _NAME
        said = error.format_message().strip().rstrip(".")  # type: ignore[attr-defined]
        unknown = _NO_COMMAND.search(said)
        guess = did_you_mean(unknown[1], context.command.commands) if unknown and context is not None else ""
        return _fail(f"{command}: {said}.{guess} See {command} --help.")
    except TensorOptError as error:
        return _fail(f"{_NAME}: {error}")
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # as in `tensoropt … | head`
        sys.stderr.close()
        return FINE
    return code if isinstance(code, int) else FINE


def _fail(line: str) -> int:
    sys.stderr.write(" ".join(line.split()) + "\n")
    return BAD_INPUT
