"""Every kind of misuse on every rank, one after another in one job; prints what each rank got as one line of JSON.

The last rank only misbehaves in the cases whose name starts with "one rank". Each case must end with an error on all
ranks, and leave a job that still works.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tensoropt
from tensoropt.api import strategies
from tensoropt.api.reference import Reference
from tensoropt.cluster.presets import cpu
from tensoropt.errors import TensorOptError

BATCH = 8
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Registers a misuse under its function's name, with spaces."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


def guilty() -> bool:
    """Whether this is the rank that misbehaves alone."""
    return tensoropt.world_rank() == tensoropt.world_size() - 1


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Sets a variable for a while."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


class Classifier:
    """A small model, and what is needed to run it."""

    def __init__(self, batch: int | None = BATCH, width: int = 4) -> None:
        tensoropt.reset_default_graph()
        tensoropt.random.set_seed(1)
        self.x = tensoropt.placeholder(tensoropt.float32, [batch, 4], name="x")
        self.y = tensoropt.placeholder(tensoropt.int32, [batch], name="y")
        self.rate = tensoropt.placeholder(tensoropt.float32, [], name="rate")
        self.w = tensoropt.get_variable("w", [4, width])
        self.logits = tensoropt.matmul(self.x, self.w, name="logits")
        self.loss = tensoropt.softmax_cross_entropy(self.y, self.logits)
        self.train = tensoropt.GradientDescentOptimizer(self.rate).minimize(self.loss)
        self.eval = tensoropt.nn.softmax(self.logits, name="eval")

    def feeds(self, **changed: Any) -> dict[Any, Any]:
        """A right batch, but for what is changed."""
        right = {"x": np.ones((BATCH, 4), np.float32), "y": np.arange(BATCH) % 4, "rate": 0.1}
        return {getattr(self, name): value for name, value in (right | changed).items()}

    def build(self) -> Classifier:
        """Plans and builds."""
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel"))
        return self


# ------------------------------------------------------------------------------------------------------- order


@case
def run_before_the_graph_is_built() -> None:
    tensoropt.run(Classifier().loss)


@case
def session_before_the_graph_is_built() -> None:
    Classifier()
    tensoropt.Session()


@case
def reference_losses_before_the_graph_is_built() -> None:
    model = Classifier()
    tensoropt.reference_losses(model.loss, model.train, [])


@case
def session_with_a_target() -> None:
    Classifier().build()
    tensoropt.Session("grpc://elsewhere")


# ---------------------------------------------------------------------------------------------------- planning


@case
def unknown_option() -> None:
    Classifier()
    tensoropt.find_strategy("fastest")


@case
def option_of_another_type() -> None:
    Classifier()
    tensoropt.find_strategy(3)


@case
def unknown_way_to_feed() -> None:
    Classifier()
    tensoropt.find_strategy(feed="by hand")


@case
def memory_that_nothing_fits_in() -> None:
    Classifier()
    tensoropt.find_strategy("mini_time", memory_bytes=10)


@case
def memory_that_data_parallelism_does_not_fit_in() -> None:
    Classifier()
    tensoropt.find_strategy("data_parallel", memory_bytes=10)


@case
def negative_memory() -> None:
    Classifier()
    tensoropt.find_strategy(memory_bytes=-1)


@case
def batch_size_of_zero() -> None:
    Classifier(batch=None)
    tensoropt.find_strategy(batch_size=0)


@case
def batch_that_the_ranks_do_not_divide() -> None:
    Classifier(batch=7)
    tensoropt.find_strategy()


@case
def open_shape_without_a_batch_size() -> None:
    Classifier(batch=None)
    tensoropt.find_strategy()


@case
def open_shape_beside_the_batch() -> None:
    tensoropt.reset_default_graph()
    tensoropt.placeholder(tensoropt.float32, [BATCH, None], name="words")
    tensoropt.find_strategy(batch_size=BATCH)


@case
def empty_model() -> None:
    tensoropt.reset_default_graph()
    tensoropt.find_strategy()


@case
def topology_of_another_size() -> None:
    tensoropt.init(cpu(tensoropt.world_size() + 1))


# ------------------------------------------------------------------------------------------------------- plans


def plan_file(change: Callable[[dict[str, Any]], None] = lambda data: None) -> Path:
    """The file of a plan for the classifier, with a change; each rank has its own."""
    Classifier()
    data = tensoropt.find_strategy("data_parallel").to_json()
    change(data)
    path = Path(sys.argv[1]) / f"plan{tensoropt.world_rank()}.json"
    path.write_text(json.dumps(data))
    return path


@case
def missing_plan_file() -> None:
    Classifier()
    tensoropt.find_strategy("/nowhere/plan.json")


@case
def plan_file_that_is_no_json() -> None:
    path = plan_file()
    path.write_text(path.read_text()[:100])
    tensoropt.find_strategy(path)


@case
def plan_file_that_is_no_plan() -> None:
    path = plan_file()
    path.write_text("[1, 2]")
    tensoropt.find_strategy(path)


@case
def plan_file_without_operators() -> None:
    tensoropt.find_strategy(plan_file(lambda data: data.pop("operators")))


@case
def plan_file_of_another_schema() -> None:
    tensoropt.find_strategy(plan_file(lambda data: data.update(schema_version=99)))


@case
def plan_file_with_an_unknown_axis() -> None:
    def change(data: dict[str, Any]) -> None:
        data["operators"]["logits"]["actions"] = ["sideways"] * len(data["mesh"])

    tensoropt.find_strategy(plan_file(change))


@case
def plan_file_that_lacks_an_operator() -> None:
    tensoropt.find_strategy(plan_file(lambda data: data["operators"].pop("logits")))


@case
def plan_file_without_its_reshards() -> None:
    tensoropt.find_strategy(plan_file(lambda data: data.update(edges=[])))


@case
def plan_for_another_graph() -> None:
    Classifier()
    plan = tensoropt.find_strategy("data_parallel")
    Classifier(width=6)
    tensoropt.build_execution_graph(plan=plan)


@case
def saved_plan_for_another_graph() -> None:
    path = plan_file()
    Classifier(width=6)
    tensoropt.find_strategy(path)


@case
def plan_for_another_number_of_devices() -> None:
    Classifier()
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(topology=cpu(4)))


@case
def saved_plan_for_another_number_of_devices() -> None:
    Classifier()
    tensoropt.find_strategy(tensoropt.find_strategy(topology=cpu(4)))


@case
def no_plan() -> None:
    Classifier()
    tensoropt.build_execution_graph()


# ----------------------------------------------------------------------------------------------------- engines


@case
def unknown_engine() -> None:
    Classifier()
    tensoropt.build_execution_graph(engine="pytorch", plan=tensoropt.find_strategy())


@case
def unknown_engine_in_the_environment() -> None:
    Classifier()
    with environment("TENSOROPT_ENGINE", "pytorch"):
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy())


@case
def unknown_collectives() -> None:
    Classifier()
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy(), collectives="nccl")


@case
def unknown_collectives_in_the_environment() -> None:
    Classifier()
    with environment("TENSOROPT_COLLECTIVES", "nccl"):
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy())


# ----------------------------------------------------------------------------------------- feeds and fetches


def run_with(**changed: Any) -> None:
    """A run of a training step with wrong feeds."""
    model = built()
    tensoropt.run([model.loss, model.train], model.feeds(**changed))


@case
def feed_of_another_shape() -> None:
    run_with(x=np.ones((BATCH, 5), np.float32))


@case
def feed_of_another_batch() -> None:
    run_with(x=np.ones((BATCH + 2, 4), np.float32))


@case
def feed_of_another_dtype() -> None:
    run_with(y=np.ones(BATCH, np.float64))


@case
def feed_of_text() -> None:
    run_with(rate="fast")


@case
def feed_of_none() -> None:
    run_with(x=None)


@case
def feed_of_a_ragged_list() -> None:
    run_with(x=[[1.0, 2.0], [3.0]])


@case
def missing_feed() -> None:
    model = built()
    feeds = model.feeds()
    del feeds[model.y]
    tensoropt.run(model.train, feeds)


@case
def feed_of_a_tensor_that_is_computed() -> None:
    model = built()
    tensoropt.run(model.loss, {**model.feeds(), model.logits: np.ones((BATCH, 4))})


@case
def feed_of_a_variable() -> None:
    model = built()
    tensoropt.run(model.loss, {**model.feeds(), model.w: np.ones((4, 4))})


@case
def feed_by_an_unknown_name() -> None:
    model = built()
    tensoropt.run(model.loss, {**model.feeds(), "z": 1})


@case
def feed_of_another_model() -> None:
    old = built()
    Classifier()
    try:
        new = tensoropt.placeholder(tensoropt.float32, [], name="rate_2")
        tensoropt.run(old.loss, {**old.feeds(), new: 1.0})
    finally:
        forget()


@case
def fetch_of_what_was_made_after_planning() -> None:
    model = built()
    later = tensoropt.reduce_sum(model.w, name="later")
    tensoropt.run(later)


@case
def training_step_made_after_planning() -> None:
    model = built()
    later = tensoropt.train.AdamOptimizer().minimize(model.loss, name="later_step")
    tensoropt.run(later, model.feeds())


@case
def fetch_of_none() -> None:
    built()
    tensoropt.run([None])


@case
def fetch_of_an_unknown_name() -> None:
    built()
    tensoropt.run("nothing:0")


@case
def fetch_of_a_number() -> None:
    built()
    tensoropt.run(7)


@case
def fetch_of_another_model() -> None:
    built()
    try:
        tensoropt.run(Classifier().loss)
    finally:
        forget()


@case
def value_that_the_graph_refuses() -> None:
    model = Lookup()
    model.build()
    tensoropt.run(model.train, {model.words: np.full(BATCH, 99)})


class Lookup(Classifier):
    """A model with a table whose rows are looked up by what is fed."""

    def __init__(self) -> None:
        tensoropt.reset_default_graph()
        self.words = tensoropt.placeholder(tensoropt.int32, [BATCH], name="words")
        table = tensoropt.get_variable("table", [6, 4])
        self.loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.nn.embedding_lookup(table, self.words)))
        self.train = tensoropt.GradientDescentOptimizer().minimize(self.loss)


# ------------------------------------------------------------------------------------------------- verification


@case
def verify_a_model_that_trains_nothing() -> None:
    tensoropt.reset_default_graph()
    tensoropt.get_variable("w", [4])
    tensoropt.verify(tensoropt.find_strategy())


@case
def verify_one_of_two_training_steps() -> None:
    model = Classifier()
    tensoropt.train.AdamOptimizer().minimize(model.loss)
    tensoropt.verify(tensoropt.find_strategy())


@case
def verify_what_is_no_training_step() -> None:
    model = Classifier()
    tensoropt.verify(tensoropt.find_strategy(), train_op=model.loss)


# -------------------------------------------------------------------------------------------- one rank differs


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
    right = Reference.run_step
    Reference.run_step = broken  # type: ignore[assignment, method-assign]
    try:
        tensoropt.verify(plan)
    finally:
        Reference.run_step = right  # type: ignore[method-assign]


@case
def one_rank_compares_while_the_others_run() -> None:
    model = built()
    if guilty():
        tensoropt.reference_losses(model.loss, model.train, [])
    else:
        tensoropt.run(model.w)


_built: list[Classifier] = []


def built() -> Classifier:
    """The classifier with its execution graph, made anew after a case that replaced it."""
    if not _built:
        _built.append(Classifier().build())
    return _built[0]


def forget() -> None:
    """Makes the next case build a classifier of its own."""
    _built.clear()


def main() -> None:
    """Runs all cases."""
    got: dict[str, list[str]] = {}
    Classifier()
    got["planning before init"] = attempt(tensoropt.find_strategy)
    comm = None
    for name, function in CASES.items():
        if comm is None:
            tensoropt.init()
            from mpi4py import MPI

            comm = MPI.COMM_WORLD.Dup()
        got[name] = attempt(function)
        if not any(part in name for part in ("feed", "fetch", "training step made", "one rank")):
            forget()
        comm.Barrier()
    forget()
    model = built()
    losses = [float(tensoropt.run([model.loss, model.train], model.feeds())[0]) for _ in range(3)]
    got["afterwards"] = ["", f"{losses}"]
    ranks = comm.gather(got) if comm is not None else [got]
    if ranks:
        print("RESULT", json.dumps(ranks), flush=True)


def attempt(function: Callable[[], Any]) -> list[str]:
    """The class and the message of the error that a misuse ends with."""
    import tensorflow as tf

    try:
        function()
    except (TensorOptError, ZeroDivisionError, tf.errors.OpError) as error:
        return [type(error).__name__, str(error)]
    return ["", "no error"]


if __name__ == "__main__":
    main()
