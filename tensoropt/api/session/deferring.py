"""A job whose plan waits for the first training run, which feeds the shapes that the script leaves open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensoropt.api.find.deferred import DeferredPlan
from tensoropt.api.frontend.imported_model import import_model, storable_variables
from tensoropt.api.mirror.model import Model
from tensoropt.api.session.fed_shapes import FedShapes
from tensoropt.errors import FeedError
from tensoropt.exec.program.fetch import Fetch, names_of
from tensoropt.layout import Mesh
from tensoropt.plan.adapt import stored_in_pieces
from tensoropt.stages import announce

if TYPE_CHECKING:
    from tensoropt.api.session.job import Job

__all__ = ["Deferral"]


class Deferral:
    """What is remembered until the plan is there, and how it comes to be.

    The first training run has the plan searched and built. What is run before, such as an evaluation or the restoring
    of a checkpoint, runs where variables are stored in pieces and operators are split as what they read; from there the
    plan takes the variables' values over.

    Attributes:
        initialized: the variables that the script has initialized, in the order of its runs, while nothing was built.
    """

    def __init__(self, job: Job, model: Model, plan: DeferredPlan, collectives: str) -> None:
        """Takes what ``build_execution_graph`` was given."""
        self._job = job
        self._model = model
        self._plan = plan
        self._collectives = collectives
        shares = job.rehearsal.shares if job.rehearsal is not None and job.shares is None else job.shares
        self._fed = FedShapes(job.comm, job.rank, job.size, model, shares)
        self.initialized: list[Collection[str]] = []

    def prepare(self, fetches: Sequence[Fetch], feeds: Mapping[Any, Any]) -> None:
        """Sees to it that fetches can be run, by the plan if they train; collective.

        Raises:
            FeedError: a training run does not feed a placeholder that it needs, or feeds what does not fit.
            TensorOptError: what a search may raise.
        """
        job = self._job
        what = f"run [{', '.join(map(str, fetches))}]"
        try:
            trains, arrays = self._trained_by(fetches, feeds)
            what += "".join(f", {name} fed {array.shape}" for name, array in arrays.items())
        except Exception as error:
            if job.guard is not None:
                job.guard.meet(what, error)
            raise
        if job.guard is not None:
            job.guard.meet(what)
        if not trains:
            if job.executor is None:
                self.store()
            return
        shapes = self._fed.whole(arrays)
        feed = self._feed(shapes, {name for name, array in arrays.items() if array.shape != shapes[name]})
        sizes = ", ".join(f"'{name}' {tf.TensorShape(shape)}" for name, shape in shapes.items())
        given = self._model.terms.given
        how = f" {given} whole on every rank" if feed == "global" else ""
        if any(array.shape != shapes[name] for name, array in arrays.items()):
            how = f": ranks are {given} different arrays, which are taken as shares of this batch"
        announce(f"find_strategy: goes on, for {sizes}{how}")
        with self._model.graph.as_default():  # of which the steps of the job are
            plan, imported = self._plan.find(shapes, feed)
            if job.executor is None:
                job.build(plan, imported, self._collectives, job.local_config())
                self._initialize()
            else:
                job.rebuild(plan, imported, self._collectives)
        self._plan.plan = plan
        job.deferral = None

    def read_by(self, fetches: Sequence[Fetch], feeds: Mapping[Any, Any]) -> Collection[str]:
        """The names of what fetches need, placeholders among it, without those that are fed."""
        return self._fed.part(names_of(fetches)).operations - feeds.keys()

    def store(self) -> None:
        """Builds what stores the variables, and nothing else: no shape of what is fed is known yet; collective."""
        job = self._job
        with job.step("storing variables"):
            imported = import_model(self._model, shapes={}, only=storable_variables(self._model))
            plan = stored_in_pieces(imported.graph, Mesh(job.require_topology("run").factor_mesh()))
        with self._model.graph.as_default():
            job.build_for_now(plan, imported, self._collectives)
        self._initialize()

    def _initialize(self) -> None:
        for names in self.initialized:
            self._job.initialize(names)
        self.initialized.clear()

    def _trained_by(self, fetches: Sequence[Fetch], feeds: Mapping[Any, Any]) -> tuple[bool, dict[str, Any]]:
        """Whether fetches train, and what they feed where sizes are open.

        Whatever needs a gradient does. Where the model has none, whatever is fed counts as a training run.
        """
        part = self._fed.part(names_of(fetches))
        opened = self._fed.opened(names_of(fetches))
        trains = bool(part.gradients if self._model.gradient_calls else opened)
        if not trains:
            return False, self._fed.arrays(feeds, opened)
        # Where nothing trains, all is planned: what is fed says sizes, too, that these fetches do not need.
        planned = self._fed.planned() & feeds.keys()
        return True, self._fed.arrays(feeds, opened | planned, fetches)

    def _feed(self, shapes: Mapping[str, tuple[int, ...]], shares: Collection[str]) -> str:
        """How the plan is to be fed: as the script said, but whole where ranks feed whole what they cannot share.

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
        if not shares and any(shape and shape[0] % self._job.size for shape in shapes.values()):
            return "global"
        return feed
