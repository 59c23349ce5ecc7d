"""Formulas typed on the command line: ``"x * sigmoid(y) + b"``.

The text is parsed, never executed: a whitelist of syntax is walked, names become tensors, calls look up the function
table. Whatever is not on the list is refused by name.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fusegen.core.errors import DeclarationError
from fusegen.declare import language
from fusegen.declare.op import Declaration
from fusegen.declare.value import elementwise
from fusegen.fused_op import FusedOp

LONGEST, MOST_NODES, DEEPEST, MOST_TENSORS = 2000, 400, 40, 32
CONSTANTS = {"pi": math.pi, "inf": math.inf, "nan": math.nan}
_NOT_IN_FORMULAS = ("concat", "register_function", "size", "split", "polygamma")
_KEYWORDS = {"sum": ("axis", "keepdims"), "mean": ("axis", "keepdims")}

_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.Mod: "remainder",
    ast.FloorDiv: "floor_divide", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or", ast.BitXor: "bitwise_xor",
    ast.LShift: "left_shift", ast.RShift: "right_shift", ast.MatMult: "matmul",
}  # fmt: skip
_COMPARE: dict[type[ast.AST], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
_UNARY: dict[type[ast.AST], str] = {
    ast.USub: "neg", ast.UAdd: "", ast.Not: "logical_not", ast.Invert: "bitwise_not",
}  # fmt: skip
# What formulas are made of beside names and numbers, and what stands inside, in the order in which it is written.
_CHILDREN: dict[type[ast.AST], Callable[[Any], Sequence[ast.expr]]] = {
    ast.BinOp: lambda node: [node.left, node.right],
    ast.UnaryOp: lambda node: [node.operand],
    ast.BoolOp: lambda node: node.values,
    ast.Compare: lambda node: [node.left, *node.comparators],
    ast.IfExp: lambda node: [node.body, node.test, node.orelse],
    ast.Call: lambda node: node.args,
    ast.Tuple: lambda node: node.elts,
}
_ON_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "pow": lambda a, b: math.pow(a, b),
}  # fmt: skip


def functions() -> dict[str, Callable[..., Any]]:
    """What a formula may call, by name."""
    return {name: getattr(language, name) for name in language.__all__ if name not in _NOT_IN_FORMULAS}


def is_formula(text: str) -> bool:
    """Whether ``text`` is meant as a formula: no name of an op looks like it."""
    return any(symbol in text for symbol in "()+*<>=&|^~%@, ") or (":" not in text and any(c in text for c in "-/"))


def formula_op(text: str) -> FusedOp:
    """The op that a formula declares; its arguments are the formula's names, in order of appearance.

    Raises:
        DeclarationError: something that formulas do not have, and where it stands.
    """
    return FusedOp(Declaration.of(_Formula.parse(text), "formula"))


@dataclass(frozen=True)
class _Formula:
    """A parsed formula; called with a symbolic tensor per name, like the function of a declaration."""

    source: str
    root: ast.expr
    names: tuple[str, ...]

    __name__ = "formula"

    @classmethod
    def parse(cls, text: str) -> _Formula:
        text = text.strip()
        if len(text) > LONGEST:
            raise _refused(text[:40] + "...", f"a formula of {len(text)} characters", f"at most {LONGEST}")
        try:
            root = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError) as error:
            column = getattr(error, "offset", None)
            where = f", at character {column}" if column else ""
            given = f"{getattr(error, 'msg', error)}{where}"
            raise _refused(text, given, "an expression such as x * sigmoid(y) + b") from None
        except (RecursionError, MemoryError):
            raise _refused(text, "deeply nested parentheses", f"a depth of at most {DEEPEST}") from None
        names = _check(text, root)
        return cls(text, root, names)

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.names])

    def __call__(self, /, **values: Any) -> Any:
        root = self.root
        if isinstance(root, ast.Tuple):
            return tuple(_evaluate(item, values) for item in root.elts)
        return _evaluate(root, values)


def _refused(text: str, given: str, expected: str, fix: str = "see `fusegen list --functions`") -> DeclarationError:
    return DeclarationError(f'formula "{text}"', given=given, expected=expected, fix=fix)


# -- checking: before anything is computed ---------------------------------------------------------------------------


def _check(text: str, root: ast.expr) -> tuple[str, ...]:
    """Names of the tensors. Everything in the tree is on the whitelist when this returns."""
    names: dict[str, None] = {}
    for count, (node, depth) in enumerate(_nodes(root, 1), 1):
        if depth > DEEPEST or count > MOST_NODES:
            raise _refused(text, f"{count} operations, {depth} deep", f"at most {MOST_NODES}, {DEEPEST} deep")
        name = _check_node(text, node, node is root)
        if name is not None:
            names[name] = None
    if not names or len(names) > MOST_TENSORS:
        raise _refused(text, f"{len(names)} tensors", f"1 to {MOST_TENSORS} names of tensors")
    return tuple(names)


def _nodes(node: ast.expr, depth: int) -> Iterator[tuple[ast.expr, int]]:
    """The expressions below ``node``, left to right, as they are written; functions' names are no expressions."""
    yield node, depth
    if depth > DEEPEST:
        return
    for child in _CHILDREN.get(type(node), lambda _: [])(node):
        yield from _nodes(child, depth + 1)


def _operators(node: ast.AST) -> Sequence[ast.AST]:
    found = getattr(node, "op", None)
    return getattr(node, "ops", []) if found is None else [found]


def _check_node(text: str, node: ast.expr, at_root: bool) -> str | None:
    """The name of a tensor if the node is one; raises for what is not on the list."""
    if isinstance(node, ast.Constant):
        if not _is_number(node.value):
            raise _refused(text, f"the literal {ast.unparse(node)[:40]}", "numbers below 2^63, True and False")
        return None
    if isinstance(node, ast.Name):
        return _check_name(text, node.id)
    if isinstance(node, ast.Call):
        _check_call(text, node)
        return None
    operators = _operators(node)
    known = _BINARY.keys() | _UNARY.keys() | _COMPARE.keys() | {ast.And, ast.Or}
    in_place = at_root or not isinstance(node, ast.Tuple)
    if type(node) not in _CHILDREN or not in_place or any(type(operator) not in known for operator in operators):
        raise _refused(
            text, f"{ast.unparse(node)[:60]!r} ({type(node).__name__})",
            "names, numbers, + - * / ** % // @, comparisons, and/or/not, a if c else b, calls of the function table",
        )  # fmt: skip
    return None


def _is_number(value: Any) -> bool:
    return (isinstance(value, int) and value < 2**63) or (isinstance(value, float) and math.isfinite(value))


def _check_name(text: str, name: str) -> str | None:
    if name in CONSTANTS:
        return None
    if name in functions():
        raise _refused(text, f"the function {name} without arguments", f"{name}(...)", "rename the tensor, or call it")
    if not name.isascii() or name.startswith("_") or len(name) > 32:
        raise _refused(text, f"the name {name!r}", "a short ASCII name that starts with a letter", "rename it")
    return name


def _check_call(text: str, node: ast.Call) -> None:
    if not isinstance(node.func, ast.Name):
        raise _refused(text, f"a call of {ast.unparse(node.func)[:60]!r}", "a function's name before the parenthesis")
    name = node.func.id
    known = functions()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        fix = f"did you mean {near[0]}?" if near else "see `fusegen list --functions`"
        raise _refused(text, f"the function {name!r}", "a function of the table", fix)
    allowed = _KEYWORDS.get(name, ())
    for keyword in node.keywords:
        if keyword.arg not in allowed:
            given = f"{name}(..., {keyword.arg or '**'}=...)"
            raise _refused(text, given, f"keywords: {', '.join(allowed) or 'none'}")
        _literal(text, keyword.value)


def _literal(text: str, node: ast.expr) -> Any:
    """An axis, several of them, or a flag."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = node
    items = value if isinstance(value, tuple) else (value,)
    if value is not None and not all(isinstance(item, (bool, int)) for item in items):
        raise _refused(text, f"{ast.unparse(node)[:40]!r} as an option", "whole numbers, a tuple of them, a bool")
    return value


# -- meaning ---------------------------------------------------------------------------------------------------------


def _evaluate(node: ast.expr, values: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return CONSTANTS[node.id] if node.id in CONSTANTS else values[node.id]
    if isinstance(node, ast.BinOp):
        return _binary(_BINARY[type(node.op)], _evaluate(node.left, values), _evaluate(node.right, values))
    if isinstance(node, ast.UnaryOp):
        return _unary(_UNARY[type(node.op)], _evaluate(node.operand, values))
    if isinstance(node, ast.IfExp):
        parts = (node.test, node.body, node.orelse)
        return elementwise("where", *(_evaluate(part, values) for part in parts))
    if isinstance(node, ast.BoolOp):
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return _chain(name, [_evaluate(value, values) for value in node.values])
    if isinstance(node, ast.Compare):
        sides = [_evaluate(side, values) for side in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        return _chain("logical_and", [elementwise(_COMPARE[type(op)], a, b) for op, a, b in pairs])
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    options = {str(k.arg): _literal("", k.value) for k in node.keywords}
    args = [_evaluate(arg, values) for arg in node.args]
    if node.func.id in _KEYWORDS:
        options.update(zip(("axis", "keepdims"), [int(a) for a in args[1:]], strict=False))
        args = args[:1]
    function = functions()[node.func.id]
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        raise _refused(ast.unparse(node), str(error), f"{node.func.id}{inspect.Signature(plain)}") from None
    return function(*args, **options)


def _chain(name: str, items: list[Any]) -> Any:
    result = items[0]
    for item in items[1:]:
        result = elementwise(name, result, item)
    return result


def _unary(name: str, value: Any) -> Any:
    if not name:
        return value
    return -value if name == "neg" and isinstance(value, (int, float)) else elementwise(name, value)


def _binary(name: str, a: Any, b: Any) -> Any:
    """Numbers are folded here, in double precision and within bounds; everything else is traced."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and name in _ON_NUMBERS:
        try:
            result = _ON_NUMBERS[name](a, b)
        except (ArithmeticError, ValueError) as error:
            raise _refused(f"{a} {name} {b}", f"a constant that does not exist ({error})", "a finite number") from None
        return result if isinstance(result, float) or abs(result) < 2**63 else float(result)
    if name in ("pow", "matmul"):
        return getattr(language, name)(a, b)
    return elementwise(name, a, b)
