"""Keras models whose ``fit`` runs on all ranks by a plan."""

from tensoropt.api.mirror.tensorflow_loading import load_tensorflow

load_tensorflow()  # before a module of this package imports it, with all that its libraries write
