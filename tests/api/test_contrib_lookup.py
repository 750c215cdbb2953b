"""Tables of constants beside Python's dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.model import Model
from tensoropt.contrib import lookup
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1
_WORDS = ["the", "cat", "sät", "on", ""]


def _run(fetches: Any, feeds: Any = None) -> Any:
    with v1.Session() as session:
        session.run(v1.tables_initializer())
        return session.run(fetches, feeds)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(f"{word}\t{number * 10}" for number, word in enumerate(_WORDS)), encoding="utf-8")
    return path


@pytest.mark.parametrize("is_file", [False, True])
def test_words_have_numbers_and_back(model: Model, file: Path, is_file: bool) -> None:
    if is_file:
        table = lookup.index_table_from_file(str(file), key_column_index=0, default_value=-7)
        back = lookup.index_to_string_table_from_file(str(file), value_column_index=0, vocab_size=4)
        tens = lookup.HashTable(lookup.TextFileInitializer(str(file), tf.string, 0, tf.int64, 1), -1)
    else:
        table = lookup.index_table_from_tensor(tensoropt.constant(_WORDS), default_value=-7)
        back = lookup.index_to_string_table_from_tensor(_WORDS[:4])
        tens = lookup.HashTable(lookup.KeyValueTensorInitializer(_WORDS, [0, 10, 20, 30, 40], tf.string, tf.int64), -1)
    given = tensoropt.placeholder(tf.string, [None, 2])
    words = [["cat", "dog"], ["sät", "the"], ["", "on"]]
    ids = table.lookup(given)
    session_inits = [table.init, table.initializer, tens.init]
    got, texts, others, size, _ = _run(
        [ids, back.lookup(ids), tens.lookup(given), table.size(), session_inits], {given: words}
    )
    assert got.tolist() == [[1, -7], [2, 0], [4, 3]]
    assert got.dtype == np.int64
    assert [each.decode() for each in texts.ravel()] == ["cat", "UNK", "sät", "the", "UNK", "on"]
    assert others.tolist() == [[10, -1], [20, 0], [40, 30]]
    assert size == 5


def test_other_words_have_buckets_which_are_tensorflows(model: Model) -> None:
    words = ["the", *(f"w{number}" for number in range(20))]
    made = [
        lookup.index_table_from_tensor(_WORDS, num_oov_buckets=3),
        lookup.index_table_from_tensor(_WORDS, num_oov_buckets=3, hasher_spec=lookup.StrongHashSpec([1, 2])),
        tensoropt.lookup.StaticVocabularyTable(
            tensoropt.lookup.KeyValueTensorInitializer([5, 6], [0, 1], tf.int64, tf.int64), 4
        ),
        tensoropt.lookup.StaticVocabularyTable(None, 4),
    ]
    numbers = np.arange(12, dtype=np.int64)
    mine = _run([table.lookup(given) for table, given in zip(made, (words, words, numbers, words), strict=True)])
    with tf.Graph().as_default():
        first = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(_WORDS, np.arange(5), tf.string, tf.int64), 3
        )
        third = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(np.array([5, 6]), np.array([0, 1]), tf.int64, tf.int64), 4
        )
        wanted = [first.lookup(tf.constant(words)), third.lookup(tf.constant(numbers))]
        with v1.Session() as session:
            session.run(v1.tables_initializer())
            one, three = session.run(wanted)
    np.testing.assert_array_equal(mine[0], one)
    np.testing.assert_array_equal(mine[2], three)
    assert (mine[1][0], set(mine[1][1:])) == (0, {5, 6, 7})
    assert set(mine[3]) <= {0, 1, 2, 3}


def test_tables_work_in_datasets_and_of_sparse_keys(model: Model) -> None:
    table = lookup.index_table_from_tensor(_WORDS)
    numbers = lookup.index_table_from_tensor([30, 10, 20], dtype=tf.int64)
    dataset = tensoropt.data.Dataset.from_tensor_slices([["the", "on"], ["x", "cat"]]).map(table.lookup).batch(2)
    item = v1.data.make_one_shot_iterator(dataset).get_next()
    sparse = numbers.lookup(tf.SparseTensor([[0, 0], [1, 2]], np.array([20, 5]), [2, 3]))
    narrow = numbers.lookup(tensoropt.constant([10], tf.int32))
    item, sparse, narrow = _run([item, sparse, narrow])
    assert item.tolist() == [[0, 3], [-1, 1]]
    assert sparse.values.tolist() == [2, -1]
    assert narrow.tolist() == [1]


def test_what_is_no_table_of_constants_is_an_error(model: Model, file: Path) -> None:
    with pytest.raises(GraphError, match=r"the mapping must be known before a run. Got tensor 'p:0'"):
        lookup.index_table_from_tensor(tensoropt.placeholder(tf.string, [2], name="p"))
    with pytest.raises(GraphError, match=r"the key b'a' has several values, 0 and 1"):
        lookup.index_table_from_tensor(["a", "a"])
    with pytest.raises(GraphError, match=r"keys must be string. Got float32"):
        lookup.index_table_from_tensor(["a"]).lookup(tensoropt.constant([1.0]))
    with pytest.raises(GraphError, match=r"vocab_size is 6, but there are 5 lines"):
        lookup.index_table_from_file(str(file), vocab_size=6)
    with pytest.raises(GraphError, match=r"line 1 has no column 2. Got \[b'the', b'0'\]"):
        lookup.index_table_from_file(str(file), key_column_index=2)
    with pytest.raises(GraphError, match=r"as many keys as values, in one dimension. Got shapes \(2,\) and \(1,\)"):
        lookup.KeyValueTensorInitializer(["a", "b"], [1])
    with pytest.raises(GraphError, match=r"must be at least 1. Got 0"):
        tensoropt.lookup.StaticVocabularyTable(None, 0)
