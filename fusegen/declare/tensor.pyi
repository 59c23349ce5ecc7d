"""What a declaration's tensors can do. Made by tools/stubs.py of what fusegen is at run time: run it again when that changes."""

import builtins
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from fusegen.core.dtypes import DType
from fusegen.declare.axes import Dims

class Tensor:
    """A tensor, as an annotation: ``def silu(x: fg.Tensor) -> fg.Tensor``.

    Inside a declaration it is a symbolic tensor: it has operators, the functions of the language as methods, ``dtype``
    and ``ndim``, and no values yet. A caller passes tensors of PyTorch, NumPy, CuPy or JAX, or numbers.
    """

    dtype: DType
    """The dtype torch would give it."""
    dims: Dims
    """An axis for each dimension, None where its size is one: for the library's own checks."""
    weak: builtins.bool
    """Whether it is a number, which has no dtype of its own."""

    @property
    def ndim(self) -> builtins.int:
        """How many dimensions it has."""
    @property
    def device(self) -> Any:
        """What stands for the device of this call's tensors: it may be handed on."""
    @property
    def shape(self) -> tuple[builtins.int, ...]:
        """The sizes of the tensors of this call, which are ints, and of any call where they are computed with."""
    @property
    def sizes(self) -> tuple[builtins.int, ...]:
        """The sizes of the tensors of this call, for checks. A declaration that reads them is traced for each shape."""
    @property
    def mT(self) -> Tensor:
        """Its last two dimensions exchanged."""
    @property
    def T(self) -> Tensor:
        """A matrix transposed."""
    def to(self, dtype: DTypeLike | Tensor, /, **options: Any) -> Tensor:
        """In another dtype (fusegen's, torch's or NumPy's, a name, or another tensor's); to a half type it rounds."""
    def __len__(self) -> builtins.int: ...
    def __getitem__(self, key: Key | tuple[Key, ...], /) -> Tensor:
        """``x[:, None]``, ``x[0]``, ``x[..., :4]``, ``x[i]``: dimensions, elements, blocks, places of a tensor."""
    def __add__(self, other: Number, /) -> Tensor: ...
    def __radd__(self, other: Number, /) -> Tensor: ...
    def __sub__(self, other: Number, /) -> Tensor: ...
    def __rsub__(self, other: Number, /) -> Tensor: ...
    def __mul__(self, other: Number, /) -> Tensor: ...
    def __rmul__(self, other: Number, /) -> Tensor: ...
    def __truediv__(self, other: Number, /) -> Tensor: ...
    def __rtruediv__(self, other: Number, /) -> Tensor: ...
    def __floordiv__(self, other: Number, /) -> Tensor: ...
    def __rfloordiv__(self, other: Number, /) -> Tensor: ...
    def __mod__(self, other: Number, /) -> Tensor: ...
    def __rmod__(self, other: Number, /) -> Tensor: ...
    def __pow__(self, other: Number, /) -> Tensor: ...
    def __rpow__(self, other: Number, /) -> Tensor: ...
    def __and__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __rand__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __or__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __ror__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __xor__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __rxor__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __lshift__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __rlshift__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __rshift__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __rrshift__(self, other: Tensor | builtins.int, /) -> Tensor: ...
    def __matmul__(self, other: Tensor, /) -> Tensor: ...
    def __rmatmul__(self, other: Tensor, /) -> Tensor: ...
    def __lt__(self, other: Number, /) -> Tensor: ...
    def __le__(self, other: Number, /) -> Tensor: ...
    def __gt__(self, other: Number, /) -> Tensor: ...
    def __ge__(self, other: Number, /) -> Tensor: ...
    def __eq__(self, other: Number, /) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: Number, /) -> Tensor: ...  # type: ignore[override]
    def __setitem__(self, key: Any, value: Tensor | builtins.float, /) -> None: ...
    def __hash__(self) -> builtins.int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __neg__(self) -> Tensor: ...
    def __pos__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def abs(self) -> Tensor:
        """Derivative 0 at 0."""
    def absolute(self) -> Tensor:
        """``fg.abs(x)``."""
    def acos(self) -> Tensor:
        """Elementwise acos; arguments broadcast and promote as torch's."""
    def acosh(self) -> Tensor:
        """Elementwise acosh; arguments broadcast and promote as torch's."""
    def add(self, other: Number, *, alpha: Number = 1) -> Tensor:
        """``x + y``."""
    def addbmm(self, batch1: Number, batch2: Number, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        """``beta * x + alpha * s``, with the sum ``s`` of products: ``torch.einsum("bij,bjk->ik", a, b)``."""
    def addcdiv(self, tensor1: Number, tensor2: Number, *, value: Number = 1) -> Tensor:
        """``fg.ops.addcdiv``."""
    def addcmul(self, tensor1: Number, tensor2: Number, *, value: Number = 1) -> Tensor:
        """``fg.ops.addcmul``."""
    def addmm(self, mat1: Number, mat2: Number, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        """``fg.ops.addmm``."""
    def addmv(self, mat: Number, vec: Number, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        """``beta * x + alpha * (m @ v)``."""
    def addr(self, vec1: Number, vec2: Number, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        """``beta * x + alpha * v[:, None] * w``."""
    def adjoint(self) -> Tensor:
        """``x.mT``."""
    @overload
    def all(self, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
        """Whether no element is zero; of nothing: True. A bool, of uint8 a uint8, as torch's."""
    @overload
    def all(self, *, dim: Axis = None, keepdim: builtins.bool = False) -> Tensor: ...
    @overload
    def amax(self, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
        """Maximum over ``axis``; NaN wins. Its gradient is shared evenly by elements that tie."""
    @overload
    def amax(self, *, dim: Axis = None, keepdim: builtins.bool = False) -> Tensor: ...
    @overload
    def amin(self, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
        """Minimum over ``axis``; NaN wins. Its gradient is shared evenly by elements that tie."""
    @overload
    def amin(self, *, dim: Axis = None, keepdim: builtins.bool = False) -> Tensor: ...
    def aminmax(self, *, dim: Any = None, keepdim: builtins.bool = False) -> tuple[Tensor, Tensor]:
        """``fg.amin(x, axis), fg.amax(x, axis)``."""
    def angle(self) -> Tensor:
        """``fg.where(x < 0, pi, 0)``; NaN of NaN."""
    @overload
    def any(self, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
        """Whether some element is not zero; of nothing: False. A bool, of uint8 a uint8, as torch's."""
    @overload
    def any(self, *, dim: Axis = None, keepdim: builtins.bool = False) -> Tensor: ...
    def arccos(self) -> Tensor:
        """``fg.acos(x)``."""
    def arccosh(self) -> Tensor:
        """``fg.acosh(x)``."""
    def arcsin(self) -> Tensor:
        """``fg.asin(x)``."""
    def arcsinh(self) -> Tensor:
        """``fg.asinh(x)``."""
    def arctan(self) -> Tensor:
        """``fg.atan(x)``."""
    def arctan2(self, other: Number) -> Tensor:
        """``fg.atan2(x, y)``."""
    def arctanh(self) -> Tensor:
        """``fg.atanh(x)``."""
    @overload
    def argmax(self, axis: builtins.int | None = None, keepdims: builtins.bool = False) -> Tensor:
        """Position of the maximum along ``axis`` (None: in the flattened tensor), the first where several tie; NaN wins."""
    @overload
    def argmax(self, *, dim: builtins.int | None = None, keepdim: builtins.bool = False) -> Tensor: ...
    @overload
    def argmin(self, axis: builtins.int | None = None, keepdims: builtins.bool = False) -> Tensor:
        """Position of the minimum along ``axis`` (None: in the flattened tensor), the first where several tie; NaN wins."""
    @overload
    def argmin(self, *, dim: builtins.int | None = None, keepdim: builtins.bool = False) -> Tensor: ...
    def asin(self) -> Tensor:
        """Elementwise asin; arguments broadcast and promote as torch's."""
    def asinh(self) -> Tensor:
        """Elementwise asinh; arguments broadcast and promote as torch's."""
    def astype(self, dtype: Any) -> Tensor:
        """``x.to(dtype)``."""
    def atan(self) -> Tensor:
        """Elementwise atan; arguments broadcast and promote as torch's."""
    def atan2(self, b: Number, /) -> Tensor:
        """Angle of (b, a); derivative 0 at the origin."""
    def atanh(self) -> Tensor:
        """Elementwise atanh; arguments broadcast and promote as torch's."""
    def baddbmm(self, batch1: Number, batch2: Number, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        """``fg.ops.baddbmm``."""
    def bernoulli(self, p: Number | None = None, *, generator: Any = None) -> Tensor:
        """``fg.bernoulli(x)``; of a number ``p``, a tensor like ``x``."""
    def bfloat16(self) -> Tensor:
        """``x.to(fg.bfloat16)``."""
    def bincount(self, weights: Number | None = None, minlength: builtins.int = 0) -> Tensor:
        """How many of each number there are, of ``minlength`` numbers: one that is not among them is an error."""
    def bitwise_and(self, b: Number, /) -> Tensor:
        """Elementwise bitwise_and; arguments broadcast and promote as torch's."""
    def bitwise_left_shift(self, other: Number) -> Tensor:
        """``fg.left_shift(x, y)``."""
    def bitwise_not(self) -> Tensor:
        """Elementwise bitwise_not; arguments broadcast and promote as torch's."""
    def bitwise_or(self, b: Number, /) -> Tensor:
        """Elementwise bitwise_or; arguments broadcast and promote as torch's."""
    def bitwise_right_shift(self, other: Number) -> Tensor:
        """``fg.right_shift(x, y)``."""
    def bitwise_xor(self, b: Number, /) -> Tensor:
        """Elementwise bitwise_xor; arguments broadcast and promote as torch's."""
    def bmm(self, other: Number) -> Tensor:
        """``x @ y``."""
    def bool(self) -> Tensor:
        """``x.to(fg.bool_)``."""
    def broadcast_to(self, *shape: Any) -> Tensor:
        """``x`` along dimensions that other tensors have, ``x[None].expand(y.shape[0], -1)``, or of so many elements."""
    def byte(self) -> Tensor:
        """``x.to(fg.uint8)``."""
    def cbrt(self) -> Tensor:
        """Real cube root."""
    def ceil(self) -> Tensor:
        """Elementwise ceil; arguments broadcast and promote as torch's."""
    def char(self) -> Tensor:
        """``x.to(fg.int8)``."""
    def chunk(self, chunks: builtins.int, dim: builtins.int = 0) -> tuple[Tensor, ...]:
        """``fg.split(x, count, axis)``; the last part may be smaller."""
    def clamp(self, min: Number | None = None, max: Number | None = None) -> Tensor:
        """``fg.ops.clamp``."""
    def clamp_max(self, max: Number) -> Tensor:
        """``fg.ops.clamp(x, max=high)``."""
    def clamp_min(self, min: Number) -> Tensor:
        """``fg.ops.clamp(x, min=low)``."""
    def clip(self, min: Number | None = None, max: Number | None = None) -> Tensor:
        """``fg.ops.clamp(x, low, high)``."""
    def clone(self, *, memory_format: Any = None) -> Tensor:
        """``x``, in memory of its own."""
    def conj(self) -> Tensor:
        """``x``: there are no complex numbers."""
    def conj_physical(self) -> Tensor:
        """``x``: there are no complex numbers."""
    def contiguous(self, memory_format: Any = None) -> Tensor:
        """``x``."""
    def copysign(self, b: Number, /) -> Tensor:
        """Elementwise copysign; arguments broadcast and promote as torch's."""
    def corrcoef(self) -> Tensor:
        """``c @ c.mT``, of rows without their means, of length one; within [-1, 1]."""
    def cos(self) -> Tensor:
        """Elementwise cos; arguments broadcast and promote as torch's."""
    def cosh(self) -> Tensor:
        """Elementwise cosh; arguments broadcast and promote as torch's."""
    def count_nonzero(self, dim: Any = None) -> Tensor:
        """``fg.sum(x != 0, axis)``."""
    def cov(self, *, correction: builtins.int = 1, fweights: Number | None = None, aweights: Number | None = None) -> Tensor:
        """``c @ c.mT / (n - 1)``, of rows without their means; with weights of the columns."""
    def cross(self, other: Number, dim: builtins.int | None = None) -> Tensor:
        """``fg.concat`` of differences of products of parts; without an axis the first of three elements."""
    @overload
    def cummax(self, axis: builtins.int = -1, *, reverse: builtins.bool = False) -> Cumulative:
        """The largest of x[0], ..., x[i] along ``axis``, and where it stands: ``values`` and ``indices`` (int64).

        From the last element if ``reverse``. Of several that are equal, the place is that of the last that the scan meets,
        which has the gradient; NaN is larger than all. Source: torch.cummax.

        Raises:
            ShapeError: there is no such dimension.
            DeclarationError: a result meets what is in groups (fg.unflatten) along it.
        """
    @overload
    def cummax(self, *, dim: builtins.int = -1, reverse: builtins.bool = False) -> Cumulative: ...
    @overload
    def cummin(self, axis: builtins.int = -1, *, reverse: builtins.bool = False) -> Cumulative:
        """The smallest of x[0], ..., x[i] along ``axis``, and where it stands. See ``cummax``. Source: torch.cummin."""
    @overload
    def cummin(self, *, dim: builtins.int = -1, reverse: builtins.bool = False) -> Cumulative: ...
    @overload
    def cumprod(
        self,
        axis: builtins.int = -1,
        *,
        reverse: builtins.bool = False,
        exclusive: builtins.bool = False,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """y[i] = x[0] * ... * x[i] along ``axis``; x[i] * ... * x[last] if ``reverse``.

        If ``exclusive`` x[i] is not in y[i], and the first is one. Its gradient divides by nothing, so elements may be
        zero. Dtypes and errors are those of ``cumsum``. Source: torch.cumprod.
        """
    @overload
    def cumprod(
        self,
        *,
        dim: builtins.int = -1,
        reverse: builtins.bool = False,
        exclusive: builtins.bool = False,
        dtype: DTypeLike | None = None,
    ) -> Tensor: ...
    @overload
    def cumsum(
        self,
        axis: builtins.int = -1,
        *,
        reverse: builtins.bool = False,
        exclusive: builtins.bool = False,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """y[i] = x[0] + ... + x[i] along ``axis``; x[i] + ... + x[last] if ``reverse``.

        If ``exclusive`` x[i] is not in y[i], and the first is zero. Integers and bools are added up as int64; halves are in
        float32, and rounded where they are stored. ``dtype`` casts before, and is the result's. Source: torch.cumsum.

        Raises:
            ShapeError: there is no such dimension.
            DeclarationError: a result meets what is in groups (fg.unflatten) along it.
        """
    @overload
    def cumsum(
        self,
        *,
        dim: builtins.int = -1,
        reverse: builtins.bool = False,
        exclusive: builtins.bool = False,
        dtype: DTypeLike | None = None,
    ) -> Tensor: ...
    def deg2rad(self) -> Tensor:
        """``x * (pi / 180)``."""
    def detach(self) -> Tensor:
        """``fg.stop_gradient(x)``."""
    def diag(self, diagonal: builtins.int = 0) -> Tensor:
        """The diagonal of a matrix; of a vector, the matrix with it."""
    def diag_embed(self, offset: builtins.int = 0, dim1: builtins.int = -2, dim2: builtins.int = -1) -> Tensor:
        """``fg.where(row == column, x[..., None], 0)``."""
    def diagflat(self, offset: builtins.int = 0) -> Tensor:
        """``torch.diag_embed`` of a tensor that is seen as flat."""
    def diagonal(self, offset: builtins.int = 0, dim1: builtins.int = 0, dim2: builtins.int = 1) -> Tensor:
        """``fg.take_along_axis`` at the place of each row; the diagonal is the last dimension."""
    def diagonal_scatter(self, src: Number, offset: builtins.int = 0, dim1: builtins.int = 0, dim2: builtins.int = 1) -> Tensor:
        """``x`` with ``y`` in place of ``torch.diagonal(x)``."""
    def diff(self, n: builtins.int = 1, dim: builtins.int = -1, prepend: Number | None = None, append: Number | None = None) -> Tensor:
        """``x[..., 1:] - x[..., :-1]``, ``n`` times."""
    def digamma(self) -> Tensor:
        """d/dx lgamma(x)."""
    def dim(self) -> builtins.int:
        """``x.ndim``."""
    def dist(self, other: Number, p: builtins.float = 2) -> Tensor:
        """``fg.norm(x - y, p)``."""
    def div(self, other: Number, *, rounding_mode: str | None = None) -> Tensor:
        """``x / y``."""
    def divide(self, other: Number, *, rounding_mode: str | None = None) -> Tensor:
        """``x / y``."""
    def dot(self, other: Number) -> Tensor:
        """``x @ y``."""
    def double(self) -> Tensor:
        """``x.to(fg.float64)``."""
    def dsplit(self, indices_or_sections: builtins.int | Sequence[builtins.int], dim: builtins.int = 2) -> Tensor:
        """``torch.tensor_split(x, parts, 2)``."""
    def element_size(self) -> Tensor:
        """``x.dtype.itemsize``."""
    def empty_like(self, *, dtype: Any = None, **placed: Any) -> Tensor:
        """0 for each element."""
    def eq(self, b: Number, /) -> Tensor:
        """Elementwise eq; arguments broadcast and promote as torch's."""
    def erf(self) -> Tensor:
        """Elementwise erf; arguments broadcast and promote as torch's."""
    def erfc(self) -> Tensor:
        """Elementwise erfc; arguments broadcast and promote as torch's."""
    def erfinv(self) -> Tensor:
        """Elementwise erfinv; arguments broadcast and promote as torch's."""
    def exp(self) -> Tensor:
        """Elementwise exp; arguments broadcast and promote as torch's."""
    def exp2(self) -> Tensor:
        """2^x."""
    def expand(self, *shape: Any) -> Tensor:
        """``x`` along dimensions that other tensors have, ``x[None].expand(y.shape[0], -1)``, or of so many elements."""
    def expand_as(self, other: Number) -> Tensor:
        """``x``, broadcast against ``y``."""
    def expm1(self) -> Tensor:
        """exp(x) - 1 without cancellation near 0."""
    def fix(self) -> Tensor:
        """``fg.trunc(x)``."""
    def flatten(self, start_dim: builtins.int = 0, end_dim: builtins.int = -1) -> Tensor:
        """``fg.flatten(x, first, last)``."""
    def flip(self, dims: builtins.int | Sequence[builtins.int]) -> Tensor:
        """``fg.ops.flip``."""
    def fliplr(self) -> Tensor:
        """``torch.flip(x, (1,))``."""
    def flipud(self) -> Tensor:
        """``torch.flip(x, (0,))``."""
    def float(self) -> Tensor:
        """``x.to(fg.float32)``."""
    def float_power(self, exponent: Number) -> Tensor:
        """``x.to(fg.float64) ** y``."""
    def floor(self) -> Tensor:
        """Elementwise floor; arguments broadcast and promote as torch's."""
    def floor_divide(self, b: Number, /) -> Tensor:
        """Elementwise floor_divide; arguments broadcast and promote as torch's."""
    def fmax(self, other: Number) -> Tensor:
        """``fg.where((x >= y) | fg.isnan(y), x, y)``: NaN only where both are."""
    def fmin(self, other: Number) -> Tensor:
        """``fg.where((x <= y) | fg.isnan(y), x, y)``: NaN only where both are."""
    def fmod(self, b: Number, /) -> Tensor:
        """Elementwise fmod; arguments broadcast and promote as torch's."""
    def frac(self) -> Tensor:
        """``x - fg.trunc(x)``."""
    def gather(self, dim: builtins.int | Sequence[builtins.int], index: Number, *, sparse_grad: builtins.bool = False) -> Tensor:
        """``fg.ops.gather``."""
    def ge(self, b: Number, /) -> Tensor:
        """Elementwise ge; arguments broadcast and promote as torch's."""
    def ger(self, vec2: Number) -> Tensor:
        """``x[:, None] * y``."""
    def greater(self, other: Number) -> Tensor:
        """``fg.gt(x, y)``."""
    def greater_equal(self, other: Number) -> Tensor:
        """``fg.ge(x, y)``."""
    def gt(self, b: Number, /) -> Tensor:
        """Elementwise gt; arguments broadcast and promote as torch's."""
    def half(self) -> Tensor:
        """``x.to(fg.float16)``."""
    def hardshrink(self, lambd: builtins.float = 0.5) -> Tensor:
        """``fg.ops.hardshrink``."""
    def heaviside(self, values: Number) -> Tensor:
        """``fg.where(x == 0, y, x > 0)``."""
    def hsplit(self, indices_or_sections: builtins.int | Sequence[builtins.int], dim: builtins.int = 1) -> Tensor:
        """``torch.tensor_split(x, parts, 1)``."""
    def hypot(self, b: Number, /) -> Tensor:
        """sqrt(a^2 + b^2) without overflow."""
    def index_add(self, dim: builtins.int | Sequence[builtins.int], index: Number, source: Number, *, alpha: Number = 1) -> Tensor:
        """``fg.ops.index_add``."""
    def index_copy(self, dim: builtins.int | Sequence[builtins.int], index: Number, source: Number) -> Tensor:
        """``fg.ops.index_copy``."""
    def index_fill(self, dim: builtins.int, index: Number, value: Number) -> Tensor:
        """``fg.scatter(x, axis, i, value)``, with ``i`` of one dimension."""
    def index_put(self, indices: Sequence[Any], values: Number, accumulate: builtins.bool = False) -> Tensor:
        """``y[i, j] = v`` of a copy; with ``accumulate`` ``v`` is added, each time that a place is told."""
    def index_reduce(
        self,
        dim: builtins.int,
        index: Number,
        source: Number,
        reduce: str,
        *,
        include_self: builtins.bool = True,
    ) -> Tensor:
        """``fg.scatter_reduce(x, axis, i, source, "amax")``, with ``i`` of one dimension."""
    def index_select(self, dim: builtins.int | Sequence[builtins.int], index: Number) -> Tensor:
        """``fg.ops.index_select``."""
    def inner(self, other: Number) -> Tensor:
        """``x @ y.mT``; of vectors ``x @ y``."""
    def int(self) -> Tensor:
        """``x.to(fg.int32)``."""
    def is_floating_point(self) -> builtins.bool:
        """``x.dtype.is_float``."""
    def is_signed(self) -> Tensor:
        """``x.dtype.is_signed``."""
    def isclose(self, other: Number, rtol: builtins.float = 1e-05, atol: builtins.float = 1e-08, equal_nan: builtins.bool = False) -> Tensor:
        """``fg.abs(x - y) <= atol + rtol * fg.abs(y)``, or equal."""
    def isfinite(self) -> Tensor:
        """Elementwise isfinite; arguments broadcast and promote as torch's."""
    def isinf(self) -> Tensor:
        """Elementwise isinf; arguments broadcast and promote as torch's."""
    def isnan(self) -> Tensor:
        """Elementwise isnan; arguments broadcast and promote as torch's."""
    def isneginf(self) -> Tensor:
        """``x == -math.inf``."""
    def isposinf(self) -> Tensor:
        """``x == math.inf``."""
    def isreal(self) -> Tensor:
        """True everywhere: there are no complex numbers."""
    def kron(self, other: Number) -> Tensor:
        """Each element of ``x`` times all of ``y``, in its place."""
    def ldexp(self, other: Number) -> Tensor:
        """``x * 2 ** y``."""
    def le(self, b: Number, /) -> Tensor:
        """Elementwise le; arguments broadcast and promote as torch's."""
    def left_shift(self, b: Number, /) -> Tensor:
        """Elementwise left_shift; arguments broadcast and promote as torch's."""
    def lerp(self, end: Number, weight: builtins.float) -> Tensor:
        """``fg.ops.lerp``."""
    def less(self, other: Number) -> Tensor:
        """``fg.lt(x, y)``."""
    def less_equal(self, other: Number) -> Tensor:
        """``fg.le(x, y)``."""
    def lgamma(self) -> Tensor:
        """log |gamma(x)|."""
    def log(self) -> Tensor:
        """Elementwise log; arguments broadcast and promote as torch's."""
    def log10(self) -> Tensor:
        """Elementwise log10; arguments broadcast and promote as torch's."""
    def log1p(self) -> Tensor:
        """log(1 + x) without cancellation."""
    def log2(self) -> Tensor:
        """Elementwise log2; arguments broadcast and promote as torch's."""
    @overload
    def log_softmax(self, axis: builtins.int = -1, dtype: DTypeLike | None = None) -> Tensor:
        """x - max - log(sum(exp(x - max))) along ``axis``. ``dtype``: what ``x`` is cast to first."""
    @overload
    def log_softmax(self, *, dim: builtins.int = -1, dtype: DTypeLike | None = None) -> Tensor: ...
    def logaddexp(self, other: Number) -> Tensor:
        """``high + fg.log1p(fg.exp(low - high))``, of the larger and the smaller one."""
    def logaddexp2(self, other: Number) -> Tensor:
        """``high + fg.log2(1 + fg.exp2(low - high))``, of the larger and the smaller one."""
    @overload
    def logcumsumexp(self, axis: builtins.int = -1, *, reverse: builtins.bool = False) -> Tensor:
        """y[i] = log(exp(x[0]) + ... + exp(x[i])) along ``axis``; from the last element if ``reverse``.

        Sums are kept relative to the largest element so far, so that nothing overflows. No gradient flows where y is
        infinite. Source: torch.logcumsumexp.

        Raises:
            ShapeError: there is no such dimension.
            DeclarationError: a result meets what is in groups (fg.unflatten) along it.
        """
    @overload
    def logcumsumexp(self, *, dim: builtins.int = -1, reverse: builtins.bool = False) -> Tensor: ...
    def logical_and(self, b: Number, /) -> Tensor:
        """Elementwise logical_and; arguments broadcast and promote as torch's."""
    def logical_not(self) -> Tensor:
        """Elementwise logical_not; arguments broadcast and promote as torch's."""
    def logical_or(self, b: Number, /) -> Tensor:
        """Elementwise logical_or; arguments broadcast and promote as torch's."""
    def logical_xor(self, b: Number, /) -> Tensor:
        """Elementwise logical_xor; arguments broadcast and promote as torch's."""
    def logit(self, eps: builtins.float | None = None) -> Tensor:
        """``fg.log(x) - fg.log1p(-x)``."""
    def logsigmoid(self) -> Tensor:
        """log(sigmoid(x)) = min(x, 0) - log1p(exp(-|x|))."""
    @overload
    def logsumexp(self, axis: Axis = None, keepdims: builtins.bool = False) -> Tensor:
        """log(sum(exp(x))) over ``axis``, without overflow: max + log(sum(exp(x - max))); of integers in float32."""
    @overload
    def logsumexp(self, *, dim: Axis = None, keepdim: builtins.bool = False) -> Tensor: ...
    def long(self) -> Tensor:
        """``x.to(fg.int64)``."""
    def lt(self, b: Number, /) -> Tensor:
        """Elementwise lt; arguments broadcast and promote as torch's."""
    def masked_fill(self, mask: Number, value: Number) -> Tensor:
        """``fg.ops.masked_fill``."""
    def masked_select(self, mask: Number) -> Tensor:
        """``x[mask]``, both of one shape: what may be done with it is said there."""
    def matmul(self, b: Number) -> Tensor:
        """``a @ b``: the matrix product of the last two dimensions, batched over the others, which broadcast.

        A tensor of one dimension is a row on the left and a column on the right. Source: torch.matmul.

        The framework's routine multiplies, with its settings: float32 in TF32 if torch.backends.cuda.matmul.allow_tf32.

        Raises:
            DtypeError: not floats, or of two dtypes.
            ShapeError: the inner dimensions differ, or a side has no dimension.
            DeclarationError: a Python number on one side.
        """
    def matrix_power(self, n: builtins.int) -> Tensor:
        """``x @ x @ ...``, by squares; of none the identity."""
    def max(self, dim: Any = None, keepdim: builtins.bool = False, *, other: Number | None = None) -> Any:
        """``fg.amax(x)``; of a dimension ``fg.amax(x, axis), fg.argmax(x, axis)``; of two ``fg.maximum(x, y)``."""
    def maximum(self, b: Number, /) -> Tensor:
        """NaN wins. A tie gives each side half of the gradient."""
    @overload
    def mean(self, axis: Axis = None, keepdims: builtins.bool = False, dtype: DTypeLike | None = None) -> Tensor:
        """Arithmetic mean over ``axis``; of no elements NaN. ``dtype``: what ``x`` is cast to first."""
    @overload
    def mean(self, *, dim: Axis = None, keepdim: builtins.bool = False, dtype: DTypeLike | None = None) -> Tensor: ...
    def min(self, dim: Any = None, keepdim: builtins.bool = False, *, other: Number | None = None) -> Any:
        """``fg.amin(x)``; of a dimension ``fg.amin(x, axis), fg.argmin(x, axis)``; of two ``fg.minimum(x, y)``."""
    def minimum(self, b: Number, /) -> Tensor:
        """NaN wins. A tie gives each side half of the gradient."""
    def mm(self, other: Number) -> Tensor:
        """``x @ y``."""
    def moveaxis(self, source: Any, destination: Any) -> Tensor:
        """``x`` with a dimension at another place."""
    def movedim(self, source: Any, destination: Any) -> Tensor:
        """``x`` with a dimension at another place."""
    def mul(self, other: Number) -> Tensor:
        """``x * y``."""
    def multiply(self, other: Number) -> Tensor:
        """``x * y``."""
    def mv(self, other: Number) -> Tensor:
        """``x @ y``."""
    def mvlgamma(self, p: builtins.int) -> Tensor:
        """``p * (p - 1) / 4 * log(pi) + the sum of fg.lgamma(x - i / 2)``."""
    def nan_to_num(self, nan: builtins.float | None = None, posinf: builtins.float | None = None, neginf: builtins.float | None = None) -> Tensor:
        """``fg.where(fg.isnan(x), nan, ...)``."""
    def nanmean(self, dim: Any = None, keepdim: builtins.bool = False, *, dtype: Any = None) -> Tensor:
        """``fg.sum(fg.where(fg.isnan(x), 0, x), axis) / fg.sum(~fg.isnan(x), axis)``."""
    def nansum(self, dim: Any = None, keepdim: builtins.bool = False, *, dtype: Any = None) -> Tensor:
        """``fg.sum(fg.where(fg.isnan(x), 0, x), axis)``."""
    def narrow(self, dim: builtins.int, start: builtins.int, length: builtins.int) -> Tensor:
        """``x[..., start : start + length]``."""
    def ndimension(self) -> builtins.int:
        """``x.ndim``."""
    def ndtri(self) -> Tensor:
        """Where the normal distribution function is x."""
    def ne(self, b: Number, /) -> Tensor:
        """Elementwise ne; arguments broadcast and promote as torch's."""
    def neg(self) -> Tensor:
        """``-x``."""
    def negative(self) -> Tensor:
        """``-x``."""
    def nelement(self) -> builtins.int:
        """``fg.size(x)``."""
    def new_empty(self, *size: Any, dtype: Any = None, **placed: Any) -> Tensor:
        """``fg.zeros(shape)`` of the dtype of ``x``."""
    def new_full(self, size: Sequence[builtins.int], fill_value: Number, *, dtype: Any = None, **placed: Any) -> Tensor:
        """``fg.full(shape, value)`` of the dtype of ``x``."""
    def new_ones(self, *size: Any, dtype: Any = None, **placed: Any) -> Tensor:
        """``fg.ones(shape)`` of the dtype of ``x``."""
    def new_tensor(self, data: Any, *, dtype: Any = None, **placed: Any) -> Tensor:
        """Numbers as a tensor of the dtype of ``x``."""
    def new_zeros(self, *size: Any, dtype: Any = None, **placed: Any) -> Tensor:
        """``fg.zeros(shape)`` of the dtype of ``x``."""
    @overload
    def norm(
        self,
        ord: builtins.float | str | None = 2,
        axis: Axis = None,
        keepdims: builtins.bool = False,
        dtype: DTypeLike | None = None,
    ) -> Tensor:
        """(sum |x|^ord)^(1/ord) over ``axis``; the largest |x| for infinity, the smallest for -infinity, the number of
        nonzeros for 0. ``dtype``: what ``x`` is cast to first. Source: torch.linalg.vector_norm, also for gradients at
        zero.
        """
    @overload
    def norm(
        self,
        ord: builtins.float | str | None = 2,
        *,
        dim: Axis = None,
        keepdim: builtins.bool = False,
        dtype: DTypeLike | None = None,
    ) -> Tensor: ...
    def not_equal(self, other: Number) -> Tensor:
        """``fg.ne(x, y)``."""
    def numel(self) -> builtins.int:
        """``fg.size(x)``."""
    def outer(self, vec2: Number) -> Tensor:
        """``x[:, None] * y``."""
    def permute(self, *order: Any, dims: Sequence[builtins.int] | None = None) -> Tensor:
        """``x`` with its dimensions in another order."""
    def polygamma(self, input: Number) -> Tensor:
        """``fg.polygamma(n, x)``."""
    def positive(self) -> Tensor:
        """``x``."""
    def pow(self, exponent: Number) -> Tensor:
        """``x ** y``."""
    def prelu(self, weight: Number) -> Tensor:
        """``fg.ops.prelu``."""
    @overload
    def prod(self, axis: Axis = None, keepdims: builtins.bool = False, dtype: DTypeLike | None = None) -> Tensor:
        """Product over ``axis``; of integers and bools in int64. Of four zeros in it the fourth gradient is zero.

        ``dtype``: what ``x`` is cast to first.
        """
    @overload
    def prod(self, *, dim: Axis = None, keepdim: builtins.bool = False, dtype: DTypeLike | None = None) -> Tensor: ...
    def rad2deg(self) -> Tensor:
        """``x * (180 / pi)``."""
    def ravel(self) -> Tensor:
        """``fg.flatten(x)``."""
    def reciprocal(self) -> Tensor:
        """``1 / x``."""
    def relu(self) -> Tensor:
        """``fg.ops.relu``."""
    def remainder(self, b: Number, /) -> Tensor:
        """Sign of the divisor (Python's %)."""
    def renorm(self, p: builtins.float, dim: builtins.int, maxnorm: builtins.float) -> Tensor:
        """``x`` divided by what the norm of a part along ``dim`` is too large by."""
    def repeat(self, *repeats: Any) -> Tensor:
        """``fg.take(x, fg.arange(k * n) % n, axis)``."""
    def repeat_interleave(self, repeats: Any, dim: builtins.int | None = None, *, output_size: builtins.int | None = None) -> Tensor:
        """``fg.take(x, fg.arange(k * n) // k, axis)``, for an int."""
    def reshape(self, *given: Any, shape: Any = None) -> Tensor:
        """``fg.unflatten`` and ``fg.flatten``, where dimensions are only taken apart and put together again."""
    def reshape_as(self, other: Number) -> Tensor:
        """``x.reshape(y.shape)``."""
    def resolve_conj(self) -> Tensor:
        """``x``: there are no complex numbers."""
    def resolve_neg(self) -> Tensor:
        """``x``: there are no complex numbers."""
    def right_shift(self, b: Number, /) -> Tensor:
        """Elementwise right_shift; arguments broadcast and promote as torch's."""
    def roll(self, shifts: builtins.int | Sequence[builtins.int], dims: builtins.int | Sequence[builtins.int] | None = None) -> Tensor:
        """``fg.ops.roll``."""
    def rot90(self, k: builtins.int = 1, dims: Sequence[builtins.int] = ...) -> Tensor:
        """Turned in a plane: two dimensions exchanged, one of them in the other order."""
    def round(self, *, decimals: builtins.int = 0) -> Tensor:
        """``fg.round(x)``."""
    def rsqrt(self) -> Tensor:
        """Elementwise rsqrt; arguments broadcast and promote as torch's."""
    def scatter(
        self,
        dim: builtins.int | Sequence[builtins.int],
        index: Number,
        src: Number | None = None,
        *,
        value: Number | None = None,
        reduce: str | None = None,
    ) -> Tensor:
        """``fg.ops.scatter``."""
    def scatter_add(self, dim: builtins.int | Sequence[builtins.int], index: Number, src: Number) -> Tensor:
        """``fg.ops.scatter_add``."""
    def scatter_reduce(
        self,
        dim: builtins.int | Sequence[builtins.int],
        index: Number,
        src: Number,
        reduce: str,
        *,
        include_self: builtins.bool = True,
    ) -> Tensor:
        """``fg.ops.scatter_reduce``."""
    def select(self, dim: builtins.int, index: builtins.int) -> Tensor:
        """``x[..., index]``."""
    def select_scatter(self, src: Number, dim: builtins.int, index: builtins.int) -> Tensor:
        """``x`` with ``y`` in place of ``x[..., i]``."""
    def sgn(self) -> Tensor:
        """``fg.sign(x)``."""
    def short(self) -> Tensor:
        """``x.to(fg.int16)``."""
    def sigmoid(self) -> Tensor:
        """Elementwise sigmoid; arguments broadcast and promote as torch's."""
    def sign(self) -> Tensor:
        """-1, 0 or 1; 0 at NaN, as torch."""
    def signbit(self) -> Tensor:
        """``x < 0``, and of -0.0 too."""
    def sin(self) -> Tensor:
        """Elementwise sin; arguments broadcast and promote as torch's."""
    def sinc(self) -> Tensor:
        """``fg.sin(pi * x) / (pi * x)``, 1 at 0."""
    def sinh(self) -> Tensor:
        """Elementwise sinh; arguments broadcast and promote as torch's."""
    def size(self, dim: builtins.int | None = None) -> Any:
        """``x.shape``, or one of it."""
    def slice_scatter(
        self,
        src: Number,
        dim: builtins.int = 0,
        start: builtins.int | None = None,
        end: builtins.int | None = None,
        step: builtins.int = 1,
    ) -> Tensor:
        """``x`` with ``y`` in place of ``x[..., start:end:step]``."""
    @overload
    def softmax(self, axis: builtins.int = -1, dtype: DTypeLike | None = None) -> Tensor:
        """exp(x - max) / sum(exp(x - max)) along ``axis``. ``dtype``: what ``x`` is cast to first."""
    @overload
    def softmax(self, *, dim: builtins.int = -1, dtype: DTypeLike | None = None) -> Tensor: ...
    def softplus(self) -> Tensor:
        """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    def split(self, split_size_or_sections: Any, dim: builtins.int = 0) -> tuple[Tensor, ...]:
        """``fg.split(x, count, axis)``; parts of several sizes are made of such."""
    def sqrt(self) -> Tensor:
        """Elementwise sqrt; arguments broadcast and promote as torch's."""
    def square(self) -> Tensor:
        """``x * x``."""
    def squeeze(self, dim: Any = None) -> Tensor:
        """``x`` without dimensions of size one."""
    @overload
    def std(
        self,
        axis: Axis = None,
        correction: Number | None = 1,
        keepdims: builtins.bool = False,
        unbiased: builtins.bool | None = None,
    ) -> Tensor:
        """sqrt(var(x)); where that is 0 no gradient flows, as in torch."""
    @overload
    def std(
        self,
        *,
        dim: Axis = None,
        correction: Number | None = 1,
        keepdim: builtins.bool = False,
        unbiased: builtins.bool | None = None,
    ) -> Tensor: ...
    def sub(self, other: Number, *, alpha: Number = 1) -> Tensor:
        """``x - y``."""
    def subtract(self, other: Number, *, alpha: Number = 1) -> Tensor:
        """``x - y``."""
    @overload
    def sum(self, axis: Axis = None, keepdims: builtins.bool = False, dtype: DTypeLike | None = None) -> Tensor:
        """Sum over ``axis``; of integers and bools in int64. ``dtype``: what ``x`` is cast to first."""
    @overload
    def sum(self, *, dim: Axis = None, keepdim: builtins.bool = False, dtype: DTypeLike | None = None) -> Tensor: ...
    def swapaxes(self, dim0: builtins.int, dim1: builtins.int) -> Tensor:
        """``fg.transpose(x, axis, axis)``."""
    def swapdims(self, dim0: builtins.int, dim1: builtins.int) -> Tensor:
        """``fg.transpose(x, axis, axis)``."""
    def t(self) -> Tensor:
        """``x.mT`` of a matrix."""
    def take(self, index: Number) -> Tensor:
        """``fg.take(fg.flatten(x), i)``."""
    def take_along_dim(self, indices: Number, dim: builtins.int | Sequence[builtins.int] | None = None) -> Tensor:
        """``fg.ops.take_along_dim``."""
    def tan(self) -> Tensor:
        """Elementwise tan; arguments broadcast and promote as torch's."""
    def tanh(self) -> Tensor:
        """Elementwise tanh; arguments broadcast and promote as torch's."""
    def tensor_split(self, indices_or_sections: builtins.int | Sequence[builtins.int], dim: builtins.int = 0) -> Tensor:
        """``fg.split(x, count, axis)``, or parts between places; the first ones may be larger."""
    def tile(self, *dims: Any) -> Tensor:
        """As ``x.repeat``; dimensions that are not named stay."""
    def trace(self) -> Tensor:
        """``fg.sum(fg.where(row == column, x, 0))``."""
    def transpose(self, dim0: builtins.int, dim1: builtins.int) -> Tensor:
        """``fg.transpose(x, axis, axis)``."""
    def tril(self, diagonal: builtins.int = 0) -> Tensor:
        """``fg.where(column - row <= diagonal, x, 0)``."""
    def triu(self, diagonal: builtins.int = 0) -> Tensor:
        """``fg.where(column - row >= diagonal, x, 0)``."""
    def true_divide(self, other: Number, *, rounding_mode: str | None = None) -> Tensor:
        """``x / y``."""
    def trunc(self) -> Tensor:
        """Elementwise trunc; arguments broadcast and promote as torch's."""
    def type(self, dtype: Any) -> Tensor:
        """``x.to(dtype)``."""
    def type_as(self, other: Number) -> Tensor:
        """``x.to(y.dtype)``."""
    def unbind(self, dim: builtins.int = 0) -> tuple[Tensor, ...]:
        """``fg.split(x, count, axis)``, its parts without that dimension."""
    def unflatten(self, dim: builtins.int, sizes: Sequence[builtins.int]) -> Tensor:
        """``fg.unflatten(x, axis, sizes)``."""
    def unfold(self, dimension: builtins.int, size: builtins.int, step: builtins.int) -> Tensor:
        """``fg.take(x, step * fg.arange(windows)[:, None] + fg.arange(size), axis)``."""
    def unsqueeze(self, dim: builtins.int) -> Tensor:
        """``fg.expand_dims(x, axis)``."""
    @overload
    def var(
        self,
        axis: Axis = None,
        correction: Number | None = 1,
        keepdims: builtins.bool = False,
        unbiased: builtins.bool | None = None,
    ) -> Tensor:
        """sum((x - mean(x))^2) / max(n - correction, 0) over ``axis``, n elements each; one pass, without cancellation.

        No ``correction`` is one of 1, as in torch; ``unbiased`` says 1 or 0, as a bool in the place of ``correction`` or
        of ``axis`` does.
        """
    @overload
    def var(
        self,
        *,
        dim: Axis = None,
        correction: Number | None = 1,
        keepdim: builtins.bool = False,
        unbiased: builtins.bool | None = None,
    ) -> Tensor: ...
    def vdot(self, other: Number) -> Tensor:
        """``x @ y``."""
    def view(self, *given: Any, shape: Any = None, dtype: Any = None) -> Tensor:
        """``x.reshape(shape)``."""
    def view_as(self, other: Number) -> Tensor:
        """``x.view(y.shape)``."""
    def vsplit(self, indices_or_sections: builtins.int | Sequence[builtins.int], dim: builtins.int = 0) -> Tensor:
        """``torch.tensor_split(x, parts, 0)``."""
    def where(self, condition: Number, other: Number) -> Tensor:
        """``fg.where(condition, x, y)``."""
    def xlogy(self, b: Number, /) -> Tensor:
        """a log(b), and 0 where a = 0 unless b is NaN."""

Number: TypeAlias = Tensor | float
Key: TypeAlias = int | slice | EllipsisType | Tensor | None
Axis: TypeAlias = int | Sequence[int] | None
DTypeLike: TypeAlias = DType | str | torch.dtype | np.dtype[Any] | type[object]

class Cumulative(NamedTuple):
    """What ``cummax`` and ``cummin`` return."""

    values: Tensor
    indices: Tensor

class HasShape(Protocol):
    """What every library's arrays have, and symbolic tensors do not."""

    @property
    def shape(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

class Unknown:
    """What no declaration returns, unless it does not say."""

# A call's tensors are all of one kind, and so are its results: NumPy's, those of a declaration, or torch's (the class
# itself: a parameter's result is no parameter). Other libraries' arrays are what they are.
Array = TypeVar("Array", NDArray[Any], Tensor, torch.Tensor)
Given = TypeVar("Given", NDArray[Any], torch.Tensor)
Foreign = TypeVar("Foreign", bound=HasShape)
# What else a call may be given: numbers, and constants of any kind.
Option: TypeAlias = (
    float | str | None | Sequence[object] | DType | torch.dtype | np.dtype[Any] | Callable[..., object]
)
