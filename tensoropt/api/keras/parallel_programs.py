"""The programs behind a parallel Keras model."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tensoropt.api.functions.function import Function
from tensoropt.api.functions.program import Program
from tensoropt.api.functions.rank_zero import acting, alone
from tensoropt.api.keras import keras_internals
from tensoropt.api.keras.layout_pins import LayoutPins
from tensoropt.api.keras.meeting import Meeting
from tensoropt.api.keras.traces import Traced, Traces
from tensoropt.api.session.job import current_job
from tensoropt.errors import CollectiveError, SessionError
from tensoropt.exec.engines.guard import DifferenceError
from tensoropt.exec.engines.ranks import written_holders
from tensoropt.terms import BATCHES

__all__ = ["Parallel"]

_TRAIN = "train"
_STOPS = "whether the training stops"
_OF_TRAINING = ("micro_batches", "recompute", "search")  # arguments that a program without gradients has no use for
_parallel: list[weakref.ref[Parallel]] = []  # those that there are, in order


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
        # By kind, its program, what trains, and for a step that reads sizes whether Keras would have them.
        self._functions: dict[tuple[Hashable, ...], Function] = {}
        self._traces = {kind: Traces() for kind in keras_internals.KINDS}
        self.rank, self.size = job.world.rank, job.world.size
        self._meeting = Meeting(job.world, shard)
        drawn = job.world.draw_seed()
        _parallel[:] = [*(each for each in _parallel if each() is not None), weakref.ref(self)]
        keras_internals.replace_writers(_write_once)
        if not keras_internals.is_seeded() and self.size > 1:
            tf.random.set_seed(drawn)  # by which all ranks shuffle alike

    def begin(self, kind: str) -> None:
        """Drops the functions of a kind of steps, to be traced anew; all functions after a new ``compile``."""
        compiled = keras_internals.compiled_as(self._model)
        if compiled is not self._compiled:
            self._programs, self._functions, self._compiled = {}, {}, compiled
        self._functions = {key: function for key, function in self._functions.items() if key[0] != kind}
        self._traces[kind] = Traces()

    def step(self, kind: str, batch: Any, traced_for: Any) -> Any:
        """One step of the model; collective.

        Args:
            kind: which one, such as ``train``.
            batch: the whole batch, the same on all ranks; this rank's share, if the job is to share nothing out.
            traced_for: what Keras would trace it for, a batch or specs.
        """
        if self._job.rehearsal is not None and kind != _TRAIN:
            # Here and now: what comes before training has no plan.
            return keras_internals.step_of(self._model, kind)(batch)
        self._meeting.batch(kind, batch)
        trains = kind == _TRAIN or True in self._programs
        traced = self._traces[kind].of(traced_for)
        function = self._function(kind, trains, traced)
        result = function.run_whole(batch) if self._shard else function(batch)
        if traced.trainable is None:
            traced.trainable = keras_internals.Trainable.of(self._model)
            if not function.reads_sizes:
                self._functions[kind, trains, traced.trainable.key] = function
        if trains:
            self._model.tensoropt_plan = self._programs[True].plan
        return result

    def variables(self) -> Iterable[Any]:
        """The model's."""
        variables: Iterable[Any] = self._model.variables
        return variables

    def sync(self) -> None:
        """Gives the model's variables the values that training has given them, but for large ones; collective."""
        for program in self._programs.values():
            program.sync(large=False)

    def write(self, what: str, act: Callable[[], Any], tell: Callable[[], Any] = lambda: None) -> Any:
        """Makes rank 0 act, such as write a file, with the values of variables that are in pieces; collective.

        Other ranks go on when rank 0 is done: they may read the file, and get the result of ``tell`` on rank 0.
        """
        if acting() is None:  # else it is a callback that saves the model
            self.sync()
        return alone(self._job, what, act, tell)

    def of_rank_0(self, what: str, value: Any) -> Any:
        """The value that rank 0 has; collective."""
        return self._job.world.on_rank_0(what, lambda: value)

    def epoch(self, epoch: int) -> None:
        """Begins an epoch on all ranks; collective."""
        self._meeting.epoch(epoch)

    def ends(self, epoch: int, stops: bool) -> None:
        """Ends an epoch on all ranks; ``stops`` says whether training ends with it; collective.

        Raises:
            CollectiveError: on all ranks, if training ends on some of them only.
        """
        if not self._job.world.are_several:
            return
        try:
            self._job.world.meet("the end of an epoch of fit", shared={_STOPS: int(stops)})
        except DifferenceError as error:
            held = written_holders("the end" if numbers[_STOPS] else "another epoch" for numbers in error.ranks)
            raise CollectiveError(
                f"fit: all ranks must stop after epoch {epoch + 1}, or none. Got {held}. Give callbacks that stop the "
                "training, such as EarlyStopping, to all ranks."
            ) from error

    def end(self, kind: str) -> None:
        """Ends the data of a kind of steps on all ranks; collective."""
        self._meeting.end(kind)

    def call(self, name: str) -> AbstractContextManager[None]:
        """A call of the model's, of whose failure here other ranks hear.

        Raises:
            SessionError: in what this rank does alone.
        """
        if acting() is not None:
            raise SessionError(
                f"'{self._model.name}'.{name}: needs all ranks, and is called in {acting()}, which rank 0 runs alone. "
                "Call it outside: callbacks derived from keras.callbacks.Callback itself run on all ranks."
            )
        return self._meeting.call(name)

    def _function(self, kind: str, trains: bool, traced: Traced) -> Function:
        trainable = traced.trainable or keras_internals.Trainable.of(self._model)
        place: tuple[Any, ...] = kind, trains, trainable.key
        made = self._functions.get(place)
        if made is not None and made.reads_sizes and made.may_read_sizes is traced.has_sizes:
            place += (traced.has_sizes,)
        if place not in self._functions:
            if trains not in self._programs:
                self._programs[trains] = Program(terms=BATCHES, shares=not self._shard)
                if self._pins is not None:
                    self._programs[trains].pin(functools.partial(self._pins.of, self._model))
            step = keras_internals.step_of(self._model, kind)

            @functools.wraps(step)
            def as_traced(batch: Any) -> Any:
                with contextlib.nullcontext() if traced.trainable is None else traced.trainable.as_it_was():
                    return step(batch)

            made = Function(as_traced, None, False, self._programs[trains], kind)
            made.may_read_sizes = not traced.has_sizes
            option = self._option if trains or self._is_name() else "mini_time"
            asked = {key: value for key, value in self._arguments.items() if trains or key not in _OF_TRAINING}
            made.asks(option, asked)
            self._functions[place] = made
        return self._functions[place]

    def _is_name(self) -> bool:
        """Tells whether the option is a name that fits any program, rather than a plan of the training program."""
        option = self._option
        return isinstance(option, str) and not option.endswith(".json") and "/" not in option


def _write_once(name: str, variables: Iterable[Any], act: Callable[[], Any]) -> Any:
    """Writes a file of a model: on rank 0, if any model that shares variables with it is parallel; collective, then."""
    ids = {id(variable) for variable in variables}
    for parallel in filter(None, (each() for each in _parallel)):
        if not ids.isdisjoint(map(id, parallel.variables())):
            return parallel.write(f"{name} of what shares variables with a parallel model", act)
    return act()
