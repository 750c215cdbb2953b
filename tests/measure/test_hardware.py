"""Collecting the hardware of an MPI job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensoropt.cluster import COLLECTIVE_KINDS, Topology
from tests.effort import left_to_ci
from tests.mpi_support import MpiRunError, run_mpi

pytestmark = pytest.mark.mpi

SCRIPT = Path(__file__).with_name("hardware_ranks.py")


def test_four_ranks_collect_one_topology_and_remember_it(tmp_path: Path) -> None:
    done = run_mpi(SCRIPT, 4, "healthy", env={"TENSOROPT_CACHE_DIR": str(tmp_path)})
    result = json.loads(done.stdout)
    topology = Topology.from_json(result["topology"])
    assert topology.factor_mesh() == (2, 2)
    assert topology.profile is not None
    measured = {(entry.kind, entry.group) for entry in topology.profile.entries}
    assert measured == {(kind, group) for kind in COLLECTIVE_KINDS for group in ((2,), (4,))}
    (level,) = topology.levels
    assert 0 < level.latency_s < 1 and 1e5 < level.bandwidth_bytes_per_s < 1e12
    # On every rank the same, six times.
    assert all(prints == result["equal"][0] for prints in result["equal"])
    # From the cache; measured again as it was damaged, and as it was asked for; another engine's own, and of MPI
    # that moves messages otherwise.
    assert result["same_profile"] == [True, False, False, False, False]
    assert done.stderr.count("Ignoring the cached topology") == 1
    assert result["files"] == 3
    assert result["cached_s"] < result["measured_s"] / 3


def test_failure_is_an_error_on_every_rank(tmp_path: Path) -> None:
    done = run_mpi(SCRIPT, 4, "failing", env={"TENSOROPT_CACHE_DIR": str(tmp_path)})
    result = json.loads(done.stdout)
    expected = {
        "everywhere": "failed on 4 of 4 ranks, first on rank 0: RuntimeError: no all_reduce here",
        "without_waiting": "failed on 1 of 4 ranks, first on rank 2: RuntimeError: rank 2 cannot broadcast",
        "local": "failed on 2 of 4 ranks, first on rank 1: OSError: no such file: cpuinfo",
    }
    for scenario, message in expected.items():
        assert len(result[scenario]) == 4 and all(message in text for text in result[scenario]), scenario
    assert not list(tmp_path.iterdir())


@left_to_ci("a minute's wait, which `test_stalls.py` has shorter")
def test_rank_that_fails_inside_a_collective_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(MpiRunError, match="ended with exit code") as caught:
        run_mpi(SCRIPT, 4, "deserting", timeout=60, env={"TENSOROPT_CACHE_DIR": str(tmp_path)})
    assert "RuntimeError: rank 1 deserts" in caught.value.stderr
    assert "rank 1 failed while measuring collectives" in caught.value.stderr
