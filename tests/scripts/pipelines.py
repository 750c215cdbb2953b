"""Input pipelines as TensorFlow 1 scripts have them: what each rank reads trains as in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.errors import FeedError
from tests.scripts.cases import Model, case, core_case, main, normal
from tests.scripts.sessions import compare_sessions, in_sessions

_RANDOM = np.random.default_rng(0)
_FEATURES = _RANDOM.normal(size=(36, 6)).astype(np.float32)
_LABELS = _RANDOM.integers(0, 4, 36).astype(np.int32)


def trained_by(m: Any, x: Any, y: Any) -> dict[str, Any]:
    """A layer and its training step."""
    w = m.get_variable("w", [6, 4], initializer=normal(m, 1))
    loss = m.reduce_mean(m.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=m.matmul(x, w)))
    return {"x": x, "y": y, "w": w, "loss": loss, "train": m.train.AdamOptimizer(0.1).minimize(loss)}


def until_the_end(m: Any, made: Model, session: Any, feeds: Any = None) -> dict[str, Any]:
    """Trains until the data end: the losses, and the sums of the features of the same elements."""
    losses: list[Any] = []
    sums: list[Any] = []
    while True:
        try:
            _, loss, x = session.run([made["train"], made["loss"], made["x"]], feeds)
        except m.errors.OutOfRangeError:
            return {"losses": losses, "sums": sums}
        losses.append(loss)
        sums.append(x.sum())


@core_case
def a_one_shot_iterator_is_read_by_each_rank() -> None:
    def make(m: Any) -> Model:
        dataset = m.data.Dataset.from_tensor_slices((_FEATURES, _LABELS)).shuffle(20, seed=3).repeat(2)
        dataset = (
            dataset.map(lambda x, y: (m.reverse(x * 2.0, [0]), y), num_parallel_calls=2).batch(8, True).prefetch(1)
        )
        x, y = dataset.make_one_shot_iterator().get_next()
        return trained_by(m, x, y)

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        got = until_the_end(m, made, session)
        assert len(got["losses"]) == 9
        return {**got, "w": session.run(made["w"])}  # which advances nothing

    compare_sessions(make, script)


@case
def an_initializable_iterator_takes_what_is_fed() -> None:
    def make(m: Any) -> Model:
        x, y = m.placeholder(m.float32, [None, 6]), m.placeholder(m.int32, [None])
        size = m.placeholder(m.int64, [])
        iterator = m.data.make_initializable_iterator(m.data.Dataset.from_tensor_slices((x, y)).batch(size, True))
        features, labels = iterator.get_next()
        features.set_shape([8, 6])
        labels.set_shape([8])
        return {**trained_by(m, features, labels), "start": iterator.initializer, "fed": (x, y, size)}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        with pytest.raises(m.errors.FailedPreconditionError):
            session.run(made["x"])
        session.run(m.group(m.global_variables_initializer(), m.local_variables_initializer()))
        got: dict[str, Any] = {}
        for epoch in range(2):
            session.run(made["start"], dict(zip(made["fed"], (_FEATURES[epoch:], _LABELS[epoch:], 8), strict=True)))
            got |= {f"{key} {epoch}": value for key, value in until_the_end(m, made, session).items()}
            assert len(got[f"losses {epoch}"]) == 4
        # What is fed in the place of an element is read instead of it.
        feeds = {made["x"]: np.ones([8, 6]), made["y"]: _LABELS[:8]}
        got["loss of what is fed"], got["x"] = session.run([made["loss"], made["x"]], feeds)
        return got

    compare_sessions(make, script)


@case
def an_iterator_of_a_structure_switches_datasets() -> None:
    def make(m: Any) -> Model:
        slices = m.data.Dataset.from_tensor_slices
        training = slices((_FEATURES, _LABELS)).batch(8, drop_remainder=True)
        testing = m.data.Dataset.zip((slices(_FEATURES[:9] + 1), slices(_LABELS[:9]))).batch(8, drop_remainder=True)
        iterator = m.data.Iterator.from_structure(m.data.get_output_types(training), m.data.get_output_shapes(training))
        x, y = iterator.get_next()
        starts = {"train from": iterator.make_initializer(training), "test from": iterator.make_initializer(testing)}
        return {**trained_by(m, x, y), **starts}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run([m.global_variables_initializer(), made["train from"]])
        got: dict[str, Any] = {}
        for epoch in range(2):
            session.run(made["train from"])
            got |= {f"{key} {epoch}": value for key, value in until_the_end(m, made, session).items()}
            session.run(made["test from"])
            got[f"test {epoch}"] = session.run(made["loss"])
        return got

    compare_sessions(make, script)


@case
def a_handle_chooses_the_iterator() -> None:
    def make(m: Any) -> Model:
        slices = m.data.Dataset.from_tensor_slices
        training = slices((_FEATURES, _LABELS)).repeat().batch(8, drop_remainder=True)
        testing = slices((_FEATURES[:9] + 1, _LABELS[:9])).batch(8, drop_remainder=True)
        handle = m.placeholder(m.string, [])
        x, y = m.data.Iterator.from_string_handle(
            handle, m.data.get_output_types(training), m.data.get_output_shapes(training)
        ).get_next()
        iterators = training.make_one_shot_iterator(), testing.make_initializable_iterator()
        return {**trained_by(m, x, y), "handle": handle, "iterators": iterators}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        train, test = (session.run(iterator.string_handle()) for iterator in made["iterators"])
        got: dict[str, Any] = {}
        for number in range(3):
            session.run(made["train"], {made["handle"]: train})
            session.run(made["iterators"][1].initializer)
            got |= {
                f"{number} {k}": v
                for k, v in until_the_end(m, {**made, "train": []}, session, {made["handle"]: test}).items()
            }
        return got

    compare_sessions(make, script)


@case
def files_and_generators_are_read() -> None:
    folder = Path(sys.argv[1]) / "pipelines"
    if tensoropt.world_rank() == 0:
        folder.mkdir(exist_ok=True)
        for number in range(2):
            lines = [" ".join(map(str, row)) for row in _FEATURES[number * 18 :][:18]]
            (folder / f"{number}.txt").write_text("\n".join(lines))
            with tensoropt.python_io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
                for row in _FEATURES[number * 18 :][:18]:
                    writer.write(row.tobytes())
    current_ranks_meet()

    def numbers() -> Iterator[Any]:
        yield from _LABELS

    def make(m: Any) -> Model:
        def floats(line: Any) -> Any:
            return m.reshape(m.string_to_number(m.string_split([line]).values), [6])

        def record(text: Any) -> Any:
            return m.reshape(m.decode_raw(text, m.float32), [6])

        files = m.data.Dataset.list_files(str(folder / "*.txt"), shuffle=False)
        lines = files.interleave(m.data.TextLineDataset, cycle_length=2).map(floats)
        records = m.data.TFRecordDataset([str(folder / f"{number}.tfrecord") for number in range(2)]).map(record)
        labels = m.data.Dataset.from_generator(numbers, m.int32, [])
        features = m.data.Dataset.zip((lines, records)).map(lambda a, b: a + 2 * b)
        dataset = m.data.Dataset.zip((features, labels)).filter(lambda x, _: x[0] < 5).batch(8, drop_remainder=True)
        x, y = dataset.make_one_shot_iterator().get_next()
        return trained_by(m, x, y)

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        return until_the_end(m, made, session)

    compare_sessions(make, script)


def current_ranks_meet() -> None:
    """Waits for all ranks."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()


@case
def what_shuffles_without_a_seed_does_so_alike() -> None:
    tensoropt.reset_default_graph()
    dataset = tensoropt.data.Dataset.from_tensor_slices((_FEATURES, _LABELS)).shuffle(36)
    dataset = dataset.map(lambda x, y: (x + tensoropt.random_uniform([6]), y)).batch(12, drop_remainder=True)
    iterators = dataset.make_one_shot_iterator(), dataset.make_initializable_iterator()
    mades = []
    for number, iterator in enumerate(iterators):
        with tensoropt.variable_scope(f"model{number}"):
            mades.append(trained_by(tensoropt, *iterator.get_next()))
    with tensoropt.Session() as session:
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel"))
        session.run(iterators[1].initializer)
        for made in mades:
            assert len(until_the_end(tensoropt, made, session)["losses"]) == 3


@case
def each_rank_may_read_its_share() -> None:
    def make(m: Any) -> Model:
        ranks = m.world_size() if m is tensoropt else 1
        dataset = m.data.Dataset.from_tensor_slices((_FEATURES, _LABELS)).batch(8 // ranks)
        if ranks > 1:
            dataset = dataset.shard(ranks, m.world_rank())
        dataset = dataset.take(4)
        x, y = dataset.make_one_shot_iterator().get_next()
        return {**trained_by(m, x, y), "size": m.shape(x)[0]}

    wanted: list[Any] = []
    for _, m, made, session in in_sessions(make, batch_size=8):
        session.run(m.global_variables_initializer())
        got = until_the_end(m, made, session)["losses"]
        wanted = wanted or got
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert len(wanted) == 4


@core_case
def a_rank_whose_data_end_early_ends_the_epoch_on_all() -> None:
    rank = tensoropt.world_rank()
    tensoropt.reset_default_graph()
    dataset = tensoropt.data.Dataset.from_tensor_slices((_FEATURES, _LABELS)).batch(4)
    dataset = dataset.shard(tensoropt.world_size(), rank).take(4 - rank)
    iterator = dataset.make_initializable_iterator()
    made = trained_by(tensoropt, *iterator.get_next())
    with tensoropt.Session() as session:
        tensoropt.build_execution_graph(
            plan=tensoropt.find_strategy("data_parallel", batch_size=4 * tensoropt.world_size())
        )
        for fetched in (made["train"], made["x"]):
            session.run(iterator.initializer)
            for _ in range(5 - tensoropt.world_size()):
                session.run(fetched)
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(fetched)
        session.run(iterator.initializer)
        session.run(made["train"])


def _compare(
    make: Callable[[Any], Model],
    script: Callable[[Any, Model, Any], Mapping[str, Any]],
    sizes: tuple[int | None, ...] = (8, None),
) -> None:
    """Fails unless a script gets the same as in one process, planned for batches of 8 and by its first training run."""
    for size in sizes:
        compare_sessions(make, script, ("data_parallel", "mini_memory"), batch_size=size)


@case
def the_last_batch_may_be_smaller() -> None:
    def make(m: Any) -> Model:
        x, y = m.data.Dataset.from_tensor_slices((_FEATURES, _LABELS)).batch(8).make_one_shot_iterator().get_next()
        return trained_by(m, x, y)

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        got = {**until_the_end(m, made, session), "w": session.run(made["w"])}
        assert len(got["losses"]) == 5
        return got

    _compare(make, script)


@case
def what_waits_for_a_pipeline_runs_it() -> None:
    def make(m: Any) -> Model:
        read = m.data.Dataset.from_tensor_slices((_FEATURES, _LABELS)).repeat().batch(8)
        iterator = m.data.make_initializable_iterator(read)
        x, y = iterator.get_next()
        made = trained_by(m, x, y)
        epoch = m.get_variable("epoch", [], m.int32, initializer=m.zeros_initializer(), trainable=False)
        with m.control_dependencies([x]):
            after_element = m.identity(made["w"])
            counted = epoch.assign_add(100)
        with m.control_dependencies([iterator.initializer]):
            begun = epoch.assign_add(1)
        noise = m.random_normal([m.shape(x)[0], 6], seed=3)  # which takes an element for its size
        waits = {"after element": after_element, "counted": counted.op, "begun": begun, "begin": begun.op}
        return {**made, **waits, "noise": noise, "epoch": epoch, "start": iterator.initializer}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        session.run(made["start"])
        got: dict[str, Any] = {}
        for fetch in ("train", "after element", "counted", "noise", "begun", "noise", "counted", "begin", "counted"):
            value = session.run(made[fetch])
            if fetch == "noise":
                got[f"rows {len(got)}"] = value.shape[0]
            got[f"x {len(got)}"] = session.run(made["x"])
            got[f"epoch {len(got)}"] = session.run(made["epoch"])
        return got

    _compare(make, script)


@case
def what_is_fed_keeps_the_pipeline_where_it_is() -> None:
    def make(m: Any) -> Model:
        read = m.data.Dataset.from_tensor_slices((_FEATURES, _LABELS)).repeat().batch(8)
        x, y = m.data.make_one_shot_iterator(read).get_next()
        return trained_by(m, m.placeholder_with_default(x, [None, 6]), m.placeholder_with_default(y, [None]))

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        got: dict[str, Any] = {"first": session.run([made["train"], made["loss"]])[1]}
        late = m.exp(-made["loss"])
        for rows in (8, 3, 1):
            feeds = {made["x"]: _FEATURES[:rows], made["y"]: _LABELS[:rows]}
            got[f"loss of {rows}"] = session.run(made["loss"], feeds)
            got[f"late of {rows}"] = session.run(late, feeds)
            got[f"x after {rows}"] = session.run(made["x"])
        return got

    _compare(make, script)


@case
def each_session_has_iterators_of_its_own() -> None:
    def make(m: Any) -> Model:
        read = m.data.Dataset.from_tensor_slices((_FEATURES, _LABELS)).shuffle(20, seed=3).batch(8, True)
        made = trained_by(m, *m.data.make_one_shot_iterator(read).get_next())
        other = m.data.make_initializable_iterator(m.data.Dataset.range(5))
        init = m.global_variables_initializer()
        return {**made, "init": init, "start": other.initializer, "number": other.get_next()}

    def script(m: Any, made: Model, first: Any) -> Mapping[str, Any]:
        got: dict[str, Any] = {}

        def train(name: str, session: Any) -> None:
            session.run(made["start"])
            session.run(made["init"])
            got[f"{name} losses"] = [session.run([made["train"], made["loss"]])[1] for _ in range(2)]
            got[f"{name} numbers"] = [session.run(made["number"]) for _ in range(2)]

        train("first", first)
        with m.Session(graph=first.graph) as second:
            train("second", second)
            got["x of first"], got["x of second"] = first.run(made["x"]), second.run(made["x"])
            got["number of first"] = first.run(made["number"])
        with m.Session(graph=first.graph) as third, pytest.raises(m.errors.FailedPreconditionError):
            third.run(made["number"])
        return {**got, "number of first again": first.run(made["number"])}

    compare_sessions(make, script)


@case
def elements_of_any_kind_are_read() -> None:
    lengths = [2, 1, 3, 1, 2, 2, 1, 3]

    def make(m: Any) -> Model:
        slices = m.data.Dataset.from_tensor_slices
        places = [[row, (5 * row) % 6] for row in range(8)]
        sparse = m.SparseTensor(places, np.arange(1.0, 9.0, dtype=np.float32), [8, 6])
        ragged = tf.RaggedTensor.from_row_lengths(_FEATURES[: sum(lengths), 0], lengths)
        both = [slices(_FEATURES * scale).repeat().batch(2, drop_remainder=True) for scale in (1.0, 100.0)]
        optional = tf.data.experimental.get_next_as_optional(m.data.make_one_shot_iterator(both[0]))
        whole = optional.get_value()
        whole.set_shape([2, 6])
        first, second = map(m.data.make_one_shot_iterator, both)
        chosen = m.placeholder(m.bool, [])
        branch = m.cond(chosen, first.get_next, second.get_next)
        rows = [
            m.sparse.to_dense(m.data.make_one_shot_iterator(slices(sparse).repeat().batch(2, True)).get_next()),
            m.data.make_one_shot_iterator(slices(ragged).repeat().batch(2, True)).get_next().to_tensor(shape=[2, 6]),
            whole,
            branch,
        ]
        w = m.get_variable("w", [6, 3], initializer=normal(m, 1))
        for each in rows:
            each.set_shape([2, 6])
        losses = [m.reduce_mean(m.square(m.matmul(each, w))) for each in rows]
        step = m.train.GradientDescentOptimizer(1e-5).minimize(m.add_n(losses))
        return {"losses": losses, "step": step, "w": w, "chosen": chosen, "first": first.get_next(), "rows": branch}

    def script(m: Any, made: Model, session: Any) -> Mapping[str, Any]:
        session.run(m.global_variables_initializer())
        got: dict[str, Any] = {}
        for number, chosen in enumerate([True, False, False, True]):
            got[f"losses {number}"], _ = session.run([made["losses"], made["step"]], {made["chosen"]: chosen})
        got["branch"] = session.run(made["rows"], {made["chosen"]: False})
        return {**got, "first": session.run(made["first"]), "w": session.run(made["w"])}

    _compare(make, script, (None,))


@case
def errors_of_pipelines_say_what_to_do() -> None:
    tensoropt.reset_default_graph()
    rows = _FEATURES + np.float32(tensoropt.world_rank())
    iterator = tensoropt.data.Dataset.from_tensor_slices((rows, _LABELS)).batch(8).make_one_shot_iterator()
    made = trained_by(tensoropt, *iterator.get_next())
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel", batch_size=8))
    if tensoropt.world_size() > 1:
        with pytest.raises(FeedError, match=r"was fed as a whole .*must be the same on all"):
            tensoropt.run(made["train"])


if __name__ == "__main__":
    main()
