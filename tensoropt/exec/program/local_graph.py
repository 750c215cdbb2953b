"""One device's local graph, and what all programs on it share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tensorflow.python.framework import op_def_registry

from tensoropt.errors import SessionError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.base import Program as Chain
from tensoropt.exec.program.generators import Generator
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import is_counted
from tensoropt.graph.registry import declaration, has_rule, traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout
from tensoropt.plan.configuration import TensorLayouts
from tensoropt.plan.in_time import InTime, in_time
from tensoropt.plan.places import Places, places_of
from tensoropt.plan.plan import Plan

__all__ = ["LocalGraph"]


@dataclass(slots=True, eq=False)
class LocalGraph:
    """One device's part of a plan, as programs add to it.

    Attributes:
        graph: the logical graph.
        plan: of its strategy.
        engine: does the collectives.
        rules: of operators.
        tf_graph: the local graph.
        in_time: how the step is split into micro-batches; None if it is not.
        places: where operators are computed; None if all devices compute all of them.
        one_thread: whether nothing else runs during a collective, so that there is no harm in waiting for it.
        variables: this device's pieces, by name.
        shared: outputs of random operators, which have one state for all programs.
        alike: those of all local graphs that share variables, by name, shapes and configuration.
        generators: the states of those operators, by name.
        chains: the collectives of each program that was built, or of which a part was.
    """

    graph: Graph
    plan: Plan
    engine: CollectiveEngine
    rules: Mapping[str, OpRule]
    tf_graph: Any
    one_thread: bool
    in_time: InTime | None = None
    places: Places | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, list[Any]] = field(default_factory=dict)
    alike: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)
    generators: dict[str, Generator] = field(default_factory=dict)
    chains: list[Chain] = field(default_factory=list)

    def holds(self, name: str) -> bool:
        """Tells whether this device computes an operator."""
        if self.places is None or not self.places.at[name]:
            return True
        return Layout((), at=self.places.at[name]).holds(self.plan.mesh, self.engine.rank)

    @property
    def where(self) -> Places:
        """The places of a plan that has operators on a part of the devices."""
        assert self.places is not None  # noqa: S101
        return self.places

    def spec(self, edge: Edge) -> TensorSpec:
        """The tensor that an edge moves: the whole batch's, or a micro-batch's."""
        return self.graph.spec(edge.tensor) if self.in_time is None else self.in_time.spec(edge)

    def layout_of(self, tensor: TensorId) -> Layout:
        """Returns the layout of an operator's output."""
        return self.given(tensor).value

    def given(self, tensor: TensorId) -> TensorLayouts:
        """The layouts that an operator gives its output, and needs of its gradient."""
        return self.plan.configuration(tensor.op).output_layouts(self.rules[tensor.op], tensor.index)

    def wanted(self, edge: Edge) -> TensorLayouts:
        """The layouts that a consumer wants its input in, and gives its gradient."""
        return self.plan.configuration(edge.consumer).input_layouts(self.rules[edge.consumer], edge.position)

    def beside(self, graph: Graph, plan: Plan, rules: Mapping[str, OpRule]) -> LocalGraph:
        """Another logical graph on the same variables and generators, in the same local graph of TensorFlow's."""
        steps = in_time(graph, rules, plan.micro_batches)
        places = places_of(graph, plan, steps)
        return replace(self, graph=graph, plan=plan, rules=rules, in_time=steps, places=places, shared={})

    @staticmethod
    def is_shared(op: Operator) -> bool:
        """Tells whether an operator has one state for all programs: it draws from a generator of its own.

        An op without a rule has such a state if TensorFlow's definition declares it stateful and gives it a seed.
        """
        if has_rule(op.type):
            return declaration(op.type).shared and not is_counted(op)
        definition = op_def_registry.get(op.type)
        return definition is not None and definition.is_stateful and "seed2" in op.attrs

    def share(self, op: Operator, outputs: list[Any]) -> None:
        """Notes the outputs of a random operator, for other programs."""
        self.shared[op.name] = self.alike[self._alike(op)] = outputs

    def has_shared(self, op: Operator) -> bool:
        """Tells whether a random operator was built before: in this local graph, or an equal one in another."""
        if op.name not in self.shared and self._alike(op) in self.alike:
            self.shared[op.name] = self.alike[self._alike(op)]
        return op.name in self.shared

    def _alike(self, op: Operator) -> tuple[Any, ...]:
        inputs = tuple(str(self.plan.edge(Edge(tensor, op.name, i))) for i, tensor in enumerate(op.inputs))
        return op.name, self.graph.input_specs(op), op.outputs, self.plan.configuration(op.name), inputs

    def shared_outputs(self, op: Operator) -> list[Any]:
        """The outputs of a random operator that another program has built; one operator has one state.

        Raises:
            SessionError: if it waits for or reads what only that program has: its feeds, its collectives.
        """
        outputs = self.shared[op.name]
        collectives = set().union(*(chain.names for chain in self.chains))
        pending = [tensor.op for tensor in outputs if tensor is not None]
        seen = set(pending)
        while pending:
            local = pending.pop()
            if op.control_inputs or traits(local).is_input or local.name in collectives:
                raise SessionError(
                    f"{op}: draws numbers that depend on other tensors, and keeps its state from run to run, so it can "
                    "be part of one set of fetches only. Fetch the same tensors in every run that needs it, or use "
                    "tensoropt.random.stateless_* with a seed that is fed."
                )
            before = {*(tensor.op for tensor in local.inputs), *local.control_inputs} - seen
            seen |= before
            pending += before
        return outputs
