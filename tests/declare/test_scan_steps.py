"""What a scan's kernel does in front of the scan and behind it: how many steps there are, and what these write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.ir import Op
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Product, Scan
from fusegen.inspect.passes import passes
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES

Function = Callable[..., Any]
# A function of torch, shapes of its arguments, and the steps of its forward and its backward: scans, and kernels.
CASES: dict[str, tuple[Function, list[tuple[int, ...]], tuple[str, str]]] = {}


def case(forward: str, backward: str, *shapes: tuple[int, ...]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        CASES[function.__name__] = function, list(shapes), (forward, backward)
        return function

    return add


@case("scan", "kernel scan", (4, 6), (4, 6), (4, 6), (6,))
def in_front_and_behind(x: Any, w: Any, y: Any, b: Any) -> Any:
    return torch.cumsum(x * w, -1) * y + b


@case("scan", "scan", (4, 6))
def a_logarithm_less_its_element(x: Any) -> Any:
    return torch.logcumsumexp(x, -1) - x


@case("scan", "scan", (5, 4))
def a_product(x: Any) -> Any:
    return torch.cumprod(x, 0)


@case("scan", "scan", (3, 9))
def the_largest(x: Any) -> Any:
    return torch.cummax(x, 1)[0]


@case("scan", "kernel scan", (3, 9), (3, 9))
def the_largest_and_where_it_stands(x: Any, y: Any) -> Any:
    values, places = torch.cummax(x, 1)
    return values * y + places


@case("scan", "scan", (4, 6), (4, 6))
def beside_a_scan(x: Any, y: Any) -> Any:
    return torch.cumsum(x * 0.5, 1) * y, x * y


@case("kernel scan", "scan kernel", (4, 6))
def of_a_softmax(x: Any) -> Any:
    return torch.softmax(x, -1).cumsum(-1)


@case("scan kernel", "kernel scan", (4, 6))
def with_a_mean(x: Any) -> Any:
    total = x.cumsum(-1)
    return total - total.mean(-1, keepdim=True)


@case("scan scan", "scan scan", (4, 6))
def two_directions(x: Any) -> Any:
    return (x.cumsum(0) * x).cumsum(1) + x


@case("scan scan kernel", "scan scan scan kernel", (4, 6))
def what_two_scans_are_read_for(x: Any) -> Any:
    return x.cumsum(0) * x.cumprod(1)


@case(
    "kernel scan scan kernel product kernel",
    "kernel scan product product kernel scan kernel",
    (2, 5, 4),
    (2, 5, 4),
    (2, 5, 3),
)
def linear_attention(q: Any, k: Any, v: Any) -> Any:
    q = q.exp()
    memory = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)
    return (q.unsqueeze(-2) @ memory).squeeze(-2) / (q * k.cumsum(1)).sum(-1, keepdim=True)


# A scan's kernel writes no result of the step before that another step of its round reads.
@case("kernel scan scan product", "scan product product scan kernel", (4, 4), (4, 4), (4, 4))
def beside_a_scan_that_reads_it(x: Any, y: Any, w: Any) -> Any:
    e = x.exp()
    return w.cumsum(0) * e.sin(), y.cumsum(0), e, e @ w


@case("kernel product scan", "scan product product kernel", (4, 4), (4, 4), (4, 4))
def beside_a_product_that_reads_it(x: Any, y: Any, w: Any) -> Any:
    e = x.exp()
    return w.mT @ e, y.cumsum(0) * e, e


@case("scan scan product", "product product scan kernel scan", (4, 4), (4, 4))
def for_a_product_of_the_next_round(x: Any, w: Any) -> Any:
    e = x.exp()
    return e, x.cumsum(0), w.cumprod(1) @ e


@case("scan scan", "scan scan", (4, 5), (4, 5))
def along_one_axis_and_another(x: Any, y: Any) -> Any:
    return (y.tanh().cumprod(0) * x).cumsum(1)


def steps_of(op: Op) -> str:
    cut = chain(op)
    assert cut is not None
    kinds = {Scan: "scan", Product: "product", Op: "kernel"}
    return " ".join(kinds[type(step)] for step in cut.steps)


def leaves_of(name: str, device: Any = DEVICE) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in CASES[name][1]]
    return [leaf.to(device).requires_grad_() for leaf in drawn]


@pytest.mark.parametrize("name", CASES)
def test_steps(name: str) -> None:
    function, _, steps = CASES[name]
    forward, backward = passes(fg.op(function), tuple(leaves_of(name)), {}, "backward")
    assert (steps_of(forward.op), steps_of(backward.op)) == steps


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_every_mode(name: str, mode: str) -> None:
    on_cpu = mode in ("all", "compiled", "halves", "arrays")
    leaves = leaves_of(name, device="cpu" if on_cpu else DEVICE)
    MODES[mode](fg.op(CASES[name][0]), CASES[name][0], leaves)


def test_what_stands_before_an_element_is_along_the_axis_of_its_own_scan() -> None:
    """A gradient of a recurrence down columns is of h one row before, and goes on into a sum along rows."""
    a, b = (torch.randn(4, 5, dtype=torch.float64, device=DEVICE, requires_grad=True) for _ in range(2))

    def in_a_loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h, states = torch.zeros_like(b[0]), []
        for decay, added in zip(a.cumsum(1), b.cumsum(1), strict=True):
            h = decay * h + added
            states.append(h)
        return torch.stack(states)

    recurrence = fg.op(lambda a, b: fg.linear_recurrence(a.cumsum(1), b.cumsum(1), 0), name="recurrence")
    weight = torch.randn_like(a)
    for found, expected in zip(
        *(torch.autograd.grad(f(a, b), (a, b), weight) for f in (recurrence, in_a_loop)), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_numbers_of_a_call_are_read_by_the_scan() -> None:
    @fg.op
    def scaled(x: Any, a: float, b: float) -> Any:
        return fg.cumsum(x * a, 1) * b + a

    x = torch.randn(3, 40, dtype=torch.float64, device=DEVICE, requires_grad=True)
    assert [steps_of(item.op) for item in passes(scaled, (x, 0.5, 2.0), {}, "backward")] == ["scan", "scan"]
    for a, b in ((0.5, 2.0), (3.0, -1.0), (3, 7)):
        for _ in range(2):
            found, expected = scaled(x, a, b), (x * a).cumsum(1) * b + a
            torch.testing.assert_close(found, expected)
            weight = torch.randn_like(x)
            torch.testing.assert_close(*(torch.autograd.grad(y, x, weight)[0] for y in (found, expected)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("way", ["cummax", "cummin"])
def test_extrema_and_places_are_torchs(way: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(0, 9, (4, 300), generator=generator).to(dtype)
    if dtype.is_floating_point:
        x[1, 40::50] = float("nan")
        x[2, :7] = float("-inf")
        x[3] = float("inf")
        x[0, ::3] *= -0.0
    function = getattr(torch, way)
    for dim in (0, 1):
        (values, places), expected = fg.op(lambda x, d=dim: tuple(function(x, d)))(x), function(x, dim)
        torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(places, expected.indices)


def test_places_of_blocks() -> None:
    def blocks(x: Any) -> Any:
        first, second = torch.cummax(torch.cat([x.sin(), x], 1), 1)[1].chunk(2, 1)
        return first, second

    x = torch.randn(3, 7).mul(2).round() / 2
    for found, expected in zip(fg.op(blocks)(x), blocks(x), strict=True):
        assert torch.equal(found, expected)
