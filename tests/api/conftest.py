"""A fresh model for every test."""

from __future__ import annotations

import pytest


@pytest.fixture
def model() -> object:
    """The empty model that the test's mirrored calls build."""
    from tensoropt.api.mirror.model import current_model, reset_default_graph

    reset_default_graph()
    return current_model()
