"""Records training steps while they run: when each kernel of this device worked, and for which part of the plan."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

from tensoropt.plan.plan import Plan
from tensoropt.plan.recorded_steps import Kernel, RankSteps

__all__ = ["Owner", "Range", "Recording", "current_recording", "owners_of", "record"]


class Owner(NamedTuple):
    """The part of a plan that a local op does the work of; see :class:`Kernel` for the fields."""

    subject: str
    backward: bool
    collective: bool


class Range(NamedTuple):
    """The local ops that were made for an operator or an edge, by their places in the graph; the last is not in it."""

    first: int
    end: int
    subject: str


@dataclass(slots=True)
class Recording:
    """The steps of one executor, every other one traced, which slows it down.

    Attributes:
        most: so many are traced.
        plan: of the executor; None before the first step.
        timed_s: seconds of steps that were only timed, as the caller waited for them.
        traced: the kernels of each traced step, in the order in which they began.
    """

    most: int
    plan: Plan | None = None
    timed_s: list[float] = field(default_factory=list)
    traced: list[tuple[Kernel, ...]] = field(default_factory=list)
    _executor: Any = None

    @property
    def steps(self) -> RankSteps:
        """The steps recorded so far."""
        return RankSteps(tuple(self.timed_s), tuple(self.traced))

    def wants(self, executor: Any) -> bool:
        """Tells whether to record an executor's training step: of the first executor, until there are enough."""
        if self._executor is None:
            self._executor, self.plan = executor, executor.plan
        return self._executor is executor and len(self.traced) < self.most

    def run(self, call: Callable[..., Sequence[Any]], owners: Callable[[], Mapping[str, Owner]]) -> Sequence[Any]:
        """Runs a step.

        Args:
            call: does so, given what it takes besides: ``options`` and ``run_metadata``.
            owners: gives whose work local ops do, by the ops' names.
        """
        metadata = options = None
        if (len(self.timed_s) + len(self.traced)) % 2 == 1:
            metadata = tf.compat.v1.RunMetadata()
            options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.SOFTWARE_TRACE)
        began = time.perf_counter()
        values = call(options, metadata)
        took = time.perf_counter() - began
        kernels = () if metadata is None else _kernels(metadata.step_stats, owners())
        if kernels:
            self.traced.append(kernels)
        else:
            self.timed_s.append(took)
        return values


_current: list[Recording] = []


def current_recording() -> Recording | None:
    """The recording that goes on."""
    return _current[-1] if _current else None


@contextlib.contextmanager
def record(most: int) -> Iterator[Recording]:
    """Records, inside of the block, what the first executor that trains does; so many steps are traced."""
    recording = Recording(most)
    _current.append(recording)
    try:
        yield recording
    finally:
        _current.remove(recording)


def owners_of(
    graph: Any, first: int, end: int, ranges: Sequence[Range], collectives: Collection[str]
) -> dict[str, Owner]:
    """Returns the owners of a program's local ops, whose work they do, by the ops' names.

    Args:
        graph: the local graph.
        first: the place of the program's first op.
        end: that after its last.
        ranges: what was made for what; a range that is inside another one comes before it.
        collectives: names of the ops that talk to other devices.
    """
    operations = graph.get_operations()
    subjects: dict[str, str] = {}
    for one in ranges:
        for op in operations[one.first : one.end]:
            subjects.setdefault(op.name, one.subject)
    found: dict[str, Owner] = {}
    for op in operations[first:end]:
        # TensorFlow says of an op that it makes for a gradient which op the gradient is of; that of an edge is so, too.
        forward = op._original_op
        backward = forward is not None and forward.name in subjects
        subject = subjects.get(forward.name if backward else op.name)
        if subject is not None:
            found[op.name] = Owner(subject, backward, op.name in collectives)
    return found


def _kernels(step_stats: Any, owners: Mapping[str, Owner]) -> tuple[Kernel, ...]:
    nodes = [node for device in step_stats.dev_stats for node in device.node_stats if node.node_name in owners]
    began = [node.all_start_nanos + node.op_start_rel_nanos for node in nodes]
    first = min(began, default=0)
    kernels = [
        Kernel(
            node.node_name,
            *owners[node.node_name],
            (start - first) * 1e-9,
            max(node.op_end_rel_nanos - node.op_start_rel_nanos, 0) * 1e-9,
        )
        for node, start in zip(nodes, began, strict=True)
    ]
    return tuple(sorted(kernels, key=lambda kernel: kernel.start_s))
