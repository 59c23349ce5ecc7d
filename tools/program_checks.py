"""Random programs (tools/programs) through fusegen, stage by stage and call by call, beside torch."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fusegen.core.ir import Op
from fusegen.declare.check import check_op
from fusegen.fused_op import FusedOp
from fusegen.plan.backward import differentiable, result_names
from fusegen.run import evaluate
from fusegen.run.evaluate import Followed
from fusegen.run.runner import Runner
from tools.batched import recorded
from tools.program_writer import Program, as_tuple

# Numbers are perturbed by so much, relatively, to see how far rounding can take a result.
PERTURBED = 1e-14
HALVES_COMPUTED = 2.0**-20


@dataclass(frozen=True)
class Difference:
    """Where numbers part.

    Attributes:
        what: the op, as the program it came from led to it.
        stage: of that op.
        result: which of its results.
    """

    what: str
    stage: str
    result: str
    error: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.what}: {self.stage}: {self.result} is {self.error:.2g} off where {self.allowed:.2g} is rounding"


class Unstable(Exception):
    """The oracle's own numbers depend on the last bits of the arguments, or are not finite."""


@dataclass
class Expected:
    """An oracle's results.

    Attributes:
        least: how far each may be off in any case.
        measure: how far each may be off by what the oracle's own numbers move by. It takes several times as long as the
            results, and is asked only where one is further off than ``least``.
        noise: how far a perturbation of this number moves each.
    """

    values: list[torch.Tensor]
    least: list[float]
    measure: Callable[[], list[float]]
    noise: Callable[[int], Sequence[float]]

    @classmethod
    def of(
        cls, function: Callable[[Mapping[str, Any]], Sequence[torch.Tensor]], roots: Mapping[str, Any],
        own: Callable[[Mapping[str, Any]], Sequence[torch.Tensor]] | None = None,
        given: Mapping[str, Any] | None = None, eps: float = 0.0, rounding: bool = False, public: int | None = None,
        stored: float = 0.0,
    ) -> Expected:  # fmt: skip
        """By ``function`` of ``roots``.

        Args:
            own: the same of what was kept, ``given``.
            eps: spacing of the dtype in which ours is computed, where that is not the oracle's.
            rounding: also move each number that the oracle computes. Not of forward mode and second gradients, where
                torch has zeros without memory, which no mode may touch.
            public: results behind the first so many are compared where they are finite.
            stored: spacing of a half type in which results and those of matrix products are stored, where nothing else
                is rounded so.
        """
        values = list(function(roots))
        step, written = eps or PERTURBED, stored or eps
        exacts: list[torch.Tensor] = []
        least: list[float] = []
        scales: list[float] = []
        for i, value in enumerate(values):
            exact = value.double()
            if value.is_floating_point() and public is not None and i >= public:
                exact = values[i] = torch.where(exact.isfinite(), exact, torch.nan)
            elif value.is_floating_point() and not exact.isfinite().all():
                raise Unstable
            scale = float(exact.abs().nan_to_num(nan=0.0).max()) if exact.numel() else 0.0
            exacts.append(exact)
            scales.append(scale)
            is_float = value.is_floating_point()
            least.append((2 * stored or 8 * eps or 1e-12) * scale + (eps or 1e-12) if is_float else 0.0)

        def measure() -> list[float]:
            others = [list(function(perturbed(roots, seed, step))) for seed in (1, 2)]
            most = eps
            for seed in range(rounding * (3 if eps else 1)):
                with _Rounding(step, seed, written) as moved_by:
                    others.append(list(function(roots)))
                most = written if moved_by.multiplies else most
            # A derived op may depend more on what was kept than on what that is of.
            if own is not None and given is not None:
                base, moved = list(own(given)), list(own(perturbed(given, 3)))
                others.append([_moved_by(v, b, m) for v, b, m in zip(values, base, moved, strict=True)])
            allowed = []
            for i, value in enumerate(values):
                if not value.is_floating_point():
                    if any(not torch.equal(value, other[i]) for other in others):
                        raise Unstable
                    allowed.append(0.0)
                    continue
                noise = max((_distance(other[i], exacts[i]) for other in others), default=0.0)  # infinite if one is NaN
                if not noise <= max(1e-6, 200 * most) * (scales[i] + 1):
                    raise Unstable
                allowed.append(least[i] + 20 * noise)
            return allowed

        def again(seed: int) -> Sequence[float]:
            with _Rounding(step, seed, written) if seed % 2 else nullcontext():
                moved = zip(values, function(perturbed(roots, seed, step)), strict=True)
                return [_distance(m, v) for v, m in moved]

        return cls(values, least, measure, again)

    @cached_property
    def allowed(self) -> list[float]:
        """How far each may be off.

        Raises:
            Unstable: numbers of the oracle's own move so much that nothing can be compared with it.
        """
        return self.measure()

    def is_rounding(self, number: int, error: float) -> bool:
        """Whether the oracle itself is so far off now and then: where a difference of numbers that are nearly the same
        is exact for most arguments, a few perturbations do not show what it is for others."""
        for seed in range(4, 24):
            self.allowed[number] = max(self.allowed[number], 20 * self.noise(seed)[number])
            if error <= self.allowed[number]:
                return True
        return False

    def differences(self, what: str, stage: str, names: Sequence[str], found: Sequence[Any]) -> Iterator[Difference]:
        """What of ``found`` is not this.

        Raises:
            Unstable: something is not, and nothing can be compared.
        """
        if len(found) != len(self.values):
            yield Difference(what, stage, f"{len(found)} results for {len(self.values)}", float("inf"), 0.0)
            return
        for number, (name, value, mine) in enumerate(zip(names, self.values, found, strict=True)):
            if tuple(mine.shape) != tuple(value.shape):
                yield Difference(what, f"{stage}, shape {list(mine.shape)} for {list(value.shape)}", name, 1.0, 0.0)
                continue
            error = _distance(mine, value)
            if error <= self.least[number] or error <= self.allowed[number]:
                continue
            if not (error < math.inf and self.is_rounding(number, error)):
                yield Difference(what, stage, name, error, self.allowed[number])


class Anything:
    """An oracle that takes every result for right."""

    def __init__(self, *arguments: Any, **how: Any) -> None:
        pass

    def differences(self, *of: Any) -> Iterator[Difference]:
        return iter(())


def _moved_by(value: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """A value that moves as another does, where that one is finite: NaN of ours is no noise of the oracle's."""
    if not value.is_floating_point():
        return value
    return value + (after - before).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _distance(mine: torch.Tensor, value: torch.Tensor) -> float:
    """The largest difference, but for where the exact value is NaN, which is not compared. What is infinite in a half
    type may be just too large for it."""
    if not mine.numel():
        return 0.0
    found, exact = mine.double(), value.double()
    if mine.dtype in (torch.float16, torch.bfloat16):
        most = torch.finfo(mine.dtype).max
        found, exact = found.clamp(-most, most), exact.clamp(-most, most)
    return float(torch.where(exact.isnan(), 0.0, (found - exact).abs().nan_to_num(nan=math.inf)).max())


# What takes one of its numbers rounds nothing: an extremum still is one of the elements that it is compared with. Nor
# does what makes whole numbers of them, which tell places.
_EXACT = {
    "amax", "amin", "max", "min", "maximum", "minimum", "abs", "neg", "where", "clamp", "clamp_min", "clamp_max",
    "relu", "cat", "stack", "clone", "masked_fill", "cummax", "cummin", "floor", "round", "sign", "_to_copy", "gather",
    "index_select",
}  # fmt: skip


# Whose results are stored, and rounded to the dtype of what is multiplied.
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot"}


class _Rounding(TorchDispatchMode):
    """Moves every number that torch computes by up to ``eps`` of itself, as a computation in that precision would: sums
    that cancel show what rounding leaves of them.

    Attributes:
        products: by how much matrix products' results are moved.
        multiplies: whether there were any.
    """

    def __init__(self, eps: float, seed: int, products: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.eps, self.generator = eps, torch.Generator().manual_seed(seed)
        self.products, self.multiplies = products, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_same = any(returned.alias_info for returned in func._schema.returns)  # a view, or in place
        if is_same or func.overloadpacket.__name__ in _EXACT:
            return result
        is_product = func.overloadpacket.__name__ in _PRODUCTS
        self.multiplies |= is_product
        eps = self.products if is_product else self.eps
        return tree_map_only(torch.Tensor, partial(self._moved, eps), result)

    def _moved(self, eps: float, value: torch.Tensor) -> torch.Tensor:
        without_memory = value.device.type == "meta" or torch._is_zerotensor(value)  # of forward mode's own
        if not value.is_floating_point() or not value.numel() or without_memory:
            return value
        unit = torch.rand(value.shape, generator=self.generator, dtype=value.dtype) * 2 - 1
        return value * (1 + eps * unit)


def perturbed(roots: Mapping[str, Any], seed: int, by: float = PERTURBED) -> dict[str, Any]:
    """Floats changed by so much of themselves."""
    generator = torch.Generator().manual_seed(seed)

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            unit = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
            return (value.double() * (1 + by * unit)).to(value.dtype)
        return value

    return {name: change(value) for name, value in roots.items()}


def drawer(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes normal numbers, or what a tensor has that is none of floats."""
    generator = torch.Generator().manual_seed(seed)

    def draw(like: torch.Tensor) -> torch.Tensor:
        if not like.is_floating_point():
            return like.clone()
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    return draw


@dataclass
class Stages:
    """One program through the evaluators of all stages."""

    program: Program
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.random = random.Random(self.seed)
        self.values = {a.name: a.draw(generator) for a in self.program.arguments}
        self.draw = drawer(self.seed + 1)
        self.tensors = {n: v for n, v in self.values.items() if isinstance(v, torch.Tensor)}
        self.numbers = {n: v for n, v in self.values.items() if not isinstance(v, torch.Tensor)}

    def run(self) -> Iterator[Difference]:
        """Where numbers part, of the program and of what is derived of it."""
        op = self.program.op().trace(*self.values.values())
        theirs = Expected.of(
            lambda roots: self.program.theirs(*[roots.get(n, v) for n, v in self.values.items()]), self.tensors
        )
        found = evaluate.meaning(op, self.tensors, self.numbers, {})
        yield from theirs.differences("the program", "traced", result_names(op), found)
        yield from self.stages("the program", op, theirs, self.tensors, {})
        for what, followed in self.follow(op, self.tensors, {}, 2, ""):
            for difference in self.check(what, followed):
                if theirs.allowed:  # of a program that is unstable nothing can be compared
                    yield difference

    def stages(
        self, what: str, op: Op, expected: Expected, tensors: Mapping[str, Any], sizes: Mapping[str, int]
    ) -> Iterator[Difference]:
        check_op(op)
        for name, run in evaluate.stages(op):
            yield from expected.differences(what, name, result_names(op), run(op, tensors, self.numbers, sizes))

    def check(self, what: str, followed: Followed) -> Iterator[Difference]:
        try:
            tensors = followed.given(followed.roots)
            own = partial(self._meaning, followed)
            expected = Expected.of(followed.expected, followed.roots, own, tensors, public=followed.public)
            found = evaluate.meaning(followed.op, tensors, self.numbers, followed.sizes)
            yield from expected.differences(what, "derived", result_names(followed.op), found)
            yield from self.stages(what, followed.op, expected, tensors, followed.sizes)
        except Unstable:
            return

    def _meaning(self, followed: Followed, given: Mapping[str, Any]) -> list[torch.Tensor]:
        return evaluate.meaning(followed.op, given, self.numbers, followed.sizes)

    def some(self, names: Iterable[str]) -> tuple[str, ...]:
        """A part of them, not none."""
        names = sorted(names)
        found = tuple(n for n in names if self.random.random() < 0.6)
        return found or (self.random.choice(names),)

    def follow(
        self, op: Op, tensors: Mapping[str, Any], sizes: Mapping[str, int], depth: int, path: str
    ) -> Iterator[tuple[str, Followed]]:
        """What is derived of an op: for all of its arguments, and for some."""
        floats = sorted({o.base for o in op.operands if o.dtype.is_float})
        if not floats or not differentiable(op):
            return
        sizes = evaluate.all_sizes(op, tensors, sizes)
        for wanted in dict.fromkeys([tuple(floats), self.some(floats)]) if depth > 1 else [self.some(floats)]:
            forward = evaluate.trained(op, wanted, tensors, self.numbers, sizes)
            yield f"{path}{forward.label}", forward
            public = len(result_names(op))
            may = differentiable(forward.op)
            for given in dict.fromkeys(
                [tuple(i for i in may if i < public), tuple(int(i) for i in self.some(map(str, may)))]
            ):
                if not given:
                    continue
                backward = evaluate.backward(op, wanted, sorted(given), tensors, self.numbers, sizes, self.draw)
                if backward is None:
                    continue
                yield f"{path}{backward.label}", backward
                if depth > 1 and max(given) < public:
                    inner = f"{path}{backward.label}; its "
                    yield from self.follow(backward.op, self._read(backward), sizes, depth - 1, inner)
        along = self.some(floats)
        yield f"{path}tangents", evaluate.forward_mode(op, along, tensors, self.numbers, sizes, self.draw)
        wide = frozenset(self.some({o.base for o in op.operands}))
        yield f"{path}vmap", evaluate.batched(op, wide, 3, tensors, self.numbers, sizes, self.draw)

    def _read(self, followed: Followed) -> dict[str, Any]:
        given = followed.given(followed.roots)
        return {o.base: given[o.base] for o in followed.op.operands}


# -- calls, as torch makes them ----------------------------------------------------------------------------------------


@contextmanager
def interpreted(number: int | None, planned: bool = False) -> Iterator[None]:
    """Ops run by the evaluator of one of their stages, not by compiled kernels: without a compiler, and on every path
    by which torch calls them.

    Args:
        number: tells the stage; None runs nothing, and results are zeros.
        planned: kernels are asked for nevertheless (tools/batched).
    """
    original = Runner.__call__

    def run(self: Runner, tensors: Any, scalars: Any, framework: Any, out: Any = None) -> list[Any]:
        if planned:
            self.planned(tensors, framework, out)
        lies = self.lay_out({name: framework.info(name, tensors[name]) for name in self.arguments})
        results = list(out or [None] * len(lies.results))
        for i, (_, shape, strides, dtype) in enumerate(lies.results):
            if results[i] is None:
                results[i] = framework.empty(shape, strides, dtype, "cpu")
        into = [torch.as_tensor(result).data for result in results]
        if number is None:
            for result in into:
                result.zero_()
            return results
        given = {name: torch.as_tensor(tensors[name]) for name in self.arguments}
        found = list(evaluate.stages(self.op, stored=True))
        _, stage = found[number % len(found)]
        for result, exact in zip(into, stage(self.op, given, scalars, self.sizes), strict=True):
            result.copy_(exact)
        return results

    Runner.__call__ = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        Runner.__call__ = original  # type: ignore[method-assign]


def _laid(tensor: torch.Tensor, lies: random.Random) -> torch.Tensor:
    """The tensor as a view: of dimensions in another order, of every other element, or of a part; or as it is."""
    way, dims = lies.choice(["as it is", "turned", "apart", "part"]), list(range(tensor.dim()))
    if way == "as it is" or not dims:
        return tensor
    if way == "turned":
        lies.shuffle(dims)
        return tensor.permute(dims).contiguous().permute([dims.index(dim) for dim in range(len(dims))])
    dim = lies.choice(dims)
    if way == "apart":
        return torch.stack([tensor, tensor], dim + 1).select(dim + 1, lies.choice([0, 1]))
    size = tensor.shape[dim]
    return torch.cat([tensor, tensor], dim).narrow(dim, lies.choice([0, size]), size)


@dataclass
class Calls:
    """One program called in every mode, beside torch.

    Attributes:
        device: where ours is computed; torch's is computed on the CPU, in double.
        expected: makes the oracle of a mode.
        declared: the op, where others call it as well.
    """

    program: Program
    seed: int = 0
    device: str = "cpu"
    expected: Callable[..., Expected | Anything] = Expected.of
    declared: FusedOp | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.random = random.Random(self.seed)
        self.op = self.declared or self.program.op()
        self.values = {a.name: a.draw(generator) for a in self.program.arguments}
        self.draw = drawer(self.seed + 1)
        self.floats = self.program.floats
        self.tensors = {n: v for n, v in self.values.items() if isinstance(v, torch.Tensor)}

    @property
    def modes(self) -> dict[str, Callable[[], Iterator[Difference]]]:
        """How a program may be called."""
        return {
            "no gradients": self.plain, "all gradients": self.all_gradients, "some gradients": self.some_gradients,
            "second gradients": self.second, "jvp": self.jvp, "vmap": self.vmap, "vmap of a gradient": self.vmap_grad,
            "out=": self.out, "float32": self.single, "halves": self.halves, "NumPy": self.numpy,
            "torch.compile": self.compiled,
        }  # fmt: skip

    def run(self, modes: Iterable[str]) -> Iterator[Difference]:
        """Where results differ, in these modes."""
        for mode in modes:
            try:
                yield from self.modes[mode]()
            except Unstable:
                continue

    def again(self, modes: Iterable[str]) -> Iterator[Difference]:
        """The same with what was planned by the first calls, of the modes that a training step has."""
        yield from self.run([mode for mode in ("no gradients", "all gradients") if mode in modes])

    def ours(self, roots: Mapping[str, Any]) -> tuple[Any, ...]:
        results = as_tuple(self.op(*[self.there(roots.get(n, v)) for n, v in self.values.items()]))
        return tuple(result.cpu() for result in results)

    def laid_otherwise(self, roots: Mapping[str, Any]) -> tuple[Any, ...]:
        """The same of arguments that lie in memory otherwise, each program's in a way of its own."""
        lies = random.Random(str(self.program))
        return self.ours({n: _laid(t, lies) if isinstance(t, torch.Tensor) else t for n, t in roots.items()})

    def there(self, value: Any) -> Any:
        """A tensor where ours is computed."""
        return value.to(self.device) if isinstance(value, torch.Tensor) else value

    def theirs(self, roots: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.program.theirs(*[roots.get(n, v) for n, v in self.values.items()])

    def plain(self) -> Iterator[Difference]:
        expected = self.expected(self.theirs, self.tensors, rounding=True)
        yield from expected.differences("no gradients", "results", self._names, self.ours(self.tensors))

    @property
    def _names(self) -> list[str]:
        return [f"result {i}" for i in range(self.program.results)]

    def gradients(
        self, function: Callable[[Mapping[str, Any]], tuple[Any, ...]], roots: Mapping[str, Any], wanted: Sequence[str],
        create_graph: bool = False,
    ) -> list[torch.Tensor]:  # fmt: skip
        """Gradients of the float results that have a cotangent among the roots."""
        leaves = {n: roots[n] if create_graph else roots[n].detach().requires_grad_() for n in wanted}
        results = function({**roots, **leaves})
        pairs = [(r, roots[f"d{i}"]) for i, r in enumerate(results) if f"d{i}" in roots and r.requires_grad]
        if not pairs:
            raise Unstable
        return list(
            torch.autograd.grad(
                [r for r, _ in pairs], list(leaves.values()), [c.to(r.dtype) for r, c in pairs],
                allow_unused=True, materialize_grads=True, create_graph=create_graph,
            )
        )  # fmt: skip

    def with_cotangents(self, which: Sequence[int] | None = None) -> dict[str, Any]:
        results = self.theirs(self.tensors)
        chosen = [i for i, r in enumerate(results) if r.is_floating_point() and (which is None or i in which)]
        if not chosen or not self.floats:
            raise Unstable
        return {**self.tensors, **{f"d{i}": self.draw(results[i]) for i in chosen}}

    def all_gradients(self) -> Iterator[Difference]:
        yield from self._first(self.floats, self.with_cotangents(), "all gradients", self.ours)

    def some_gradients(self) -> Iterator[Difference]:
        wanted = [n for n in self.floats if self.random.random() < 0.5] or self.floats[:1]
        which = [i for i in range(self.program.results) if self.random.random() < 0.6] or [0]
        yield from self._first(wanted, self.with_cotangents(which), "some gradients", self.laid_otherwise)

    def _first(
        self, wanted: Sequence[str], roots: Mapping[str, Any], mode: str,
        ours: Callable[[Mapping[str, Any]], tuple[Any, ...]],
    ) -> Iterator[Difference]:  # fmt: skip
        expected = self.expected(lambda given: self.gradients(self.theirs, given, wanted), roots, rounding=True)
        found = self.gradients(ours, roots, wanted)
        yield from expected.differences(mode, "gradients", [f"d_{n}" for n in wanted], found)

    def second(self) -> Iterator[Difference]:
        roots = self.with_cotangents()
        inner = self.floats
        directions = {f"v{n}": self.draw(self.values[n]) for n in inner}
        sought = [*inner, *(n for n in roots if n.startswith("d"))]

        def of(function: Any) -> Callable[[Mapping[str, Any]], list[torch.Tensor]]:
            def double(given: Mapping[str, Any]) -> list[torch.Tensor]:
                leaves = {n: given[n].detach().requires_grad_() for n in sought}
                first = self.gradients(function, {**given, **leaves}, inner, create_graph=True)
                total = sum((g * given[f"v{n}"]).sum() for n, g in zip(inner, first, strict=True) if g.requires_grad)
                if not isinstance(total, torch.Tensor):
                    raise Unstable
                return list(
                    torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
                )

            return double

        everything = {**roots, **directions}
        expected = self.expected(of(self.theirs), everything)
        yield from expected.differences(
            "second gradients", "gradients", [f"d_{n}" for n in sought], of(self.ours)(everything)
        )

    def jvp(self) -> Iterator[Difference]:
        if not self.floats or not any(r.is_floating_point() for r in self.theirs(self.tensors)):
            return
        along = [n for n in self.floats if self.random.random() < 0.6] or self.floats[:1]
        roots = {**self.tensors, **{f"t{n}": self.draw(self.values[n]) for n in along}}

        def of(function: Any) -> Callable[[Mapping[str, Any]], list[torch.Tensor]]:
            def forward(given: Mapping[str, Any]) -> list[torch.Tensor]:
                primals, tangents = tuple(given[n] for n in along), tuple(given[f"t{n}"] for n in along)

                def call(*values: Any) -> Any:
                    results = function({**given, **dict(zip(along, values, strict=True))})
                    return tuple(r for r in results if r.is_floating_point())

                results, found, *_ = torch.func.jvp(call, primals, tangents)
                return [*results, *found]

            return forward

        expected, found = self.expected(of(self.theirs), roots), of(self.ours)(roots)
        names = [f"{kind} {i}" for kind in ("result", "tangent") for i in range(len(found) // 2)]
        yield from expected.differences("jvp", "forward mode", names, found)

    def _wide(self) -> tuple[list[str], dict[str, Any]]:
        names = [n for n in self.tensors if self.random.random() < 0.6] or list(self.tensors)[:1]
        return names, {
            n: torch.stack([self.draw(t) for _ in range(3)]) if n in names else t for n, t in self.tensors.items()
        }

    def vmap(self) -> Iterator[Difference]:
        names, roots = self._wide()

        def of(function: Any) -> Callable[[Mapping[str, Any]], list[torch.Tensor]]:
            def mapped(given: Mapping[str, Any]) -> list[torch.Tensor]:
                call = lambda *values: function({**given, **dict(zip(names, values, strict=True))})  # noqa: E731
                return list(torch.func.vmap(call)(*(given[n] for n in names)))

            return mapped

        def looped(given: Mapping[str, Any]) -> list[torch.Tensor]:
            calls = [self.theirs({**given, **{n: given[n][i] for n in names}}) for i in range(3)]
            return [torch.stack(each) for each in zip(*calls, strict=True)]

        yield from self.expected(looped, roots).differences("vmap", f"over {names}", self._names, of(self.ours)(roots))

    def vmap_grad(self) -> Iterator[Difference]:
        names, roots = self._wide()
        names = [n for n in names if n in self.floats]
        if not names:
            return
        roots = {n: t if n in names else self.tensors[n] for n, t in roots.items()}
        base = self.with_cotangents()
        cotangents = {n: t for n, t in base.items() if n not in self.tensors}

        def value(function: Any, given: Mapping[str, Any]) -> Any:
            results = function(given)
            return sum((r * cotangents[f"d{i}"]).sum() for i, r in enumerate(results) if f"d{i}" in cotangents)

        def per_sample(given: Mapping[str, Any]) -> list[torch.Tensor]:
            call = lambda *values: value(self.ours, {**given, **dict(zip(names, values, strict=True))})  # noqa: E731
            grad = torch.func.grad(call, argnums=tuple(range(len(names))))
            return list(torch.func.vmap(grad)(*(given[n] for n in names)))

        def looped(given: Mapping[str, Any]) -> list[torch.Tensor]:
            found = []
            for i in range(3):
                one = {**given, **cotangents, **{n: given[n][i] for n in names}}
                found.append(self.gradients(self.theirs, one, names))
            return [torch.stack(each) for each in zip(*found, strict=True)]

        expected = self.expected(looped, roots)
        yield from expected.differences("vmap of a gradient", f"over {names}", names, per_sample(roots))

    def out(self) -> Iterator[Difference]:
        expected = self.expected(self.theirs, self.tensors)
        given = []
        for value in self.ours(self.tensors):
            wide = torch.empty(
                (*value.shape[:-1], value.shape[-1] * 2) if value.dim() else (), dtype=value.dtype, device=self.device
            )
            spread = value.dim() and self.random.random() < 0.5
            given.append(wide[..., ::2] if spread else torch.empty_like(value, device=self.device))
        self.op(*map(self.there, self.values.values()), out=given[0] if len(given) == 1 else tuple(given))
        yield from expected.differences("out=", "results", self._names, [result.cpu() for result in given])

    def single(self) -> Iterator[Difference]:
        yield from self._rounded(torch.float32, "float32")

    def halves(self) -> Iterator[Difference]:
        """All of one half type, or some arguments in float32 beside it."""
        half = self.random.choice([torch.bfloat16, torch.float16])
        beside = [] if ONE_DTYPE.search(self.program.body) or self.random.random() < 0.5 else self.floats[1:]
        floats = {name: torch.float32 for name in beside if self.random.random() < 0.5}
        yield from self._rounded(half, "halves", floats)

    def _rounded(
        self, dtype: torch.dtype, mode: str, others: Mapping[str, torch.dtype] | None = None
    ) -> Iterator[Difference]:
        """In a narrower dtype, beside the double of the same numbers: results and gradients.

        Args:
            others: the dtypes of some arguments.
        """

        def narrow(name: str, value: Any) -> Any:
            is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to((others or {}).get(name, dtype)) if is_float else value

        def exact(roots: Mapping[str, Any]) -> dict[str, Any]:
            return {
                n: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for n, t in roots.items()
            }

        roots = {n: narrow(n, v) for n, v in self.tensors.items()}
        # Halves are computed in float32, by functions that are a few last bits off.
        spacing = torch.finfo(dtype).eps
        eps, stored = (HALVES_COMPUTED, spacing) if spacing > HALVES_COMPUTED else (spacing, 0.0)
        results = lambda given: self.theirs(exact(given))  # noqa: E731
        expected = self.expected(results, exact(roots), eps=eps, rounding=True, stored=stored)
        yield from expected.differences(mode, "results", self._names, self.ours(roots))
        roots = {n: narrow(n, v) for n, v in self.with_cotangents().items()}
        oracle = lambda given: self.gradients(self.theirs, exact(given), self.floats)  # noqa: E731
        expected = self.expected(oracle, exact(roots), eps=eps, rounding=True, stored=stored)
        found = self.gradients(self.ours, roots, self.floats)
        yield from expected.differences(mode, "gradients", [f"d_{n}" for n in self.floats], found)

    def numpy(self) -> Iterator[Difference]:
        expected = self.expected(self.theirs, self.tensors)
        found = as_tuple(self.op(*[v.numpy() if isinstance(v, torch.Tensor) else v for v in self.values.values()]))
        yield from expected.differences("NumPy", "results", self._names, [torch.as_tensor(f) for f in found])

    def compiled(self) -> Iterator[Difference]:
        op, names = self.op, list(self.values)
        torch._dynamo.reset()

        @torch.compile(fullgraph=True, backend="aot_eager")
        def call(*values: Any) -> Any:
            return op(*values)

        roots = self.with_cotangents()
        expected = self.expected(lambda given: self.gradients(self.theirs, given, self.floats), roots)
        function = lambda given: tuple(  # noqa: E731
            result.cpu() for result in as_tuple(call(*[self.there(given.get(n, self.values[n])) for n in names]))
        )
        found = self.gradients(function, roots, self.floats)
        yield from expected.differences("torch.compile", "gradients", [f"d_{n}" for n in self.floats], found)


@contextmanager
def filled_with_nan() -> Iterator[None]:
    """Memory that torch hands out holds NaN, so that what reads it before it is written shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


# What has one dtype of all of its tensors: matrix products, and what is put into a tensor or combined there.
ONE_DTYPE = re.compile(r"@|linear|product|scatter|put\(")


# -- one program, whole ------------------------------------------------------------------------------------------------

# What fusegen refuses by design, in its own words; everything else that a program ends in is a defect.
REFUSED = re.compile(
    r"a tensor meets itself along another dimension|used both whole and in parts|one dimension is a part of another"
    r"|that varies along the dimension|a scan along a dimension that is in groups"
    r"|in blocks along dimension \d+ and along dimension|computes, whose gradient was declared"
)
EVALUATORS, INTERPRETED, COMPILED, CUBINS, GPU = "evaluators", "interpreted", "compiled", "cubins", "gpu"


def checked(program: Program, seed: int, how: str, modes: Collection[str] = ()) -> Iterator[Difference]:
    """Where a program's numbers part from torch's.

    Args:
        how: "evaluators": every stage of every op that follows from it. "interpreted": calls in every mode, fused
            kernels interpreted. "compiled": the same calls, by the emulator. "cubins": the same calls, interpreted, and
            what they would launch is compiled for a GPU. "gpu": on a GPU.
        modes: of calls; all where none are named.

    Raises:
        Unstable: there is nothing to compare.
        fusegen.FusegenError: the program is refused (see `REFUSED`), or does not compile.
    """
    if how == EVALUATORS:
        yield from Stages(program, seed).run()
        return
    op = program.op()
    calls = Calls(program, seed, "cuda" if how == GPU else "cpu", declared=op)
    modes = [mode for mode in calls.modes if not modes or mode in modes]
    if how == GPU:
        modes = [mode for mode in modes if mode != "NumPy"]  # whose arrays are the CPU's
        yield from calls.run(modes)
        yield from calls.again(modes)
        return
    untraced = [mode for mode in modes if mode != "torch.compile"]  # which would keep what is interpreted here
    if how == INTERPRETED:
        with interpreted(seed):
            yield from calls.run(untraced)
        return
    if how == CUBINS:
        with recorded() as kernels, interpreted(seed, planned=True):
            yield from calls.run(untraced)
        kernels.check_cubins("sm_90")
        return
    with recorded() as kernels, interpreted(None, planned=True):
        yield from Calls(program, seed, expected=Anything, declared=op).run(untraced)
    with TemporaryDirectory(prefix="fusegen-programs-") as folder:
        kernels.build(Path(folder))
        with filled_with_nan():
            yield from calls.run(modes)
            yield from calls.again(modes)
