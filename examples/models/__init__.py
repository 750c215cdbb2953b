"""The models of the papers' experiments, as symbolic graphs with the papers' parameter sizes.

The first six are TensorOpt's (section 5, table 1), the others FlexFlow's (table 4) and PaSE's (section IV).

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

from examples.models.alexnet import alexnet
from examples.models.bert import bert_large
from examples.models.inception3 import inception3
from examples.models.lenet import lenet
from examples.models.nmt import nmt
from examples.models.resnet101 import resnet101
from examples.models.rnn import rnn
from examples.models.rnnlm import rnnlm
from examples.models.rnntc import rnntc
from examples.models.transformer import transformer, transformer_s
from examples.models.vgg16 import vgg16
from examples.models.wide_resnet import wide_resnet

__all__ = ["MODELS", "PAPER_PARAMETER_GIB", "PER_DEVICE_BATCH"]

MODELS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "vgg16": vgg16,
        "wide_resnet": wide_resnet,
        "rnn": rnn,
        "transformer": transformer,
        "transformer_s": transformer_s,
        "bert_large": bert_large,
        "alexnet": alexnet,
        "inception3": inception3,
        "resnet101": resnet101,
        "rnntc": rnntc,
        "rnnlm": rnnlm,
        "nmt": nmt,
        "lenet": lenet,
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

# FlexFlow, section 8.1: samples of a step for each device. The defaults of its models are for four.
PER_DEVICE_BATCH: Mapping[str, int] = MappingProxyType(
    {"alexnet": 256, "inception3": 64, "resnet101": 64, "rnntc": 64, "rnnlm": 64, "nmt": 64}
)
