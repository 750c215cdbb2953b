"""What scripts without Estimators take of ``tf.estimator`` and ``tf.contrib.learn``: the names of modes."""

from __future__ import annotations

__all__ = ["LearnModeKeys", "ModeKeys"]


class ModeKeys:
    """``tf.estimator.ModeKeys``."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class LearnModeKeys:
    """``tf.contrib.learn.ModeKeys``."""

    TRAIN = "train"
    EVAL = "eval"
    INFER = "infer"
