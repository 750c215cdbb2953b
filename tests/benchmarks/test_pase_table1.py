"""PaSE's table I on a small size of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf


def test_table_has_both_orders_beside_the_papers_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.paper.__main__ import main

    file = tmp_path / "table.json"
    main(["pase_table1", "--model", "alexnet", "--devices", "4", "--size", "hidden=64", "--json", str(file)])
    row = json.loads(file.read_text())["rows"]["alexnet, 4 devices"]
    assert row["sizes"] == {"batch_size": 128, "hidden": 64}
    assert row["paper_s"] == {"breadth_first": 0.234, "flexflow": 2.54, "pase": 0.226}
    assert row["search"]["cpu_s"] > 0 and row["tables"]["wall_s"] > 0 and row["cost_s"] > 0
    # A path graph whose vertices have variables beside them.
    assert row["generate_seq"]["largest_dependent_set"] == 1
    assert len(row["generate_seq"]["dependent_set_sizes"]) == row["vertices"] == row["operators"]
    assert row["breadth_first"]["largest_dependent_set"] == 2
    assert row["breadth_first"]["search"]["cpu_s"] > 0
    assert "alexnet, 4 devices" in capsys.readouterr().out


def test_breadth_first_order_of_an_inception_module_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    import benchmarks.paper.pase_table1 as table
    from benchmarks.paper.setting import Options

    small = Options(("inception3",), (4,), {"inception3": {"modules": [["e", 0]], "image_size": 75}})
    row = table.run(small)["rows"]["inception3, 4 devices"]
    assert row["generate_seq"]["largest_dependent_set"] == 2
    assert row["breadth_first"]["search"].startswith("too large: ")
    monkeypatch.setattr(table, "_LONGEST", 0)
    longer = table.run(Options(("alexnet",), (2,), {"alexnet": {"hidden": 64}}))["rows"]["alexnet, 2 devices"]
    assert longer["breadth_first"]["search"].startswith("too long: ")
