"""One device's local graph, and what all programs on it share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.base import Program as Chain
from tensoropt.exec.program.generators import Generator, Kernel
from tensoropt.graph.graph import Edge, Graph
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
        generators: the states of random operators, by name.
        kernels: the ops of those whose state is in TensorFlow's kernels, by name; of all local graphs on the variables.
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
    generators: dict[str, Generator] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
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
        return replace(self, graph=graph, plan=plan, rules=rules, in_time=steps, places=places)
