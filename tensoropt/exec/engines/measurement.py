"""Times an engine's collectives as a step runs them: in a chain, inside one run of a TensorFlow session."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.group import partition

__all__ = ["EngineMeasurement"]

_STACKED = ("reduce_scatter", "all_to_all")
# A run has one of these numbers of collectives.
_CHAINS = (1, 4, 16, 64)


class EngineMeasurement:
    """Measures on this rank while all the others measure the same; see ``tensoropt.cluster.benchmark.Measure``."""

    def __init__(self, engine: CollectiveEngine, clock: Callable[[], float] = time.perf_counter) -> None:
        """Keeps the engine, which :meth:`close` closes."""
        self._engine = engine
        self._clock = clock
        self._chains: dict[tuple[str, tuple[int, ...]], _Chain] = {}

    def __call__(self, kind: str, axes: tuple[int, ...], size_bytes: int, calls: int) -> float:
        """Seconds of one collective over this rank's group, of about ``calls`` in a row.

        Args:
            kind: of the collective.
            axes: mesh axes of the group.
            size_bytes: of the input buffer: whole float32 elements for every member.
            calls: how often.
        """
        key = (kind, axes)
        if key not in self._chains:
            self._chains[key] = _Chain(self._engine, kind, axes)
        return self._chains[key].seconds(size_bytes // 4, calls, self._clock)

    def close(self) -> None:
        """Ends the sessions and the engine. Collective."""
        for chain in self._chains.values():
            chain.session.close()
        self._chains.clear()
        self._engine.close()


class _Chain:
    """A graph with a buffer of any size and collectives on it, one after another."""

    def __init__(self, engine: CollectiveEngine, kind: str, axes: tuple[int, ...]) -> None:
        members = partition(engine.mesh_shape, axes)
        self._size = len(members[0])
        self._stacked = kind in _STACKED
        graph = tf.Graph()
        config = tf.compat.v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with graph.as_default(), engine.program(), tf.device(engine.device):
            extent = tf.compat.v1.placeholder(tf.int32, [], name="extent")
            shape = [self._size, extent] if self._stacked else [extent]
            buffer = tf.ensure_shape(tf.fill(tf.stack(shape), 1.0), [self._size, None] if self._stacked else [None])
            ends = [_emit(engine, kind, buffer, axes, members, number) for number in range(_CHAINS[-1])]
            self.session = tf.compat.v1.Session(graph=graph, config=config)
            self._fill = self.session.make_callable(buffer.op, [extent])
            self._fill_s: dict[int, float] = {}
            self._runs = {count: self.session.make_callable(ends[count - 1].op, [extent]) for count in _CHAINS}

    def seconds(self, elements: int, calls: int, clock: Callable[[], float]) -> float:
        """Of one collective; what the session and the buffer take at least is measured alone and taken off."""
        extent = elements // self._size if self._stacked else elements
        count = max(known for known in _CHAINS if known <= max(1, calls))
        run = self._runs[count]
        start = clock()
        self._fill(extent)
        between = clock()
        run(extent)
        end = clock()
        self._fill_s[extent] = fill_s = min(between - start, self._fill_s.get(extent, math.inf))
        return max(end - between - fill_s, 0.0) / count


def _emit(
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
