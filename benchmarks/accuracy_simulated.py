"""What the simulator makes of a job whose ranks move their data themselves."""

from __future__ import annotations

from tensoropt.mcmc import Network
from tensoropt.search.breakdown import Breakdown, levels_of

__all__ = ["BlockingBreakdown"]


class BlockingBreakdown(Breakdown):
    """Stages in which collectives keep devices busy rather than links.

    FlexFlow's simulator has links as devices of their own, which work while devices compute. A rank on a CPU has
    nobody else to do it: its only thread is inside MPI for as long as a collective lasts.
    """

    def lane(self, axes: int) -> int:
        """The devices."""
        del axes
        return 0

    def network(self) -> Network:
        """The task graphs of all strategies."""
        return Network(self.tables(), self, self.space.mesh.shape, levels_of(self.space.cost.topology))
