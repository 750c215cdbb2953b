"""Which layers train: as it was when Keras would have traced a step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import tensorflow as tf

from tensoropt.api.functions.leaves import form_of
from tensoropt.api.keras.keras_internals import Trainable

__all__ = ["Traced", "Traces"]


class Traced:
    """The state of the model that Keras's trace of a step would have seen.

    Attributes:
        trainable: the layers that trained at the trace; None until its first step is done, since that may build layers.
        has_sizes: whether the trace is of batches of one size, which layers may read.
    """

    trainable: Trainable | None = None

    def __init__(self, trace: Any) -> None:
        """Takes Keras's trace."""
        shapes = [tensor.shape for tensor in trace.inputs]
        self.has_sizes = all(shape.rank is not None and None not in shape[:1] for shape in shapes)


class Traces:
    """Tells which trace of a step Keras would take for a batch.

    ``trainable`` of layers is read while Keras traces, and a trace stays until ``compile``. So it is here, although
    the traces are others: with first dimensions open, and in one program after another.
    """

    def __init__(self) -> None:
        """Begins with no trace."""
        self._take = tf.function(lambda batch: None, autograph=False, reduce_retracing=True)  # as Keras's is
        self._by_trace: dict[Any, Traced] = {}
        self._by_form: dict[Hashable, Traced] = {}

    def of(self, given: Any) -> Traced:
        """The trace for a batch, or for specs of batches; a new one where Keras would trace."""
        form = form_of(given)
        if form not in self._by_form:
            trace = self._take.get_concrete_function(given)
            self._by_form[form] = self._by_trace.setdefault(trace, Traced(trace))
        return self._by_form[form]
