"""The models of TensorOpt's experiments (section 5, table 1), as symbolic graphs with the paper's parameter sizes.

``MODELS[name](batch_size=256)`` builds a model with tensoropt's own calls in the graph under construction, with
its training step, and returns the loss. Nothing is allocated, so a model of 108 GiB takes as long to build as a
small one. Every size is an argument; the defaults are the paper's.

The paper prints "GB" and means 2^30 bytes: VGG16 has 138,357,544 parameters, which are 0.515 GiB (it prints 0.52) and
0.553e9 bytes. All models train by plain gradient descent in float32, which keeps nothing beside the variables and
their gradients, as the paper's memory figures suggest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from examples.models.bert import bert_large
from examples.models.rnn import rnn
from examples.models.transformer import transformer, transformer_s
from examples.models.vgg16 import vgg16
from examples.models.wide_resnet import wide_resnet

__all__ = ["MODELS", "PAPER_PARAMETER_GIB"]

MODELS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "vgg16": vgg16,
        "wide_resnet": wide_resnet,
        "rnn": rnn,
        "transformer": transformer,
        "transformer_s": transformer_s,
        "bert_large": bert_large,
    }
)

# TensorOpt table 1 and section 5.3; BERT-large as its own paper has it (340 M parameters).
PAPER_PARAMETER_GIB: Mapping[str, float] = MappingProxyType(
    {
        "vgg16": 0.52,
        "wide_resnet": 7.3,
        "rnn": 108.0,
        "transformer": 9.7,
        "transformer_s": 4.8,
        "bert_large": 340e6 * 4 / 2**30,
    }
)
