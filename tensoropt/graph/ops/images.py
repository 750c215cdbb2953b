"""Images: patches, crops, colours, geometry, and windows that take the greatest. Each image is whole on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensoropt.graph.lowering import Lowering
from tensoropt.graph.movement import dimensions, movement, passed
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import register_op
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.graph.spec import TensorSpec
from tensoropt.graph.traits import Traits

_READS_AROUND = Traits(in_place=False)


def _same(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


@register_op(
    "ExtractImagePatches",
    lower=_same,
    samples=[
        Sample(
            "ExtractImagePatches",
            (floats(6, 4, 3, 2),),
            {"ksizes": [1, 2, 2, 1], "strides": [1, 2, 1, 1], "rates": [1, 1, 1, 1], "padding": "SAME"},
        )
    ],
    traits=_READS_AROUND,
)
@register_op(
    "ExtractVolumePatches",
    lower=_same,
    samples=[
        Sample(
            "ExtractVolumePatches",
            (floats(6, 2, 3, 2, 2),),
            {"ksizes": [1, 2, 2, 1, 1], "strides": [1, 1, 1, 1, 1], "padding": "VALID"},
        )
    ],
    traits=_READS_AROUND,
)
def patches(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images are splittable, and rows and columns of patches that do not overlap, as of a vision transformer.

    A patch is one vector, in which the channels come last.
    """
    rank = inputs[0].rank
    before: list[tuple[str, ...]] = [("d0",), *[()] * (rank - 1)]
    after = list(before)
    sizes: dict[str, int] = {}
    for i in range(1, rank - 1):
        window, stride = op.attrs["ksizes"][i], op.attrs["strides"][i]
        is_apart = window <= stride and (window == 1 or op.attrs.get("rates", (1,) * rank)[i] == 1)
        if is_apart and inputs[0].shape[i] % stride == 0:
            before[i], after[i] = (f"d{i}", f"p{i}"), (f"d{i}",)
            sizes[f"p{i}"] = stride
    # TensorFlow's gradient is a product with a sparse matrix of zeros and ones.
    flops = 2.0 * op.outputs[0].elements
    return movement(inputs, op.outputs, (tuple(before),), (tuple(after),), sizes=sizes, backward_flops=flops)


@register_op(
    "CropAndResize",
    lower=_same,
    static={3: "size of the crops"},
    samples=[
        Sample(
            "CropAndResize",
            (floats(2, 4, 4, 3), floats(6, 4, low=0.1, high=0.9), integers(6, high=2), [2, 3]),
        )
    ],
    traits=Traits(in_place=False, indices={2: lambda op, inputs: inputs[0].shape[0]}),
)
def crop_and_resize(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Boxes ``b`` and channels are splittable; a box may be of any image."""
    image, corners = ((), (), (), ("c",)), (("b",), ())
    flops = 8.0 * op.outputs[0].elements
    return movement(
        inputs,
        op.outputs,
        (image, corners, (("b",),)),
        ((("b",), (), (), ("c",)),),
        flops=flops,
        backward_flops=2 * flops,
        saved_inputs=(0, 1, 2),
    )


@register_op("RGBToHSV", lower=_same, samples=[Sample("RGBToHSV", (floats(2, 6, 3, low=0.1),))], traits=_READS_AROUND)
@register_op("HSVToRGB", lower=_same, samples=[Sample("HSVToRGB", (floats(2, 6, 3, low=0),))], traits=_READS_AROUND)
@register_op(
    "AdjustHue",
    lower=_same,
    samples=[Sample("AdjustHue", (floats(2, 3, 4, 3, low=0), floats()))],
    traits=_READS_AROUND,
)
@register_op(
    "AdjustSaturation",
    lower=_same,
    samples=[Sample("AdjustSaturation", (floats(2, 3, 4, 3, low=0), floats(low=0.5)))],
    traits=_READS_AROUND,
)
def colour(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Points are splittable, their three colours are not."""
    dims = passed(inputs[0].rank, whole={inputs[0].rank - 1})
    flops = 10.0 * inputs[0].elements
    has_gradient = op.type == "RGBToHSV"
    return movement(
        inputs,
        op.outputs,
        (dims, *((),) * (len(inputs) - 1)),
        (dims,),
        flops=flops,
        backward_flops=3 * flops if has_gradient else 0.0,
        saved_inputs=(0,) if has_gradient else (),
        saved_outputs=(0,) if has_gradient else (),
    )


@register_op(
    "AdjustContrastv2",
    lower=_same,
    samples=[Sample("AdjustContrastv2", (floats(2, 3, 4, 6), floats()))],
    traits=_READS_AROUND,
)
def contrast(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images and channels are splittable: each has a mean of its own."""
    rank = inputs[0].rank
    dims = passed(rank, whole={rank - 3, rank - 2})
    return movement(inputs, op.outputs, (dims, ()), (dims,), flops=4.0 * inputs[0].elements)


@register_op(
    "ScaleAndTranslate",
    lower=_same,
    static={1: "size"},
    samples=[
        Sample(
            "ScaleAndTranslate",
            (floats(6, 4, 3, 2), [3, 5], np.array([0.8, 1.5], np.float32), np.array([0.1, -0.2], np.float32)),
            {"kernel_type": "triangle", "antialias": True},
        )
    ],
    traits=_READS_AROUND,
)
def scale_and_translate(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images and channels are splittable, rows and columns are not."""
    dims = passed(4, whole={1, 2})
    flops = 40.0 * op.outputs[0].elements
    return movement(
        inputs, op.outputs, (dims, ((),), ((),)), (dims,), flops=flops, backward_flops=flops, saved_inputs=(0, 1, 2)
    )


@register_op(
    "ImageProjectiveTransformV2",
    lower=_same,
    static={2: "size"},
    samples=[
        Sample(
            "ImageProjectiveTransformV2",
            (floats(6, 3, 4, 2), floats(6, 8, low=0.1, high=0.3), [3, 3]),
            {"interpolation": "BILINEAR"},
        )
    ],
    traits=_READS_AROUND,
)
@register_op(
    "ImageProjectiveTransformV3",
    lower=_same,
    static={2: "size"},
    samples=[
        Sample(
            "ImageProjectiveTransformV3",
            (floats(6, 3, 4, 2), floats(1, 8, low=0.1, high=0.3), [3, 3], floats()),
            {"interpolation": "BILINEAR"},
        )
    ],
    traits=_READS_AROUND,
)
def project(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images and channels are splittable; there is one transform for all images, or one for each."""
    images, transforms = inputs[:2]
    dims = dimensions(("n", None, None, "c"))
    own = dimensions(("n" if transforms.shape[0] == images.shape[0] else None, None))
    flops = 20.0 * op.outputs[0].elements
    return movement(
        inputs,
        op.outputs,
        (dims, own, *((),) * (len(inputs) - 2)),
        (dims,),
        flops=flops,
        backward_flops=flops,
        saved_inputs=(1,),
    )


@register_op(
    "Dilation2D",
    lower=_same,
    samples=[
        Sample(
            "Dilation2D",
            (floats(2, 4, 3, 6), floats(2, 2, 6)),
            {"strides": [1, 1, 2, 1], "rates": [1, 1, 1, 1], "padding": "SAME"},
        )
    ],
    traits=_READS_AROUND,
)
def dilation(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """The greatest sum of image and filter in each window: images and channels are splittable."""
    image = dimensions(("n", None, None, "c"))
    flops = 2.0 * op.outputs[0].elements * math.prod(inputs[1].shape[:2])
    return movement(
        inputs,
        op.outputs,
        (image, dimensions((None, None, "c"))),
        (image,),
        flops=flops,
        backward_flops=2 * flops,
        saved_inputs=(0, 1),
    )


@register_op(
    "CombinedNonMaxSuppression",
    lower=_same,
    static={2: "boxes of a class", 3: "boxes"},
    samples=[
        Sample(
            "CombinedNonMaxSuppression",
            (floats(6, 4, 1, 4, low=0), floats(6, 4, 2, low=0), 2, 3, np.float32(0.5), np.float32(0.1)),
        )
    ],
    traits=_READS_AROUND,
)
def suppression(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    """Images are splittable: the boxes of one compete with each other."""

    def per_image(spec: TensorSpec) -> tuple[tuple[str, ...], ...]:
        return passed(spec.rank, whole=range(1, spec.rank))

    return movement(
        inputs,
        op.outputs,
        (per_image(inputs[0]), per_image(inputs[1]), (), ()),
        [per_image(spec) for spec in op.outputs],
        flops=float(inputs[0].elements * inputs[1].shape[-1]),
    )
