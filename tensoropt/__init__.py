"""Automatic parallelization of TensorFlow programs by searching over strategies."""

__version__ = "0.1.0"
