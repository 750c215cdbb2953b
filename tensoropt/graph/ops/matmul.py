"""Products of matrices and of tensors."""

from __future__ import annotations

import functools
import math
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tensoropt.errors import OpError
from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import Dims, OpRule, contraction
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits, Work


def _traits(work: Work, *gradient_kernels: str) -> Traits:
    return Traits(work=work, in_place=False, multilinear=True, gradient_kernels=gradient_kernels)


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "MatMul",
    lower=_same,
    samples=[
        Sample("MatMul", (floats(8, 6), floats(6, 12))),
        Sample("MatMul", (floats(6, 8), floats(12, 6)), {"transpose_a": True, "transpose_b": True}),
        Sample("MatMul", (integers(8, 6), integers(6, 2))),
    ],
    traits=_traits(Work.MATRIX_PRODUCT, "MatMul", "MatMul"),
)
def matmul(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """``x @ w``. Splitting ``k`` leaves a partial sum; ``m`` and ``n`` pass through."""
    left = "k m" if op.attrs["transpose_a"] else "m k"
    right = "n k" if op.attrs["transpose_b"] else "k n"
    return contraction(f"{left}, {right} -> m n", inputs, op.outputs)


def _batched(ctx: Lowering, x: Any, w: Any) -> list[Any]:
    """Products of matrices whose batch dimensions are the same.

    TensorFlow 2.21's oneDNN kernel reads past the end of an operand whose batch dimensions it has to broadcast
    (tensorflow/tensorflow#117700), and splits make batch dimensions of size 1.
    """
    tf, attrs = ctx.tf, ctx.op.attrs
    batch = tf.broadcast_static_shape(x.shape[:-2], w.shape[:-2]).as_list()
    if x.shape[:-2] == w.shape[:-2]:
        return ctx.emit([x, w])
    if math.prod(w.shape[:-2].as_list()) == 1 and x.dtype == w.dtype and ctx.op.outputs[0].dtype == x.dtype.name:
        # One matrix for all: a single product of all rows with it.
        rows = tf.linalg.adjoint(x) if attrs["adj_x"] else x
        shape = [*batch, rows.shape[-2], ctx.output_shape()[-1]]
        flat = tf.reshape(rows, [-1, rows.shape[-1]])
        one = tf.reshape(w, w.shape[-2:])
        return [tf.reshape(tf.matmul(flat, one, adjoint_b=attrs["adj_y"]), shape)]
    return ctx.emit([tf.broadcast_to(tensor, [*batch, *tensor.shape[-2:]]) for tensor in (x, w)])


@register_op(
    "BatchMatMul",
    lower=_batched,
    samples=[Sample("BatchMatMul", (floats(4, 6, 2), floats(4, 2, 3)))],
    traits=_traits(Work.BATCHED_PRODUCT, "BatchMatMulV2", "BatchMatMulV2"),
)
@register_op(
    "BatchMatMulV2",
    lower=_batched,
    samples=[
        Sample("BatchMatMulV2", (floats(2, 3, 4, 6), floats(2, 3, 6, 2))),
        # Batch dimensions of size 1 and missing ones are broadcast.
        Sample("BatchMatMulV2", (floats(4, 1, 2, 6), floats(3, 6, 2))),
        Sample("BatchMatMulV2", (floats(6, 4, 2), floats(2, 3))),
        Sample("BatchMatMulV2", (floats(2, 4, 2, 6), floats(1, 3, 2)), {"adj_x": True, "adj_y": True}),
        Sample("BatchMatMulV2", (floats(1, 6, 4), floats(6, 2, 6)), {"adj_x": True, "adj_y": True}),
    ],
    traits=_traits(Work.BATCHED_PRODUCT, "BatchMatMulV2", "BatchMatMulV2"),
)
@register_op(
    "BatchMatMulV3",
    lower=_batched,
    samples=[Sample("BatchMatMulV3", (floats(4, 6, 2), floats(4, 2, 3)), {"Tout": "float32"})],
    traits=_traits(Work.BATCHED_PRODUCT, "BatchMatMulV2", "BatchMatMulV2"),
)
def batch_matmul(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """``x @ w`` for each place of the batch dimensions, which broadcast against one another."""
    batch = op.outputs[0].shape[:-2]
    left = "k m" if op.attrs["adj_x"] else "m k"
    right = "n k" if op.attrs["adj_y"] else "k n"

    def batch_of(spec: TensorSpec) -> str:
        skipped = len(batch) - (spec.rank - 2)
        return " ".join(
            f"b{skipped + place}" if extent == batch[skipped + place] else "_"
            for place, extent in enumerate(spec.shape[:-2])
        )

    x, w, y = batch_of(inputs[0]), batch_of(inputs[1]), batch_of(op.outputs[0])
    return contraction(f"{x} {left}, {w} {right} -> {y} m n", inputs, op.outputs)


def _summed(ctx: Lowering, *inputs: Any) -> list[Any]:
    """A product of tensors whose dimensions under an ellipsis are the same, for the reason that `_batched` gives."""
    tf = ctx.tf
    left, _, right = ctx.op.attrs["equation"].replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [
        tensor.shape[(at := term.index("...")) : tensor.shape.rank - (len(term) - at - 3)] if "..." in term else None
        for term, tensor in zip(terms, inputs, strict=True)
    ]
    shapes = [shape for shape in hidden if shape is not None]
    if not shapes:
        return ctx.emit(inputs)
    common = functools.reduce(tf.broadcast_static_shape, shapes)
    # With labels of their own, what some inputs lack is no batch that the kernel would have to broadcast.
    labels = "".join([label for label in string.ascii_letters if label not in left + right][: common.rank])
    made = []
    for place, (term, tensor, shape) in enumerate(zip(terms, inputs, hidden, strict=True)):
        if shape is not None:
            terms[place] = term.replace("...", labels if shape.rank else "")
        if shape is not None and shape.rank and shape != common:
            at = term.index("...")
            own = tensor.shape.as_list()
            full = [*own[:at], *[1] * (common.rank - shape.rank), *own[at:]]
            whole = [*own[:at], *common.as_list(), *own[at + shape.rank :]]
            tensor = tf.broadcast_to(tf.reshape(tensor, full), whole)
        made.append(tensor)
    right = right.replace("...", labels)
    return ctx.emit(made, attrs={"equation": f"{','.join(terms)}->{right}"})


@register_op(
    "Einsum",
    lower=_summed,
    samples=[
        Sample("Einsum", ([floats(4, 6), floats(6, 2)],), {"equation": "mk,kn->mn"}),
        Sample("Einsum", ([floats(2, 3, 4), floats(2, 4, 6)],), {"equation": "bij,bjk->bki"}),
        # x and y are summed alone: each is a factor of the whole.
        Sample("Einsum", ([floats(4, 6), floats(2, 4)],), {"equation": "ax,yb->ab"}),
        Sample("Einsum", ([floats(4, 6, 2)],), {"equation": "abc->cb"}),
        Sample("Einsum", ([floats(4, 1, 3, 2), floats(6, 2, 3)],), {"equation": "...ij,...jk->...ik"}),
        Sample("Einsum", ([floats(4, 3, 2), floats(2, 6)],), {"equation": "...ij,...jk->...ik"}),
        Sample("Einsum", ([floats(4, 4, 6)],), {"equation": "iik->ik"}),
        Sample("Einsum", ([floats(4, 6)],), {"equation": "ik->iik"}),
    ],
    traits=_traits(Work.TENSOR_PRODUCT, "Einsum", "Einsum"),
)
def einsum(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """A product summed over the labels that the output lacks; a label that stands for a diagonal stays unsplit."""
    left, arrow, right = op.attrs["equation"].replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(inputs):
        raise OpError(
            f"{op}: equation {op.attrs['equation']!r} is not of the form 'ab,bc->ac' for {len(inputs)} inputs. "
            "Name the labels of every input, and after '->' those of the output."
        )
    output = op.outputs[0]
    # TensorFlow broadcasts the dimensions under an ellipsis, aligned at its end.
    ellipsis = output.rank - len(right.replace("...", "")) if "..." in right else 0

    def dims_of(term: str, spec: TensorSpec) -> Dims:
        before, dots, after = term.partition("...")
        hidden = spec.rank - len(before) - len(after) if dots else 0
        start = right.partition("...")[0]
        dims: list[tuple[str, ...]] = [(label,) for label in before]
        for place in range(hidden):
            number = ellipsis - hidden + place
            whole = output.shape[len(start) + number] if number >= 0 else 0
            dims.append((f"...{number}",) if spec.shape[len(before) + place] == whole else ())
        return (*dims, *((label,) for label in after))

    input_dims = tuple(dims_of(term, spec) for term, spec in zip(terms, inputs, strict=True))
    output_dims = dims_of(right, output)
    sizes = {
        dim[0]: extent
        for dims, spec in zip((*input_dims, output_dims), (*inputs, output), strict=True)
        for dim, extent in zip(dims, spec.shape, strict=True)
        if dim
    }
    diagonal = {label for term in (*terms, right) for label, count in Counter(term).items() if count > 1}
    kept = {dim[0] for dim in output_dims if dim}
    flops = (2.0 if len(inputs) > 1 else 1.0) * math.prod(sizes.values())
    return OpRule(
        sizes=tuple(sizes.items()),
        inputs=input_dims,
        outputs=(output_dims,),
        split=tuple(axis for axis in sizes if axis not in diagonal),
        reduced=frozenset(axis for axis in sizes if axis not in kept),
        flops=flops,
        backward_flops=2 * flops if len(inputs) > 1 else flops,
        saved_inputs=tuple(range(len(inputs))) if len(inputs) > 1 else (),
    )
