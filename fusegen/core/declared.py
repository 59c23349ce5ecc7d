"""A value whose gradient the user declared, and the Op which that gradient is.

    rounded = declared(round(x), x)

is what its first argument says. The others are what the op was called with, as far as its gradient concerns it: they
get that gradient, in place of what would be derived of the first. It is an Op of its own, which reads nothing but these
and cotangents, so the node carries it through every stage. Kernels know nothing of it (``plain``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache

from fusegen.core.ir import DECLARED, Call, Expr, Op, Operand, Ref, transform, walk
from fusegen.core.serialize import op_from_json, op_to_json
from fusegen.core.subexpressions import introduce_lets, live_reduces


@dataclass(frozen=True)
class Declared:
    """One float result of a call of an op whose gradient the user declared.

    Attributes:
        value: the result, as the op's function computes it.
        inputs: tensors, and behind them numbers, that the call was made with.
        gradient: its operands are the cotangents of the call's float results, then the tensors; its scalars the
            numbers.
        targets: for each of the gradient's outputs which input it is the gradient of.
        call: number of the call in its trace: of equal calls each has its own gradient, which need not be linear.
        result: position among the call's float results.
    """

    value: Expr
    inputs: tuple[Expr, ...]
    gradient: Op
    targets: tuple[int, ...]
    call: int
    result: int

    @classmethod
    def of(cls, node: Expr) -> Declared:
        """The result that ``node`` stands for."""
        assert is_declared(node) and isinstance(node, Call)
        value, *inputs = node.args
        return cls(value, tuple(inputs), *_parsed(node.detail))

    @property
    def node(self) -> Call:
        detail = json.dumps([op_to_json(self.gradient), self.targets, self.call, self.result])
        return Call(DECLARED, (self.value, *self.inputs), self.value.dtype, detail)

    @property
    def cotangents(self) -> tuple[Operand, ...]:
        """The gradient's operands that are cotangents, in order of the call's float results."""
        tensors = len(self.inputs) - len(self.gradient.scalars)
        return self.gradient.operands[: len(self.gradient.operands) - tensors]

    def placeholders(self) -> dict[Expr, Expr]:
        """What the gradient calls the inputs, to what they are."""
        tensors = self.gradient.operands[len(self.cotangents) :]
        own = [*(tensor.ref for tensor in tensors), *(number.ref for number in self.gradient.scalars)]
        return dict(zip(own, self.inputs, strict=True))


@lru_cache(maxsize=4096)
def _parsed(detail: str) -> tuple[Op, tuple[int, ...], int, int]:
    text, targets, call, result = json.loads(detail)
    return op_from_json(text), tuple(targets), call, result


def is_declared(node: Expr) -> bool:
    """Whether ``node`` is a value with a declared gradient."""
    return isinstance(node, Call) and node.function == DECLARED


def declared_calls(op: Op) -> list[Declared]:
    """The results with a declared gradient that ``op`` has or reads."""
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    return [Declared.of(node) for node in nodes if is_declared(node)]


def differentiated(node: Expr) -> tuple[Expr, ...]:
    """The children that a gradient may flow into."""
    return node.children[1:] if is_declared(node) else node.children


@lru_cache(maxsize=1024)
def plain(op: Op) -> Op:
    """``op`` as it is computed, without the gradients that were declared for parts of it."""
    reduces, outputs = op.expand()
    if not any(is_declared(node) for node in walk([item.expr for item in (*reduces, *outputs)])):
        return op
    values: dict[Expr, Expr] = {}
    found: dict[object, Ref] = {}

    def rule(node: Expr) -> Expr:
        return node.children[0] if is_declared(node) else values.get(node, node)

    def rewritten(expr: Expr) -> Expr:
        return transform([expr], rule)[expr]

    kept = []
    for reduce in reduces:  # calls that differ in nothing but what becomes of their gradients are one
        made = replace(reduce, expr=rewritten(reduce.expr))
        values[reduce.ref] = found.setdefault((made.kind, made.expr, made.over), made.ref)
        kept += [made] if values[reduce.ref] is made.ref else []
    outputs = [replace(output, expr=rewritten(output.expr)) for output in outputs]
    names = {rewritten(expr): name for expr, name in op.names().items()}
    names = {expr: name for expr, name in names.items() if isinstance(expr, Call)}
    taken = {thing.name for thing in (*op.operands, *op.scalars, *outputs)}
    statements, bound = introduce_lets(live_reduces(kept, outputs), outputs, names, taken)
    return op.with_statements(statements, bound)
