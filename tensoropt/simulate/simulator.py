"""The simulator: the timeline of a strategy, and of one after the other that differ in some operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensoropt.errors import ProblemError
from tensoropt.simulate import simulation_state as records
from tensoropt.simulate.changes import undo
from tensoropt.simulate.checkpoints import find_bottom_levels, set_checkpoints
from tensoropt.simulate.delta_simulation import commit, simulate_delta
from tensoropt.simulate.frame import Frame
from tensoropt.simulate.full_simulation import count_tasks, find_paths, missing_rows, simulate_full
from tensoropt.simulate.network import Network
from tensoropt.simulate.simulation_state import DeviceClasses, Graph, Records, State, zeros
from tensoropt.simulate.timeline import Resource, Task, Timeline
from tensoropt.space.work import TICKS_PER_S, Ints

__all__ = ["NO_LIMIT", "Simulator"]

NO_LIMIT = 2**62
_ROOM = 1.25  # of a timeline, to grow
_LEAST_BLOCK = 32  # tasks from one checkpoint to the next


class Simulator:
    """Simulates strategies of a network, by changes or from nothing.

    Both give the same timeline, to the last bit.

    Attributes:
        network: the tasks.
        frame: the devices that are told apart.
        state: the strategy and its timeline, for compiled loops.
        makespan: of the strategy, in ticks.
    """

    def __init__(
        self,
        network: Network,
        assignment: Sequence[int] | Ints,
        *,
        together: Sequence[Ints] | None = None,
        keep: tuple[int, ...] = (),
    ) -> None:
        """Simulates a first strategy.

        Args:
            network: the tasks.
            assignment: a configuration of each operator.
            together: operators that compiled loops may change together, to make room for; by default each by itself.
            keep: mesh axes whose devices are told apart in any case; those along which an operator may be placed always
                are.

        Raises:
            ProblemError: an operator has not the configuration.
        """
        self.network = network
        self._keep = keep
        self.frame: Frame
        self.state: State
        operators = network.graph.operators
        self._degree: Ints = operators["in_end"] - operators["in_first"] + operators["out_end"] - operators["out_first"]
        sets = [np.array([op]) for op in range(network.operators)] if together is None else together
        self._most_moved = max(map(len, sets), default=0)
        self._around = max(map(self._slots_around, sets), default=0)
        self._tried = 0
        self.reset(assignment)

    @property
    def assignment(self) -> Ints:
        """The configuration of each operator, of the strategy that the timeline is of."""
        return self.state.assignment

    def reset(self, assignment: Sequence[int] | Ints) -> int:
        """Simulates a strategy from nothing (FlexFlow Algorithm 1); gives the makespan in ticks."""
        chosen = self._checked(assignment)
        self.require(np.arange(self.network.operators), chosen)
        self._build(chosen)
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

    def require(self, operators: Ints, choices: Ints) -> None:
        """Gets all routes that operators may need with configurations, ``(K,)`` pairs of both."""
        graph = self.network.graph
        if graph.complete:
            return
        seen, out = np.zeros(len(graph.rows), np.uint8), np.empty(len(graph.rows), np.int64)
        count = missing_rows(graph, operators, choices, out, seen)
        for place in np.sort(out[:count]).tolist():
            self.network.add_row(place)

    def refresh(self) -> None:
        """Takes over what the network has learned, here or from others that share it; simulates again if it must.

        Also makes room for the tasks that a change may add.
        """
        network, known = self.network, len(self.frame.devices.signatures)
        if network.signature_count > known or network.longest > self.stages:
            if network.longest > self.stages or not {*network.placed_axes(known)} <= {*self.frame.kept}:
                self._build(self.assignment)
            else:  # the strategy's tasks are of signatures that were known, whose numbers stay
                self.frame = network.frame(self.frame.kept)
        if int(self.state.progress["tasks"][0]) > self.room:
            self._build(self.assignment)

    @property
    def stages(self) -> int:
        """The most of any path, by which tasks are numbered."""
        return int(self.state.progress["stages"][0])

    @property
    def makespan_s(self) -> float:
        """Seconds of the strategy."""
        return self.makespan / TICKS_PER_S

    def try_change(self, operator: int, choice: int, limit: int = NO_LIMIT) -> int:
        """The makespan in ticks with one configuration changed; then :meth:`accept` or :meth:`reject` it.

        Args:
            operator: its number.
            choice: its new configuration.
            limit: the makespan that is not wanted if it is longer.

        Returns:
            -1 if it exceeds ``limit``, or if the configuration is not possible beside the others.

        Raises:
            ProblemError: the operator has not the configuration.
        """
        choices = self.network.choices
        if not 0 <= operator < len(choices) or not 0 <= choice < choices[operator]:
            raise ProblemError(
                f"Simulator: operator {operator} of {len(choices)} has no configuration {choice}. "
                "Give indices into the operators and their choices."
            )
        return self._try(np.array([operator] if self.assignment[operator] != choice else [], np.int64), choice, limit)

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
        return self._try(moved, chosen[moved], limit)

    def _try(self, moved: Ints, choices: Ints | int, limit: int) -> int:
        self.require(moved, np.broadcast_to(choices, moved.shape).copy())
        around = self._slots_around(moved)
        if around > self._around or len(moved) > self._most_moved:
            self._around, self._most_moved = max(around, self._around), max(len(moved), self._most_moved)
            self._build(self.assignment)
        self.refresh()
        state = self.state
        some = state.moved[: len(moved)]
        some["operator"], some["choice"] = moved, self.assignment[moved]
        state.progress["moved"], state.progress["changed"] = len(moved), 0
        state.assignment[moved] = choices
        self._tried = int(simulate_delta(*self.compiled(), limit))
        return self._tried

    @property
    def moved(self) -> int:
        """How many operators the last change that was tried has moved."""
        return int(self.state.progress["moved"][0])

    def accept(self) -> None:
        """Makes the last change that was tried, and did not exceed its limit, the strategy."""
        commit(self.network.graph, self.state)
        self.makespan = self._tried

    def reject(self) -> None:
        """Takes the last change back."""
        undo(self.network.graph, self.state)

    def compiled(self) -> tuple[Graph, DeviceClasses, State]:
        """Returns the first arguments of compiled loops."""
        return self.network.graph, self.frame.devices, self.state

    @property
    def line(self) -> Records:
        """The timeline, ``(tasks,)`` records of ``TIMED``, in the order in which tasks become ready."""
        progress = self.state.progress[0]
        return self.state.lines[progress["line"], : progress["tasks"]]

    def timeline(self) -> Timeline:
        """The timeline of the strategy, for every device and link."""
        network, frame = self.network, self.frame
        classes, kept = frame.devices.present.shape[1], frame.kept
        expanded = network.frame(tuple(range(len(network.mesh)))).devices
        devices = expanded.present.shape[1]
        coordinates = np.array(list(np.ndindex(*network.mesh)), np.int64).reshape(devices, len(network.mesh))
        radix = np.array([int(np.prod(frame.shape[i + 1 :])) for i in range(len(kept))], np.int64)
        class_of = (coordinates[:, list(kept)] * radix).sum(axis=1) if kept else np.zeros(devices, np.int64)
        tasks = []
        for number, ready, end in self.line[["task", "ready", "end"]].tolist():
            place, rest = number % classes, number // classes
            stage, slot = rest % self.stages, rest // self.stages
            duration, sign = network.path(int(self.state.path[slot]))[stage]
            kind = int(expanded.signatures["kind"][sign])
            if kind < 0:
                continue
            for device in np.flatnonzero((class_of == place) & (expanded.present[sign] > 0)).tolist():
                tasks.append(
                    Task(
                        (slot, stage, device),
                        int(network.graph.slots["kind"][slot]),
                        int(network.graph.slots["subject"][slot]),
                        Resource(kind, int(expanded.lanes[kind, device])),
                        ready / TICKS_PER_S,
                        (end - duration) / TICKS_PER_S,
                        end / TICKS_PER_S,
                    )
                )
        return Timeline(tuple(sorted(tasks, key=lambda task: (task.ready_s, task.identity))), self.makespan_s)

    @property
    def room(self) -> int:
        """How many tasks there may be before a change, without :meth:`refresh`."""
        return len(self.state.log) - self._most_fresh

    def _slots_around(self, moved: Ints) -> int:
        """At most so many slots have to do with operators that move: theirs, and for each of their edges its ways and
        the operator at its other end."""
        return min(4 * len(moved) + 4 * int(self._degree[moved].sum()), self.network.slots)

    def _build(self, assignment: Ints) -> None:
        """Makes room, and simulates a strategy from nothing."""
        network = self.network
        graph = network.graph
        self.frame = network.frame(tuple(sorted({*self._keep, *network.placed_axes()})))
        devices = self.frame.devices
        path: Ints = np.zeros(network.slots, np.int64)
        find_paths(graph, assignment, path)
        if np.any(path < 0):
            edge = int(graph.slots["subject"][np.argmin(path)])
            ends = [int(graph.edges[end][edge]) for end in ("producer", "consumer")]
            raise ProblemError(
                f"Simulator: edge {edge} does not allow configurations {[int(assignment[op]) for op in ends]} of "
                f"operators {ends} together. Choose configurations that give and want the same layout there."
            )
        around = min(self._around, network.slots)
        stages, classes = network.longest, devices.present.shape[1]
        fresh = self._most_fresh = around * stages * classes
        room = int(int(count_tasks(graph, devices, path)) * _ROOM) + 2 * fresh
        lanes = devices.lanes.size
        block = max(_LEAST_BLOCK, 2 * lanes)
        marks = room // block + 1
        most = (int(self._degree.max(initial=0)) + 2) * classes
        self.state = State(
            progress=zeros(records.PROGRESS, 1),
            assignment=assignment,
            path=path,
            after=np.zeros(len(graph.after), np.int64),
            before=np.zeros(len(graph.before), np.int64),
            tasks=zeros(records.TASK, network.slots * stages * classes),
            lines=zeros(records.TIMED, 2, room),
            lanes=zeros(records.LANE, lanes + 1),
            checkpoints=zeros(records.CHECKPOINT, marks, lanes),
            peaks=np.zeros(marks, np.int64),
            moved=zeros(records.MOVED, self._most_moved),
            changed=zeros(records.CHANGED_SLOT, around),
            slot_epochs=zeros(records.SLOT_EPOCH, network.slots),
            edge_tried=np.zeros(len(graph.edges), np.int64),
            dirty=zeros(records.DIRTY, fresh),
            gone=np.zeros(fresh, np.int64),
            queue=zeros(records.QUEUED, room),
            spare_queue=zeros(records.QUEUED, room),
            log=zeros(records.TIMED, room),
            segments=zeros(records.SEGMENT, room),
            tasks_before=np.zeros(most, np.int64),
            tasks_after=np.zeros(most, np.int64),
        )
        self.state.progress["stages"], self.state.progress["block"] = stages, block
        self.makespan = int(simulate_full(graph, devices, self.state))
        set_checkpoints(self.state)
        find_bottom_levels(graph, devices, self.state)
