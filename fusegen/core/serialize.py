"""Ops as JSON and back: what is kept on disk between processes, and what digests are taken of.

Expressions are written as a table in which each node refers to earlier ones, so that shared subexpressions stay shared
and the text is as long as the op, not as long as its tree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from fusegen.core.declared import Declared
from fusegen.core.dtypes import BY_NAME
from fusegen.core.ir import (
    Call,
    Const,
    Detail,
    Expr,
    Factor,
    Groups,
    Index,
    Let,
    Op,
    Operand,
    Output,
    PackedBlock,
    Reduce,
    Ref,
    Scalar,
    Size,
    Tensorlike,
    walk,
)
from fusegen.core.regroupable import Regroupable, regroupable
from fusegen.core.within import Within


def op_to_json(op: Op) -> str:
    """Text from which ``op_from_json`` makes an equal op (without its docstring)."""
    return json.dumps(_data(op), separators=(",", ":"))


def _table(roots: Iterable[Expr]) -> tuple[dict[Expr, int], list[Any]]:
    """The place of each expression in a table, and the rows of that table."""
    table: dict[Expr, int] = {}
    rows: list[Any] = []
    for node in walk(roots):
        table[node] = len(rows)
        rows.append(_row(node, table))
    return table, rows


def _data(op: Op) -> dict[str, Any]:
    table, rows = _table(item.expr for item in (*op.statements, *op.outputs))
    return {
        "name": op.name,
        "label": op.label,
        "result": op.result,
        "declared": op.declared,
        "expressions": rows,
        "operands": [_operand_row(o) for o in op.operands],
        "scalars": [[s.name, s.dtype.name] for s in op.scalars],
        "statements": [
            ["let", s.name, table[s.expr]] if isinstance(s, Let) else ["reduce", s.name, table[s.expr], s.kind, s.over]
            for s in op.statements
        ],
        "outputs": [
            [o.name, table[o.expr], o.dtype.name, o.shape, _block(o.packed), _groups(o), o.kept] for o in op.outputs
        ],
    }


def _operand_row(operand: Operand) -> list[Any]:
    least = None if operand.least == -math.inf else operand.least
    return [operand.name, operand.dtype.name, operand.shape, _block(operand.packed), _groups(operand), least]


def _row(node: Expr, table: dict[Expr, int]) -> list[Any]:
    if isinstance(node, Const):
        return ["c", repr(node.value), node.dtype.name]
    if isinstance(node, Ref):
        return ["r", node.name, node.dtype.name]
    if isinstance(node, Size):
        return ["s", node.axis]
    if isinstance(node, Index):
        return ["i", node.axis]
    if isinstance(node, Factor):
        return ["x", table[node.expr], node.stored.name, node.renames]
    if isinstance(node, Declared):
        return ["d", [table[arg] for arg in node.args], _data(node.gradient), node.targets, node.call, node.result]
    assert isinstance(node, Call)
    if isinstance(node, Within):
        return ["w", [table[arg] for arg in node.args], *node.site]
    if isinstance(node, Regroupable):
        return ["p", node.function, *(table[arg] for arg in node.args)]
    return ["f", node.function, [table[arg] for arg in node.args], node.dtype.name, node.detail_text]


def _block(block: PackedBlock | None) -> list[Any] | None:
    return [block.base, block.dim, block.index, block.count] if block else None


def _groups(thing: Tensorlike) -> list[Any]:
    return [[groups.dim, *groups.counts] for groups in thing.groups]


def op_from_json(text: str) -> Op:
    """The op that ``op_to_json`` wrote.

    Raises:
        ValueError, KeyError, TypeError, IndexError: the text is not that of an op.
    """
    return _op(json.loads(text))


def saved_to_json(saved: Sequence[tuple[Expr, Operand]]) -> str:
    """Text from which ``saved_from_json`` makes the same: what a forward saves, and in which tensors."""
    table, rows = _table(expr for expr, _ in saved)
    pairs = [[table[expr], _operand_row(operand)] for expr, operand in saved]
    return json.dumps({"expressions": rows, "saved": pairs}, separators=(",", ":"))


def saved_from_json(text: str) -> tuple[tuple[Expr, Operand], ...]:
    """The inverse of ``saved_to_json``."""
    data = json.loads(text)
    exprs = _exprs(data["expressions"])
    return tuple((exprs[at], _operand(row)) for at, row in data["saved"])


def _exprs(rows: list[Any]) -> list[Expr]:
    exprs: list[Expr] = []
    for row in rows:
        exprs.append(_expr(row, exprs))
    return exprs


def _operand(row: list[Any]) -> Operand:
    name, dtype, shape, block, groups, least = row
    known = -math.inf if least is None else least
    return Operand(name, BY_NAME[dtype], tuple(shape), _to_block(block), _to_groups(groups), known)


def _op(data: dict[str, Any]) -> Op:
    exprs = _exprs(data["expressions"])
    operands = tuple(map(_operand, data["operands"]))
    statements = tuple(
        Let(s[1], exprs[s[2]]) if s[0] == "let" else Reduce(s[1], s[3], exprs[s[2]], tuple(s[4]))
        for s in data["statements"]
    )
    outputs = tuple(
        Output(n, exprs[e], BY_NAME[d], tuple(shape), _to_block(p), _to_groups(g), kept)
        for n, e, d, shape, p, g, kept in data["outputs"]
    )
    scalars = tuple(Scalar(n, BY_NAME[d]) for n, d in data["scalars"])
    return Op(data["name"], data["label"], operands, scalars, statements, outputs, data["result"], data["declared"])


def _expr(row: list[Any], exprs: list[Expr]) -> Expr:
    kind = row[0]
    if kind == "c":
        return Const(row[1], BY_NAME[row[2]])
    if kind == "r":
        return Ref(row[1], BY_NAME[row[2]])
    if kind == "s":
        return Size(row[1])
    if kind == "i":
        return Index(row[1])
    if kind == "x":
        return Factor(exprs[row[1]], BY_NAME[row[2]], tuple((own, new) for own, new in row[3]))
    if kind == "d":
        return Declared(tuple(exprs[i] for i in row[1]), _op(row[2]), tuple(row[3]), row[4], row[5])
    if kind == "w":
        return Within(tuple(exprs[i] for i in row[1]), row[2], row[3], row[4])
    if kind == "p":
        return regroupable(row[1], exprs[row[2]], exprs[row[3]])
    return Call(row[1], tuple(exprs[i] for i in row[2]), BY_NAME[row[3]], _detail(str(row[4])))


def _detail(text: str) -> Detail:
    return (int(text) if text.isdecimal() else BY_NAME.get(text, text)) if text else None


def _to_block(block: list[Any] | None) -> PackedBlock | None:
    return PackedBlock(*block) if block else None


def _to_groups(groups: list[list[int]]) -> tuple[Groups, ...]:
    return tuple(Groups(dim, tuple(counts)) for dim, *counts in groups)
