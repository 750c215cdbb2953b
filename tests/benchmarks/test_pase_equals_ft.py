"""PaSE's best strategy is as fast as the fastest point of the exact frontier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensoropt.space.followers import contracted
from tests.effort import EVERY_CASE, some
from tests.examples.small_models import SMALL, small_space

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("model", some(sorted({*SMALL} - {"lenet"}), 2 if EVERY_CASE else 6))
def test_both_searches_find_the_same_least_time(model: str) -> None:
    from benchmarks.paper.pase_equals_ft import compared

    row = compared(contracted(small_space(model)).problem, 1)
    assert row["ft_is_exact"]
    assert row["equal"], row


def test_a_difference_ends_the_program_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import benchmarks.paper.pase_equals_ft as check
    from benchmarks.paper.__main__ import main

    arguments = ["pase_equals_ft", "--model", "alexnet", "--devices", "2", "--size", "hidden=64", "batch_size=16"]
    main(arguments)
    honest = check.find_best_strategy

    def careless(problem: Any, **options: Any) -> Any:
        """The best strategy of tables that are dearer by a millionth."""
        dearer = problem.with_tables(lambda time_s, memory, _: (np.multiply(time_s, 1 + 1e-6), memory))
        return honest(dearer, **options)

    monkeypatch.setattr(check, "find_best_strategy", careless)
    with pytest.raises(SystemExit, match="pase_equals_ft: these differ: alexnet, 2 devices"):
        main(arguments)
