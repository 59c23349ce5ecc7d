"""The grammar every stage takes and gives.

An expression is scalar arithmetic over named things; it says nothing about shapes. The *named things* carry axes:
an operand that lacks an axis is broadcast along it, a reduction removes axes. So broadcasting needs no nodes.

    Expr      = Const(value) | Ref(name) | Size(axis) | Index(axis) | Call(function, args)
    Statement = Let(name, expr) | Reduce(name, kind, expr, over)
    Op        = operands, scalars, statements, outputs

What a call carries beside its arguments makes it a class of its own: `Factor`, and `Declared` in core/declared.

Expressions are not sympy expressions on purpose. Sympy computes with real numbers: it turns ``x * 0`` into ``0`` and
``exp(a) * exp(b)`` into ``exp(a + b)``, reorders sums and distributes products, each of which changes what a float
program answers at NaN, at infinity or in the last bit. What the user wrote is kept as written; sympy is asked for
derivatives (derive/symbolic), where an algebra system belongs.

Expressions are interned: equal expressions are one object, so equality is identity, hashing is constant time and a
common subexpression is simply an object that is used twice. Rewrites take them apart with ``match``:
``Call("mul", (Const(c), x))``.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard
from weakref import WeakValueDictionary

from fusegen.core import dtypes, locks
from fusegen.core.dtypes import DType

Number = bool | int | float
# What a function needs beside its arguments.
Detail = int | str | DType | None

_interned: WeakValueDictionary[tuple[Any, ...], Expr] = WeakValueDictionary()
_intern_lock = locks.lock()


class Expr:
    """A scalar expression. ``dtype`` is the *compute* dtype of its value: never a half type.

    The operators build expressions among values of one dtype (a Python number takes the other side's); promotion
    between dtypes is the tracer's business (declare/value).
    """

    # Every walk asks every node for its children, so they are no property. ``computed_of`` are those that its value is
    # computed of: not what else a declared gradient is one for.
    __slots__ = ("__weakref__", "_key", "_refs", "children", "computed_of", "dtype")
    dtype: DType
    children: tuple[Expr, ...]
    computed_of: tuple[Expr, ...]
    _key: tuple[Any, ...]
    _refs: tuple[Ref, ...] | None

    def __new__(cls, *key: Any) -> Expr:
        full = (cls, *key)
        with _intern_lock:
            found = _interned.get(full)
            if found is None:
                found = object.__new__(cls)
                found._key, found._refs = full, None
                found.children = found.computed_of = ()
                found._fill(*key)
                _interned[full] = found
            return found

    def _fill(self, *key: Any) -> None:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return self._key[0], self._key[1:]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._key[1:]!r}"

    def _lift(self, other: Expr | Number) -> Expr:
        return other if isinstance(other, Expr) else const(other, self.dtype)

    def __add__(self, other: Expr | Number) -> Expr:
        return call("add", self, self._lift(other), dtype=self.dtype)

    def __radd__(self, other: Number) -> Expr:
        return call("add", self._lift(other), self, dtype=self.dtype)

    def __sub__(self, other: Expr | Number) -> Expr:
        return call("sub", self, self._lift(other), dtype=self.dtype)

    def __rsub__(self, other: Number) -> Expr:
        return call("sub", self._lift(other), self, dtype=self.dtype)

    def __mul__(self, other: Expr | Number) -> Expr:
        return call("mul", self, self._lift(other), dtype=self.dtype)

    def __rmul__(self, other: Number) -> Expr:
        return call("mul", self._lift(other), self, dtype=self.dtype)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return call("div", self, self._lift(other), dtype=self.dtype)

    def __rtruediv__(self, other: Number) -> Expr:
        return call("div", self._lift(other), self, dtype=self.dtype)

    def __neg__(self) -> Expr:
        return call("neg", self, dtype=self.dtype)


class Const(Expr):
    """A literal. Two literals are the same only if they print the same: 0.0 and -0.0 differ, NaN equals itself."""

    __slots__ = ("value",)
    __match_args__ = ("value",)
    value: Number

    def __new__(cls, text: str, dtype: DType) -> Const:
        return Expr.__new__(cls, text, dtype)  # type: ignore[return-value]

    def _fill(self, text: str, dtype: DType) -> None:
        self.dtype = dtype
        if dtype.category is dtypes.Category.FLOAT:
            self.value = float(text)
        else:
            self.value = text == "True" if dtype is dtypes.bool_ else int(text)


class Ref(Expr):
    """The value of an operand, scalar, let or reduction at the current point of the iteration space."""

    __slots__ = ("name",)
    __match_args__ = ("name",)
    name: str

    def __new__(cls, name: str, dtype: DType) -> Ref:
        return Expr.__new__(cls, name, dtype)  # type: ignore[return-value]

    def _fill(self, name: str, dtype: DType) -> None:
        self.name, self.dtype = name, dtype


class Place(Ref):
    """The position along an axis, or in the tensor that several make up, slow to fast: what kernels read."""

    __slots__ = ("axes",)
    axes: tuple[str, ...]

    def __new__(cls, *axes: str) -> Place:
        return Expr.__new__(cls, *axes)  # type: ignore[return-value]

    def _fill(self, *axes: str) -> None:  # type: ignore[override]
        super()._fill("_".join(["@index", *axes]), dtypes.int64)
        self.axes = axes


class Size(Expr):
    """The number of elements along an axis, known at launch."""

    __slots__ = ("axis",)
    axis: str

    def __new__(cls, axis: str) -> Size:
        return Expr.__new__(cls, axis)  # type: ignore[return-value]

    def _fill(self, axis: str) -> None:
        self.axis, self.dtype = axis, dtypes.int64


class Index(Expr):
    """The position along an axis, from 0."""

    __slots__ = ("axis",)
    axis: str

    def __new__(cls, axis: str) -> Index:
        return Expr.__new__(cls, axis)  # type: ignore[return-value]

    def _fill(self, axis: str) -> None:
        self.axis, self.dtype = axis, dtypes.int64


class Call(Expr):
    """A row of the function table applied to arguments; ``cast`` is the row that only changes the dtype.

    ``detail`` is what the row needs beside its arguments: the half type that a cast rounds to, the exponent of an
    integer power, the order of a polygamma, what a scan combines how.
    """

    __slots__ = ("args", "detail", "function")
    __match_args__ = ("function", "args")
    function: str
    args: tuple[Expr, ...]
    detail: Detail

    def __new__(cls, function: str, args: tuple[Expr, ...], dtype: DType, detail: Detail = None) -> Call:
        return Expr.__new__(cls, function, args, dtype, detail)  # type: ignore[return-value]

    def _fill(self, function: str, args: tuple[Expr, ...], dtype: DType, detail: Detail) -> None:
        self.function, self.args, self.dtype, self.detail = function, args, dtype, detail
        self.children = self.computed_of = args

    @property
    def detail_text(self) -> str:
        """What tells calls of one function with the same arguments apart, as text."""
        return "" if self.detail is None else str(self.detail)

    def of(self, args: tuple[Expr, ...]) -> Call:
        """The same of other arguments."""
        return Call(self.function, args, self.dtype, self.detail)


class Factor(Call):
    """One side of a matrix product (core/products).

    Attributes:
        expr: what it is, in axes of its own.
        stored: the dtype that the product reads it in.
        renames: pairs of an own axis and what the product calls it; other axes keep their names.
    """

    __slots__ = ("renames", "stored")
    stored: DType
    renames: tuple[tuple[str, str], ...]

    def __new__(cls, expr: Expr, stored: DType, renames: tuple[tuple[str, str], ...] = ()) -> Factor:
        return Expr.__new__(cls, expr, stored, renames)  # type: ignore[return-value]

    def _fill(self, expr: Expr, stored: DType, renames: tuple[tuple[str, str], ...]) -> None:  # type: ignore[override]
        self.stored, self.renames = stored, renames
        super()._fill("factor", (expr,), expr.dtype, None)

    @property
    def detail_text(self) -> str:
        return " ".join([self.stored.name, *(f"{own}>{new}" for own, new in self.renames)])

    @property
    def expr(self) -> Expr:
        return self.args[0]

    def of(self, args: tuple[Expr, ...]) -> Factor:
        return Factor(args[0], self.stored, self.renames)

    def name_of(self, axis: str) -> str:
        """What the product calls an axis of the factor's own."""
        return dict(self.renames).get(axis, axis)

    def own_name(self, axis: str) -> str:
        """The inverse of ``name_of``."""
        return {new: own for own, new in self.renames}.get(axis, axis)

    def axes(self, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """Its axes, as the product calls them."""
        return frozenset(map(self.name_of, expr_axes(self.expr, known)))


def const(value: Number, dtype: DType) -> Const:
    """A literal of ``dtype`` (its compute dtype): 1 becomes 1.0 where a float is wanted, and -1 is 255 among bytes."""
    dtype = dtype.compute
    if dtype.is_float:
        return Const(repr(float(value)), dtype)
    return Const(repr(bool(value) if dtype is dtypes.bool_ else dtype.wrapped(int(value))), dtype)


def is_call(node: Expr, *functions: str) -> TypeGuard[Call]:
    """Whether ``node`` calls one of the functions."""
    return isinstance(node, Call) and node.function in functions


def call(function: str, *args: Expr, dtype: DType, detail: Detail = None) -> Call:
    """``function`` of ``args``, as a node."""
    return Call(function, args, dtype, detail)


def whole(node: Call) -> int:
    """The exponent of an integer power, the order of a polygamma."""
    assert isinstance(node.detail, int)
    return node.detail


def walk(
    roots: Iterable[Expr], known: Container[Expr] = (), children: Callable[[Expr], tuple[Expr, ...]] | None = None
) -> Iterator[Expr]:
    """Every distinct subexpression once, children before parents, left to right.

    Args:
        known: what is left out, with what only that is made of.
        children: those of a node that are gone into; all, if that is not given.
    """
    seen: set[Expr] = set()
    stack: list[Expr | None] = list(roots)
    stack.reverse()
    opened: list[Expr] = []  # nodes whose children are under way; None on the stack is where they end
    while stack:
        node = stack.pop()
        if node is None:
            node = opened.pop()
        elif node in seen or node in known:
            continue
        elif inner := (node.children if children is None else children(node)):
            opened.append(node)
            stack.append(None)
            stack.extend(reversed(inner))
            continue
        seen.add(node)
        yield node


def rebuild(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """``node`` with other children."""
    return node.of(children) if isinstance(node, Call) and children != node.args else node


def transform(roots: Iterable[Expr], rule: Callable[[Expr], Expr]) -> dict[Expr, Expr]:
    """Rewrite bottom up; ``rule`` sees each node with its children already rewritten. Maps old to new."""
    rewriting = Rewriting(rule)
    for root in roots:
        rewriting.of(root)
    return rewriting.done


class Rewriting:
    """`transform` of many expressions by one rule: what they have in common is rewritten once."""

    def __init__(self, rule: Callable[[Expr], Expr]) -> None:
        self.rule = rule
        self.done: dict[Expr, Expr] = {}

    def of(self, root: Expr) -> Expr:
        """``root``, rewritten."""
        for node in walk([root], self.done):
            self.done[node] = self.rule(rebuild(node, tuple(self.done[child] for child in node.children)))
        return self.done[root]


def substitute(root: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """``root`` with every subexpression that is a key of ``values`` replaced, outermost first."""
    if root in values:
        return values[root]
    done: dict[Expr, Expr] = {}
    for node in walk([root], values):  # which may be many, and are not copied for it
        inner = [values[child] if child in values else done[child] for child in node.children]
        done[node] = rebuild(node, tuple(inner))
    return done[root]


class Substitution:
    """`substitute` in many expressions: what they have in common is rebuilt once."""

    def __init__(self, values: Mapping[Expr, Expr]) -> None:
        self.values = dict(values)
        self.done = dict(values)

    def of(self, root: Expr) -> Expr:
        """``root`` with what stands for its parts."""
        done = self.done
        if root not in done:
            for node in walk([root], done):
                done[node] = rebuild(node, tuple([done[child] for child in node.children]))
        return done[root]

    def put(self, part: Expr, value: Expr) -> None:
        """From here on ``value`` stands for ``part``."""
        if part in self.done:  # and so in what else has been rebuilt
            self.done = dict(self.values)
        self.values[part] = self.done[part] = value


def substitute_all(roots: Iterable[Expr], values: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """`substitute` for many expressions that have parts in common, and all of their parts; maps old to new."""
    done: dict[Expr, Expr] = {}
    for node in walk(roots):
        found = values.get(node)
        done[node] = rebuild(node, tuple(done[child] for child in node.children)) if found is None else found
    return done


def refs(*roots: Expr) -> list[Ref]:
    """The named things that the expressions read, in order of first appearance."""
    return list(dict.fromkeys(ref for root in roots for ref in _refs_of(root)))


def _refs_of(root: Expr) -> tuple[Ref, ...]:
    """Those of one expression, which are asked for again and again: found once, of parts where they are known."""
    if root._refs is None:
        found: dict[Ref, None] = {}
        for node in walk([root], children=_unknown):
            if node._refs is not None:
                found.update(dict.fromkeys(node._refs))
            elif isinstance(node, Ref):
                found[node] = None
        root._refs = tuple(found)
    return root._refs


def _unknown(node: Expr) -> tuple[Expr, ...]:
    """The children that are to be gone into for what a node reads."""
    return node.children if node._refs is None else ()


def names_read(items: Iterable[Computed]) -> set[str]:
    """The names that statements and outputs read; what they have in common is walked once."""
    return {ref.name for ref in refs(*(item.expr for item in items))}


# -- things with axes ------------------------------------------------------------------------------------------------

Shape = tuple[str | None, ...]
"""The axis of each dimension; None is a dimension of size one, along which the thing is broadcast."""


class Named:
    """What operands, scalars, statements and outputs have in common."""

    name: str


class Tensorlike(Named):
    """Operands and outputs: what lies in memory."""

    dtype: DType
    shape: Shape
    packed: PackedBlock | None
    groups: tuple[Groups, ...]

    @property
    def base(self) -> str:
        """The argument or result it lies in: a packed tensor, or itself."""
        return self.packed.base if self.packed else self.name


class Computed(Named):
    """Statements and outputs: what has an expression."""

    expr: Expr


@dataclass(frozen=True)
class PackedBlock:
    """Where a view lies in the packed tensor ``base``: block ``index`` of ``count`` equal blocks along ``dim``."""

    base: str
    dim: int
    index: int
    count: int


@dataclass(frozen=True)
class Groups:
    """Dimension ``dim`` of a tensor seen as several: of ``counts`` elements, and of what is left for the last."""

    dim: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Operand(Tensorlike):
    """A tensor the op reads, as it lies in memory (core/views): perhaps one of several equal blocks of a packed tensor,
    and perhaps with more dimensions than that has, which make up its own in groups.

    ``least``: its elements are zero, NaN or not below it; known of what a forward has saved.
    """

    name: str
    dtype: DType
    shape: Shape
    packed: PackedBlock | None = None
    groups: tuple[Groups, ...] = ()
    least: float = -math.inf

    @property
    def ref(self) -> Ref:
        return Ref(self.name, self.dtype.compute)


@dataclass(frozen=True)
class Scalar(Named):
    """A Python number, handed to the kernel at launch; a new value compiles nothing."""

    name: str
    dtype: DType

    @property
    def ref(self) -> Ref:
        return Ref(self.name, self.dtype.compute)


@dataclass(frozen=True)
class Let(Computed):
    """A named intermediate."""

    name: str
    expr: Expr

    @property
    def ref(self) -> Ref:
        return Ref(self.name, self.expr.dtype)


@dataclass(frozen=True)
class Reduce(Computed):
    """``expr`` reduced over the axes ``over`` by the monoid ``kind`` (core/monoids), accumulated in ``expr.dtype``."""

    name: str
    kind: str
    expr: Expr
    over: tuple[str, ...]

    @property
    def ref(self) -> Ref:
        return Ref(self.name, self.expr.dtype)


Statement = Let | Reduce


@dataclass(frozen=True)
class Output(Tensorlike, Computed):
    """A tensor the op writes: ``expr`` rounded once to ``dtype``. ``packed`` and ``groups`` as an operand's.

    ``kept``: it is no result, but kept for a backward.
    """

    name: str
    expr: Expr
    dtype: DType
    shape: Shape
    packed: PackedBlock | None = None
    groups: tuple[Groups, ...] = ()
    kept: bool = False


@dataclass(frozen=True)
class Op:
    """One operation: what it reads, what it computes, what it writes.

    ``result`` is how the declaration returned its outputs: "one" or "tuple". ``declared`` says where.
    ``label`` tells the pass: "forward", "backward", ...
    """

    name: str
    label: str
    operands: tuple[Operand, ...]
    scalars: tuple[Scalar, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[Output, ...]
    result: str = "one"
    declared: str = ""
    doc: str = field(default="", compare=False)

    @property
    def is_declared(self) -> bool:
        """Whether it is what a declaration says, not derived of that."""
        return self.label == "forward"

    @property
    def is_half(self) -> bool:
        """Whether its results are rounded to a half type, so that a few last bits of what they are computed of do not
        show. What is kept for a backward counts where there is nothing else."""
        floats = [output for output in self.outputs if output.dtype.is_float]
        results = [output for output in floats if not output.kept] or floats
        return bool(results) and all(output.dtype.is_half for output in results)

    def with_statements(self, statements: Iterable[Statement], outputs: Iterable[Output]) -> Op:
        return replace(self, statements=tuple(statements), outputs=tuple(outputs))

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis, in order: slow to fast as the operands, the outputs and products' results have them, and those
        along which positions are counted, which no tensor need have."""
        found = {a for thing in (*self.operands, *self.outputs) for a in thing.shape if a}
        nodes = walk([item.expr for item in (*self.statements, *self.outputs)])
        found |= {node.axis for node in nodes if isinstance(node, Index)}
        if any(isinstance(s, Reduce) and s.kind == DOT for s in self.statements):
            found.update(*self.axes_of().values())
        return tuple(sorted(found, key=axis_order))

    def axes_of(self) -> dict[str, frozenset[str]]:
        """The axes that each named thing varies along."""
        known = {operand.name: frozenset(a for a in operand.shape if a) for operand in self.operands}
        known.update({scalar.name: frozenset() for scalar in self.scalars})
        for statement in self.statements:
            axes = expr_axes(statement.expr, known)
            known[statement.name] = axes - set(statement.over) if isinstance(statement, Reduce) else axes
        return known

    def expand(self) -> tuple[list[Reduce], list[Output]]:
        """The op without lets: their expressions put in place (cheap: expressions are shared, not copied)."""
        reduces, outputs = self._expanded
        return list(reduces), list(outputs)

    @locks.cached_property
    def _expanded(self) -> tuple[tuple[Reduce, ...], tuple[Output, ...]]:
        lets = Substitution({})
        reduces: list[Reduce] = []
        for statement in self.statements:
            expr = lets.of(statement.expr)
            if isinstance(statement, Let):
                lets.put(statement.ref, expr)
            else:
                reduces.append(replace(statement, expr=expr))
        return tuple(reduces), tuple(replace(output, expr=lets.of(output.expr)) for output in self.outputs)

    def names(self) -> dict[Expr, str]:
        """What the declaration calls each (expanded) intermediate."""
        lets = Substitution({})
        found: dict[Expr, str] = {}
        for statement in self.statements:
            if isinstance(statement, Let):
                expr = lets.of(statement.expr)
                lets.put(statement.ref, expr)
                found.setdefault(expr, statement.name)
        return found


def asked_axes(items: Iterable[Computed]) -> set[str]:
    """The axes whose size or positions expressions ask for."""
    nodes = walk([item.expr for item in items])
    return {node.axis for node in nodes if isinstance(node, (Size, Index))}


def with_carriers(read: Iterable[Operand], given: Iterable[Operand], axes: Collection[str]) -> list[Operand]:
    """The operands that are read, and of those ``given`` what tells the sizes of such ``axes`` as none of these has."""
    found = list(read)
    for operand in given:
        if operand not in found and set(axes).difference(*(o.shape for o in found)) & set(operand.shape):
            found.append(operand)
    return found


def shaped_axes(outputs: Iterable[Output]) -> set[str]:
    """The axes that results have."""
    return {axis for output in outputs for axis in output.shape if axis}


_AXIS = re.compile(r"d(\d+)(?:n(\d+))?")


def axis_name(number: int, size: int | None = None) -> str:
    """The name of an axis. One that no argument has carries its size, which nothing else would tell: ``d2n16``."""
    return f"d{number}" if size is None else f"d{number}n{size}"


def own_size(axis: str) -> int | None:
    """The size of an axis whose name tells it."""
    found = _AXIS.fullmatch(axis)
    return int(found[2]) if found and found[2] else None


def axis_order(axis: str) -> tuple[int, str]:
    """Sorts d2 before d10."""
    found = _AXIS.fullmatch(axis)
    return (int(found[1]) if found else 1 << 30, axis)


def expr_axes(expr: Expr, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The axes an expression varies along: those of the things it reads, and those whose position it asks for."""
    found: frozenset[str] = frozenset()
    seen: set[Expr] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Ref):
            found |= known[node.name]
        elif isinstance(node, Index):
            found |= {node.axis}
        elif isinstance(node, Factor):
            found |= node.axes(known)
        else:
            stack.extend(node.computed_of)
    return found


class Axes:
    """The axes that expressions vary along, each found once.

    Args:
        known: those of the named things, which may become more.
    """

    def __init__(self, known: Mapping[str, frozenset[str]]) -> None:
        self.known = known
        self.found: dict[Expr, frozenset[str]] = {}

    def of(self, root: Expr) -> frozenset[str]:
        """What `expr_axes` finds."""
        if root not in self.found:
            for node in walk([root], self.found, computed_of):
                self.found[node] = self._own(node)
        return self.found[root]

    def _own(self, node: Expr) -> frozenset[str]:
        if isinstance(node, Ref):
            return self.known[node.name]
        if isinstance(node, Index):
            return frozenset({node.axis})
        inner = frozenset[str]().union(*(self.found[child] for child in node.computed_of))
        return frozenset(map(node.name_of, inner)) if isinstance(node, Factor) else inner


# ``node.computed_of``, for `walk`.
computed_of: Callable[[Expr], tuple[Expr, ...]] = operator.attrgetter("computed_of")


# The reduction that a matrix product is; and a value with where it stands, for reductions that find a place
# (core/monoids).
DOT, LOCATED = "dot", "located"
# The reduction that keeps all of its partial results, and what it takes, of one operand or of two (core/scans).
SCAN, SCANNED, RECURRENCE = "scan", "scanned", "recurrence"
# What is computed and stored before anything reads it (fuse/stored_values).
STORED = "stored"
