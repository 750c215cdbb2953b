"""Queues of ``tf.train`` over arrays and files, which are datasets here.

What TensorFlow's threads take out of one queue and put into another is a map of a dataset: the ops between a producer
(``slice_input_producer``, a reader) and a consumer (``batch``, ``bucket``) are copied into it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.api.mirror.random_counters import counted_as
from tensoropt.errors import GraphError

__all__ = [
    "Producer",
    "Queue",
    "batch",
    "bucket",
    "bucket_by_sequence_length",
    "input_producer",
    "produced",
    "range_input_producer",
    "shuffle_batch",
    "slice_input_producer",
    "string_input_producer",
]


@dataclass(frozen=True, eq=False)
class Producer:
    """A dataset, and the tensors of one of its elements in the model's graph."""

    dataset: Any
    tensors: Sequence[Any]


def produced(dataset: Any) -> list[Any]:
    """The tensors of a dataset's next element, which consumers know."""
    tensors = tf.nest.flatten(tf.compat.v1.data.make_one_shot_iterator(dataset).get_next())
    current_model().producers.append(Producer(dataset, tensors))
    return tensors


class Queue:
    """The queue that ``input_producer`` and its like return: elements for one reader."""

    def __init__(self, name: str, dataset: Any) -> None:
        """Takes a name, for errors, and the elements."""
        self.name, self._dataset, self._is_taken = name, dataset, False

    def take(self) -> Any:
        """The elements.

        Raises:
            GraphError: somebody reads them already.
        """
        if self._is_taken:
            raise GraphError(
                f"{self.name}: two readers take from one queue, in an order that is open. Read once, and batch what is "
                "read."
            )
        self._is_taken = True
        return self._dataset

    def dequeue(self, name: str | None = None) -> Any:
        """The next element."""
        del name
        with current_model().enter(), counted_as(0):
            return produced(self.take())[0]


def _counted(shuffle: bool, seed: int | None) -> Any:
    """Has a producer count random ops as TensorFlow's queues do: one that shuffles without a seed, or none."""
    return counted_as(int(shuffle and seed is None))


def _elements(dataset: Any, count: Any, epochs: int | None, shuffle: bool, seed: int | None) -> Any:
    if shuffle:
        dataset = dataset.shuffle(count, seed=seed)
    return dataset.repeat(epochs)


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Any]:
    """``tf.train.slice_input_producer``: one row of each tensor in each run.

    Args:
        tensor_list: tensors with as many rows.
        num_epochs: how often all rows come; for ever by default.
        shuffle: whether rows come in another order in each epoch.
        seed: of the orders.
        capacity: without effect, like ``shared_name`` and ``name``.

    Raises:
        GraphError: there are no tensors.
    """
    del capacity, shared_name, name
    if not tensor_list:
        raise GraphError("slice_input_producer: needs a tensor at least. Got none.")
    with current_model().enter(), _counted(shuffle, seed):
        rows = tuple(tf.convert_to_tensor(each) for each in tensor_list)
        dataset = tf.compat.v1.data.Dataset.from_tensor_slices(rows)
        return produced(_elements(dataset, _rows(rows[0]), num_epochs, shuffle, seed))


def _rows(tensor: Any) -> Any:
    return tf.shape(tensor, tf.int64)[0] if tensor.shape[0] is None else int(tensor.shape[0])


def input_producer(
    input_tensor: Any,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> Queue:
    """``tf.train.input_producer``: a queue of the rows of a tensor; see :func:`slice_input_producer`."""
    del capacity, shared_name, summary_name, cancel_op
    with current_model().enter(), _counted(shuffle, seed):
        tensor = tf.convert_to_tensor(input_tensor)
        if element_shape is not None:
            tensor.set_shape(tf.TensorShape([None]).concatenate(element_shape))
        dataset = tf.compat.v1.data.Dataset.from_tensor_slices(tensor)
        return Queue(name or "input_producer", _elements(dataset, _rows(tensor), num_epochs, shuffle, seed))


def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> Queue:
    """``tf.train.string_input_producer``: a queue of texts, as of names of files; see :func:`slice_input_producer`."""
    with current_model().enter():
        texts = tf.convert_to_tensor(string_tensor, tf.string)
        if texts.shape.num_elements() == 0:
            raise GraphError("string_input_producer: there are no texts. Does the pattern of files fit any?")
        return input_producer(
            texts, [], num_epochs, shuffle, seed, name=name or "string_input_producer", cancel_op=cancel_op
        )


def range_input_producer(
    limit: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> Queue:
    """``tf.train.range_input_producer``: a queue of integers from 0 on; see :func:`slice_input_producer`."""
    with current_model().enter():
        return input_producer(tf.range(limit), [], num_epochs, shuffle, seed, name=name or "range_input_producer")


def batch(
    tensors: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """``tf.train.batch``: several elements in each run.

    Args:
        tensors: of one element: a list, a dict or a tensor.
        batch_size: how many.
        num_threads: without effect, like ``capacity``, ``shared_name`` and ``name``: elements keep their order.
        enqueue_many: whether ``tensors`` are those of several elements.
        shapes: of elements.
        dynamic_pad: whether shorter elements are filled up with zeros.
        allow_smaller_final_batch: whether what remains in the end is a batch.

    Returns:
        Batches, as ``tensors``.

    Raises:
        GraphError: elements depend on a variable or on what is fed.
    """
    del num_threads, capacity, shared_name
    with current_model().enter(), counted_as(0):
        flat = _flat(tensors)
        dataset = _dataset(name or "batch", flat, enqueue_many, shapes)
        dataset = _grouped(dataset, batch_size, dynamic_pad, allow_smaller_final_batch)
        return _packed(tensors, produced(dataset))


def shuffle_batch(
    tensors: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """``tf.train.shuffle_batch``: :func:`batch` of elements drawn from the ``capacity`` that come next."""
    del num_threads, shared_name, min_after_dequeue
    with current_model().enter(), _counted(True, seed):
        dataset = _dataset(name or "shuffle_batch", _flat(tensors), enqueue_many, shapes).shuffle(capacity, seed=seed)
        return _packed(tensors, produced(_grouped(dataset, batch_size, False, allow_smaller_final_batch)))


def bucket(
    tensors: Any,
    which_bucket: Any,
    batch_size: Any,
    num_buckets: int,
    num_threads: int = 1,
    capacity: int = 32,
    bucket_capacities: Sequence[int] | None = None,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    keep_input: Any = True,
    shared_name: str | None = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """``tf.contrib.training.bucket``: batches of elements of one bucket.

    Args:
        tensors: see :func:`batch`, as all that is not named here.
        which_bucket: of an element, an integer from 0 on.
        batch_size: of all buckets, or a list with one for each.
        num_buckets: how many.
        bucket_capacities: without effect.
        keep_input: a bool of an element: false leaves it out.

    Returns:
        The bucket, and batches, as ``tensors``.

    Raises:
        GraphError: there are not as many sizes as buckets.
    """
    del num_threads, capacity, bucket_capacities, shared_name
    differ = isinstance(batch_size, list | tuple)
    sizes = list(batch_size) if differ else [batch_size] * num_buckets
    if len(sizes) != num_buckets:
        raise GraphError(f"bucket: needs a batch_size for each of {num_buckets} buckets. Got {len(sizes)}.")
    with current_model().enter(), counted_as(0):
        flat = [tf.cast(which_bucket, tf.int64), tf.cast(keep_input, tf.bool), *_flat(tensors)]
        given = None if shapes is None else [[], [], *shapes]
        dataset = _dataset(name or "bucket", flat, False, given).filter(lambda which, keep, *each: keep)

        def size(key: Any) -> Any:
            return tf.gather(tf.constant(sizes, tf.int64), key)

        def reduced(key: Any, window: Any) -> Any:
            window = window.map(lambda which, keep, *each: each)
            many = size(key) if differ else batch_size
            made = _grouped(window, many, dynamic_pad, allow_smaller_final_batch)
            return made.map(lambda *each: (tf.cast(key, tf.int32), *each))

        dataset = dataset.group_by_window(lambda which, *each: which, reduced, window_size_func=size)
        which, *outputs = produced(dataset)
        return which, _packed(tensors, outputs)


def bucket_by_sequence_length(
    input_length: Any,
    tensors: Any,
    batch_size: Any,
    bucket_boundaries: Sequence[int],
    num_threads: int = 1,
    capacity: int = 32,
    bucket_capacities: Sequence[int] | None = None,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    keep_input: Any = True,
    shared_name: str | None = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """``tf.contrib.training.bucket_by_sequence_length``: a :func:`bucket` for each range of lengths.

    Args:
        input_length: of an element.
        tensors: see :func:`bucket`, as all that is not named here.
        bucket_boundaries: ascending lengths, each the least of its bucket; there is one more below.

    Returns:
        The lengths of a batch, and batches, as ``tensors``.

    Raises:
        GraphError: boundaries do not ascend, or are none.
    """
    edges = list(bucket_boundaries)
    if not edges or any(a >= b for a, b in itertools.pairwise(edges)):
        raise GraphError(f"bucket_by_sequence_length: bucket_boundaries must ascend. Got {edges}.")
    with current_model().enter():
        length = tf.cast(input_length, tf.int32)
        which = tf.reduce_sum(tf.cast(length >= tf.constant(edges, tf.int32), tf.int32))
        _, (lengths, *outputs) = bucket(
            [length, *_flat(tensors)],
            which,
            batch_size,
            len(edges) + 1,
            shapes=None if shapes is None else [[], *shapes],
            dynamic_pad=dynamic_pad,
            allow_smaller_final_batch=allow_smaller_final_batch,
            keep_input=keep_input,
            name=name or "bucket_by_sequence_length",
        )
        return lengths, _packed(tensors, outputs)


def _flat(tensors: Any) -> list[Any]:
    if isinstance(tensors, dict):
        tensors = [tensors[key] for key in sorted(tensors)]
    return [tf.convert_to_tensor(each) for each in (tensors if isinstance(tensors, list | tuple) else [tensors])]


def _packed(tensors: Any, flat: Sequence[Any]) -> Any:
    if isinstance(tensors, dict):
        return dict(zip(sorted(tensors), flat, strict=True))
    return list(flat) if isinstance(tensors, list | tuple) else flat[0]


def _grouped(dataset: Any, size: Any, pads: bool, keeps_rest: bool) -> Any:
    shapes = tf.compat.v1.data.get_output_shapes(dataset)
    if pads:
        return dataset.padded_batch(size, shapes, drop_remainder=not keeps_rest)
    return dataset.batch(size, drop_remainder=not keeps_rest)


def _dataset(name: str, tensors: Sequence[Any], many: bool, shapes: Any) -> Any:
    """The elements that tensors of the graph stand for, with the ops that make them copied into a map.

    Raises:
        GraphError: the ops read a variable, an iterator of the script's own or what is fed.
    """
    graph = tensors[0].graph
    inside, sources = _between(name, tensors)
    datasets = tuple(each.dataset for each in sources)
    heads = [tensor for each in sources for tensor in each.tensors]
    if len(datasets) == 1:
        dataset = datasets[0]
    elif datasets:
        dataset = tf.compat.v1.data.Dataset.zip(datasets)
    else:
        dataset = tf.compat.v1.data.Dataset.from_tensors(0).repeat()
    if shapes is None:
        shapes = [tensor.shape for tensor in tensors]
    else:
        shapes = [tf.TensorShape([None] if many else []).concatenate(each) for each in shapes]
    full = graph.as_graph_def()
    definition = tf.compat.v1.GraphDef(versions=full.versions, library=full.library)
    definition.node.extend(node for node in full.node if node.name in inside)

    read = {tensor.name for op in inside.values() for tensor in op.inputs}

    def made(*element: Any) -> Any:
        # Without a producer there is an element all the same, which nobody reads.
        found = dict(zip((head.name for head in heads), tf.nest.flatten(element), strict=bool(heads)))
        wanted = [tensor.name for tensor in tensors if tensor.name not in found]
        given = {name: value for name, value in found.items() if name in read}
        copies = tf.graph_util.import_graph_def(definition, given, wanted, name="")
        found.update(zip(wanted, copies, strict=True))
        outputs = tuple(found[tensor.name] for tensor in tensors)
        for output, shape in zip(outputs, shapes, strict=True):
            output.set_shape(shape)
        return outputs

    dataset = dataset.map(made)
    return dataset.unbatch() if many else dataset


def _between(name: str, tensors: Sequence[Any]) -> tuple[dict[str, Any], list[Producer]]:
    """The operations between producers and tensors, by name, and the producers."""
    by_tensor = {tensor.name: each for each in current_model().producers for tensor in each.tensors}
    inside: dict[str, Any] = {}
    sources: list[Producer] = []
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        source = by_tensor.get(tensor.name)
        if source is not None:
            if source not in sources:
                sources.append(source)
            continue
        op = tensor.op
        if op.name in inside:
            continue
        if op.type.startswith(("Iterator", "Placeholder")) or any(each.dtype == tf.resource for each in op.outputs):
            raise GraphError(
                f"{name}: elements depend on '{op.name}' ({op.type}), which only the model has. Make them from arrays, "
                "files and constants, or use tensoropt.data."
            )
        inside[op.name] = op
        waiting += [*op.inputs, *(output for control in op.control_inputs for output in control.outputs)]
        inside.update({control.name: control for control in op.control_inputs if not control.outputs})
    sources.sort(key=current_model().producers.index)
    return inside, sources
