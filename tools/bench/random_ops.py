"""Random ops of a few lines beside eager torch and torch.compile: ``python -m tools.bench.random_ops --ops 60``.

What the library's rows cannot show is how fast an op is that nobody has tuned for. So ops are drawn from a seed, as a
user might write them: elementwise trees, norms and softmaxes of the library and by hand, sums over any axes, operands
that broadcast in every way, selects, several results, narrow inputs. One text runs with fusegen's functions and with
torch's (tools/programs). Times are device times, in turns, as everywhere in tools/bench; the floor of a pass is the
longer of two: each input read once and each result written once (in a backward inputs and cotangents read and gradients
written), and each part of its expressions computed once, by the instructions that it takes (fuse/work).

``--jobs N`` first runs every op in N processes, so that all compilers' caches are full before anything is timed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fusegen as fg
from fusegen.bench.comparison import PASSES, Comparison, InTorch
from fusegen.core import dtypes
from fusegen.inspect.passes import Pass, shown_passes
from fusegen.matmul.libraries.stopwatch import Clock, Stopwatch
from fusegen.native import module as native
from tools.bench import filling, kernels
from tools.bench.row import BF16, F16, F32, SHORT, Shape, count
from tools.program_libraries import Ours, Theirs
from tools.program_writer import Argument, Program

PEERS = ("torch", "torch.compile")
# Elements of the largest argument: more than a GPU's L2 cache holds, few enough for 200 ops in a session.
FEWEST, MOST = 2**22, 2**25
LENGTHS = (16, 64, 128, 197, 256, 768, 1000, 1024, 1152, 2048, 4096, 4097, 5120, 8192, 16384, 32000)
SHORTEST = 16  # axis of a norm that is not the last one
WITHIN = 1.25  # of the floor
BEHIND = 1.05  # of a peer's time

SMALLEST = 2 * LENGTHS[0] ** 3

UNARY = (
    "lib.sigmoid({0})", "lib.tanh({0})", "lib.relu({0})", "lib.silu({0})", "lib.gelu({0})", "lib.exp(-lib.abs({0}))",
    "lib.square({0})", "lib.sqrt(lib.square({0}) + 1e-3)", "lib.log(lib.abs({0}) + 1.0)", "lib.softplus({0})",
    "lib.abs({0})", "(30.0 * lib.tanh({0} / 30.0))", "lib.rsqrt(lib.square({0}) + 1.0)", "lib.cos({0})",
    "lib.clamp({0}, -2.0, 2.0)", "1.0 / (1.0 + lib.exp(-{0}))", "-{0}", "({0} * 0.7071)",
)  # fmt: skip
WITH_NUMBERS = "({0} + {1})", "({0} * {1})", "({0} - {1})", "({1} - {0})"
BINARY = (
    *WITH_NUMBERS, "({0} + {1})", "({0} * {1})", "{0} / (lib.abs({1}) + 1.0)", "lib.maximum({0}, {1})",
    "lib.minimum({0}, {1})", "lib.where({1} > 0.5, {0}, 0.1 * {0})",
    "lib.where({1} > 0.0, {0}, -{1})",
)  # fmt: skip
# Of a whole tensor and one axis.
ROWS = (
    "lib.softmax({0}, {axis})", "lib.log_softmax({0}, {axis})",
    "lib.exp({0} - lib.amax({0}, {axis}, keepdims=True))", "{0} - lib.logsumexp({0}, {axis}, keepdims=True)",
    "({0} - lib.mean({0}, {axis}, keepdims=True)) * lib.rsqrt(lib.var({0}, {axis}, keepdims=True) + 1e-5)",
    "{0} * lib.rsqrt(lib.mean(lib.square({0}), {axis}, keepdims=True) + 1e-6)",
    "{0} / (lib.norm({0}, 2, {axis}, keepdims=True) + 1e-3)",
    "{0} / (lib.sum(lib.abs({0}), {axis}, keepdims=True) + 1.0)",
    "{0} - lib.mean({0}, {axis}, keepdims=True)", "{0} / (lib.amax(lib.abs({0}), {axis}, keepdims=True) + 1e-3)",
)  # fmt: skip
BY_HAND = "e{n} = lib.exp({0} - lib.amax({0}, {axis}, keepdims=True))", "e{n} / lib.sum(e{n}, {axis}, keepdims=True)"
NORMS = ("lib.layer_norm({0}, ({size},), {w}, {b})", "lib.rms_norm({0}, ({size},), {w}, 1e-6)")
REDUCE = ("sum", "sum", "mean", "amax", "logsumexp", "sum")


@dataclass
class _Writer:
    """One op as it is drawn."""

    random: random.Random
    shape: Shape
    dtype: torch.dtype
    arguments: list[Argument] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def argument(self, shape: Shape, kind: str = "f") -> str:
        name = f"x{len(self.arguments)}"
        self.arguments.append(Argument(name, kind, shape))
        return name

    def operand(self) -> str:
        """An argument that broadcasts with the whole, or lies like it; perhaps one that is there."""
        draw, rank = self.random, len(self.shape)
        if self.arguments and draw.random() < 0.3:
            return draw.choice(self.arguments).name
        way = draw.choice(("whole", "last", "last", "row", "first", "plane"))
        if way == "whole":
            return self.argument(self.shape)
        if way == "last":
            return self.argument(self.shape[-1:])
        if way == "row":
            return self.argument((*self.shape[:-1], 1))
        if way == "first":
            return self.argument((self.shape[0], *[1] * (rank - 1)))
        if way == "plane" and rank > 2:
            return self.argument((self.shape[0], *[1] * (rank - 2), self.shape[-1]))
        return self.argument(self.shape[-1:])

    def tree(self, value: str, depth: int) -> str:
        """An elementwise expression around a value."""
        draw = self.random
        for _ in range(depth):
            way = draw.random()
            if way < 0.5:
                value = draw.choice(UNARY).format(value)
            elif way < 0.6:
                value = draw.choice(WITH_NUMBERS).format(value, round(draw.uniform(0.1, 2.0), 2))
            else:
                value = draw.choice(BINARY).format(value, self.operand())
        return value

    def bind(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"    {name} = {text}")
        return name

    def rows(self, value: str) -> str:
        """A norm, a softmax, or the like, over an axis: mostly the last."""
        draw = self.random
        axis = -1 if draw.random() < 0.75 else draw.randrange(len(self.shape)) - len(self.shape)
        axis = axis if self.shape[axis] >= SHORTEST else -1
        if draw.random() < 0.25 and axis == -1:
            norm, width = draw.choice(NORMS), self.shape[-1:]
            weights = {"w": self.argument(width), "b": self.argument(width) if "{b}" in norm else ""}
            return norm.format(value, size=width[0], **weights)
        if draw.random() < 0.15:
            first, then = (text.format(value, n=len(self.lines), axis=axis) for text in BY_HAND)
            self.lines.append(f"    {first}")
            return then
        return draw.choice(ROWS).format(value, axis=axis)

    def reduced(self, value: str) -> str:
        """A sum or the like over some of the axes, of what does not cancel in it."""
        draw, rank = self.random, len(self.shape)
        of = draw.choice(("lib.square({0})", "lib.abs({0})", "{0} * {1}"))
        value = of.format(value, self.argument(self.shape) if "{1}" in of else "")
        axes = sorted(draw.sample(range(rank), draw.randint(1, rank)))
        over = ", ".join(str(axis - rank) for axis in axes)
        kind = draw.choice(REDUCE) if len(axes) == 1 else draw.choice(("sum", "mean", "sum"))
        return f"lib.{kind}({value}, {over if len(axes) == 1 else f'({over})'})"

    def program(self) -> Program:
        draw = self.random
        value = self.argument(self.shape, "u" if draw.random() < 0.08 else "f")
        if self.arguments[0].kind == "u":
            value = self.bind(f"lib.cast({value}, '{str(self.dtype)[6:]}') / 255.0")
        kinds = [draw.choice(("tree", "tree", "rows")) for _ in range(draw.randint(1, 3))]
        for kind in kinds:
            value = self.bind(self.tree(value, draw.randint(1, 4)) if kind == "tree" else self.rows(value))
        results = [value]
        if draw.random() < 0.35:
            results = [self.bind(self.reduced(value))]
        elif draw.random() < 0.2:
            results.append(self.bind(self.reduced(value)))
        if not any(a.kind == "f" for a in self.arguments):  # an image alone has no gradient
            results[0] = self.bind(f"{results[0]} * {self.argument(())}")
        body = "\n".join([*self.lines, f"    return {', '.join(results)}"])
        return Program(body, tuple(self.arguments), len(results))


@dataclass(frozen=True)
class RandomOp:
    """An op, and what it is called with."""

    seed: int
    program: Program
    dtype: torch.dtype

    @classmethod
    def drawn(cls, seed: int, fewest: int = FEWEST, most: int = MOST) -> RandomOp:
        """The op of a seed, the same on every machine, whose first argument has so many elements."""
        draw = random.Random(seed)
        dtype = draw.choice((BF16, BF16, F16, F32))
        rank = draw.choice((2, 2, 2, 3, 3, 4))
        shape: Shape = ()
        for left in range(rank - 1, 0, -1):  # what is left fits at least two of the first dimension
            room = most // (2 * math.prod(shape) * LENGTHS[0] ** (left - 1))
            shape = (*shape, draw.choice([length for length in LENGTHS if length <= room]))
        first = max(2, draw.randint(fewest, most) // math.prod(shape))
        if draw.random() < 0.7:  # mostly a power of two
            first = 1 << (first.bit_length() - 1)
        return cls(seed, _Writer(draw, (first, *shape), dtype).program(), dtype)

    @property
    def title(self) -> str:
        """Its first line's shape, and what it does in short."""
        shape = "x".join(map(str, self.program.arguments[0].shape))
        return f"{self.seed:4d} {SHORT[self.dtype]:<4} {shape}"

    def tensors(self, device: str) -> list[torch.Tensor]:
        """Its arguments."""
        generator = torch.Generator(device).manual_seed(self.seed)
        found = []
        for argument in self.program.arguments:
            if argument.kind == "u":
                found.append(torch.randint(0, 256, argument.shape, generator=generator, device=device).to(torch.uint8))
            else:
                drawn = torch.randn(argument.shape, generator=generator, device=device)
                found.append(drawn.to(self.dtype).requires_grad_())
        return found

    def comparison(self, device: str, wanted: Sequence[str]) -> Comparison:
        """fusegen and torch on its tensors."""
        ours = self.program.function(Ours())
        theirs = self.program.function(InDtype())
        made = {
            "torch": lambda: InTorch("torch", theirs),
            "torch.compile": lambda: InTorch("torch.compile", _compiled(theirs)),
        }
        own = InTorch(kernels.OURS, fg.op(ours, name=f"random_{self.seed}"))
        comparison = Comparison([own, *(made[name]() for name in wanted)], self.tensors(device))
        comparison.admit()
        return comparison

    def floor_bytes(self, which: str, results: Sequence[torch.Tensor]) -> int:
        """Fewest bytes of a pass."""
        inputs = sum(count(a.shape) * (1 if a.kind == "u" else self.dtype.itemsize) for a in self.program.arguments)
        floats = sum(count(a.shape) * self.dtype.itemsize for a in self.program.arguments if a.kind == "f")
        outputs = sum(result.numel() * result.itemsize for result in results)
        forward, backward = inputs + outputs, inputs + outputs + floats
        return {"fwd": forward, "bwd": backward, "step": forward + backward}[which]

    @property
    def passes(self) -> list[Pass]:
        """Its forward and its backward."""
        op = fg.op(self.program.function(Ours()), name=f"random_{self.seed}")
        float_ = dtypes.BY_NAME[str(self.dtype).removeprefix("torch.")]
        specs = [fg.TensorSpec(dtypes.uint8 if a.kind == "u" else float_, a.shape) for a in self.program.arguments]
        return shown_passes(op, tuple(specs), {})


class InDtype(Theirs):
    """torch's functions as its users call them: in the dtype of their tensors."""

    where = staticmethod(lambda c, a, b: torch.where(c, a, b))
    softplus = staticmethod(lambda x: torch.nn.functional.softplus(x))
    cast = staticmethod(lambda x, dtype: x.to(getattr(torch, dtype)))


def _compiled(function: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, dynamic=False)


@dataclass
class Table:
    """What was measured: times by implementation, for each op and pass."""

    found: list[tuple[RandomOp, str, kernels.Floor, dict[str, float]]] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    left_out: dict[int, dict[str, str]] = field(default_factory=dict)

    def ratios(self, which: str, peer: str) -> list[tuple[float, RandomOp]]:
        """fusegen's time over a peer's, the worst first."""
        rows = [(t[kernels.OURS] / t[peer], op) for op, w, _, t in self.found if w == which and peer in t]
        return sorted(rows, key=lambda row: -row[0])

    def summary(self) -> Iterator[str]:
        """A line for each pass and peer, and one for the floor."""
        for which in PASSES:
            over = [(t[kernels.OURS] / floor.microseconds, floor) for _, w, floor, t in self.found if w == which]
            if over:
                near = sum(ratio <= WITHIN for ratio, _ in over)
                bound = sum(floor.of_arithmetic for _, floor in over)
                yield f"{which:<5} {len(over)} ops, {bound} bound by arithmetic, {near} within {WITHIN} of the floor"
            for peer in PEERS:
                ratios = self.ratios(which, peer)
                if ratios:
                    mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
                    behind = sum(ratio > BEHIND for ratio, _ in ratios)
                    worst = ", ".join(f"{ratio:.2f} (seed {op.seed})" for ratio, op in ratios[:5])
                    yield f"      over {peer}: {mean:.2f} in the geometric mean, {behind} behind; worst {worst}"
        for seed, error in self.failed.items():
            yield f"seed {seed} FAILED: {error}"
        for seed, reasons in self.left_out.items():
            for name, reason in reasons.items():
                yield f"seed {seed}: {name} left out: {' '.join(reason.split())[:160]}"


def measure(ops: Sequence[RandomOp], wanted: Sequence[str], clock: Clock, bandwidth: float, device: str) -> Table:
    """Every op in every pass; a line an op as it goes."""
    table, gpu = Table(), kernels.current_gpu() if device == "cuda" else None
    for op in ops:
        try:
            comparison = op.comparison(device, wanted)
            results = comparison.implementations[0].results(comparison.inputs)
            cells, floors = [], kernels.floors(partial(op.floor_bytes, results=results), bandwidth, op.passes, gpu)
            for which in PASSES:
                floor, times = floors[which], comparison.time(clock, which)
                ours, mark = times[kernels.OURS], "a" if floor.of_arithmetic else " "
                table.found.append((op, which, floor, times))
                cells.append(f"{which} {ours:7.1f} {ours / floor.microseconds:5.2f}{mark}")
                cells += [f"{ours / times[name]:5.2f}" for name in wanted if name in times]
            table.left_out |= {op.seed: comparison.left_out} if comparison.left_out else {}
            print(f"{op.title:<34} {'  '.join(cells)}", flush=True)
        except Exception as error:  # one op's failure is no reason to measure nothing else
            table.failed[op.seed] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            print(f"{op.title:<34} FAILED: {table.failed[op.seed]}", flush=True)
        finally:
            if device == "cuda":
                torch.cuda.empty_cache()
    return table


def _of_seed(seed: int, size: tuple[int, int], wanted: Sequence[str]) -> Comparison:
    return RandomOp.drawn(seed, *size).comparison("cuda", wanted)


def main() -> int:
    """Draw, measure, print; 1 if an op failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=60, help="how many")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--seeds", help="these instead, separated by commas")
    parser.add_argument("--repeats", type=int, default=20, help="timed calls of each pass")
    parser.add_argument("--jobs", type=int, default=0, help="processes that fill caches before")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--elements", type=int, default=MOST, help="of the largest argument, at most")
    parser.add_argument("--sources", type=Path, help="write the ops' texts to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU, and torch sees none")
    if options.elements < SMALLEST:
        parser.error(f"--elements {options.elements}: at least {SMALLEST}, for four dimensions")
    size = (min(FEWEST, options.elements // 8), options.elements)
    seeds = [int(word) for word in options.seeds.split(",")] if options.seeds else None
    seeds = seeds or list(range(options.first, options.first + options.ops))
    ops, wanted = [RandomOp.drawn(seed, *size) for seed in seeds], PEERS[:1] if options.no_compile else PEERS
    if options.sources:
        options.sources.write_text("\n\n".join(f"# {op.title}\n{op.program}" for op in ops) + "\n", encoding="utf-8")
    os.environ.setdefault(native.VARIABLE, "wait")
    native.awaited()
    filling.fill_in_parallel(
        options.jobs, [(f"seed {seed}", partial(_of_seed, seed, size, wanted), PASSES) for seed in seeds]
    )
    watch = Stopwatch(options.repeats)
    print(f"of each pass: microseconds, over the floor (a: of arithmetic), over {', over '.join(wanted)}", flush=True)
    table = measure(ops, wanted, watch, kernels.copy_bandwidth(watch), "cuda")
    print("\n".join(table.summary()), flush=True)
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
