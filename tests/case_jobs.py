"""Tests whose cases one job of several ranks tries: which cases there are, and what fails of them.

The modules of cases are those of ``tests/scripts`` that register functions by ``@case`` and ``@core_case``. What takes
longest is to start a job, so all cases of a job share it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.effort import EVERY_CASE
from tests.mpi_support import run_mpi

__all__ = ["Failures", "cases_of", "check_case", "core_cases_of", "failures_of"]

_SCRIPTS = Path(__file__).parent / "scripts"
_TIMEOUT_S = 1500.0
Failures = list[dict[str, str]]
"""By rank and case; an empty text where a case has not failed."""
_found: dict[str, Failures] = {}


def cases_of(script: str) -> list[str]:
    """Returns the cases that a module registers, without running it."""
    return [name for name, _ in _registered(script)]


def core_cases_of(script: str) -> list[str]:
    """Returns the cases that are tried: all of them in ``make test-all``, else those that stand for a kind."""
    return [name for name, is_core in _registered(script) if is_core or EVERY_CASE]


def _registered(script: str) -> list[tuple[str, bool]]:
    tree = ast.parse((_SCRIPTS / f"{script}.py").read_text(encoding="utf-8"))
    marked = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    kinds = {"case": False, "core_case": True}
    return [
        (node.name.replace("_", " "), kinds[kind])
        for node in marked
        if (kind := getattr(node.decorator_list[0], "id", "")) in kinds
    ]


def failures_of(
    ranks: int, folder: Path, chosen: Sequence[str], once: str, env: Mapping[str, str] | None = None
) -> Failures:
    """Runs cases in one job, once for all workers that share the tests.

    Args:
        ranks: of the job.
        folder: for files.
        chosen: the cases, as ``module:case``.
        once: a name of the job.
        env: variables to add to the environment of the ranks.

    Raises:
        MpiRunError: the job did not come to its end.
    """
    if once not in _found:
        job = run_mpi(_SCRIPTS / "run_cases.py", ranks, folder, *chosen, timeout=_TIMEOUT_S, env=env, once=once)
        line = next(line for line in job.stdout.splitlines() if line.startswith("RESULT "))
        _found[once] = json.loads(line.removeprefix("RESULT "))
        assert len(_found[once]) == ranks
    return _found[once]


def check_case(found: Failures, case: str) -> None:
    """Fails if a case has failed on a rank."""
    failed = [f"rank {rank}:\n{of_rank[case]}" for rank, of_rank in enumerate(found) if of_rank[case]]
    assert not failed, "\n".join(failed)
