"""Figure 6: the frontier of each model at 16 devices, its network and computation time, and the baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.paper.drawing import LABELS, finish_panel, frontier_line, mark, new_panels, save_figure
from benchmarks.paper.setting import BASELINES_OF_THE_PAPER, Curve, Options, Report, baselines, planner, track
from tensoropt.cluster.presets import v100
from tensoropt.cluster.scaling import scaled
from tensoropt.viz.canvas import COLORS

__all__ = ["run"]

_MODELS = ("rnn", "wide_resnet", "transformer")
# A baseline that takes so much memory that our frontier would have less than this share of the width is not drawn.
_LEAST_SHARE = 0.08


def run(options: Options, plot: Path | None = None) -> Report:
    """Tracks and draws; the picture is ``figure6.png``."""
    report: Report = {"figure": 6, "epsilon": options.epsilon, "models": {}}
    drawn: dict[str, tuple[Curve, dict[str, Curve]]] = {}
    devices = options.count(16)
    topology = scaled(v100(), devices)
    for model in options.models or _MODELS:
        space, _, ours = track(planner(model, options), topology, options)
        others, reasons = baselines(space, BASELINES_OF_THE_PAPER)
        drawn[model] = ours, others
        report["models"][model] = {
            "devices": devices,
            "tensoropt": ours.to_json(),
            **{name: curve.to_json() for name, curve in others.items()},
            "does_not_apply": reasons,
        }
    if plot is not None:
        _draw(drawn, f"{devices} devices of {v100().name}", topology.device.memory_bytes, plot / "figure6.png")
    return report


def _end(curve: Curve) -> float:
    return float(np.max(curve.memory_bytes))


def _draw(drawn: dict[str, tuple[Curve, dict[str, Curve]]], cluster: str, memory_bytes: float, path: Path) -> None:
    figure, panels = new_panels(len(drawn), f"Cost frontiers on {cluster}")
    for axes, (model, (ours, others)) in zip(panels, drawn.items(), strict=True):
        frontier_line(axes, ours, COLORS[0], "TensorOpt", parts=True)
        low, high = float(ours.memory_bytes[0]), float(ours.memory_bytes[-1])
        far = {name: curve for name, curve in others.items() if high - low < _LEAST_SHARE * (_end(curve) - low)}
        for name, curve in others.items():
            if name not in far:
                mark(axes, name, curve)
        left, right = axes.get_xlim()
        shown = memory_bytes if left * 2.0**30 < memory_bytes < right * 2.0**30 else None
        finish_panel(axes, LABELS[model], limit_bytes=shown, far=far)
    save_figure(figure, path)
