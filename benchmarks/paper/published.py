"""What the paper prints, to stand beside our numbers."""

from __future__ import annotations

__all__ = ["FLEXFLOW_TABLE_5_SECONDS", "PASE_TABLE_1_SECONDS", "TABLE_1_MEMORY_GIB", "TABLE_3_SECONDS"]

# Table 1: estimated peak memory of training on one GPU at batch 256, in GiB (see examples.models for the unit).
TABLE_1_MEMORY_GIB = {"rnn": 126.0, "wide_resnet": 83.0, "transformer": 74.0, "vgg16": 30.0}

# Table 3: seconds of the search at 16 devices, on a machine with 48 cores.
TABLE_3_SECONDS = {
    "wide_resnet": {"ldp": 1292.0, "elimination": 19666.0, "one_thread": 17432.0},
    "rnn": {"ldp": 0.28, "elimination": 1.78, "one_thread": 0.40},
    "transformer": {"ldp": 201.0, "elimination": 3030.0, "one_thread": 1535.0},
}

# PaSE, table I: seconds of the search by devices: breadth-first order (None: out of memory), FlexFlow (None: not
# available), and theirs.
PASE_TABLE_1_SECONDS: dict[str, dict[int, dict[str, float | None]]] = {
    "alexnet": {
        4: {"breadth_first": 0.234, "flexflow": 2.54, "pase": 0.226},
        8: {"breadth_first": 0.260, "flexflow": 2.77, "pase": 0.253},
        16: {"breadth_first": 0.303, "flexflow": 6.98, "pase": 0.295},
        32: {"breadth_first": 0.385, "flexflow": 7.92, "pase": 0.361},
        64: {"breadth_first": 0.485, "flexflow": 17.30, "pase": 0.475},
    },
    "inception3": {
        4: {"breadth_first": None, "flexflow": 69.21, "pase": 14.398},
        8: {"breadth_first": None, "flexflow": 146.51, "pase": 20.018},
        16: {"breadth_first": None, "flexflow": 365.82, "pase": 39.791},
        32: {"breadth_first": None, "flexflow": 937.96, "pase": 86.039},
        64: {"breadth_first": None, "flexflow": 2237.04, "pase": 196.253},
    },
    "rnnlm": {
        4: {"breadth_first": 0.070, "flexflow": 107.07, "pase": 0.057},
        8: {"breadth_first": 0.084, "flexflow": 164.29, "pase": 0.086},
        16: {"breadth_first": 0.109, "flexflow": 432.19, "pase": 0.069},
        32: {"breadth_first": 0.167, "flexflow": 668.22, "pase": 0.131},
        64: {"breadth_first": 0.271, "flexflow": 1041.98, "pase": 0.215},
    },
    "transformer": {
        4: {"breadth_first": None, "flexflow": None, "pase": 9.752},
        8: {"breadth_first": None, "flexflow": None, "pase": 28.798},
        16: {"breadth_first": None, "flexflow": None, "pase": 130.882},
        32: {"breadth_first": None, "flexflow": None, "pase": 553.022},
        64: {"breadth_first": None, "flexflow": None, "pase": 1883.187},
    },
}

# FlexFlow, table 5: seconds of the search by devices, with full and with delta simulation.
FLEXFLOW_TABLE_5_SECONDS: dict[str, dict[int, tuple[float, float]]] = {
    "alexnet": {4: (0.11, 0.04), 8: (0.40, 0.13), 16: (1.4, 0.48), 32: (5.3, 1.8), 64: (18.0, 5.9)},
    "resnet101": {4: (1.4, 0.4), 8: (4.5, 1.4), 16: (22.0, 7.3), 32: (107.0, 33.0), 64: (515.0, 158.0)},
    "inception3": {4: (14.0, 4.1), 8: (66.0, 17.0), 16: (388.0, 77.0), 32: (1746.0, 298.0), 64: (8817.0, 1278.0)},
    "rnntc": {4: (16.0, 7.5), 8: (91.0, 39.0), 16: (404.0, 170.0), 32: (1358.0, 516.0), 64: (4404.0, 1489.0)},
    "rnnlm": {4: (21.0, 9.2), 8: (76.0, 31.0), 16: (327.0, 121.0), 32: (1102.0, 342.0), 64: (3406.0, 969.0)},
    "nmt": {4: (40.0, 16.0), 8: (178.0, 65.0), 16: (998.0, 328.0), 32: (2698.0, 701.0), 64: (8982.0, 2190.0)},
}
