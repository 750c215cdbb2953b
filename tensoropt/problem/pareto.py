"""Reduce (TensorOpt, section 3.1, Algorithm 1), for many sets of strategy tuples at once.

A search needs the frontier of every cell of a table, so the sets come as *segments* of flat arrays: segment
*s* is ``time_s[offsets[s]:offsets[s + 1]]``, and its memories likewise. Everything here is a pure function of
arrays.
"""

from __future__ import annotations

import numpy as np

from tensoropt.problem.problem import FloatArray, IntArray

__all__ = ["offsets_of", "reduce_segments", "spread"]

_FILTER_FROM = 12
"""Mean candidates per segment from which the bucket filter costs less than the sorting that it saves
(measured)."""


def offsets_of(counts: IntArray) -> IntArray:
    """``[0, counts[0], counts[0] + counts[1], ...]``."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """``starts[0], starts[0] + 1, ... (counts[0] of them), starts[1], ...``."""
    total = int(counts.sum())
    first = np.cumsum(counts) - counts
    return np.repeat(starts - first, counts) + np.arange(total)


def reduce_segments(offsets: IntArray, time_s: FloatArray, memory_bytes: FloatArray) -> tuple[IntArray, IntArray]:
    """Algorithm 1 on every segment.

    A tuple stays if none is at least as good in both costs; of equal tuples the first stays, so that the
    result depends on the order of the input alone. Tuples of infinite cost never stay.

    Args:
        offsets: ``(segments + 1,)``.
        time_s: ``(tuples,)``, any order within a segment.
        memory_bytes: ``(tuples,)``.

    Returns:
        ``kept``, indices of the tuples that stay, segment by segment in ascending memory (descending time),
        and the segments' new offsets. O(n log n) for n tuples (Lemma 1).
    """
    segments = len(offsets) - 1
    counts = np.diff(offsets)
    if counts.size == 0 or counts.max() <= 1:
        alive = np.isfinite(time_s + memory_bytes)
        if alive.all():
            return np.arange(len(time_s)), offsets
        kept = np.flatnonzero(alive)
        segment = np.repeat(np.arange(segments), counts)[kept]
        return kept, offsets_of(np.bincount(segment, minlength=segments))
    index: IntArray | None = None
    if len(time_s) >= _FILTER_FROM * segments:
        index = _filter(offsets, counts, time_s, memory_bytes)
        segment = np.searchsorted(offsets, index, side="right") - 1
        counts = np.bincount(segment, minlength=segments)
        offsets = offsets_of(counts)
        time_s, memory_bytes = time_s[index], memory_bytes[index]
    kept, new_offsets = _sort_and_scan(offsets, counts, time_s, memory_bytes)
    return (kept if index is None else index[kept]), new_offsets


def _filter(offsets: IntArray, counts: IntArray, time_s: FloatArray, memory_bytes: FloatArray) -> IntArray:
    """Indices of the tuples that may be on their frontier, in order: most of the others go without being
    sorted.

    A segment's memory range is cut into buckets. What is no faster than something in an earlier bucket, which
    has strictly less memory, is dominated.
    """
    full = np.flatnonzero(counts)
    starts, sizes = offsets[full], counts[full]
    segment = np.repeat(np.arange(len(full)), sizes)
    possible = np.isfinite(time_s + memory_bytes)
    if not possible.all():
        memory_bytes = np.where(possible, memory_bytes, np.inf)
        time_s = np.where(possible, time_s, np.inf)
    fastest = np.minimum.reduceat(time_s, starts)
    # The least memory at which the fastest time is had: nothing that takes more can be on the frontier.
    ceiling = np.minimum.reduceat(np.where(time_s == fastest[segment], memory_bytes, np.inf), starts)
    least = np.minimum.reduceat(memory_bytes, starts)
    at_least = np.minimum.reduceat(np.where(memory_bytes == least[segment], time_s, np.inf), starts)
    index = np.flatnonzero(
        possible
        & (memory_bytes <= ceiling[segment])
        & ((time_s < at_least[segment]) | (memory_bytes == least[segment]))
    )
    if len(index) < _FILTER_FROM * len(full):
        return index
    segment, time_s, memory_bytes = segment[index], time_s[index], memory_bytes[index]
    buckets = int(np.clip(4.0 * np.sqrt(len(index) / len(full)), 16, 4096))
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(ceiling > least, (buckets - 1) / (ceiling - least), 0.0)
    # Subtraction and multiplication round monotonically, so a lower bucket means strictly less memory.
    bucket = ((memory_bytes - least[segment]) * scale[segment]).astype(np.int64) + 1
    best = np.full((len(full), buckets + 2), np.inf)
    np.minimum.at(best.reshape(-1), segment * (buckets + 2) + bucket, time_s)
    np.minimum.accumulate(best, axis=1, out=best)
    return index[time_s < best.reshape(-1)[segment * (buckets + 2) + bucket - 1]]


def _sort_and_scan(
    offsets: IntArray, counts: IntArray, time_s: FloatArray, memory_bytes: FloatArray
) -> tuple[IntArray, IntArray]:
    """Algorithm 1 as written, on segments padded to a common width per class of widths (powers of two)."""
    segments = len(counts)
    classes = np.zeros(segments, np.int64)
    nonempty = counts > 0
    classes[nonempty] = np.ceil(np.log2(counts[nonempty])).astype(np.int64)
    rows_kept: list[tuple[IntArray, IntArray, IntArray]] = []
    new_counts = np.zeros(segments, np.int64)
    for size_class in np.unique(classes[nonempty]).tolist():
        rows = np.flatnonzero(nonempty & (classes == size_class))
        width = int(counts[rows].max())
        columns = np.arange(width)
        inside = columns < counts[rows][:, None]
        position = np.where(inside, offsets[rows][:, None] + columns, offsets[rows][:, None])
        memory = np.where(inside, memory_bytes[position], np.inf)
        time = np.where(inside, time_s[position], np.inf)
        time[np.isinf(memory)] = np.inf
        if width > 1:
            order = np.lexsort((time, memory), axis=-1)  # stable: of equal tuples the first comes first
            time = np.take_along_axis(time, order, axis=1)
            position = np.take_along_axis(position, order, axis=1)
            before = np.full_like(time, np.inf)
            np.minimum.accumulate(time[:, :-1], axis=1, out=before[:, 1:])
            stays = time < before
        else:
            stays = np.isfinite(time)
        kept_counts = stays.sum(axis=1)
        new_counts[rows] = kept_counts
        rows_kept.append((rows, kept_counts, position[stays]))
    new_offsets = offsets_of(new_counts)
    kept = np.empty(int(new_offsets[-1]), np.int64)
    for rows, kept_counts, positions in rows_kept:
        kept[_ranges(new_offsets[rows], kept_counts)] = positions
    return kept, new_offsets


def spread(time_s: FloatArray, memory_bytes: FloatArray, share: float) -> IntArray:
    """Few points of a frontier that stand for all of them: the ends, and those between that are needed.

    For every point there is one of no more memory that takes at most ``share`` longer, and one as fast that is at most
    ``share`` larger.

    Args:
        time_s: descending.
        memory_bytes: ascending.
        share: how far points may be from those that stand for them.

    Returns:
        the points that stay, ascending.
    """
    last = len(time_s) - 1
    kept = [0]
    while kept[-1] < last:
        here = kept[-1]
        # Those up to the next one take no longer than this one allows, and are no smaller than the next one allows.
        slow = int(np.searchsorted(-time_s, -time_s[here] / (1.0 + share), side="right"))
        large = int(np.searchsorted(memory_bytes, memory_bytes[here + 1] * (1.0 + share), side="right")) - 1
        kept.append(max(here + 1, min(slow, large, last)))
    return np.array(kept, np.int64)
