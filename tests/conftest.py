"""Settings for all tests: quiet and small TensorFlow, repeatable hypothesis, one tier for each test."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

from tests.effort import why_left_out

# TensorFlow reads these once, when it is first imported, which is later than this.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The tests run in several processes already.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Measuring operators takes seconds that most tests have no use for.
os.environ.setdefault("TENSOROPT_COSTS", "analytic")
# The default only where a processor has AVX512-VNNI; without it TensorFlow has no kernels for NCHW, which tests need.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Tests run TensorFlow's own products, too, which tensoropt does not keep from oneDNN's fault (exec/primitive_cache.py).
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0")
# The ranks of a test would each claim the whole memory of a graphics card.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Progress is drawn by what the terminal can do; tests must not depend on the one that they are started from.
os.environ["TERM"] = "xterm"
os.environ.pop("COLUMNS", None)

# The same examples in every run; no deadline, since the machine may be busy with other tests.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

TIERS = ("pure", "tf", "mpi")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Checks that every test names its tier; those of mpirun come first, so that others run beside them."""
    untiered = [item.nodeid for item in items if not any(item.get_closest_marker(tier) for tier in TIERS)]
    if untiered:
        raise pytest.UsageError(
            f"every test has one of the marks {', '.join(TIERS)}; these have none: {', '.join(untiered)}. "
            "`pytestmark = pytest.mark.pure` marks a whole file."
        )
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """First jobs that mostly wait, beside tests that compute; then those that have all cores to themselves at the end.

    One worker begins with the first test, another one with those without mpirun; who is done takes over from the other.
    """
    if item.get_closest_marker("mpi") is None:
        return 2
    return 0 if item.get_closest_marker("waits") else 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is left to CI, where this is not CI, or has no more time."""
    for mark in item.iter_markers("left_to_ci"):
        reason = why_left_out(*mark.args)
        if reason is not None:
            pytest.skip(reason)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Forgets the model that the test has built by mirrored calls; the next test may be for eager mode."""
    model = sys.modules.get("tensoropt.api.mirror.model")
    if model is not None:
        model.forget_model()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, also where tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
