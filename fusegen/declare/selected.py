"""Elements where a mask holds, ``x[mask]``: how many these are, only values tell, so they are no tensor.

What may be done with them needs no tensor of them: element by element with numbers and with others of the same mask,
row by row behind the mask's dimensions, reduced, and put back where they were (``y[mask] = x[mask] * 2``,
``loss[mask].mean()``, ``F.cross_entropy(logits[mask], target[mask])``).
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.core.one_term import start
from fusegen.declare import reductions
from fusegen.declare.value import Value, broadcast, cast, current, elementwise, lift, plain_number, shape_of


class Selected:
    """Elements of a tensor where a mask of its first dimensions holds, or of some behind these.

    Attributes:
        value: the whole tensor; what it is where the mask does not hold says nothing.
        mask: of bools.
        first: how many dimensions are in front of the mask's.
    """

    __slots__ = ("first", "mask", "value")

    def __init__(self, value: Value, mask: Value, first: int = 0) -> None:
        self.value, self.mask, self.first = value, mask, first

    def where_it_holds(self) -> Value:
        """The mask with as many dimensions as the tensor."""
        more = self.value.ndim - self.mask.ndim - self.first
        return Value(self.mask.expr, self.mask.dtype, (*self.mask.dims, *[None] * more))

    def is_of(self, mask: Value, first: int) -> bool:
        """Whether they are those of this mask, behind so many dimensions."""
        axes = [[dim and dim.find() for dim in each.dims] for each in (mask, self.mask)]
        return mask.expr is self.mask.expr and axes[0] == axes[1] and first == self.first

    def _with(self, other: Any) -> Any:
        """What meets the whole tensor where ``other`` meets these elements."""
        if isinstance(other, Selected):
            if other.is_of(self.mask, self.first):
                return other.value
        elif lift(other).ndim <= self.value.ndim - self.mask.ndim - self.first:
            return other
        raise self.refused("what is computed with elements where another mask holds, or with a tensor")

    def each(self, function: Callable[..., Value], *args: Any, **kwargs: Any) -> Selected:
        """A function of each element."""
        found = function(self.value, *map(self._with, args), **kwargs)
        if found.ndim != self.value.ndim:
            raise self.refused("what is no function of each element")
        return self._as(found)

    def _as(self, value: Value) -> Selected:
        """The same elements of another tensor."""
        return Selected(value, self.mask, self.first)

    def become(self, other: Selected) -> Selected:
        """What ``+=`` makes of them, under all their names."""
        self.value = other.value
        return self

    # -- along dimensions ----------------------------------------------------------------------------------------------

    def _dims(self, dim: Any) -> tuple[bool, tuple[int, ...]]:
        """Whether the one of which the mask chooses is among dimensions, and the whole tensor's of all that are."""
        rank = self.value.ndim - self.mask.ndim + 1
        told = range(rank) if dim is None else dim if isinstance(dim, (tuple, list)) else [dim]
        known = [plain_number(each) for each in told]
        if not all(isinstance(each, int) and -rank <= each < rank for each in known):
            raise self.refused(f"dimension {dim}")
        places = {each % rank for each in known}
        more, first = self.mask.ndim - 1, self.first
        others = [place if place < first else place + more for place in places - {first}]
        chosen = range(first, first + more + 1) if first in places else ()
        return first in places, tuple(sorted([*others, *chosen]))

    def _filled(self, other: float | bool) -> Value:
        """The whole tensor, with a number where the mask does not hold."""
        return elementwise("where", self.where_it_holds(), self.value, cast(other, self.value.dtype))

    def _reduced(self, name: str, neutral: Callable[[], float | bool], dim: Any, keepdim: bool, **options: Any) -> Any:
        reduce = getattr(reductions, name)
        of_mask, axes = self._dims(dim)
        if not of_mask:
            found = reduce(self.value, axis=axes, keepdims=keepdim, **options)
            return Selected(found, self.mask, self.first - (0 if keepdim else sum(at < self.first for at in axes)))
        found = reduce(self._filled(neutral()), axis=axes, keepdims=keepdim, **options)
        if keepdim and self.mask.ndim > 1:  # of the dimensions of the mask one is left
            dims = (*found.dims[: self.first + 1], *found.dims[self.first + self.mask.ndim :])
            return Value(found.expr, found.dtype, dims)
        return found

    def sum(self, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        """Those along dimensions added up."""
        return self._reduced("sum", lambda: 0, dim, keepdim, dtype=dtype)

    def prod(self, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        """Those along dimensions multiplied."""
        return self._reduced("prod", lambda: 1, dim, keepdim, dtype=dtype)

    def amax(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The largest: of none what `fg.amax` of none is."""
        return self._reduced("amax", lambda: start("max", self.value.dtype), dim, keepdim)

    def amin(self, dim: Any = None, keepdim: bool = False) -> Any:
        """The smallest: of none what `fg.amin` of none is."""
        return self._reduced("amin", lambda: start("min", self.value.dtype), dim, keepdim)

    def max(self) -> Any:
        """The largest of all."""
        return self.amax()

    def min(self) -> Any:
        """The smallest of all."""
        return self.amin()

    def any(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Whether one is not zero."""
        return self._reduced("any", lambda: False, dim, keepdim)

    def all(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Whether none is zero."""
        return self._reduced("all", lambda: True, dim, keepdim)

    def norm(self, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
        """Their norm, of a power from above zero to infinity."""
        if not (p == "fro" or (isinstance(p, (int, float)) and p > 0)):
            raise self.refused(f".norm to the power {p}")
        return self._reduced("norm", lambda: 0, dim, keepdim, ord=p)

    def logsumexp(self, dim: Any, keepdim: bool = False) -> Any:
        """The logarithm of the sum of their exponentials."""
        return self._reduced("logsumexp", lambda: -math.inf, dim, keepdim)

    def mean(self, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        """Their mean: NaN of none."""
        of = self if dtype is None else self._as(cast(self.value, dtype))
        if not self._dims(dim)[0]:
            return of._reduced("mean", lambda: 0, dim, keepdim)
        if not of.value.dtype.is_float:
            return reductions.mean(of.value)  # which says that it is of floats
        return elementwise("div", of.sum(dim, keepdim), self._ones().sum(dim, keepdim))

    def _ones(self) -> Selected:
        """1 for each."""
        spread = Value(cast(1, dtypes.int64).expr, dtypes.int64, broadcast([self.where_it_holds(), self.value], "mean"))
        return self._as(spread)

    def var(
        self, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
    ) -> Any:  # fmt: skip
        """The mean square of what they are off their mean."""
        if isinstance(dim, bool):  # (x, unbiased)
            dim, unbiased = None, dim
        less = int(unbiased) if correction is None else correction
        of_mask, axes = self._dims(dim)
        if not of_mask:
            return self._reduced("var", lambda: 0, dim, keepdim, correction=less)
        count = reductions.sum(self._ones()._filled(0), axes, keepdims=True)
        mean = elementwise("div", reductions.sum(self._filled(0), axes, keepdims=True), count)
        off = elementwise("sub", self.value, mean)
        squares = self._as(elementwise("mul", off, off)).sum(dim, keepdim)
        divisor = elementwise("maximum", elementwise("sub", self._ones().sum(dim, keepdim), less), 0)
        return elementwise("div", squares, divisor)

    def std(
        self, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
    ) -> Any:  # fmt: skip
        """The root of that: no gradient flows where it is 0."""
        found = self.var(dim, unbiased, keepdim, correction=correction)
        of = found.value if isinstance(found, Selected) else found
        zero = elementwise("eq", of, 0.0)
        root = elementwise("where", zero, of, elementwise("sqrt", elementwise("where", zero, 1.0, of)))
        return found._as(root) if isinstance(found, Selected) else root

    def numel(self) -> Value:
        """How many there are: a number that values tell, so a tensor."""
        count: Value = self._ones().sum()
        return count

    @property
    def shape(self) -> tuple[Any, ...]:
        """The tensor's, with how many there are in the place of what the mask is of."""
        count, sizes = reductions.sum(cast(self.mask, dtypes.int64)), self.value.shape
        return (*sizes[: self.first], count, *sizes[self.first + self.mask.ndim :])

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one of it."""
        return self.shape if dim is None else self.shape[dim]

    def _one_by_one(self, function: Callable[..., Any], dim: int, *others: Any, **options: Any) -> Selected:
        """A function along a dimension of each by itself."""
        of_mask, axes = self._dims(dim)
        if of_mask:
            raise self.refused("what is computed along all that the mask chooses")
        return self._as(function(self.value, *map(self._with, others), dim=axes[0], **options))

    def softmax(self, dim: int, dtype: Any = None) -> Selected:
        """Of each by itself, along a dimension behind the mask's."""
        return self._one_by_one(_of_torch("softmax"), dim, dtype=dtype)

    def log_softmax(self, dim: int, dtype: Any = None) -> Selected:
        """Of each by itself, along a dimension behind the mask's."""
        return self._one_by_one(_of_torch("log_softmax"), dim, dtype=dtype)

    def matmul(self, other: Any) -> Selected:
        """Of each by itself a product with one matrix, or one vector."""
        if isinstance(other, Selected) or lift(other).ndim > 2 or self.value.ndim == self.mask.ndim + self.first:
            raise self.refused("a product of what the mask chooses")
        return self._as(lift(self.value @ other))

    __matmul__ = matmul

    def refused(self, given: str) -> DeclarationError:
        """The error of what cannot be told without values."""
        return DeclarationError(
            f"{current().where}, x[mask]", given=f"{given}, of {shape_of(self.value)}",
            expected="functions of each element or row, and reductions: how many there are, only values tell",
            fix="keep all elements: fg.where(mask, x, 0), or index outside the op",
        )  # fmt: skip

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = str(getattr(function, "__name__", function)), kwargs or {}
        first = next(value for value in (*args, *options.values()) if isinstance(value, cls))
        if name in _LOSSES or name in _OF_CLASSES or name in _OF_ROWS:
            of = _of_torch(name)
            if name in _OF_ROWS:
                named = dict(zip(_OF_ROWS[name], args, strict=False)) | options
                named.pop("out", None)
                return _of_rows(first, of, named, along="dim" in _OF_ROWS[name])
            given = dict(inspect.signature(function).bind(*args, **options).arguments)
            return (_loss if name in _LOSSES else _loss_of_classes)(first, of, given)
        if first is not args[0]:
            raise first.refused(f"torch.{name}")
        return getattr(first, name)(*args[1:], **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # other libraries look for their protocols
            raise AttributeError(name)
        table = importlib.import_module("fusegen.declare.language").TABLE_FUNCTIONS
        methods = importlib.import_module("fusegen.declare.torch_names")
        if name in table or name in _OF_EACH:
            function = methods.method_of(name).function if methods.method_of(name) else table[name]
            return lambda *args, **kwargs: self.each(function, *args, **kwargs)
        raise self.refused(f".{name}")


# torch's functions of each element that the language has under other names.
_OF_EACH = ("add", "sub", "mul", "div", "neg", "pow", "square", "reciprocal", "clamp", "clamp_min", "detach", "float")


# Losses of each element, those of classes, and functions of rows by the names of their arguments.
_LOSSES = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div",
)  # fmt: skip
_OF_CLASSES = ("cross_entropy", "nll_loss")
_OF_ROWS = {
    "normalize": ("input", "p", "dim", "eps"), "cosine_similarity": ("x1", "x2", "dim", "eps"),
    "linear": ("input", "weight", "bias"), "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
}  # fmt: skip


def _of_torch(name: str) -> Callable[..., Any]:
    """A function that the language has for torch's, in torch's words."""
    found = importlib.import_module("fusegen.declare.torch_names").in_place_of(name)
    assert found is not None
    return found  # type: ignore[no-any-return]


def _loss(of: Selected, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A loss of each element, and what is made of them all."""
    how = given.pop("reduction", "mean")
    wide = {name: of._with(value) if _is_tensor(value) else value for name, value in given.items()}
    each = of._as(lift(function(**wide, reduction="none")))
    if each.value.ndim != of.value.ndim:
        raise of.refused("a loss of what is broadcast")
    if how == "batchmean":
        return elementwise("div", each.sum(), each.shape[0])
    return each if how == "none" else each.mean() if how == "mean" else each.sum()


def _loss_of_classes(of: Selected, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Where the mask does not hold no class is asked for."""
    scores, target = given["input"], given["target"]
    both = isinstance(scores, Selected) and isinstance(target, Selected) and scores.is_of(target.mask, target.first)
    rank = of.mask.ndim
    both = both and not of.first
    if not both or scores.value.ndim != rank + 1 or target.value.ndim != rank or target.value.dtype.is_float:
        raise of.refused("a loss of classes that are not chosen by the same mask, or of their probabilities")
    ignored = given.setdefault("ignore_index", -100)
    there = elementwise("where", target.mask, target.value, cast(ignored, target.value.dtype))
    order = (0, rank, *range(1, rank))
    turned = Value(scores.value.expr, scores.value.dtype, tuple(scores.value.dims[place] for place in order))
    found = function(**{**given, "input": turned, "target": there})
    return Selected(found, of.mask) if given.get("reduction") == "none" else found


def _of_rows(of: Selected, function: Callable[..., Any], given: dict[str, Any], *, along: bool) -> Selected:
    """A function of each row by itself: what else it takes are rows of the same mask, or the same for each."""
    (first, value), *others = given.items()
    if value is not of:
        raise of.refused("what is computed with elements where another mask holds, or with a tensor")
    wide = {name: of._with(other) if isinstance(other, Selected) else other for name, other in others}
    if along:
        of_mask, axes = of._dims(wide.get("dim", 1))
        if of_mask:
            raise of.refused("what is computed along all that the mask chooses")
        wide["dim"] = axes[0]
    elif of.value.ndim == of.mask.ndim + of.first:
        raise of.refused("a function of rows")
    found: Selected = of._as(lift(function(**{first: of.value, **wide})))
    return found


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Selected) or (isinstance(value, Value) and not value.weak)


def _operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
        for side in (f"__{name}__", f"__r{name}__"):
            operator = lambda x, other, side=side: x.each(getattr(Value, side), other)  # noqa: E731
            setattr(Selected, side, operator)
        in_place = lambda x, other, side=f"__{name}__": x.become(x.each(getattr(Value, side), other))  # noqa: E731
        setattr(Selected, f"__i{name}__", in_place)
    for name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert"):
        operator = lambda x, *others, name=name: x.each(getattr(Value, f"__{name}__"), *others)  # noqa: E731
        setattr(Selected, f"__{name}__", operator)
    Selected.__hash__ = object.__hash__  # type: ignore[method-assign]


_operators()


def selected(x: Value, mask: Value, first: int = 0) -> Selected:
    """``x[mask]``, or ``x[:, mask]`` with ``first`` dimensions in front.

    Raises:
        ShapeError: the mask is of other dimensions.
    """
    if not 0 < mask.ndim <= x.ndim - first:
        raise ShapeError(
            f"{current().where}, x[mask]", given=f"{shape_of(mask)} for {shape_of(x)}",
            expected="a mask of its first dimensions", fix="add dimensions of size one to the tensor",
        )  # fmt: skip
    front = Value(x.expr, x.dtype, x.dims[first : first + mask.ndim])
    broadcast([front, mask], "x[mask]")  # their axes are one from here on
    if any((a is None) != (b is None) for a, b in zip(front.dims, mask.dims, strict=True)):
        raise ShapeError(
            f"{current().where}, x[mask]", given=f"{shape_of(mask)} for {shape_of(x)}",
            expected="a mask of the same sizes", fix="expand it: mask.expand_as(x)",
        )  # fmt: skip
    return Selected(Value(x.expr, x.dtype, x.dims), mask, first)
