"""An image classifier in Keras, on scikit-learn's handwritten digits: one line makes ``fit`` parallel.

python image_classifier.py, or mpirun -n 2 python image_classifier.py
"""

import argparse

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import tensoropt.keras


def load_data():
    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[..., np.newaxis]
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], digits.target[order]
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def make_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    keras.utils.set_random_seed(1)
    train, test = load_data()
    model = make_model()
    model.compile(
        keras.optimizers.AdamW(2e-3, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model = tensoropt.keras.parallelize(model, option="mini_time")  # the line
    rates = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1)
    model.fit(*train, batch_size=64, epochs=epochs, validation_data=test, callbacks=[rates], verbose=2)
    model.evaluate(*test, verbose=2)


if __name__ == "__main__":
    main()
