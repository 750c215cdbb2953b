"""What may be fed to the placeholders of a device's part of a plan."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.errors import FeedError
from tensoropt.exec.program.local import LocalGraph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Mesh

__all__ = ["Feeding", "share_layout"]

_SAMPLES, _SAMPLE_BYTES = 64, 1024


@dataclass(frozen=True, slots=True)
class _Feed:
    """What may be fed to a placeholder on this device, beside the whole array."""

    dtype: Any  # NumPy's
    share: tuple[int, ...] | None  # shape of a share of the batch, where the batch can be shared
    slices: tuple[slice, ...]  # this device's piece of the whole


class Feeding:
    """Checks what is fed, and cuts this device's pieces."""

    def __init__(self, local: LocalGraph) -> None:
        """Takes a device's part of a plan."""
        self._local = local
        self._known: dict[str, _Feed] = {}

    def _of(self, op: Operator) -> _Feed:
        """How a placeholder is fed; worked out once."""
        known = self._known.get(op.name)
        if known is None:
            spec, mesh = op.outputs[0], self._local.plan.mesh
            share = share_layout(spec, self._local.plan.mesh)
            known = self._known[op.name] = _Feed(
                tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype,
                None if share is None else share.local_shape(spec.shape, mesh),
                self._local.layout_of(TensorId(op.name)).slices(spec.shape, mesh, self._local.engine.rank),
            )
        return known

    def is_share(self, op: Operator, value: Any) -> bool:
        """Whether what is fed to a placeholder is this rank's share of the batch, and not the whole.

        Raises:
            FeedError: it is neither.
        """
        spec, feeding = op.outputs[0], self._of(op)
        if isinstance(value, tf.Variable) or tf.is_symbolic_tensor(value):
            raise FeedError(
                f"{op}: wants an array of {spec}, got '{value.name}', which has no value before it runs. Feed what "
                "tensoropt.run gives for it, or build the model on it instead of the placeholder."
            )
        try:
            array = np.asarray(value)
        except (ValueError, NotImplementedError) as error:
            raise FeedError(f"{op}: wants an array of {spec}, got {type(value).__name__}: {error}.") from error
        if array.dtype != feeding.dtype and not _can_feed(array, feeding.dtype):
            got = f"{type(value).__name__}" if array.dtype.kind == "O" else f"an array of {array.dtype}"
            raise FeedError(f"{op}: wants {spec.dtype}, got {got}. Cast it with .astype({spec.dtype!r}).")
        if array.shape == spec.shape:
            return False
        if array.shape == feeding.share:
            return True
        accepted = f"the whole batch {spec.shape}"
        if feeding.share is not None:
            accepted += f" or this rank's share {feeding.share}"
        raise FeedError(f"{op}: wants {accepted}, got shape {array.shape}. The plan is made for one batch size.")

    def share_of(self, op: Operator) -> tuple[int, ...] | None:
        """The shape of a rank's share of the batch, where the batch can be shared."""
        return self._of(op).share

    def piece(self, op: Operator, value: Any, share: bool) -> np.ndarray:
        """What this device gets of what is fed: the share, or its piece of the whole."""
        feeding = self._of(op)
        array = np.asarray(value, dtype=feeding.dtype)
        return array if share else array[feeding.slices]

    def checksum(self, op: Operator, value: Any) -> int:
        """A number that differs, most likely, if something else is fed.

        Of an array of more than 64 KiB only a sample counts: 64 runs of 1 KiB, evenly spread from its first byte to its
        last. Other rows, or rows in another order, change it; a single number between the runs does not.
        """
        array = np.asarray(value, dtype=self._of(op).dtype)
        if array.nbytes <= _SAMPLES * _SAMPLE_BYTES:
            return zlib.crc32(array.tobytes())
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        count = _SAMPLE_BYTES // array.itemsize
        starts = np.linspace(0, array.size - count, _SAMPLES).astype(np.int64)
        digest = 0
        for start in starts.tolist():
            digest = zlib.crc32(flat[start : start + count].tobytes(), digest)
        return digest


def share_layout(spec: TensorSpec, mesh: Mesh) -> Layout | None:
    """The layout by which each rank has its share of the batch; None if devices cannot share it."""
    if not spec.shape or mesh.size == 1 or spec.shape[0] % mesh.size:
        return None
    return Layout((mesh.axes, *((),) * (spec.rank - 1)))


def _can_feed(array: np.ndarray, wanted: Any) -> bool:
    """Whether the numbers keep their meaning in the wanted dtype; floats may be rounded, but not to integers."""
    if np.can_cast(array.dtype, wanted, casting="same_kind"):
        return True
    if array.dtype.kind != "i" or np.dtype(wanted).kind != "u":
        return False
    return array.size == 0 or (array.min() >= 0 and array.max() <= np.iinfo(wanted).max)
