"""One table of peers: who else computes an op, and how to call them. Nothing is imported before it is asked for.

torch runs its function of the op's name, or the op's expressions one by one where it has none; torch.compile gets the
same; JAX the op itself; Liger and QuACK the ops that they have kernels for.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusegen.bench.comparison import Implementation, InTorch, disagreement, results_of
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import Op
from fusegen.declare.table import draws
from fusegen.pytorch.library.eager import eager

if TYPE_CHECKING:
    import torch

Function = Callable[..., Any]

NAMES = ("torch", "torch.compile", "JAX", "Liger", "QuACK")


@dataclass(frozen=True)
class Package:
    """A library of hand-written GPU kernels.

    Args:
        module: what to import.
        functions: by name of fusegen's op, ``function(module, *tensors, **options)``; tensors in the op's order.
        owns_inputs: its backward writes gradients into what it was given.
    """

    name: str
    module: str
    functions: Mapping[str, Function]
    owns_inputs: bool = False

    def implementation(self, op: str, options: Mapping[str, Any]) -> Implementation:
        """The package's own ``op``.

        Raises:
            ImportError: the package is not installed, or does not load.
            LookupError: it has no such op.
        """
        if op not in self.functions:
            raise LookupError(f"has no {op}")
        module = importlib.import_module(self.module)
        function = self.functions[op]
        return InTorch(self.name, lambda *tensors: function(module, *tensors, **options), self.owns_inputs)


def _epsilon(x: torch.Tensor, eps: float | None) -> float:
    """What torch's rms_norm takes where nothing is said."""
    import torch

    return torch.finfo(x.dtype).eps if eps is None else eps


def _in_float32(parameter: Any) -> Any:
    """A weight as float32, converted once: the calls that are timed find it ready."""
    if not hasattr(parameter, "in_float32"):
        parameter.in_float32 = parameter.float()
    return parameter.in_float32


LIGER = Package("Liger", "liger_kernel.transformers.functional", {
    "cross_entropy": lambda m, x, y, *, reduction="mean", **_: m.liger_cross_entropy(x, y, reduction=reduction),
    "geglu": lambda m, gate, value, **_: m.liger_geglu(gate, value),
    "layer_norm": lambda m, x, weight, bias, *, eps=1e-5, **_: m.liger_layer_norm(x, weight, bias, eps),
    "rms_norm": lambda m, x, weight, *, eps=None, **_: m.liger_rms_norm(x, weight, _epsilon(x, eps)),
    "softmax": lambda m, x, **_: m.liger_softmax(x),
    "squared_relu": lambda m, x, **_: m.liger_relu_squared(x),
    "swiglu": lambda m, gate, value, **_: m.liger_swiglu(gate, value),
}, owns_inputs=True)  # fmt: skip
# Its layer norm has no autograd, and takes float32 weights whatever x is.
QUACK = Package("QuACK", "quack.rmsnorm", {
    "cross_entropy": lambda m, x, y, *, reduction="mean", **_: _quack().cross_entropy(x, y, reduction=reduction),
    "layer_norm": lambda m, x, weight, bias, *, eps=1e-5, **_: m.layernorm_fwd(
        x, _in_float32(weight), _in_float32(bias), eps
    ),
    "rms_norm": lambda m, x, weight, *, eps=None, **_: m.rmsnorm(x, weight, eps=_epsilon(x, eps)),
    "softmax": lambda m, x, **_: _quack().softmax(x),
})  # fmt: skip


def _quack() -> Any:
    return importlib.import_module("quack")


def choose(text: str | None) -> tuple[str, ...]:
    """The peers that ``--peers`` names; all if nothing is said, none for "none".

    Raises:
        DeclarationError: there is no such peer.
    """
    if text is None:
        return NAMES
    known = {name.lower(): name for name in NAMES}
    wanted = [word.strip().lower() for word in text.split(",") if word.strip() and word.strip().lower() != "none"]
    for word in wanted:
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            raise DeclarationError(
                f"--peers {text}", given=repr(word), expected=f"none, or some of {', '.join(NAMES)}",
                fix=f"did you mean {known[near[0]]}?" if near else "pass names separated by commas",
            )  # fmt: skip
    return tuple(name for name in NAMES if name.lower() in wanted)


@dataclass(frozen=True)
class Call:
    """What is computed, as peers need it.

    Args:
        op: the traced op; its name tells whether a peer has the same.
        names: which argument each tensor is, in order.
        options: every other argument, by name, defaults included.
        in_torch: the same function in torch, if the caller knows one.
    """

    op: Op
    names: Sequence[str]
    options: Mapping[str, Any]
    in_torch: Function | None = None


def peers(call: Call, wanted: Sequence[str], on_gpu: bool) -> tuple[list[Implementation], dict[str, str]]:
    """The peers among ``wanted`` that can be tried, and why the others cannot, by name."""
    makers: dict[str, Callable[[], Implementation]] = {
        "torch": lambda: InTorch("torch", _in_torch(call)),
        "torch.compile": lambda: InTorch("torch.compile", _compiled(_in_torch(call))),
        "JAX": lambda: _jax(call),
        "Liger": lambda: _of_package(LIGER, call, on_gpu),
        "QuACK": lambda: _of_package(QUACK, call, on_gpu),
    }
    found: list[Implementation] = []
    absent: dict[str, str] = {}
    for name in NAMES:
        if name not in wanted:
            continue
        try:
            found.append(makers[name]())
        except ModuleNotFoundError as error:
            absent[name] = f"{error.name} is not installed"
        except (ImportError, LookupError, OSError) as error:
            absent[name] = str(error).strip("'\"").splitlines()[0]
    return found, absent


def _of_package(package: Package, call: Call, on_gpu: bool) -> Implementation:
    implementation = package.implementation(call.op.name, call.options)
    if not on_gpu:
        raise LookupError("runs on GPUs only")
    return implementation


def _jax(call: Call) -> Implementation:
    if draws((*call.op.statements, *call.op.outputs)):
        raise LookupError("draws other random numbers")
    from fusegen.bench.peer_jax import in_jax, load_jax

    load_jax()
    return in_jax(call.op, call.names, call.options)


def _compiled(function: Function) -> Function:
    import torch

    torch.compiler.reset()  # every shape anew: a recompilation with symbolic sizes would be another kernel
    compiled: Function = torch.compile(function, dynamic=False)
    return compiled


def _in_torch(call: Call) -> Function:
    if call.in_torch is None and draws((*call.op.statements, *call.op.outputs)):
        raise LookupError("draws other random numbers")
    return call.in_torch or eager(call.op, call.names, call.options)


def namesake(
    name: str, names: Sequence[str], options: Mapping[str, Any], tensors: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> Function | None:  # fmt: skip
    """Torch's function called ``name``, if it takes these arguments and computes what is expected of them.

    Args:
        options: what is not left at its default, by name.
    """
    import torch

    for module in (torch.nn.functional, torch, torch.special):
        function = getattr(module, name, None)
        if function is None:
            continue
        by_name: Function = lambda *given, f=function: f(**dict(zip(names, given, strict=True)), **options)  # noqa: E731
        in_order: Function = lambda *given, f=function: f(*given, **options)  # noqa: E731
        for call in (by_name, in_order):
            if _computes(call, tensors, expected):
                return call
    return None


def _computes(call: Function, tensors: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Whether ``call`` takes the tensors and answers as expected; if not, it only shares the name."""
    import torch

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return not disagreement(results_of(call(*tensors)), expected)
    except Exception:  # whatever torch says of arguments that are not its own
        return False
