"""Queues of ``tf.train`` over arrays and files: what comes out of them, in TensorFlow's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.model import Model
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1
train = tensoropt.train
_X = np.arange(14, dtype=np.float32).reshape(7, 2)
_Y = np.arange(7)


def _all(fetches: Any, most: int = 100) -> list[Any]:
    """What runs give until data end."""
    got = []
    with v1.Session() as session:
        session.run([v1.local_variables_initializer(), v1.tables_initializer()])
        for _ in range(most):
            try:
                got.append(session.run(fetches))
            except tf.errors.OutOfRangeError:
                break
    return got


@pytest.mark.parametrize("keeps_rest", [False, True])
@pytest.mark.parametrize("as_dict", [False, True])
def test_rows_go_through_the_ops_between(model: Model, keeps_rest: bool, as_dict: bool) -> None:
    x, y = train.slice_input_producer([_X, _Y], num_epochs=2, shuffle=False)
    table = tensoropt.contrib.lookup.index_table_from_tensor(np.arange(7)[::-1].copy(), dtype=tf.int64)
    scaled = tensoropt.cond(tensoropt.equal(y % 2, 0), lambda: x * 2.0, lambda: -x)
    made: Any = {"b": table.lookup(y), "a": scaled} if as_dict else [scaled, table.lookup(y)]
    batches = train.batch(made, 4, num_threads=3, allow_smaller_final_batch=keeps_rest)
    shape = (None if keeps_rest else 4, 2)
    assert tuple((batches["a"] if as_dict else batches[0]).shape.as_list()) == shape
    got = _all(batches)
    a = [each["a"] if as_dict else each[0] for each in got]
    b = [each["b"] if as_dict else each[1] for each in got]
    assert [len(each) for each in a] == ([4, 4, 4, 2] if keeps_rest else [4, 4, 4])
    count = sum(map(len, a))
    wanted = np.concatenate([_X * np.where(_Y % 2 == 0, 2, -1)[:, None]] * 2)[:count]
    np.testing.assert_allclose(np.concatenate(a), wanted)
    np.testing.assert_array_equal(np.concatenate(b), np.concatenate([6 - _Y] * 2)[:count])


def test_orders_differ_from_epoch_to_epoch_and_have_all_rows(model: Model) -> None:
    (y,) = train.slice_input_producer([_Y], num_epochs=2, seed=3)
    got = [int(each) for each in _all(y)]
    assert sorted(got[:7]) == sorted(got[7:]) == list(_Y)
    assert got[:7] != got[7:]


def test_batches_of_many_of_none_and_of_batches(model: Model) -> None:
    x = tensoropt.constant(_X)
    endless = train.batch([x, tensoropt.constant(_Y)], 3, enqueue_many=True)
    drawn = train.shuffle_batch(x[:, 0], 5, capacity=20, min_after_dequeue=10, seed=1, enqueue_many=True)
    (rows,) = train.slice_input_producer([_Y], num_epochs=1, shuffle=False)
    again = train.batch([train.batch(rows, 2)], 3, enqueue_many=True)
    got = _all([endless, drawn], 5)
    np.testing.assert_array_equal(np.concatenate([each[0][1] for each in got])[:9], [0, 1, 2, 3, 4, 5, 6, 0, 1])
    assert set(np.concatenate([each[1] for each in got])) <= set(_X[:, 0])
    assert drawn.shape == (5,)
    assert [each[0].tolist() for each in _all(again)] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("sizes", [2, [1, 2, 2]])
def test_buckets_hold_sequences_of_alike_lengths(model: Model, sizes: Any) -> None:
    lengths = np.array([1, 5, 2, 3, 9, 4, 1, 3])
    length, number = train.slice_input_producer([lengths, np.arange(8)], num_epochs=1, shuffle=False)
    sequence = tensoropt.fill([length], number)
    counted, outputs = tensoropt.contrib.training.bucket_by_sequence_length(
        length,
        {"s": sequence, "n": number},
        sizes,
        [2, 4],
        dynamic_pad=True,
        keep_input=tensoropt.less(length, 9),
    )
    got = _all([counted, outputs])
    if sizes == 2:
        assert [each[0].tolist() for each in got] == [[2, 3], [5, 4], [1, 1]]
    else:
        assert [each[0].tolist() for each in got] == [[1], [2, 3], [5, 4], [1]]
    padded = next(each for each in got if each[0].tolist() == [5, 4])[1]
    assert padded["s"].tolist() == [[1, 1, 1, 1, 1], [5, 5, 5, 5, 0]]
    assert padded["n"].tolist() == [1, 5]


def test_a_bucket_by_number_says_which(model: Model) -> None:
    (y,) = train.slice_input_producer([_Y], num_epochs=1, shuffle=False)
    which, values = tensoropt.contrib.training.bucket([y], y % 3, 2, 3, allow_smaller_final_batch=True)
    assert [(int(a), b[0].tolist()) for a, b in _all([which, values])][:3] == [(0, [0, 3]), (1, [1, 4]), (2, [2, 5])]


@pytest.mark.parametrize("kind", ["lines", "records", "bytes", "whole", "names"])
def test_readers_read_files(model: Model, tmp_path: Path, kind: str) -> None:
    paths = [str(tmp_path / f"{name}.bin") for name in "ab"]
    for path in paths:
        data = [f"{Path(path).stem}{number}".encode() for number in range(2)]
        if kind == "records":
            with tf.io.TFRecordWriter(path, "GZIP") as writer:
                for each in data:
                    writer.write(each)
        else:
            Path(path).write_bytes(b"head\n" + b"\n".join(data) if kind == "lines" else b"".join(data))
    reader = {
        "lines": lambda: tensoropt.TextLineReader(skip_header_lines=1),
        "records": lambda: tensoropt.TFRecordReader(options=v1.io.TFRecordOptions(2)),
        "bytes": lambda: tensoropt.FixedLengthRecordReader(2),
        "whole": tensoropt.WholeFileReader,
        "names": tensoropt.IdentityReader,
    }[kind]()
    key, value = reader.read(train.string_input_producer(paths, num_epochs=1, shuffle=False))
    got = _all(train.batch([key, tensoropt.strings.length(value), value], 1))
    values = [each[2][0].decode() for each in got]
    if kind in ("lines", "records", "bytes"):
        assert values == ["a0", "a1", "b0", "b1"]
        assert [each[1][0] for each in got] == [2] * 4
        assert got[3][0][0].decode() == f"{paths[1]}:1"
    else:
        assert values == (["a0a1", "b0b1"] if kind == "whole" else paths)


def test_queues_of_numbers_and_of_rows(model: Model) -> None:
    numbers = train.range_input_producer(3, num_epochs=1, shuffle=False).dequeue()
    row = train.input_producer(_X, num_epochs=1, shuffle=False, name="rows").dequeue()
    assert [int(each) for each in _all(numbers)] == [0, 1, 2]
    assert len(_all(row)) == 7
    assert train.start_queue_runners() == []


def _queue_builders(shuffle: bool, seed: int | None) -> dict[str, Callable[[Any], Any]]:
    """Scripts with queues, by what they show; each takes TensorFlow 1's namespace, plain or ours."""

    def slices(m: Any) -> Any:
        return m.train.slice_input_producer([_X, _Y], shuffle=shuffle, seed=seed)

    def records(m: Any) -> Any:
        files = m.train.string_input_producer(["a", "b"], shuffle=shuffle, seed=seed)
        return m.TFRecordReader().read(files)[1]

    return {
        "slices": slices,
        "batches of slices": lambda m: m.train.batch(slices(m), 2),
        "shuffled batches": lambda m: m.train.shuffle_batch(slices(m), 2, 8, 2, seed=seed),
        "numbers": lambda m: m.train.range_input_producer(5, shuffle=shuffle, seed=seed).dequeue(),
        "batches of records": lambda m: m.train.batch([m.io.decode_raw(records(m), m.float32)], 2, shapes=[[3]]),
    }


@pytest.mark.parametrize(("shuffle", "seed"), [(False, None), (True, None), (True, 3)])
@pytest.mark.parametrize("kind", _queue_builders(False, None))
def test_random_ops_after_a_queue_draw_as_after_tensorflows(
    model: Model, kind: str, shuffle: bool, seed: int | None
) -> None:
    def seeds(m: Any) -> Any:
        m.set_random_seed(7)
        _queue_builders(shuffle, seed)[kind](m)
        return [m.random_uniform([2]).op.get_attr("seed2") for _ in range(2)]

    with tf.Graph().as_default():
        plain = seeds(v1)
    assert seeds(tensoropt) == plain


def test_what_no_dataset_can_do_is_an_error(model: Model) -> None:
    (y,) = train.slice_input_producer([_Y])
    weight = tensoropt.get_variable("w", [], tf.int64)
    with pytest.raises(GraphError, match=r"batch: elements depend on 'w' \(VarHandleOp\), which only the model has"):
        train.batch([y + weight], 2)
    with pytest.raises(GraphError, match=r"elements depend on 'fed' \(Placeholder\)"):
        train.shuffle_batch([tensoropt.placeholder(tf.int64, [], name="fed") + y], 2, 9, 3)
    queue = train.string_input_producer(["a"], name="files")
    tensoropt.WholeFileReader().read(queue)
    with pytest.raises(GraphError, match=r"files: two readers take from one queue"):
        tensoropt.WholeFileReader().read(queue)
    with pytest.raises(GraphError, match=r"TextLineReader.read: needs the queue of string_input_producer. Got str"):
        tensoropt.TextLineReader().read("a")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"there are no texts"):
        train.string_input_producer([])
    with pytest.raises(GraphError, match=r"needs a tensor at least"):
        train.slice_input_producer([])
    with pytest.raises(GraphError, match=r"must ascend. Got \[3, 3\]"):
        tensoropt.contrib.training.bucket_by_sequence_length(y, [y], 2, [3, 3])
    with pytest.raises(GraphError, match=r"a batch_size for each of 3 buckets. Got 2"):
        tensoropt.contrib.training.bucket([y], y, [1, 2], 3)
    with pytest.raises(GraphError, match=r"hop_bytes and encoding are not supported"):
        tensoropt.FixedLengthRecordReader(3, hop_bytes=1)
