"""Trains where activations do not fit: in micro-batches, and by making some of them again in the backward pass.

mpirun -n 2 python little_memory.py --memory-mib 96; with --whole it says what would fit
"""

import argparse

import keras
import numpy as np
from keras import layers

import tensoropt.keras

STEPS = 3


def load_data(rows, features=64):
    random = np.random.default_rng(0)
    samples = random.normal(size=(rows, features)).astype("float32")
    return samples, (samples[:, :8].sum(axis=1) > 0).astype("int32")


def make_model(features=64, width=128, blocks=6):
    x = inputs = keras.Input((features,))
    x = layers.Dense(width)(x)
    for _ in range(blocks):
        inner = layers.Dense(width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(inner)
    return keras.Model(inputs, layers.Dense(2)(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=16384, help="of a batch")
    parser.add_argument("--memory-mib", type=float, default=96, help="that a device may hold")
    parser.add_argument("--whole", action="store_true", help="whole batches, with all that the backward pass reads")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(1)
    samples, labels = load_data(STEPS * arguments.rows)
    model = make_model()
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    limit = arguments.memory_mib * 2**20
    parts, again = (1, False) if arguments.whole else ("auto", True)
    model = tensoropt.keras.parallelize(model, memory_bytes=limit, micro_batches=parts, recompute=again)
    model.fit(samples, labels, batch_size=arguments.rows, epochs=arguments.epochs, shuffle=False, verbose=2)


if __name__ == "__main__":
    main()
