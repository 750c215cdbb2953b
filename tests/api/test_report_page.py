"""Reports: what they say, that they need no network, and that a browser draws them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tensoropt
from tensoropt.cluster.presets import preset
from tensoropt.errors import PlanError, PlotError
from tensoropt.plan.plan import Plan
from tensoropt.search.strategy_table import in_units

pytestmark = pytest.mark.tf

_CHARTS = {"frontier", "devices", "memory"}
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class _Elements(HTMLParser):
    """Names of elements with what they take from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[tuple[str, str]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.outside += [(tag, value or "") for name, value in attrs if name in ("src", "href", "data", "action")]


def _model(name: str = "wide<script>") -> Plan:
    tensoropt.reset_default_graph()
    images = tensoropt.placeholder(tensoropt.float32, [64, 1024], name="images")
    labels = tensoropt.placeholder(tensoropt.int32, [64], name="labels")
    hidden = tensoropt.layers.dense(images, 4096, activation=tensoropt.nn.relu, name="wide")
    loss = tensoropt.softmax_cross_entropy(labels, tensoropt.layers.dense(hidden, 4096, name="last"))
    tensoropt.train.AdamOptimizer(0.1).minimize(loss)
    return tensoropt.find_strategy(topology=preset("v100", devices=4))


def _charts(text: str) -> dict[str, Any]:
    found = re.findall(r'<script type="application/json" data-chart="(\w+)">(.*?)</script>', text, re.S)
    return {name: json.loads(figure) for name, figure in found}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    plan = _model()
    path = tmp_path_factory.mktemp("report") / "report.html"
    tensoropt.report(plan, path)
    return plan, path


def test_a_report_is_one_file_with_the_figures_of_the_plan(made: tuple[Plan, Path]) -> None:
    plan, path = made
    text = path.read_text(encoding="utf-8")
    elements = _Elements()
    elements.feed(re.sub(r"<script>.*?</script>", "", text, flags=re.S))
    assert elements.outside == [] and "link" not in elements.tags
    explained = tensoropt.explain(plan)
    for said in (in_units(plan.time_s), in_units(plan.memory_bytes, "bytes"), *explained.seconds, "Second-best splits"):
        assert html.escape(str(said)) in text
    charts = _charts(text)
    assert set(charts) == _CHARTS
    frontier = tensoropt.find_frontier(preset("v100", devices=4))
    drawn = charts["frontier"]["data"][0]
    assert len(drawn["x"]) == len(frontier) and all(line for line in drawn["text"])
    held = [sum(values) for values in zip(*(trace["y"] for trace in charts["memory"]["data"]), strict=True)]
    assert max(held) * 2**20 == pytest.approx(plan.notes["peak_memory"]["memory_bytes"], rel=1e-6)
    assert charts["devices"]["data"][0]["x"] == [1, 2, 4]


def test_a_plan_from_a_file_has_what_needs_no_model(made: tuple[Plan, Path], tmp_path: Path) -> None:
    plan, _ = made
    plan.save(tmp_path / "plan.json")
    tensoropt.reset_default_graph()
    tensoropt.report(tmp_path / "plan.json", tmp_path / "alone.html")
    text = (tmp_path / "alone.html").read_text(encoding="utf-8")
    assert _charts(text) == {} and "No second-best splits and known layouts" in text
    assert in_units(plan.time_s) in text


def test_notebooks_show_plans_and_frontiers_without_scripts() -> None:
    plan = _model()
    frontier = tensoropt.find_frontier(preset("v100", devices=4))
    for shown, said in (
        (plan._repr_html_(), in_units(plan.time_s)),
        (frontier._repr_html_(), f"Frontier of {len(frontier)} strategies"),
    ):
        assert shown is not None and said in shown
        assert "<script" not in shown and "<html" not in shown


def test_texts_are_no_markup() -> None:
    from tensoropt.viz.page import Chart, Page, Section, Table

    evil = "<b>&\x1b[31m</script>"
    page = Page(evil, evil, [Section(evil, evil, [Table((evil,), [[evil]]), Chart("one", [{"name": evil}], {}, evil)])])
    text = page.document()
    body = text.replace(re.findall(r"<script>.*?</script>", text, re.S)[0], "")
    assert "<b>" not in body and "\x1b" not in body
    assert _charts(text)["one"]["data"][0]["name"] == evil


def test_what_cannot_be_reported_is_said(made: tuple[Plan, Path], tmp_path: Path) -> None:
    plan, _ = made
    with pytest.raises(PlotError, match=r"nowhere/report\.html' cannot be written: .*\. Give a file in a directory"):
        tensoropt.report(plan, tmp_path / "nowhere" / "report.html")
    with pytest.raises(PlanError, match="report"):
        tensoropt.report(3.0, tmp_path / "report.html")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"cannot be read"):
        tensoropt.report(tmp_path / "none.json", tmp_path / "report.html")


@pytest.mark.skipif(_CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_draws_it(made: tuple[Plan, Path], tmp_path: Path) -> None:
    plan, path = made
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}")
    line = [str(_CHROMIUM), *flags, "--virtual-time-budget=10000", "--dump-dom", path.as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count('class="main-svg"') >= len(_CHARTS)
    assert done.stdout.count('class="point"') > 3  # marks of the frontier's chart
    assert in_units(plan.time_s) in done.stdout
