"""``tensoropt.function``: a step of a custom loop, planned and run on all ranks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, overload
from weakref import WeakKeyDictionary, ref

import tensorflow as tf
from tensorflow.python.eager import record

from tensoropt.api.arguments import StepArguments, check_names
from tensoropt.api.functions.leaves import (
    arrays_of,
    assembled,
    form_of,
    is_composite,
    leaf_of,
    opened,
    parts_of,
    spec_of,
)
from tensoropt.api.functions.program import Program, check_asked
from tensoropt.api.functions.traced_model import Trace, Traceable
from tensoropt.errors import GraphError, SessionError
from tensoropt.plan.plan import Plan
from tensoropt.stages import announce

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Function", "function", "traced_step"]

_Rows = Callable[[int | None], int | None]  # the first dimension in the job of what has one, or an open one, here


@overload
def function(
    step: None = None,
    *,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    shard: bool | None = None,
) -> Callable[[Callable[..., Any]], Function]: ...


@overload
def function(
    step: Callable[..., Any],
    *,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    shard: bool | None = None,
) -> Function: ...


def function(
    step: Callable[..., Any] | None = None,
    *,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    shard: bool | None = None,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """A function of tensors that runs on all ranks by a plan; ``tf.function`` for a job.

    It is traced as ``tf.function`` traces, but with first dimensions open. Where the step needs them as numbers
    (``x.shape[0]``), it is traced once for each size, and every rank gives the whole batch. ``tf.GradientTape`` in it,
    optimizers, layers and variables are TensorFlow's and Keras's own. A call plans it when it is the first one (or
    :meth:`Function.plan` does, before), and runs it.

    Also a decorator, with and without arguments, of methods, too: each object has a plan of its own.

    Args:
        step: what is traced; of a ``tf.function`` the Python function behind it.
        input_signature: ``tf.TensorSpec`` (or nests of them) of its positional arguments. By default those of what it
            is called with, whose first dimensions are open; Python's numbers and strings are constants of a trace.
        autograph: whether Python's branches and loops over tensors become TensorFlow's.
        jit_compile: has no effect, as ``tf.function`` has it.
        reduce_retracing: has no effect; first dimensions are open in any case.
        shard: whether every rank gives the whole batch, which must be the same, and takes its share of it; if not, each
            gives its share. By default what is the same on all ranks is whole, and what differs are shares.

    Returns:
        A :class:`Function`.

    Raises:
        SessionError: for what is no function.
    """
    if step is None:
        return lambda step: function(step, input_signature=input_signature, autograph=autograph, shard=shard)
    if not callable(step) or inspect.isclass(step):
        given = f"the class '{step.__name__}'" if inspect.isclass(step) else f"{type(step).__name__} {step!r}"
        raise SessionError(
            f"function: takes the step of a loop, a Python function of tensors, got {given}. Write @tensoropt.function "
            "above the function or method, and give options by name: @tensoropt.function(shard=False)."
        )
    return Function(step, input_signature, autograph, shard=shard)


class Tracer(Protocol):
    """The interface for tracing functions."""

    def trace(self, traceable: Traceable) -> Trace:
        """See :meth:`~tensoropt.api.functions.traced_model.TracedModel.trace`."""


class Function:
    """The function that :func:`function` makes of a step.

    All ranks call it together, each with the whole batch, the same on all of them, or with its share of the batch: the
    ``rank``-th part of the first dimension. Results are whole, on every rank, as eager tensors.

    Variables that the step uses begin with rank 0's values at the first call. Between calls, eager code may read and
    assign them as always: a variable fetches its value when it is asked for.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        input_signature: Sequence[Any] | None,
        autograph: bool,
        program: Program | None = None,
        name: str | None = None,
        shard: bool | None = None,
    ) -> None:
        """Takes arguments of :func:`function`; by default it has a program and a name of its own.

        Args:
            program: what runs it, with other functions.
            name: what names of its operations begin with.
        """
        self._step = getattr(step, "python_function", step)
        functools.update_wrapper(self, self._step, updated=())
        self._name = name or getattr(self._step, "__name__", type(self._step).__name__).strip("<>")
        self._signature = None if input_signature is None else tuple(input_signature)
        self._autograph = autograph
        self._program = program
        self._shard = shard
        self._traces: dict[Any, Trace] = {}  # by specs, whose first dimensions are open
        self._by_form: dict[tuple[Hashable, frozenset[int]], Trace] = {}  # with the sizes of shares
        self._forms: set[Hashable] = set()
        self._sized = False  # whether each size has a trace of its own
        self.may_read_sizes = False  # as they are open in TensorFlow's own traces of the step, too
        self.reads_sizes = False  # whether a trace has read open sizes
        self._asked: tuple[Any, dict[str, Any]] = ("mini_time", {})
        self._of_objects: WeakKeyDictionary[Any, Function] = WeakKeyDictionary()

    def __get__(self, instance: Any, owner: type | None = None) -> Function:
        """The function of an object, where this one is its method."""
        if instance is None:
            return self
        try:
            known = self._of_objects.get(instance)
        except TypeError as error:
            raise SessionError(
                f"{self._name}: is a method of a {type(instance).__name__}, of which there are no weak references or "
                f"hashes ({error}). Make a tensoropt.function of the object's bound method instead."
            ) from error
        if known is None:
            step, own = self._step, ref(instance)

            @functools.wraps(step)
            def of_object(*args: Any, **kwargs: Any) -> Any:
                if own() is None:
                    raise SessionError(f"{step.__name__}: its object is gone. Keep the object in a variable.")
                return step(own(), *args, **kwargs)

            # Its own has `self`, which `functools.wraps` would have it say.
            of_object.__signature__ = inspect.signature(MethodType(step, instance))  # type: ignore[attr-defined]
            known = Function(of_object, self._signature, self._autograph, shard=self._shard)
            known.asks(*self._asked)
            self._of_objects[instance] = known
        return known

    @property
    def tensoropt_plan(self) -> Plan | None:
        """The plan, once there is one."""
        return None if self._program is None else self._program.plan

    def plan(self, option: Any = "mini_time", **find_strategy_arguments: Unpack[StepArguments]) -> Plan | None:
        """Says how the step is planned; collective.

        With an ``input_signature`` it is planned at once, if that leaves no size open or ``batch_size`` gives it, else
        by the first call.

        Args:
            option: see :func:`tensoropt.find_strategy`; not ``profiling`` nor ``mini_parallelism``.
            find_strategy_arguments: others of ``find_strategy``, and ``collectives`` and ``config`` of
                ``build_execution_graph``.

        Returns:
            The plan, if it is made.

        Raises:
            SessionError: it is planned already, or an argument is unknown.
            TensorOptError: what ``find_strategy`` and ``build_execution_graph`` raise.
        """
        if self._program is not None and self._program.is_planned:
            raise SessionError(
                f"{self._name}.plan: it is planned already. Call plan before the first call, or make another function "
                "of the step."
            )
        check_names(f"{self._name}.plan", find_strategy_arguments, StepArguments)
        check_asked(f"{self._name}.plan", option, find_strategy_arguments)
        self._asked = option, {**find_strategy_arguments}
        if self._signature is not None:
            self._trace(self._signature, {}, ())
            self._search()
        return self.tensoropt_plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step.

        Raises:
            GraphError: it is called inside of a graph.
            SessionError: other arguments than the signature has, or a tape of eager code is open.
            TensorOptError: what planning, building and running raise.
        """
        if not tf.executing_eagerly():
            raise GraphError(
                f"{self._name}: is called inside of a graph. Call it in eager code, which is TensorFlow 2's default; "
                "in another function, call the Python function that it was made of."
            )
        if record.could_possibly_record():
            raise SessionError(
                f"{self._name}: is called under a tf.GradientTape (or ForwardAccumulator), which sees nothing of what "
                "devices compute. Open the tape in the step, and return gradients, or close it before the call."
            )
        if self._signature is not None:
            args, kwargs = self._bound(args, kwargs), {}
        values = tf.nest.map_structure(leaf_of, (args, kwargs))
        return self._run(values if self._signature is None else (self._signature, {}), values, whole=False)

    def run_whole(self, *args: Any) -> Any:
        """Runs the step with whole batches, which must be the same on all ranks, for a program with other functions.

        Raises:
            CollectiveError: on all ranks, if they are seen to differ.
        """
        given = tf.nest.map_structure(leaf_of, (args, {}))
        return self._run(given, given, whole=True)

    def asks(self, option: Any, arguments: dict[str, Any]) -> None:
        """Says how the step is planned, if nothing has planned its program before it first runs."""
        self._asked = option, arguments

    def sync(self) -> None:
        """Gives all variables of the step the values that training has given them; collective.

        Needed only before code that one rank runs alone reads variables that are in pieces.
        """
        if self._program is not None:
            self._program.sync()

    def _the_program(self) -> Program:
        if self._program is None:
            self._program = Program(shares=None if self._shard is None else not self._shard)
        return self._program

    def _run(self, given: Any, values: Any, *, whole: bool) -> Any:
        """Runs a step.

        Args:
            given: its arguments by place and by name, of which some may be specs.
            values: those of the leaves, in the same structure.
            whole: whether batches are whole in any case.
        """
        leaves = [(spec_of(leaf), value) for leaf, value in zip(*map(tf.nest.flatten, (given, values)), strict=True)]
        args, kwargs = given
        tell = self._shard is None and self._asked[1].get("feed") is None and not whole
        trace, shares = self._trace(args, kwargs, leaves if tell else ())
        composite = any(is_composite(spec) for spec, _ in leaves)
        if composite and self._takes_shares:
            raise SessionError(
                f"{self._name}: takes ragged or sparse tensors, of which no rank can be given a share. Give every rank "
                "the whole batch, and leave shard and feed out."
            )
        program = self._the_program()
        if program.is_rehearsed and not trace.written:
            return self._step(*values[0], **values[1])  # here and now: what trains nothing has no plan
        # A step that was traced for the size that it is given has no other.
        is_whole = composite or (trace.sized and not shares and not self._takes_shares)
        if not program.is_planned:
            if is_whole:
                self._asked[1]["feed"] = "global"
            self._search()
        return program.run(trace, _arrays(leaves), whole=whole or is_whole)

    def _search(self) -> None:
        option, arguments = self._asked
        self._the_program().search(option, **arguments)

    def _bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments by their places, in the structure of the signature."""
        try:
            given = inspect.signature(self._step).bind(*args, **kwargs)
            bound = tuple(given.args)
            if given.kwargs:
                raise TypeError(f"{', '.join(given.kwargs)} can be given by name only")
            tf.nest.assert_same_structure(self._signature, bound)
        except (TypeError, ValueError) as error:
            raise SessionError(
                f"{self._name}: its arguments do not fit input_signature={self._signature}: {error}. Call it with a "
                "tensor or array for each tf.TensorSpec."
            ) from error
        return bound

    def _trace(
        self, args: Any, kwargs: dict[str, Any], given: Sequence[tuple[Any, Any]]
    ) -> tuple[Trace, frozenset[int]]:
        """The trace for some arguments, and the first sizes of those of which ranks give shares; collective.

        Args:
            args: by place.
            kwargs: by name.
            given: specs and values of leaves, if these tell whether ranks give shares.
        """
        form, shares = form_of((args, kwargs)), frozenset[int]()
        is_new = form not in self._forms
        if is_new:
            self._check_readable(args, kwargs)
            self._forms.add(form)
        if not self._takes_shares and (self._sized or is_new):  # the sizes of whole batches and shares differ
            shares = self._the_program().shared_sizes(_arrays(given))
        known = self._by_form.get((form, shares))
        if known is None:
            known = self._by_form[form, shares] = self._trace_of_specs(args, kwargs, shares)
        return known, shares

    def _trace_of_specs(self, args: Any, kwargs: dict[str, Any], shares: frozenset[int]) -> Trace:
        rows = functools.partial(self._rows, shares)
        key = self._key(args, kwargs, rows)
        if key not in self._traces:
            trace = traced_step(
                self._the_program(),
                self._step,
                args,
                kwargs,
                self._name,
                autograph=self._autograph,
                rows=rows,
                may_read=self.may_read_sizes,
                sized=self._sized,
            )
            if trace.sized and not self._sized:
                announce(f"{self._name}: takes the size of a batch as a number, so it is traced for each size")
                self._sized = True
                key = self._key(args, kwargs, rows)
            self.reads_sizes |= trace.reads
            self._traces[key] = trace
        return self._traces[key]

    def _check_readable(self, args: Any, kwargs: dict[str, Any]) -> None:
        for leaf in tf.nest.flatten((args, kwargs)):
            spec = spec_of(leaf)
            if spec is not None and any(part.dtype in (tf.resource, tf.variant) for part in parts_of(spec)):
                raise SessionError(
                    f"{self._name}: takes tensors, got a {type(leaf).__name__}, which only this process can read. "
                    "Loop over the data in eager code, and give the step one batch after another: "
                    "for x, y in dataset: step(x, y)."
                )

    def _key(self, args: Any, kwargs: dict[str, Any], rows: _Rows) -> Hashable:
        """Returns a key that calls of one trace have in common."""
        first = rows if self._sized else None
        return form_of(tf.nest.map_structure(lambda leaf: _open_spec(leaf, first), (args, kwargs)))

    @property
    def _takes_shares(self) -> bool:
        """True if the script has said that each rank gives its share of a batch."""
        return self._shard is False or self._asked[1].get("feed") == "data_parallel"

    def _rows(self, shares: frozenset[int], given: int | None) -> int | None:
        """Rows of a whole batch of which this rank is given some; None of a signature that leaves them open."""
        if given is None or not (self._takes_shares or given in shares):
            return given
        return given * self._the_program().size


def _arrays(leaves: Iterable[tuple[Any, Any]]) -> list[Any]:
    """The arrays to feed for leaves, given their specs and values."""
    return [array for spec, value in leaves if spec is not None for array in arrays_of(value, spec)]


def traced_step(
    program: Tracer,
    step: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any],
    name: str,
    *,
    autograph: bool,
    rows: _Rows | None = None,
    may_read: bool = False,
    sized: bool = False,
) -> Trace:
    """Traces a step for some arguments.

    Args:
        program: takes the trace.
        step: a function of nests of tensors and other values.
        args: by place; tensors, arrays or their ``tf.TensorSpec``, whose first dimensions are open in the trace of
            tensors and arrays, and all else as it is.
        kwargs: by name.
        name: what names of operations begin with.
        autograph: whether Python's branches and loops over tensors become TensorFlow's.
        rows: gives first dimensions, for a step that cannot be traced while they are open, or reads them.
        may_read: whether the step may read that they are open, as in a trace of TensorFlow's own.
        sized: whether the step is known to need them.
    """
    flat = tf.nest.flatten((args, kwargs))
    names = _argument_names(step, args, kwargs)
    leaves = [_open_spec(value) for value in flat]

    def specs(first: _Rows | None) -> list[Any]:
        found = []
        for name, value in zip(names, flat, strict=True):
            spec = spec_of(value)
            parts = [] if spec is None else parts_of(_open_spec(value, first))
            own = [name] if len(parts) == 1 else [f"{name}_{place}" for place in range(len(parts))]
            found += [tf.TensorSpec(part.shape, part.dtype, each) for part, each in zip(parts, own, strict=True)]
        return found

    def traced(*tensors: Any) -> Any:
        given = iter(tensors)
        whole = [
            value if spec_of(value) is None else assembled(leaf, given)
            for value, leaf in zip(flat, leaves, strict=True)
        ]
        own_args, own_kwargs = tf.nest.pack_sequence_as((args, kwargs), whole)
        return step(*own_args, **own_kwargs)

    whole = None if rows is None else specs(rows)
    if whole is not None and sized:
        return replace(program.trace(Traceable(traced, whole, name, autograph)), sized=True)
    return program.trace(Traceable(traced, specs(None), name, autograph, whole, may_read))


def _argument_names(step: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> list[str]:
    try:
        places = list(inspect.signature(step).bind_partial(*args).arguments)
    except TypeError:  # Calling it says what is wrong
        places = []
    found = []
    for number, value in enumerate(args):
        own = places[number] if number < len(places) else f"argument_{number}"
        parts = tf.nest.flatten(value)
        found += [own] if len(parts) == 1 else [f"{own}_{part}" for part in range(len(parts))]
    return found + [f"{key}_{part}" for key in sorted(kwargs) for part in range(len(tf.nest.flatten(kwargs[key])))]


def _open_spec(leaf: Any, rows: _Rows | None = None) -> Any:
    """Returns the spec by which a fed leaf is traced; any other leaf as it is.

    First dimensions are open or, where ``rows`` is given, of the size that they have in the whole job; a signature
    itself says which are open.
    """
    spec = spec_of(leaf)
    if spec is None or spec is leaf:
        return leaf
    if rows is None:
        return opened(spec)
    return spec if is_composite(spec) else opened(spec, rows)
