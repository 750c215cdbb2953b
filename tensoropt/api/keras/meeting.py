"""Where the ranks of a Keras model meet: before each batch, where their data end, and where one of them fails."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.functions.leaves import form_of
from tensoropt.api.session.world import World
from tensoropt.errors import CollectiveError
from tensoropt.exec.engines.guard import FAILURE_PATIENCE_S, DifferenceError, is_told
from tensoropt.exec.engines.ranks import written_holders, written_ranks

__all__ = ["Meeting"]

_TOOK = "how many batches were taken"
_EPOCH = "which epoch begins"
_ENDED = "whether the data have ended"
_FORM = "the shapes and types of the batch"
_PARTS = ("x", "y", "sample_weight")
_TO_DO = {"train": "train by", "test": "evaluate", "predict": "predict"}


class Meeting:
    """Makes all ranks take the same batch, or none; each rank tells its state and learns what keeps others from it."""

    def __init__(self, world: World, shard: bool) -> None:
        """Takes the ranks, and whether these are given whole batches, to take their shares of."""
        self._world, self._shard = world, shard
        self._taken = dict.fromkeys(_TO_DO, 0)  # since the data began
        self._digests: dict[Hashable, int] = {}  # of batches' forms

    def batch(self, kind: str, batch: Any) -> None:
        """Agrees on a batch before it is run; collective.

        Args:
            kind: of the step, such as ``train``.
            batch: this rank's; batches have the same shapes and types on all ranks.

        Raises:
            CollectiveError: on all ranks, if the data of some have ended, or batches differ in their form; if a rank
                failed, on the others.
        """
        if self._world.size > 1:
            self._meet(kind, batch)
        self._taken[kind] += 1

    def end(self, kind: str) -> None:
        """Agrees on the end of the data, where this rank has no more batches; collective.

        Raises:
            CollectiveError: on all ranks, if some go on; if a rank failed, on the others.
        """
        if self._world.size > 1:
            self._meet(kind, None, ended=True)
        self._taken[kind] = 0

    def epoch(self, epoch: int) -> None:
        """Agrees on the epoch that begins; collective.

        Raises:
            CollectiveError: on all ranks, if they begin different epochs.
        """
        if not self._world.are_several:
            return
        try:
            self._world.meet("an epoch of fit", shared={_EPOCH: epoch})
        except DifferenceError as error:
            held = written_holders(f"epoch {numbers[_EPOCH]}" for numbers in error.ranks)
            raise CollectiveError(
                f"fit: all ranks must train the same epoch. Got {held}. Call fit alike on all of them; "
                "BackupAndRestore needs a folder that all hosts share."
            ) from error

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """A call such as ``fit``, of whose failure on one rank the others hear where they next wait for it."""
        try:
            yield
        except BaseException as error:  # Ctrl-C, too
            if not is_told(error):
                # Who was interrupted may have left others in the middle of a step, which then has no end.
                patience_s = None if isinstance(error, Exception) else FAILURE_PATIENCE_S
                self._world.meet(name, error, patience_s=patience_s)
            raise

    def _meet(self, kind: str, batch: Any, *, ended: bool = False) -> None:
        """Compares what ranks have: the form of a batch, or the end of the data."""
        world = self._world
        if world.guard is None:
            return
        known = None if ended else form_of(batch)
        digest = self._digests.get(known)
        if digest is None:
            described = repr(None if ended else _form(batch)).encode()
            digest = self._digests[known] = int.from_bytes(hashlib.sha256(described).digest()[:7], "big")
        numbers = {_ENDED: int(ended), _TOOK: self._taken[kind], _FORM: digest}
        what = f"a batch to {_TO_DO[kind]}"
        try:
            world.meet(what, shared=numbers)
        except DifferenceError as error:
            forms = world.comm.allgather(None if ended else _form(batch))
            done = [rank for rank, each in enumerate(forms) if each is None]
            if done:
                others = [rank for rank in range(world.size) if rank not in done]
                taken = error.ranks[done[0]][_TOOK]
                raise CollectiveError(
                    f"{what}: the data of {written_ranks(done)} ended after {taken} batch{'es' * (taken != 1)}, those "
                    f"of {written_ranks(others)} go on. Give all ranks "
                    f"{'the same data' if self._shard else 'as many batches'}, and let callbacks stop all or none."
                ) from error
            wrong = [name for name in sorted(set().union(*forms)) if len({each.get(name) for each in forms}) > 1]
            if wrong:
                held = written_holders(each.get(wrong[0], "none") for each in forms)
                remedy = "Give all ranks the same whole batches; each takes its share itself."
                if not self._shard:
                    remedy = "With shard=False each rank's share of a batch has as many rows: drop what is left over."
                raise CollectiveError(
                    f"{what}: '{wrong[0]}' must have one shape and type on all {world.size} ranks. Got {held}. {remedy}"
                ) from error
            raise


def _form(batch: Any) -> dict[str, str]:
    """The types and shapes of what a batch has, by name."""
    parts = batch if isinstance(batch, tuple) and len(batch) <= len(_PARTS) else (batch,)
    form = {}
    for part, value in zip(_PARTS, parts, strict=False):
        for path, leaf in zip(_paths(value), tf.nest.flatten(value), strict=True):
            if leaf is not None:
                dtype = getattr(leaf, "dtype", None)
                kind = type(leaf).__name__ if dtype is None else tf.as_dtype(dtype).name
                form[f"{part}{path}"] = f"{kind} of {tuple(getattr(leaf, 'shape', np.shape(leaf)))}"
    return form


def _paths(value: Any) -> list[str]:
    paths = tf.nest.flatten(_named(value, ""))
    return [str(path) for path in paths]


def _named(value: Any, path: str) -> Any:
    """Nested tuples, lists and dictionaries, with the place of each leaf in its place."""
    if isinstance(value, dict):
        return {key: _named(each, f"[{key!r}]" if not path else f"{path}[{key!r}]") for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_named(each, f"{path}[{place}]") for place, each in enumerate(value)]
    return path
