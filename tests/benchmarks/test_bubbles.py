"""The benchmark of pipelines: every number of stages and micro-batches gives one process's losses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.effort import THOROUGH, left_to_ci
from tests.mpi_support import run_mpi

_LAUNCH = "import runpy; runpy.run_module('benchmarks.bubbles', run_name='__main__')"


@pytest.mark.mpi
@left_to_ci("minutes, and `test_recomputed_memory.py` has pipelines, too")
def test_pipelines_of_two_and_four_stages_give_one_process_s_losses(tmp_path: Path) -> None:
    program, out = tmp_path / "program.py", tmp_path / "found.json"
    program.write_text(_LAUNCH, encoding="utf-8")
    models, times = (("transformer", "cnn"), ("2", "4", "8")) if THOROUGH else (("transformer",), ("2", "8"))
    arguments = ("--short", "--models", *models, "--times", *times, "--steps", "2", "--json", str(out))
    run_mpi(program, 4, *arguments, timeout=600, env={"TENSOROPT_COSTS": "analytic"})
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert len(rows) == 4 * len(models) * len(times)
    found = {(row["stages"], row["rounds"], row["micro_batches"]) for row in rows}
    assert found == {(stages, rounds, int(number)) for stages in (2, 4) for rounds in (1, 2) for number in times}
    for row in rows:
        assert row["off"] < 1e-5
        assert 0 < row["predicted_rest"] < 1 and 0 < row["rest"] < 1
