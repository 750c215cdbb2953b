"""`ParallelismProfile`: what follows from its rows, its JSON and its table."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tensoropt.errors import ProblemError
from tensoropt.search import report
from tensoropt.search.comparison import Comparison
from tensoropt.search.parallelism import ParallelismProfile, ParallelismRow

pytestmark = pytest.mark.pure


def row(devices: int, time_s: float, price: float | None = 3.0, batch: int | None = 100) -> ParallelismRow:
    return ParallelismRow.of(devices, time_s, time_s / 4, 2.0**30, 2.0**29, batch=batch, price_per_device_hour=price)


def example(price: float | None = 3.0, batch: int | None = 100) -> ParallelismProfile:
    rows = (
        ParallelismRow(2, reason="does not fit: too much"),
        row(4, 0.5, price, batch),
        row(8, 0.3, price, batch),
        row(16, 0.3, price, batch),
    )
    return ParallelismProfile("cluster", "10 bytes per device (memory_bytes)", batch, price, rows)


def test_throughput_and_cost_follow_from_time() -> None:
    made = row(8, 0.25)
    assert made.samples_per_s == 400
    assert made.cost_per_hour == 24
    assert made.cost_per_million_samples == pytest.approx(24 / (400 * 3600) * 1e6)


def test_without_price_or_batch_there_is_no_cost_or_throughput() -> None:
    assert row(8, 0.25, price=None).cost_per_hour is None
    assert row(8, 0.25, price=None).cost_per_million_samples is None
    assert row(8, 0.25, batch=None).samples_per_s is None
    assert row(8, 0.25, batch=None).cost_per_hour == 24
    assert row(8, 0.25, batch=None).cost_per_million_samples is None


def test_what_stands_out() -> None:
    fastest, effective = example().fastest(), example().most_effective()
    assert fastest is not None and fastest.devices == 8  # as fast as 16, with less
    assert effective is not None and effective.devices == 4
    assert example().row(2).reason == "does not fit: too much"
    nothing = ParallelismProfile("cluster", "10 bytes", 100, None, (ParallelismRow(2, reason="no"),))
    assert nothing.fastest() is None and nothing.most_effective() is None
    assert "2 devices: no." in str(nothing)


def test_a_count_that_was_not_profiled_is_an_error() -> None:
    with pytest.raises(ProblemError, match=r"3 devices must be one of those profiled, 2, 4, 8, 16"):
        example().row(3)


@pytest.mark.parametrize("profile", [example(), example(None), example(batch=None)])
def test_json_gives_the_profile_back(profile: ParallelismProfile) -> None:
    assert ParallelismProfile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "schema must be 1, got 'list'"),
        ('{"schema": 2}', "schema must be 1, got 2"),
        ('{"schema": 1}', "cannot be read: field 'topology' is missing"),
        (example().to_json().replace('"devices"', '"gpus"'), "cannot be read: a row: unknown field 'gpus'"),
    ],
)
def test_malformed_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        ParallelismProfile.from_json(text)


def test_the_text_has_a_line_per_count_and_says_how_to_go_on() -> None:
    lines = str(example()).splitlines()
    assert lines[0] == "Predicted for cluster, 100 samples per step; at most 10 bytes per device (memory_bytes)"
    assert lines[1].split("  ")[-1] == "cost/million samples"
    assert lines[2].split() == ["2", "-", "-", "-", "-", "-", "-", "-"]
    assert lines[3].split() == ["4", "500", "125", "1,024", "512", "200", "12", "16.67"]
    assert "2 devices: does not fit: too much." in lines
    assert "Fastest: 8 devices. Least device time per step: 4 devices." in lines
    assert "find_strategy('mini_time')" in lines[-1] and "find_strategy('mini_parallelism')" in lines[-1]
    assert "cost" not in str(example(None))


def test_the_table_has_the_same_cells() -> None:
    from rich.console import Console

    out = io.StringIO()
    example().show(Console(file=out, width=120))
    for part in ("cost/million samples", "16.67", "1,024", "does not fit: too much", "Fastest: 8 devices"):
        assert part in out.getvalue()


def test_only_the_first_rank_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "is_speaker", lambda: False)
    example().show()
    Comparison("cluster", 2, "16 GB", 8, False, 0.1, ()).show()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("profile", [example(), example(None, None)])
def test_the_picture_is_written(profile: ParallelismProfile, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    profile.plot(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000
