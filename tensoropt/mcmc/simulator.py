"""The simulator: the timeline of a strategy, and of one after the other that differ in one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.mcmc import delta, kernels
from tensoropt.mcmc.network import Network
from tensoropt.mcmc.timeline import Resource, Task, Timeline
from tensoropt.search.stages import TICKS_PER_S, Ints

__all__ = ["NO_LIMIT", "Simulator"]

NO_LIMIT = 2**62
_SHIFTS = 32  # as in delta
_ROOM = 1.25  # of a timeline, to grow


class _Line(NamedTuple):
    """A timeline for compiled loops; see :func:`tensoropt.mcmc.kernels.simulate`."""

    position: Ints
    task: Ints
    ready: Ints
    end: Ints
    lane: Ints
    enabler: Ints


class _Work(NamedTuple):
    """Room for delta simulation."""

    counts: Ints
    changed_slot: Ints
    changed_path: Ints
    slot_dirty: Ints
    dirty: Ints
    dirty_state: Ints
    gone: Ints
    stamp: Ints
    waiting: Ints
    enabler: Ints
    turn: Ints
    end: Ints
    lane_end: Ints
    heap_ready: Ints
    heap_task: Ints
    spare_ready: Ints
    spare_task: Ints
    log_task: Ints
    log_ready: Ints
    log_end: Ints
    log_lane: Ints
    region_first: Ints
    region_last: Ints
    region_shift: Ints
    region_logged: Ints
    buffer_before: Ints
    buffer_after: Ints


class _Shifts(NamedTuple):
    """By how much ends differ from the old timeline; see :func:`tensoropt.mcmc.delta.change`."""

    by: Ints
    new: Ints
    old: Ints
    fresh: Ints
    last: Ints


class Simulator:
    """Simulates strategies of a network, by changes of one operator or from nothing.

    Both give the same timeline, to the last bit.

    Attributes:
        network: the tasks.
        assignment: the configuration of each operator, of the strategy that the timeline is of.
    """

    def __init__(self, network: Network, assignment: Sequence[int], *, keep: tuple[int, ...] = ()) -> None:
        """Simulates a first strategy.

        Args:
            network: the tasks.
            assignment: a configuration of each operator.
            keep: mesh axes whose devices are told apart in any case; those along which an operator may be placed always
                are.

        Raises:
            ProblemError: an operator has not the configuration.
        """
        self.network = network
        self._keep = keep
        self.assignment: Ints = np.zeros(0, np.int64)
        self.reset(assignment)

    def reset(self, assignment: Sequence[int] | Ints) -> int:
        """Simulates a strategy from nothing (FlexFlow Algorithm 1); gives the makespan in ticks."""
        chosen = np.array(assignment, np.int64)
        network = self.network
        if chosen.shape != network.choices.shape or np.any(chosen < 0) or np.any(chosen >= network.choices):
            raise ProblemError(
                f"Simulator: needs one configuration for each of {network.operators} operators, from 0 to their number "
                f"(at most {int(network.choices.max(initial=0))}) less 1, got {chosen.shape} with "
                f"{[int(i) for i in chosen[:8]]} …. Give indices into the operators' choices."
            )
        self.assignment = chosen
        self.require(np.arange(network.operators), chosen)
        self._build()
        return self.makespan

    def require(self, operators: Ints, choices: Ints) -> bool:
        """Gets all ways that changes of ``operators[i]`` to ``choices[i]`` need; whether any was missing."""
        arrays = self.network.arrays
        flags = np.zeros(len(arrays.row_at), np.uint8)
        out = np.empty(len(flags), np.int64)
        count = kernels.missing_rows(arrays, operators, choices, out, flags)
        for place in np.sort(out[:count]).tolist():
            self.network.add_row(place)
        return bool(count)

    def refresh(self) -> None:
        """Simulates again if what was added by :meth:`require` does not fit in the arrays as they are."""
        if len(self.network.signatures) != len(self.frame.kinds) or self.network.longest > self.stages:
            self._build()

    @property
    def makespan_s(self) -> float:
        """Seconds of the strategy."""
        return self.makespan / TICKS_PER_S

    def try_change(self, operator: int, choice: int, limit: int = NO_LIMIT) -> int:
        """The makespan in ticks with one configuration changed, -1 if it exceeds ``limit``; then :meth:`accept` or :meth:`reject`."""
        if not 0 <= operator < self.network.operators or not 0 <= choice < self.network.choices[operator]:
            raise ProblemError(
                f"Simulator: operator {operator} of {self.network.operators} has no configuration {choice}. "
                "Give indices into the operators and their choices."
            )
        if self.require(np.array([operator]), np.array([choice])):
            self.refresh()
        self.grow()
        self._pending = operator, choice
        self._tried = delta.change(
            self.network.arrays,
            self.frame,
            self.line,
            self.work,
            self.path,
            self.stages,
            self.assignment,
            operator,
            choice,
            limit,
            self.shifts,
        )
        return int(self._tried)

    def accept(self) -> None:
        """Makes the last change that was tried, and did not exceed its limit, the strategy."""
        operator, choice = self._pending
        delta.commit(self.line, self.other, self.work)
        self.line, self.other = self.other, self.line
        self.assignment[operator] = choice
        self.makespan = self._tried

    def reject(self) -> None:
        """Takes the last change back."""
        delta.restore(self.work, self.path)

    def timeline(self) -> Timeline:
        """The timeline of the strategy, for every device and link."""
        network, frame = self.network, self.frame
        count = int(self.work.counts[delta.TASKS])
        classes = frame.present.shape[1]
        kept = frame.kept
        expanded = network.frame(tuple(range(len(network.mesh))))
        devices = expanded.present.shape[1]
        coordinates = np.array(list(np.ndindex(*network.mesh)), np.int64).reshape(devices, len(network.mesh))
        radix = np.array([int(np.prod(frame.shape[i + 1 :])) for i in range(len(kept))], np.int64)
        klass_of = (coordinates[:, list(kept)] * radix).sum(axis=1) if kept else np.zeros(devices, np.int64)
        arrays = network.arrays
        tasks = []
        for place in range(count):
            number = int(self.line.task[place])
            klass, rest = number % classes, number // classes
            stage, slot = rest % self.stages, rest // self.stages
            entry = int(arrays.path_first[self.path[slot]]) + stage
            sign = int(arrays.stage_sign[entry])
            if frame.kinds[sign] < 0:
                continue
            ready, end = int(self.line.ready[place]), int(self.line.end[place])
            kind, ref = int(arrays.slot_kind[slot]), int(arrays.slot_ref[slot])
            for device in np.flatnonzero((klass_of == klass) & (expanded.present[sign] > 0)).tolist():
                tasks.append(
                    Task(
                        (slot, stage, device),
                        kind,
                        ref,
                        Resource(int(frame.kinds[sign]), int(expanded.lanes[frame.kinds[sign], device])),
                        ready / TICKS_PER_S,
                        (end - int(arrays.stage_ticks[entry])) / TICKS_PER_S,
                        end / TICKS_PER_S,
                    )
                )
        return Timeline(tuple(sorted(tasks, key=lambda task: (task.ready_s, task.identity))), self.makespan_s)

    def grow(self) -> None:
        """Makes room for the tasks that a change may add."""
        if int(self.work.counts[delta.TASKS]) + self._most_fresh > len(self.line.task):
            self._build()

    def _build(self) -> None:
        network = self.network
        arrays = network.arrays
        self.stages = network.longest
        self.frame = network.frame(tuple(sorted({*self._keep, *network.placed_axes()})))
        classes = self.frame.present.shape[1]
        slots = network.slots
        degree = np.diff(arrays.in_first) + np.diff(arrays.out_first)
        most = int(degree.max(initial=0))
        self._most_fresh = (4 + 4 * most) * self.stages * classes
        self.path: Ints = np.zeros(slots, np.int64)
        kernels.find_paths(arrays, self.assignment, self.path)
        if np.any(self.path < 0):
            slot = int(np.argmin(self.path))
            edge = int(arrays.slot_ref[slot])
            ends = int(arrays.edge_from[edge]), int(arrays.edge_to[edge])
            raise ProblemError(
                f"Simulator: edge {edge} does not allow configurations {[int(self.assignment[op]) for op in ends]} of "
                f"operators {ends} together. Choose configurations that give and want the same layout there."
            )
        count = int(kernels.count_tasks(arrays, self.frame, self.path))
        room = int(count * _ROOM) + self._most_fresh
        numbers = slots * self.stages * classes

        def line(position: Ints) -> _Line:
            return _Line(position, *(np.zeros(room, np.int64) for _ in range(5)))

        self.line = line(np.full(numbers, -1, np.int64))
        self.other = line(self.line.position)
        neighbours = (most + 2) * classes

        def zeros(*sizes: int) -> list[Ints]:
            return [np.zeros(size, np.int64) for size in sizes]

        self.work = _Work(
            np.zeros(8, np.int64),
            *zeros(2 + 2 * most, 2 + 2 * most, slots, *[self._most_fresh] * 3),
            *zeros(*[numbers] * 5),
            *zeros(len(self.frame.lanes) * classes),
            *zeros(*[room] * 4),
            *zeros(*[room] * 4),
            *zeros(*[room // 2 + 2] * 4),
            *zeros(neighbours, neighbours),
        )
        self.shifts = _Shifts(*zeros(_SHIFTS, _SHIFTS, _SHIFTS, 2, 3))
        cut = _Line(self.line.position, *(array[:count] for array in self.line[1:]))
        self.makespan = int(
            kernels.simulate(
                arrays,
                self.frame,
                self.path,
                self.stages,
                cut.position,
                cut.task,
                cut.ready,
                cut.end,
                cut.lane,
                cut.enabler,
                self.work.buffer_before,
            )
        )
        self.work.counts[delta.TASKS] = count

