"""Figure 8: the shortest time per iteration that fits in the devices, over their number."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.drawing import BASELINE_STYLES, LABELS, new_panels, save_figure
from benchmarks.paper.setting import Curve, Options, Report, baselines, planner, track
from tensoropt.cluster.presets import v100
from tensoropt.cluster.scaling import scaled
from tensoropt.search.options import MemoryLimit
from tensoropt.viz.canvas import COLORS, INK, tidy

__all__ = ["run"]

_MODELS = ("wide_resnet", "transformer")
_DEVICES = (4, 8, 16, 32)
_BASELINES = ("data_parallel", "optcnn", "tofu")


def run(options: Options, plot: Path | None = None, memory_bytes: float | None = None) -> Report:
    """Searches and draws; the picture is ``figure8.png``.

    Args:
        options: what to run.
        plot: directory of the picture.
        memory_bytes: limit per device; by default the device's less the reserve of section 4.1.
    """
    limit_bytes = MemoryLimit.of(v100().device.memory_bytes, memory_bytes).limit_bytes
    report: Report = {"figure": 8, "epsilon": options.epsilon, "limit_bytes": limit_bytes, "models": {}}
    for model in options.models or _MODELS:
        plans = planner(model, options)
        rows: Report = {name: {} for name in ("tensoropt", *_BASELINES)}
        for devices in options.devices or _DEVICES:
            space, _, ours = track(plans, scaled(v100(), devices), options)
            others, _ = baselines(space, _BASELINES)
            for name, curve in {"tensoropt": ours, **others}.items():
                rows[name][str(devices)] = _fastest_that_fits(curve, limit_bytes)
        report["models"][model] = rows
    if plot is not None:
        _draw(report, plot / "figure8.png")
    return report


def _fastest_that_fits(curve: Curve, limit_bytes: float) -> Report:
    fitting = curve.memory_bytes <= limit_bytes
    return {
        "fits": bool(fitting.any()),
        "time_s": float(curve.time_s[fitting].min()) if fitting.any() else None,
        "least_memory_bytes": float(curve.memory_bytes.min()),
        "fastest_time_s": float(curve.time_s.min()),
    }


def _draw(report: Report, path: Path) -> None:
    limit_gib = report["limit_bytes"] / 2**30
    figure, panels = new_panels(len(report["models"]), f"Shortest time within {limit_gib:.1f} GiB per V100")
    for axes, (model, rows) in zip(panels, report["models"].items(), strict=True):
        counts = sorted({int(count) for row in rows.values() for count in row})
        for name, row in rows.items():
            marker, color = BASELINE_STYLES.get(name, ("o", COLORS[0]))
            fitting = [(count, row[str(count)]["time_s"]) for count in counts if row.get(str(count), {}).get("fits")]
            unfit = [count for count in counts if not row.get(str(count), {}).get("fits", True)]
            label = LABELS[name]
            if unfit:
                label += f", does not fit on {', '.join(map(str, unfit))}"
            axes.plot(
                [count for count, _ in fitting],
                [seconds for _, seconds in fitting],
                marker=marker,
                color=color,
                markeredgecolor=INK,
                # Often a baseline is the very same strategy: it is drawn on top of ours.
                markersize=12 if name == "tensoropt" else 7,
                label=label,
                zorder=3 if name == "tensoropt" else 4,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_xlim(counts[0] * 0.8, counts[-1] * 1.25)
        axes.set_ylim(bottom=0)
        axes.set_title(LABELS[model])
        tidy(axes, "devices", "time per iteration, s")
        axes.legend(fontsize=8)
    save_figure(figure, path)
