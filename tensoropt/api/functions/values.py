"""Values of a script's variables, while a program trains them: with the script, on the devices, or both."""

from __future__ import annotations

import collections
import contextlib
import itertools
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # to be in eager mode inside of a graph has no public name

from tensoropt.api.functions.held import hold, holder_of, unnoticed
from tensoropt.api.functions.unmade import KEPT_BYTES, Unmade
from tensoropt.api.session.job import Job
from tensoropt.errors import CollectiveError
from tensoropt.exec.engines.guard import DifferenceError
from tensoropt.exec.engines.ranks import written_holders
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.feeding import checksum
from tensoropt.graph.spec import TensorId

__all__ = ["Values", "announced_by", "bring_announced"]

_BROUGHT_BYTES = 64 * 2**20  # so much of several variables is brought to the script at once
_BROUGHT_GROUPS = 4  # so many groups of them stay until the next run
_numbered: weakref.WeakValueDictionary[int, Values] = weakref.WeakValueDictionary()  # alike on all ranks
_numbers = itertools.count()
_announce: list[Callable[[tuple[int, list[str]]], None]] = []  # the last one counts


@contextlib.contextmanager
def announced_by(announce: Callable[[tuple[int, list[str]]], None]) -> Iterator[None]:
    """Has other ranks told of what this one is about to bring with them: they are to :func:`bring_announced`."""
    _announce.append(announce)
    try:
        yield
    finally:
        _announce.pop()


def bring_announced(announced: tuple[int, list[str]]) -> None:
    """Takes part in what another rank has announced; collective."""
    number, names = announced
    _numbered[number].bring(names)


class Values:
    """Knows of each variable of a program where its newest value is, and brings it to whoever wants it.

    What devices have the script has no longer, if it is large: its storage is freed, and filled again when it is asked
    for. A value that is stored whole on each device is then read without other ranks; one that is in pieces needs them.
    """

    def __init__(self, variables: Mapping[str, Any], entered: Callable[[], AbstractContextManager[Job]]) -> None:
        """Takes the script's variables by their names in the program, and what makes its job the current one."""
        self._variables = variables
        self._entered = entered
        self._shared: set[str] = set()  # variables that begin with rank 0's values
        self._stale: set[str] = set()  # variables whose value on the devices is older than the script's
        self._ahead: set[str] = set()  # those whose value there is newer
        self._written: set[str] = set()
        self._sums: dict[str, int] = {}  # checksums of stale values, as they were when they were asked for
        self._freed: set[str] = set()  # large ones that the script has no storage of
        self._here: set[str] = set()  # large ones that it has
        self._unmade: dict[str, Unmade] = {}  # those that have had no value yet
        self._brought: collections.deque[list[str]] = collections.deque()
        self._names: dict[int, str] = {}
        self._number = next(_numbers)
        _numbered[self._number] = self

    def take(self, names: Collection[str]) -> None:
        """Makes this the holder of variables; collective, if others have newer values of them."""
        for name in names:
            variable = self._variables[name]
            self._names[id(variable)] = name
            before = holder_of(variable)
            if before is self:
                continue
            if isinstance(before, Unmade):
                self._unmade[name] = before
            elif before is not None:
                before.asked(variable)
            hold(variable, self)
            self._stale.add(name)
            self._freed.discard(name)
            if name not in self._unmade and self._bytes(name) > KEPT_BYTES:
                self._here.add(name)

    def share(self, names: Sequence[str]) -> None:
        """Gives variables the values that rank 0 has of them, where it has not yet; collective."""
        names = [name for name in names if name not in self._shared]
        self._shared |= set(names)
        with self._entered() as job:
            if job.guard is None or job.size == 1 or not names:
                return
            job.guard.meet(f"sharing the values of {', '.join(names)}")
            digests = job.comm.allgather(
                [self._unmade[name].digest if name in self._unmade else None for name in names]
            )
            for name, *ranks in zip(names, *digests, strict=True):
                if ranks[0] is not None and len(set(ranks)) == 1:
                    continue  # all make the same value, when it is needed
                if name in self._unmade:
                    self._make(name)
                value = job.comm.bcast(self.value(name) if job.rank == 0 else None, root=0)
                if job.rank:
                    self._set(name, value)

    def value(self, name: str) -> np.ndarray:
        """The value that the script has of a variable; one that was never made is made, and not kept."""
        unmade = self._unmade.get(name)
        with context.eager_mode(), unnoticed():
            return np.asarray(self._variables[name].numpy() if unmade is None else unmade.value())

    def give(self, job: Job, names: Collection[str]) -> None:
        """Brings values that the script may have changed to the devices; collective.

        Raises:
            CollectiveError: on all ranks, if they have assigned different values.
        """
        if job.executor is None:
            return
        known = job.executor.variables.keys()
        missing = [name for name in names if name not in known]
        if missing:
            job.initialize(missing)
            self._given(missing)
            known = job.executor.variables.keys()
        there = sorted(self._stale & known)
        if job.size > 1:
            self._agree(job, there)
        self._give(job.executor, there)

    def _agree(self, job: Job, names: Sequence[str]) -> None:
        """Compares what ranks have assigned to variables.

        Where copies of one another differ by rounding, and so does what is made of them, rank 0's counts.
        """
        if job.guard is None:
            return
        sums = {name: checksum(self.value(name)) for name in names if name in self._sums}
        assigned = {name: found for name, found in sums.items() if found != self._sums[name]}
        # A step of all ranks, most often of none that has assigned anything.
        numbers = {name: zlib.crc32(name.encode(), found) for name, found in assigned.items()}
        try:
            job.guard.meet("a step with what was assigned", shared=numbers)
        except DifferenceError as error:
            for name in error.differing:
                here = [name in rank for rank in error.ranks]
                whole = job.comm.bcast(self.value(name) if job.rank == 0 and all(here) else None, root=0)
                close = whole is not None and np.allclose(self.value(name), whole, rtol=1e-3, atol=1e-5)
                if not all(job.comm.allgather(close)):
                    said = written_holders("assigned" if each else "not assigned" for each in here)
                    raise CollectiveError(
                        f"Variable '{name}': must be assigned the same value on all {job.size} ranks, or none trains "
                        f"as one process does. Got {said if not all(here) else 'different values'}. Let callbacks and "
                        "code that assign to variables act alike on all ranks."
                    ) from error
                self._set(name, whole)

    def ran(self, written: Collection[str], executor: Executor) -> None:
        """Is called after a run, with what it wrote. It may have built what runs, by the values that there were."""
        if self._stale or self._unmade:
            self._given(executor.variables.keys() & self._variables.keys())
        self._written |= set(written)
        self._ahead |= set(written)
        self._brought.clear()
        if self._here:
            self._free(self._here & executor.variables.keys())

    def sync(self, *, large: bool) -> None:
        """Gives the script's variables the values that they have here; collective.

        Args:
            large: also those that the script does not keep.
        """
        for group in self._groups(lambda name: large or self._bytes(name) <= KEPT_BYTES):
            if not self._ahead.isdisjoint(group) or not self._freed.isdisjoint(group):
                self.bring(group)

    def asked(self, variable: Any) -> None:
        """Brings a variable's value to the script, which may also change it."""
        name = self._names.get(id(variable))
        if name is None:
            return
        if name in self._unmade:
            self._make(name)
        if name in self._stale:
            return
        if name in self._ahead or name in self._freed:
            self._bring_for(name)
        self._sums[name] = checksum(self.value(name))
        self._stale.add(name)

    def bring(self, names: Sequence[str]) -> None:
        """Gives the script's variables the values that devices have; collective, if some are in pieces."""
        with self._entered() as job:
            executor = job.require_executor(f"reading variables {', '.join(names)}")
            pieces = [name for name in names if not _is_whole(executor, name)]
            whole = [name for name in names if name not in pieces]
            values = dict(zip(whole, executor.session.run([executor.variables[name] for name in whole]), strict=True))
            if pieces:
                if _announce:
                    _announce[-1]((self._number, pieces))
                values |= zip(pieces, executor.run([*map(TensorId, pieces)]), strict=True)
        for name, value in values.items():
            if name in self._ahead or name in self._freed:
                self._set(name, value)
                self._ahead.discard(name)

    def _bring_for(self, name: str) -> None:
        """Brings a variable, and others with it that are likely to be asked for next.

        Other groups than the last few have their storage freed again.
        """
        group = [name]
        with self._entered() as job:
            executor = job.require_executor(f"reading variable {name}")
            # One is often asked for after each run, such as a counter of steps; who asks for another one reads many.
            if self._brought and not _is_whole(executor, name):
                groups = self._groups(lambda other: not _is_whole(executor, other))
                group = next((each for each in groups if name in each), group)
            self.bring(group)
            self._brought.append(group)
            if len(self._brought) > _BROUGHT_GROUPS:
                before = self._brought.popleft()
                self._give(executor, [each for each in before if each in self._stale])
                self._free([each for each in before if each not in group])

    def _groups(self, chosen: Callable[[str], bool]) -> Iterator[list[str]]:
        """Variables that runs write or that are freed, such as are brought together.

        They are the same each time, as each program that brings some takes its time to build.
        """
        group: list[str] = []
        size = 0
        for name in filter(chosen, sorted(self._written)):
            own = self._bytes(name)
            if group and size + own > _BROUGHT_BYTES:
                yield group
                group, size = [], 0
            group.append(name)
            size += own
        if group:
            yield group

    def _make(self, name: str) -> None:
        self._unmade.pop(name).made(self._variables[name])
        self._here.add(name)

    def _give(self, executor: Executor, names: Sequence[str]) -> None:
        if names:
            executor.set_variables(self.value, names)
            self._given(names)

    def _given(self, names: Collection[str]) -> None:
        """Takes note that devices have values."""
        self._stale.difference_update(names)
        for name in names:
            self._sums.pop(name, None)
            if self._unmade.pop(name, None) is not None:
                self._freed.add(name)

    def _free(self, names: Collection[str]) -> None:
        """Frees the storage that the script has of large variables which devices have."""
        for name in self._here.intersection(names) - self._stale:
            dtype = self._variables[name].dtype
            # Who reads it without asking (a tf.function of before, which has its handle) is not to get old numbers.
            self._put(name, np.nan if dtype.is_floating else np.zeros(0, dtype.as_numpy_dtype))
            self._here.remove(name)
            self._freed.add(name)

    def _set(self, name: str, value: Any) -> None:
        self._put(name, value)
        self._freed.discard(name)
        if self._bytes(name) > KEPT_BYTES:
            self._here.add(name)

    def _put(self, name: str, value: Any) -> None:
        variable = self._variables[name]
        with context.eager_mode(), unnoticed():
            whole = tf.convert_to_tensor(value, variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=whole, validate_shape=False)

    def _bytes(self, name: str) -> int:
        variable = self._variables[name]
        return int(variable.shape.num_elements() * variable.dtype.size)


def _is_whole(executor: Executor, name: str) -> bool:
    """Whether each device stores the whole of a variable."""
    return executor.layout_of(TensorId(name)).is_replicated
