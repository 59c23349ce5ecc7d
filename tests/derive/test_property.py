"""Random declarations on random tensors: values, dtypes, shapes, strides and gradients are torch's.

A declaration is drawn as a tree and written twice: with fusegen's functions and with torch's. Torch evaluates it in
float64, which is the oracle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fusegen as fg

pytestmark = pytest.mark.emulator

IN_CI = os.environ.get("HYPOTHESIS_PROFILE", "ci") == "ci"
EXAMPLES = settings(
    max_examples=60 if IN_CI else 600, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Torch:
    """The functions that both sides have, as torch has them."""

    where = staticmethod(torch.where)
    sum = staticmethod(lambda x, axis=None, keepdims=False: torch.sum(x, dim=axis, keepdim=keepdims))
    mean = staticmethod(lambda x, axis=None, keepdims=False: torch.mean(x, dim=axis, keepdim=keepdims))
    stop_gradient = staticmethod(lambda x: x.detach())
    softplus = staticmethod(lambda x: torch.logaddexp(x, torch.zeros((), dtype=x.dtype)))
    logsigmoid = staticmethod(torch.nn.functional.logsigmoid)
    square = staticmethod(torch.square)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


# -- trees -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A function of both libraries applied to subtrees; leaves are argument names and Python numbers."""

    text: str
    children: tuple[Any, ...] = ()

    def evaluate(self, library: Any, values: dict[str, Any], seen: dict[int, Any]) -> Any:
        if id(self) not in seen:
            inner = [c.evaluate(library, values, seen) if isinstance(c, Node) else c for c in self.children]
            seen[id(self)] = FUNCTIONS[self.text](library, values, *inner)
        return seen[id(self)]

    def __str__(self) -> str:
        return f"{self.text}({', '.join(map(str, self.children))})" if self.children else self.text


def _call(name: str) -> Callable[..., Any]:
    return lambda lib, values, *args: getattr(lib, name)(*args)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda lib, v, a, b: a + b,
    "sub": lambda lib, v, a, b: a - b,
    "mul": lambda lib, v, a, b: a * b,
    "div": lambda lib, v, a, b: a / (b * b + 1),
    "neg": lambda lib, v, a: -a,
    "power2": lambda lib, v, a: a**2,
    "power3": lambda lib, v, a: a**3,
    "number": lambda lib, v, a, c: c * a,
    "rnumber": lambda lib, v, a, c: c - a,
    "select": lambda lib, v, a, b, c: lib.where(a < b, b, c),
    "select0": lambda lib, v, a, b: lib.where((a > 0.25) & (b <= 1), a, 0.5),
    "frozen": lambda lib, v, a, b: a * lib.stop_gradient(b),
    "log": lambda lib, v, a: lib.log(a * a + 0.5),
    "sqrt": lambda lib, v, a: lib.sqrt(a * a + 0.5),
    "rsqrt": lambda lib, v, a: lib.rsqrt(lib.abs(a) + 0.5),
    "pow": lambda lib, v, a, b: (lib.abs(a) + 0.5) ** lib.tanh(b),
    "atanh": lambda lib, v, a: lib.atanh(0.9 * lib.sin(a)),
    "exp": lambda lib, v, a: lib.exp(lib.minimum(a, 0.0 * a + 2.0)),
    "asinh": _call("asinh"), "tanh": _call("tanh"), "sin": _call("sin"), "cos": _call("cos"), "atan": _call("atan"),
    "sigmoid": _call("sigmoid"), "softplus": _call("softplus"), "logsigmoid": _call("logsigmoid"), "erf": _call("erf"),
    "abs": _call("abs"), "square": _call("square"), "minimum": _call("minimum"), "maximum": _call("maximum"),
    "hypot": lambda lib, v, a, b: lib.hypot(a, b + 3),
    "atan2": lambda lib, v, a, b: lib.atan2(a, b * b + 0.5),
    "log1p": lambda lib, v, a: lib.log1p(a * a), "expm1": lambda lib, v, a: lib.expm1(lib.tanh(a)),
}  # fmt: skip
UNARY = [
    "neg", "power2", "power3", "log", "sqrt", "rsqrt", "atanh", "exp", "asinh", "tanh", "sin", "cos", "atan", "sigmoid",
    "softplus", "logsigmoid", "erf", "abs", "square", "log1p", "expm1",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "div", "select0", "frozen", "pow", "minimum", "maximum", "hypot", "atan2"]
NUMBERS = [-2.0, -0.5, 0.25, 1.5, 3.0]


def _argument(name: str) -> Node:
    FUNCTIONS[name] = lambda lib, values, _name=name: values[_name]
    return Node(name)


ARGUMENTS = [_argument(f"x{i}") for i in range(4)]


@st.composite
def trees(draw: st.DrawFn, arguments: int, size: int) -> Node:
    """A tree that reads every argument; subtrees are shared now and then."""
    pool: list[Node] = list(ARGUMENTS[:arguments])
    unread = list(pool)
    for _ in range(size):
        kind = draw(st.sampled_from(["unary", "binary", "binary", "number", "select"]))
        picked = [unread.pop(0) if unread and i == 0 else draw(st.sampled_from(pool[-4:] + pool[:2])) for i in range(3)]
        if kind == "unary":
            node = Node(draw(st.sampled_from(UNARY)), (picked[0],))
        elif kind == "binary":
            node = Node(draw(st.sampled_from(BINARY)), tuple(picked[:2]))
        elif kind == "number":
            node = Node(draw(st.sampled_from(["number", "rnumber"])), (picked[0], draw(st.sampled_from(NUMBERS))))
        else:
            node = Node("select", tuple(picked))
        pool.append(node)
    result = pool[-1]
    for node in (*unread, *pool[arguments:-1][:3]):
        result = Node("add", (result, node))
    return result


# -- tensors ---------------------------------------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast, of ranks 0 to 5."""
    rank = draw(st.integers(0, 5))
    largest = {0: 1, 1: 300, 2: 40, 3: 12, 4: 7, 5: 5}[rank]
    full = [draw(st.integers(0 if draw(st.integers(0, 15)) == 0 else 1, largest)) for _ in range(rank)]
    found = []
    for _ in range(count):
        missing = draw(st.integers(0, rank)) if draw(st.booleans()) else 0
        found.append(tuple(1 if draw(st.integers(0, 3)) == 0 else size for size in full[missing:]))
    return found


LAYOUTS = ["dense", "dense", "permuted", "step", "expanded", "offset", "channels_last"]


def laid_out(tensor: torch.Tensor, layout: str, order: Sequence[int]) -> torch.Tensor:
    """The same numbers, otherwise in memory."""
    rank = tensor.dim()
    if layout == "permuted" and rank > 1:
        order = [d for d in order if d < rank]
        return tensor.permute(order).contiguous().permute([order.index(d) for d in range(rank)])
    if layout == "step" and rank:
        wide = torch.zeros((*tensor.shape[:-1], tensor.shape[-1] * 3 + 1), dtype=tensor.dtype)
        view = wide[..., 1::3][..., : tensor.shape[-1]]
        view.copy_(tensor)
        return view
    if layout == "expanded" and rank:
        return tensor.narrow(0, 0, min(1, tensor.shape[0])).expand(tensor.shape)
    if layout == "offset":
        flat = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
        view = flat[1:].view(tensor.shape)
        view.copy_(tensor)
        return view
    if layout == "channels_last" and rank == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


@st.composite
def tensors(draw: st.DrawFn, count: int, dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    found = []
    for shape in draw(shapes(count)):
        dtype = draw(st.sampled_from(dtypes))
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        tensor = numbers.to(dtype) if dtype.is_floating_point else (numbers * 3).to(dtype)
        order = draw(st.permutations(range(5)))
        found.append(laid_out(tensor, draw(st.sampled_from(LAYOUTS)), order))
    return found


def declare(tree: Node, count: int) -> Any:
    """The fusegen op that a tree stands for."""
    names = [f"x{i}" for i in range(count)]
    space: dict[str, Any] = {"fg": fg, "tree": tree}
    exec(
        f"def drawn({', '.join(names)}):\n"
        f"    return tree.evaluate(fg, dict({', '.join(f'{n}={n}' for n in names)}), {{}})\n",
        space,
    )
    return fg.op(space["drawn"])


def in_torch(tree: Node, values: Sequence[torch.Tensor]) -> torch.Tensor:
    result: torch.Tensor = tree.evaluate(Torch(), {f"x{i}": v for i, v in enumerate(values)}, {})
    return result


# -- properties ------------------------------------------------------------------------------------------------------

# Of the size of the intermediate results: expressions cancel.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@EXAMPLES
@given(data=st.data())
def test_values_gradients_and_layout_are_torchs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4), "arguments")
    tree = data.draw(trees(count, data.draw(st.integers(2, 9), "size")), "tree")
    inputs = data.draw(tensors(count, [torch.float64]), "tensors")
    wanted = [data.draw(st.booleans(), "wanted") for _ in inputs]
    ours = [t.detach().requires_grad_(w) for t, w in zip(inputs, wanted, strict=True)]
    theirs = [t.detach().requires_grad_(w) for t, w in zip(inputs, wanted, strict=True)]

    result, expected = declare(tree, count)(*ours), in_torch(tree, theirs)

    assert result.dtype is expected.dtype and result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)
    if not expected.requires_grad:
        assert not any(wanted) or result.requires_grad  # torch forgets a gradient that is stopped everywhere
        return
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    leaves = [t for t in ours if t.requires_grad]
    got = torch.autograd.grad(result, leaves, cotangent, allow_unused=True)
    correct = torch.autograd.grad(expected, [t for t in theirs if t.requires_grad], cotangent, allow_unused=True)
    for mine, right, leaf in zip(got, correct, leaves, strict=True):
        assert mine is not None or right is None, "no gradient where torch has one"
        mine, right = (torch.zeros_like(leaf) if g is None else g for g in (mine, right))
        assert mine.shape == right.shape and mine.dtype is right.dtype
        torch.testing.assert_close(mine, right, rtol=1e-8, atol=1e-8)


SIMPLE = [["add", "sub", "mul", "minimum", "maximum"], ["neg", "abs"]]


@EXAMPLES
@given(data=st.data())
def test_dtypes_promote_and_results_lie_in_memory_as_torchs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3), "arguments")
    dtypes = [
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8,
    ]  # fmt: skip
    inputs = data.draw(tensors(count, dtypes), "tensors")
    pool: list[Node] = list(ARGUMENTS[:count])
    tree = pool[0]
    for other in pool[1:]:
        tree = Node(data.draw(st.sampled_from(SIMPLE[0]), "function"), (tree, other))
    if data.draw(st.booleans(), "number"):
        tree = Node("number", (tree, data.draw(st.sampled_from([2, 0.5, -3]), "factor")))

    result, expected = declare(tree, count)(*inputs), in_torch(tree, inputs)

    assert result.dtype is expected.dtype and result.shape == expected.shape
    if (
        expected.numel()
        and len(tree.children) == 2
        and not any(isinstance(c, Node) and c.children for c in tree.children)
    ):
        # One operation: torch's chain of temporaries may have settled on another order.
        assert result.stride() == expected.stride()
    if expected.dtype.is_floating_point:
        # Ours rounds once; torch rounds after every operation, and float64 not at all.
        wide = [t.double() if t.dtype.is_floating_point else t for t in inputs]
        exact = in_torch(tree, wide).double()
        scale = exact.abs().amax() if exact.numel() else 1
        # A step that torch computes in a narrow dtype (with a 0-d tensor of a wider one) is in float32 here.
        steps = {expected.dtype, *(t.dtype if t.dtype.is_floating_point else torch.float32 for t in inputs)}
        tolerance = max(TOLERANCE[dtype] for dtype in steps)
        torch.testing.assert_close(
            result.double(), exact, rtol=0, atol=float(scale) * tolerance + 1e-300, equal_nan=True
        )
    else:
        assert torch.equal(result, expected)


@EXAMPLES
@given(data=st.data())
def test_sums_over_any_axes_and_what_follows_them(data: st.DataObject) -> None:
    (x,) = data.draw(tensors(1, [torch.float64]), "tensor")
    count = data.draw(st.integers(0, x.dim()), "count")
    axes = tuple(data.draw(st.permutations(range(x.dim())), "axes")[:count])
    axis: Any = axes if axes else None
    if len(axes) == 1 and data.draw(st.booleans(), "negative"):
        axis = axes[0] - x.dim()
    keep = data.draw(st.booleans(), "keepdims")
    kind = data.draw(st.sampled_from(["sum", "mean"]), "kind")

    def body(lib: Any, v: Any) -> Any:
        total = getattr(lib, kind)(v * v + 0.5 * v, axis=axis, keepdims=keep)
        centred = v - getattr(lib, kind)(v, axis=axis, keepdims=True)
        return lib.tanh(total), lib.sin(centred) * v

    op = fg.op(lambda v: body(fg, v), name="reducing")
    mine, theirs = x.detach().requires_grad_(), x.detach().requires_grad_()
    got, expected = op(mine), body(Torch(), theirs)
    generator = torch.Generator().manual_seed(2)
    cotangents = [torch.randn(e.shape, generator=generator, dtype=e.dtype) for e in expected]
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
    (a,), (b,) = (torch.autograd.grad(y, t, cotangents) for y, t in ((got, mine), (expected, theirs)))
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8, equal_nan=True)


@settings(EXAMPLES, max_examples=25 if IN_CI else 250)
@given(data=st.data())
def test_second_derivatives_are_torchs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3), "arguments")
    tree = data.draw(trees(count, data.draw(st.integers(1, 4), "size")), "tree")
    inputs = data.draw(tensors(count, [torch.float64]), "tensors")
    found = []
    for function in (declare(tree, count), lambda *x: in_torch(tree, x)):
        leaves = [t.detach().requires_grad_() for t in inputs]
        result = function(*leaves)
        if not result.requires_grad:
            return
        generator = torch.Generator().manual_seed(3)
        cotangent = torch.randn(result.shape, generator=generator, dtype=torch.float64).requires_grad_()
        first = torch.autograd.grad(result, leaves, cotangent, create_graph=True, allow_unused=True)
        weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in leaves]
        total = sum(((g * w).sum() for g, w in zip(first, weights, strict=True) if g is not None), torch.zeros(()))
        if not total.requires_grad:
            found.append([torch.zeros_like(t) for t in (*leaves, cotangent)])
            continue
        second = torch.autograd.grad(total, [*leaves, cotangent], allow_unused=True)
        found.append(
            [torch.zeros_like(t) if g is None else g for g, t in zip(second, (*leaves, cotangent), strict=True)]
        )
    for mine, right in zip(*found, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-7, atol=1e-7)
