"""What declarations write in place: in methods, in items, by ``+=``, and what shares memory with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.declare import torch_names
from fusegen.declare.value import Value
from tests.declare.test_torch_functions import listed, op_db, taken_apart
from tests.support.oracles import check_is_torchs

pytestmark = pytest.mark.emulator


def corners(boxes: Any) -> Any:
    y = boxes.clone()
    y[..., 0] = boxes[..., 0] - boxes[..., 2] / 2
    y[..., 1] = boxes[..., 1] - boxes[..., 3] / 2
    y[..., 2] = boxes[..., 0] + boxes[..., 2] / 2
    y[..., 3] = boxes[..., 1] + boxes[..., 3] / 2
    return y


def clipped(boxes: Any) -> Any:
    boxes = boxes.clone()
    boxes[:, 0].clamp_(0, 1)
    boxes[..., [2, 3]] = boxes[..., [2, 3]].clamp(-1, 1)
    return boxes


def advantages(r: Any, v: Any) -> Any:
    found, last = torch.zeros_like(r), 0
    for t in reversed(range(r.shape[0])):
        last = r[t] + 0.99 * (v[t + 1] if t + 1 < r.shape[0] else 0.0) - v[t] + 0.9 * last
        found[t] = last
    return found


def recurrent(x: Any, a: Any) -> Any:
    h = torch.empty_like(x)
    h[0] = x[0]
    for t in range(1, x.shape[0]):
        h[t] = a[t] * h[t - 1].clone() + x[t]
    return h


def encoded(x: Any) -> Any:
    n, d = x.shape[-2:]
    table = torch.zeros(n, d, dtype=x.dtype)
    place = torch.arange(n, dtype=x.dtype)[:, None] / 10 ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
    table[:, 0::2], table[:, 1::2] = place.sin(), place.cos()
    return x + table


def rotated(x: Any) -> Any:
    out = torch.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * 0.6 - x[..., 1::2] * 0.8
    out[..., 1::2] = x[..., 0::2] * 0.8 + x[..., 1::2] * 0.6
    return out


def skewed(v: Any) -> Any:
    k = v.new_zeros(v.shape[0], 3, 3)
    k[:, 0, 1], k[:, 0, 2], k[:, 1, 2] = -v[:, 2], v[:, 1], -v[:, 0]
    k[:, 1, 0], k[:, 2, 0], k[:, 2, 1] = v[:, 2], -v[:, 1], v[:, 0]
    return torch.eye(3, dtype=v.dtype) + k + k @ k


def off_diagonal(x: Any) -> Any:
    c = x @ x.T
    c.div_(x.shape[0])
    on = torch.diagonal(c).add_(-1).pow_(2).sum()
    return on + c.flatten()[:-1].view(x.shape[0] - 1, x.shape[0] + 1)[:, 1:].flatten().pow_(2).sum()


def smoothed(x: Any) -> Any:
    with torch.no_grad():
        target = torch.full_like(x, 0.1)
        target.scatter_(1, x.argmax(1, keepdim=True), 0.9)
        target[:, ::2] *= 0.5
    return -(target * x.log_softmax(-1)).sum(-1).mean()


def stepped(p: Any, g: Any, m: Any) -> Any:
    p, m = p.clone(), m.clone()
    m.mul_(0.9).add_(g, alpha=0.1)
    p.mul_(1 - 0.01).addcdiv_(m, g.abs().add(1e-2), value=-1e-3)
    return p + m


def seen_by_views(x: Any) -> Any:
    y = x * 1
    rows, flat, turned = y.view(2, 2, 6), y.view(-1), y.t()
    rows[0] *= 2
    flat[3] = 7.0
    turned[2].add_(1)
    return rows.sum(0) * flat[:12].view(2, 6) + turned[:, :2].t() * y[1]


def seen_by_parts(x: Any) -> Any:
    y = x * 1
    front, behind = y[:, :3], y[:, 3:]
    y *= 3
    front.sub_(behind)
    return torch.cat([front * behind, y], 1)


def same_name(x: Any) -> Any:
    y = x * 2
    z = y
    z += 1
    return y * z


def swapped(x: Any) -> Any:
    x = x.clone()
    x[:, 0], x[:, 1] = x[:, 1].clone(), x[:, 0].clone()
    return x


def shifted(x: Any) -> Any:
    y = torch.zeros(4, 8, dtype=x.dtype)
    y[:, 1:-1], y[:, 0], y[:, -1] = x, x[:, -1], x[:, 0]
    return y.unfold(1, 3, 1).mean(-1)


def activated(x: Any) -> Any:
    h = F.leaky_relu(x * 2, 0.1, inplace=True)
    return torch.relu_(torch.sigmoid(F.dropout(h, 0.5, training=False, inplace=True)) - 0.4)


def of_an_argument(x: Any) -> Any:
    seen = x.view(-1)
    x += 1
    x *= x.sum()
    return seen[:6] * x[0]


def in_another_shape(x: Any) -> Any:
    y = x.clone()
    row = y[0]
    y.unsqueeze_(0)
    y.add_(1)
    y[0, 0] *= 2
    return torch.cat([y[0], row[None]]).sin()


def turned_views(x: Any) -> Any:
    y = x * 2
    rest, flat = y[1:], y.view(-1)
    rest.t_()
    rest[0] = 3.0
    y.transpose_(0, 1).unsqueeze_(-1).squeeze_()
    flat[1] = -1.0
    y.mul_(x.t())
    return torch.cat([y.flatten(), rest.flatten(), flat]).sin()


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    f.__name__: (f, shapes)
    for f, *shapes in (
        (corners, (5, 4)), (clipped, (5, 4)), (advantages, (6, 3), (6, 3)), (recurrent, (7, 3), (7, 3)),
        (encoded, (2, 5, 6)), (rotated, (3, 8)), (skewed, (5, 3)), (off_diagonal, (5, 5)), (smoothed, (4, 6)),
        (stepped, (4, 6), (4, 6), (4, 6)), (seen_by_views, (4, 6)), (seen_by_parts, (4, 6)), (same_name, (4, 6)),
        (swapped, (4, 6)), (shifted, (4, 6)), (activated, (4, 6)), (of_an_argument, (4, 6)),
        (in_another_shape, (4, 6)), (turned_views, (4, 6)),
    )
}  # fmt: skip
CASES |= {
    "longer than blocks": (recurrent, [(70, 2), (70, 2)]),
    "a part of parts": (lambda x: _assigned(x, lambda y: y[1:3, 2:5].copy_(x[0:2, 0:3])), [(4, 6)]),
    "from the end": (lambda x: _assigned(x, lambda y: y[-1, -2:].fill_(0.5)), [(4, 6)]),
    "a new dimension": (lambda x: _assigned(x, lambda y: y[:, None, 0].zero_()), [(4, 6)]),
    "a diagonal": (lambda x: _assigned(x, lambda y: torch.diagonal(y, 1).mul_(2)), [(4, 6)]),
    "the diagonal": (lambda x: _assigned(x, lambda y: y.fill_diagonal_(-3)), [(5, 5)]),
    "counted otherwise": (lambda x: _assigned(x, lambda y: y.view(8, 3)[1].fill_(0.5)), [(4, 6)]),
    "dimensions elsewhere": (lambda x: _assigned(x, lambda y: y[None].permute(2, 0, 1)[1].add_(1)), [(4, 6)]),
}


def _assigned(x: Any, write: Callable[[Any], Any]) -> Any:
    y = x * 1
    write(y)
    return y * x


def check(function: Callable[..., Any], given: list[torch.Tensor]) -> None:
    check_is_torchs(function, given, "written")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_is_torchs(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    check(function, [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes])


AT_PLACES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "where a mask holds": (lambda y, m: y.__setitem__(m, 0.5), [torch.rand(4, 6) > 0.5]),
    "where its own numbers say so": (lambda y, m: y.__setitem__(y > 0, 0.5), [torch.zeros(1)]),
    "rows where a mask holds": (lambda y, m: y.__setitem__(m, y[0].clone()), [torch.rand(4) > 0.5]),
    "rows": (lambda y, i: y.__setitem__(i, y[:2] * 3), [torch.tensor([2, 0])]),
    "columns": (lambda y, i: y.__setitem__((slice(None), i), 0.5), [torch.tensor([2, 0, -1])]),
    "one row": (lambda y, i: y.__setitem__(i, y[0] * 3), [torch.tensor(-2)]),
    "masked_fill_": (lambda y, m: y.masked_fill_(m, 0.5), [torch.rand(4, 6) > 0.5]),
    "scatter_": (lambda y, i: y.scatter_(1, i[:, None], 0.5), [torch.tensor([2, 0, 5, 1])]),
    "index_add_": (lambda y, i: y.index_add_(1, i, y[:, :2] * 2), [torch.tensor([2, 0])]),
    "where both say": (lambda y, m: y[:, 1:].masked_fill_(m, 0.5).mul_(2), [torch.rand(4, 5) > 0.5]),
}


@pytest.mark.parametrize("name", AT_PLACES)
def test_what_tensors_tell(name: str) -> None:
    write, told = AT_PLACES[name]

    def function(x: Any, *told: Any) -> Any:
        y = x * 1
        write(y, *told)
        return y.sin() * x

    check(function, [torch.randn(4, 6, dtype=torch.float64, requires_grad=True), *told])


def test_parts_that_torch_lets_write_without_gradients_alone() -> None:
    def function(x: Any) -> Any:
        y = x * 1
        q, k, v = y.split(2, dim=-1)
        q.mul_(2)
        k += q
        for row in y:
            row -= row.mean()
        y.unbind(1)[1].exp_()
        return y * 2 + v.repeat(1, 3)

    x = torch.randn(4, 6)
    torch.testing.assert_close(fg.op(function, name="written")(x), function(x))


# -- what shares memory ------------------------------------------------------------------------------------------------

NAMES = {name.removeprefix("Tensor.") for entry in torch_names.table() for name in entry.names}
INFOS = {
    f"{info.name} {info.variant_test_name}".strip(): info
    for info in op_db
    if info.name in NAMES and not info.variant_test_name.startswith(("complex", "decomposed"))
}


def _lies_in(value: Any, others: list[Any]) -> bool | None:
    """Whether a tensor is in the memory of one of the others; None: as they lie."""
    is_certain = True
    while isinstance(value, Value) and all(value is not other for other in others) and value.viewed is not None:
        is_certain, value = is_certain and value.viewed.certain, value.viewed.base
    return any(value is other for other in others) and (is_certain or None)


@pytest.mark.parametrize("name", sorted(INFOS))
def test_memory_is_shared_as_torchs(name: str) -> None:
    info = INFOS[name]
    dtype = torch.float64 if torch.float64 in info.dtypes else torch.int64
    for _, sample in zip(range(6), info.sample_inputs("cpu", dtype, requires_grad=False), strict=False):
        tensors, call = taken_apart(sample)
        copies = [tensor.clone() for tensor in tensors]
        try:
            theirs = [value for value in listed(call(info.op, copies)) if isinstance(value, torch.Tensor)]
        except NotImplementedError:
            continue
        memory = {tensor.untyped_storage().data_ptr() for tensor in copies}
        seen = list[bool | None]()

        def declared(*xs: Any, call: Any = call, seen: Any = seen) -> Any:
            own = [x.clone() for x in xs]
            seen += [_lies_in(value, own) for value in listed(call(info.op, own))]
            return xs[0]

        try:
            fg.op(declared, name="shared").trace(*tensors)
        except fg.FusegenError:  # what is refused
            continue
        for value, mine in zip(theirs, seen[: len(theirs)], strict=False):
            assert mine is None or not value.numel() or mine is (value.untyped_storage().data_ptr() in memory)


# -- and around ops ----------------------------------------------------------------------------------------------------


def test_an_op_that_is_called_writes_nothing_of_its_callers() -> None:
    @fg.op
    def inner(x: Any) -> Any:
        x += 1
        return x

    @fg.op
    def outer(x: Any) -> Any:
        y = x * 2
        z = inner(y)
        z *= 3
        return y + z

    x = torch.randn(5, requires_grad=True)
    torch.testing.assert_close(outer(x), 2 * x + 3 * (2 * x + 1))
    (gradient,) = torch.autograd.grad(outer(x).sum(), x)
    torch.testing.assert_close(gradient, torch.full((5,), 8.0))


def test_a_gradient_that_writes() -> None:
    @fg.op
    def scaled(x: Any) -> Any:
        return x * 2

    @scaled.gradient
    def _(d_out: Any, x: Any) -> Any:
        d_out *= 2
        found = d_out.clone()
        found[0] = 0
        return found

    x = torch.randn(5, requires_grad=True)
    cotangent = torch.randn(5)
    (gradient,) = torch.autograd.grad(scaled(x), x, cotangent)
    torch.testing.assert_close(gradient, torch.cat([torch.zeros(1), 2 * cotangent[1:]]))


def test_compiled_and_mapped() -> None:
    x = torch.randn(3, 5, 4, requires_grad=True)
    op = fg.op(corners)
    torch.testing.assert_close(torch.vmap(op)(x), corners(x))
    compiled = torch.compile(lambda x: op(x) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), 2 * corners(x))
    cotangent = torch.randn(3, 5, 4)
    mine, theirs = (torch.autograd.grad(y, x, cotangent) for y in (compiled(x), 2 * corners(x)))
    torch.testing.assert_close(mine, theirs)


def written(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        y = x * 2
        write(y)
        return y

    return function


def lost(x: Any) -> Any:
    x += 1
    return torch.ones_like(x) * 2


def both(x: Any) -> Any:
    y = x * 1
    z = y.reshape(-1)
    z += 1
    return y


def beside(x: Any) -> Any:
    y = x * 1
    y.detach().add_(1)
    return y


def without_gradients(x: Any) -> Any:
    y = x * 1
    with torch.no_grad():
        y *= 2
    return y


def item_of_argument(x: Any) -> Any:
    x[0] = 1
    return x


REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "an argument": (lambda x: x.clamp_(0, 1), "argument x, which is written to", r"x\.clone"),
    "a view of an argument": (lambda x: x[0].exp_(), "argument x, which is written to", r"x\.clone"),
    "an argument as it lies": (lambda x: x.contiguous().exp_(), "argument x, which is written to", r"x\.clone"),
    "an item of an argument": (item_of_argument, "argument x, which is written to", r"x\.clone"),
    "an argument, and no result": (lost, "of which no result is made", "return it"),
    "what lies somewhere": (both, "how tensors lie", r"\.view"),
    "what has no gradient": (beside, "beside the gradients", r"\.clone"),
    "without gradients": (without_gradients, "without gradients", "detach"),
    "a larger one": (written(lambda y: y[0].add_(y)), r"written to \[4\]", "x = x"),
    "a dtype that it does not hold": (lambda x: (x > 0).long().mul_(0.5), "written to int64", "cast"),
    "so many elements": (written(lambda y: y.__setitem__(y > 0, y[:, 0])), "only values tell", "torch.where"),
    "a mask beside places": (written(lambda y: y.__setitem__((y[:, 0] > 0, [1, 0]), 0.0)), "a mask, or positions",
                             "torch.where"),
    "another shape of an argument": (lambda x: x.unsqueeze_(0), "argument x, which is written to", r"x\.clone"),
    "more elements": (written(lambda y: y.resize_(2)), r"\.resize_ of", "x = "),
    "no function's": (written(lambda y: y.sort_()), r"\.sort_ of", "x = "),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_explained(name: str) -> None:
    function, given, fix = REFUSED[name]
    with pytest.raises(fg.FusegenError, match=given) as caught:
        fg.op(function, name="written")(torch.randn(3, 4))
    found = str(caught.value)
    assert re.search(fix, found.partition("fix:")[2])
    assert "test_writes.py" in found
