"""LeNet-5 (LeCun et al. 1998): 61,706 parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensoropt

__all__ = ["lenet"]


def lenet(
    batch_size: int = 64,
    *,
    image_size: int = 32,
    channels: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (120, 84),
    classes: int = 10,
) -> Any:
    """Builds the model and its training step.

    The small CNN of which FlexFlow knows the best strategy (section 8.3). Every map of the second convolution reads
    all of the first, poolings have no parameters, and the output is a softmax, as is usual since.

    Args:
        batch_size: images of a step.
        image_size: height and width.
        channels: of each convolution; a pooling follows each.
        hidden: widths of the dense layers before the last.
        classes: of the softmax.

    Returns:
        The loss, a scalar.
    """
    x = tensoropt.placeholder(tensoropt.float32, [batch_size, image_size, image_size, 1], name="images")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size], name="labels")
    for number, maps in enumerate(channels, start=1):
        x = tensoropt.layers.conv2d(x, maps, 5, activation=tensoropt.tanh, name=f"conv{number}")
        x = tensoropt.layers.average_pooling2d(x, 2, 2, name=f"pool{number}")
    x = tensoropt.layers.flatten(x)
    for number, width in enumerate(hidden, start=len(channels) + 1):
        x = tensoropt.layers.dense(x, width, activation=tensoropt.tanh, name=f"fc{number}")
    logits = tensoropt.layers.dense(x, classes, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.01).minimize(loss)
    return loss
