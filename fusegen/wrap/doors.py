"""Which framework a call belongs to, and the way in and out for those without an adapter of their own (DLPack)."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.errors import DeclarationError, DerivativeError, DeviceError, DtypeError, ShapeError
from fusegen.wrap import tensors

_KNOWN = ("torch", "numpy", "cupy")
# Remainders to go through for whether tensors overlap. Views of one tensor leave one or two; odd strides could leave as
# many as there are elements.
TRIED = 4096


def framework_of(value: Any) -> tensors.Framework | None:
    """The adapter of ``value``'s library; None for what is no tensor. Imports nothing that is not imported yet."""
    for name in _KNOWN:
        if name in sys.modules:
            adapter: tensors.Framework = getattr(tensors, name)()
            if adapter.owns(value):
                return adapter
    return None


def enter(op: str, values: dict[str, Any]) -> tuple[tensors.Framework, dict[str, Any], Callable[[Any], Any]]:
    """The framework of a call's tensors, the arguments in it, and the function that takes a result back.

    Raises:
        DeclarationError: no tensor at all, or tensors of several frameworks.
    """
    found: dict[str, tensors.Framework] = {}
    foreign = {n: v for n, v in values.items() if framework_of(v) is None and hasattr(v, "__dlpack__")}
    if foreign:
        return _through_dlpack(op, values, foreign)
    for name, value in values.items():
        framework = framework_of(value)
        if framework is not None:
            found[name] = framework
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


def _through_dlpack(
    op: str, values: dict[str, Any], foreign: dict[str, Any]
) -> tuple[tensors.Framework, dict[str, Any], Callable[[Any], Any]]:
    """Tensors of a library without an adapter (JAX): borrowed as NumPy or CuPy arrays, results handed back likewise."""
    others = {n: f.name for n, v in values.items() if (f := framework_of(v)) is not None}
    libraries = set(map(_library, foreign.values()))
    if others or len(libraries) > 1:
        raise DeclarationError(
            op, given=f"tensors of {', '.join(sorted({*libraries, *others.values()}))}",
            expected="tensors of one framework", fix="convert them yourself, for example with from_dlpack (no copy)",
        )  # fmt: skip
    kinds = {_kind_of_device(f"{op}, argument {n}", v) for n, v in foreign.items()}
    if kinds == {1}:
        framework: tensors.Framework = tensors.numpy()
    elif kinds <= {2, 13}:
        framework = tensors.cupy()
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


def _borrowed(op: str, name: str, value: Any, framework: tensors.Framework) -> Any:
    """A tensor as an array of NumPy's or CuPy's, in the same memory.

    Raises:
        DtypeError: there is no way for its dtype.
    """
    where, dtype = f"{op}, argument {name}", str(getattr(value, "dtype", "unknown dtype"))
    if dtype not in dtypes.BY_NAME:
        raise tensors.wrong_dtype(name, f"an array of {dtype}").within(op)
    try:
        return importlib.import_module(framework.name).from_dlpack(value)
    except Exception as error:  # any: it is another library's
        reason = str(error).partition("\n")[0]
        by_hand = "numpy.asarray(x), which copies nothing," if framework.name == "numpy" else "torch.from_dlpack(x)"
        raise DtypeError(
            where, given=f"an array of {dtype} of {_library(value)}, which {framework.name} cannot borrow: {reason}",
            expected=f"a dtype that {framework.name}.from_dlpack knows", fix=f"pass {by_hand} or another dtype",
        ) from error  # fmt: skip


def is_traced(op: str, values: Sequence[Any]) -> bool:
    """Whether torch has to see a call: it traces, or a tensor has no memory (fake, meta) or a class of its own.

    Raises:
        DerivativeError: it traces in a way that cannot see what is derived.
    """
    if "torch" not in sys.modules:
        return False
    import torch

    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        from fusegen.wrap.gradients import check_no_jit_trace

        check_no_jit_trace(op)
        return is_recorded()  # what runs has transforms of its own (wrap/torch_op), with fewer steps
    given = [value for value in values if isinstance(value, torch.Tensor)]
    if any(t.is_nested for t in given):
        return False  # refused, by an error of ours
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) or t.is_meta for t in given):
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()


def is_recorded() -> bool:
    """Whether torch makes a graph of calls (make_fx, a fake mode), or functions of tensors that it copied."""
    from torch import _C

    modes = _C._TorchDispatchModeKey
    return _C._len_torch_dispatch_stack() > 0 and any(
        _C._get_dispatch_mode(key) is not None for key in (modes.PROXY, modes.FUNCTIONAL, modes.FAKE)
    )


def dispatcher() -> Callable[..., Any]:
    """What calls an op through torch's dispatcher."""
    from fusegen.wrap.dispatch import call

    return call


def compiled_call() -> Callable[..., Any]:
    """The same for code that Dynamo traces."""
    from fusegen.wrap.dynamo import call

    return call


def torch_is_unknown() -> bool:
    """Whether torch is there and lacks names that calls ask (wrap/torch_names)."""
    if "torch" not in sys.modules:
        return False
    from fusegen.wrap import torch_names

    return bool(torch_names.missing())


def torch_function(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a tensor subclass, or a mode, makes of the call through ``__torch_function__``; NotImplemented: nothing."""
    if "torch" not in sys.modules or sys.modules["torch"].compiler.is_dynamo_compiling():
        return NotImplemented
    from torch import Tensor
    from torch.nn import Parameter
    from torch.overrides import handle_torch_function, has_torch_function

    from fusegen.wrap.callpath import only_device_modes

    outs = kwargs.get("out")
    given = (*args, *kwargs.values(), *(outs if isinstance(outs, (tuple, list)) else ()))
    relevant = tuple(value for value in given if isinstance(value, Tensor))
    if not relevant or not has_torch_function(relevant):
        return NotImplemented
    if all(type(value) in (Tensor, Parameter) for value in relevant) and only_device_modes():
        return NotImplemented
    return handle_torch_function(op, relevant, *args, **kwargs)


def check_no_gradient(op: str, values: Sequence[Any]) -> None:
    """``out=`` has no place in autograd's graph, nor under torch.func's transforms."""
    import torch
    from torch.autograd import forward_ad

    given = [value for value in values if isinstance(value, torch.Tensor)]
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    dual = forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in given)
    transformed = any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in given)
    if recorded or dual or transformed:
        what = "an argument that requires a gradient" if recorded else "a tensor of torch.func or of forward mode"
        raise DerivativeError(
            f"{op}, out=", given=what, expected="no derivatives (as torch's out=)",
            fix="call under torch.no_grad(), or without out=" if recorded else "call without out=",
        )  # fmt: skip


def check_writable(op: str, outs: Sequence[Any], framework: tensors.Framework) -> None:
    """A read-only NumPy array stays what it is."""
    if framework.name == "numpy" and not all(out.flags.writeable for out in outs):
        raise DeclarationError(
            f"{op}, out=", given="a read-only array", expected="an array that can be written",
            fix="pass a fresh array",
        )  # fmt: skip


def mark_written(outs: Sequence[Any], framework: tensors.Framework) -> None:
    """Tell autograd, so that a backward that had saved one of these tensors refuses instead of reading new values."""
    if framework.name == "torch":
        import torch

        torch.autograd.graph.increment_version([out for out in outs if not out.is_inference()])


def check_overlap(op: str, values: Mapping[str, Any], outs: Sequence[Any], framework: tensors.Framework) -> None:
    """An output may be an argument, element for element. It may not overlap one otherwise: threads run in any order."""
    for i, out in enumerate(outs):
        met = [found for other in outs[:i] if (found := overlap(framework, out, other)) is not False]
        if met:
            raise ShapeError(
                f"{op}, out=", given=f"two outputs {'' if any(met) else 'that may be '}in the same memory",
                expected="memory of its own for each", fix="pass fresh tensors",
            )  # fmt: skip
        for name, value in values.items():
            if not framework.owns(value) or _identical(framework, out, value):
                continue
            found = overlap(framework, out, value)
            if found is not False:
                how = "partly overlaps" if found else "may partly overlap"
                raise ShapeError(
                    f"{op}, out=", given=f"memory that {how} argument {name}",
                    expected="the argument itself (same shape and strides), or memory of its own",
                    fix="pass a fresh tensor",
                )  # fmt: skip


def _identical(framework: tensors.Framework, one: Any, other: Any) -> bool:
    """Whether each element lies where the other's does. The stride of a dimension of size 1 leads nowhere."""
    a, b = framework.info("out", one), framework.info("out", other)
    steps = zip(a.shape, a.strides, b.strides, strict=False)
    same = a.shape == b.shape and a.dtype.size == b.dtype.size and all(x == y for size, x, y in steps if size > 1)
    return same and framework.pointer(one) == framework.pointer(other)


def overlap(framework: tensors.Framework, one: Any, other: Any) -> bool | None:
    """Whether a byte belongs to both tensors; None where that takes too long to find out."""
    (first, last), (start, end) = span(framework, one), span(framework, other)
    if first == last or start == end or first >= end or start >= last:
        return False
    # A byte of one is some steps above its first, a byte of the other some steps below its last. They are the same byte
    # where the steps together lead from that first to that last.
    most: Counter[int] = Counter()
    for value in (one, other):
        info = framework.info("out", value)
        most[1] += info.dtype.size - 1
        for size, stride in zip(info.shape, info.strides, strict=True):
            most[abs(stride) * info.dtype.size] += size - 1
    return _goes_far(end - 1 - first, sorted(most.items(), reverse=True))


def _goes_far(way: int, steps: Sequence[tuple[int, int]]) -> bool | None:
    """Whether steps, long to short and of each at most so many, make up the way; None where there are many to try."""
    left = {way}
    reach = sum(step * most for step, most in steps)
    for step, most in steps:
        if step == 0:
            continue
        reach -= step * most  # of all shorter ones: what they cannot go, this one has to
        counts = {rest: range(max(0, -((reach - rest) // step)), min(most, rest // step) + 1) for rest in left}
        if sum(map(len, counts.values())) > TRIED:
            return None
        left = {rest - count * step for rest, some in counts.items() for count in some}
    return 0 in left


def span(framework: tensors.Framework, value: Any) -> tuple[int, int]:
    """First address, and one past the last."""
    info = framework.info("out", value)
    start = framework.pointer(value)
    if 0 in info.shape:
        return start, start
    reach = [(size - 1) * stride for size, stride in zip(info.shape, info.strides, strict=True)]
    low = sum(r for r in reach if r < 0) * info.dtype.size
    high = (sum(r for r in reach if r > 0) + 1) * info.dtype.size
    return start + low, start + high
