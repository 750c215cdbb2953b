"""TensorFlow's switches between its versions: what asks for how the mirror works anyway does nothing."""

from __future__ import annotations

from tensoropt.api.mirror.shapes import unknown_sizes_are_dimensions

__all__ = [
    "disable_control_flow_v2",
    "disable_eager_execution",
    "disable_tensor_equality",
    "disable_v2_behavior",
    "disable_v2_tensorshape",
    "enable_control_flow_v2",
    "enable_resource_variables",
    "enable_v2_tensorshape",
]


def disable_eager_execution() -> None:
    """Does nothing: mirrored calls build a graph."""


def enable_resource_variables() -> None:
    """Does nothing: variables of the mirror are resource variables."""


def disable_control_flow_v2() -> None:
    """Does nothing: which ops a loop or a branch is made of changes no number."""


def enable_control_flow_v2() -> None:
    """Does nothing: which ops a loop or a branch is made of changes no number."""


def disable_tensor_equality() -> None:
    """Does nothing: in a graph, ``==`` of two tensors says whether they are one tensor, as in TensorFlow 1."""


def disable_v2_behavior() -> None:
    """As :func:`disable_v2_tensorshape`; all else that it asks for is so anyway."""
    disable_v2_tensorshape()


def disable_v2_tensorshape() -> None:
    """Makes unknown sizes of shapes ``Dimension(None)``. Known ones are integers with a ``value`` in any case."""
    unknown_sizes_are_dimensions(True)


def enable_v2_tensorshape() -> None:
    """Makes unknown sizes of shapes None, as they are at first."""
    unknown_sizes_are_dimensions(False)
