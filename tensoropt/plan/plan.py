"""A strategy with its reshard paths: all that the devices need to run, as a value and as a JSON file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensoropt.errors import PlanError, TensorOptError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.registry import rule_of
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Layout, Mesh, Step, StepKind
from tensoropt.plan.configuration import Configuration, actions_from_json, check_configuration, not_executed
from tensoropt.plan.reuse import why_not_kept

__all__ = ["KEEPS", "SCHEMA_VERSION", "EdgePlan", "OperatorPlan", "Plan", "row_edges", "rules_of"]

SCHEMA_VERSION = 1
# Which copies of a tensor that is moved are kept for the backward pass (TensorOpt section 4.2, "Tensor reuse").
KEEPS = ("both", "before", "after")


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One operator's configuration and what it is predicted to cost on a device."""

    configuration: Configuration
    time_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """The steps that bring a tensor to its consumer, and its gradient back, and their predicted cost.

    Attributes:
        forward: steps of the value.
        backward: steps of its gradient.
        time_s: predicted seconds per training step, with those of making a copy again.
        memory_bytes: predicted bytes per device.
        keep: which copies stay for the backward pass: the one ``"before"`` the forward steps, the one ``"after"``
            them, or ``"both"``. A copy that does not stay is made again in the backward pass (TensorOpt section 4.2).
    """

    forward: tuple[Step, ...] = ()
    backward: tuple[Step, ...] = ()
    time_s: float = 0.0
    memory_bytes: float = 0.0
    keep: str = "both"

    def __post_init__(self) -> None:
        if self.keep not in KEEPS:
            raise PlanError(
                f"EdgePlan: keep must be one of {', '.join(map(repr, KEEPS))}. Got {self.keep!r}. "
                "Make the plan again with find_strategy."
            )
        if self.keep != "both" and not self.forward:
            raise PlanError(
                f"EdgePlan: keep={self.keep!r} chooses between the copies before and after the forward steps. "
                "Got no forward steps, so there is one copy only. Keep 'both'."
            )


@dataclass(frozen=True)
class Plan:
    """A strategy for one graph on one mesh.

    Attributes:
        mesh: the factor mesh.
        fingerprint: of the graph that it is for.
        option: how it was chosen, such as ``mini_time``.
        operators: by name.
        edges: reshards by edge; an edge that needs none is left out.
        time_s: predicted seconds per training step.
        memory_bytes: predicted bytes per device, as searches add them up.
        notes: what else is worth keeping, such as whether the search was exact.
    """

    mesh: Mesh
    fingerprint: str
    option: str
    operators: Mapping[str, OperatorPlan]
    edges: Mapping[Edge, EdgePlan]
    time_s: float
    memory_bytes: float
    notes: Mapping[str, Any]

    @property
    def peak_bytes(self) -> float:
        """Predicted peak bytes per device, with temporaries where they were noted."""
        noted = self.notes.get("peak_memory")
        return float(noted["memory_bytes"]) if noted else self.memory_bytes

    def configuration(self, name: str) -> Configuration:
        """The configuration of an operator."""
        try:
            return self.operators[name].configuration
        except KeyError:
            raise PlanError(f"Plan: has no operator '{name}'. Make the plan again for this graph.") from None

    def edge(self, edge: Edge) -> EdgePlan:
        """The reshard of an edge; without steps if it needs none."""
        return self.edges.get(edge, EdgePlan())

    def check(self, graph: Graph, *, runs: bool = True) -> None:
        """Checks that the plan is for ``graph`` and that it can run.

        Args:
            graph: the logical graph.
            runs: False to let pass what is planned and compared, but not executed yet: operators on a part of the mesh
                and images in pieces.

        Raises:
            PlanError: if it is for another graph, lacks an operator, has an illegal configuration, if the steps of an
                edge do not lead from what its producer gives to what its consumer wants, or if a copy that the backward
                pass needs is not kept and cannot be made again (:func:`tensoropt.plan.reuse.keep_choices`).
        """
        if graph.fingerprint() != self.fingerprint:
            raise PlanError(
                f"Plan: was made for the graph {self.fingerprint}, this one is {graph.fingerprint()}. "
                "The model, its shapes or its names changed; call find_strategy again."
            )
        rules = rules_of(graph, halos=True)
        rows = row_edges(graph, rules)
        known = set(graph.edges())
        for name in self.operators:
            if name not in graph:
                raise PlanError(f"Plan: operator '{name}' is not in the graph. Make the plan again for this graph.")
        for edge in self.edges:
            if edge not in known:
                raise PlanError(f"Plan: edge {edge} is not in the graph. Make the plan again for this graph.")
        try:
            for op in graph.operators:
                configuration, rule = self.configuration(op.name), rules[op.name]
                check_configuration(str(op), configuration, rule, self.mesh)
                if runs and not_executed(configuration, rule):
                    raise PlanError(
                        f"Plan: {op} has the configuration {configuration} on {self.mesh}, which needs "
                        f"{' and '.join(not_executed(configuration, rule))}: planned and compared, but not executed "
                        "yet. To run, make a plan in the default space: find_strategy, or SearchSpace without "
                        "placements and halos."
                    )
            for edge in graph.edges():
                self._check_edge(graph, rules, edge, whole_gradient=edge in graph.differentiable and edge not in rows)
        except PlanError:
            raise
        except TensorOptError as error:
            raise PlanError(f"Plan: cannot run. {error}") from error

    def _check_edge(self, graph: Graph, rules: Mapping[str, OpRule], edge: Edge, *, whole_gradient: bool) -> None:
        given = self.configuration(edge.tensor.op).output_layouts(rules[edge.tensor.op], edge.tensor.index)
        wanted = self.configuration(edge.consumer).input_layouts(rules[edge.consumer], edge.position)
        if rules[edge.consumer].pinned_input == edge.position and given.value != wanted.value:
            raise PlanError(
                f"Plan: edge {edge} moves a variable that must be used where it is stored, from {given.value} to "
                f"{wanted.value}. Make the plan again with find_strategy."
            )
        steps = self.edge(edge)
        reason = why_not_kept(graph, rules, edge, steps.keep)
        if reason is not None:
            raise PlanError(
                f"Plan: edge {edge} keeps the copy {steps.keep!r} its forward steps only, but {reason}. "
                "Keep 'both', or make the plan again with find_strategy."
            )
        pairs = [("forward", steps.forward, given.value, wanted.value)]
        if whole_gradient:
            pairs.append(("backward", steps.backward, wanted.gradient, given.gradient))
        for direction, path, layout, target in pairs:
            reached: Layout = layout
            for step in path:
                if step.kind is StepKind.PERMUTE:
                    step.permutation(reached, self.mesh)  # raises unless every piece that is wanted is there
                reached = step.apply(reached)
                reached.check(graph.spec(edge.tensor).shape, self.mesh, str(edge))
            if reached != target:
                raise PlanError(
                    f"Plan: the {direction} steps of edge {edge} lead from {layout} to {reached}, its ends need "
                    f"{target}. Make the plan again with find_strategy."
                )

    def to_json(self) -> dict[str, Any]:
        """A JSON object; stable: equal plans give equal text."""
        return {
            "schema_version": SCHEMA_VERSION,
            "graph": self.fingerprint,
            "mesh": list(self.mesh.shape),
            "option": self.option,
            "time_s": self.time_s,
            "memory_bytes": self.memory_bytes,
            "notes": dict(sorted(self.notes.items())),
            "operators": {
                name: {
                    "actions": entry.configuration.to_json(),
                    "time_s": entry.time_s,
                    "memory_bytes": entry.memory_bytes,
                }
                for name, entry in sorted(self.operators.items())
            },
            "edges": [
                {
                    "tensor": str(edge.tensor),
                    "consumer": edge.consumer,
                    "position": edge.position,
                    "forward": [step.to_json() for step in entry.forward],
                    "backward": [step.to_json() for step in entry.backward],
                    "time_s": entry.time_s,
                    "memory_bytes": entry.memory_bytes,
                    **({} if entry.keep == "both" else {"keep": entry.keep}),
                }
                for edge, entry in sorted(self.edges.items())
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that ``to_json`` wrote.

        Raises:
            PlanError: if fields are missing or wrong, or the schema version is another.
        """
        version = data.get("schema_version") if isinstance(data, Mapping) else None
        if version != SCHEMA_VERSION:
            raise PlanError(
                f"Plan: schema_version is {version!r}, this version of tensoropt reads {SCHEMA_VERSION}. "
                "Make the plan again with find_strategy."
            )
        try:
            edges = {}
            for entry in data["edges"]:
                op, _, index = entry["tensor"].rpartition(":")
                edges[Edge(TensorId(op, int(index)), entry["consumer"], int(entry["position"]))] = EdgePlan(
                    tuple(Step.from_json(step) for step in entry["forward"]),
                    tuple(Step.from_json(step) for step in entry["backward"]),
                    float(entry["time_s"]),
                    float(entry["memory_bytes"]),
                    entry.get("keep", "both"),
                )
            return cls(
                Mesh(tuple(int(extent) for extent in data["mesh"])),
                str(data["graph"]),
                str(data["option"]),
                {
                    name: OperatorPlan(
                        actions_from_json(entry["actions"]), float(entry["time_s"]), float(entry["memory_bytes"])
                    )
                    for name, entry in data["operators"].items()
                },
                edges,
                float(data["time_s"]),
                float(data["memory_bytes"]),
                dict(data["notes"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, TensorOptError) as error:
            raise PlanError(f"Plan: not a plan: {type(error).__name__} {error}. Save it with Plan.save.") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, whole or not at all.

        Raises:
            PlanError: if there can be no such file.
        """
        target = Path(path)
        partial = target.with_name(f"{target.name}.{os.getpid()}.part")
        text = json.dumps(self.to_json(), indent=1) + "\n"
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise PlanError(
                f"Plan: cannot be written to '{os.fspath(path)}': {error.strerror}. Give a file in a directory that "
                "exists and has room."
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads what :meth:`save` wrote.

        Raises:
            PlanError: if the file cannot be read or is not a plan.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PlanError(f"Plan '{os.fspath(path)}': cannot be read: {error}.") from error
        return cls.from_json(data)


def rules_of(graph: Graph, *, halos: bool = False) -> dict[str, OpRule]:
    """The rule of every operator.

    Args:
        graph: the logical graph.
        halos: of the whole space, in which images may be split where neighbours exchange rims.
    """
    rules = {op.name: rule_of(op, graph.input_specs(op)) for op in graph.operators}
    return {name: rule.with_halos() for name, rule in rules.items()} if halos else rules


def row_edges(graph: Graph, rules: Mapping[str, OpRule]) -> frozenset[Edge]:
    """Edges along which a gradient goes back as rows: into a table that is looked up in, and into a fan-out that only
    lookups read."""
    found: set[Edge] = set()
    for op in reversed(graph.operators):
        for position, tensor in enumerate(op.inputs):
            edge = Edge(tensor, op.name, position)
            if edge not in graph.differentiable:
                continue
            readers = [reader for reader in graph.consumers(TensorId(op.name)) if reader in graph.differentiable]
            only_lookups = op.type == "Fanout" and found.issuperset(readers)
            if rules[op.name].sparse_input == position or only_lookups:
                found.add(edge)
    return frozenset(found)
