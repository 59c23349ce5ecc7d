"""An op with random tensors on this machine's GPU or on the emulator: what ``run`` and ``bench`` start from."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from fusegen.cli.arguments import Request, bind
from fusegen.core.errors import DeviceError
from fusegen.core.ir import Axes, Const, Op, Reduce, Size, expr_axes, refs, walk
from fusegen.core.one_term import gathered, scatters
from fusegen.core.products import KIND as DOT
from fusegen.core.within import Within
from fusegen.declare.trace import TensorSpec
from fusegen.fused_op import FusedOp
from fusegen.inspect.passes import passes

if TYPE_CHECKING:
    import torch

# Where logarithms, square roots and probabilities are at home.
POSITIVE = (0.05, 0.95)
# Integers are drawn below this: classes, bits of a mask, small numbers.
INTEGERS = 8
# Elements that are read, computed and written, at most, where nobody said how many.
MOST = 2**26


def load_torch() -> Any:
    """The module torch.

    Raises:
        DeviceError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise DeviceError(
            "fusegen", given="no torch, whose tensors `fusegen run` and `bench` use", expected="torch",
            fix='pip install "fusegen[torch]"',
        ) from None  # fmt: skip
    return torch


def choose_device(wanted: str | None) -> str:
    """The device that ``--device`` names; a GPU if there is one and nothing is said.

    Raises:
        DeviceError: there is no such device here.
    """
    available = load_torch().cuda.is_available()
    if wanted not in (None, "cpu", "cuda"):
        raise DeviceError("fusegen", given=f"--device {wanted}", expected="cpu or cuda", fix="pass one of these")
    if wanted == "cuda" and not available:
        raise DeviceError(
            "fusegen", given="--device cuda, and torch sees no GPU", expected="a GPU and a CUDA build of torch",
            fix="leave --device away to run on the CPU emulator; see `fusegen doctor`",
        )  # fmt: skip
    return wanted or ("cuda" if available else "cpu")


def sized(op: FusedOp, request: Request) -> dict[str, Any]:
    """Arguments as the request has them. Shapes that nobody asked for are no larger than what is quickly computed."""
    specs, factor = bind(op, request), 1
    while not request.shapes and elements(op, specs) > MOST and (smaller := _smaller(specs)) != specs:
        specs, factor = smaller, 4 * factor
    if factor > 1:
        print(f"sizes are 1/{factor} of the usual, for what is computed of them; see --shape", file=sys.stderr)
    return specs


def elements(op: FusedOp, specs: Mapping[str, Any]) -> int:
    """How many are read, computed and written, but for what a library does. Of what a sum with one term reads or adds
    at places there is one for each place."""
    (item,) = passes(op, (), specs)
    sizes, known = item.layout.sizes, item.op.axes_of()
    spaces = [frozenset(axis for axis in thing.shape if axis) for thing in (*item.op.operands, *item.op.outputs)]
    along, free = Axes(known), {thing.name for thing in (*item.op.operands, *item.op.scalars)}
    placed = scatters(item.op)
    for reduce in item.op.expand()[0]:
        if reduce.name not in placed and (read := gathered(reduce, along, free, walked=())) is not None:
            placed[reduce.name] = read
            free.add(reduce.name)  # what reads it in turn reads the same elements
    compared = [along.of(place) | {axis} for axis, place, _ in placed.values()]  # of which nothing is computed
    for statement in item.op.statements:
        space = expr_axes(statement.expr, known)
        if statement.name in placed:
            axis, place, value = placed[statement.name]
            spaces.append((along.of(place) | along.of(value)) - {axis})
        elif not (isinstance(statement, Reduce) and statement.kind == DOT) and not any(c <= space for c in compared):
            spaces.append(space)
    return sum(prod(sizes[axis] for axis in space) for space in spaces)


def _smaller(specs: Mapping[str, Any]) -> dict[str, Any]:
    """A quarter of each size: those that are equal stay so, and what has one element is broadcast as before."""
    return {
        name: replace(spec, shape=tuple(max(2, size // 4) if size > 1 else size for size in spec.shape))
        if isinstance(spec, TensorSpec) else spec
        for name, spec in specs.items()
    }  # fmt: skip


@dataclass
class Case:
    """An op with real arguments: tensors by name, and all keyword arguments of a call."""

    op: FusedOp
    tensors: dict[str, torch.Tensor]
    arguments: dict[str, Any]
    device: str

    @classmethod
    def random(
        cls, op: FusedOp, specs: Mapping[str, Any], device: str, seed: int, low_high: tuple[float, float] | None
    ) -> Case:
        """A tensor for every spec: normal numbers, or numbers between two limits; integers that are places lie within
        the axes that they are read or written along."""
        generator, most = load_torch().Generator(device).manual_seed(seed), sizes_of_places(op, specs)
        tensors = {
            name: _random(spec, generator, low_high, most.get(name, INTEGERS))
            for name, spec in specs.items() if isinstance(spec, TensorSpec)
        }  # fmt: skip
        return cls(op, tensors, {**specs, **tensors}, device)

    @property
    def place(self) -> str:
        """What kernels run on, in words."""
        return str(load_torch().cuda.get_device_name()) if self.device == "cuda" else "the CPU emulator"

    def call(self) -> list[torch.Tensor]:
        """Results of the op, as a list."""
        result = self.op(**self.arguments)
        return list(result) if isinstance(result, tuple) else [result]

    def trace(self) -> Op:
        """The op for these arguments."""
        return self.op.trace(**self.arguments)

    def scalars(self) -> dict[str, Any]:
        """Numbers that the kernels take at run time, by name."""
        names = {scalar.name for scalar in self.trace().scalars}
        bound = self.op.declaration.bind((), self.arguments)
        return {name: value for name, value in bound.items() if name in names}

    def requiring(self, wanted: tuple[str, ...]) -> Case:
        """The same with tensors of its own, those called ``wanted`` requiring a gradient."""
        leaves = {n: t.detach().requires_grad_(n in wanted) for n, t in self.tensors.items()}
        return Case(self.op, leaves, {**self.arguments, **leaves}, self.device)


def sizes_of_places(op: FusedOp, specs: Mapping[str, Any]) -> dict[str, int]:
    """Of each argument that tells places, the size of the smallest axis that one of them is along."""
    if all(spec.dtype.is_float for spec in specs.values() if isinstance(spec, TensorSpec)):
        return {}
    (item,) = passes(op, (), specs)
    reduces, outputs = item.op.expand()
    bases = {operand.name: operand.base for operand in item.op.operands}
    found: dict[str, int] = {}
    for node in walk([thing.expr for thing in (*reduces, *outputs)]):
        if isinstance(node, Within):
            place, size, _ = node.args
            match size:
                case Const(number):  # one element has no axis
                    pass
                case Size():
                    number = item.layout.sizes[size.axis]
                case _:  # of parts put together
                    number = INTEGERS
            for name in {bases[ref.name] for ref in refs(place) if ref.name in bases}:
                found[name] = max(1, min(found.get(name, INTEGERS), int(number)))
    return found


def _random(spec: TensorSpec, generator: Any, low_high: tuple[float, float] | None, most: int) -> Any:
    torch = load_torch()
    dtype, device = getattr(torch, spec.dtype.name), generator.device
    if not spec.dtype.is_float:
        most = min(most, 2) if spec.dtype.name == "bool" else most
        return torch.randint(0, most, spec.shape, generator=generator, device=device).to(dtype)
    drawn = torch.float64 if spec.dtype.size == 8 else torch.float32
    if low_high is None:
        return torch.randn(spec.shape, generator=generator, dtype=drawn, device=device).to(dtype)
    low, high = low_high
    return (low + (high - low) * torch.rand(spec.shape, generator=generator, dtype=drawn, device=device)).to(dtype)


def apart(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Absolute differences, in float64. NaN and infinities match themselves, and are infinitely far from all else."""
    a, b = found.detach().double(), expected.detach().double()
    if a.shape != b.shape:
        return b.new_full((1,), math.inf)
    same = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf)


def size(expected: torch.Tensor) -> float:
    """The largest finite magnitude."""
    values = expected.detach().double().abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(values.max().item()) if values.numel() else 0.0
