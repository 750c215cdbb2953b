"""Decoders with the numbers of TensorFlow's removed ``tf.contrib.seq2seq``, and the loop that runs them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.contrib.seq2seq_helpers import Helper
from tensoropt.errors import GraphError

__all__ = ["BasicDecoder", "BasicDecoderOutput", "Decoder", "dynamic_decode"]

_TURNS = 256  # at most so many are planned one by one
_map = tf.nest.map_structure

BasicDecoderOutput = namedtuple("BasicDecoderOutput", ("rnn_output", "sample_id"))


class Decoder:
    """A decoder, as :func:`dynamic_decode` runs it; decoders of scripts have TensorFlow's attributes and methods."""

    #: Whether :meth:`step` returns all sequences that have ended, and not only those that end in that step.
    tracks_own_finished = False
    #: How many steps there are at most, where that is known before a run.
    steps: int | None = None
    #: The same as a tensor, where only a run knows.
    open_steps: Any = None
    batch_size: Any
    output_size: Any
    output_dtype: Any

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Returns which sequences have no step, the input of the first step, and the state before it."""
        raise NotImplementedError

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, Any, Any, Any]:
        """The outputs, the next state, what the next step reads, and which sequences have ended."""
        raise NotImplementedError

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """Returns the final outputs and the final state, given those of all steps."""
        raise NotImplementedError


class BasicDecoder(Decoder):
    """A cell that reads what a helper gives it."""

    def __init__(self, cell: Any, helper: Helper, initial_state: Any, output_layer: Any = None) -> None:
        """Takes the cell, the helper, the state before the first step, and a layer over outputs."""
        self._cell, self._helper, self._first, self._layer = cell, helper, initial_state, output_layer
        self.steps = getattr(helper, "steps", None)
        self.open_steps = getattr(helper, "open_steps", None)

    @property
    def batch_size(self) -> Any:
        """The helper's."""
        return self._helper.batch_size

    @property
    def output_size(self) -> BasicDecoderOutput:
        """Sizes of the outputs of a step, without the batch's."""
        size = self._cell.output_size
        if self._layer is not None:
            size = _map(
                lambda each: self._layer.compute_output_shape(tf.TensorShape([None]).concatenate(each))[1:], size
            )
        return BasicDecoderOutput(size, self._helper.sample_ids_shape)

    @property
    def output_dtype(self) -> BasicDecoderOutput:
        """Their dtypes."""
        dtype = tf.nest.flatten(self._first)[0].dtype
        return BasicDecoderOutput(_map(lambda _: dtype, self._cell.output_size), self._helper.sample_ids_dtype)

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """See :class:`Decoder`."""
        return *self._helper.initialize(), self._first

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, Any, Any, Any]:
        """See :class:`Decoder`."""
        with tf.name_scope(name or "BasicDecoderStep"):
            outputs, state = self._cell(inputs, state)
            if self._layer is not None:
                outputs = self._layer(outputs)
            ids = self._helper.sample(time=time, outputs=outputs, state=state)
            finished, following, state = self._helper.next_inputs(
                time=time, outputs=outputs, state=state, sample_ids=ids
            )
            return BasicDecoderOutput(outputs, ids), state, following, finished


def dynamic_decode(
    decoder: Decoder,
    output_time_major: bool = False,
    impute_finished: bool = False,
    maximum_iterations: Any = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """``tf.contrib.seq2seq.dynamic_decode``: runs a decoder until all sequences have ended.

    A loop of the graph, as TensorFlow's. Where the number of steps is known (a :class:`TrainingHelper` of inputs whose
    steps have a size) and at most 256, steps are planned as turns, which devices split. There are outputs of so many
    then, where TensorFlow has those of the longest sequence; past its end they are 0.

    Args:
        decoder: such as a :class:`BasicDecoder`.
        output_time_major: whether outputs are ``(steps, batch, ...)``.
        impute_finished: whether outputs are 0, and states stay, where a sequence has ended.
        maximum_iterations: the largest number of steps.
        parallel_iterations: TensorFlow's, where steps stay a loop.
        swap_memory: likewise.
        scope: of the variables; default ``decoder``.

    Returns:
        The outputs, the last state, and the lengths of sequences.

    Raises:
        GraphError: ``maximum_iterations`` is no scalar.
    """
    with current_model().enter(), tf.compat.v1.variable_scope(scope, "decoder"):
        limit = None
        if maximum_iterations is not None:
            limit = tf.convert_to_tensor(maximum_iterations, tf.int32)
            if limit.shape.rank != 0:
                raise GraphError(f"dynamic_decode: maximum_iterations must be a scalar. Got shape {limit.shape}.")
        known = None if limit is None else tf.get_static_value(limit)
        steps = getattr(decoder, "steps", None)
        if steps is not None and limit is not None:
            steps = None if known is None else min(steps, int(known))
        if steps is not None and not 0 < steps <= _TURNS:
            steps = None
        open_steps = getattr(decoder, "open_steps", None)
        if open_steps is not None:
            limit = open_steps if limit is None else tf.minimum(limit, open_steps)
        options = {"parallel_iterations": parallel_iterations, "swap_memory": swap_memory}
        outputs, state, lengths = _loop(decoder, limit, impute_finished, steps, options)
        try:
            outputs, state = decoder.finalize(outputs, state, lengths)
        except NotImplementedError:  # by which a decoder says that nothing is to be done
            pass
        if not output_time_major:
            outputs = _map(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), outputs)
        return outputs, state, lengths


def _step(decoder: Decoder, time: Any, inputs: Any, state: Any, finished: Any, imputes: bool) -> tuple[Any, ...]:
    """Outputs, the next state and inputs, and which sequences have ended after a step."""
    outputs, following, inputs, ended = decoder.step(time, inputs, state)
    if not decoder.tracks_own_finished:
        ended = tf.logical_or(ended, finished)
    if imputes:
        outputs = _map(lambda new: _kept(finished, tf.zeros_like(new), new), outputs)
        following = _map(lambda old, new: _kept(finished, old, new), state, following)
    return outputs, following, inputs, ended


def _kept(finished: Any, old: Any, new: Any) -> Any:
    """The old value where a sequence has ended; of what has no batch, the new one."""
    if isinstance(new, tf.TensorArray) or new.shape.rank == 0:
        return new
    return tf.where(tf.reshape(finished, [-1] + [1] * (new.shape.rank - finished.shape.rank)), old, new)


def _loop(
    decoder: Decoder, limit: Any, imputes: bool, steps: int | None, options: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """Runs a decoder.

    Args:
        decoder: the decoder.
        limit: the most steps, as a tensor; None if there is no limit.
        imputes: whether outputs and states past the ends of sequences are replaced.
        steps: the most steps, if they are planned one by one.
        options: of the loop.
    """
    finished, inputs, state = decoder.initialize()
    if limit is not None:
        finished = tf.logical_or(finished, limit <= 0)

    def array(size: Any, dtype: Any) -> Any:
        shape = tf.TensorShape([tf.get_static_value(decoder.batch_size)]).concatenate(size)
        return tf.TensorArray(dtype, steps or 0, dynamic_size=steps is None, element_shape=shape)

    arrays = _map(array, decoder.output_size, decoder.output_dtype)
    lengths = tf.zeros_like(finished, tf.int32)

    def body(time: Any, arrays: Any, state: Any, inputs: Any, finished: Any, lengths: Any) -> tuple[Any, ...]:
        outputs, state, inputs, ended = _step(decoder, time, inputs, state, finished, imputes)
        if limit is not None:
            ended = tf.logical_or(ended, time + 1 >= limit)
        arrays = _map(lambda rows, row: rows.write(time, row), arrays, outputs)
        lengths = tf.where(finished, lengths, tf.fill(tf.shape(lengths), time + 1))
        return time + 1, arrays, state, inputs, ended, lengths

    _, arrays, state, _, _, lengths = tf.compat.v1.while_loop(
        lambda time, arrays, state, inputs, finished, lengths: tf.logical_not(tf.reduce_all(finished)),
        body,
        (tf.constant(0), arrays, state, inputs, finished, lengths),
        maximum_iterations=steps,
        **options,
    )
    return _map(lambda rows: rows.stack(), arrays), state, lengths
