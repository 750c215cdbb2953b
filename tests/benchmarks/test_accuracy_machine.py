"""What the benchmark of accuracy sees of other programs."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import accuracy_machine
from benchmarks.accuracy_machine import Others, Reference

pytestmark = pytest.mark.tf


class _Alone:
    """The communicator of one rank."""

    rank, size = 0, 1

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def bcast(self, value: Any, root: int) -> Any:
        del root
        return value

    def Ibarrier(self) -> Any:
        return self

    def Test(self) -> bool:
        return True


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the host's cores have worked, each time that somebody looks; then they rest."""
    answers: list[float] = []
    monkeypatch.setattr(accuracy_machine, "_busy_s", lambda: answers.pop(0) if answers else 0.0)
    monkeypatch.setattr(accuracy_machine, "_POLL_S", 0.001)
    return answers


def test_what_others_disturb_is_measured_again(busy: list[float]) -> None:
    others, runs = Others(_Alone(), 60.0), iter(range(3))
    busy += [0.0, 1000.0]
    assert others.undisturbed(lambda: next(runs)) == 1
    assert (others.repeated, others.disturbed) == (1, 0)


def test_patience_ends(busy: list[float]) -> None:
    others, runs = Others(_Alone(), 0.0), iter(range(3))
    busy += [0.0, 1000.0]
    assert others.undisturbed(lambda: next(runs)) == 0
    assert (others.repeated, others.disturbed) == (0, 1)


def test_the_reference_is_timed() -> None:
    assert Reference(_Alone()).seconds() > 0
