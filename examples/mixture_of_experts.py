"""A mixture of experts (Shazeer et al., 2017): each token goes to the two experts that its router's scores are best
for, and takes up what they answer, weighted by a softmax over the two.

An expert has room for so many tokens, as in a Switch Transformer (Fedus et al., 2021), so that no size depends on
numbers, and nothing waits for the device. Five functions are ops. `routes` counts each expert's tokens and says where
each is put; who has no room is put nowhere (`fg.NOWHERE`). `dispatched` reads tokens into the experts' rows. What is
between an expert's products is one kernel. `combined` reads the answers of a token's experts and adds them up,
weighted, without a copy of what it reads. `balance` is the loss that keeps experts busy. Products are torch's, of all
experts at once.

    python examples/mixture_of_experts.py --device cuda --tokens 8192 --size 1024 --hidden 2048 --experts 16 --times
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusegen as fg


@fg.op
def routes(chosen: Any, experts: fg.Const, room: fg.Const, each: fg.Const) -> Any:
    """Where each choice [tokens * each] of an expert is put, of ``experts * room`` rows, and which token each row has.

    Choices of one expert are counted in their order; the first have room.
    """
    is_it = fg.one_hot(chosen, experts)
    before = fg.sum(fg.cumsum(is_it, 0) * is_it, -1) - 1
    row = fg.where(before < room, chosen * room + before, fg.NOWHERE)
    token = fg.arange(chosen.shape[0]) // each
    return row, fg.scatter(fg.full(experts * room, fg.NOWHERE), 0, row, token)


@fg.op
def dispatched(x: Any, token: Any) -> Any:
    """The tokens of all rows; zeros in rows that have none."""
    return fg.take(x, token)


@fg.op
def gated(both: Any) -> Any:
    """What is between an expert's products."""
    gate, value = both.chunk(2, -1)
    return F.silu(gate) * value


@fg.op
def combined(answers: Any, row: Any, scores: Any) -> Any:
    """Answers [rows, size] at the rows [tokens, each] of a token, weighted by a softmax over its experts' scores."""
    weight = torch.softmax(scores, -1)
    return (fg.take(answers, row) * weight[..., None]).sum(1)


@fg.op
def balance(logits: Any, chosen: Any) -> Any:
    """How many tokens each expert gets times what the router thinks of it: 1 where all are as busy, and more else."""
    experts = logits.shape[-1]
    share = fg.bincount(chosen, experts) / chosen.shape[0]
    return experts * (share * torch.softmax(logits, -1).mean(0)).sum()


def torchs_routes(chosen: Tensor, experts: int, room: int, each: int) -> tuple[Tensor, Tensor]:
    """The same by torch, where a row and a token more stand for none."""
    is_it = F.one_hot(chosen, experts)
    before = (is_it.cumsum(0) * is_it).sum(-1) - 1
    row = torch.where(before < room, chosen * room + before, experts * room)
    token = torch.arange(len(chosen), device=chosen.device) // each
    none = torch.full((experts * room + 1,), len(chosen) // each, device=chosen.device)
    return row, none.scatter(0, row, token)[:-1]


def torchs_dispatched(x: Tensor, token: Tensor) -> Tensor:
    """The same by torch."""
    return F.pad(x, (0, 0, 0, 1))[token]


def torchs_gated(both: Tensor) -> Tensor:
    """The same by torch."""
    gate, value = both.chunk(2, -1)
    return F.silu(gate) * value


def torchs_combined(answers: Tensor, row: Tensor, scores: Tensor) -> Tensor:
    """The same by torch."""
    return (F.pad(answers, (0, 0, 0, 1))[row] * torch.softmax(scores, -1)[..., None]).sum(1)


def torchs_balance(logits: Tensor, chosen: Tensor) -> Tensor:
    """The same by torch."""
    experts = logits.shape[-1]
    share = F.one_hot(chosen, experts).float().mean(0)
    return experts * (share * torch.softmax(logits, -1).mean(0)).sum()


OURS = routes, dispatched, gated, combined, balance
THEIRS = torchs_routes, torchs_dispatched, torchs_gated, torchs_combined, torchs_balance


class Mixture(nn.Module):
    """Experts, each a gated network, and their router."""

    def __init__(self, given: argparse.Namespace, by: str) -> None:
        super().__init__()
        self.each, self.experts = given.each, given.experts
        self.room = math.ceil(given.spare * given.each * given.tokens / given.experts)
        self.functions: Any = OURS if by == "fusegen" else THEIRS
        self.router = nn.Linear(given.size, given.experts, bias=False)
        self.up = nn.Parameter(torch.randn(given.experts, given.size, 2 * given.hidden) / given.size**0.5)
        self.down = nn.Parameter(torch.randn(given.experts, given.hidden, given.size) / given.hidden**0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [tokens, size], and the loss of the router."""
        routes, dispatched, gated, combined, balance = self.functions
        logits = self.router(x)
        scores, chosen = logits.topk(self.each, -1)  # the best scores, whose softmax is that of all, renormed
        chosen = chosen.flatten()
        row, token = routes(chosen, self.experts, self.room, self.each)
        given = dispatched(x, token).unflatten(0, (self.experts, self.room))
        answers = torch.bmm(gated(torch.bmm(given, self.up)), self.down).flatten(0, 1)
        return combined(answers, row.unflatten(0, (-1, self.each)), scores), balance(logits, chosen)


def task(given: argparse.Namespace, device: str) -> tuple[Tensor, Tensor]:
    """Tokens of several kinds, and what is to become of them: a rotation of its own for each kind."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(0, given.experts, (given.tokens,), generator=generator)
    centres = torch.randn(given.experts, given.size, generator=generator)
    turns = torch.linalg.qr(torch.randn(given.experts, given.size, given.size, generator=generator)).Q
    x = centres[kinds] + 0.3 * torch.randn(given.tokens, given.size, generator=generator)
    wanted = torch.empty_like(x)
    for kind in range(given.experts):
        wanted[kinds == kind] = x[kinds == kind] @ turns[kind]
    return x.to(device), wanted.to(device)


def loss_of(model: Any, x: Tensor, wanted: Tensor) -> Tensor:
    """What is minimized."""
    found, busy = model(x)
    return F.mse_loss(found, wanted) + 0.01 * busy


def largest_difference(ours: nn.Module, theirs: nn.Module, x: Tensor, wanted: Tensor) -> float:
    """Of results and gradients by fusegen and by torch, relative to the largest of each."""
    theirs.load_state_dict(ours.state_dict())
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    pairs = [(ours(x)[0].detach(), theirs(x)[0].detach())]
    for model, leaf in zip((ours, theirs), inputs, strict=True):
        model.zero_grad()
        loss_of(model, leaf, wanted).backward()
    leaves = ((inputs[0], *ours.parameters()), (inputs[1], *theirs.parameters()))
    pairs += [(a.grad, b.grad) for a, b in zip(*leaves, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def milliseconds(model: Any, x: Tensor, wanted: Tensor, turns: int = 20) -> float:
    """Of a step forward and back."""

    def wait() -> None:
        if x.is_cuda:
            torch.cuda.synchronize()

    for turn in range(turns + 5):
        if turn == 5:
            wait()
            start = time.perf_counter()
        loss_of(model, x, wanted).backward()
    wait()
    return 1e3 * (time.perf_counter() - start) / turns


def main() -> None:
    """Train, and say from which loss to which, and how far results and gradients are from torch's."""
    parser = argparse.ArgumentParser(description="a mixture of experts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--each", type=int, default=2, help="experts of a token")
    parser.add_argument("--spare", type=float, default=1.25, help="an expert's room over its share of all tokens")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--times", action="store_true", help="a step by fusegen, torch and torch.compile, timed")
    given = parser.parse_args()
    torch.manual_seed(0)
    x, wanted = task(given, given.device)
    ours, theirs = (Mixture(given, by).to(given.device) for by in ("fusegen", "torch"))
    difference = largest_difference(ours, theirs, x, wanted)
    optimizer = fg.optim.Adam(ours.parameters(), lr=0.01)
    losses = []
    for _ in range(given.steps):
        loss = loss_of(ours, x, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, largest difference from torch {difference:.1e}")
    if given.times:
        for name, model in (("fusegen", ours), ("torch", theirs), ("torch.compile", torch.compile(theirs))):
            print(f"{name}: a step in {milliseconds(model, x, wanted):.2f} ms")


if __name__ == "__main__":
    main()
