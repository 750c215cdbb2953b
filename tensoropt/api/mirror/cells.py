"""``tensoropt.nn.rnn_cell``: TensorFlow 1's recurrent cells, which are TensorFlow's own, in the model's graph."""

from __future__ import annotations

from typing import Any

from tensorflow.python.ops import rnn_cell_impl

from tensoropt.api.mirror.layer import layer_class

__all__ = [
    "BasicLSTMCell",
    "BasicRNNCell",
    "DeviceWrapper",
    "DropoutWrapper",
    "GRUCell",
    "LSTMCell",
    "LSTMStateTuple",
    "MultiRNNCell",
    "RNNCell",
    "ResidualWrapper",
]

LSTMStateTuple: Any = rnn_cell_impl.LSTMStateTuple
RNNCell: Any = layer_class(rnn_cell_impl.RNNCell, module="tensoropt.nn.rnn_cell")


def _cell(twin: Any) -> Any:
    return layer_class(twin, RNNCell, module="tensoropt.nn.rnn_cell")


BasicLSTMCell = _cell(rnn_cell_impl.BasicLSTMCell)
BasicRNNCell = _cell(rnn_cell_impl.BasicRNNCell)
DeviceWrapper = _cell(rnn_cell_impl.DeviceWrapper)
DropoutWrapper = _cell(rnn_cell_impl.DropoutWrapper)
GRUCell = _cell(rnn_cell_impl.GRUCell)
LSTMCell = _cell(rnn_cell_impl.LSTMCell)
MultiRNNCell = _cell(rnn_cell_impl.MultiRNNCell)
ResidualWrapper = _cell(rnn_cell_impl.ResidualWrapper)
