"""Every function, reduction, operator and op: on every dtype the result has torch's dtype, or is refused as torch's.

Where it is not, that is on purpose, and stands in `DEVIATIONS`.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import fusegen as fg
from fusegen.declare.language import REDUCTIONS, TABLE_FUNCTIONS
from fusegen.declare.table import lookup
from tests.ops.test_ops_torch import INFOS, NAMES, OURS
from tools.program_checks import interpreted

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (torch.bool, *INTEGERS, *FLOATS)
REFUSED = "refused"
Dtypes = tuple[Any, ...]

# What torch computes and the language does not, or refuses, or gives another dtype: where, and why that is so.
DEVIATIONS: dict[str, tuple[Callable[[Dtypes], bool], str]] = {
    "where": (lambda d: d[0] is torch.uint8, "a mask of uint8 is deprecated in torch"),
    "hypot": (lambda d: not any(x in FLOATS for x in d), "of integers in float32, as all functions of floats"),
    "logsigmoid": (lambda d: d[0] not in FLOATS, "of integers in float32, as all functions of floats"),
    "ndtri": (lambda d: d[0] in FLOATS[:2], "torch has none of halves"),
    "softplus": (lambda d: d[0] not in FLOATS, "of integers in float32, as all functions of floats"),
    "argmax": (lambda d: d[0] is torch.bool, "of bools: the first that is true"),
    "argmin": (lambda d: d[0] is torch.bool, "of bools: the first that is false"),
    "sub": (
        lambda d: torch.bool in d or bool in d,
        "a bool meets a number as 0 or 1, as it does in torch's sums and products",
    ),
    "pow": (lambda d: d == (torch.bool, bool), "no power of bools"),
    "pos": (lambda d: d == (torch.bool,), "+x is x, whatever x is"),
    "ops.hinge_embedding_loss": (lambda d: d[0] not in FLOATS, "a loss of integers is not cut to integers"),
    "ops.matmul": (lambda d: d[0] not in FLOATS, "products are of floats, as torch's on a GPU"),
    "ops.linear": (lambda d: d[0] not in FLOATS, "products are of floats, as torch's on a GPU"),
    "ops.addmm": (lambda d: d[0] not in FLOATS, "products are of floats, as torch's on a GPU"),
    "ops.baddbmm": (lambda d: d[0] not in FLOATS, "products are of floats, as torch's on a GPU"),
}

# Functions that torch calls otherwise, or that are none of torch's.
TORCHS: dict[str, Callable[..., Any]] = {
    "left_shift": torch.bitwise_left_shift, "right_shift": torch.bitwise_right_shift, "logsigmoid": F.logsigmoid,
    "softplus": F.softplus, "cbrt": lambda x: torch.pow(x, 1 / 3),
    "norm": lambda x, axis: torch.linalg.vector_norm(x, dim=axis), "std": lambda x, axis: torch.std(x, dim=axis),
    "var": lambda x, axis: torch.var(x, dim=axis), "ratio": torch.div, "exp_clamped": torch.exp,
    "sum_exp": torch.softmax,
}  # fmt: skip
OPERATORS = {
    name.strip("_"): getattr(operator, name) for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift", "lt", "le",
        "gt", "ge", "eq", "ne",
    )
}  # fmt: skip
UNARY = {"neg": operator.neg, "pos": operator.pos, "abs": abs, "invert": operator.invert}


def of_torch(name: str) -> Callable[..., Any]:
    return TORCHS.get(name) or getattr(torch, name, None) or getattr(torch.special, name)


def ours(function: Callable[..., Any], dtypes: Dtypes) -> Any:
    """The dtype of an op of one call."""
    body = {1: lambda a: function(a), 2: lambda a, b: function(a, b), 3: lambda a, b, c: function(a, b, c)}[len(dtypes)]
    specs = [fg.TensorSpec(fg.table.dtypes.parse(str(dtype)), (2, 3)) for dtype in dtypes]
    try:
        return getattr(torch, fg.op(body, name="swept").trace(*specs).outputs[0].dtype.name)
    except fg.DtypeError:
        return REFUSED


def theirs(function: Callable[..., Any], dtypes: Dtypes) -> Any:
    tensors = [torch.ones(2, 3, dtype=dtype) for dtype in dtypes]
    try:
        return function(*tensors).dtype
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return REFUSED


def check(name: str, found: dict[Dtypes, tuple[Any, Any]]) -> None:
    """All agree but what is said to deviate, and that does."""
    deviates, _ = DEVIATIONS.get(name, (lambda _: False, ""))
    assert {d: pair for d, pair in found.items() if pair[0] != pair[1] and not deviates(d)} == {}
    if name in DEVIATIONS:
        assert any(one != other for one, other in found.values()), f"{name} deviates no more"


@pytest.mark.filterwarnings("ignore:where received a uint8")
@pytest.mark.parametrize("name", TABLE_FUNCTIONS)
def test_functions(name: str) -> None:
    arity = lookup(name).arity
    cases: Iterator[Dtypes] = itertools.product(DTYPES, repeat=min(arity, 2))
    if name == "where":
        cases = itertools.chain(((torch.bool, *case) for case in cases), ((d, d, d) for d in DTYPES))
    elif arity == 3:
        cases = ((a, b, b) for a, b in cases)
    check(name, {case: (ours(TABLE_FUNCTIONS[name], case), theirs(of_torch(name), case)) for case in cases})


# Functions along an axis that torch lacks.
OWN = ("index", "size", "linear_recurrence")


@pytest.mark.parametrize(
    ("name", "at"), [*((name, 0) for name in REDUCTIONS if name not in OWN), ("cummax", 1), ("cummin", 1)]
)
def test_reductions(name: str, at: int) -> None:
    def of(result: Any) -> Any:
        return result[at] if isinstance(result, tuple) else result

    found = {}
    for dtype in DTYPES:
        mine = ours(lambda x: of(getattr(fg, name)(x, axis=-1)), (dtype,))
        found[(dtype,)] = mine, theirs(lambda x: of(of_torch(name)(x, -1)), (dtype,))
    check(name, found)


@pytest.mark.parametrize("name", [*OPERATORS, *UNARY])
def test_operators(name: str) -> None:
    if name in UNARY:
        check(name, {(d,): (ours(UNARY[name], (d,)), theirs(UNARY[name], (d,))) for d in DTYPES})
        return
    function = OPERATORS[name]
    found = {case: (ours(function, case), theirs(function, case)) for case in itertools.product(DTYPES, repeat=2)}
    for dtype, number in itertools.product(DTYPES, (True, 2, 2.0)):
        for side in (lambda x, n=number: function(x, n), lambda x, n=number: function(n, x)):
            pair = ours(side, (dtype,)), theirs(side, (dtype,))
            if found.setdefault((dtype, type(number)), pair) != pair:
                found[type(number), dtype] = pair
    check(name, found)


@pytest.mark.parametrize("name", NAMES)
def test_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's own samples, without computing anything."""
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
    info, found = INFOS[name], {}
    for dtype in (d for d in (torch.bool, *INTEGERS) if d in info.dtypes):
        sample = next(iter(info.sample_inputs("cpu", dtype, requires_grad=False)))
        with FakeTensorMode() as mode:
            fake = sample.transform(lambda x, m=mode: m.from_tensor(x) if isinstance(x, torch.Tensor) else x)
            try:
                mine = OURS[name](fake.input, *fake.args, **fake.kwargs).dtype
            except fg.DtypeError:
                mine = REFUSED
        found[(dtype,)] = mine, info.op(sample.input, *sample.args, **sample.kwargs).dtype
    if found:
        check("ops." + name.partition(" ")[0], found)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_whole_already(dtype: torch.dtype) -> None:
    x = torch.tensor([-(2**61) - 1, -7, 0, 1, 100, 2**53 + 1]).to(dtype)
    op = fg.op(lambda x: (fg.round(x), fg.floor(x), fg.ceil(x), fg.trunc(x) + x), name="whole")
    for found, expected in zip(op(x), (x, x, x, x + x), strict=True):
        assert found.dtype is dtype and torch.equal(found, expected)


@pytest.mark.emulator
def test_answers_about_bytes_are_bytes() -> None:
    x = torch.tensor([[0, 0, 0], [0, 3, 0], [255, 1, 2]], dtype=torch.uint8)
    op = fg.op(lambda x: (fg.any(x, -1), fg.all(x, -1), fg.sign(x != 0), fg.logsumexp(x, -1)), name="answers")
    for found, expected in zip(op(x), (x.any(-1), x.all(-1), (x != 0).sign(), x.logsumexp(-1)), strict=True):
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_divide_at_the_ends_of_their_range(dtype: torch.dtype) -> None:
    """The largest byte has the bits of -1, and is not it."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    y = torch.tensor([*range(1, 4), high - 1, high, *([-1, -2, low] if low else [])], dtype=dtype)
    x = torch.tensor([0, 1, 2, 7, 100, high - 1, high, *([-1, -7, low + 1] if low else [])], dtype=dtype)[:, None]
    op = fg.op(lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")), name="division")
    expected = (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"))
    for mine, theirs in zip(op(x, y), expected, strict=True):
        assert mine.dtype is dtype and torch.equal(mine, theirs)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16], ids=str)
def test_minus_wraps_around_in_its_own_dtype(dtype: torch.dtype) -> None:
    """What reads it, before it is in memory, reads what memory would hold: C negates in int."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([low, high, 0, 1, 7], dtype=dtype)

    def of(x: Any) -> tuple[Any, ...]:
        minus = (-x, x * -1, 0 - x, ~x + 1, -(x + x), torch.neg(x.int()).to(x.dtype), abs(x), x // -1)
        return (
            *(m > 5 for m in minus),
            *(m.double() for m in minus),
            -x < 0,
            -x // 3,
            torch.where(x > 0, -x, 1) > 2,
            (-x).sum(),
        )

    for found, expected in zip(fg.op(of, name="minus")(x), of(x), strict=True):
        assert found.dtype is expected.dtype and torch.equal(found, expected)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integers_that_overflow_wrap_around(dtype: torch.dtype) -> None:
    """C leaves it undefined, and compilers reason from that: ``x + 1 > x``, ``x * y / y == x``."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([123456, high, low, 7, high // 2 + 3, -1], dtype=dtype)
    y = torch.tensor([123456, 2, -1, 7, 5, low], dtype=dtype)

    def of(x: Any, y: Any) -> tuple[Any, ...]:
        hashed = x * 1664525 + 1013904223
        signs = x * x < 0, -x < 0, x + 1 > x, x + y < x, x - y > x, abs(x) < 0, x**3 < 0, x.prod() < 0
        return *signs, x * y // y, hashed // 3, hashed % 7, (hashed >> 16) % 5, (x * y).double(), x.cumprod(0) > 0

    for found, expected in zip(fg.op(of, name="hashed")(x, y), of(x, y), strict=True):
        assert found.dtype is expected.dtype and torch.equal(found, expected)


def test_places_are_added_to_as_they_stand() -> None:
    """What cannot overflow is printed as C has it: places from the end, positions, numbers of elements, bytes."""
    x, i, b = torch.zeros(5, 7), torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.uint8)
    op = fg.op(lambda x, i, b: (x[i].flip(1).mean(), x[(b.long() * 2 + 1) % 5, 2:] + fg.index(x, 1)[2:] * 3), name="op")
    text = op.emit(x, i, b)
    assert "wrapping" not in text and "< 0 ?" in text


@pytest.mark.emulator
@pytest.mark.parametrize("divisor", [torch.int8, torch.int64], ids=str)
def test_a_number_without_dimensions_divides_in_the_others_dtype(divisor: torch.dtype) -> None:
    """-1 among bytes is 255."""
    x, y = torch.tensor([0, 7, 200, 255], dtype=torch.uint8), torch.tensor(-1, dtype=divisor)
    found = fg.op(lambda x, y: torch.div(x, y, rounding_mode="trunc"), name="divided")(x, y)
    assert found.tolist() == torch.div(x, y, rounding_mode="trunc").tolist() == [0, 0, 0, 1]


@pytest.mark.emulator
@pytest.mark.parametrize("alpha", [0, 1, 2])
def test_bools_that_are_added_stay_bools(alpha: int) -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    found = fg.op(lambda x, y: torch.add(x, y, alpha=alpha), name="either")(x, y)
    expected = torch.add(x, y, alpha=alpha)
    assert found.dtype is expected.dtype and torch.equal(found, expected)


@pytest.mark.emulator
def test_two_that_are_true_are_true() -> None:
    """Not 2, whatever reads their sum before it is in memory."""
    x, y = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    number = torch.tensor([1, 2, 3, 4])

    def of(x: Any, y: Any, number: Any) -> tuple[Any, ...]:
        either, both = x + y, x * y
        return (
            either, either.sum(), either.cumsum(0), either * number, either > y, either == both, either.float() / 3,
            ~either & y, torch.maximum(both, x), torch.where(x, either, y) + number,
        )  # fmt: skip

    for found, expected in zip(fg.op(of, name="either")(x, y, number), of(x, y, number), strict=True):
        assert found.dtype is expected.dtype and torch.equal(found, expected)


@pytest.mark.emulator
def test_what_is_not_both_is_a_bool() -> None:
    """C computes `&`, `|` and `^` of bools in int, and `~` of an int that is 1 is -2, which is true as well."""
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    number = torch.tensor([0.5, -1.0, 2.0, 3.0])

    def of(x: Any, y: Any, number: Any) -> tuple[Any, ...]:
        inside = (number > 0) & (number < 2.5)
        return (
            ~(x & y), ~(x | y), ~(x ^ y), ~(x & True), ~inside, (~(x | y)).sum(), torch.where(~inside, number, 0.0),
            ~torch.where(x, x ^ y, y), ~torch.where(inside, y, x & y), ~(x & ~(x | y)), ~inside * number,
        )  # fmt: skip

    for found, expected in zip(fg.op(of, name="neither")(x, y, number), of(x, y, number), strict=True):
        assert found.dtype is expected.dtype and torch.equal(found, expected)


@pytest.mark.emulator
@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63) - 1, 10**20, -(10**30)])
def test_an_int_beyond_all_integers_is_a_number_to_floats(number: int) -> None:
    x = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def of(x: Any, number: Any) -> tuple[Any, ...]:
        return x + number, x > number, torch.where(x > 0, x, number), x.clamp(max=number)

    check_equal(fg.op(lambda x: of(x, number), name="beyond")(x), of(x, float(number)))


# What takes a number as it stands: in arithmetic it wraps around.
TAKES = {
    "where": lambda x: torch.where(x > 1, x, 300), "masked_fill": lambda x: x.masked_fill(x > 1, -300),
    "clamp": lambda x: x.clamp(max=300), "both": lambda x: x.clamp(0, 300), "fill": lambda x: torch.full_like(x, 300),
    "pad": lambda x: F.pad(x, (1, 1), value=300), "index_fill": lambda x: x.index_fill(0, torch.arange(1), 300),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
@pytest.mark.parametrize("name", TAKES)
def test_numbers_that_no_element_can_be_are_refused(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1, 100], dtype=dtype)
    with pytest.raises(RuntimeError, match="without overflow"):
        TAKES[name](x)
    with pytest.raises(fg.DtypeError, match=f"given: +{fg.op(lambda x: x).trace(x).outputs[0].dtype}\n.* holds -?300"):
        fg.op(TAKES[name], name=name).trace(x)


@pytest.mark.emulator
@pytest.mark.parametrize("bound", [300, 5, -300])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16], ids=str)
def test_a_bound_beyond_the_range_is_none(dtype: torch.dtype, bound: int) -> None:
    """The call tells it, so nothing can refuse it."""
    x = torch.tensor([1, 100, 127, 3], dtype=dtype)
    for bounds in ({"min": bound}, {"max": bound}, {"min": -70000, "max": bound}):
        found = fg.ops.clamp(x, **bounds)
        assert found.dtype is dtype and torch.equal(found, x.long().clamp(**bounds).to(dtype))


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
def test_numbers_wrap_around_in_every_stage(dtype: torch.dtype) -> None:
    """Also where the reference computes: a call that is checked ended in torch's own error."""
    x = torch.tensor([1, 100, 127, 3], dtype=dtype)

    def of(x: Any) -> tuple[Any, ...]:
        return 300 - x, (x * 1000).to(torch.float64), (x + 300) // 2, x & 0x1FF

    op = fg.op(of, name="wrapped")
    for stage in range(6):
        with interpreted(stage):
            check_equal(op(x), of(x))
    with fg.checked():
        check_equal(op(x), of(x))
    check_equal(torch.func.vmap(op)(x[None]), [each[None] for each in of(x)])


@pytest.mark.emulator
def test_minus_one_among_bytes_is_255() -> None:
    """Also to what reads it before memory holds it; a number that they are compared with is one of theirs."""
    x, y = torch.tensor([0, 7, 200, 255], dtype=torch.uint8), torch.tensor([-3, 4, 100, -128], dtype=torch.int8)

    def of(x: Any, y: Any) -> tuple[Any, ...]:
        chosen = torch.where(x > 5, -1, x)
        return (
            chosen > 100, chosen // 2, chosen.double(), chosen.sum(), x > torch.where(x > 0, x, -1), x > -1,
            x.clamp(min=-1) < 0, x == -1,
            x.masked_fill(x > 5, -1).float().mean(), torch.full_like(x, -1) > 5, y > 200, y == 256,
            y % 300, x // -3, torch.maximum(x, torch.full_like(x, -1)).long(),
        )  # fmt: skip

    op = fg.op(of, name="bytes")
    for stage in range(6):
        with interpreted(stage):
            check_equal(op(x, y), of(x, y))
    check_equal(op(x, y), of(x, y))


# An integer that meets a half, beside a number: what the number makes of it alone would be float32.
MEETING = {
    "ldexp": lambda x, n: torch.ldexp(x, n * 1), "xlog1py": lambda x, n: torch.special.xlog1py(x, n),
    "addcmul": lambda x, n: torch.addcmul(x, n, x, value=0.5), "add": lambda x, n: torch.add(x, n, alpha=0.5),
    "addcmul of two": lambda x, n: torch.addcmul(x, n, n, value=0.5), "xlogy": lambda x, n: torch.xlogy(x, n),
    "addcdiv": lambda x, n: torch.addcdiv(x, n * 1, x, value=0.5), "by": lambda x, n: torch.addcdiv(x, x, n * 1 + 1),
    "lerp": lambda x, n: torch.lerp(x, x + n, 0.5), "product": lambda x, n: x * n * 0.5,
}  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", MEETING)
def test_integers_have_the_dtype_of_what_they_meet(name: str, dtype: torch.dtype) -> None:
    x, function = torch.tensor([0.5, 2.0, 3.0], dtype=dtype), MEETING[name]
    op = fg.op(function, name="meeting")
    for integers in (torch.tensor([1, 2, 3]), torch.tensor([True, False, True]), torch.tensor(2, dtype=torch.int8)):
        torch.testing.assert_close(op(x, integers), function(x, integers))


def check_equal(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype is theirs.dtype and torch.equal(mine, theirs)


@pytest.mark.emulator
@pytest.mark.parametrize("factors", [{"beta": 3, "alpha": 2}, {"beta": 0, "alpha": 2}, {"beta": 2, "alpha": 0}, {}])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8], ids=str)
def test_factors_of_a_sum_say_nothing_of_its_dtype(dtype: torch.dtype, factors: dict[str, int]) -> None:
    x, v, w = (torch.tensor(bits).to(dtype) for bits in ([[1, 0, 0], [0, 1, 0]], [1, 0], [1, 1, 0]))
    for given in (x, x[:, :1]):
        found = fg.op(lambda x, v, w: torch.addr(x, v, w, **factors), name="added")(given, v, w)
        expected = torch.addr(given, v, w, **factors)
        assert found.dtype is expected.dtype and torch.equal(found, expected)


@pytest.mark.emulator
def test_bytes_that_are_contracted_with_one_stay_bytes() -> None:
    x, y = torch.tensor([[3]], dtype=torch.uint8), torch.tensor([[100, 90], [80, 70]], dtype=torch.uint8)
    for first, second in ((x, y), (y, x)):
        found = fg.op(lambda x, y: torch.tensordot(x, y, dims=([1], [0])), name="contracted")(first, second)
        expected = torch.tensordot(first, second, dims=([1], [0]))
        assert found.dtype is expected.dtype and torch.equal(found, expected)
