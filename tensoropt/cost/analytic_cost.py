"""The analytic cost model: a roofline for operators, the topology's collectives for everything else."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster import CollectiveModel, Topology
from tensoropt.cost.cost_model import OpCall
from tensoropt.cost.fusion import ALONE, KernelPart, kernel_parts
from tensoropt.cost.rim_costs import rim_copies, rim_seconds
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import sum_dtype
from tensoropt.layout import Mesh, StepKind

__all__ = ["AnalyticCost"]

# Steps from or to one place, and the collectives that take as long: a reduction is a broadcast the other way round, and
# what a gather brings together passes the same links that an all_gather fills. A send is a permute in which few take
# part.
_PRICED_AS = {
    StepKind.BROADCAST: "broadcast",
    StepKind.REDUCE: "broadcast",
    StepKind.SEND: "permute",
    StepKind.GATHER: "all_gather",
    StepKind.SCATTER: "all_gather",
}
_LEAST_S = 1e-9


class AnalyticCost:
    """Operators take the longer of their arithmetic and their memory traffic, plus a fixed time to start.

    Where the device has kernels of several operators, what stays inside of one is neither written nor read, and each is
    started once. Collectives cost what the topology measured, or its α-β model where it measured nothing.
    """

    def __init__(self, topology: Topology, graph: Graph | None = None) -> None:
        """Takes a cluster.

        Args:
            topology: the devices.
            graph: whose operators share kernels, if the device has such; without it, each is one of its own.
        """
        self.topology = topology
        self.mesh = Mesh(topology.factor_mesh())
        self.iteration_seconds = 0.0
        self._collectives = CollectiveModel(topology)
        self._device = topology.device
        self._parts = {} if graph is None else kernel_parts(graph, self._device.fusion)

    def step_seconds(
        self, kind: StepKind, axes: tuple[int, ...], bytes_in: NDArray[np.float64], idle: tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        # Every step passes over the piece in memory once to read and once to write, whoever it talks to.
        local = self._device.op_overhead_s + 2 * bytes_in / self._device.memory_bandwidth_bytes_per_s
        if kind is StepKind.DROP:
            return np.full(bytes_in.shape, _LEAST_S)  # memory is given back, nothing runs
        if kind.is_local:
            return np.asarray(np.maximum(local, _LEAST_S))
        # A scatter is a gather of pieces, the other way round.
        pieces = self.mesh.extent(axes) if kind is StepKind.SCATTER else 1
        seconds = self._collectives.seconds(_PRICED_AS.get(kind, kind.value), axes, bytes_in / pieces, idle)
        if kind in (StepKind.ALL_REDUCE, StepKind.REDUCE):
            # Works in place on the whole piece; without the start of an op, three small ones would cost as one.
            return np.asarray(np.maximum(seconds + self._device.op_overhead_s, _LEAST_S))
        return np.asarray(np.maximum(seconds + local, _LEAST_S))

    def kind(self, op: Operator) -> KernelPart:
        """The operator's part in its kernel."""
        return self._parts.get(op.name, ALONE)

    def op_seconds(self, call: OpCall) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        rule, configuration, gradients = call.rule, call.configuration, call.gradients
        part = self.kind(call.op)
        start_s = self._device.op_overhead_s if part.starts else 0.0
        pieces = configuration.pieces(rule, self.mesh)
        tensors = [*zip(call.inputs, rule.inputs, strict=True), *zip(call.op.outputs, rule.outputs, strict=True)]
        dtype = next((spec.dtype for spec, _ in tensors if spec.is_differentiable), "float32")
        efficiency = 1.0 if traits(call.op).work is None else self._device.product_efficiency
        rate = efficiency * self._device.flops(dtype)
        size_bytes = 0.0
        for index, (spec, dims) in enumerate(tensors):
            if index in part.given or index - len(rule.inputs) in part.kept:
                continue
            if index == rule.sparse_input:
                # Only the rows that are looked up are read.
                size_bytes += call.op.outputs[0].size_bytes / pieces
            else:
                size_bytes += spec.size_bytes / configuration.cuts(dims, self.mesh)
        summed = any(configuration.output_layouts(rule, i).value.partial for i in range(len(call.op.outputs)))
        # Parts of sums are made in a wider dtype, which some devices are slower in.
        wide_rate = rate if self._device.wide_products else efficiency * self._device.flops(sum_dtype(dtype))
        arithmetic = (rule.flops / pieces + rule.replicated_flops) / (wide_rate if summed else rate)
        forward = max(arithmetic, self.traffic_seconds(size_bytes)) + start_s
        forward += self._reduction_seconds(call)
        copied = self.traffic_seconds(2 * sum(rim_copies(call, self.mesh)))
        forward += copied + rim_seconds(call, self.mesh, self.step_seconds)
        if not gradients:
            return forward
        share = gradients / max(1, len(rule.inputs))
        arithmetic = rule.backward_flops * share / pieces / rate
        if wide_rate != rate and rule.inputs:
            parts = [configuration.input_layouts(rule, i).gradient.partial for i in range(len(rule.inputs))]
            arithmetic *= sum(rate / wide_rate if part else 1.0 for part in parts) / len(parts)
        backward = max(arithmetic, self.traffic_seconds(2 * size_bytes * share))
        backward += start_s * gradients
        # Copies are made again, and those of their gradients are taken apart.
        backward += copied * (2 if gradients == len(rule.inputs) else 1)
        return forward + backward + self._reduction_seconds(call)

    def internal_seconds(self, call: OpCall) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        inside = (2 if call.gradients else 1) * self._reduction_seconds(call)
        return inside + rim_seconds(call, self.mesh, self.step_seconds)

    def fanout_seconds(self, op: Operator, size_bytes: float, readers: int) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        kernels = self.kind(op).readers
        # An addition reads two tensors and writes one; in a kernel that writes a gradient anyway it reads one more.
        passes = 3.0 * (readers - 1) if kernels is None else kernels - 1.0
        return self.traffic_seconds(passes * size_bytes)

    def traffic_seconds(self, size_bytes: float) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        return size_bytes / self._device.memory_bandwidth_bytes_per_s

    def update_seconds(self, op_type: str, size_bytes: float) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        del op_type
        return self.traffic_seconds(size_bytes)

    def _reduction_seconds(self, call: OpCall) -> float:
        """The collectives inside an op: two reductions of what is left of its first input without those axes."""
        rule, configuration = call.rule, call.configuration
        axes = tuple(sorted(axis for name in rule.internal for axis in configuration.mesh_axes(name)))
        if not axes or not call.inputs:
            return 0.0
        kept = [name for dim in rule.inputs[0] for name in dim if name not in rule.internal]
        elements = math.prod(rule.size(name) / self.mesh.extent(configuration.mesh_axes(name)) for name in kept)
        size = np.array([max(1.0, elements) * call.inputs[0].itemsize])
        idle = tuple(axis for axis, _ in configuration.at)
        return 2 * float(self._collectives.seconds("all_reduce", axes, size, idle)[0])
