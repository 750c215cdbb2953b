"""A plan that is still to be made, because the script leaves shapes open that the first training run feeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.errors import PlanError
from tensoropt.plan.plan import Plan
from tensoropt.terms import Terms

__all__ = ["DeferredPlan", "as_plan"]

# Whole shapes by placeholder, and how they are fed -> the plan, and the model as it was imported for it.
FindPlan = Callable[[Mapping[str, Sequence[int]], str], tuple[Plan, ImportedModel]]


class DeferredPlan:
    """The plan that ``find_strategy`` returns where shapes are open; it is made once the shapes are known.

    ``build_execution_graph`` takes it as any plan. From the first training run on it has all attributes of a
    :class:`Plan`.

    Attributes:
        option: how the plan will be chosen.
        opened: the declared shapes of the placeholders that leave sizes open, by name.
        feed: how the script was said to feed.
        find: makes the plan; all ranks must call it together.
        terms: in which errors speak of inputs.
        plan: the plan, once it is made.
    """

    def __init__(self, option: str, opened: Mapping[str, Any], feed: str, find: FindPlan, terms: Terms) -> None:
        self.option = option
        self.opened = dict(opened)
        self.feed = feed
        self.find = find
        self.terms = terms
        self.plan: Plan | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(as_plan(self), name)

    def __repr__(self) -> str:
        return f"DeferredPlan({self.option}, {self.waits()})" if self.plan is None else repr(self.plan)

    def waits(self) -> str:
        """Says until when the plan waits, for messages: the first training run with values for the open inputs."""
        named = ", ".join(f"'{name}' {shape}" for name, shape in self.opened.items())
        return f"until the first training run is {self.terms.given} {named}"


def as_plan(value: Any) -> Any:
    """The plan of a :class:`DeferredPlan`; anything else as it is.

    Raises:
        PlanError: it is not made yet.
    """
    if not isinstance(value, DeferredPlan):
        return value
    if value.plan is None:
        raise PlanError(
            f"Plan: is not made {value.waits()}. Train a step first, or have the plan made at once: "
            f"{value.terms.early}."
        )
    return value.plan
