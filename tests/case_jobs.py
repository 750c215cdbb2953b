"""Tests whose cases one job of several ranks tries: which cases there are, and what fails of them.

The modules of cases are those of ``tests/scripts`` that register functions by ``@case`` and ``@core_case``. What takes
longest is to start a job, so all cases of a job share it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.effort import EVERY_CASE, NO_TIME, time_is_up
from tests.mpi_support import result_of, run_mpi

__all__ = ["Failures", "cases_of", "check_case", "failures_of", "jobs_of"]

_SCRIPTS = Path(__file__).parent / "scripts"
_TIMEOUT_S = 1500.0
_AT_ONCE = 8  # cases of one job, where all are tried: on a slow machine a case takes a minute
Failures = list[dict[str, str]]
"""By rank and case; an empty text where a case has not failed."""
_found: dict[tuple[int, tuple[str, ...]], Failures] = {}


def cases_of(script: str) -> list[str]:
    """Returns the cases that a module registers, without running it."""
    return [name for name, _ in _registered(script)]


def jobs_of(modules: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the cases that are tried of some modules, as ``module:case``, by the job that tries them."""
    core = [f"{module}:{name}" for module in modules for name, is_core in _registered(module) if is_core]
    if not EVERY_CASE:
        return [tuple(core)]
    others = [[f"{module}:{name}" for name, is_core in _registered(module) if not is_core] for module in modules]
    parted = (cases[first : first + _AT_ONCE] for cases in (core, *others) for first in range(0, len(cases), _AT_ONCE))
    return [*map(tuple, parted)]


def _is_core(case: str) -> bool:
    module, _, name = case.partition(":")
    return (name, True) in _registered(module)


@functools.cache
def _registered(script: str) -> list[tuple[str, bool]]:
    tree = ast.parse((_SCRIPTS / f"{script}.py").read_text(encoding="utf-8"))
    marked = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    kinds = {"case": False, "core_case": True}
    return [
        (node.name.replace("_", " "), kinds[kind])
        for node in marked
        if (kind := getattr(node.decorator_list[0], "id", "")) in kinds
    ]


def failures_of(ranks: int, folder: Path, chosen: tuple[str, ...], env: Mapping[str, str] | None = None) -> Failures:
    """Runs cases in one job, once for all workers that share the tests.

    Args:
        ranks: of the job.
        folder: for files.
        chosen: the cases, as ``module:case``.
        env: variables to add to the environment of the ranks.

    Raises:
        MpiRunError: the job did not come to its end.
        Skipped: there is no more time for cases that stand for no kind.
    """
    key = ranks, chosen
    if key not in _found:
        if time_is_up() and not any(_is_core(case) for case in chosen):
            pytest.skip(NO_TIME)
        job = run_mpi(_SCRIPTS / "run_cases.py", ranks, folder, *chosen, timeout=_TIMEOUT_S, env=env, once=str(key))
        _found[key] = result_of(job)
        assert len(_found[key]) == ranks
    return _found[key]


def check_case(found: Failures, case: str) -> None:
    """Fails if a case has failed on a rank."""
    failed = [f"rank {rank}:\n{of_rank[case]}" for rank, of_rank in enumerate(found) if of_rank[case]]
    assert not failed, "\n".join(failed)
