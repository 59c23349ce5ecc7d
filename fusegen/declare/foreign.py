"""What meets a symbolic tensor under torch's or NumPy's name: functions, methods, attributes.

What declare/torch_names knows is done; anything else is refused, with what comes nearest.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fusegen.core.errors import DeclarationError, FusegenError
from fusegen.declare.memory import WAITING, in_memory, settle, write
from fusegen.declare.value import Value, current, lift

_FIXES = {
    **dict.fromkeys(
        ("rand", "randn", "randint", "randint_like", "normal", "multinomial", "randperm"),
        "use fg.rand_like, fg.randn_like or fg.bernoulli, or pass random numbers as an argument",
    ),
    **dict.fromkeys(
        ("masked_select", "nonzero", "argwhere", "masked_scatter", "put"),
        "use fg.take, fg.take_along_axis or fg.scatter_reduce, or select with fg.where(fg.index(x, axis) == i, a, b)",
    ),
    **dict.fromkeys(
        (
            "sort", "msort", "topk", "median", "nanmedian", "quantile", "nanquantile", "kthvalue", "mode",
            "argsort", "unique", "unique_consecutive",
        ),
        "do it outside the op, which has fg.amax, fg.amin, fg.argmax and fg.argmin",
    ),
    **dict.fromkeys(("histc", "histogram", "histogramdd"), "use fg.bincount(ids, num), with ids that you compute"),
    **dict.fromkeys(("equal", "allclose"), "use fg.all(x == y) or fg.all(torch.isclose(x, y)), for fg.where"),
    **dict.fromkeys(
        (
            "cholesky", "cholesky_ex", "cholesky_solve", "cholesky_inverse", "inv", "inv_ex", "inverse", "solve",
            "solve_triangular", "triangular_solve", "svd", "svdvals", "eig", "eigh", "eigvals", "eigvalsh", "qr", "lu",
            "lu_factor", "lu_solve", "det", "slogdet", "logdet", "pinv", "pinverse", "matrix_exp",
            "matrix_rank", "lstsq",
        ),
        "do it outside, between two ops: of matrices there are products, sums and norms here",
    ),
    **dict.fromkeys(
        (f"{kind}fft{rank}" for kind in ("", "i", "r", "ir", "h", "ih") for rank in ("", "2", "n")),
        "do it outside, between two ops: there are no transforms and no complex numbers here",
    ),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold"),
        "use torch's outside the op, and fuse what is behind it; of one dimension x.unfold(dim, size, step) @ w",
    ),
    "grid_sample": "use torch's outside the op, or weight the pixels around, x.flatten(-2).gather(-1, place)",
    **dict.fromkeys(
        (
            "gcd", "lcm", "nextafter", "i0", "i0e", "i1", "i1e", "igamma", "igammac", "gammainc", "gammaincc",
            "zeta", "erfcx", "log_ndtr", "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "frexp",
        ),
        "declare it with fg.register_function, by its CUDA text and its derivative",
    ),
    **dict.fromkeys(
        ("item", "tolist", "numpy"), "compute with the tensor: there are no values yet; pass numbers as arguments"
    ),
    **dict.fromkeys(
        ("cpu", "cuda", "is_cuda", "stride", "layout", "is_contiguous", "data_ptr", "requires_grad"),
        "ask the argument, outside the op: a declaration is for every device and layout",
    ),
    **dict.fromkeys(
        ("scan", "fori_loop", "while_loop", "associative_scan"),
        "write a Python loop, which is unrolled, or use fg.cumsum, fg.cumprod, fg.linear_recurrence",
    ),
    **dict.fromkeys(("cond", "switch"), "use fg.where(condition, a, b): both are computed"),
    **dict.fromkeys(
        (f"{kind}max_pool{rank}d_with_indices" for kind in ("", "adaptive_", "fractional_") for rank in (1, 2, 3)),
        "leave return_indices away, or use torch's outside the op",
    ),
    **dict.fromkeys(
        ("polar", "complex", "view_as_complex", "view_as_real", "imag", "stft", "istft"),
        "compute with real and imaginary parts, as two tensors: there are no complex numbers",
    ),
    "at": "write y = x.clone(), and y[...] = ...; places that indices tell are fg.scatter and fg.scatter_reduce",
    **dict.fromkeys(("backward", "grad"), "differentiate what the op returns, outside it: gradients are derived"),
}  # fmt: skip


class UnknownMethod(DeclarationError, AttributeError):
    """A symbolic tensor has no such attribute: it has those of an expression, not all of a tensor's."""


def explained(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose wrong calls say what it takes instead of raising Python's own error."""

    renamed = {"axis": "dim", "keepdims": "keepdim", "ord": "p"}
    parameters = inspect.signature(function).parameters
    torchs = {renamed[name]: name for name in parameters if name in renamed}
    unnamed = sum(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters.values())

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not torchs.keys().isdisjoint(kwargs):
            kwargs = {torchs.get(name, name): value for name, value in kwargs.items()}
        for place, name in enumerate(("input", "other")[:unnamed]):  # torch's names of what has none here
            if len(args) == place and name in kwargs:
                args = (*args, kwargs.pop(name))
        try:
            return in_memory(function, args, kwargs, function(*args, **kwargs))
        except TypeError as error:
            problem = None if isinstance(error, FusegenError) else _misfit(function, args, kwargs)
            if problem is None:
                raise
            raise problem from None

    return call


def _misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> DeclarationError | None:
    """What is wrong with a call's arguments, if they do not fit the signature."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        shown = signature.replace(parameters=plain, return_annotation=signature.empty)
        unknown = [name for name in kwargs if name not in signature.parameters]
        given = f"got an unexpected keyword argument {unknown[0]!r}" if unknown else str(error)
        return DeclarationError(
            f"{current().where}, {function.__name__}", given=given, expected=f"{function.__name__}{shown}",
            fix="call it so",
        )  # fmt: skip
    return None


def _writes() -> Any:
    """What is written in place, likewise."""
    return importlib.import_module("fusegen.declare.writes")


def _table() -> Any:
    """The functions of torch and NumPy: made of the language, to which this belongs."""
    return importlib.import_module("fusegen.declare.torch_names")


def called(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of the table, whose arguments are torch's.

    Raises:
        DeclarationError: it takes others.
    """
    if kwargs.get("out") is not None:
        raise DeclarationError(
            f"{current().where}, {name}", given="out=", expected="a result that is returned",
            fix="return it, and pass out= to the op",
        )  # fmt: skip
    kwargs = {key: value for key, value in _table().spelled(kwargs).items() if key != "out"}
    if kwargs.get("inplace") and (args or "input" in kwargs):
        x = args[0] if args else kwargs["input"]
        return write(x, called(name, function, args, {**kwargs, "inplace": False}), name, to_own=True)
    return _fitting(function, args, kwargs)


def _fitting(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function gives.

    Raises:
        DeclarationError: it takes other arguments.
    """
    try:
        return in_memory(function, args, kwargs, function(*args, **kwargs))
    except TypeError as error:
        if isinstance(error, FusegenError):
            raise
        problem = _misfit(function, args, kwargs)
        if problem is None:
            raise
        raise problem from None


# Attributes of torch's tensors that are methods as well, or what these give.
_ATTRIBUTES = {"data": "detach", "real": "positive", "mH": "adjoint", "H": "t"}
_of_language: list[str] = []  # The names of its functions.


def fix(name: str) -> str:
    """What comes nearest to a function, a method or an attribute that is not known."""
    if name in _of_language:
        return f"use fusegen's function: fg.{name}"
    if name.endswith("_") and name not in _FIXES:
        return f"write x = ..., with what .{name.rstrip('_')} would return"
    name = name.removeprefix("linalg_").removeprefix("special_").removeprefix("fft_")
    if name in _FIXES:
        return _FIXES[name]
    known = [*_of_language, *(f"torch.{n}" for e in _table().table() for n in e.names if not n.startswith("Tensor."))]
    own = [each for each in known if each.rpartition(".")[2] == name]
    if own:  # NumPy's or JAX's of other arguments
        return f"use {own[0]}"
    near = difflib.get_close_matches(name, _of_language, n=1, cutoff=0.8)
    listed = (
        "see `fusegen list --functions` for fg.NAME, `fusegen list` for fg.ops.NAME; compose it of operators, or do it "
        "outside the op"
    )
    return f"did you mean {near[0]}? Or {listed}" if near else listed


def _public_name(function: Any) -> str | None:
    """What torch's users call it: ``torch.special.i0e``, of what calls itself ``special_i0e``."""
    from torch.overrides import resolve_name

    found: str | None = resolve_name(function)
    return found


def attach(names: Sequence[str]) -> None:
    """Give symbolic tensors the hooks that torch and NumPy ask, and answers to unknown names.

    Args:
        names: the language's functions.
    """

    _of_language.extend(names)

    def refuse(given: str, name: str) -> DeclarationError:
        return DeclarationError(
            current().where, given=f"{given} of a symbolic tensor",
            expected="operators, and functions of fusegen and torch", fix=fix(name),
        )  # fmt: skip

    def torch_function(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in args:
            if not isinstance(value, (Value, bool, int, float, str, tuple, list)) and hasattr(value, "shape"):
                lift(value)  # a real tensor: says so
        name = str(getattr(function, "__name__", function))
        found = _table().of_torch(function)
        if found is not None:
            return called(name, found.function, args, kwargs or {})
        if args and isinstance(args[0], Value) and (in_place := writing(name)) is not None:
            return in_place(*args, **(kwargs or {}))
        raise refuse(_public_name(function) or f"torch.{name}", name)

    def array_ufunc(self: Value, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        found = _table().of_numpy(ufunc.__name__) if method == "__call__" and not kwargs else None
        if found is not None:  # ``np.float32(2) * x`` asks numpy.multiply first; comparisons come with 0-d arrays
            numbers = tuple(v[()] if getattr(v, "shape", None) == () else v for v in inputs)
            return in_memory(found.function, numbers, {}, found.function(*numbers))
        raise refuse(f"numpy.{ufunc.__name__}", ufunc.__name__)

    def array_function(self: Value, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = f"{'linalg.' * ('linalg' in str(function.__module__))}{function.__name__}"
        found = _table().of_numpy(name)
        if found is not None:
            return _fitting(found.function, *_table().numpy_arguments(found, function, args, kwargs))
        raise refuse(f"numpy.{name}", function.__name__)

    def writing(name: str) -> Callable[..., Any] | None:
        """``x.mul_``, of what has ``x.mul``."""
        return _writes().method(name) if name.endswith("_") and not name.endswith("__") else None

    def unknown(self: Any, name: str) -> Any:
        if name in WAITING:
            settle(self)
            return getattr(self, name)
        if name.startswith("_"):  # other libraries look for their protocols
            raise AttributeError(name)
        if name in _ATTRIBUTES and isinstance(self, Value):
            return called(name, _table().method_of(_ATTRIBUTES[name]).function, (self,), {})
        found = _table().method_of(name) if isinstance(self, Value) else None
        if found is not None:
            return lambda *args, **kwargs: called(name, found.function, (self, *args), kwargs)
        if isinstance(self, Value) and (in_place := writing(name)) is not None:
            return lambda *args, **kwargs: in_place(self, *args, **kwargs)
        raise UnknownMethod(
            self.tracer.where if self.tracer else "fusegen", given=f".{name} of a symbolic tensor",
            expected="an attribute that expressions have: dtype, shape, to, mT, and functions of torch and fusegen",
            fix=fix(name),
        )  # fmt: skip

    def array(self: Value, *_: Any, **options: Any) -> Any:
        raise DeclarationError(
            self.tracer.where if self.tracer else "fusegen", given="a symbolic tensor as an array of NumPy's",
            expected="functions that take tensors: inside an op there are no values yet",
            fix="compute with the tensor itself: NumPy's functions take it",
        )  # fmt: skip

    hooks = {
        "__array__": array,
        "__torch_function__": classmethod(torch_function), "__array_ufunc__": array_ufunc,
        "__array_function__": array_function, "__getattr__": unknown,
    }  # fmt: skip
    for name, hook in hooks.items():
        setattr(Value, name, hook)
