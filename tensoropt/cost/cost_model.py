"""The interface of cost models, as searches use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster import Topology
from tensoropt.graph.operator import Operator
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh, StepKind
from tensoropt.plan.configuration import Configuration

__all__ = ["CostModel", "OpCall"]


@dataclass(frozen=True, slots=True)
class OpCall:
    """The work of an operator in one configuration.

    Attributes:
        op: the operator.
        rule: its rule.
        inputs: the whole tensors that it reads.
        configuration: how it is split.
        gradients: to how many of its inputs it passes gradients; 0 for the forward pass alone.
    """

    op: Operator
    rule: OpRule
    inputs: Sequence[TensorSpec]
    configuration: Configuration
    gradients: int = 0


class CostModel(Protocol):
    """Times on one device of a topology, additive over operators and edges (TensorOpt Eq. 1-3)."""

    topology: Topology
    mesh: Mesh
    iteration_seconds: float  # of a training step that computes nothing

    def step_seconds(
        self, kind: StepKind, axes: tuple[int, ...], bytes_in: NDArray[np.float64], idle: tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """Seconds of one reshard step over a group of mesh axes, per input size in bytes per device.

        ``idle`` are mesh axes along which only one device takes part (:meth:`tensoropt.layout.Step.idle_axes`).
        """
        ...

    def kind(self, op: Operator) -> object:
        """What an operator's time depends on beside its type, rule, tensors and count of gradients; None if nothing.

        Operators of equal kinds share their tables.
        """
        ...

    def op_seconds(self, call: OpCall) -> float:
        """Seconds of an operator, forward, and backward to as many of its inputs as get gradients.

        A configuration matters only by how many pieces it cuts each iteration axis into, and by the mesh axes of those
        over which the op communicates itself.
        """
        ...

    def internal_seconds(self, call: OpCall) -> float:
        """The part of :meth:`op_seconds` in which the op communicates itself."""
        ...

    def fanout_seconds(self, op: Operator, size_bytes: float, readers: int) -> float:
        """Seconds in which the gradients of a fan-out's readers, of ``size_bytes`` each, are added up."""
        ...

    def traffic_seconds(self, size_bytes: float) -> float:
        """Seconds to move ``size_bytes`` through a device's memory."""
        ...

    def update_seconds(self, op_type: str, size_bytes: float) -> float:
        """Seconds of an optimizer's update of a variable that with its gradient and slots takes ``size_bytes``.

        Args:
            op_type: of the op that updates.
            size_bytes: what it reads or writes.
        """
        ...
