"""Timelines: a simulated step as a value, with every task's resource, start and end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensoropt.errors import ProblemError

__all__ = ["Resource", "Task", "Timeline"]

# What the tasks of a slot are, by the slot's kind.
_PHASES = ("way", "forward", "backward", "way back")


class Resource(NamedTuple):
    """A device, or a link.

    Attributes:
        kind: 0 for a device, 1 + l for a link of level l.
        number: the device, or for a link the first of the devices behind it.
    """

    kind: int
    number: int


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work of one device or link (FlexFlow table 3).

    Attributes:
        identity: slot, stage and device: the same in all strategies, and the order among tasks that become ready at
            once.
        phase: 0 for a tensor's way, 1 for an operator's forward, 2 for its backward work, 3 for a gradient's way.
        subject: the number of the operator, or of the edge.
        resource: what is busy.
        ready_s: when all that it waits for has ended.
        start_s: when the resource takes it.
        end_s: when it is done.
    """

    identity: tuple[int, int, int]
    phase: int
    subject: int
    resource: Resource
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated training step.

    Attributes:
        tasks: in the order in which they become ready.
        makespan_s: the end of the last task.
        operators: names of the operators that tasks refer to.
        edges: names of the edges.
        levels: names of the levels of links.
        devices: how many devices there are.

    Invariants:
        No resource has two tasks at once; each takes its tasks in the order in which they become ready.
    """

    tasks: tuple[Task, ...]
    makespan_s: float
    operators: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    devices: int = 1
    notes: Mapping[str, Any] = field(default_factory=dict)

    def on_device(self, device: int) -> tuple[Task, ...]:
        """Returns the tasks that a device computes, in order.

        Raises:
            ProblemError: there is no such device.
        """
        if not 0 <= device < self.devices:
            raise ProblemError(
                f"Timeline: device {device} was asked for, the topology has devices 0..{self.devices - 1}. "
                "Ask for one of those."
            )
        return self.on(Resource(0, device))

    def on(self, resource: Resource) -> tuple[Task, ...]:
        """Returns the tasks of a device or link, in order."""
        return tuple(task for task in self.tasks if task.resource == resource)

    def resources(self) -> tuple[Resource, ...]:
        """All that are busy at some time, devices first."""
        return tuple(sorted({task.resource for task in self.tasks}))

    def busy_s(self, resource: Resource) -> float:
        """Seconds in which a device or link works."""
        return sum(task.end_s - task.start_s for task in self.on(resource))

    def name(self, task: Task) -> str:
        """Returns the name of a task for people."""
        names: Sequence[str] = self.operators if task.phase in (1, 2) else self.edges
        subject = names[task.subject] if task.subject < len(names) else str(task.subject)
        return f"{subject} ({_PHASES[task.phase]})"

    def to_chrome_trace(self) -> str:
        """The timeline as JSON for ``chrome://tracing`` or Perfetto: a process per device, a thread per resource.

        Times are microseconds from the start of the step.
        """
        events: list[dict[str, Any]] = []
        for resource in self.resources():
            where = {"pid": resource.number, "tid": resource.kind}
            level = resource.kind - 1
            link = self.levels[level] if 0 <= level < len(self.levels) else str(level)
            kind = "compute" if resource.kind == 0 else f"link {link}"
            events.append(
                {
                    "ph": "M",
                    "name": "process_name",
                    "pid": resource.number,
                    "args": {"name": f"device {resource.number}"},
                }
            )
            events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": kind}})
        for task in self.tasks:
            events.append(
                {
                    "ph": "X",
                    "name": self.name(task),
                    "cat": _PHASES[task.phase],
                    "pid": task.resource.number,
                    "tid": task.resource.kind,
                    "ts": task.start_s * 1e6,
                    "dur": (task.end_s - task.start_s) * 1e6,
                    "args": {"ready_us": task.ready_s * 1e6},
                }
            )
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
