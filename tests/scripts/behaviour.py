"""What ``run`` does, case by case in one job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import tensoropt
from tensoropt.api.session.job import current_job
from tensoropt.plan.plan import Plan
from tests.scripts.cases import (
    BATCH,
    Distributed,
    Model,
    Plain,
    batch,
    case,
    classifier,
    close,
    compare,
    core_case,
    normal,
    sgd_classifier,
    share,
    some_plans,
)

# ---------------------------------------------------------------------------------------------------- training


@core_case
def training_equals_one_process() -> None:
    compare(sgd_classifier, ["loss", "accuracy", "w1", "b1", "w2"], "train", batch)


@case
def any_tensor_can_be_fetched() -> None:
    names = ["hidden", "logits", "losses", "loss", "accuracy", "x", "w1"]
    compare(sgd_classifier, names, "train", batch, options=("data_parallel", "mini_time", 3, 4, 5, 6), steps=1)


@case
def shares_of_the_batch_give_the_same_numbers() -> None:
    for option in some_plans(("data_parallel", "mini_time", 7)):
        results = []
        for cut in (lambda array: array, share):
            job = Distributed(sgd_classifier, option)
            fed = [{name: cut(array) for name, array in batch(number).items()} for number in range(3)]
            results.append([job.run(["loss", "logits", "train"], feeds)[:2] for feeds in fed])
        for whole, shares in zip(*results, strict=True):
            close(shares[0], whole[0], f"{option}: loss")
            close(shares[1], whole[1], f"{option}: logits")


@case
def a_learning_rate_can_be_fed() -> None:
    def make(m: Any) -> Model:
        made = classifier(m, rate=m.placeholder(m.float32, [], name="rate"))
        return {**made, "train": m.train.GradientDescentOptimizer(made["rate"]).minimize(made["loss"])}

    compare(make, ["w1", "w2"], "train", lambda number: batch(number, rate=0.1 * (number + 1)))


@case
def a_learning_rate_can_decay_with_the_global_step() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        step = m.train.get_or_create_global_step()
        rate = m.train.exponential_decay(0.5, step, 1, 0.5) * m.train.piecewise_constant(step, [0, 1], [1.0, 0.5, 2.0])
        return {**made, "step": step, "train": m.train.AdamOptimizer(rate).minimize(made["loss"], global_step=step)}

    compare(make, ["w1", "b1", "w2", "step"], "train", batch)


@case
def two_optimizers_take_turns() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        first = m.train.MomentumOptimizer(0.1, 0.9)
        second = m.train.AdagradOptimizer(0.1)
        return {
            **made,
            "first": first.minimize(made["loss"], var_list=[made["w1"]]),
            "second": second.minimize(made["loss"], var_list=[made["w1"], made["w2"]]),
        }

    plain = Plain(make)
    turns = ["first", "second", "second", "first"]
    for number, turn in enumerate(turns):
        plain.run(turn, batch(number))
    wanted = plain.run(["w1", "w2"], batch(0))
    for option in some_plans(("data_parallel", "mini_time", 8)):
        job = Distributed(make, option)
        for number, turn in enumerate(turns):
            job.run(turn, batch(number))
        for mine, theirs, name in zip(job.run(["w1", "w2"], {}), wanted, ("w1", "w2"), strict=True):
            close(mine, theirs, f"plan {option}: {name}")


@case
def one_optimizer_may_have_two_steps_with_common_slots() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        optimizer = m.train.MomentumOptimizer(0.1, 0.9)
        other = m.reduce_mean(m.square(made["logits"]))
        return {**made, "first": optimizer.minimize(made["loss"]), "second": optimizer.minimize(other)}

    for turn in ("first", "second"):
        compare(make, ["w1", "b1", "w2"], turn, batch, options=("data_parallel", 9))
    job, plain = Distributed(make, 10), Plain(make)
    for number, turn in enumerate(["first", "second", "first"]):
        job.run(turn, batch(number))
        plain.run(turn, batch(number))
    close(job.run("w1", {}), plain.run("w1", {}), "w1 after turns")


@case
def momentum_touches_only_the_rows_that_were_looked_up() -> None:
    def make(m: Any) -> Model:
        words = m.placeholder(m.int32, [BATCH, 3], name="words")
        table = m.get_variable("table", [12, 4], initializer=normal(m, 3))
        w = m.get_variable("w", [4, 2], initializer=normal(m, 4))
        loss = m.reduce_mean(m.square(m.matmul(m.reduce_sum(m.nn.embedding_lookup(table, words), 1), w)))
        train = m.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        return {"words": words, "table": table, "w": w, "loss": loss, "train": train}

    def words(number: int) -> dict[str, Any]:
        # Even rows first, then odd ones: the even rows must rest meanwhile, though they have momentum.
        return {"words": np.random.default_rng(number).integers(0, 6, (BATCH, 3)) * 2 + number % 2}

    compare(make, ["table", "w", "loss"], "train", words, options=("data_parallel", "mini_time", 1, 2, 3, 4), steps=3)
    job = Distributed(make, "mini_time")
    before = job.run("table", {})
    job.run("train", words(0))
    after = job.run("table", {})
    untouched = sorted(set(range(12)) - set(words(0)["words"].reshape(-1).tolist()))
    np.testing.assert_array_equal(after[untouched], before[untouched])


# ---------------------------------------------------------------------------------- what runs beside the training


@case
def assignments_of_the_user_run() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        count = m.get_variable("count", [], m.int32, initializer=m.zeros_initializer(), trainable=False)
        total = m.get_variable("total", [4], initializer=m.zeros_initializer(), trainable=False)
        add = m.assign_add(total, m.reduce_sum(made["logits"], 0))
        both = m.group(m.assign_add(count, 2), add)
        return {**made, "count": count, "total": total, "both": both, "reset": m.assign(total, m.ones([4]))}

    compare(make, ["count", "total"], "both", batch, options=("data_parallel", "mini_time", 11))
    job = Distributed(make)
    job.run("both", batch(0))
    job.run("reset", {})
    np.testing.assert_array_equal(job.run("total", {}), np.ones(4))


@case
def a_training_step_in_a_group_trains() -> None:
    def make(m: Any) -> Model:
        made = sgd_classifier(m)
        count = m.get_variable("count", [], m.int32, initializer=m.zeros_initializer(), trainable=False)
        return {**made, "count": count, "both": m.group(made["train"], m.assign_add(count, 1))}

    compare(make, ["w1", "w2", "count"], "both", batch, options=("data_parallel", 12))


@case
def an_update_that_training_waits_for_runs_with_it() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        mean = m.get_variable("mean", [8], initializer=m.zeros_initializer(), trainable=False)
        update = m.assign(mean, 0.9 * mean + 0.1 * m.reduce_mean(made["hidden"], 0))
        with m.control_dependencies([update]):
            train = m.train.GradientDescentOptimizer(0.1).minimize(made["loss"])
        return {**made, "mean": mean, "train": train}

    compare(make, ["w1", "mean"], "train", batch, options=("data_parallel", "mini_time", 13))


@case
def a_moving_average_after_the_step_sees_the_new_variables() -> None:
    def make(m: Any) -> Model:
        made = sgd_classifier(m)
        average = m.train.ExponentialMovingAverage(0.5)
        with m.control_dependencies([made["train"]]):
            both = average.apply([made["w1"], made["w2"]])
        return {**made, "both": both, "average": average.average(made["w1"]), "average2": average.average(made["w2"])}

    compare(make, ["w1", "w2", "average", "average2"], "both", batch, options=("data_parallel", "mini_time", 14))


@case
def a_read_after_an_assignment_sees_it() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        with m.control_dependencies([m.assign_add(made["w1"], m.ones([6, 8]))]):
            later = m.reduce_sum(made["w1"] * 2.0)
        return {**made, "later": later}

    for option in ("data_parallel", 15):
        job = Distributed(make, option)
        close(job.run("later", {}), Plain(make).run("later", {}), f"plan {option}: later")


# ------------------------------------------------------------------------------------------------------- running


@core_case
def fetches_may_be_nested() -> None:
    job = Distributed(sgd_classifier)
    model, feeds = job.model, {job.model[name]: value for name, value in batch(0).items()}
    loss = tensoropt.run(model["loss"], feeds)
    got = tensoropt.run({"a": [model["loss"], (model["w1"], None)[0]], "b": (model["logits"].name, "w2:0")}, feeds)
    assert sorted(got) == ["a", "b"] and isinstance(got["b"], tuple), got
    close(got["a"][0], loss, "loss")
    assert got["a"][1].shape == (6, 8) and got["b"][0].shape == (BATCH, 4) and got["b"][1].shape == (8, 4)
    assert tensoropt.run([model["train"], model["loss"]], feeds)[0] is None
    assert tensoropt.run(model["train"].name, feeds) is None
    assert tensoropt.run([], {}) == []
    again = tensoropt.run([model["loss"], model["loss"]], feeds)
    assert again[0] == again[1] < loss
    assert tensoropt.run(model["loss"], {"x:0": feeds[model["x"]], "y": feeds[model["y"]]}) == again[0]


@case
def evaluation_runs_no_collective_of_training() -> None:
    job = Distributed(sgd_classifier, "data_parallel")
    engine = current_job().require_executor("test").state.engine
    job.run("train", batch(0))
    engine.reset_counts()
    before = job.run("w1", {})
    sent = engine.counted_bytes()
    assert not sent["all_reduce"], sent
    engine.reset_counts()
    job.run("logits", {"x": batch(0)["x"]})  # needs no labels
    sent = engine.counted_bytes()
    assert not sent["all_reduce"] and not sent["reduce_scatter"], sent
    np.testing.assert_array_equal(job.run("w1", {}), before)
    engine.reset_counts()
    job.run("train", batch(0))
    assert engine.counted_bytes()["all_reduce"], "training by data parallelism must reduce gradients"


@case
def the_initializer_starts_anew() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        return {**made, "train": m.train.AdamOptimizer(0.1).minimize(made["loss"])}

    job = Distributed(make)
    initializer = tensoropt.global_variables_initializer()
    first = job.run("w1", {})
    losses = [[job.run(["loss", "train"], batch(number))[0] for number in range(3)]]
    assert np.max(np.abs(job.run("w1", {}) - first)) > 0.01
    assert tensoropt.run(initializer) is None
    np.testing.assert_array_equal(job.run("w1", {}), first)
    losses.append([job.run(["loss", "train"], batch(number))[0] for number in range(3)])
    assert losses[0] == losses[1], losses  # the optimizer's slots are as new, too


@case
def some_variables_start_anew() -> None:
    job = Distributed(sgd_classifier)
    first = job.run(["w1", "w2"], {})
    some = tensoropt.variables_initializer([job.model["w1"]])
    job.run("train", batch(0))
    trained = job.run(["w1", "w2"], {})
    assert tensoropt.run(some) is None
    np.testing.assert_array_equal(job.run("w1", {}), first[0])
    np.testing.assert_array_equal(job.run("w2", {}), trained[1])
    assert np.max(np.abs(trained[1] - first[1])) > 0


@case
def a_session_runs() -> None:
    job = Distributed(sgd_classifier)
    feeds = {job.model[name]: value for name, value in batch(0).items()}
    with tensoropt.Session() as session:
        session.run(tensoropt.global_variables_initializer())
        first, _ = session.run([job.model["loss"], job.model["train"]], feed_dict=feeds)
        second = session.run(job.model["loss"], feeds)
        assert session.graph is job.model["loss"].graph
    assert second < first
    assert tensoropt.Session().run(job.model["loss"], feeds) == second


@case
def another_plan_can_be_built() -> None:
    job = Distributed(sgd_classifier, "data_parallel")
    losses = []
    for option in some_plans(("data_parallel", "mini_time", 16, 17), 2):
        job.build(option)
        losses.append([float(job.run(["loss", "train"], batch(number))[0]) for number in range(3)])
    for other in losses[1:]:
        close(other, losses[0], "losses")


@case
def a_saved_plan_trains_the_same() -> None:
    path = Path(sys.argv[1]) / f"saved{tensoropt.world_rank()}.json"
    job = Distributed(sgd_classifier)
    plan = tensoropt.find_strategy("mini_time")
    plan.save(path)
    losses = []
    for option in (plan, path, str(path), Plan.load(path)):
        loaded = tensoropt.find_strategy(option)
        assert loaded.to_json() == plan.to_json()
        tensoropt.build_execution_graph(plan=loaded)
        losses.append([float(job.run(["loss", "train"], batch(number))[0]) for number in range(3)])
    assert losses[0] == losses[1] == losses[2] == losses[3], losses


@case
def open_placeholders_take_a_batch_size() -> None:
    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [None, 4], name="x")
    w = tensoropt.get_variable("w", [4, 2], initializer=normal(tensoropt, 1))
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(x, w)))
    train = tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    plan = tensoropt.find_strategy(batch_size=BATCH)
    tensoropt.build_execution_graph(plan=plan)
    feeds = {x: np.random.default_rng(0).normal(size=(BATCH, 4))}
    losses = [float(tensoropt.run([loss, train], feeds)[0]) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2], losses
    close(losses, tensoropt.reference_losses(loss, train, [feeds] * 3), "losses")
    tensoropt.verify(plan, steps=2)
    assert tensoropt.strategy_rows(plan)


@core_case
def points_of_the_frontier_train_as_one_process() -> None:
    plain = Plain(sgd_classifier)
    wanted = [plain.run(["loss", "train"], batch(number))[0] for number in range(2)]
    job = Distributed(sgd_classifier)
    frontier = tensoropt.find_frontier()
    for point in (frontier.point(0), frontier.turning_point(), frontier.best()):
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy(point))
        for number, loss in enumerate(wanted):
            close(job.run(["loss", "train"], batch(number))[0], loss, f"point {point.index}, step {number}: loss")


@case
def device_counts_are_profiled_alike_on_all_ranks() -> None:
    from mpi4py import MPI

    Distributed(sgd_classifier)
    profile = tensoropt.profile_strategies([1, 2, 3], price_per_device_hour=1.0)
    assert [row.devices for row in profile.rows if row.reason is None] == [1, 2]
    assert "8 % 3 != 0" in str(profile.row(3).reason)
    texts = MPI.COMM_WORLD.allgather(profile.to_json())
    assert texts == texts[:1] * len(texts)


# -------------------------------------------------------------------------------------------------------- chance


@case
def dropout_with_a_seed_equals_one_process() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        dropped = m.nn.dropout(made["hidden"], rate=0.5, seed=5)
        loss = m.reduce_mean(m.square(m.matmul(dropped, made["w2"])))
        return {**made, "dropped": dropped, "loss": loss, "train": m.train.GradientDescentOptimizer(0.1).minimize(loss)}

    plain = Plain(make)
    wanted = [plain.run(["dropped", "loss", "train"], batch(number))[:2] for number in range(3)]
    for option in some_plans(("data_parallel", "mini_time", 18, 19)):
        job = Distributed(make, option)
        for number, (dropped, loss) in enumerate(wanted):
            got = job.run(["dropped", "loss", "train"], batch(number))
            close(got[0], dropped, f"plan {option}, step {number}: what dropout leaves")
            close(got[1], loss, f"plan {option}, step {number}: loss")


@case
def models_without_seeds_are_equal_on_all_ranks() -> None:
    from mpi4py import MPI

    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [BATCH, 6], name="x")
    w = tensoropt.get_variable("w", [6, 4])
    kept = tensoropt.nn.dropout(tensoropt.matmul(x, w), rate=0.5)
    loss = tensoropt.reduce_mean(tensoropt.square(kept - 1.0))
    train = tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    plan = tensoropt.find_strategy("data_parallel")
    tensoropt.build_execution_graph(plan=plan)
    feeds = [{x: batch(number)["x"]} for number in range(3)]
    ranks = MPI.COMM_WORLD.allgather(tensoropt.run(w))
    assert all(np.array_equal(ranks[0], other) for other in ranks)
    assert np.unique(ranks[0]).size == ranks[0].size
    losses = [float(tensoropt.run([loss, train], fed)[0]) for fed in feeds]
    close(losses, tensoropt.reference_losses(loss, train, feeds), "losses")
    tensoropt.build_execution_graph(plan=plan)
    assert not np.array_equal(tensoropt.run(w), ranks[0])  # without a seed, each job draws anew
