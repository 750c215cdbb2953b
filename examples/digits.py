"""Trains on the 1,797 handwritten digits that come with scikit-learn, on as many ranks as mpirun starts.

mpirun -n 4 python examples/digits.py --model cnn
"""

from __future__ import annotations

from typing import Any

import numpy as np
import training
from sklearn.datasets import load_digits

import tensoropt

_CLASSES = 10
_TEST = 360


def mlp(images: Any) -> Any:
    """Two hidden layers."""
    hidden = tensoropt.layers.flatten(images)
    hidden = tensoropt.layers.dense(hidden, 256, activation=tensoropt.nn.relu)
    hidden = tensoropt.layers.dense(hidden, 128, activation=tensoropt.nn.relu)
    return tensoropt.layers.dense(hidden, _CLASSES)


def cnn(images: Any) -> Any:
    """Two convolutions with pooling, one hidden layer."""
    hidden = tensoropt.layers.conv2d(images, 16, 3, padding="same", activation=tensoropt.nn.relu)
    hidden = tensoropt.layers.max_pooling2d(hidden, 2, 2)
    hidden = tensoropt.layers.conv2d(hidden, 32, 3, padding="same", activation=tensoropt.nn.relu)
    hidden = tensoropt.layers.max_pooling2d(hidden, 2, 2)
    hidden = tensoropt.layers.flatten(hidden)
    hidden = tensoropt.layers.dense(hidden, 64, activation=tensoropt.nn.relu)
    return tensoropt.layers.dense(hidden, _CLASSES)


def main() -> None:
    """Runs the example."""
    parser = training.parser(__doc__, steps=300, batch=64)
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--learning-rate", type=float, default=0.002)
    flags = parser.parse_args()

    digits = load_digits()
    order = np.random.default_rng(flags.seed).permutation(len(digits.target))
    samples = (digits.images[order, :, :, np.newaxis] / 16.0).astype(np.float32)
    targets = digits.target[order].astype(np.int32)

    tensoropt.init()
    tensoropt.random.set_seed(flags.seed)
    images = tensoropt.placeholder(tensoropt.float32, [flags.batch, 8, 8, 1], name="images")
    labels = tensoropt.placeholder(tensoropt.int32, [flags.batch], name="labels")
    logits = mlp(images) if flags.model == "mlp" else cnn(images)
    loss = tensoropt.softmax_cross_entropy(labels, logits)
    train_op = tensoropt.train.AdamOptimizer(flags.learning_rate).minimize(loss)
    prediction = tensoropt.argmax(logits, axis=1)

    def test() -> dict[str, float]:
        """The share of test images that are recognised; the last batch is filled up with images that don't count."""
        right = 0
        for start in range(len(samples) - _TEST, len(samples), flags.batch):
            batch, expected = samples[start : start + flags.batch], targets[start : start + flags.batch]
            filled = np.concatenate([batch, samples[: flags.batch - len(batch)]])
            found = tensoropt.run(prediction, {images: filled})
            right += int(np.sum(found[: len(expected)] == expected))
        return {"test_accuracy": right / _TEST}

    training.train(flags, loss, train_op, {images: samples[:-_TEST], labels: targets[:-_TEST]}, test)


if __name__ == "__main__":
    main()
