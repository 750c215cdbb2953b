"""What the machine does while costs are measured on it: how fast it is, and what other programs take of it.

Virtual machines change their speed by a tenth within minutes. A fixed piece of work, a :class:`Reference`, is timed
before and after whatever is measured, on all ranks at once. It knows nothing of the model whose costs are predicted,
and never changes. :class:`Others` sees what other programs take, so that what they disturb can be measured again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tensoropt.measure.machine import Machine
from tensoropt.measure.measuring_session import session_as_built

__all__ = ["Others", "Reference"]

_T = TypeVar("_T")
_PRODUCT = 384
_IMAGES = (8, 16, 16, 32)
_PASSED_BYTES = 2**22
_SMALL_KERNELS = 40
_RUNS = 3
_STAT = Path("/proc/stat")
_POLL_S = 0.25
# Of all cores. Clocks tick a few times in a short piece of work.
_MOST_SHARE = 0.06


class Reference:
    """Some milliseconds of a bit of everything that training does: products, convolutions, copies, small kernels."""

    def __init__(self, comm: Any) -> None:
        """Collective over ``comm``."""
        self._comm = comm
        self._machine = Machine.of(comm)
        with tf.Graph().as_default() as graph:
            value = tf.compat.v1.placeholder(tf.float32, [])
            self._session = session_as_built(graph)
            self._run: Callable[..., Any] = self._session.make_callable(_work(value).op, [value])
        self.seconds()

    def seconds(self) -> float:
        """The ranks' mean of what the work takes now. Collective."""
        took = []
        with self._machine.in_turn():
            for _ in range(_RUNS):
                start_s = time.perf_counter()
                self._run(0.5)
                took.append(time.perf_counter() - start_s)
        return float(np.mean(self._comm.allgather(float(np.median(took)))))


class Others:
    """Other programs on the host of all ranks.

    Attributes:
        repeated: how often something was measured again because of them.
        disturbed: how often that was given up.
    """

    def __init__(self, comm: Any, patience_s: float) -> None:
        """Nothing is repeated, and nobody waited for, after so many seconds of waiting and repeating in all."""
        self._comm = comm
        self._patience_s = patience_s
        self._cores = len(os.sched_getaffinity(0)) if comm.size == 1 else os.cpu_count() or 1
        self.repeated = 0
        self.disturbed = 0

    def undisturbed(self, measure: Callable[[], _T]) -> _T:
        """What ``measure`` gives in a run during which others took next to nothing. Collective."""
        while True:
            busy_s, mine_s, start_s = _busy_s(), time.process_time(), time.perf_counter()
            result = measure()
            ours_s = sum(self._comm.allgather(time.process_time() - mine_s))
            took_s = time.perf_counter() - start_s
            share = (_busy_s() - busy_s - ours_s) / took_s / self._cores
            if self._comm.bcast(share <= _MOST_SHARE + 2 / os.sysconf("SC_CLK_TCK") / took_s, root=0):
                return result
            if self._patience_s <= 0:
                self.disturbed += 1
                return result
            self.repeated += 1
            self.wait()
            self._patience_s = self._comm.bcast(self._patience_s - (time.perf_counter() - start_s), root=0)

    def wait(self) -> None:
        """Returns when nobody else works. Collective."""
        if self._comm.rank == 0:
            start_s = time.perf_counter()
            while time.perf_counter() - start_s < self._patience_s:
                busy_s, mine_s = _busy_s(), time.process_time()
                time.sleep(_POLL_S)
                if _busy_s() - busy_s - (time.process_time() - mine_s) <= 2 * _MOST_SHARE * _POLL_S * self._cores:
                    break
        # The other ranks sleep meanwhile: in a blocking barrier they would spin, and look like others' work.
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(_POLL_S / 50)


def _busy_s() -> float:
    """Seconds that the host's cores have worked, for anybody."""
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0  # not Linux: nothing is known of others
    idle = (3, 4)  # waiting for disks is idle, too
    return sum(int(field) for index, field in enumerate(fields) if index not in idle) / os.sysconf("SC_CLK_TCK")


def _work(value: Any) -> Any:
    matrix = tf.fill([_PRODUCT, _PRODUCT], value)
    x = tf.matmul(matrix, matrix, transpose_b=True)
    with tf.control_dependencies([x]):
        images, kernel = tf.fill(_IMAGES, value), tf.fill([3, 3, _IMAGES[-1], _IMAGES[-1]], value)
    y = tf.nn.conv2d(images, kernel, 1, "SAME")
    z = tf.raw_ops.Conv2DBackpropFilter(
        input=images,
        filter_sizes=[3, 3, _IMAGES[-1], _IMAGES[-1]],
        out_backprop=y,
        strides=[1, 1, 1, 1],
        padding="SAME",
    )
    with tf.control_dependencies([z]):
        vector = tf.fill([_PASSED_BYTES // 4], value)
    for _ in range(2):
        vector = tf.reshape(tf.transpose(tf.reshape(vector + vector, [-1, 64])), [-1])
    scalar = vector[0]
    for _ in range(_SMALL_KERNELS):
        scalar = scalar * value
    return scalar
