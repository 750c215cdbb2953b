"""A job whose plan waits for the first training run, which feeds the shapes that the script leaves open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.find.deferred_plan import DeferredPlan
from tensoropt.api.frontend.imported_model import ImportedModel, import_model, storable_variables
from tensoropt.api.mirror.model import Model
from tensoropt.api.session.fed_shapes import FedShapes
from tensoropt.api.session.world import World
from tensoropt.cluster import Topology
from tensoropt.errors import FeedError
from tensoropt.exec.program.fetch import Fetch, names_of
from tensoropt.layout import Mesh
from tensoropt.plan.adapt import stored_in_pieces
from tensoropt.plan.plan import Plan
from tensoropt.stages import announce

__all__ = ["Deferral"]


class Deferral:
    """The state of a job whose plan waits for the first training run, which searches and builds the plan.

    The first training run has the plan searched. What is run before, such as an evaluation or the restoring of a
    checkpoint, runs where variables are stored in pieces and operators are split as what they read; from there the plan
    takes the variables' values over.

    Attributes:
        collectives: what ``build_execution_graph`` was told of them.
        initialized: the variables that the script has initialized, in the order of its runs, while nothing was built.
    """

    def __init__(self, world: World, model: Model, plan: DeferredPlan, collectives: str, shares: bool | None) -> None:
        """Takes what ``build_execution_graph`` was given; ``shares`` as :class:`FedShapes`."""
        self.collectives = collectives
        self._world = world
        self._model = model
        self._plan = plan
        self._shares = shares
        self._fed = FedShapes(world, model, shares)
        self.initialized: list[Collection[str]] = []

    def planned(self, fetches: Sequence[Fetch], feeds: Mapping[Any, Any]) -> tuple[Plan, ImportedModel] | None:
        """Searches the plan, if fetches train; collective.

        Returns:
            The plan and the model that it is for; None where nothing trains.

        Raises:
            FeedError: a training run does not feed a placeholder that it needs, or feeds what does not fit.
            TensorOptError: what a search may raise.
        """
        what = f"run [{', '.join(map(str, fetches))}]"
        try:
            trains, arrays = self._trained_by(fetches, feeds)
            what += "".join(f", {name} fed {array.shape}" for name, array in arrays.items())
        except Exception as error:
            self._world.meet(what, error)
            raise
        self._world.meet(what)
        if not trains:
            return None
        shapes = self._fed.whole(arrays)
        feed = self._feed(shapes, {name for name, array in arrays.items() if array.shape != shapes[name]})
        sizes = ", ".join(f"'{name}' {tf.TensorShape(shape)}" for name, shape in shapes.items())
        given = self._model.terms.given
        how = f" {given} whole on every rank" if feed == "global" else ""
        if any(array.shape != shapes[name] for name, array in arrays.items()):
            what = "their shares" if self._shares else "different arrays, which are taken as shares"
            how = f": ranks are {given} {what} of this batch"
        announce(f"find_strategy: goes on, for {sizes}{how}")
        with self._model.graph.as_default():  # of which the steps of the job are
            return self._plan.find(shapes, feed)

    def found(self, plan: Plan) -> None:
        """Gives the script's plan what was found and built."""
        self._plan.plan = plan

    def stored(self, topology: Topology) -> tuple[Plan, ImportedModel]:
        """A plan that stores the variables, and nothing else: no shape of what is fed is known yet; collective."""
        with self._world.step("storing variables"):
            imported = import_model(self._model, shapes={}, only=storable_variables(self._model))
            return stored_in_pieces(imported.graph, Mesh(topology.factor_mesh())), imported

    def _trained_by(self, fetches: Sequence[Fetch], feeds: Mapping[Any, Any]) -> tuple[bool, dict[str, Any]]:
        """Tells whether fetches train, and returns their feeds of open sizes.

        Fetches train if they need a gradient. Where the model has none, any run that is fed counts as a training run.
        """
        part = self._fed.part(names_of(fetches))
        opened = self._fed.opened(names_of(fetches), fed=frozenset(key for key in feeds if isinstance(key, str)))
        trains = bool(part.gradients if self._model.gradient_calls else opened)
        if not trains:
            return False, self._fed.arrays(feeds, opened)
        # Where nothing trains, all is planned: what is fed says sizes, too, that these fetches do not need.
        planned = self._fed.planned() & feeds.keys()
        return True, self._fed.arrays(feeds, opened | planned, fetches)

    def _feed(self, shapes: Mapping[str, tuple[int, ...]], shares: Collection[str]) -> str:
        """Returns the feed of the plan: the script's, but whole where ranks feed whole arrays that they cannot share.

        Raises:
            FeedError: every rank was to feed the whole batch, and they feed different ones.
        """
        feed = self._plan.feed
        if feed == "global" and shares:
            raise FeedError(
                f"Placeholder '{min(shares)}': with find_strategy(feed='global') every rank must feed the same whole "
                "batch, and ranks feed different ones. Feed the same everywhere (seed what shuffles or draws the "
                "batches), or leave feed out."
            )
        if not shares and any(shape and shape[0] % self._world.size for shape in shapes.values()):
            return "global"
        return feed
