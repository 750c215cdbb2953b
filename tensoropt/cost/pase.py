"""PaSE's cost model: arithmetic, and bytes that devices need and do not hold (section II, Eq. 1)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster import Topology
from tensoropt.cost.cost_model import OpCall
from tensoropt.cost.rim_costs import rims
from tensoropt.errors import CostError
from tensoropt.graph.operator import Operator
from tensoropt.layout import Mesh, StepKind

__all__ = ["PaseCost"]

# Among paths of equally many bytes that of fewest steps is taken, as every step costs at least this.
_LEAST_S = 1e-12


class PaseCost:
    """``F(G, φ) = Σ t_l(v, φ) + Σ r · t_x(u, v, φ)``, in seconds; the paper counts FLOP instead.

    The layer cost ``t_l`` is the arithmetic of a device, forward and backward, and *r* times the bytes of what a layer
    communicates inside. The transfer cost ``t_x`` is, for the device that has the most of them, the bytes of a tensor
    that it needs and does not hold; here the sum over a reshard's steps. The sum of partial results, which the paper
    has inside of the layer that makes them, is one of these steps. Nothing else costs anything: no latency, no pass
    over a device's own memory, no start of an operator, no update.

    Heterogeneous links count as the slowest one does (section V), so *r* is one number.

    Attributes:
        topology: the cluster.
        mesh: its factor mesh.
        iteration_seconds: none.
        flop_per_byte: *r*, what a device computes in the time in which it receives a byte.
    """

    def __init__(self, topology: Topology, *, flop_per_byte: float | None = None) -> None:
        """Takes a cluster.

        Args:
            topology: the cluster.
            flop_per_byte: *r*; by default the device's peak over the bandwidth of the slowest link.

        Raises:
            CostError: if the ratio is not positive.
        """
        if flop_per_byte is not None and not (math.isfinite(flop_per_byte) and flop_per_byte > 0):
            raise CostError(
                f"PaseCost flop_per_byte: must be finite and positive, got {flop_per_byte}. Give peak FLOP per second "
                "over bytes per second of a link, or leave it out."
            )
        self.topology = topology
        self.mesh = Mesh(topology.factor_mesh())
        self.iteration_seconds = 0.0
        self._flops = topology.device.flops("float32")
        slowest = min(level.bandwidth_bytes_per_s for level in topology.levels)
        self.flop_per_byte = self._flops / slowest if flop_per_byte is None else float(flop_per_byte)

    def received_bytes(
        self, kind: StepKind, axes: tuple[int, ...], bytes_in: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The most that a device gets of others in a step, per bytes of its own piece before."""
        members = self.mesh.extent(axes)
        if kind.is_local or (members == 1 and kind is not StepKind.PERMUTE):
            return np.zeros(np.shape(bytes_in))
        others = members - 1
        factor = {
            StepKind.ALL_GATHER: others,
            StepKind.GATHER: others,
            StepKind.ALL_TO_ALL: others / members,
            StepKind.REDUCE_SCATTER: others / members,
            StepKind.ALL_REDUCE: 2 * others / members,  # a reduce_scatter, then an all_gather of its pieces
            StepKind.SCATTER: 1 / members,
        }.get(kind, 1)
        return np.asarray(bytes_in * factor)

    def step_seconds(
        self, kind: StepKind, axes: tuple[int, ...], bytes_in: NDArray[np.float64], idle: tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        received = self.received_bytes(kind, axes, bytes_in)
        return np.asarray(_LEAST_S + received * self.flop_per_byte / self._flops)

    def kind(self, op: Operator) -> None:
        """None: see :class:`tensoropt.cost.cost_model.CostModel`."""

    def op_seconds(self, call: OpCall) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        rule = call.rule
        share = call.gradients / max(1, len(rule.inputs))
        flops = (rule.flops + rule.backward_flops * share) / call.configuration.pieces(rule, self.mesh)
        communicated = self.internal_seconds(call)
        return (flops + rule.replicated_flops) / self._flops + communicated

    def internal_seconds(self, call: OpCall) -> float:
        """See :class:`tensoropt.cost.cost_model.CostModel`."""
        passes = 2 if call.gradients else 1
        ways = 2 if call.gradients == len(call.rule.inputs) else 1  # gradients of the rims go back
        return passes * self._reduction_seconds(call) + ways * self._rim_seconds(call)

    def fanout_seconds(self, op: Operator, size_bytes: float, readers: int) -> float:
        """None: see the class."""
        return 0.0

    def traffic_seconds(self, size_bytes: float) -> float:
        """None: see the class."""
        return 0.0

    def update_seconds(self, op_type: str, size_bytes: float) -> float:
        """None: see the class."""
        return 0.0

    def _reduction_seconds(self, call: OpCall) -> float:
        """The reductions inside an op: two of what is left of its first input without those axes."""
        rule, configuration = call.rule, call.configuration
        axes = tuple(sorted(axis for name in rule.internal for axis in configuration.mesh_axes(name)))
        if not axes or not call.inputs:
            return 0.0
        kept = [name for dim in rule.inputs[0] for name in dim if name not in rule.internal]
        elements = math.prod(rule.size(name) / self.mesh.extent(configuration.mesh_axes(name)) for name in kept)
        size = np.array([elements * call.inputs[0].itemsize])
        return 2 * float(self.step_seconds(StepKind.ALL_REDUCE, axes, size)[0])

    def _rim_seconds(self, call: OpCall) -> float:
        """The rims that neighbours exchange of a split image."""
        return sum(size_bytes for _, size_bytes in rims(call, self.mesh)) * self.flop_per_byte / self._flops
