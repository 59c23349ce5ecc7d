"""The printer of expressions: what it prints means what was given, with the fewest parentheses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core import dtypes
from fusegen.core.ir import Call, Const, Expr, Place, Ref, Size, const, walk
from fusegen.declare.table import apply
from fusegen.generate.cexpr import Printer

F64, F32, I64, I32, I8 = dtypes.float64, dtypes.float32, dtypes.int64, dtypes.int32, dtypes.int8
X, Y, Z = (Ref(name, F64) for name in "xyz")
A, B = (Ref(name, F32) for name in "ab")
K, J = (Ref(name, I32) for name in "ij")
S = Ref("s", I8)
C, L = Ref("c", dtypes.bool_), Ref("l", I64)
SEVEN_OR_THREE = apply("where", C, const(7, I64), const(3, I64))


def power(expr: Expr, exponent: int) -> Call:
    return apply("powi", expr, detail=exponent)


def cast(expr: Expr, dtype: dtypes.DType, detail: dtypes.DType | None = None) -> Call:
    return Call("cast", (expr,), dtype, detail)


def add(a: Expr, b: Expr) -> Call:
    return apply("add", a, b)


TEXTS: dict[str, tuple[Expr, str]] = {
    "a sum in a product": (apply("mul", add(X, Y), Z), "(x + y) * z"),
    "a product in a sum": (add(apply("mul", X, Y), Z), "x * y + z"),
    "a difference behind a minus": (apply("sub", X, apply("sub", Y, Z)), "x - (y - z)"),
    "a difference before one": (apply("sub", apply("sub", X, Y), Z), "x - y - z"),
    "a quotient of quotients": (apply("div", X, apply("div", Y, Z)), "x / (y / z)"),
    "minus a sum": (apply("neg", add(X, Y)), "-(x + y)"),
    "minus a call": (apply("neg", apply("exp", X)), "-exp(x)"),
    "minus minus": (apply("neg", apply("neg", X)), "-(-x)"),
    "a square": (power(X, 2), "x * x"),
    "a cube": (power(X, 3), "x * x * x"),
    "a fourth power": (power(X, 4), "fg::powi<4>(x)"),
    "a square of a sum": (power(add(X, Y), 2), "fg::powi<2>(x + y)"),
    "a square of a small integer": (power(S, 2), "fg::powi<2>(s)"),
    "by a square": (apply("div", Y, power(X, 2)), "y / (x * x)"),
    "a cast": (cast(add(A, B), F64), "double(a + b)"),
    "a cast that is none": (apply("mul", cast(add(X, Y), F64), Z), "(x + y) * z"),
    "to an integer": (cast(add(X, Y), I32), "fg::to_integer<int32_t>(x + y)"),
    "to a bool": (cast(X, dtypes.bool_), "bool(x)"),
    "rounded": (cast(add(A, B), F32, dtypes.bfloat16), "fg::round_to<bf16>(a + b)"),
    "a select": (apply("where", C, add(X, Y), Z), "c ? x + y : z"),
    "a select in a sum": (add(apply("where", C, X, Y), Z), "(c ? x : y) + z"),
    "a select in a select": (apply("where", C, X, apply("where", C, Y, Z)), "c ? x : (c ? y : z)"),
    "small integers wrap around": (add(S, S), "int8_t(s + s)"),
    "integers wrap around": (add(K, J), "fg::wrapping_add<int32_t>(i, j)"),
    "their product": (apply("mul", L, const(3, I64)), "fg::wrapping_mul<int64_t>(l, 3)"),
    "their negative": (apply("neg", K), "fg::wrapping_neg<int32_t>(i)"),
    "their square": (power(L, 2), "fg::powi<2>(l)"),
    "positions are small": (apply("sub", apply("mul", Place("d1"), const(3, I64)), Size("d1")), "@index_d1 * 3 - D1"),
    "a hash of them is not": (
        apply("mul", Place("d1"), const(2**31, I64)), "fg::wrapping_mul<int64_t>(@index_d1, int64_t(2147483648LL))"
    ),
    "a number of elements": (apply("mul", apply("mul", Size("d1"), Size("d0")), Size("d2")), "D1 * D0 * D2"),
    "what a condition is about": (
        apply("where", apply("lt", apply("mul", L, const(2, I64)), const(0, I64)), apply("mul", L, const(2, I64)), L),
        "fg::wrapping_mul<int64_t>(l, 2) < 0 ? fg::wrapping_mul<int64_t>(l, 2) : l",
    ),
    "a place from the end": (
        apply("where", apply("lt", L, const(0, I64)), add(L, Size("d0")), L), "l < 0 ? l + D0 : l"
    ),
    "wide literals that are chosen": (SEVEN_OR_THREE, "c ? 7 : 3"),
    "a product of these": (apply("mul", SEVEN_OR_THREE, const(8, I64)), "int64_t(c ? 7 : 3) * 8"),
    "the negative of these in one": (
        apply("mul", apply("neg", SEVEN_OR_THREE), const(8, I64)), "int64_t(-(c ? 7 : 3)) * 8"
    ),
    "these beside a variable": (apply("mul", SEVEN_OR_THREE, L), "fg::wrapping_mul<int64_t>(c ? 7 : 3, l)"),
    "these as an argument": (
        apply("remainder", SEVEN_OR_THREE, const(2, I64)), "fg::remainder(int64_t(c ? 7 : 3), int64_t(2))"
    ),
    "a byte or a literal as an argument": (
        apply("remainder", apply("where", C, S, const(3, I8)), S), "fg::remainder(int8_t(c ? s : 3), s)"
    ),
    "by a number that is no count": (apply("div", A, B), "fg::divide(a, b)"),
    "by a power of two": (apply("div", A, const(0.25, F32)), "a / 0.25f"),
    "by another literal": (apply("div", A, const(3.0, F32)), "fg::divide(a, 3.0f)"),
    "in double": (apply("div", X, Y), "x / y"),
    "by an element of a row": (apply("div", X, cast(K, F64)), "x / double(i)"),
    "a typed literal": (apply("minimum", K, const(3, I32)), "fg::minimum(i, int32_t(3))"),
    "a negative literal": (apply("mul", const(-2, F64), X), "-2.0 * x"),
    "minus a literal": (apply("neg", const(2, F64)), "-2.0"),
    "minus a negative literal": (apply("neg", const(-2, F64)), "-(-2.0)"),
    "float32": (apply("mul", const(0.5, F32), A), "0.5f * a"),
    "infinity": (const(float("inf"), F32), "fg::infinity<float>()"),
    "NaN": (const(float("nan"), F64), "fg::nan<double>()"),
    "a large integer": (const(2**31, dtypes.int64), "int64_t(2147483648LL)"),
    "a large integer as an argument": (apply("abs", const(2**31, dtypes.int64)), "fg::abs(int64_t(2147483648LL))"),
    "the lowest integer": (const(-(2**63), dtypes.int64), "int64_t(-9223372036854775807LL - 1)"),
    "the lowest int": (const(-(2**31), dtypes.int32), "int32_t(-2147483648LL)"),
    "an integer": (const(2**31 - 1, dtypes.int64), "2147483647"),
}  # fmt: skip


@pytest.mark.parametrize("what", TEXTS)
def test_text(what: str) -> None:
    given, expected = TEXTS[what]
    assert Printer(half=False).text(given) == expected


CHOSEN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "%": lambda x, b, lib: lib.where(x > 0, 7, 3) % 2,
    "//": lambda x, b, lib: lib.where(x > 0, -7, 3) // 2,
    "*": lambda x, b, lib: lib.where(x > 0, 2**30, 3) * 8,
    "+": lambda x, b, lib: lib.where(x > 0, 2**30, 3) + lib.where(x > 1, 2**30, 3),
    "<<": lambda x, b, lib: lib.where(x > 0, 7, 3) << 40,
    "-": lambda x, b, lib: -lib.where(x > 0, 7, 3) * 2**30,
    "a choice of choices": lambda x, b, lib: lib.where(x > 0, lib.where(x > 1, 7, 3), 4) % 3,
    "a call": lambda x, b, lib: lib.abs(lib.where(x > 0, -7, 3)) * 2**30,
    "clamped": lambda x, b, lib: lib.clamp(lib.where(x > 0, 7, 3), 4, 5),
    "an exponent": lambda x, b, lib: b.to(lib.int64) ** lib.where(x > 0, 2, 3),
    "a sum": lambda x, b, lib: (lib.where(x > 0, 2**30, 2**30) * 4).sum(0),
    "a byte or a number": lambda x, b, lib: lib.where(x > 0, b, 3) % 2,
    "a large one or a place": lambda x, b, lib: lib.maximum(lib.where(x > 0, 0, 2**63 - 1), b.to(lib.int64)),
    "the largest of large ones": lambda x, b, lib: lib.maximum(b.to(lib.int64), lib.where(x > 0, 2**40 + 1, 5)),
    "beside a large one": lambda x, b, lib: lib.maximum(b.to(lib.int64) + (2**40 + 1), b.to(lib.int64) * 3),
    "the lowest int": lambda x, b, lib: lib.maximum(lib.where(x > 0, b.int(), -(2**31)), b.to(lib.int32) - 2**30),
}  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_integers_are_computed_with_in_their_dtype(name: str) -> None:
    """C takes small literals for ints: functions of int64 did not know them, and products of them wrapped around."""
    function = CHOSEN[name]
    x, b = torch.tensor([-1.5, 0.5, 2.5], dtype=torch.float64), torch.tensor([2, 3, 5], dtype=torch.uint8)
    found, expected = fg.op(lambda x, b: function(x, b, fg))(x, b), function(x, b, torch)
    assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


WRAPPING: dict[str, Callable[[Any], Any]] = {
    "a product is negative": lambda i: i * 2654435761 * 2246822519 >= 0,
    "a remainder": lambda i: i * 2654435761 % 97,
    "a quotient": lambda i: i * 2**62 // 2**62,
    "a sum": lambda i: i + (2**63 - 1) > i,
    "a difference": lambda i: i - (2**63 - 1) < i,
    "a square": lambda i: (i * 3037000500) ** 2 >= 0,
    "a magnitude": lambda i: (i * 2**62).abs() >= 0,
    "an extremum": lambda i: torch.maximum(i * 2654435761, i) % 1000003,
    "in 32 bits": lambda i: i.int() + (2**31 - 1) > i.int(),
    "a product in 32 bits": lambda i: i.int() * 2**30 * 2 // 2,
    "a square in 32 bits": lambda i: (i.int() * 46341) ** 2 >= 0,
    "of positions": lambda i: torch.arange(8) * 2654435761 * 2246822519 >= i,
    "of positions of what is shifted": lambda i: (
        torch.where(torch.arange(8) * 2654435761 * 2246822519 < 0, i, -i) + i.roll(1)
    ),
    "of positions within bounds": lambda i: i.roll(1)[(torch.arange(8) * 2**40 * 2**22).clamp(0, 7)],
}


@pytest.mark.emulator
@pytest.mark.parametrize("name", WRAPPING)
def test_integers_wrap_around(name: str) -> None:
    """Compilers take what overflows for what does not; and sizes decided conditions of hashed positions."""
    function, i = WRAPPING[name], torch.arange(-3, 5)
    found, expected = fg.op(function)(i), function(i)
    assert found.dtype == expected.dtype and found.tolist() == expected.tolist()


def test_what_is_known_has_a_name() -> None:
    known = add(X, Y)
    printer = Printer(half=False, known={known: "total"}, variable=lambda name: f"{name}_")
    assert printer.text(apply("mul", known, Z)) == "total * z_"


def test_in_front_of_a_minus() -> None:
    printer = Printer(half=False)
    assert printer.term(apply("where", C, X, Y)) == "(c ? x : y)"
    assert printer.term(apply("mul", X, Y)) == "x * y"


def test_halves_have_the_faster_texts() -> None:
    half, full = Printer(half=True), Printer(half=False)
    square = apply("neg", power(A, 2))
    assert half.text(apply("exp", A)) == "fg::fast_exp(a)" and full.text(apply("exp", A)) == "expf(a)"
    assert half.text(apply("exp", square)) == "fg::fast_exp_below(-(a * a))"
    assert half.text(apply("exp", apply("sub", A, apply("stop_gradient", B)))) == "fg::fast_exp_from_top(a - b)"
    assert half.text(apply("sin", square)) == "fg::fast_sin(-(a * a))"
    assert full.text(apply("sin", square)) == "fg::sin(-(a * a))"
    assert half.text(apply("atan", square)) == "atanf(-(a * a))"
    assert full.text(apply("exp", square)) == "expf(-(a * a))"


def test_both_sides_of_a_select_are_computed_where_one_calls_a_function() -> None:
    """Of C's ``?:`` compilers make a branch there, and a thread's next elements wait behind it."""
    printer = Printer(half=False, each=lambda _: True)
    exponential = apply("exp", A)
    assert printer.text(apply("where", C, exponential, B)) == "fg::select(c, expf(a), b)"
    assert printer.text(apply("where", C, B, apply("div", A, B))) == "fg::select(c, b, fg::divide(a, b))"
    inner = apply("where", C, A, exponential)
    assert printer.text(apply("where", C, inner, B)) == "fg::select(c, fg::select(c, a, expf(a)), b)"
    # Not where operators do, nor what is known, nor once for many elements, nor what is worth a branch.
    for kept in (add(apply("mul", A, B), A), apply("abs", A), apply("minimum", A, B)):
        assert printer.text(apply("where", C, kept, B)).startswith("c ? ")
    known = Printer(half=False, known={exponential: "power"}, each=lambda _: True)
    assert known.text(apply("where", C, exponential, B)) == "c ? power : b"
    assert Printer(half=False).text(apply("where", C, exponential, B)) == "c ? expf(a) : b"
    assert printer.text(apply("where", C, apply("lgamma", A), B)) == "c ? lgammaf(a) : b"


def test_integers_that_a_condition_keeps_apart_are_not_computed_without_it() -> None:
    """A division by zero, say, which ends a process that computes it on a CPU."""
    printer = Printer(half=False, each=lambda _: True)
    quotient = Call("cast", (apply("floor_divide", L, L),), F32)
    text = printer.text(apply("where", apply("ne", L, const(0, I64)), apply("exp", quotient), A))
    assert text.startswith("l != 0 ? expf(")


def test_doubles_beside_halves_have_not() -> None:
    """The faster texts are of float32: ``fg::fast_sqrt`` of a double would be that of what is left of it."""
    for name in ("exp", "sqrt", "sin", "tanh"):
        assert Printer(half=True, variable=str).text(apply(name, X)) == Printer(half=False, variable=str).text(
            apply(name, X)
        )


@pytest.mark.emulator
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_doubles_beside_halves_are_doubles(half: torch.dtype) -> None:
    def wide(x: Any) -> Any:
        x64 = x.double()
        return (
            x64.exp().log().to(x.dtype),
            (x64.abs().sqrt() * 1e9).long(),
            (torch.sin(x64) * 1e12).long(),
            x64.exp() > 1e50,
        )

    x = torch.tensor([200.0, -3.0, 5.0], dtype=half)
    for mine, theirs in zip(fg.op(wide)(x), wide(x), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.emulator
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_sums_of_doubles_beside_halves_are_doubles(half: torch.dtype, dim: int) -> None:
    def wide(x: Any) -> Any:
        x64 = x.double()
        sums = x64.softmax(dim), x64.logsumexp(dim), x64.log_softmax(dim), (x64 + 1e4).var(dim)
        return x * 2, *((each * 1e11).round().long() for each in sums)

    x = torch.randn(7, 40, generator=torch.Generator().manual_seed(0)).to(half)
    for mine, theirs in zip(fg.op(wide)(x), wide(x), strict=True):
        assert (mine - theirs).abs().max() <= 100  # of 1e11


def drawn(draw: random.Random, depth: int) -> Expr:
    if depth == 0 or draw.random() < 0.1:
        return draw.choice((X, Y, Z, const(2, F64), const(-3, F64), const(0.5, F64)))
    name = draw.choice(("add", "sub", "sub", "mul", "div", "div", "neg", "powi", "cast"))
    first = drawn(draw, depth - 1)
    if name == "powi":
        return power(first, draw.choice((2, 3))) if isinstance(first, Ref) else first
    if name in ("neg", "cast"):
        return Call(name, (first,), F64)
    return Call(name, (first, drawn(draw, depth - 1)), F64)


def value(root: Expr, names: dict[str, float]) -> float:
    found: dict[Expr, float] = {}
    for node in walk([root]):
        if isinstance(node, Const):
            found[node] = float(node.value)
        elif isinstance(node, Ref):
            found[node] = names[node.name]
        else:
            assert isinstance(node, Call)
            a, *rest = (found[arg] for arg in node.args)
            exact = {"neg": lambda a=a: -a, "cast": lambda a=a: a, "powi": lambda a=a, n=node: _power(a, n.detail)}
            if node.function in exact:
                found[node] = exact[node.function]()
                continue
            b = rest[0]
            found[node] = (
                a + b if node.function == "add" else a - b if node.function == "sub"
                else a * b if node.function == "mul" else a / b
            )  # fmt: skip
    return found[root]


def _power(base: float, exponent: int) -> float:
    return base * base if exponent == 2 else base * base * base


@pytest.mark.parametrize("block", range(4))
def test_random_text_means_what_was_given(block: int) -> None:
    """Python's precedence of these operators is C's."""
    draw = random.Random(block)
    names = {"x": 1.37, "y": -0.73, "z": 2.9}
    for _ in range(300):
        given = drawn(draw, 5)
        text = Printer(half=False).text(given)
        try:
            expected = value(given, names)
        except ZeroDivisionError:
            continue
        assert eval(text, {}, names) == expected, text


@pytest.mark.emulator
def test_a_long_term_below_a_condition_is_whole() -> None:
    """A sum's last elements may not be there; what is added then goes on below, where it is long."""

    def equal(x: Any) -> Any:
        return fg.sum((1 / x) == (x << 2).to(fg.float32), -1)

    x = torch.tensor([1, 2, 3] * 43, dtype=torch.uint8)
    assert fg.op(equal, name="equal")(x).item() == 0
    y = torch.zeros(130, dtype=torch.uint8)
    assert fg.op(lambda x: fg.sum((3 / (x + 1)) != (x << 2).to(fg.float32), -1), name="differing")(y).item() == 130
