"""The benchmark of FlexFlow's figure 11: strategies of all methods run, with operators on a part of the ranks too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.effort import THOROUGH
from tests.mpi_support import run_mpi

_LAUNCH = "import runpy; runpy.run_module('benchmarks.flexflow_figure', run_name='__main__')"


@pytest.mark.mpi
@pytest.mark.skipif(not THOROUGH, reason="takes a minute to measure operators, for what random graphs check, too")
def test_strategies_of_all_methods_are_simulated_and_run(tmp_path: Path) -> None:
    program, out = tmp_path / "program.py", tmp_path / "found.json"
    program.write_text(_LAUNCH, encoding="utf-8")
    arguments = ("--models", "nmt", "--steps", "1", "--seconds", "2", "--json", str(out))
    run_mpi(program, 4, *arguments, timeout=600, env={"TENSOROPT_COSTS": ""})
    rows = json.loads(out.read_text(encoding="utf-8"))
    methods = {method for row in rows for method in row["methods"]}
    assert {"data_parallel", "model_parallel", "gnmt", "optcnn", "ft", "mcmc", "soap"} <= methods
    assert all(row["simulated_s"] > 0 and row["step_s"] > 0 for row in rows)
    placed = {method for row in rows if row["placed"] for method in row["methods"]}
    assert {"model_parallel", "gnmt"} <= placed and "data_parallel" not in placed
