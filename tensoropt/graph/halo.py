"""Splits of an image whose pieces overlap: what a window reads beyond a device's own piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensoropt.graph.spec import TensorSpec

__all__ = ["Halo", "padding_of", "window_halos"]

_AXES = ("depth", "height", "width")  # of the dimensions of space, the last ones of them for images and lines


@dataclass(frozen=True, slots=True)
class Halo:
    """A dimension over which a window moves (FlexFlow section 4, attribute dimensions).

    Output element ``i`` reads from position ``i * stride - padding`` on, ``window`` positions far; input element ``j``
    is at position ``j * up``. If both are cut into equal pieces, a device needs a rim of its neighbours' pieces besides
    its own.

    Attributes:
        axis: the name of the iteration axis.
        dim: the dimension of the input that is read and of the first output.
        size_in: elements of the input.
        size_out: elements of the output.
        window: positions that the window spans, dilation included.
        stride: positions from one output element to the next.
        padding: positions before the first element of the input.
        up: positions from one input element to the next: more than 1 where the output is larger than the input.
        input: which input is read.

    Example:
        >>> same = Halo("height", 1, 8, 8, window=3, stride=1, padding=1)
        >>> same.widths(2), same.fits(8), same.fits(16)
        ((1, 1), True, False)
        >>> Halo("height", 1, 4, 8, window=3, stride=1, padding=1, up=2).rims(2)
        ((0, 1), (0, 0))
    """

    axis: str
    dim: int
    size_in: int
    size_out: int
    window: int
    stride: int
    padding: int
    up: int = 1
    input: int = 0

    @property
    def is_splittable(self) -> bool:
        """Tells whether there is anything to cut."""
        return self.size_in > 1 and self.size_out > 1

    @property
    def is_padded(self) -> bool:
        """Tells whether an output element reads beyond the input's ends."""
        ((first, count),) = self.reads(1)
        return first < 0 or first + count > self.size_in

    def reads(self, pieces: int) -> tuple[tuple[int, int], ...]:
        """For each piece of the output the first input element that it reads, and how many from there on.

        All have as many, the most that one needs. Some may be beyond the input, where there is padding.

        Args:
            pieces: their number; it divides both sizes.
        """
        made = self.size_out // pieces
        found = []
        for piece in range(pieces):
            position = piece * made * self.stride - self.padding
            last = position + (made - 1) * self.stride + self.window - 1
            found.append((-(-position // self.up), last // self.up + 1))
        most = max(end - first for first, end in found)
        return tuple((first, most) for first, _ in found)

    def rims(self, pieces: int) -> tuple[tuple[int, int], ...]:
        """For each piece the elements that it needs of what comes before it and of what comes after it."""
        read = self.size_in // pieces
        result = []
        for piece, (first, count) in enumerate(self.reads(pieces)):
            first, end = max(0, first), min(self.size_in, first + count)
            result.append((max(0, piece * read - first), max(0, end - (piece + 1) * read)))
        return tuple(result)

    def widths(self, pieces: int) -> tuple[int, int]:
        """The widest rims before and after a piece: what neighbours exchange."""
        before, after = zip(*self.rims(pieces), strict=True)
        return max(before), max(after)

    def copied(self, pieces: int) -> int:
        """The elements of a piece with its rims and padding; 0 if there are none to be joined, and so no copy."""
        read = self.size_in // pieces
        reads = self.reads(pieces)
        if all(
            piece * read <= first and first + count <= (piece + 1) * read for piece, (first, count) in enumerate(reads)
        ):
            return 0
        return reads[0][1]

    def fits(self, pieces: int) -> bool:
        """Tells whether the pieces divide both sizes and no rim is wider than the neighbour's piece."""
        if self.size_in % pieces or self.size_out % pieces:
            return False
        return max(self.widths(pieces)) <= self.size_in // pieces

    def why_not(self, pieces: int) -> str:
        """Returns the reason why a number of pieces does not fit, as the end of a sentence."""
        for what, size in (("input", self.size_in), ("output", self.size_out)):
            if size % pieces:
                return f"the {what} has {size} elements, {size} % {pieces} != 0"
        return (
            f"a rim of {max(self.widths(pieces))} elements reaches beyond the neighbour's piece of "
            f"{self.size_in // pieces}"
        )


def window_halos(
    image: TensorSpec,
    made: TensorSpec,
    window: Sequence[int],
    attrs: Mapping[str, Any],
    strides: Sequence[int],
) -> tuple[Halo, ...]:
    """The halos of an operator whose window moves over the middle dimensions of an image.

    Args:
        image: what is read.
        made: what is made of it.
        window: extent of the window in every dimension of the image, before dilation.
        attrs: the operator's: ``padding``, ``data_format``, and ``dilations`` and ``explicit_paddings`` if it has any.
        strides: of every dimension of the image.

    Returns:
        One for each dimension of space; none of any where the window has an extent over samples or channels.
    """
    first = 2 if attrs["data_format"].startswith("NC") else 1
    space = range(first, first + image.rank - 2)
    if any(window[dim] * strides[dim] > 1 for dim in range(image.rank) if dim not in space):
        return ()
    dilations = attrs.get("dilations") or [1] * image.rank
    explicit = attrs.get("explicit_paddings") or [0] * 2 * image.rank
    result = []
    for dim, name in zip(space, _AXES[-len(space) :], strict=True):
        size_in, size_out = image.shape[dim], made.shape[dim]
        extent = (window[dim] - 1) * dilations[dim] + 1
        padding = {
            # TensorFlow pads as little as it takes, and the odd element at the end.
            "SAME": max(0, (size_out - 1) * strides[dim] + extent - size_in) // 2,
            "VALID": 0,
            "EXPLICIT": int(explicit[2 * dim]),
        }[padding_of(attrs)]
        result.append(Halo(name, dim, size_in, size_out, int(extent), int(strides[dim]), padding))
    return tuple(result)


def padding_of(attrs: Mapping[str, Any]) -> str:
    """The kind of padding that an operator has: ``SAME``, ``VALID`` or ``EXPLICIT``."""
    value = attrs["padding"]
    return value.decode() if isinstance(value, bytes) else str(value)
