"""Helpers of decoders (``tensoropt.contrib.seq2seq``): they choose the ids and the inputs of each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = [
    "CustomHelper",
    "GreedyEmbeddingHelper",
    "Helper",
    "InferenceHelper",
    "SampleEmbeddingHelper",
    "ScheduledEmbeddingTrainingHelper",
    "ScheduledOutputTrainingHelper",
    "TrainingHelper",
]

_map = tf.nest.map_structure


def _looked_up(embedding: Any) -> Callable[[Any], Any]:
    return embedding if callable(embedding) else lambda ids: tf.nn.embedding_lookup(embedding, ids)


def _drawn(logits: Any, seed: int | None) -> Any:
    return tf.cast(tf.compat.v1.multinomial(logits, 1, seed=seed)[:, 0], tf.int32)


class Helper:
    """Gives what a decoder reads.

    Attributes of one of a script's own are TensorFlow's: ``batch_size``, ``sample_ids_shape``, ``sample_ids_dtype``,
    and the methods below.
    """

    batch_size: Any
    sample_ids_shape: Any = tf.TensorShape([])
    sample_ids_dtype: Any = tf.int32
    #: How many steps there are at most, where that is known before a run.
    steps: int | None = None
    #: The same as a tensor, where only a run knows.
    open_steps: Any = None

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """Returns which sequences have no step, and the input of the first step."""
        raise NotImplementedError

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """The ids of a step."""
        raise NotImplementedError

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """Returns which sequences have ended, and the input and the state of the next step."""
        raise NotImplementedError


class CustomHelper(Helper):
    """A helper of three functions."""

    def __init__(
        self,
        initialize_fn: Callable[..., Any],
        sample_fn: Callable[..., Any],
        next_inputs_fn: Callable[..., Any],
        sample_ids_shape: Any = None,
        sample_ids_dtype: Any = None,
    ) -> None:
        """Takes the functions, and the shape and dtype of ids."""
        self._functions = initialize_fn, sample_fn, next_inputs_fn
        self.batch_size: Any = None
        self.sample_ids_shape = tf.TensorShape(sample_ids_shape or [])
        self.sample_ids_dtype = sample_ids_dtype or tf.int32

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See :class:`Helper`."""
        finished, inputs = self._functions[0]()
        self.batch_size = tf.size(finished)
        return finished, inputs

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """See :class:`Helper`."""
        return self._functions[1](time=time, outputs=outputs, state=state)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See :class:`Helper`."""
        return self._functions[2](time=time, outputs=outputs, state=state, sample_ids=sample_ids)


class TrainingHelper(Helper):
    """Reads what it is given, step by step."""

    def __init__(self, inputs: Any, sequence_length: Any, time_major: bool = False, name: str | None = None) -> None:
        """Takes TensorFlow's arguments.

        Args:
            inputs: ``(batch, steps, ...)``, or a nest of such tensors.
            sequence_length: ``(batch,)``.
            time_major: whether inputs are ``(steps, batch, ...)``.
            name: without effect.

        Raises:
            GraphError: ``sequence_length`` has other dimensions.
        """
        with current_model().enter():
            self.inputs = _map(tf.convert_to_tensor, inputs)
            self.sequence_length = tf.cast(tf.convert_to_tensor(sequence_length), tf.int32)
            if self.sequence_length.shape.rank != 1:
                raise GraphError(
                    f"{type(self).__name__}: sequence_length must have one number for each of the batch. Got shape "
                    f"{self.sequence_length.shape}."
                )
            self._steps = self.inputs if time_major else _map(_turned, self.inputs)
            first = tf.nest.flatten(self._steps)[0]
            self.steps, self.open_steps = first.shape.as_list()[0], tf.shape(first)[0]
            self.batch_size = tf.size(self.sequence_length)
            self.zero_inputs = _map(lambda steps: tf.zeros_like(steps[0]), self._steps)

    def _step(self, time: Any) -> Any:
        """Returns the input of a step; the last step's input where there is none, which no sequence reads."""
        at = tf.get_static_value(time)
        if self.steps is not None and at is not None:
            return _map(lambda steps: steps[min(int(at), self.steps - 1)], self._steps)
        return _map(lambda steps: tf.gather(steps, tf.minimum(time, tf.shape(steps)[0] - 1)), self._steps)

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See :class:`Helper`."""
        return tf.equal(self.sequence_length, 0), self._step(tf.constant(0))

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """The most probable ids."""
        return tf.argmax(outputs, -1, tf.int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See :class:`Helper`."""
        return time + 1 >= self.sequence_length, self._step(time + 1), state


class ScheduledEmbeddingTrainingHelper(TrainingHelper):
    """Reads now and then an id that was drawn from the last output, in the place of what it is given."""

    def __init__(
        self,
        inputs: Any,
        sequence_length: Any,
        embedding: Any,
        sampling_probability: Any,
        time_major: bool = False,
        seed: int | None = None,
        scheduling_seed: int | None = None,
        name: str | None = None,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            inputs: see :class:`TrainingHelper`, as ``sequence_length`` and ``time_major``.
            embedding: a table, or a function of ids.
            sampling_probability: of reading a drawn id, a scalar or ``(batch,)``.
            seed: of ids.
            scheduling_seed: of what is read.
        """
        super().__init__(inputs, sequence_length, time_major)
        with current_model().enter():
            self._embedding, self._probability = _looked_up(embedding), tf.convert_to_tensor(sampling_probability)
        self._seed, self._scheduling_seed = seed, scheduling_seed

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Drawn ids; -1 where what is given is read."""
        chosen = tf.random.uniform([tf.shape(outputs)[0]], seed=self._scheduling_seed) < self._probability
        ids = _drawn(outputs, self._seed)
        return tf.where(chosen, ids, -tf.ones_like(ids))

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See :class:`Helper`."""
        finished, given, state = super().next_inputs(time, outputs, state, sample_ids)
        read = self._embedding(tf.maximum(sample_ids, 0))
        return finished, tf.where((sample_ids >= 0)[:, None], read, given), state


class ScheduledOutputTrainingHelper(TrainingHelper):
    """Reads now and then its last output, in the place of what it is given."""

    def __init__(
        self,
        inputs: Any,
        sequence_length: Any,
        sampling_probability: Any,
        time_major: bool = False,
        seed: int | None = None,
        next_inputs_fn: Callable[[Any], Any] | None = None,
        auxiliary_inputs: Any = None,
        name: str | None = None,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            inputs: see :class:`TrainingHelper`, as ``sequence_length`` and ``time_major``.
            sampling_probability: of reading an output, a scalar or ``(batch,)``.
            seed: of what is read.
            next_inputs_fn: makes of outputs what is read; a layer, say.
            auxiliary_inputs: laid out as inputs, and concatenated with what is read.
        """
        super().__init__(inputs, sequence_length, time_major)
        with current_model().enter():
            self._probability, self._seed = tf.convert_to_tensor(sampling_probability), seed
            self._made = next_inputs_fn or (lambda outputs: outputs)
            self._beside = None
            if auxiliary_inputs is not None:
                self._beside = TrainingHelper(auxiliary_inputs, sequence_length, time_major)
        self.sample_ids_dtype = tf.bool

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See :class:`Helper`."""
        finished, inputs = super().initialize()
        return finished, self._joined(inputs, tf.constant(0))

    def _joined(self, inputs: Any, time: Any) -> Any:
        return inputs if self._beside is None else tf.concat([inputs, self._beside._step(time)], -1)

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Draws, for each sequence, whether the next step reads the output."""
        return tf.random.uniform([tf.shape(outputs)[0]], seed=self._seed) < self._probability

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See :class:`Helper`."""
        finished, given, state = super().next_inputs(time, outputs, state, sample_ids)
        read = tf.where(tf.cast(sample_ids, tf.bool)[:, None], self._made(outputs), given)
        return finished, self._joined(read, time + 1), state


class GreedyEmbeddingHelper(Helper):
    """Reads the most probable ids of the last output."""

    def __init__(self, embedding: Any, start_tokens: Any, end_token: Any) -> None:
        """Takes a table or a function of ids, the first ids, ``(batch,)``, and the id that ends a sequence.

        Raises:
            GraphError: for other numbers of dimensions.
        """
        with current_model().enter():
            self._embedding = _looked_up(embedding)
            self._start = tf.convert_to_tensor(start_tokens, tf.int32)
            self._end = tf.convert_to_tensor(end_token, tf.int32)
            if (self._start.shape.rank, self._end.shape.rank) != (1, 0):
                raise GraphError(
                    f"{type(self).__name__}: needs start_tokens (batch,) and a scalar end_token. Got "
                    f"{self._start.shape} and {self._end.shape}."
                )
            self.batch_size = tf.size(self._start)

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See :class:`Helper`."""
        return tf.zeros_like(self._start, tf.bool), self._embedding(self._start)

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """The most probable ids."""
        return tf.argmax(outputs, -1, tf.int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See :class:`Helper`."""
        return tf.equal(sample_ids, self._end), self._embedding(sample_ids), state


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Reads ids that are drawn from the last output."""

    def __init__(
        self,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        softmax_temperature: Any = None,
        seed: int | None = None,
    ) -> None:
        """Takes also what outputs are divided by, and the seed of the draw."""
        super().__init__(embedding, start_tokens, end_token)
        self._temperature, self._seed = softmax_temperature, seed

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Drawn ids."""
        return _drawn(outputs if self._temperature is None else outputs / self._temperature, self._seed)


class InferenceHelper(Helper):
    """Reads what a function makes of the last output."""

    def __init__(
        self,
        sample_fn: Callable[[Any], Any],
        sample_shape: Any,
        sample_dtype: Any,
        start_inputs: Any,
        end_fn: Callable[[Any], Any],
        next_inputs_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            sample_fn: of outputs, gives samples.
            sample_shape: of one sample.
            sample_dtype: of samples.
            start_inputs: what the first step reads.
            end_fn: of samples, says which sequences end.
            next_inputs_fn: of samples, gives what is read; by default samples are.
        """
        with current_model().enter():
            self._start = tf.convert_to_tensor(start_inputs)
            self.batch_size = tf.shape(self._start)[0]
        self._sample, self._end, self._next = sample_fn, end_fn, next_inputs_fn or (lambda samples: samples)
        self.sample_ids_shape, self.sample_ids_dtype = tf.TensorShape(sample_shape), sample_dtype

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See :class:`Helper`."""
        return tf.zeros([self.batch_size], tf.bool), self._start

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Returns the samples that ``sample_fn`` makes of the outputs."""
        return self._sample(outputs)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See :class:`Helper`."""
        return self._end(sample_ids), self._next(sample_ids), state


def _turned(tensor: Any) -> Any:
    """With the first two dimensions in each other's places."""
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])
