"""Frontiers as TensorOpt's figure 6 has them: time per iteration over memory per device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tensoropt.viz.canvas import (
    COLORS,
    INK,
    MUTED,
    bytes_unit,
    new_figure,
    save_figure,
    seconds_unit,
    tidy,
    y_from_zero,
)

__all__ = ["draw_frontiers"]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# More points than this would melt into a thick line.
_MOST_MARKERS = 60
# Where all times are alike, an axis from zero would show a flat line, and no turning point.
_SHOW_ZERO_BELOW = 0.6


def draw_frontiers(
    path: str | os.PathLike[str],
    curves: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    turning_points: Mapping[str, tuple[float, float]] | None = None,
    memory_limit_bytes: float | None = None,
    title: str = "",
) -> None:
    """Draws frontiers, and strategies beside them, to an image file.

    Args:
        path: where to; its ending says the format.
        curves: per name, memory in bytes (ascending) and seconds of the points. One of a single point is a
            strategy, and drawn as a mark without a line.
        turning_points: per name of a curve, the memory in bytes and the seconds of its turning point.
        memory_limit_bytes: drawn as a line, with what lies beyond it shaded.
        title: above the picture.

    Raises:
        PlotError: matplotlib is missing, or cannot write such a file.
    """
    arrays = {name: (np.asarray(m, np.float64), np.asarray(t, np.float64)) for name, (m, t) in curves.items()}
    memory_unit, memory_name = bytes_unit([float(memory.max()) for memory, _ in arrays.values()])
    time_unit, time_name = seconds_unit([float(time.max()) for _, time in arrays.values()])
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    for place, (name, (memory, time)) in enumerate(arrays.items()):
        color = COLORS[place % len(COLORS)]
        x, y = memory / memory_unit, time / time_unit
        if len(x) == 1:
            axes.plot(x, y, _MARKERS[place % len(_MARKERS)], color=color, markersize=8, label=name, zorder=3)
            continue
        # Between two points the strategy of less memory is the one to have, so a frontier is a staircase.
        axes.step(x, y, where="post", color=color, linewidth=1.6, label=f"{name} ({len(x)} strategies)", zorder=2)
        axes.plot(x, y, ".", color=color, markersize=6 if len(x) <= _MOST_MARKERS else 3, zorder=2)
        if name in (turning_points or {}):
            knee_memory, knee_time = (turning_points or {})[name]
            label = f"turning point: {knee_time / time_unit:.3g} {time_name}, {knee_memory / memory_unit:.3g} "
            axes.plot(
                [knee_memory / memory_unit],
                [knee_time / time_unit],
                "*",
                color=color,
                markeredgecolor=INK,
                markersize=15,
                linestyle="none",
                label=f"{label}{memory_name}",
                zorder=4,
            )
    _limit_axes(axes, [memory / memory_unit for memory, _ in arrays.values()], memory_limit_bytes, memory_unit)
    if memory_limit_bytes is not None:
        limit = memory_limit_bytes / memory_unit
        outside = "" if limit < axes.get_xlim()[1] else ", outside of the picture"
        label = f"limit: {limit:.3g} {memory_name}{outside}"
        axes.axvline(limit, color=MUTED, linestyle="--", linewidth=1.2, label=label)
        if not outside:
            axes.axvspan(limit, axes.get_xlim()[1], color=MUTED, alpha=0.12, linewidth=0)
    times = np.concatenate([time / time_unit for _, time in arrays.values()])
    if times.min() < _SHOW_ZERO_BELOW * times.max():
        y_from_zero(axes, times.tolist())
    tidy(axes, f"memory per device, {memory_name}", f"time per iteration, {time_name}")
    if title:
        axes.set_title(title, fontsize="medium")
    axes.legend(frameon=False, fontsize="small")
    save_figure(figure, path)


def _limit_axes(axes: object, curves: Sequence[np.ndarray], limit_bytes: float | None, unit: float) -> None:
    """Shows all points, and the limit where it is not so far away that they would be squeezed together."""
    low = min(float(x.min()) for x in curves)
    high = max(float(x.max()) for x in curves)
    if limit_bytes is not None and limit_bytes / unit < 2 * high:
        low, high = min(low, limit_bytes / unit), max(high, limit_bytes / unit)
    margin = 0.05 * (high - low) or 0.1 * high or 1.0
    axes.set_xlim(max(0.0, low - margin), high + margin)  # type: ignore[attr-defined]
