"""Pieces of images with all that a window over them reads: the neighbours' rims, and padding at the image's ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensoropt.graph.halo import Halo
from tensoropt.graph.lowering import Lowering

__all__ = ["EDGE", "first_read", "is_cut", "over_window", "own_part", "piece_number", "unpadded"]

EDGE = "edge"  # padding repeats the element at the image's end
_UNPADDED: dict[str, Any] = {"padding": "VALID", "explicit_paddings": []}


def is_cut(ctx: Lowering) -> bool:
    """Tells whether a dimension over which the operator's window moves is cut."""
    return any(ctx.pieces(halo.axis) > 1 for halo in ctx.rule.halos)


def over_window(ctx: Lowering, window: Callable[..., Any], image: Any, *others: Any, padding: Any = 0) -> Any:
    """``window(piece, *others)``, whose piece of the image has all that the device's piece of the output is made of.

    The backward pass joins the piece and its rims again, as a copy that was kept until then would take as much memory
    as the piece. Every device builds the same ops, as the order of gradients, and so of their messages, follows them.

    Args:
        ctx: of the operator.
        window: makes the output of an image that needs no padding.
        image: the device's piece.
        others: what else the output is made of.
        padding: the value beyond the image's ends, or :data:`EDGE`. Dimensions that are not cut stay without it then.
    """
    tf, joined, sides = ctx.tf, image, []
    for halo in ctx.rule.halos:
        if ctx.pieces(halo.axis) > 1 or padding is not EDGE:
            sides.append(_Side(ctx, joined, halo, padding))
            joined = sides[-1].join(joined)
    made = window(joined, *others)
    if joined is image or not image.dtype.is_floating:
        return made

    def backward(gradient: Any) -> list[Any]:
        again = ctx.late(image, gradient)
        for side in sides:
            again = side.join(again)
        inputs = [again, *others]
        back, *rest = tf.gradients(window(*inputs), inputs, gradient, stop_gradients=inputs)
        for side in reversed(sides):
            back = side.back(back)
        return [back, *rest]

    return ctx.with_gradient([image, *others], [made], backward)[0]


def unpadded(ctx: Lowering) -> dict[str, Any]:
    """The attributes of the operator on an image that has its padding already.

    An uncut dimension is padded by hand, too: with explicit paddings TensorFlow takes other kernels on CPUs, which are
    slower and hold windows' elements one by one.
    """
    return {name: value for name, value in _UNPADDED.items() if name in ctx.op.attrs}


def own_part(ctx: Lowering, made: Any, starts: Sequence[int | None]) -> Any:
    """Cuts the device's piece out of an output that may be more.

    Args:
        ctx: of the operator.
        made: the output.
        starts: for each halo the element of the whole output with which ``made`` begins; None if that is its own piece.
    """
    shape, begin = made.shape.as_list(), [0] * len(made.shape)
    for halo, start in zip(ctx.rule.halos, starts, strict=True):
        if start is not None:
            count = halo.size_out // ctx.pieces(halo.axis)
            shape[halo.dim], begin[halo.dim] = count, piece_number(ctx, halo) * count - start
    return made if shape == made.shape.as_list() else ctx.tf.slice(made, begin, shape)


def first_read(ctx: Lowering, halo: Halo) -> int:
    """The element of the whole image with which the device's piece begins, rims and padding included."""
    return halo.reads(ctx.pieces(halo.axis))[piece_number(ctx, halo)][0]


def piece_number(ctx: Lowering, halo: Halo) -> int:
    """Which of the pieces is the device's."""
    return ctx.offset(halo.axis) // ctx.local_size(halo.axis) if ctx.pieces(halo.axis) > 1 else 0


class _Side:
    """What is beside a device's piece along one dimension, of which the neighbours' rims have come."""

    def __init__(self, ctx: Lowering, image: Any, halo: Halo, padding: Any) -> None:
        pieces = ctx.pieces(halo.axis)
        ranges = [_range(halo, pieces, piece) for piece in range(pieces)]
        self._ctx, self._axis, self._dim, self._padding = ctx, halo.axis, halo.dim, padding
        self._read, (self._before, self._after) = halo.size_in // pieces, halo.widths(pieces)
        self._low, start, end, self._high = ranges[piece_number(ctx, halo)]
        self._own = min(max(0, start), self._read), max(0, min(self._read, end))
        # What differs between devices is how long parts are, not whether there are any.
        self._has_low, self._has_high = any(r[0] for r in ranges), any(r[3] for r in ranges)
        self._is_whole = all(r[1] <= 0 and r[2] >= self._read for r in ranges)
        self._from_before, self._from_after = max(0, -start), max(0, end - self._read)
        if self._before:
            came = ctx.shift(self._part(image, self._read - self._before, self._read), halo.axis, 1)
            self._rim_before = self._part(came, self._before - self._from_before, self._before)
        if self._after:
            came = ctx.shift(self._part(image, 0, self._after), halo.axis, -1)
            self._rim_after = self._part(came, 0, self._from_after)

    def join(self, image: Any) -> Any:
        """The piece with its rims and padding."""
        parts = [self._beyond(image, 0, self._low)] if self._has_low else []
        parts += [self._rim_before] if self._before else []
        parts.append(image if self._is_whole else self._part(image, *self._own))
        parts += [self._rim_after] if self._after else []
        parts += [self._beyond(image, self._read - 1, self._high)] if self._has_high else []
        return parts[0] if len(parts) == 1 else self._ctx.tf.concat(parts, self._dim)

    def back(self, gradient: Any) -> Any:
        """The gradient of the piece by that of :meth:`join`: rims' go back to the neighbours, who add them."""
        read, (own, end) = self._read, self._own
        first = self._low + self._from_before
        last = first + end - own
        result = self._part(gradient, first, last)
        if not self._is_whole:
            result = self._between_zeros(result, own, read - end)
        returned = []
        if self._before:
            rim = self._part(gradient, self._low, first)
            rim = self._between_zeros(rim, self._before - self._from_before, 0)
            returned.append((read - self._before, read, self._ctx.shift(rim, self._axis, -1)))
        if self._after:
            rim = self._part(gradient, last, last + self._from_after)
            rim = self._between_zeros(rim, 0, self._after - self._from_after)
            returned.insert(0, (0, self._after, self._ctx.shift(rim, self._axis, 1)))
        if self._padding is EDGE:
            sides = ((0, 0, self._low), (read - 1, last + self._from_after, gradient.shape[self._dim]))
            for at, begin, stop in sides:
                beyond = self._part(gradient, begin, stop)
                returned.append((at, at + 1, self._ctx.tf.reduce_sum(beyond, self._dim, keepdims=True)))
        if self._padding is EDGE or self._before + self._after > read:
            for begin, stop, rim in returned:
                result += self._between_zeros(rim, begin, read - stop)
            return result
        summed, at = [], 0
        for begin, stop, rim in returned:
            summed += [self._part(result, at, begin), self._part(result, begin, stop) + rim]
            at = stop
        return self._ctx.tf.concat([*summed, self._part(result, at, read)], self._dim) if summed else result

    def _part(self, tensor: Any, first: int, stop: int) -> Any:
        begin, shape = [0] * len(tensor.shape), tensor.shape.as_list()
        begin[self._dim], shape[self._dim] = first, stop - first
        return self._ctx.tf.slice(tensor, begin, shape)

    def _between_zeros(self, tensor: Any, first: int, last: int) -> Any:
        sides = [[first, last] if place == self._dim else [0, 0] for place in range(len(tensor.shape))]
        return self._ctx.tf.pad(tensor, sides)

    def _beyond(self, image: Any, edge: int, count: int) -> Any:
        """Padding, beside the row at an end of the piece."""
        tf = self._ctx.tf
        if self._padding is EDGE:
            return tf.repeat(self._part(image, edge, edge + 1), count, axis=self._dim)
        shape = image.shape.as_list()
        shape[self._dim] = count
        return tf.fill(shape, tf.stop_gradient(tf.cast(self._padding, image.dtype)))


def _range(halo: Halo, pieces: int, piece: int) -> tuple[int, int, int, int]:
    """What a piece of the output reads: padding, from where to where of what is there, and padding again.

    Elements count from the first one of the device's own piece; the rims of its neighbours are there, too.
    """
    read, (before, after), (first, count) = halo.size_in // pieces, halo.widths(pieces), halo.reads(pieces)[piece]
    low, high = -before * (piece > 0), read + after * (piece < pieces - 1)
    start = first - piece * read
    stop = start + count
    return (
        max(0, min(stop, low) - start),
        min(max(start, low), high),
        max(min(stop, high), low),
        max(0, stop - max(start, high)),
    )
