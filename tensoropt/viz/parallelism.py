"""Time, throughput and cost over the number of devices, as TensorOpt's figure 8 has the first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.viz.canvas import COLORS, MUTED, new_figure, save_figure, seconds_unit, tidy, y_from_zero

__all__ = ["draw_parallelism"]


def draw_parallelism(
    path: str | os.PathLike[str],
    devices: Sequence[int],
    time_s: Sequence[float],
    network_time_s: Sequence[float],
    *,
    unfit: Sequence[int] = (),
    samples_per_s: Sequence[float] | None = None,
    cost_per_million: Sequence[float] | None = None,
    title: str = "",
) -> None:
    """Draws one panel each for time, throughput (if known) and cost (if known) to an image file.

    Args:
        path: where to; its ending says the format.
        devices: ascending counts on which the job can run.
        time_s: seconds per iteration on each.
        network_time_s: of which communication.
        unfit: counts on which it cannot; marked on the axis.
        samples_per_s: throughput on each.
        cost_per_million: cost of a million samples on each, in any unit.
        title: above the picture.

    Raises:
        PlotError: matplotlib is missing, or cannot write such a file.
    """
    panels = 1 + (samples_per_s is not None) + (cost_per_million is not None)
    figure = new_figure(4.2 * panels, 3.6)
    axes = [figure.add_subplot(1, panels, number + 1) for number in range(panels)]
    unit, unit_name = seconds_unit(time_s)
    total, network = np.asarray(time_s) / unit, np.asarray(network_time_s) / unit
    axes[0].plot(devices, total, "o-", color=COLORS[0], label="total")
    axes[0].plot(devices, network, "s:", color=COLORS[1], label="network")
    axes[0].plot(devices, total - network, "^:", color=COLORS[2], label="computation")
    _finish(axes[0], devices, unfit, f"time per iteration, {unit_name}", total.tolist())
    place = 1
    if samples_per_s is not None:
        axes[place].plot(devices, samples_per_s, "o-", color=COLORS[0], label="predicted")
        ideal = [samples_per_s[0] / devices[0] * count for count in devices]
        if devices:
            plural = "s" if devices[0] > 1 else ""
            axes[place].plot(devices, ideal, "--", color=MUTED, label=f"{devices[0]} device{plural} scaled up")
        _finish(axes[place], devices, unfit, "throughput, samples/s", [*samples_per_s, *ideal])
        place += 1
    if cost_per_million is not None:
        axes[place].plot(devices, cost_per_million, "o-", color=COLORS[0], label="cost")
        _finish(axes[place], devices, unfit, "cost of a million samples", cost_per_million)
    if title:
        figure.suptitle(title, fontsize="medium")
    save_figure(figure, path)


def _finish(axes: Any, devices: Sequence[int], unfit: Sequence[int], y_label: str, values: Sequence[float]) -> None:
    counts = sorted([*devices, *unfit])
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    if counts:
        axes.set_xlim(counts[0] / 1.2, counts[-1] * 1.2)
    y_from_zero(axes, values)
    if unfit:
        # In axes' height, so that the marks are on the x axis whatever the data.
        axes.plot(
            unfit,
            [0.02] * len(unfit),
            "x",
            color=MUTED,
            transform=axes.get_xaxis_transform(),
            label="does not run",
            clip_on=False,
        )
    tidy(axes, "devices", y_label)
    axes.legend(frameon=False, fontsize="small")
