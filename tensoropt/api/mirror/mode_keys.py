"""The names of modes: the part of ``tf.estimator`` and ``tf.contrib.learn`` that scripts without Estimators use."""

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
