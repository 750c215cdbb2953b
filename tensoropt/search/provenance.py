"""What a frontier's strategies are for: without it, an assignment is a row of numbers that fit any model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensoropt.cluster import Topology
from tensoropt.errors import ProblemError, TensorOptError

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
        """What ``to_json`` wrote.

        Raises:
            ProblemError: a field is missing or malformed.
        """
        try:
            if not isinstance(data, dict):
                raise TypeError(f"it must be an object, got {type(data).__name__}")
            topology = Topology.from_json(data["topology"])
            return cls(str(data["graph"]), topology, str(data["feed"]), str(data["costs"]))
        except (KeyError, TypeError, TensorOptError) as error:
            raise ProblemError(
                f"Frontier JSON: 'provenance' is malformed ({type(error).__name__}: {error}). Give the text that "
                "Frontier.to_json wrote."
            ) from error
