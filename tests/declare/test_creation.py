"""Axes that no argument has: positions, constants, classes told apart. Functions of torch run beside each as an op."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import fusegen as fg
from fusegen.core.errors import DeclarationError, DtypeError
from fusegen.core.ir import own_size
from fusegen.core.serialize import op_from_json, op_to_json
from fusegen.inspect.passes import passes
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES


class _Torch:
    """torch's functions under fusegen's names, on the arguments' device."""

    def __init__(self, device: torch.device) -> None:
        self.arange = partial(torch.arange, device=device)
        self.zeros, self.ones = partial(torch.zeros, device=device), partial(torch.ones, device=device)
        self.full = partial(torch.full, device=device)

    where, sum, cumsum, sin = (staticmethod(getattr(torch, n)) for n in ("where", "sum", "cumsum", "sin"))
    concat = staticmethod(torch.cat)
    softmax = staticmethod(lambda x: torch.softmax(x, -1))


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "positions beside an argument": (lambda x, lib: x * lib.arange(5), [(3, 5)]),
    "a new dimension": (lambda x, lib: lib.sin(x[..., None] * lib.arange(4)), [(3, 5)]),
    "reduced away": (lambda x, lib: lib.sum(lib.sin(x[..., None] * lib.arange(1, 5)), -1), [(3, 5)]),
    "causal": (lambda x, lib: lib.softmax(lib.where(lib.arange(4)[:, None] >= lib.arange(4), x, -9.0)), [(2, 4, 4)]),
    "a table": (lambda x, lib: x[:, None] * (lib.arange(3)[:, None] - lib.arange(6)), [(2, 6)]),
    "constants": (lambda x, lib: x + lib.full((2, 3, 5), 0.5) * lib.ones((3, 1)) + lib.zeros(5), [(3, 5)]),
    "in front of it": (lambda x, lib: lib.concat([x[:, :1] * lib.arange(3), x], 1), [(4, 5)]),
    "a slice of it": (lambda x, lib: (x[..., None] * lib.arange(8))[..., 2:6], [(3, 4)]),
    "running": (lambda x, lib: lib.cumsum(x[..., None] * lib.arange(6), -1), [(3, 2)]),
    "a factor": (lambda x, y, lib: x @ lib.sin(lib.arange(5)[:, None] * lib.arange(3) + y), [(2, 5), ()]),
    "one number as both factors": (
        lambda x, y, lib: (x * lib.ones((3, 5), dtype=torch.float64)) @ (y * lib.ones((5, 2), dtype=torch.float64)),
        [(), ()],
    ),
    "beside a product": (lambda x, y, lib: (x @ y) * lib.arange(3), [(2, 5), (5, 3)]),
    "steps": (lambda x, lib: x[:, None] * lib.arange(9, 1, -2), [(3,)]),
    "one of it": (lambda x, lib: x[:, None] * (lib.arange(1) + 2), [(3,)]),
    "one axis alone": (lambda x, lib: x.sum() * lib.arange(7), [(3,)]),
}
# No elements: compared by hand, since halves and batches of nothing tell nothing.
EMPTY = lambda x, lib: x[:, None] * lib.arange(0)  # noqa: E731


def leaves_of(name: str, device: str = DEVICE) -> list[torch.Tensor]:
    torch.manual_seed(len(name))
    shapes = CASES[name][1]
    return [torch.randn(s, dtype=torch.float64, device=device, requires_grad=True) for s in shapes]


def both(name: str) -> tuple[Any, Callable[..., Any]]:
    function = CASES[name][0]
    ours = {1: lambda x: function(x, fg), 2: lambda x, y: function(x, y, fg)}[len(CASES[name][1])]
    return fg.op(ours), lambda *given: function(*given, _Torch(given[0].device))


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "arrays"])
@pytest.mark.parametrize("name", CASES)
def test_every_mode(name: str, mode: str) -> None:
    with_cotangents = mode in ("all", "compiled", "halves")
    MODES[mode](*both(name), leaves_of(name, device="cpu" if with_cotangents else DEVICE))


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name: str) -> None:
    op, leaves = both(name)[0], leaves_of(name)
    assert gradcheck(op, leaves, check_forward_ad=True)
    assert gradgradcheck(op, leaves)


def test_a_mask_of_lengths_is_one_kernel_that_reads_no_mask() -> None:
    @fg.op
    def masked(x, lengths):  # type: ignore[no-untyped-def]
        return fg.where(fg.arange(x.shape[1])[None] < lengths[:, None], x, 0.0)

    lengths = torch.tensor([2, 0, 5], device=DEVICE)
    for n in (5, 7):
        x = torch.randn(3, n, device=DEVICE)
        expected = torch.where(torch.arange(n, device=DEVICE)[None] < lengths[:, None], x, 0.0)
        assert torch.equal(masked(x, lengths), expected)
    (only,) = passes(masked, (x, lengths), {}, "forward")
    assert [operand.name for operand in only.op.operands] == ["x", "lengths"]


def test_the_size_is_that_of_what_it_meets_or_a_part_of_the_name() -> None:
    x = torch.zeros(3, 5)
    met = fg.op(lambda x: x + fg.arange(5), name="met").trace(x)
    assert {own_size(axis) for axis in met.axes} == {None}
    alone = fg.op(lambda x: x[..., None] + fg.arange(6), name="alone").trace(x)
    assert sorted(own_size(axis) or 0 for axis in alone.axes) == [0, 0, 6]
    assert op_from_json(op_to_json(alone)) == alone


def test_no_elements() -> None:
    x = torch.randn(3, device=DEVICE, requires_grad=True)
    found = fg.op(lambda x: EMPTY(x, fg))(x)
    assert found.shape == (3, 0)
    (gradient,) = torch.autograd.grad(found, x, torch.ones_like(found))
    assert torch.equal(gradient, torch.zeros_like(x))


@fg.op
def _wide(x: Any) -> Any:
    steps = x[:, None] * fg.arange(3)
    return x * 2, steps


@_wide.gradient
def _(d_narrow: Any, d_steps: Any, x: Any) -> Any:
    unread = d_narrow[:, None] * fg.arange(5)  # noqa: F841
    return d_narrow * 3


def _named(x: Any) -> Any:
    unread = x[:, None] * fg.arange(3)  # noqa: F841
    return x * 2


def _size_alone(x: Any) -> Any:
    steps = x[:, None] + fg.arange(3)
    return x * fg.size(steps, 1)


UNREAD: dict[str, tuple[Callable[..., Any], float, float]] = {
    "a value with a name": (_named, 2, 2), "its size alone": (_size_alone, 3, 3),
    "a result of another op, and of a declared gradient": (lambda x: _wide(x)[0], 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_what_nothing_reads_may_have_such_an_axis(name: str) -> None:
    function, times, slope = UNREAD[name]
    x = torch.randn(4, device=DEVICE, requires_grad=True)
    found = fg.op(function)(x)
    torch.testing.assert_close(found, x * times)
    found.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, slope))


def test_another_shape_is_another_trace() -> None:
    op = fg.op(lambda x: x + fg.arange(5), name="added")
    assert torch.equal(op(torch.zeros(5)), torch.arange(5.0))
    assert torch.equal(op(torch.zeros(2, 1)), torch.arange(5.0).expand(2, 5))
    with pytest.raises(fg.ShapeError):
        op(torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.ones(2, device=DEVICE)

    def made(x: Any) -> Any:
        return fg.arange(3, dtype=dtype), fg.full((2, 3), 2, dtype=dtype), fg.zeros(3), fg.ones(2, dtype=dtype)

    positions, filled, zeros, ones = fg.op(made)(x)
    assert torch.equal(positions, torch.arange(3, device=DEVICE).to(dtype))
    assert torch.equal(filled, torch.full((2, 3), 2, device=DEVICE).to(dtype))
    assert torch.equal(zeros, torch.zeros(3, device=DEVICE)) and torch.equal(ones, x.to(dtype))


def test_numpy() -> None:
    x = np.arange(6.0).reshape(2, 3)
    found = fg.op(lambda x: x[:, None] * fg.arange(4)[:, None])(x)
    np.testing.assert_array_equal(found, x[:, None] * np.arange(4)[:, None])


@pytest.mark.parametrize("function", [fg.one_hot, torch.nn.functional.one_hot], ids=["ours", "torch's"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_one_hot(function: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([[3, 0, 4], [1, 1, 2]], device=DEVICE)
    found = fg.op(lambda x: function(x, 5))(x.to(dtype))
    assert found.dtype is torch.int64
    assert torch.equal(found, torch.nn.functional.one_hot(x, 5))
    batched = torch.vmap(fg.op(lambda x: function(x, 5)))(x.to(dtype))
    assert torch.equal(batched, torch.nn.functional.one_hot(x, 5))


def test_one_hot_that_is_summed_has_gradients_and_out_of_range_is_zeros() -> None:
    x, w = torch.tensor([4, 0, -1, 9], device=DEVICE), torch.randn(4, 5, device=DEVICE, requires_grad=True)
    found = fg.op(lambda x, w: fg.sum(fg.one_hot(x, 5) * w, -1))(x, w)
    expected = torch.stack([w[0, 4], w[1, 0], w[2, 0] * 0, w[3, 0] * 0])
    torch.testing.assert_close(found, expected)
    weight = torch.randn(4, device=DEVICE)
    ours, theirs = (torch.autograd.grad(result, w, weight)[0] for result in (found, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: fg.arange(2.5), DeclarationError, "a size of 2.5"),
        (lambda x: fg.arange(True), DeclarationError, "a size of True"),
        (lambda x: fg.arange(x), DeclarationError, "fg.Const"),
        (lambda x: fg.arange(3, 5, 0), DeclarationError, "from 3 to 5 by 0"),
        (lambda x: fg.arange(5, 3), DeclarationError, "from 5 to 3 by 1"),
        (lambda x: fg.zeros((2, -1)), DeclarationError, "from 0 on"),
        (lambda x: fg.full(3, x), DeclarationError, "one number"),
        (lambda x: fg.one_hot(x, 3), DtypeError, "numbers of classes"),
        (lambda x: torch.nn.functional.one_hot(x.to(torch.int64)), DeclarationError, "no num_classes"),
        (lambda x: x + fg.arange(5), fg.ShapeError, "5"),
    ],
)
def test_refused(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fg.op(function, name="refused").trace(torch.ones(4))


# -- positions that meet themselves ------------------------------------------------------------------------------------


def causal(s: Any) -> Any:
    i = torch.arange(s.shape[-1])
    return s.masked_fill(i[None, :] > i[:, None], -1e9).softmax(-1)


def window(s: Any) -> Any:
    i = torch.arange(s.shape[-1])
    ahead = i[None, :] - i[:, None]
    return torch.where((ahead <= 0) & (ahead > -3), s, -1e9).softmax(-1)


def alibi(s: Any, slopes: Any) -> Any:
    i = torch.arange(s.shape[-1])
    return (s - slopes[:, None, None] * (i[:, None] - i).abs()).softmax(-1)


def cosines(x: Any) -> Any:
    k = torch.arange(x.shape[-1], dtype=x.dtype)
    return x @ torch.cos(3.14159 * (2 * k[:, None] + 1) * k / (2 * x.shape[-1]))


def numbered(x: Any) -> Any:
    i = torch.arange(4)
    return x * (i[:, None, None] + 10 * i[:, None] + 100 * i)


def after_data(x: Any) -> Any:
    i = torch.arange(x.shape[-1])
    scaled = x * i  # by which i is along the columns of x
    return torch.where(i[:, None] > i, scaled, 0.0)


OF_ONE_ARANGE: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "a causal mask": (causal, ((6, 6),)),
    "of a batch": (causal, ((2, 6, 6),)),
    "a window": (window, ((6, 6),)),
    "distances": (alibi, ((2, 5, 5), (2,))),
    "a matrix of cosines": (cosines, ((5, 6),)),
    "three ways": (numbered, ((4, 4, 4),)),
    "behind what they have met": (after_data, ((6, 6),)),
}


@pytest.mark.emulator
@pytest.mark.parametrize("name", OF_ONE_ARANGE)
def test_positions_of_one_arange_may_meet(name: str) -> None:
    function, shapes = OF_ONE_ARANGE[name]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    out, expected = fg.op(function, name="positions")(*tensors), function(*tensors)
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(result, tensors, cotangent) for result in (out, expected))
    torch.testing.assert_close(mine, theirs)


def test_data_beside_positions_meets_itself() -> None:
    def outer(x: Any) -> Any:
        i = torch.arange(x.shape[0])
        return (x * i)[None, :] - (x * i)[:, None]

    x = torch.randn(4)
    torch.testing.assert_close(fg.op(outer, name="outer")(x), outer(x))  # a GPU rounds a product and its sum once


# -- numbers that torch spaces, and lists of tensors -------------------------------------------------------------------

FLOATS_OF_ARANGE: dict[str, Callable[[], torch.Tensor]] = {
    "an end": lambda: torch.arange(3.0),
    "a step": lambda: torch.arange(0, 1.5, 0.5),
    "down": lambda: torch.arange(-1, -2.5, -0.5),
    "not to the end": lambda: torch.arange(0.25, 3.0, 1),
    "integers of them": lambda: torch.arange(1.5, 4, 1, dtype=torch.int64),
    "doubles": lambda: torch.arange(0, 0.3, 0.1, dtype=torch.float64),
}


@pytest.mark.emulator
@pytest.mark.parametrize("name", FLOATS_OF_ARANGE)
def test_arange_of_floats(name: str) -> None:
    made, x = FLOATS_OF_ARANGE[name], torch.tensor([0.5, -2.0, 3.0])
    out, expected = fg.op(lambda x: x * made(), name="spaced")(x), x * made()
    assert out.dtype is expected.dtype
    torch.testing.assert_close(out, expected)


def test_an_arange_of_floats_that_leads_nowhere_is_refused() -> None:
    for numbers in ((3.0, 0.0), (0.0, 3.0, -1.0), (0.0, 3.0, 0.0)):
        with pytest.raises(fg.DeclarationError, match="leads from the start to the end"):
            fg.op(lambda x, numbers=numbers: x * torch.arange(*numbers), name="nowhere").trace(torch.ones(3))


OF_LISTS: dict[str, Callable[[Any, Any], Any]] = {
    "meshgrid": lambda x, y: [part * 2 for part in torch.meshgrid([x, y], indexing="ij")],
    "meshgrid of a tuple": lambda x, y: [part * 2 for part in torch.meshgrid((x, y), indexing="xy")],
    "atleast_1d": lambda x, y: [part * 2 for part in torch.atleast_1d([x, y])],
    "atleast_2d": lambda x, y: [part * 2 for part in torch.atleast_2d(x, y)],
    "atleast_3d": lambda x, y: [part * 2 for part in torch.atleast_3d((x, y))],
    "einsum": lambda x, y: [torch.einsum("i,j->ij", [x, y])],
}


@pytest.mark.emulator
@pytest.mark.parametrize("name", OF_LISTS)
def test_torchs_functions_of_lists(name: str) -> None:
    """torch's own functions in Python hand a list on to others, which ask its tensors."""
    x, y = torch.randn(3), torch.randn(4)
    found = fg.op(lambda x, y: tuple(OF_LISTS[name](x, y)), name="of_lists")(x, y)
    for out, expected in zip(found, OF_LISTS[name](x, y), strict=True):
        torch.testing.assert_close(out, expected)


# -- what is put into zeros --------------------------------------------------------------------------------------------


def compacted(x: Any, kept: Any) -> Any:
    place = torch.where(kept, torch.cumsum(kept.long(), 0) - 1, x.shape[0] - 1)
    return torch.zeros_like(x).scatter_add(0, place, torch.where(kept, x, 0.0))


def histogram(x: Any) -> Any:
    place = (x.detach().sigmoid() * x.shape[0]).long()
    return torch.zeros_like(x).scatter_add(0, place, x * 2)


def moved(x: Any, place: Any) -> Any:
    return torch.zeros_like(x).index_add(0, place, x.tanh()) * 2


INTO_ZEROS: dict[str, tuple[Any, Any]] = {
    "what is kept": (compacted, lambda: (torch.randn(9), torch.randn(9) > 0)),
    "a histogram of itself": (histogram, lambda: (torch.randn(9),)),
    "rows": (moved, lambda: (torch.randn(5, 3), torch.tensor([0, 2, 2, 4, 1]))),
}


@pytest.mark.emulator
@pytest.mark.parametrize("name", INTO_ZEROS)
def test_zeros_like_a_tensor_take_what_it_says_itself(name: str) -> None:
    function, made = INTO_ZEROS[name]
    given = [tensor.double().requires_grad_() if tensor.is_floating_point() else tensor for tensor in made()]
    leaves = [tensor for tensor in given if tensor.requires_grad]
    out, expected = fg.op(function, name="put")(*given), function(*given)
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(result, leaves, cotangent) for result in (out, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("key", [slice(2), slice(1, 4), slice(None, None, 3)], ids=str)
def test_a_part_of_an_intermediate_that_is_one_number(key: slice) -> None:
    """Nothing but the result has its axis."""
    op = fg.op(lambda x: (torch.ones_like((x * 2)[key]), x), name="ones")
    for rows in (6, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(op(x)[0], torch.ones_like(x[key]))
