"""One table of the functions of torch and NumPy that a declaration may call, and which expression each of them is.

``torch.exp(x)`` in a declaration, ``x.exp()`` and ``numpy.exp(x)`` are ``fg.exp(x)``. Three things fill the table: the
language itself, where a function has torch's name or an alias; declare/torch_functions, which has torch's arguments;
and the library, ``fg.ops``, whose ops have torch's names and options. The table is what declare/foreign looks a
function up in, what docs/torch_functions.md is printed from, and what tests compare with torch, function by function.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from fusegen.declare import (
    numpy_functions,
    torch_algebra,
    torch_arrays,
    torch_blocks,
    torch_indexing,
    torch_kinds,
    torch_losses,
    torch_made,
    torch_numbers,
    torch_random,
    torch_scans,
    torch_triangles,
    torch_windows,
)
from fusegen.declare.language import TABLE_FUNCTIONS
from fusegen.declare.torch_functions import DEFINED, Function, TorchFunction, library
from fusegen.declare.value import Like

# Their definitions are among those below.
assert torch_algebra and torch_arrays and torch_blocks and torch_indexing and torch_made and torch_numbers
assert torch_kinds and torch_random and torch_scans and torch_windows and torch_losses and numpy_functions
assert torch_triangles

# Functions of the language that torch calls otherwise, too, or NumPy does.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "abs": ("absolute",), "acos": ("arccos",), "acosh": ("arccosh",), "asin": ("arcsin",), "asinh": ("arcsinh",),
    "atan": ("arctan",), "atanh": ("arctanh",), "atan2": ("arctan2",), "sigmoid": ("special.expit",),
    "eq": ("Tensor.__eq__",), "ne": ("not_equal", "Tensor.__ne__"), "lt": ("less", "Tensor.__lt__"),
    "le": ("less_equal", "Tensor.__le__"), "gt": ("greater", "Tensor.__gt__"),
    "ge": ("greater_equal", "Tensor.__ge__"), "trunc": ("fix",), "exp2": ("special.exp2",),
    "expm1": ("special.expm1",), "log1p": ("special.log1p",), "erf": ("special.erf",), "erfc": ("special.erfc",),
    "erfinv": ("special.erfinv",), "ndtri": ("special.ndtri",), "digamma": ("special.digamma", "special.psi"),
    "lgamma": ("special.gammaln",),
    "xlogy": ("special.xlogy",), "left_shift": ("bitwise_left_shift",), "right_shift": ("bitwise_right_shift",),
}  # fmt: skip
NUMPYS: Mapping[str, tuple[str, ...]] = {
    "abs": ("absolute", "fabs"), "bitwise_not": ("invert",), "eq": ("equal",), "ne": ("not_equal",), "lt": ("less",),
    "le": ("less_equal",), "gt": ("greater",), "ge": ("greater_equal",), "acos": ("arccos",), "acosh": ("arccosh",),
    "asin": ("arcsin",), "asinh": ("arcsinh",), "atan": ("arctan",), "atanh": ("arctanh",), "atan2": ("arctan2",),
    "trunc": ("fix",),
}  # fmt: skip
# No functions of torch's, and those that have other arguments there: declare/torch_functions or the library has them.
_NOT_TORCHS = (
    "cbrt", "exp_clamped", "ratio", "left_shift", "right_shift", "where", "clamp", "round", "softplus", "logsigmoid",
    "ndtri",
)  # fmt: skip
_NUMPY_TOO = (
    "cbrt", "ceil", "copysign", "cos", "cosh", "exp", "exp2", "expm1", "floor", "floor_divide", "fmod", "hypot",
    "isfinite", "isinf", "isnan", "left_shift", "log", "log10", "log1p", "log2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "maximum", "minimum", "remainder", "right_shift", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc", "bitwise_and", "bitwise_or", "bitwise_xor",
)  # fmt: skip
# NumPy's names of ops of the library, and torch's of some that have several or are somewhere else.
_LIBRARY_NUMPYS = {
    "sum": ("sum",), "mean": ("mean",), "prod": ("prod",), "var": ("var",), "std": ("std",), "amax": ("amax", "max"),
    "amin": ("amin", "min"), "argmax": ("argmax",), "argmin": ("argmin",), "any": ("any",), "all": ("all",),
    "take_along_dim": ("take_along_axis",),
}  # fmt: skip
_LIBRARY_ALIASES = {
    "softmax": ("softmax", "special.softmax", "nn.functional.softmax"),
    "log_softmax": ("log_softmax", "special.log_softmax", "nn.functional.log_softmax"),
    "logsumexp": ("logsumexp", "special.logsumexp"), "vector_norm": ("linalg.vector_norm",),
    "relu": ("relu", "nn.functional.relu"), "threshold": ("threshold", "nn.functional.threshold"),
    "prelu": ("prelu", "nn.functional.prelu"), "selu": ("selu", "nn.functional.selu"),
    "celu": ("celu", "nn.functional.celu"), "rms_norm": ("rms_norm", "nn.functional.rms_norm"),
    "layer_norm": ("layer_norm", "nn.functional.layer_norm"),
    "cosine_similarity": ("cosine_similarity", "nn.functional.cosine_similarity"),
    "hardshrink": ("hardshrink", "nn.functional.hardshrink"), "masked_fill": ("masked_fill",),
}  # fmt: skip
# Ops of the library below torch itself; all others that torch has are functions of torch.nn.functional.
_NOT_FUNCTIONAL = (
    "addcdiv", "addcmul", "addmm", "all", "amax", "amin", "any", "argmax", "argmin", "baddbmm", "clamp", "lerp",
    "mean", "prod", "std", "sum", "var", "gather", "index_add", "index_copy", "index_select", "scatter", "scatter_add",
    "scatter_reduce", "take_along_dim",
)  # fmt: skip
_FUNCTIONAL = (
    "batch_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "embedding", "embedding_bag",
    "cross_entropy", "elu", "gaussian_nll_loss", "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh",
    "hinge_embedding_loss", "huber_loss", "instance_norm", "kl_div", "l1_loss", "leaky_relu", "linear", "logsigmoid",
    "margin_ranking_loss", "mish", "mse_loss", "multilabel_soft_margin_loss", "nll_loss", "normalize",
    "poisson_nll_loss", "relu6", "silu", "smooth_l1_loss", "soft_margin_loss", "softmin", "softplus", "softshrink",
    "softsign", "tanhshrink", "triplet_margin_loss",
)  # fmt: skip


def _of_library(name: str) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        return library(name)(*args, **kwargs)

    call.__doc__ = f"``fg.ops.{name}``."
    return call


def _of_language(name: str) -> Function:
    function = TABLE_FUNCTIONS[name]

    def unary(input: Like) -> Any:
        return function(input)

    def binary(input: Like, other: Like) -> Any:
        return function(input, other)

    count = len(inspect.signature(function).parameters)
    found = unary if count == 1 else binary
    found.__doc__ = f"``fg.{name}({', '.join('xy'[:count])})``."
    return found


@functools.cache
def table() -> tuple[TorchFunction, ...]:
    """All functions of torch and NumPy that a declaration may call, in the order of their names."""
    found = list(DEFINED)
    for name in TABLE_FUNCTIONS:
        names = ((name,) if name not in _NOT_TORCHS else ()) + ALIASES.get(name, ())
        numpys = ((name,) if name in _NUMPY_TOO else ()) + NUMPYS.get(name, ())
        if names or numpys:
            found.append(TorchFunction(names, _of_language(name), numpys))
    for name in (*_NOT_FUNCTIONAL, *_FUNCTIONAL, *_LIBRARY_ALIASES):
        names = _LIBRARY_ALIASES.get(name) or ((f"nn.functional.{name}",) if name in _FUNCTIONAL else (name,))
        found.append(TorchFunction(tuple(dict.fromkeys(names)), _of_library(name), _LIBRARY_NUMPYS.get(name, ())))
    return tuple(sorted(found, key=lambda f: (f.names or f.numpy)[0].rpartition(".")[2]))


# -- looking up ------------------------------------------------------------------------------------------------------


def spelled(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by torch's names, which takes NumPy's as well."""
    return {{"axis": "dim", "keepdims": "keepdim"}.get(name, name): value for name, value in kwargs.items()}


@functools.cache
def _by_torch_function() -> dict[Any, TorchFunction]:
    torch = importlib.import_module("torch")
    compiled = torch._C._VariableFunctions
    found: dict[Any, TorchFunction] = {}
    for entry in table():
        for name in entry.names:
            if hasattr(compiled, name):  # what torch's function in Python calls, if it is given a list
                found.setdefault(getattr(compiled, name), entry)
            held: Any = torch
            for part in name.split("."):
                held = getattr(held, part, None)
            held = torch_made.standing_in.own.get(name, held)  # torch's own, also while a declaration runs
            if held is not None:  # an older torch lacks some
                found.setdefault(held, entry)
    return found


def of_torch(function: Any) -> TorchFunction | None:
    """What a function of torch is in the language."""
    try:
        return _by_torch_function().get(function)
    except TypeError:  # not hashable
        return None


@functools.cache
def _by_method() -> dict[str, TorchFunction]:
    found: dict[str, TorchFunction] = {}
    for entry in table():
        for name in entry.names:
            place, _, method = name.rpartition(".")
            if place == "Tensor":
                found[method] = entry
            elif not place and method not in _NO_METHODS:
                found.setdefault(method, entry)
    return found


# Functions that are no methods of torch's tensors.
_NO_METHODS = (
    "cat", "concat", "concatenate", "stack", "where", "zeros_like", "ones_like", "full_like", "rsub", "dropout",
    "rand_like", "randn_like",
    "atleast_1d", "atleast_2d", "atleast_3d", "hstack", "vstack", "row_stack", "dstack", "column_stack",
    "broadcast_tensors", "meshgrid", "trapezoid", "trapz", "cumulative_trapezoid", "cdist", "bucketize", "searchsorted",
    "isin", "einsum", "chain_matmul", "real", "block_diag", "cartesian_prod", "tensordot", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "pdist", "combinations", "gradient", "vander",
    "rrelu",
    "max_pool1d", "max_pool2d", "max_pool3d",
    "var_mean", "std_mean", "layer_norm", "rms_norm", "celu", "selu", "threshold", "cosine_similarity", "is_complex",
)  # fmt: skip


def method_of(name: str) -> TorchFunction | None:
    """What a method of torch's tensors is in the language."""
    return _by_method().get(name)


def in_place_of(name: str) -> Function | None:
    """The function that ``torch.NAME_`` and ``F.NAME_`` write the result of."""
    found = _by_method().get(name) or next((entry for entry in table() if f"nn.functional.{name}" in entry.names), None)
    return found.function if found is not None else None


def methods() -> Iterator[str]:
    """The names of torch's methods that symbolic tensors answer to."""
    return iter(_by_method())


@functools.cache
def _by_numpy_name() -> dict[str, TorchFunction]:
    return {name: entry for entry in table() for name in entry.numpy}


def of_numpy(name: str) -> TorchFunction | None:
    """What a function of NumPy is in the language, by its name below ``numpy``."""
    return _by_numpy_name().get(name)


# NumPy's variances divide by the number of elements.
_NUMPY_DEFAULTS: dict[str, dict[str, Any]] = {"var": {"correction": 0}, "std": {"correction": 0}}
_NUMPY_WORDS = {
    "a": "input", "x": "input", "arr": "input", "m": "input", "axis": "dim", "axes": "dims", "keepdims": "keepdim",
    "ddof": "correction", "a_min": "min", "a_max": "max", "arrays": "tensors", "axis1": "dim0", "axis2": "dim1",
    "y": "other", "b": "other", "element": "elements",
}  # fmt: skip


# Not written in Python, so that older ones have no signature; or of any number of tensors.
_AS_GIVEN = ("dot", "inner", "concatenate", "where", "vdot", "atleast_1d", "atleast_2d", "broadcast_arrays")


def numpy_arguments(
    entry: TorchFunction, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a function of NumPy's, as ``entry.function`` takes them."""
    name = function.__name__
    if entry.own_words or name in _AS_GIVEN:
        return args, _told(kwargs if entry.own_words else spelled(kwargs))
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    given = _NUMPY_DEFAULTS.get(name, {}) | {_NUMPY_WORDS.get(key, key): value for key, value in bound.items()}
    return (), _told(given)


def _told(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says nothing: ``out=None``, and NumPy's own "no value"."""
    no_value = getattr(importlib.import_module("numpy"), "_NoValue", None)
    return {key: value for key, value in given.items() if value is not no_value and (key != "out" or value is not None)}
