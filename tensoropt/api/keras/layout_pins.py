"""Layouts of a model's variables in the form of ``keras.distribution.LayoutMap``: pins for a search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tensoropt.api.find.pins import Pin, Pins
from tensoropt.errors import PlanError

__all__ = ["LayoutPins", "layout_pins"]

_EXAMPLE = "layout_map={'.*kernel': (None, 'model')}"


class LayoutPins:
    """Patterns of variables' paths, with the mesh axes that split dimensions of these variables.

    A pattern is matched as Keras matches it: one that is a path itself, or else the only one that matches all of it.
    """

    def __init__(self, patterns: Mapping[str, tuple[str | None, ...]], mesh: Mapping[str, int]) -> None:
        """See :func:`layout_pins`."""
        self._patterns, self._mesh = patterns, mesh

    def of(self, model: Any, variables: Mapping[str, Any]) -> Pins:
        """The pins of a model.

        Args:
            model: whose variables have the paths.
            variables: TensorFlow's variables of a graph, by their names there.

        Raises:
            PlanError: a pattern that matches nothing, several that match one variable, or one that does not fit it.
        """
        by_value = {id(variable): name for name, variable in variables.items()}
        matched: set[str] = set()
        pins = {}
        for variable in model.variables:
            pattern = self._pattern_of(variable.path)
            if pattern is None:
                continue
            matched.add(pattern)
            axes, shape = self._patterns[pattern], tuple(variable.shape)
            subject = f"variable '{variable.path}' (layout_map '{pattern}')"
            if len(axes) != len(shape):
                raise PlanError(
                    f"{subject}: has the shape {list(shape)}, of {len(shape)} dimensions, but the layout {axes} is for "
                    f"{len(axes)}. Give an axis or None for each dimension."
                )
            name = by_value.get(id(variable.value))
            if name is not None:
                pins[name] = Pin(subject, shape, axes)
        for pattern in self._patterns:
            if pattern not in matched:
                paths = [variable.path for variable in model.variables]
                raise PlanError(
                    f"layout_map: no variable of '{model.name}' has a path that matches '{pattern}' as a whole. Its "
                    f"{len(paths)} variables are {', '.join(map(repr, paths[:8]))}{', …' if len(paths) > 8 else ''}. "
                    "Begin a pattern with '.*' to match the end of paths."
                )
        return Pins(pins, self._mesh)

    def _pattern_of(self, path: str) -> str | None:
        if path in self._patterns:
            return path
        found = [pattern for pattern in self._patterns if re.fullmatch(pattern, path)]
        if len(found) > 1:
            raise PlanError(
                f"layout_map: variable '{path}' matches several of its patterns: {', '.join(map(repr, found))}. Let "
                "at most one match it."
            )
        return found[0] if found else None


def layout_pins(layout_map: Any, mesh: Mapping[str, int] | None, option: Any) -> LayoutPins | None:
    """Returns the pins of a layout map; None if there is no map.

    Args:
        layout_map: patterns of paths with a tuple of names of mesh axes or None, or a ``keras.distribution.LayoutMap``.
        mesh: devices along each named axis, the outermost first; by default that of a ``LayoutMap``, or else the only
            name stands for all devices.
        option: chooses the plan; it must be one that searches.

    Raises:
        PlanError: ``layout_map`` is no layout map, names an unknown axis or an axis twice, or the option does not
            search.
    """
    if layout_map is None:
        if mesh is not None:
            raise PlanError(f"mesh={mesh!r}: names axes for layout_map, which was not given. Give {_EXAMPLE}, too.")
        return None
    if not isinstance(layout_map, Mapping) or not layout_map:
        raise PlanError(f"layout_map: must have patterns of variables' paths, got {layout_map!r}. Give {_EXAMPLE}.")
    if not isinstance(option, str) or option == "data_parallel" or option.endswith(".json") or "/" in option:
        raise PlanError(
            f"layout_map: constrains what is searched, and option={option!r} searches nothing. Leave layout_map out, "
            "or choose an option such as 'mini_time'."
        )
    own = getattr(layout_map, "device_mesh", None)
    if mesh is None and own is not None:
        mesh = dict(zip(own.axis_names, own.shape, strict=True))
    if mesh is not None and not (
        isinstance(mesh, Mapping) and mesh and all(type(size) is int and size > 0 for size in mesh.values())
    ):
        raise PlanError(
            f"mesh: must give the size of each named axis, got {mesh!r}. Give mesh={{'data': 2, 'model': 4}}."
        )
    patterns = {}
    for pattern, layout in layout_map.items():
        axes = getattr(layout, "axes", layout)
        if not isinstance(axes, tuple) or not all(name is None or isinstance(name, str) for name in axes):
            raise PlanError(
                f"layout_map: '{pattern}' must have a tuple of names of mesh axes or None, got {layout!r}. Give "
                f"{_EXAMPLE}."
            )
        names = [name for name in axes if name is not None]
        if len(set(names)) < len(names):
            raise PlanError(
                f"layout_map: '{pattern}' splits several dimensions by one mesh axis, got {axes}. Name each axis once."
            )
        unknown = [name for name in names if mesh is not None and name not in mesh]
        if unknown:
            raise PlanError(
                f"layout_map: '{pattern}' names the mesh axis '{unknown[0]}', which is not one of {list(mesh or ())}. "
                f"Name one of these, or give its size by mesh={{…, '{unknown[0]}': size}}."
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise PlanError(f"layout_map: '{pattern}' is no regular expression: {error}. Write one.") from error
        patterns[pattern] = axes
    used = sorted({name for axes in patterns.values() for name in axes if name is not None})
    if mesh is None and len(used) > 1:
        raise PlanError(
            f"layout_map: names {len(used)} mesh axes, {', '.join(map(repr, used))}, whose sizes are unknown. Give "
            f"them, the outermost first: mesh={{{', '.join(f'{name!r}: 2' for name in used)}}}."
        )
    return LayoutPins(patterns, dict(mesh or {}))
