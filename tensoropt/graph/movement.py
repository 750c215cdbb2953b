"""Rules of ops that move elements without mixing them: most dimensions pass through, a few must stay whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tensoropt.errors import OpError
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.spec import TensorSpec

__all__ = ["dimensions", "movement", "passed"]


def dimensions(names: Iterable[str | None]) -> Dims:
    """One axis per dimension; ``None`` is a dimension that is never split."""
    return tuple(() if name is None else (name,) for name in names)


def passed(rank: int, *, whole: Collection[int] = ()) -> Dims:
    """Dimension ``i`` is axis ``d<i>``, apart from those that must stay ``whole``."""
    return dimensions(None if position in whole else f"d{position}" for position in range(rank))


def movement(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    input_dims: Sequence[Dims],
    output_dims: Sequence[Dims],
    *,
    sizes: Mapping[str, int] | None = None,
    reduced: Iterable[str] = (),
    internal: Iterable[str] = (),
    flops: float = 0.0,
    backward_flops: float = 0.0,
    saved_inputs: tuple[int, ...] = (),
    saved_outputs: tuple[int, ...] = (),
    sparse_input: int | None = None,
) -> OpRule:
    """The rule that follows from the dimensions: whatever can be split, may be.

    An axis may be split if it has more than one element, is the major part of every dimension with it, appears once
    in a tensor at most, and is in every output unless it is ``reduced`` or ``internal``.

    Args:
        inputs: the inputs' shapes.
        outputs: the outputs' shapes.
        input_dims: their dimensions.
        output_dims: their dimensions.
        sizes: sizes of the axes that are nowhere a dimension of their own.
        reduced: see :class:`OpRule`; the other arguments too.

    Raises:
        OpError: if an axis has two sizes, or none.
    """
    known = dict(sizes or {})
    tensors = list(zip((*inputs, *outputs), (*input_dims, *output_dims), strict=True))
    for spec, dims in tensors:
        for dim, extent in zip(dims, spec.shape, strict=True):
            if len(dim) == 1 and known.setdefault(dim[0], extent) != extent:
                raise OpError(f"Rule: axis '{dim[0]}' has size {known[dim[0]]}, but is a dimension of {spec} too.")
    absorbed = {*reduced, *internal}

    def may_split(axis: str) -> bool:
        return (
            known[axis] > 1
            and all(dim[0] == axis for _, dims in tensors for dim in dims if axis in dim)
            and all(sum(axis in dim for dim in dims) <= 1 for _, dims in tensors)
            and (axis in absorbed or all(any(axis in dim for dim in dims) for dims in output_dims))
        )

    used = dict.fromkeys(axis for _, dims in tensors for dim in dims for axis in dim)
    unknown = [axis for axis in used if axis not in known]
    if unknown:
        raise OpError(f"Rule: axes {unknown} are parts of products only. Give their sizes.")
    split = tuple(axis for axis in used if may_split(axis))
    return OpRule(
        sizes=tuple((axis, known[axis]) for axis in used),
        inputs=tuple(input_dims),
        outputs=tuple(output_dims),
        split=split,
        reduced=frozenset(reduced) & set(used),
        internal=frozenset(internal) & set(used),
        flops=flops,
        backward_flops=backward_flops,
        saved_inputs=saved_inputs,
        saved_outputs=saved_outputs,
        sparse_input=sparse_input,
    )
