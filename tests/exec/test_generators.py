"""Random operators whose state is in TensorFlow's kernels: one op draws for all programs."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tf


def test_what_a_run_that_failed_handed_over_is_no_operand_of_the_next() -> None:
    import tensorflow as tf

    from tensoropt.exec.program.generators import Kernel

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        kernel = Kernel([x], lambda taken: [tf.random.shuffle(taken[0], seed=1)])
        (one,), (other,) = kernel.draw([x]), kernel.draw([2.0 * x])
        assert sorted(session.run(one, {x: [1, 2, 3]})) == [1, 2, 3]
        (handing_over,) = one.op.control_inputs
        session.run(handing_over, {x: [7, 8]})
        kernel.forget(session)
        kernel.forget(session)
        assert sorted(session.run(other, {x: np.arange(5)})) == [0, 2, 4, 6, 8]
