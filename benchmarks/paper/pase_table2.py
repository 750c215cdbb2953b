"""PaSE's table II: the best strategies by its own cost, layer by layer, beside what the paper says of them.

Costs and sizes are those of table I, on 4 nodes of 8 1080Ti. Here every recurrent step and every head of an attention
are in operators of their own, where the paper has one vertex for all LSTM layers (so it may also split the layers
themselves) and one per attention; a group's splits are counted over its operators. What the paper's text tells is
beside ours, in words where it gives no numbers.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.paper.pase_table1 import MODELS
from benchmarks.paper.setting import Options, Report, planner, without_updates
from tensoropt.cluster.presets import gtx1080ti
from tensoropt.cluster.scaling import scaled
from tensoropt.cost import PaseCost
from tensoropt.pase import fastest_point
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace

__all__ = ["run"]

_DEVICES = 32

_CONVOLUTION = {"n": "batch", "c": "in-channel", "f": "out-channel", "height": "height", "width": "width"}
_DENSE = {"m": "batch", "k": "in-channel", "n": "out-channel"}
_SOFTMAX = {"n": "batch", "c": "out-channel"}
_LOOKUP = {"i0": "batch", "i1": "sequence", "v": "vocabulary", "p1": "embedding"}
_LSTM = {"b": "batch", "t": "sequence", "k": "hidden", "g": "gate", "n": "output"}
_WORDS = {"a": "batch", "b": "sequence", "k": "embedding", "n": "vocabulary"}
_WORDS_OF_TABLE = {"b": "batch", "l": "sequence", "d": "embedding", "v": "vocabulary"}
_WORDS_SOFTMAX = {"n": "batch", "c": "vocabulary"}
_FORWARD = {"a": "batch", "b": "sequence", "k": "in-channel", "n": "out-channel"}
_HEADS = {"b": "batch", "l": "sequence", "d": "embedding", "h": "heads", "k": "channels"}


@dataclass(frozen=True, slots=True)
class _Layers:
    """Operators of a model that are a row of the table.

    Attributes:
        names: a pattern of their whole names.
        dimensions: what the axes of their iteration spaces are called in the table.
        paper: their splits, as far as the paper's text gives them.
    """

    names: str
    dimensions: Mapping[str, str]
    paper: str | None = None


_SOFTMAX_NAMES = r"softmax_cross_entropy/Sparse.*"
_TABLE: Mapping[str, Mapping[str, _Layers]] = {
    "alexnet": {
        "conv 1-4": _Layers(r"conv[1-4]/Conv2D", _CONVOLUTION, "batch 32"),
        "conv 5": _Layers(r"conv5/Conv2D", _CONVOLUTION, "in-channel 2"),
        "FC 1": _Layers(r"fc6/MatMul", _DENSE, "in-channel 8, out-channel 4"),
        "FC 2": _Layers(r"fc7/MatMul", _DENSE, "in-channel 4, out-channel 8"),
        "FC 3": _Layers(r"logits/MatMul", _DENSE, "in-channel 8, out-channel 4"),
        "softmax": _Layers(_SOFTMAX_NAMES, _SOFTMAX),
    },
    "inception3": {
        "stem": _Layers(r"stem/.*Conv2D", _CONVOLUTION),
        **{
            f"module {kind.upper()}": _Layers(rf"module_{kind}_.*Conv2D", _CONVOLUTION, "batch 32")
            for kind in ("a", "b", "c", "d")
        },
        "module E": _Layers(r"module_e_.*Conv2D", _CONVOLUTION, "batch and parameters"),
        "FC": _Layers(r"logits/MatMul", _DENSE),
        "softmax": _Layers(_SOFTMAX_NAMES, _SOFTMAX),
    },
    "rnnlm": {
        "embedding": _Layers(r"embedding/Gather", _LOOKUP, "vocabulary 32"),
        "LSTM": _Layers(r"einsum(_\d+)?/Einsum", _LSTM, "layers 2; batch, hidden and output in part"),
        "FC": _Layers(r"logits/einsum/Einsum", _WORDS, "vocabulary 32"),
        "softmax": _Layers(_SOFTMAX_NAMES, _WORDS_SOFTMAX),
    },
    "transformer": {
        "embedding": _Layers(r"Gather(_\d+)?", _LOOKUP, "parameters"),
        "multihead attention": _Layers(r".*attention/einsum(_\d+)?/Einsum", _HEADS, "batch and parameters"),
        "feed forward": _Layers(r".*/(up|down)/einsum/Einsum", _FORWARD, "batch and parameters"),
        "FC": _Layers(r"einsum/Einsum", _WORDS_OF_TABLE),
        "softmax": _Layers(_SOFTMAX_NAMES, _WORDS_SOFTMAX, "parameters"),
    },
}


def run(options: Options, plot: Path | None = None) -> Report:
    """Finds the best strategies. There is nothing to draw."""
    devices = options.count(_DEVICES)
    models: Report = {}
    for model in options.models or tuple(_TABLE):
        sizes = {**MODELS.get(model, {}), **options.sizes.get(model, {})}
        imported = planner(model, dataclasses.replace(options, sizes={model: sizes})).imported
        began = time.perf_counter()
        cost = PaseCost(scaled(gtx1080ti(), devices))
        space = SearchSpace(without_updates(imported.graph), cost)
        best = fastest_point(with_repeated_cells(space))
        models[model] = {
            "sizes": sizes,
            "cost_s": float(best.time_s[0]),
            "search_s": time.perf_counter() - began,
            "layers": dict(_rows(space, best.assignments[0].tolist(), _TABLE.get(model, {}), devices)),
        }
    return {"table": "PaSE II", "devices": devices, "models": models}


def _rows(
    space: SearchSpace, assignment: list[int], table: Mapping[str, _Layers], devices: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    for label, layers in table.items():
        counted: Counter[str] = Counter()
        for op, index in zip(space.operators, assignment, strict=True):
            # Products, convolutions and lookups; what else is called so follows them.
            if re.fullmatch(layers.names, op.name) and {*space.rules[op.name].split} <= {*layers.dimensions}:
                configuration = space.choices(op.name)[index]
                splits = [
                    f"{called} {space.mesh.extent(configuration.mesh_axes(axis))}"
                    for axis, called in layers.dimensions.items()
                    if configuration.mesh_axes(axis)
                ]
                counted[", ".join(splits) or "whole"] += 1
        if counted:
            most = counted.most_common()
            ours = most[0][0] if len(most) == 1 else "; ".join(f"{splits} ({count})" for splits, count in most)
            told = layers.paper is not None and devices == _DEVICES
            yield label, {"ours": ours, **({"paper": layers.paper} if told else {})}
