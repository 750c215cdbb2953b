"""What has effects beside the tensors that it makes: writes of variables, checks, random streams; case by case."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt
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
    some_plans,
)

_OPTIONS: tuple[str | int, ...] = ("data_parallel", "mini_time", 1)
_ROWS = ("add", "sub", "mul", "div", "min", "max", "update")
_ENTRIES = ("add", "sub", "update")


def _memories(m: Any, made: dict[str, Any]) -> dict[str, Any]:
    """A variable for each kind of write, with its write and what is read after it."""
    values = m.reshape(m.tanh(m.reduce_mean(made["logits"], 0)), [2, 2])
    found: dict[str, Any] = {}

    def note(kind: str, write: Any) -> None:
        with m.control_dependencies([getattr(write, "op", write)]):
            later = found[kind].read_value()
        found[f"{kind} write"], found[f"{kind} later"] = getattr(write, "op", write), m.identity(later)

    def memory(kind: str) -> Any:
        found[kind] = m.get_variable(kind, [4, 2], initializer=normal(m, 7), trainable=False)
        return found[kind]

    for kind in _ROWS:
        # Rows that are written twice, too.
        note(f"rows_{kind}", getattr(m, f"scatter_{kind}")(memory(f"rows_{kind}"), [1, 1], values + 2.0))
    for kind in _ENTRIES:
        note(f"nd_{kind}", getattr(m, f"scatter_nd_{kind}")(memory(f"nd_{kind}"), [[0, 1], [3, 0]], values[0]))
    note("part", memory("part")[1:3].assign(values))
    return found


@core_case
def every_write_of_a_variable_is_done_and_seen_by_who_waits_for_it() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        memories = _memories(m, made)
        later = m.add_n([m.reduce_sum(value) for name, value in memories.items() if name.endswith(" later")])
        loss = made["loss"] * (1.0 + 0.01 * later)
        return {**made, **memories, "loss": loss, "train": m.train.GradientDescentOptimizer(0.05).minimize(loss)}

    names = [f"{group}_{kind}" for group, kinds in (("rows", _ROWS), ("nd", _ENTRIES)) for kind in kinds] + ["part"]
    compare(make, ["w1", "w2", *names], "train", batch, options=_OPTIONS)
    # Without training: what is fetched is the write itself, or what comes after it.
    compare(make, names, [f"{name} write" for name in names], batch, options=(3,), steps=1)
    compare(make, names, [f"{name} later" for name in names], batch, options=("mini_time",), steps=1)


@case
def a_trained_variable_may_be_written_before_the_loss_reads_it() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        write = m.scatter_update(made["w2"], [2], m.reduce_mean(made["hidden"], 0, keepdims=True)[:, :4])
        with m.control_dependencies([write.op]):
            later = made["w2"].read_value()
            row = m.gather(made["w2"], [2, 5])
        loss = m.reduce_mean(m.square(m.matmul(made["hidden"], later))) + m.reduce_sum(m.square(row))
        return {**made, "loss": loss, "train": m.train.MomentumOptimizer(0.05, 0.9).minimize(loss)}

    compare(make, ["w1", "w2"], "train", batch, options=_OPTIONS)


@case
def what_gradients_wait_for_runs_with_them() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        averages = m.train.ExponentialMovingAverage(0.5)
        optimizer = m.train.GradientDescentOptimizer(0.5)
        with m.control_dependencies([averages.apply([made["loss"]])]):
            pairs = optimizer.compute_gradients(made["loss"])
        count = m.get_variable("count", [], initializer=m.zeros_initializer(), trainable=False)
        with m.control_dependencies([m.assign_add(count, 1.0)]):
            (also,) = m.gradients(made["loss"], [made["hidden"]])
        train = m.group(optimizer.apply_gradients(pairs), m.reduce_sum(also))
        return {**made, "train": train, "count": count, "average": averages.average(made["loss"])}

    compare(make, ["w1", "b1", "w2", "count", "average"], "train", batch, options=_OPTIONS)


@case
def a_lookup_sees_the_assignment_that_it_waits_for() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        with m.control_dependencies([m.assign_add(made["w1"], m.ones([6, 8]))]):
            row = m.gather(made["w1"], [2, 5])
        return {**made, "row": row}

    compare(make, ["w1"], "row", batch, options=_OPTIONS, steps=2)
    for option in some_plans(_OPTIONS):
        job = Distributed(make, option)
        before = job.run("w1", {})
        close(job.run("row", {}), before[[2, 5]] + 1.0, f"plan {option}: row")


@case
def lookups_by_ids_of_unknown_number_see_the_assignments_that_they_wait_for() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        ids, _ = m.unique(made["y"])
        before = m.gather(made["w1"], ids)
        with m.control_dependencies([before]):
            first = m.assign_add(made["w1"], m.ones([6, 8]))
        with m.control_dependencies([first]):
            between = m.gather(made["w1"], ids)
        with m.control_dependencies([between]):
            second = m.assign(made["w1"], made["w1"] * 0.5)
        with m.control_dependencies([second]):
            after = m.gather(made["w1"], ids)
        total = m.reduce_sum(m.concat([before, between * 10.0, after * 100.0], 0), 0)
        found = m.get_variable("found", [8], initializer=m.zeros_initializer(), trainable=False)
        return {**made, "write": m.assign_add(found, total).op, "found": found}

    compare(make, ["w1", "found"], "write", batch, options=_OPTIONS, steps=3)


@case
def checks_that_a_step_waits_for_pass_or_raise_on_every_rank() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        checks = [
            m.debugging.assert_less(made["x"], 50.0, message="too large"),
            m.debugging.assert_non_negative(made["y"]),
            m.debugging.check_numerics(made["x"], "no number"),
        ]
        with m.control_dependencies(checks):
            loss = m.identity(made["loss"])
        train = m.train.GradientDescentOptimizer(0.5).minimize(loss)
        return {**made, "loss": loss, "train": train, "check": checks[0], "text": m.as_string(made["y"])}

    compare(make, ["loss", "w1"], "train", batch, options=_OPTIONS)
    for option in _OPTIONS[:2]:
        job = Distributed(make, option)
        job.run("check", {"x": batch(0)["x"]})
        assert job.run("text", {"y": np.arange(BATCH)}).tolist() == [str(number).encode() for number in range(BATCH)]
        w1 = job.run("w1", {})
        for fetch in ("train", "check"):
            try:
                job.run(fetch, batch(0, x=np.full((BATCH, 6), 99.0, np.float32)))
            except tf.errors.InvalidArgumentError as error:
                assert "too large" in error.message, error.message
            else:
                raise AssertionError(f"plan {option}: {fetch} took what is too large")
        np.testing.assert_array_equal(job.run("w1", {}), w1)


@case
def initializing_again_draws_the_next_random_numbers() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        twin = m.get_variable("twin", initializer=m.identity(made["w1"].initializer.inputs[1]))
        some = m.variables_initializer([made["w2"]])
        return {**made, "twin": twin, "all": m.global_variables_initializer(), "some": some}

    names = ["w1", "w2", "twin"]
    plain, job = Plain(make), Distributed(make)
    first = job.run(names, {})
    job.run("all", {})  # where the script's own first one is TensorFlow's first one
    for mine, theirs, again in zip(job.run(names, {}), first, plain.run(names, {}), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        close(mine, again, "first values")
    for initializer in ("all", "some", "all"):
        job.run(initializer, {})
        plain.run(initializer, {})
        for name, mine, theirs in zip(names, job.run(names, {}), plain.run(names, {}), strict=True):
            close(mine, theirs, f"{name} after initializing {initializer}")
    assert np.abs(job.run("w1", {}) - first[0]).max() > 0.01
    np.testing.assert_array_equal(*job.run(["w1", "twin"], {}))


@case
def a_sampler_without_a_rule_goes_on_in_every_set_of_fetches() -> None:
    def make(m: Any) -> Model:
        made = sgd_classifier(m)
        classes = m.constant(np.arange(BATCH)[:, None], m.int64)
        sampled = m.random.log_uniform_candidate_sampler(classes, 1, 5, True, 50, seed=3)[0]
        fed = m.random.log_uniform_candidate_sampler(m.cast(made["y"], m.int64)[:, None], 1, 5, True, 50, seed=3)[0]
        return {**made, "sampled": sampled, "doubled": 2 * sampled, "fed": fed, "fed twice": 2 * fed}

    for option in ("data_parallel", "mini_time"):
        plain, job = Plain(make), Distributed(make, option)
        for fetch in ("sampled", "doubled", "sampled", "doubled"):
            np.testing.assert_array_equal(job.run(fetch, {}), plain.run(fetch, {}))
        y = {"y": batch(0)["y"]}
        for fetch in ("fed", "fed twice", "fed", "fed twice", "fed"):
            np.testing.assert_array_equal(job.run(fetch, y), plain.run(fetch, y))


@case
def draws_of_other_tensors_go_on_in_every_set_of_fetches() -> None:
    """Of which gradients are taken, too, and in batches of other sizes."""

    def make(m: Any) -> Model:
        x = m.placeholder(m.float32, [None, 6], name="x")
        w = m.get_variable("w", [6, 4], initializer=normal(m, 1))
        logits = m.matmul(x, w)
        gamma = m.random_gamma([3], m.nn.softplus(logits) + 0.5, seed=5)
        made = {
            "actions": m.multinomial(logits, 2, seed=3),
            "gamma": gamma,
            "counts": m.random_poisson(m.stop_gradient(m.nn.softplus(logits)), [2], seed=7),
            "order": m.random_shuffle(m.argmax(logits, 1), seed=9),
        }
        loss = m.reduce_mean(m.square(gamma)) + 0.0 * m.reduce_mean(m.cast(made["actions"], m.float32))
        train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {**made, "x": x, "w": w, "loss": loss, "train": train}

    runs = (
        ["loss", "train"], ["actions"], ["actions", "counts"], ["order", "gamma"], ["loss"], ["order"], ["counts", "w"],
    )  # fmt: skip
    for option in ("data_parallel", "mini_memory"):
        plain, job = Plain(make), Distributed(make, option, batch_size=BATCH)
        for number, fetches in enumerate(runs * 2):
            x = batch(number)["x"][: BATCH if number % 3 else BATCH // 2]
            got, wanted = (each.run(fetches, {"x": x}) for each in (job, plain))
            for name, mine, theirs in zip(fetches, got, wanted, strict=True):
                if theirs is not None:
                    close(mine, theirs, f"{option}, run {number}: {name}")


@case
def variables_on_devices_are_initialized() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        with m.device("/cpu:0"):
            more = m.get_variable("more", [4], initializer=m.ones_initializer())
        return {**made, "more": more, "add": m.assign_add(more, m.ones([4])), "all": m.global_variables_initializer()}

    job = Distributed(make)
    job.run("add", {})
    assert job.run("more", {}).tolist() == [2.0] * 4
    job.run("all", {})
    assert job.run("more", {}).tolist() == [1.0] * 4


def _stated(m: Any, *after: Any) -> Any:
    """Says the order in plain TensorFlow, which tensoropt takes by itself."""
    return m.control_dependencies(after) if m is tf.compat.v1 else contextlib.nullcontext()


@case
def a_step_and_what_is_assigned_of_its_result_follow_one_another() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        train = m.train.RMSPropOptimizer(0.1).minimize(made["loss"])
        with _stated(m, train):  # as Wasserstein GANs do
            clip = m.group(*(w.assign(m.clip_by_value(w, -0.3, 0.3)) for w in (made["w1"], made["w2"])))
        with _stated(m, clip):
            some = m.group(m.scatter_update(made["w2"], [1, 3], 0.5 * m.gather(made["w2"], [3, 1])))
        return {**made, "train": train, "clip": clip, "some": some}

    # In whatever order they are fetched.
    compare(make, ["w1", "w2"], ["some", "clip", "train"], batch, options=_OPTIONS)


@core_case
def two_optimizers_of_one_variable_take_turns() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        first, second = m.train.AdamOptimizer(0.05), m.train.MomentumOptimizer(0.1, 0.9)
        pairs = first.compute_gradients(made["loss"])
        others = second.compute_gradients(m.reduce_mean(m.square(made["logits"])), [made["w1"], made["b1"]])

        def look() -> Any:
            return m.reduce_sum(m.matmul(made["x"], made["w1"]))

        early = look()
        with _stated(m, early, *(gradient for gradient, _ in others)):
            one = first.apply_gradients(pairs)
        with _stated(m, one):
            other = second.apply_gradients(others)
        # What only reads, reads first; a loss beside what is assigned, too.
        seen = early if m is tf.compat.v1 else look()
        with _stated(m, other):
            shrink = m.group(m.assign(made["w1"], 0.9 * made["w1"]))
        return {**made, "one": one, "other": other, "shrink": shrink, "seen": seen}

    compare(make, ["w1", "b1", "w2"], ["other", "one", "shrink"], batch, options=_OPTIONS)
    plain, job = Plain(make), Distributed(make)
    for number in range(3):
        fetched = ["seen", "shrink", "other", "one"]
        close(job.run(fetched, batch(number))[0], plain.run(fetched, batch(number))[0], "seen")


@case
def writes_of_all_kinds_take_the_order_of_the_script() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        mean = m.reduce_mean(made["logits"], 0)
        memory = m.get_variable("memory", [4, 4], initializer=normal(m, 7), trainable=False)
        average = m.get_variable("average", [4], initializer=m.zeros_initializer(), trainable=False)
        flag = m.placeholder(m.bool, [], name="flag")
        old, was = m.identity(memory), m.identity(average)
        with _stated(m, old):
            rows = m.scatter_update(memory, [1], mean[None] + 1.0).op
        with _stated(m, rows):
            part = memory[0:2].assign(memory[0:2] * 2.0 + 1.0).op
        with _stated(m, part):
            more = m.identity(m.assign_add(memory, 0.5 * old))
        with _stated(m, more):
            branch = m.cond(flag, lambda: m.identity(memory.assign(memory * 0.7)), lambda: m.identity(memory))
        with _stated(m, branch):
            entry = m.scatter_nd_add(memory, [[2, 3]], [1.5]).op
        # As a layer that normalizes by batch and is used twice.
        with _stated(m, was):
            towers = [m.identity(m.assign_sub(average, 0.1 * (was - mean)))]
        with _stated(m, *towers):
            towers.append(m.identity(m.assign_sub(average, 0.1 * (was - 2.0 * mean))))
        steps = {"rows": rows, "part": part, "more": more, "branch": branch, "entry": entry, "towers": towers}
        return {**made, **steps, "flag": flag, "memory": memory, "average": average}

    every = ["entry", "towers", "branch", "more", "part", "rows"]
    for flag in (True, False):
        compare(make, ["memory", "average"], every, functools.partial(batch, flag=flag), options=_OPTIONS)
    plain, job = Plain(make), Distributed(make, 5)
    for number in range(2):  # what each of them gives is what there is after it
        values = zip(job.run(every, batch(number, flag=True)), plain.run(every, batch(number, flag=True)), strict=True)
        for name, (mine, theirs) in zip(every, values, strict=True):
            if mine is not None:
                close(np.asarray(mine), np.asarray(theirs), f"run {number}: {name}")


@case
def sharded_variables_are_assigned_where_their_pieces_are() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        mean = m.get_variable("mean", [8], initializer=m.zeros_initializer(), trainable=False)
        with m.control_dependencies([m.assign(mean, 0.9 * mean + 0.1 * m.reduce_mean(made["hidden"], 0))]):
            loss = made["loss"] + m.reduce_mean(made["hidden"] * mean.read_value())
        return {**made, "mean": mean, "loss": loss, "train": m.train.AdamOptimizer(0.05).minimize(loss)}

    plain = Plain(make)
    for number in range(3):
        plain.run("train", batch(number))
    wanted = plain.run(["mean", "w1", "w2"], {})
    for search in ("zero2", "zero3"):
        job = Distributed(make)
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy(search=search))
        for number in range(3):
            job.run("train", batch(number))
        for mine, theirs in zip(job.run(["mean", "w1", "w2"], {}), wanted, strict=True):
            close(mine, theirs, search)


@case
def all_dimensions_of_the_indices_may_be_shared() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        picked = m.gather(made["logits"], made["y"], axis=1, batch_dims=1)
        loss = m.reduce_mean(m.math.expm1(-picked))
        return {**made, "picked": picked, "loss": loss, "train": m.train.GradientDescentOptimizer(0.1).minimize(loss)}

    compare(make, ["picked", "loss", "w1", "w2"], "train", batch, options=_OPTIONS)
