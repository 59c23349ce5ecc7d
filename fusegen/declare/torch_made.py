"""What torch makes of no tensor, in a declaration: ``torch.zeros``, ``torch.arange``, ``torch.tensor(0.5)``, ``finfo``.

Of such functions torch asks no tensor what they are to be, and their arguments must be torch's own: ``x.dtype`` and
``x.device`` are none. So while a declaration runs, ``torch`` has others in their place, which are the language's in the
thread that traces, and torch's own in all others.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fusegen.core import dtypes, locks
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError
from fusegen.declare import creation
from fusegen.declare.language import expand_dims
from fusegen.declare.listed import listed
from fusegen.declare.torch_functions import torchs
from fusegen.declare.torch_triangles import lower, upper
from fusegen.declare.value import (
    AnyDevice,
    Like,
    Value,
    as_dtype,
    cast,
    current,
    elementwise,
    is_tracing,
    lift,
    plain_number,
)


def tensor(data: Any, *, dtype: Any = None, **placed: Any) -> Value:
    """A number as a tensor without dimensions; a list of a few, or lists of such, as one with."""
    _check("tensor", placed)
    if isinstance(data, Value) and not data.ndim and not data.weak:
        return data if dtype is None else cast(data, dtype)
    return listed(data, _default(), dtype)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Value:
    """``torch.tensor``; of a tensor itself, in the dtype."""
    if isinstance(data, Value) and not data.weak:
        return data if dtype is None else data.to(dtype)
    return tensor(data, dtype=dtype, device=device)


def zeros(*size: Any, dtype: Any = None, **placed: Any) -> Value:
    """``fg.zeros(shape)``."""
    _check("zeros", placed)
    return creation.zeros(_shape(size, placed), dtype=_default() if dtype is None else dtype)


def ones(*size: Any, dtype: Any = None, **placed: Any) -> Value:
    """``fg.ones(shape)``."""
    _check("ones", placed)
    return creation.ones(_shape(size, placed), dtype=_default() if dtype is None else dtype)


def full(size: Sequence[int], fill_value: Like, *, dtype: Any = None, **placed: Any) -> Value:
    """``fg.full(shape, value)``."""
    _check("full", placed)
    kind = _default() if dtype is None and isinstance(fill_value, float) else dtype
    return creation.full(size, fill_value, dtype=kind)


def arange(
    start: float, end: float | None = None, step: float = 1, *, dtype: Any = None, **placed: Any
) -> Value:  # fmt: skip
    """``fg.arange(start, end, step)``; floats are numbers of torch's default dtype, ``start + i * step``."""
    _check("arange", placed)
    numbers = [plain_number(number) for number in ((0, start, step) if end is None else (start, end, step))]
    known = all(isinstance(number, (int, float)) for number in numbers)
    if not known or not any(isinstance(number, float) for number in numbers):
        return creation.arange(*numbers, dtype=dtype)
    first, last, by = numbers
    count = math.ceil((last - first) / by) if by else -1
    if count < 0:
        raise DeclarationError(
            f"{current().where}, torch.arange", given=f"from {first} to {last} by {by}",
            expected="a step that leads from the start to the end", fix="choose another one",
        )  # fmt: skip
    kind = _default() if dtype is None else as_dtype(dtype)
    wide = kind if kind.is_float else dtypes.float64
    place = elementwise("mul", cast(creation.arange(count), wide), float(by))
    return cast(elementwise("add", place, float(first)), kind)


def eye(n: int, m: int | None = None, *, dtype: Any = None, **placed: Any) -> Value:
    """1 on the diagonal, 0 elsewhere: two positions compared."""
    _check("eye", placed)
    rows, columns = creation.arange(n), creation.arange(n if m is None else m)
    same = elementwise("eq", expand_dims(rows, 1), columns)
    return cast(same, _default() if dtype is None else dtype)


def _triangle(name: str, places: Callable[..., Value]) -> Callable[..., Value]:
    def indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, **placed: Any) -> Value:
        """Rows and columns of what a triangle has."""
        _check(name, placed)
        return places(row, col, offset, dtype=dtype)

    return indices


def linspace(start: Like, end: Like, steps: int, *, dtype: Any = None, **placed: Any) -> Value:
    """``steps`` numbers from ``start`` to ``end``, both among them; from either end to the middle, as torch does."""
    _check("linspace", placed)
    kind, count = _default() if dtype is None else as_dtype(dtype), creation.whole(steps, "linspace")
    if not kind.is_float:
        raise DeclarationError(
            f"{current().where}, torch.linspace", given=f"dtype={kind}", expected="a float dtype",
            fix="take torch.arange, or cast what you get",
        )  # fmt: skip
    place = creation.arange(count)
    first, last, at = (cast(lift(value), kind) for value in (start, end, place))
    step = elementwise("div", elementwise("sub", last, first), float(max(count - 1, 1)))
    from_start = elementwise("add", first, elementwise("mul", step, at))
    from_end = elementwise("sub", last, elementwise("mul", step, elementwise("sub", float(count - 1), at)))
    is_early = elementwise("lt", place, max(count // 2, 1))
    return elementwise("where", is_early, from_start, from_end)


def logspace(start: Like, end: Like, steps: int, base: float = 10.0, *, dtype: Any = None, **placed: Any) -> Value:
    """``base`` to the power of ``torch.linspace(start, end, steps)``."""
    return elementwise("pow", float(base), linspace(start, end, steps, dtype=dtype, **placed))


def _window(first: float, second: float) -> Callable[..., Value]:
    def window(window_length: int, periodic: bool = True, *_: Any, dtype: Any = None, **placed: Any) -> Value:
        """A cosine over the length of a window."""
        _check("hann_window", placed)
        count, kind = creation.whole(window_length, "hann_window"), _default() if dtype is None else as_dtype(dtype)
        whole = count if periodic else count - 1
        turned = elementwise("mul", cast(creation.arange(count), kind), 2 * math.pi / max(whole, 1))
        return elementwise("sub", cast(first, kind), elementwise("mul", elementwise("cos", turned), second))

    return window


def is_tensor(obj: Any) -> bool:
    """Whether it is a tensor, or stands for one."""
    return not obj.weak if isinstance(obj, Value) else bool(standing_in.own["is_tensor"](obj))


MADE: dict[str, Callable[..., Any]] = {
    "tensor": tensor, "scalar_tensor": tensor, "as_tensor": as_tensor, "zeros": zeros, "empty": zeros, "ones": ones,
    "full": full, "arange": arange, "eye": eye, "linspace": linspace, "logspace": logspace, "is_tensor": is_tensor,
    "triu_indices": _triangle("triu_indices", upper), "tril_indices": _triangle("tril_indices", lower),
    "hann_window": _window(0.5, 0.5), "hamming_window": _window(0.54, 0.46),
}  # fmt: skip
# What asks for torch's own dtypes and devices, and is itself otherwise: it, or what it makes, is refused later.
ASKING = (
    "finfo", "iinfo", "promote_types", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like",
    "sum", "mean", "prod", "cumsum", "cumprod", "softmax", "log_softmax", "norm", "rand",
    "randn", "randint", "randperm",
)  # fmt: skip


@torchs("Tensor.new_tensor")
def new_tensor(input: Like, data: Any, *, dtype: Any = None, **placed: Any) -> Value:
    """Numbers as a tensor of the dtype of ``x``."""
    return tensor(data, dtype=lift(input).dtype if dtype is None else dtype, **placed)


@torchs("Tensor.new_zeros", "Tensor.new_empty")
def new_zeros(input: Like, *size: Any, dtype: Any = None, **placed: Any) -> Value:
    """``fg.zeros(shape)`` of the dtype of ``x``."""
    return zeros(*size, dtype=lift(input).dtype if dtype is None else dtype, **placed)


@torchs("Tensor.new_ones")
def new_ones(input: Like, *size: Any, dtype: Any = None, **placed: Any) -> Value:
    """``fg.ones(shape)`` of the dtype of ``x``."""
    return ones(*size, dtype=lift(input).dtype if dtype is None else dtype, **placed)


@torchs("Tensor.new_full")
def new_full(input: Like, size: Sequence[int], fill_value: Like, *, dtype: Any = None, **placed: Any) -> Value:
    """``fg.full(shape, value)`` of the dtype of ``x``."""
    return full(size, fill_value, dtype=lift(input).dtype if dtype is None else dtype, **placed)


def _default() -> DType:
    return as_dtype(sys.modules["torch"].get_default_dtype())


def _shape(size: tuple[Any, ...], placed: dict[str, Any]) -> tuple[int, ...]:
    given = size or (placed.get("size", ()),)
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _check(name: str, placed: dict[str, Any]) -> None:
    """Where a result lies is the op's business, and that it needs a gradient is no declaration's."""
    given = {key: value for key, value in placed.items() if value is not None and value is not False}
    unknown = given.keys() - {"device", "layout", "memory_format", "size"}
    device = given.get("device")
    if unknown or not (device is None or isinstance(device, AnyDevice)):
        shown = ", ".join(f"{key}={given[key]!r}" for key in sorted(unknown or {"device"}))
        raise DeclarationError(
            f"{current().where}, torch.{name}", given=shown, expected="a dtype, and the device of a tensor",
            fix="leave it away: a declaration is for every device",
        )  # fmt: skip


# -- in place of torch's own -------------------------------------------------------------------------------------------


class standing_in:
    """Context manager: while some declaration runs, ``torch`` has the functions above in the place of its own."""

    lock = locks.lock()
    running = 0
    own: dict[str, Any] = {}  # noqa: RUF012

    def __enter__(self) -> None:
        self.torch = sys.modules.get("torch")
        if self.torch is None or not hasattr(self.torch, "get_default_dtype"):  # half imported
            self.torch = None
            return
        with standing_in.lock:
            standing_in.running += 1
            if standing_in.running == 1:
                for name in (*MADE, *ASKING):
                    standing_in.own[name] = getattr(self.torch, name)
                    setattr(self.torch, name, _stand_in(name, standing_in.own[name]))

    def __exit__(self, *_: object) -> None:
        if self.torch is None:
            return
        with standing_in.lock:
            standing_in.running -= 1
            if not standing_in.running:
                for name, function in standing_in.own.items():
                    setattr(self.torch, name, function)
                standing_in.own.clear()


def _stand_in(name: str, own: Any) -> Callable[..., Any]:
    @functools.wraps(own, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_tracing():
            return own(*args, **kwargs)
        if name in MADE:
            return MADE[name](*args, **kwargs)
        return own(*map(_torchs_own, args), **{key: _torchs_own(value) for key, value in kwargs.items()})

    return call


def _torchs_own(given: Any) -> Any:
    """torch's dtype of a declaration's; no device in the place of any."""
    if isinstance(given, DType):
        return getattr(sys.modules["torch"], given.name)
    return None if isinstance(given, AnyDevice) else given
