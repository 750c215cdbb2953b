"""The pages of plans and frontiers: what reports and notebooks show of them."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tensoropt.errors import PlanError
from tensoropt.plan.plan import Plan
from tensoropt.plan.summary import LayerRow, communicates, family_key, split_text
from tensoropt.problem.frontier import Frontier
from tensoropt.search.explanation import Explanation, signed
from tensoropt.search.measurement import Measurement
from tensoropt.search.parallelism import ParallelismProfile
from tensoropt.search.report import figure
from tensoropt.search.strategy_table import family_text, fitted, in_units, kept_text
from tensoropt.space.peak import MemoryCourse, PeakMemory
from tensoropt.space.space import SearchSpace
from tensoropt.viz.canvas import bytes_unit, seconds_unit
from tensoropt.viz.page import Bar, Bars, Chart, Page, Section, Table

__all__ = ["frontier_page", "plan_page"]

_BUFFERS = 12
_HOVER_LINES = 12
_DRAWN = 9
_NAME = 40
_MOMENTS = 4000
"""A step of more moments is drawn at so many of them, with its peak."""


def plan_page(
    plan: Plan,
    explanation: Explanation,
    *,
    course: MemoryCourse | None = None,
    frontier: Frontier | None = None,
    space: SearchSpace | None = None,
    profile: ParallelismProfile | None = None,
    limit_bytes: float | None = None,
    measured: Measurement | None = None,
) -> Page:
    """A plan on a page.

    Args:
        plan: it.
        explanation: of it.
        course: its memory over a step, where its model is here.
        frontier: that it is a point of or beside, where it was tracked.
        space: of the frontier's strategies.
        profile: what other numbers of devices take, where they were searched.
        limit_bytes: what a device may hold.
        measured: steps that ran by the plan.

    Raises:
        PlanError: the plan says nothing of its operators, or another one was measured.
    """
    sections = [_layers(explanation.layers), *_parts(explanation)]
    if measured is not None:
        sections.append(_measured(plan, measured))
    if frontier is not None:
        sections.append(_frontier(frontier, explanation, space, plan, limit_bytes))
    if profile is not None:
        sections.append(_devices(profile))
    sections.append(_collectives(explanation))
    if course is not None:
        sections.append(_course(course, limit_bytes))
    sections += _others(explanation)
    sections.append(_search(plan, explanation))
    return Page(explanation.title.split("\n")[0].rstrip(":"), _verdict(explanation), sections)


def frontier_page(frontier: Frontier) -> Page:
    """A frontier on a page."""
    where = "" if frontier.provenance is None else f" on {frontier.provenance.topology}"
    turning = frontier.turning_point()
    fastest, smallest = frontier.point(len(frontier) - 1), frontier.point(0)
    named = {fastest.index: "the fastest", turning.index: "the turning point", smallest.index: "the smallest"}
    second, second_name = seconds_unit([float(smallest.time_s)])
    byte, byte_name = bytes_unit([float(fastest.memory_bytes)])
    rows = [
        [name, f"{frontier.point(index).time_s / second:.4g}", f"{frontier.point(index).memory_bytes / byte:.4g}"]
        for index, name in named.items()
    ]
    sections = [Section("Strategies", "", [Table(("", f"a step, {second_name}", f"a device, {byte_name}"), rows)])]
    if frontier.searched:
        sections.append(Section("How it was searched", f"{frontier.searched}, in {frontier.seconds:.2g} s."))
    return Page(f"Frontier of {len(frontier)} strategies{where}", _span(frontier), sections)


def _span(frontier: Frontier) -> str:
    fastest, smallest = frontier.point(len(frontier) - 1), frontier.point(0)
    return (
        f"From {in_units(fastest.time_s)} a step in {in_units(fastest.memory_bytes, 'bytes')} a device to "
        f"{in_units(smallest.time_s)} in {in_units(smallest.memory_bytes, 'bytes')}."
    )


def _verdict(explanation: Explanation) -> str:
    said = [
        f"{in_units(explanation.time_s)} a step and {in_units(explanation.memory_bytes, 'bytes')} on each of "
        f"{explanation.devices} devices, predicted."
    ]
    for rival in explanation.rivals or ():
        if rival.name == "data_parallel" and rival.time_s is not None:
            held = "" if rival.fits else ", and does not fit"
            said.append(f"Data parallelism would take {in_units(rival.time_s)}{held}.")
    network = sum(value for part, value in explanation.seconds.items() if communicates(part))
    said.append(f"Communication is {network / explanation.time_s:.0%} of the step." if explanation.time_s else "")
    return " ".join(filter(None, said))


_HELD = ("variables", "inputs", "activations", "moved", "gradients", "variable_gradients")
"""Parts of what a device holds, the longest held first."""


def _layers(rows: Sequence[LayerRow]) -> Section:
    second, second_name = seconds_unit([row.own_s for row in rows] + [row.network_s for row in rows])
    byte, byte_name = bytes_unit([row.memory_bytes for row in rows])
    splits = sorted({row.split for row in rows})
    cells = []
    for row in rows:
        figures = (row.own_s / second, row.network_s / second, row.memory_bytes / byte)
        mark = "differs" if row.differs else ""
        shown = [f"{value:.4g}" for value in figures]
        cells.append([family_text(row.layers), row.split, kept_text(row.pieces), *shown, mark])
    headers = (
        "layer", "split", "of variables kept", f"compute, {second_name}", f"network, {second_name}",
        f"memory, {byte_name}", "beside data parallelism",
    )  # fmt: skip
    table = Table(headers, cells, (0, 1, 2, 6), [splits.index(row.split) for row in rows])
    text = "Equal layers are one row, with the figures of all of them. Each split has a colour of its own."
    return Section("Layers", text, [table])


def _parts(explanation: Explanation) -> list[Section]:
    found = []
    for heading, values, whole, kind in (
        ("Time of a step", explanation.seconds, explanation.time_s, "seconds"),
        ("Memory of a device", explanation.bytes, explanation.memory_bytes, "bytes"),
    ):
        most = max(values.values(), default=0.0)
        bars = [
            Bar(
                part,
                value / most,
                f"{in_units(value, kind)}, {value / whole:.1%}",
                tone=kind == "seconds" and communicates(part),
            )
            for part, value in values.items()
            if value
        ]
        found.append(Section(heading, f"{in_units(whole, kind)} in all.", [Bars(bars)]))
    return found


def _frontier(
    frontier: Frontier,
    explanation: Explanation,
    space: SearchSpace | None,
    plan: Plan,
    limit_bytes: float | None,
) -> Section:
    rivals = [rival for rival in explanation.rivals or () if rival.time_s is not None]
    others = [(rival.name, float(rival.memory_bytes or 0.0), float(rival.time_s or 0.0)) for rival in rivals]
    chosen = ("this plan", explanation.memory_bytes, explanation.time_s)
    byte, byte_name = bytes_unit([float(frontier.memory_bytes.max()), *(memory for _, memory, _ in others)])
    second, second_name = seconds_unit([float(frontier.time_s.max())])
    turning = frontier.turning_point()
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "name": f"frontier, {len(frontier)} strategies",
            "x": (frontier.memory_bytes / byte).tolist(),
            "y": (frontier.time_s / second).tolist(),
            "mode": "lines+markers",
            "line": {"shape": "hv"},
            "text": _strategies(frontier, space, plan),
            "hovertemplate": f"%{{x:.4g}} {byte_name}, %{{y:.4g}} {second_name}<br>%{{text}}<extra></extra>",
        }
    ]
    marks = [("turning point", turning.memory_bytes, turning.time_s), chosen, *others]
    for place, (name, memory, time) in enumerate(marks):
        data.append(
            {
                "type": "scatter",
                "name": name,
                "x": [memory / byte],
                "y": [time / second],
                "mode": "markers",
                "marker": {
                    "size": 13,
                    "symbol": ("star", "circle-open", "diamond", "square", "triangle-up", "x")[place % 6],
                },
                "hovertemplate": f"{name}: %{{x:.4g}} {byte_name}, %{{y:.4g}} {second_name}<extra></extra>",
            }
        )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": f"memory of a device, {byte_name}"}},
        "yaxis": {"title": {"text": f"time of a step, {second_name}"}},
    }
    limited = ""
    if limit_bytes is not None and limit_bytes <= 2 * max(memory for _, memory, _ in (chosen, *others)):
        layout["shapes"] = [
            {"type": "line", "x0": limit_bytes / byte, "x1": limit_bytes / byte, "yref": "paper", "y0": 0, "y1": 1,
             "line": {"dash": "dash"}}
        ]  # fmt: skip
        limited = f" The dashed line is the limit, {in_units(limit_bytes, 'bytes')}."
    text = (
        f"{_span(frontier)} The turning point, beyond which more memory hardly saves time, is "
        f"{in_units(turning.time_s)} in {in_units(turning.memory_bytes, 'bytes')}.{limited}"
    )
    return Section("Frontier of time and memory", "", [Chart("frontier", data, layout, text)])


def _strategies(frontier: Frontier, space: SearchSpace | None, plan: Plan) -> list[str]:
    """Describes how each strategy of a frontier splits its products and the like: lines of ``split: layers``."""
    if space is None:
        return [""] * len(frontier)
    columns = [
        (place, name, entry.about)
        for place, name in enumerate(frontier.names)
        if (entry := plan.operators.get(name)) is not None
        and entry.about is not None
        and entry.about.work is not None
        and entry.about.role == "activation"
    ]
    found = []
    for assignment in frontier.assignments:
        layers: dict[str, list[str]] = defaultdict(list)
        for place, name, about in columns:
            words = split_text(space.choices(name)[int(assignment[place])], about.words, plan.mesh)
            layers[words].append(about.layer)
        lines = [f"{words}: {', '.join(_families(names))}" for words, names in layers.items()]
        more = [f"and {len(lines) - _HOVER_LINES} more"] if len(lines) > _HOVER_LINES else []
        found.append("<br>".join(html.escape(line) for line in (*lines[:_HOVER_LINES], *more)))
    return found


def _families(names: Sequence[str]) -> list[str]:
    """Names of layers, those that differ in a number as one."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        by_kind[family_key(name)].append(name)
    return [family_text(several) for several in by_kind.values()]


def _devices(profile: ParallelismProfile) -> Section:
    rows = [row for row in profile.rows if row.time_s is not None]
    second, second_name = seconds_unit([float(row.time_s or 0.0) for row in rows] or [1.0])
    lines: Mapping[str, list[float]] = {
        "step": [float(row.time_s or 0.0) / second for row in rows],
        "of which communication": [float(row.network_time_s or 0.0) / second for row in rows],
    }
    counts = [row.devices for row in rows]
    data = [
        {"type": "scatter", "name": name, "x": counts, "y": values, "mode": "lines+markers"}
        for name, values in lines.items()
    ]
    layout = {
        "xaxis": {
            "title": {"text": "devices"},
            "type": "log",
            "tickvals": counts,
            "ticktext": [str(n) for n in counts],
        },
        "yaxis": {"title": {"text": f"time of a step, {second_name}"}, "rangemode": "tozero"},
    }
    said = [f"{row.devices}: {in_units(float(row.time_s or 0.0))}" for row in rows]
    unfit = [f"{row.devices}: {row.reason}" for row in profile.rows if row.time_s is None]
    text = (
        f"A step on so many devices: {'; '.join(said)}.{' No strategy on ' + '; '.join(unfit) + '.' if unfit else ''}"
    )
    return Section("Other numbers of devices", "", [Chart("devices", data, layout, text)])


def _collectives(explanation: Explanation) -> Section:
    if not explanation.collectives:
        return Section("Collectives", "Devices send one another nothing along edges.")
    rows = []
    for one in explanation.collectives:
        sent = in_units(one.sent_bytes, "bytes")
        rows.append([one.kind, one.axes, one.when, family_text(one.edges), in_units(one.seconds), sent])
    shown = sum(len(one.edges) for one in explanation.collectives)
    text = f"Those that take longest: {shown} of {explanation.collectives_in_all}."
    headers = ("kind", "over", "when", "edge", "time", "sent by all devices")
    return Section("Collectives", text, [Table(headers, rows, (0, 1, 2, 3))])


def _course(course: MemoryCourse, limit_bytes: float | None) -> Section:
    moments = _thinned(course)
    found = {kind for moment in moments for kind in moment.parts}
    kinds = sorted(found, key=lambda kind: (_HELD.index(kind) if kind in _HELD else len(_HELD), kind))
    byte, byte_name = bytes_unit([course.peak.memory_bytes])
    names = [f"{html.escape(one.operator)}, {'backward' if one.backward else 'forward'}" for one in moments]
    data = [
        {
            "type": "scatter",
            "name": kind.replace("_", " "),
            "y": [moment.parts.get(kind, 0.0) / byte for moment in moments],
            "text": names,
            "mode": "lines",
            "line": {"width": 0},
            "stackgroup": "held",
            "hovertemplate": f"%{{y:.4g}} {byte_name}<br>%{{text}}",
        }
        for kind in kinds
    ]
    layout = {
        "xaxis": {"title": {"text": "kernels of the step, in order"}},
        "yaxis": {"title": {"text": f"held by a device, {byte_name}"}, "rangemode": "tozero"},
    }
    peak = course.peak
    room = "" if limit_bytes is None else f" A device may hold {in_units(limit_bytes, 'bytes')}."
    text = (
        f"The peak is {in_units(peak.memory_bytes, 'bytes')}, while '{peak.operator}' works "
        f"{'backward' if peak.backward else 'forward'}.{room}"
    )
    rows = [[name, kind.replace("_", " "), in_units(size, "bytes")] for name, kind, size in course.buffers[:_BUFFERS]]
    return Section(
        "Memory over the step",
        "",
        [
            Chart("memory", data, layout, text),
            Table(("largest buffers at the peak, made by", "kind", "size"), rows, (0, 1)),
        ],
    )


def _thinned(course: MemoryCourse) -> list[PeakMemory]:
    """Moments to draw: all, or every so many of them and the peak."""
    step = -(-len(course.moments) // _MOMENTS) if course.moments else 1
    return [one for place, one in enumerate(course.moments) if place % step == 0 or one is course.peak]


def _measured(plan: Plan, measured: Measurement) -> Section:
    """Returns the section on measured steps.

    Raises:
        PlanError: ``measured`` is of another plan.
    """
    if (measured.plan.fingerprint, measured.plan.operators) != (plan.fingerprint, plan.operators):
        raise PlanError(
            f"report: measured= has steps by a plan of {measured.plan.option} for the graph "
            f"{measured.plan.fingerprint}, this one is of {plan.option} for {plan.fingerprint}, and they differ. Give "
            "what tensoropt.measuring() recorded while this plan ran."
        )
    rows = measured.rows[:_DRAWN][::-1]
    second, second_name = seconds_unit([max(row.seconds, row.predicted_s) for row in rows] or [1.0])
    names = [html.escape(fitted(row.subject, _NAME)) for row in rows]
    data = [
        {"type": "bar", "orientation": "h", "name": name, "y": names, "x": [value / second for value in values]}
        for name, values in (
            ("predicted", [row.predicted_s for row in rows]),
            ("measured", [row.seconds for row in rows]),
        )
    ]
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": f"time in a step, {second_name}"}},
        "yaxis": {},
    }
    text = "What takes longest in a step, as predicted and as measured; of ranks the slowest."
    grid = measured.longest()
    table = Table(grid.headers, grid.cells, grid.texts)
    return Section("Predicted and measured", measured.verdict, [Chart("measured", data, layout, text), table])


def _others(explanation: Explanation) -> list[Section]:
    found = [] if explanation.lacking is None else [Section("Other strategies", explanation.lacking)]
    if explanation.runner_ups:
        rows = []
        for one in explanation.runner_ups:
            lost = "-" if one.lost_s is None else signed(one.lost_s, "seconds")
            rows.append([family_text(one.layers), one.split, one.instead or "-", lost, one.why])
        text = "The fastest strategy in which the layer's main operator is split otherwise, and all else as suits that."
        headers = ("layer", "split", "second best", "slower by", "why")
        found.append(Section("Second-best splits", text, [Table(headers, rows, (0, 1, 2, 4))]))
    rows = []
    for rival in explanation.rivals or ():
        memory = "-" if rival.memory_bytes is None else in_units(rival.memory_bytes, "bytes")
        rows.append([rival.name, "-" if rival.time_s is None else in_units(rival.time_s), memory, rival.why])
    if rows:
        found.append(Section("Known layouts", "", [Table(("layout", "step", "memory", "why"), rows, (0, 3))]))
    return found


def _search(plan: Plan, explanation: Explanation) -> Section:
    said = [f"Cluster: {explanation.cluster}, {explanation.devices} devices. Option: {explanation.option}."]
    if explanation.searched:
        said.append(f"Searched: {explanation.searched}.")
    for key, label in (
        ("search_seconds", "Seconds of the search"),
        ("costs", "Costs"),
        ("memory_limit", "Memory limit"),
    ):
        if plan.notes.get(key) is not None:
            value = plan.notes[key]
            said.append(f"{label}: {figure(value) if isinstance(value, float) else value}.")
    if plan.notes.get("space"):
        said.append(f"Space: {plan.notes['space']}.")
    return Section("How it was searched", "\n".join(said))
