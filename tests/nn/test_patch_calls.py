"""``fg.patch``: calls that say more than an op takes, and loss functions that a model holds under other names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fusegen as fg


class GatedRMSNorm(nn.Module):
    """As Mamba's: a norm, of a product where a gate is passed."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size))
        self.variance_epsilon = 1e-6

    def forward(self, states: torch.Tensor, gate: Any = None) -> torch.Tensor:
        wide = states.float() if gate is None else states.float() * F.silu(gate.float())
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(states.dtype)


class ScaledGELU(nn.Module):
    def forward(self, x: torch.Tensor, scale: Any = None) -> torch.Tensor:
        return F.gelu(x) if scale is None else F.gelu(x) * scale


class NamedSiLU(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: float = 1.0, **more: Any) -> torch.Tensor:
        return F.silu(x) * scale * more.get("again", 1.0)


class ResidualMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor, residual: Any = None) -> torch.Tensor:
        made: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return made if residual is None else made + residual


OTHER = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
# A module, how it is computed, and calls beside the one with one argument: what they say by position and by name.
CALLS: dict[str, tuple[nn.Module, str, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "a norm": (
        GatedRMSNorm(6), "rms_norm, rounded before the weight", [((OTHER,), {}), ((), {"gate": OTHER}), ((None,), {})]
    ),
    "an activation": (ScaledGELU(), "gelu", [((2.0,), {}), ((), {"scale": OTHER}), ((), {"scale": None})]),
    "options by name": (NamedSiLU(), "silu", [((), {"scale": 2.0}), ((), {"again": 3.0}), ((), {"scale": 1.0})]),
    "a gated layer": (ResidualMLP(), "silu(gate) value", [((OTHER,), {}), ((), {"residual": OTHER})]),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_what_else_is_said_goes_to_the_modules_own_forward(what: str) -> None:
    module, computes, calls = CALLS[what]
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    first = next(iter(type(module).forward.__annotations__))
    calls = [((x,), {}), ((), {first: x}), *(((x, *more), named) for more, named in calls)]
    expected = [module(*given, **named) for given, named in calls]
    with fg.patch(module) as patched:
        assert patched.swapped[""] == computes
        found = [module(*given, **named) for given, named in calls]
        with pytest.raises(TypeError):
            module(x, x, x)
    torch.testing.assert_close(found, expected)


def ForCausalLMLoss(
    logits: Any, labels: Any, vocab_size: int, num_items_in_batch: Any = None, **_: Any
) -> torch.Tensor:
    logits, words = logits.float().view(-1, vocab_size), F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    loss = F.cross_entropy(logits, words, reduction="mean" if num_items_in_batch is None else "sum")
    return loss if num_items_in_batch is None else loss / num_items_in_batch


class Model(nn.Module):
    @property
    def loss_function(self) -> Callable[..., torch.Tensor]:
        return self.__dict__.get("_loss_function", ForCausalLMLoss)


class Told(Model):
    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.loss_function(logits, labels, logits.shape[-1])


class Silent(Model):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


def test_a_loss_function_is_known_by_who_calls_it() -> None:
    """A model of images and text has the same loss as one of text, and another name."""
    model = nn.ModuleList([Told(), Silent()])
    logits, labels = torch.randn(2, 6, 7), torch.tensor([[1, 2, -100, 6, 3], [0, 5, 4, -100, 2]])
    for dtype in (torch.float32, torch.bfloat16):
        whole = logits.to(dtype)
        # In half types torch's own takes slices as well, which it copies.
        given = whole[:, 1:] if dtype is torch.bfloat16 else whole[:, 1:].contiguous()
        expected = model[0](given, labels)
        with fg.patch(model) as patched:
            assert patched.swapped == {"0.loss_function": "cross_entropy of float32 logits"}
            torch.testing.assert_close(model[0](given, labels), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_torchs() -> None:
    nested = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)])
    for mine, theirs in ((fg.nn.LayerNorm(16), nn.LayerNorm(16)), (fg.nn.GELU(), nn.GELU())):
        found, expected = mine(nested), theirs(nested)
        torch.testing.assert_close(found.unbind(), expected.unbind())
    with pytest.raises(fg.DtypeError, match="a nested tensor"):
        fg.ops.layer_norm(nested, (16,))
