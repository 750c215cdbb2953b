"""A fresh model for every test, and a thread that is back in eager mode after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def model() -> Iterator[object]:
    """The empty model that the test's mirrored calls build."""
    from tensoropt.api.mirror.model import current_model, leave_graph, reset_default_graph

    reset_default_graph()
    yield current_model()
    leave_graph()
