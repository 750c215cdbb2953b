"""A training loop of one's own, with ``tf.GradientTape`` and a Keras model: one line makes its step parallel.

python custom_loop.py, or mpirun -n 2 python custom_loop.py
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import tensoropt


def batches(images, labels, size, seed):
    order = np.random.default_rng(seed).permutation(len(images))  # the same on every rank
    for begin in range(0, len(order), size):
        chosen = order[begin : begin + size]
        yield images[chosen], labels[chosen]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images, labels = (digits.data / 16.0).astype("float32"), digits.target.astype("int32")
    model = keras.Sequential([keras.Input((64,)), layers.Dense(128, activation="relu"), layers.Dense(10)])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    @tensoropt.function  # the line, in the place of tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, norm

    for epoch in range(epochs):
        losses = [float(step(x, y)[0]) for x, y in batches(images[:1500], labels[:1500], 64, epoch)]
        optimizer.learning_rate = 1e-3 * 0.8**epoch
        if tensoropt.world_rank() == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")
    loss = float(loss_of(labels[1500:], model(images[1500:])))
    accuracy = float(np.mean(np.argmax(model(images[1500:]), 1) == labels[1500:]))
    if tensoropt.world_rank() == 0:
        print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
