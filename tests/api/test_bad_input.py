"""Every misuse is a clear error on every rank, after which the job goes on or ends; none leaves a rank hanging."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.mpi_support import result_of, run_mpi

pytestmark = pytest.mark.mpi

_SCRIPT = Path(__file__).parent.parent / "scripts" / "bad_input.py"
_RANKS = 2
Outcome = tuple[str, str]  # the class and the message of an error

# On all ranks.
ALIKE: dict[str, Outcome] = {
    "planning before init": ("SessionError", r"devices are unknown\. Call tensoropt\.init\(\) first, or give topology"),
    "run before the graph is built": (
        "SessionError",
        r"^run: there is no execution graph yet\. Call .*build_execution",
    ),
    "session before the graph is built": ("SessionError", r"^run: there is no execution graph yet\. Call "),
    "reference losses before the graph is built": ("SessionError", r"^reference_losses: there is no execution graph"),
    "session with a target": ("SessionError", r"^Session: target must be '', got 'grpc://elsewhere'\. The ranks"),
    "unknown option": ("PlanError", r"option 'fastest' is unknown\. Use one of .*'mini_time'.*path of a saved one"),
    "search as an option": ("PlanError", r"option 'zero3' is a search, not an option\. Give search='zero3'\."),
    "option of another type": ("PlanError", r"option must be a name such as 'mini_time', a Plan.*got 3"),
    "unknown way to feed": ("PlanError", r"feed 'by hand' is unknown\. Use one of 'data_parallel', 'global'"),
    "memory that nothing fits in": (
        "InfeasibleError",
        r"mini_time.*must fit in 10 bytes per device \(memory_bytes\), but the least.* is \S+ bytes.*Allow \d+ bytes\.",
    ),
    "memory that data parallelism does not fit in": (
        "InfeasibleError",
        r"data_parallel'\) on .*: needs [\d,]+ bytes per device, the limit is 10 bytes.*No strategy fits, the least",
    ),
    "negative memory": ("PlanError", r"memory_bytes must be above 0, got -1"),
    "batch size of zero": ("PlanError", r"batch_size must be at least 1, got 0"),
    "batch that the ranks do not divide": (
        "PlanError",
        r"^Placeholder 'x' \(misuse\.py:\d+\): its batch of 7 cannot be shared by 2 devices: 7 % 2 != 0\. Use ",
    ),
    "open shape without a batch size": ("GraphError", r"Placeholder 'x'.*\(None, 4\).*find_strategy\(batch_size=…\)"),
    "open shape beside the batch": ("GraphError", r"Placeholder 'words'.*\(8, None\).*Give it a full shape"),
    "empty model": ("GraphError", r"The model is empty: build it with tensoropt's calls"),
    "topology of another size": ("PlanError", r"has 3 devices, the job has 2 ranks\. Leave topology out"),
    "missing plan file": ("PlanError", r"find_strategy\(option='/nowhere/plan\.json'\).*No such file"),
    "plan file that is no json": ("PlanError", r"plan\d\.json': cannot be read: Unterminated string"),
    "plan file that is no plan": ("PlanError", r"plan\d\.json'\): .*schema_version is None.*find_strategy"),
    "plan file without operators": ("PlanError", r"plan\d\.json'\): .*not a plan: .*field 'operators' is missing"),
    "plan file of another schema": ("PlanError", r"schema_version is 99, this version of tensoropt reads 1 and 2"),
    "plan file with an unknown axis": (
        "PlanError",
        r"MatMul 'logits'.*splits 'sideways', which is not one of the axes",
    ),
    "plan file that lacks an operator": ("PlanError", r"has no operator 'logits'\. Make the plan again"),
    "plan file without its reshards": ("PlanError", r"steps of edge .* lead from .* its ends need "),
    "plan for another graph": ("PlanError", r"was made for the graph [0-9a-f]+, this one is [0-9a-f]+.*find_strategy"),
    "saved plan for another graph": ("PlanError", r"was made for the graph [0-9a-f]+, this one is [0-9a-f]+"),
    "plan for another number of devices": ("PlanError", r"is for 4 devices, this job has 2\. Run it with mpirun -n 4"),
    "saved plan for another number of devices": ("PlanError", r"is for 4 devices, this job has 2\. Run it with mpirun"),
    "no plan": ("PlanError", r"plan must be a Plan, got None\. Give what find_strategy returned"),
    "unknown engine": ("EngineError", r"^build_execution_graph: engine must be 'tensorflow'.* got 'pytorch'\."),
    "unknown collectives": ("EngineError", r"^collectives: .* 'mpi', 'mpi4py', 'horovod'\. Got 'nccl'"),
    "unknown collectives in the environment": ("EngineError", r"^TENSOROPT_COLLECTIVES: .*Got 'nccl'"),
    "feed of another shape": (
        "FeedError",
        r"'x'.*wants the whole batch \(8, 4\) or .*share \(4, 4\), got shape \(8, 5\)",
    ),
    "feed of another batch": ("FeedError", r"'x'.*got shape \(10, 4\)\. Batches of another size may be"),
    "feed of another dtype": ("FeedError", r"'y'.*wants int32, got an array of float64\. Cast it"),
    "feed of text": ("FeedError", r"'rate'.*wants float32, got an array of <U4"),
    "feed of none": ("FeedError", r"'x'.*wants float32, got NoneType"),
    "feed of a ragged list": ("FeedError", r"'x'.*wants an array of float32\[8, 4\], got list: .*inhomogeneous"),
    "missing feed": ("FeedError", r"'y'.*is needed for GradientDescent and was not fed\. Add it to feed_dict"),
    "feed of a tensor that is computed": (
        "FeedError",
        r"'logits'.*wants the whole float32\[8, 4\], got shape \(8, 5\)",
    ),
    "feed of what has no value yet": ("FeedError", r"Placeholder 'x'.*got 'ones:0', which has no value before it runs"),
    "feed of a variable": ("FeedError", r"'w': is a variable, whose readers would not see"),
    "feed by an unknown name": ("FeedError", r"^Feed 'z:0': the model has no such tensor"),
    "feed of another model": ("FeedError", r"'rate_2:0'.*is of another model than the one that build_execution_graph"),
    "fetch of none": ("SessionError", r"^Fetch None: must be a tensor, a variable or an operation"),
    "fetch of an unknown name": ("SessionError", r"^Fetch 'nothing:0': the model has no such tensor.*Use 'name:0'"),
    "fetch of a number": ("SessionError", r"^Fetch 7: must be a tensor, a variable or an operation"),
    "fetch of another model": ("SessionError", r"^Fetch <tf\.Tensor.*: is of another model than the one that build"),
    "value that the graph refuses": ("InvalidArgumentError", r"indices\[0\] = 99 is not in \[0, 6\)"),
    "verify a model that trains nothing": ("SessionError", r"The model has 0 training steps"),
    "verify one of two training steps": ("SessionError", r"The model has 2 training steps; choose one with train_op"),
    "verify what is no training step": ("SessionError", r"is no training step\. Give what an optimizer's minimize"),
    "one rank has another model": (
        "CollectiveError",
        r"^Variable 'w' \(misuse\.py:\d+\): .* must be the same on all 2 ranks, .* Got shape=\(4, 4\) on.*Run the same",
    ),
    "one rank wants another strategy": (
        "CollectiveError",
        r"same step\. Got find_strategy\(option='mini_time'.* on rank 0; find_strategy\(option='mini_memory'.*",
    ),
    "one rank wants another point of the frontier": (
        "CollectiveError",
        r"same step\. Got find_strategy\(option=point \d+ of a frontier.* on rank 0; .*point 0 of .* on rank 1",
    ),
    "one rank profiles other devices": (
        "CollectiveError",
        r"same step\. Got profile_strategies\(devices=\[2\].* on rank 0; .*devices=\[1, 2\].* on rank 1",
    ),
    "one rank has another plan": ("CollectiveError", r"^The plan must be the same on all 2 ranks\. Got "),
    "one rank wants other collectives": ("CollectiveError", r"^The collectives engine and mesh must be the same"),
    "one rank fetches something else": (
        "CollectiveError",
        r"same step\. Got run \[w:0, GradientDescent\].* on rank 0; run \[eval:0, w:0\].* on rank 1\. Run the same",
    ),
    "one rank fetches something else that ran before": (
        "CollectiveError",
        r"same step\. Got run \[GradientDescent\].* on rank 0; run \[softmax_cross_entropy/Mean:0\].* on rank 1",
    ),
    "one rank feeds its share": (
        "CollectiveError",
        r"x fed whole, y fed whole on rank 0; .*x fed a share, y fed whole on",
    ),
    "one rank compares while the others run": ("CollectiveError", r"run \[w:0\] on rank 0; reference_losses on rank 1"),
    "one rank plans while the others run": (
        "CollectiveError",
        r"same step\. Got run \[w:0\] on rank 0; find_strategy\(.*\) on rank 1",
    ),
}

# On rank 0 and on rank 1.
APART: dict[str, tuple[Outcome, Outcome]] = {
    "one rank has no plan": (
        ("CollectiveError", r"cannot go on, since rank 1 failed in build_execution_graph: PlanError: .*got None"),
        ("PlanError", r"plan must be a Plan, got None"),
    ),
    "one rank cannot read the plan": (
        (
            "CollectiveError",
            r"cannot go on, since rank 1 failed in find_strategy.*: PlanError: .*plan1\.json.*No such file",
        ),
        ("PlanError", r"plan1\.json.*No such file"),
    ),
    "one rank wants unknown collectives": (
        ("CollectiveError", r"cannot go on, since rank 1 failed in .*: EngineError: .*Got 'nccl'"),
        ("EngineError", r"Got 'nccl'"),
    ),
    "one rank feeds another shape": (
        ("CollectiveError", r"^run \[.*cannot go on, since rank 1 failed in run: FeedError: .*got shape \(8, 5\)"),
        ("FeedError", r"got shape \(8, 5\)"),
    ),
    "one rank fetches an unknown name": (
        ("CollectiveError", r"^run \[w:0\]: cannot go on, since rank 1 failed in run: SessionError: .*'nothing:0'"),
        ("SessionError", r"'nothing:0'"),
    ),
    "one rank cannot run the reference": (
        ("ZeroDivisionError", r"out of cheese"),
        ("CollectiveError", r"^verify: .*cannot go on, since rank 0 failed in verify: .*: ZeroDivisionError: out of"),
    ),
    "one rank fails for a reason of its own": (
        ("ZeroDivisionError", r"out of cheese"),
        ("CollectiveError", r"^find_strategy.*: failed on rank 0: ZeroDivisionError: out of cheese"),
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Outcome]]:
    """By rank and case: the class and the message of the error. All cases run in one job."""
    job = run_mpi(_SCRIPT, _RANKS, tmp_path_factory.mktemp("plans"), timeout=240, once="bad input")
    return result_of(job)


@pytest.mark.parametrize("case", [*ALIKE, *APART])
def test_misuse_is_an_error_on_every_rank(case: str, outcomes: list[dict[str, Outcome]]) -> None:
    wanted = APART.get(case) or (ALIKE[case],) * _RANKS
    for rank, (kind, message) in enumerate(wanted):
        got_kind, got_message = outcomes[rank][case]
        assert got_kind == kind, f"rank {rank}: {got_message}"
        assert re.search(message, got_message, re.DOTALL), f"rank {rank}: {got_message}"


def test_no_case_is_left_out(outcomes: list[dict[str, Outcome]]) -> None:
    assert sorted([*ALIKE, *APART, "afterwards"]) == sorted(outcomes[0])


def test_the_job_trains_after_all_misuse(outcomes: list[dict[str, Outcome]]) -> None:
    losses = json.loads(outcomes[0]["afterwards"][1])
    assert outcomes[1]["afterwards"] == outcomes[0]["afterwards"]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3
