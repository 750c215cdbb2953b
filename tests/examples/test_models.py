"""The models of the paper's experiments: their parameters, and the shapes inside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from examples.models import MODELS, PAPER_PARAMETER_GIB

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
}


@pytest.fixture
def model() -> Iterator[Any]:
    """The empty model under construction, and a thread that is back in eager mode after it."""
    from tensoropt.api.model import current_model, leave_graph, reset_default_graph

    reset_default_graph()
    yield current_model()
    leave_graph()


def _parameters(graph: Any) -> int:
    return sum(math.prod(variable.shape) for variable in graph.get_collection("trainable_variables"))


def _shape(graph: Any, scope: str) -> tuple[int, ...]:
    """The shape of what a layer's scope gives at its end."""
    last = [op for op in graph.get_operations() if op.name.startswith(f"{scope}/") and op.outputs][-1]
    return tuple(last.outputs[0].shape)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_parameters_are_the_papers_within_two_percent(model: Any, name: str) -> None:
    loss = MODELS[name](batch_size=256)
    assert loss.shape == ()
    assert len(model.train_steps) == 1
    gib = 4 * _parameters(model.graph) / 2**30
    assert gib == pytest.approx(PAPER_PARAMETER_GIB[name], rel=0.02)
    for scope, shape in _SHAPES[name]:
        assert _shape(model.graph, scope) == shape, scope


def test_vgg16_has_the_published_number_of_parameters(model: Any) -> None:
    MODELS["vgg16"](batch_size=2)
    assert _parameters(model.graph) == 138_357_544


def test_an_lstm_layer_has_8_hidden_squared_weights_however_many_steps(model: Any) -> None:
    MODELS["rnn"](batch_size=4, layers=2, hidden=16, steps=3, states=8)
    assert _parameters(model.graph) == 2 * (8 * 16**2 + 4 * 16) + 16 * 8 + 8


def test_wide_resnet_50_without_widening_is_resnet_50(model: Any) -> None:
    MODELS["wide_resnet"](batch_size=2, widening=1)
    assert _parameters(model.graph) == 25_557_032


def test_transformer_shares_one_embedding(model: Any) -> None:
    MODELS["transformer"](batch_size=2, layers=1, width=8, heads=2, length=4, vocabulary=10)
    attention, feed_forward, norm = 4 * 8 * 8, 2 * 8 * 32 + 32 + 8, 16
    assert _parameters(model.graph) == 10 * 8 + 3 * attention + 2 * feed_forward + 5 * norm


def test_every_layer_of_bert_reads_one_mask(model: Any) -> None:
    from tensoropt.api.strategy import import_model

    MODELS["bert_large"](batch_size=4, layers=5, width=8, heads=2, length=6, predictions=2, vocabulary=12)
    graph = import_model(model).graph
    (mask,) = [op for op in graph.of_type("Fanout") if op.outputs[0].shape == (4, 1, 1, 6)]
    assert len([edge for edge in graph.edges() if edge.tensor.op == mask.name]) == 5
