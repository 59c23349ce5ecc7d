"""A sequence to sequence model: LSTM encoder and decoder, attention, dropout, masks by length, label smoothing.

Each function below is torch code. Run with ``--by fusegen`` they are ops: a step of an LSTM is a product and one kernel
behind it, its backward a kernel that writes the gradients of the packed gates, and two products; attention is two
products with a masked softmax between them; what follows it is two products, without a copy of what they are of, and a
kernel that draws dropout's mask again in its backward. The optimizer is one of fusegen's. ``--by torch``, ``compile``
and ``cudnn`` run them as they stand, by torch.compile, and with torch.nn.LSTM in the place of the steps.

The corpus is made here: numbers digit by digit, to be read out backwards in words. Of the model that Paddle measured:

    python examples/seq2seq.py --device cuda --batch 128 --hidden 512 --source 17191 --target 7709 --length 30
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fusegen as fg

PAD, START = 0, 1


def lstm_step(of_input: Any, weight: Any, cell: Any, hidden: Any, is_inside: Any) -> Any:
    """The states behind one step, of the input's packed gates; sequences that have ended stay as they are."""
    i, f, g, o = (of_input + F.linear(hidden, weight)).chunk(4, -1)
    after = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    out = torch.sigmoid(o) * torch.tanh(after)
    return torch.where(is_inside, out, hidden), torch.where(is_inside, after, cell)


def attention(states: Any, memory: Any, lengths: Any) -> Any:
    """What each state reads of the memory, which is as long as ``lengths`` says."""
    scores = states @ memory.mT
    is_inside = fg.index(scores, -1) < lengths[:, None, None]
    return torch.softmax(torch.where(is_inside, scores, float("-inf")), -1) @ memory


def torchs_attention(states: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
    """The same where positions are a tensor."""
    scores = states @ memory.mT
    is_inside = torch.arange(memory.shape[1], device=memory.device) < lengths[:, None, None]
    return torch.softmax(torch.where(is_inside, scores, float("-inf")), -1) @ memory


def combined(context: Any, states: Any, weight: Any, p: float) -> Any:
    """A state and what it has read as one vector."""
    return F.dropout(torch.tanh(F.linear(torch.cat([context, states], -1), weight)), p)


class Lstm(nn.Module):
    """Layers of an LSTM over sequences [length, batch, size] that end after ``lengths`` steps."""

    def __init__(self, size: int, layers: int, p: float, functions: Any) -> None:
        super().__init__()
        self.torchs = nn.LSTM(size, size, layers, dropout=p)  # the parameters; by cuDNN also the function
        self.layers, self.p, self.functions = layers, p, functions

    def forward(self, x: Tensor, lengths: Tensor, states: list[tuple[Tensor, Tensor]] | None = None) -> Any:
        """The outputs, and the states of each layer at the end."""
        length, batch, size = x.shape
        if states is None:
            states = [(x.new_zeros(batch, size), x.new_zeros(batch, size))] * self.layers
        is_inside = (torch.arange(length, device=x.device)[:, None] < lengths)[..., None]
        if self.functions.by == "cudnn":
            given = tuple(torch.stack(each) for each in zip(*states, strict=True))
            out, (hidden, cell) = self.torchs(x, given)  # its last states are those behind the padding
            return out, list(zip(hidden, cell, strict=True))
        behind = []
        for layer, (hidden, cell) in enumerate(states):
            own = [
                getattr(self.torchs, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            gates = F.linear(x, own[0], own[2] + own[3])
            outputs = []
            for of_input, inside in zip(gates.unbind(), is_inside.unbind(), strict=True):
                hidden, cell = self.functions.lstm_step(of_input, own[1], cell, hidden, inside)
                outputs.append(hidden)
            x = torch.stack(outputs)
            if layer + 1 < self.layers:
                x = self.functions.dropout(x, self.p, self.training)
            behind.append((hidden, cell))
        return x, behind


class Functions:
    """The functions above, by one implementation."""

    def __init__(self, by: str) -> None:
        self.by = by
        if by == "fusegen":
            self.lstm_step, self.attention = fg.op(lstm_step), fg.op(attention)
            self.combined: Any = fg.op(combined, random=True)
            self.dropout: Any = fg.ops.dropout
            self.cross_entropy: Any = fg.ops.cross_entropy
        else:
            self.lstm_step, self.attention, self.combined = lstm_step, torchs_attention, combined
            self.dropout, self.cross_entropy = F.dropout, F.cross_entropy


class Seq2Seq(nn.Module):
    """Encoder, decoder, attention, and the loss of the words that come next."""

    def __init__(self, given: argparse.Namespace, by: str) -> None:
        super().__init__()
        self.functions, self.p = Functions(by), given.dropout
        self.source = nn.Embedding(given.source, given.hidden, PAD)
        self.target = nn.Embedding(given.target, given.hidden, PAD)
        self.encoder = Lstm(given.hidden, given.layers, given.dropout, self.functions)
        self.decoder = Lstm(given.hidden, given.layers, given.dropout, self.functions)
        self.both = nn.Linear(2 * given.hidden, given.hidden, bias=False)
        self.words = nn.Linear(given.hidden, given.target)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The loss for sequences [batch, length] with padding behind them."""
        of_source, of_target = (source != PAD).sum(1), (target != PAD).sum(1)
        memory, states = self.encoder(self.source(source.mT), of_source)
        found, _ = self.decoder(self.target(target[:, :-1].mT), of_target - 1, states)
        memory, found = (each.transpose(0, 1).contiguous() for each in (memory, found))
        context = self.functions.attention(found, memory, of_source)
        words = self.words(self.functions.combined(context, found, self.both.weight, self.p))
        loss: Tensor = self.functions.cross_entropy(
            words.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1
        )
        return loss


def corpus(given: argparse.Namespace, device: str) -> tuple[Tensor, Tensor]:
    """Numbers of several lengths, and their words from the last digit to the first."""
    generator = torch.Generator().manual_seed(given.seed)
    lengths = torch.randint(2, given.length + 1, (given.batch,), generator=generator)
    lengths[0] = given.length
    digits = torch.randint(0, min(given.source, given.target) - 2, (given.batch, given.length), generator=generator)
    place = torch.arange(given.length)
    is_inside = place < lengths[:, None]
    backwards = digits.gather(1, (lengths[:, None] - 1 - place).clamp(min=0))
    source, target = (torch.where(is_inside, numbers + 2, PAD) for numbers in (digits, backwards))
    starts = torch.full((given.batch, 1), START)
    return source.to(device), torch.cat([starts, target], 1).to(device)


def train(model: Any, given: argparse.Namespace, device: str) -> tuple[list[float], list[float]]:
    """The loss of each step, and its milliseconds."""
    ours = given.by == "fusegen"
    optimizer = (fg.optim.Adam if ours else torch.optim.Adam)(model.parameters(), lr=given.rate)
    clip = fg.optim.clip_grad_norm_ if ours else nn.utils.clip_grad_norm_
    losses, times = [], []
    for step in range(given.steps):
        given.seed = step % given.batches
        source, target = corpus(given, device)
        start = time.perf_counter()
        loss = model(source, target)
        optimizer.zero_grad()
        loss.backward()
        clip(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
        times.append(1e3 * (time.perf_counter() - start))
    return losses, times


def largest_difference(given: argparse.Namespace, device: str) -> float:
    """Between gradients by fusegen and by torch, without dropout, relative to the largest of each parameter."""
    without = argparse.Namespace(**{**vars(given), "dropout": 0.0, "seed": 0})
    source, target = corpus(without, device)
    torch.manual_seed(0)
    ours, theirs = (Seq2Seq(without, by).to(device) for by in ("fusegen", "torch"))
    theirs.load_state_dict(ours.state_dict())
    for model in (ours, theirs):
        model(source, target).backward()
    pairs = [(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs if a is not None and b is not None)


def draw(losses: list[float], path: Path) -> None:
    """The loss of each step as a picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(losses)
    axes.set(xlabel="step", ylabel="loss", title="Numbers, read out backwards")
    figure.savefig(path)


def main() -> None:
    """Train, and say from which loss to which, how long a step takes, and how far gradients are from torch's."""
    parser = argparse.ArgumentParser(description="a sequence to sequence model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--by", default="fusegen", choices=["fusegen", "torch", "compile", "cudnn"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=4, help="of which the corpus is made")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--source", type=int, default=12, help="words of the source")
    parser.add_argument("--target", type=int, default=12, help="words of the target")
    parser.add_argument("--length", type=int, default=5, help="words of the longest sequence")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--curve", type=Path, metavar="FILE", help="draw the loss of each step into a picture")
    given = parser.parse_args()
    torch.manual_seed(0)
    model: Any = Seq2Seq(given, given.by).to(given.device)
    losses, times = train(torch.compile(model) if given.by == "compile" else model, given, given.device)
    if given.curve:
        draw(losses, given.curve)
    several = sorted(times[1:]) or times
    print(f"{given.by}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, a step in {several[len(several) // 2]:.1f} ms")
    if given.by == "fusegen":
        print(f"largest difference of gradients from torch {largest_difference(given, given.device):.1e}")


if __name__ == "__main__":
    main()
