"""Arguments that several command lines take."""

from __future__ import annotations

import argparse
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["UsageError", "built", "check_sizes", "output_directory", "output_file", "positive", "size_argument"]


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


def check_sizes(model: str, build: Callable[..., Any], sizes: Mapping[str, Any]) -> None:
    """Lets a model's arguments through: those that it has, with values of the kind of its own.

    Raises:
        UsageError: one that the model has not, the message lists those that it has; or a value of another kind.
    """
    parameters = inspect.signature(build).parameters
    for name, value in sizes.items():
        if name not in parameters:
            raise UsageError(f"--size {name}: must be an argument of {model}, one of {', '.join(parameters)}")
        usual = parameters[name].default
        types: tuple[type, ...] = (int,)
        kind = "a whole number above 0"
        if isinstance(usual, Sequence):
            types, kind = (list,), "a list of some"
        elif isinstance(usual, float):
            types, kind = (int, float), "a number above 0"
        right = type(value) in types and (bool(value) if isinstance(value, list) else value > 0)
        if not right and not (value is None and usual is None):
            example = json.dumps(usual) if usual is not None else "256"
            raise UsageError(f"--size {name}: must be {kind} for {model}, such as {example}, got {json.dumps(value)}")


def built(model: str, build: Callable[..., Any], sizes: Mapping[str, Any]) -> Any:
    """The loss of a model of some sizes.

    Raises:
        UsageError: it has not these arguments, or cannot be built with their values.
    """
    check_sizes(model, build, sizes)
    try:
        return build(**sizes)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if not sizes:
            raise
        given = " ".join(f"{name}={json.dumps(value)}" for name, value in sizes.items())
        raise UsageError(
            f"--size {given}: {model} cannot be built so ({type(error).__name__}: {error}). Give sizes that go together"
        ) from error


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
