"""Which framework a call belongs to, and the way in and out for those without an adapter of their own (DLPack)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, DeviceError, DtypeError
from fusegen.plan import frameworks

_KNOWN = ("torch", "numpy", "cupy")


def framework_of(value: Any) -> frameworks.Framework | None:
    """The adapter of ``value``'s library; None for what is no tensor. Imports nothing that is not imported yet."""
    for name in _KNOWN:
        if name in sys.modules:
            adapter: frameworks.Framework = getattr(frameworks, name)()
            if adapter.owns(value):
                return adapter
    return None


def enter(op: str, values: dict[str, Any]) -> tuple[frameworks.Framework, dict[str, Any], Callable[[Any], Any]]:
    """The framework of a call's tensors, the arguments in it, and the function that takes a result back.

    Raises:
        DeclarationError: no tensor at all, or tensors of several frameworks.
    """
    known = {name: framework_of(value) for name, value in values.items()}
    found = {name: framework for name, framework in known.items() if framework is not None}
    foreign = {n: v for n, v in values.items() if n not in found and hasattr(v, "__dlpack__")}
    if foreign:
        return _through_dlpack(op, values, foreign, found)
    names = {framework.name for framework in found.values()}
    if len(names) != 1:
        given = ", ".join(f"{n}: {f.name}" for n, f in found.items()) or "no tensor"
        lists = [n for n, v in values.items() if isinstance(v, (tuple, list)) and any(map(framework_of, v))]
        fix = f"pass the tensors of {lists[0]} one by one: {op}(*{lists[0]})" if lists else "pass tensors"
        raise DeclarationError(
            op, given=given, expected="tensors of one framework, at least one",
            fix="convert them yourself, for example with torch.from_dlpack (no copy)" if found else fix,
        )  # fmt: skip
    return next(iter(found.values())), values, lambda result: result


def described(value: Any) -> tuple[dtypes.DType, tuple[int, ...]] | None:
    """The dtype and the shape of a tensor of a library without an adapter; None for what is none."""
    dtype = dtypes.BY_NAME.get(str(getattr(value, "dtype", None)))
    return (dtype, tuple(value.shape)) if dtype is not None and hasattr(value, "__dlpack__") else None


def _through_dlpack(
    op: str, values: dict[str, Any], foreign: dict[str, Any], known: dict[str, frameworks.Framework]
) -> tuple[frameworks.Framework, dict[str, Any], Callable[[Any], Any]]:
    """Tensors of a library without an adapter (JAX): borrowed as NumPy or CuPy arrays, results handed back likewise."""
    others = {framework.name for framework in known.values()}
    libraries = set(map(_library, foreign.values()))
    if others or len(libraries) > 1:
        raise DeclarationError(
            op, given=f"tensors of {', '.join(sorted(libraries | others))}",
            expected="tensors of one framework", fix="convert them yourself, for example with from_dlpack (no copy)",
        )  # fmt: skip
    kinds = {_kind_of_device(f"{op}, argument {n}", v) for n, v in foreign.items()}
    if kinds == {1}:
        framework: frameworks.Framework = frameworks.numpy()
    elif kinds <= {2, 13}:
        framework = frameworks.cupy()
    else:
        raise DeviceError(
            op, given=f"DLPack devices {sorted(kinds)}", expected="all on the CPU (1) or on CUDA (2)",
            fix="move the tensors yourself",
        )  # fmt: skip
    entered = {n: _borrowed(op, n, v, framework) if n in foreign else v for n, v in values.items()}
    library = libraries.pop()
    home = "jax.numpy" if library == "jax" else library
    return framework, entered, importlib.import_module(home).from_dlpack


def _library(value: Any) -> str:
    """The package that a tensor is of; JAX has two."""
    return type(value).__module__.partition(".")[0].replace("jaxlib", "jax")


def _kind_of_device(where: str, value: Any) -> int:
    """DLPack's number for where a tensor is.

    Raises:
        DeviceError: it is nowhere: a function is being traced, or its memory was given away.
    """
    what = f"a {type(value).__name__} of {_library(value)}"
    tracer = getattr(getattr(sys.modules.get("jax"), "core", None), "Tracer", ())
    if isinstance(value, tracer) or not hasattr(value, "__dlpack_device__"):
        raise DeviceError(
            where, given=f"{what}, which has no elements while it traces",
            expected="a tensor whose elements are in memory",
            fix="call the op outside of jit, grad and vmap, or in a function for jax.pure_callback",
        )  # fmt: skip
    try:
        return int(value.__dlpack_device__()[0])
    except Exception as error:  # any: it is another library's
        raise DeviceError(
            where, given=f"{what}, which does not say where it is: {error}",
            expected="a tensor whose elements are in memory", fix="pass one that was neither deleted nor donated",
        ) from error  # fmt: skip


def _borrowed(op: str, name: str, value: Any, framework: frameworks.Framework) -> Any:
    """A tensor as an array of NumPy's or CuPy's, in the same memory.

    Raises:
        DtypeError: there is no way for its dtype.
    """
    where, dtype = f"{op}, argument {name}", str(getattr(value, "dtype", "unknown dtype"))
    if dtype not in dtypes.BY_NAME:
        raise frameworks.wrong_dtype(name, f"an array of {dtype}").within(op)
    try:
        return importlib.import_module(framework.name).from_dlpack(value)
    except Exception as error:  # any: it is another library's
        reason = str(error).partition("\n")[0]
        by_hand = "numpy.asarray(x), which copies nothing," if framework.name == "numpy" else "torch.from_dlpack(x)"
        raise DtypeError(
            where, given=f"an array of {dtype} of {_library(value)}, which {framework.name} cannot borrow: {reason}",
            expected=f"a dtype that {framework.name}.from_dlpack knows", fix=f"pass {by_hand} or another dtype",
        ) from error  # fmt: skip
