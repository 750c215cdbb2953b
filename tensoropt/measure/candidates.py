"""Candidates for measuring: the distinct operator calls of a space, in order of use, and in batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tensoropt.cluster import Topology
from tensoropt.cost import AnalyticCost, OpCall, gradient_positions, profile_key, whole_key
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.rule import OpRule
from tensoropt.layout import Mesh
from tensoropt.measure.probe_batch import RUNS
from tensoropt.measure.probes import OperatorProbe, can_be_measured
from tensoropt.plan.configuration import Configuration

__all__ = ["Candidate", "Space", "candidates_of", "in_batches", "likeliest_first", "runs_of"]

_LEAST_S = 1e-9
_BATCH_BYTES = 2**29
# So often a step repeats an operator whose code is then in caches, as an unrolled loop does, but no stack of layers.
_REPEATED = 32
_BATCH_PROBES = 100
# What a batch takes once by the analytic model, at most. It takes many times that; whether there is time for another
# one is judged by those before.
_BATCH_S = 0.1
# A batch that takes longer than this by the analytic model runs less often: its times are large beside what disturbs
# them, and there is little time for the other batches.
_LONG_S, _LONG_RUNS = 0.03, 3


class Space(Protocol):
    """The part of a search space that measuring needs: its operators, and their configurations."""

    @property
    def graph(self) -> Graph:
        """The graph of the operators."""
        ...

    @property
    def mesh(self) -> Mesh:
        """The factor mesh of the devices."""
        ...

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of the training step."""
        ...

    @property
    def rules(self) -> Mapping[str, OpRule]:
        """The rules of operators, by name."""
        ...

    def choices(self, name: str, /) -> tuple[Configuration, ...]:
        """The configurations that an operator may have."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """One distinct thing to measure.

    Attributes:
        probe: measures it.
        whole: the ``whole_key`` of the first operator that needs it.
        analytic_s: what it takes by the analytic model.
        slowness: how many times longer than in its fastest configuration such an operator takes then, at least.
        count: how many operators and configurations need it.
        size_bytes: of its tensors and their gradients.
    """

    probe: OperatorProbe
    whole: str
    analytic_s: float
    slowness: float
    count: int
    size_bytes: float

    @property
    def as_repeated(self) -> OperatorProbe:
        """The probe, which knows whether a step repeats it."""
        return dataclasses.replace(self.probe, is_repeated=self.count >= _REPEATED)


def candidates_of(topology: Topology, space: Space, rank: int) -> dict[str, Candidate]:
    """Everything that the space can ask for, by its ``profile_key``."""
    analytic = AnalyticCost(topology)
    found: dict[str, Candidate] = {}
    for op in space.operators:
        if not can_be_measured(op):
            continue
        rule, inputs = space.rules[op.name], space.graph.input_specs(op)
        wanted, outgoing = gradient_positions(space.graph, op)
        whole = whole_key(op, rule, inputs, space.mesh, wanted, outgoing)
        keys = []
        for configuration in space.choices(op.name):
            key = profile_key(op, rule, inputs, configuration, space.mesh, wanted, outgoing)
            keys.append(key)
            if key not in found:
                probe = OperatorProbe(op, rule, inputs, configuration, space.mesh, rank, wanted, outgoing)
                seconds = analytic.op_seconds(OpCall(op, rule, inputs, configuration, len(wanted)))
                size = 2.0 * sum(spec.size_bytes for spec in (*probe.local_inputs(), *probe.local_outputs()))
                found[key] = Candidate(probe, whole, seconds, np.inf, 0, size)
        fastest_s = max(min(found[key].analytic_s for key in keys), _LEAST_S)
        for key in keys:
            one = found[key]
            slowness = min(one.slowness, max(one.analytic_s, _LEAST_S) / fastest_s)
            found[key] = dataclasses.replace(one, slowness=slowness, count=one.count + 1)
    return found


def likeliest_first(candidates: Mapping[str, Candidate], keys: Iterable[str]) -> list[str]:
    """Keys in the order in which to measure them, for there may not be time for all.

    A good strategy hardly ever has an operator take several times longer than it could. So first come configurations
    in which one is about as fast as in any, then those that take twice as long, and so on; among these, what takes the
    longest in all.
    """

    def place(key: str) -> tuple[int, float, str]:
        one = candidates[key]
        return round(float(np.log2(one.slowness))), -one.analytic_s * one.count, key

    return sorted(keys, key=place)


def in_batches(chosen: Sequence[tuple[str, Candidate]]) -> list[list[tuple[str, Candidate]]]:
    """Runs of what memory and time have room for at once."""
    result: list[list[tuple[str, Candidate]]] = []
    room = time_s = 0.0
    for key, one in chosen:
        if not result or one.size_bytes > room or one.analytic_s > time_s or len(result[-1]) >= _BATCH_PROBES:
            result.append([])
            room, time_s = _BATCH_BYTES, _BATCH_S
        result[-1].append((key, one))
        room -= one.size_bytes
        time_s -= one.analytic_s
    return result


def runs_of(batch: Sequence[tuple[str, Candidate]]) -> int:
    """Returns how often to run a batch, for medians."""
    return RUNS if sum(one.analytic_s for _, one in batch) < _LONG_S else _LONG_RUNS
