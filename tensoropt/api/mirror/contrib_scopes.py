"""What layers of ``tensoropt.contrib`` share: scopes in which variables have ``tf.contrib``'s names, and their ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model

__all__ = ["CHANNELS", "finished", "layer_scope"]

CHANNELS = {None: "channels_last", "NHWC": "channels_last", "NCHW": "channels_first"}
"""Our names of the places of channels, by those of ``tf.contrib``."""

_RENAMED = {"kernel": "weights", "bias": "biases"}


@contextlib.contextmanager
def layer_scope(scope: Any, default: str, reuse: Any, collections: Any) -> Iterator[Any]:
    """The layer's variable scope, in which variables have the names of ``tf.contrib``."""

    def renamed(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        head, _, last = name.rpartition("/")
        last = _RENAMED.get(last, last)
        made = getter(f"{head}/{last}" if head else last, *args, **kwargs)
        names = collections.get(last) if isinstance(collections, Mapping) else collections
        for each in names or ():
            if made not in tf.compat.v1.get_collection_ref(each):
                tf.compat.v1.add_to_collection(each, made)
        return made

    with (
        current_model().enter(),
        tf.compat.v1.variable_scope(scope, default, reuse=reuse, custom_getter=renamed) as entered,
    ):
        yield entered


def finished(outputs: Any, normalizer: Any, params: Any, activation: Any, collections: Any) -> Any:
    """What a layer gives: normalized, activated, and in its collections."""
    if normalizer is not None:
        outputs = normalizer(outputs, **(params or {}))
    if activation is not None:
        outputs = activation(outputs)
    for each in [collections] if isinstance(collections, str) else collections or ():
        tf.compat.v1.add_to_collection(each, outputs)
    return outputs
