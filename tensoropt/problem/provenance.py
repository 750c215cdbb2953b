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
    """

    graph: str
    topology: Topology
    feed: str
    costs: str = "analytic"

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"graph": self.graph, "topology": self.topology.to_json(), "feed": self.feed, "costs": self.costs}

    @classmethod
    def from_json(cls, data: object) -> Provenance:
        """Reads the JSON object that ``to_json`` wrote.

        Raises:
            ProblemError: a field is missing or malformed.
        """
        try:
            fields = Fields.of(data, "a field is wrong", ProblemError, ("graph", "topology", "feed", "costs"))
            topology = Topology.from_json(fields.values["topology"])
            return cls(fields.text("graph"), topology, fields.text("feed"), fields.text("costs"))
        except TensorOptError as error:
            raise refused(
                ProblemError,
                "Frontier JSON: 'provenance' is malformed",
                error.args[0],
                "Give the text that Frontier.to_json wrote.",
            ) from None
