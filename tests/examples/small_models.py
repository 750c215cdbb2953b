"""The papers' models in sizes that keep what is typical of them and take moments."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from tensoropt.cluster import preset
from tensoropt.cost import AnalyticCost
from tensoropt.space.space import SearchSpace

__all__ = ["SMALL", "imported", "small_space"]

SMALL: Mapping[str, Mapping[str, Any]] = {
    "vgg16": {"image_size": 8, "stages": [(1, 8), (1, 16)], "hidden": 32, "classes": 8},
    "wide_resnet": {"image_size": 32, "blocks": [1, 1], "base": 8, "widening": 2, "classes": 8},
    "rnn": {"layers": 2, "hidden": 16, "steps": 3, "states": 8},
    "transformer": {"layers": 1, "width": 16, "heads": 4, "length": 8, "vocabulary": 32},
    "transformer_s": {"layers": 1, "width": 8, "heads": 4, "length": 4, "vocabulary": 16},
    "bert_large": {"layers": 1, "width": 16, "heads": 4, "length": 8, "predictions": 2, "vocabulary": 32},
    "alexnet": {"image_size": 67, "hidden": 64, "classes": 8},
    "inception3": {
        "image_size": 75,
        "width": 0.125,
        "modules": [("a", 32), ("b", 0), ("c", 128), ("d", 0), ("e", 0)],
        "classes": 8,
    },
    "resnet101": {"image_size": 32, "blocks": [1, 1, 1, 1], "base": 8, "classes": 8},
    "rnntc": {"layers": 2, "hidden": 16, "embedding": 8, "steps": 4, "vocabulary": 32},
    "rnnlm": {"layers": 2, "hidden": 16, "steps": 4, "vocabulary": 32},
    "nmt": {"layers": 2, "hidden": 16, "steps": 4, "vocabulary": 32},
    "lenet": {},
}


def imported(name: str, batch_size: int, **sizes: Any) -> Any:
    """The logical graph of a model, with the thread back in eager mode."""
    from examples.models import MODELS
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model, leave_graph, reset_default_graph

    reset_default_graph()
    MODELS[name](batch_size=batch_size, **sizes)
    result = import_model(current_model())
    leave_graph()
    return result


@functools.cache
def _small(name: str) -> Any:
    return imported(name, 16, **SMALL[name])


@functools.cache
def small_space(name: str, devices: int = 4) -> SearchSpace:
    """All strategies of a small model on some of the devices of FlexFlow's P100 cluster."""
    model = _small(name)
    return SearchSpace(model.graph, AnalyticCost(preset("p100", devices=devices)), reuse=True)
