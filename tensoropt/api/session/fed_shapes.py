"""Feeds of open shapes: every rank feeds the whole batch, the same on all ranks, or its own share of the batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from tensoropt.api.frontend.input_pipelines import without_pipelines
from tensoropt.api.frontend.parts import part_of
from tensoropt.api.frontend.placeholders import open_placeholders, training_placeholders
from tensoropt.api.frontend.source import Part
from tensoropt.api.mirror.model import Model
from tensoropt.api.session.world import World
from tensoropt.errors import FeedError
from tensoropt.exec.engines.ranks import written_holders
from tensoropt.exec.engines.watch import current_watch
from tensoropt.exec.program.feeding import checked_array, checksum
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId

__all__ = ["FedShapes"]

_ROUNDED = 1e-4
"""Relative: arrays whose numbers all differ by less than this are taken for one that ranks rounded otherwise."""


class FedShapes:
    """Whole shapes of what a job feeds to the placeholders of a model that leave sizes open.

    A shape alone does not tell a rank's share from a whole batch that is as small. So contents are compared: what is
    the same on all ranks is whole; where ranks feed different arrays, each feeds its share, as for all placeholders of
    the same first dimension. Unless it is said which of the two it is.
    """

    def __init__(self, world: World, model: Model, shares: bool | None = None) -> None:
        """Takes a model and the ranks that run it.

        Args:
            shares: whether ranks feed their shares, or all of them the whole; None where contents tell.
        """
        self._world = world
        self._shares = shares
        self._whole_model = model
        self._opened: dict[str, Any] = {}
        self._count = 0
        self._parts: dict[tuple[str, ...], Part] = {}

    @property
    def _model(self) -> Model:
        return without_pipelines(self._whole_model)

    def part(self, names: Iterable[str]) -> Part:
        """Returns the part of the model that some operations need; computed once."""
        key = tuple(names)
        if key not in self._parts:
            self._parts[key] = part_of(self._model, key)
        return self._parts[key]

    def opened(self, names: Iterable[str], given: Iterable[TensorId] = (), fed: Collection[str] = ()) -> frozenset[str]:
        """The placeholders with open sizes that some operations need where some tensors are there already.

        Args:
            names: of the operations.
            given: the tensors.
            fed: the names of placeholders that are fed, of which one with a default need not be.
        """
        there = {str(tensor) for tensor in given}
        found = part_of(self._model, names, there, fed) if there or fed else self.part(names)
        ops = map(self._model.graph.get_operation_by_name, found.operations & self._all().keys())
        return frozenset(op.name for op in ops if traits(op).must_be_fed or op.name in fed)

    def planned(self) -> frozenset[str]:
        """The placeholders with open sizes that planning needs."""
        return frozenset(training_placeholders(self._model))

    def _all(self) -> dict[str, Any]:
        """The declared shapes of all of them, those made since included."""
        count = len(self._model.graph.get_operations())
        if count != self._count:
            self._opened, self._count = open_placeholders(self._model, defaults=True), count
        return self._opened

    def arrays(
        self, feeds: Mapping[Any, Any], wanted: Collection[str], fetches: Iterable[Any] | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the arrays fed to some placeholders, checked against the shapes that the script declares.

        Args:
            feeds: by name.
            wanted: the placeholders.
            fetches: the fetches that need all of them; by default nothing does.

        Raises:
            FeedError: a feed does not fit, or is missing.
        """
        words = self._whole_model.terms
        missing = sorted(set(wanted) - feeds.keys())
        if missing and fetches is not None:
            raise FeedError(
                f"{words.subject(missing[0])}: is needed for {', '.join(map(str, fetches))} and was not {words.given}. "
                f"{words.remedy} an array of {self._all()[missing[0]]}."
            )
        found = {}
        for name in sorted(set(wanted) & feeds.keys()):
            tensor, shape = self._model.graph.get_tensor_by_name(f"{name}:0"), self._all()[name]
            subject = words.subject(name)
            array = checked_array(subject, f"{tensor.dtype.name}{shape}", tensor.dtype.name, feeds[name])
            if not _fits(shape, array.shape, self._world.size):
                raise FeedError(
                    f"{subject}: has the shape {shape}, got an array of {array.shape}. "
                    f"{words.give.capitalize()} one that fits."
                )
            if 0 in array.shape:
                out = "empty batches" if array.shape[0] == 0 else "what is empty in each sample"
                raise FeedError(
                    f"{subject}: must be {words.given} at least one number, got {array.shape}. Leave {out} out."
                )
            found[name] = array
        return found

    def whole(self, arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
        """The whole shapes that arrays stand for; collective, for ranks that feed arrays of equal shapes.

        Raises:
            FeedError: on all ranks, if they feed different single numbers, or different whole batches.
        """
        if self._world.size == 1 or not arrays:
            return {name: array.shape for name, array in arrays.items()}
        mine = np.array([checksum(array) for array in arrays.values()], dtype=np.int64)
        sums = np.empty((self._world.size, len(mine)), dtype=np.int64)
        with current_watch().waiting("comparing what is fed"):
            self._world.comm.Allgather(mine, sums)
        words = self._whole_model.terms
        differs = dict(zip(arrays, (sums != sums[0]).any(axis=0).tolist(), strict=True))
        for column, (name, array) in enumerate(arrays.items()):
            is_part = name in self._whole_model.parts  # its indices count from the whole's beginning
            if differs[name] and (self._shares is False or not array.shape or is_part):
                held = written_holders(f"{number:#010x}" for number in sums[:, column].tolist())
                what = "whole batch" if array.shape else "single number"
                raise FeedError(
                    f"{words.subject(name)}: a {'sparse or ragged tensor' if is_part else what} must be the same on "
                    f"all {self._world.size} ranks. Got some with the checksums {held}. {words.give.capitalize()} the "
                    "same everywhere (seed what shuffles or draws it)."
                )
        if self._shares is None:
            self._check_not_rounded({name: array for name, array in arrays.items() if differs[name]})
        shared = {array.shape[0] for name, array in arrays.items() if array.shape and (differs[name] or self._shares)}
        found = {}
        for name, array in arrays.items():
            declared = self._all()[name]
            first = declared.as_list()[0] if declared.rank else None
            share = bool(array.shape) and (array.shape[0] != first if first is not None else array.shape[0] in shared)
            found[name] = (array.shape[0] * self._world.size, *array.shape[1:]) if share else array.shape
        return found

    def _check_not_rounded(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Checks that arrays that differ between ranks do so by more than roundings, as shares do; collective.

        Raises:
            FeedError: on all ranks, if they do not.
        """
        if not arrays or any(array.dtype.kind != "f" for array in arrays.values()):
            return
        most = 0.0
        for array in arrays.values():
            with current_watch().waiting("comparing what is fed"):
                first = self._world.comm.bcast(array, root=0).astype(np.float64)
                apart, size = np.abs(array - first), np.abs(first)
                is_close = bool((apart <= _ROUNDED * size + _ROUNDED**2 * size.mean()).all())
                found = self._world.comm.allgather((is_close, float(apart.max())))
            if not all(close for close, _ in found):
                return
            most = max(most, *(difference for _, difference in found))
        words = self._whole_model.terms
        raise FeedError(
            f"{words.subject(min(arrays))}: must be {words.given} the same on all {self._world.size} ranks, or each "
            f"rank's share of the batch. Got arrays that differ by {most:.2g} at most, as if each rank had computed "
            "the same batch with other roundings. Compute it alike everywhere (seed what it starts from), or on rank 0 "
            "into a file that all ranks read."
        )


def _fits(declared: Any, shape: tuple[int, ...], size: int) -> bool:
    """Tells whether an array may be fed to a placeholder: whole, or as a rank's share of a known first dimension."""
    if declared.is_compatible_with(shape):
        return True
    return bool(shape) and declared.is_compatible_with((shape[0] * size, *shape[1:]))
