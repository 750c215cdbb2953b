"""Variables whose storage a script has pinned: the only configurations that a search may give them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensoropt.errors import PlanError
from tensoropt.graph.graph import Graph
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration

__all__ = ["Pin", "Pins"]


@dataclass(frozen=True, slots=True)
class Pin:
    """The layout in which a variable is to be stored.

    Attributes:
        subject: the variable and what pins it, for messages.
        shape: of the variable.
        axes: for each dimension the name of the mesh axis that splits it, or None.
    """

    subject: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Pins:
    """Pinned variables, and the mesh whose axes they name.

    Attributes:
        pins: by the variable's name in the graph.
        mesh: devices along each named axis, the outermost first; empty if one name stands for all devices.

    Example:
        >>> pins = Pins({"w": Pin("'w'", (6, 8), (None, "model"))}, {"data": 2, "model": 4})
        >>> pins.actions(pins.pins["w"], Mesh((2, 2, 2)))
        (None, 'd1', 'd1')
    """

    pins: Mapping[str, Pin]
    mesh: Mapping[str, int] = field(default_factory=dict)

    def misfit(self, devices: int) -> str | None:
        """Returns the reason why the pins do not fit so many devices; None if they fit."""
        if self.mesh and math.prod(self.mesh.values()) != devices:
            return (
                f"layout_map: its mesh {dict(self.mesh)} has {math.prod(self.mesh.values())} devices, not {devices}. "
                "Give sizes whose product is the number of devices"
            )
        for pin in self.pins.values():
            for place, name in enumerate(pin.axes):
                extent = 1 if name is None else self.mesh.get(name, devices)
                if pin.shape[place] % extent:
                    return (
                        f"{pin.subject}: dimension {place} of its shape {list(pin.shape)} cannot be split over the "
                        f"{extent} devices of mesh axis '{name}': {pin.shape[place]} % {extent} != 0. Leave that "
                        "dimension None, or use an axis whose size divides it"
                    )
        return None

    def configurations(self, graph: Graph, mesh: Mesh) -> dict[str, tuple[Configuration, ...]]:
        """The only configuration of each pinned variable of a graph.

        Raises:
            PlanError: pins that are not for this mesh, or a variable that can only be stored whole.
        """
        misfit = self.misfit(mesh.size)
        if misfit is not None:
            raise PlanError(f"{misfit}.")
        found: dict[str, tuple[Configuration, ...]] = {}
        for name, pin in self.pins.items():
            if name not in graph:
                continue
            actions = self.actions(pin, mesh)
            if any(actions) and graph[name].attrs.get("whole"):
                raise PlanError(
                    f"{pin.subject}: is stored whole, since an op without a rule reads or writes it, but is pinned to "
                    f"{pin.axes}. Pin it to {(None,) * len(pin.axes)}, or leave it out of the map."
                )
            found[name] = (Configuration(actions),)
        return found

    def actions(self, pin: Pin, mesh: Mesh) -> tuple[str | None, ...]:
        """Returns the action of each axis of the factor mesh on a pinned variable."""
        along = {name: place for place, name in enumerate(pin.axes) if name is not None}
        actions: list[str | None] = []
        for name in self._names(mesh, along):
            actions.append(f"d{along[name]}" if name in along else None)
        return tuple(actions)

    def _names(self, mesh: Mesh, used: Mapping[str, int]) -> Sequence[str]:
        """For each axis of the factor mesh the named axis that it is a part of."""
        if not self.mesh:
            return [next(iter(used), "")] * len(mesh.axes)
        names: list[str] = []
        for name, extent in self.mesh.items():
            taken = 1
            while taken < extent and len(names) < len(mesh.shape):
                taken *= mesh.shape[len(names)]
                names.append(name)
            if taken != extent:
                raise PlanError(
                    f"layout_map: its mesh {dict(self.mesh)} is none of the devices' own, {mesh.shape}: axis "
                    f"'{name}' of {extent} devices would end inside of one of {mesh.shape[len(names) - 1]}. Order its "
                    f"axes so that products of neighbours of {mesh.shape}, hosts first, give their sizes."
                )
        return names
