"""Times an engine's collectives as a step runs them: inside a session, with other work between one and the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.process_group import partition
from tensoropt.measure.machine import COLD_WORK_BYTES, WARM_BYTES
from tensoropt.measure.measuring_session import session_as_built

__all__ = ["EngineMeasurement"]

_STACKED = ("reduce_scatter", "all_to_all")
# A run has one of these numbers of collectives.
_CHAINS = (2, 4, 8)
# Written between two collectives where ranks share cores, instead of what leaves caches cold: what another rank still
# has to do is a part of how long a collective takes there.
_CROWDED_WORK_BYTES = 2**20


class EngineMeasurement:
    """Measures on this rank while all the others measure the same; see ``tensoropt.measure.collective_sizes.Measure``.

    In a step, a collective meets cold caches and ranks that come at different times. Back to back on the same buffer,
    a small one takes a fifth of what it takes there. So work that every rank does for itself comes before each
    collective. What a step moves was made just now (an activation's gradient) or long ago (a weight): the work comes in
    turn before and after what makes a large buffer. Of each the rank counts that came last, since the others wait in
    it: what waiting costs is a matter of the operators before. Where ranks share cores, a rank that waits leaves its
    core to others, and the last one may have to wait for a core; there it counts by how much the run is longer than
    one of the same work.
    """

    def __init__(self, engine: CollectiveEngine, *, crowded: bool = False) -> None:
        """Keeps the engine, which :meth:`close` closes.

        Args:
            engine: whose collectives are measured.
            crowded: whether ranks share cores.
        """
        self._engine = engine
        self._crowded = crowded
        self._chains: dict[tuple[str, tuple[int, ...]], _Chain] = {}

    def __call__(self, kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        """Seconds of one collective over this rank's group, of about ``calls`` with work in between.

        Args:
            kind: of the collective.
            axes: mesh axes of the group.
            size_bytes: of the input buffer: whole float32 elements for every member.
            calls: how often.
        """
        key = (kind, axes)
        if key not in self._chains:
            self._chains[key] = _Chain(self._engine, kind, axes, self._crowded)
        return self._chains[key].seconds(size_bytes // 4, calls)

    def close(self) -> None:
        """Ends the sessions and the engine. Collective."""
        for chain in self._chains.values():
            chain.session.close()
        self._chains.clear()
        self._engine.close()


class _Chain:
    """A graph that in turn works, makes a buffer of any size, and runs a collective on it between two clocks."""

    def __init__(self, engine: CollectiveEngine, kind: str, axes: tuple[int, ...], crowded: bool) -> None:
        self._engine, self._kind, self._axes = engine, kind, axes
        self._members = partition(engine.mesh_shape, axes)
        self._size = len(self._members[0])
        self._stacked = kind in _STACKED
        self._work_bytes = _CROWDED_WORK_BYTES if crowded else COLD_WORK_BYTES
        graph = tf.Graph()
        with graph.as_default():
            extent = tf.compat.v1.placeholder(tf.int32, [], name="extent")
            # Fed, so that nothing is computed once and for all.
            value = tf.compat.v1.placeholder(tf.float32, [], name="value")
            self.session = session_as_built(graph)
            self._runs = {}
            for count in _CHAINS:
                fetches = (
                    [self._seconds_of_last(extent, value, count)]
                    if not crowded
                    else [self._total_seconds(extent, value, count, of_work) for of_work in (True, False)]
                )
                self._runs[count] = [self.session.make_callable(fetch, [extent, value]) for fetch in fetches]

    def seconds(self, elements: int, calls: int) -> float:
        """Measures the seconds of one collective."""
        extent = elements // self._size if self._stacked else elements
        count = max((known for known in _CHAINS if known <= calls), default=_CHAINS[0])
        results = [run(extent, 1.0) for run in self._runs[count]]
        if len(results) == 1:
            parts = (0,) if elements * 4 < WARM_BYTES else (0, 1)
            return float(np.mean([np.median(results[0][first::2]) for first in parts]))
        work_s, all_s = results
        return max(float(all_s - work_s) / (count - 1), 0.0)

    def _seconds_of_last(self, extent: Any, value: Any, count: int) -> Any:
        """A vector: what each of ``count`` collectives took on the member that came last."""
        took = []
        end_s = None
        with self._engine.program():
            for number in range(count):
                buffer = self._worked([] if end_s is None else [end_s], extent, value, number)
                start_s, end_s = self._timed(buffer, number)
                nothing_s, last_s = self._clocked(end_s)
                took.append(tf.cast(tf.maximum(end_s - start_s - (last_s - nothing_s), 0.0), tf.float32))
                end_s = last_s
            # The root of a broadcast need not wait for anybody.
            op = "max" if self._kind == "broadcast" else "min"
            return self._engine.all_reduce(tf.stack(took), self._axes, op=op)

    def _total_seconds(self, extent: Any, value: Any, count: int, of_work: bool) -> Any:
        """The ranks' mean of a run in which only the last piece of work, or each one, is followed by a collective."""
        with tf.control_dependencies([extent]):
            first_s = last_s = tf.timestamp()
        with self._engine.program():
            for number in range(count):
                last_s = buffer = self._worked([last_s], extent, value, 0)
                if number == count - 1 or not of_work:
                    _, last_s = self._timed(buffer, number)
            return self._engine.all_reduce(last_s - first_s, self._axes) / self._size

    def _worked(self, before: Sequence[Any], extent: Any, value: Any, number: int) -> Any:
        """A buffer that is made after some work, or before it where ``number`` is odd.

        Where ranks share cores, other ranks' work comes in between anyway.
        """
        shape, static = ([self._size, extent], [self._size, None]) if self._stacked else ([extent], [None])
        pieces = [lambda: tf.fill([self._work_bytes // 4], value), lambda: tf.fill(tf.stack(shape), value)]
        is_cold = number % 2 == 1
        with tf.control_dependencies(before):
            first = pieces[is_cold]()
        with tf.control_dependencies([first]):
            second = pieces[not is_cold]()
        with tf.control_dependencies([second]):
            return tf.ensure_shape(first if is_cold else second, static)

    def _timed(self, buffer: Any, number: int) -> tuple[Any, Any]:
        """Returns the times, as tensors, at which a collective begins and ends."""
        with tf.control_dependencies([buffer]):
            start_s = tf.timestamp()
        with tf.control_dependencies([start_s]):
            result = _collective(self._engine, self._kind, tf.identity(buffer), self._axes, self._members, number)
            result = tf.identity(result)  # on a graphics card again, if it came from one
        with tf.control_dependencies([result]):
            return start_s, tf.timestamp()

    def _clocked(self, before: Any) -> tuple[Any, Any]:
        """Two clocks with nothing in between, as those of :meth:`_timed` have a collective."""
        with tf.control_dependencies([before]):
            start_s = tf.timestamp()
        with tf.control_dependencies([start_s]), tf.device("/cpu:0"):
            nothing = tf.identity(tf.identity(before))
        with tf.control_dependencies([nothing]):
            return start_s, tf.timestamp()


def _collective(
    engine: CollectiveEngine,
    kind: str,
    x: Any,
    axes: tuple[int, ...],
    groups: Sequence[tuple[int, ...]],
    number: int,
) -> Any:
    if kind == "broadcast":
        # A root that changes cannot run ahead of the others.
        return engine.broadcast(x, axes, root=number % len(groups[0]))
    if kind == "permute":
        # Half-way round the group, so that every piece crosses its outermost level.
        sources = [0] * engine.size
        for members in groups:
            for index, rank in enumerate(members):
                sources[rank] = members[(index - len(members) // 2) % len(members)]
        return engine.permute(x, sources)
    return getattr(engine, kind)(x, axes)
