"""Models of one op each train like one process, whatever their plan; what cannot says why."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from tensoropt.api.find.planner import _warn_of_missing_rules
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import GraphError
from tensoropt.graph.registry import has_rule
from tests.effort import EVERY_CASE, THOROUGH
from tests.exec.one_op_models import GROUPS, OPS, REFUSED, build_group, build_models
from tests.exec.random_runs import make_case
from tests.exec.test_random_graphs import problems_of
from tests.mpi_support import run_mpi

_SCRIPT = Path(__file__).with_name("random_graphs_ranks.py")
# What runs whole on every device: the labels of a batch are one list, shapes that only a run knows, and assertions.
_REPLICATED = {"Assert", "CTCLoss", "If", "Subgraph"}


@pytest.mark.mpi
def test_models_of_one_op_train_like_one_process_under_mpirun() -> None:
    assert len(OPS) - len(REFUSED) >= 120
    count = len(GROUPS) if THOROUGH else len(GROUPS) // (4 if EVERY_CASE else 12)
    result = run_mpi(_SCRIPT, 2, 0, count, "one_op", timeout=900)
    assert re.search(rf"{count} graphs on 2 ranks, 0 differ", result.stdout), result.stdout


@pytest.mark.tf
@pytest.mark.parametrize(
    "group", range(0, len(GROUPS), 1 if THOROUGH else 8 if EVERY_CASE else 24), ids=lambda group: GROUPS[group][0]
)
def test_models_of_one_op_train_like_one_process_on_threads(group: int, tmp_path: Path) -> None:
    problems = problems_of(make_case(group, 4, tmp_path, build=build_group), (2, 2))
    assert not problems, "\n".join(problems)


@pytest.mark.tf
def test_what_runs_replicated_says_so(caplog: pytest.LogCaptureFixture) -> None:
    found = set()
    for group in range(len(GROUPS)):
        build_group(group)
        graph = import_model(current_model()).graph
        found |= {op.type for op in graph.operators if not has_rule(op.type)}
        with caplog.at_level(logging.WARNING, "tensoropt"):
            _warn_of_missing_rules(graph, AnalyticCost(cpu(2)))
    assert found == _REPLICATED
    warned = {record.getMessage().split()[0] for record in caplog.records if "has no rule" in record.getMessage()}
    assert warned == found - {"Assert"}  # a check, which every device makes


@pytest.mark.tf
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_planned_is_an_error(name: str) -> None:
    build_models([name])
    with pytest.raises(GraphError, match=REFUSED[name]):
        import_model(current_model())
