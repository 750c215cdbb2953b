"""Plans that are given to a function: themselves, or by the files that they were saved to."""

from __future__ import annotations

import os
from typing import Any

from tensoropt.api.find.deferred_plan import as_plan
from tensoropt.plan.plan import Plan

__all__ = ["is_plan_file", "loaded"]


def is_plan_file(value: Any) -> bool:
    """Tells whether a value is the path of a plan's file, and not the name of an option."""
    if isinstance(value, str):
        return os.path.sep in value or value.endswith(".json")
    return isinstance(value, os.PathLike)


def loaded(value: Any) -> Any:
    """A plan that was given by its file, or is made by now; anything else as it is.

    Raises:
        PlanError: the file cannot be read or is not a plan, or the plan is not made yet.
    """
    return Plan.load(value) if is_plan_file(value) else as_plan(value)
