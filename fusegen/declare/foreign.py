"""What meets a symbolic tensor and is none of the language: functions of torch and NumPy, unknown methods."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fusegen.core.errors import DeclarationError, FusegenError
from fusegen.declare.parts import Packed
from fusegen.declare.value import Value, current, elementwise, lift

# NumPy's names of the operators: ``np.float32(2) * x`` asks numpy.multiply first.
_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "floor_divide": "floor_divide",
    "remainder": "remainder", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq",
    "not_equal": "ne", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
    "left_shift": "left_shift", "right_shift": "right_shift",
}  # fmt: skip
_FIXES = {
    "shape": "use fg.size(x, axis) for a size, x.ndim for the rank",
    "size": "use fg.size(x, axis)",
    "dim": "use x.ndim",
    "float": "use x.to(fg.float32)", "double": "use x.to(fg.float64)", "half": "use x.to(fg.float16)",
    "bfloat16": "use x.to(fg.bfloat16)", "long": "use x.to(fg.int64)", "int": "use x.to(fg.int32)",
    "bool": "use x.to(fg.bool_)", "type": "use x.to(dtype)", "astype": "use x.to(dtype)",
    "detach": "use fg.stop_gradient(x)",
    "unsqueeze": "use fg.expand_dims(x, axis)",
    "chunk": "use fg.split(x, count, axis)", "cat": "use fg.concat(parts, axis)",
    "concatenate": "use fg.concat(parts, axis)",
    "power": "use x ** y", "max": "use fg.amax(x, axis), or fg.maximum(x, y) of two tensors",
    "min": "use fg.amin(x, axis), or fg.minimum(x, y) of two tensors",
    "relu": "use fg.maximum(x, 0.0), or fg.ops.relu(x)",
    **dict.fromkeys(
        ("view", "reshape", "flatten", "squeeze", "expand", "permute", "contiguous"),
        "do it to the argument, outside the op: views cost nothing, and broadcasting needs no expand",
    ),
    **dict.fromkeys(("numel", "nelement", "len"), "use fg.size(x), of one dimension fg.size(x, axis)"),
    **dict.fromkeys(
        ("item", "tolist", "numpy"), "compute with the tensor: there are no values yet; pass numbers as arguments"
    ),
    **dict.fromkeys(
        ("device", "cpu", "cuda", "is_cuda", "stride", "layout", "is_contiguous", "data_ptr", "requires_grad"),
        "ask the argument, outside the op: a declaration is for every device and layout",
    ),
    **dict.fromkeys(("backward", "grad"), "differentiate what the op returns, outside it: gradients are derived"),
    "clone": "use x itself: nothing is written in place",
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "inner", "vdot", "einsum", "tensordot", "multi_dot"), "use x @ w"),
    **dict.fromkeys(("t", "transpose", "swapaxes", "swapdims"), "use x.mT for the last two dimensions"),
    "masked_fill": "use fg.where(mask, value, x)",
    "add": "use x + y", "sub": "use x - y", "mul": "use x * y", "div": "use x / y",
}  # fmt: skip


class UnknownMethod(DeclarationError, AttributeError):
    """A symbolic tensor has no such attribute: it has those of an expression, not all of a tensor's."""


def explained(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose wrong calls say what it takes instead of raising Python's own error."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
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
        torchs = {"dim", "keepdim"} & kwargs.keys()
        unknown = [name for name in kwargs if name not in signature.parameters]
        given = f"got an unexpected keyword argument {unknown[0]!r}" if unknown else str(error)
        return DeclarationError(
            f"{current().where}, {function.__name__}", given=given, expected=f"{function.__name__}{shown}",
            fix="torch's dim= and keepdim= are axis= and keepdims= here" if torchs else "call it so",
        )  # fmt: skip
    return None


def attach(names: Sequence[str]) -> None:
    """Give symbolic tensors the hooks that torch and NumPy ask, and answers to unknown names.

    Args:
        names: the language's functions.
    """

    def fix(name: str) -> str:
        if name in names:
            return f"use fusegen's function: fg.{name}"
        if name.endswith("_") and name not in _FIXES:
            return f"write x = ..., with what .{name.rstrip('_')} would return: nothing is written in place"
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        listed = (
            "see `fusegen list --functions` for fg.NAME, `fusegen list` for fg.ops.NAME, or compose it of operators"
        )
        return _FIXES.get(name) or (f"did you mean {near[0]}? Or {listed}" if near else listed)

    def refuse(given: str, name: str) -> DeclarationError:
        return DeclarationError(
            current().where, given=f"{given} of a symbolic tensor", expected="operators, and functions of fusegen",
            fix=fix(name),
        )  # fmt: skip

    def torch_function(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in args:
            if not isinstance(value, (Value, bool, int, float, str, tuple, list)):
                lift(value)  # a real tensor: says so
        name = str(getattr(function, "__name__", function))
        raise refuse(f"torch.{name}", name)

    def array_ufunc(self: Value, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and ufunc.__name__ in _UFUNCS and not kwargs:  # comparisons come with 0-d arrays
            return elementwise(
                _UFUNCS[ufunc.__name__], *(v[()] if getattr(v, "shape", None) == () else v for v in inputs)
            )
        raise refuse(f"numpy.{ufunc.__name__}", ufunc.__name__)

    def array_function(self: Value, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise refuse(f"numpy.{function.__name__}", function.__name__)

    def unknown(self: Any, name: str) -> Any:
        if name.startswith("_"):  # other libraries look for their protocols
            raise AttributeError(name)
        raise UnknownMethod(
            self.tracer.where if self.tracer else "fusegen", given=f".{name} of a symbolic tensor",
            expected="an attribute that expressions have: dtype, ndim, to, mT, and functions of fusegen", fix=fix(name),
        )  # fmt: skip

    def packed(self: Packed, *_: Any) -> Any:
        raise DeclarationError(
            f"{current().where}, concat", given="a result of fg.concat that is computed with",
            expected="one that is returned: each part is written to its place", fix="compute on the parts first",
        )  # fmt: skip

    hooks = {
        "__torch_function__": classmethod(torch_function), "__array_ufunc__": array_ufunc,
        "__array_function__": array_function, "__getattr__": unknown,
    }  # fmt: skip
    for name, hook in hooks.items():
        setattr(Value, name, hook)
    for name in vars(Value):
        if name.startswith("__") and name.strip("_") in _COMPUTING:
            setattr(Packed, name, packed)


_COMPUTING = {
    *(f"{side}{name}" for side in ("", "r") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")),
    "matmul", "rmatmul", "neg", "abs", "lt", "le", "gt", "ge", "getitem", "iter",
}  # fmt: skip
