"""Keras models that :mod:`benchmarks.coverage` plans and trains, each small and with data that are drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
from keras import layers, ops

__all__ = ["MODELS", "SIZES", "Made"]

# A compiled model, and what it trains on: inputs and targets, or inputs alone.
Made = tuple[Any, tuple[Any, ...]]
Build = Callable[[int], Made]  # takes the number of samples

_CLASSES = 10
_TOKENS, _WORDS = 12, 50  # of a text, of a vocabulary
_SPARSE = "sparse_categorical_crossentropy"


def _random() -> np.random.Generator:
    return np.random.default_rng(3)


def _images(rows: int, side: int, channels: int = 3) -> np.ndarray:
    return _random().normal(size=(rows, side, side, channels)).astype(np.float32)


def _labels(*shape: int, below: int = _CLASSES) -> np.ndarray:
    return np.random.default_rng(5).integers(0, below, shape).astype(np.int32)


def _texts(rows: int) -> np.ndarray:
    """Texts that end in padding, of another length each."""
    tokens = _random().integers(1, _WORDS, (rows, _TOKENS))
    lengths = _random().integers(2, _TOKENS + 1, rows)
    return np.where(np.arange(_TOKENS) < lengths[:, None], tokens, 0).astype(np.int32)


def _compiled(model: Any, loss: Any = _SPARSE, metrics: tuple[str, ...] = ("accuracy",)) -> Any:
    model.compile("adam", loss, metrics=list(metrics))
    return model


# ------------------------------------------------------------------------------------------------- applications

# By families: the least side of an image, the size that is executed, and the others.
_FAMILIES: Mapping[str, tuple[int, tuple[str, ...]]] = MappingProxyType(
    {
        "vgg": (32, ("VGG16", "VGG19")),
        "resnet": (32, ("ResNet50", "ResNet101", "ResNet152")),
        "resnet_v2": (32, ("ResNet50V2", "ResNet101V2", "ResNet152V2")),
        "inception": (75, ("InceptionV3",)),
        "inception_resnet": (75, ("InceptionResNetV2",)),
        "xception": (71, ("Xception",)),
        "mobilenet": (32, ("MobileNet",)),
        "mobilenet_v2": (32, ("MobileNetV2",)),
        "mobilenet_v3": (32, ("MobileNetV3Small", "MobileNetV3Large")),
        "densenet": (32, ("DenseNet121", "DenseNet169", "DenseNet201")),
        "nasnet": (32, ("NASNetMobile", "NASNetLarge")),
        "efficientnet": (32, ("EfficientNetB0", *(f"EfficientNetB{size}" for size in range(1, 8)))),
        "efficientnet_v2": (
            32,
            ("EfficientNetV2B0", *(f"EfficientNetV2{size}" for size in ("B1", "B2", "B3", *"SML"))),
        ),
        "convnext": (32, ("ConvNeXtTiny", *(f"ConvNeXt{size}" for size in ("Small", "Base", "Large", "XLarge")))),
    }
)


def _application(name: str, side: int, rows: int) -> Made:
    model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=_CLASSES)
    return _compiled(model), (_images(rows, side), _labels(rows))


# -------------------------------------------------------------------------------------------------------- texts


def _attended(hidden: Any, other: Any, *, causal: bool = False) -> Any:
    attended = layers.MultiHeadAttention(2, 8)(hidden, other, use_causal_mask=causal)
    return layers.LayerNormalization()(hidden + attended)


def _fed_forward(hidden: Any) -> Any:
    wide = layers.Dense(32, activation="gelu")(hidden)
    return layers.LayerNormalization()(hidden + layers.Dropout(0.1)(layers.Dense(16)(wide)))


def _attention_encoder(rows: int) -> Made:
    tokens = keras.Input((_TOKENS,), dtype="int32")
    hidden = layers.Embedding(_WORDS, 16, mask_zero=True)(tokens)
    for _ in range(2):
        hidden = _fed_forward(_attended(hidden, hidden))
    model = keras.Model(tokens, layers.Dense(4, activation="softmax")(layers.GlobalAveragePooling1D()(hidden)))
    return _compiled(model), (_texts(rows), _labels(rows, below=4))


def _attention_decoder(rows: int) -> Made:
    source, target = keras.Input((_TOKENS,), dtype="int32"), keras.Input((_TOKENS,), dtype="int32")
    memory, hidden = (layers.Embedding(_WORDS, 16, mask_zero=True)(text) for text in (source, target))
    memory = _fed_forward(_attended(memory, memory))
    hidden = _fed_forward(_attended(_attended(hidden, hidden, causal=True), memory))
    model = keras.Model([source, target], layers.Dense(_WORDS, activation="softmax")(hidden))
    texts = _texts(rows)
    return _compiled(model), ([texts, np.roll(texts, 1, 1)], texts)


def _tagger(rows: int) -> Made:
    """A label of each token, by two layers of which each reads both ways; padding counts in no loss or metric."""
    tokens = keras.Input((_TOKENS,), dtype="int32")
    hidden = layers.Embedding(_WORDS, 16, mask_zero=True)(tokens)
    for cells in (layers.GRU(8, return_sequences=True), layers.LSTM(8, return_sequences=True)):
        hidden = layers.Bidirectional(cells)(hidden)
    model = keras.Model(tokens, layers.Dense(4, activation="softmax")(hidden))
    return _compiled(model), (_texts(rows), _labels(rows, _TOKENS, below=4))


def _recurrent(layer: Callable[[], Any], rows: int) -> Made:
    model = keras.Sequential(
        [
            keras.Input((_TOKENS,), dtype="int32"),
            layers.Embedding(_WORDS, 16, mask_zero=True),
            layer(),
            layers.Dense(4, activation="softmax"),
        ]
    )
    return _compiled(model), (_texts(rows), _labels(rows, below=4))


# ------------------------------------------------------------------------------------------------------- others


def _unet(rows: int) -> Made:
    image = keras.Input((32, 32, 3))

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)))
        return x

    x, skipped = image, []
    for filters in (8, 16):
        x = block(x, filters)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 32)
    for filters, skip in zip((16, 8), reversed(skipped), strict=True):
        x = layers.Concatenate()([layers.Conv2DTranspose(filters, 2, strides=2)(x), skip])
        x = block(x, filters)
    model = keras.Model(image, layers.Conv2D(3, 1, activation="softmax")(x))
    return _compiled(model), (_images(rows, 32), _labels(rows, 32, 32, below=3))


class Vae(keras.Model):
    """A variational autoencoder of flat images, with a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.mean, self.scale = layers.Dense(32, activation="relu"), layers.Dense(4), layers.Dense(4)
        self.decoder = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(64, activation="sigmoid")])
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        hidden = self.hidden(x)
        mean, scale = self.mean(hidden), self.scale(hidden)
        drawn = mean + ops.exp(0.5 * scale) * keras.random.normal(ops.shape(mean), seed=self.seeds)
        return self.decoder(drawn), mean, scale

    def train_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        x, *_ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            made, mean, scale = self(x, training=True)
            far = ops.sum(keras.losses.binary_crossentropy(x, made)) / 8
            divergence = -0.5 * ops.mean(ops.sum(1 + scale - ops.square(mean) - ops.exp(scale), axis=1))
            loss = far + divergence
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "far": far, "divergence": divergence}


def _vae(rows: int) -> Made:
    model = Vae()
    model.compile("adam")
    flat = _random().random((rows, 64)).astype(np.float32)
    model(flat[:1])
    return model, (flat,)


class Gan(keras.Model):
    """Two networks and two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(4 * 4 * 8),
                layers.Reshape((4, 4, 8)),
                layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Conv2D(1, 5, padding="same", activation="tanh"),
            ]
        )
        self.critic = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(8, 4, strides=2, padding="same"),
                layers.LeakyReLU(0.2),
                layers.Flatten(),
                layers.Dropout(0.2),
                layers.Dense(1),
            ]
        )
        self.seeds = keras.random.SeedGenerator(1)
        self.first, self.second = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3, beta_1=0.5)

    def train_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        real, *_ = keras.utils.unpack_x_y_sample_weight(data)
        count = ops.shape(real)[0]
        loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        losses = {}
        for name, network, optimizer in (
            ("critic", self.critic, self.first),
            ("generator", self.generator, self.second),
        ):
            drawn = keras.random.normal((count, 8), seed=self.seeds)
            with tf.GradientTape() as tape:
                made = self.critic(self.generator(drawn, training=True), training=True)
                if name == "critic":
                    said = ops.concatenate([made, self.critic(real, training=True)], axis=0)
                    truth = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))], axis=0)
                    loss = loss_of(truth, said)
                else:
                    loss = loss_of(ops.zeros((count, 1)), made)
            optimizer.apply(tape.gradient(loss, network.trainable_variables), network.trainable_variables)
            losses[name] = loss
        return losses


def _gan(rows: int) -> Made:
    model = Gan()
    model.compile()
    model.built = True
    return model, (_images(rows, 8, 1),)


def _two_towers(rows: int) -> Made:
    inputs = [keras.Input((), dtype="int32", name=name) for name in ("user", "item")]
    counts = (50_000, 20_000)
    towers = []
    for count, rows_of in zip(counts, inputs, strict=True):
        towers.append(layers.Dense(16)(layers.Dense(32, activation="relu")(layers.Embedding(count, 32)(rows_of))))
    model = keras.Model(inputs, layers.Dot(1)(towers))
    pairs = [_labels(rows, below=count) for count in counts]
    return _compiled(model, "mse", ("mae",)), (pairs, _random().normal(size=rows).astype(np.float32))


# --------------------------------------------------------------------------------------------------- keras-hub


def _hub() -> Any:
    """The package keras-hub.

    Raises:
        ModuleNotFoundError: naming what to install.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise ModuleNotFoundError(f"keras-hub cannot be imported ({error}): pip install keras-hub") from error
    return keras_hub.models


def _pooled(backbone: Any, inputs: Mapping[str, np.ndarray], take: Callable[[Any], Any], rows: int) -> Made:
    model = keras.Model(backbone.input, layers.Dense(4, activation="softmax")(take(backbone.output)))
    return _compiled(model), ({name: inputs[name] for name in backbone.input}, _labels(rows, below=4))


def _text_inputs(rows: int) -> dict[str, np.ndarray]:
    texts = _texts(rows)
    mask = (texts != 0).astype(np.int32)
    found = {"token_ids": texts, "padding_mask": mask, "segment_ids": np.zeros_like(texts)}
    for side in ("encoder", "decoder"):
        found |= {f"{side}_token_ids": texts, f"{side}_padding_mask": mask}
    return found


def _mean(hidden: Any) -> Any:
    return layers.GlobalAveragePooling1D()(hidden)


def _bert(rows: int) -> Made:
    backbone = _hub().BertBackbone(
        vocabulary_size=_WORDS, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=16
    )
    return _pooled(backbone, _text_inputs(rows), lambda outputs: outputs["pooled_output"], rows)


def _gpt2(rows: int) -> Made:
    backbone = _hub().GPT2Backbone(
        vocabulary_size=_WORDS, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32, max_sequence_length=16
    )
    return _pooled(backbone, _text_inputs(rows), _mean, rows)


def _llama(rows: int) -> Made:
    backbone = _hub().LlamaBackbone(
        vocabulary_size=_WORDS,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
    )
    return _pooled(backbone, _text_inputs(rows), _mean, rows)


def _t5(rows: int) -> Made:
    backbone = _hub().T5Backbone(vocabulary_size=_WORDS, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32)
    return _pooled(backbone, _text_inputs(rows), lambda outputs: _mean(outputs["decoder_sequence_output"]), rows)


def _vit(rows: int) -> Made:
    backbone = _hub().ViTBackbone(
        image_shape=(32, 32, 3), patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32
    )
    model = keras.Model(backbone.input, layers.Dense(4, activation="softmax")(_mean(backbone.output)))
    return _compiled(model), (_images(rows, 32), _labels(rows, below=4))


# ------------------------------------------------------------------------------------------------------ the list


def _bidirectional(layer: Callable[[int], Any]) -> Any:
    return layers.Bidirectional(layer(8))


_APPLICATIONS = {
    name: functools.partial(_application, name, side) for side, names in _FAMILIES.values() for name in names
}
# Models that are planned and trained, by name; the first size of each family of ``keras.applications``.
MODELS: Mapping[str, Build] = MappingProxyType(
    {
        "attention_encoder": _attention_encoder,
        "attention_decoder": _attention_decoder,
        "lstm": functools.partial(_recurrent, functools.partial(layers.LSTM, 16)),
        "gru": functools.partial(_recurrent, functools.partial(layers.GRU, 16)),
        "bidirectional_lstm": functools.partial(_recurrent, functools.partial(_bidirectional, layers.LSTM)),
        "bidirectional_gru": functools.partial(_recurrent, functools.partial(_bidirectional, layers.GRU)),
        "tagger": _tagger,
        "unet": _unet,
        "vae": _vae,
        "gan": _gan,
        "two_towers": _two_towers,
        "hub_bert": _bert,
        "hub_gpt2": _gpt2,
        "hub_llama": _llama,
        "hub_t5": _t5,
        "hub_vit": _vit,
        **{names[0]: _APPLICATIONS[names[0]] for _, names in _FAMILIES.values()},
    }
)
# Further sizes, which are imported only.
SIZES: Mapping[str, Build] = MappingProxyType({k: v for k, v in _APPLICATIONS.items() if k not in MODELS})
