"""Pictures: files of the right kind, with labels, units, and what must be marked in them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tensoropt.errors import PlotError
from tensoropt.viz import canvas
from tensoropt.viz.frontier import draw_frontiers
from tensoropt.viz.parallelism import draw_parallelism

pytestmark = pytest.mark.pure

MEMORY, TIME = [1e9, 2e9, 4e9], [3.0, 1.0, 0.9]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are made, instead of files."""
    pytest.importorskip("matplotlib")
    made: list[Any] = []
    for module in ("frontier", "parallelism"):
        monkeypatch.setattr(f"tensoropt.viz.{module}.save_figure", lambda figure, path: made.append(figure))
    return made


def legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_frontier_has_units_its_turning_point_and_the_limit(figures: list[Any]) -> None:
    curves = {"frontier": (MEMORY, TIME), "Data Parallel": ([5e9], [2.0])}
    draw_frontiers(
        "f.png", curves, turning_points={"frontier": (2e9, 1.0)}, memory_limit_bytes=3 * 2.0**30, title="16 devices"
    )
    (axes,) = figures[0].axes
    assert axes.get_xlabel() == "memory per device, GiB"
    assert axes.get_ylabel() == "time per iteration, s"
    assert axes.get_title() == "16 devices"
    assert legend(axes) == [
        "frontier (3 strategies)",
        "turning point: 1 s, 1.86 GiB",
        "Data Parallel",
        "limit: 3 GiB",
    ]
    left, right = axes.get_xlim()
    assert left < 1e9 / 2**30 and right > 5e9 / 2**30
    assert axes.get_ylim()[0] == 0


def test_a_limit_far_away_does_not_squeeze_the_frontier(figures: list[Any]) -> None:
    draw_frontiers("f.png", {"frontier": (MEMORY, TIME)}, memory_limit_bytes=1e12)
    (axes,) = figures[0].axes
    assert axes.get_xlim()[1] < 5
    assert "limit: 931 GiB, outside of the picture" in legend(axes)


def test_times_that_are_alike_are_told_apart(figures: list[Any]) -> None:
    draw_frontiers("f.png", {"frontier": ([10.0, 20.0, 30.0], [1.02, 1.01, 1.0])})
    low, high = figures[0].axes[0].get_ylim()
    assert 0.9 < low < 1.0 and 1.02 < high < 1.1


def test_all_values_are_inside_of_the_panels(figures: list[Any]) -> None:
    draw_parallelism("p.png", [1, 2], [0.2, 0.1], [0, 0], samples_per_s=[10, 20], cost_per_million=[6.0, 6.9])
    for axes, largest in zip(figures[0].axes, (200, 20, 6.9), strict=True):
        assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 1.05 * largest


def test_small_values_get_small_units(figures: list[Any]) -> None:
    draw_frontiers("f.png", {"frontier": ([10.0, 20.0], [2e-6, 1e-6])})
    (axes,) = figures[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("memory per device, bytes", "time per iteration, µs")


def test_parallelism_has_a_panel_for_each_thing_that_is_known(figures: list[Any]) -> None:
    arguments = ([4, 8], [0.2, 0.1], [0.02, 0.03])
    draw_parallelism("p.png", *arguments)
    draw_parallelism("p.png", *arguments, unfit=[2], samples_per_s=[10.0, 20.0], cost_per_million=[1.0, 1.5])
    assert len(figures[0].axes) == 1
    time, throughput, cost = figures[1].axes
    assert time.get_ylabel() == "time per iteration, ms"
    assert throughput.get_ylabel() == "throughput, samples/s"
    assert cost.get_ylabel() == "cost of a million samples"
    assert legend(time) == ["total", "network", "computation", "does not run"]
    assert {axes.get_xlabel() for axes in figures[1].axes} == {"devices"}
    assert [label.get_text() for label in time.get_xticklabels()] == ["2", "4", "8"]


def test_throughput_is_beside_that_of_the_fewest_devices_scaled_up(figures: list[Any]) -> None:
    for devices, label in (([1, 2], "1 device scaled up"), ([2, 4], "2 devices scaled up")):
        draw_parallelism("p.png", devices, [0.2, 0.1], [0, 0], samples_per_s=[10, 20])
        assert legend(figures[-1].axes[1]) == ["predicted", label]


def test_nothing_that_fits_is_still_a_picture(figures: list[Any]) -> None:
    draw_parallelism("p.png", [], [], [], unfit=[1, 2])
    assert "does not run" in legend(figures[0].axes[0])


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_ending_says_the_format(ending: str, start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whose figures and settings are the user's
    path = tmp_path / f"frontier.{ending}"
    draw_frontiers(path, {"frontier": (MEMORY, TIME)})
    assert path.read_bytes().startswith(start)


def test_only_the_first_rank_writes_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(canvas, "is_speaker", lambda: False)
    draw_frontiers(tmp_path / "frontier.png", {"frontier": (MEMORY, TIME)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["frontier.nothing", "no/such/directory/frontier.png"])
def test_what_cannot_be_written_is_an_error(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(PlotError, match=r"frontier\.\w+': cannot be written: .*ending in \.png, \.svg or \.pdf"):
        draw_frontiers(tmp_path / name, {"frontier": (MEMORY, TIME)})


def test_missing_matplotlib_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotError, match=r"needs matplotlib.*pip install 'tensoropt\[plot\]'"):
        canvas.new_figure(1, 1)
