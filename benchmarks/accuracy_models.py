"""The models of TensorOpt's table 2 in sizes that a step of takes a small machine a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

__all__ = ["CROWDED_SAMPLES", "MODELS", "batch", "sizes"]

# Per model: its name in examples.models, its arguments, and a bound of the integers in each input.
MODELS: Mapping[str, tuple[str, dict[str, Any], dict[str, int]]] = MappingProxyType(
    {
        "rnn": (
            "rnn",
            {"batch_size": 64, "layers": 2, "hidden": 256, "steps": 4, "states": 512},
            {"labels": 512},
        ),
        "wide_resnet": (
            "wide_resnet",
            {"batch_size": 16, "image_size": 32, "blocks": (1, 1, 1, 1), "widening": 4, "base": 32, "classes": 64},
            {"labels": 64},
        ),
        "transformer": (
            "transformer",
            {"batch_size": 16, "layers": 1, "width": 256, "heads": 4, "length": 32, "vocabulary": 2048},
            {"source": 2048, "target": 2048, "labels": 2048},
        ),
        "vgg16": (
            "vgg16",
            {
                "batch_size": 16,
                "image_size": 32,
                "stages": ((2, 32), (2, 64), (3, 128), (3, 256), (3, 256)),
                "hidden": 512,
                "classes": 64,
            },
            {"labels": 64},
        ),
    }
)

# How many times more samples where ranks share cores: a rank that waits for another one then waits for a core, too,
# which is not to be most of a step.
CROWDED_SAMPLES = 4


def sizes(name: str, *, crowded: bool) -> dict[str, Any]:
    """Arguments of a model.

    Args:
        name: in :data:`MODELS`.
        crowded: whether ranks share cores.
    """
    arguments = dict(MODELS[name][1])
    if crowded:
        arguments["batch_size"] *= CROWDED_SAMPLES
    return arguments


def batch(name: str, inputs: Mapping[str, tuple[tuple[int, ...], str]], seed: int) -> dict[str, np.ndarray]:
    """Random inputs of a model.

    Args:
        name: in :data:`MODELS`.
        inputs: shape and dtype of each placeholder, by name.
        seed: of the numbers.
    """
    rng = np.random.default_rng(seed)
    bounds = MODELS[name][2]
    return {
        placeholder: rng.integers(0, bounds[placeholder], shape).astype(dtype)
        if placeholder in bounds
        else rng.standard_normal(shape).astype(dtype)
        for placeholder, (shape, dtype) in sorted(inputs.items())
    }
