"""``make demo``: two photographs, cross-faded by a mask, and the mask recovered from the result by gradient descent.

Everything runs through ops declared below: their CUDA on a GPU, the same CUDA on the CPU emulator elsewhere. Pictures,
the loss curve and the emitted CUDA go to build/demo/.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import skimage.data
import skimage.io
import torch
from rich.console import Console
from rich.table import Table

import fusegen as fg

OUT = Path("build/demo")
STEPS = 80
LEARNING_RATE = 0.3


@fg.op
def lerp(x: Any, y: Any, w: Any) -> Any:
    """Cross-fade from x to y by weight w; the three broadcast as in NumPy."""
    return x + w * (y - x)


@fg.op
def fade_error(x: Any, y: Any, logits: Any, target: Any) -> Any:
    """Mean squared difference between target and the cross-fade of x and y by sigmoid(logits)."""
    difference = lerp(x, y, fg.sigmoid(logits)) - target
    return fg.mean(difference * difference)


def torch_fade_error(x: Any, y: Any, logits: Any, target: Any) -> Any:
    """The same in eager torch."""
    return torch.nn.functional.mse_loss(torch.lerp(x, y, torch.sigmoid(logits).expand_as(x)), target)


class Clock:
    """Collects what each stage took."""

    def __init__(self, device: str) -> None:
        self.device, self.rows = device, Table("stage", "ran on", "time")

    def __call__(self, stage: str, work: Callable[[], Any], where: str = "") -> Any:
        start = time.perf_counter()
        result = work()
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.rows.add_row(stage, where or self.where, f"{(time.perf_counter() - start) * 1000:.1f} ms")
        return result

    @property
    def where(self) -> str:
        return torch.cuda.get_device_name() if self.device == "cuda" else "CPU, emulating the CUDA"


def photographs(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two 400 x 400 colour photographs with values from 0 to 1, shape [H, W, 3]."""
    pictures = (skimage.data.astronaut()[:400, 60:460], skimage.data.coffee()[:400, 100:500])
    first, second = (torch.from_numpy(p.copy()).to(device, torch.float32) / 255 for p in pictures)
    return first, second


def soft_disc(device: str) -> torch.Tensor:
    """A mask [H, W, 1]: 1 inside a disc, 0 outside, a soft edge between."""
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, 400, device=device)] * 2, indexing="ij")
    return torch.sigmoid(12 * (0.6 - torch.hypot(x, y)))[..., None]


def recover(x: torch.Tensor, y: torch.Tensor, blended: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """The mask that explains ``blended``, by Adam through the derived backward; and the loss at each step."""
    logits = torch.zeros(*x.shape[:2], 1, device=x.device, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=LEARNING_RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = fade_error(x, y, logits, blended)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.sigmoid(logits.detach()), losses


def difference_from_torch(x: torch.Tensor, y: torch.Tensor, blended: torch.Tensor) -> float:
    """Largest difference, over the error's value and all of its gradients, from eager torch."""
    torch.manual_seed(0)
    logits = torch.randn(*x.shape[:2], 1, device=x.device)
    found = []
    for function in (fade_error, torch_fade_error):
        inputs = [t.detach().clone().requires_grad_() for t in (x, y, logits, blended)]
        value = function(*inputs)
        found.append([value.detach(), *torch.autograd.grad(value, inputs)])
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))


def save(name: str, picture: torch.Tensor) -> None:
    """Write an [H, W, 3] or [H, W, 1] picture as PNG."""
    values = picture.detach().clamp(0, 1).mul(255).round().to(torch.uint8).cpu().numpy()
    skimage.io.imsave(OUT / f"{name}.png", values.squeeze(), check_contrast=False)


def save_strip(*pictures: torch.Tensor) -> None:
    """Write pictures of one size side by side, at half their size: docs/images/demo.jpg is such a strip."""
    colours = [picture.detach().clamp(0, 1).expand(-1, -1, 3).permute(2, 0, 1) for picture in pictures]
    half = torch.nn.functional.avg_pool2d(torch.cat(colours, -1), 2).permute(1, 2, 0)
    values = half.mul(255).round().to(torch.uint8).cpu().numpy()
    skimage.io.imsave(OUT / "strip.jpg", values, check_contrast=False, quality=88)


def draw_losses(losses: list[float]) -> None:
    """The loss over the steps, on a logarithmic scale."""
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.semilogy(losses)
    axes.set(xlabel="step", ylabel="mean squared error", title="Recovering the mask")
    figure.savefig(OUT / "loss.png", dpi=120)


def main() -> None:
    """Run it all and say what came out."""
    OUT.mkdir(parents=True, exist_ok=True)
    console = Console()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    clock = Clock(device)
    x, y = clock("load two photographs", lambda: photographs(device), "CPU")
    mask = soft_disc(device)
    blended = clock("cross-fade, first call (compiles)", lambda: lerp(x, y, mask))
    clock("cross-fade, again", lambda: lerp(x, y, mask))
    found, losses = clock(f"recover the mask, {STEPS} steps", lambda: recover(x, y, blended))
    worst = clock("compare with torch", lambda: difference_from_torch(x, y, blended))
    for name, picture in {"first": x, "second": y, "mask": mask, "blended": blended, "recovered_mask": found}.items():
        save(name, picture)
    save_strip(x, y, blended, found)
    draw_losses(losses)
    logits = torch.zeros(*x.shape[:2], 1, device=device)
    for which in ("forward", "backward"):
        (OUT / f"lerp_{which}.cu").write_text(lerp.emit(x, y, mask, which=which))
        (OUT / f"fade_error_{which}.cu").write_text(fade_error.emit(x, y, logits, blended, which=which))
    console.print(clock.rows)
    error = (found - mask).abs().mean().item()
    console.print(f"error {losses[0]:.2e} -> {losses[-1]:.2e}; the mask is found to {error:.4f} on average")
    console.print(f"largest difference from torch, value and gradients: {worst:.2e}")
    console.print(f"pictures, loss curve and CUDA: {OUT}/")
    if worst > 1e-5 or losses[-1] > losses[0] / 100:
        sys.exit("the demo did not reach its goal: see the numbers above")


if __name__ == "__main__":
    main()
