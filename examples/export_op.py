"""An op of one's own in torch.export: saved by one process, loaded and run by another, which registers the op first.

python export_op.py --device cuda
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import fusegen as fg


@fg.op
def swish(x: fg.Tensor, beta: float = 1.0) -> fg.Tensor:
    """x * sigmoid(beta * x)."""
    return x * fg.sigmoid(beta * x)


class Model(nn.Module):
    """A model that calls the op."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swish(self.linear(x), 1.5)


def load_and_run(folder: Path) -> None:
    """What the other process does. The file names the op as torch.ops.fusegen.NAME: it has to be there."""
    fg.register(swish)
    program = torch.export.load(folder / "model.pt2")
    x, expected = torch.load(folder / "sample.pt")
    torch.testing.assert_close(program.module()(x), expected)


def main() -> None:
    """Export, and have another process load."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load", type=Path, help="a folder that this program has saved to")
    args = parser.parse_args()
    if args.load:
        load_and_run(args.load)
        return

    torch.manual_seed(0)
    model = Model().to(args.device).eval()
    x = torch.randn(3, 4, device=args.device)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    names = [str(node.target) for node in program.graph.nodes if str(node.target).startswith("fusegen.")]
    with tempfile.TemporaryDirectory() as text:
        torch.export.save(program, Path(text) / "model.pt2")
        more = torch.randn(7, 4, device=args.device)  # another size than the export saw
        torch.save((more, model(more).detach()), Path(text) / "sample.pt")
        subprocess.run([sys.executable, __file__, "--load", text], check=True)
    print(f"loaded elsewhere: {', '.join(names)}")


if __name__ == "__main__":
    main()
