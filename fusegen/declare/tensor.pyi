"""What a declaration's tensors can do. Made by tools/stubs.py of what fusegen is at run time: run it again when that changes."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

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
    weak: bool
    """Whether it is a number, which has no dtype of its own."""

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the tensors of this call, for checks. A declaration that reads them is traced for each shape."""
    @property
    def mT(self) -> Tensor:
        """Its last two dimensions exchanged."""
    @property
    def T(self) -> Tensor:
        """A matrix transposed."""
    def to(self, dtype: DTypeLike) -> Tensor:
        """In another dtype (fusegen's, torch's or NumPy's, or a name); to a half type it rounds."""
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
    def __and__(self, other: Tensor | int, /) -> Tensor: ...
    def __rand__(self, other: Tensor | int, /) -> Tensor: ...
    def __or__(self, other: Tensor | int, /) -> Tensor: ...
    def __ror__(self, other: Tensor | int, /) -> Tensor: ...
    def __xor__(self, other: Tensor | int, /) -> Tensor: ...
    def __rxor__(self, other: Tensor | int, /) -> Tensor: ...
    def __lshift__(self, other: Tensor | int, /) -> Tensor: ...
    def __rlshift__(self, other: Tensor | int, /) -> Tensor: ...
    def __rshift__(self, other: Tensor | int, /) -> Tensor: ...
    def __rrshift__(self, other: Tensor | int, /) -> Tensor: ...
    def __matmul__(self, other: Tensor, /) -> Tensor: ...
    def __rmatmul__(self, other: Tensor, /) -> Tensor: ...
    def __lt__(self, other: Number, /) -> Tensor: ...
    def __le__(self, other: Number, /) -> Tensor: ...
    def __gt__(self, other: Number, /) -> Tensor: ...
    def __ge__(self, other: Number, /) -> Tensor: ...
    def __eq__(self, other: Number, /) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: Number, /) -> Tensor: ...  # type: ignore[override]
    def __hash__(self) -> int: ...
    def __neg__(self) -> Tensor: ...
    def __pos__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def abs(self) -> Tensor:
        """Derivative 0 at 0."""
    def acos(self) -> Tensor:
        """Elementwise acos; arguments broadcast and promote as torch's."""
    def acosh(self) -> Tensor:
        """Elementwise acosh; arguments broadcast and promote as torch's."""
    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether no element is zero; of nothing: True. A bool, of uint8 a uint8, as torch's."""
    def amax(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Maximum over ``axis``; NaN wins. Its gradient is shared evenly by elements that tie."""
    def amin(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Minimum over ``axis``; NaN wins. Its gradient is shared evenly by elements that tie."""
    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether some element is not zero; of nothing: False. A bool, of uint8 a uint8, as torch's."""
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Position of the maximum along ``axis`` (None: in the flattened tensor), the first where several tie; NaN wins."""
    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Position of the minimum along ``axis`` (None: in the flattened tensor), the first where several tie; NaN wins."""
    def asin(self) -> Tensor:
        """Elementwise asin; arguments broadcast and promote as torch's."""
    def asinh(self) -> Tensor:
        """Elementwise asinh; arguments broadcast and promote as torch's."""
    def atan(self) -> Tensor:
        """Elementwise atan; arguments broadcast and promote as torch's."""
    def atan2(self, b: Number, /) -> Tensor:
        """Angle of (b, a); derivative 0 at the origin."""
    def atanh(self) -> Tensor:
        """Elementwise atanh; arguments broadcast and promote as torch's."""
    def bitwise_and(self, b: Number, /) -> Tensor:
        """Elementwise bitwise_and; arguments broadcast and promote as torch's."""
    def bitwise_not(self) -> Tensor:
        """Elementwise bitwise_not; arguments broadcast and promote as torch's."""
    def bitwise_or(self, b: Number, /) -> Tensor:
        """Elementwise bitwise_or; arguments broadcast and promote as torch's."""
    def bitwise_xor(self, b: Number, /) -> Tensor:
        """Elementwise bitwise_xor; arguments broadcast and promote as torch's."""
    def cbrt(self) -> Tensor:
        """Real cube root."""
    def ceil(self) -> Tensor:
        """Elementwise ceil; arguments broadcast and promote as torch's."""
    def clamp(self, low: Number, high: Number, /) -> Tensor:
        """min(max(x, lo), hi); the gradient passes at the bounds."""
    def copysign(self, b: Number, /) -> Tensor:
        """Elementwise copysign; arguments broadcast and promote as torch's."""
    def cos(self) -> Tensor:
        """Elementwise cos; arguments broadcast and promote as torch's."""
    def cosh(self) -> Tensor:
        """Elementwise cosh; arguments broadcast and promote as torch's."""
    def digamma(self) -> Tensor:
        """d/dx lgamma(x)."""
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
    def expm1(self) -> Tensor:
        """exp(x) - 1 without cancellation near 0."""
    def flatten(self, first: int = 0, last: int = -1) -> Tensor:
        """``x`` with the dimensions from ``first`` to ``last`` as one. Source: torch.flatten.

        All but the last must be numbers of groups (``unflatten``), or of size one: sizes that are the same in every call.

        Raises:
            ShapeError: there are no such dimensions.
            DeclarationError: they are of any size.
        """
    def floor(self) -> Tensor:
        """Elementwise floor; arguments broadcast and promote as torch's."""
    def floor_divide(self, b: Number, /) -> Tensor:
        """Elementwise floor_divide; arguments broadcast and promote as torch's."""
    def fmod(self, b: Number, /) -> Tensor:
        """Elementwise fmod; arguments broadcast and promote as torch's."""
    def ge(self, b: Number, /) -> Tensor:
        """Elementwise ge; arguments broadcast and promote as torch's."""
    def gt(self, b: Number, /) -> Tensor:
        """Elementwise gt; arguments broadcast and promote as torch's."""
    def hypot(self, b: Number, /) -> Tensor:
        """sqrt(a^2 + b^2) without overflow."""
    def isfinite(self) -> Tensor:
        """Elementwise isfinite; arguments broadcast and promote as torch's."""
    def isinf(self) -> Tensor:
        """Elementwise isinf; arguments broadcast and promote as torch's."""
    def isnan(self) -> Tensor:
        """Elementwise isnan; arguments broadcast and promote as torch's."""
    def le(self, b: Number, /) -> Tensor:
        """Elementwise le; arguments broadcast and promote as torch's."""
    def left_shift(self, b: Number, /) -> Tensor:
        """Elementwise left_shift; arguments broadcast and promote as torch's."""
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
    def log_softmax(self, axis: int = -1) -> Tensor:
        """x - max - log(sum(exp(x - max))) along ``axis``."""
    def logical_and(self, b: Number, /) -> Tensor:
        """Elementwise logical_and; arguments broadcast and promote as torch's."""
    def logical_not(self) -> Tensor:
        """Elementwise logical_not; arguments broadcast and promote as torch's."""
    def logical_or(self, b: Number, /) -> Tensor:
        """Elementwise logical_or; arguments broadcast and promote as torch's."""
    def logical_xor(self, b: Number, /) -> Tensor:
        """Elementwise logical_xor; arguments broadcast and promote as torch's."""
    def logsigmoid(self) -> Tensor:
        """log(sigmoid(x)) = min(x, 0) - log1p(exp(-|x|))."""
    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """log(sum(exp(x))) over ``axis``, without overflow: max + log(sum(exp(x - max))); of integers in float32."""
    def lt(self, b: Number, /) -> Tensor:
        """Elementwise lt; arguments broadcast and promote as torch's."""
    def matmul(self, b: Number) -> Tensor:
        """``a @ b``: the matrix product of the last two dimensions, batched over the others, which broadcast.

        A tensor of one dimension is a row on the left and a column on the right. Source: torch.matmul.

        The framework's routine multiplies, with its settings: float32 in TF32 if torch.backends.cuda.matmul.allow_tf32.

        Raises:
            DtypeError: not floats, or of two dtypes.
            ShapeError: the inner dimensions differ, or a side has no dimension.
            DeclarationError: a Python number on one side.
        """
    def maximum(self, b: Number, /) -> Tensor:
        """NaN wins. A tie gives each side half of the gradient."""
    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Arithmetic mean over ``axis``; of no elements NaN."""
    def minimum(self, b: Number, /) -> Tensor:
        """NaN wins. A tie gives each side half of the gradient."""
    def ne(self, b: Number, /) -> Tensor:
        """Elementwise ne; arguments broadcast and promote as torch's."""
    def norm(self, ord: float = 2, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """(sum |x|^ord)^(1/ord) over ``axis``; the largest |x| for infinity, the smallest for -infinity, the number of
        nonzeros for 0. Source: torch.linalg.vector_norm, also for gradients at zero.
        """
    def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Product over ``axis``; of integers and bools in int64. Of four zeros in it the fourth gradient is zero."""
    def remainder(self, b: Number, /) -> Tensor:
        """Sign of the divisor (Python's %)."""
    def right_shift(self, b: Number, /) -> Tensor:
        """Elementwise right_shift; arguments broadcast and promote as torch's."""
    def round(self) -> Tensor:
        """Half to even."""
    def rsqrt(self) -> Tensor:
        """Elementwise rsqrt; arguments broadcast and promote as torch's."""
    def sigmoid(self) -> Tensor:
        """Elementwise sigmoid; arguments broadcast and promote as torch's."""
    def sign(self) -> Tensor:
        """-1, 0 or 1; 0 at NaN, as torch."""
    def sin(self) -> Tensor:
        """Elementwise sin; arguments broadcast and promote as torch's."""
    def sinh(self) -> Tensor:
        """Elementwise sinh; arguments broadcast and promote as torch's."""
    def softmax(self, axis: int = -1) -> Tensor:
        """exp(x - max) / sum(exp(x - max)) along ``axis``."""
    def softplus(self) -> Tensor:
        """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    def sqrt(self) -> Tensor:
        """Elementwise sqrt; arguments broadcast and promote as torch's."""
    def std(self, axis: Axis = None, correction: Number | None = 1, keepdims: bool = False) -> Tensor:
        """sqrt(var(x)); where that is 0 no gradient flows, as in torch."""
    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Sum over ``axis``; of integers and bools in int64."""
    def tan(self) -> Tensor:
        """Elementwise tan; arguments broadcast and promote as torch's."""
    def tanh(self) -> Tensor:
        """Elementwise tanh; arguments broadcast and promote as torch's."""
    def transpose(self, axis0: int, axis1: int) -> Tensor:
        """``x`` with two dimensions exchanged; no data moves. Source: torch.transpose.

        Raises:
            ShapeError: there is no such dimension.
        """
    def trunc(self) -> Tensor:
        """Elementwise trunc; arguments broadcast and promote as torch's."""
    def unflatten(self, axis: int, sizes: Sequence[int]) -> Tensor:
        """``x`` with dimension ``axis`` in groups: ``sizes`` are their number, perhaps that of groups in each, and behind
        them -1 for the elements of a group. Source: torch.unflatten.

        Of a value of any kind; ``flatten`` is the inverse. What else meets the dimension is seen in the same groups.

        Raises:
            ShapeError: there is no such dimension, or it does not divide so.
            DeclarationError: no such sizes, or the dimension is in other groups already, which are none of these.
        """
    def var(self, axis: Axis = None, correction: Number | None = 1, keepdims: bool = False) -> Tensor:
        """sum((x - mean(x))^2) / max(n - correction, 0) over ``axis``, n elements each; one pass, without cancellation.

        No ``correction`` is one of 1, as in torch.
        """
    def xlogy(self, b: Number, /) -> Tensor:
        """a log(b), and 0 where a = 0 unless b is NaN."""

Number: TypeAlias = Tensor | float
Axis: TypeAlias = int | Sequence[int] | None
DTypeLike: TypeAlias = DType | str | torch.dtype | np.dtype[Any] | type[object]

class HasShape(Protocol):
    """What every library's arrays have."""

    @property
    def shape(self) -> Any: ...
    @property
    def ndim(self) -> int: ...

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
