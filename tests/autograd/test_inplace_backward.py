"""Gradients that take the logits' memory: the same numbers, in that place, or an error that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import fusegen as fg
from fusegen.core.errors import DeclarationError, DerivativeError
from fusegen.pytorch.autograd.inplace import reads_its_own_elements
from tests.support.call_paths import Counted, fresh
from tests.support.oracles import refused

__all__ = ["fresh"]
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def inplace(*args: Any, **options: Any) -> Any:
    return fg.ops.cross_entropy(*args, **options, inplace_backward=True)


def logits(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """A leaf and what an op made of it."""
    leaf = torch.randn(shape).to(dtype).requires_grad_()
    return leaf, leaf * 1


def classes(*shape: int, count: int) -> torch.Tensor:
    target = torch.randint(0, count, shape)
    target.view(-1)[:1] = -100
    return target


def check(leaf: torch.Tensor, laid_out: Callable[[torch.Tensor], torch.Tensor], target: Any, **options: Any) -> None:
    """The gradient is the ordinary one, bit for bit, and lies where the logits were."""
    found = []
    for op in (fg.ops.cross_entropy, inplace):
        x = laid_out(leaf * 1)
        loss = op(x, target, **options)
        (gradient,) = torch.autograd.grad(loss, [x], torch.linspace(0.5, 1, loss.numel()).view_as(loss).to(loss.dtype))
        found.append((loss.detach(), gradient.clone()))
        in_its_place = gradient.data_ptr() == x.data_ptr() and gradient.stride() == x.stride()
        assert in_its_place == (op is inplace or x.numel() == 0)
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


def as_is(x: torch.Tensor) -> torch.Tensor:
    return x


# -- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_options(reduction: str, dtype: torch.dtype) -> None:
    x, weight = logits(4, 33, dtype=dtype)[0], torch.rand(33).to(dtype)
    smoothed = {"weight": weight, "label_smoothing": 0.2, "reduction": reduction}
    check(x, as_is, classes(4, count=33), reduction=reduction, ignore_index=7)
    check(x, as_is, classes(4, count=33), **smoothed, z_loss=0.1)
    check(x, as_is, torch.rand(4, 33).to(dtype), **smoothed)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [33, 4099, 70001])
def test_lengths_of_rows(length: int, dtype: torch.dtype) -> None:
    """Rows that begin anywhere, and that a cluster's blocks share: whoever writes an element has read it."""
    target = classes(3, count=length)
    x = logits(3, length, dtype=dtype)[0]
    check(x, as_is, target)
    shares = torch.rand(3 * length + 1).to(dtype)[1:].view(3, length)  # begins between two vectors
    check(x, as_is, shares, label_smoothing=0.1)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "padded": lambda x: F.pad(x, (0, 3))[:, :-3],
    "every other": lambda x: torch.stack([x, x], 2)[:, :, 0],
    "from between two vectors": lambda x: F.pad(x, (1, 0)).flatten()[1:].as_strided(x.shape, (x.shape[1] + 1, 1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    check(logits(5, 34, dtype=torch.bfloat16)[0], LAYOUTS[name], classes(5, count=34))


@pytest.mark.parametrize("shape", [(9,), (2, 7, 5), (0, 4)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = logits(*shape)[0]
    count, others = (shape[1], (shape[0], *shape[2:])) if len(shape) > 1 else (shape[0], ())
    check(x, as_is, torch.randint(0, count, others))


def test_gradients_of_targets_and_weights_are_computed_first() -> None:
    found = []
    for op in (fg.ops.cross_entropy, inplace):
        torch.manual_seed(0)
        (x, made), target, weight = logits(5, 8), torch.rand(5, 8).requires_grad_(), torch.rand(8).requires_grad_()
        found.append(torch.autograd.grad(op(made, target, weight, label_smoothing=0.1), [x, target, weight]))
    torch.testing.assert_close(*found)


def test_through_a_head() -> None:
    """As models use it: a view of the head's result, whose gradient the head's backward reads."""
    head, hidden, target = torch.nn.Linear(6, 40), torch.randn(2, 3, 6), classes(6, count=40)
    found = []
    for op in (F.cross_entropy, inplace):
        op(head(hidden).view(-1, 40), target).backward()
        found.append([p.grad for p in head.parameters()])
        head.zero_grad()
    torch.testing.assert_close(*found)


@fg.op
def normed(x, *, inplace_backward: fg.Const = False):  # type: ignore[no-untyped-def]
    return fg.ops.layer_norm(x, (None,))


def test_a_gradient_that_sums_over_its_argument_is_an_ordinary_one() -> None:
    normed.declaration.overwrites = "x"
    leaf, x = logits(3, 8)
    (gradient,) = torch.autograd.grad(normed(x, inplace_backward=True), [x], leaf.detach().sin())
    expected = torch.autograd.grad(F.layer_norm(x, (8,)), [x], leaf.detach().sin())[0]
    torch.testing.assert_close(gradient, expected)
    assert torch.equal(x, leaf)
    op = normed.backward(torch.empty(3, 8))
    assert not reads_its_own_elements(op, "x", "d_x")
    assert reads_its_own_elements(fg.ops.relu.backward(torch.empty(3)), "input", "d_input")


# -- every way to call it --------------------------------------------------------------------------------------------


def test_call_paths(fresh: Callable[[Any], Counted]) -> None:
    op, target = fresh(fg.ops.cross_entropy), classes(4, count=9)
    target = target.to(torch.get_default_device())
    for _ in range(3):
        leaf, x = logits(4, 9)
        where = x.data_ptr()
        with torch.no_grad():
            evaluated = op(x, target, inplace_backward=True)
        loss = op(x, target, inplace_backward=True)
        (gradient,) = torch.autograd.grad(loss, [x])
        assert gradient.data_ptr() == where and torch.equal(loss, evaluated)
        x = leaf * 1
        (ordinary,) = torch.autograd.grad(op(x, target), [x])
        assert ordinary.data_ptr() != x.data_ptr() and torch.equal(x, leaf) and torch.equal(gradient, ordinary)


def test_arrays_and_tensors_without_gradients_stay() -> None:
    x, target = torch.randn(4, 9), classes(4, count=9)
    expected, before = F.cross_entropy(x, target), x.clone()
    torch.testing.assert_close(inplace(x, target), expected)
    torch.testing.assert_close(torch.from_numpy(inplace(x.numpy(), target.numpy())), expected)
    shares = torch.rand(4, 9).requires_grad_()
    inplace(x, shares).backward()
    assert torch.equal(x, before) and shares.grad is not None


def ordinary_under_hooks(x: torch.Tensor, target: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        loss = inplace(x, target)
    return torch.autograd.grad(loss, [x])[0]


ORDINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "hooks": ordinary_under_hooks,
    "checkpoint": lambda x, t: torch.autograd.grad(checkpoint(inplace, x, t, use_reentrant=False), [x])[0],
    "torch.func.grad": lambda x, t: torch.func.grad(inplace)(x, t),
    "torch.compile": lambda x, t: torch.autograd.grad(torch.compile(inplace, backend="aot_eager")(x, t), [x])[0],
}


@pytest.mark.parametrize("name", ORDINARY)
def test_where_nothing_may_be_overwritten_gradients_are_ordinary(name: str) -> None:
    (leaf, x), target = logits(4, 9), classes(4, count=9)
    gradient = ORDINARY[name](x, target)
    assert torch.equal(x, leaf)
    torch.testing.assert_close(gradient, torch.autograd.grad(F.cross_entropy(x, target), [x])[0])


def test_the_registered_op_is_a_function() -> None:
    """What torch traces has no such option, so that no graph can hold it."""
    (_, x), target = logits(4, 9), classes(4, count=9)
    found = fg.ops.cross_entropy.overload(x, target, inplace_backward=True)
    assert "inplace_backward" not in str(found._schema)
    assert found is fg.ops.cross_entropy.overload(x, target)


def test_forward_mode() -> None:
    (leaf, x), target = logits(4, 9), classes(4, count=9)
    with forward_ad.dual_level():
        loss = inplace(forward_ad.make_dual(x, torch.ones_like(x)), target)
        torch.testing.assert_close(forward_ad.unpack_dual(loss).tangent, torch.tensor(0.0), atol=1e-6, rtol=0)
        torch.autograd.grad(loss, [leaf])
    assert torch.equal(x, leaf)


# -- what is refused -------------------------------------------------------------------------------------------------


def test_others_who_saved_the_logits_are_told() -> None:
    (_, x), target = logits(4, 9), classes(4, count=9)
    penalty = x.square().sum()
    inplace(x, target).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        penalty.backward()
    leaf, x = logits(4, 9)
    loss, penalty = inplace(x, target), x.square().sum()  # the engine begins with what was computed last
    (loss + penalty).backward()
    expected = torch.autograd.grad(F.cross_entropy(leaf, target), [leaf])[0] + 2 * leaf
    torch.testing.assert_close(leaf.grad, expected)


def test_a_changed_tensor_is_no_longer_what_the_loss_saw() -> None:
    (_, x), target = logits(4, 9), classes(4, count=9)
    loss = inplace(x, target)
    x.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@fg.op
def outer(x, target):  # type: ignore[no-untyped-def]
    return fg.ops.cross_entropy(x * 2, target, inplace_backward=True)


def twice(x: torch.Tensor, target: torch.Tensor) -> None:
    loss = inplace(x, target)
    loss.backward(retain_graph=True)
    loss.backward()


def shared(x: torch.Tensor, target: torch.Tensor) -> None:
    inplace(x, x.detach()[:, :])


REFUSED: list[tuple[Callable[[torch.Tensor, torch.Tensor], Any], str, str]] = [
    (lambda x, t: inplace(x.detach().requires_grad_(), t), "a leaf", "a tensor that an op computed"),
    (lambda x, t: inplace(x.detach().requires_grad_()[:2], t[:2]), "a view of one", "a tensor that an op computed"),
    (lambda x, t: inplace(x[:1].expand(4, -1), t), "strides [0, 1]", "different addresses"),
    (shared, "argument target", "memory of its own"),
    (twice, "a second backward, after the first wrote", "one backward"),
    (lambda x, t: torch.autograd.grad(inplace(x, t), [x], create_graph=True), "create_graph", "a first derivative"),
    (
        lambda x, t: torch.autograd.grad(inplace(x, t), [x], torch.ones(3), is_grads_batched=True),
        "is_grads_batched", "one backward",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "given", "expected"), REFUSED)
def test_what_is_refused(call: Callable[..., Any], given: str, expected: str) -> None:
    (leaf, x), target = logits(4, 9), classes(4, count=9)
    error = refused(lambda: call(x, target))
    assert isinstance(error, DerivativeError) and "inplace_backward" in error.where
    assert given in error.given and expected in error.expected and error.fix
    assert torch.equal(x, leaf) or call is twice  # refused before anything is written


def test_it_is_refused_inside_another_op() -> None:
    error = refused(lambda: outer(torch.randn(4, 9), classes(4, count=9)))
    assert isinstance(error, DeclarationError) and "inplace_backward=True inside another op" in error.given
