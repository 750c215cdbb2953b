"""The models of the papers' experiments: their parameters, and the shapes inside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from examples.models import MODELS, PAPER_PARAMETER_GIB
from tests.effort import EVERY_CASE, left_to_ci, some

pytestmark = pytest.mark.tf

# Per model: a scope's operator and its shape at a batch of 256.
_SHAPES: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "vgg16": [("pool5", (256, 7, 7, 512)), ("fc6", (256, 4096)), ("logits", (256, 1000))],
    "wide_resnet": [
        ("stage1_block3/inner", (256, 56, 56, 816)),
        ("stage4_block3/inner", (256, 7, 7, 6528)),
        ("stage4_block3/expand", (256, 7, 7, 2048)),
        ("logits", (256, 1000)),
    ],
    "rnn": [("logits", (256, 20, 2000))],
    "transformer": [("encoder1/up", (256, 64, 15360)), ("decoder6/down", (256, 64, 3840))],
    "transformer_s": [("encoder6/up", (256, 64, 10752)), ("decoder6/down", (256, 64, 2688))],
    "bert_large": [("layer24/up", (256, 128, 4096)), ("transform", (256, 20, 1024))],
    "alexnet": [
        ("conv1", (256, 55, 55, 64)),
        ("pool1", (256, 27, 27, 64)),
        ("conv5", (256, 13, 13, 256)),
        ("flatten", (256, 9216)),
        ("logits", (256, 1000)),
    ],
    "inception3": [  # Szegedy et al. 2016, table 1
        ("stem/conv1", (256, 149, 149, 32)),
        ("stem/conv3", (256, 147, 147, 64)),
        ("stem/max_pooling2d_1", (256, 35, 35, 192)),
        ("module_a_1", (256, 35, 35, 256)),
        ("module_a_3", (256, 35, 35, 288)),
        ("module_b_4", (256, 17, 17, 768)),
        ("module_c_8", (256, 17, 17, 768)),
        ("module_d_9", (256, 8, 8, 1280)),
        ("module_e_11", (256, 8, 8, 2048)),
        ("logits", (256, 1000)),
    ],
    "resnet101": [
        ("stage1_block3/expand", (256, 56, 56, 256)),
        ("stage3_block23/inner", (256, 14, 14, 256)),
        ("stage4_block3/expand", (256, 7, 7, 2048)),
        ("logits", (256, 1000)),
    ],
    "rnntc": [("embedding", (256, 40, 300)), ("logits", (256, 2))],
    "rnnlm": [("embedding", (256, 40, 2048)), ("logits", (256, 40, 10_000))],
    "nmt": [("target_embedding", (256, 40, 1024)), ("attention/found", (256, 40, 1024)), ("logits", (256, 40, 32_000))],
    "lenet": [("conv1", (256, 28, 28, 6)), ("pool2", (256, 5, 5, 16)), ("fc3", (256, 120)), ("fc4", (256, 84))],
}

# Of the models' own papers, or of implementations that everyone compares with.
_PUBLISHED = {
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "inception3": 23_834_568,  # 27,161,264 with the auxiliary classifier's 3,326,696
    "resnet101": 44_549_160,
    "lenet": 61_706,
}


def _lstm(features: int, hidden: int) -> int:
    return 4 * hidden * (features + hidden + 1)


@pytest.fixture
def model() -> Iterator[Any]:
    """The empty model under construction, and a thread that is back in eager mode after it."""
    from tensoropt.api.mirror.model import current_model, leave_graph, reset_default_graph

    reset_default_graph()
    yield current_model()
    leave_graph()


def _next_model() -> Any:
    from tensoropt.api.mirror.model import current_model, reset_default_graph

    reset_default_graph()
    return current_model()


def _parameters(graph: Any) -> int:
    return sum(math.prod(variable.shape) for variable in graph.get_collection("trainable_variables"))


def _shape(graph: Any, scope: str) -> tuple[int, ...]:
    """The shape of what a layer's scope gives at its end."""
    last = [op for op in graph.get_operations() if op.name.startswith(f"{scope}/") and op.outputs][-1]
    return tuple(last.outputs[0].shape)


@pytest.mark.parametrize("name", some(sorted(MODELS), 2 if EVERY_CASE else 6))
def test_parameters_are_the_papers_within_two_percent(model: Any, name: str) -> None:
    loss = MODELS[name](batch_size=256)
    assert loss.shape == ()
    assert len(model.gradient_calls) == 1
    parameters = _parameters(model.graph)
    if name in PAPER_PARAMETER_GIB:
        assert 4 * parameters / 2**30 == pytest.approx(PAPER_PARAMETER_GIB[name], rel=0.02)
    if name in _PUBLISHED:
        assert parameters == _PUBLISHED[name]
    for scope, shape in _SHAPES[name]:
        assert _shape(model.graph, scope) == shape, scope


@left_to_ci("half a minute of building models")
def test_flexflows_recurrent_models_have_the_parameters_of_their_layers(model: Any) -> None:
    MODELS["rnntc"](batch_size=2)
    embedding, layers, softmax = 18_816 * 300, _lstm(300, 1024) + 3 * _lstm(1024, 1024), 1024 * 2 + 2
    assert _parameters(model.graph) == embedding + layers + softmax
    model = _next_model()
    MODELS["rnnlm"](batch_size=2)
    assert _parameters(model.graph) == 10_000 * 2048 + 2 * _lstm(2048, 2048) + 2048 * 10_000 + 10_000
    model = _next_model()
    MODELS["nmt"](batch_size=2)
    attention = 4 * 1024 * 1024 + 2 * 1024
    softmax = 1024 * 32_000 + 32_000
    assert _parameters(model.graph) == 2 * 32_000 * 1024 + 4 * _lstm(1024, 1024) + attention + softmax


@pytest.mark.parametrize("name", ["rnntc", "rnnlm", "nmt"])
@left_to_ci("half a minute of building models")
def test_unrolled_cells_are_repeated_cells(model: Any, name: str) -> None:
    """However many steps, there is the same number of different operators."""
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.cluster.presets import p100
    from tensoropt.cost import AnalyticCost
    from tensoropt.space.repeated_cells import repeated_cells
    from tensoropt.space.space import SearchSpace

    groups = []
    for steps in (12, 16):
        model = _next_model()
        MODELS[name](batch_size=8, hidden=16, steps=steps, vocabulary=32)
        space = SearchSpace(import_model(model).graph, AnalyticCost(p100().with_device_count(2)))
        groups.append(len(np.unique(repeated_cells(space))))
    assert groups[0] == groups[1]


def test_an_lstm_layer_has_8_hidden_squared_weights_however_many_steps(model: Any) -> None:
    MODELS["rnn"](batch_size=4, layers=2, hidden=16, steps=3, states=8)
    assert _parameters(model.graph) == 2 * (8 * 16**2 + 4 * 16) + 16 * 8 + 8


@left_to_ci("ten seconds of building a model")
def test_wide_resnet_50_without_widening_is_resnet_50(model: Any) -> None:
    MODELS["wide_resnet"](batch_size=2, widening=1)
    assert _parameters(model.graph) == 25_557_032


def test_transformer_shares_one_embedding(model: Any) -> None:
    MODELS["transformer"](batch_size=2, layers=1, width=8, heads=2, length=4, vocabulary=10)
    attention, feed_forward, norm = 4 * 8 * 8, 2 * 8 * 32 + 32 + 8, 16
    assert _parameters(model.graph) == 10 * 8 + 3 * attention + 2 * feed_forward + 5 * norm


def test_every_layer_of_bert_reads_one_mask(model: Any) -> None:
    from tensoropt.api.frontend.imported_model import import_model

    MODELS["bert_large"](batch_size=4, layers=5, width=8, heads=2, length=6, predictions=2, vocabulary=12)
    graph = import_model(model).graph
    (mask,) = [op for op in graph.of_type("Fanout") if op.outputs[0].shape == (4, 1, 1, 6)]
    assert len([edge for edge in graph.edges() if edge.tensor.op == mask.name]) == 5
