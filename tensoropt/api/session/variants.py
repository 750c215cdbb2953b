"""Programs beside the plan's: for batches of another size, and for what the script has made since it was planned.

Each is the part of the model that is fetched, imported anew with the sizes that are fed. Its operators take their
configurations from the plan, as far as their sizes allow, and its variables are the plan's.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.effects import takes_handle
from tensoropt.api.frontend.fetchable_operations import fetchable_operations, taking_variable
from tensoropt.api.frontend.imported_model import ImportedModel, import_model
from tensoropt.api.frontend.input_pipelines import with_placeholders
from tensoropt.api.mirror.model import Model
from tensoropt.api.session.fed_shapes import FedShapes
from tensoropt.api.session.naming import check_feedable
from tensoropt.api.session.one_by_one import OneByOne
from tensoropt.api.session.seeds import Seeds, with_seeds
from tensoropt.api.session.world import World
from tensoropt.errors import FeedError, SessionError
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.feeding import checked_array
from tensoropt.exec.program.fetch import Fetch, names_of
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.adapt import adapted

__all__ = ["Variants"]

_log = logging.getLogger("tensoropt")
# So many programs are kept; those that were run last.
_KEPT = 32
# What is fetched, the whole shapes of what is fed, the shapes of tensors for which placeholders stand, and tensors that
# are fed and no placeholders.
_Shapes = tuple[tuple[Any, tuple[int, ...]], ...]
_Key = tuple[tuple[Fetch, ...], _Shapes, _Shapes, tuple[TensorId, ...]]


class Variants:
    """Runs fetches by the plan's own executor, or by one beside it where sizes or operators are not the plan's."""

    def __init__(
        self,
        world: World,
        model: Model,
        imported: ImportedModel,
        executor: Executor,
        shares: bool | None,
        may_share: Callable[[], bool],
        seeds: Callable[[], Seeds],
    ) -> None:
        """Takes a plan's executor, and the model that was imported for that plan.

        Args:
            world: the ranks that run.
            model: the model, of which ``imported`` is the graph.
            executor: of the plan.
            shares: as of :class:`FedShapes`.
            may_share: tells whether what is as large as the planned batch may be a rank's share.
            seeds: gives the seeds of random operators, those that the script has made since included; collective.
        """
        self._world = world
        self._may_share = may_share
        self._seeds = seeds
        self._model = model
        self._tf_graph = imported.tf_graph
        self._executor = executor
        self._one_by_one = OneByOne(executor)
        self._shapes = {name: tuple(shape) for name, shape in imported.shapes.items()}
        self._fed = FedShapes(world, model, shares)
        # Placeholders whose default the plan has not, as it was made for what is fed, of another size.
        fed = {op.name for op in executor.graph.inputs() if traits(op).must_be_fed}
        inputs = model.graph.get_operations() if fed else ()
        self._lost = frozenset(op.name for op in inputs if traits(op).has_default and op.name in fed)
        self._beside: OrderedDict[_Key, Executor] = OrderedDict()
        self._built = 0
        self._places: dict[TensorId, str] = {}
        self._needs: dict[tuple[tuple[Fetch, ...], tuple[TensorId, ...], frozenset[str]], frozenset[str]] = {}

    def run(
        self, fetches: Sequence[Fetch], feeds: Mapping[Any, Any], options: Any = None, run_metadata: Any = None
    ) -> list[Any]:
        """Runs fetches; see :meth:`Executor.run`. As in TensorFlow, it is no error to feed what nothing reads.

        Raises:
            SessionError: something is fetched that cannot be.
            FeedError: for a feed that does not fit the placeholder's shape, or what else is fed.
        """
        wanted = tuple(fetches)
        what = f"run [{', '.join(map(str, wanted))}]"
        executor = self._executor
        fed = tuple(sorted(key for key in feeds if isinstance(key, TensorId)))
        try:
            own = all(map(executor.has, wanted))
            named = frozenset(key for key in feeds if isinstance(key, str))
            is_planned = own and self._has_shapes(feeds, fed)
            # In other sizes than the plan's, or where something new is fetched, what is fed stands for itself. Not if
            # gradients are fetched: they may flow back through what is fed.
            cut = {} if is_planned or self._fed.part(names_of(wanted)).gradients else self._cut(feeds, fed)
            there = fed if is_planned or cut else ()
            opened = self._opened(tuple(fetch for fetch in wanted if fetch not in there), there, named)
            if lost := self._lost - feeds.keys():
                own = own and self._fed.part(names_of(wanted)).operations.isdisjoint(lost)
            # A share may be as large as the batch that was planned.
            own = own and not cut
            planned = own and self._has_shapes(feeds, opened) and not (opened and self._may_share())
            if own:
                check_feedable(self._tf_graph, feeds)
            arrays = {} if planned else self._fed.arrays(feeds, opened, wanted)
            what += "".join(f", {name} fed {array.shape}" for name, array in (*arrays.items(), *cut.items()))
        except Exception as error:
            self._world.meet(what, error)
            raise
        if planned:
            if not feeds and options is None and run_metadata is None:
                values = self._one_by_one.values(wanted)
                if values is not None:
                    return values
            return executor.run(wanted, self._read_by(executor, feeds), options, run_metadata)
        self._world.meet(what)
        shapes = self._fed.whole(arrays)
        given = {**feeds, **arrays}
        if own and all(shape == self._planned_shape(name) for name, shape in shapes.items()):
            return executor.run(wanted, self._read_by(executor, given), options, run_metadata)
        cut_shapes = {tensor: array.shape for tensor, array in cut.items()}
        key = (wanted, tuple(sorted(shapes.items())), tuple(cut_shapes.items()), fed)
        if key not in self._beside:
            self._beside[key] = self._build(what, wanted, shapes, fed, cut_shapes)
            if len(self._beside) > _KEPT:
                self._beside.popitem(last=False)
        self._beside.move_to_end(key)
        beside = self._beside[key]
        place_of = {tensor: self._place_of(tensor) for tensor in cut}
        given = {place_of.get(name, name): value for name, value in given.items()}
        asked = [TensorId(place_of[fetch]) if fetch in place_of else fetch for fetch in wanted]
        return beside.run(asked, self._read_by(beside, given), options, run_metadata)

    def _cut(self, feeds: Mapping[Any, Any], fed: Iterable[TensorId]) -> dict[TensorId, np.ndarray]:
        """What is fed to tensors, as arrays.

        Raises:
            FeedError: a tensor cannot have the shape that is fed.
        """
        found = {}
        for tensor in fed:
            declared = self._model.graph.get_tensor_by_name(str(tensor))
            if declared.dtype == tf.resource:  # a variable, which no feed stands for
                return {}
            dtype, shape = declared.dtype.name, declared.shape
            subject, spec = f"{declared.op.type} '{tensor.op}'", f"{dtype}{shape.as_list() if shape.rank else shape}"
            array = checked_array(subject, spec, dtype, feeds[tensor])
            if not shape.is_compatible_with(array.shape):
                raise FeedError(
                    f"{subject}: wants the whole {spec}, got shape {array.shape}. Only placeholders take a rank's "
                    "share of a batch."
                )
            found[tensor] = array
        return found

    def _place_of(self, tensor: TensorId) -> str:
        """The name of the placeholder that stands for a tensor that is fed."""
        if tensor not in self._places:
            name = f"{tensor.op}/tensoropt_fed{tensor.index}"
            self._places[tensor] = str(self._model.graph.unique_name(name, mark_as_used=False))
        return self._places[tensor]

    def _read_by(self, executor: Executor, feeds: Mapping[Any, Any]) -> dict[Any, Any]:
        """Returns the feeds that an executor's graph reads; the plan's graph has all tensors that may be fed."""
        return {
            key: value
            for key, value in feeds.items()
            if (key.op if isinstance(key, TensorId) else key) in executor.graph
            or (isinstance(key, TensorId) and executor is self._executor)
        }

    def add_variables(self, names: Collection[str]) -> None:
        """Adds variables that the script has made since the plan, without values; collective."""
        self._build(f"adding variables {', '.join(sorted(names))}", tuple(map(TensorId, sorted(names))), {})

    def _opened(self, fetches: tuple[Fetch, ...], given: tuple[TensorId, ...], fed: frozenset[str]) -> frozenset[str]:
        key = fetches, given, fed
        if key not in self._needs:
            self._needs[key] = self._fed.opened(names_of(fetches), given, fed)
        return self._needs[key]

    def _planned_shape(self, key: str | TensorId) -> tuple[int, ...] | None:
        """The shape of a placeholder or tensor in the plan; None if the plan has none."""
        tensor, graph = TensorId(key) if isinstance(key, str) else key, self._executor.graph
        return graph.spec(tensor).shape if tensor.op in graph else self._shapes.get(str(key))

    def _has_shapes(self, feeds: Mapping[Any, Any], keys: Iterable[str | TensorId]) -> bool:
        """Tells whether some placeholders and tensors are all fed whole arrays of the planned sizes."""
        try:
            return all(key in feeds and np.shape(feeds[key]) == self._planned_shape(key) for key in keys)
        except ValueError:  # no array
            return False

    def _build(
        self,
        what: str,
        fetches: tuple[Fetch, ...],
        shapes: Mapping[str, tuple[int, ...]],
        fed: Iterable[TensorId] = (),
        cut: Mapping[TensorId, tuple[int, ...]] = MappingProxyType({}),
    ) -> Executor:
        """An executor beside the plan's, with placeholders of some shapes in the place of tensors; collective."""
        main = self._executor
        with self._world.step(f"importing {what}"):
            names = names_of(fetch for fetch in fetches if fetch not in cut)
            barred = sorted(set(names) - fetchable_operations(self._model))
            if barred:
                culprit = taking_variable(self._model.graph, barred[0])
                if culprit is not None:
                    raise SessionError(
                        f"{culprit.type} '{culprit.name}': takes a variable itself, for which devices have no rule, so "
                        "it cannot be run here. Compute what it gives outside, and feed or pass it in; for random "
                        "numbers use tf.random.stateless_*, or another distribution of the generator."
                    )
                raise SessionError(
                    f"Fetch '{barred[0]}': cannot be run here: it gives a variable its initial value or asks for that, "
                    "writes a checkpoint, is inside of what TensorFlow computes gradients by, or needs what does. Run "
                    "tensoropt.global_variables_initializer() for initial values, use tensoropt.train.Saver for "
                    "checkpoints, and fetch gradients themselves."
                )
            places = {self._place_of(tensor): tensor for tensor in cut}
            tensors = {place: self._model.graph.get_tensor_by_name(str(tensor)) for place, tensor in places.items()}
            model = with_placeholders(self._model, tensors) if cut else self._model
            sizes = {**shapes, **{place: cut[tensor] for place, tensor in places.items()}}
            asked = [place for place, tensor in places.items() if tensor in fetches]
            imported = import_model(model, shapes=sizes, only=[*names, *asked])
            check_feedable(imported.tf_graph, fed)
            stored_as = self._stored_as(imported)
        self._world.agree_on_model(imported)
        seeds = self._seeds()
        with self._world.step(f"building {what}"):
            plan = adapted(main.plan, imported.graph, stored_as)
            made = main.beside(with_seeds(imported.graph, seeds), plan)
        self._built += 1
        if self._built == _KEPT and self._world.rank == 0:
            _log.warning(
                "%d programs were built for other sizes than the plan's, or for operators that were made later (the "
                "last: %s). Each takes its time to build: feed batches of a few sizes, and make operators once, before "
                "the loop",
                self._built,
                what,
            )
        return made

    def _stored_as(self, imported: ImportedModel) -> dict[str, str]:
        """For variables that the plan has not, such as slots of an optimizer that was made later, one that it has and
        that operations take together with it."""
        found: dict[str, str] = {}
        known = self._executor.state.names
        for op in imported.graph.variables():
            if op.name in known:
                continue
            handle = self._model.graph.get_tensor_by_name(f"{op.name}:0")
            others = (tensor.op for user in handle.consumers() for tensor in user.inputs if takes_handle(user))
            for other in others:
                if other.name in known and self._executor.graph[other.name].outputs == op.outputs:
                    found.setdefault(op.name, other.name)
        return found
