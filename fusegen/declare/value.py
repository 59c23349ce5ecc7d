"""Symbolic tensors: what a declaration computes with, under torch's rules for dtypes and broadcasting."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusegen.core import dtypes
from fusegen.core.blocks import Joined, Part
from fusegen.core.casts import converted, rounded
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError, DtypeError, ShapeError
from fusegen.core.ir import (
    DOT,
    Call,
    Const,
    Detail,
    Expr,
    Index,
    Operand,
    Reduce,
    Ref,
    Size,
    computed_of,
    const,
    refs,
    walk,
)
from fusegen.declare.autograd_functions import check_no_autograd_function
from fusegen.declare.axes import AxisVar, Dims, NotNested, are_same, leaves, unite
from fusegen.declare.table import Function, Kind, lookup
from fusegen.declare.tensor import Tensor

# How long a dimension may be that is looped over.
MOST_ROWS = 256

_current = threading.local()


@dataclass
class CalledWith:
    """A call, within a declaration, of an op whose gradient the user declared, and that gradient.

    Attributes:
        cotangents: of the call's float results, by name.
        inputs: what the gradient sees of the arguments, by name: tensors and numbers of its own.
        gradients: of inputs that have one.
        reduces, names: those of the gradient, as a tracer's.
    """

    name: str
    declared: str
    cotangents: dict[str, Value]
    inputs: dict[str, Value]
    gradients: dict[str, Value] = field(default_factory=dict)
    reduces: list[tuple[Reduce, tuple[AxisVar, ...]]] = field(default_factory=list)
    names: dict[Expr, str] = field(default_factory=dict)


# More blocks than these are not taken apart: each is computed by itself. Slices that make FEW_BLOCKS at most are always
# blocks; of others it depends on what the op comes to say (declare/trace).
MOST_BLOCKS, FEW_BLOCKS = 64, 4
# Slices of more blocks than these, added up, are read at their places: of images they are blocks of blocks.
MOST_SLICED = 128


@dataclass
class Tracer:
    """What is being recorded: one per trace, current in its thread while the declaration runs."""

    where: str
    double: bool = False  # Some tensor is float64, so arithmetic of Python numbers is in float64 as well.
    operands: list[tuple[Operand, Dims]] = field(default_factory=list)
    reduces: list[tuple[Reduce, tuple[AxisVar, ...]]] = field(default_factory=list)
    # The axes that reductions and intermediates vary along, by name, and expressions, as `axes_of` has found them.
    varying: dict[str, frozenset[AxisVar]] = field(default_factory=dict)
    along: dict[Expr, frozenset[AxisVar]] = field(default_factory=dict)
    sizes: dict[str, AxisVar] = field(default_factory=dict)
    # Blocks of packed arguments, by argument, dimension and their number.
    blocks: dict[tuple[str, int, int], tuple[Value, ...]] = field(default_factory=dict)
    names: dict[Expr, str] = field(default_factory=dict)
    codes: set[Any] = field(default_factory=set)
    arguments: frozenset[str] = frozenset()
    constants: dict[str, Any] = field(default_factory=dict)  # Arguments that are neither tensors nor numbers.
    numbers: dict[str, Any] = field(default_factory=dict)  # Of the call; None where one may not become a constant.
    # What must not come to have one axis as two of its dimensions, and whether something has, as x + x.mT does.
    distinct: list[tuple[str, Dims]] = field(default_factory=list)
    met_itself: bool = False
    # Axes of which elements are read at places that numbers tell: their names tell their sizes, so that kernels need
    # not ask which elements there are.
    told: list[AxisVar] = field(default_factory=list)
    reads_sizes: bool = False  # The declaration asks for sizes, not only for which of them are 1.
    meets_in_pairs: bool = False  # Few elements are added up for each pair of many (declare/build_op).
    separate_product_axes: bool = False  # Results of matrix products have other axes than their factors.
    # Slices of more blocks than a few have been taken; and of how many blocks slices may be: others are read at their
    # places. Of none: splits are read as well, and what is put together is told apart by position.
    has_fine_blocks: bool = False
    sliced: int = 0  # How many blocks the slices of several are made of.
    most_blocks: int = MOST_BLOCKS
    # Axes of which there are blocks: the axis, that of a block (None of one element), and how many.
    divisions: list[tuple[AxisVar, AxisVar | None, int]] = field(default_factory=list)
    wants_blocks: bool = False  # Of a dimension in groups, which has none.
    calls: list[CalledWith] = field(default_factory=list)
    made: int = 0
    nested: int = 0  # Ops that call each other and have not returned.
    # A factor's axis, and the product's own for it: of one length, in the same groups, and yet two axes.
    mirrored: list[tuple[AxisVar, AxisVar]] = field(default_factory=list)
    # What random numbers are drawn of, where the op says that it draws any, and the number of the next draw.
    seed: Value | None = None
    draws: int = 0
    # Reads and writes whose places are looked at: what an error says of each, and its number.
    sites: dict[tuple[str, bool], int] = field(default_factory=dict)
    own_places: bool = False  # Places are the language's own, and not looked at.
    overwritten: dict[str, Expr] = field(default_factory=dict)  # What was written to arguments (declare/memory).
    # What is read once more where a tensor meets itself (declare/meeting, which reads, and reads are made of values).
    apart: Callable[[Sequence[Value], str], Sequence[Value]] = lambda values, _: values
    left_at: str = ""  # The line that the declaration returned from.
    began: tuple[Any, ...] = ()  # Code objects of the trace itself: what is on the stack behind them is its caller's.

    def tensors(self) -> list[tuple[str, Dims]]:
        """Of what every dimension is an axis of its own: arguments, and what reductions and products read."""
        return [*((operand.name, dims) for operand, dims in self.operands), *self.distinct]

    def axes_of(self, expr: Expr) -> set[AxisVar]:
        """The axes that an expression varies along, none of them in groups."""
        for node in walk([expr], self.along, computed_of):
            found = self._own_axes(node).union(*(self.along[child] for child in computed_of(node)))
            self.along[node] = self._divided(node, found) if isinstance(node, (Part, Joined)) else found
        return set(leaves(self.along[expr]))

    def _divided(self, node: Part | Joined, inner: frozenset[AxisVar]) -> frozenset[AxisVar]:
        """The axes of a block, or of several one behind the other, given those of what they are made of."""
        gone, new = (node.whole, node.part) if isinstance(node, Part) else (node.part, node.whole)
        left = frozenset(axis for axis in leaves(inner) if not gone or axis is not self.sizes[gone].find())
        return left | {self.sizes[new].find()} if new else left

    def _own_axes(self, node: Expr) -> frozenset[AxisVar]:
        if isinstance(node, Index):
            return frozenset({self.sizes[node.axis]})
        if not isinstance(node, Ref):
            return frozenset()
        if node.name in self.varying:
            return self.varying[node.name]
        dims = next((dims for operand, dims in self.operands if operand.name == node.name), ())
        return frozenset(dim for dim in dims if dim)

    @property
    def multiplies(self) -> bool:
        """Whether there is a matrix product."""
        recorded = [self.reduces, *(call.reduces for call in self.calls)]
        return any(reduce.kind == DOT for reduces in recorded for reduce, _ in reduces)

    def new_name(self, kind: str) -> str:
        """A name that nothing else has until the trace is finished."""
        self.made += 1
        return f"@{kind}{self.made - 1}"

    def name_of(self, axis: AxisVar) -> str:
        """A name that stands for an axis until the trace is finished."""
        name = f"@s{len(self.sizes)}"
        self.sizes[name] = axis
        return name

    def size(self, axis: AxisVar) -> Expr:
        """The number of elements along an axis."""
        return Size(self.name_of(axis))


def current() -> Tracer:
    """The tracer of the declaration that is running in this thread."""
    tracer: Tracer | None = getattr(_current, "tracer", None)
    if tracer is None:
        raise DeclarationError(
            "fusegen",
            given="a language function (fg.exp, fg.where, ...) called outside an op",
            expected="a call inside a function decorated with @fg.op",
            fix="declare an op that contains the expression, or use fg.ops for ready-made ones",
        )
    return tracer


def is_tracing() -> bool:
    """Whether a declaration is running in this thread."""
    return getattr(_current, "tracer", None) is not None


class tracing:
    """Context manager that makes ``tracer`` current.

    torch's gradients are on: what is declared does not depend on whether the first call, or a backward, has them.
    ``torch.no_grad()`` within a declaration turns them off.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def __enter__(self) -> Tracer:
        self.outer = getattr(_current, "tracer", None)
        _current.tracer = self.tracer
        self.was_off = is_grad_off()
        if self.was_off:
            sys.modules["torch"].set_grad_enabled(True)
        return self.tracer

    def __exit__(self, *_: object) -> None:
        if self.was_off:
            sys.modules["torch"].set_grad_enabled(False)
        _current.tracer = self.outer


def is_grad_off() -> bool:
    """Whether the declaration is within ``torch.no_grad()``: a trace begins with gradients on, whoever calls it."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "is_grad_enabled") and not torch.is_grad_enabled()


class NumberAsked(Exception):
    """A declaration asks numbers of its call for their values: it is traced anew, with these as constants.

    Attributes:
        names: the arguments.
    """

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self.names = names


def _no_python_value(what: str, fix: str) -> Any:
    def refuse(self: Value, *_: Any) -> Any:
        """
        Raises:
            NumberAsked: it is made of numbers alone, which are known.
            DeclarationError: it is not.
        """
        made_of = frozenset(ref.name for ref in refs(self.expr))
        tracer = getattr(_current, "tracer", None)
        if tracer and made_of and made_of <= tracer.numbers.keys():
            if all(tracer.numbers[name] is not None for name in made_of):
                raise NumberAsked(made_of)
            raise DeclarationError(
                tracer.where, given=f"{what} of {', '.join(sorted(made_of))}, a number of each call",
                expected="a constant: inside an op there are no values yet",
                fix="annotate it `: fg.Const`, or not at all, instead of `: fg.Scalar`",
            )  # fmt: skip
        raise DeclarationError(
            current().where if getattr(_current, "tracer", None) else "fusegen",
            given=f"{what} of a symbolic tensor",
            expected="operations that the whole tensor can take: inside an op there are no values yet",
            fix=fix,
        )

    return refuse


class Value(Tensor):
    """A symbolic tensor, or a Python number lifted into the trace (``weak``).

    Attributes:
        expr: the scalar expression.
        dtype: the dtype torch would give it.
        dims: an axis per dimension, None where the size is one.
        tracer: the trace that it belongs to.
        packed: equal blocks that it is made of, and the dimension along which they are side by side (declare/parts).
        viewed, viewers, pending, owner: what it shares memory with (declare/memory): how it is a view, its own views,
            what it follows from where that was written, and the argument that it is.
    """

    __slots__ = (
        "__weakref__", "dims", "dtype", "expr", "owner", "packed", "pending", "tracer", "viewed", "viewers", "weak",
    )  # fmt: skip

    def __init__(
        self, expr: Expr, dtype: DType, dims: Dims = (), weak: bool = False,
        packed: tuple[tuple[Value, ...], int] | None = None,
    ) -> None:  # fmt: skip
        self.tracer: Tracer | None = getattr(_current, "tracer", None)
        if dtype.is_float and not isinstance(expr, Const) and self.tracer is not None and is_grad_off():
            check_no_autograd_function(self.tracer.where, self.tracer.began)
            expr = Call("stop_gradient", (expr,), expr.dtype)
        self.expr, self.dtype, self.dims, self.weak, self.packed = expr, dtype, dims, weak, packed
        self.viewed: Any = None
        self.viewers: list[weakref.ref[Value]] | None = None
        self.pending: Any = None
        self.owner = ""

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def shape(self) -> tuple[SizeOf, ...]:
        """The sizes of the tensors of this call, which are ints, and of any call where they are computed with."""
        return tuple(SizeOf.of(self, place) for place in range(self.ndim))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the tensors of this call, for checks. A declaration that reads them is traced for each shape."""
        current().reads_sizes = True
        return tuple(dim.find().size if dim else 1 for dim in self.dims)

    def to(self, *args: Any, dtype: Any = None, **options: Any) -> Value:
        """In another dtype: fusegen's, torch's or NumPy's, a name, or another tensor's.

        torch's further arguments say how to copy, which nothing does here.

        Raises:
            DeclarationError: it is to move to a device.
        """
        device = options.pop("device", None)
        args = tuple(arg for arg in args if not isinstance(arg, (bool, AnyDevice)))  # where it is already, and how
        if device is not None and not isinstance(device, AnyDevice):
            args = (device, *args)
        first, *_ = (*args, dtype)
        if first is None and options.get("other") is None and not _is_device(first):
            return self
        unknown = options.keys() - {"non_blocking", "copy", "memory_format", "other"}
        if unknown or options.get("other", first) is None or _is_device(first):
            raise DeclarationError(
                current().where, given=f"x.to({', '.join(map(repr, (*args, *unknown)))})",
                expected="a dtype, or a tensor", fix="move the argument, outside the op, which is for every device",
            )  # fmt: skip
        wanted = options.get("other", first)
        dtype = as_dtype(wanted.dtype if isinstance(wanted, Value) else wanted)
        is_it = dtype is self.dtype and not self.weak and not options.get("copy")
        return self if is_it else cast(self, dtype)

    @property
    def device(self) -> AnyDevice:
        """What stands for the device of this call's tensors."""
        return AnyDevice()

    def __len__(self) -> int:
        return self.shape[0] if self.dims else _no_length(self)

    __bool__ = _no_python_value(
        "the truth", "use fg.where(condition, a, b); to branch on an argument while tracing annotate it `: fg.Const`"
    )
    __float__ = _no_python_value("the float value", "compute with the tensor; fg.exp(x) instead of math's")
    __int__ = _no_python_value("the int value", "use .to(fg.int64)")
    __index__ = _no_python_value("the int value", "annotate the argument `: fg.Const`")

    def __iter__(self) -> Iterator[Tensor]:
        """What ``x[0]``, ``x[1]`` and so on are, as torch has it: a loop over them is unrolled."""
        count = len(self)
        if count > MOST_ROWS:
            raise DeclarationError(
                current().where, given=f"a loop over {count} elements of a dimension",
                expected=f"at most {MOST_ROWS}: it is unrolled", fix="compute with the whole tensor: (x * y).sum(0)",
            )  # fmt: skip
        return iter([self[place] for place in range(count)])

    __contains__ = _no_python_value("an element", "use fg.any(x == value)")
    __round__ = _no_python_value("Python's round", "use fg.round(x)")
    __divmod__ = _no_python_value("Python's divmod", "use x // y and x % y")
    __complex__ = _no_python_value("the complex value", "compute with two tensors, real and imaginary parts")
    _as_text = _no_python_value("the text", "print it outside the op")

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._as_text()

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<symbolic {self.dtype} tensor of rank {self.ndim}>"


class AnyDevice:
    """The device of a symbolic tensor: it may be handed on (``device=x.device``), and says nothing of itself, since a
    declaration is for every device."""

    __slots__ = ()

    def _refuse(self, what: str) -> DeclarationError:
        return DeclarationError(
            current().where if is_tracing() else "fusegen", given=f"{what} of a symbolic tensor's device",
            expected="device=x.device, or nothing: a declaration is for every device",
            fix="ask the argument, outside the op",
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # other libraries look for their protocols
            raise AttributeError(name)
        raise self._refuse(f".{name}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, AnyDevice):
            return True
        raise self._refuse("a comparison")

    def __hash__(self) -> int:
        return hash(AnyDevice)

    def __repr__(self) -> str:
        return "<the device of the call>"


Like = Value | bool | int | float
_no_length = _no_python_value("the length", "a tensor without dimensions has none")


def _is_device(given: Any) -> bool:
    """Whether it is one of torch's, or the name of one."""
    names = isinstance(given, str) and given.partition(":")[0] in ("cpu", "cuda", "meta", "mps", "xpu")
    return names or type(given).__name__ == "device"


class SizeOf(int):
    """A size of this call's tensors: an int to Python, and to an expression the size of whatever call it is.

    A declaration that asks for one is traced for each shape. What it computes with the int alone (``n // 2``, a loop
    over ``range(n)``, a test) becomes a part of the compiled op; what meets a symbolic tensor (``x / x.shape[-1]``)
    does not.

    Attributes:
        value: what an expression sees.
        axis: the axis, where it is the size of one.
    """

    value: Value
    axis: AxisVar | None

    @classmethod
    def of(cls, x: Value, place: int | None) -> SizeOf:
        """Of one dimension; None: of all, multiplied."""
        current().reads_sizes = True
        dims = x.dims if place is None else (x.dims[place],)
        size, expr = 1, None
        for dim in filter(None, dims):
            size *= dim.find().size
            factor = current().size(dim)
            expr = factor if expr is None else expr * factor
        made = cls(size)
        made.axis = dims[0].find() if len(dims) == 1 and dims[0] is not None else None
        made.value = Value(const(1, dtypes.int64) if expr is None else expr, dtypes.int64, weak=True)
        return made


def lift(value: Any) -> Value:
    """A Python number (or NumPy's) as a weak literal; symbolic tensors as they are.

    Raises:
        DeclarationError: anything else, a real tensor among them, and symbolic tensors of another declaration.
    """
    value = plain_number(value)
    if isinstance(value, Value):
        if value.tracer is not current():
            raise DeclarationError(
                current().where, given="a symbolic tensor that another trace made",
                expected="what this call's arguments, and what is computed of them, are",
                fix="keep nothing from one run of a declaration to the next: pass it as an argument",
            )  # fmt: skip
        return value
    if isinstance(value, SizeOf):
        return lift(value.value)
    if isinstance(value, bool):
        return Value(const(value, dtypes.bool_), dtypes.bool_, weak=True)
    if isinstance(value, int):  # not wrapped around: what it meets may hold it
        return Value(Const(repr(int(value)), dtypes.int64), dtypes.int64, weak=True)
    if isinstance(value, float):
        return Value(const(value, dtypes.float64), dtypes.float32, weak=True)
    names = [name for name, constant in current().constants.items() if constant is value]
    if names:
        raise DeclarationError(
            f"{current().where}, argument {' or '.join(names)}", given=f"{value!r:.60}, which is computed with",
            expected="a tensor or a Python number",
            fix="pass one; what is neither is a constant, which a declaration can only test with Python's if",
        )  # fmt: skip
    tensor = hasattr(value, "dtype") and hasattr(value, "shape")
    module = "" if type(value).__module__ == "builtins" else f"{type(value).__module__}."
    raise DeclarationError(
        current().where, given=f"a {module}{type(value).__qualname__} inside the declaration",
        expected="symbolic tensors and Python numbers",
        fix="pass it to the op as an argument" if tensor
        else "test it with `is None`" if value is None else "compute with tensors and numbers only",
    )  # fmt: skip


# Where the types of NumPy's scalars are from.
_NUMPYS = ("numpy", "ml_dtypes")


def plain_number(value: Any) -> Any:
    """A NumPy scalar as the Python number that it is; anything else as it is."""
    # Not by sys.modules, which Dynamo, where it traces this, would go through while its own imports add to it.
    if type(value).__module__ not in _NUMPYS:
        return value
    import numpy

    if isinstance(value, numpy.generic):
        number = value.item()
        return number if isinstance(number, (bool, int, float)) else value
    return value


def convert(expr: Expr, dtype: DType) -> Expr:
    """``expr`` in the compute dtype of ``dtype``; never rounds to a half type."""
    return _literal(expr.value, dtype.compute) if isinstance(expr, Const) else converted(expr, dtype)


def _literal(value: bool | int | float, dtype: DType) -> Const:
    limit = 2**63 if dtype.category is dtypes.Category.INTEGER else 2**1023
    finite = isinstance(value, int) or math.isfinite(value)
    if (isinstance(value, int) or dtype.category is dtypes.Category.INTEGER) and not (
        finite and -limit <= value < limit
    ):
        raise DeclarationError(
            current().where, given=f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"{value}",
            expected=f"a number that {'int64' if limit == 2**63 else 'float64'} holds", fix="use a float",
        )  # fmt: skip
    return const(value, dtype)


def result_type(values: Sequence[Value]) -> DType:
    """As ``torch.result_type``: dimension tensors, then 0-d tensors, then Python numbers."""
    groups: list[DType | None] = [None, None, None]
    for value in values:
        level = 2 if value.weak else 0 if value.dims else 1
        known = groups[level]
        groups[level] = value.dtype if known is None else dtypes.join(known, value.dtype)

    def combine(higher: DType | None, lower: DType | None) -> DType | None:
        if higher is None or lower is None:
            return higher or lower
        if higher.is_float:
            return higher
        if higher is dtypes.bool_ or lower.is_float:
            return dtypes.join(higher, lower)
        return higher

    found = combine(groups[0], combine(groups[1], groups[2]))
    assert found is not None
    return found


def shape_of(value: Value) -> str:
    """``x[4, 3]``; of an intermediate ``[4, 5] (of x[4, 3] and w[3, 5])``, with the arguments that it is made of."""
    known = {operand.name: (operand, _sizes(dims)) for operand, dims in current().operands}
    shape = _sizes(value.dims)
    if isinstance(value.expr, Ref) and value.expr.name in known:
        operand, own = known[value.expr.name]
        if own == shape and operand.packed is None:
            return f"{operand.name}{shape}"
    made_of = [f"{name}{known[name][1]}" for name in _arguments_of(value.expr) if name in known]
    if len(made_of) > _SAID:
        made_of[_SAID:] = ["others"]
    first, last = ", ".join(made_of[:-1]), "".join(made_of[-1:])
    return f"{shape} (of {first + ' and ' if first else ''}{last})" if last else f"{shape}"


def _sizes(dims: Dims) -> list[int]:
    return [dim.size if dim else 1 for dim in dims]


# How many nodes of an intermediate an error looks at, and how many of the arguments that it finds are said.
_LOOKED_AT, _SAID = 300, 3


def _arguments_of(expr: Expr) -> list[str]:
    """The tensors among the arguments that an expression is made of, as far as it is not too long to look at."""
    tracer = current()
    bases = {operand.name: operand.base for operand, _ in tracer.operands}
    reduced = {reduce.name: reduce.expr for reduce, _ in tracer.reduces}
    found: dict[str, None] = {}
    seen: set[Expr] = set()
    stack = [expr]
    while stack and len(seen) < _LOOKED_AT:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        name = node.name if isinstance(node, Ref) else ""
        if name in bases:
            found[bases[name]] = None
        stack += [reduced[name]] if name in reduced else reversed(node.children)
    return list(found)


def broadcast(values: Sequence[Value], what: str, shapes: str = "") -> Dims:
    """NumPy's rule, right-aligned; two axes that meet become one.

    Args:
        shapes: what an error says of them; by default the shape of each.

    Raises:
        ShapeError: their sizes differ.
        DeclarationError: see ``check_distinct``.
    """
    rank = max(len(value.dims) for value in values)
    dims: list[AxisVar | None] = [None] * rank
    for value in values:
        for position, dim in enumerate(value.dims, start=rank - len(value.dims)):
            if dim is None:
                continue
            mine, theirs = dims[position], dim.find()
            if mine is None:
                dims[position] = theirs
            elif not are_same(mine, theirs):
                shapes = shapes or " and ".join(shape_of(value) for value in values if value.dims)
                check_sizes(mine, theirs, what, shapes)
                unify(mine, theirs, what, values)
                tracer = current()
                check_distinct(f"{tracer.where}, {what}", tracer.tensors(), meeting=shapes)
    return tuple(dim.find() if dim else None for dim in dims)


def check_sizes(a: AxisVar, b: AxisVar, what: str, shapes: str) -> None:
    """Two dimensions that meet are as long as each other.

    Raises:
        ShapeError: they are not.
    """
    if a.size != b.size:
        raise ShapeError(
            f"{current().where}, {what}",
            given=f"{a.origin} of size {a.size} against {b.origin} of size {b.size}: {shapes}",
            expected="equal sizes, or size 1 on one side",
            fix="reshape one of them so that trailing dimensions line up (shapes are aligned from the right)",
        )


def unify(a: AxisVar, b: AxisVar, what: str, values: Sequence[Value]) -> None:
    """Make one axis of two of the same size, along which values meet.

    Raises:
        DeclarationError: their groups cannot be made the same.
    """
    try:
        unite(a, b)
    except NotNested:
        shapes = " and ".join(shape_of(value) for value in values if value.dims)
        raise not_nested(f"{what} of {shapes}", (a, b)) from None


def not_nested(what: str, axes: Sequence[AxisVar]) -> DeclarationError:
    """The error of one axis in groups of which none are made of the others."""
    groups = [" x ".join(str(entry.size) if entry else "1" for entry in axis.entries) for axis in axes]
    return DeclarationError(
        f"{current().where}, {what}", given=f"an axis of size {axes[0].size} as {' and as '.join(groups)}",
        expected="groups of which the smaller make up the larger ones",
        fix="pass the tensor twice, as two arguments, or do one of the two in an op of its own",
    )  # fmt: skip


def check_distinct(where: str, tensors: Iterable[tuple[str, Dims]], meeting: str = "") -> None:
    """Every dimension of a tensor, of what a reduction or a product reads, and of a result, is an axis of its own.

    Broadcasting makes axes one; where that leaves a tensor with one axis twice, each element would meet only its mirror
    image. What meets itself there is read apart (declare/meeting), unless products' results may have other axes still.

    Args:
        meeting: tensors that are just being broadcast against each other.

    Raises:
        DeclarationError: a tensor has one axis twice.
    """
    for what, dims in tensors:
        axes = leaves(dims)
        if len(set(axes)) < len(axes):
            current().met_itself = True
            one = f"{meeting}, by which two dimensions of {what}" if meeting else f"{what}, of which two dimensions"
            raise DeclarationError(
                where, given=f"{one} are one axis: a tensor meets itself along another dimension",
                expected="dimensions that are independent of each other",
                fix="pass what they share (the tensor itself, or one that broadcasts against both) twice, as two "
                "arguments of the op",
            )  # fmt: skip


def elementwise(name: str, *args: Like, detail: Detail = None) -> Value:
    """A row of the function table applied with broadcasting and promotion.

    Raises:
        DeclarationError, ShapeError, DtypeError: another number of arguments, sizes or dtypes that do not fit.
    """
    row = lookup(name)
    if len(args) != row.arity:
        given, fix = f"{len(args)} arguments", "see `fusegen list --functions`"
        raise DeclarationError(f"{current().where}, {name}", given=given, expected=f"{row.arity}", fix=fix)
    values = current().apart([lift(arg) for arg in args], name)
    dims = broadcast(values, name)
    head = values[:1] if row.kind is Kind.SELECT else []
    typed = values[len(head) :]
    dtype = _argument_dtype(row, typed)
    if dtype.category is row.fixed:
        return Value(values[0].expr, dtype, dims, values[0].weak)
    weak = all(value.weak for value in values)
    exact = dtypes.float64 if weak and dtype.is_float and current().double else dtype
    if name in _CHOOSING and not dtype.is_float:
        for value in typed:
            _check_held(name, value, dtype)
        # A bound that only the call knows may be beyond a narrow dtype's range, and is none there.
        called = any(value.weak and not isinstance(value.expr, Const) for value in typed)
        exact = dtypes.int64 if called and name != "where" else dtype
    if head and head[0].dtype is not dtypes.bool_:
        raise wrong_dtype(name, head[0].dtype, "a bool condition", "compare it with something: x != 0")
    exprs = [*(value.expr for value in head), *(convert(value.expr, exact) for value in typed)]
    expr: Expr = row(*exprs, detail=detail)
    expr = expr if exact is dtype or dtype.is_float else converted(expr, dtype)
    return Value(expr, dtypes.bool_ if expr.dtype is dtypes.bool_ else dtype, dims, weak)


# What is not of bools, in torch neither.
_OF_NUMBERS = ("left_shift", "right_shift", "floor_divide", "remainder", "fmod", "floor", "ceil", "trunc", "round")


def _argument_dtype(row: Function, values: Sequence[Value]) -> DType:
    dtype = result_type(values)
    if row.kind is Kind.LOGICAL:
        return dtypes.bool_
    if dtype.category is row.fixed:
        return dtype
    if row.name in _OF_NUMBERS and dtype is dtypes.bool_:
        raise wrong_dtype(row.name, dtype, "numbers", "cast with .to(fg.int64)")
    if row.kind in (Kind.FLOAT, Kind.PREDICATE) and not dtype.is_float:
        return dtypes.float32
    if row.kind is Kind.BITWISE and dtype.is_float:
        fix = "cast a mask with .to(fg.bool_), numbers with .to(fg.int64)"
        raise wrong_dtype(row.name, dtype, "integers or bools", fix)
    if row.name in ("sub", "neg", "abs", "clamp") and dtype is dtypes.bool_ and not all(v.weak for v in values):
        raise wrong_dtype(row.name, dtype, "numbers (torch refuses this on bools too)", "use ~x, or cast with .to()")
    return dtype


# What may take a number as it stands, where arithmetic wraps around in the dtype of the tensor that it meets.
_CHOOSING = ("where", "clamp", "maximum", "minimum")


def _check_held(what: str, value: Value, dtype: DType) -> None:
    number = value.expr.value if value.weak and isinstance(value.expr, Const) else 0
    if (isinstance(number, int) or math.isfinite(number)) and not dtype.holds(number):
        raise wrong_dtype(what, dtype, f"a dtype that holds {number} (as torch)", "cast with .to(fg.int64)")


def wrong_dtype(name: str, given: DType, expected: str, fix: str) -> DtypeError:
    """The error of a function that does not take a dtype."""
    return DtypeError(f"{current().where}, {name}", given=str(given), expected=expected, fix=fix)


def cast(x: Like, dtype: Any) -> Value:
    """``x`` in another dtype (a fusegen or torch dtype, or its name); to a half type it rounds."""
    value, target = lift(x), as_dtype(dtype)
    _check_held("cast", value, target)
    expr = convert(value.expr, target)
    if value.dtype is not target:
        expr = rounded(expr, target)
    return Value(expr, target, value.dims)


def as_dtype(dtype: Any) -> DType:
    """A row of the dtype table from fusegen's, torch's or NumPy's dtype, or a name."""
    if isinstance(dtype, DType):
        return dtype
    dtype = {float: dtypes.float64, int: dtypes.int64}.get(dtype, dtype) if isinstance(dtype, type) else dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype
    found = dtype if isinstance(dtype, DType) else dtypes.parse(str(name))
    if found is None:
        names = ", ".join(dtypes.BY_NAME)
        raise DtypeError("fusegen", given=repr(dtype), expected=names, fix="cast the tensor to one of these")
    return found


def normalize_axes(value: Value, axis: Any, what: str) -> tuple[int, ...]:
    """Axes as sorted non-negative positions; None means all."""
    given = range(value.ndim) if axis is None else axis if isinstance(axis, (tuple, list, range)) else (axis,)
    wanted = [plain_number(a) for a in given]
    rank = max(value.ndim, 1)
    for a in wanted:
        if not isinstance(a, int) or isinstance(a, bool) or not -rank <= a < rank:
            raise ShapeError(
                f"{current().where}, {what}",
                given=f"axis {a!r} of a tensor of rank {value.ndim}",
                expected=f"an int from {-rank} to {rank - 1}",
                fix="count dimensions from 0, or from -1 at the end",
            )
    positions = sorted({a % rank for a in wanted})
    if len(positions) != len(wanted):
        raise ShapeError(
            f"{current().where}, {what}",
            given=f"axes {tuple(wanted)}",
            expected="each axis once",
            fix="remove the repeated one",
        )
    return tuple(p for p in positions if p < value.ndim)


def one_axis(value: Value, axis: Any, what: str) -> int | None:
    """A single axis as its position; None of a tensor without dimensions.

    Raises:
        ShapeError: not one axis, or not one of the tensor's.
    """
    if axis is None or isinstance(axis, (tuple, list, range)):
        raise ShapeError(f"{current().where}, {what}", given=f"axis={axis!r}", expected="one int", fix="name one axis")
    return next(iter(normalize_axes(value, axis, what)), None)
