"""What a declaration may say, and that it means what torch means by it: dtypes, integers, logic, sums, names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fusegen as fg
from fusegen.plan.targets import cpu
from tests.support.oracles import draw

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [torch.bool, *INTEGERS, *FLOATS]


def same(ours: Any, theirs: Any, **tolerance: Any) -> None:
    assert ours.dtype is theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)


def declared(text: str, arguments: str = "a, b") -> Any:
    """An op from the text of its result."""
    space: dict[str, Any] = {"fg": fg}
    exec(f"def made({arguments}):\n    return {text}\n", space)
    return fg.op(space["made"])


# -- promotion -------------------------------------------------------------------------------------------------------

PLUS = declared("a * b")
NUMBERS = [True, 3, 0.5]


@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_results_have_the_dtype_that_torch_gives_them(first: torch.dtype) -> None:
    spec = fg.TensorSpec

    def dtype_of(*arguments: Any) -> str:
        return str(PLUS.trace(*arguments).outputs[0].dtype)

    def mine(dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
        return spec(fg.table.dtypes.parse(str(dtype)), shape)

    def theirs(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype)

    for second in DTYPES:
        for shapes in itertools.product([(2,), ()], repeat=2):
            expected = torch.result_type(theirs(first, shapes[0]), theirs(second, shapes[1]))
            assert dtype_of(mine(first, shapes[0]), mine(second, shapes[1])) == str(expected).removeprefix("torch.")
    for number in NUMBERS:
        for shape in ((2,), ()):
            expected = torch.result_type(theirs(first, shape), number)
            found = declared(f"a * {number}", "a").trace(mine(first, shape)).outputs[0].dtype
            assert str(found) == str(expected).removeprefix("torch.")
            assert dtype_of(mine(first, shape), number) == str(expected).removeprefix("torch."), "at run time"


def test_numbers_alone_are_refused_and_with_a_tensor_they_are_weak() -> None:
    op = declared("(2 + 3) * a", "a")
    same(op(torch.tensor([1.5], dtype=torch.float16)), torch.tensor([7.5], dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64], ids=str)
def test_float_functions_take_integers_as_float32(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 0]).to(dtype)
    same(declared("fg.exp(a) + fg.sqrt(a)", "a")(x), torch.exp(x) + torch.sqrt(x))
    same(declared("a / b")(x, x + 2), x / (x + 2))


# -- integers --------------------------------------------------------------------------------------------------------

PAIRS = torch.tensor(
    [(a, b) for a in (-7, -3, -2, -1, 0, 1, 2, 5, 7, 100, 127, -128) for b in (-3, -2, 1, 2, 3, 7, -128, 127)]
)
INTEGER_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a // b": lambda a, b: a // b,
    "a % b": lambda a, b: a % b,
    "fg.fmod(a, b)": torch.fmod,
    "a & b": lambda a, b: a & b,
    "a | b": lambda a, b: a | b,
    "a ^ b": lambda a, b: a ^ b,
    "fg.minimum(a, b) - fg.maximum(a, b)": lambda a, b: torch.minimum(a, b) - torch.maximum(a, b),
    "fg.abs(a) + fg.sign(b)": lambda a, b: torch.abs(a) + torch.sign(b),
    "-a * b - (a + b)": lambda a, b: -a * b - (a + b),
    "~a ^ b": lambda a, b: ~a ^ b,
    "a ** 3 + b ** 2": lambda a, b: a**3 + b**2,
    "(a + b) / b": lambda a, b: (a + b) / b,
    "(a * b < a + b)": lambda a, b: a * b < a + b,
    "fg.where((a * b) // b == a, a, b)": lambda a, b: torch.where((a * b) // b == a, a, b),
    "fg.clamp(a, -5, 5) * b": lambda a, b: torch.clamp(a, -5, 5) * b,
}


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_divide_and_compare_as_torchs(dtype: torch.dtype) -> None:
    a, b = (t.contiguous() for t in PAIRS.to(dtype).unbind(1))
    b = torch.where(b == 0, torch.ones_like(b), b)
    names = list(INTEGER_OPS)
    if dtype is torch.uint8:
        names.remove("fg.clamp(a, -5, 5) * b")  # torch wraps the limit around, and then clamps to an empty interval
    results = declared(", ".join(names))(a, b)
    for name, ours in zip(names, results, strict=True):
        theirs = INTEGER_OPS[name](a, b)
        assert ours.dtype is theirs.dtype, name
        assert torch.equal(ours, theirs), (name, ours[ours != theirs], theirs[ours != theirs])


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    a = torch.tensor([1, 3, 100, -1, -128, 127]).to(dtype)[:, None]
    by = torch.arange(bits).to(dtype)
    left, right = declared("a << b, a >> b")(a, by)
    same(left, a << by)
    same(right, a >> by)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_division_and_remainders_of_negatives(dtype: torch.dtype) -> None:
    values = torch.tensor([-7.5, -3, -0.5, 0.5, 2, 7.25, 100.0, math.inf, -math.inf, math.nan], dtype=dtype)
    a, b = values[:, None], values[None, :]
    for text, function in (("a // b", torch.floor_divide), ("a % b", torch.remainder), ("fg.fmod(a, b)", torch.fmod)):
        # In the wide dtype: torch's half kernels round in between.
        wide = dtype if dtype is torch.float64 else torch.float32
        same(declared(text)(a, b), function(a.to(wide), b.to(wide)).to(dtype))


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("7 // a", lambda a: 7 // a), ("-7 % a", lambda a: -7 % a), ("2 - a", lambda a: 2 - a),
        ("2 ** a", lambda a: 2**a), ("3 / a", lambda a: 3 / a), ("1.5 // a", lambda a: 1.5 // a), ("+a", lambda a: +a),
        ("abs(a)", torch.abs),
    ],
)  # fmt: skip
def test_numbers_on_the_left(text: str, function: Callable[..., Any]) -> None:
    for x in (torch.tensor([1, 2, 3, 5]), torch.tensor([0.5, -1.5, 3.0])):
        same(declared(text, "a")(x), function(x))


# -- logic, selection, casts -----------------------------------------------------------------------------------------


def test_comparisons_and_logic() -> None:
    a = torch.tensor([1.0, 2.0, math.nan, -0.0])[:, None]
    b = torch.tensor([1.0, 0.0, math.nan, math.inf])
    texts = ["a < b", "a <= b", "a > b", "a >= b", "a == b", "a != b"]
    for text, ours in zip(texts, declared(", ".join(texts))(a, b), strict=True):
        same(ours, eval(text, {"a": a, "b": b}))
    logic = [
        "(a > 0) & (b > 0)",
        "(a > 0) | (b > 0)",
        "(a > 0) ^ (b > 0)",
        "~(a > 0) & (b >= 0)",
        "(a == b) == (a > b)",
    ]
    for text, ours in zip(logic, declared(", ".join(logic))(a, b), strict=True):
        same(ours, eval(text, {"a": a, "b": b}))
    ours = declared("fg.logical_and(a, b), fg.logical_or(a, b), fg.logical_xor(a, b), fg.logical_not(a) & (b < 9)")(
        a, b
    )
    theirs = (torch.logical_and(a, b), torch.logical_or(a, b), torch.logical_xor(a, b), torch.logical_not(a) & (b < 9))
    for mine, right in zip(ours, theirs, strict=True):
        same(mine, right)
    for mine, right in zip(
        declared("fg.isnan(a), fg.isinf(b), fg.isfinite(a + b)")(a, b),
        (a.isnan().clone(), b.isinf(), (a + b).isfinite()),
        strict=True,
    ):
        same(mine, right)


@pytest.mark.emulator
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source: torch.dtype) -> None:
    x = torch.tensor([0, 1, 3, 100, -2, -100]).to(source)
    if source.is_floating_point:
        x = torch.cat([x, torch.tensor([0.5, 2.75, -2.75, 100.9], dtype=source)])
    names = [str(d).removeprefix("torch.") for d in DTYPES]
    usable = [
        n for n in names if not (source.is_floating_point and n == "uint8")
    ]  # negative float to unsigned: undefined
    texts = [f"a.to(fg.{'bool_' if n == 'bool' else n})" for n in usable]
    for name, ours in zip(usable, declared(", ".join(texts), "a")(x), strict=True):
        same(ours, x.to(getattr(torch, name)))


def test_a_cast_to_a_half_type_rounds_in_the_middle_of_an_expression() -> None:
    x = torch.linspace(1, 2, 1001)
    same(declared("a.to(fg.float16) - a", "a")(x), x.half() - x)
    same(declared("fg.cast(a, 'bfloat16').to(fg.float32) * 3", "a")(x), x.bfloat16().float() * 3)


def test_where_hides_what_it_does_not_choose() -> None:
    x = torch.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    ours = declared("fg.where(a > 0, fg.sqrt(a), 0.0 * a)", "a")(x)
    (gradient,) = torch.autograd.grad(ours.sum(), x)
    assert ours.tolist() == [0, 0, 2] and gradient.tolist() == [0, 0, 0.25]
    same(declared("fg.where(a > 0, 1, 0)", "a")(x.detach()), torch.where(x > 0, 1, 0))
    y = torch.tensor([1, 2, 3])
    same(declared("fg.where(a > 0, a, b)")(x.detach(), y), torch.where(x > 0, x, y).detach())


# -- sums ------------------------------------------------------------------------------------------------------------


def _axes(rank: int) -> list[Any]:
    return [None, *(c for n in range(1, rank + 1) for c in itertools.combinations(range(rank), n)), 0, -1]


@pytest.mark.emulator
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", [(5, 3, 4), (1, 6, 1), (3, 0, 2), (7,)], ids=str)
def test_sums_over_any_axes(shape: tuple[int, ...], keepdims: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for axis in _axes(len(shape)):
        ours = fg.op(lambda a, _axis=axis: (fg.sum(a, _axis, keepdims), a.mean(_axis, keepdims=keepdims)), name="sums")(
            x
        )
        dim = tuple(range(len(shape))) if axis is None else axis
        same(ours[0], x.sum(dim, keepdim=keepdims))
        same(ours[1], x.mean(dim, keepdim=keepdims))


@pytest.mark.emulator
def test_sums_of_integers_bools_scalars_and_empty_tensors() -> None:
    same(declared("fg.sum(a)", "a")(torch.tensor([100, 100, 100], dtype=torch.int8)), torch.tensor(300))
    same(declared("fg.sum(a > 0)", "a")(torch.tensor([1.0, -1, 2])), torch.tensor(2))
    same(declared("fg.sum(a)", "a")(torch.tensor(2.5)), torch.tensor(2.5))
    same(declared("fg.sum(a, 0)", "a")(torch.ones(0, 3)), torch.zeros(3))
    same(declared("fg.mean(a)", "a")(torch.ones(0)), torch.tensor(math.nan))
    same(declared("fg.sum(b * 0 + 1, -1)", "a, b")(torch.ones(3, 1), torch.ones(3, 4)), torch.full((3,), 4.0))
    x = torch.rand(4096, dtype=torch.float16) + 1
    same(declared("fg.sum(a)", "a")(x), x.double().sum().half())


def test_a_sum_along_an_axis_that_the_summand_lacks_counts_it() -> None:
    x, y = torch.randn(3, 1, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    same(declared("fg.sum(a + 0 * b, -1) + fg.sum(fg.sum(b, 0) * 0 + 2)")(x, y), (x + 0 * y).sum(-1) + 10)


@pytest.mark.emulator
def test_sums_of_sums_and_several_results() -> None:
    @fg.op
    def standardize(x):  # type: ignore[no-untyped-def]
        centred = x - fg.mean(x, -1, keepdims=True)
        variance = fg.mean(centred * centred, -1, keepdims=True)
        return centred * fg.rsqrt(variance + 1e-5), variance, fg.sum(centred)

    x = torch.randn(6, 9, dtype=torch.float64)
    out, variance, total = standardize(x)
    torch.testing.assert_close(out, torch.nn.functional.layer_norm(x, (9,)))
    torch.testing.assert_close(variance, x.var(-1, keepdim=True, correction=0))
    torch.testing.assert_close(total, torch.zeros((), dtype=torch.float64), atol=1e-12, rtol=0)


# -- ops in ops, results, constants and numbers ----------------------------------------------------------------------


@fg.op
def twice(x, *, power: fg.Const = 2):  # type: ignore[no-untyped-def]
    return x**power * 2


@fg.op
def outer(x, y, *, scale=1.0):  # type: ignore[no-untyped-def]
    inner = twice(x) + twice(y, power=3)
    return scale * inner, inner


def test_ops_call_ops_and_return_several_results() -> None:
    x, y = torch.randn(4, 1), torch.randn(3)
    scaled, inner = outer(x, y, scale=0.25)
    expected = x**2 * 2 + y**3 * 2
    same(inner, expected)
    same(scaled, 0.25 * expected)
    assert isinstance(twice(x), torch.Tensor)
    (single,) = fg.op(lambda x: (x + 1,), name="single")(x)
    same(single, x + 1)


@fg.op
def offset(x: fg.Tensor, steps: fg.Const[int], start: fg.Const[float] = 0.5) -> fg.Tensor:
    return x + start if steps == 0 else offset(x, steps - 1, start) + 1


def test_constants_may_say_of_which_type_they_are() -> None:
    """In annotations that are text, as here, and in those that are not."""
    x = torch.randn(3)
    same(offset(x, 2), x + 0.5 + 1 + 1)
    assert offset.trace(x, 2).scalars == ()

    def power(x, exponent):  # type: ignore[no-untyped-def]
        return x**exponent if exponent > 2 else x

    power.__annotations__["exponent"] = fg.Const[int]
    same(fg.op(power)(x, 3), x**3)


def test_a_result_may_be_an_argument_or_a_number() -> None:
    x = torch.randn(3)
    same_x, one, four = fg.op(lambda x: (x, 1.0 + 0 * x, fg.size(x) + 1), name="odd")(x)
    same(same_x, x)
    assert same_x.data_ptr() != x.data_ptr(), "a result is memory of its own"
    same(one, torch.ones(3))
    assert four.item() == 4


def compiled() -> int:
    return len(cpu()._loaded)


def test_a_new_number_a_new_size_and_a_new_call_compile_nothing() -> None:
    @fg.op
    def scaled_shift(x, y, scale, *, shift=0.5, flag: fg.Scalar = 1):  # type: ignore[no-untyped-def]
        return x * scale + y * shift + flag

    x, y = torch.randn(8, 16), torch.randn(16)
    scaled_shift(x, y, 2.0)
    before, traces = compiled(), len(scaled_shift.declaration.traces)
    for scale, shift in ((0.25, 0.5), (-3.0, 7.0), (math.inf, 0.0)):
        torch.testing.assert_close(scaled_shift(x, y, scale, shift=shift, flag=4), x * scale + y * shift + 4)
    for rows, columns in ((3, 32), (100, 64), (2, 160)):
        x, y = torch.randn(rows, columns), torch.randn(columns)
        torch.testing.assert_close(scaled_shift(x, y, 1.5), x * 1.5 + y * 0.5 + 1)
    assert compiled() == before and len(scaled_shift.declaration.traces) == traces


def test_constants_are_part_of_the_compiled_op() -> None:
    x = torch.randn(5)
    twice(x)
    before = len(twice.declaration.traces)
    same(twice(x, power=3), x**3 * 2)
    twice(x, power=3)
    assert len(twice.declaration.traces) == before + 1


def test_defaults_say_what_is_a_constant() -> None:
    @fg.op
    def normal(x, axis=-1, keepdims=False, eps=1e-6):  # type: ignore[no-untyped-def]
        assert isinstance(axis, int) and isinstance(keepdims, bool) and not isinstance(eps, float)
        return fg.sum(x, axis, keepdims) + eps

    x = torch.randn(3, 4)
    for axis, keep in ((-1, False), (0, True)):
        torch.testing.assert_close(normal(x, axis, keep, 2), x.sum(axis, keepdim=keep) + 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers_at_run_time_are_as_precise_as_the_tensors(dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    same(declared("a * b")(x, 0.1), x * 0.1)
    same(declared("a + b")(torch.zeros(2, dtype=torch.int64), 2**62 + 1), torch.full((2,), 2**62 + 1))


def test_views_of_packed_arguments_and_packed_results() -> None:
    @fg.op
    def swap_halves(packed):  # type: ignore[no-untyped-def]
        first, second = fg.split(packed, 2, axis=0)
        return fg.concat([second * 2, first], axis=0)

    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    y = swap_halves(x)
    torch.testing.assert_close(y, torch.cat([x[3:] * 2, x[:3]]))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.tolist() == [[1.0] * 5] * 3 + [[2.0] * 5] * 3


@pytest.mark.parametrize(
    ("function", "fix"),
    [
        (lambda x, w: np.bincount(x) * w, "fg.bincount"),
        (lambda x, w: np.piecewise(x, [x > 0], [w]), "fusegen list"),
        (lambda x, w: np.sort(x) * w, "outside the op"),
        (lambda x, w: np.convolve(x, w), "fusegen list"),
        (lambda x, w: np.lexsort((x, w)), "fusegen list"),
        (lambda x, w: np.fliplr(x) + np.nanstd(w), "fusegen list"),
        (lambda x, w: torch.linalg.inv(x) @ w, "between two ops"),
    ],
)
def test_functions_of_others_are_refused(function: Any, fix: str) -> None:
    """NumPy would take a tensor for a number, and multiply where it was asked for a product."""
    with pytest.raises(fg.DeclarationError, match="of a symbolic tensor") as caught:
        fg.op(function)(torch.ones(3, 3), torch.ones(3, 3))
    assert fix in str(caught.value)


def test_a_vector_has_no_transpose() -> None:
    with pytest.raises(fg.ShapeError, match="of rank 1"):
        fg.op(lambda x: x.mT)(torch.ones(3))


@pytest.mark.parametrize("name", ["var", "std"])
def test_corrections_of_every_kind(name: str) -> None:
    x = draw(3, 5).detach()
    for given in (None, 0, 1, 2.5, True, np.int64(1), np.float64(0)):
        found = fg.op(lambda x, given=given: getattr(fg, name)(x, -1, correction=given), name="corrected")(x)
        torch.testing.assert_close(
            found, getattr(torch, name)(x, -1, correction=None if given is None else float(given))
        )
    op = fg.op(lambda x, c: getattr(fg, name)(x, -1, correction=c), name="by_a_number")
    for number in (0, 1, 2.5):
        torch.testing.assert_close(op(x, number), getattr(torch, name)(x, -1, correction=number))
