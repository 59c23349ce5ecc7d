"""torch's functions of what tensors are: their dtypes, copies and sizes."""

from __future__ import annotations

from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.declare import language
from fusegen.declare.memory import shares
from fusegen.declare.torch_functions import DEFINED, Function, TorchFunction, torchs
from fusegen.declare.value import Like, SizeOf, Value, as_dtype, cast, lift, one_axis


def _cast_to(dtype: DType) -> Function:
    @shares("same")
    def convert(input: Like) -> Value:
        return _in(input, dtype)

    convert.__doc__ = f"``x.to(fg.{dtype.name}{'_' * (dtype.name == 'bool')})``."
    return convert


for _name, _dtype in (
    ("float", dtypes.float32), ("double", dtypes.float64), ("half", dtypes.float16), ("bfloat16", dtypes.bfloat16),
    ("int", dtypes.int32), ("long", dtypes.int64), ("short", dtypes.int16), ("char", dtypes.int8),
    ("byte", dtypes.uint8), ("bool", dtypes.bool_),
):  # fmt: skip
    DEFINED.append(TorchFunction((f"Tensor.{_name}",), _cast_to(_dtype)))


@torchs("Tensor.type_as")
@shares("same")
def type_as(input: Like, other: Like) -> Value:
    """``x.to(y.dtype)``."""
    return _in(input, lift(other).dtype)


@torchs("Tensor.type", "Tensor.astype")
@shares("same")
def type_of(input: Like, dtype: Any) -> Value:
    """``x.to(dtype)``."""
    return _in(input, dtype)


def _in(input: Like, dtype: Any) -> Value:
    """Of the dtype, itself if it is that already."""
    value = lift(input)
    return value if value.dtype is as_dtype(dtype) and not value.weak else cast(value, dtype)


@torchs("detach")
@shares("read")
def detach(input: Like) -> Value:
    """``fg.stop_gradient(x)``."""
    return language.stop_gradient(input)


@torchs("clone")
def clone(input: Like, *, memory_format: Any = None) -> Value:
    """``x``, in memory of its own."""
    return lift(input)


@torchs("Tensor.contiguous")
@shares("perhaps")
def contiguous(input: Like, memory_format: Any = None) -> Value:
    """``x``."""
    return lift(input)


@torchs("Tensor.size")
def size(input: Value, dim: int | None = None) -> SizeOf | tuple[SizeOf, ...]:
    """``x.shape``, or one of it."""
    if dim is None:
        return input.shape
    place = one_axis(input, dim, "size")
    return input.shape[0 if place is None else place]


@torchs("Tensor.dim", "Tensor.ndimension")
def rank(input: Value) -> int:
    """``x.ndim``."""
    return input.ndim


@torchs("numel", "Tensor.nelement")
def numel(input: Value) -> SizeOf:
    """``fg.size(x)``."""
    return SizeOf.of(input, None)


@torchs("is_floating_point")
def is_floating_point(input: Value) -> bool:
    """``x.dtype.is_float``."""
    return input.dtype.is_float


@torchs("_is_all_true")
def is_all_true(input: Like) -> bool:
    """True: what ``torch.distributions`` asks of its arguments, which have no values yet."""
    return True


@torchs("is_complex")
def is_complex(input: Value) -> bool:
    """False: there are no complex numbers."""
    return False
