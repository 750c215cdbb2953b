"""One contract for every engine of collectives, under real mpirun."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).with_name("contract_program.py")
# Which engines a job of so many ranks tries, one after another: what takes longest is to start.
RUNS = [
    *((("mpi",), ranks) for ranks in (1, 6, 8)),
    *((("mpi", "mpi4py"), ranks) for ranks in (2, 3, 4)),
    *((("horovod",), ranks) for ranks in (2, 3, 4)),
]


@pytest.mark.parametrize(
    ("engines", "ranks"), RUNS, ids=lambda value: str(value) if isinstance(value, int) else "+".join(value)
)
def test_engine_gives_numpys_results_and_counts_its_bytes(engines: tuple[str, ...], ranks: int) -> None:
    if "horovod" in engines and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed; 'make horovod' builds it")
    # Horovod would wait for the end of a cycle, for each of the collectives; and it imports Keras.
    env = {"HOROVOD_CYCLE_TIME": "0.1", "TF_USE_LEGACY_KERAS": "0"} if "horovod" in engines else {}
    done = run_mpi(PROGRAM, ranks, *engines, timeout=300, env=env)
    for engine in engines:
        lines = sorted(line for line in done.stdout.splitlines() if f": {engine} checked" in line)
        assert len(lines) == ranks, done.stdout
        counts = {int(line.split()[-1]) for line in lines}
        assert len(counts) == 1 and counts.pop() > 50, lines
