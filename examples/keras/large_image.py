"""Segments one large image a step with a U-Net: the image is cut by height and width, as a batch of one cannot be.

python large_image.py, or mpirun -n 2 python large_image.py --size 1024
"""

import argparse

import keras
import numpy as np
from keras import layers

import tensoropt.keras


def load_data(size, count=4):
    """Discs on noise, and which of three sizes each pixel's disc has."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:size, :size]
    images = random.normal(0.0, 0.3, (count, size, size, 1)).astype("float32")
    labels = np.zeros((count, size, size), "int32")
    for image, label in zip(images, labels, strict=True):
        for row, column, kind in random.integers(0, (size, size, 3), (24, 3)):
            inside = (rows - row) ** 2 + (columns - column) ** 2 < (size // 32 * (kind + 1)) ** 2
            image[inside] += 0.5
            label[inside] = kind + 1
    return images, labels


def block(x, filters):
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def make_model(size, width=8, depth=3):
    image = x = keras.Input((size, size, 1))
    skipped = []
    for level in range(depth):
        skipped.append(block(x, width << level))
        x = layers.MaxPooling2D()(skipped[-1])
    x = block(x, width << depth)
    for level in reversed(range(depth)):
        x = layers.Conv2DTranspose(width << level, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, skipped[level]]), width << level)
    return keras.Model(image, layers.Conv2D(4, 1)(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", type=int, default=256)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(1)
    images, labels = load_data(arguments.size)
    model = make_model(arguments.size)
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model = tensoropt.keras.parallelize(model, option="mini_time")  # the line
    model.fit(images, labels, batch_size=1, epochs=arguments.epochs, shuffle=False, verbose=2)


if __name__ == "__main__":
    main()
