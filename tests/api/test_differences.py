"""What ranks must share and make each by itself is compared: all ranks get the same error, which says what differs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tensoropt.api.session.agreement import ValueDigests
from tensoropt.errors import CollectiveError
from tests.effort import THOROUGH
from tests.mpi_support import result_of, run_mpi

_SCRIPT = Path(__file__).parent.parent / "scripts" / "differences.py"

# What all ranks get; {others} are the ranks but the last one.
EXPECTED = {
    "settings of one rank": ("", "True"),
    "constants as initial values": (
        "CollectiveError",
        r"^Variable 'w' \(differences\.py:\d+\): what its initial value is made of \(Const 'w/Init\S*'\) must be "
        r"the same on all {ranks} ranks.* Got \[0\.12.*\) on {others}; \[0\.34.*\) on rank {last}\. Run the same",
    ),
    "seeds of an initializer": (
        "CollectiveError",
        r"^Variable 'w' .* seed2=3 on {others}; seed=\d+ seed2=4 on rank {last}\.",
    ),
    "seeds of an operator": (
        "CollectiveError",
        r"^RandomUniform 'dropout/\S+' \(differences\.py:\d+\): .* seed2=3 on {others}; .* seed2=4 on rank {last}\.",
    ),
    "constants": ("CollectiveError", r"^Const 'Const' .* Got \[2\.0\] .* on {others}; \[3\.0\] .* on rank {last}\."),
    "initial values drawn outside of tensorflow": (
        "CollectiveError",
        r"^Variable 'w' .*: its initial value must be the same on all {ranks} ranks.* on {others}; \w+ on rank "
        r"{last}\.",
    ),
    "shares": ("", "None"),
} | dict.fromkeys(
    ["whole batches", "order of whole batches", "whole batches of the hundredth step"],
    (
        "FeedError",
        r"^Placeholder 'x' \(differences\.py:\d+\): was fed as a whole float32\[64, 300\], .* on {others}; \w+ on rank "
        r"{last}\. Feed the same everywhere \(seed what.*its own share, .* of shape \({share}, 300\)",
    ),
)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4] if THOROUGH else [2])
def test_what_differs_is_named_on_all_ranks(ranks: int) -> None:
    environment = {"TENSOROPT_COLLECTIVES": "mpi4py", "TENSOROPT_STALL_SECONDS": "100"}
    job = run_mpi(_SCRIPT, ranks, timeout=300, env=environment, check=False)
    others = "rank 0" if ranks == 2 else f"ranks 0-{ranks - 2}"
    for of_rank in result_of(job):
        assert of_rank.keys() == EXPECTED.keys()
        for name, (kind, message) in EXPECTED.items():
            for word, value in {"ranks": ranks, "last": ranks - 1, "others": others, "share": 64 // ranks}.items():
                message = message.replace(f"{{{word}}}", str(value))
            assert of_rank[name][0] == kind, (name, of_rank[name])
            assert re.search(message, of_rank[name][1], re.DOTALL), (name, of_rank[name])
    said = re.findall(r"(TENSOROPT_\w+) differs between ranks: (.*)\. Pass it to every rank", job.stderr)
    assert [name for name, _ in said] == [f"TENSOROPT_{name}" for name in ("COLLECTIVES", "COSTS", "STALL_SECONDS")]
    last = f"'mpi' on rank {ranks - 1}; 'mpi4py', which rank 0 has, is used on all"
    assert said[0][1] == f"'mpi4py' on {others}, {last}"
    # Then steps from two threads.
    assert job.returncode != 0 and "over" not in job.stdout
    assert re.search(rf"SessionError: run: another thread of rank \d is in a run\. With {ranks} ranks", job.stderr)


@pytest.mark.pure
def test_variables_that_differ_are_counted() -> None:
    class Comm:
        size = 2

        def allgather(self, value: object) -> list[object]:
            other = {"a": b"1", "b": b"2"} if isinstance(value, dict) else "another"
            return [value, other]

    digests = ValueDigests(lambda name: np.zeros(2))
    for name in "ab":
        digests(name)
    with pytest.raises(
        CollectiveError, match=r"^an a \(and 1 more variables\): its initial value must be the same on all"
    ):
        digests.agree(Comm(), {"a": "an a"})  # type: ignore[arg-type]


# Four threads that make the same program at once, and then count.
_THREADS = """
import threading
import tensoropt
from tensoropt.api.session.job import current_job

tensoropt.init()
count = tensoropt.get_variable("count", [], initializer=tensoropt.initializers.zeros(), trainable=False)
more = tensoropt.assign_add(count, 1.0)
tensoropt.build_execution_graph(plan=tensoropt.find_strategy("mini_time", costs="analytic"))
start = threading.Barrier(4)

def train():
    start.wait()
    for _ in range(25):
        tensoropt.run(more)

threads = [threading.Thread(target=train) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("counted", tensoropt.run(count))
"""


@pytest.mark.mpi
def test_threads_of_one_rank_take_turns(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_THREADS)
    job = run_mpi(program, 1, timeout=120)
    assert "counted 100.0" in job.stdout
    assert "Error" not in job.stderr
