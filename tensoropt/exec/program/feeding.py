"""Feeds: checks the values fed to placeholders, and cuts this device's pieces from them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.errors import FeedError
from tensoropt.exec.program.local_graph import LocalGraph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Mesh
from tensoropt.terms import FEEDS, Terms

__all__ = ["Feeding", "checked_array", "checksum", "is_compared", "share_layout"]

_SAMPLES, _SAMPLE_BYTES, _SAMPLE_TEXTS = 64, 1024, 4096
# What is fed whole is compared over ranks in so many first runs of a program, and then in one of so many.
_FIRST_COMPARED, _COMPARED_EVERY = 10, 100


@dataclass(frozen=True, slots=True)
class _Feed:
    """The accepted feeds of a placeholder on this device, besides the whole array."""

    dtype: Any  # NumPy's
    share: tuple[int, ...] | None  # shape of a share of the batch, where the batch can be shared
    slices: list[tuple[slice, ...]]  # this device's piece of the whole, or of each micro-batch


class Feeding:
    """Checks what is fed, and cuts this device's pieces."""

    def __init__(self, local: LocalGraph, terms: Terms = FEEDS) -> None:
        """Takes a device's part of a plan, and the terms in which errors speak of inputs."""
        self._local = local
        self._terms = terms
        self._known: dict[str, _Feed] = {}

    def _of(self, op: Operator) -> _Feed:
        """Returns the accepted feeds of a placeholder; computed once."""
        known = self._known.get(op.name)
        if known is None:
            spec, mesh = op.outputs[0], self._local.plan.mesh
            share = share_layout(spec, self._local.plan.mesh)
            layout, steps = self._local.layout_of(TensorId(op.name)), self._local.in_time
            times = steps.times if steps is not None and steps.is_each(op.name) else 1
            shape = (spec.shape[0] // times, *spec.shape[1:]) if times > 1 else spec.shape
            piece = layout.slices(shape, mesh, self._local.engine.rank)
            known = self._known[op.name] = _Feed(
                tf.dtypes.as_dtype(spec.dtype).as_numpy_dtype,
                None if share is None else share.local_shape(spec.shape, mesh),
                [_later(piece, at * shape[0]) if times > 1 else piece for at in range(times)],
            )
        return known

    def subject(self, op: Operator) -> str:
        """Returns the name by which errors call a placeholder."""
        return self._terms.subject(op.name, op.source)

    def is_share(self, op: Operator, value: Any) -> bool:
        """Tells whether a value fed to a placeholder is this rank's share of the batch, and not the whole batch.

        Raises:
            FeedError: the value is neither.
        """
        spec, feeding = op.outputs[0], self._of(op)
        array = checked_array(self.subject(op), str(spec), spec.dtype, value)
        if array.shape == spec.shape:
            return False
        if array.shape == feeding.share:
            return True
        accepted = f"the whole batch {spec.shape}"
        if feeding.share is not None:
            accepted += f" or this rank's share {feeding.share}"
        raise FeedError(
            f"{self.subject(op)}: wants {accepted}, got shape {array.shape}. Batches of another size may be "
            f"{self._terms.given} where {self._terms.opened}."
        )

    def share_of(self, op: Operator) -> tuple[int, ...] | None:
        """The shape of a rank's share of the batch, where the batch can be shared."""
        return self._of(op).share

    def piece(self, op: Operator, value: Any, share: bool) -> np.ndarray:
        """Returns this device's piece of a fed value: the value itself if it is a share, else a slice of it."""
        feeding = self._of(op)
        array = np.asarray(value, dtype=feeding.dtype)
        if share:
            return array
        pieces = [array[slices] for slices in feeding.slices]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def checksum(self, op: Operator, value: Any) -> int:
        """The :func:`checksum` of what is fed to a placeholder."""
        return checksum(np.asarray(value, dtype=self._of(op).dtype))


def checked_array(subject: str, wanted: str, dtype: str, value: Any) -> np.ndarray:
    """Checks a value that is fed to a placeholder, and returns it as an array.

    Args:
        subject: the placeholder, in errors.
        wanted: the accepted arrays, in errors.
        dtype: the placeholder's dtype, by TensorFlow's name.
        value: the value fed.

    Raises:
        FeedError: the value is no array, or one of a dtype whose numbers would not keep their meaning.
    """
    if isinstance(value, tf.Variable) or tf.is_symbolic_tensor(value):
        raise FeedError(
            f"{subject}: wants an array of {wanted}, got '{value.name}', which has no value before it runs. Feed what "
            "tensoropt.run gives for it, or build the model on it instead of the placeholder."
        )
    try:
        array = np.asarray(value)
    except (ValueError, NotImplementedError) as error:
        raise FeedError(f"{subject}: wants an array of {wanted}, got {type(value).__name__}: {error}.") from error
    numpy_dtype = tf.dtypes.as_dtype(dtype).as_numpy_dtype
    if array.dtype != numpy_dtype and not _can_feed(array, numpy_dtype):
        got = f"{type(value).__name__}" if array.dtype.kind == "O" else f"an array of {array.dtype}"
        raise FeedError(f"{subject}: wants {dtype}, got {got}. Cast it with .astype({dtype!r}).")
    return array


def is_compared(runs: int) -> bool:
    """Tells whether whole feeds are compared over ranks, after so many runs of a program."""
    return runs < _FIRST_COMPARED or runs % _COMPARED_EVERY == 0


def checksum(array: np.ndarray) -> int:
    """A number that differs, most likely, if something else is fed.

    Of an array of more than 64 KiB only a sample counts: 64 runs of 1 KiB, evenly spread from its first byte to its
    last. Other rows, or rows in another order, change it; a single number between the runs does not. Of texts, 4,096
    count, spread alike.
    """
    if array.dtype.kind in "OSU":  # an array of these has addresses, or is filled up
        texts = array.reshape(-1)
        chosen = texts[np.linspace(0, max(texts.size - 1, 0), min(texts.size, _SAMPLE_TEXTS)).astype(np.int64)]
        return zlib.crc32(repr([tf.compat.as_bytes(text) for text in chosen.tolist()]).encode())
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


def _later(slices: tuple[slice, ...], rows: int) -> tuple[slice, ...]:
    """A piece so many rows further on."""
    return slice(slices[0].start + rows, slices[0].stop + rows), *slices[1:]


def _can_feed(array: np.ndarray, wanted: Any) -> bool:
    """Tells whether the numbers of an array keep their meaning in the wanted dtype.

    Floats may be rounded to other floats, but not to integers; whole floats (labels that NumPy made, say) may become
    integers.
    """
    if np.can_cast(array.dtype, wanted, casting="same_kind"):
        return True
    if array.dtype.kind not in "if" or np.dtype(wanted).kind not in "iu":
        return False
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # the limits are too large for half precision
    limits = np.iinfo(wanted)
    # A float of 2**31 or 2**63 is one too many: as a float the upper limit itself is rounded up.
    fits = (array >= limits.min) & (array < float(limits.max) + 1)
    return bool(np.all(fits & (np.floor(array) == array)))
