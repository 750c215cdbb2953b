"""Inception-v3 (Szegedy et al. 2016), without the auxiliary classifier: 23,834,568 parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensoropt

__all__ = ["inception3"]

# Modules in order, as PaSE calls them; A and C with channels of their own.
_MODULES = (
    *(("a", channels) for channels in (32, 64, 64)),
    ("b", 0),
    *(("c", channels) for channels in (128, 160, 160, 192)),
    ("d", 0),
    ("e", 0),
    ("e", 0),
)
# The stem: channels, window, stride, padding of its convolutions; None is a pooling.
_STEM = ((32, 3, 2, "valid"), (32, 3, 1, "valid"), (64, 3, 1, "same"), None, (80, 1, 1, "valid"), (192, 3, 1, "valid"))


def inception3(
    batch_size: int = 256,
    *,
    image_size: int = 299,
    width: float = 1.0,
    modules: Sequence[tuple[str, int]] = _MODULES,
    classes: int = 1000,
) -> Any:
    """Builds the model and its training step.

    FlexFlow trains it with 64 images per device. Modules are those of the paper's table 1 and figures 5 to 7, which
    PaSE calls A to E, with 35, 17 and 8 points along an image's side.

    Args:
        batch_size: images of a step.
        image_size: height and width; at least 75.
        width: all channels are multiplied by it.
        modules: the kind of each, and channels of the pooling's branch in A, of the long branches in C.
        classes: of the softmax.

    Returns:
        The loss, a scalar.
    """
    x = tensoropt.placeholder(tensoropt.float32, [batch_size, image_size, image_size, 3], name="images")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size], name="labels")

    def convolution(
        x: Any, channels: int, size: int | tuple[int, int], stride: int = 1, padding: str = "same", name: str = "conv"
    ) -> Any:
        """A convolution without bias, batch normalisation by the batch's own statistics, and a rectifier."""
        x = tensoropt.layers.conv2d(
            x, round(channels * width), size, stride, padding=padding, use_bias=False, name=name
        )
        x = tensoropt.layers.batch_normalization(x, training=True, name=f"{name}_norm")
        return tensoropt.nn.relu(x)

    with tensoropt.variable_scope("stem"):
        for number, layer in enumerate(_STEM, start=1):
            if layer is None:
                x = tensoropt.layers.max_pooling2d(x, 3, 2)
            else:
                x = convolution(x, *layer, name=f"conv{number}")
        x = tensoropt.layers.max_pooling2d(x, 3, 2)
    build = {"a": _module_a, "b": _module_b, "c": _module_c, "d": _module_d, "e": _module_e}
    for number, (kind, channels) in enumerate(modules, start=1):
        with tensoropt.variable_scope(f"module_{kind}_{number}"):
            x = tensoropt.concat(build[kind](x, channels, convolution), axis=3)
    x = tensoropt.reduce_mean(x, axis=[1, 2])
    logits = tensoropt.layers.dense(x, classes, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.045).minimize(loss)
    return loss


def _chain(x: Any, convolution: Any, name: str, layers: Sequence[tuple[Any, ...]]) -> Any:
    """Convolutions one after another: (channels, size), and a stride and padding where they are not 1 and "same"."""
    for number, layer in enumerate(layers, start=1):
        x = convolution(x, *layer, name=f"{name}_{number}")
    return x


def _pooled(x: Any) -> Any:
    return tensoropt.layers.average_pooling2d(x, 3, 1, padding="same")


def _module_a(x: Any, channels: int, convolution: Any) -> list[Any]:
    """Figure 5, at 35 × 35, with one branch of two 3×3 and one of 5×5, as the published model has it."""
    return [
        _chain(x, convolution, "branch1", [(64, 1)]),
        _chain(x, convolution, "branch2", [(48, 1), (64, 5)]),
        _chain(x, convolution, "branch3", [(64, 1), (96, 3), (96, 3)]),
        _chain(_pooled(x), convolution, "branch4", [(channels, 1)]),
    ]


def _module_b(x: Any, _: int, convolution: Any) -> list[Any]:
    """Figure 10: halves the grid, from 35 to 17."""
    return [
        _chain(x, convolution, "branch1", [(384, 3, 2, "valid")]),
        _chain(x, convolution, "branch2", [(64, 1), (96, 3), (96, 3, 2, "valid")]),
        tensoropt.layers.max_pooling2d(x, 3, 2),
    ]


def _module_c(x: Any, channels: int, convolution: Any) -> list[Any]:
    """Figure 6, at 17 × 17: 7×7 convolutions as 1×7 and 7×1."""
    row, column = (1, 7), (7, 1)
    long = [(channels, 1), (channels, column), (channels, row), (channels, column), (192, row)]
    return [
        _chain(x, convolution, "branch1", [(192, 1)]),
        _chain(x, convolution, "branch2", [(channels, 1), (channels, row), (192, column)]),
        _chain(x, convolution, "branch3", long),
        _chain(_pooled(x), convolution, "branch4", [(192, 1)]),
    ]


def _module_d(x: Any, _: int, convolution: Any) -> list[Any]:
    """Halves the grid, from 17 to 8."""
    return [
        _chain(x, convolution, "branch1", [(192, 1), (320, 3, 2, "valid")]),
        _chain(x, convolution, "branch2", [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, "valid")]),
        tensoropt.layers.max_pooling2d(x, 3, 2),
    ]


def _module_e(x: Any, _: int, convolution: Any) -> list[Any]:
    """Figure 7, at 8 × 8: filters side by side."""
    second = _chain(x, convolution, "branch2", [(384, 1)])
    third = _chain(x, convolution, "branch3", [(448, 1), (384, 3)])
    return [
        _chain(x, convolution, "branch1", [(320, 1)]),
        convolution(second, 384, (1, 3), name="branch2_row"),
        convolution(second, 384, (3, 1), name="branch2_column"),
        convolution(third, 384, (1, 3), name="branch3_row"),
        convolution(third, 384, (3, 1), name="branch3_column"),
        _chain(_pooled(x), convolution, "branch4", [(192, 1)]),
    ]
