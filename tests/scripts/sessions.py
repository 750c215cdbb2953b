"""Sessions, feeds, summaries and initializers as TensorFlow 1 scripts have them, case by case in one job."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.session.job import current_job
from tensoropt.errors import FeedError, ProblemError, SessionError
from tests.scripts.cases import Model, batch, case, classifier, close, core_case, main, normal, raises, random_plan

_ROWS = np.random.default_rng(2).normal(size=(8, 4)).astype(np.float32)
_PLANS: tuple[str | int, ...] = ("data_parallel", 1)


def in_sessions(
    make: Callable[[Any], Model], plans: tuple[str | int, ...] = _PLANS, **arguments: Any
) -> Iterator[tuple[str, Any, Model, Any]]:
    """A model in TensorFlow alone, then by each plan: what it is, TensorFlow's names, the model, an open session."""
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        tf.compat.v1.set_random_seed(1)
        tf.compat.v1.get_variable_scope().set_use_resource(True)
        yield "one process", tf.compat.v1, make(tf.compat.v1), session
    for option in plans:
        tensoropt.reset_default_graph()
        tensoropt.set_random_seed(1)
        with tensoropt.Session() as session:
            made = make(tensoropt)
            if isinstance(option, int):
                plan = random_plan(option, **arguments)
            else:
                plan = tensoropt.find_strategy(option, **arguments)
            tensoropt.build_execution_graph(plan=plan)
            yield f"plan {option}", tensoropt, made, session


def compare_sessions(
    make: Callable[[Any], Model],
    script: Callable[[Any, Model, Any], Mapping[str, Any]],
    plans: tuple[str | int, ...] = _PLANS,
    **arguments: Any,
) -> None:
    """Fails unless a script gets the same by every plan as in one process."""
    wanted: Mapping[str, Any] = {}
    for what, names, made, session in in_sessions(make, plans, **arguments):
        got = script(names, made, session)
        for key, value in (got if wanted else {}).items():
            if np.asarray(value).dtype.kind in "SUO":
                assert value == wanted[key], f"{what}: {key}: {value!r} is not {wanted[key]!r}"
            else:
                close(value, wanted[key], f"{what}: {key}")
        wanted = wanted or got


def fed(made: Model, **feeds: Any) -> dict[Any, Any]:
    return {made[key]: value for key, value in feeds.items()}


@core_case
def a_session_is_the_default_one() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        return {**made, "train": m.train.GradientDescentOptimizer(0.5).minimize(made["loss"])}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        assert m.get_default_session() is session
        m.group(
            m.group(m.global_variables_initializer(), m.tables_initializer()), m.local_variables_initializer()
        ).run()
        feeds = fed(made, **batch(0))
        got = {"loss": made["loss"].eval(feeds), "w1": made["w1"].eval()}
        made["train"].run(feeds)
        got |= {"w1 after": session.run({"of": [made["w1"]]})["of"][0], "loss after": made["loss"].eval(feeds, session)}
        made["w1"].load(np.full([6, 8], 0.25), session)
        got["loss after load"] = session.make_callable(made["loss"], [made["x"], made["y"]])(*feeds.values())
        made["w1"].initializer.run()
        return {**got, "w1 again": made["w1"].eval()}

    compare_sessions(make, script)


@case
def a_session_takes_options_and_a_config() -> None:
    def make(m: Any) -> Model:
        return classifier(m)

    for what, m, made, session in in_sessions(make):
        config = m.ConfigProto(intra_op_parallelism_threads=1)
        if m is tensoropt:
            session = m.Session(config=config)  # before anything has run: variables keep their values
        session.run(m.global_variables_initializer())
        metadata = m.RunMetadata()
        options = m.RunOptions(trace_level=m.RunOptions.FULL_TRACE)
        session.run(made["loss"], fed(made, **batch(0)), options=options, run_metadata=metadata)
        assert any(device.node_stats for device in metadata.step_stats.dev_stats), what
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel"), config=config)
    with pytest.raises(SessionError, match=r"differ in intra_op_parallelism_threads\. The"):
        tensoropt.Session(config=tensoropt.ConfigProto(intra_op_parallelism_threads=2))
    with pytest.raises(SessionError, match=r"partial_run: a step is run as a whole"):
        session.partial_run_setup([made["loss"]])
    session.close()
    with pytest.raises(SessionError, match=r"^Session: is closed"):
        session.run(made["loss"])


@case
def any_tensor_can_be_fed() -> None:
    def make(m: Any) -> Model:
        keep = m.placeholder_with_default(m.constant(0.5), [], name="keep")
        scale = m.constant([1.0, 2.0, 3.0, 4.0], name="scale")
        x, y = m.placeholder(m.float32, [8, 6], name="x"), m.placeholder(m.int32, [8], name="y")
        w1 = m.get_variable("w1", [6, 8], initializer=normal(m, 1))
        w2 = m.get_variable("w2", [8, 4], initializer=normal(m, 2))
        hidden = m.nn.relu(m.matmul(x * keep, w1))
        logits = m.matmul(hidden, w2) * scale + scale
        labels = m.one_hot(y, 4)
        loss = m.reduce_mean(m.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits))
        train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        unread = m.placeholder(m.bool, [])
        return {k: v for k, v in locals().items() if k != "m"}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        data, ones = fed(made, **batch(0), unread=True), np.ones([8, 8])
        got = {
            "default": session.run(made["loss"], data),
            "keep fed": session.run(made["loss"], {**data, made["keep"]: 1.0}),
            "hidden fed": session.run(made["logits"], {made["hidden"]: ones}),
            "hidden fed to the loss": session.run(made["loss"], {made["hidden"]: ones, made["y"]: batch(0)["y"]}),
            "hidden itself": session.run(made["hidden"], {made["hidden"]: 2 * ones}),
            "a constant fed": session.run(made["loss"], {**data, "scale:0": [4, 3, 2, 1]}),
        }
        for number in range(3):
            labels = np.eye(4)[batch(number)["y"]]
            step = [made["train"], made["loss"]]
            got[f"labels fed {number}"] = session.run(step, {made["x"]: data[made["x"]], made["labels"]: labels})[1]
        if m is tensoropt:
            with pytest.raises(FeedError, match=r"is fed and in the middle of what the training step differentiates"):
                session.run(made["train"], {**data, made["hidden"]: ones})
            with pytest.raises(FeedError, match=r"wants the whole float32\[8, 8\], got shape \(4, 8\)"):
                session.run(made["loss"], {**data, made["hidden"]: ones[:4]})
        return {**got, "w1": session.run(made["w1"])}

    compare_sessions(make, script)


@case
def a_tensor_is_fed_in_another_size_than_planned() -> None:
    def make(m: Any) -> Model:
        x = m.placeholder(m.float32, [None, 6], name="x")
        w1 = m.get_variable("w1", [6, 8], initializer=normal(m, 1))
        w2 = m.get_variable("w2", [8, 4], initializer=normal(m, 2))
        code = m.matmul(x, w1) + m.random_normal([m.shape(x)[0], 8], seed=3)
        decoded = m.matmul(m.nn.relu(code), w2)
        left, right = m.split(decoded, 2, axis=1)
        loss = m.reduce_mean(m.square(left - right)) + m.reduce_mean(m.square(code))
        train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {k: v for k, v in locals().items() if k != "m"}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        session.run(made["train"], {made["x"]: batch(0)["x"]})
        codes = np.random.default_rng(4).normal(size=(8, 8)).astype(np.float32)
        late = m.reduce_sum(made["decoded"] * made["decoded"])
        got: dict[str, Any] = {}
        for rows in (8, 5, 1):
            feeds = {made["code"]: codes[:rows]}
            decoded, code = session.run([made["decoded"], made["code"]], feeds)
            sides = {made["left"]: codes[:rows, :2], made["right"]: codes[:rows, 2:4]}
            got |= {f"decoded {rows}": decoded, f"code {rows}": code, f"late {rows}": session.run(late, feeds)}
            got[f"loss {rows}"] = session.run(made["loss"], {**feeds, **sides})
        with pytest.raises((FeedError, ValueError), match=r"shape \(3, 5\)"):
            session.run(made["decoded"], {made["code"]: codes[:3, :5]})
        return {**got, "w1": session.run(made["w1"])}

    for size in (8, None):
        compare_sessions(make, script, ("data_parallel", "mini_memory"), batch_size=size)


@core_case
def a_critic_is_fed_the_actions_that_its_actor_is_trained_by() -> None:
    def make(m: Any) -> Model:
        x = m.placeholder(m.float32, [8, 6], name="x")
        w = m.get_variable("actor", [6, 2], initializer=normal(m, 1))
        u = m.get_variable("critic", [2, 1], initializer=normal(m, 2))
        actor = m.tanh(m.matmul(x, w))
        actions = m.stop_gradient(actor)
        q = m.matmul(m.square(actions), u)
        loss = m.reduce_mean(m.square(q - 1.0))
        train_critic = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        wanted = m.gradients(q, actions)[0]
        ascent = m.train.GradientDescentOptimizer(-0.1)
        train_actor = ascent.apply_gradients([(m.gradients(actor, w, grad_ys=wanted)[0], w)])
        return {k: v for k, v in locals().items() if k != "m"}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        got: dict[str, Any] = {}
        for number in range(3):
            x = batch(number)["x"]
            acted = np.random.default_rng(number).normal(size=[8, 2])
            got[f"loss {number}"] = session.run(
                [made["train_critic"], made["loss"]], {made["x"]: x, made["actions"]: acted}
            )[1]
            session.run(made["train_actor"], {made["x"]: x})
        if m is tensoropt:
            with pytest.raises(FeedError, match=r"is fed and in the middle of what the training step differentiates"):
                session.run(made["train_actor"], {made["x"]: x, made["actions"]: acted})
        return {**got, **dict(zip(["w", "u"], session.run([made["w"], made["u"]]), strict=True))}

    compare_sessions(make, script)


@case
def sparse_tensors_and_tuples_are_fed() -> None:
    entries, rows = 10, 8

    def make(m: Any) -> Model:
        indices, values = m.placeholder(m.int64, [entries, 2]), m.placeholder(m.float32, [entries])
        sparse = tf.SparseTensor(indices, values, [rows, 6])
        state = (m.placeholder(m.float32, [rows, 3]), (m.placeholder(m.float32, [rows, 3]),))
        w = m.get_variable("w", [6, 3], initializer=normal(m, 1))
        y = m.sparse_tensor_dense_matmul(sparse, w) + state[0] * state[1][0]
        loss = m.reduce_mean(m.square(y - 1.0))
        train = m.train.GradientDescentOptimizer(0.5).minimize(loss)
        return {k: v for k, v in locals().items() if k != "m"}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        got: dict[str, Any] = {}
        for number in range(3):
            random = np.random.default_rng(number)
            chosen = np.sort(random.choice(rows * 6, entries, replace=False))
            values = random.normal(size=entries).astype(np.float32)
            sparse = tf.compat.v1.SparseTensorValue(np.stack([chosen // 6, chosen % 6], 1), values, [rows, 6])
            a, b = random.normal(size=(2, rows, 3)).astype(np.float32)
            feeds: dict[Any, Any] = {made["state"]: (a, (b,))}
            if m is tensoropt:
                feeds[made["sparse"]] = sparse
            else:  # which feeds no shape that is a constant
                feeds |= {made["indices"]: sparse.indices, made["values"]: values}
            got[f"loss {number}"] = session.run([made["train"], made["loss"]], feeds)[1]
        if m is tensoropt:
            with pytest.raises(FeedError, match=r"wants 2 parts, got 3"):
                session.run(made["loss"], {**feeds, made["state"]: (a, b, a)})
            with pytest.raises(FeedError, match=r"is \[8, 6\] in the model, got \[8, 7\]"):
                session.run(made["loss"], {**feeds, made["sparse"]: sparse._replace(dense_shape=[rows, 7])})
        return {**got, "w": session.run(made["w"])}

    compare_sessions(make, script)


@case
def an_example_may_have_sparse_tensors() -> None:
    tensoropt.reset_default_graph()
    sparse = tensoropt.sparse_placeholder(tensoropt.float32, [8, 6])
    y = tensoropt.placeholder(tensoropt.float32, [None, 3], name="y")
    w = tensoropt.get_variable("w", [6, 3])
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.sparse_tensor_dense_matmul(sparse, w) - y))
    tensoropt.train.GradientDescentOptimizer(0.5).minimize(loss)
    value = tf.compat.v1.SparseTensorValue([[0, 1], [3, 2]], np.ones(2, np.float32), [8, 6])
    plan = tensoropt.find_strategy("data_parallel", example={sparse: value, "y": np.zeros((8, 3), np.float32)})
    assert plan.graph is not None and plan.graph["y"].outputs[0].shape == (8, 3)


@case
def what_is_fed_to_a_tensor_is_compared() -> None:
    for _, m, made, session in in_sessions(classifier):
        if m is tensoropt:
            session.run(m.global_variables_initializer())
            with pytest.raises(FeedError, match=r"'hidden|Relu.*was fed as a whole .*must be the same on all 2 ranks"):
                session.run(made["logits"], {made["hidden"]: np.full([8, 8], float(m.world_rank()))})


@case
def variables_of_any_collection_are_initialized() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        data = m.placeholder(m.float32, [3], name="data")
        kept = m.Variable(data, trainable=False, collections=[], name="kept")
        mean, update = m.metrics.mean(made["loss"])
        share, count = m.metrics.accuracy(made["y"], m.argmax(made["logits"], 1))
        # What an assignment returns looks like a variable.
        m.add_to_collection(m.GraphKeys.UPDATE_OPS, m.assign_add(kept, [1.0, 1.0, 1.0]))
        return {**made, "data": data, "kept": kept, "twice": kept * 2, "mean": [mean, share], "update": [update, count]}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run([m.global_variables_initializer(), m.local_variables_initializer()])
        session.run(made["kept"].initializer, {made["data"]: [1.0, 2.0, 3.0]})
        got = {f"update {n}": session.run(made["update"], fed(made, **batch(n))) for n in range(3)}
        session.run(m.get_collection(m.GraphKeys.UPDATE_OPS))
        got |= {"mean": session.run(made["mean"]), "twice": session.run(made["twice"])}
        session.run(m.local_variables_initializer())
        return {**got, "update again": session.run(made["update"], fed(made, **batch(0)))}

    compare_sessions(make, script)


@case
def variables_that_are_fetched_one_by_one_come_together() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        return {**made, "train": m.train.AdamOptimizer(0.01).minimize(made["loss"])}

    programs = 0
    for what, m, made, session in in_sessions(make, ("mini_memory", 1)):
        variables = m.global_variables()
        session.run(m.global_variables_initializer())
        for number in range(3):
            session.run(made["train"], fed(made, **batch(number)))
            whole = session.run(variables)
            for turn in range(2):  # what is returned is the script's to change
                for variable, expected in zip(variables, whole, strict=True):
                    value = session.run(variable)
                    np.testing.assert_array_equal(value, expected, f"{what}, {turn}: {variable.name}")
                    if np.ndim(value):
                        value[:] = 7.0
        made["w2"].load(np.full([8, 4], 3.0), session)
        np.testing.assert_array_equal(session.run(made["w2"]), np.full([8, 4], 3.0))
        if m is tensoropt:
            programs = len(current_job().require_executor("counting")._programs)
    assert programs < len(variables) == 11, (len(variables), programs)


@case
def summaries_are_written_once() -> None:
    folder = Path(sys.argv[1]) / "summaries"

    def make(m: Any) -> Model:
        made = classifier(m)
        m.summary.scalar("loss", made["loss"])
        m.summary.histogram("w1", made["w1"])
        m.summary.image("hidden", m.reshape(made["hidden"], [8, 4, 2, 1]), max_outputs=2)
        m.summary.text("text", m.as_string(made["y"]))
        total = m.py_func(lambda value: np.float32(value.sum()), [made["logits"]], m.float32)
        total.set_shape([])
        return {**made, "merged": m.summary.merge_all(), "total": total}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        if m is not tensoropt:
            session.run(m.global_variables_initializer())
            return {"total": session.run(made["total"], fed(made, **batch(0)))}
        folder.mkdir(exist_ok=True)
        writer = m.summary.FileWriter(str(folder), session.graph)
        session.run(m.global_variables_initializer())
        for step in range(3):
            writer.add_summary(session.run(made["merged"], fed(made, **batch(step))), step)
        writer.close()
        if m.world_rank() == 0:
            (file,) = folder.iterdir()
            events = list(tf.compat.v1.train.summary_iterator(str(file)))
            assert [event.step for event in events if event.HasField("summary")] == [0, 1, 2]
            assert any(event.HasField("graph_def") for event in events)
            tags = {value.tag for event in events for value in event.summary.value}
            assert tags == {"loss", "w1_1", "hidden/image/0", "hidden/image/1", "text"}, tags
            os.remove(file)
        return {"total": session.run(made["total"], fed(made, **batch(0)))}

    compare_sessions(make, script)


@case
def what_prints_does_so_once_and_whole() -> None:
    file = Path(sys.argv[1]) / "printed"

    def make(m: Any) -> Model:
        made = classifier(m)
        with m.control_dependencies([m.print(m.shape(made["hidden"]), output_stream=f"file://{file}")]):
            return {**made, "printing": m.Print(made["hidden"], [made["hidden"]], "whole", first_n=1)}

    for what, m, made, session in in_sessions(make):
        if tensoropt.world_rank() == 0 or m is not tensoropt:
            file.unlink(missing_ok=True)
        session.run(m.global_variables_initializer())
        for number in range(2):
            printing, hidden = session.run([made["printing"], made["hidden"]], fed(made, **batch(number)))
            close(printing, hidden, f"{what}: what is printed passes through")
        session.run(made["w1"])  # by now all ranks have printed
        if m is tensoropt and m.world_rank() == 0:
            assert file.read_text() == "[8 8]\n" * 2


@case
def another_session_begins_as_the_first_one() -> None:
    def make(m: Any) -> Model:
        x = m.placeholder(m.float32, [8, 4])
        w = m.get_variable("w", [4, 6], initializer=m.glorot_uniform_initializer())
        drawn = m.random_normal([8, 6])
        loss = m.reduce_mean(m.square(m.nn.dropout(m.matmul(x, w), rate=0.5) + drawn))
        step = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {"x": x, "loss": loss, "step": step, "init": m.global_variables_initializer()}

    def script(m: Any, made: Model, first: Any) -> Mapping[str, Any]:
        got: dict[str, Any] = {}

        def train(name: str, session: Any) -> None:
            session.run(made["init"])
            feeds = {made["x"]: _ROWS}
            got[name] = [session.run([made["loss"], made["step"]], feeds)[0] for _ in range(3)]

        train("first", first)
        train("first again", first)
        for name in ("second", "third"):
            with m.Session(graph=first.graph) as session:
                train(name, session)
                train(f"{name} again", session)
        assert got["first"] == got["second"] == got["third"] != got["first again"] == got["second again"]
        return got

    compare_sessions(make, script)


@case
def graphs_of_a_script_are_models() -> None:
    tensoropt.reset_default_graph()
    tensoropt.disable_v2_behavior()
    try:
        losses = []
        for rate in (0.1, 0.2):
            with tensoropt.Graph().as_default() as graph, tensoropt.device("/device:GPU:7"):
                x = tensoropt.placeholder(tensoropt.float32, [8, 4])
                assert x.graph is graph and x.shape[-1].value == int(x.get_shape()[1]) == 4
                w = tensoropt.get_variable("w", [x.shape[1], 2], initializer=tensoropt.ones_initializer())
                loss = tensoropt.reduce_mean(tensoropt.matmul(x, w))
                train = tensoropt.train.GradientDescentOptimizer(rate).minimize(loss)
            with tensoropt.Session(graph=graph) as session:
                tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel"))
                session.run(train, {x: np.ones([8, 4])})
                losses.append(session.run(loss, {x: np.ones([8, 4])}))
        with tensoropt.Graph().as_default():
            assert tensoropt.placeholder(tensoropt.float32, [None, 2]).shape[0].value is None
        np.testing.assert_allclose(losses, [4 - 4 * 0.1 / 2, 4 - 4 * 0.2 / 2], rtol=1e-6)
    finally:
        tensoropt.enable_v2_tensorshape()


def _network(m: Any, graph: Any) -> Model:
    """A network whose features are wanted: with random weights of no seed, and a pipeline."""
    with graph.as_default():
        image = m.placeholder(m.float32, [1, 4, 4, 2], name="image")
        kernel = m.get_variable("kernel", [3, 3, 2, 3], initializer=m.random_normal_initializer())
        maps = m.nn.relu(m.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME"))
        count = m.get_variable("count", [], initializer=m.zeros_initializer())
        flat = m.reshape(maps, [-1, 3])
        gram = m.matmul(flat, flat, transpose_a=True)
        rows = m.data.make_one_shot_iterator(m.data.Dataset.range(3)).get_next()
        init, saver = m.global_variables_initializer(), m.train.Saver([kernel])
        counted = m.assign_add(count, 1.0)
    return {k: v for k, v in locals().items() if k not in ("m", "graph")}


def _same_everywhere(value: Any) -> Any:
    """What rank 0 has, which all have."""
    assert current_job().world.on_rank_0("comparing", lambda: np.asarray(value).tolist()) == np.asarray(value).tolist()
    return value


@case
def a_graph_beside_the_model_runs_on_each_rank_by_itself() -> None:
    m, image = tensoropt, np.random.default_rng(0).normal(size=(1, 4, 4, 2)).astype(np.float32)
    path = f"{sys.argv[1]}/features of {tensoropt.world_rank()}"
    m.reset_default_graph()
    grams = []
    for built in (False, True):  # before the model and beside it
        graph = m.Graph()
        made = _network(m, graph)
        with graph.as_default(), m.Session() as session:
            made["init"].run()
            kernel = _same_everywhere(made["kernel"].eval())
            grams.append(_same_everywhere(made["gram"].eval({made["image"]: image})))
            for number in range(2):
                assert session.run([made["counted"], made["rows"]], {}) == [number + 1.0, number]
            if tensoropt.world_rank() == 0:  # no other rank need take part
                made["count"].load(7.0, session)
                assert made["count"].eval() == 7.0
            assert session.apart is not None
            tf.compat.v1.train.Saver([made["kernel"]]).save(session.apart.session, path)
        with pytest.raises(SessionError, match=r"^Session: is closed"):
            session.run(made["gram"])
        again = m.Session(graph=graph)
        made["saver"].restore(again, path)
        np.testing.assert_array_equal(again.run(made["kernel"]), kernel)
        np.testing.assert_array_equal(again.make_callable(made["gram"], [made["image"]])(image), grams[-1])
        if not built:
            with m.Graph().as_default() as trained, m.Session() as session:
                wanted = m.constant(grams[0], name="wanted")
                w = m.get_variable("w", [3, 3], initializer=m.zeros_initializer())
                x = m.placeholder(m.float32, [4, 3])
                loss = m.reduce_mean(m.square(m.matmul(x, w - wanted)))
                train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
                with pytest.raises(SessionError, match=r"no execution graph yet|of another graph"):
                    session.run(train, {x: np.ones([4, 3])})
                m.build_execution_graph(plan=m.find_strategy("mini_time"))
                session.run(train, {x: np.ones([4, 3])})
                first = session.run(loss, {x: np.ones([4, 3])})
    with m.Session(graph=trained) as session:
        assert session.run(loss, {x: np.ones([4, 3])}) == first
    with m.Graph().as_default(), m.Session() as session:
        v = m.get_variable("v", [2], initializer=m.zeros_initializer())
        other = m.train.GradientDescentOptimizer(0.1).minimize(m.reduce_sum(v))
        with pytest.raises(SessionError, match=r"is of another graph than the one that build_execution_graph built"):
            session.run(other)


@case
def measured_steps_are_told_by_operators_and_collectives_on_all_ranks() -> None:
    tensoropt.reset_default_graph()
    made = classifier(tensoropt)
    train = tensoropt.train.AdamOptimizer(0.01).minimize(made["loss"])
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel"))
    with pytest.raises(ProblemError, match="no training step ran in the block"), tensoropt.measuring():
        tensoropt.run(made["loss"], fed(made, **batch(0)))
    with tensoropt.measuring(steps=3) as found:
        with pytest.raises(SessionError, match="after the block"):
            found.show()
        for number in range(10):
            tensoropt.run(train, fed(made, **batch(number)))
    result = found.result
    assert len(result.ranks) == tensoropt.world_size() and [len(rank.traced) for rank in result.ranks] == [3, 3]
    rows = {row.subject: row for row in result.rows}
    plan = current_job().require_executor("test").plan
    for name in ("MatMul", "logits"):  # both the product and its gradients
        kernels = {kernel.backward for kernel in result.ranks[0].traced[0] if kernel.subject == name}
        assert kernels == {False, True} and rows[name].seconds > 0 and not rows[name].communicates
    moved = {str(edge) for edge, entry in plan.edges.items() if entry.backward and edge.tensor.op in ("w1", "b1", "w2")}
    assert moved and all(rows[edge].communicates for edge in moved)
    assert "a step took" in str(result)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    found.save_trace(folder / "trace.json")
    found.save(folder / "steps.json")
    if tensoropt.world_rank() == 0:
        events = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
        names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
        assert names == ["rank 0, measured", "rank 1, measured", "device 0, predicted", "device 1, predicted"]
        assert len(json.loads((folder / "steps.json").read_text(encoding="utf-8"))["rows"]) == len(rows)
        raises(lambda: found.save_trace(folder / "nowhere" / "trace.json"), "cannot be written", kind=ProblemError)
        raises(lambda: found.save(folder / "nowhere" / "steps.json"), "cannot be written", kind=ProblemError)
    raises(found.recalibrate, "the plan goes by analytic costs", "costs='measured'", kind=SessionError)
    tensoropt.report(plan, folder / "report.html", measured=found)
    if tensoropt.world_rank() == 0:
        assert result.verdict in (folder / "report.html").read_text(encoding="utf-8")
    raises(lambda: tensoropt.measuring(steps=0).__enter__(), "steps must be a whole number of at least 1", "got 0")


if __name__ == "__main__":
    main()
