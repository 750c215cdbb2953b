"""AlexNet in one tower (Krizhevsky 2014, "One weird trick"): 61,100,840 parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensoropt

__all__ = ["alexnet"]

# Per convolution its channels, window, stride, and whether a pooling follows.
_CONVOLUTIONS = ((64, 11, 4, True), (192, 5, 1, True), (384, 3, 1, False), (256, 3, 1, False), (256, 3, 1, True))


def alexnet(
    batch_size: int = 1024,
    *,
    image_size: int = 227,
    convolutions: Sequence[tuple[int, int, int, bool]] = _CONVOLUTIONS,
    hidden: int = 4096,
    classes: int = 1000,
) -> Any:
    """Builds the model and its training step.

    Five convolutions, three poolings, three dense layers and a softmax are the 12 layers of FlexFlow's table 4, which
    trains it with 256 images per device. Without dropout, which moves no data. The first convolution does not pad, so
    images are 227 wide to give 55 points; padded by two, those of 224 give as many.

    Args:
        batch_size: images of a step.
        image_size: height and width.
        convolutions: (channels, window, stride, pooled) of each.
        hidden: width of the two dense layers.
        classes: of the softmax.

    Returns:
        The loss, a scalar.
    """
    x = tensoropt.placeholder(tensoropt.float32, [batch_size, image_size, image_size, 3], name="images")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size], name="labels")
    relu = tensoropt.nn.relu
    for number, (channels, window, stride, pooled) in enumerate(convolutions, start=1):
        padding = "same" if stride == 1 else "valid"
        x = tensoropt.layers.conv2d(x, channels, window, stride, padding=padding, activation=relu, name=f"conv{number}")
        if pooled:
            x = tensoropt.layers.max_pooling2d(x, 3, 2, name=f"pool{number}")
    x = tensoropt.layers.flatten(x)
    x = tensoropt.layers.dense(x, hidden, activation=relu, name="fc6")
    x = tensoropt.layers.dense(x, hidden, activation=relu, name="fc7")
    logits = tensoropt.layers.dense(x, classes, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.01).minimize(loss)
    return loss
