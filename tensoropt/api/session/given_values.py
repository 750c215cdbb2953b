"""Values that variables begin with where their graph has no initializers: those of variables outside of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

__all__ = ["GivenValues"]


class GivenValues:
    """As :class:`~tensoropt.api.session.reference.InitialValues`, of values that something else has."""

    def __init__(self, values: Callable[[str], Any]) -> None:
        """Takes what gives a variable's whole value, by name."""
        self._values = values

    def has(self, name: str) -> bool:
        """Tells whether the variable has a value: always."""
        return True

    def waits_for_feeds(self, name: str) -> bool:
        """Tells whether a value is computed from feeds: never."""
        return False

    def begin(self, names: Collection[str], feeds: Mapping[str, Any] | None = None) -> None:
        """Begins to initialize variables."""

    def __call__(self, name: str) -> np.ndarray:
        """The whole value of a variable."""
        return np.asarray(self._values(name))

    def close(self) -> None:
        """Ends it."""
