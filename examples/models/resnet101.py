"""ResNet-101 (He et al. 2016): 44,549,160 parameters."""

from __future__ import annotations

import functools

from examples.models.wide_resnet import wide_resnet

__all__ = ["resnet101"]

resnet101 = functools.partial(wide_resnet, blocks=(3, 4, 23, 3), widening=1.0)
"""FlexFlow's, which trains it with 64 images per device: bottlenecks that are not widened, 23 in the third stage.

Where a stage begins, the 3×3 convolution has the stride, as in all later implementations, rather than the first 1×1.
"""
