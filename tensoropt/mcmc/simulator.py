"""The simulator: the timeline of a strategy, and of one after the other that differ in one operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.mcmc import blob, delta, kernels
from tensoropt.mcmc.links import link_all
from tensoropt.mcmc.marks import leave_marks, leave_tails
from tensoropt.mcmc.memory import no_memory
from tensoropt.mcmc.moves import Moves, apply, restore
from tensoropt.mcmc.network import Frame, Network
from tensoropt.mcmc.timeline import Resource, Task, Timeline
from tensoropt.search.stages import TICKS_PER_S, Ints

__all__ = ["NO_LIMIT", "Simulator"]

NO_LIMIT = 2**62
_ROOM = 1.25  # of a timeline, to grow
_LEAST_BLOCK = 32  # tasks from one mark to the next


class Simulator:
    """Simulates strategies of a network, by changes of one operator or from nothing.

    Both give the same timeline, to the last bit.

    Attributes:
        network: the tasks.
        assignment: the configuration of each operator, of the strategy that the timeline is of.
    """

    def __init__(
        self,
        network: Network,
        assignment: Sequence[int] | Ints,
        *,
        moves: Moves | None = None,
        keep: tuple[int, ...] = (),
    ) -> None:
        """Simulates a first strategy.

        Args:
            network: the tasks.
            assignment: a configuration of each operator.
            moves: what a change may be; by default one operator.
            keep: mesh axes whose devices are told apart in any case; those along which an operator may be placed always
                are.

        Raises:
            ProblemError: an operator has not the configuration.
        """
        self.network = network
        self._moves = Moves.of_each(network) if moves is None else moves
        self._keep = keep
        self.frame: Frame
        self.work: Ints
        self._each = Moves.of_each(network)
        self._degree: Ints = np.diff(network.field(blob.IN_FIRST)) + np.diff(network.field(blob.OUT_FIRST))
        members = self._moves.members
        self._most_moved = max(map(len, members), default=0)
        self._around = max(map(self._slots_around, members), default=0)
        self.assignment: Ints = np.zeros(0, np.int64)
        self.reset(assignment)

    def reset(self, assignment: Sequence[int] | Ints) -> int:
        """Simulates a strategy from nothing (FlexFlow Algorithm 1); gives the makespan in ticks."""
        self.assignment = self._checked(assignment)
        self.require(self._each, np.arange(self.network.operators), self.assignment)
        self._build()
        return self.makespan

    def _checked(self, assignment: Sequence[int] | Ints) -> Ints:
        chosen = np.array(assignment, np.int64)
        network = self.network
        if chosen.shape != network.choices.shape or np.any(chosen < 0) or np.any(chosen >= network.choices):
            raise ProblemError(
                f"Simulator: needs one configuration for each of {network.operators} operators, from 0 to their number "
                f"(at most {int(network.choices.max(initial=0))}) less 1, got {chosen.shape} with "
                f"{[int(i) for i in chosen[:8]]} …. Give indices into the operators' choices."
            )
        return chosen

    def require(self, moves: Moves, sets: Ints, choices: Ints) -> bool:
        """Gets all ways that changes of sets (their numbers) to choices need; whether any was missing."""
        arrays = self.network.arrays
        if arrays.complete:
            return False
        flags = np.zeros(len(arrays.rows), np.uint8)
        out = np.empty(len(flags), np.int64)
        count = kernels.missing_rows(arrays.net, arrays.rows, moves.blob, sets, choices, out, flags)
        for place in np.sort(out[:count]).tolist():
            self.network.add_row(place)
        return bool(count)

    def refresh(self) -> None:
        """Takes over what the network has learned, here or from others that share it; simulates again if it must."""
        network, known = self.network, len(self.frame.kinds)
        if network.signature_count == known and network.longest <= self.stages:
            return
        if network.longest > self.stages or not {*network.placed_axes(known)} <= {*self.frame.kept}:
            self._build()
            return
        # The strategy's tasks are of signatures that were known, whose numbers stay.
        self.frame = network.frame(self.frame.kept)
        self._frame_blob = self.frame.blob()

    @property
    def makespan_s(self) -> float:
        """Seconds of the strategy."""
        return self.makespan / TICKS_PER_S

    def try_change(self, number: int, choice: int, limit: int = NO_LIMIT) -> int:
        """The makespan in ticks with one configuration changed; then :meth:`accept` or :meth:`reject` it.

        Args:
            number: of the operators that change together; an operator's own, if each decides for itself.
            choice: the new configuration of the first of them.
            limit: the makespan that is not wanted if it is longer.

        Returns:
            -1 if it exceeds ``limit``, or if the configuration is not possible beside the others.

        Raises:
            ProblemError: the operator has not the configuration.
        """
        moves = self._moves
        if not 0 <= number < len(moves.choices) or not 0 <= choice < moves.choices[number]:
            raise ProblemError(
                f"Simulator: operator {number} of {len(moves.choices)} has no configuration {choice}. "
                "Give indices into the operators and their choices."
            )
        self.require(moves, np.array([number]), np.array([choice]))
        self.refresh()
        self.grow()
        compiled = self.compiled()
        apply(compiled[0], moves.blob, no_memory(), self.assignment, self.work, number, choice)
        self._tried = delta.change(*compiled, self.assignment, limit)
        return int(self._tried)

    def try_strategy(self, assignment: Sequence[int] | Ints, limit: int = NO_LIMIT) -> int:
        """The makespan in ticks of another strategy, which may differ in any operators; then :meth:`accept` or
        :meth:`reject` it. What it has in common with the present one is not simulated again.

        Args:
            assignment: a configuration of each operator.
            limit: the makespan that is not wanted if it is longer.

        Returns:
            -1 if it exceeds ``limit``, or if its configurations are not possible beside one another.

        Raises:
            ProblemError: an operator has not the configuration.
        """
        chosen = self._checked(assignment)
        moved = np.flatnonzero(chosen != self.assignment)
        self.require(self._each, moved, chosen[moved])
        around = self._slots_around(moved)
        if around > self._around or len(moved) > self._most_moved:
            self._around, self._most_moved = max(around, self._around), max(len(moved), self._most_moved)
            self._build()
        self.refresh()
        self.grow()
        work = self.work
        for field, values in ((blob.MOVED_OP, moved), (blob.MOVED_FROM, self.assignment[moved])):
            work[work[field] : work[field] + len(moved)] = values
        work[blob.MOVED], work[blob.CHANGED] = len(moved), 0
        self.assignment[moved] = chosen[moved]
        self._tried = delta.change(*self.compiled(), self.assignment, limit)
        return int(self._tried)

    @property
    def moved(self) -> int:
        """How many operators the last change that was tried has moved."""
        return int(self.work[blob.MOVED])

    def accept(self) -> None:
        """Makes the last change that was tried, and did not exceed its limit, the strategy."""
        delta.commit(self.network.arrays.pool, self.path, self.work, self.stages)
        self.makespan = self._tried

    def reject(self) -> None:
        """Takes the last change back."""
        restore(self.network.arrays.net, self.work, self.assignment, self.path)

    def compiled(self) -> tuple[Ints, Ints, Ints, Ints, Ints, int, Ints, Ints]:
        """What compiled loops take first."""
        arrays = self.network.arrays
        return (
            arrays.net,
            self._frame_blob,
            arrays.pool,
            self.path,
            self.work,
            self.stages,
            arrays.rows,
            arrays.routes,
        )

    def line(self, field: int) -> Ints:
        """One of the timeline's arrays, by its number in :mod:`tensoropt.mcmc.blob`."""
        first = int(self.work[field])
        return self.work[first : first + int(self.work[blob.TASKS])]

    def timeline(self) -> Timeline:
        """The timeline of the strategy, for every device and link."""
        network, frame = self.network, self.frame
        classes = frame.classes
        kept = frame.kept
        expanded = network.frame(tuple(range(len(network.mesh))))
        devices = expanded.present.shape[1]
        coordinates = np.array(list(np.ndindex(*network.mesh)), np.int64).reshape(devices, len(network.mesh))
        radix = np.array([int(np.prod(frame.shape[i + 1 :])) for i in range(len(kept))], np.int64)
        klass_of = (coordinates[:, list(kept)] * radix).sum(axis=1) if kept else np.zeros(devices, np.int64)
        tasks = []
        lines = (blob.LINE_TASK, blob.LINE_READY, blob.LINE_END)
        kinds, refs = network.field(blob.SLOT_KIND), network.field(blob.SLOT_REF)
        for number, ready, end in zip(*(self.line(field).tolist() for field in lines), strict=True):
            klass, rest = number % classes, number // classes
            stage, slot = rest % self.stages, rest // self.stages
            duration, sign = network.path(int(self.path[slot]))[stage]
            if frame.kinds[sign] < 0:
                continue
            for device in np.flatnonzero((klass_of == klass) & (expanded.present[sign] > 0)).tolist():
                tasks.append(
                    Task(
                        (slot, stage, device),
                        int(kinds[slot]),
                        int(refs[slot]),
                        Resource(int(frame.kinds[sign]), int(expanded.lanes[frame.kinds[sign], device])),
                        ready / TICKS_PER_S,
                        (end - duration) / TICKS_PER_S,
                        end / TICKS_PER_S,
                    )
                )
        return Timeline(tuple(sorted(tasks, key=lambda task: (task.ready_s, task.identity))), self.makespan_s)

    def grow(self) -> None:
        """Makes room for the tasks that a change may add."""
        if int(self.work[blob.TASKS]) > self.room:
            self._build()

    @property
    def room(self) -> int:
        """How many tasks there may be before a change, without :meth:`grow`."""
        return self._room - self._most_fresh

    def _slots_around(self, moved: Ints) -> int:
        """At most so many slots have to do with operators that move: theirs, and for each of their edges its ways and
        the operator at its other end."""
        return min(4 * len(moved) + 4 * int(self._degree[moved].sum()), self.network.slots)

    def _build(self) -> None:
        network = self.network
        arrays = network.arrays
        self.stages = network.longest
        self.frame = network.frame(tuple(sorted({*self._keep, *network.placed_axes()})))
        self._frame_blob = self.frame.blob()
        classes, slots = self.frame.classes, network.slots
        self.path: Ints = np.zeros(slots, np.int64)
        kernels.find_paths(arrays.net, arrays.rows, arrays.routes, self.assignment, self.path)
        if np.any(self.path < 0):
            edge = int(network.field(blob.SLOT_REF)[np.argmin(self.path)])
            ends = [int(network.field(field)[edge]) for field in (blob.EDGE_FROM, blob.EDGE_TO)]
            raise ProblemError(
                f"Simulator: edge {edge} does not allow configurations {[int(self.assignment[op]) for op in ends]} of "
                f"operators {ends} together. Choose configurations that give and want the same layout there."
            )
        most = int(self._degree.max(initial=0))
        around = min(self._around, slots)
        self._most_fresh = around * self.stages * classes
        count = int(kernels.count_tasks(self._frame_blob, arrays.pool, self.path))
        room = self._room = int(count * _ROOM) + 2 * self._most_fresh
        numbers = slots * self.stages * classes
        lanes = self.frame.lanes.size
        block = max(_LEAST_BLOCK, 2 * lanes)
        marks = room // block + 1
        of_size = [
            (numbers * blob.WIDTH, (blob.LINE_POSITION,)),
            (room, (*range(blob.LINE_TASK, blob.OTHER_ENABLER + 1), *range(blob.HEAP_READY, blob.REGION_LOGGED + 1))),
            (around, (blob.CHANGED_SLOT, blob.CHANGED_PATH)),
            (self._most_moved, (blob.MOVED_OP, blob.MOVED_FROM)),
            (slots, (blob.SLOT_DIRTY, blob.SLOT_CHANGED)),
            (len(network.field(blob.EDGE_FROM)), (blob.EDGE_SEEN,)),
            (self._most_fresh, (blob.DIRTY_TASKS, blob.DIRTY_STATE, blob.GONE_TASKS)),
            (lanes, tuple(range(blob.LANE_END, blob.LANE_LOAD + 1))),
            (lanes, tuple(range(blob.HERE_LAST, blob.THERE_BUSY + 1))),
            (marks * lanes, (blob.MARK_LAST, blob.MARK_BUSY)),
            (marks, (blob.MARK_PEAK,)),
            ((most + 2) * classes, (blob.BUFFER_BEFORE, blob.BUFFER_AFTER)),
            (lanes + 1, tuple(range(blob.SHIFT_BY, blob.OTHER_OLD + 1))),
            (len(network.field(blob.AFTER_ALL)), (blob.AFTER, blob.BEFORE)),
        ]
        sizes = {field: size for size, fields in of_size for field in fields}
        self.work = blob.pack({blob.LANES: lanes, blob.BLOCK: block}, sizes)
        for number, field in enumerate(blob.OF_TASK):
            self.work[field] = self.work[blob.LINE_POSITION] + number
        self.makespan = int(kernels.simulate(*self.compiled()[:-2]))
        link_all(arrays.net, self.path, self.work)
        leave_marks(self.work)
        leave_tails(*self.compiled()[:-2])
