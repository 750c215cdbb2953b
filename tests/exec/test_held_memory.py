"""A model that does not fit trains with micro-batches and recomputation in processes that cannot have more memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.effort import THOROUGH, left_to_ci
from tests.mpi_support import MpiRunError, result_of, run_mpi

pytestmark = pytest.mark.mpi

_PROGRAM = Path(__file__).resolve().parent.parent / "scripts" / "held_memory.py"
# Of 1,500 MB more that whole batches take: where memory is short the C library finds some hundred that it kept free.
_SLACK_BYTES = 400_000_000


def _trained(kind: str, steps: str, most_bytes: int = 0) -> Any:
    return result_of(run_mpi(_PROGRAM, 2, kind, steps, most_bytes, timeout=300))


@left_to_ci("four jobs, of what `test_recomputed_memory.py` traces")
@pytest.mark.parametrize("kind", ["graph", "keras"] if THOROUGH else ["graph"])
def test_what_does_not_fit_trains_in_parts_where_whole_batches_end(kind: str) -> None:
    most = min(_trained(kind, "split")["data_bytes"] for _ in range(2)) + _SLACK_BYTES
    whole, held = _trained(kind, "whole"), _trained(kind, "split", most)
    assert held["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert whole["data_bytes"] > most + _SLACK_BYTES
    with pytest.raises(MpiRunError) as failure:  # of an op, or of an allocator that ends the process
        _trained(kind, "whole", most)
    said = ("Plan for less: give memory_bytes, micro_batches='auto' or recompute=True.", "bad_alloc", "signal 6")
    assert any(text in failure.value.stderr for text in said)
