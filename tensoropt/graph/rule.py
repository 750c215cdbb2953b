"""An op is its iteration space: which axes it loops over, and which of them each tensor's dimensions are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tensoropt.errors import OpError
from tensoropt.graph.halo import Halo
from tensoropt.graph.spec import TensorSpec

__all__ = ["Dims", "OpRule", "contraction", "elementwise", "notation", "replicated"]

# Per tensor dimension the iteration axes that it is the product of, the major one first; () is never split.
Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class OpRule:
    """The sharding rule of an operator: the axes that may be split, the layouts that follow, and the operator's costs.

    Splitting iteration axis ``a`` along a mesh axis means: a tensor with ``a`` is sharded, its gradient too; an
    input without ``a`` is replicated and gets a partial gradient; an output without ``a`` is a partial sum if
    ``a`` is in ``reduced``, and replicated if it is in ``internal``, because the lowering communicates itself.

    Attributes:
        sizes: size of every iteration axis.
        inputs: dimensions of each input.
        outputs: dimensions of each output.
        split: the axes that a mesh axis may split. An axis is splittable only where it is the major part of
            every dimension that it appears in.
        reduced: axes whose split leaves outputs without them as partial sums. The op must be linear in what it
            sums: every device's result is a summand of the whole.
        internal: axes over which the lowering reduces by its own collectives.
        flops: floating-point operations of the whole op, forward.
        backward_flops: the same, backward.
        replicated_flops: floating-point operations, forward, that every device does however the op is split.
        saved_inputs: inputs that the op keeps for its backward pass.
        saved_outputs: outputs that it keeps.
        sparse_input: the input whose gradient TensorFlow gives as rows (``IndexedSlices``), if any.
        defer_gradient: whether a replicated mesh axis may carry a partial gradient through (fan-outs).
        pinned: the inputs that must arrive exactly as their producers hold them (the variable of an assignment).
        halos: dimensions of one input and the first output over which a window moves; those that are split are so
            because neighbours exchange rims.

    Invariants:
        Every name in a tensor is in ``sizes``, and dimensions have the products of their axes.
    """

    sizes: tuple[tuple[str, int], ...]
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    split: tuple[str, ...]
    reduced: frozenset[str] = frozenset()
    internal: frozenset[str] = frozenset()
    flops: float = 0.0
    backward_flops: float = 0.0
    replicated_flops: float = 0.0
    saved_inputs: tuple[int, ...] = ()
    saved_outputs: tuple[int, ...] = ()
    sparse_input: int | None = None
    defer_gradient: bool = False
    pinned: tuple[int, ...] = ()
    halos: tuple[Halo, ...] = ()
    _sizes: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = dict(self.sizes)
        object.__setattr__(self, "_sizes", sizes)
        tensors = (*self.inputs, *self.outputs)
        unknown = sorted({axis for dims in tensors for dim in dims for axis in dim} - sizes.keys())
        if unknown:
            raise OpError(f"Rule: iteration axes {unknown} have no size. Give every axis that a tensor names.")
        for axis in self.split:
            if axis not in sizes:
                raise OpError(f"Rule: axis '{axis}' may be split but is not in the iteration space {list(sizes)}.")
            for dims in tensors:
                if any(axis in dim and dim[0] != axis for dim in dims):
                    raise OpError(
                        f"Rule: axis '{axis}' is not the major part of a dimension in {dims}; its pieces would not be "
                        "contiguous. Leave it out of split."
                    )
                if sum(axis in dim for dim in dims) > 1:
                    raise OpError(f"Rule: axis '{axis}' appears in two dimensions of {dims}. Leave it out of split.")
            lacking = [i for i, dims in enumerate(self.outputs) if not any(axis in dim for dim in dims)]
            if lacking and axis not in self.reduced and axis not in self.internal:
                raise OpError(
                    f"Rule: output {lacking[0]} has not the splittable axis '{axis}', which is neither reduced nor "
                    "internal, so the output's state would be unknown."
                )

    def size(self, axis: str) -> int:
        """Size of an iteration axis."""
        return self._sizes[axis]

    @property
    def is_movement(self) -> bool:
        """True if the op computes nothing: each element of its outputs is an element of an input, or 0."""
        return self.flops == 0.0 and self.replicated_flops == 0.0

    @property
    def halo_axes(self) -> frozenset[str]:
        """The names of the axes that are split by exchanging rims."""
        return frozenset(halo.axis for halo in self.halos if halo.axis in self.split)

    @property
    def communicates_over(self) -> frozenset[str]:
        """The names of the axes over which devices communicate inside the op, if they are split."""
        return self.internal | self.halo_axes

    def fits(self, axis: str, pieces: int) -> bool:
        """Tells whether a splittable axis can be cut into ``pieces`` equal pieces."""
        for halo in self.halos:
            if halo.axis == axis:
                return halo.fits(pieces)
        return self.size(axis) % pieces == 0

    def with_halos(self, halos: Sequence[Halo]) -> OpRule:
        """The rule with windows over dimensions that so far may not be split."""
        split = [halo for halo in halos if halo.is_splittable]
        named = {halo.dim: (halo.axis,) for halo in split}

        def named_in(dims: Dims) -> Dims:
            return tuple(named.get(position, dim) for position, dim in enumerate(dims))

        read = {halo.input for halo in halos}
        return replace(
            self,
            sizes=(*self.sizes, *((halo.axis, halo.size_out) for halo in split)),
            inputs=tuple(named_in(dims) if place in read else dims for place, dims in enumerate(self.inputs)),
            outputs=(named_in(self.outputs[0]), *self.outputs[1:]),
            split=(*self.split, *(halo.axis for halo in split)),
            halos=tuple(halos),
        )

    def without_halos(self) -> OpRule:
        """The rule by which no image is cut where neighbours would have to exchange rims."""
        return replace(self, split=tuple(axis for axis in self.split if axis not in self.halo_axes))


def replicated(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], flops: float = 0.0) -> OpRule:
    """The rule of an op that every device computes whole."""
    return OpRule(
        sizes=(),
        inputs=tuple(((),) * spec.rank for spec in inputs),
        outputs=tuple(((),) * spec.rank for spec in outputs),
        split=(),
        flops=flops,
        backward_flops=2 * flops,
        saved_inputs=tuple(range(len(inputs))),
        saved_outputs=tuple(range(len(outputs))),
    )


def notation(
    text: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[dict[str, int], tuple[Dims, ...], tuple[Dims, ...]]:
    """Reads ``"m k, k n -> m n"`` against shapes: ``_`` is a dimension that is never split, ``(a b)`` a product.

    Returns:
        Axis sizes, the inputs' dimensions, the outputs' dimensions. An axis that appears only inside products
        must be solvable from them.

    Raises:
        OpError: if the text does not fit the shapes.
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise OpError(f"Notation {text!r}: expected '->' between inputs and outputs.")
    parsed = [[_parse_tensor(part) for part in side.split(",")] if side.strip() else [] for side in (left, right)]
    for side, specs in zip(parsed, (inputs, outputs), strict=True):
        if len(side) != len(specs) or any(len(d) != s.rank for d, s in zip(side, specs, strict=True)):
            raise OpError(f"Notation {text!r}: does not fit {[str(s) for s in inputs]} -> {[str(s) for s in outputs]}.")
    pairs = [
        (dim, extent)
        for side, specs in zip(parsed, (inputs, outputs), strict=True)
        for dims, spec in zip(side, specs, strict=True)
        for dim, extent in zip(dims, spec.shape, strict=True)
    ]
    sizes: dict[str, int] = {}
    for _ in range(len(pairs) + 1):
        for dim, extent in pairs:
            unknown = [axis for axis in dim if axis not in sizes]
            known = math.prod(sizes[axis] for axis in dim if axis in sizes)
            if len(unknown) == 1 and known and extent % known == 0:
                sizes[unknown[0]] = extent // known
            elif not unknown and dim and known != extent:
                raise OpError(f"Notation {text!r}: dimension {dim} has size {extent}, its axes give {known}.")
    return sizes, tuple(parsed[0]), tuple(parsed[1])


def contraction(
    text: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    flops_per_point: float = 2.0,
    unsplit: Iterable[str] = (),
) -> OpRule:
    """A product summed over the axes that the output lacks: ``x @ w`` is ``"m k, k n -> m n"``."""
    sizes, input_dims, output_dims = notation(text, inputs, outputs)
    kept = {axis for dims in output_dims for dim in dims for axis in dim}
    flops = flops_per_point * math.prod(sizes.values())
    blocked = set(unsplit)
    return OpRule(
        sizes=tuple(sizes.items()),
        inputs=input_dims,
        outputs=output_dims,
        split=tuple(axis for axis in sizes if axis not in blocked),
        reduced=frozenset(axis for axis in sizes if axis not in kept),
        flops=flops,
        backward_flops=2 * flops,
        saved_inputs=tuple(range(len(inputs))),
    )


def elementwise(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    flops_per_point: float = 1.0,
    saved_inputs: tuple[int, ...] = (),
    saved_outputs: tuple[int, ...] = (),
) -> OpRule:
    """Point by point with NumPy's broadcasting: axis ``d<i>`` is dimension ``i`` of the outputs."""
    shape = outputs[0].shape
    if any(spec.shape != shape for spec in outputs):
        raise OpError(f"Elementwise rule: outputs differ in shape: {[str(spec) for spec in outputs]}.")
    names = [f"d{position}" for position in range(len(shape))]

    def dims_of(spec: TensorSpec) -> Dims:
        skipped = len(shape) - spec.rank
        if skipped < 0 or any(
            extent not in (1, whole) for extent, whole in zip(spec.shape, shape[skipped:], strict=True)
        ):
            raise OpError(f"Elementwise rule: {spec} does not broadcast to {outputs[0]}.")
        return tuple(
            (name,) if extent == whole else ()
            for name, extent, whole in zip(names[skipped:], spec.shape, shape[skipped:], strict=True)
        )

    flops = flops_per_point * outputs[0].elements
    return OpRule(
        sizes=tuple(zip(names, shape, strict=True)),
        inputs=tuple(dims_of(spec) for spec in inputs),
        outputs=tuple(dims_of(spec) for spec in outputs),
        split=tuple(name for name, extent in zip(names, shape, strict=True) if extent > 1),
        flops=flops,
        backward_flops=flops,
        saved_inputs=saved_inputs,
        saved_outputs=saved_outputs,
    )


def _parse_tensor(text: str) -> Dims:
    dims: list[tuple[str, ...]] = []
    for product, single in re.findall(r"\(([^()]*)\)|(\S+)", text):
        names = tuple(product.split()) if product else (single,)
        dims.append(tuple(name for name in names if name != "_"))
    return tuple(dims)
