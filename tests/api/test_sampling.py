"""Losses over sampled classes and lookups of several rows, against TensorFlow's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.model import Model
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1


def _values(make: Callable[[Any], Any], nn: Any) -> list[Any]:
    """What is made, and its gradients by the variables."""
    v1.set_random_seed(3)
    made = make(nn)
    gradients = [tf.convert_to_tensor(each) for each in tf.gradients(made, v1.global_variables())]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return list(session.run([made, *gradients]))


def _check(make: Callable[[Any], Any]) -> None:
    found = _values(make, tensoropt.nn)
    with tf.Graph().as_default():
        v1.get_variable_scope().set_use_resource(True)
        wanted = _values(make, v1.nn)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _variable(name: str, *shape: int) -> Any:
    return v1.get_variable(name, shape, initializer=v1.random_uniform_initializer(seed=len(name)))


@pytest.mark.parametrize("true", [1, 2])
@pytest.mark.parametrize("hits", [True, False])
@pytest.mark.parametrize("name", ["nce_loss", "sampled_softmax_loss"])
def test_draws_and_values_are_tensorflows(model: Model, name: str, hits: bool, true: int) -> None:
    labels = np.random.default_rng(0).integers(0, 12, (6, true))

    def make(nn: Any) -> Any:
        weights, biases = _variable("weights", 12, 4), _variable("biases", 12)
        inputs = _variable("inputs", 6, 4)
        return getattr(nn, name)(
            weights, biases, labels, inputs, 8, 12, num_true=true, remove_accidental_hits=hits
        )  # 8 of 12 classes are drawn, so that there are hits

    _check(make)


@pytest.mark.parametrize("name", ["nce_loss", "sampled_softmax_loss"])
def test_of_a_class_that_is_drawn_again_the_last_hit_is_removed(model: Model, name: str) -> None:
    def make(nn: Any) -> Any:
        drawn = (tf.constant([1, 1, 3, 7, 5, 5, 5, 2], tf.int64), tf.fill([6, 1], 0.5), tf.linspace(0.1, 0.8, 8))
        weights, biases, inputs = _variable("weights", 12, 4), _variable("biases", 12), _variable("inputs", 6, 4)
        labels = tf.constant([[1], [5], [3], [0], [5], [7]], tf.int64)
        return getattr(nn, name)(
            weights, biases, labels, inputs, 8, 12, sampled_values=drawn, remove_accidental_hits=True
        )

    _check(make)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn", "sum"])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_are_combined_as_by_tensorflow(model: Model, combiner: str, weighted: bool) -> None:
    places = [[0, 0], [0, 1], [1, 0], [2, 0], [2, 2]]

    def make(nn: Any) -> Any:
        ids = tf.SparseTensor(places, tf.constant([3, 1, 1, 0, 3], tf.int64), [3, 3])
        weights = tf.SparseTensor(places, tf.constant([0.5, 2.0, 1.5, 1.0, 0.25]), [3, 3]) if weighted else None
        table = _variable("table", 6, 2, 2)
        return nn.embedding_lookup_sparse(table, ids, weights, combiner=combiner, max_norm=0.6)

    _check(make)


def test_what_is_no_lookup_is_an_error(model: Model) -> None:
    ids = tensoropt.SparseTensor([[0, 0]], [1], [1, 1])
    with pytest.raises(GraphError, match=r"combiner must be one of mean, sqrtn, sum. Got 'max'"):
        tensoropt.nn.embedding_lookup_sparse(tensoropt.ones([4, 2]), ids, None, combiner="max")
    with pytest.raises(GraphError, match=r"ids and weights must be SparseTensors. Got list"):
        tensoropt.nn.embedding_lookup_sparse(tensoropt.ones([4, 2]), [1], None)
