"""How ops and expressions read as text: the same notation a declaration uses. For people, and for digests."""

from __future__ import annotations

from zlib import crc32

from fusegen.core.ir import (
    Call,
    Const,
    Expr,
    Factor,
    Index,
    Let,
    Op,
    Operand,
    Output,
    Place,
    Reduce,
    Ref,
    Scalar,
    Size,
    Tensorlike,
)

_INFIX = {
    "add": ("+", 6), "sub": ("-", 6), "mul": ("*", 7), "div": ("/", 7),
    "lt": ("<", 3), "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3), "eq": ("==", 3), "ne": ("!=", 3),
    "logical_and": ("and", 2), "logical_or": ("or", 1), "bitwise_and": ("&", 5), "bitwise_or": ("|", 4),
    "bitwise_xor": ("^", 4), "left_shift": ("<<", 5), "right_shift": (">>", 5),
}  # fmt: skip
_ATOM = 10


def expr_text(expr: Expr) -> str:
    """An expression with the fewest parentheses: ``x + w * (y - x)``."""
    return _print(expr)[0]


# Nodes up to which an expression is ordered by its text: that of shared expressions has a piece for each path to them.
LONGEST_ORDERED = 200


class Order:
    """Keys that order expressions by length and then by text; long ones by size, and a digest of what they say."""

    def __init__(self) -> None:
        self.known: dict[Expr, tuple[int, int]] = {}  # nodes, each counted once for each path to it; digest

    def __call__(self, expr: Expr) -> tuple[int, int, str]:
        size, digest = self._measured(expr)
        if size > LONGEST_ORDERED:
            return 1, size, f"{digest:08x}"
        text = expr_text(expr)
        return 0, len(text), text

    def _measured(self, root: Expr) -> tuple[int, int]:
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [child for child in node.children if child not in self.known]
            if missing and node not in self.known:
                stack += missing
                continue
            stack.pop()
            if node not in self.known:
                own = f"{node.function} {node.detail_text}" if isinstance(node, Call) else _print(node)[0]
                inner = [self.known[child] for child in node.children]
                text = f"{own} {node.dtype} {[digest for _, digest in inner]}"
                self.known[node] = 1 + sum(size for size, _ in inner), crc32(text.encode())
        return self.known[root]


def _print(expr: Expr) -> tuple[str, int]:
    if isinstance(expr, Const):
        text = number_text(expr)
        return text, 8 if text.startswith("-") else _ATOM
    if isinstance(expr, Ref):
        return (f"index({', '.join(expr.axes)})" if isinstance(expr, Place) else expr.name), _ATOM
    if isinstance(expr, Size):
        return expr.axis.upper(), _ATOM
    if isinstance(expr, Index):
        return f"index({expr.axis})", _ATOM
    assert isinstance(expr, Call)
    if expr.function in _INFIX:
        symbol, level = _INFIX[expr.function]
        left, right = (_print(arg) for arg in expr.args)
        return f"{_wrap(left, level)} {symbol} {_wrap(right, level + 1)}", level
    if expr.function == "neg":
        return "-" + _wrap(_print(expr.args[0]), 8), 7
    if expr.function == "powi":
        return f"{_wrap(_print(expr.args[0]), _ATOM)}^{expr.detail}", 9
    args = [_print(arg)[0] for arg in expr.args]
    if isinstance(expr, Factor):
        moved = [f"{own} -> {new}" for own, new in expr.renames]
        return ", ".join([*args, *moved]).join(("factor(", ")")), _ATOM
    if expr.computed_of != expr.args:  # a declared gradient: its gradient is not what it computes
        return f"declared({args[0]})", _ATOM
    if expr.function == "cast":
        return f"{expr.detail or expr.dtype}({args[0]})", _ATOM
    if expr.detail is not None:
        args.insert(0, expr.detail_text)
    return f"{expr.function}({', '.join(args)})", _ATOM


def _wrap(printed: tuple[str, int], least: int) -> str:
    text, level = printed
    return text if level >= least else f"({text})"


def number_text(expr: Const) -> str:
    """Shortest text that reads back as the same number; whole floats without the trailing ``.0``."""
    text = repr(expr.value)
    return text[:-2] if expr.dtype.is_float and text.endswith(".0") else text


def shape_text(shape: tuple[str | None, ...]) -> str:
    """``[D0, 1, D3]``."""
    return "[" + ", ".join(axis.upper() if axis else "1" for axis in shape) + "]"


def _thing_text(thing: Operand | Scalar) -> str:
    if isinstance(thing, Scalar):
        return f"{thing.name}: {thing.dtype}"
    return f"{thing.name}: {thing.dtype}{shape_text(thing.shape)}{_place_text(thing, ' = ')}"


def _place_text(thing: Tensorlike, sign: str) -> str:
    """Where a thing lies in a tensor that it is not as it is."""
    packed = thing.packed
    found = f"{sign}{packed.base}, part {packed.index} of {packed.count} along dimension {packed.dim}" if packed else ""
    for groups in thing.groups:
        found += f", dimension {groups.dim} in groups of {' x '.join(map(str, groups.counts))}"
    return found


def output_text(output: Output) -> str:
    """``name = expression : dtype[shape]``."""
    where = _place_text(output, " -> ")
    return f"{output.name} = {expr_text(output.expr)} : {output.dtype}{shape_text(output.shape)}{where}"


def op_text(op: Op) -> str:
    """The op as a page of notation; two ops with the same text compute the same function."""
    lines = [f"{op.name}, {op.label}"]
    lines += [f"  in   {_thing_text(thing)}" for thing in op.operands]
    lines += [f"  in   {_thing_text(thing)}" for thing in op.scalars]
    for statement in op.statements:
        if isinstance(statement, Let):
            lines.append(f"  let  {statement.name} = {expr_text(statement.expr)} : {statement.expr.dtype}")
        else:
            lines.append(f"  red  {reduce_text(statement)} : {statement.expr.dtype}")
    lines += [f"  out  {output_text(output)}" for output in op.outputs]
    return "\n".join(lines)


def reduce_text(reduce: Reduce) -> str:
    """``name = sum[d1](expression)``."""
    return f"{reduce.name} = {reduce.kind}[{', '.join(reduce.over)}]({expr_text(reduce.expr)})"
