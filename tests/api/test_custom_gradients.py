"""Custom gradients and functions: refused by the importer, and replaced where TensorFlow's own functions have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.frontend.importer import import_graph
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf


def test_custom_gradient_is_refused_because_devices_could_not_follow_it() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [4], name="x")
        y = tf.reduce_sum(tf.nn.silu(x))
    with pytest.raises(GraphError, match=r"has a gradient of its own \(tf.custom_gradient\).*tensoropt.nn's"):
        import_graph(graph, losses=[y.name])


def test_branches_and_loops_are_refused_because_devices_could_not_follow_them() -> None:
    graph = tf.Graph()
    with graph.as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        rate = tf.compat.v1.train.piecewise_constant(step, [10], [0.1, 0.01])
    with pytest.raises(GraphError, match=r"StatelessIf .* has branches or a body of its own.* tensoropt.where"):
        import_graph(graph, losses=[], parameters=[rate.name])


def test_silu_has_tensorflows_values_and_imports(model: Any) -> None:
    values = np.linspace(-3.0, 3.0, 8).astype(np.float32)
    x = tensoropt.placeholder(tensoropt.float32, [8], name="x")
    y = tensoropt.nn.silu(x, beta=1.5)
    import_graph(tensoropt.api.mirror.model.current_model().graph, losses=[y.name])
    with tf.compat.v1.Session(graph=y.graph) as session:
        found = session.run(y, {x: values})
    np.testing.assert_allclose(found, values / (1 + np.exp(-1.5 * values)), rtol=1e-6)
