"""A Transformer on text in Keras: does a made-up sentence say more good than bad? One line makes ``fit`` parallel.

python text_transformer.py, or mpirun -n 2 python text_transformer.py
"""

import argparse

import keras
import numpy as np
from keras import layers

import tensoropt.keras

GOOD, BAD, OTHER = ["fine", "great", "bright"], ["poor", "awful", "dull"], [f"word{i}" for i in range(50)]
WORDS = {word: number for number, word in enumerate(["", *GOOD, *BAD, *OTHER])}
LENGTH = 16


def load_data(count, seed):
    random = np.random.default_rng(seed)
    texts = [random.choice([*GOOD, *BAD, *OTHER[: random.integers(3, 50)]], LENGTH) for _ in range(count)]
    labels = [sum(word in GOOD for word in text) > sum(word in BAD for word in text) for text in texts]
    tokens = [[WORDS[word] for word in text] for text in texts]
    return np.array(tokens, "int32"), np.array(labels, "float32")


def block(x, heads, width):
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(heads, width // heads)(x, x))
    return x + layers.Dense(width)(layers.Dense(2 * width, activation="gelu")(x))


def make_model(width=32, heads=4, blocks=1):
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(len(WORDS), width)(tokens)
    for _ in range(blocks):
        x = block(x, heads, width)
    return keras.Model(tokens, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    keras.utils.set_random_seed(1)
    model = make_model()
    model.compile(
        keras.optimizers.AdamW(1e-3, global_clipnorm=1.0),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    model = tensoropt.keras.parallelize(model, option="mini_time")  # the line
    model.fit(*load_data(1250, 0), batch_size=32, epochs=epochs, validation_data=load_data(300, 1), verbose=2)
    model.evaluate(*load_data(300, 2), verbose=2)


if __name__ == "__main__":
    main()
