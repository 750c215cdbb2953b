"""PaSE's figure 6: speed-ups over data parallelism of its strategies, experts' and FlexFlow's, on two clusters.

The paper ran them; here they are predicted, by the same costs for all. Times are simulated, with computation and
communication side by side, as the paper let its runs overlap them; the added ones, by which PaSE chooses, are reported
beside. FlexFlow begins at the expert's strategy, as the paper lets it ("so that FlexFlow can improve upon them"), and
searches what runs, on all devices. GNMT's places layers, so there it searches the whole space, whose tables grow with
the square of what an operator may do: on more than 8 devices it begins at data parallelism, as where no expert's
strategy applies. The report has where it began, and over what it searched. The paper's second cluster has less
bandwidth for its flops, so that strategies differ more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper.drawing import BASELINE_STYLES, save_figure
from benchmarks.paper.pase_table1 import MODELS
from benchmarks.paper.setting import Options, Report, planner
from benchmarks.paper.whole_space import search_whole_space, whole_space
from tensoropt.api.find.planner import Planner
from tensoropt.cluster import Topology
from tensoropt.cluster.presets import gtx1080ti, rtx2080ti
from tensoropt.cluster.scaling import scaled
from tensoropt.errors import TensorOptError
from tensoropt.mcmc import Stop, simulate
from tensoropt.mcmc.options import Mcmc
from tensoropt.search import get_finder
from tensoropt.search.finding import NO_LIMIT
from tensoropt.viz.canvas import COLORS, INK, new_figure, tidy

__all__ = ["run"]

_CLUSTERS: Mapping[str, Callable[[], Topology]] = {"1080Ti": gtx1080ti, "2080Ti": rtx2080ti}
_DEVICES = (4, 8, 16, 32, 64)
_EXPERTS = {
    "alexnet": "one_weird_trick",
    "inception3": "one_weird_trick",
    "rnnlm": "gnmt",
    "transformer": "mesh_tensorflow_hybrid",
}
_PROPOSALS = 20_000
"""Of FlexFlow's chain."""
_WHOLE_UP_TO = 8
"""Devices on which FlexFlow's whole space is searched, where an expert's strategy is of it."""


def run(options: Options, plot: Path | None = None, proposals: int = _PROPOSALS) -> Report:
    """Finds the strategies, prices them and draws; the picture is ``pase_figure6.png``.

    Args:
        options: what to run.
        plot: directory of the picture.
        proposals: of FlexFlow's chain.
    """
    report: Report = {"figure": "PaSE 6", "overlap": True, "clusters": {}}
    for cluster, make in _CLUSTERS.items():
        models: Report = {}
        for model in options.models or tuple(_EXPERTS):
            sizes = {**MODELS.get(model, {}), **options.sizes.get(model, {})}
            plans = planner(model, dataclasses.replace(options, sizes={model: sizes}))
            models[model] = {
                str(devices): _row(plans, scaled(make(), devices), _EXPERTS.get(model), proposals)
                for devices in options.devices or _DEVICES
            }
        report["clusters"][cluster] = models
    if plot is not None:
        _draw(report, plot / "pase_figure6.png")
    return report


def _row(plans: Planner, topology: Topology, expert: str | None, proposals: int) -> Report:
    """Seconds, added and simulated, of each strategy, and its speed-up; or why there is none."""
    row: Report = {}
    named = {"data_parallel": "data_parallel", "pase": "pase", **({} if expert is None else {"expert": expert})}
    for name, method in named.items():
        try:
            found = plans.find(topology, method)
        except TensorOptError as error:
            row[name] = {"search": method, "reason": str(error)}
            continue
        point = found.frontier.point(int(np.argmin(found.frontier.time_s)))
        made = simulate(found.space, point.assignment, overlap=True)
        row[name] = {"search": method, "time_s": point.time_s, "simulated_s": made.makespan_s}
    placed = expert is not None and get_finder(expert).places
    whole = placed and topology.device_count <= _WHOLE_UP_TO
    applies = expert is not None and "reason" not in row["expert"] and (whole or not placed)
    first = str(expert) if applies else "data_parallel"
    searched = _searched_whole if applies and whole else _searched
    row["flexflow"] = {"initial": first, **searched(plans, topology, first, proposals)}
    base = row["data_parallel"]
    for entry in row.values():
        if "time_s" in entry:
            entry["speedup"] = base["simulated_s"] / entry["simulated_s"]
            entry["added_speedup"] = base["time_s"] / entry["time_s"]
    return row


def _searched(plans: Planner, topology: Topology, first: str, proposals: int) -> Report:
    """What a chain finds among strategies that run."""
    options = Mcmc(initial=(first,), iterations=proposals, overlap=True)
    found = plans.find(topology, options)
    return {
        "search": options.name,
        "searched": found.frontier.searched,
        "time_s": float(found.frontier.time_s[0]),
        "simulated_s": found.notes["simulated_time_s"],
    }


def _searched_whole(plans: Planner, topology: Topology, first: str, proposals: int) -> Report:
    """What chains find in the whole space, from an expert's strategy."""
    expert = plans.find(topology, first)
    begun = expert.space.configurations(expert.fastest(NO_LIMIT).assignment)
    space = whole_space(plans.space(topology))
    found = search_whole_space(space, [begun], stop=Stop(iterations=proposals), overlap=True)
    alone = space.of_one_strategy(found.configurations)
    time_s, _ = alone.problem.costs([0] * len(alone.operators))
    return {
        "search": "whole_space",
        "searched": f"FlexFlow's whole space, {found.proposals:,} proposals",
        "time_s": float(np.ravel(time_s)[0]),
        "simulated_s": found.simulated_s,
    }


_LABELS = {"pase": "PaSE (ours)", "expert": "expert", "flexflow": "FlexFlow"}
_NAMES = {"alexnet": "AlexNet", "inception3": "Inception-v3", "rnnlm": "RNNLM", "transformer": "Transformer"}


def _draw(report: Report, path: Path) -> None:
    clusters: dict[str, Any] = report["clusters"]
    models = list(next(iter(clusters.values())))
    figure = new_figure(4.2 * len(models), 3.8 * len(clusters))
    figure.suptitle("Predicted speed-up over data parallelism")
    styles = {"pase": ("o", COLORS[0]), "expert": BASELINE_STYLES["tofu"], "flexflow": BASELINE_STYLES["optcnn"]}
    for row, (cluster, found) in enumerate(clusters.items()):
        for column, model in enumerate(models):
            axes = figure.add_subplot(len(clusters), len(models), row * len(models) + column + 1)
            counts = [int(count) for count in found[model]]
            for name, (marker, color) in styles.items():
                rows = {int(count): one.get(name, {}) for count, one in found[model].items()}
                known = [(count, one["speedup"]) for count, one in rows.items() if "speedup" in one]
                if known:
                    x, y = zip(*known, strict=True)
                    axes.plot(x, y, marker=marker, color=color, markeredgecolor=INK, label=_LABELS[name])
            axes.axhline(1.0, color=INK, linewidth=1.0, linestyle=":")
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.set_title(f"{_NAMES.get(model, model)}, {cluster}")
            tidy(axes, "devices", "times data parallelism")
            axes.legend(fontsize=8)
    save_figure(figure, path)
