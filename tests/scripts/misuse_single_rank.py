"""Misuses of the last rank alone, whose names start with "one rank"; two failures are rank 0's, which works for all."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensoropt
from tensoropt.api.session import strategy_search as strategies
from tensoropt.api.session.reference import Reference
from tests.scripts.misuse import BATCH, Classifier, built, case, guilty, plan_file, run_with


@case
def one_rank_has_another_model() -> None:
    Classifier(width=6 if guilty() else 4)
    tensoropt.find_strategy()


@case
def one_rank_wants_another_strategy() -> None:
    Classifier()
    tensoropt.find_strategy("mini_memory" if guilty() else "mini_time")


@case
def one_rank_wants_another_point_of_the_frontier() -> None:
    Classifier()
    frontier = tensoropt.find_frontier(feed="global")
    tensoropt.find_strategy(frontier.point(0) if guilty() else frontier.best())


@case
def one_rank_profiles_other_devices() -> None:
    Classifier()
    tensoropt.profile_strategies([1, 2] if guilty() else [2])


@case
def one_rank_has_another_plan() -> None:
    Classifier()
    plans = [tensoropt.find_strategy(option) for option in ("mini_time", "data_parallel")]
    tensoropt.build_execution_graph(plan=plans[guilty()])


@case
def one_rank_has_no_plan() -> None:
    Classifier()
    plan = tensoropt.find_strategy()
    tensoropt.build_execution_graph(plan=None if guilty() else plan)


@case
def one_rank_cannot_read_the_plan() -> None:
    path = plan_file()
    if guilty():
        path.unlink()
    tensoropt.find_strategy(path)


@case
def one_rank_wants_unknown_collectives() -> None:
    Classifier()
    plan = tensoropt.find_strategy()
    tensoropt.build_execution_graph(plan=plan, collectives="nccl" if guilty() else "auto")


@case
def one_rank_wants_other_collectives() -> None:
    Classifier()
    plan = tensoropt.find_strategy()
    tensoropt.build_execution_graph(plan=plan, collectives="mpi4py" if guilty() else "auto")


@case
def one_rank_fetches_something_else() -> None:
    model = built()
    tensoropt.run([model.eval, model.w] if guilty() else [model.w, model.train], model.feeds())


@case
def one_rank_fetches_something_else_that_ran_before() -> None:
    model = built()
    for fetch in (model.loss, model.train):
        tensoropt.run(fetch, model.feeds())
    tensoropt.run(model.loss if guilty() else model.train, model.feeds())


@case
def one_rank_feeds_its_share() -> None:
    model = built()
    x = np.ones((BATCH, 4), np.float32)
    tensoropt.run(model.loss, model.feeds(x=x[: BATCH // tensoropt.world_size()] if guilty() else x))


@case
def one_rank_feeds_another_shape() -> None:
    run_with(x=np.ones((BATCH, 5 if guilty() else 4), np.float32))


@case
def one_rank_fetches_an_unknown_name() -> None:
    model = built()
    tensoropt.run("nothing:0" if guilty() else model.w)


@case
def one_rank_plans_while_the_others_run() -> None:
    model = built()
    if guilty():
        tensoropt.find_strategy()
    else:
        tensoropt.run(model.w)


@case
def one_rank_fails_for_a_reason_of_its_own() -> None:
    """Rank 0 searches, so it is rank 0 that fails."""

    def broken(*_arguments: Any, **_named: Any) -> None:
        raise ZeroDivisionError("out of cheese")

    Classifier()
    right = strategies.find_plan
    strategies.find_plan = broken  # type: ignore[assignment]
    try:
        tensoropt.find_strategy()
    finally:
        strategies.find_plan = right


@case
def one_rank_cannot_run_the_reference() -> None:
    """Rank 0 runs it, so it is rank 0 that fails."""

    def broken(*_arguments: Any) -> None:
        raise ZeroDivisionError("out of cheese")

    Classifier()
    plan = tensoropt.find_strategy()
    right = Reference.follow_step
    Reference.follow_step = broken  # type: ignore[assignment, method-assign]
    try:
        tensoropt.verify(plan)
    finally:
        Reference.follow_step = right  # type: ignore[method-assign]


@case
def one_rank_compares_while_the_others_run() -> None:
    model = built()
    if guilty():
        tensoropt.reference_losses(model.loss, model.train, [])
    else:
        tensoropt.run(model.w)
