"""Wide residual network for ImageNet (Zagoruyko and Komodakis 2016, section 3): bottlenecks with wide inner layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensoropt

__all__ = ["wide_resnet"]


def wide_resnet(
    batch_size: int = 256,
    *,
    image_size: int = 224,
    blocks: Sequence[int] = (3, 4, 6, 3),
    widening: float = 12.75,
    base: int = 64,
    classes: int = 1000,
) -> Any:
    """Builds WRN-50-k and its training step.

    As in WRN-50-2-bottleneck, k multiplies the inner layers of a bottleneck only. TensorOpt gives neither depth nor
    k. With 50 layers, k = 12.75 has its 7.3 GiB, about its memory on one device (83 GB, table 1), and arithmetic
    that fits its 1.99 s per step (table 4), which widening all layers by 9 (also 7.2 GiB) does not.

    Args:
        batch_size: images of a step.
        image_size: height and width; divisible by 32.
        blocks: bottlenecks of each stage.
        widening: k.
        base: channels of the first convolution, and of the first stage's inner layers before widening.
        classes: of the softmax.

    Returns:
        The loss, a scalar.
    """
    x = tensoropt.placeholder(tensoropt.float32, [batch_size, image_size, image_size, 3], name="images")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size], name="labels")
    x = tensoropt.nn.relu(_convolution(x, base, 7, 2, "stem"))
    x = tensoropt.layers.max_pooling2d(x, 3, 2, padding="same", name="pool")
    for stage, count in enumerate(blocks):
        for number in range(count):
            with tensoropt.variable_scope(f"stage{stage + 1}_block{number + 1}"):
                stride = 2 if stage > 0 and number == 0 else 1
                x = _bottleneck(x, round(base * 2**stage * widening), 4 * base * 2**stage, stride)
    x = tensoropt.reduce_mean(x, axis=[1, 2])
    logits = tensoropt.layers.dense(x, classes, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    return loss


def _bottleneck(x: Any, inner: int, outer: int, stride: int) -> Any:
    """1×1, 3×3 and 1×1 convolutions beside a shortcut, which is a projection where sizes change."""
    shortcut = x
    if stride != 1 or x.shape[-1] != outer:
        shortcut = _convolution(x, outer, 1, stride, "shortcut")
    y = tensoropt.nn.relu(_convolution(x, inner, 1, 1, "reduce"))
    y = tensoropt.nn.relu(_convolution(y, inner, 3, stride, "inner"))
    return tensoropt.nn.relu(_convolution(y, outer, 1, 1, "expand") + shortcut)


def _convolution(x: Any, channels: int, size: int, stride: int, name: str) -> Any:
    """A convolution without bias, and batch normalisation by the batch's own statistics."""
    x = tensoropt.layers.conv2d(x, channels, size, stride, padding="same", use_bias=False, name=name)
    return tensoropt.layers.batch_normalization(x, training=True, name=f"{name}_norm")
