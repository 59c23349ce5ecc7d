"""Random calls against torch, each of which must find its own plan and no other's: python -m tools.key_fuzz.

A call that is like an earlier one runs the plan that was recorded for that one (pytorch/calls,
pytorch/library/native_kernels). A key of its arguments finds the plan. If the key lacks a property, the call runs
another call's plan and returns wrong numbers, without an error. So a few ops are called with tensors that differ in one
thing or another (sizes, strides, alignment, dtype, who requires gradients, which are one), numbers and constants, by
position and by name, under modes that change what a call means. Each call runs three times with other numbers in the
same memory, on every call path that runs plans. tests/tooling/test_key_fuzz.py does a bounded part.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import fusegen as fg
from fusegen.native import module as native
from fusegen.pytorch.calls import plan_cache

DTYPES = (torch.float32, torch.float64)
TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-9, 1e-10)}
SIZES = (0, 1, 1, 3, 3, 3, 4, 4, 4, 8)
# What a call is like: by what its things are called, of a tensor behind the tensor's name.
CHOICES: Mapping[str, Sequence[Any]] = {
    "dtype": DTYPES, "rows": SIZES, "columns": SIZES[1:], "inner": SIZES[1:],
    "beside": ("whole", "whole", "whole", "row", "number", "column"), "second": ("its own", "alike", "the same"),
    "name": (0, 0, 1, 2, 3), "order": (False, True),
    "number": (*[None] * 8, 0.5, 0.25, 2, True, -0.0, 1e300, math.nan), "constant": (*[None] * 5, 1, 2, 1.0, True),
    "lies": ("plain", "plain", "turned", "spread", "expanded"), "from": (0, 0, 0, 1, 2, 4), "copied": (False, True),
    "gradient": (False, False, True), "class": ("tensor", "tensor", "parameter"),
}  # fmt: skip
OF_TENSORS = ("lies", "from", "copied", "gradient", "class")
MODES: Mapping[str, Callable[[], Any]] = {
    "": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("cpu"),
}
POOL, RECENT = 4096, 10


# -- ops --------------------------------------------------------------------------------------------------------------


def waves(x, y, s=0.5, *, k: fg.Const = 1):  # type: ignore[no-untyped-def]
    """Numbers that are values of a call, and a constant."""
    return fg.sin(x) * y * k + s, x - y


def rows(x, w, *, eps=1e-5):  # type: ignore[no-untyped-def]
    """A reduction."""
    return x * fg.rsqrt(fg.mean(x * x, -1, keepdims=True) + eps) * w


def layer(x, w, b):  # type: ignore[no-untyped-def]
    """A product."""
    return fg.tanh(x @ w + b)


def torchs_waves(x: Any, y: Any, s: Any = 0.5, *, k: Any = 1) -> Any:
    """The same by torch."""
    return x.sin() * y * k + s, x - y


def torchs_rows(x: Any, w: Any, *, eps: float = 1e-5) -> Any:
    """The same by torch."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


def torchs_layer(x: Any, w: Any, b: Any) -> Any:
    """The same by torch, where autocast does not reach it as it does not reach an op without a policy."""
    with torch.autocast(x.device.type, enabled=False):
        return torch.tanh(x @ w + b)


@dataclass(frozen=True)
class Kind:
    """An op, and the same by torch; ``names`` of its tensors, in order."""

    declared: Any
    reference: Callable[..., Any]
    names: str


KINDS = (
    Kind(fg.op(waves), torchs_waves, "xy"),
    Kind(fg.op(rows), torchs_rows, "xw"),
    Kind(fg.op(layer), torchs_layer, "xwb"),
)


# -- call paths -------------------------------------------------------------------------------------------------------

Call = Callable[..., Any]


def by_python(kind: Kind) -> Call:
    """The call path in Python."""
    made = fg.FusedOp(kind.declared.declaration)
    made._use(plan_cache.PlanCache(made.declaration, made._slow_path, in_python=True))
    return made


def natively(kind: Kind) -> Call:
    """The native call path."""
    made = fg.FusedOp(kind.declared.declaration)
    made._use(plan_cache.PlanCache(made.declaration, made._slow_path))
    return made


def by_overload(kind: Kind) -> Call:
    """The registered op, called from Python: its plan is found before torch's dispatcher is asked."""
    made = fg.FusedOp(kind.declared.declaration)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = made.overload(*args, **kwargs)(*args, **kwargs)
        return tuple(found) if isinstance(found, (list, tuple)) else found

    return call


def boxed(kind: Kind) -> Call:
    """The registered op, called by TorchScript's interpreter: the kernels in C++ that torch's dispatcher calls."""
    call, graphs = by_overload(kind), dict[str, Any]()

    def run(*args: Any, **kwargs: Any) -> Any:
        places = list(range(len(args)))
        named: dict[Any, Any] = {**dict(zip(places, args, strict=True)), **kwargs}
        tensors = {place: value for place, value in named.items() if isinstance(value, torch.Tensor)}
        key = repr([(place, None if place in tensors else value) for place, value in named.items()])
        if key not in graphs:

            def function(*given: torch.Tensor) -> Any:
                values = {**named, **dict(zip(tensors, given, strict=True))}
                return call(*(values[place] for place in places), **{name: values[name] for name in kwargs})

            graphs[key] = torch.jit.trace(function, tuple(tensors.values()), check_trace=False)
        return graphs[key](*tensors.values())

    return run


def compiled(kind: Kind) -> Call:
    """Code that torch.compile made."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 10_000
    made = fg.FusedOp(kind.declared.declaration)
    return torch.compile(lambda *args, **kwargs: made(*args, **kwargs), backend="aot_eager")


PATHS: Mapping[str, Callable[[Kind], Call]] = {
    "python": by_python, "native": natively, "overload": by_overload, "boxed": boxed, "compiled": compiled
}  # fmt: skip


# -- calls ------------------------------------------------------------------------------------------------------------


@dataclass
class Fuzz:
    """Draws calls, one seed's the same every time, and says what was wrong.

    Args:
        fixed: what is not drawn, by the names of ``CHOICES``.

    Attributes:
        calls: how many there have been.
    """

    path: str
    seed: int
    kinds: Sequence[Kind] = KINDS
    fixed: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 0
    mistakes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        torch.manual_seed(self.seed)
        self.pools = {dtype: torch.randn(POOL, dtype=dtype) for dtype in DTYPES}
        self.ops = {kind.names: PATHS[self.path](kind) for kind in self.kinds}
        self.earlier: list[dict[str, Any]] = []
        # A tensor of inference mode is none that compiled code has seen: torch compiles anew for every one.
        self.modes = [name for name in MODES if self.path != "compiled" or name != "inference"]

    def choice(self, name: str) -> Any:
        """One of what there is to choose from."""
        about = name.rpartition(" ")[2]
        if about in self.fixed:
            return self.fixed[about]
        return self.random.choice(self.modes if about == "mode" else CHOICES[about])

    def chosen(self) -> dict[str, Any]:
        """What a call is like: mostly like an earlier one but for one thing, which its key must tell."""
        if self.earlier and self.random.random() < 0.85:
            found, of_a_tensor = dict(self.random.choice(self.earlier[-RECENT:])), self.random.random() < 0.5
            drawn = [name for name in found if name != "kind" and name.rpartition(" ")[2] not in self.fixed]
            names = [name for name in drawn if (name.rpartition(" ")[2] in OF_TENSORS) == of_a_tensor]
            name = self.random.choice(names)
            found[name] = self.choice(name)
        else:
            kind = self.random.choice(self.kinds)
            about = ["dtype", "rows", "columns", "inner", "mode", "beside", "second", "number", "constant"]
            about += ["by name", "other order"]
            about += [
                f"{place} {what}" for place in kind.names for what in ("lies", "from", "copied", "gradient", "class")
            ]
            found = {"kind": kind, **{name: self.choice(name) for name in about}}
        self.earlier.append(found)
        return found

    def tensor(
        self, shape: Sequence[int], dtype: torch.dtype, like: Mapping[str, Any], place: str, start: int = 0
    ) -> torch.Tensor:
        """One that lies as it is to, in memory that others use or in its own."""
        lies, count = like[f"{place} lies"], math.prod(shape)
        base = self.pools[dtype][start + like[f"{place} from"] :]
        if lies == "turned" and len(shape) > 1:
            found = base[:count].view(*shape[::-1]).permute(*reversed(range(len(shape))))
        elif lies == "spread" and shape:
            found = base[: 2 * count].view(*shape[:-1], 2 * shape[-1])[..., ::2]
        elif lies == "expanded" and len(shape) > 1 and shape[0]:
            found = base[: count // shape[0]].view(1, *shape[1:]).expand(shape)
        else:
            found = base[:count].view(shape)
        found = (found.clone() if like[f"{place} copied"] else found).detach()
        if like[f"{place} class"] == "parameter":
            return torch.nn.Parameter(found, requires_grad=like[f"{place} gradient"])
        return found.requires_grad_(like[f"{place} gradient"])

    def arguments(self, like: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Of a call that is like that, by position and by name."""
        kind, r, c, k = (like[name] for name in ("kind", "rows", "columns", "inner"))
        beside = {"whole": (r, c), "row": (c,), "number": (), "column": (r, 1)}[like["beside"]]
        shapes = {"xy": [(r, c), beside], "xw": [(r, c), (c,)], "xwb": [(r, k), (k, c), (c,)]}[kind.names]
        args: list[Any] = [
            self.tensor(shape, like["dtype"], like, place) for place, shape in zip(kind.names, shapes, strict=True)
        ]
        if like["second"] == "alike" and kind.names == "xy":  # other numbers that lie as the first one's do
            args[1] = self.tensor(shapes[1], like["dtype"], like, "x", POOL // 2)
        kwargs: dict[str, Any] = {}
        if kind.names == "xy":
            args[1] = args[0] if like["second"] == "the same" else args[1]
            kwargs = {"s": like["number"]} if like["number"] is not None else {}
            kwargs |= {"k": like["constant"]} if like["constant"] is not None else {}
        elif kind.names == "xw" and like["constant"] is not None:
            kwargs = {"eps": 1e-3 * like["constant"]}
        for name in kind.names[: -1 - like["by name"] : -1]:
            kwargs = {**kwargs, name: args.pop()}
        return args, dict(reversed(kwargs.items())) if like["other order"] else kwargs

    def step(self) -> None:
        """One call, three times."""
        like = self.chosen()
        kind, (args, kwargs) = like["kind"], self.arguments(like)
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        gradients = self.random.random() < 0.7
        for again in range(3):
            self.calls += 1
            self.pools[like["dtype"]].normal_()  # what a plan holds must not be numbers
            with MODES[like["mode"]]():
                found, expected = (as_tuple(f(*args, **kwargs)) for f in (self.ops[kind.names], kind.reference))
            wrong = self.compared(found, expected)
            if not wrong and gradients:
                wrong = self.differentiated(found, expected, given)
            said = {name: value for name, value in like.items() if name != "kind"}
            where = f"{self.path}, seed {self.seed}: {kind.declared.name}, call {again} of {said}"
            self.mistakes += [f"{where}: {what}" for what in wrong]

    def compared(self, found: Sequence[Any], expected: Sequence[Any]) -> list[str]:
        """What is wrong with the results."""
        wrong = []
        for one, other in zip(found, expected, strict=True):
            facts = [(t.shape, t.dtype, t.requires_grad, t.is_inference()) for t in (one, other)]
            if facts[0] != facts[1]:
                wrong.append(f"{facts[0]} where torch has {facts[1]}")
            elif not close(one, other):
                wrong.append(f"off by {(one - other).abs().max().item()}")
        return wrong

    def differentiated(self, found: Sequence[Any], expected: Sequence[Any], given: Iterable[Any]) -> list[str]:
        """What is wrong with the gradients, of some results and for cotangents that lie in some way."""
        leaves = list({id(t): t for t in given if t.requires_grad}.values())
        recorded = [i for i, t in enumerate(expected) if t.requires_grad]
        if not leaves or not recorded:
            return []
        chosen = [i for i in recorded if self.random.random() < 0.7] or recorded[:1]
        cotangents = [self.cotangent(expected[i]) for i in chosen]
        mine, theirs = (
            torch.autograd.grad([results[i] for i in chosen], leaves, cotangents, allow_unused=True)
            for results in (found, expected)
        )
        wrong = []
        for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            if (one is None) != (other is None) or (one is not None and not close(one, other)):
                wrong.append(f"the gradient of leaf {place} of results {chosen}")
        return wrong

    def cotangent(self, result: torch.Tensor) -> torch.Tensor:
        """One that is dense, turned, or the same everywhere."""
        found = torch.randn(result.shape[::-1], dtype=result.dtype).permute(*reversed(range(result.ndim)))
        return self.random.choice([found, found.contiguous(), torch.randn((), dtype=result.dtype).expand(result.shape)])


def as_tuple(found: Any) -> tuple[Any, ...]:
    """Results as a tuple."""
    return found if isinstance(found, tuple) else (found,)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results are the same but for rounding."""
    relative, absolute = TOLERANCES[other.dtype]
    one, other = one.detach().clone(), other.detach().clone()
    return one.shape == other.shape and torch.allclose(one, other, relative, absolute, equal_nan=True)


def available() -> list[str]:
    """Call paths that this machine has."""
    return [path for path in PATHS if path == "python" or native.awaited() is not None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Calls until the time is up; ends with 1 if one was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=150.0, help="for each call path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", dest="paths", choices=PATHS, action="append", help="by default every one")
    options = parser.parse_args(arguments)
    wrong = 0
    for path in options.paths or available():
        fuzz, end = Fuzz(path, options.seed), time.monotonic() + options.seconds
        while time.monotonic() < end and len(fuzz.mistakes) < 10:
            fuzz.step()
        print(f"{path}: {fuzz.calls} calls, {len(fuzz.mistakes)} wrong", *fuzz.mistakes, sep="\n  ", flush=True)
        wrong += len(fuzz.mistakes)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
