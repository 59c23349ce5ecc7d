"""What is legal after each stage that makes an Op. Runs on every compile: a stage that breaks its contract fails here,
by name, before its mistake becomes a wrong number or an error of the C++ compiler."""

from __future__ import annotations

from fusegen.core import dtypes
from fusegen.core.declared import Declared
from fusegen.core.errors import LegalityError
from fusegen.core.ir import (
    DOT,
    LOCATED,
    RECURRENCE,
    SCAN,
    SCANNED,
    Axes,
    Call,
    Expr,
    Factor,
    Index,
    Op,
    Operand,
    Output,
    Reduce,
    Ref,
    Scalar,
    own_size,
    walk,
)
from fusegen.core.monoids import BY_KIND
from fusegen.core.scans import SEGMENTS, parts
from fusegen.core.views import dims_of
from fusegen.declare.table import Kind, lookup

_TRUTHS = (Kind.COMPARE, Kind.PREDICATE, Kind.LOGICAL)


def check_op(op: Op) -> None:
    """Names are unique and defined before use; functions get as many arguments as they take, of dtypes that agree;
    reductions reduce axes that exist; outputs have the axes and the dtype of their expressions; declared gradients are
    ops that are legal as well.

    Raises:
        LegalityError: one of these does not hold: a bug in fusegen.
    """
    _Check(op).run()


class _Check:
    """One op under examination."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.seen: set[Expr] = set()
        self.known: dict[str, Expr] = {operand.name: operand.ref for operand in op.operands}
        self.known |= {scalar.name: scalar.ref for scalar in op.scalars}
        self.varying = {operand.name: frozenset(filter(None, operand.shape)) for operand in op.operands}
        self.varying |= {scalar.name: frozenset() for scalar in op.scalars}
        self.axes = {axis for thing in (*op.operands, *op.outputs) for axis in thing.shape if axis}

    def run(self) -> None:
        op = self.op
        unique = len(self.known) == len(op.operands) + len(op.scalars)
        self.require(unique, "two arguments of one name", str(list(self.known)))
        for operand in op.operands:
            self._shape(operand)
        along = Axes(self.varying)
        for statement in op.statements:
            self._expr(statement.expr, statement if isinstance(statement, Reduce) else None)
            self.require(statement.name not in self.known, "a name defined twice", statement.name)
            axes = along.of(statement.expr)
            if isinstance(statement, Reduce):
                self._reduce(statement, axes)
                axes -= set(statement.over)
            self.known[statement.name], self.varying[statement.name] = statement.ref, axes
            self.axes |= axes  # a product's result may have some that no tensor has
        self._outputs(along)

    def require(self, holds: bool, what: str, given: str) -> None:
        """Raise what the contract says if it does not hold."""
        if not holds:
            raise LegalityError(
                f"{self.op.name}, {self.op.label}", given=f"{what} ({given})",
                expected="what declare/check.py lists", fix="this is a bug in fusegen: please report the declaration",
            )  # fmt: skip

    def _shape(self, thing: Operand | Output) -> None:
        own = [axis for axis in thing.shape if axis]
        self.require(len(set(own)) == len(own), "a tensor with one axis twice", f"{thing.name}: {own}")
        dims = dims_of(thing)
        for groups in thing.groups:
            numbers = [axis for axis, dim in zip(thing.shape, dims, strict=True) if dim == groups.dim][:-1]
            alike = [axis is None for axis in numbers] == [count == 1 for count in groups.counts]
            self.require(alike, "groups that are no dimensions, or one that is", f"{thing.name}: {groups}")

    def _outputs(self, along: Axes) -> None:
        outputs = self.op.outputs
        self.require(len({o.name for o in outputs}) == len(outputs), "two results of one name", str(outputs))
        for output in outputs:
            self._shape(output)
            self._expr(output.expr, None)
            extra = along.of(output.expr) - {a for a in output.shape if a}
            self.require(not extra, "an output that lacks an axis of its expression", f"{output.name}: {sorted(extra)}")
            given = output.expr.dtype
            self.require(given is output.dtype.compute, "an output of another dtype", f"{output.name}: {given}")
            blocks = [o.packed for o in outputs if o.packed and output.packed and o.packed.base == output.packed.base]
            alike = len({(b.dim, b.count) for b in blocks}) <= 1  # not all: steps of an op may write some each
            apart = len({b.index for b in blocks}) == len(blocks)
            self.require(alike and apart, "a packed result of blocks of two kinds, or written twice", output.name)

    def _reduce(self, reduce: Reduce, axes: frozenset[str]) -> None:
        kind, over, expr = reduce.kind, set(reduce.over), reduce.expr
        self.require(kind in BY_KIND, "a reduction of an unknown kind", kind)
        self.require(len(over) == len(reduce.over), "an axis reduced twice", f"{reduce.name}: {reduce.over}")
        missing = over - axes
        self.require(not missing, "a reduction over an axis that its expression lacks", f"{reduce.name}: {missing}")
        if BY_KIND[kind].partner:
            self.require(expr.dtype.is_float, "a reduction of floats of another dtype", f"{reduce.name}: {expr.dtype}")
        if kind == DOT:
            sides = expr.children if isinstance(expr, Call) and expr.function == "mul" else ()
            both = len(sides) == 2 and all(isinstance(s, Factor) for s in sides)
            self.require(both, "a product of other than two factors", reduce.name)

    def _expr(self, root: Expr, reduce: Reduce | None) -> None:
        for node in walk([root], self.seen):
            self.seen.add(node)
            if node.dtype is not node.dtype.compute:
                self.require(False, "a value of a dtype that nothing is computed in", repr(node))
            if isinstance(node, Ref):
                found = self.known.get(node.name) is node
                self.require(found, "a name that is not defined, or with another dtype", node.name)
            elif isinstance(node, Index) and self.op.is_declared:
                # To derived ops sizes are handed over as numbers: the gradient of w * mean(x) by w does not read x.
                has_size = node.axis in self.axes or own_size(node.axis) is not None
                self.require(has_size, "an axis that no operand has", node.axis)
            elif isinstance(node, Call):
                self._call(node, root, reduce)

    def _declared(self, marked: Declared) -> None:
        """A declared gradient is an op, which reads cotangents and stand-ins for the inputs, each once."""
        gradient, count = marked.gradient, len(marked.inputs)
        check_op(gradient)
        arguments: list[Operand | Scalar] = [*gradient.operands, *gradient.scalars]
        own = arguments[len(arguments) - count :]
        alike = count <= len(arguments) and all(
            thing.ref.dtype is given.dtype for thing, given in zip(own, marked.inputs, strict=True)
        )
        self.require(alike, "a declared gradient of other inputs", gradient.name)
        self.require(marked.result < len(arguments) - count, "a result without a cotangent", gradient.name)
        distinct = len(set(marked.targets)) == len(marked.targets) == len(gradient.outputs)
        within = all(0 <= target < count for target in marked.targets)
        self.require(distinct and within, "declared gradients of other than the inputs", gradient.name)
        self.require(marked.value.dtype.is_float, "a gradient of what has none", str(marked.value.dtype))

    @staticmethod
    def _is_scanned(node: Call) -> bool:
        """Whether a scan takes what its combination has, at positions."""
        how = parts(node).how
        *values, position = node.args
        return (
            isinstance(position, Index)
            and len(values) == how.operands
            and how.dtype(values[-1].dtype) is node.dtype
            and values[0].dtype is (dtypes.bool_ if how.combine == SEGMENTS else values[-1].dtype)
        )

    def _call(self, node: Call, root: Expr, reduce: Reduce | None) -> None:
        if isinstance(node, Declared):
            self._declared(node)
            return
        row, dtypes_of = lookup(node.function), [arg.dtype for arg in node.args]
        what = f"{node.function} of {', '.join(map(str, dtypes_of)) or 'nothing'} as {node.dtype}"
        self.require(len(node.args) == row.arity, "a call with another number of arguments", what)
        if isinstance(node, Factor) or node.function in (LOCATED, SCANNED, RECURRENCE):
            is_product = reduce is not None and reduce.kind == DOT and node in root.children
            is_place = reduce is not None and BY_KIND[reduce.kind].located and node is root
            is_scan = reduce is not None and reduce.kind == SCAN and node is root and self._is_scanned(node)
            self.require(is_product or is_place or is_scan, "what only a reduction reads, elsewhere", what)
        elif row.kind is Kind.CAST:
            self.require(
                node.detail is None or (node.dtype.is_float and dtypes_of[0].is_float), "a rounding cast", what
            )
        elif row.kind is Kind.SELECT:
            holds = dtypes_of[0] is dtypes.bool_ and all(dtype is node.dtype for dtype in dtypes_of[1:])
            self.require(holds, "a select between dtypes, or by other than a bool", what)
        elif row.kind is Kind.DRAW:
            holds = all(dtype is dtypes.int64 for dtype in dtypes_of) and node.dtype is row.draws
            self.require(holds, "a random number of other than integers", what)
        elif row.kind in _TRUTHS:
            alike = len(set(dtypes_of)) == 1 and (row.kind is not Kind.LOGICAL or dtypes_of[0] is dtypes.bool_)
            self.require(alike and node.dtype is dtypes.bool_, "a comparison of dtypes that differ", what)
        else:
            self.require(all(dtype is node.dtype for dtype in dtypes_of), "a call whose dtypes differ", what)
            self.require(row.kind is not Kind.FLOAT or node.dtype.is_float, "a function of floats on others", what)
