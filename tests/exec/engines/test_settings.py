"""Settings that steer what ranks do together are rank 0's on every rank."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import tensoropt
from tensoropt.errors import PlanError
from tensoropt.exec.engines import settings as settings_module
from tensoropt.exec.engines.settings import SETTINGS, agree_on_settings, number_setting, setting

pytestmark = pytest.mark.pure

# Where a rank keeps its files is its own affair.
_OWN = {"TENSOROPT_LOG", "TENSOROPT_CACHE_DIR", "TENSOROPT_DUMP"}


class Comm:
    """A communicator that knows what each rank has."""

    def __init__(self, rank: int, collectives: list[str]) -> None:
        self.rank = rank
        self._ranks = [
            tuple(text if name == "TENSOROPT_COLLECTIVES" else "" for name in SETTINGS) for text in collectives
        ]

    def allgather(self, _: object) -> list[tuple[str, ...]]:
        return self._ranks


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "_agreed", {})


@pytest.mark.parametrize("rank", [0, 2])
def test_rank_0_decides_and_says_so(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENSOROPT_COLLECTIVES", "mpi4py")
    with caplog.at_level(logging.WARNING, "tensoropt"):
        agree_on_settings(Comm(rank, ["", "mpi", "mpi4py", "mpi4py"]))
    assert setting("TENSOROPT_COLLECTIVES") == ""
    assert [record.getMessage() for record in caplog.records] == [
        "TENSOROPT_COLLECTIVES differs between ranks: not set on rank 0, 'mpi' on rank 1, 'mpi4py' on ranks 2-3; it "
        "counts as not set, as on rank 0, on all. Pass it to every rank (mpirun -x TENSOROPT_COLLECTIVES)."
    ][: rank == 0]


def test_what_is_alike_may_be_changed_by_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    agree_on_settings(Comm(0, ["mpi", "mpi"]))
    monkeypatch.setenv("TENSOROPT_COLLECTIVES", "mpi4py")
    assert setting("TENSOROPT_COLLECTIVES") == "mpi4py"


def test_a_variable_that_ranks_do_not_agree_on_is_no_setting() -> None:
    with pytest.raises(KeyError, match="TENSOROPT_CACHE_DIR: is not among the settings that ranks agree on"):
        setting("TENSOROPT_CACHE_DIR")


@pytest.mark.parametrize("text", ["inf", "-1", "2.5", "1001", "nan", "1e300", "9" * 5000, "0x10", "\x1b[2J"])
def test_a_number_that_is_none_or_out_of_bounds_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_PROFILE_ROUNDS", text)
    said = r"ROUNDS: must be a count, got '.*'\. Give 1000 at most, or leave it unset for 3\."
    with pytest.raises(PlanError, match=said) as refused:
        number_setting("TENSOROPT_PROFILE_ROUNDS", 3, 1000, PlanError, "a count", least=1, whole=True)
    assert len(str(refused.value)) < 250 and str(refused.value).isprintable()


@pytest.mark.parametrize(("text", "number"), [("", 3), ("1", 1), ("1000", 1000), (" 7 ", 7)])
def test_a_number_within_its_bounds_is_taken(text: str, number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_PROFILE_ROUNDS", text)
    assert number_setting("TENSOROPT_PROFILE_ROUNDS", 3, 1000, PlanError, "a count", least=1, whole=True) == number


def test_every_variable_of_the_package_is_agreed_on() -> None:
    folder = Path(tensoropt.__file__).parent
    named = {name for path in folder.rglob("*.py") for name in re.findall(r"\bTENSOROPT_[A-Z_]+", path.read_text())}
    assert named - _OWN == set(SETTINGS)
