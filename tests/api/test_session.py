"""The steps of a job where there is no MPI: planning works, the rest says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tensoropt.api.session.world import World

pytestmark = pytest.mark.tf

# mpi4py cannot be imported, as where it is not installed.
_WITHOUT_MPI = """
import sys
sys.modules["mpi4py"] = None
import tensoropt
from tensoropt.errors import EngineError, SessionError
from tensoropt.cluster.presets import preset

x = tensoropt.placeholder(tensoropt.float32, [16, 8])
w = tensoropt.get_variable("w", [8, 4])
loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(x, w)))
train = tensoropt.GradientDescentOptimizer().minimize(loss)

def error_of(function):
    try:
        function()
    except (EngineError, SessionError) as error:
        return f"{type(error).__name__}: {error}"
    return "none"

plan = tensoropt.find_strategy(topology=preset("v100"))
print("devices", plan.mesh.size, "operators", len(plan.operators) > 3)
tensoropt.show_strategy(plan)
print("init:", error_of(tensoropt.init))
print("build:", error_of(lambda: tensoropt.build_execution_graph(plan=plan)))
print("run:", error_of(lambda: tensoropt.run(loss)))
print("plan:", error_of(tensoropt.find_strategy))
print("rank", tensoropt.world_rank(), "of", tensoropt.world_size())
print("other:", error_of(lambda: tensoropt.Session(graph=object())))
"""


@pytest.fixture(scope="module")
def output() -> str:
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}  # starts in half the time, without Keras 3
    command = [sys.executable, "-c", _WITHOUT_MPI]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("rank", [0, 2])
def test_what_the_first_rank_alone_does_goes_by_the_launcher_before_mpi(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    assert World().rank == rank
    assert World(comm=SimpleNamespace(rank=1, size=2)).rank == 1


def test_planning_for_a_preset_needs_no_mpi(output: str) -> None:
    assert "devices 16 operators True" in output
    assert "mini_time on 16 devices" in output


@pytest.mark.parametrize("step", ["init", "build"])
def test_what_needs_mpi_says_how_to_get_it(step: str, output: str) -> None:
    line = next(line for line in output.splitlines() if line.startswith(f"{step}: "))
    assert line.startswith(f"{step}: EngineError: MPI cannot be started: mpi4py and an MPI library")
    assert "pip install 'tensoropt[mpi]'" in line


def test_the_other_steps_say_what_comes_first(output: str) -> None:
    lines = output.splitlines()
    assert "run: EngineError: MPI cannot be started" in output  # a session starts the job if nobody did
    assert "plan: SessionError: find_strategy: the devices are unknown. Call tensoropt.init() first" in output
    assert "other: SessionError: Session: graph must be a tensoropt.Graph, got <object" in output
    assert "rank 0 of 1" in lines
