"""``run`` does under every plan what TensorFlow does in one process; Listing 1 of the paper runs as printed."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.effort import THOROUGH, some
from tests.mpi_support import MpiRunError, run_mpi

pytestmark = pytest.mark.mpi

_SCRIPTS = Path(__file__).parent.parent / "scripts"
_RANKS = 2
# The modules of cases by the ranks that run them, all in one job: what takes longest is to start. What has effects is
# tried on two mesh axes, too, where there is time.
_JOBS = {
    _RANKS: (
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
    ),
    **({4: ("effects",)} if THOROUGH else {}),
}
Failures = list[dict[str, str]]  # by rank and case; an empty text where there is none


def cases_of(script: str) -> list[str]:
    """The cases that a script registers, without running it."""
    tree = ast.parse((_SCRIPTS / f"{script}.py").read_text(encoding="utf-8"))
    marked = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    return [node.name.replace("_", " ") for node in marked if getattr(node.decorator_list[0], "id", "") == "case"]


# By default a ninth of each module, since all of them take five minutes.
_CASES = {ranks: {script: some(cases_of(script), script, 9) for script in scripts} for ranks, scripts in _JOBS.items()}


@pytest.fixture(scope="module")
def run_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Failures]:
    """What fails of the cases of the job of so many ranks, which runs once."""

    @functools.cache
    def run(ranks: int) -> Failures:
        chosen = [f"{script}:{case}" for script, cases in _CASES[ranks].items() for case in cases]
        folder = tmp_path_factory.mktemp("cases")
        job = run_mpi(_SCRIPTS / "run_cases.py", ranks, folder, *chosen, timeout=1500, once=f"cases on {ranks} ranks")
        line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
        found: Failures = json.loads(line.removeprefix("RESULT "))
        assert len(found) == ranks
        return found

    return run


@pytest.mark.parametrize(
    ("ranks", "case"),
    [(ranks, case) for ranks, scripts in _CASES.items() for cases in scripts.values() for case in cases],
)
def test_what_a_job_does_is_what_one_process_does(ranks: int, case: str, run_job: Callable[[int], Failures]) -> None:
    failed = [f"rank {rank}:\n{found[case]}" for rank, found in enumerate(run_job(ranks)) if found[case]]
    assert not failed, "\n".join(failed)


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
