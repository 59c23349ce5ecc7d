"""The language of declarations. Made by tools/stubs.py of what fusegen is at run time: run it again when that changes."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from fusegen.declare.tensor import Axis, Cumulative, DTypeLike, Number, Tensor

def abs(x: Number, /) -> Tensor:
    """Derivative 0 at 0."""
def acos(x: Number, /) -> Tensor:
    """Elementwise acos; arguments broadcast and promote as torch's."""
def acosh(x: Number, /) -> Tensor:
    """Elementwise acosh; arguments broadcast and promote as torch's."""
@overload
def all(x: Number, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether no element is zero; of nothing: True. A bool, of uint8 a uint8, as torch's."""
@overload
def all(x: Number, *, dim: Axis = None, keepdim: bool = False) -> Tensor: ...
def alpha_dropout(x: Number, p: Number = 0.5, training: bool = False) -> Tensor:
    """``a * where(kept, x, m) + b``: dropout that keeps mean 0 and variance 1 behind a SELU (Klambauer et al., 2017).

    ``m`` is what a SELU tends to at minus infinity, ``a = 1 / sqrt((1 - p) (1 + p m^2))`` and ``b = -a p m``.

    Raises:
        DeclarationError, DtypeError: as ``dropout``'s.
    """
@overload
def amax(x: Number, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Maximum over ``axis``; NaN wins. Its gradient is shared evenly by elements that tie."""
@overload
def amax(x: Number, *, dim: Axis = None, keepdim: bool = False) -> Tensor: ...
@overload
def amin(x: Number, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Minimum over ``axis``; NaN wins. Its gradient is shared evenly by elements that tie."""
@overload
def amin(x: Number, *, dim: Axis = None, keepdim: bool = False) -> Tensor: ...
@overload
def any(x: Number, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether some element is not zero; of nothing: False. A bool, of uint8 a uint8, as torch's."""
@overload
def any(x: Number, *, dim: Axis = None, keepdim: bool = False) -> Tensor: ...
def arange(start: int, end: int | None = None, step: int = 1, *, dtype: DTypeLike | None = None) -> Tensor:
    """Positions ``start, start + step, ...`` below ``end``; with one argument 0, 1, ..., ``start - 1``.

    A vector of int64, or of ``dtype``, that no tensor stores. Numbers are ints, or sizes of a tensor (``x.shape[1]``).
    Source: torch.arange.

    Raises:
        DeclarationError: a number is no int when the op is traced, the step is 0, or the end lies before the start.
    """
@overload
def argmax(x: Number, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the maximum along ``axis`` (None: in the flattened tensor), the first where several tie; NaN wins."""
@overload
def argmax(x: Number, *, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def argmin(x: Number, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Position of the minimum along ``axis`` (None: in the flattened tensor), the first where several tie; NaN wins."""
@overload
def argmin(x: Number, *, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
def asin(x: Number, /) -> Tensor:
    """Elementwise asin; arguments broadcast and promote as torch's."""
def asinh(x: Number, /) -> Tensor:
    """Elementwise asinh; arguments broadcast and promote as torch's."""
def atan(x: Number, /) -> Tensor:
    """Elementwise atan; arguments broadcast and promote as torch's."""
def atan2(a: Number, b: Number, /) -> Tensor:
    """Angle of (b, a); derivative 0 at the origin."""
def atanh(x: Number, /) -> Tensor:
    """Elementwise atanh; arguments broadcast and promote as torch's."""
def bernoulli(p: Number) -> Tensor:
    """1 with the probability that each element of ``p`` says, else 0, in its dtype. No gradient flows through it.

    Raises:
        DeclarationError: the op does not say that it draws random numbers.
        DtypeError: not a float dtype.
    """
def bincount(ids: Number, num: int, weights: Number | None = None) -> Tensor:
    """``out[n] = how many i there are with ids[i] == n``, or the sum of their weights; for ``n`` below ``num``.

    A vector of int64, or of the dtype of ``weights`` (torch has float64). What is outside of ``[0, num)`` is left out:
    torch's result is as long as the largest number says, which no declaration knows. Source: jax.numpy.bincount.

    Raises:
        DtypeError: the numbers are no integers.
        ShapeError: they are no vector, or the weights are not as many.
        DeclarationError: ``num`` is no int when the op is traced.
    """
def bitwise_and(a: Number, b: Number, /) -> Tensor:
    """Elementwise bitwise_and; arguments broadcast and promote as torch's."""
def bitwise_not(x: Number, /) -> Tensor:
    """Elementwise bitwise_not; arguments broadcast and promote as torch's."""
def bitwise_or(a: Number, b: Number, /) -> Tensor:
    """Elementwise bitwise_or; arguments broadcast and promote as torch's."""
def bitwise_xor(a: Number, b: Number, /) -> Tensor:
    """Elementwise bitwise_xor; arguments broadcast and promote as torch's."""
def cast(x: Number, dtype: DTypeLike | None) -> Tensor:
    """``x`` in another dtype (a fusegen or torch dtype, or its name); to a half type it rounds."""
def cbrt(x: Number, /) -> Tensor:
    """Real cube root."""
def ceil(x: Number, /) -> Tensor:
    """Elementwise ceil; arguments broadcast and promote as torch's."""
def clamp(x: Number, low: Number, high: Number, /) -> Tensor:
    """min(max(x, lo), hi); the gradient passes at the bounds."""
@overload
def concat(parts: Sequence[Number], axis: int = -1) -> Tensor:
    """``parts`` side by side along ``axis``. As a result, each kernel writes its block in place; what is computed with
    it is computed with each part.

    A number is a whole part; along other dimensions parts broadcast. Parts of several sizes are made of blocks of the
    largest size that divides all of them, 64 at most; then the declaration is traced for each shape.

    Raises:
        DeclarationError: the parts are no list; they cannot be divided along with what they meet; too many blocks.
        ShapeError: there is no dimension, or a number stands beside parts of several sizes.
    """
@overload
def concat(parts: Sequence[Number], *, dim: int = -1) -> Tensor: ...
def copysign(a: Number, b: Number, /) -> Tensor:
    """Elementwise copysign; arguments broadcast and promote as torch's."""
def cos(x: Number, /) -> Tensor:
    """Elementwise cos; arguments broadcast and promote as torch's."""
def cosh(x: Number, /) -> Tensor:
    """Elementwise cosh; arguments broadcast and promote as torch's."""
@overload
def cummax(x: Number, axis: int = -1, *, reverse: bool = False) -> Cumulative:
    """The largest of x[0], ..., x[i] along ``axis``, and where it stands: ``values`` and ``indices`` (int64).

    From the last element if ``reverse``. Of several that are equal, the place is that of the last that the scan meets,
    which has the gradient; NaN is larger than all. Source: torch.cummax.

    Raises:
        ShapeError: there is no such dimension.
        DeclarationError: a result meets what is in groups (fg.unflatten) along it.
    """
@overload
def cummax(x: Number, *, dim: int = -1, reverse: bool = False) -> Cumulative: ...
@overload
def cummin(x: Number, axis: int = -1, *, reverse: bool = False) -> Cumulative:
    """The smallest of x[0], ..., x[i] along ``axis``, and where it stands. See ``cummax``. Source: torch.cummin."""
@overload
def cummin(x: Number, *, dim: int = -1, reverse: bool = False) -> Cumulative: ...
@overload
def cumprod(
    x: Number,
    axis: int = -1,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """y[i] = x[0] * ... * x[i] along ``axis``; x[i] * ... * x[last] if ``reverse``.

    If ``exclusive`` x[i] is not in y[i], and the first is one. Its gradient divides by nothing, so elements may be
    zero. Dtypes and errors are those of ``cumsum``. Source: torch.cumprod.
    """
@overload
def cumprod(
    x: Number,
    *,
    dim: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def cumsum(
    x: Number,
    axis: int = -1,
    *,
    reverse: bool = False,
    exclusive: bool = False,
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
    x: Number,
    *,
    dim: int = -1,
    reverse: bool = False,
    exclusive: bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
def digamma(x: Number, /) -> Tensor:
    """d/dx lgamma(x)."""
def dropout(x: Number, p: Number = 0.5, training: bool = True) -> Tensor:
    """``x / (1 - p)`` where a random number is at least ``p``, else 0 (Srivastava et al., 2014).

    The backward draws the same numbers again. What is dropped has no influence, NaN and infinity neither, and a
    gradient of exactly 0.

    Args:
        p: how probable it is that an element is dropped, from 0 to 1.
        training: False: ``x`` as it is.

    Raises:
        DeclarationError: the op does not say that it draws random numbers, or ``p`` is no probability.
        DtypeError: ``x`` is not of floats.
    """
def eq(a: Number, b: Number, /) -> Tensor:
    """Elementwise eq; arguments broadcast and promote as torch's."""
def erf(x: Number, /) -> Tensor:
    """Elementwise erf; arguments broadcast and promote as torch's."""
def erfc(x: Number, /) -> Tensor:
    """Elementwise erfc; arguments broadcast and promote as torch's."""
def erfinv(x: Number, /) -> Tensor:
    """Elementwise erfinv; arguments broadcast and promote as torch's."""
def exp(x: Number, /) -> Tensor:
    """Elementwise exp; arguments broadcast and promote as torch's."""
def exp2(x: Number, /) -> Tensor:
    """2^x."""
def exp_clamped(x: Number, /) -> Tensor:
    """exp(min(x, 40)), 350 in float64: lowering's exponential. Its square is finite, its -4th power zero."""
@overload
def expand_dims(x: Number, axis: int | Sequence[int]) -> Tensor:
    """``x`` with a dimension of size one at each position ``axis`` of the result, as NumPy's; no data moves.

    Raises:
        ShapeError: there is no such position in the result, or one is named twice.
    """
@overload
def expand_dims(x: Number, *, dim: int | Sequence[int]) -> Tensor: ...
def expm1(x: Number, /) -> Tensor:
    """exp(x) - 1 without cancellation near 0."""
def feature_dropout(x: Number, p: Number = 0.5, training: bool = True) -> Tensor:
    """``dropout`` that draws one number for each of the first two dimensions, the samples' channels.

    Raises:
        DeclarationError, DtypeError: as ``dropout``'s.
    """
def flatten(x: Number, first: int = 0, last: int = -1) -> Tensor:
    """``x`` with the dimensions from ``first`` to ``last`` as one; a number as a vector of one. Source: torch.flatten.

    Dimensions that the declaration has made itself, or of which it takes blocks, are read at their places as one; all
    others are groups of one (``unflatten``). Unless they were before, the declaration is traced for each shape.

    Raises:
        ShapeError: there are no such dimensions.
    """
def floor(x: Number, /) -> Tensor:
    """Elementwise floor; arguments broadcast and promote as torch's."""
def floor_divide(a: Number, b: Number, /) -> Tensor:
    """Elementwise floor_divide; arguments broadcast and promote as torch's."""
def fmod(a: Number, b: Number, /) -> Tensor:
    """Elementwise fmod; arguments broadcast and promote as torch's."""
def full(shape: int | Sequence[int], value: Number, *, dtype: DTypeLike | None = None) -> Tensor:
    """``value``, a number, everywhere in a tensor of this shape; of ``dtype``, or of the number's own.

    Sizes are ints, or those of a tensor (``x.shape[1]``). Source: torch.full.

    Raises:
        DeclarationError: a size is no int from 0 on when the op is traced.
    """
def ge(a: Number, b: Number, /) -> Tensor:
    """Elementwise ge; arguments broadcast and promote as torch's."""
def gt(a: Number, b: Number, /) -> Tensor:
    """Elementwise gt; arguments broadcast and promote as torch's."""
def hypot(a: Number, b: Number, /) -> Tensor:
    """sqrt(a^2 + b^2) without overflow."""
@overload
def index(x: Tensor, axis: int) -> Tensor:
    """The position along one axis of ``x``, from 0, as an int64 tensor of that one dimension that broadcasts with x."""
@overload
def index(x: Tensor, *, dim: int) -> Tensor: ...
@overload
def index_add(x: Number, axis: int, index: Number, source: Number, alpha: Number = 1) -> Tensor:
    """``x`` with ``alpha * source[.., i, ..]`` added at ``index[i]`` along ``axis``.

    Numbers for one place are added up in one order: the same bits each time. Negative positions count from the end;
    one that is out of range is an error (``fg.PlaceError``). Source: torch.index_add.

    Raises:
        DtypeError: the index is not of integers.
        ShapeError: the index has more than one dimension, or not as many elements as the source along the axis.
    """
@overload
def index_add(x: Number, *, dim: int, index: Number, source: Number, alpha: Number = 1) -> Tensor: ...
@overload
def index_copy(x: Number, axis: int, index: Number, source: Number) -> Tensor:
    """``x`` with ``source[.., i, ..]`` in place of what is at ``index[i]`` along ``axis``.

    Of several for one place the last one counts, and has the gradient. Negative positions count from the end; one that
    is out of range is an error (``fg.PlaceError``). Source: torch.index_copy.

    Raises:
        DtypeError: the index is not of integers, or the source is of floats and ``x`` is not.
        ShapeError: the index has more than one dimension, or not as many elements as the source along the axis.
    """
@overload
def index_copy(x: Number, *, dim: int, index: Number, source: Number) -> Tensor: ...
def isfinite(x: Number, /) -> Tensor:
    """Elementwise isfinite; arguments broadcast and promote as torch's."""
def isinf(x: Number, /) -> Tensor:
    """Elementwise isinf; arguments broadcast and promote as torch's."""
def isnan(x: Number, /) -> Tensor:
    """Elementwise isnan; arguments broadcast and promote as torch's."""
def le(a: Number, b: Number, /) -> Tensor:
    """Elementwise le; arguments broadcast and promote as torch's."""
def left_shift(a: Number, b: Number, /) -> Tensor:
    """Elementwise left_shift; arguments broadcast and promote as torch's."""
def lgamma(x: Number, /) -> Tensor:
    """log |gamma(x)|."""
def linear(x: Number, weight: Number, bias: Number | None = None) -> Tensor:
    """``x @ weight.mT + bias`` with a weight [out, in]. Source: torch.nn.functional.linear. TF32: see ``matmul``.

    Raises:
        ShapeError: the weight's last dimension is not the input's, or its first one not the bias's; see ``matmul`` for
            the rest.
    """
@overload
def linear_recurrence(a: Number, b: Number, axis: int = -1, *, reverse: bool = False) -> Tensor:
    """h[i] = a[i] * h[i - 1] + b[i] along ``axis``, from h = 0 before the first element; from the last if ``reverse``.

    ``a`` and ``b`` broadcast and promote; integers count as float32. A first state h0 goes into the first term: b[0] +
    a[0] * h0. State space models, minGRU and RG-LRU are such recurrences. Halves are carried in float32. Blocks of the
    axis are combined with products of their factors; where such a product overflows beside a state of zero, it counts
    for nothing, as in a loop. Source: Blelloch, Prefix Sums and Their Applications, 1990.

    Raises:
        ShapeError: there is no such dimension, or sizes differ.
        DeclarationError: a result meets what is in groups (fg.unflatten) along it.
    """
@overload
def linear_recurrence(a: Number, b: Number, *, dim: int = -1, reverse: bool = False) -> Tensor: ...
def log(x: Number, /) -> Tensor:
    """Elementwise log; arguments broadcast and promote as torch's."""
def log10(x: Number, /) -> Tensor:
    """Elementwise log10; arguments broadcast and promote as torch's."""
def log1p(x: Number, /) -> Tensor:
    """log(1 + x) without cancellation."""
def log2(x: Number, /) -> Tensor:
    """Elementwise log2; arguments broadcast and promote as torch's."""
@overload
def log_softmax(x: Number, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """x - max - log(sum(exp(x - max))) along ``axis``. ``dtype``: what ``x`` is cast to first."""
@overload
def log_softmax(x: Number, *, dim: int = -1, dtype: DTypeLike | None = None) -> Tensor: ...
@overload
def logcumsumexp(x: Number, axis: int = -1, *, reverse: bool = False) -> Tensor:
    """y[i] = log(exp(x[0]) + ... + exp(x[i])) along ``axis``; from the last element if ``reverse``.

    Sums are kept relative to the largest element so far, so that nothing overflows. No gradient flows where y is
    infinite. Source: torch.logcumsumexp.

    Raises:
        ShapeError: there is no such dimension.
        DeclarationError: a result meets what is in groups (fg.unflatten) along it.
    """
@overload
def logcumsumexp(x: Number, *, dim: int = -1, reverse: bool = False) -> Tensor: ...
def logical_and(a: Number, b: Number, /) -> Tensor:
    """Elementwise logical_and; arguments broadcast and promote as torch's."""
def logical_not(x: Number, /) -> Tensor:
    """Elementwise logical_not; arguments broadcast and promote as torch's."""
def logical_or(a: Number, b: Number, /) -> Tensor:
    """Elementwise logical_or; arguments broadcast and promote as torch's."""
def logical_xor(a: Number, b: Number, /) -> Tensor:
    """Elementwise logical_xor; arguments broadcast and promote as torch's."""
def logsigmoid(x: Number, /) -> Tensor:
    """log(sigmoid(x)) = min(x, 0) - log1p(exp(-|x|))."""
@overload
def logsumexp(x: Number, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over ``axis``, without overflow: max + log(sum(exp(x - max))); of integers in float32."""
@overload
def logsumexp(x: Number, *, dim: Axis = None, keepdim: bool = False) -> Tensor: ...
def lt(a: Number, b: Number, /) -> Tensor:
    """Elementwise lt; arguments broadcast and promote as torch's."""
def matmul(a: Number, b: Number) -> Tensor:
    """``a @ b``: the matrix product of the last two dimensions, batched over the others, which broadcast.

    A tensor of one dimension is a row on the left and a column on the right. Source: torch.matmul.

    The framework's routine multiplies, with its settings: float32 in TF32 if torch.backends.cuda.matmul.allow_tf32.

    Raises:
        DtypeError: not floats, or of two dtypes.
        ShapeError: the inner dimensions differ, or a side has no dimension.
        DeclarationError: a Python number on one side.
    """
def maximum(a: Number, b: Number, /) -> Tensor:
    """NaN wins. A tie gives each side half of the gradient."""
@overload
def mean(x: Number, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None) -> Tensor:
    """Arithmetic mean over ``axis``; of no elements NaN. ``dtype``: what ``x`` is cast to first."""
@overload
def mean(x: Number, *, dim: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Tensor: ...
def minimum(a: Number, b: Number, /) -> Tensor:
    """NaN wins. A tie gives each side half of the gradient."""
def ndtri(x: Number, /) -> Tensor:
    """Where the normal distribution function is x."""
def ne(a: Number, b: Number, /) -> Tensor:
    """Elementwise ne; arguments broadcast and promote as torch's."""
@overload
def norm(
    x: Number,
    ord: float | str | None = 2,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """(sum |x|^ord)^(1/ord) over ``axis``; the largest |x| for infinity, the smallest for -infinity, the number of
    nonzeros for 0. ``dtype``: what ``x`` is cast to first. Source: torch.linalg.vector_norm, also for gradients at
    zero.
    """
@overload
def norm(
    x: Number,
    ord: float | str | None = 2,
    *,
    dim: Axis = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
def one_hot(x: Number, num_classes: int) -> Tensor:
    """1 where the last dimension's position is ``x``, else 0: ``(x[..., None] == arange(num_classes))`` in int64.

    For ``x`` of shape [...] it is of shape [..., num_classes]. No tensor of it is stored unless the op returns it. A
    class that is out of range is all zeros (torch raises on some devices). Source: torch.nn.functional.one_hot.

    Raises:
        DtypeError: ``x`` is not of integers.
        DeclarationError: ``num_classes`` is no int from 0 on when the op is traced.
    """
def ones(shape: int | Sequence[int], *, dtype: DTypeLike | None = ...) -> Tensor:
    """1 everywhere in a tensor of this shape; see ``full``. Source: torch.ones.

    Raises:
        DeclarationError: a size is no int from 0 on when the op is traced.
    """
def polygamma(n: int, x: Number) -> Tensor:
    """The n-th derivative of digamma at ``x``.

    Raises:
        DeclarationError: n is no int from 0 on.
    """
def pow(base: Number, exponent: Number) -> Tensor:
    """``base ** exponent``; small whole exponents become products, 0.5 and -0.5 roots."""
@overload
def prod(x: Number, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None) -> Tensor:
    """Product over ``axis``; of integers and bools in int64. Of four zeros in it the fourth gradient is zero.

    ``dtype``: what ``x`` is cast to first.
    """
@overload
def prod(x: Number, *, dim: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Tensor: ...
def rand_like(x: Number, *, dtype: DTypeLike | None = None) -> Tensor:
    """A random number for each element of ``x``, evenly distributed in [0, 1), of the dtype of ``x`` or the one given.

    Only in an op that says so: ``@fg.op(random=True)``. No gradient flows through it.

    Raises:
        DeclarationError: the op does not say that it draws random numbers.
        DtypeError: not a float dtype.
    """
def randn_like(x: Number, *, dtype: DTypeLike | None = None) -> Tensor:
    """A random number for each element of ``x``, of the normal distribution with mean 0 and deviation 1.

    ``sqrt(-2 log(u)) * cos(2 pi v)`` of two evenly distributed numbers (Box and Muller, 1958). In float32 and the half
    types none is beyond 6.8. Otherwise as ``rand_like``.

    Raises:
        DeclarationError: the op does not say that it draws random numbers.
        DtypeError: not a float dtype.
    """
def ratio(a: Number, b: Number, /) -> Tensor:
    """a / b where b is known to lie between 1 and 2^120, so that half-precision kernels may use a reciprocal."""
def reciprocal(x: Number) -> Tensor:
    """``1 / x``."""
def register_function(
    name: str,
    *,
    cuda: str,
    reference: Callable[..., Any],
    arity: int = 1,
    derivative: Callable[..., Any] | None = None,
    sympy: Callable[..., Any] | None = None,
    header: str = '',
    smooth: bool = True,
    doc: str = '',
) -> Callable[..., Tensor]:
    """Add a scalar function to the language and return it.

    Args:
        name: a new name.
        cuda: an expression in CUDA, with ``{0}``, ``{1}`` for arguments and ``{f}`` for ``f`` in float32 and nothing in
            float64, for example ``"j0{f}({0})"``. Parentheses around it, and around arguments, are added where it
            needs them. A brace that is meant is doubled.
        reference: ``reference(torch, *args)`` computes it on torch tensors; the oracle of `fusegen check` and `run`.
        derivative: ``derivative(*args, y)`` returns one expression per argument (None for zero), built with ``+ - * /``
            and fusegen's table functions through ``fg.table``.
        sympy: ``sympy(sp, *args)`` instead, for sympy to differentiate.
        smooth: False for a function that is constant between its jumps: its derivative is zero. Without it, and without
            a derivative, asking for one is an error.
        header: CUDA text of device functions that ``cuda`` calls, placed before the kernel.

    Raises:
        DeclarationError: the name is taken, or ``cuda`` asks for what there is not.
    """
def remainder(a: Number, b: Number, /) -> Tensor:
    """Sign of the divisor (Python's %)."""
def right_shift(a: Number, b: Number, /) -> Tensor:
    """Elementwise right_shift; arguments broadcast and promote as torch's."""
def round(x: Number, /) -> Tensor:
    """Half to even."""
def rsqrt(x: Number, /) -> Tensor:
    """Elementwise rsqrt; arguments broadcast and promote as torch's."""
@overload
def scatter(x: Number, axis: int, index: Number, source: Number) -> Tensor:
    """``x`` with ``source`` in place of what is at ``index`` along ``axis``, all of as many dimensions.

    Of several for one place the last one counts, and has the gradient. A number is put at each place. Negative
    positions count from the end; one that is out of range is an error (``fg.PlaceError``). Source: torch.scatter.

    Raises:
        DtypeError: the index is not of integers, or the source is of floats and ``x`` is not.
        ShapeError: another number of dimensions, or sizes that do not fit.
    """
@overload
def scatter(x: Number, *, dim: int, index: Number, source: Number) -> Tensor: ...
@overload
def scatter_add(x: Number, axis: int, index: Number, source: Number) -> Tensor:
    """``x`` with ``source`` added at ``index`` along ``axis``, all of as many dimensions.

    Numbers for one place are added up in one order: the same bits each time. Negative positions count from the end;
    one that is out of range is an error (``fg.PlaceError``). Source: torch.scatter_add.

    Raises:
        DtypeError: the index is not of integers.
        ShapeError: another number of dimensions, or sizes that do not fit.
    """
@overload
def scatter_add(x: Number, *, dim: int, index: Number, source: Number) -> Tensor: ...
@overload
def scatter_reduce(
    x: Number,
    axis: int,
    index: Number,
    source: Number,
    reduce: str = 'sum',
    *,
    include_self: bool = True,
) -> Tensor:
    """``x`` combined with ``source`` at ``index`` along ``axis``, all of as many dimensions.

    The gradient of an extremum is shared by elements that tie, that of a product is right for zeros too. Negative
    positions count from the end; one that is out of range is an error (``fg.PlaceError``).

    Source: torch.scatter_reduce.

    Args:
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: whether what ``x`` has there counts. Where nothing is put, it stays in any case.

    Raises:
        DeclarationError: another way to combine.
        DtypeError: the index is not of integers, or the source is of floats and ``x`` is not.
        ShapeError: another number of dimensions, or sizes that do not fit.
    """
@overload
def scatter_reduce(
    x: Number,
    *,
    dim: int,
    index: Number,
    source: Number,
    reduce: str = 'sum',
    include_self: bool = True,
) -> Tensor: ...
def segment_ids(offsets: Number, length: int) -> Tensor:
    """The row of each of ``length`` elements: row ``s`` is from ``offsets[s]`` up to, not with, ``offsets[s + 1]``.

    A vector of int64, for ``segment_sum`` and its like. Offsets never fall; rows may be empty. Elements in front of the
    first offset have -1, and those from the last on ``len(offsets) - 1``, the number of rows: they are in no segment.
    Offsets are counted at each place, and the counts added up, in time linear in both. Source: the offsets of
    torch.nested tensors.

    Raises:
        DtypeError: the offsets are no integers.
        ShapeError: they are no vector.
        DeclarationError: ``length`` is no int when the op is traced.
    """
@overload
def segment_max(data: Number, ids: Number, num_segments: int, axis: int = 0) -> Tensor:
    """The maximum of ``data[i]`` where ``ids[i] == s``, along ``axis``. NaN wins; elements that tie share the gradient.

    Where there are none it is -inf, or the lowest integer, as in JAX (torch_scatter has 0 there). See ``segment_sum``.
    Source: jax.ops.segment_max.

    Raises:
        DtypeError: the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
@overload
def segment_max(data: Number, ids: Number, num_segments: int, *, dim: int = 0) -> Tensor: ...
@overload
def segment_mean(data: Number, ids: Number, num_segments: int, axis: int = 0) -> Tensor:
    """The mean of ``data[i]`` where ``ids[i] == s``, along ``axis``; 0 where there are none. See ``segment_sum``.
    Source: torch_scatter.scatter_mean.

    Raises:
        DtypeError: ``data`` is not of floats, or the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
@overload
def segment_mean(data: Number, ids: Number, num_segments: int, *, dim: int = 0) -> Tensor: ...
@overload
def segment_min(data: Number, ids: Number, num_segments: int, axis: int = 0) -> Tensor:
    """The minimum of ``data[i]`` where ``ids[i] == s``, along ``axis``. NaN wins; elements that tie share the gradient.

    Where there are none it is inf, or the highest integer, as in JAX (torch_scatter has 0 there). See ``segment_sum``.
    Source: jax.ops.segment_min.

    Raises:
        DtypeError: the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
@overload
def segment_min(data: Number, ids: Number, num_segments: int, *, dim: int = 0) -> Tensor: ...
@overload
def segment_prod(data: Number, ids: Number, num_segments: int, axis: int = 0) -> Tensor:
    """The product of ``data[i]`` where ``ids[i] == s``, along ``axis``; 1 where there are none. See ``segment_sum``.
    Source: jax.ops.segment_prod.

    Raises:
        DtypeError: the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
@overload
def segment_prod(data: Number, ids: Number, num_segments: int, *, dim: int = 0) -> Tensor: ...
@overload
def segment_softmax(data: Number, ids: Number, num_segments: int, axis: int = 0) -> Tensor:
    """``exp(data[i] - max) / sum of exp(data - max)`` over the segment of ``i``, in the shape of ``data``.

    What is in no segment is 0. See ``segment_sum``. Source: torch_geometric.utils.softmax.

    Raises:
        DtypeError: ``data`` is not of floats, or the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
@overload
def segment_softmax(data: Number, ids: Number, num_segments: int, *, dim: int = 0) -> Tensor: ...
@overload
def segment_sum(data: Number, ids: Number, num_segments: int, axis: int = 0) -> Tensor:
    """``out[s] = sum of data[i] where ids[i] == s``, along ``axis``; 0 where there are none.

    ``ids`` is a vector as long as ``data`` along the axis, which has size ``num_segments`` in the result, and need not
    be sorted. The dtype is that of ``data``, int64 for bools. An id outside of ``[0, num_segments)`` is left out.
    Numbers are added up in one order: the same bits each time. Source: jax.ops.segment_sum.

    Raises:
        DtypeError: the numbers of segments are no integers.
        ShapeError: they are no vector of as many, or there is no such dimension.
        DeclarationError: ``num_segments`` is no int when the op is traced.
    """
@overload
def segment_sum(data: Number, ids: Number, num_segments: int, *, dim: int = 0) -> Tensor: ...
def sigmoid(x: Number, /) -> Tensor:
    """Elementwise sigmoid; arguments broadcast and promote as torch's."""
def sign(x: Number, /) -> Tensor:
    """-1, 0 or 1; 0 at NaN, as torch."""
def sin(x: Number, /) -> Tensor:
    """Elementwise sin; arguments broadcast and promote as torch's."""
def sinh(x: Number, /) -> Tensor:
    """Elementwise sinh; arguments broadcast and promote as torch's."""
@overload
def size(x: Tensor, axis: Axis = None) -> Tensor:
    """Number of elements along ``axis`` (None: all), as a weak integer known at launch."""
@overload
def size(x: Tensor, *, dim: Axis = None) -> Tensor: ...
@overload
def softmax(x: Number, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) along ``axis``. ``dtype``: what ``x`` is cast to first."""
@overload
def softmax(x: Number, *, dim: int = -1, dtype: DTypeLike | None = None) -> Tensor: ...
def softplus(x: Number, /) -> Tensor:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
@overload
def split(x: Number, count: int, axis: int = -1) -> tuple[Tensor, ...]:
    """``count`` equal blocks of ``x`` along ``axis``: views of an argument, or each computed of such views.

    No data moves. As torch.chunk and numpy.split count; torch.split's number is the size of a block. An argument that
    is split in another way as well, and what cannot be divided along with the arguments that it is made of, is read at
    its places instead.

    Raises:
        ShapeError: the dimension does not divide by ``count``.
    """
@overload
def split(x: Number, count: int, *, dim: int = -1) -> tuple[Tensor, ...]: ...
def sqrt(x: Number, /) -> Tensor:
    """Elementwise sqrt; arguments broadcast and promote as torch's."""
def square(x: Number) -> Tensor:
    """``x * x``."""
@overload
def std(
    x: Number,
    axis: Axis = None,
    correction: Number | None = 1,
    keepdims: bool = False,
    unbiased: bool | None = None,
) -> Tensor:
    """sqrt(var(x)); where that is 0 no gradient flows, as in torch."""
@overload
def std(
    x: Number,
    *,
    dim: Axis = None,
    correction: Number | None = 1,
    keepdim: bool = False,
    unbiased: bool | None = None,
) -> Tensor: ...
def stop_gradient(x: Number) -> Tensor:
    """``x``, through which no gradient flows."""
@overload
def sum(x: Number, axis: Axis = None, keepdims: bool = False, dtype: DTypeLike | None = None) -> Tensor:
    """Sum over ``axis``; of integers and bools in int64. ``dtype``: what ``x`` is cast to first."""
@overload
def sum(x: Number, *, dim: Axis = None, keepdim: bool = False, dtype: DTypeLike | None = None) -> Tensor: ...
@overload
def sum_exp(x: Number, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """sum(exp(x - max(x))) over ``axis``, in one pass; in its gradient the maximum counts as a constant."""
@overload
def sum_exp(x: Number, *, dim: Axis = None, keepdim: bool = False) -> Tensor: ...
@overload
def take(x: Number, index: Number, axis: int = 0, *, negative: bool = True) -> Tensor:
    """``x`` at ``index`` along ``axis``: rows of a table, ``x[index]`` for axis 0.

    The result has the dimensions of the index in the place of that one. Negative positions count from the end, unless
    it is said that there are none (``negative``); one that is out of range is an error (``fg.PlaceError``). Source:
    numpy.take.

    Raises:
        DtypeError: the index is not of integers.
        ShapeError: there is no such dimension.
        DeclarationError: the index varies along the axis itself, or along another one of ``x``.
    """
@overload
def take(x: Number, index: Number, *, dim: int = 0, negative: bool = True) -> Tensor: ...
@overload
def take_along_axis(x: Number, index: Number, axis: int = -1) -> Tensor:
    """``x`` at ``index`` along ``axis``; both have as many dimensions, of which the others are the same or broadcast.

    Negative positions count from the end; one that is out of range is an error (``fg.PlaceError``). Source:
    numpy.take_along_axis.

    Raises:
        DtypeError: the index is not of integers.
        ShapeError: another number of dimensions, sizes that do not fit, or no such dimension.
        DeclarationError: the index varies along the axis itself.
    """
@overload
def take_along_axis(x: Number, index: Number, *, dim: int = -1) -> Tensor: ...
def tan(x: Number, /) -> Tensor:
    """Elementwise tan; arguments broadcast and promote as torch's."""
def tanh(x: Number, /) -> Tensor:
    """Elementwise tanh; arguments broadcast and promote as torch's."""
def transpose(x: Number, axis0: int, axis1: int) -> Tensor:
    """``x`` with two dimensions exchanged; no data moves. Source: torch.transpose.

    Raises:
        ShapeError: there is no such dimension.
    """
def trunc(x: Number, /) -> Tensor:
    """Elementwise trunc; arguments broadcast and promote as torch's."""
@overload
def unflatten(x: Number, axis: int, sizes: Sequence[int]) -> Tensor:
    """``x`` with dimension ``axis`` in groups: ``sizes`` are their number, perhaps that of groups in each, and behind
    them -1 for the elements of a group. Source: torch.unflatten.

    Of a value of any kind; ``flatten`` is the inverse. What else meets the dimension is seen in the same groups.

    Raises:
        ShapeError: there is no such dimension, or it does not divide so.
        DeclarationError: no such sizes, or the dimension is in other groups already, which are none of these.
    """
@overload
def unflatten(x: Number, *, dim: int, sizes: Sequence[int]) -> Tensor: ...
@overload
def var(
    x: Number,
    axis: Axis = None,
    correction: Number | None = 1,
    keepdims: bool = False,
    unbiased: bool | None = None,
) -> Tensor:
    """sum((x - mean(x))^2) / max(n - correction, 0) over ``axis``, n elements each; one pass, without cancellation.

    No ``correction`` is one of 1, as in torch; ``unbiased`` says 1 or 0, as a bool in the place of ``correction`` or
    of ``axis`` does.
    """
@overload
def var(
    x: Number,
    *,
    dim: Axis = None,
    correction: Number | None = 1,
    keepdim: bool = False,
    unbiased: bool | None = None,
) -> Tensor: ...
def where(condition: Number, a: Number, b: Number, /) -> Tensor:
    """A select: the branch not taken cannot leak a NaN into the value or the gradient."""
def xlogy(a: Number, b: Number, /) -> Tensor:
    """a log(b), and 0 where a = 0 unless b is NaN."""
def zeros(shape: int | Sequence[int], *, dtype: DTypeLike | None = ...) -> Tensor:
    """0 everywhere in a tensor of this shape; see ``full``. Source: torch.zeros.

    Raises:
        DeclarationError: a size is no int from 0 on when the op is traced.
    """
