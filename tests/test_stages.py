"""Stages: a line at the end of each, and a word of a long one whenever nothing was said for a while."""

from __future__ import annotations

import io
import logging
import re
import time
from collections.abc import Iterator

import pytest
import rich.console

from tensoropt import logs, stages
from tensoropt.stages import announce, came_to, counting, doing, listen, stage, working

pytestmark = pytest.mark.pure


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines of this rank, the first one, at the default level; silence is broken after a tenth of a second."""
    caplog.set_level(logging.INFO, "tensoropt")
    monkeypatch.setattr(logs._handler, "rank", 0)
    monkeypatch.setattr(stages, "_EVERY_S", 0.1)
    lines: list[str] = []
    monkeypatch.setattr(caplog.handler, "emit", lambda record: lines.append(record.getMessage()))
    yield lines


def _wait_for(said: list[str], pattern: str) -> None:
    """Until such a line was said; a test that waits in vain fails."""
    end_s = time.monotonic() + 10
    while not any(re.fullmatch(pattern, line) for line in said):
        assert time.monotonic() < end_s, said
        time.sleep(0.01)


def test_a_stage_is_one_line_with_what_came_of_it_and_its_seconds(said: list[str]) -> None:
    announce("before")
    with stage("search"):
        came_to("3 strategies")
    assert said == ["before", "search: 3 strategies, 0.0 s"]


def test_a_stage_that_fails_leaves_the_line_to_its_error(said: list[str]) -> None:
    announce("before")
    with pytest.raises(ValueError, match="out of cheese"), stage("search"):
        raise ValueError("out of cheese")
    with stage("next"):
        pass
    assert said == ["before", "next: 0.0 s"]


def test_a_long_stage_says_what_it_does_and_how_far_it_is(said: list[str]) -> None:
    announce("before")
    with stage("profiling"):
        doing("looking")
        _wait_for(said, r"profiling: looking, \d s so far")
        with counting(3, "batches") as advance:
            advance()
            _wait_for(said, r"profiling: 1 of 3 batches, \d s so far")
        with stage("inner"):
            _wait_for(said, r"inner: \d s so far")
    assert re.fullmatch(r"profiling: \d\.\d s", said[-1])


def test_other_ranks_say_nothing(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs._handler, "rank", 1)
    with stage("search"), counting(1, "batches") as advance:
        time.sleep(0.15)
        advance()
    announce("after")
    assert said == []


@pytest.mark.parametrize("draws", [True, False])
def test_a_bar_where_the_terminal_draws_and_lines_where_it_does_not(
    draws: bool, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    real = rich.console.Console
    monkeypatch.setattr(
        rich.console,
        "Console",
        lambda stderr: real(
            file=stream, force_terminal=True, width=80, _environ={"TERM": "xterm" if draws else "dumb"}
        ),
    )
    with stage("profiling"), counting(2, "batches") as advance:
        time.sleep(0.3) if draws else _wait_for(said, ".* so far")
        advance()
    assert ("profiling: batches" in stream.getvalue()) is draws
    assert any("so far" in line for line in said) is not draws


def test_who_listens_hears_what_is_worked_on_whenever_it_changes(said: list[str]) -> None:
    heard: list[str] = []
    with working("before anybody listens"):
        listen(lambda work: heard.append("nothing" if work is None else str(work)))
        with stage("search", "find_strategy()"):
            doing("pricing")
            with working("planning"), counting(1, "plans"):
                pass
    listen(None)
    with working("after"):
        pass
    assert heard == [
        "before anybody listens",
        "find_strategy()",
        "find_strategy(): pricing",
        "planning",
        "planning: 0 of 1 plans",
        "find_strategy(): 0 of 1 plans",  # as people see until something else is said
        "before anybody listens",
        "nothing",
    ]
    assert said[-1].startswith("search: ")


def test_counting_outside_of_a_stage_and_words_there_are_nobodys(said: list[str]) -> None:
    doing("something")
    came_to("something")
    with counting(1, "batches") as advance:
        advance()
    assert said == []
