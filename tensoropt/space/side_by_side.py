"""Pipelines: what a step costs whose micro-batches go through parts on different devices at once."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tensoropt.graph.graph import Edge
from tensoropt.plan.in_time import InTime
from tensoropt.plan.places import At, Places, Schedule, places_of, schedule
from tensoropt.plan.plan import Plan
from tensoropt.problem.problem import FloatArray

__all__ = ["SideBySide", "pipelined"]


@dataclass(frozen=True, eq=False)
class SideBySide:
    """The parts of a plan on different devices, and how micro-batches go through them.

    Attributes:
        plan: with the sums of its parts.
        steps: how its step is split in time.
        places: of its operators.
        order: of the parts of all micro-batches, and of the messages between them.
    """

    plan: Plan
    steps: InTime
    places: Places
    order: Schedule

    @classmethod
    def of(cls, plan: Plan, steps: InTime) -> SideBySide | None:
        """Returns the parts of a plan; None if all devices compute everything."""
        places = places_of(steps.graph, plan, steps)
        if places is None:
            return None
        each = [name for name in _trained(steps) if steps.is_each(name)]
        return cls(plan, steps, places, schedule(places, plan, each, steps.times))

    def flying(self, name: str) -> int:
        """The number of micro-batches of which a device holds what an operator computes for each; 1 if that is once."""
        return self.order.flying.get(self.places.part[name].number, 1) if self.steps.is_each(name) else 1

    def flying_on(self, edge: Edge) -> int:
        """The number of micro-batches of which a device holds what an edge brings."""
        return self.flying(edge.consumer) if self.steps.is_each(edge.tensor.op) else 1

    def held_bytes(self) -> FloatArray:
        """``(devices,)``, what runs once, and the activations of as many micro-batches as parts have begun at once."""
        held: dict[At, float] = defaultdict(float)
        for name in _trained(self.steps):
            held[self.places.at[name]] += self.flying(name) * self.plan.operators[name].memory_bytes
        for edge, move in self.plan.edges.items():
            if edge.consumer in self.steps.graph.training:
                held[self.places.at[edge.consumer]] += self.flying_on(edge) * move.memory_bytes
        return self._on_devices(held)

    def seconds(self, constant_s: float) -> float:
        """Returns the seconds of a step, which ends when the last task of the schedule does.

        What runs once has run on the device that has the most of that.

        Args:
            constant_s: what every step takes.
        """
        graph, is_each = self.steps.graph, self.steps.is_each
        once: dict[At, float] = defaultdict(float)
        for name in _trained(self.steps):
            if not is_each(name):
                once[self.places.at[name]] += self.plan.operators[name].time_s
        for edge, move in self.plan.edges.items():
            if edge.consumer in graph.training and not (is_each(edge.consumer) and is_each(edge.tensor.op)):
                once[self.places.at[edge.consumer]] += move.time_s
        return constant_s + self.order.seconds + float(self._on_devices(once).max())

    def _on_devices(self, amounts: Mapping[At, float]) -> FloatArray:
        """``(devices,)``, what each device has of the amounts by place."""
        result = np.zeros(self.plan.mesh.size)
        for at, amount in amounts.items():
            result[list(self.plan.mesh.devices_at(at))] += amount
        return result


def pipelined(plan: Plan, steps: InTime, constant_s: float) -> Plan:
    """A plan with the time and memory of its parts side by side; the plan itself if all devices compute everything.

    Operators' and edges' entries stay what they are, for all micro-batches one after the other.

    Args:
        plan: with the sums of its parts.
        steps: how its step is split in time.
        constant_s: what every step takes.
    """
    parts = SideBySide.of(plan, steps)
    if parts is None:
        return plan
    each = {parts.places.at[name] for name in _trained(steps) if steps.is_each(name)}
    note: Mapping[str, object] = {
        "stages": len(each),
        "micro_batches": steps.times,
        "one_after_the_other_s": plan.time_s,
    }
    return dataclasses.replace(
        plan,
        time_s=parts.seconds(constant_s),
        memory_bytes=float(parts.held_bytes().max()),
        notes={**plan.notes, "pipeline": note},
    )


def _trained(steps: InTime) -> list[str]:
    """The operators of a training step, in the order of the graph."""
    return [op.name for op in steps.graph.operators if op.name in steps.graph.training]
