"""Pipelines: what a step costs whose micro-batches go through parts on different devices at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tensoropt.plan.in_time import InTime
from tensoropt.plan.places import places_of, schedule
from tensoropt.plan.plan import Plan

__all__ = ["pipelined"]


def pipelined(plan: Plan, steps: InTime, constant_s: float) -> Plan:
    """A plan with the time and memory of its parts side by side; the plan itself if all devices compute everything.

    Operators' and edges' entries stay what they are, for all micro-batches one after the other. The step ends when the
    last task of the schedule does, and what runs once has run on the device that has the most of that. A device holds
    what runs once, and the activations of as many micro-batches as its parts have begun at once.

    Args:
        plan: with the sums of its parts.
        steps: how its step is split in time.
        constant_s: what every step takes.
    """
    places = places_of(steps.graph, plan, steps)
    if places is None:
        return plan
    trained = [op for op in steps.graph.operators if op.name in steps.graph.training]
    each = [op.name for op in trained if steps.is_each(op.name)]
    order = schedule(places, plan, each, steps.times)
    mesh = plan.mesh
    once, held = np.zeros(mesh.size), np.zeros(mesh.size)
    for op in trained:
        devices, entry = list(mesh.devices_at(places.at[op.name])), plan.operators[op.name]
        is_each = steps.is_each(op.name)
        flying = order.flying.get(places.part[op.name].number, 1) if is_each else 1
        held[devices] += flying * entry.memory_bytes
        once[devices] += 0.0 if is_each else entry.time_s
    for edge, move in plan.edges.items():
        if edge.consumer not in steps.graph.training:
            continue
        devices = list(mesh.devices_at(places.at[edge.consumer]))
        inside = steps.is_each(edge.consumer) and steps.is_each(edge.tensor.op)
        held[devices] += (order.flying[places.part[edge.consumer].number] if inside else 1) * move.memory_bytes
        once[devices] += 0.0 if inside else move.time_s
    seconds = constant_s + order.seconds + float(once.max())
    note: Mapping[str, object] = {
        "stages": len({places.at[name] for name in each}),
        "micro_batches": steps.times,
        "one_after_the_other_s": plan.time_s,
    }
    return dataclasses.replace(
        plan, time_s=seconds, memory_bytes=float(held.max()), notes={**plan.notes, "pipeline": note}
    )
