"""The notebooks run from their first cell to their last, and print what they show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.effort import left_to_ci

_ROOT = Path(__file__).parents[2]
_NOTEBOOKS = sorted((_ROOT / "examples").glob("*.ipynb"))
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# Predictions may change by so much with the search, without anybody having to run a notebook again.
_ALIKE = 0.1
# In a process of its own, as a kernel is: gives what each cell of code prints.
_RUN = """
import contextlib, io, json, sys
names, printed = {"__name__": "__main__"}, []
for number, source in enumerate(json.load(sys.stdin)):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(source, f"cell {number}", "exec"), names)
    printed.append(said.getvalue())
json.dump(printed, sys.stdout)
"""


def _cells(path: Path, kind: str) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def _shown(cell: dict[str, Any]) -> str:
    """What a cell had printed when the notebook was saved."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if output.get("name") == "stdout")


def _numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]


@pytest.mark.tf
@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
@left_to_ci("half a minute")
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cells = _cells(path, "code")
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps(["".join(cell["source"]) for cell in cells]),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "MPLBACKEND": "agg", "TF_USE_LEGACY_KERAS": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    shows = 0
    for cell, printed in zip(cells, json.loads(done.stdout), strict=True):
        shown = _shown(cell)
        if "varies" in cell["metadata"].get("tags", ()):  # a table, whose form has tests of its own
            assert printed and shown
            continue
        # Where it has changed for good: run the notebook, and save it with its outputs.
        assert _NUMBER.sub("0", printed) == _NUMBER.sub("0", shown)
        assert _numbers(printed) == pytest.approx(_numbers(shown), rel=_ALIKE)
        shows += bool(shown)
    assert shows >= 5


@pytest.mark.pure
def test_links_in_notebooks_lead_somewhere() -> None:
    for path in _NOTEBOOKS:
        text = "".join("".join(cell["source"]) for cell in _cells(path, "markdown"))
        assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if not (path.parent / link).exists()] == []
