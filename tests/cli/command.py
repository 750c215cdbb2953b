"""Runs the command in this process, as a shell would see it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tensoropt.cli.main import main

__all__ = ["Ran", "ran"]


class Ran(NamedTuple):
    """What a shell sees."""

    code: int
    out: str
    err: str


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """Runs ``tensoropt`` with some arguments."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return Ran(int(ended.value.code or 0), *capsys.readouterr())
