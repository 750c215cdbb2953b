"""The provenance of a frontier: the case it was searched for, without which its assignments fit any model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensoropt.cluster import Topology
from tensoropt.errors import ProblemError, TensorOptError
from tensoropt.storage.document import Fields, refused

__all__ = ["Provenance"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """The case that was searched.

    Attributes:
        graph: fingerprint of the model's graph.
        topology: the devices.
        feed: how inputs come: ``data_parallel`` or ``global``.
        costs: what operators' times go by: ``measured`` or ``analytic``.
        micro_batches: how many a step has.
        recompute: whether operators may be made again in the backward pass.
    """

    graph: str
    topology: Topology
    feed: str
    costs: str = "analytic"
    micro_batches: int = 1
    recompute: bool = False

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        steps: dict[str, Any] = {"micro_batches": self.micro_batches} if self.micro_batches > 1 else {}
        steps |= {"recompute": True} if self.recompute else {}
        return {
            "graph": self.graph,
            "topology": self.topology.to_json(),
            "feed": self.feed,
            "costs": self.costs,
            **steps,
        }

    @classmethod
    def from_json(cls, data: object) -> Provenance:
        """Reads the JSON object that ``to_json`` wrote.

        Raises:
            ProblemError: a field is missing or malformed.
        """
        try:
            names = ("graph", "topology", "feed", "costs")
            later = {"micro_batches": 1, "recompute": False}  # of whole batches they are left out
            fields = Fields.of(data, "a field is wrong", ProblemError, names, later)
            topology = Topology.from_json(fields.values["topology"])
            return cls(
                fields.text("graph"),
                topology,
                fields.text("feed"),
                fields.text("costs"),
                fields.integer("micro_batches", least=1),
                fields.boolean("recompute"),
            )
        except TensorOptError as error:
            raise refused(
                ProblemError,
                "Frontier JSON: 'provenance' is malformed",
                error.args[0],
                "Give the text that Frontier.to_json wrote.",
            ) from None
