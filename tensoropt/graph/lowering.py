"""The interface for building an op's local computation: the contract of ``graph.ops`` and ``exec``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tensoropt.graph.operator import Operator
from tensoropt.graph.rule import OpRule

__all__ = ["Lower", "Lowering"]

# Tensors are TensorFlow's; this package does not import TensorFlow.
Tensor = Any
Lower = Callable[..., Any]


class Lowering(Protocol):
    """One operator being built on one device, under one configuration. TensorFlow comes as ``tf``."""

    tf: Any
    op: Operator
    rule: OpRule
    is_first: bool  # whether this device does what is to be done once, such as to print

    def emit(
        self,
        inputs: Sequence[Tensor],
        *,
        static: Mapping[int, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> list[Tensor]:
        """Emits the operator's TensorFlow op on local tensors; ``static`` and ``attrs`` replace what must be local."""
        ...

    def input_shape(self, index: int) -> tuple[int, ...]:
        """Local shape of an input."""
        ...

    def output_shape(self, index: int = 0) -> tuple[int, ...]:
        """Local shape of an output."""
        ...

    def pieces(self, axis: str) -> int:
        """Into how many pieces an iteration axis is split; 1 if it is not."""
        ...

    def local_size(self, axis: str) -> int:
        """Size of this device's piece of an iteration axis."""
        ...

    def offset(self, axis: str) -> int:
        """Returns where this device's piece of an iteration axis starts."""
        ...

    def slice_output(self, tensor: Tensor, index: int = 0) -> Tensor:
        """This device's piece of a whole output."""
        ...

    def next_state(self, step: int, counts: Tensor | None = None) -> Tensor | None:
        """The state of a random operator's generator before a draw, int64 of (seed, position, seed2).

        Args:
            step: how far the draw moves the position for the next one.
            counts: of numbers that the run draws by the generator before these, and with these; None if it draws these
                alone.

        Returns:
            The state; None where nothing outlasts a run, as when an operator is measured alone.
        """
        ...

    def all_reduce(self, tensor: Tensor, axes: str | Sequence[str], *, op: str = "sum", gradient: str | None) -> Tensor:
        """Reduces over the devices that split the iteration axes; no-op if none do.

        Args:
            tensor: each device's part.
            axes: iteration axes.
            op: ``sum``, ``max`` or ``min``.
            gradient: what the result's gradient is on each device: ``"partial"``, its share, because the result is
                used for a shard of something (summed on the way back); ``"complete"``, the whole of it, because the
                result is an output; ``None``: no gradient flows (``max``, or inside a ``with_gradient``).
        """
        ...

    def shift(self, tensor: Tensor, axis: str, by: int) -> Tensor:
        """The tensor of the device that has the piece ``by`` before this one's of an iteration axis; in a circle."""
        ...

    def late(self, tensor: Tensor, after: Tensor) -> Tensor:
        """The tensor, but not before another one: what the backward pass makes of it is not kept for it."""
        ...

    def with_gradient(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        backward: Callable[..., Sequence[Any]],
    ) -> list[Tensor]:
        """Replaces TensorFlow's gradient of ``outputs`` with respect to ``inputs``.

        ``backward`` takes one gradient per output, a tensor (None where none came), and gives one per input (None, a
        tensor or ``tf.IndexedSlices``).
        """
        ...
