"""A new search and a new baseline, each one file, are found by their names and do what all others do."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensoropt.baselines
import tensoropt.finders
from tensoropt.search import finders, get_finder, registry
from tests.search.test_registry import check_finder

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("model")]

_EXAMPLES = Path(__file__).resolve().parent.parent / "extending"


@pytest.fixture
def extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The packages of searches and baselines with some files more."""
    finders()
    monkeypatch.setattr(registry, "_FINDERS", dict(registry._FINDERS))
    modules = []
    for package, example, name in (
        (tensoropt.finders, "add_a_search.py", "descent"),
        (tensoropt.finders, "add_a_search_with_options.py", "sampling"),
        (tensoropt.baselines, "add_a_baseline.py", "no_split"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(_EXAMPLES / example, folder / f"{name}.py")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        modules.append((package, name))
    yield
    for package, name in modules:
        sys.modules.pop(f"{package.__name__}.{name}", None)  # there if it was asked for
        vars(package).pop(name, None)


def build() -> object:
    x = tensoropt.placeholder(tensoropt.float32, [16, 8], name="x")
    y = tensoropt.placeholder(tensoropt.int32, [16], name="y")
    hidden = tensoropt.layers.dense(x, 64, activation=tensoropt.nn.relu)
    loss = tensoropt.softmax_cross_entropy(y, tensoropt.layers.dense(hidden, 8))
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss


@pytest.mark.usefixtures("extended")
def test_a_search_and_a_baseline_are_one_file_each() -> None:
    from tensoropt.cluster import preset

    loss = build()
    where = preset("cpu", devices=4)
    plan = tensoropt.find_strategy(search="descent", topology=where)
    assert plan.option == "descent" and "operators that decide" in str(plan.notes["searched"])
    assert tensoropt.find_strategy(topology=where).time_s <= plan.time_s * (1 + 1e-12)
    whole = tensoropt.find_strategy("mini_memory", search="no_split", topology=where)
    assert plan.memory_bytes < whole.memory_bytes
    with pytest.raises(tensoropt.errors.PlanError, match="search='descent' takes the option 'mini_time'"):
        tensoropt.find_strategy("mini_memory", search="descent", topology=where)
    begun = tensoropt.find_strategy(search=tensoropt.Mcmc(initial=("descent",), iterations=1), topology=where)
    assert begun.time_s <= plan.time_s * (1 + 1e-6)
    table = tensoropt.compare(loss, where, methods=["ft", "descent", "no_split"])
    assert [row.kind for row in table.rows] == ["search", "search", "baseline"]
    assert table.row("descent").time_s == plan.time_s
    assert table.row("no_split").time_s == whole.time_s
    assert {"descent", "no_split"} < {finder.name for finder in finders()}


@pytest.mark.usefixtures("extended")
def test_options_of_a_search_are_one_value() -> None:
    from tensoropt.cluster import preset

    loss, where = build(), preset("cpu", devices=4)
    Sampling = importlib.import_module("tensoropt.finders.sampling").Sampling
    plan = tensoropt.find_strategy(search=Sampling(count=5, seed=1), topology=where)
    assert (plan.option, plan.notes["drawn"], plan.notes["seed"]) == ("sampling", 5, 1)
    table = tensoropt.compare(loss, where, methods=["pase", "sampling", Sampling(count=7)])
    assert table.row("sampling").time_s == table.row("pase").time_s  # at which it begins
    assert [table.plan(name).notes["drawn"] for name in ("sampling", "sampling (2)")] == [100, 7]


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize("graph", ["mlp", "tied"])
@pytest.mark.parametrize("name", ["descent", "sampling", "no_split"])
def test_they_keep_the_contract_of_all_finders(name: str, graph: str) -> None:
    finders()
    assert check_finder(get_finder(name), graph) is not None
