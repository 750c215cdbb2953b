"""Commands that start ranks: ``calibrate``, ``verify``."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tensoropt.cluster import Topology
from tests.cli.command import Ran, ran
from tests.effort import left_to_ci

_SCRIPT = """
import tensoropt
x = tensoropt.placeholder(tensoropt.float32, [8, 12])
loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.layers.dense(x, 6)))
train_op = tensoropt.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
tensoropt.init()
tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel"))
print("not reached")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT)
    return str(path)


def _one_line(done: Ran, said: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert said in done.err.splitlines()[-1], done.err


@pytest.mark.mpi
@left_to_ci("the command of what cases of verification call")
def test_verify(capfd: pytest.CaptureFixture[str], script: str) -> None:
    done = ran(capfd, "verify", "-n", "2", "--steps", "2", "--json", script)
    found = json.loads(done.out)
    assert done.code == 0 and found["equal"] and found["steps"] == 2, done.err
    assert found["text"].startswith("2 steps by ") and "equal one process's on every rank" in found["text"]
    assert "not reached" not in done.err


@pytest.mark.mpi
@left_to_ci("half a minute of measuring")
def test_calibrate(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_CACHE_DIR", str(tmp_path / "cache"))
    saved = tmp_path / "here.json"
    done = ran(capfd, "calibrate", "-n", "2", "--save", str(saved), "--json")
    assert done.code == 0, done.err
    topology = Topology.load(saved)
    assert topology.device_count == 2 and topology.to_json() == json.loads(done.out)
    assert topology.profile is not None


@pytest.mark.pure
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/bin/sh\ncase "$1" in --version) echo "mpirun (Open MPI) 5.0.3"; exit;; esac\nexit 3\n')
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    for arguments, said in (
        (["verify", "nothing.py"], "verify: the script 'nothing.py' is not there"),
        (["verify", "--steps", "0", __file__], "--steps"),
        (["verify", "--mpirun", str(launcher), __file__], "the job of 2 ranks failed"),
        (["calibrate", "--mpirun", str(launcher)], "the job of 2 ranks failed"),
        (["calibrate", "-n", "0"], "-n"),
        (["calibrate", "--hosts", str(tmp_path / "none")], "cannot be read"),
    ):
        _one_line(ran(capsys, *arguments), said)
