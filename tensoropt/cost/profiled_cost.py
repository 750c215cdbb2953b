"""The measured cost model: operators as TensorFlow runs them here, collectives as the engine does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster import CollectiveModel, Topology
from tensoropt.cost.analytic_cost import AnalyticCost
from tensoropt.cost.cost_model import OpCall
from tensoropt.cost.op_profile import OpProfile, OpTime, collective_key, profile_key, whole_key
from tensoropt.cost.rim_costs import rim_seconds
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Mesh, StepKind

__all__ = ["ProfiledCost", "gradient_positions"]

_LEAST_S = 1e-9
# In which TensorFlow's remapper fuses.
_FUSED_DTYPES = ("float32", "bfloat16", "float16")


class ProfiledCost:
    """A cost model of measured times, with scaled analytic times where nothing was measured.

    The scale is the ratio of measured to analytic time of similar calls: other configurations of the operator; if none
    was measured, operators of its type; else all operators. Collectives cost what the topology measured (TensorOpt
    section 3.2, "Improving cost estimation accuracy").

    Attributes:
        topology: the devices.
        mesh: their factor mesh.
        profile: the measurements of operators.
        iteration_seconds: the time of a training step that computes nothing.
    """

    def __init__(self, topology: Topology, graph: Graph, profile: OpProfile) -> None:
        """Takes what was measured.

        Args:
            topology: with a profile of collectives.
            graph: the operators that will be asked for.
            profile: of operators.
        """
        self.topology = topology
        self.mesh = Mesh(topology.factor_mesh())
        self.profile = profile
        self.iteration_seconds = profile.iteration_s + self._feed_seconds(graph)
        self._graph = graph
        self._analytic = AnalyticCost(topology)
        self._collectives = CollectiveModel(topology)
        self._ratios = profile.ratios()
        self._ratio_of: dict[tuple[str, bool], float] = {}

    def step_seconds(
        self, kind: StepKind, axes: tuple[int, ...], bytes_in: NDArray[np.float64], idle: tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        curves = self.profile.curves
        local = {StepKind.SLICE: "slice", StepKind.TO_PARTIAL: "mask"}.get(kind, "transpose")
        if local not in curves or kind.leaves or kind.arrives:
            return self._analytic.step_seconds(kind, axes, bytes_in, idle)
        if kind.is_local:
            return np.maximum(curves[local].at(bytes_in), _LEAST_S)
        return np.maximum(self._collective_seconds(kind.value, axes, bytes_in, idle), _LEAST_S)

    def packing_seconds(
        self, kind: StepKind, bytes_in: NDArray[np.float64], extent: int, strided: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """See :class:`tensoropt.cost.packing.KnowsPacking`."""
        curves = self.profile.curves
        if kind is StepKind.SLICE and "slice" in curves:
            # Along the outermost dimension it is a view, whatever its size.
            return np.where(strided > 0, 0.0, curves["slice"].at(np.zeros(1)) - curves["slice"].at(bytes_in))
        if kind not in (StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL) or "transpose" not in curves:
            return np.zeros(len(bytes_in))
        # Pieces are stacked before the collective, and merged after it.
        moved = bytes_in * (extent if kind is StepKind.ALL_GATHER else 1)
        return np.asarray(strided * curves["transpose"].at(moved))

    def kind(self, op: Operator) -> object:
        """Whether TensorFlow fuses the operator, and for which inputs it is differentiated."""
        return _is_fused(self._graph, op), gradient_positions(self._graph, op)

    def op_seconds(self, call: OpCall) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        measured = self._measured(call)
        if measured is None:
            return self._ratio(call) * self._analytic.op_seconds(call)
        # What TensorFlow's graph optimizer makes a part of the kernel before it takes next to nothing itself.
        forward_s = 0.0 if _is_fused(self._graph, call.op) else measured.forward_s
        return forward_s + measured.backward_s + self.internal_seconds(call)

    def internal_seconds(self, call: OpCall) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        measured = self._measured(call)
        if measured is None:
            return self._ratio(call) * self._analytic.internal_seconds(call)
        return self._reduction_seconds(measured, call) + rim_seconds(call, self.mesh, self.step_seconds)

    def scratch_bytes(self, call: OpCall) -> tuple[float, float, float]:
        """See :class:`tensoropt.cost.memory.KnowsScratch`."""
        measured = self._measured(call)
        if measured is None:
            return 0.0, 0.0, 0.0
        forward, kept, backward = measured.scratch_bytes
        return float(forward), float(kept), float(backward)

    def _ratio(self, call: OpCall) -> float:
        """Returns the ratio of measured to analytic time of similar calls; 1 if none was measured."""
        known = (call.op.name, call.gradients > 0)  # the same for all configurations
        if known not in self._ratio_of:
            whole = whole_key(call.op, call.rule, call.inputs, self.mesh, *self._gradient_positions(call))
            names = (name for name in (whole, call.op.type, "") if name in self._ratios)
            self._ratio_of[known] = next((self._ratios[name] for name in names), 1.0)
        return self._ratio_of[known]

    def _gradient_positions(self, call: OpCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return gradient_positions(self._graph, call.op) if call.gradients else ((), ())

    def _measured(self, call: OpCall) -> OpTime | None:
        positions = self._gradient_positions(call)
        key = profile_key(call.op, call.rule, call.inputs, call.configuration, self.mesh, *positions)
        return self.profile.times.get(key)

    def _reduction_seconds(self, measured: OpTime, call: OpCall) -> float:
        reduced = measured.forward_reduced_bytes + measured.backward_reduced_bytes
        axes = tuple(sorted(axis for name in sorted(call.rule.internal) for axis in call.configuration.mesh_axes(name)))
        if not reduced or not axes:
            return 0.0
        return float(np.sum(self._collective_seconds("all_reduce", axes, np.array(reduced, np.float64))))

    def _collective_seconds(
        self, kind: str, axes: tuple[int, ...], bytes_in: NDArray[np.float64], idle: tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        factor = self.profile.collectives.get(collective_key(kind, axes), 1.0)
        return self._collectives.seconds(kind, axes, bytes_in, idle) * factor

    def fanout_seconds(self, op: Operator, size_bytes: float, readers: int) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        return self.traffic_seconds(3.0 * size_bytes * (readers - 1))

    def traffic_seconds(self, size_bytes: float) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        curve = self.profile.curves.get("sum")
        if curve is None or size_bytes <= 0:
            return self._analytic.traffic_seconds(size_bytes)
        # Adding two tensors reads both and writes the sum: three times the bytes that the curve counts.
        return float(curve.at(np.array(size_bytes / 3)))

    def update_seconds(self, op_type: str, size_bytes: float) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        curve = self.profile.curves.get(f"update {op_type}")
        if curve is None or size_bytes <= 0:
            return self.traffic_seconds(size_bytes)
        return float(curve.at(np.array(size_bytes)))

    def _feed_seconds(self, graph: Graph) -> float:
        """Returns the time to feed a device's share of the inputs."""
        curve = self.profile.curves.get("feed")
        inputs = [op for op in graph.inputs() if op.name in graph.training]
        size_bytes = sum(op.outputs[0].size_bytes for op in inputs) / self.mesh.size
        return 0.0 if curve is None or not inputs else float(curve.at(np.array(size_bytes)))


def gradient_positions(graph: Graph, op: Operator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs of an operator that get a gradient, and the outputs that bring one."""
    wanted = tuple(i for i, tensor in enumerate(op.inputs) if Edge(tensor, op.name, i) in graph.differentiable)
    outgoing = tuple(
        i
        for i in range(len(op.outputs))
        if any(edge in graph.differentiable for edge in graph.consumers(TensorId(op.name, i)))
    )
    return wanted, outgoing


def _is_fused(graph: Graph, op: Operator) -> bool:
    """Tells whether TensorFlow fuses an operator with the one before, where no step stands between them."""
    if not op.inputs or not op.outputs or op.outputs[0].dtype not in _FUSED_DTYPES:
        return False
    before = graph[op.inputs[0].op]
    if len(graph.consumers(op.inputs[0])) > 1:
        return False
    if before.type not in traits(op).fused_onto:
        return False
    return not traits(before).fused_onto or _is_fused(graph, before)
