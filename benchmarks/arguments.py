"""Arguments that several command lines take."""

from __future__ import annotations

import argparse
import inspect
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["UsageError", "check_sizes", "output_directory", "output_file", "positive", "size_argument"]


class UsageError(Exception):
    """What was asked for does not go together; the message says why."""


def size_argument(text: str) -> tuple[str, Any]:
    """``NAME=VALUE``: an argument of a model and its value.

    Raises:
        ArgumentTypeError: it has no ``=``, or the value is no JSON.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE, such as layers=2")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {value!r} is no number ({error})") from error


def check_sizes(model: str, build: Callable[..., Any], names: Iterable[str]) -> None:
    """Lets the names of a model's arguments through.

    Raises:
        UsageError: one that the model has not; the message lists those that it has.
    """
    known = list(inspect.signature(build).parameters)
    for name in names:
        if name not in known:
            raise UsageError(f"--size {name}: must be an argument of {model}, one of {', '.join(known)}")


def positive(text: str) -> int:
    """A whole number above 0.

    Raises:
        ArgumentTypeError: another.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return number


def output_file(text: str) -> Path:
    """A file that can be written when all is done.

    Raises:
        ArgumentTypeError: its directory does not exist, or it is none to write to.
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a directory; give a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: the directory '{path.parent}' does not exist; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written here; give another file")
    return path


def output_directory(text: str) -> Path:
    """A directory to write to, which is made if there is none.

    Raises:
        ArgumentTypeError: it cannot be made.
    """
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be made: {error}") from error
    return path
