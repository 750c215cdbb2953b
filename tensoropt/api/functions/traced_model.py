"""Functions that TensorFlow has traced, as parts of one model: the importer's second door.

A trace is a graph of its own, with placeholders for arguments and for what it captures. Here it becomes operations of
a model's graph: those of captured variables are variables there, one for each, however many traces capture it. All else
(calls of functions, loops, sizes that are open) the importer takes as it takes the graphs of scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.attributes import HINTS, keep_shapes
from tensoropt.api.frontend.effects import HANDLE, has_effect, is_plain_read
from tensoropt.api.frontend.functions import add_functions, is_implementation
from tensoropt.api.frontend.rewriting.rewriter import free_name
from tensoropt.api.frontend.walks import order
from tensoropt.api.functions.lazy_variables import made_later
from tensoropt.api.functions.sizes_read import OpenSizeError, noting_sizes
from tensoropt.api.functions.tapes import noting_gradients
from tensoropt.api.functions.variable_holders import handle_of, noting_handles
from tensoropt.api.mirror.model import GradientCall, Model, begin_aside, tensor_key
from tensoropt.errors import GraphError
from tensoropt.graph.registry import traits
from tensoropt.stages import stage
from tensoropt.terms import ARGUMENTS, Terms

__all__ = ["Trace", "Traceable", "TracedModel"]

_LEFT_OUT_ATTRS = (*HINTS, "_user_specified_name", "_XlaMustCompile", "_noinline")


@dataclass(frozen=True, slots=True)
class Traceable:
    """A function to trace, with the specs of its arguments.

    Attributes:
        function: takes a tensor for each spec.
        specs: ``tf.TensorSpec`` of its arguments.
        name: the prefix of the names of its operations.
        autograph: whether Python's branches and loops over tensors become TensorFlow's.
        sized: the specs with the sizes that ``specs`` leaves open. They are used if the function cannot be traced
            without sizes, as one that computes with ``x.shape[0]``, or if it reads them.
        may_read: whether sizes that are open may be read, as they are open in TensorFlow's own trace, too.
    """

    function: Callable[..., Any]
    specs: Sequence[Any]
    name: str
    autograph: bool = True
    sized: Sequence[Any] | None = None
    may_read: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """A function in a model's graph.

    Attributes:
        inputs: names of the placeholders of its arguments.
        outputs: names of the tensors that it gives.
        target: name of the operation that has all its effects.
        pack: makes what the function returns of the values of its outputs.
        variables: names of the variables that it captures.
        written: names of those that it writes.
        sized: whether it is for batches of one size, as the function needs the size as a number.
        reads: whether the script's own code has read a size that was open.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    target: str
    pack: Callable[[Sequence[Any]], Any]
    variables: tuple[str, ...]
    written: tuple[str, ...]
    sized: bool = False
    reads: bool = False


class TracedModel:
    """A model whose graph is made of traces.

    Attributes:
        model: the model.
        variables: TensorFlow's variables behind its own, by name.
    """

    def __init__(self, named: Callable[[Any], str | None] = lambda variable: None, terms: Terms = ARGUMENTS) -> None:
        """Begins with no trace.

        Args:
            named: the name that a variable is to have here, or None.
            terms: in which errors speak of inputs.
        """
        self.model: Model = begin_aside(terms)
        self.variables: dict[str, Any] = {}
        self._named = named
        self._names: dict[int, str] = {}  # by the variable's handle
        self._prefixes: set[str] = set()
        self._sources: list[Any] = []  # what was traced, which operations do not keep alive

    def trace(self, traceable: Traceable) -> Trace:
        """Traces a function of tensors, and adds it.

        Raises:
            GraphError: it cannot be taken into a model's graph; naming what, and why.
        """
        if not tf.executing_eagerly():
            raise GraphError(
                f"{traceable.name}: is traced inside of a graph. Call it in eager code, which is TensorFlow 2's "
                "default."
            )
        specs, sized, takes_sizes = traceable.specs, traceable.sized, False
        # The block of gradients comes first, as it lets one thread at a time in.
        tracing = stage("trace", f"tracing {traceable.name}", if_long=True)
        with tracing, noting_gradients() as noted, made_later(), noting_handles() as by_handle:
            sized = specs if sized is None else sized
            has_sizes = list(sized) != list(specs)
            concrete = None
            with noting_sizes(ends=has_sizes and not traceable.may_read) as read:
                try:
                    concrete = _concrete(traceable.function, specs, traceable.autograph)
                except OpenSizeError:
                    pass
                # What is raised for a None in the place of a number, or by gradients of matrices of open sizes.
                except (TypeError, ValueError, NotImplementedError):
                    if not has_sizes:
                        raise
            if concrete is None:
                concrete, takes_sizes = _concrete(traceable.function, sized, traceable.autograph), True
        variables = by_handle | {id(handle_of(variable)): variable for variable in concrete.graph.variables}
        trace = self._add(concrete, noted.of(concrete.graph), len(specs), self._free(traceable.name), variables)
        return replace(trace, sized=takes_sizes, reads=read.any)

    def pin(self, pins: Callable[[Mapping[str, Any]], Any]) -> None:
        """Makes searches store some variables in one way only.

        Args:
            pins: gives the :class:`~tensoropt.api.find.pins.Pins`, of TensorFlow's variables by their names here.
        """
        self.model.pins = lambda: pins(self.variables)

    def _free(self, name: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name).lstrip("_") or "step"
        return free_name(base, self._prefixes)

    def _add(
        self, concrete: Any, calls: Sequence[GradientCall], count: int, prefix: str, variables: Mapping[int, Any]
    ) -> Trace:
        """Adds a trace, given the variables by their handles' identities."""
        source, graph = concrete.graph, self.model.graph
        if source.deferred_internal_captures:
            raise GraphError(f"{prefix}: captures tensors that are given when it is called. Give them as arguments.")
        copy = _Copy(self.model, prefix, source, {output.source for call in calls for output in call.outputs})
        self._sources.append(concrete)
        captured, handles = [], []
        for place, (outer, inner) in enumerate(source.captures):
            if inner.dtype == tf.resource:
                variable = variables.get(id(outer))
                if variable is None:
                    raise _no_variable(prefix, inner)
                name, handle = self._variable(variable, inner, copy.numbers)
                captured.append(name)
                handles.append(inner)
                copy.put(inner, outer, handle)
            elif isinstance(outer, tf.Tensor) and hasattr(outer, "numpy") and inner.dtype != tf.variant:
                with graph.as_default(), tf.control_dependencies(None):
                    copy.put(inner, outer, tf.constant(outer.numpy(), name=f"{prefix}/captured_{place}"))
            else:
                remedy = "Give it as an argument."
                if inner.dtype == tf.variant:  # what a dataset is
                    remedy = "Go through a dataset outside, and give each of its elements as an argument."
                raise GraphError(
                    f"{prefix}: takes '{inner.op.name}', a {inner.dtype.name} tensor from outside. {remedy}"
                )
        copy.run()
        inside = frozenset().union(*(call.inside for call in calls))
        for call in calls:
            self.model.add_gradient_call(copy.renamed(call))
        ends = set(source.control_outputs)
        effects = [
            copy.operation(op)
            for op in order(source.control_outputs)
            if op in ends and has_effect(op) and op.name not in inside
        ]
        with graph.as_default():
            target = tf.group(*effects, name=f"{prefix}/effects")
            graph.add_to_collections(["train_op"] if calls else [], target)  # the steps of training that there are
            outputs = [
                tf.identity(copy.tensor(x), name=f"{prefix}/output_{place}") for place, x in enumerate(source.outputs)
            ]
        return Trace(
            tuple(copy.tensor(x).op.name for x in concrete.inputs[:count]),
            tuple(x.name for x in outputs),
            target.name,
            concrete.function_type.pack_output,
            tuple(captured),
            tuple(name for name, inner in zip(captured, handles, strict=True) if _is_written(inner, inside)),
        )

    def _variable(self, variable: Any, inner: Any, numbers: Mapping[Any, int]) -> tuple[str, Any]:
        graph = self.model.graph
        known = self._names.get(id(handle_of(variable)))
        if known is not None:
            return known, graph.get_tensor_by_name(f"{known}:0")
        wanted = self._named(variable) or _described(variable, inner, numbers)
        name = graph.unique_name(re.sub(r"[^A-Za-z0-9_.\\/-]", "_", wanted).lstrip("_/-\\") or "variable")
        attrs = {
            "dtype": tf.compat.v1.AttrValue(type=variable.dtype.as_datatype_enum),
            "shape": tf.compat.v1.AttrValue(shape=variable.shape.as_proto()),
            "shared_name": tf.compat.v1.AttrValue(s=name.encode()),
        }
        made = graph._create_op_internal(HANDLE, [], [tf.resource], name=f"{name}/", attrs=attrs)
        self._names[id(handle_of(variable))] = name
        self.variables[name] = variable
        return name, made.outputs[0]


def _is_written(handle: Any, inside: Collection[str]) -> bool:
    """Tells whether an operation may write a captured variable: any of its readers that has an effect may."""
    return any(has_effect(op) and op.name not in inside for op in handle.consumers())


def _described(variable: Any, inner: Any, numbers: Mapping[Any, int]) -> str:
    """A name for a variable: its own or, as Keras names a layer's variables alike, with the layer that reads it first.

    Args:
        variable: TensorFlow's.
        inner: its handle in a trace.
        numbers: of the trace's operations, in their order.
    """
    own = str(variable.name).split(":")[0]
    if "/" in own:
        return own
    reads = [op for op in inner.consumers() if is_plain_read(op, {})]
    # TensorFlow gives readers in an order that differs between processes; the graph's is alike.
    scope = min(reads, key=numbers.__getitem__).name.split("/")[:-2] if reads else []
    return "/".join([*scope, own])


def _concrete(function: Callable[..., Any], specs: Sequence[Any], autograph: bool) -> Any:
    """A trace in which no variables were made: another one if they were in the last that TensorFlow took.

    Names of operations must not tell whether layers and optimizers made their variables in a trace: a plan of it is for
    later ones, too.
    """
    made: list[Any] = []
    failed: list[BaseException] = []

    def note(create: Callable[..., Any], **arguments: Any) -> Any:
        made.append(create(**arguments))
        return made[-1]

    def noted(*tensors: Any) -> Any:
        made.clear()
        failed.clear()
        with tf.variable_creator_scope(note):
            try:
                return function(*tensors)
            except (Exception, OpenSizeError) as error:
                if not made:
                    raise
                failed.append(error)  # once TensorFlow has given the variables their values
                return None

    def traced() -> Any:
        return tf.function(noted, autograph=autograph, jit_compile=False).get_concrete_function(*specs)

    concrete = traced()
    if made:
        concrete = traced()
    for error in failed:
        raise error
    return concrete


def _no_variable(prefix: str, inner: Any) -> GraphError:
    """Makes the error for a captured handle that is no variable, by the ops that read the handle."""
    readers = [op for op in inner.consumers() if op.type.startswith("LookupTable")]
    if any("Summary" in op.type for op in inner.consumers()):
        return GraphError(
            f"{prefix}: takes '{inner.op.name}', a writer of summaries. Return from the step what is to be written, "
            "and write it outside of the step (tensoropt.on_rank_0 does so once)."
        )
    if not readers:
        return GraphError(
            f"{prefix}: takes '{inner.op.name}', which is no variable that the step names, such as an iterator. Read "
            "an iterator outside, and give what it gives as an argument; take a variable's handle in the step."
        )
    return GraphError(
        f"{prefix}: {readers[0].type} '{readers[0].name}': takes a table, as StringLookup, IntegerLookup and "
        "TextVectorization do, which devices cannot have in pieces. Look up before the step: map the layer over the "
        "data (dataset.map(lambda x, y: (layer(x), y))), and begin the model with the integers that it makes."
    )


class _Copy:
    """Makes the operations of a trace again in another graph, under a prefix.

    Attributes:
        numbers: the operations of the trace, in their order.
    """

    def __init__(self, model: Model, prefix: str, source: Any, differentiated: Container[str]) -> None:
        """Takes a trace, and the names of the tensors in it by which something is differentiated."""
        self._model, self._graph, self._prefix, self._source = model, model.graph, prefix, source
        self._differentiated = differentiated
        self.numbers = {op: number for number, op in enumerate(source.get_operations())}
        self._tensors: dict[str, Any] = {}
        self._operations: dict[str, Any] = {}
        self._put: set[str] = set()  # names of the trace's operations that give what is captured

    def put(self, inner: Any, outer: Any, stand_in: Any) -> None:
        """Makes a tensor stand for a captured one."""
        self._tensors[inner.name] = stand_in
        self._operations[inner.op.name] = stand_in.op
        self._put.add(inner.op.name)
        self._model.copies |= dict.fromkeys((tensor_key(inner), tensor_key(outer)), stand_in.name)

    def tensor(self, tensor: Any) -> Any:
        """Returns the tensor that stands for a tensor of the trace."""
        return self._tensors[tensor.name]

    def operation(self, op: Any) -> Any:
        """Returns the operation that stands for an operation of the trace."""
        return self._operations[op.name]

    def run(self) -> None:
        """Makes all operations that are not there yet, each after what it reads."""
        for function in filter(is_implementation, self._source._functions.values()):
            self._graph._add_function_recursive(function)
        for op in order(self.numbers):
            if op.name not in self._operations:
                self._make(op, sorted(op.control_inputs, key=self.numbers.__getitem__))

    def _make(self, op: Any, controls: Sequence[Any]) -> None:
        attrs = {key: value for key, value in op.node_def.attr.items() if key not in _LEFT_OUT_ATTRS}
        add_functions(op, self._graph)
        inputs = [self._tensors[x.name] for x in op.inputs]
        name = f"{self._prefix}/{op.name}"
        made = self._graph._create_op_internal(
            op.type, inputs, [x.dtype for x in op.outputs], name=f"{name}/", attrs=attrs
        )
        if controls:
            made._add_control_inputs([self._operations[each.name] for each in controls])
        keep_shapes(made.outputs, op.outputs)
        given = list(made.outputs)
        if traits(op).reads_variable and op.outputs[0].name in self._differentiated:
            with self._graph.as_default(), tf.control_dependencies(None):  # the read is what the variable is
                given = [tf.identity(x, name=f"{name}/read") for x in given]
        for new, old in zip(given, op.outputs, strict=True):
            self._tensors[old.name] = new
            self._model.copies[tensor_key(old)] = new.name
        self._operations[op.name] = made
        self._model.origins[name] = op

    def renamed(self, call: GradientCall) -> GradientCall:
        """A differentiation by the names that its tensors have here."""
        outputs = tuple(
            replace(
                output,
                name=self._named_gradient(output.name, output.source),
                source=self._named(output.source) if ":" in output.source else self._operations[output.source].name,
                values=self._named(output.values),
                indices=None if output.indices is None else self._named(output.indices),
            )
            for output in call.outputs
        )
        return GradientCall(
            tuple(map(self._named, call.losses)),
            outputs,
            tuple(map(self._named, call.stopped)),
            # A variable that gradient functions alone read is captured there, and yet none of their operations.
            frozenset(self._operations[name].name for name in call.inside - self._put),
        )

    def _named_gradient(self, name: str, source: str) -> str:
        """The name of a gradient, which ends in that of what it belongs to."""
        ending = source.split(":")[0]
        own = ending if ":" in source else self._operations[source].name
        return f"{self._prefix}/{name.removesuffix(ending)}{own}"

    def _named(self, tensor: str) -> str:
        return str(self._tensors[tensor].name)
