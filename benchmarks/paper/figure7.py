"""Figure 7: what model size, network and links inside a machine do to the frontier of Transformer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.arguments import UsageError
from benchmarks.paper.drawing import finish_panel, frontier_line, new_panels, save_figure
from benchmarks.paper.setting import Curve, Options, Report, planner, track
from tensoropt.cluster import presets
from tensoropt.cluster.scaling import scaled
from tensoropt.viz.canvas import COLORS

__all__ = ["run"]

_MODEL = "transformer"
_WIDTHS = (1920, 2688, 3840)


def run(options: Options, plot: Path | None = None) -> Report:
    """Tracks and draws; the picture is ``figure7.png``."""
    sizes = dict(options.sizes.get(_MODEL, {}))
    if options.models not in ((), (_MODEL,)):
        raise UsageError(f"--model: the figure is of {_MODEL}, got {' '.join(options.models)}; leave it out")
    if "width" in sizes:
        raise UsageError(f"--size width: the figure compares several; give widths=[{sizes['width']}], the last of all")
    devices = options.count(16)
    if devices < 2:
        raise UsageError(f"--devices: must be at least 2, half of them inside a machine, got {devices}")
    inside = min(8, devices // 2)

    def curve(topology: Any, count: int, **more: Any) -> Curve:
        chosen = Options(sizes={_MODEL: {**sizes, **more}}, epsilon=options.epsilon, threads=options.threads)
        return track(planner(_MODEL, chosen), scaled(topology, count), options)[2]

    widths = sizes.pop("widths", _WIDTHS)
    full = curve(presets.v100(), devices, width=widths[-1])
    panels = {
        "a, model size": {
            **{f"hidden size {width}": curve(presets.v100(), devices, width=width) for width in widths[:-1]},
            f"hidden size {widths[-1]}": full,
        },
        "b, network between machines": {
            "no RDMA": curve(presets.v100_no_rdma(), devices, width=widths[-1]),
            "RDMA": full,
            "4x RDMA": curve(presets.v100_4x_rdma(), devices, width=widths[-1]),
        },
        f"c, links inside a machine, {inside} devices": {
            "PCIe": curve(presets.v100_pcie(), inside, width=widths[-1]),
            "NVLink": curve(presets.v100(), inside, width=widths[-1]),
        },
    }
    if plot is not None:
        figure, axes_of = new_panels(len(panels), f"Transformer on {devices} V100")
        for axes, (title, curves) in zip(axes_of, panels.items(), strict=True):
            for place, (label, one) in enumerate(curves.items()):
                frontier_line(axes, one, COLORS[place], label)
            finish_panel(axes, title)
        save_figure(figure, plot / "figure7.png")
    return {
        "figure": 7,
        "epsilon": options.epsilon,
        "panels": {title: {label: one.to_json() for label, one in curves.items()} for title, curves in panels.items()},
    }
