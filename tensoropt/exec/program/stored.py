"""What lasts from step to step: variables and the slots of optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Stored", "stored_variables"]


class Stored(NamedTuple):
    """What one stored tensor is.

    Attributes:
        variable: the variable's name; empty for what an optimizer keeps once for all variables.
        slot: the slot's name, empty for the variable itself.
        optimizer: number of the optimizer that the slot is of.
    """

    variable: str
    slot: str = ""
    optimizer: int = 0

    def __str__(self) -> str:
        if not self.slot:
            return f"variable '{self.variable}'"
        return f"slot '{self.slot}' of optimizer {self.optimizer}" + (
            f" for variable '{self.variable}'" if self.variable else ""
        )


def stored_variables(variables: Mapping[str, Any], optimizers: Mapping[int, Any]) -> dict[Stored, Any]:
    """The ``tf.Variable`` of each, in an order that follows from the names.

    Args:
        variables: by name.
        optimizers: TensorFlow's, with the slots that they have so far, by number.
    """
    found = {Stored(name): variable for name, variable in variables.items()}
    for number, optimizer in optimizers.items():
        for slot in optimizer.get_slot_names():
            slots = {name: optimizer.get_slot(variable, slot) for name, variable in variables.items()}
            found |= {Stored(name, slot, number): made for name, made in slots.items() if made is not None}
        found |= {Stored("", key[0], number): made for key, made in optimizer._non_slot_dict.items()}
    return dict(sorted(found.items()))
