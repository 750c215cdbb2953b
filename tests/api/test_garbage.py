"""What the collector walks while models are imported and planned."""

from __future__ import annotations

import gc
import weakref

import pytest

from tensoropt.api.garbage import collecting_new_objects

pytestmark = pytest.mark.tf


class _Ring:
    def __init__(self) -> None:
        self.me = self


def test_what_is_made_inside_is_collected_and_what_is_older_after() -> None:
    older = _Ring()
    old = weakref.ref(older)
    with collecting_new_objects():
        newer = _Ring()
        new = weakref.ref(newer)
        del older, newer
        gc.collect()
        assert new() is None and old() is not None
    gc.collect()
    assert old() is None and not gc.get_freeze_count()


def test_what_the_user_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        with collecting_new_objects():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
