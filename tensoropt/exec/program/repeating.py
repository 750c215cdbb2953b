"""Micro-batches between the first and the last one are calls of one function.

The graph of a step that is split into many micro-batches would have the ops of each: Python takes seconds to make them,
and TensorFlow as long to start them, again and again the same. But for the first one, whose gradients begin the sums,
all micro-batches have the same ops, with another number. So the graph has two of them, the first and the last. Once it
is complete, with all that waits for something, what it runs of the last one becomes a function too, and those between
call that one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.exec.program.bodies import add_functions
from tensoropt.exec.schedule.segments import needed_ops, sources_of
from tensoropt.graph.called_functions import called_by

__all__ = ["Repeated"]

_NUMBERS = itertools.count()


class Repeated:
    """The micro-batches between the first and the last.

    Attributes:
        last: the number of the last micro-batch, as a tensor.
        done: an op that runs once these micro-batches are done, for which the last one is to wait.
    """

    def __init__(self, graph: Any, times: range, behind: Iterable[Any]) -> None:
        """Begins after the first micro-batch is built.

        Args:
            graph: the local graph, which is the default one.
            times: the numbers of these micro-batches.
            behind: the ops that end the first one.
        """
        self._graph = graph
        self._times = times
        with tf.name_scope("repeated"):
            self._before = tf.group(*behind, name="before")
            with tf.control_dependencies([self._before]):
                self.done = tf.no_op("done")
            self.last = tf.constant(times.stop, name="last")
        self._begun = len(graph.get_operations())
        self._ops: frozenset[Any] = frozenset()  # of the last micro-batch
        self._stand_ins: dict[str, list[Any]] = {}  # by the tensor of the last micro-batch that they stand for
        self._tensors: list[Any] = []  # those

    def end(self) -> None:
        """Notes that the last micro-batch is built."""
        self._ops = frozenset(self._graph.get_operations()[self._begun :])

    def values(self, tensor: Any) -> list[Any]:
        """The tensors of these micro-batches that are what one is in the last."""
        if tensor is None or tensor.op not in self._ops:
            return [tensor for _ in self._times]
        if tensor.name not in self._stand_ins:
            # They get their values when the function is made.
            empty = tf.compat.v1.placeholder(tensor.dtype, tensor.shape, "repeated")
            self._stand_ins[tensor.name] = [tf.identity(empty, "repeated") for _ in self._times]
            self._tensors.append(tensor)
        return self._stand_ins[tensor.name]

    def call(self, targets: Iterable[Any], built: range, config: Any) -> None:
        """Makes the function and calls it, once the program is complete.

        Args:
            targets: the operations that the program runs.
            built: the numbers of the program's ops; those made later order them.
            config: ``ConfigProto`` of the session.
        """
        needed = needed_ops(targets, built.start)
        ops = self._run_of(needed, built.stop)
        inside = set(ops)
        inputs = list({tensor.ref(): tensor for op in ops for tensor in op.inputs if tensor.op not in inside}.values())
        # What was made after the last micro-batch may run before some of it, but not before these.
        waits = {other for op in ops for other in op.control_inputs if needed.get(other, 0) < self._begun} - {self.done}
        results = [tensor for tensor in self._tensors if tensor.op in inside]
        function = _function(self._graph, ops, inputs, results)
        arrays = [
            tf.TensorArray(tensor.dtype, len(self._times), infer_shape=False, element_shape=tensor.shape)
            for tensor in results
        ]

        def turn(number: Any, *written: Any) -> list[Any]:
            *found, done = tf.raw_ops.StatefulPartitionedCall(
                args=[number if tensor is self.last else tensor for tensor in inputs],
                Tout=[*(tensor.dtype for tensor in results), tf.int32],
                f=function,
                config_proto=config.SerializeToString(),
            )
            place = number - self._times.start
            done.set_shape([])
            # TensorFlow leaves out of a function all that no output of it that is read needs.
            return [number + done, *(array.write(place, one) for array, one in zip(written, found, strict=True))]

        with (
            tf.control_dependencies([self._before, *sorted(waits, key=lambda op: op.name)]),
            tf.name_scope("repeated"),
        ):
            number, *written = tf.while_loop(
                lambda number, *_: number < self._times.stop,
                turn,
                [tf.constant(self._times.start), *arrays],
                parallel_iterations=1,
            )
            self.done._add_control_input(number.op)
            for tensor, array in zip(results, written, strict=True):
                for place, stand_in in enumerate(self._stand_ins[tensor.name]):
                    stand_in.op._update_input(0, array.read(place))

    def _run_of(self, needed: dict[Any, int], built: int) -> list[Any]:
        """What the program runs of the last micro-batch, and what orders that, made from ``built`` on; in order."""
        found = {op for op in needed if op in self._ops}
        pending = list(found)
        while pending:
            for other in sources_of(pending.pop()):
                if other not in found and needed.get(other, 0) >= built:
                    found.add(other)
                    pending.append(other)
        return sorted(found, key=needed.__getitem__)


def _function(graph: Any, ops: Sequence[Any], inputs: Sequence[Any], results: Sequence[Any]) -> str:
    """Adds a function with copies of some ops to their graph, which is the default one; returns its name.

    Args:
        graph: theirs.
        ops: what the function runs.
        inputs: its arguments.
        results: what it returns, and 1 after all that is done.
    """
    names = {op.name for op in ops}
    nodes = [op.node_def for op in ops]
    piece = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
    if any(list(called_by(node)) for node in nodes):
        piece.library.CopyFrom(graph.as_graph_def().library)
    followed: set[str] = set()
    for node in nodes:
        kept = [name for name in node.input if not name.startswith("^") or name[1:] in names]
        followed.update(name.lstrip("^").partition(":")[0] for name in kept)
        node.input[:] = kept
        beside = [name for name in node.attr["_class"].list.s if name.removeprefix(b"loc:@").decode() in names]
        if beside:
            node.attr["_class"].list.s[:] = beside
        else:
            del node.attr["_class"]
    piece.node.extend(nodes)
    ends = sorted(names - followed)

    def body(*given: Any) -> list[Any]:
        arrived = {tensor.name: one for tensor, one in zip(inputs, given, strict=True)}
        wanted = [*(tensor.name for tensor in results), *ends]
        found = tf.graph_util.import_graph_def(piece, input_map=arrived, return_elements=wanted, name="")
        with tf.control_dependencies(found[len(results) :]):
            return [*found[: len(results)], tf.constant(1)]

    signature = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    made = tf.compat.v1.wrap_function(body, signature).function_def
    made.signature.name = f"micro_batch_{next(_NUMBERS)}"
    made.attr["_noinline"].b = True
    add_functions([made])
    return str(made.signature.name)
