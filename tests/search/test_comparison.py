"""The table of methods as a value."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import pytest

from tensoropt.errors import ProblemError
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import OperatorPlan, Plan
from tensoropt.search.comparison import Comparison, ComparisonRow
from tensoropt.storage.document import printable

pytestmark = pytest.mark.pure

_MIB = 2.0**20


def _table() -> Comparison:
    plan = Plan(
        Mesh((2, 2)), "f", "ft", {"y": OperatorPlan(Configuration((None, "m")), 0.002, 4.0)}, {}, 0.002, 4.0, {}
    )
    rows = (
        ComparisonRow("ft", "search", 0.002, 0.0015, 3 * _MIB, 0.001, 5 * _MIB, 0.5, True, 9, True, plan=plan),
        ComparisonRow("pase", "search", 0.001, 0.001, 8 * _MIB, 0.0005, _MIB, 0.25, False, 1, False),
        ComparisonRow("tofu", "baseline", 0.002, 0.003, 2 * _MIB, 0.0015, _MIB, 0.125, True, 1, False),
        ComparisonRow("zero1", "baseline", search_s=0.0, reason="does not apply because [it] cannot. Use 'zero2'."),
    )
    return Comparison("2x2 X", 4, "4 MiB per device", 64, False, 1.5, rows)


def test_the_fastest_is_of_those_that_fit_and_of_equal_ones_the_smallest() -> None:
    fastest = _table().fastest()
    assert fastest is not None
    assert fastest.method == "tofu"
    simulated = _table().fastest(simulated=True)
    assert simulated is not None
    assert simulated.method == "ft"
    assert Comparison("x", 1, "1", None, True, 0.0, _table().rows[1:2]).fastest() is None


def test_remarks_say_what_is_missing() -> None:
    table = _table()
    assert [row.remark() for row in table.rows] == [
        "",
        "does not fit, not exact",
        "",
        "does not apply because [it] cannot. Use 'zero2'.",
    ]
    assert ComparisonRow("x", "baseline", fits=True, searched="meshes were left out").remark() == "meshes were left out"
    text = str(table)
    assert "Predicted for 4 devices of 2x2 X, 64 samples per step; at most 4 MiB per device" in text
    assert "Fastest of those that fit: tofu by the sum, ft by simulation." in text
    assert "Simulated with collectives that keep devices busy. Pricing" in text
    assert "Simulated with communication beside computation. Pricing" in str(dataclasses.replace(table, overlap=True))
    assert "Nothing fits." in str(Comparison("x", 1, "1", None, True, 0.0, ()))


def test_it_is_shown_with_all_rows() -> None:
    from rich.console import Console

    out = io.StringIO()
    _table().show(Console(file=out, width=160))
    text = out.getvalue()
    for word in ("ft", "pase", "tofu", "zero1", "does not fit, not exact", "[it]"):
        assert word in text
    (line,) = [line for line in text.splitlines() if line.startswith("│ ft ")]
    assert [cell.strip() for cell in line.split("│")[1:-1]] == ["ft", "2", "1.5", "3", "1", "5", "0.5", ""]


@pytest.mark.parametrize("text", ["[red]x[/red]", "[/]", "a\x1b[2Jb\u202e"])
def test_texts_of_a_file_are_no_markup_and_do_not_steer_a_terminal(text: str) -> None:
    from rich.console import Console

    table = _table()
    rows = tuple(dataclasses.replace(row, method=f"{text}{number}") for number, row in enumerate(table.rows))
    forged = Comparison.from_json(dataclasses.replace(table, topology=text, rows=rows).to_json())
    out = io.StringIO()
    forged.show(Console(file=out, width=160, force_terminal=True, color_system=None))
    for shown in (out.getvalue(), str(forged)):
        assert printable(text) in shown and "\x1b[2J" not in shown and "\u202e" not in shown


def test_json_gives_it_back() -> None:
    table = _table()
    assert Comparison.from_json(table.to_json()) == table
    assert json.loads(table.to_json())["rows"][0]["network_bytes"] == 5 * _MIB


def test_json_says_what_each_strategy_does_with_every_operator() -> None:
    table = _table()
    assert json.loads(table.to_json())["rows"][0]["plan"]["operators"]["y"]["actions"] == [None, "m"]
    again = Comparison.from_json(table.to_json())
    assert again.plan("ft").configuration("y") == table.plan("ft").configuration("y") == Configuration((None, "m"))
    broken = table.to_json().replace('"schema_version": 2', '"schema_version": 0')
    with pytest.raises(ProblemError, match=r"Comparison JSON: Plan: not a plan: schema_version is 0"):
        Comparison.from_json(broken)


def test_a_method_without_a_strategy_has_no_plan() -> None:
    with pytest.raises(
        ProblemError, match=r"'zero1' has no strategy to take\. does not apply because .* Take one of 'ft'\."
    ):
        _table().plan("zero1")
    with pytest.raises(ProblemError, match=r"'pase' has no strategy .* Its plan was not kept\. Compare others\."):
        Comparison("x", 1, "1", None, True, 0.0, _table().rows[1:2]).plan("pase")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "cannot be read"),
        (b"\xff", "cannot be read"),
        (None, "cannot be read"),
        ('{"schema": 7}', "schema must be 4"),
        ('{"schema": 4}', "cannot be read"),
    ],
)
def test_bad_json_is_refused(text: Any, what: str) -> None:
    with pytest.raises(ProblemError, match=f"Comparison JSON: {what}"):
        Comparison.from_json(text)


def test_a_row_is_found_by_name() -> None:
    assert _table().row("tofu").memory_bytes == 2 * _MIB
    with pytest.raises(ProblemError, match="'opt' must be one of those compared, 'ft', 'pase', 'tofu', 'zero1'"):
        _table().row("opt")
