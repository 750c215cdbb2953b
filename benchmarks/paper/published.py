"""What the paper prints, to stand beside our numbers."""

from __future__ import annotations

__all__ = ["TABLE_1_MEMORY_GIB", "TABLE_3_SECONDS"]

# Table 1: estimated peak memory of training on one GPU at batch 256, in GiB (see examples.models for the unit).
TABLE_1_MEMORY_GIB = {"rnn": 126.0, "wide_resnet": 83.0, "transformer": 74.0, "vgg16": 30.0}

# Table 3: seconds of the search at 16 devices, on a machine with 48 cores.
TABLE_3_SECONDS = {
    "wide_resnet": {"ldp": 1292.0, "elimination": 19666.0, "one_thread": 17432.0},
    "rnn": {"ldp": 0.28, "elimination": 1.78, "one_thread": 0.40},
    "transformer": {"ldp": 201.0, "elimination": 3030.0, "one_thread": 1535.0},
}
