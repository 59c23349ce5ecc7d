"""Random layers of halves: results and gradients no further from float64 than torch's, whichever candidate runs."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.matmul import padding
from tests.matmul.test_cudnn import HALVES

Function = Callable[..., Any]

ACTIVATIONS: dict[str, tuple[Function, Function]] = {
    "relu": (fg.ops.relu, F.relu), "leaky_relu": (fg.ops.leaky_relu, F.leaky_relu), "silu": (fg.ops.silu, F.silu),
    "tanh": (fg.tanh, torch.tanh), "hardtanh": (fg.ops.hardtanh, F.hardtanh), "gelu": (fg.ops.gelu, F.gelu),
    "squared_relu": (fg.ops.squared_relu, lambda h: F.relu(h) ** 2), "none": (lambda h: h, lambda h: h),
}  # fmt: skip
# Tensors by name, and what becomes of them: by a linear layer and two activations.
LAYERS: dict[str, tuple[str, Function]] = {
    "mlp": ("x w b u c", lambda linear, f, g, x, w, b, u, c: g(linear(f(linear(x, w, b)), u, c))),
    "gate": ("x w b v d", lambda linear, f, g, x, w, b, v, d: f(linear(x, w, b)) * g(linear(x, v, d))),
    "residual": ("x w b r", lambda linear, f, g, x, w, b, r: f(linear(x, w, b) + r)),
    "sum": ("x w b v d", lambda linear, f, g, x, w, b, v, d: f(linear(x, w, b) + linear(x, v, d))),
    "two products": ("x w b u", lambda linear, f, g, x, w, b, u: f(linear(linear(x, w, b), u))),
    "mask": ("x w b r", lambda linear, f, g, x, w, b, r: f(linear(x, w, b)) * r + g(r)),
}


def shapes(lead: Sequence[int], inner: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {
        "x": (*lead, inner), "w": (columns, inner), "b": (columns,), "u": (inner, columns), "c": (inner,),
        "r": (*lead, columns), "v": (columns, inner), "d": (columns,),
    }  # fmt: skip


def results(function: Function, given: Sequence[torch.Tensor], cotangent: torch.Tensor) -> list[torch.Tensor]:
    own = [tensor.detach().requires_grad_() for tensor in given]
    result = function(*own)
    return [result.detach(), *torch.autograd.grad(result, own, cotangent.to(result.dtype))]


@pytest.mark.parametrize("rounded_up", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_no_further_from_float64_than_torch(seed: int, rounded_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if rounded_up:
        monkeypatch.setattr(padding, "pays", lambda *_: True)
    choose = random.Random(seed)
    for name, (names, layer) in LAYERS.items():
        (first, torchs_first), (second, torchs_second) = choose.choices(list(ACTIVATIONS.values()), k=2)
        dtype, lead = choose.choice(HALVES), choose.choice([(500,), (20, 30), (600,), (1,)])
        sizes = shapes(lead, *choose.choice([(8, 16), (13, 11), (16, 8)]))
        given = [
            (torch.randn(sizes[n]) * (2 if len(sizes[n]) == 1 else sizes[n][-1] ** -0.5 if n in "wuv" else 1)).to(dtype)
            for n in names.split()
        ]
        ours = eval(  # an op's arguments have names
            f"lambda {','.join(names.split())}: layer(linear, f, g, {','.join(names.split())})",
            {"layer": layer, "linear": fg.linear, "f": first, "g": second},
        )

        def theirs(*tensors: Any, layer: Function = layer, f: Any = torchs_first, g: Any = torchs_second) -> Any:
            return layer(F.linear, f, g, *tensors)

        cotangent = torch.randn_like(theirs(*given))
        exact, torchs = (results(theirs, tensors, cotangent) for tensors in ([t.double() for t in given], given))
        op = fg.op(ours, name="layer")
        for _ in range(3):
            for mine, other, true in zip(results(op, given, cotangent), torchs, exact, strict=True):
                limit = 2.5 * (other.double() - true).norm() + 3 * torch.finfo(dtype).eps * true.norm() + 1e-6
                assert (mine.double() - true).norm() <= limit, (name, dtype, lead)
