"""Datasets without tf.data's tuner, for whose thread the end of the data would wait.

TensorFlow gives every iterator over a dataset a thread that chooses how many elements are made side by side: after 10
ms, and each time after twice as long as before, up to a minute. Whoever ends an iterator wakes that thread and waits
until it has ended. Where both have one core, as ranks under ``mpirun``, the thread runs before the end is marked, finds
nothing to do and sleeps on: epochs of 3 s take 5.1 (TensorFlow 2.21, ``Model::OptimizeLoop``). Without the tuner, as
many elements are made side by side as there are threads.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework.dataset_options_pb2 import Options  # no public name writes a node's options

__all__ = ["untune_factory", "untuned", "untuned_variant"]

_OPTIONS = Options()
_OPTIONS.autotune_options.enabled = False
# What the node's elements are is asked of the dataset before it; the attributes must be there.
_ATTRS = {"serialized_options": _OPTIONS.SerializeToString(), "output_types": [tf.variant], "output_shapes": [None]}


def untuned(dataset: Any) -> Any:
    """A dataset of as many elements, whose iterators have no tuner."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def untuned_variant(variant: Any) -> Any:
    """The tensor of a dataset in a graph, of which iterators have no tuner."""
    return tf.raw_ops.OptionsDataset(input_dataset=variant, **_ATTRS)


def untune_factory(definition: Any) -> None:
    """Makes a function (``FunctionDef``) that returns a dataset return one without tuner, in place."""
    with tf.Graph().as_default():
        made = untuned_variant(tf.compat.v1.placeholder(tf.variant, [])).op.node_def
    for output, source in definition.ret.items():
        made.name, made.input[:] = f"{output}/untuned", [source]
        definition.node_def.add().CopyFrom(made)
        definition.ret[output] = f"{made.name}:handle:0"
