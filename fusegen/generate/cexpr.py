"""The only printer of expressions as CUDA: C's precedence, the fewest parentheses, typed literals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from fusegen.core import dtypes
from fusegen.core.dtypes import Category, DType
from fusegen.core.intervals import Intervals
from fusegen.core.ir import Call, Const, Detail, Expr, Ref, Size, is_call, walk, whole
from fusegen.core.within import Within
from fusegen.declare.table import Function, Kind, lookup
from fusegen.fuse.work import instructions

_ATOM = 10
_UNARY = 8
_PRODUCT = 7
# Instructions of a select's sides: so many are a function's, not an operator's, which compilers compute before a select
# by themselves; and more than that are worth a branch, which all threads of a warp may take alike.
OF_A_FUNCTION, WORTH_A_BRANCH = 4, 64
_SMALL_INTEGERS = (dtypes.int8, dtypes.uint8, dtypes.int16)
_BYTES = frozenset({dtypes.int8, dtypes.uint8})


@dataclass(frozen=True)
class Printer:
    """Prints expressions for one kernel.

    Args:
        half: results are rounded to a half type, so the faster texts of the function table do.
        variable: what holds the value that is called so (generate/names).
        known: variables that hold what is computed already.
        each: whether something is computed at every element. What is computed once for many is as exact as it can be:
            a mean that elements are compared with is no place to save an instruction.
        inside: the condition under which there is such an element at all; empty where there always is.
        few: all positions fit an int, with room for as much again as a vector has.
        positions: what is known of integers.
    """

    half: bool
    variable: Callable[[str], str] = str
    known: Mapping[Expr, str] = field(default_factory=dict)
    each: Callable[[Expr], bool] = lambda _: False
    inside: str = ""
    few: bool = False
    positions: Intervals = field(default_factory=lambda: Intervals(_LONGEST, _LONGEST), compare=False)

    def text(self, expr: Expr) -> str:
        """An expression in C."""
        return self._print(expr)[0]

    def printed(self, expr: Expr) -> tuple[str, int]:
        """The text, and how tightly its outermost operator binds: the function table's levels, 10 without one."""
        return self._print(expr)

    def term(self, expr: Expr) -> str:
        """The text in front of a minus: in parentheses where that would take a part of it (``c ? x : 0``)."""
        return _wrap(self._print(expr), lookup("sub").precedence)

    def is_faster(self, dtype: dtypes.DType) -> bool:
        """Whether functions of this dtype have their faster texts, which are of float32 and would narrow a double."""
        return self.half and dtype is not dtypes.float64

    def _print(self, expr: Expr) -> tuple[str, int]:
        if expr in self.known:
            return self.known[expr], _ATOM
        if isinstance(expr, Const):
            text = literal(expr)
            return text, _UNARY if text.startswith("-") else _ATOM
        if isinstance(expr, Ref):
            return self.variable(expr.name), _ATOM
        if isinstance(expr, Size):
            return expr.axis.upper(), _ATOM
        assert isinstance(expr, Call)
        function = lookup(expr.function)
        half = self.is_faster(expr.dtype)
        template = function.cuda_half if half and function.cuda_half else function.cuda
        match expr:
            case Call("located"):
                return ", ".join(map(self._argument, expr.args)), _ATOM
            case Call("powi"):
                return self._power(expr)
            case Call("cast"):
                return self._cast(expr)
            case Call("div", (Const() as a, Const() as b)) if expr.dtype is dtypes.float32 and _is_usual(b):
                return f"{literal(a)} / {literal(b)}", _PRODUCT  # by the compiler
            case Call("div", (a, b)) if expr.dtype is dtypes.float32 and _is_count(b):
                return f"fg::divide_by_count({self._argument(a)}, {self._argument(b)})", _ATOM
            case Call("div", (a, Const() as b)) if self._is_approximate(expr) and _is_inverted(b):
                return f"{_wrap(self._print(a), _PRODUCT)} * (1.0f / {literal(b)})", _PRODUCT
            case Call("div", (a, b)) if expr.dtype is dtypes.float32 and not _is_power_of_two(b):
                divide = "fg::fast_divide" if self._is_approximate(expr) else "fg::divide"
                return f"{divide}({self._argument(a)}, {self._argument(b)})", _ATOM
            # x - max(x), the maximum held constant, as softmax has it.
            case Call("exp", (Call("sub" | "sub_rn", (_, Call("stop_gradient"))),)) if half:
                template = "fg::fast_exp_from_top({0})"
            # -x^2, as the normal distribution and the derivative of erfc have it.
            case Call("exp", (Call("neg", (Call("powi", detail=2),)),)) if half:
                template = "fg::fast_exp_below({0})"
        if template == "{0}":
            return self._print(expr.args[0])
        if template.startswith("{0}") or template[1:] == "{0}":
            return self._operator(expr, function, template)
        args = [self._argument(arg) for arg in expr.args]
        suffix = "f" if expr.args[-1].dtype is dtypes.float32 else ""
        detail: Detail | str = expr.detail
        if isinstance(expr, Within):
            detail = f"{expr.number}, {self.inside}" if self.inside else expr.number
        return template.format(*args, f=suffix, d=detail, T=_ctype(expr.dtype)), _ATOM

    def _is_approximate(self, quotient: Call) -> bool:
        return self.half and quotient.dtype is dtypes.float32 and self.each(quotient)

    def _argument(self, arg: Expr) -> str:
        """An argument of a call. Integers of literals alone, and bools that C computes in int, carry their type there,
        for overload resolution: of an int that is 1 `~` is -2, which is true as well."""
        text = self._print(arg)[0]
        if self._is_int_of_bools(arg):
            return f"bool({text})"
        if arg.dtype.category is not Category.INTEGER:
            return text
        if isinstance(arg, Const) and not self._is_int(arg) and arg.dtype is not dtypes.int32:
            return text  # which says its type
        is_literal = self._is_int(arg) or not any(isinstance(n, (Ref, Size)) for n in walk([arg]))
        return f"{_ctype(arg.dtype)}({text})" if is_literal else text

    def _is_int_of_bools(self, expr: Expr) -> bool:
        """Whether it is a bool that is an int in C: two bools in an operator of bits, or what is chosen of such."""
        if expr.dtype is not dtypes.bool_ or expr in self.known:
            return False
        match expr:
            case Call("bitwise_and" | "bitwise_or" | "bitwise_xor"):
                return True
            case Call("where", (_, *values)):
                return any(map(self._is_int_of_bools, values))
        return False

    def _is_int(self, expr: Expr) -> bool:
        """Whether it is an int in C, where its dtype is another one: a literal, or what is chosen of such."""
        if expr.dtype.category is not Category.INTEGER or expr.dtype is dtypes.int32 or expr in self.known:
            return False
        match expr:
            case Const(value):
                return abs(value) < 2**31
            case Call("where", (_, *values)):  # a byte beside an int is an int
                return (any if expr.dtype in _SMALL_INTEGERS else all)(map(self._is_int, values))
            case Call(function, (value,)) if lookup(function).cuda in ("{0}", "-{0}"):
                return self._is_int(value)
        return False

    def _operator(self, expr: Call, function: Function, template: str) -> tuple[str, int]:
        if expr.function in _WRAPPING and self._may_wrap(expr):
            given = ", ".join(map(self.text, expr.args))
            return f"fg::{_WRAPPING[expr.function]}<{_ctype(expr.dtype)}>({given})", _ATOM
        if function.arity == 1:
            inner = _wrap(self._print(expr.args[0]), _UNARY + 1)
            return self._in_own_dtype(expr, template.format(inner), _UNARY)
        if function.kind is Kind.SELECT:
            condition, one, other = expr.args
            printed = [at._print(arg) for at, arg in ((self, condition), (self._where(condition), one), (self, other))]
            if self._is_best_computed_in_any_case(expr):
                return f"fg::select({', '.join(text for text, _ in printed)})", _ATOM
            return template.format(*(_wrap(part, 1) for part in printed)), 0
        level = function.precedence
        least = (level, level + 1) if level else (_UNARY, _UNARY)
        args = [_wrap(self._print(arg), at) for arg, at in zip(expr.args, least, strict=True)]
        if expr.dtype is dtypes.int64 and all(map(self._is_int, expr.args)):  # which would overflow
            args[0] = f"{_ctype(expr.dtype)}({self.text(expr.args[0])})"
        return self._in_own_dtype(expr, template.format(*args), level)

    def _is_best_computed_in_any_case(self, selected: Call) -> bool:
        """Whether both sides of a select should be computed before it: functions of floats that take few instructions.

        A compiler makes a branch of C's ``?:`` where a side calls a function, and nothing of a thread's next elements
        starts before that ends. An argument of a function is computed in any case.
        """
        if selected.dtype is not dtypes.float32 or not self.each(selected):
            return False
        sides = list(walk(selected.args[1:], self.known))
        computed = [instructions(part, self.half, self.each) for part in sides if isinstance(part, Call)]
        calls = any(number >= OF_A_FUNCTION for number in computed)
        return calls and sum(computed) <= WORTH_A_BRANCH and all(map(_is_of_floats, sides))

    def _where(self, condition: Expr) -> Printer:
        """The printer of what is selected under a condition: a place that counts from the end becomes one that exists
        without wrapping around."""
        match condition:
            case Call("lt", (asked, Const(end))) if asked.dtype is dtypes.int64:
                return replace(self, positions=self.positions.below(asked, int(end)))
        return self

    def _may_wrap(self, expr: Call) -> bool:
        """Whether an integer may leave its dtype, of those that C does not compute in a wider one anyway."""
        return expr.dtype is dtypes.int32 or (expr.dtype is dtypes.int64 and self.positions.may_wrap(expr))

    @staticmethod
    def _in_own_dtype(expr: Call, text: str, level: int) -> tuple[str, int]:
        """What an operator leaves: C computes small integers and bools in int, where true + true is 2; torch wraps
        around in the tensor's own dtype, and has true."""
        is_int = expr.dtype in _SMALL_INTEGERS or (expr.dtype is dtypes.bool_ and expr.function in ("add", "mul"))
        return (_converted(expr.dtype, text), _ATOM) if is_int else (text, level)

    def _power(self, expr: Call) -> tuple[str, int]:
        (base,) = expr.args
        exponent = whole(expr)
        if isinstance(base, Ref) and exponent <= 3 and expr.dtype.category is not Category.INTEGER:
            return " * ".join([self.text(base)] * exponent), _PRODUCT
        return f"fg::powi<{exponent}>({self._argument(base)})", _ATOM

    def _in_ints(self, expr: Expr) -> tuple[str, int]:
        """An int64 that fits an int as one, and what it is made of as far as that fits: a GPU computes 64 bits in two
        steps, and converts them at a quarter of the rate."""
        match expr:
            case Const():
                return self._print(expr)
            case Call(function, args) if expr not in self.known and function in _OF_INTS and all(map(_fits_int, args)):
                table = lookup(function)
                printed = [self._in_ints(arg) for arg in args]
                if function == "abs":
                    return f"fg::abs({printed[0][0]})", _ATOM
                if function == "neg":
                    return f"-{_wrap(printed[0], _UNARY + 1)}", _UNARY
                least = (table.precedence, table.precedence + 1)
                sides = [_wrap(side, at) for side, at in zip(printed, least, strict=True)]
                return table.cuda.format(*sides), table.precedence
        return f"int({self._print(expr)[0]})", _ATOM

    def _cast(self, expr: Call) -> tuple[str, int]:
        (inner,) = expr.args
        text = self._print(inner)[0]
        if isinstance(expr.detail, DType):
            return f"fg::round_to<{expr.detail.ctype}>({text})", _ATOM
        if inner.dtype is expr.dtype:
            return text, self._print(inner)[1]
        if inner.dtype.is_float and not expr.dtype.is_float and expr.dtype is not dtypes.bool_:
            return f"fg::to_integer<{_ctype(expr.dtype)}>({text})", _ATOM
        if expr.dtype is dtypes.float32 and inner.dtype in _BYTES:
            return f"fg::byte_to_float<{_ctype(inner.dtype)}>({text})", _ATOM
        if self.few and expr.dtype.is_float and inner.dtype is dtypes.int64 and _fits_int(inner):
            text = self._in_ints(inner)[0]
        return (f"{_ctype(expr.dtype)}({text})" if inner.dtype.is_float else _converted(expr.dtype, text)), _ATOM


# The largest position of a kernel that counts in ints (fuse/schedule.index_type).
_LARGEST_POSITION = 2**31 - 1 - 4096 * 1024


def _fits_int(expr: Expr) -> bool:
    """Whether an int64 that is made of positions fits an int."""
    least, most = Intervals(_LARGEST_POSITION).of(expr)
    return -(2**31) <= least and most < 2**31


# What wraps around, as integers of torch do: in C the operators are undefined where they overflow, and compilers make
# use of that (`i * 2654435761 >= 0` holds for them wherever `i >= 0` does).
_WRAPPING = {"add": "wrapping_add", "sub": "wrapping_sub", "mul": "wrapping_mul", "neg": "wrapping_neg"}
# More elements than any memory has.
_LONGEST = 2**44

# What an int may be computed by where int64 is asked for, if all of it fits.
_OF_INTS = ("add", "sub", "neg", "abs", "mul")


def _is_of_floats(expr: Expr) -> bool:
    """Whether it may be computed where nobody asks for it: numbers as they are, and functions of floats."""
    match expr:
        case Ref() | Const() | Size():
            return True
        case Call("located") | Within():
            return False
        case Call(_, args):
            return all(arg.dtype.is_float or arg.dtype is dtypes.bool_ or not isinstance(arg, Call) for arg in args)
    return False


def _is_count(expr: Expr) -> bool:
    """A product of sizes as a float: positive, and far from where a division needs special care."""
    return is_call(expr, "cast") and all(isinstance(n, Size) or is_call(n, "mul") for n in walk([expr.args[0]]))


def _is_power_of_two(expr: Expr) -> bool:
    """A literal by which C divides as it multiplies, exactly."""
    return _is_usual(expr) and abs(math.frexp(expr.value)[0]) == 0.5


def _is_inverted(expr: Expr) -> bool:
    """A literal by which is multiplied, inverted, where the last bits do not show."""
    return _is_usual(expr) and not _is_power_of_two(expr)


def _is_usual(expr: Expr) -> TypeGuard[Const]:
    """A literal that is far from where its reciprocal is zero, or infinite."""
    return isinstance(expr, Const) and 2.0**-100 < abs(expr.value) < 2.0**100


def _wrap(printed: tuple[str, int], least: int) -> str:
    text, level = printed
    return text if level >= least else f"({text})"


def _converted(dtype: DType, text: str) -> str:
    """An integer in another dtype, or the int that C makes of arithmetic of small ones in theirs."""
    return f"fg::to_int16({text})" if dtype is dtypes.int16 else f"{_ctype(dtype)}({text})"


def _ctype(dtype: DType) -> str:
    return dtype.compute.ctype


def literal(expr: Const) -> str:
    """A literal that C++ reads as the same number of the same type: ``0.5f``, ``1.0``, ``true``."""
    value = expr.value
    if expr.dtype is dtypes.bool_:
        return "true" if value else "false"
    if not expr.dtype.is_float:
        if abs(value) < 2**31:
            return f"{value}"
        # A long long is no int64_t where that is a long, nor an int: beside one, fg::minimum would take floats.
        number = "-9223372036854775807LL - 1" if value == -(2**63) else f"{value}LL"
        return f"{_ctype(expr.dtype)}({number})"
    suffix = "f" if expr.dtype is dtypes.float32 else ""
    if math.isnan(value):
        return f"fg::nan<{expr.dtype.ctype}>()"
    if math.isinf(value) or (suffix and abs(value) > 3.4028235677973366e38):
        return ("-" if value < 0 else "") + f"fg::infinity<{expr.dtype.ctype}>()"
    return f"{value!r}{suffix}"
