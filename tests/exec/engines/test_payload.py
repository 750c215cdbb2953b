"""The convention by which sent bytes are counted."""

from __future__ import annotations

import pytest

from tensoropt.exec.engines.payload import KINDS, payload_bytes

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        ("all_reduce", 4, 150),
        ("all_reduce", 3, 133),
        ("all_gather", 4, 300),
        ("reduce_scatter", 4, 75),
        ("all_to_all", 3, 66),
        ("broadcast", 2, 50),
        ("permute", 2, 100),
    ],
)
def test_payload_of_100_bytes(kind: str, size: int, expected: int) -> None:
    assert payload_bytes(kind, 100, size) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_alone_nothing_is_sent(kind: str) -> None:
    assert payload_bytes(kind, 100, 1) == 0
