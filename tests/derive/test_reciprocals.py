"""What derivatives compute once: the reciprocal of what they divide by, and functions of what a select has chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core import dtypes
from fusegen.core.ir import Expr, Ref, const
from fusegen.core.regroupable import regroupable
from fusegen.declare.table import apply
from fusegen.derive.reciprocals import shared_reciprocals
from fusegen.inspect.passes import passes
from tests.support.modes import MODES
from tests.support.oracles import draw


@fg.op
def chosen(x, y):  # type: ignore[no-untyped-def]
    inner = 1 / (1 + fg.exp(-fg.cos(fg.where(x > 1, x, y))))
    return fg.tanh(inner * y)


def torch_chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (1 / (1 + (-torch.where(x > 1, x, y).cos()).exp()) * y).tanh()


@fg.op
def damped(x):  # type: ignore[no-untyped-def]
    share = fg.softmax(x, -1)
    return fg.sqrt(share * share + 1e-3) * 0.85


def torch_damped(x: torch.Tensor) -> torch.Tensor:
    share = x.softmax(-1)
    return (share * share + 1e-3).sqrt() * 0.85


@fg.op
def shares(x, y):  # type: ignore[no-untyped-def]
    size = fg.sum(abs(x), -1, keepdims=True) * abs(y) + 1.0
    return x * y / size + fg.sum(x / size, -1, keepdims=True)


def torch_shares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    size = x.abs().sum(-1, keepdim=True) * y.abs() + 1.0
    return x * y / size + (x / size).sum(-1, keepdim=True)


OPS: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]] = {
    "chosen": (chosen, torch_chosen, ((5, 24), (24,))),
    "damped": (damped, torch_damped, ((6, 24),)),
    "shares": (shares, torch_shares, ((6, 24), (6, 24))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPS)
def test_every_mode(name: str, mode: str) -> None:
    ours, theirs, shapes = OPS[name]
    given = [draw(*shape, low=0.5, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    MODES[mode](ours, theirs, given)


def backward_of(op: Any, *shapes: tuple[int, ...]) -> str:
    given = tuple(torch.empty(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
    return list(passes(op, given, {}, "backward"))[-1].text


def test_what_a_select_chose_has_its_functions_once() -> None:
    """Not once for each way, and again for whatever reads it outside of the select."""
    text = backward_of(chosen, (64, 256), (256,))
    assert [text.count(f"fg::fast_{name}(") for name in ("exp", "cos", "sin", "tanh")] == [1, 1, 1, 1]


def test_derivatives_divide_by_one_thing_once() -> None:
    """A root by which two traversals divide is not taken: its reciprocal is a function of its own, and is kept."""
    text = backward_of(damped, (4096, 512))
    assert text.count("rsqrtf(") == 1 and "fg::fast_sqrt(" not in text and "fg::divide(d_out" not in text


DENORMAL = 2.0**-149


@fg.op
def quotient(x, y):  # type: ignore[no-untyped-def]
    return x / y


@fg.op
def beside_reciprocal(x, y):  # type: ignore[no-untyped-def]
    return x / y + fg.clamp(1 / y, -1.0, 1.0)


@fg.op
def of_rows(x, y):  # type: ignore[no-untyped-def]
    return x / y * fg.tanh(fg.mean(x / y, -1, keepdims=True))


@pytest.mark.parametrize(
    "op, above", [(quotient, 0.0), (quotient, DENORMAL), (beside_reciprocal, 0.0), (of_rows, 0.0)], ids=str
)
def test_nothing_divides_by_a_denormal_as_by_zero(op: Any, above: float) -> None:
    """Its reciprocal is infinite, and that times zero NaN. Quotients themselves are finite."""
    x = torch.full((3, 8), above, requires_grad=True)
    y = torch.full((3, 8), -DENORMAL, requires_grad=True)
    theirs = [leaf.detach().double().requires_grad_() for leaf in (x, y)]
    weight = draw(3, 8, seed=3)
    out, expected = op(x, y), op(*theirs)
    (out * weight.float()).sum().backward()
    (expected * weight).sum().backward()
    pairs = [(out, expected), *((leaf.grad, there.grad) for leaf, there in zip((x, y), theirs, strict=True))]
    for ours, other in pairs:
        assert ours is not None and other is not None
        torch.testing.assert_close(ours, other.float(), rtol=1e-5, atol=0)


def test_only_what_stays_away_from_zero_is_inverted() -> None:
    a, b = Ref("a", dtypes.float32), Ref("b", dtypes.float32)

    def inverted(divisor: Expr) -> bool:
        return bool(shared_reciprocals([regroupable("div", factor, divisor) for factor in (a, b)]))

    one, tiny = const(1, dtypes.float32), const(1e-40, dtypes.float32)
    square, power = a * a, apply("powi", a, detail=2)
    away = [one + apply("exp", a), apply("sqrt", square + one), apply("maximum", a, one), power * apply("abs", b) + one]
    near = [a, apply("exp", a), square, a + one, square + tiny, apply("minimum", a, one), a * b + one]
    away += [apply("where", apply("gt", a, b), one, apply("cosh", a)), apply("clamp", b, one, one + one)]
    near += [apply("where", apply("gt", a, b), one, a), apply("powi", a, detail=3) + one, apply("powi", a, detail=-2)]
    away.append(apply("sqrt", square + tiny))
    assert [inverted(divisor) for divisor in away] == [True] * len(away)
    assert [inverted(divisor) for divisor in near] == [False] * len(near)


def test_a_saved_sum_of_exponentials_is_inverted() -> None:
    """Its largest term is 1, which the backward that reads it is told."""

    @fg.op
    def weighted(x, y):  # type: ignore[no-untyped-def]
        return fg.logsumexp(x * y, 0) * fg.tanh(fg.mean(x * y, -1, keepdims=True))

    given = tuple(torch.empty(64, 512, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    saved = [o for o in list(passes(weighted, given, {}, "backward"))[-1].op.operands if o.least == 1.0]
    assert [operand.name for operand in saved] == ["guarded_sum_exp"]
    a, b = Ref("a", dtypes.float32), saved[0].ref
    quotients = [regroupable("div", a, b), regroupable("div", a * a, b)]
    assert shared_reciprocals(quotients, saved) and not shared_reciprocals(quotients)


def test_what_is_written_is_divided_as_it_is_written() -> None:
    @fg.op
    def both(x, y):  # type: ignore[no-untyped-def]
        return x / y + 1 / y

    (item, *_) = passes(both, (torch.empty(64, 256), torch.empty(64, 256)), {}, "forward")
    assert item.text.count("fg::divide(") == 2
