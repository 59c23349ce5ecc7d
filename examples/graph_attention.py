"""Graph attention (Velickovic et al., 2018) on a list of edges: each node takes up what its neighbours are, by weights
that are a softmax over the edges which end at it.

Two functions are ops. What a layer computes of each node, two scores a head, is one pass over its features. What it
computes of each edge reads both ends' scores where the edge says (`x[source]`), takes a softmax over edges of one end
(`fg.segment_softmax`), and adds messages up at that end (`fg.index_add`), in one order: the same bits each time. The
gradients are derived. An edge to a node that is not there is an error that names it.

    python examples/graph_attention.py --device cuda --nodes 20000 --edges 400000 --hidden 128 --heads 8 --times
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusegen as fg


@fg.op
def scores(x: Any, of_source: Any, of_target: Any) -> Any:
    """What each node [nodes, heads, size] counts for as the source of an edge, and as its target."""
    return (x * of_source).sum(-1), (x * of_target).sum(-1)


@fg.op
def attended(x: Any, as_source: Any, as_target: Any, source: Any, target: Any) -> Any:
    """For each node the sum of its sources, weighted by a softmax over its edges; zero of a node without any."""
    raw = F.leaky_relu(as_source[source] + as_target[target], 0.2)
    weight = fg.segment_softmax(raw, target, x.shape[0])
    return fg.index_add(torch.zeros_like(x), 0, target, weight[..., None] * x[source])


def torchs_scores(x: Tensor, of_source: Tensor, of_target: Tensor) -> tuple[Tensor, Tensor]:
    """The same by torch."""
    return (x * of_source).sum(-1), (x * of_target).sum(-1)


def torchs_attended(x: Tensor, as_source: Tensor, as_target: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """The same by torch."""
    raw = F.leaky_relu(as_source[source] + as_target[target], 0.2)
    places = target[:, None].expand_as(raw)
    lowest = raw.new_full(as_target.shape, float("-inf"))
    top = lowest.scatter_reduce(0, places, raw.detach(), "amax")
    raised = (raw - top[target]).exp()
    weight = raised / torch.zeros_like(as_target).index_add(0, target, raised)[target]
    return torch.zeros_like(x).index_add(0, target, weight[..., None] * x[source])


class Layer(nn.Module):
    """Graph attention of several heads, side by side."""

    def __init__(self, size: int, hidden: int, heads: int, by: str) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(size, hidden, bias=False)
        self.of_source = nn.Parameter(torch.randn(heads, hidden // heads) * 0.1)
        self.of_target = nn.Parameter(torch.randn(heads, hidden // heads) * 0.1)
        self.scores, self.attended = (scores, attended) if by == "fusegen" else (torchs_scores, torchs_attended)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Features [nodes, hidden]."""
        each = self.project(x).unflatten(-1, (self.heads, -1))
        found: Tensor = self.attended(each, *self.scores(each, self.of_source, self.of_target), source, target)
        return found.flatten(1)


class Network(nn.Module):
    """Two layers, and a class for each node."""

    def __init__(self, given: argparse.Namespace, by: str) -> None:
        super().__init__()
        self.first = Layer(given.features, given.hidden, given.heads, by)
        self.second = Layer(given.hidden, given.hidden, given.heads, by)
        self.classes = nn.Linear(given.hidden, given.classes)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Scores of classes."""
        hidden = F.elu(self.first(x, source, target))
        return self.classes(F.elu(self.second(hidden, source, target)))


def graph(given: argparse.Namespace, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes of classes that their noisy features hardly tell, edges mostly within a class, and one from each node to
    itself."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(given.nodes) % given.classes
    x = torch.randn(given.nodes, given.features, generator=generator)
    x += 0.7 * F.one_hot(classes, given.features)
    source = torch.randint(0, given.nodes, (given.edges,), generator=generator)
    anywhere = torch.randint(0, given.nodes, (given.edges,), generator=generator)
    away = (torch.rand(given.edges, generator=generator) < 0.1) * anywhere
    steps = given.classes * torch.randint(0, given.nodes // given.classes, (given.edges,), generator=generator)
    target = (source + steps + away) % given.nodes
    own = torch.arange(given.nodes)
    found = x, torch.cat([source, own]), torch.cat([target, own]), classes
    return tuple(each.to(device) for each in found)  # type: ignore[return-value]


def largest_difference(ours: nn.Module, theirs: nn.Module, given: tuple[Tensor, ...]) -> float:
    """Of results and gradients by fusegen and by torch, relative to the largest of each."""
    theirs.load_state_dict(ours.state_dict())
    pairs = []
    results = [model(*given[:3]) for model in (ours, theirs)]
    pairs.append((results[0].detach(), results[1].detach()))
    for model, result in zip((ours, theirs), results, strict=True):
        model.zero_grad()
        F.cross_entropy(result, given[3]).backward()
    pairs += [(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def milliseconds(model: Any, given: tuple[Tensor, ...], turns: int = 20) -> float:
    """Of a step forward and back."""

    def wait() -> None:
        if given[0].is_cuda:
            torch.cuda.synchronize()

    for turn in range(turns + 5):
        if turn == 5:
            wait()
            start = time.perf_counter()
        F.cross_entropy(model(*given[:3]), given[3]).backward()
    wait()
    return 1e3 * (time.perf_counter() - start) / turns


def main() -> None:
    """Train, and say from which loss to which, and how far results and gradients are from torch's."""
    parser = argparse.ArgumentParser(description="graph attention")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nodes", type=int, default=60)
    parser.add_argument("--edges", type=int, default=400)
    parser.add_argument("--features", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--classes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--times", action="store_true", help="a step by fusegen, torch and torch.compile, timed")
    given = parser.parse_args()
    torch.manual_seed(0)
    tensors = graph(given, given.device)
    ours, theirs = (Network(given, by).to(given.device) for by in ("fusegen", "torch"))
    difference = largest_difference(ours, theirs, tensors)
    optimizer = fg.optim.Adam(ours.parameters(), lr=0.01)
    losses = []
    for _ in range(given.steps):
        loss = F.cross_entropy(ours(*tensors[:3]), tensors[3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, largest difference from torch {difference:.1e}")
    if given.times:
        for name, model in (("fusegen", ours), ("torch", theirs), ("torch.compile", torch.compile(theirs))):
            print(f"{name}: a step in {milliseconds(model, tensors):.2f} ms")


if __name__ == "__main__":
    main()
