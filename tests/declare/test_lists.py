"""Ops that take lists of tensors, ``*xs``: beside sums and updates that torch computes of the same tensors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fusegen as fg
from fusegen.cli.main import app
from fusegen.native import module as native
from fusegen.pytorch.calls import plan_cache
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES
from tests.support.oracles import draw, refused

pytestmark = pytest.mark.emulator


@fg.op
def total(*xs: fg.Tensor) -> fg.Tensor:
    """The sum of some tensors, halved."""
    return functools.reduce(lambda a, b: a + b, xs) * 0.5


@fg.op
def peaked(*xs: fg.Tensor) -> fg.Tensor:
    first, *rest = xs
    for x in rest:
        first = first * fg.sigmoid(x) + total(first, x, x)
    return fg.softmax(first, -1) + fg.sum(first, -1, keepdims=True)


@fg.op
def update(rate: fg.Tensor, *xs: fg.Tensor, decay: float = 0.1) -> tuple[fg.Tensor, ...]:
    """Of each pair (p, g): p - rate (g + decay p), and g as it is kept."""
    half = len(xs) // 2
    pairs = list(zip(xs[:half], xs[half:], strict=True))
    return (*(p - rate * (g + decay * p) for p, g in pairs), *(g * 0.9 for _, g in pairs))


def total_of(*xs: Any) -> Any:
    return functools.reduce(lambda a, b: a + b, xs) * 0.5


def peaked_of(*xs: Any) -> Any:
    first, *rest = xs
    for x in rest:
        first = first * torch.sigmoid(x) + total_of(first, x, x)
    return torch.softmax(first, -1) + first.sum(-1, keepdim=True)


def update_of(rate: Any, *xs: Any, decay: float = 0.1) -> Any:
    half = len(xs) // 2
    pairs = list(zip(xs[:half], xs[half:], strict=True))
    return (*(p - rate * (g + decay * p) for p, g in pairs), *(g * 0.9 for _, g in pairs))


SHAPES = {1: [(3, 4)], 2: [(4,), (3, 4)], 5: [(3, 4), (4,), (3, 1), (2, 3, 4), (1, 1)]}
CALLS = {
    "a sum": (total, total_of, SHAPES),
    "ops within": (peaked, peaked_of, SHAPES),
    "an update": (update, update_of, {1: [(), (3,), (3,)], 2: [(), (3, 4), (5,), (3, 4), (5,)]}),
}
SIZED = [(name, count) for name, (*_, shapes) in CALLS.items() for count in shapes]


def tensors(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    return [draw(*shape, seed=i) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "count"), SIZED)
def test_in_every_mode(name: str, count: int, mode: str) -> None:
    ours, theirs, shapes = CALLS[name]
    MODES[mode](ours, theirs, tensors(shapes[count]))


@pytest.mark.parametrize("in_python", [True, False], ids=["python", "native"])
def test_a_call_like_an_earlier_one_goes_by_the_call_path(in_python: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_python and native.module() is None:
        pytest.skip(f"no native call path: {native.problem()}")
    op = fg.op(lambda *xs, by=1.0: functools.reduce(lambda a, b: a + b * by, xs), name="fresh")
    given = [t.detach().to(DEVICE) for t in tensors(SHAPES[5])]
    member = op.of(5)
    member._use(plan_cache.PlanCache(member.declaration, member._slow_path, in_python=in_python))
    op(*given), op(*given, by=2.0)
    monkeypatch.setattr(member, "call", None)
    for by in (3.0, 4.0):
        expected = given[0] + by * sum(given[1:])
        torch.testing.assert_close(op(*given, by=by), expected.expand_as(op(*given, by=by)))


def test_dtypes_are_promoted_as_torch_does() -> None:
    given = [draw(3, 4, dtype=torch.bfloat16), torch.arange(4), draw(4, dtype=torch.float32), draw(3, 1)]
    for count in range(1, 5):
        ours, exact = total(*given[:count]), total_of(*(t.double() for t in given[:count]))
        assert ours.dtype is total_of(*given[:count]).dtype
        torch.testing.assert_close(ours, exact.to(ours.dtype))
        leaves = [t for t in given[:count] if t.requires_grad]
        found, expected = (torch.autograd.grad(f.sum(), leaves) for f in (ours, exact))
        torch.testing.assert_close(found, expected)
    x = draw(3, 4)
    torch.testing.assert_close(total(x, 2.0, 3), (x + 2.0 + 3) * 0.5)


def test_tensors_are_updated_where_they_are() -> None:
    rate, *rest = (t.detach() for t in tensors([(), (3, 4), (5,), (3, 4), (5,)]))
    expected = update_of(rate, *rest, decay=0.3)
    update(rate, *rest, decay=0.3, out=tuple(rest))
    torch.testing.assert_close(tuple(rest), expected)


def test_of_many_tensors() -> None:
    given = tensors([(2, 3)] * 100)
    found = torch.autograd.grad(total(*given).sin().sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad(total_of(*given).sin().sum(), given))


def test_a_declared_gradient_is_one_for_each_tensor() -> None:
    @fg.op
    def product(scale: fg.Tensor, *xs: fg.Tensor) -> fg.Tensor:
        return functools.reduce(lambda a, b: a * b, xs) * scale

    before = draw(3, 4), draw(4, seed=1)
    product(torch.ones(()), *before)
    product.gradient(lambda d_out, scale, *xs: (None, *(d_out * (i + 1) for i, _ in enumerate(xs))))
    within = fg.op(lambda *xs: product(xs[0], *xs) + product(xs[0], *(fg.exp(x) for x in xs[1:])), name="within")
    x, y = before
    first, second = torch.autograd.grad(product(torch.ones(()), x, y).sum(), (x, y))
    torch.testing.assert_close(first, torch.ones_like(x))
    torch.testing.assert_close(second, torch.full_like(y, 6.0))
    first, second = torch.autograd.grad(within(x, y).sum(), (x, y))
    torch.testing.assert_close(first, torch.ones_like(x))
    torch.testing.assert_close(second, 3 * 2 + 3 * y.exp())


def test_a_tuple_of_one_stays_a_tuple() -> None:
    halves = fg.op(_halves)
    assert [type(f(draw(3))) for f in (halves, torch.compile(lambda x: halves(x), backend="aot_eager"))] == [tuple] * 2


def _halves(*xs: fg.Tensor) -> tuple[fg.Tensor, ...]:
    return tuple(x * 0.5 for x in xs)


def test_calls_check_themselves() -> None:
    with fg.checked():
        update(*tensors([(), (3, 4), (3, 4)]))[0].sum().backward()


def test_names_say_how_many() -> None:
    """Of torch's ops: graphs are kept, and loaded by a process that calls in another order."""
    assert repr(total).startswith("<fusegen op total(*xs: 'fg.Tensor')")
    names = {str(total.overload(*tensors([(3,)] * n))) for n in (2, 5)}
    assert {name.rpartition("__")[2] for name in names} == {"total_of_2.default", "total_of_5.default"}
    (name,) = fg.register(total.of(7))
    assert name.endswith("total_of_7")
    clash = fg.op(lambda xs_0, *xs: xs_0 - functools.reduce(lambda a, b: a + b, xs), name="clash")
    x, y = tensors([(3,), (3,)])
    torch.testing.assert_close(clash(x, y, y), x - 2 * y)


REFUSED = {
    "none": (lambda: total(), "total\n  given:    no tensor"),
    "none within": (lambda: fg.op(lambda x: x + total(), name="f")(draw(3)), ")\n  given:    no tensor"),
    "a list": (lambda: total([draw(3), draw(3)]), "fix:      pass the tensors of xs_0 one by one: total(*xs_0)"),
    "shapes": (
        lambda: total(draw(3, 4), draw(7)),
        "dimension 1 of xs_0 of size 4 against dimension 0 of xs_1 of size 7",
    ),
    "shapes within": (lambda: peaked(draw(3, 4), draw(7)), "dimension 1 of xs_0 of size 4 against dimension 0 of xs_1"),
    "frameworks": (lambda: total(draw(3), draw(3).detach().numpy()), "given:    xs_0: torch, xs_1: numpy"),
    "None": (lambda: total(draw(3), None), "\n  given:    None, which is computed with"),
    "a keyword": (lambda: total(draw(3), y=draw(3)), "given:    got an unexpected keyword argument 'y'"),
    "what is in front": (lambda: update(), "given:    missing a required argument: 'rate'"),
    "register": (lambda: fg.register(total), "fix:      say how many: fg.register(total.of(3))"),
    "**": (lambda: fg.op(lambda **more: 1), "given:    the parameter **more"),
    "a default": (lambda: fg.op(lambda a=1, *xs: a), "fix:      put a behind *xs: it is passed by name"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_uses(what: str) -> None:
    call, said = REFUSED[what]
    assert said in str(refused(call))


FILE = '''import fusegen as fg

@fg.op
def total(*xs: fg.Tensor, by: float = 2.0) -> fg.Tensor:
    """The sum of some tensors."""
    first, *rest = xs
    for x in rest:
        first = first + by * x
    return first
'''


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["emit", "--shape", "xs_0=3,4", "--shape", "xs_1=4"], "const float* __restrict__ xs_1_ptr,  // [D1]"),
        (["emit", "--which", "backward"], "total, backward"),
        (["show", "--shape", "a=3,4", "--shape", "b=4"], "in   xs_1: float32[D1]"),
        (["run", "--shape", "xs_4=3,4", "--shape", "3,1"], "d_xs_4: largest error"),
        (["check"], "float64 for sm_90: 8 kernels compile"),
        (["emit", "--shape", "ys_0=3", "--shape", "xs_1=3"], "did you mean xs_0?"),
    ],
)
def test_on_the_command_line(command: list[str], said: str, tmp_path: Path) -> None:
    if command == ["check"]:
        pytest.importorskip("cupy")
    (tmp_path / "sums.py").write_text(FILE)
    name, *options = command
    result = CliRunner().invoke(app, [name, f"{tmp_path}/sums.py:total", *options])
    assert said in result.output + str(result.exception), result.output
