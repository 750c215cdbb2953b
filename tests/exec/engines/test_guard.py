"""However a rank ends, the job ends too: soon, with an exit code that says so, and with a reason."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tensoropt.exec.engines.guard import _where_apart
from tests.effort import EVERY_CASE, left_to_ci
from tests.mpi_support import MpiRunError, run_mpi

_PROGRAM = Path(__file__).with_name("guard_program.py")
# The pause of the watch, its grace, and the way to the processes and back on a busy machine.
_SOON_S = 20.0

ENDINGS = {
    "exception": r"rank 2: Traceback \(most recent call last\):(.|\n)*rank 2: RuntimeError: out of cheese",
    "interrupt": r"rank 2: Traceback \(most recent call last\):(.|\n)*rank 2: KeyboardInterrupt",
    "thread": r"rank 2: Traceback \(most recent call last\):(.|\n)*rank 2: RuntimeError: out of cheese",
    "exit with 1": r"rank 0: CollectiveError: step 2: .*waits for the others, but rank 2 has ended its program\. Let",
    "exit with 0": r"rank 0: CollectiveError: step 2: .*waits for the others, but rank 2 has ended its program\. Let",
    "exit with a message": r"out of cheese(.|\n)*rank 0: CollectiveError: step 2: .*rank 2 has ended its program",
    "failed collective": r"rank 2: ValueError: out of cheese\nrank 2: CollectiveError: step 3: .*did not come within 1",
    "killed": r"signal 9",
    "exit of the process": r"non-zero status",
}


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("how", ENDINGS if EVERY_CASE else ["thread", "exit with 0", "killed"])
def test_the_job_ends_when_one_rank_does(how: str) -> None:
    with pytest.raises(MpiRunError, match=ENDINGS[how]) as failure:
        run_mpi(_PROGRAM, 3, how, timeout=60)
    assert failure.value.returncode not in (None, 0)  # None: it hung, and was killed
    assert "done" not in failure.value.stdout
    ended_at = re.search(r"ending ([0-9.]+)", failure.value.stdout)
    assert ended_at is not None
    assert time.time() - float(ended_at[1]) < _SOON_S


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("how", ["in peace", "late", "nobody waits"])
@left_to_ci("jobs of their own, of what each end of a job tries")
def test_ranks_that_end_one_after_another_end_in_peace(how: str) -> None:
    job = run_mpi(_PROGRAM, 3, how, timeout=60)
    assert sorted(line for line in job.stdout.splitlines() if "done" in line) == [f"rank {r}: done" for r in range(3)]
    assert job.stderr == ""


@pytest.mark.pure
def test_long_steps_are_told_by_where_they_differ() -> None:
    names = ", ".join(f"layer_{number}/kernel" for number in range(30))
    steps = [f"sharing the values of {names}, {rate}, iteration" for rate in ("rate", "Adam/rate")]
    assert _where_apart(steps) == [f"{steps[0][:60]}… {end}…" for end in ("rate, iteration", "Adam/rate, iteration")]
    assert _where_apart(["run [loss]", "run [accuracy]"]) == ["run [loss]", "run [accuracy]"]
