"""The oracle itself, against formulas written by hand in torch."""

from __future__ import annotations

import math

import pytest
import torch

import fusegen as fg
from fusegen.core.errors import LegalityError
from fusegen.core.ir import Op, Operand, Output, Reduce
from fusegen.declare.reference import reference
from fusegen.fused_op import FusedOp
from tests.support.declarations import lerp
from tests.support.oracles import randn

F = torch.nn.functional


@fg.op
def rms_norm(x, weight, *, eps=1e-6):
    rstd = fg.rsqrt(fg.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * rstd * weight


@fg.op
def cell(gates, c):
    keep, new = fg.split(gates, 2, axis=0)
    c_next = fg.sigmoid(keep) * c + fg.tanh(new)
    return fg.concat([c_next, fg.stop_gradient(c) * 2.0], axis=-1), c_next > 0


@fg.op
def rounded(x):
    return x.to(fg.float16).to(fg.float32) * x.to(fg.int64)


@fg.op
def powers(x):
    return x**3 + fg.polygamma(1, x)


def evaluate(op: FusedOp, *args: torch.Tensor, **scalars: float) -> list[torch.Tensor]:
    named = dict(zip(op.declaration.signature.parameters, args, strict=False))
    return reference(op.trace(*args, **scalars), named, scalars)


def sized(*shape: int) -> torch.Tensor:
    """Numbers that follow from the shape."""
    return randn(*shape, seed=math.prod(shape) + len(shape)).requires_grad_()


@pytest.mark.parametrize(
    "shapes", [[(3, 4)] * 3, [(2, 1, 1), (2, 3, 4), (3, 1)], [(4,), (5, 1, 4), ()], [(0, 3), (3,), (1, 1)]]
)
def test_broadcasting_and_its_gradient(shapes: list[tuple[int, ...]]) -> None:
    args = [sized(*shape) for shape in shapes]
    (found,) = evaluate(lerp, *args)
    expected = args[0] + args[2] * (args[1] - args[0])
    torch.testing.assert_close(found, expected)
    cotangent = sized(*expected.shape).detach()
    own = torch.autograd.grad(found, args, cotangent)
    for a, b in zip(own, torch.autograd.grad(expected, args, cotangent), strict=True):
        torch.testing.assert_close(a, b)


def test_axes_follow_the_tensors_own_order() -> None:
    x = sized(3, 4, 5).permute(2, 0, 1)
    torch.testing.assert_close(evaluate(lerp, x, x, sized(4))[0], x)


def test_reductions_sizes_and_scalars() -> None:
    x, weight = sized(6, 7), sized(7)
    (found,) = evaluate(rms_norm, x, weight, eps=0.5)
    torch.testing.assert_close(found, x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 0.5) * weight)


def test_parts_packed_results_and_stopped_gradients() -> None:
    gates, c = sized(6, 5), sized(3, 5)
    packed, positive = evaluate(cell, gates, c)
    keep, new = gates.chunk(2)
    c_next = torch.sigmoid(keep) * c + torch.tanh(new)
    torch.testing.assert_close(packed, torch.cat([c_next, 2 * c], -1))
    assert torch.equal(positive, c_next > 0)
    (grad,) = torch.autograd.grad(packed.sum(), c)
    torch.testing.assert_close(grad, torch.sigmoid(keep))


def test_casts_round_and_truncate() -> None:
    x = torch.tensor([1.0001, -2.7, 70000.0], dtype=torch.float32)
    (found,) = evaluate(rounded, x)
    assert found.dtype is torch.float64
    assert torch.equal(found, x.half().double() * x.long())


def test_details_reach_the_references() -> None:
    x = sized(5).detach().abs() + 0.5
    torch.testing.assert_close(evaluate(powers, x)[0], x**3 + torch.polygamma(1, x))


def test_the_dtype_of_floats_can_be_chosen_and_integers_stay() -> None:
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    assert reference(lerp.trace(x, x, x), {"x": x, "y": x, "w": x}, dtype=torch.float32)[0].dtype is torch.float32
    n = torch.tensor([1, 2], dtype=torch.int32)
    (found,) = reference(lerp.trace(n, n, n), {"x": n, "y": n, "w": n})
    assert found.dtype is torch.int32


def test_the_backward_op_means_what_autograd_computes() -> None:
    x, weight = sized(6, 7), sized(7)
    backward = rms_norm.backward(x, weight, eps=0.5)
    d_out = sized(6, 7).detach()
    found = reference(backward, {"x": x, "weight": weight, "d_out": d_out}, {"eps": 0.5})
    expected = torch.autograd.grad(evaluate(rms_norm, x, weight, eps=0.5)[0], [x, weight], d_out)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.detach(), b)


def test_a_reduction_without_a_rule_is_named() -> None:
    x = Operand("x", fg.float32, ("d0",))
    top = Reduce("top", "median", x.ref, ("d0",))
    op = Op("peak", "forward", (x,), (), (top,), (Output("out", top.ref, fg.float32, ()),))
    with pytest.raises(LegalityError, match=r"(?s)peak, reference.*kind 'median'.*sum"):
        reference(op, {"x": sized(3)})


def test_the_extremum_of_nothing_is_what_adds_nothing() -> None:
    """As the kernels have it: torch refuses, and an op that also does something else with no elements need not."""
    op = fg.op(lambda x, n: (fg.amax(x, -1), fg.softmax(x, -1), fg.amin(n, -1)), name="extrema")
    x, n = torch.ones(3, 0), torch.ones(3, 0, dtype=torch.int32)
    expected = reference(op.trace(x, n), {"x": x, "n": n})
    torch.testing.assert_close(list(op(x, n)), expected, check_dtype=False)
