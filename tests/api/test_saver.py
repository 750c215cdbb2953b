"""Checkpoints of jobs: what is restored, what goes wrong, and what is there when a job is killed in a save."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.effort import THOROUGH
from tests.mpi_support import result_of, run_mpi

pytestmark = pytest.mark.mpi

_SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.mark.parametrize("ranks", [3, 4] if THOROUGH else [4])
def test_cases(ranks: int, tmp_path: Path) -> None:
    job = run_mpi(_SCRIPTS / "checkpoints.py", ranks, tmp_path, timeout=400)
    failures = {
        f"{name} on rank {rank}": text
        for rank, of_rank in enumerate(result_of(job))
        for name, text in of_rank.items()
        if text
    }
    assert not failures, "\n".join(f"{name}\n{text}" for name, text in failures.items())


@pytest.mark.parametrize("first", range(0, 50, 10) if THOROUGH else [0])
def test_a_job_that_is_killed_in_a_save_leaves_the_checkpoint_before_it_whole(first: int, tmp_path: Path) -> None:
    import tensorflow as tf

    interrupted = 0
    for seed in range(first, first + (10 if THOROUGH else 1)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        job = run_mpi(_SCRIPTS / "killed_saves.py", 2, folder, seed, timeout=120, check=False)
        assert job.returncode != 0 and "KILLED" in job.stdout, (job.stdout, job.stderr)
        saved = max(int(number) for number in re.findall(r"^SAVED (\d+)$", job.stdout, re.MULTILINE))
        latest = tf.train.latest_checkpoint(str(folder))
        assert latest is not None
        reader = tf.train.load_checkpoint(latest)
        numbers = {int(number) for name in "vw" for number in np.unique(reader.get_tensor(name))}
        assert len(numbers) == 1 and min(numbers) >= saved, (seed, saved, numbers)
        interrupted += any(entry.name.endswith(".part") for entry in folder.iterdir())
    assert interrupted or not THOROUGH, "no kill has met a save"
