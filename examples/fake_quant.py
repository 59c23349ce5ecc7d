"""Training with 4-bit weights: a declared gradient that passes straight through the rounding, and learns the step.

The step's gradient is that of "Learned Step Size Quantization" (Esser et al.).

    python fake_quant.py --device cuda
"""

import argparse

import torch
from torch import nn

import fusegen as fg


@fg.op
def fake_quantize(x: fg.Tensor, step: fg.Tensor, low: fg.Const[int] = -8, high: fg.Const[int] = 7) -> fg.Tensor:
    """x rounded to whole steps."""
    return fg.clamp(fg.round(x / step), low, high) * step


@fake_quantize.gradient
def _(d_out, x, step, low, high):
    scaled = x / step
    is_inside = (scaled >= low) & (scaled <= high)
    d_step = fg.where(is_inside, fg.round(scaled) - scaled, fg.clamp(scaled, low, high))
    return fg.where(is_inside, d_out, 0), d_out * d_step  # step broadcasts: fusegen adds its gradient up


class QuantizedLinear(nn.Linear):
    """A linear layer whose weights are whole steps; each row has a step of its own."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.step = nn.Parameter(self.weight.detach().abs().amax(1, keepdim=True) / 7)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(input, fake_quantize(self.weight, self.step), self.bias)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(128, 8, device=args.device)
    wanted = x @ torch.randn(8, 4, device=args.device)
    model = QuantizedLinear(8, 4).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    with torch.no_grad():
        levels = (fake_quantize(model.weight, model.step) / model.step).round().unique().numel()
    assert levels <= 16, levels
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} with {levels} levels")


if __name__ == "__main__":
    main()
