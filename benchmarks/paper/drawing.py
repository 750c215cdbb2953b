"""Panels of frontiers: solid lines for strategies, dotted ones for their parts, marks for baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.paper.setting import GIB, Curve
from tensoropt.viz.canvas import COLORS, INK, MUTED, new_figure, save_figure, tidy

__all__ = ["BASELINE_STYLES", "LABELS", "finish_panel", "frontier_line", "mark", "new_panels", "save_figure"]

LABELS = {
    "data_parallel": "Data Parallel",
    "optcnn": "OptCNN",
    "tofu": "ToFu",
    "mesh_tensorflow": "Mesh-TensorFlow",
    "tensoropt": "TensorOpt",
    "rnn": "RNN",
    "wide_resnet": "WideResNet",
    "transformer": "Transformer",
    "transformer_s": "Transformer-S",
    "vgg16": "VGG16",
    "bert_large": "BERT-large",
}
# Marker and color.
BASELINE_STYLES = {
    "data_parallel": ("s", COLORS[1]),
    "optcnn": ("^", COLORS[2]),
    "tofu": ("D", COLORS[3]),
    "mesh_tensorflow": ("v", COLORS[4]),
}
_MOST_MARKERS = 60


def new_panels(count: int, title: str) -> tuple[Any, list[Any]]:
    """A figure with so many panels side by side."""
    figure = new_figure(5.2 * count, 4.6)
    figure.suptitle(title)
    return figure, [figure.add_subplot(1, count, number + 1) for number in range(count)]


def frontier_line(axes: Any, curve: Curve, color: str, label: str, *, parts: bool = False, turn: bool = True) -> None:
    """A frontier as a staircase: between two points the strategy of less memory is the one to have."""
    x = curve.memory_bytes / GIB
    label = label if curve.exact else f"{label} (not exact)"
    axes.step(x, curve.time_s, where="post", color=color, linewidth=1.8, label=label, zorder=3)
    if len(x) <= _MOST_MARKERS:
        axes.plot(x, curve.time_s, ".", color=color, markersize=5, zorder=3)
    if parts:
        compute = curve.time_s - curve.network_s
        axes.step(x, compute, where="post", color=INK, linestyle=":", linewidth=1.4, label="computation", zorder=2)
        axes.step(
            x, curve.network_s, where="post", color=COLORS[5], linestyle=":", linewidth=1.8, label="network", zorder=2
        )
    if turn:
        at = curve.turning_point
        axes.plot(
            x[at],
            curve.time_s[at],
            "*",
            color=color,
            markeredgecolor=INK,
            markersize=14,
            linestyle="none",
            label=f"turning point: {x[at]:.3g} GiB, {curve.time_s[at]:.3g} s",
            zorder=5,
        )


def mark(axes: Any, name: str, curve: Curve) -> None:
    """A baseline: a mark for one strategy, a line for a frontier."""
    marker, color = BASELINE_STYLES[name]
    x = curve.memory_bytes / GIB
    if len(x) > 1:
        axes.step(x, curve.time_s, where="post", color=color, linewidth=1.4, zorder=3)
    axes.plot(
        x,
        curve.time_s,
        marker,
        color=color,
        markeredgecolor=INK,
        markersize=8,
        linestyle="none",
        label=LABELS[name],
        zorder=4,
    )


def finish_panel(
    axes: Any, title: str, *, limit_bytes: float | None = None, far: Mapping[str, Curve] | None = None
) -> None:
    """Titles, units, legend; what lies too far off to be drawn is said in words."""
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    tidy(axes, "memory per device, GiB", "time per iteration, s")
    if limit_bytes is not None:
        axes.axvline(limit_bytes / GIB, color=MUTED, linestyle="--", linewidth=1.2)
        axes.annotate(
            f"device: {limit_bytes / GIB:.0f} GiB ",
            (limit_bytes / GIB, 0.02),
            xycoords=("data", "axes fraction"),
            rotation=90,
            ha="right",
            va="bottom",
            color=MUTED,
            fontsize=8,
        )
    lines = [
        f"{LABELS[name]}, not drawn: from {curve.memory_bytes[0] / GIB:.0f} GiB, {curve.time_s[0]:.2g} s"
        for name, curve in (far or {}).items()
    ]
    axes.legend(fontsize=8, title="\n".join(lines) or None, title_fontsize=8, framealpha=0.9)
