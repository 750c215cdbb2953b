"""One contract for every engine of collectives, under real mpirun."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.effort import THOROUGH
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).with_name("contract_program.py")
# Numbers of ranks, with the engines that they try. One job does them all, whose surplus ranks end: what takes longest
# is to start. Eight ranks on two cores take most of a minute; ops and reshards have them always.
_MANY = ("8:mpi", "6:mpi")
_FEW = ("4:mpi,mpi4py", "3:mpi,mpi4py", "2:mpi,mpi4py", "1:mpi")
RUNS = (*_MANY, *_FEW) if THOROUGH else (_FEW[0], _FEW[-1])
HOROVOD_RUNS = ("4:horovod", "3:horovod", "2:horovod") if THOROUGH else ("4:horovod",)


@pytest.fixture(scope="module")
def output() -> Sequence[str]:
    """What the ranks print."""
    return run(RUNS, {})


@pytest.fixture(scope="module")
def horovod_output() -> Sequence[str]:
    """What the ranks print that try Horovod."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed; 'make horovod' builds it")
    # Horovod would wait for the end of a cycle, for each of the collectives; and it imports Keras.
    return run(HOROVOD_RUNS, {"HOROVOD_CYCLE_TIME": "0.1", "TF_USE_LEGACY_KERAS": "0"})


def run(runs: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
    ranks = int(runs[0].partition(":")[0])
    return run_mpi(PROGRAM, ranks, *runs, timeout=400, env=env, once=f"engines {runs[0]}").stdout.splitlines()


def check(run: str, output: Sequence[str]) -> None:
    """Every rank checked each engine of a run, and all of them equally much."""
    ranks, engines = run.split(":")
    for engine in engines.split(","):
        lines = sorted(line for line in output if f" of {ranks}: {engine} checked" in line)
        assert [line.split()[1] for line in lines] == [str(rank) for rank in range(int(ranks))], output
        counts = {int(line.split()[-1]) for line in lines}
        assert len(counts) == 1 and counts.pop() > 50, lines


@pytest.mark.parametrize("run", RUNS)
def test_engine_gives_numpys_results_and_counts_its_bytes(run: str, output: Sequence[str]) -> None:
    check(run, output)


@pytest.mark.parametrize("run", HOROVOD_RUNS)
def test_horovod_gives_numpys_results_and_counts_its_bytes(run: str, horovod_output: Sequence[str]) -> None:
    check(run, horovod_output)
