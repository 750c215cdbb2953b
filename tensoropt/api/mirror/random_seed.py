"""The seed of the private graph, from which every random op's own seed follows."""

from __future__ import annotations

from tensoropt.api.mirror.model import current_model

__all__ = ["set_random_seed", "set_seed"]


def set_random_seed(seed: int) -> None:
    """Set the graph-level seed, as ``tf.compat.v1.set_random_seed`` does for its default graph.

    A random op made later without a seed of its own draws from this seed and the op's place in the graph;
    neither depends on how many devices run it.

    Args:
        seed: Any integer.
    """
    current_model().seed = seed


def set_seed(seed: int) -> None:
    """Set the graph-level seed, under the name it has in TensorFlow 2; see :func:`set_random_seed`."""
    set_random_seed(seed)
