"""A strategy with its reshard paths: all that the devices need to run, as a value and as a JSON file."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensoropt.errors import PlanError, TensorOptError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of, traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Layout, Mesh, Step, StepKind
from tensoropt.plan.account import About, Move, Setting, read_about, read_move, read_setting
from tensoropt.plan.configuration import Configuration, TensorLayouts, actions_from_json, check_configuration
from tensoropt.plan.in_time import in_time
from tensoropt.plan.places import places_of, why_not_apart
from tensoropt.plan.recomputation import why_not_again
from tensoropt.plan.tensor_reuse import why_not_back_each, why_not_kept
from tensoropt.storage import read_regular, write_whole
from tensoropt.storage.document import ERROR_LENGTH, Fields, cause_of, parse_json, quoted, refused, shortened

__all__ = [
    "ALTERNATIVES",
    "KEEPS",
    "SCHEMA_VERSION",
    "EdgePlan",
    "OperatorPlan",
    "Plan",
    "begin_of",
    "row_edges",
    "rules_of",
]

SCHEMA_VERSION = 2
# Files of the first version have nothing of what a reader needs without the model.
_READ = (1, SCHEMA_VERSION)
# Which copies of a tensor that is moved are kept for the backward pass (TensorOpt section 4.2, "Tensor reuse").
KEEPS = ("both", "before", "after")
# What edges may choose, in the order of the alternatives of their tables: EdgePlan's ``keep`` and ``back_each``. The
# last two are those of an edge that leads into micro-batches.
ALTERNATIVES = (*((keep, False) for keep in KEEPS), ("both", True), ("before", True))
# A million devices are more than there are; a file that asks for more would have all of them gone through.
_MOST_DEVICES = 2**20


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One operator's configuration and what it is predicted to cost on a device.

    Attributes:
        configuration: how it is split.
        time_s: predicted seconds per training step.
        memory_bytes: predicted bytes per device.
        about: what it is; None outside of the training step, and in plans that were adapted or saved long ago.
    """

    configuration: Configuration
    time_s: float
    memory_bytes: float
    about: About | None = None


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
        moves: what ``time_s`` is made of, between operators of the training step.
        back_each: whether, of an edge that leads into micro-batches, the gradient goes back in each of them and is
            summed where the producer needs it. Otherwise it is summed as the consumer gives it, and goes back once.
    """

    forward: tuple[Step, ...] = ()
    backward: tuple[Step, ...] = ()
    time_s: float = 0.0
    memory_bytes: float = 0.0
    keep: str = "both"
    moves: tuple[Move, ...] = ()
    back_each: bool = False

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
        if self.back_each and not self.backward:
            raise PlanError(
                "EdgePlan: back_each says how often a gradient takes the backward steps. Got none. Leave it out."
            )

    @property
    def alternative(self) -> int:
        """Its number in `ALTERNATIVES`."""
        return ALTERNATIVES.index((self.keep, self.back_each))


@dataclass(frozen=True, repr=False)
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
        setting: the cluster that it is for; None of a plan that was adapted or saved long ago.
        graph: that it is for, in the process that made it; None of one that was read from a file or sent.
        micro_batches: how many a step has, one after the other.
    """

    mesh: Mesh
    fingerprint: str
    option: str
    operators: Mapping[str, OperatorPlan]
    edges: Mapping[Edge, EdgePlan]
    time_s: float
    memory_bytes: float
    notes: Mapping[str, Any]
    setting: Setting | None = None
    graph: Graph | None = field(default=None, compare=False)
    micro_batches: int = 1

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to pickle, without the graph: the receiver has its own."""
        return {**vars(self), "graph": None}

    def __repr__(self) -> str:
        return (
            f"Plan({self.option} on {self.mesh}: {len(self.operators)} operators, {len(self.edges)} reshards, "
            f"{self.time_s * 1e3:.4g} ms, {self.memory_bytes / 2**20:.4g} MiB, graph {self.fingerprint})"
        )

    def _repr_html_(self) -> str | None:
        """The plan as notebooks show it; None of one that says nothing of its operators."""
        if self.setting is None:
            return None
        # By its name: pages belong to a later room, and a plan does without them.
        pages = importlib.import_module("tensoropt.search.plan_page")
        explained = importlib.import_module("tensoropt.search.explanation").Explanation.of(self)
        text: str = pages.plan_page(self, explained).fragment()
        return text

    def of(self, graph: Graph) -> Plan:
        """Itself, with the graph that it is known to be for, by which it can be shown whatever the current model is."""
        return self if self.graph is not None else replace(self, graph=graph)

    @property
    def peak_bytes(self) -> float:
        """Predicted peak bytes per device, with temporaries where they were noted."""
        noted = self.notes.get("peak_memory")
        return float(noted["memory_bytes"]) if noted else self.memory_bytes

    @property
    def utilization(self) -> float | None:
        """The model's arithmetic in a step as a share of what the devices could do; None where it was not noted.

        That is the model FLOP utilization (MFU): what is computed twice, or by several devices alike, counts once.
        """
        noted = [self.notes.get(name) for name in ("step_flops", "peak_flops_per_s")]
        if self.time_s <= 0.0 or not all(isinstance(each, int | float) and each > 0 for each in noted):
            return None
        flops, peak = (float(each) for each in noted if each is not None)
        return flops / (peak * self.time_s)

    def configuration(self, name: str) -> Configuration:
        """The configuration of an operator."""
        try:
            return self.operators[name].configuration
        except KeyError:
            raise PlanError(f"Plan: has no operator {quoted(name)}. Make the plan again for this graph.") from None

    @functools.cached_property
    def again(self) -> frozenset[str]:
        """The names of the operators whose outputs the backward pass makes again."""
        return frozenset(name for name, entry in self.operators.items() if entry.configuration.again)

    def edge(self, edge: Edge) -> EdgePlan:
        """The reshard of an edge; without steps if it needs none."""
        return self.edges.get(edge, EdgePlan())

    def check(self, graph: Graph, *, runs: bool = True) -> None:
        """Checks that the plan is for ``graph`` and that it can run.

        Args:
            graph: the logical graph.
            runs: False to let pass places of operators that are planned and compared only
                (:func:`tensoropt.plan.places.why_not_apart`).

        Raises:
            PlanError: if it is for another graph, lacks an operator, has an illegal configuration, if the steps of an
                edge do not lead from what its producer gives to what its consumer wants, or if a copy that the backward
                pass needs is not kept and cannot be made again (:func:`tensoropt.plan.tensor_reuse.keep_choices`).
        """
        try:
            self._check(graph, runs=runs)
        except PlanError as error:
            error.args = (shortened(error, 2 * ERROR_LENGTH),)  # names of a file may be as long as the file
            raise
        except TensorOptError as error:
            raise PlanError(shortened(f"Plan: cannot run. {error}", 2 * ERROR_LENGTH)) from error

    def _check(self, graph: Graph, *, runs: bool) -> None:
        """Checks what :meth:`check` does; errors are of any kind and length."""
        if graph.fingerprint() != self.fingerprint:
            raise PlanError(
                f"Plan: was made for the graph {self.fingerprint}, this one is {graph.fingerprint()}. "
                "The model, its shapes or its names changed; call find_strategy again."
            )
        rules: Mapping[str, OpRule] = rules_of(graph)
        steps = in_time(graph, rules, self.micro_batches)
        if steps is not None:
            graph, rules = steps.graph, steps.rules
        rows, again = row_edges(graph, rules), self.again
        known = set(graph.edges())
        for name in self.operators:
            if name not in graph:
                raise PlanError(f"Plan: operator '{name}' is not in the graph. Make the plan again for this graph.")
        for edge in self.edges:
            if edge not in known:
                raise PlanError(f"Plan: edge {edge} is not in the graph. Make the plan again for this graph.")
        for op in graph.operators:
            configuration, rule = self.configuration(op.name), rules[op.name]
            check_configuration(str(op), configuration, rule, self.mesh)
            reason = why_not_again(graph, op, steps) if configuration.again else None
            if reason is not None:
                raise PlanError(
                    f"Plan: {op} is made again in the backward pass, but {reason}. "
                    "Keep its output, or make the plan again with find_strategy."
                )
        for edge in graph.edges():
            reason = why_not_kept(graph, rules, edge, self.edge(edge).keep, again, steps)
            if reason is not None:
                raise PlanError(
                    f"Plan: edge {edge} keeps the copy {self.edge(edge).keep!r} its forward steps only, but {reason}. "
                    "Keep 'both', or make the plan again with find_strategy."
                )
            reason = why_not_back_each(graph, edge, rows, steps) if self.edge(edge).back_each else None
            if reason is not None:
                raise PlanError(
                    f"Plan: the gradient of edge {edge} goes back in each micro-batch, but {reason}. "
                    "Leave out 'back_each', or make the plan again with find_strategy."
                )
            shape = (graph.spec(edge.tensor) if steps is None else steps.spec(edge)).shape
            returns = edge in graph.differentiable and edge not in rows
            self._check_edge(graph, rules, edge, shape, whole_gradient=returns)
        places = places_of(graph, self, steps)
        reason = None if places is None or not runs else why_not_apart(graph, self, places, rows)
        if reason is not None:
            raise PlanError(f"Plan: {reason} Make the plan again with find_strategy.")

    def _check_edge(
        self, graph: Graph, rules: Mapping[str, OpRule], edge: Edge, shape: tuple[int, ...], *, whole_gradient: bool
    ) -> None:
        given = self.configuration(edge.tensor.op).output_layouts(rules[edge.tensor.op], edge.tensor.index)
        wanted = self.configuration(edge.consumer).input_layouts(rules[edge.consumer], edge.position)
        begins = begin_of(graph[edge.consumer], given)
        if edge.position in rules[edge.consumer].pinned and begins != wanted.value:
            raise PlanError(
                f"Plan: edge {edge} moves a variable that must be used where it is stored, from {begins} to "
                f"{wanted.value}. Make the plan again with find_strategy."
            )
        steps = self.edge(edge)
        pairs = [("forward", steps.forward, begins, wanted.value)]
        if whole_gradient:
            pairs.append(("backward", steps.backward, wanted.gradient, given.gradient))
        for direction, path, layout, target in pairs:
            reached: Layout = layout
            for step in path:
                if step.kind is StepKind.PERMUTE:
                    step.permutation(reached, self.mesh)  # raises unless every piece that is wanted is there
                reached = step.apply(reached)
                reached.check(shape, self.mesh, str(edge))
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
            **({} if self.micro_batches == 1 else {"micro_batches": self.micro_batches}),
            "option": self.option,
            "time_s": self.time_s,
            "memory_bytes": self.memory_bytes,
            "notes": dict(sorted(self.notes.items())),
            "setting": None if self.setting is None else self.setting.to_json(),
            "operators": {
                name: {
                    "actions": entry.configuration.to_json(),
                    **({"again": True} if entry.configuration.again else {}),
                    "time_s": entry.time_s,
                    "memory_bytes": entry.memory_bytes,
                    "about": None if entry.about is None else entry.about.to_json(),
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
                    **({"back_each": True} if entry.back_each else {}),
                    "moves": [move.to_json() for move in entry.moves],
                }
                for edge, entry in sorted(self.edges.items())
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that ``to_json`` wrote.

        Raises:
            PlanError: if fields are missing, unknown or wrong, or the schema version is another; in at most 500
                characters.
        """
        try:
            return _read_plan(data)
        except (TensorOptError, ValueError) as error:
            raise refused(PlanError, "Plan: not a plan", error.args[0], "Save it with Plan.save.") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, whole or not at all.

        Raises:
            PlanError: if there can be no such file.
        """
        try:
            write_whole(path, json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            subject = f"Plan: cannot be written to '{os.fspath(path)}'"
            remedy = "Give a file in a directory that exists and has room."
            raise refused(PlanError, subject, f"{cause_of(error)}.", remedy) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads what :meth:`save` wrote.

        Raises:
            PlanError: if the file cannot be read or is not a plan; in at most 500 characters.
        """
        subject = f"Plan '{os.fspath(path)}'"
        try:
            return _read_plan(parse_json(read_regular(path)))
        except OSError as error:
            raise refused(PlanError, subject, f"cannot be read: {cause_of(error)}.", "Check the path.") from error
        except ValueError as error:
            raise refused(PlanError, subject, f"cannot be read: {error}.", "Save it with Plan.save.") from None
        except TensorOptError as error:
            raise refused(PlanError, subject, f"not a plan: {error.args[0]}", "Save it with Plan.save.") from None


def _read_plan(data: object) -> Plan:
    """The plan of a document.

    Raises:
        TensorOptError: it is none.
        ValueError: the same.
    """
    version = data.get("schema_version") if isinstance(data, Mapping) else None
    if isinstance(version, bool) or version not in _READ:
        raise PlanError(
            f"schema_version is {shortened(repr(version), 40)}, this version of tensoropt reads "
            f"{' and '.join(map(str, _READ))}. "
            "Make the plan again with find_strategy."
        )
    names = ("schema_version", "graph", "mesh", "option", "operators", "edges", "time_s", "memory_bytes", "notes")
    is_first = version == _READ[0]
    fields = Fields.of(
        data, "the document", PlanError, names if is_first else (*names, "setting"), {"micro_batches": 1}
    )
    mesh = Mesh(fields.integers("mesh"))
    if mesh.size > _MOST_DEVICES:
        raise PlanError(f"a mesh has at most {_MOST_DEVICES} devices, got {shortened(mesh.size, 40)}.")
    edges: dict[Edge, EdgePlan] = {}
    for number, entry in enumerate(fields.array("edges")):
        edge, steps = _read_edge(entry, f"edges[{number}]", mesh, is_first)
        if edge in edges:
            raise PlanError(f"edge {edge} is there twice.")
        edges[edge] = steps
    operators = fields.mapping("operators")
    return Plan(
        mesh,
        fields.label("graph"),
        fields.label("option"),
        {name: _read_operator(entry, f"operator {name!r}", mesh, is_first) for name, entry in operators.items()},
        edges,
        fields.number("time_s", least=0),
        fields.number("memory_bytes", least=0),
        _read_notes(fields.mapping("notes")),
        None if is_first or fields.values["setting"] is None else read_setting(fields.values["setting"]),
        micro_batches=fields.integer("micro_batches", least=1),
    )


def _read_operator(data: object, where: str, mesh: Mesh, is_first: bool) -> OperatorPlan:
    names = ("actions", "time_s", "memory_bytes")
    fields = Fields.of(data, where, PlanError, names if is_first else (*names, "about"), {"again": False})
    actions = fields.array("actions")
    if len(actions) != len(mesh.axes) or not all(action is None or isinstance(action, str) for action in actions):
        raise PlanError(f"{where}: needs an action or null for each of the {len(mesh.axes)} axes of {mesh}.")
    about = fields.values.get("about")
    return OperatorPlan(
        actions_from_json(actions, again=fields.boolean("again")),
        fields.number("time_s", least=0),
        fields.number("memory_bytes", least=0),
        None if about is None else read_about(about, f"{where}: about"),
    )


def _read_edge(data: object, where: str, mesh: Mesh, is_first: bool) -> tuple[Edge, EdgePlan]:
    names = ("tensor", "consumer", "position", "forward", "backward", "time_s", "memory_bytes")
    fields = Fields.of(
        data, where, PlanError, names if is_first else (*names, "moves"), {"keep": "both", "back_each": False}
    )
    name = fields.text("tensor")
    op, _, index = name.rpartition(":")
    tensor = TensorId(op, int(index) if index.isascii() and index.isdecimal() else -1)
    if tensor.index < 0 or str(tensor) != name:
        raise PlanError(f"{where}: field 'tensor' must be 'operator:number', got {shortened(repr(name), 80)}.")
    forward, backward = (tuple(map(Step.from_json, fields.array(field))) for field in ("forward", "backward"))
    for step in (*forward, *backward):
        step.check(mesh)
    steps = EdgePlan(
        forward,
        backward,
        fields.number("time_s", least=0),
        fields.number("memory_bytes", least=0),
        fields.text("keep"),
        () if is_first else tuple(read_move(move, f"{where}: moves", mesh) for move in fields.array("moves")),
        fields.boolean("back_each"),
    )
    return Edge(tensor, fields.text("consumer"), fields.integer("position", least=0)), steps


def _read_notes(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Notes may be anything but for what is read of them."""
    if "peak_memory" in notes:
        names = ("memory_bytes", "operator", "backward", "parts")
        peak = Fields.of(notes["peak_memory"], "notes.peak_memory", PlanError, names)
        peak.number("memory_bytes", least=0)
        peak.text("operator")
        peak.boolean("backward")
        parts = Fields(peak.mapping("parts"), "notes.peak_memory.parts", PlanError)
        for name in parts.values:
            parts.number(name, least=0)
    return dict(notes)


def rules_of(graph: Graph) -> dict[str, OpRule]:
    """The rule of every operator."""
    rules: dict[str, OpRule] = {}
    alike: dict[Hashable, OpRule] = {}  # as layers of a model are, in all that rules go by
    for op in graph.operators:
        form = _form(graph, op)
        rules[op.name] = alike[form] if form in alike else rule_of(op, graph.input_specs(op))
        if form is not None:
            alike.setdefault(form, rules[op.name])
    if graph.is_differentiated_twice:
        rules = {name: rule if traits(graph[name]).role else _twice(rule) for name, rule in rules.items()}
    return rules | {name: dataclasses.replace(rules[name], split=()) for name in _behind_other_rows(graph, rules)}


def _behind_other_rows(graph: Graph, rules: Mapping[str, OpRule]) -> set[str]:
    """Operators through which rows of a gradient go back as other rows, with the lookups that make them.

    Devices code the rows of other devices' pieces by indices that are none, of which TensorFlow's gradients of these
    operators would make some; and they may give as many rows as the indices say.
    """
    found: set[str] = set()
    for op in graph.operators:
        place = rules[op.name].sparse_input
        if place is None or Edge(op.inputs[place], op.name, place) not in graph.differentiable:
            continue
        behind, tensor = {op.name}, op.inputs[place]
        while traits(graph[tensor.op]).hands_rows_on:
            behind.add(tensor.op)
            tensor = graph[tensor.op].inputs[0]
        if traits(graph[tensor.op]).passes_rows is False:
            found |= {*(name for name in behind if not traits(graph[name]).is_fanout), tensor.op}
    return found


def _form(graph: Graph, op: Operator) -> Hashable:
    """All that the rule of an operator goes by; None where that cannot be compared at once."""
    static = []
    for place, value in op.static.items():
        array = np.asarray(value)
        if array.dtype == object:
            return None
        static.append((place, array.dtype.str, array.shape, array.tobytes()))
    form = (op.type, graph.input_specs(op), op.outputs, op.handles, tuple(static), tuple(sorted(op.attrs.items())))
    try:
        hash(form)
    except TypeError:  # a constant's value
        return None
    return form


def _twice(rule: OpRule) -> OpRule:
    """A rule without the splits over which an operator's lowering brings a gradient of its own.

    Such gradients cannot be differentiated again; those of reshards and of TensorFlow's ops can.
    """
    own = rule.communicates_over | (rule.reduced if rule.sparse_input is not None else frozenset())
    return dataclasses.replace(rule, split=tuple(axis for axis in rule.split if axis not in own))


def begin_of(consumer: Operator, given: TensorLayouts) -> Layout:
    """The layout that a tensor has for an operator before it moves: a gradient by the tensor is where that arrives."""
    return given.gradient if traits(consumer).is_gradient else given.value


def row_edges(graph: Graph, rules: Mapping[str, OpRule]) -> frozenset[Edge]:
    """Edges along which a gradient goes back as rows: into a table that is looked up in, and into a fan-out or another
    op that passes rows and that only lookups read."""
    found: set[Edge] = set()
    for op in reversed(graph.operators):
        for position, tensor in enumerate(op.inputs):
            edge = Edge(tensor, op.name, position)
            if edge not in graph.differentiable:
                continue
            readers = [reader for reader in graph.consumers(TensorId(op.name)) if reader in graph.differentiable]
            only_lookups = traits(op).hands_rows_on and bool(readers) and found.issuperset(readers)
            if rules[op.name].sparse_input == position or only_lookups:
                found.add(edge)
    return frozenset(found)
