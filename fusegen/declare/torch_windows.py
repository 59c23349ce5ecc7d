"""torch's functions of images and signals that read windows, or put pixels elsewhere."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.core.one_term import start as least
from fusegen.declare import creation, indexing, reductions
from fusegen.declare.torch_arrays import unfold
from fusegen.declare.torch_functions import Function, flatten_dims, library, movedim, permute, torchs, unflatten_dim
from fusegen.declare.value import Like, Value, current, elementwise, lift, plain_number, shape_of, wrong_dtype

Sizes = int | Sequence[int | None] | None


def _each(given: Any, rank: int) -> list[Any]:
    """One number for each dimension."""
    several = [*given] if isinstance(given, (tuple, list)) else [given]
    return [plain_number(number) for number in (several * rank if len(several) == 1 else several)]


def _image(what: str, input: Like, rank: int) -> Value:
    value = lift(input)
    if value.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            f"{current().where}, {what}", given=shape_of(value),
            expected=f"channels and {rank} dimension{'s' * (rank > 1)}, perhaps a batch in front of them",
            fix="add dimensions of size one: x[None]",
        )  # fmt: skip
    return value


def _floats(what: str, input: Like, rank: int) -> Value:
    value = _image(what, input, rank)
    if not value.dtype.is_float:
        raise wrong_dtype(what, value.dtype, "floats", "cast with .to(fg.float32)")
    return value


def _refused(what: str, given: str, expected: str) -> DeclarationError:
    return DeclarationError(
        f"{current().where}, {what}", given=given, expected=expected, fix="use torch's outside the op"
    )


# -- pooling -----------------------------------------------------------------------------------------------------------


def _largest(windows: Value, count: int) -> Value:
    """The first of the largest elements of each window: it has all of the gradient, as torch's."""
    flat = flatten_dims(windows, -count, -1) if count > 1 else windows
    place = reductions.argmax(flat, -1, True)
    found = indexing.take_along_axis(flat, place, -1)
    return Value(found.expr, found.dtype, found.dims[:-1])


def _average(windows: Value, count: int) -> Value:
    return reductions.mean(windows, tuple(range(-count, 0)))


def _windows(value: Value, kernel: Sequence[int], step: Sequence[int], apart: Sequence[int] | None = None) -> Value:
    """The last dimensions, of each the place of a window; behind them what the windows hold. Windows that lie side by
    side are groups of a dimension, for which nothing moves.

    Args:
        apart: from one element of a window to the next, 1 if not given.
    """
    rank = len(kernel)
    first = value.ndim - rank
    wide = [(k - 1) * by + 1 for k, by in zip(kernel, apart or [1] * rank, strict=True)]
    if all(k == s and size % k == 0 for k, s, size in zip(wide, step, value.sizes[first:], strict=True)):
        for at, size in enumerate(wide):
            value = unflatten_dim(value, first + 2 * at, (value.sizes[first + 2 * at] // size, size))
        outer, inner = ([first + 2 * at + which for at in range(rank)] for which in (0, 1))
        value = permute(value, *range(first), *outer, *inner)
    else:
        for at, (size, by) in enumerate(zip(wide, step, strict=True)):
            value = unfold(value, first + at, size, by)
    steps = [slice(None, None, by) for by in apart or []]
    return value[(Ellipsis, *steps)] if any(by.step > 1 for by in steps) else value  # type: ignore[return-value]


# How much is put in front of a dimension, and behind it.
Sides = Sequence[tuple[int, int]]


def _padded(value: Value, padding: Sides, filled: float) -> Value:
    around = [side for sides in reversed(padding) for side in sides]
    return library("pad")(value, tuple(around), "constant", filled) if any(around) else value


def _even(padding: Sequence[int]) -> Sides:
    return [(size, size) for size in padding]


def _hanging_over(
    value: Value, kernel: Sequence[int], step: Sequence[int], padding: Sequence[int], apart: Sequence[int]
) -> Sides:  # fmt: skip
    """What the last windows lack where these may hang over the end, as torch counts them: each begins in what there
    is, or in front of it."""
    found = list[tuple[int, int]]()
    for size, k, by, around, gap in zip(value.sizes[-len(kernel) :], kernel, step, padding, apart, strict=True):
        wide = (k - 1) * gap + 1
        last = max(-(-(size + 2 * around - wide) // by), 0)
        last -= last * by >= size + around
        found.append((0, max(last * by + wide - size - 2 * around, 0)))
    return found


def _average_pool(rank: int) -> Function:
    what = f"avg_pool{rank}d"

    def pool(
        input: Like, kernel_size: Sizes, stride: Sizes = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        value, kernel, around = _floats(what, input, rank), _each(kernel_size, rank), _each(padding, rank)
        step = _each(stride, rank) if stride else kernel
        over = _hanging_over(value, kernel, step, around, [1] * rank) if ceil_mode else [(0, 0)] * rank

        def windows(of: Value) -> Value:
            return _windows(_padded(of, over, 0), kernel, step)

        wide = _padded(value, _even(around), 0)
        is_over = any(behind for _, behind in over)
        if divisor_override is not None:
            return elementwise("div", reductions.sum(windows(wide), tuple(range(-rank, 0))), divisor_override)
        if not is_over and (count_include_pad or not any(around)):
            return _average(windows(wide), rank)
        # What hangs over counts for none, what is put around the pixels as they are told to.
        there = _ones(wide, rank) if count_include_pad else _padded(_ones(value, rank), _even(around), 0)
        sums = (reductions.sum(windows(each), tuple(range(-rank, 0))) for each in (wide, there))
        return elementwise("div", *sums)

    pool.__doc__ = "``fg.mean`` of windows: " + _SAID[rank]
    return pool


def _ones(value: Value, rank: int) -> Value:
    """1 for each pixel."""
    return creation.ones(value.sizes[-rank:], dtype=value.dtype)


def _largest_pool(rank: int) -> Function:
    what = f"max_pool{rank}d"

    def pool(
        input: Like, kernel_size: Sizes, stride: Sizes = None, padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Value:  # fmt: skip
        value, kernel = _image(what, input, rank), _each(kernel_size, rank)
        step = _each(stride, rank) if stride else kernel
        if return_indices:
            raise _refused(what, "return_indices=True", "the elements alone")
        around, apart = _each(padding, rank), _each(dilation, rank)
        over = _hanging_over(value, kernel, step, around, apart) if ceil_mode else [(0, 0)] * rank
        sides = [(size, size + behind) for size, (_, behind) in zip(around, over, strict=True)]
        wide = _padded(value, sides, least("max", value.dtype))
        return _largest(_windows(wide, kernel, step, apart), rank)

    pool.__doc__ = "The first largest element of windows: " + _SAID[rank]
    return pool


def _power_pool(rank: int) -> Function:
    average = _average_pool(rank)

    def pool(
        input: Like, norm_type: float, kernel_size: Sizes, stride: Sizes = None, ceil_mode: bool = False
    ) -> Value:  # fmt: skip
        mean = average(elementwise("pow", input, norm_type), kernel_size, stride, 0, ceil_mode)
        total = elementwise("mul", mean, float(math.prod(_each(kernel_size, rank))))
        # torch multiplies by the sign and the size, of which the one has no slope, and the other none at zero.
        total = elementwise("mul", elementwise("sign", total), library("relu")(elementwise("abs", total)))
        return elementwise("pow", total, 1.0 / norm_type)

    pool.__doc__ = f"``(n * F.avg_pool{rank}d(x ** p)) ** (1 / p)``, of windows of ``n`` elements."
    return pool


def _adaptive(rank: int, kind: str) -> Function:
    what = f"adaptive_{kind}_pool{rank}d"

    def pool(input: Like, output_size: Sizes, return_indices: bool = False) -> Value:
        value = _floats(what, input, rank) if kind == "avg" else _image(what, input, rank)
        sizes = value.sizes[-rank:]
        wanted = [own if size is None else size for size, own in zip(_each(output_size, rank), sizes, strict=True)]
        if return_indices or any(min(size, own) < 1 or own % size for size, own in zip(wanted, sizes, strict=True)):
            raise _refused(what, f"{list(sizes)} to {wanted}", "windows of one size, some pixels each, and no indices")
        kernel = [own // size for size, own in zip(wanted, sizes, strict=True)]
        windows = _windows(value, kernel, kernel)
        return _average(windows, rank) if kind == "avg" else _largest(windows, rank)

    pool.__doc__ = f"``{'F.avg_pool' if kind == 'avg' else 'F.max_pool'}{rank}d`` of as many windows, all of one size."
    return pool


_SAID = {rank: ".".join(["x", *(f"unfold({at - rank}, size, step)" for at in range(rank))]) for rank in (1, 2, 3)}
_SAID = {rank: f"``{text}``." for rank, text in _SAID.items()}
for _rank in (1, 2, 3):
    torchs(f"nn.functional.avg_pool{_rank}d")(_average_pool(_rank))
    torchs(f"max_pool{_rank}d", f"nn.functional.max_pool{_rank}d")(_largest_pool(_rank))
    torchs(f"nn.functional.adaptive_avg_pool{_rank}d")(_adaptive(_rank, "avg"))
    torchs(f"nn.functional.adaptive_max_pool{_rank}d")(_adaptive(_rank, "max"))
    torchs(f"nn.functional.lp_pool{_rank}d")(_power_pool(_rank))


@torchs("nn.functional.unfold")
def columns(
    input: Like, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Value:  # fmt: skip
    """``x.unfold(-2, ...).unfold(-1, ...)``, windows as columns: ``[batch, channels * kernel, windows]``."""
    value, kernel, around = _image("unfold", input, 2), _each(kernel_size, 2), _each(padding, 2)
    windows = _windows(_padded(value, _even(around), 0), kernel, _each(stride, 2), _each(dilation, 2))
    first = value.ndim - 3  # channels, places in two dimensions, and in these of the window
    turned = permute(windows, *range(first + 1), first + 3, first + 4, first + 1, first + 2)
    return flatten_dims(flatten_dims(turned, -2, -1), first, first + 2)


@torchs("nn.functional.local_response_norm")
def local_response_norm(input: Like, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Value:
    """``x / (k + alpha * s) ** beta``, ``s`` being the mean square of the channels around, 0 beyond the ends."""
    value = lift(input)
    if value.ndim < 3:
        raise ShapeError(
            f"{current().where}, local_response_norm", given=shape_of(value), expected="three dimensions or more",
            fix="add dimensions of size one: x[None]",
        )  # fmt: skip
    squares = movedim(elementwise("mul", value, value), 1, -1)
    around = library("pad")(squares, (size // 2, (size - 1) // 2), "constant", 0)
    mean = movedim(reductions.mean(unfold(around, -1, size, 1), -1), -1, 1)
    return elementwise("div", value, elementwise("pow", elementwise("add", elementwise("mul", mean, alpha), k), beta))


# -- pixels elsewhere --------------------------------------------------------------------------------------------------


@torchs("pixel_shuffle", "nn.functional.pixel_shuffle")
def pixel_shuffle(input: Like, upscale_factor: int) -> Value:
    """Of each ``r * r`` channels a square of pixels."""
    value, r = lift(input), plain_number(upscale_factor)
    _check_square("pixel_shuffle", value, r, value.sizes[-3:-2], r * r)
    value = unflatten_dim(value, -3, (value.sizes[-3] // (r * r), r, r))
    return _dims_in_order(value, (0, 3, 1, 4, 2), (-4, -3), (-2, -1))


@torchs("pixel_unshuffle", "nn.functional.pixel_unshuffle")
def pixel_unshuffle(input: Like, downscale_factor: int) -> Value:
    """Of each square of pixels ``r * r`` channels."""
    value, r = lift(input), plain_number(downscale_factor)
    _check_square("pixel_unshuffle", value, r, value.sizes[-2:], r)
    value = unflatten_dim(value, -1, (value.sizes[-1] // r, r))
    value = unflatten_dim(value, -3, (value.sizes[-3] // r, r))
    return _dims_in_order(value, (0, 2, 4, 1, 3), (-5, -3))


def _check_square(what: str, value: Value, factor: int, sizes: Sequence[int], by: int) -> None:
    if value.ndim < 3 or factor < 1 or any(size % by for size in sizes):
        raise ShapeError(
            f"{current().where}, {what}", given=f"{shape_of(value)} by {factor}",
            expected=f"three dimensions or more, and a size that divides by {by}", fix="choose another factor",
        )  # fmt: skip


def _dims_in_order(value: Value, order: Sequence[int], *merged: tuple[int, int]) -> Value:
    """The last dimensions in another order, and some of them put together, the first named first."""
    first = value.ndim - len(order)
    value = permute(value, *range(first), *(first + place for place in order))
    for start, end in merged:
        value = flatten_dims(value, start, end)
    return value


@torchs("channel_shuffle", "nn.functional.channel_shuffle")
def channel_shuffle(input: Like, groups: int) -> Value:
    """Channels dealt out: the first of each group, the second of each."""
    value, count = lift(input), plain_number(groups)
    if value.ndim < 3 or count < 1 or value.sizes[1] % count:
        raise ShapeError(
            f"{current().where}, channel_shuffle", given=f"{shape_of(value)} in {count} groups",
            expected="channels that divide by it", fix="choose another number",
        )  # fmt: skip
    value = unflatten_dim(value, 1, (count, value.sizes[1] // count))
    return flatten_dims(permute(value, 0, 2, 1, *range(3, value.ndim)), 1, 2)


@torchs("nn.functional.interpolate")
def interpolate(
    input: Like, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Value:  # fmt: skip
    """``fg.take`` at the nearest pixel, to whole multiples of a size, or whole fractions of it."""
    value = lift(input)
    rank = value.ndim - 2
    own = value.sizes[2:]
    if mode != "nearest" or rank < 1 or (size is None) is (scale_factor is None):
        raise _refused("interpolate", f"mode={mode!r} of {shape_of(value)}", 'mode="nearest", and a size or a scale')
    factors = [0.0] * rank if scale_factor is None else _each(scale_factor, rank)
    scaled = [math.floor(old * factor) for old, factor in zip(own, factors, strict=True)]
    wanted = _each(size, rank) if scale_factor is None else scaled
    for at, (new, old, factor) in enumerate(zip(wanted, own, factors, strict=True), start=2):
        if new != old:
            place, by = creation.arange(new), max(new // old, old // new if new else 0)
            scale = 1 / factor if factor and not recompute_scale_factor else old / max(new, 1)
            told = [min(int(_single(pixel * _single(scale))), old - 1) for pixel in range(new)]
            if not by or told != [pixel // by if new > old else pixel * by for pixel in range(new)]:
                raise _refused("interpolate", f"{old} pixels to {new}", "a whole multiple of a size, or fraction of it")
            place = elementwise("floor_divide" if new > old else "mul", place, by)
            value = indexing.take(value, place, at, negative=False)
    return value


def _single(value: float) -> float:
    """A number as float32 holds it, which torch computes the places of pixels with."""
    return float(struct.unpack("f", struct.pack("f", value))[0])
