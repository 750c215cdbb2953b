"""The data of compiled loops: tuples of arrays, most of them arrays of records with named fields.

All numbers are 64-bit integers; times are ticks. A field that names a task, an edge, an operator, a slot or a path
holds its number; -1 is none. Several lists lie one after the other in one array: one list is the array's entries
``first`` to ``end - 1``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensoropt.space.work import Ints

__all__ = ["BACKWARD", "FORWARD", "WAY", "WAY_BACK", "DeviceClasses", "Graph", "Records", "State", "record", "zeros"]

Records = NDArray[np.void]

# Kinds of slots.
WAY, FORWARD, BACKWARD, WAY_BACK = 0, 1, 2, 3

_CACHE_LINE = 64


def record(fields: str) -> np.dtype[np.void]:
    """A record of fields, whose names are given with spaces between them."""
    return np.dtype([(field, np.int64) for field in fields.split()], align=True)


OPERATOR = record("in_first in_end out_first out_end choice_first forward_slot backward_slot has_backward")
"""Its edges in ``Graph.incoming`` and ``Graph.outgoing``, its configurations in ``Graph.forward`` and ``.backward``."""

EDGE = record("producer consumer returns way_slot back_slot way_table way_from way_to back_table back_from back_to")
"""An edge: whether a gradient returns; its tables of routes, by their first rows (-1: no gradient returns); and the
places in ``Graph.layouts`` where the layouts by configuration of either end begin.
"""

SLOT = record("kind subject after_first after_end before_first before_end source target source_entry target_entry")
"""Its operator or edge; its lists in ``Graph.after`` and ``Graph.before``. Of a way, the slots at its ends, -1 for one
that nothing takes, and the entries that change in their lists when it becomes empty; ``target`` is a complement if it
waits for nothing else."""

SIGNATURE = record("axes kind")
"""Over which kept axes tasks wait for one another, as bits; and the row of ``DeviceClasses.lanes``, -1 for none."""

PROGRESS = record(
    "stages block makespan tasks line epoch phase tried taken stale lost drift "
    "moved changed dirty gone logged segments shared last latest fresh_end fresh_old_end"
)
TASK = record("position simulated queued enabler turn end bottom open")
TIMED = record("task ready end lane enabler")
LANE = record(
    "end left load last busy last_before busy_before shift shifted_end shifted_old_end other_end other_old_end"
)
SLOT_EPOCH = record("dirty changed")
CHANGED_SLOT = record("slot path")
MOVED = record("operator choice")
DIRTY = record("task has_old has_new")
QUEUED = record("ready task")
SEGMENT = record("first end shift logged")
CHECKPOINT = record("last busy")


class Graph(NamedTuple):
    """The task graphs of all strategies; see :class:`tensoropt.simulate.network.Network`.

    Attributes:
        operators: ``(N,)`` of ``OPERATOR``.
        edges: ``(E,)`` of ``EDGE``.
        slots: ``(S,)`` of ``SLOT``.
        incoming: edges into each operator.
        outgoing: edges from each operator.
        forward: the path of each configuration's forward slot.
        backward: the path of its backward slot, empty if it has none.
        layouts: by configuration the layout in which an operator gives or wants a tensor.
        after: the slots that wait for each slot if no way is empty; complements if they wait for nothing else.
        before: the slots that each slot waits for then.
        pool: of each path the number of stages, then ticks and signature of each; a path's number is where it begins.
        rows: where each row of routes begins in ``routes``, -1 if it is not known.
        routes: the path of each route between layouts.
    """

    operators: Records
    edges: Records
    slots: Records
    incoming: Ints
    outgoing: Ints
    forward: Ints
    backward: Ints
    layouts: Ints
    after: Ints
    before: Ints
    pool: Ints
    rows: Ints
    routes: Ints

    @property
    def complete(self) -> bool:
        """True if all rows are known."""
        return bool((self.rows[:-1] >= 0).all())


class DeviceClasses(NamedTuple):
    """Devices that strategies tell apart, C of them; see :class:`tensoropt.simulate.network.Frame`.

    Attributes:
        signatures: of ``SIGNATURE``.
        lanes: ``(1 + levels, C)``, the class that names the resource of a class: itself for devices, the first of its
            unit for a link that devices share.
        present: ``(signatures, C)``, which classes have a task.
        zeroed: ``(2^kept, C)``, a class with the coordinates of some axes set to 0.
        offset_first: ``(2^kept + 1,)``, where the offsets of each set of axes begin.
        offsets: of all classes that differ only along a set of axes, from that which is zeroed.
    """

    signatures: Records
    lanes: Ints
    present: NDArray[np.uint8]
    zeroed: Ints
    offset_first: Ints
    offsets: Ints


class State(NamedTuple):
    """A strategy, its timeline, and what a change of it needs.

    A task is numbered ``(slot * stages + stage) * C + class``. The timeline lists tasks in the order in which they
    become ready, equal ones by number. Marks of tasks and slots hold if they are of the present ``epoch``, which counts
    changes that were simulated.

    Attributes:
        progress: ``(1,)`` of ``PROGRESS``: the most stages of any path; tasks between checkpoints; the timeline's
            makespan and number of tasks, and which of ``lines`` it is; counters of changes (``epoch``, ``tried``),
            of parts reused (``phase``) and of changes taken since bottom levels were found (``stale``, ``taken`` the
            number of the last one), with what bottom levels may be too high by (``drift``, and ``lost`` by the present
            change); how many entries ``moved``, ``changed``, ``dirty``, ``gone``, ``log`` and ``segments`` have; and
            of what was simulated since the last part reused: how many tasks the timeline has, too (``shared``), the
            last of their places and the latest of their old ends, and the latest ends of tasks that it has not, or on
            another lane.
        assignment: ``(N,)``, a configuration of each operator.
        path: ``(S,)``, of each slot.
        after: as ``Graph.after``, without ways that are empty.
        before: the same of ``Graph.before``.
        tasks: by number, of ``TASK``: place in the timeline; epochs in which it was simulated and queued; the last task
            that it waited for; its turn among those simulated; its end, or when it is ready as far as is known; what
            the longest chain of tasks that wait for it takes (its bottom level); how many tasks it still waits for.
        lines: ``(2, tasks)`` of ``TIMED``: the timeline, and room for the next.
        lanes: one per device class and link, and one for tasks of none; of ``LANE``: when it is free; ticks left to do,
            and all; last task and busy ticks at a place of the timeline, and at one before; by how much its tasks end
            later than in the timeline, the latest ends of those, there and here, and of those by any other time.
        checkpoints: ``(K, lanes)`` of ``CHECKPOINT``, every ``block`` tasks of the timeline.
        peaks: ``(K,)``, the latest end before each checkpoint.
        moved: operators of a change and the configurations that they had, of ``MOVED``.
        changed: slots whose path changes and the path that they had, of ``CHANGED_SLOT``.
        slot_epochs: ``(S,)`` of ``SLOT_EPOCH``, in which a slot's tasks may differ, and its path does.
        edge_tried: ``(E,)``, the number of the change in which an edge was looked at.
        dirty: tasks that may differ from the timeline, and whether they are still to come there and here, of ``DIRTY``.
        gone: tasks that the change removes.
        queue: a heap of tasks that are ready, of ``QUEUED``.
        spare_queue: room for another.
        log: of ``TIMED``, the tasks simulated.
        segments: of ``SEGMENT``, parts of the timeline that are reused, and how many tasks were simulated before.
        tasks_before: room for the tasks that one waits for.
        tasks_after: room for the tasks that wait for one.
    """

    progress: Records
    assignment: Ints
    path: Ints
    after: Ints
    before: Ints
    tasks: Records
    lines: Records
    lanes: Records
    checkpoints: Records
    peaks: Ints
    moved: Records
    changed: Records
    slot_epochs: Records
    edge_tried: Ints
    dirty: Records
    gone: Ints
    queue: Records
    spare_queue: Records
    log: Records
    segments: Records
    tasks_before: Ints
    tasks_after: Ints


def zeros(record: np.dtype[Any], *shape: int) -> Records:
    """Records of zeros that begin with a cache line, which a ``TASK`` fills."""
    size = math.prod(shape) * record.itemsize
    room = np.zeros(size + _CACHE_LINE, np.uint8)
    first = -room.ctypes.data % _CACHE_LINE
    return room[first : first + size].view(record).reshape(shape)
