"""Adam's update as an op of one parameter, called for all in a few launches (fg.foreach): it reads four tensors, and
writes three of them where they lie (out=). fg.optim.Adam is this with torch's options and state dicts.

The numbers that change from step to step are run-time arguments, so nothing is compiled again.

    python optimizer_step.py --device cuda
"""

import argparse
from collections.abc import Iterable

import torch

import fusegen as fg


@fg.op
def adam(
    param: fg.Tensor, grad: fg.Tensor, first: fg.Tensor, second: fg.Tensor, lr: float, beta1: float, beta2: float,
    eps: float, scale1: float, scale2: float,
) -> tuple[fg.Tensor, fg.Tensor, fg.Tensor]:  # fmt: skip
    """A parameter and both moments, one step later."""
    first = beta1 * first + (1 - beta1) * grad
    second = beta2 * second + (1 - beta2) * grad * grad
    return param - lr * scale1 * first / (fg.sqrt(scale2 * second) + eps), first, second


class Adam(torch.optim.Optimizer):
    """torch.optim.Adam without its options; every parameter has a gradient."""

    def __init__(self, params: Iterable, lr: float = 1e-3, betas: tuple = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            params = group["params"]
            for param in params:
                if not self.state[param]:
                    self.state[param] = {"first": torch.zeros_like(param), "second": torch.zeros_like(param)}
            grads = [param.grad for param in params]
            firsts, seconds = ([self.state[param][name] for param in params] for name in ("first", "second"))
            group["count"] = group.get("count", 0) + 1
            scale1, scale2 = 1 / (1 - beta1 ** group["count"]), 1 / (1 - beta2 ** group["count"])
            fg.foreach(adam)(
                params, grads, firsts, seconds, group["lr"], beta1, beta2, group["eps"], scale1, scale2,
                out=(params, firsts, seconds),
            )  # fmt: skip


def main() -> None:
    """Compare with torch.optim.Adam."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    mine = [torch.randn(16, 8, device=args.device), torch.randn(16, device=args.device)]
    torchs = [p.clone() for p in mine]
    pairs = [(p.requires_grad_(), q.requires_grad_()) for p, q in zip(mine, torchs, strict=True)]
    optimizers = Adam(mine, lr=0.1), torch.optim.Adam(torchs, lr=0.1)
    for _ in range(10):
        for param, other in pairs:
            gradient = torch.randn_like(param)
            param.grad, other.grad = gradient, gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    difference = max((p - q).abs().max().item() for p, q in pairs)
    assert difference < 1e-5, difference
    print(f"largest difference from torch.optim.Adam after 10 steps {difference:.1e}")


if __name__ == "__main__":
    main()
