"""Pieces of images with all that a window over them reads: the neighbours' rims, and padding at the image's ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.graph.halo import Halo
from tensoropt.graph.lowering import Lowering

__all__ = ["EDGE", "first_read", "is_cut", "own_part", "unpadded", "with_rims"]

EDGE = "edge"  # padding repeats the element at the image's end
_UNPADDED: dict[str, Any] = {"padding": "VALID", "explicit_paddings": []}


def is_cut(ctx: Lowering) -> bool:
    """Tells whether a dimension over which the operator's window moves is cut."""
    return any(ctx.pieces(halo.axis) > 1 for halo in ctx.rule.halos)


def with_rims(ctx: Lowering, image: Any, padding: Any = 0) -> Any:
    """The piece of the image that the device's piece of the output is made of, without any padding.

    Every device builds the same ops, as the order of gradients, and so of their messages, follows them.

    Args:
        ctx: of the operator.
        image: the device's piece.
        padding: the value beyond the image's ends, or :data:`EDGE`. Dimensions that are not cut stay without it then.
    """
    for halo in ctx.rule.halos:
        if padding is not EDGE or ctx.pieces(halo.axis) > 1:
            image = _along(ctx, image, halo, padding)
    return image


def unpadded(ctx: Lowering) -> dict[str, Any]:
    """The attributes of the operator on an image that has its padding already."""
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
            shape[halo.dim], begin[halo.dim] = count, _number(ctx, halo) * count - start
    return made if shape == made.shape.as_list() else ctx.tf.slice(made, begin, shape)


def first_read(ctx: Lowering, halo: Halo) -> int:
    """The element of the whole image with which the device's piece begins, rims and padding included."""
    return halo.reads(ctx.pieces(halo.axis))[_number(ctx, halo)][0]


def _number(ctx: Lowering, halo: Halo) -> int:
    """Which of the pieces is the device's."""
    return ctx.offset(halo.axis) // ctx.local_size(halo.axis) if ctx.pieces(halo.axis) > 1 else 0


def _along(ctx: Lowering, image: Any, halo: Halo, padding: Any) -> Any:
    tf, pieces, dim = ctx.tf, ctx.pieces(halo.axis), halo.dim
    read, (before, after) = halo.size_in // pieces, halo.widths(pieces)
    ranges = [_range(halo, pieces, piece) for piece in range(pieces)]
    low, start, end, high = ranges[_number(ctx, halo)]
    own, own_end = min(max(0, start), read), max(0, min(read, end))
    from_before, from_after = max(0, -start), max(0, end - read)
    has_low, has_high = any(r[0] for r in ranges), any(r[3] for r in ranges)
    is_whole = all(r[1] <= 0 and r[2] >= read for r in ranges)
    if is_whole and not (before or after or has_low or has_high):
        return image

    def part(tensor: Any, first: int, stop: int) -> Any:
        begin, shape = [0] * len(tensor.shape), tensor.shape.as_list()
        begin[dim], shape[dim] = first, stop - first
        return tf.slice(tensor, begin, shape)

    def between_zeros(tensor: Any, first: int, last: int) -> Any:
        return tf.pad(tensor, [[first, last] if place == dim else [0, 0] for place in range(len(tensor.shape))])

    def beyond(edge: int, count: int) -> Any:
        if padding is EDGE:
            return tf.repeat(part(image, edge, edge + 1), count, axis=dim)
        shape = image.shape.as_list()
        shape[dim] = count
        return tf.fill(shape, tf.stop_gradient(tf.cast(padding, image.dtype)))

    parts = [beyond(0, low)] if has_low else []
    if before:
        parts.append(part(ctx.shift(part(image, read - before, read), halo.axis, 1), before - from_before, before))
    parts.append(image if is_whole else part(image, own, own_end))
    if after:
        parts.append(part(ctx.shift(part(image, 0, after), halo.axis, -1), 0, from_after))
    if has_high:
        parts.append(beyond(read - 1, high))
    joined = tf.concat(parts, dim)
    if padding is EDGE or not image.dtype.is_floating:
        return joined

    def backward(gradient: Any) -> list[Any]:
        """As TensorFlow's, in one copy: rims go back to the neighbours, who add them."""
        gradient = tf.convert_to_tensor(gradient)
        first = low + from_before
        result = part(gradient, first, first + own_end - own)
        if not is_whole:
            result = between_zeros(result, own, read - own_end)
        returned = []
        if before:
            rim = between_zeros(part(gradient, low, first), before - from_before, 0)
            returned.append((read - before, read, ctx.shift(rim, halo.axis, -1)))
        if after:
            last = first + own_end - own
            rim = between_zeros(part(gradient, last, last + from_after), 0, after - from_after)
            returned.insert(0, (0, after, ctx.shift(rim, halo.axis, 1)))
        if before + after > read:
            for begin, stop, rim in returned:
                result += between_zeros(rim, begin, read - stop)
            return [result]
        summed, at = [], 0
        for begin, stop, rim in returned:
            summed += [part(result, at, begin), part(result, begin, stop) + rim]
            at = stop
        return [tf.concat([*summed, part(result, at, read)], dim) if summed else result]

    return ctx.with_gradient([image], [joined], backward)[0]


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
