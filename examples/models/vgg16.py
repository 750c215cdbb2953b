"""VGG16 (Simonyan and Zisserman 2014, configuration D): 138,357,544 parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensoropt

__all__ = ["vgg16"]

# Convolutions per stage and their channels; a pooling ends each stage.
_STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))


def vgg16(
    batch_size: int = 256,
    *,
    image_size: int = 224,
    stages: Sequence[tuple[int, int]] = _STAGES,
    hidden: int = 4096,
    classes: int = 1000,
) -> Any:
    """Builds the model and its training step.

    Args:
        batch_size: images of a step.
        image_size: height and width; must be divisible by 2 for each stage.
        stages: (convolutions, channels) of each stage.
        hidden: width of the two dense layers.
        classes: of the softmax.

    Returns:
        The loss, a scalar.
    """
    x = tensoropt.placeholder(tensoropt.float32, [batch_size, image_size, image_size, 3], name="images")
    labels = tensoropt.placeholder(tensoropt.int32, [batch_size], name="labels")
    relu = tensoropt.nn.relu
    for stage, (convolutions, channels) in enumerate(stages, start=1):
        for number in range(1, convolutions + 1):
            name = f"conv{stage}_{number}"
            x = tensoropt.layers.conv2d(x, channels, 3, padding="same", activation=relu, name=name)
        x = tensoropt.layers.max_pooling2d(x, 2, 2, name=f"pool{stage}")
    x = tensoropt.layers.flatten(x)
    x = tensoropt.layers.dense(x, hidden, activation=relu, name="fc6")
    x = tensoropt.layers.dense(x, hidden, activation=relu, name="fc7")
    logits = tensoropt.layers.dense(x, classes, name="logits")
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    tensoropt.train.GradientDescentOptimizer(0.01).minimize(loss)
    return loss
