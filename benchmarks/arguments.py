"""Arguments that several command lines take."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["size_argument"]


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
