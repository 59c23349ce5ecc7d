"""Modules of other libraries that compute what an op computes: recognized by what they do, not imported.

Hugging Face's models hold hundreds of classes that differ in name and, in half precision, in where they round. A module
whose parts look right is tried on a few random numbers, its own forward beside the formula an op would compute; it is
taken only where the two agree, in training and in evaluation. Nothing of the module is changed by that, nor torch's
random state.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as modules_of_torch

import fusegen as fg

from ._forward import ANY, FLOAT32, REFUSALS, Compute, fused

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class NotRecognized(Exception):
    """A module that looks like a known one and is not; the message says why."""


# -- what the modules compute ----------------------------------------------------------------------------------------


@fg.op
def rounded_rms_norm(x: fg.Tensor, weight: fg.Tensor, *, eps: float) -> fg.Tensor:
    """weight (x / sqrt(mean(x^2) + eps)), the product in brackets rounded to x's dtype first, as Llama's RMSNorm."""
    wide: fg.Tensor = fg.cast(x, fg.float32)
    return weight * fg.cast(wide * fg.rsqrt(fg.mean(wide * wide, -1, keepdims=True) + eps), x.dtype)


def _epsilon(module: Any) -> float:
    found = [getattr(module, name) for name in ("variance_epsilon", "eps", "epsilon") if hasattr(module, name)]
    if len(found) != 1 or not isinstance(found[0], float):
        raise NotRecognized("it has no number eps or variance_epsilon")
    return float(found[0])


def _norm(op: Callable[..., Any]) -> Compute:
    """``op(x, weight, eps)`` of a norm whose input and weight are of one dtype; mixtures are left to the class."""

    def compute(module: Any, x: torch.Tensor) -> Any:
        weight = getattr(module, "weight", None)
        if x.dtype not in _FLOATS or (weight is not None and weight.dtype is not x.dtype):
            raise fg.DtypeError(
                type(module).__name__, given=f"an input of {x.dtype} and other weights",
                expected="float32, float16 or bfloat16, the weight's dtype", fix="cast one of them",
            )  # fmt: skip
        return op(x, weight, _epsilon(module))

    return compute


def _activation(op: Any, options: tuple[str, ...]) -> Compute:
    return lambda module, x: op(x, *options)


def _gated(name: str, op: Any, *options: str) -> Compute:
    """down_proj(op(gate_proj(x), up_proj(x))); the activation as a module where it is another one by now, or somebody
    listens to it."""

    def compute(module: Any, x: torch.Tensor) -> Any:
        gate, value = module.gate_proj(x), module.up_proj(x)
        try:
            product = op(gate, value, *options) if _is_still(module.act_fn, name) else module.act_fn(gate) * value
        except REFUSALS:
            product = module.act_fn(gate) * value
        return module.down_proj(product)

    return compute


def _packed(name: str, op: Any, *options: str) -> Compute:
    """down_proj(op(gate_up_proj(x))), where the one product holds gate and value side by side."""

    def compute(module: Any, x: torch.Tensor) -> Any:
        both = module.gate_up_proj(x)
        try:
            product = op(both, -1, *options) if _is_still(module.activation_fn, name) else None
        except REFUSALS:
            product = None
        if product is None:
            gate, value = both.chunk(2, dim=-1)
            product = value * module.activation_fn(gate)
        return module.down_proj(product)

    return compute


_PLAIN: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def _is_still(activation: nn.Module, name: str) -> bool:
    """Whether a module is the activation called so, and nobody would notice that it is not called."""
    hooks = [activation._forward_hooks, activation._forward_pre_hooks]
    hooks += [activation._backward_hooks, activation._backward_pre_hooks]
    if any(hooks) or "forward" in activation.__dict__ or modules_of_torch._has_any_global_hook():
        return False
    if activation not in _PLAIN:
        try:
            with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.random.fork_rng([]):
                _PLAIN[activation] = _recognized_activation(activation)
        except Exception:  # Another library's forward: whatever it raises, it is asked as a module.
            _PLAIN[activation] = ""
    return _PLAIN[activation] == name


# An activation's name, its op, and what it is in torch.
_ACTIVATIONS: dict[str, tuple[Any, tuple[str, ...], Compute]] = {
    "silu": (fg.ops.silu, (), F.silu),
    "gelu": (fg.ops.gelu, (), F.gelu),
    "gelu, tanh": (fg.ops.gelu, ("tanh",), functools.partial(F.gelu, approximate="tanh")),
    "quick_gelu": (fg.ops.quick_gelu, (), lambda x: x * torch.sigmoid(1.702 * x)),
    "mish": (fg.ops.mish, (), F.mish),
    "relu": (fg.ops.relu, (), F.relu),
    "squared_relu": (fg.ops.squared_relu, (), lambda x: F.relu(x).square()),
}
_GATES: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "silu": (fg.ops.swiglu, fg.ops.swiglu_packed, ()),
    "gelu": (fg.ops.geglu, fg.ops.geglu_packed, ()),
    "gelu, tanh": (fg.ops.geglu, fg.ops.geglu_packed, ("tanh",)),
    "relu": (fg.ops.reglu, fg.ops.reglu_packed, ()),
}


def _normalized(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _rms(x: torch.Tensor, weight: Any, eps: float, offset: float = 0.0) -> Any:
    return fg.ops.rms_norm(x, (x.shape[-1],), weight, eps, weight_offset=offset)


# A norm's name, its op, and what it is in torch.
_NORMS: dict[str, tuple[Compute, Compute]] = {
    "rms_norm, rounded before the weight": (
        lambda x, w, eps: rounded_rms_norm(x, w, eps=eps), lambda x, w, eps: w * _normalized(x, eps).to(x.dtype)
    ),
    "rms_norm": (_rms, lambda x, w, eps: (w.float() * _normalized(x, eps)).to(x.dtype)),
    "rms_norm, 1 + weight": (
        lambda x, w, eps: _rms(x, w, eps, 1.0), lambda x, w, eps: ((1 + w.float()) * _normalized(x, eps)).to(x.dtype)
    ),
    "rms_norm, no weight": (_rms, lambda x, w, eps: _normalized(x, eps).to(x.dtype)),
}  # fmt: skip

# What a recognized module computes, by name: a pickled one says the name.
COMPUTES: dict[str, Compute] = {name: _norm(op) for name, (op, _) in _NORMS.items()}
COMPUTES |= {name: _activation(op, options) for name, (op, options, _) in _ACTIVATIONS.items()}
COMPUTES |= {f"{name}(gate) value": _gated(name, two, *options) for name, (two, _, options) in _GATES.items()}
COMPUTES |= {f"{name}(gate) value, packed": _packed(name, one, *options) for name, (_, one, options) in _GATES.items()}


# -- recognizing them ------------------------------------------------------------------------------------------------


def recognize(module: nn.Module) -> str | None:
    """The name in ``COMPUTES`` of what ``module`` computes; None where nothing about it looks known.

    Raises:
        NotRecognized: it looks like a known module, and computes something else.
    """
    name, children, own = type(module).__name__, dict(module.named_children()), dict(module.named_parameters())
    try:
        if {"gate_proj", "up_proj", "down_proj", "act_fn"} == children.keys():
            return _recognized_mlp(module, "act_fn", ("gate_proj", "up_proj"), "")
        if {"gate_up_proj", "down_proj", "activation_fn"} == children.keys():
            return _recognized_mlp(module, "activation_fn", ("gate_up_proj",), ", packed")
        if children or list(module.buffers()):
            return None
        if "norm" in name.lower() and own.keys() <= {"weight"}:
            return _recognized_norm(module)
        if re.search(r"gelu|silu|swish|mish|relu", name, re.IGNORECASE) and not own:
            return _recognized_activation(module)
    except NotRecognized:
        raise
    except Exception as error:  # Another library's forward, on a module in pieces: whatever it raises, it is not taken.
        raise NotRecognized(f"trying it out failed: {error}") from error
    return None


def _shell(module: nn.Module, parameters: Any = None, children: Any = None, **attributes: Any) -> nn.Module:
    """A copy of the module with other parameters and children; only attributes are shared."""
    kind = type(module)
    shell = kind.__new__(kind)
    pieces = {"_parameters": dict(parameters or {}), "_modules": dict(children or {}), "_buffers": {}}
    shell.__dict__.update(module.__dict__ | pieces | attributes)
    return shell


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers on the CPU, always the same; torch's own random state is left alone."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype)


def _recognized_norm(module: nn.Module) -> str:
    weight = getattr(module, "weight", None)
    if weight is not None and weight.ndim != 1:
        raise NotRecognized("its weight is not one number a feature")
    _epsilon(module)
    attribute = next(name for name in ("variance_epsilon", "eps", "epsilon") if hasattr(module, name))
    size = 64 if weight is None else weight.numel()
    for name, (_, meaning) in _NORMS.items():
        if (weight is None) is (name == "rms_norm, no weight") and all(
            _agrees(module, {attribute: 0.25, "training": training}, meaning, size, weight is not None, dtype)
            for dtype, training in ((torch.bfloat16, False), (torch.float32, False), (torch.float32, True))
        ):
            return name
    raise NotRecognized("on random numbers it differs from every RMS norm known here")


def _agrees(
    module: nn.Module, attributes: dict[str, Any], meaning: Compute, size: int, weighted: bool, dtype: torch.dtype
) -> bool:
    """Equal roundings in bfloat16, but for a few ties that another order of sums decides; close in float32.

    ``attributes``: eps, large so that it matters, and whether the module trains.
    """
    x, w = random(2048 // size + 2, size, dtype=dtype), random(size, dtype=dtype)
    shell = _shell(module, {"weight": nn.Parameter(w)} if weighted else None, **attributes)
    found, expected = type(module).forward(shell, x), meaning(x, w, next(iter(attributes.values())))
    if found.dtype is not dtype or found.shape != x.shape:
        return False
    if dtype is torch.float32:
        return torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    return float((found != expected).float().mean()) < 0.02


def _recognized_activation(module: nn.Module) -> str:
    far = torch.tensor([1e-4, 20.0, 50.0, 1e3, 1e5], dtype=torch.float64, device="cpu")
    x = torch.cat([torch.linspace(-8, 8, 65, dtype=torch.float64, device="cpu"), far, -far])
    forward = getattr(type(module), "fusegen_base", type(module)).forward
    pieces = dict(module.named_parameters(recurse=False)), dict(module.named_children())
    found = [forward(_shell(module, *pieces, training=training), x.clone()) for training in (False, True)]
    for name, (_, _, meaning) in _ACTIVATIONS.items():
        if all(y.shape == x.shape and torch.allclose(y, meaning(x), rtol=1e-6, atol=1e-9) for y in found):
            return name
    raise NotRecognized("it differs from every activation known here")


def _recognized_mlp(module: nn.Module, act: str, into: tuple[str, ...], suffix: str) -> str:
    activation = getattr(module, act)
    if "forward" in activation.__dict__:
        raise NotRecognized("its activation's forward was replaced on the module itself")
    name = _recognized_activation(activation)
    if name not in _GATES:
        raise NotRecognized(f"its activation, {name}, is no gate known here")
    tiny = {part: _linear(4, 12 // len(into), number) for number, part in enumerate(into)}
    down = _linear(12 // len(into) if len(into) == 2 else 6, 4, 7)
    children = dict(module.named_children()) | tiny | {"down_proj": down}
    x = random(5, 4, dtype=torch.float64)
    parts = [tiny[part](x) for part in into]
    gate, value = parts if len(parts) == 2 else parts[0].chunk(2, dim=-1)
    expected = down(_ACTIVATIONS[name][2](gate) * value)
    found = [
        type(module).forward(_shell(module, children=children, training=training), x) for training in (False, True)
    ]
    if not all(y.shape == expected.shape and torch.allclose(y, expected, rtol=1e-6, atol=1e-9) for y in found):
        raise NotRecognized(f"on random numbers it differs from down_proj({name}(gate) value)")
    return f"{name}(gate) value{suffix}"


def _linear(inputs: int, outputs: int, seed: int) -> nn.Linear:
    made = nn.Linear(inputs, outputs, bias=False, dtype=torch.float64, device="meta")
    made.weight = nn.Parameter(random(outputs + seed, inputs, dtype=torch.float64)[seed:])
    return made


# -- their classes ---------------------------------------------------------------------------------------------------


_ADOPTED: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}


def adopted(base: type[nn.Module], name: str) -> type[nn.Module]:
    """The subclass of ``base``, under its name, that computes ``COMPUTES[name]``; the same one every time."""
    made = _ADOPTED.get((base, name))
    if made is None:
        made = _ADOPTED.setdefault((base, name), _subclass(base, name))
    return made


def _subclass(base: type[nn.Module], name: str) -> type[nn.Module]:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        """Pickled and copied as its class and what it computes: the subclass has no name of its own to import."""
        parts: Any = base.__reduce_ex__(self, max(int(protocol), 2))
        return (_revived, (base, name), *parts[2:])

    # Under torch.autocast a gated MLP ends in a matrix product, which chooses the dtype; what the functions that
    # another library put together give for half types, nobody knows.
    forward = fused(_of_one(COMPUTES[name], base), base.forward, ANY if "(gate)" in name else FLOAT32)
    made = type(base.__name__, (base,), {"forward": forward, "__reduce_ex__": reduce_ex, "fusegen_base": base})
    made.__module__, made.__qualname__, made.__doc__ = base.__module__, base.__qualname__, base.__doc__
    return made


def _of_one(compute: Compute, base: type[nn.Module]) -> Compute:
    """``compute``, which is known of calls with one argument: those that say more go to the class's own forward."""
    parameters = list(inspect.signature(base.forward).parameters.values())
    defaults = [parameter.default for parameter in parameters[2:]]

    def of_one(module: Any, x: torch.Tensor, *others: Any) -> Any:
        if any(other is not default for other, default in zip_longest(others, defaults[: len(others)])):
            raise fg.DeclarationError(
                base.__name__, given=f"{1 + len(others)} arguments", expected="one", fix="leave the others out"
            )
        return compute(module, x)

    return of_one


def _revived(base: type[nn.Module], name: str) -> nn.Module:
    kind = adopted(base, name)
    made: nn.Module = kind.__new__(kind)
    return made
