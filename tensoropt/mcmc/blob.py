"""Many arrays in one: compiled functions that call one another with dozens of arrays spend their time on passing them.

A blob begins with its header: numbers, and where each array begins. ``blob[blob[IN_EDGE] + i]`` is entry ``i`` of the
array ``IN_EDGE``; two-dimensional ones are row by row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensoropt.search.stages import Ints

__all__ = ["HEADER", "pack"]

HEADER = 96

# Of a network: how many edges, then arrays by operator, edge, slot and configuration.
EDGES = 0
(
    EDGE_FROM,
    EDGE_TO,
    RETURNS,
    IN_FIRST,
    IN_EDGE,
    OUT_FIRST,
    OUT_EDGE,
    HAS_BACK,
    FORWARD_SLOT,
    BACKWARD_SLOT,
    WAY_SLOT,
    WAY_BACK_SLOT,
    SLOT_KIND,
    SLOT_REF,
    OP_BASE,
    OP_FORWARD,
    OP_BACKWARD,
    WAY_TABLE,
    WAY_FROM,
    WAY_TO,
    BACK_TABLE,
    BACK_FROM,
    BACK_TO,
    LAYOUTS,
    AFTER_FIRST,
    BEFORE_FIRST,
    SOURCE,
    TARGET,
    SOURCE_ENTRY,
    TARGET_ENTRY,
    AFTER_ALL,
    BEFORE_ALL,
) = range(1, 33)

# Of a frame: how many classes, then arrays by class and signature; see tensoropt.mcmc.network.Frame.
CLASSES = 0
MASKS, KINDS, LANE_OF, PRESENT, ZEROED, FIRST, OFFSETS = range(1, 8)

# Of moves: arrays by move and by member; see tensoropt.mcmc.moves.Moves.
MEMBER_FIRST, MEMBER_OP, MEMBER_TABLE, MEMBER_CHOICE = range(4)

# Of a simulation: numbers …
(
    TASKS,
    MAKESPAN,
    LOGGED,
    REGIONS,
    CHANGED,
    MOVED,
    GONE,
    DIRTY,
    EPOCH,
    SHARED,
    LANES,
    BLOCK,
    TRIED,
    PHASE,
    TAKEN,
    STALE,
    LOST,
    DRIFT,
    LAST,
    LATEST,
    FRESH_NEW,
    FRESH_OLD,
) = range(22)
# … and arrays: the timeline, room for another, and what a change needs.
(
    LINE_POSITION,
    LINE_TASK,
    LINE_READY,
    LINE_END,
    LINE_LANE,
    LINE_ENABLER,
    OTHER_TASK,
    OTHER_READY,
    OTHER_END,
    OTHER_LANE,
    OTHER_ENABLER,
    CHANGED_SLOT,
    CHANGED_PATH,
    MOVED_OP,
    MOVED_FROM,
    SLOT_DIRTY,
    SLOT_CHANGED,
    EDGE_SEEN,
    DIRTY_TASKS,
    DIRTY_STATE,
    GONE_TASKS,
    STAMP,
    WAITING,
    ENABLER,
    TURN,
    END,
    TAIL,
    OPEN,
    LANE_END,
    LANE_LEFT,
    LANE_LOAD,
    MARK_LAST,
    MARK_BUSY,
    MARK_PEAK,
    HERE_LAST,
    HERE_BUSY,
    THERE_LAST,
    THERE_BUSY,
    HEAP_READY,
    HEAP_TASK,
    SPARE_READY,
    SPARE_TASK,
    LOG_TASK,
    LOG_READY,
    LOG_END,
    LOG_LANE,
    REGION_FIRST,
    REGION_LAST,
    REGION_SHIFT,
    REGION_LOGGED,
    BUFFER_BEFORE,
    BUFFER_AFTER,
    SHIFT_BY,
    SHIFT_NEW,
    SHIFT_OLD,
    OTHER_NEW,
    OTHER_OLD,
    AFTER,
    BEFORE,
) = range(22, 81)

# All that is known of a task is side by side, so many numbers a task; those that have not begun there begin after it.
WIDTH = 8
OF_TASK = (LINE_POSITION, STAMP, WAITING, ENABLER, TURN, END, TAIL, OPEN)


# Words of a cache line: a blob begins with one, and so does each task's part of the first array.
_LINE = 8


def pack(numbers: Mapping[int, int], arrays: Mapping[int, Ints | int]) -> Ints:
    """A blob of numbers and arrays; an array that is given as a size is zeros."""
    sizes = {field: value if isinstance(value, int) else value.size for field, value in arrays.items()}
    room = np.zeros(HEADER + sum(sizes.values()) + _LINE, np.int64)
    first = -(room.ctypes.data // room.itemsize) % _LINE
    result = room[first : first + len(room) - _LINE]
    for field, number in numbers.items():
        result[field] = number
    place = HEADER
    for field, value in arrays.items():
        result[field] = place
        if not isinstance(value, int):
            result[place : place + sizes[field]] = value.reshape(-1)
        place += sizes[field]
    return result
