"""A focal loss: forward and derived backward, compared with torch's autograd of the same formula.

In torch the formula is a dozen kernels forward and more backward; here it is one pass in each direction.

    python focal_loss.py --device cuda
"""

import argparse

import torch
from torch.nn import functional as F

import fusegen as fg


@fg.op(autocast="float32")
def focal_loss(logits: fg.Tensor, target: fg.Tensor, alpha: float = 0.25, gamma: fg.Const[int] = 2) -> fg.Tensor:
    """Mean over all elements of -alpha_t (1 - p_t)^gamma log(p_t); targets are 0 or 1."""
    log_p, log_not_p = -fg.softplus(-logits), -fg.softplus(logits)
    log_p_t = target * log_p + (1 - target) * log_not_p
    p_t = fg.exp(log_p_t)
    alpha_t = alpha * target + (1 - alpha) * (1 - target)
    return fg.mean(-alpha_t * (1 - p_t) ** gamma * log_p_t)


def by_torch(logits: torch.Tensor, target: torch.Tensor, alpha: float = 0.25, gamma: int = 2) -> torch.Tensor:
    """The same by torch's functions."""
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p = torch.sigmoid(logits)
    p_t = p * target + (1 - p) * (1 - target)
    return ((alpha * target + (1 - alpha) * (1 - target)) * (1 - p_t) ** gamma * loss).mean()


def main() -> None:
    """Compare loss and gradient."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    logits = (4 * torch.randn(50, 20, device=args.device)).requires_grad_()
    target = (torch.rand(50, 20, device=args.device) < 0.1).float()

    loss, expected = focal_loss(logits, target), by_torch(logits, target)
    (gradient,) = torch.autograd.grad(loss, logits)
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-8)
    print(f"loss {loss.item():.5f}, largest difference of gradients {(gradient - expected_gradient).abs().max():.1e}")


if __name__ == "__main__":
    main()
