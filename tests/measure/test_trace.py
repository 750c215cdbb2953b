"""What TensorFlow's trace of a run says of kernels."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tensoropt.measure.trace import Held, held_by, kernel_seconds

pytestmark = pytest.mark.tf


def test_kernels_of_a_trace_are_added_up_by_name() -> None:
    stats = tf.compat.v1.RunMetadata().step_stats
    for device in ("one", "other"):
        entry = stats.dev_stats.add(device=device)
        entry.node_stats.add(node_name="a", op_start_rel_nanos=10, op_end_rel_nanos=25)
    assert kernel_seconds(stats) == {"a": pytest.approx(30e-9)}


def test_a_kernel_during_which_the_clock_is_set_back_takes_no_time() -> None:
    stats = tf.compat.v1.RunMetadata().step_stats
    stats.dev_stats.add().node_stats.add(node_name="a", op_start_rel_nanos=9_000, op_end_rel_nanos=-2_000_000)
    assert kernel_seconds(stats) == {"a": 0.0}


def test_buffers_are_followed_by_when_they_are_asked_for_and_given_back() -> None:
    stats = tf.compat.v1.RunMetadata().step_stats
    device = stats.dev_stats.add(device="one")
    records = {"f/a": [(10, 100), (40, -100)], "f/b": [(20, 50), (20, -50), (20, 30)], "b/a": [(35, 8), (36, -8)]}
    for start, (name, changes) in enumerate(records.items()):
        node = device.node_stats.add(node_name=name, all_start_micros=[10, 20, 35][start])
        memory = node.memory.add(allocator_name="cpu")
        for micros, size in changes:
            memory.allocation_records.add(alloc_micros=micros, alloc_bytes=size)
    found = held_by(stats, lambda name: name[0], lambda name: name.startswith("b"))
    assert found == {"f": Held(150, 130), "b": Held(8, 0)}
    assert held_by(stats, lambda name: None, lambda name: True) == {}
