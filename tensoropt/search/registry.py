"""The registry of finders: every search and every baseline, by name.

Each is one file, called as it is: searches in `tensoropt.finders`, baselines in `tensoropt.baselines`. A file is found
by its name, and imported when somebody asks for it, so that nothing is loaded which does not search.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from tensoropt.errors import PlanError, ProblemError, did_you_mean
from tensoropt.problem.frontier import Frontier
from tensoropt.search.finding import NO_LIMIT, Found, Start
from tensoropt.search.options import MemoryLimit
from tensoropt.space.followers import contracted
from tensoropt.space.space import SearchSpace

__all__ = [
    "Finder",
    "Options",
    "alike",
    "finder_of",
    "finders",
    "get_finder",
    "get_solver",
    "known_names",
    "register",
    "register_baseline",
    "register_search",
]

Offer = Literal["frontier", "trade_off", "fastest"]
Solve = Callable[..., Frontier]
Strategies = Callable[[SearchSpace], Frontier]

_Solve = TypeVar("_Solve", bound=Solve)
_Strategies = TypeVar("_Strategies", bound=Strategies)


class Options(Protocol):
    """How a finder goes about it, as one value of a class of its own; `tensoropt.Mcmc`, for example."""

    @property
    def name(self) -> str:
        """The name of the finder."""
        ...


@dataclass(frozen=True, slots=True)
class Finder:
    """A finder of a space's strategies, with its options.

    Attributes:
        name: by which it is asked for; the name of its file.
        kind: whether it searches, or is a known way to be compared with.
        offers: ``frontier``: all strategies that are worth having; ``trade_off``: those that it has; ``fastest``: the
            one of least time, so that no option but ``mini_time`` can choose.
        run: ``run(space, limit, start)``, with its options as a fourth argument if it has any. See :meth:`find`.
        places: whether its strategies have operators on a part of the devices, in a space of their own.
        begins_at_others: whether it begins at what others found, so that a comparison asks it after them.
        options: None if there are none to give.
        solve: the same for tables alone, where it needs no more.
        prepare: loads what is compiled, which is no part of a search.
        simulates: whether it goes by simulated steps, in which nothing is made again and the batch is whole.
    """

    name: str
    kind: Literal["search", "baseline"]
    offers: Offer
    run: Callable[..., Found]
    places: bool = False
    begins_at_others: bool = False
    options: Options | None = None
    solve: Solve | None = None
    prepare: Callable[[], None] | None = None
    simulates: bool = False

    def find(self, space: SearchSpace, limit: MemoryLimit = NO_LIMIT, start: Start = ()) -> Found:
        """Finds strategies.

        Args:
            space: of all strategies. The result may be in a space of the finder's own.
            limit: what a device may hold. Who cannot keep to it gives what it finds, which `Found.choose` refuses.
            start: strategies that others found in the same graph, to begin at.

        Raises:
            PlanError: it does not apply to the model.
            InfeasibleError: no strategy is possible, or it came to none that fits.
        """
        return self.run(space, limit, start, *([] if self.options is None else [self.options]))


# Filled while modules are imported; never changed by a search.
_FINDERS: dict[str, Finder] = {}
_HOMES = ("tensoropt.finders", "tensoropt.baselines")


def register(finder: Finder) -> None:
    """Declares a finder.

    Raises:
        ProblemError: another one has the name.
    """
    known = _FINDERS.get(finder.name, finder)
    before, now = (f"{one.run.__module__}.{one.run.__qualname__}" for one in (known, finder))
    if before != now:
        raise ProblemError(
            f"{known.kind} {finder.name!r}: a name may be registered once, got {before} and {now}. Rename one of them."
        )
    _FINDERS[finder.name] = finder


def register_search(name: str, *, offers: Offer = "fastest") -> Callable[[_Solve], _Solve]:
    """Declares a function of tables as a search: it is given those of the operators that decide.

    Args:
        name: of the search.
        offers: see :class:`Finder`.

    Raises:
        ProblemError: another finder has the name.
    """

    def add(solve: _Solve) -> _Solve:
        @functools.wraps(solve)
        def run(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
            contraction = space.kept(contracted)
            found = contraction.expand(solve(contraction.problem))
            return Found(space, dataclasses.replace(found, searched=contraction.searched))

        register(Finder(name, "search", offers, run, solve=solve))
        return solve

    return add


def register_baseline(name: str) -> Callable[[_Strategies], _Strategies]:
    """Declares a function of a space, which gives strategies of its problem, as the baseline called ``name``.

    Raises:
        ProblemError: another finder has the name.
    """

    def add(strategies: _Strategies) -> _Strategies:
        @functools.wraps(strategies)
        def run(space: SearchSpace, limit: MemoryLimit, start: Start) -> Found:
            return Found(space, strategies(space))

        register(Finder(name, "baseline", "trade_off", run))
        return strategies

    return add


def finders() -> tuple[Finder, ...]:
    """All finders: searches, baselines, and those that begin at what others found; each kind by name."""
    for name in _files():
        _load(name)
    return tuple(sorted(_FINDERS.values(), key=lambda one: (one.begins_at_others, one.kind != "search", one.name)))


def known_names() -> str:
    """The names of all `finders`, for messages."""
    return ", ".join(repr(finder.name) for finder in finders())


def alike(search: Any) -> str:
    """Returns the "did you mean" hint for the name of an unknown search."""
    return did_you_mean(search, [finder.name for finder in finders()])


def get_finder(search: str | Options) -> Finder:
    """The finder of a name, with the defaults of its options, or of options.

    Raises:
        PlanError: none is called so; the message lists those that exist.
    """
    finder = finder_of(search)
    if finder is None:
        raise PlanError(
            f"search {search!r}: must be one of {known_names()}, got {search!r}.{alike(search)} Choose one of these."
        )
    return finder


def get_solver(name: str) -> Solve:
    """Returns the function by which a search solves a problem that consists of tables alone.

    Raises:
        PlanError: no search is called ``name``.
        ProblemError: the search needs more than tables.
    """
    solve = get_finder(name).solve
    if solve is None:
        raise ProblemError(
            f"search {name!r}: must be one of tables alone, but it needs a space. Use 'ft', for example."
        )
    return solve


def finder_of(search: Any) -> Finder | None:
    """The finder of a name, or of options as a whole; None if there is none."""
    name = search if isinstance(search, str) else getattr(search, "name", None)
    if not isinstance(name, str):
        return None
    _load(name)
    finder = _FINDERS.get(name)
    if finder is None or isinstance(search, str):
        return finder
    return dataclasses.replace(finder, options=search) if isinstance(search, type(finder.options)) else None


def _files() -> dict[str, str]:
    """The modules in which finders may be, by their last names."""
    homes = [importlib.import_module(home) for home in _HOMES]
    return {
        found.name: f"{home.__name__}.{found.name}" for home in homes for found in pkgutil.iter_modules(home.__path__)
    }


def _load(name: str) -> None:
    module = None if name in _FINDERS else _files().get(name)
    if module is not None:
        importlib.import_module(module)
