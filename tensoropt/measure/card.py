"""The graphics card that this process computes on, as TensorFlow sees it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib  # no public name says where a card is, and what it has left

from tensoropt.measure.computation import calls_per_s
from tensoropt.measure.measuring_session import session_as_built

__all__ = ["Card", "card_of_this_process", "card_speeds"]

_DESCRIPTION = re.compile(r"name: (?P<name>[^,]+), pci bus id: (?P<address>[^,]+)")
# A run has so many kernels one after another, so that the host's part in it is small.
_KERNELS = 10
_MATMUL_SIZE = 2048
_BYTES = 128 * 2**20  # larger than a card's caches


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card.

    Attributes:
        name: of the model.
        address: on its host, by which ranks know that they share it.
        memory_bytes: that TensorFlow can still take.
    """

    name: str
    address: str
    memory_bytes: int


def card_of_this_process() -> Card | None:
    """The card; None where TensorFlow computes on the CPU."""
    if not tf.config.list_physical_devices("GPU"):
        return None
    device = next(each for each in device_lib.list_local_devices() if each.device_type == "GPU")
    found = _DESCRIPTION.search(device.physical_device_desc)
    name, address = (found["name"], found["address"]) if found else (device.physical_device_desc, device.name)
    return Card(name, address, device.memory_limit)


def card_speeds() -> tuple[float, float, float]:
    """Operations per second in single and in double precision, and bytes read and written per second."""
    single, double = (
        2 * _MATMUL_SIZE**3 * _kernels_per_s([_MATMUL_SIZE] * 2, dtype, lambda x, y: tf.matmul(x, y))
        for dtype in ("float32", "float64")
    )
    return single, double, 2 * _BYTES * _kernels_per_s([_BYTES // 4], "float32", lambda x, y: tf.negative(x))


def _kernels_per_s(shape: list[int], dtype: str, kernel: Callable[[Any, Any], Any]) -> float:
    with tf.Graph().as_default() as graph:
        value = tf.compat.v1.placeholder(dtype, [])
        first = last = tf.fill(shape, value)
        for _ in range(_KERNELS):
            last = kernel(last, first)
        end = tf.reshape(tf.slice(last, [0] * len(shape), [1] * len(shape)), [])
        with session_as_built(graph) as session:
            call = session.make_callable(end, [value])
            return _KERNELS * calls_per_s(lambda: call(0.0), 0.1)
