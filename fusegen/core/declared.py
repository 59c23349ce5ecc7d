"""A value whose gradient the user declared, and the Op which that gradient is.

    rounded = declared(round(x), x)

is what its first argument says. The others are what the op was called with, as far as its gradient concerns it: they
get that gradient, in place of what would be derived of the first. It is an Op of its own, which reads nothing but these
and cotangents, so the node carries it through every stage. Kernels know nothing of it (``without_declared_gradients``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fusegen.core.ir import Call, Expr, Op, Operand, Ref, transform, walk
from fusegen.core.subexpressions import introduce_lets, live_reduces


class Recorded(Call):
    """One float result of a call that is being traced: what it reads of the call's inputs is not known yet.

    Attributes:
        call: number of the call in its trace.
        result: position among the call's float results.
    """

    __slots__ = ("call", "result")
    call: int
    result: int

    def __new__(cls, args: tuple[Expr, ...], call: int, result: int) -> Recorded:
        return Expr.__new__(cls, args, call, result)  # type: ignore[return-value]

    def _fill(self, args: tuple[Expr, ...], call: int, result: int) -> None:  # type: ignore[override]
        self.call, self.result = call, result
        super()._fill("declared", args, args[0].dtype, None)
        self.computed_of = args[:1]

    @property
    def detail_text(self) -> str:
        return f"{self.call} {self.result}"

    def of(self, args: tuple[Expr, ...]) -> Recorded:
        return Recorded(args, self.call, self.result)


class Declared(Call):
    """One float result of a call of an op whose gradient the user declared.

    Attributes:
        args: the result, as the op's function computes it, and the ``inputs``.
        gradient: its operands are the cotangents of the call's float results, then the tensors; its scalars the
            numbers.
        targets: for each of the gradient's outputs which input it is the gradient of.
        call: number of the call in its trace: of equal calls each has its own gradient, which need not be linear.
        result: position among the call's float results.
    """

    __slots__ = ("call", "gradient", "result", "targets")
    gradient: Op
    targets: tuple[int, ...]
    call: int
    result: int

    def __new__(
        cls, args: tuple[Expr, ...], gradient: Op, targets: tuple[int, ...], call: int, result: int
    ) -> Declared:  # fmt: skip
        return Expr.__new__(cls, args, gradient, targets, call, result)  # type: ignore[return-value]

    def _fill(  # type: ignore[override]
        self, args: tuple[Expr, ...], gradient: Op, targets: tuple[int, ...], call: int, result: int
    ) -> None:  # fmt: skip
        self.gradient, self.targets, self.call, self.result = gradient, targets, call, result
        super()._fill("declared", args, args[0].dtype, None)
        self.computed_of = args[:1]

    @property
    def detail_text(self) -> str:
        return f"{self.gradient.name} {self.call} {self.result}"

    @property
    def value(self) -> Expr:
        """The result, as the op's function computes it."""
        return self.args[0]

    @property
    def inputs(self) -> tuple[Expr, ...]:
        """Tensors, and behind them numbers, that the call was made with."""
        return self.args[1:]

    def of(self, args: tuple[Expr, ...]) -> Declared:
        return Declared(args, self.gradient, self.targets, self.call, self.result)

    def with_gradient(self, gradient: Op) -> Declared:
        """The same with another gradient."""
        return Declared(self.args, gradient, self.targets, self.call, self.result)

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


def declared_calls(op: Op) -> list[Declared]:
    """The results with a declared gradient that ``op`` has or reads."""
    nodes = walk([item.expr for item in (*op.statements, *op.outputs)])
    return [node for node in nodes if isinstance(node, Declared)]


def differentiated(node: Expr) -> tuple[Expr, ...]:
    """The children that a gradient may flow into."""
    return node.inputs if isinstance(node, Declared) else node.children


@lru_cache(maxsize=1024)
def without_declared_gradients(op: Op) -> Op:
    """``op`` as it is computed, without the gradients that were declared for parts of it."""
    reduces, outputs = op.expand()
    if not any(isinstance(node, Declared) for node in walk([item.expr for item in (*reduces, *outputs)])):
        return op
    values: dict[Expr, Expr] = {}
    found: dict[object, Ref] = {}

    def rule(node: Expr) -> Expr:
        return node.value if isinstance(node, Declared) else values.get(node, node)

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
