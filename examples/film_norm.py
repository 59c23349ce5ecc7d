"""A layer norm whose scale and shift come from a conditioning vector (FiLM, adaptive layer norm), in one pass.

x is [batch, tokens, width]; the condition's scale and shift are [batch, 1, width], and broadcast over the tokens.

    python film_norm.py --device cuda
"""

import argparse

import torch
from torch import nn

import fusegen as fg


@fg.op(autocast="float32")
def film_norm(x: fg.Tensor, scale: fg.Tensor, shift: fg.Tensor, eps: float = 1e-5) -> fg.Tensor:
    """(x - mean) / std over the last dimension, times 1 + scale, plus shift."""
    centered = x - fg.mean(x, -1, keepdims=True)
    variance = fg.mean(centered * centered, -1, keepdims=True)
    return centered * fg.rsqrt(variance + eps) * (1 + scale) + shift


class FilmNorm(nn.Module):
    """The norm, and what makes scale and shift of a condition."""

    def __init__(self, width: int, condition: int) -> None:
        super().__init__()
        self.to_scale_and_shift = nn.Linear(condition, 2 * width)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        scale, shift = self.to_scale_and_shift(condition)[:, None].chunk(2, -1)
        return film_norm(x, scale, shift)


def main() -> None:
    """Compare results and gradients with torch."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    module = FilmNorm(32, 6).to(args.device)
    x = torch.randn(2, 5, 32, device=args.device, requires_grad=True)
    condition = torch.randn(2, 6, device=args.device)
    d_out = torch.randn(2, 5, 32, device=args.device)

    leaves = x, *module.parameters()
    gradients = torch.autograd.grad(module(x, condition), leaves, d_out)

    scale, shift = module.to_scale_and_shift(condition)[:, None].chunk(2, -1)
    by_torch = nn.functional.layer_norm(x, (32,)) * (1 + scale) + shift
    torch.testing.assert_close(module(x, condition), by_torch)
    expected = torch.autograd.grad(by_torch, leaves, d_out)
    torch.testing.assert_close(gradients, expected)
    difference = max((g - e).abs().max().item() for g, e in zip(gradients, expected, strict=True))
    print(f"{len(gradients)} gradients, largest difference from torch {difference:.1e}")


if __name__ == "__main__":
    main()
