"""Operations on the plan of a parallel Keras model: ``tensoropt.keras.verify`` and ``report``."""

from __future__ import annotations

import os
from typing import Any

from tensoropt.api.keras.parallelize import checked
from tensoropt.api.session import explain
from tensoropt.api.session import verify as of_plans
from tensoropt.api.session.measuring import Measuring
from tensoropt.api.session.verify import Verification
from tensoropt.errors import SessionError
from tensoropt.plan.plan import Plan

__all__ = ["report", "verify"]


def verify(model: Any, steps: int = 3, *, tolerance: float | None = None, collectives: str = "auto") -> Verification:
    """Trains copies of a parallel Keras model by its plan and by plain TensorFlow, and compares them; collective.

    They begin with the weights that the model has by now, and train on random batches; the model itself is not touched.

    Args:
        model: after :func:`parallelize` and a first batch, which has the plan made.
        steps: see :func:`tensoropt.verify`.
        tolerance: see there.
        collectives: see there.

    Raises:
        VerificationError: naming the first operator, gradient, variable or slot that differs, on every rank.
        SessionError: for what is no parallel model, or has no plan yet.
    """
    return of_plans.verify(_plan_of("verify", model), steps, tolerance=tolerance, collectives=collectives)


def report(model: Any, path: str | os.PathLike[str] = "report.html", *, measured: Measuring | None = None) -> None:
    """Writes the report of a parallel Keras model's plan: one file of HTML that needs no network; collective.

    Args:
        model: see :func:`verify`.
        path: see :func:`tensoropt.report`.
        measured: see there.

    Raises:
        SessionError: for what is no parallel model, or has no plan yet; or the block of ``measured`` is not over.
        PlanError: another plan was measured.
        PlotError: Plotly is missing, or there can be no such file.
    """
    explain.report(_plan_of("report", model), path, measured=measured)


def _plan_of(caller: str, model: Any) -> Plan:
    checked(caller, model)
    plan: Plan | None = getattr(model, "tensoropt_plan", None)
    if plan is None:
        raise SessionError(
            f"{caller}: the model '{model.name}' has no plan yet. Call tensoropt.keras.parallelize, and train a batch "
            "first: model.train_on_batch(x, y)."
        )
    return plan
