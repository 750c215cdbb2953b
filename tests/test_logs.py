"""Who writes what to standard error: TENSOROPT_LOG, ranks, and a script's own configuration of logging.

Each case is a process of its own, as pytest configures logging itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.pure

_SAY = """
from tensoropt.logs import set_up_logging
set_up_logging(RANK)
for level in ("debug", "info", "warning", "error"):
    getattr(logging.getLogger("tensoropt"), level)(f"some {level}")
"""
_ALL = ["some debug", "some info", "warning: some warning", "error: some error"]


def _said(program: str, rank: int = 0, **variables: str) -> list[str]:
    """What a program writes to standard error, without the name that leads each line."""
    done = subprocess.run(
        [sys.executable, "-c", f"import logging\n{program.replace('RANK', str(rank))}"],
        env={**{name: value for name, value in os.environ.items() if name != "TENSOROPT_LOG"}, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [line.removeprefix("tensoropt: ") for line in done.stderr.splitlines()]


def test_what_a_line_quotes_does_not_steer_the_terminal() -> None:
    program = f"{_SAY}\nlogging.getLogger('tensoropt').warning('plan of %s', 'a\\x1b[2Jb\\u202e')"
    assert _said(program)[-1] == r"warning: plan of a\x1b[2Jb\u202e"


@pytest.mark.parametrize(("level", "first"), [("", 1), ("debug", 0), ("info", 1), ("warning", 2), ("error", 3)])
def test_the_first_rank_writes_from_the_level_that_is_asked_for(level: str, first: int) -> None:
    assert _said(_SAY, TENSOROPT_LOG=level) == _ALL[first:]


def test_other_ranks_write_errors_only_unless_everything_is_asked_for() -> None:
    assert _said(_SAY, rank=2) == ["rank 2: error: some error"]
    assert _said(_SAY, rank=2, TENSOROPT_LOG="debug") == [f"rank 2: {line}" for line in _ALL]


def test_tensorflow_warns_on_the_first_rank_only() -> None:
    # TensorFlow's logger has a handler and a level of its own.
    like_it = "logging.getLogger('tensorflow').addHandler(logging.StreamHandler())\n"
    warn = "logging.getLogger('tensorflow').warning('deprecated')\n"
    program = like_it + _SAY.split("for level")[0] + warn
    assert _said(program) == ["deprecated"]
    assert _said(program, rank=2) == []
    assert _said(program, rank=2, TENSOROPT_LOG="debug") == ["deprecated"]


def test_the_launchers_rank_counts_until_mpi_is_started() -> None:
    assert _said(_SAY.replace("(RANK)", "()"), OMPI_COMM_WORLD_RANK="1") == ["rank 1: error: some error"]


def test_an_unknown_level_is_an_error_that_lists_them() -> None:
    assert _said(_SAY, TENSOROPT_LOG="chatty")[-1] == (
        "tensoropt.errors.SessionError: TENSOROPT_LOG: must be one of 'debug', 'info', 'warning', 'error', got "
        "'chatty'. Leave it unset for 'info'."
    )


def test_a_scripts_own_configuration_gets_the_lines_instead() -> None:
    own = "logging.basicConfig(format='mine: %(message)s')\n"
    assert _said(own + _SAY) == ["mine: some warning", "mine: some error"]
    assert _said(own + _SAY, TENSOROPT_LOG="info") == ["mine: some info", "mine: some warning", "mine: some error"]
    later = f"{own}logging.getLogger('tensoropt').warning('last')"
    assert _said(_SAY + later) == [*_ALL[1:], "mine: last"]


def test_importing_attaches_and_sets_nothing() -> None:
    program = (
        "import os\nbefore = dict(os.environ)\n"
        "import tensoropt, tensoropt.stages, tensoropt.api.mirror.tensorflow_loading\n"
        "logger = logging.getLogger('tensoropt')\n"
        "assert not (logger.handlers or logger.level or logging.getLogger().handlers) and dict(os.environ) == before"
    )
    assert _said(program) == []
