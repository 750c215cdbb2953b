"""Values of a script's variables, while a program trains them: with the script, on the devices, or both."""

from __future__ import annotations

import collections
import contextlib
import itertools
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context  # to be in eager mode inside of a graph has no public name

from tensoropt.api.functions.lazy_variables import KEPT_BYTES, Unmade
from tensoropt.api.functions.variable_holders import handle_of, hold, holder_of, unnoticed
from tensoropt.api.session.job import Job
from tensoropt.errors import CollectiveError
from tensoropt.exec.engines.guard import DifferenceError
from tensoropt.exec.engines.ranks import written_holders
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.feeding import checksum
from tensoropt.exec.program.fetch import groups_read_together
from tensoropt.graph.spec import TensorId

__all__ = ["Values", "announced_by", "bring_announced"]

_BROUGHT_GROUPS = 4  # so many groups of them stay until the next run
_numbered: weakref.WeakValueDictionary[int, Values] = weakref.WeakValueDictionary()  # alike on all ranks
_numbers = itertools.count()
_announce: list[Callable[[tuple[int, list[str]]], None]] = []  # the last one counts


@contextlib.contextmanager
def announced_by(announce: Callable[[tuple[int, list[str]]], None]) -> Iterator[None]:
    """Makes ``announce`` tell other ranks which values this rank is about to bring; they :func:`bring_announced`."""
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

    Most of what devices store whole is the script's own: one storage, whoever reads or writes it. Any other variable is
    here as well, or not at all: its storage is filled when somebody asks for the value, which needs all ranks if it is
    in pieces, and emptied when devices have a newer one, or have any of a large one.
    """

    def __init__(self, variables: Mapping[str, Any], entered: Callable[[], AbstractContextManager[Job]]) -> None:
        """Takes the script's variables by their names in the program, and what makes its job the current one."""
        self._variables = variables
        self._entered = entered
        self._shared: set[str] = set()  # variables that begin with rank 0's values
        self._stale: set[str] = set()  # variables whose value on the devices is older than the script's
        self._ahead: set[str] = set()  # those whose value there is newer
        self._parted: set[str] = set()  # those of which devices have had the value alone
        self._sums: dict[str, int] = {}  # checksums of stale values, as they were when they were asked for
        self._freed: set[str] = set()  # those that the script has no storage of
        self._here: set[str] = set()  # those that it has
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
                before.leave(variable)
            hold(variable, self)
            self._stale.add(name)
            if name not in self._unmade:
                self._here.add(name)

    def share(self, names: Sequence[str]) -> None:
        """Gives variables the values that rank 0 has of them, where it has not yet; collective."""
        names = [name for name in names if name not in self._shared]
        self._shared |= set(names)
        with self._entered() as job:
            if not job.world.are_several or not names:
                return
            job.world.meet(f"sharing the values of {', '.join(names)}")
            digests = job.world.comm.allgather(
                [self._unmade[name].digest if name in self._unmade else None for name in names]
            )
            for name, *ranks in zip(names, *digests, strict=True):
                if ranks[0] is not None and len(set(ranks)) == 1:
                    continue  # all make the same value, when it is needed
                if name in self._unmade:
                    self._make(name)
                value = job.world.comm.bcast(self.value(name) if job.world.rank == 0 else None, root=0)
                if job.world.rank:
                    self._set(name, value)

    def value(self, name: str) -> np.ndarray:
        """The value that the script has of a variable; one that was never made is made, and not kept."""
        unmade = self._unmade.get(name)
        with context.eager_mode(), unnoticed():
            return np.asarray(self._variables[name].numpy() if unmade is None else unmade.value())

    def handle(self, name: str) -> Any:
        """The handle of the script's variable."""
        return handle_of(self._variables[name])

    def give(self, job: Job, names: Collection[str]) -> None:
        """Brings values that the script may have changed to the devices; collective.

        Raises:
            CollectiveError: on all ranks, if they have assigned different values.
        """
        if job.executor is None:
            return
        known = job.executor.state.names
        missing = [name for name in names if name not in known]
        if missing:
            job.initialize(missing)
            self._given(missing, job.executor)
            known = job.executor.state.names
        there = sorted(self._stale & known)
        if job.world.size > 1:
            self._agree(job, there)
        self._give(job.executor, there)

    def _agree(self, job: Job, names: Sequence[str]) -> None:
        """Compares what ranks have assigned to variables.

        Where copies of one another differ by rounding, and so does what is made of them, rank 0's counts.
        """
        if not job.world.are_several:
            return
        sums = {name: checksum(self.value(name)) for name in names if name in self._sums}
        assigned = {name: found for name, found in sums.items() if found != self._sums[name]}
        # A step of all ranks, most often of none that has assigned anything.
        numbers = {name: zlib.crc32(name.encode(), found) for name, found in assigned.items()}
        try:
            job.world.meet("a step with what was assigned", shared=numbers)
        except DifferenceError as error:
            for name in error.differing:
                here = [name in rank for rank in error.ranks]
                whole = job.world.comm.bcast(self.value(name) if job.world.rank == 0 and all(here) else None, root=0)
                close = whole is not None and np.allclose(self.value(name), whole, rtol=1e-3, atol=1e-5)
                if not all(job.world.comm.allgather(close)):
                    said = written_holders("assigned" if each else "not assigned" for each in here)
                    raise CollectiveError(
                        f"Variable '{name}': must be assigned the same value on all {job.world.size} ranks, or none "
                        f"trains as one process does. Got {said if not all(here) else 'different values'}. Let "
                        "callbacks and code that assign to variables act alike on all ranks."
                    ) from error
                self._set(name, whole)

    def ran(self, written: Collection[str], executor: Executor) -> None:
        """Notes the variables that a run wrote; the run may have built its program from the values before."""
        if self._stale or self._unmade:
            self._given(executor.state.names & self._variables.keys(), executor)
        self._ahead = (self._ahead | set(written)) - executor.state.outside
        self._freed -= executor.state.outside
        self._brought.clear()
        # Most of the variables that the script has are outside; each step comes by here.
        here = (self._here - executor.state.outside) & executor.state.names
        self._free([name for name in here if name in self._ahead or self._bytes(name) > KEPT_BYTES])

    def sync(self, *, large: bool) -> None:
        """Gives the script's variables the values that they have here; collective.

        Args:
            large: also those that the script does not keep.
        """
        self._bring_missing(name for name in self._parted if large or self._bytes(name) <= KEPT_BYTES)

    def asked(self, variable: Any) -> None:
        """Brings a variable's value to the script, which may also change it."""
        name = self._names.get(id(variable))
        if name is None:
            return
        if name in self._unmade:
            self._make(name)
        if name in self._stale:
            return
        if name in self._elsewhere:
            self._bring_for(name)
        self._sums[name] = checksum(self.value(name))
        self._stale.add(name)

    def leave(self, variable: Any) -> None:
        """Brings a variable's value to the script, and has nothing to do with it any more until it is taken again."""
        self.asked(variable)
        name = self._names[id(variable)]
        self._sums.pop(name, None)
        for names in (self._stale, self._ahead, self._freed, self._here):
            names.discard(name)

    def read(self, variables: Sequence[Any]) -> None:
        """Brings the values of variables that something reads together; collective, if some are in pieces."""
        names = {self._names[id(variable)] for variable in variables if id(variable) in self._names}
        for name in sorted(names & self._unmade.keys()):
            self._make(name)
        self._bring_missing(names & self._parted)

    @property
    def _elsewhere(self) -> set[str]:
        """The variables whose newest values devices alone have."""
        return self._ahead | self._freed

    def bring(self, names: Sequence[str]) -> None:
        """Gives the script's variables the values that devices have; collective, if some are in pieces."""
        with self._entered() as job:
            executor = job.require_executor(f"reading variables {', '.join(names)}")
            pieces = [name for name in names if not executor.layout_of(TensorId(name)).is_replicated]
            whole = [name for name in names if name not in pieces]
            values = dict(
                zip(whole, executor.state.session.run([executor.state.variables[name] for name in whole]), strict=True)
            )
            if pieces:
                if _announce:
                    _announce[-1]((self._number, pieces))
                values |= zip(pieces, executor.run([*map(TensorId, pieces)]), strict=True)
        for name, value in values.items():
            if name in self._elsewhere:
                self._set(name, value)

    def _bring_missing(self, names: Iterable[str]) -> None:
        """Brings those variables of a set that the script has not, in the same groups each time."""
        for group in groups_read_together(names, self._bytes):
            if not self._elsewhere.isdisjoint(group):
                self.bring(group)

    def _bring_for(self, name: str) -> None:
        """Brings a variable, and if it is in pieces others with it that are likely to be asked for next.

        Other groups than the last few have their storage emptied again.
        """
        with self._entered() as job:
            executor = job.require_executor(f"reading variable {name}")
        if executor.layout_of(TensorId(name)).is_replicated:
            self.bring([name])
            return
        group = [name]
        # One is often asked for after each run, such as a counter of steps; who asks for another one reads many.
        if self._brought:
            group = next((each for each in groups_read_together(self._parted, self._bytes) if name in each), group)
        self.bring(group)
        self._brought.append(group)
        if len(self._brought) > _BROUGHT_GROUPS:
            before = self._brought.popleft()
            with self._entered():
                self._give(executor, [each for each in before if each in self._stale])
            self._free([each for each in before if each not in group])

    def _make(self, name: str) -> None:
        self._unmade.pop(name).made(self._variables[name])
        self._here.add(name)

    def _give(self, executor: Executor, names: Sequence[str]) -> None:
        apart = [name for name in names if name not in executor.state.outside]
        if apart:
            executor.state.set_variables(self.value, apart)
        self._given(names, executor)

    def _given(self, names: Collection[str], executor: Executor) -> None:
        """Takes note that devices have values."""
        self._stale.difference_update(names)
        for name in names:
            self._sums.pop(name, None)
            unmade = self._unmade.pop(name, None)
            if name in executor.state.outside:
                self._ahead.discard(name)
                self._freed.discard(name)
            elif unmade is not None:
                self._freed.add(name)
                self._parted.add(name)

    def _free(self, names: Collection[str]) -> None:
        """Empties the storage that the script has of variables which devices have."""
        for name in self._here.intersection(names) - self._stale:
            # Nothing takes a tensor of so many dimensions for the variable's value. Who reads it without asking (a
            # dataset that was made before, which has its handle) is to get no old numbers.
            self._put(name, np.zeros([0] * 8, self._variables[name].dtype.as_numpy_dtype))
            self._here.remove(name)
            self._freed.add(name)
            self._parted.add(name)

    def _set(self, name: str, value: Any) -> None:
        self._put(name, value)
        self._freed.discard(name)
        self._ahead.discard(name)
        self._here.add(name)

    def _put(self, name: str, value: Any) -> None:
        variable = self._variables[name]
        with context.eager_mode(), unnoticed():
            whole = tf.convert_to_tensor(value, variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=whole, validate_shape=False)

    def _bytes(self, name: str) -> int:
        variable = self._variables[name]
        return int(variable.shape.num_elements() * variable.dtype.size)
