"""A gated MLP as a module, trained for a few steps: products and what stands between them in one declaration.

The library's `fg.ops.swiglu_mlp` computes the same; here it is written out, to be changed.

    python swiglu_mlp.py --device cuda
"""

import argparse

import torch
from torch import nn

import fusegen as fg


@fg.op(autocast="half")  # products: under torch.autocast in its half type
def gated(x: fg.Tensor, gate: fg.Tensor, up: fg.Tensor, down: fg.Tensor) -> fg.Tensor:
    """(silu(x @ gate^T) * (x @ up^T)) @ down^T."""
    return (fg.ops.silu(x @ gate.mT) * (x @ up.mT)) @ down.mT


class GatedMLP(nn.Module):
    """An MLP with a gate; weights are [out, in], as torch's."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(hidden, width) / width**0.5)
        self.up = nn.Parameter(torch.randn(hidden, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(width, hidden) / hidden**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gated(x, self.gate, self.up, self.down)


def main() -> None:
    """Train, and compare with torch."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GatedMLP(8, 16).to(args.device)
    x = torch.randn(64, 8, device=args.device)
    wanted = torch.sin(2 * x)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    # The same formula by torch, for one set of weights.
    by_torch = (nn.functional.silu(x @ model.gate.mT) * (x @ model.up.mT)) @ model.down.mT
    torch.testing.assert_close(model(x), by_torch)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
