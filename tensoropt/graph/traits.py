"""Traits of op types: the properties that graph passes ask for. Each is declared beside the op's rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorSpec

__all__ = ["Bound", "GradientFromOutput", "Role", "Traits", "Typed", "Work"]

# (its lowering, its output, the output's gradient) -> its input's gradient. TensorFlow comes with the lowering.
GradientFromOutput = Callable[[Lowering, Any, Any], Any]
# (the operator, its inputs) -> how many indices there are, from 0.
Bound = Callable[[Operator, Sequence[TensorSpec]], int]


class Typed(Protocol):
    """An operator of the logical graph, or an operation of one of TensorFlow's."""

    @property
    def type(self) -> str:
        """Its op type."""
        ...


class Role(Enum):
    """The role of an op that is no ordinary computation: a source of tensors, or an op that tensoropt itself adds."""

    VARIABLE = "variable"
    INPUT = "input"
    CONSTANT = "constant"
    FANOUT = "fanout"
    SINK = "sink"
    GROUP = "group"
    GRADIENT = "gradient"
    MERGED_ROWS = "merged rows"


class Work(Enum):
    """Kinds of ops that take long, or that hold a model's weights."""

    MATRIX_PRODUCT = "matrix product"
    BATCHED_PRODUCT = "batched product"
    TENSOR_PRODUCT = "tensor product"
    CONVOLUTION = "convolution"
    LOOKUP = "lookup"


@dataclass(frozen=True, slots=True)
class Traits:
    """The behaviour of an op.

    Attributes:
        role: what it is in a graph, if it is no computation.
        has_default: whether an input need not be fed.
        work: what kind of heavy computation it is, if any.
        alias: whether output ``i`` is the buffer of input ``i``.
        views_rows: whether its output is its input's buffer where it is some of the input's rows.
        moves: whether its outputs hold nothing but elements of its inputs, in other places.
        converts: whether they hold the same numbers in another dtype.
        in_place: whether its output may take the buffer of an input that is of the same size and split alike; kernels
            that read more of the input than the point that they write cannot.
        passes_gradient: whether the gradient of an input that has the output's shape is the output's gradient.
        passes_rows: whether a gradient that arrives as rows (``IndexedSlices``) goes on as these rows (True), or as
            others (False); None if it goes on whole.
        blocks_gradient: whether no gradient flows back through it.
        multilinear: whether it is linear in each input, so that the gradient of one reads the others only.
        linear: the inputs in which it is linear, all of them together, where gradients do not just pass through it.
        to_batch: whether it moves blocks of an image into the batch.
        from_batch: whether it moves them back.
        gives_shape: whether it gives nothing but its inputs' shapes, or sizes: a few numbers.
        may_fail: whether there are values of its inputs, other than indices, with which it ends a run.
        has_effect: whether it matters that it runs, though nothing reads its output: it writes, or may fail.
        once: whether it gives no tensors, and only the first device runs it: it prints.
        on_variable: whether it reads or writes a variable itself, where it is stored, rather than take its value.
        reads_variable: whether it gives the value of such a variable.
        replaces: whether it gives such a variable another value, whatever the one before.
        updates: whether it is an optimizer's step for such a variable.
        adds: whether it adds to what such a variable holds, instead of putting something else in its place.
        rows: of an op that writes some rows of a variable, (the operator, its inputs) -> the inputs that hold the rows
            and their indices. Devices take those of their own, and those with index -1 are none.
        unfused: whether TensorFlow never computes it together with the product or convolution that it reads.
        fused_onto: op types together with which TensorFlow's graph optimizer computes it on CPUs, where it is the only
            reader of one of them.
        merged_with: op types of which, with it as the reader, TensorFlow's oneDNN pass makes one op on CPUs, whatever
            else the two wait for. It also merges the kernels of both ops' second inputs' gradients.
        gradient_kernels: the TensorFlow op that computes the gradient of each input, None where there is none that is
            the op's own.
        gradient_from_output: computes the gradient of its one input from its output and the output's gradient alone.
        scratch_outputs: outputs for TensorFlow's own gradient whose size is up to the device.
        indices: inputs that hold indices, and how many values they may have.
        counts_samples: of a lookup that may be one for each sample: whether its indices are coordinates, of which the
            first one says the sample (True), or rows of all samples together (False); None if it cannot be one.
    """

    role: Role | None = None
    has_default: bool = False
    work: Work | None = None
    alias: bool = False
    views_rows: bool = False
    moves: bool = False
    converts: bool = False
    in_place: bool = True
    passes_gradient: bool = False
    passes_rows: bool | None = None
    blocks_gradient: bool = False
    multilinear: bool = False
    linear: tuple[int, ...] = ()
    to_batch: bool = False
    from_batch: bool = False
    gives_shape: bool = False
    may_fail: bool = False
    has_effect: bool = False
    once: bool = False
    on_variable: bool = False
    reads_variable: bool = False
    replaces: bool = False
    updates: bool = False
    adds: bool = False
    rows: Callable[[Operator, Sequence[TensorSpec]], tuple[int, int]] | None = None
    unfused: bool = False
    fused_onto: tuple[str, ...] = ()
    merged_with: tuple[str, ...] = ()
    gradient_kernels: tuple[str | None, ...] = ()
    gradient_from_output: GradientFromOutput | None = None
    scratch_outputs: tuple[int, ...] = ()
    indices: Mapping[int, Bound] = field(default_factory=lambda: MappingProxyType({}))
    counts_samples: Callable[[Operator, Sequence[TensorSpec]], bool | None] | None = None

    @property
    def is_variable(self) -> bool:
        """True for a variable."""
        return self.role is Role.VARIABLE

    @property
    def is_input(self) -> bool:
        """True for an input, which is fed."""
        return self.role is Role.INPUT

    @property
    def must_be_fed(self) -> bool:
        """True for an input without a default value."""
        return self.is_input and not self.has_default

    @property
    def is_constant(self) -> bool:
        """True for a constant."""
        return self.role is Role.CONSTANT

    @property
    def is_source(self) -> bool:
        """True if the output exists before anything runs: for a variable, an input, a constant."""
        return self.role in (Role.VARIABLE, Role.INPUT, Role.CONSTANT)

    @property
    def is_fanout(self) -> bool:
        """True for a fan-out, which passes a tensor on to several readers."""
        return self.role is Role.FANOUT

    @property
    def hands_rows_on(self) -> bool:
        """True for an op behind which the rows of a gradient are the same rows: a fan-out too."""
        return self.is_fanout or bool(self.passes_rows)

    @property
    def is_sink(self) -> bool:
        """True for a sink, where a loss ends."""
        return self.role is Role.SINK

    @property
    def is_group(self) -> bool:
        """True for an op that only groups other ops."""
        return self.role is Role.GROUP

    @property
    def is_gradient(self) -> bool:
        """True for the gradient of losses with respect to the op's inputs."""
        return self.role is Role.GRADIENT

    @property
    def is_product(self) -> bool:
        """True for a product of matrices or tensors."""
        return self.work in (Work.MATRIX_PRODUCT, Work.BATCHED_PRODUCT, Work.TENSOR_PRODUCT)

    @property
    def is_convolution(self) -> bool:
        """True for a convolution."""
        return self.work is Work.CONVOLUTION

    @property
    def is_lookup(self) -> bool:
        """True for a lookup of a table's rows."""
        return self.work is Work.LOOKUP
