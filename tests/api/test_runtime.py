"""``run`` does under every plan what TensorFlow does in one process; Listing 1 of the paper runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.case_jobs import check_case, failures_of, jobs_of
from tests.effort import EVERY_CASE, left_to_ci
from tests.mpi_support import MpiRunError, run_mpi

pytestmark = pytest.mark.mpi

_RANKS = 2
_MODULES = (
    "behaviour",
    "verification",
    "effects",
    "sessions",
    "monitored",
    "contrib",
    "pipelines",
    "training",
    "second_gradients",
    "control_flow",
    "batches",
)
# What has effects is tried on two mesh axes, too.
_JOBS = [*((_RANKS, job) for job in jobs_of(_MODULES)), *((4, job) for job in jobs_of(["effects"]) if EVERY_CASE)]
_CASES = [(ranks, job, case.partition(":")[2]) for ranks, job in _JOBS for case in job]


@pytest.mark.parametrize(("ranks", "job", "case"), _CASES, ids=[f"{ranks}-{case}" for ranks, _, case in _CASES])
def test_what_a_job_does_is_what_one_process_does(ranks: int, job: tuple[str, ...], case: str, tmp_path: Path) -> None:
    check_case(failures_of(ranks, tmp_path, job), case)


_LISTING_1 = """
import numpy
import tensoropt

def create_model(input, labels):
    w = tensoropt.get_variable("w", [8, 4])
    b = tensoropt.get_variable("b", [4])
    logits = tensoropt.matmul(input, w) + b
    return tensoropt.softmax_cross_entropy(labels, logits)

def training(loss):
    optimizer = tensoropt.GradientDescentOptimizer()
    train_op = optimizer.minimize(loss)
    return train_op

def main():
    tensoropt.init()
    input = tensoropt.placeholder(tensoropt.float32, [16, 8])
    label = tensoropt.placeholder(tensoropt.int32, [16])
    loss = create_model(input, label)
    train_op = training(loss)
    plan = tensoropt.find_strategy(option='mini_time')
    tensoropt.build_execution_graph(engine='tensorflow',
    plan=plan)
    random = numpy.random.default_rng(0)
    feed_dict = {input: random.normal(size=(16, 8)), label: random.integers(0, 4, 16)}
    first = tensoropt.run(loss, feed_dict)
    for _ in range(20):
        tensoropt.run(train_op, feed_dict)
    print(f"LOSSES {first} {tensoropt.run(loss, feed_dict)}", flush=True)
    FAILURE

main()
"""


@pytest.mark.smoke
def test_listing_1_of_the_paper_learns_as_printed(tmp_path: Path) -> None:
    script = tmp_path / "listing.py"
    script.write_text(_LISTING_1.replace("FAILURE", ""), encoding="utf-8")
    job = run_mpi(script, _RANKS, timeout=200)
    losses = re.findall(r"LOSSES (\S+) (\S+)", job.stdout)
    assert len(losses) == _RANKS
    assert len(set(losses)) == 1  # the same on every rank
    assert float(losses[0][1]) < float(losses[0][0])


_ASKED = 'print(f"ASKED {tensoropt.world_rank()} {tensoropt.world_size()}", flush=True)'
_ALONE = 'tensoropt.on_rank_0(lambda: print("ALONE", flush=True))'
_BY_INIT = "count = tensoropt.init().device_count"
_BY_A_STEP = """
import numpy, tensorflow
total = tensorflow.Variable(0.0)

@tensoropt.function
def step(x):
    return total.assign_add(tensorflow.reduce_sum(x))

count = int(step(numpy.ones(tensoropt.world_size(), numpy.float32)))
"""
_AFTER = 'print(f"AFTER {tensoropt.world_rank()} {tensoropt.world_size()} {count}", flush=True)'


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("before", "begins"),
    [
        pytest.param([_ALONE, _ASKED], _BY_A_STEP, id="by a step"),
        pytest.param([_ASKED, _ALONE], _BY_INIT, id="by init", marks=left_to_ci("one more job of its own")),
    ],
)
def test_a_script_may_ask_for_its_rank_before_the_job_begins(tmp_path: Path, before: list[str], begins: str) -> None:
    script = tmp_path / "asked.py"
    lines = ["import tensoropt", *before, begins, _AFTER]
    script.write_text("\n".join(lines), encoding="utf-8")
    said = run_mpi(script, _RANKS, timeout=200).stdout
    assert sorted(re.findall(r"ASKED \d+ \d+", said)) == [f"ASKED {rank} {_RANKS}" for rank in range(_RANKS)]
    assert said.count("ALONE") == 1
    assert sorted(re.findall(r"AFTER .*", said)) == [f"AFTER {rank} {_RANKS} {_RANKS}" for rank in range(_RANKS)]


@pytest.mark.smoke
def test_an_exception_on_one_rank_ends_a_training_job_with_its_traceback_first(tmp_path: Path) -> None:
    script = tmp_path / "listing.py"
    failure = (
        "if tensoropt.world_rank() == 1: feed_dict[input] = numpy.ones((3, 8))\n"
        "    for _ in range(2): tensoropt.run([train_op, loss], feed_dict)"
    )
    script.write_text(_LISTING_1.replace("FAILURE", failure), encoding="utf-8")
    with pytest.raises(MpiRunError) as caught:
        run_mpi(script, _RANKS, timeout=200)
    assert caught.value.returncode not in (None, 0)
    own = caught.value.stderr.find("rank 1: Traceback (most recent call last)")
    assert 0 <= own < caught.value.stderr.find("MPI_ABORT")
    assert re.search(r"rank 1: tensoropt\.errors\.FeedError: Placeholder.*got shape \(3, 8\)", caught.value.stderr)
    assert re.search(r"rank 0: tensoropt\.errors\.CollectiveError: .*rank 1 failed in run", caught.value.stderr)
