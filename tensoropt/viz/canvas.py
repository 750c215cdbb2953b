"""A figure to draw on, and the units of its axes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tensoropt.errors import PlotError
from tensoropt.logs import is_speaker

__all__ = ["COLORS", "INK", "MUTED", "bytes_unit", "new_figure", "save_figure", "seconds_unit", "tidy", "y_from_zero"]

# Okabe and Ito's palette: told apart by people who are color-blind, and in print.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK = "#222222"
MUTED = "#888888"


def new_figure(width_inches: float, height_inches: float) -> Any:
    """An empty ``matplotlib.figure.Figure``.

    Raises:
        PlotError: if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError(
            f"Drawing needs matplotlib, which cannot be imported: {error}. Install it by pip install 'tensoropt[plot]'."
        ) from error
    return Figure(figsize=(width_inches, height_inches), layout="constrained", dpi=150)


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure, on rank 0 only; the ending of ``path`` says the format.

    Raises:
        PlotError: if matplotlib has no such format, or the file cannot be written.
    """
    if not is_speaker():
        return
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PlotError(
            f"Picture '{os.fspath(path)}': cannot be written: {error}. Give a path in a directory that exists, "
            "ending in .png, .svg or .pdf."
        ) from error


def tidy(axes: Any, x_label: str, y_label: str) -> None:
    """Labels, a light grid behind the data, and no frame above and to the right."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def y_from_zero(axes: Any, values: Sequence[float]) -> None:
    """Makes the y axis start at zero, with room above the largest value."""
    axes.set_ylim(0.0, 1.08 * max(values, default=0.0) or 1.0)


def bytes_unit(values: Sequence[float]) -> tuple[float, str]:
    """The binary unit in which the largest value is at least 1, and its bytes."""
    return _unit(values, ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes")))


def seconds_unit(values: Sequence[float]) -> tuple[float, str]:
    """The unit of time in which the largest value is at least 1, and its seconds."""
    return _unit(values, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")))


def _unit(values: Sequence[float], units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    largest = max(values, default=0.0)
    return next((unit for unit in units if largest >= unit[0]), units[-1])
