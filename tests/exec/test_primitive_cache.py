"""Products of matrices with an extent of 1, which oneDNN takes for one another."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import tensorflow as tf

from tensoropt.api.frontend.reader import import_operators
from tensoropt.exec.schedule.primitive_cache import uncache_products
from tensoropt.graph.graph import Graph

pytestmark = pytest.mark.tf

_VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"

# Two threads make, at the same time, the primitives of x @ w and of the transposed x, whose rows have one number.
_PRODUCTS = """
import numpy as np
import tensorflow as tf
from tensoropt.api.frontend.reader import import_operators
from tensoropt.exec.schedule.primitive_cache import uncache_products
from tensoropt.graph.graph import Graph

rng = np.random.default_rng(0)
config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
# So that nothing is computed once and for all.
config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
config.graph_options.rewrite_options.disable_meta_optimizer = True
with tf.Graph().as_default() as graph:
    pairs, expected = [], []
    for extents in [(m, n) for m in range(2, 40) for n in range(2, 14)]:
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((extents[0], 1), (1, extents[1])))
        with tf.control_dependencies(pairs[-1] if pairs else []):
            operands = [tf.identity(tf.constant(array)) for array in (x, x.T, w)]
        pairs.append([tf.einsum("ij,jk->ik", operands[0], operands[2]), tf.einsum("ji,jk->ik", *operands[1:])])
        expected.append(x @ w)
    operators = import_operators(graph, [tensor.op for pair in pairs for tensor in pair])
    uncache_products(Graph(tuple(operators)), 1)
    with tf.compat.v1.Session(config=config) as session:
        for _ in range(3):
            for pair, value in zip(session.run(pairs), expected, strict=True):
                for found in pair:
                    np.testing.assert_allclose(found, value, rtol=1e-5)
print("all right")
"""


def _graph(build: Any) -> Graph:
    with tf.Graph().as_default() as graph:
        made = build(lambda *shape, dtype=tf.float32: tf.compat.v1.placeholder(dtype, shape))
        return Graph(tuple(import_operators(graph, [made.op])))


def test_threads_that_make_products_at_once_write_to_their_own_memory() -> None:
    environment = {name: value for name, value in os.environ.items() if name != _VARIABLE}
    command = [sys.executable, "-c", _PRODUCTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "all right" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("build", "devices", "uncached"),
    [
        (lambda new: tf.matmul(new(2, 8, 4), new(2, 4, 8)), 4, True),
        (lambda new: tf.matmul(new(2, 8, 4), new(2, 4, 8)), 3, False),
        (lambda new: tf.einsum("ij,j->i", new(8, 4), new(4)), 1, True),
        (lambda new: tf.matmul(new(8, 4), new(4, 8)), 4, False),
        (lambda new: tf.matmul(new(8, 4, dtype=tf.bfloat16), new(4, 8, dtype=tf.bfloat16)), 4, True),
        (lambda new: tf.nn.conv2d(new(1, 8, 8, 1), new(3, 3, 1, 1), 1, "SAME"), 4, False),
    ],
)
def test_the_cache_is_off_where_products_may_be_mistaken(
    build: Any, devices: int, uncached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_VARIABLE, "")  # so that what is set now is taken back
    monkeypatch.delenv(_VARIABLE)
    uncache_products(_graph(build), devices)
    assert os.environ.get(_VARIABLE) == ("0" if uncached else None)


def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_VARIABLE, "16")
    uncache_products(_graph(lambda new: tf.matmul(new(2, 8, 4), new(2, 4, 8))), 8)
    assert os.environ[_VARIABLE] == "16"
