"""Batches of other sizes, shapes that the first training run feeds, and operators that are made later."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.model import current_model
from tensoropt.api.session.job import current_job
from tensoropt.plan.plan import Plan
from tests.effort import some
from tests.scripts.cases import Distributed, Model, Plain, case, close, core_case, normal, picked, raises, share
from tests.scripts.control_flow import Cell

_PARTS = ["loss", "accuracy", "logits"]


def _open_classifier(m: Any, optimizer: str = "Adam") -> dict[str, Any]:
    """Convolution, batch statistics, products; the batch is open, and so is a number."""
    x = m.placeholder(m.float32, [None, 36], name="x")
    y = m.placeholder(m.int32, [None], name="y")
    keep = m.placeholder(m.float32, name="keep")
    image = m.reshape(x, [-1, 6, 6, 1])
    kernel = m.get_variable("kernel", [3, 3, 1, 8], initializer=normal(m, 1))
    bias = m.get_variable("bias", [8], initializer=m.zeros_initializer())
    maps = m.nn.relu(m.nn.bias_add(m.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME"), bias))
    flat = m.reshape(m.nn.max_pool(maps, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"), [-1, 72])
    w = m.get_variable("w", [72, 16], initializer=normal(m, 2))
    hidden = m.tanh(m.matmul(flat, w)) * keep
    mean, variance = m.nn.moments(hidden, [0])
    scaled = m.nn.batch_normalization(hidden, mean, variance, None, None, 1e-3)
    out = m.get_variable("out", [16, 4], initializer=normal(m, 3))
    logits = m.matmul(scaled, out, name="logits")
    losses = m.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    loss = m.reduce_mean(losses)
    accuracy = m.reduce_mean(m.cast(m.equal(m.argmax(logits, 1, output_type=m.int32), y), m.float32))
    train = getattr(m.train, f"{optimizer}Optimizer")(0.01).minimize(loss)
    parts = {"x": x, "y": y, "keep": keep, "kernel": kernel, "w": w, "out": out, "logits": logits, "losses": losses}
    return {**parts, "loss": loss, "accuracy": accuracy, "train": train}


def _momentum_classifier(m: Any) -> dict[str, Any]:
    """Two dense layers whose updates follow gradients, so that rounding stays rounding."""
    x = m.placeholder(m.float32, [None, 12], name="x")
    y = m.placeholder(m.int32, [None], name="y")
    w = m.get_variable("w", [12, 8], initializer=normal(m, 1))
    v = m.get_variable("v", [8, 4], initializer=normal(m, 2))
    logits = m.matmul(m.nn.relu(m.matmul(x, w)), v, name="logits")
    loss = m.reduce_mean(m.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    accuracy = m.reduce_mean(m.cast(m.equal(m.argmax(logits, 1, output_type=m.int32), y), m.float32))
    train = m.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return {"x": x, "y": y, "w": w, "v": v, "logits": logits, "loss": loss, "accuracy": accuracy, "train": train}


def _batch(rows: int, seed: int, width: int = 12, **extra: Any) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {"x": random.normal(size=(rows, width)).astype(np.float32), "y": random.integers(0, 4, rows), **extra}


def _same_numbers(job: Distributed, plain: Plain, steps: list[tuple[Any, dict[str, Any]]], what: str) -> None:
    for number, (fetches, feeds) in enumerate(steps):
        mine, theirs = job.run(fetches, feeds), plain.run(fetches, feeds)
        if isinstance(fetches, list):
            for name, one, other in zip(fetches, mine, theirs, strict=True):
                close(one, other, f"{what}, run {number} of {len(feeds['x']) if feeds else 0} rows: {name}")


def _epochs(width: int, variables: list[str], **extra: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Full batches and a last one, evaluations of other sizes between, and back."""
    runs: list[tuple[Any, dict[str, Any]]] = []
    for epoch in range(2):
        for rows in (64, 64, 23):
            runs.append((["loss", "train"], _batch(rows, 10 * epoch + rows, width, **extra)))
            runs.append((variables, {}))
        for rows in (100, 37, 64, 1):
            runs.append((_PARTS, _batch(rows, 77 + rows, width, **extra)))
    return runs


# ----------------------------------------------------------------------------------------------- batches of other sizes


def _one_sample(m: Any, shape: tuple[int | None, ...], optimizer: str = "Momentum") -> dict[str, Any]:
    """One sample, such as an image or a text, and a rate that is fed."""
    x = m.placeholder(m.float32, shape, name="x")
    rate = m.placeholder(m.float32, [], name="rate")
    w = m.get_variable("w", [12, 8], initializer=normal(m, 1))
    v = m.get_variable("v", [8], initializer=normal(m, 2))
    seen = m.tanh(m.matmul(m.reshape(x, [-1, 12]), w))
    loss = m.reduce_mean(m.square(m.reduce_sum(seen * v, 1) - 1.0))
    how = {"momentum": 0.9} if optimizer == "Momentum" else {}
    train = getattr(m.train, f"{optimizer}Optimizer")(rate, **how).minimize(loss)
    return {"x": x, "rate": rate, "w": w, "v": v, "loss": loss, "train": train}


def _of_every_kind(m: Any) -> dict[str, Any]:
    """Placeholders of every kind: sparse, ragged, and of dtypes that are no float32."""
    sparse, ragged = m.sparse_placeholder(m.float32, [None, 12]), m.ragged.placeholder(m.int32, 1)
    dtypes = {"bool": m.bool, "uint8": m.uint8, "float64": m.float64, "int64": m.int64}
    dense = {name: m.placeholder(dtype, [None, 2], name=name) for name, dtype in dtypes.items()}
    w = m.get_variable("w", [12, 2], initializer=normal(m, 1))
    table = m.get_variable("table", [32, 2], initializer=normal(m, 2))
    rows = m.ragged.map_flat_values(lambda words: m.nn.embedding_lookup(table, words), ragged)
    hidden = m.sparse.sparse_dense_matmul(sparse, w) + m.reduce_mean(rows, axis=1)
    hidden += m.add_n([m.cast(x, m.float32) * 0.1 for x in dense.values()])
    loss = m.reduce_mean(m.square(hidden))
    train = m.train.AdamOptimizer(0.05).minimize(loss)
    more = m.ragged.map_flat_values(lambda words: words + 1, ragged)
    found = {"sparse": sparse, "ragged": ragged, "w": w, "table": table, "loss": loss, "train": train, "more": more}
    return {**dense, **found, "hidden": hidden}


def _fed_to_every_kind(rows: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    bags = random.normal(size=(rows, 12)) * (random.uniform(size=(rows, 12)) > 0.6)
    places, v1 = np.argwhere(bags), tf.compat.v1
    words = [random.integers(0, 32, random.integers(1, 5)).tolist() for _ in range(rows)]
    dense = {name: random.integers(0, 2, (rows, 2)).astype(name) for name in ("bool", "uint8", "float64", "int64")}
    sparse = v1.SparseTensorValue(places, bags[tuple(places.T)].astype(np.float32), bags.shape)
    return {**dense, "sparse": sparse, "ragged": v1.ragged.constant_value(words, dtype=np.int32)}


@case
def placeholders_of_every_kind() -> None:
    for option in ("mini_time", "mini_memory"):
        plain, job = Plain(_of_every_kind), Distributed(_of_every_kind, option)
        for number, rows in enumerate((8, 8, 1, 3, 8)):
            fed = _fed_to_every_kind(rows, number)
            for fetches in ("train", ["loss", "hidden", "w", "table"]):
                mine, theirs = job.run(fetches, fed), plain.run(fetches, fed)
                for one, other in zip(mine or (), theirs or (), strict=True):
                    close(one, other, f"{option}, run {number}")
        (one,), (other,) = job.run(["more"], fed), plain.run(["more"], fed)
        assert one.to_list() == other.to_list()


@case
def a_fixed_batch_of_one_is_fed_whole() -> None:
    def fed(shape: tuple[int, ...], number: int) -> dict[str, Any]:
        return {"x": np.random.default_rng(number).normal(size=shape).astype(np.float32), "rate": 0.1}

    for shape, open_shape, option, how in (
        ((1, 6, 4, 3), (1, 6, 4, 3), "data_parallel", {}),
        ((1, 5, 12), (1, 5, 12), "mini_memory", {}),
        ((1, 12), (1, 12), "mini_time", {"search": "pase"}),
        ((1, 12), (None, 12), "mini_time", {"batch_size": 1}),
    ):
        make = functools.partial(_one_sample, shape=open_shape)
        plain, job = Plain(make), Distributed(make, option, **how)
        assert job.plan.notes["feed"] == "global"
        for number in range(3):
            for fetches in ("train", ["loss", "w", "v"]):
                mine, theirs = job.run(fetches, fed(shape, number)), plain.run(fetches, fed(shape, number))
                for one, other in zip(mine or (), theirs or (), strict=True):
                    close(one, other, f"{option} of {shape}, run {number}")
        other = fed(shape, tensoropt.world_rank())
        raises(functools.partial(job.run, "loss", other), "must be the same on all")
    assert len(tensoropt.find_frontier(batch_size=1).time_s)


@core_case
def training_and_evaluation_take_batches_of_any_size() -> None:
    for option in some(("data_parallel", "mini_time", "mini_memory")):
        runs = _epochs(12, ["w", "v"])
        _same_numbers(
            Distributed(_momentum_classifier, option, batch_size=64), Plain(_momentum_classifier), runs, option
        )


@case
def convolutions_and_statistics_of_the_batch_are_those_of_its_rows() -> None:
    def make(m: Any) -> Model:
        return _open_classifier(m, "GradientDescent")

    for option in some(("data_parallel", "mini_time")):
        runs = [run for run in _epochs(36, ["kernel", "w", "out"], keep=0.5) if len(run[1].get("x", [0, 0])) > 1]
        _same_numbers(Distributed(make, option), Plain(make), runs, option)


@case
def every_strategy_of_the_frontier_takes_batches_of_any_size() -> None:
    runs = _epochs(12, ["w", "v"])[:7]
    tensoropt.reset_default_graph()
    tensoropt.random.set_seed(1)
    model = _momentum_classifier(tensoropt)
    frontier = tensoropt.find_frontier(batch_size=64)
    for index in range(0, len(frontier.time_s), max(1, len(frontier.time_s) // 4)):
        plan = tensoropt.find_strategy(frontier.point(index), batch_size=64)
        tensoropt.build_execution_graph(plan=plan)
        job = Distributed.__new__(Distributed)
        job.model = model
        _same_numbers(job, Plain(_momentum_classifier), runs, f"point {index}")


@case
def shares_of_other_sizes_are_known_by_what_is_in_them() -> None:
    size = tensoropt.world_size()
    plain, job = Plain(_momentum_classifier), Distributed(_momentum_classifier, batch_size=64)
    for rows in (64, 8 * size, 16 * size, 64, 8 * size):
        feeds = _batch(rows, rows)
        mine = job.run(["loss", "logits", "train"], {name: share(array) for name, array in feeds.items()})
        theirs = plain.run(["loss", "logits", "train"], feeds)
        close(mine[0], theirs[0], f"loss of {rows}")
        close(mine[1], theirs[1], f"logits of {rows}")
    # A whole batch that is as large as a share is whole.
    whole = _batch(64 // size, 5)
    close(job.run("logits", whole), plain.run("logits", whole), "a small batch")


@case
def ranks_that_feed_other_sizes_are_told() -> None:
    job = Distributed(_momentum_classifier, batch_size=64)
    rows = 9 + (tensoropt.world_rank() == 1)
    raises(lambda: job.run("loss", _batch(rows, 1)), "x fed (9, 12)", "x fed (10, 12)", "rank 1")
    raises(lambda: job.run("loss", _batch(0, 1)), "Placeholder 'x'", "(0, 12)")
    raises(lambda: job.run("loss", _batch(9, 1, width=13)), "Placeholder 'x'", "(None, 12)", "(9, 13)")
    raises(lambda: job.run("loss", {"x": _batch(9, 1)["x"]}), "Placeholder 'y'", "was not fed")
    raises(lambda: job.run("loss", {**_batch(9, 1), "y": _batch(8, 1)["y"]}), "'x' (9, 12)", "'y' (8,)")
    close(job.run("loss", _batch(9, 1)), Plain(_momentum_classifier).run("loss", _batch(9, 1)), "after errors")


@case
def a_whole_batch_that_ranks_have_rounded_otherwise_is_no_share() -> None:
    job, plain = Distributed(_momentum_classifier), Plain(_momentum_classifier)
    words = "must be fed the same on all", "differ by", "with other roundings"
    for rows in (16, 12):  # in the first run, and in one of another size than was planned
        feeds = _batch(rows, rows)
        rounded = (feeds["x"] * (1.0 + 1e-6 * tensoropt.world_rank())).astype(np.float32)
        raises(lambda noisy={**feeds, "x": rounded}: job.run(["loss", "train"], noisy), "Placeholder 'x'", *words)
        mine, theirs = (each.run(["loss", "train"], feeds)[0] for each in (job, plain))
        close(mine, theirs, f"{rows} rows")
    feeds = {"x": np.float32(np.zeros([16, 12])), "y": _batch(16, 1)["y"]}
    feeds["x"][8:] = 1e-8  # which is small beside nothing of rank 0's
    parts = {name: share(array) for name, array in feeds.items()}
    close(job.run("loss", parts), plain.run("loss", feeds), "shares of small numbers")


@case
def parts_of_a_sparse_tensor_are_no_shares() -> None:
    def make(m: Any) -> Model:
        given = m.sparse_placeholder(m.float32, [6, 5], name="given")
        w = m.get_variable("w", [5, 3], initializer=normal(m, 1))
        loss = m.reduce_mean(m.square(m.sparse_tensor_dense_matmul(given, w)))
        return {"given": given, "loss": loss, "train": m.train.GradientDescentOptimizer(0.1).minimize(loss)}

    def fed(factor: float, column: int) -> dict[str, Any]:
        places = np.array([[row, (row + column) % 5] for row in range(6)])
        return {"given": tf.compat.v1.SparseTensorValue(places, np.full(6, factor, np.float32), [6, 5])}

    job, plain, rank = Distributed(make), Plain(make), tensoropt.world_rank()
    raises(lambda: job.run(["loss", "train"], fed(1.0 + rank, 0)), "given/values", "a sparse or ragged tensor must be")
    raises(lambda: job.run(["loss", "train"], fed(1.0, rank)), "given/indices", "a sparse or ragged tensor must be")
    for number in range(3):
        mine, theirs = (each.run(["loss", "train"], fed(2.0, number))[0] for each in (job, plain))
        close(mine, theirs, f"step {number}")


@case
def slots_go_on_whatever_the_first_batch_was() -> None:
    job, plain = Distributed(_momentum_classifier, batch_size=64), Plain(_momentum_classifier)
    runs = [(["loss", "train"], _batch(rows, rows)) for rows in (23, 64, 5, 64, 23)]
    _same_numbers(job, plain, [*runs, (["w", "v"], {})], "slots")


@case
def a_table_and_sequences_of_any_length() -> None:
    def make(m: Any) -> Model:
        words = m.placeholder(m.int32, [None, None], name="words")
        next_words = m.placeholder(m.int32, [None, None], name="next_words")
        table = m.get_variable("table", [16, 8], initializer=normal(m, 1))
        w = m.get_variable("w", [8, 16], initializer=normal(m, 2))
        hidden = m.nn.embedding_lookup(table, words)
        scores = m.nn.softmax(m.matmul(hidden, hidden, transpose_b=True))
        flat = m.reshape(m.matmul(scores, hidden), [-1, 8])
        logits = m.matmul(flat, w)
        labels = m.reshape(next_words, [-1])
        loss = m.reduce_mean(m.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        train = m.train.GradientDescentOptimizer(0.5).minimize(loss)
        return {"words": words, "next": next_words, "table": table, "w": w, "loss": loss, "train": train}

    def feeds(rows: int, length: int) -> dict[str, Any]:
        drawn = np.random.default_rng(rows + length).integers(0, 16, (2, rows, length))
        return {"words": drawn[0], "next": drawn[1]}

    job, plain = Distributed(make), Plain(make)
    for rows, length in ((8, 6), (8, 4), (3, 6), (8, 6), (1, 1)):
        got = [runner.run(["loss", "train"], feeds(rows, length))[0] for runner in (job, plain)]
        close(got[0], got[1], f"loss of {rows} x {length}")
    close(job.run("table", {}), plain.run("table", {}), "table")


# -------------------------------------------------------------------------------------------------------- open shapes


@core_case
def the_first_training_run_gives_the_shapes() -> None:
    job, plain = Distributed(_momentum_classifier), Plain(_momentum_classifier)
    raises(lambda: job.plan.time_s, "is not made until the first training run is fed", "'x' (None, 12)", "example=")
    raises(lambda: tensoropt.show_strategy(job.plan), "is not made until")
    assert "'x' (None, 12)" in repr(job.plan)
    with tensoropt.Session() as session:
        session.run(tensoropt.global_variables_initializer())
    assert current_job().executor is None  # nothing is built before it must be
    _same_numbers(job, plain, _epochs(12, ["w", "v"])[:8], "deferred")
    assert isinstance(current_job().require_executor("test").plan, Plan)
    assert current_job().require_executor("test").graph["x"].outputs[0].shape == (64, 12)
    assert job.plan.time_s > 0 and job.plan.mesh.size == tensoropt.world_size()
    again = tensoropt.find_strategy(job.plan)
    tensoropt.build_execution_graph(plan=again)
    close(job.run("loss", _batch(64, 1)), Plain(_momentum_classifier).run("loss", _batch(64, 1)), "built again")


@case
def the_first_training_run_may_feed_shares() -> None:
    size = tensoropt.world_size()
    job, plain = Distributed(_momentum_classifier), Plain(_momentum_classifier)
    for rows in (16 * size, 16 * size, 8 * size):
        feeds = _batch(rows, rows)
        mine = job.run(["loss", "train"], {name: share(array) for name, array in feeds.items()})
        close(mine[0], plain.run(["loss", "train"], feeds)[0], f"loss of {rows}")
    assert current_job().require_executor("test").graph["x"].outputs[0].shape == (16 * size, 12)


@case
def a_whole_batch_that_ranks_cannot_share_is_planned_so() -> None:
    job, plain = Distributed(_momentum_classifier), Plain(_momentum_classifier)
    _same_numbers(job, plain, [(["loss", "train"], _batch(rows, rows)) for rows in (23, 64, 23)], "23 rows")
    assert job.plan.notes["feed"] == "global"


@case
def what_runs_before_training_is_kept_by_it() -> None:
    job, plain = Distributed(_momentum_classifier), Plain(_momentum_classifier)
    _same_numbers(job, plain, [(["w"], {}), (_PARTS, _batch(100, 3)), (_PARTS, _batch(1, 3))], "before")
    for runner, module in ((job, tensoropt), (plain, tf.compat.v1)):
        with runner.model["w"].graph.as_default():
            runner.model = {**runner.model, "double": module.assign(runner.model["w"], 2 * runner.model["w"])}
    job.run("double", {})
    plain.run("double", {})
    assert current_job().require_executor("test").plan.option == "stored in pieces"
    _same_numbers(job, plain, [(["w"], {}), *_epochs(12, ["w", "v"])[:8]], "after")
    assert current_job().require_executor("test").plan.option == "mini_time"


def _agent(m: Any) -> dict[str, Any]:
    """Learns from batches, and acts on one observation, or now and then on many."""
    x = m.placeholder(m.float32, [None, 12], name="x")
    y = m.placeholder(m.int32, [None], name="y")
    random = m.placeholder(m.bool, [], name="random")
    w = m.get_variable("w", [12, 4], initializer=normal(m, 1))
    logits = m.matmul(x, w)
    best = m.argmax(logits, 1)
    acting = m.squeeze(m.nn.softmax(logits), axis=0, name="acting")
    chosen = m.cond(random, lambda: m.argmin(logits, 1), lambda: best)
    losses = m.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    loss = m.reduce_mean(losses)
    train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
    parts = {"x": x, "y": y, "random": random, "acting": acting, "chosen": chosen, "w": w}
    return {**parts, "sharper": acting * acting, "loss": loss, "train": train}


@case
def what_acts_on_one_observation_is_beside_the_batches_of_training() -> None:
    job, plain = Distributed(_agent, "mini_memory"), Plain(_agent)
    one, many = {"x": _batch(1, 5)["x"]}, {"x": _batch(64, 6)["x"]}
    runs = [
        (["acting", "sharper"], one),
        (["loss", "train"], _batch(64, 1)),
        (["acting", "sharper"], one),
        (["chosen"], {**many, "random": True}),
        (["chosen"], {**many, "random": False}),
        (["loss", "train"], _batch(64, 2)),
        (["w"], {}),
    ]
    _same_numbers(job, plain, runs, "acting")
    raises(lambda: job.run("acting", many), "acting")


def _recurrent(m: Any) -> dict[str, Any]:
    """Sequences of any number and length, and a loss that is the last of what knows no shape."""
    x = m.placeholder(m.float32, [None, None, 12], name="x")
    y = m.placeholder(m.int32, [None], name="y")
    lengths = m.placeholder(m.int32, [None], name="lengths")
    output, _ = m.nn.dynamic_rnn(Cell(m, 6), x, sequence_length=lengths, dtype=m.float32)
    w, bias = m.trainable_variables()
    labels = m.tile(y[:, None], [1, m.shape(x)[1]])
    # Checks that sizes agree, which only a run knows.
    losses = m.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=output)
    kept = m.boolean_mask(losses, m.sequence_mask(lengths, m.shape(x)[1]))
    train = m.train.GradientDescentOptimizer(0.1).minimize(m.reduce_mean(kept))
    where = m.where(m.sequence_mask(lengths))
    parts = {"x": x, "y": y, "lengths": lengths, "w": w, "bias": bias, "train": train}
    return {**parts, "kept": kept, "where": where, "best": m.argmax(output, 2)}


@case
def a_loss_may_be_the_last_of_what_only_a_run_knows() -> None:
    def steps(seed: int) -> dict[str, Any]:
        random = np.random.default_rng(seed)
        x = random.normal(size=(8, 5, 12)).astype(np.float32)
        return {"x": x, "y": random.integers(0, 6, 8), "lengths": random.integers(1, 6, 8)}

    for option in ("mini_time", "mini_memory"):
        runs: list[tuple[Any, dict[str, Any]]] = []
        for seed in (1, 2, 3):
            runs += [(["kept", "train"], steps(seed)), (["w", "bias"], {}), (["where", "best"], steps(seed + 3))]
        job, plain = Distributed(_recurrent, option), Plain(_recurrent)
        _same_numbers(job, plain, runs, f"lengths, {option}")


@case
def numbers_of_unknown_shape_are_single_unless_they_are_fed_otherwise() -> None:
    def make(m: Any) -> Model:
        x, y = m.placeholder(m.float32, name="x"), m.placeholder(m.float32, name="y")
        w = m.get_variable("w", [], initializer=m.constant_initializer(0.3))
        b = m.get_variable("b", [], initializer=m.constant_initializer(-0.2))
        cost = m.reduce_sum(m.pow(m.add(m.multiply(x, w), b) - y, 2))
        train = m.train.GradientDescentOptimizer(0.01).minimize(cost)
        return {"x": x, "y": y, "w": w, "b": b, "cost": cost, "train": train}

    job, plain = Distributed(make), Plain(make)
    xs, ys = np.random.default_rng(3).normal(size=(2, 17)).astype(np.float32)
    for x, y in zip(xs, ys, strict=True):
        got = [runner.run(["cost", "train"], {"x": x, "y": y})[0] for runner in (job, plain)]
        close(got[0], got[1], "cost")
    _same_numbers(job, plain, [(["cost"], {"x": xs, "y": ys}), (["w", "b"], {})], "all rows at once")


def _bags(m: Any) -> dict[str, Any]:
    """Two sparse placeholders, whose values and indices are more placeholders than the labels are."""
    bags, weights = m.sparse_placeholder(m.int64, [None, None]), m.sparse_placeholder(m.float32, [None, None])
    labels = m.placeholder(m.float32, [None], name="labels")
    table = m.get_variable("table", [32, 4], initializer=normal(m, 1))
    found = m.nn.embedding_lookup_sparse(table, bags, weights, combiner="mean")
    loss = m.reduce_mean(m.square(m.reduce_sum(found, 1) - labels))
    train = m.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return {"bags": bags, "weights": weights, "labels": labels, "table": table, "loss": loss, "train": train}


def _fed_to_bags(values: int) -> dict[str, Any]:
    random, rows = np.random.default_rng(values), 12
    places = np.array(sorted({*((row, 0) for row in range(rows)), *((i % rows, i // rows) for i in range(values))}))
    shape = (rows, 1 + places[:, 1].max())
    value = tf.compat.v1.SparseTensorValue
    bags = value(places, random.integers(0, 32, len(places)), shape)
    weights = value(places, random.uniform(0.1, 1.0, len(places)).astype(np.float32), shape)
    return {"bags": bags, "weights": weights, "labels": random.normal(size=rows).astype(np.float32)}


@case
def values_of_sparse_tensors_in_an_example_are_no_samples() -> None:
    fed, plain = [_fed_to_bags(values) for values in (35, 35, 41, 29)], Plain(_bags)
    tensoropt.reset_default_graph()
    tensoropt.random.set_seed(1)
    model = _bags(tensoropt)
    plan = tensoropt.find_strategy(example={model[name]: value for name, value in fed[0].items()}, feed="global")
    tensoropt.build_execution_graph(plan=plan)
    assert current_job().require_executor("test").graph.batch_size() == 12
    for number, each in enumerate(fed):
        mine = tensoropt.run([model["loss"], model["train"]], {model[name]: value for name, value in each.items()})
        close(mine[0], plain.run(["loss", "train"], each)[0], f"run {number}")
    close(tensoropt.run(model["table"]), plain.run(["table"], {})[0], "weights")


@case
def inputs_with_defaults_may_be_fed_in_other_sizes() -> None:
    def make(m: Any) -> dict[str, Any]:
        x = m.placeholder(m.float32, [None, 12], name="x")
        mask = m.placeholder_with_default(np.ones([1, 1], np.float32), [None, None], name="mask")
        w = m.get_variable("w", [12, 8], initializer=normal(m, 1))
        loss = m.reduce_mean(m.square(m.matmul(x * mask, w)))
        train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {"x": x, "mask": mask, "w": w, "loss": loss, "train": train}

    steps: list[tuple[Any, dict[str, Any]]] = []
    for number, shape in enumerate([(8, 1), None, (8, 12), (1, 12), None, (4, 1)]):
        feeds = {"x": _batch(4 if shape == (4, 1) else 8, number)["x"]}
        if shape is not None:
            feeds["mask"] = np.random.default_rng(number).uniform(size=shape).astype(np.float32)
        steps += [("train", feeds), (["loss", "w"], feeds)]
    for option, names in (("data_parallel", ["x"]), ("mini_time", ["x", "mask"])):
        example = {f"{name}:0": steps[0][1][name] for name in names}
        _same_numbers(Distributed(make, option, example=example), Plain(make), steps, f"{option} by {names}")


@case
def an_example_gives_the_shapes() -> None:
    job, plain = Distributed.__new__(Distributed), Plain(_momentum_classifier)
    tensoropt.reset_default_graph()
    tensoropt.random.set_seed(1)
    job.model = _momentum_classifier(tensoropt)
    x = job.model["x"]
    raises(lambda: tensoropt.find_strategy(example={x: np.zeros((64, 13))}), "'x'", "(None, 12)", "(64, 13)")
    raises(lambda: tensoropt.find_strategy(example={"z": 1}), "'z'", "no placeholder")
    raises(lambda: tensoropt.find_frontier(), "Placeholder 'x'", "batch_size=", "example=")
    plan = tensoropt.find_strategy(example={x: np.zeros((64, 12))})  # the labels' rows follow
    assert isinstance(plan, Plan)
    tensoropt.build_execution_graph(plan=plan)
    _same_numbers(job, plain, _epochs(12, ["w", "v"])[:4], "example")


# ------------------------------------------------------------------------------------------ what is made afterwards


@case
def what_is_made_after_the_build_can_be_fetched() -> None:
    for option in some(("data_parallel", "mini_memory")):
        job, plain = Distributed(_momentum_classifier, option, batch_size=64), Plain(_momentum_classifier)
        _same_numbers(job, plain, _epochs(12, ["w", "v"])[:2], "before")
        for runner, m in ((job, tensoropt), (plain, tf.compat.v1)):
            model = runner.model
            with model["w"].graph.as_default():
                late = {
                    "norm": m.reduce_sum(m.square(model["w"])),
                    "best": m.reduce_max(m.nn.softmax(model["logits"]), 1),
                    "errors": m.reduce_mean(m.cast(m.not_equal(m.argmax(model["logits"], 1), 0), m.float32)),
                    "halve": m.assign(model["v"], 0.5 * model["v"]),
                    "text": m.summary.scalar("loss", model["loss"]),
                    "noise": m.reduce_sum(m.random.uniform([5], seed=3)),
                }
            runner.model = {**model, **late}
        names = ["norm", "best", "errors"]
        runs = [(names, _batch(64, 1)), (names, _batch(37, 1)), (["noise"], {}), (["noise"], {})]
        runs += [
            (["halve"], {}),
            (["v"], {}),
            *_epochs(12, ["w", "v"])[2:5],
            (["loss", "train"], _batch(64, 4)),
            (["norm"], {}),  # by itself, as TensorFlow reads the variable before or after its update
        ]
        _same_numbers(job, plain, runs, option)
        texts = [tf.compat.v1.Summary.FromString(runner.run("text", _batch(64, 1))) for runner in (job, plain)]
        close(texts[0].value[0].simple_value, texts[1].value[0].simple_value, "summary")


@case
def a_training_step_and_variables_that_are_made_later_train() -> None:
    job, plain = Distributed(_momentum_classifier, batch_size=64), Plain(_momentum_classifier)
    _same_numbers(job, plain, _epochs(12, ["w", "v"])[:2], "before")
    for runner, m in ((job, tensoropt), (plain, tf.compat.v1)):
        model = runner.model
        with model["w"].graph.as_default():
            late = m.get_variable("late", [12, 4], initializer=normal(m, 9))
            other = m.reduce_mean(m.square(m.matmul(model["x"], late) - model["logits"]))
            step = m.train.GradientDescentOptimizer(0.1).minimize(other)
            runner.model = {
                **model,
                "late": late,
                "other": other,
                "step": step,
                "init": m.variables_initializer([late]),
            }
    for runner in (job, plain):
        runner.run("init", {})
    runs = [(["late"], {}), (["other", "step"], _batch(64, 2)), (["other", "step"], _batch(37, 2))]
    _same_numbers(job, plain, [*runs, (["late", "w", "v"], {}), (["loss", "train"], _batch(64, 3))], "late step")
    _same_numbers(job, plain, [(["late", "w", "v"], {})], "late step, variables")


@case
def fetches_of_all_kinds_say_why_they_cannot_be() -> None:
    job = Distributed(_momentum_classifier, batch_size=64)
    with job.model["w"].graph.as_default():
        job.model = {**job.model, "rows": tensoropt.boolean_mask(job.model["logits"], job.model["y"] > 1)}
    for seed in (1, 2):  # rows of a number that only a run knows
        rows, logits = job.run(["rows", "logits"], _batch(64, seed))
        close(rows, logits[_batch(64, seed)["y"] > 1], f"rows of batch {seed}")
    inside = min(current_model().gradient_calls[0].inside)
    for fetch in (job.model["w"].initial_value, inside, tensoropt.is_variable_initialized(job.model["w"])):
        feeds = {job.model[name]: array for name, array in _batch(64, 1).items()}
        raises(lambda fetch=fetch, feeds=feeds: tensoropt.run(fetch, feeds), "cannot be run here", "initial value")
    assert picked(job.model, "w") is job.model["w"]
