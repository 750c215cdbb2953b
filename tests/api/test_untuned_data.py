"""Iterators over a script's data have no tuner, whose thread their end would wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.api.session.pipeline_session import PipelineSession

pytestmark = pytest.mark.tf


def _numbers() -> Any:
    return tf.compat.v1.data.Dataset.range(6).map(lambda x: 2 * x, num_parallel_calls=tf.data.AUTOTUNE).batch(3)


def _one_shot() -> tuple[Any, Any]:
    return tf.compat.v1.data.make_one_shot_iterator(_numbers()), None


def _initializable() -> tuple[Any, Any]:
    iterator = tf.compat.v1.data.make_initializable_iterator(_numbers())
    return iterator, iterator.initializer


def _reinitializable() -> tuple[Any, Any]:
    data = _numbers()
    types, shapes = tf.compat.v1.data.get_output_types(data), tf.compat.v1.data.get_output_shapes(data)
    iterator = tf.compat.v1.data.Iterator.from_structure(types, shapes)
    return iterator, iterator.make_initializer(data)


@pytest.mark.parametrize("make", [_one_shot, _initializable, _reinitializable])
def test_pipelines_of_graphs_give_their_elements_without_a_tuner(make: Callable[[], tuple[Any, Any]]) -> None:
    with tf.Graph().as_default() as graph:
        iterator, initializer = make()
        element = iterator.get_next()
    pipelines = PipelineSession(graph, 1)
    for _ in range(1 if initializer is None else 2):
        if initializer is not None:
            pipelines.run([initializer.name], {})
        assert [pipelines.run([element.name], {})[0].tolist() for _ in range(2)] == [[0, 2, 4], [6, 8, 10]]
        with pytest.raises(tf.errors.OutOfRangeError):
            pipelines.run([element.name], {})
    copied = pipelines._copy.as_graph_def()
    if initializer is not None:
        untuned = [node.name for node in copied.node if _is_untuned(node)]
        assert {node.input[0] for node in copied.node if node.op == "MakeIterator"} == {*untuned}
    else:
        (returned,) = (f.ret.values() for f in copied.library.function if any(_is_untuned(n) for n in f.node_def))
        assert [source.partition(":")[0].endswith("untuned") for source in returned] == [True]
    pipelines.close()


def _is_untuned(node: Any) -> bool:
    from tensorflow.core.framework.dataset_options_pb2 import Options

    if node.op != "OptionsDataset":
        return False
    tuned = Options.FromString(node.attr["serialized_options"].s).autotune_options
    return bool(tuned.WhichOneof("optional_enabled")) and not tuned.enabled


def test_keras_reads_arrays_and_datasets_without_a_tuner_in_calls_of_a_parallel_model_only() -> None:
    pytest.importorskip("keras")
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    from tensoropt.api.keras.keras_internals import _untuned_batches

    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    given = [{"x": rows, "batch_size": 2}, {"x": tf.data.Dataset.from_tensor_slices(rows).batch(2)}]

    def read() -> list[Any]:
        strategy = tf.distribute.get_strategy()
        return [TFEpochIterator(**data, distribute_strategy=strategy)._get_iterator() for data in given]

    with _untuned_batches():
        found = read()
    assert [data.options().autotune.enabled for data in found] == [False, False]
    assert [data.options().autotune.enabled for data in read()] == [None, None]
    for data in found:
        np.testing.assert_array_equal(np.concatenate([np.reshape(batch, (-1, 2)) for batch in data]), rows)
