"""The programs behind a parallel Keras model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tensoropt.api.functions.alone import alone
from tensoropt.api.functions.function import Function
from tensoropt.api.functions.program import Program
from tensoropt.api.keras import hooks
from tensoropt.api.keras.layouts import LayoutPins
from tensoropt.api.keras.meeting import Meeting
from tensoropt.api.session.job import current_job

__all__ = ["Parallel"]

_TRAIN = "train"


class Parallel:
    """Takes a model's steps by programs: one that trains, and evaluates beside; before there is a plan for training,
    another one that only evaluates or predicts.
    """

    def __init__(
        self, model: Any, option: Any, arguments: Mapping[str, Any], pins: LayoutPins | None, shard: bool
    ) -> None:
        """Takes the arguments of :func:`parallelize`; collective."""
        self._job = job = current_job()
        job.start_once()
        self._model = model
        self._option, self._arguments = option, {**arguments, "feed": "global" if shard else "data_parallel"}
        self._pins, self._shard = pins, shard
        self._compiled: Any = None  # how the model was when steps were made
        self._programs: dict[bool, Program] = {}  # by whether it trains
        self._functions: dict[tuple[str, bool], Function] = {}
        self.rank, self.size = job.rank, job.size
        self._meeting = Meeting(job, shard)
        self._writes = False  # whether rank 0 is at it
        drawn = job.draw_seed()
        if not hooks.is_seeded() and self.size > 1:
            tf.random.set_seed(drawn)  # by which all ranks shuffle alike

    def begin(self) -> None:
        """Is called before steps are taken: there are to be others if the model was compiled again, as for Keras."""
        compiled = hooks.compiled_as(self._model)
        if self._compiled is not None and not _same(compiled, self._compiled):
            self._programs, self._functions = {}, {}
        self._compiled = compiled

    def step(self, kind: str, batch: Any) -> Any:
        """One step of the model; collective.

        Args:
            kind: which one, such as ``train``.
            batch: the whole batch, the same on all ranks; this rank's share, if the job is to share nothing out.
        """
        self._meeting.batch(kind, batch)
        trains = kind == _TRAIN or True in self._programs
        first = (kind, trains) not in self._functions
        function = self._function(kind, trains)
        result = function.run_whole(batch) if self._shard else function(batch)
        if first:
            self._compiled = hooks.compiled_as(self._model)  # the first batch may have built it
        if trains:
            self._model.tensoropt_plan = self._programs[True].plan
        return result

    def sync(self) -> None:
        """Gives the model's variables the values that training has given them, but for large ones; collective."""
        for program in self._programs.values():
            program.sync(large=False)

    def write(self, what: str, act: Callable[[], Any]) -> None:
        """Has rank 0 act, such as write a file, with the values of variables that are in pieces; collective.

        Others go on when it is done: they may read the file.
        """
        if self._writes:  # a callback that saves the model
            act()
            return
        self.sync()
        self._writes = True
        try:
            alone(self._job, f"{what} of the model '{self._model.name}'", act)
        finally:
            self._writes = False

    def epoch(self, epoch: int) -> None:
        """Is called where an epoch begins; collective."""
        self._meeting.epoch(epoch)

    def end(self, kind: str) -> None:
        """Is called where the data of steps of a kind end; collective."""
        self._meeting.end(kind)

    def call(self, name: str) -> AbstractContextManager[None]:
        """A call of the model's, of whose failure here other ranks hear."""
        return self._meeting.call(name)

    def _function(self, kind: str, trains: bool) -> Function:
        if (kind, trains) not in self._functions:
            if trains not in self._programs:
                self._programs[trains] = Program()
                if self._pins is not None:
                    self._programs[trains].pin(functools.partial(self._pins.of, self._model))
            made = Function(hooks.step_of(self._model, kind), None, False, self._programs[trains], kind)
            made.asks(self._option if trains or self._is_name() else "mini_time", self._arguments)
            self._functions[kind, trains] = made
        return self._functions[kind, trains]

    def _is_name(self) -> bool:
        """Whether the option may be for any program, not a plan of the one that trains."""
        option = self._option
        return isinstance(option, str) and not option.endswith(".json") and "/" not in option


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(a is b or (isinstance(a, tuple) and a == b) for a, b in zip(one, other, strict=True))
