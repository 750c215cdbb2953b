"""``run`` does under every plan what TensorFlow does in one process; Listing 1 of the paper runs as printed."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.mpi_support import MpiRunError, run_mpi

pytestmark = pytest.mark.mpi

_SCRIPTS = Path(__file__).parent.parent / "scripts"
_RANKS = 2
Failures = list[dict[str, str]]  # by rank and case; an empty text where there is none


def cases_of(script: str) -> list[str]:
    """The cases that a script registers, without running it."""
    tree = ast.parse((_SCRIPTS / script).read_text(encoding="utf-8"))
    marked = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    return [node.name.replace("_", " ") for node in marked if getattr(node.decorator_list[0], "id", "") == "case"]


def run_cases(script: str, directory: Path, ranks: int = _RANKS) -> Failures:
    """Runs all cases of a script in one job."""
    job = run_mpi(_SCRIPTS / script, ranks, directory, timeout=400)
    line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def check(case: str, failures: Failures, ranks: int = _RANKS) -> None:
    """Fails if the case did on any rank."""
    assert len(failures) == ranks
    failed = [f"rank {rank}:\n{found[case]}" for rank, found in enumerate(failures) if found[case]]
    assert not failed, "\n".join(failed)


@pytest.fixture(scope="module")
def behaviour(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return run_cases("behaviour.py", tmp_path_factory.mktemp("behaviour"))


@pytest.fixture(scope="module")
def verification(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return run_cases("verification.py", tmp_path_factory.mktemp("verification"))


@pytest.fixture(scope="module")
def effects(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return run_cases("effects.py", tmp_path_factory.mktemp("effects"), ranks=4)


@pytest.mark.parametrize("case", cases_of("effects.py"))
def test_effects(case: str, effects: Failures) -> None:
    check(case, effects, ranks=4)


@pytest.mark.parametrize("case", cases_of("behaviour.py"))
def test_run(case: str, behaviour: Failures) -> None:
    check(case, behaviour)


@pytest.mark.parametrize("case", cases_of("verification.py"))
def test_verify(case: str, verification: Failures) -> None:
    check(case, verification)


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
