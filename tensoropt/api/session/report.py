"""A plan for people: by layers, or per operator its mesh, tensor maps, time and memory."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensoropt.api.find.deferred_plan import as_plan
from tensoropt.api.find.plans import loaded
from tensoropt.api.session.job import current_job, graph_of
from tensoropt.graph.graph import Edge
from tensoropt.graph.registry import traits
from tensoropt.layout import coarsen, tensor_map
from tensoropt.plan.configuration import DEFER, place_of
from tensoropt.plan.plan import Plan, rules_of
from tensoropt.search.strategy_table import StrategyTable
from tensoropt.storage.document import shortened

__all__ = ["show_strategy", "strategy_rows"]

_WIDTH = 120


def strategy_rows(plan: Plan) -> list[dict[str, Any]]:
    """One row per operator of the training step.

    Args:
        plan: of a script, a function or a Keras model; one from a file for a model that was planned here.

    Returns:
        ``operator``, ``type``, ``mesh`` (of the operator's own coarse mesh), ``splits`` (what each of its axes
        does; "at 1": only devices with that coordinate have the operator), ``inputs`` and ``outputs`` (tensor maps; -1
        is unsplit), ``communication`` (steps of its inputs, forward and backward), ``keep`` (of inputs of which one
        copy is kept and the other made again: which, by position), ``back_each`` (the positions of inputs whose
        gradients go back in each micro-batch, if any), ``time_s`` (its inputs' reshards included), ``memory_bytes``.

    Raises:
        PlanError: if it is no plan, or one for another model than is here.
    """
    plan = as_plan(plan)
    graph = graph_of("strategy_rows, show_strategy", plan)
    plan.check(graph, runs=False)
    rules = rules_of(graph)
    rows = []
    for op in graph.operators:
        if op.name not in graph.training or traits(op).is_sink or traits(op).is_group:
            continue
        configuration, rule, entry = plan.configuration(op.name), rules[op.name], plan.operators[op.name]
        shape, groups = coarsen(plan.mesh, configuration.actions)
        edges = [Edge(tensor, op.name, position) for position, tensor in enumerate(op.inputs)]
        steps = [str(step) for edge in edges for step in plan.edge(edge).forward]
        back = [str(step) for edge in edges for step in plan.edge(edge).backward]
        each = [edge.position for edge in edges if plan.edge(edge).back_each]
        rows.append(
            {
                "operator": op.name,
                "type": op.type,
                "mesh": list(shape),
                "splits": [_action(configuration.actions[group[0]]) for group in groups],
                "inputs": [
                    _map(tensor_map(configuration.input_layouts(rule, i).value, groups)) for i in range(len(op.inputs))
                ],
                "outputs": [
                    _map(tensor_map(configuration.output_layouts(rule, i).value, groups))
                    for i in range(len(op.outputs))
                ],
                "communication": {"forward": steps, "backward": back},
                **({"again": True} if configuration.again else {}),
                "keep": {edge.position: plan.edge(edge).keep for edge in edges if plan.edge(edge).keep != "both"},
                **({"back_each": each} if each else {}),
                "time_s": entry.time_s + sum(plan.edge(edge).time_s for edge in edges),
                "memory_bytes": entry.memory_bytes + sum(plan.edge(edge).memory_bytes for edge in edges),
            }
        )
    return rows


def show_strategy(plan: Plan | str | os.PathLike[str], console: Console | None = None, *, full: bool = False) -> None:
    """Prints the plan as a table, on rank 0 only: a row for each layer, equal layers once.

    A row has in words how the layer's products are split, what part of its variables a device keeps, its seconds of
    computing and of communication, and its memory: weights, slots, gradients and activations together. What is not as
    in data parallelism is marked.

    Args:
        plan: of a script, a function or a Keras model, or the path of a file; its model need not be here.
        console: where to; standard output by default.
        full: a row for each operator instead, with its mesh and tensor maps; see :func:`strategy_rows`. A plan that was
            saved by an earlier version is always shown so.

    Raises:
        PlanError: if it is no plan; for operators, if it is for another model than is here.
    """
    given: Plan = loaded(plan)
    if isinstance(given, Plan) and given.setting is not None and not full:
        StrategyTable.of(given).show(console)
        return
    rows = strategy_rows(given)
    if current_job().world.rank:
        return
    title = (
        f"{given.option} on {given.mesh.size} devices: {given.time_s * 1e3:.3g} ms per step and "
        f"{given.memory_bytes / 2**20:.3g} MiB per device, predicted"
    )
    caption = _caption(given)
    table = Table(title=_plain(title), caption=None if caption is None else _plain(caption))
    for header, justify in (("operator", "left"), ("mesh", "left"), ("splits", "left"), ("tensor maps", "left")):
        table.add_column(header, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for header in ("time, µs", "memory, KiB"):
        table.add_column(header, justify="right", no_wrap=True)
    if any(row["keep"] for row in rows):
        table.add_column("kept copies", justify="left", overflow="fold")
    for row in rows:
        kept = [", ".join(f"{keep} of input {position}" for position, keep in row["keep"].items())]
        cells = (
            f"{row['operator']} ({row['type']})" if row["type"] not in row["operator"] else row["operator"],
            str(row["mesh"]),
            ", ".join([*row["splits"], *_besides(row)]) or "-",
            f"{' '.join(map(str, row['inputs']))} → {' '.join(map(str, row['outputs']))}".strip(),
            f"{row['time_s'] * 1e6:.1f}",
            f"{row['memory_bytes'] / 2**10:.1f}",
            *kept[: len(table.columns) - 6],
        )
        table.add_row(*map(_plain, cells))
    # Under mpirun the output is a terminal of no known width, which would be taken for 80 columns.
    (console or Console(width=None if "COLUMNS" in os.environ else _WIDTH)).print(table)


def _plain(text: str) -> Text:
    """Text as it is: what a plan's file says is no markup, and steers no terminal."""
    return Text(shortened(text))


def _caption(plan: Plan) -> str | None:
    """Returns the caption of a plan: its search space and search."""
    labels = {"space": "Space", "searched": "Search"}
    said = [f"{label}: {plan.notes[key]}" for key, label in labels.items() if key in plan.notes]
    return ". ".join(said) or None


def _besides(row: dict[str, Any]) -> list[str]:
    """What an operator does beside its splits."""
    each = [f"gradient of input {position} back in each micro-batch" for position in row.get("back_each", ())]
    return [*(["made again"] if "again" in row else []), *each]


def _action(action: str | None) -> str:
    place = place_of(action)
    if place is not None:
        return f"at {place}"
    return "replicate" if action is None else "replicate, gradient partial" if action == DEFER else f"split {action}"


def _map(entries: tuple[int | tuple[int, ...], ...]) -> list[Any]:
    return [list(entry) if isinstance(entry, tuple) else entry for entry in entries]
