"""Which costs a search goes by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tensoropt
from tensoropt.api.session.costs import check_costs
from tensoropt.cluster import COLLECTIVE_KINDS, Topology
from tensoropt.cluster.presets import cpu
from tensoropt.cost import OpProfile
from tensoropt.errors import PlanError
from tests.effort import left_to_ci
from tests.mpi_support import run_mpi

_SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user has who sets nothing."""
    monkeypatch.delenv("TENSOROPT_COSTS", raising=False)


def _small_model() -> None:
    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [8, 4])
    loss = tensoropt.reduce_mean(tensoropt.layers.dense(x, 4) ** 2)
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)


@pytest.mark.tf
def test_costs_are_chosen_by_argument_and_by_variable(no_variable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_costs(None) is None
    assert check_costs("analytic") == "analytic"
    monkeypatch.setenv("TENSOROPT_COSTS", "measured")
    assert check_costs("analytic") == "measured"


@pytest.mark.tf
def test_other_costs_are_refused(no_variable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    _small_model()
    with pytest.raises(PlanError, match="costs must be one of 'measured', 'analytic', got 'guessed'"):
        tensoropt.find_strategy(topology=cpu(2), costs="guessed")
    monkeypatch.setenv("TENSOROPT_COSTS", "guessed")
    with pytest.raises(PlanError, match="TENSOROPT_COSTS must be one of"):
        tensoropt.find_strategy(topology=cpu(2))


@pytest.mark.tf
def test_devices_that_are_not_here_cannot_be_measured(no_variable: None) -> None:
    _small_model()
    with pytest.raises(PlanError, match="measured on the devices of a job, and there is none"):
        tensoropt.find_strategy(topology=cpu(2), costs="measured")
    assert tensoropt.find_strategy(topology=cpu(2)).time_s == pytest.approx(
        tensoropt.find_strategy(topology=cpu(2), costs="analytic").time_s
    )


@pytest.mark.mpi
@left_to_ci("half a minute, and `make demo` measures, too")
def test_operators_are_measured_once_per_machine_by_what_will_run(tmp_path: Path) -> None:
    environment = {"TENSOROPT_COSTS": "", "TENSOROPT_CACHE_DIR": str(tmp_path), "TENSOROPT_COLLECTIVES": "mpi4py"}
    job = run_mpi(_SCRIPTS / "measured_costs.py", 2, timeout=300, env=environment)
    result: dict[str, Any] = json.loads(job.stdout.strip().splitlines()[-1])

    profile = OpProfile.from_json(result["profile"])
    assert {entry.type for entry in profile.times.values()} >= {"MatMul", "BiasAdd", "Relu", "Mean"}
    assert sorted(profile.curves) == ["feed", "mask", "slice", "sum", "transpose", "update ResourceApplyAdam"]
    assert profile.iteration_s > 0
    # The loss is split over classes too, where devices reduce inside.
    assert any(entry.forward_reduced_bytes for entry in profile.times.values())

    assert result["topology"]["key"]["engine"] == "mpi4py"
    topology = Topology.from_json(result["topology"]["topology"])
    assert topology.profile is not None
    assert {entry.kind for entry in topology.profile.entries} == set(COLLECTIVE_KINDS)

    assert result["measured_s"][0] == result["measured_s"][1]
    assert result["again_s"] == result["measured_s"][0] != result["analytic_s"]
    assert not result["measures_again"] and not result["measures_with_a_known_profile"]
    assert result["measures_when_refreshed"]
    budget, rounds = result["refusals"]
    assert "TENSOROPT_PROFILE_SECONDS: must be a number of seconds from 0, got 'soon'" in budget
    assert "TENSOROPT_PROFILE_ROUNDS: must be a whole number from 1, got '0'" in rounds
    assert result["losses"][-1] < result["losses"][0]
    assert result["recalibrating_writes"] and len(set(result["recalibrated_s"])) == 1
