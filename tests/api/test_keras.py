"""``tensoropt.keras.parallelize`` on two ranks, beside Keras alone in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.test_runtime import Failures
from tests.effort import THOROUGH
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).parent.parent / "scripts" / "run_cases.py"
_CASES = [
    "mlp with dropout has the history of keras alone",
    "convolutions and batch norm have the history of keras alone",
    "transformer has the history of keras alone",
    "lstm has the history of keras alone",
    "grouped convolutions and accumulated gradients have the history of keras alone",
    "recommender has the history of keras alone",
    # Three trainings, which notice rounding that the other one with batch norm has no part in.
    *(["what batch norm hides differs no more than for keras itself"] * THOROUGH),
    "weights that callbacks read and set count",
    "datasets and several steps per execution are taken",
    "files are written by one rank and read by keras alone",
    "model that is compiled again is planned again",
    "own train step and two optimizers are taken",
    "own train step may compute with the size of a batch",
    "sizes of shapes are numbers for keras",
    "what cannot be parallel says why",
]
_PINS = [
    "pinned variables are stored so and train as keras alone",
    "plan that was made before is taken",
    "plan is for the model that it was made of",
    "ranks that have their own shares train as one that has all",
]
_MEMORY = [
    "weights built in a scope are those of keras and never whole",
    "scope draws alike where ranks are not seeded",
    "values that are made later by other seeds are rank 0s",
    "what is assigned counts and goes to its pieces",
    "files are written by rank 0 of what is in pieces",
    "one rank that reads what is in pieces is told",
]
_DATA = [
    "data that python makes is taken",
    "weights of samples and classes and splits for validation count",
    "logs are written by one rank",
]
_FAULTS = [
    "callback that fails on one rank ends fit on all",
    "interrupt of one rank ends fit on all",
    "callback that stops one rank is named",
    "one rank that assigns alone is named",
    "data that end early on one rank are named",
    "data of other shapes on one rank are named",
    "training that was interrupted goes on from its backup",
]
_OPTIMIZERS = ["every optimizer has the history and the variables of keras alone"] if THOROUGH else []


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    scripts = {
        "keras_models": _CASES,
        "keras_pins": _PINS,
        "keras_memory": _MEMORY,
        "keras_data": _DATA,
        "keras_faults": _FAULTS,
        "keras_optimizers": _OPTIMIZERS,
    }
    chosen = [f"{script}:{case}" for script, cases in scripts.items() for case in cases]
    environment = {"TENSOROPT_COSTS": "analytic"}  # what is compared is numbers
    job = run_mpi(_SCRIPT, 2, tmp_path_factory.mktemp("keras"), *chosen, timeout=900, env=environment)
    line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
    found: Failures = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("case", [*_CASES, *_PINS, *_MEMORY, *_DATA, *_FAULTS, *_OPTIMIZERS])
def test_keras_on_two_ranks(case: str, on_two: Failures) -> None:
    failed = [f"rank {rank}:\n{found[case]}" for rank, found in enumerate(on_two) if found[case]]
    assert len(on_two) == 2 and not failed, "\n".join(failed)
