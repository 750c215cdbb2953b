"""The searches that exist, and the strategies that they may begin at, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tensoropt.errors import ProblemError
from tensoropt.search.result import Frontier

__all__ = ["Search", "get_baseline", "get_search", "register_baseline", "register_search", "search_names"]


Search = Callable[..., Frontier]
"""A search: a `Problem` in, a `Frontier` out. Keyword arguments are its own, and have defaults."""

_Function = TypeVar("_Function", bound=Search)

# Filled once, while modules are imported; never changed by a search.
_SEARCHES: dict[str, Search] = {}
_BASELINES: dict[str, Search] = {}


def register_search(name: str) -> Callable[[_Function], _Function]:
    """Declares the decorated function as the search called ``name``.

    Raises:
        ProblemError: another function has the name.
    """

    def register(function: _Function) -> _Function:
        known = _SEARCHES.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise ProblemError(
                f"search {name!r}: a name may be registered once, got "
                f"{known.__module__}.{known.__qualname__} and {function.__module__}.{function.__qualname__}. "
                "Rename one of them."
            )
        _SEARCHES[name] = function
        return function

    return register


def search_names() -> tuple[str, ...]:
    """All registered names, sorted."""
    return tuple(sorted(_SEARCHES))


def get_search(name: str) -> Search:
    """The search called ``name``.

    Raises:
        ProblemError: no search has the name; the message lists those that exist.
    """
    if name not in _SEARCHES:
        raise ProblemError(
            f"search {name!r}: must be one of {', '.join(map(repr, search_names()))}, got {name!r}. Choose "
            "one of these, or import the package that registers it."
        )
    return _SEARCHES[name]


def register_baseline(name: str, function: Search) -> None:
    """Declares a function of a `SearchSpace`, that gives strategies of its problem, as the baseline called ``name``."""
    _BASELINES[name] = function


def get_baseline(name: str) -> Search:
    """The baseline called ``name``.

    Raises:
        ProblemError: none has the name; the message lists those that exist.
    """
    if name not in _BASELINES:
        known = ", ".join(map(repr, sorted(_BASELINES))) or "none yet: import tensoropt.baselines"
        raise ProblemError(f"baseline {name!r}: must be one of those that exist ({known}), got {name!r}.")
    return _BASELINES[name]
