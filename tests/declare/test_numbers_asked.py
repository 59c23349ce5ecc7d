"""Numbers of a call whose values a declaration asks for: they become constants of the op (declare/op, ``fixed``)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fusegen as fg
from fusegen.declare.op import MANY_VALUES

pytestmark = pytest.mark.emulator


def focal(x: Any, target: Any, alpha: float = 0.25, gamma: float = 2.0) -> Any:
    p = torch.sigmoid(x)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x, target, reduction="none")
    loss = loss * (1 - (p * target + (1 - p) * (1 - target))) ** gamma
    if alpha >= 0:
        loss = (alpha * target + (1 - alpha) * (1 - target)) * loss
    return loss.mean()


def corrected(x: Any, step: Any, beta: float = 0.9) -> Any:
    return x / math.sqrt(1 - beta**step)


def repeated(x: Any, count: Any) -> Any:
    for _ in range(count):
        x = x * 1.5
    return x if f"{count:02d}" != "03" else -x


def stretched(x: Any, ratio: float = 0.5) -> Any:
    return x[:, : int(x.shape[-1] * ratio)] * max(ratio, 0.6) * round(10 * ratio)


CASES: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (focal, [(0.25,), (-1,), (0.5, 3.0), (0.25,), (-1.0,)]),
    (corrected, [(1,), (2,), (2, 0.5), (1,)]),
    (repeated, [(1,), (3,), (0,), (3,)]),
    (stretched, [(0.5,), (1.0,), (0.25,)]),
]


@pytest.mark.parametrize(("function", "calls"), CASES, ids=lambda item: getattr(item, "__name__", ""))
def test_each_value_is_what_python_made_of_it(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
    op = fg.op(function)
    x = torch.randn(4, 8, requires_grad=True)
    tensors = (x, (torch.rand(4, 8) > 0.5).float()) if function is focal else (x,)
    for numbers in calls * 2:  # decided anew, and as it was decided
        found, expected = op(*tensors, *numbers), function(*tensors, *numbers)
        torch.testing.assert_close(found, expected)
        cotangent = torch.randn_like(expected)
        mine, theirs = (torch.autograd.grad(y, x, cotangent) for y in (found, expected))
        torch.testing.assert_close(mine, theirs)
        inside = torch.vmap(lambda row, op=op, numbers=numbers: op(row[None], *numbers)) if len(tensors) == 1 else None
        if inside is not None:
            torch.testing.assert_close(inside(x)[:, 0], expected)


def test_before_and_behind_calls_that_do_not_ask() -> None:
    @fg.op
    def scaled(x: Any, s: float = 1.0) -> Any:
        return x * s if x.ndim == 1 or s < 2 else -x * s

    x, many = torch.randn(8), torch.randn(4, 8)
    assert torch.equal(scaled(x, 3.0), x * 3.0) and not scaled.declaration.fixed
    assert torch.equal(scaled(many, 3.0), -many * 3.0) and scaled.declaration.fixed == {"s"}
    assert torch.equal(scaled(many, 1.5), many * 1.5) and torch.equal(scaled(many, 3.0), -many * 3.0)
    for s in (3.0, 4.0, 1.0):
        assert torch.equal(scaled(x, s), x * s)


def test_through_an_op_that_another_one_calls() -> None:
    @fg.op
    def inner(x: Any, s: float = 1.0) -> Any:
        return x * s if s > 0.5 else x + 0

    @fg.op
    def outer(x: Any, s: float = 1.0) -> Any:
        return inner(x, s * 2)

    x = torch.randn(8)
    assert torch.equal(outer(x, 0.1), x) and torch.equal(outer(x, 0.4), x * 0.8)
    assert outer.declaration.fixed == {"s"} and not inner.declaration.fixed


def test_compiled_mapped_and_with_arrays() -> None:
    x, target = torch.randn(3, 8), (torch.rand(3, 8) > 0.5).float()
    op = fg.op(focal)
    compiled = torch.compile(lambda x, target, alpha: op(x, target, alpha) * 2, fullgraph=True, backend="aot_eager")
    for alpha in (0.25, -1.0, 0.5):
        torch.testing.assert_close(compiled(x, target, alpha), 2 * focal(x, target, alpha))
    corrected_op = fg.op(corrected)
    for step in (1, 2):
        np.testing.assert_allclose(corrected_op(x.numpy(), step), corrected(x, step).numpy(), rtol=1e-6)
    lists = [torch.randn(3), torch.randn(5, 2)]
    for step in (1, 3):
        for found, given in zip(fg.foreach(fg.op(corrected))(lists, step), lists, strict=True):
            torch.testing.assert_close(found, corrected(given, step))


def test_what_fg_scalar_says_is_no_constant() -> None:
    @fg.op
    def asking(x: Any, s: fg.Scalar = 1) -> Any:
        return x if s > 0 else -x

    with pytest.raises(fg.DeclarationError, match="the truth of s, a number"):
        asking(torch.randn(3), 2.0)


def test_a_tensor_beside_a_number_has_no_value() -> None:
    @fg.op
    def asking(x: Any, s: float = 1.0) -> Any:
        return x if x.sum() > s else -x

    with pytest.raises(fg.DeclarationError, match="the truth of"):
        asking(torch.randn(3), 2.0)


def test_somebody_is_told_where_values_never_end() -> None:
    op = fg.op(corrected)
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(1, MANY_VALUES + 3):
            op.trace(x, step)
    said = [str(one.message) for one in told if "values so far" in str(one.message)]
    assert len(said) == 1 and "argument step" in said[0]
