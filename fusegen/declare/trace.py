"""Runs a declaration on symbolic tensors and closes what it recorded into an Op."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import DOT, Expr, Index, Op, Operand, Output, Part, Reduce, Ref, Scalar, Size, refs, transform
from fusegen.core.lets import introduce_lets, rename_refs, safe_name
from fusegen.core.monoids import BY_KIND
from fusegen.core.products import Factor, is_factor
from fusegen.declare.numbers import in_double
from fusegen.declare.parts import Packed
from fusegen.declare.value import (
    AxisVar,
    Dims,
    Tracer,
    Value,
    broadcast,
    cast,
    check_distinct,
    convert,
    lift,
    plain_number,
    tracing,
)


@dataclass(frozen=True)
class TensorSpec:
    """What a trace knows of a tensor argument. Only *which* dimensions are 1 shapes the Op, never the other sizes."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def pattern(self) -> tuple[DType, tuple[bool, ...]]:
        return self.dtype, tuple(size == 1 for size in self.shape)


@dataclass(frozen=True)
class ScalarSpec:
    """A Python number given at run time; its value is not part of the trace."""

    dtype: DType


Spec = TensorSpec | ScalarSpec


def trace(
    function: Callable[..., Any], name: str, declared: str, arguments: Mapping[str, Any], codes: set[Any],
    autocast: DType | None = None,
) -> tuple[Op, bool]:  # fmt: skip
    """The Op that ``function`` declares for these arguments, and whether it looked at more of their sizes than which of
    them are 1: then it may say something else of other sizes.

    Args:
        arguments: per parameter a TensorSpec, a ScalarSpec, or a compile-time constant that is passed through.
        codes: code objects of ops, whose local variable names become names in the Op.
        autocast: what the function sees float tensors as (not double ones); they are read in their own dtype.

    Raises:
        DeclarationError, ShapeError, DtypeError: what the declaration says is not possible, and where.
    """
    first = _Trace(name, declared, arguments, codes, autocast)
    try:
        return first.run(function), first.tracer.reads_sizes
    except DeclarationError:
        # What meets the result of a product meets its factors too, if their axes are called the same: a square weight
        # by a bias of its rows that is that of its columns as well. Most ops read better so, and need no other names.
        if not (first.tracer.met_itself and any(reduce.kind == DOT for reduce, _ in first.tracer.reduces)):
            raise
        second = _Trace(name, declared, arguments, codes, autocast, apart=True)
        try:
            return second.run(function), second.tracer.reads_sizes
        except DeclarationError:
            if not second.tracer.met_itself:
                raise
        raise


@dataclass
class _Trace:
    """One run of a declaration on symbolic tensors (see ``trace``)."""

    name: str
    declared: str
    arguments: Mapping[str, Any]
    codes: set[Any]
    autocast: DType | None
    apart: bool = False

    def __post_init__(self) -> None:
        given = self.arguments
        self.double = any(isinstance(a, TensorSpec) and a.dtype is dtypes.float64 for a in given.values())
        constants = {key: a for key, a in given.items() if not isinstance(a, (TensorSpec, ScalarSpec))}
        self.tracer = Tracer(
            _where(self.name, self.declared), self.double, codes=self.codes, arguments=frozenset(given),
            constants=constants, apart=self.apart,
        )  # fmt: skip

    def run(self, function: Callable[..., Any]) -> Op:
        """The Op that it declares."""
        tracer, scalars = self.tracer, list[Scalar]()
        with tracing(tracer), _LocalNames(tracer):
            values = {key: _symbolic(tracer, scalars, key, given, self.double) for key, given in self.arguments.items()}
            values = {key: _autocast(value, self.autocast) for key, value in values.items()}
            try:
                returned = called(function, values)
            except RecursionError:
                raise DeclarationError(
                    tracer.where, given="a declaration that calls itself, or others, without end",
                    expected="Python that comes to an end without looking at values",
                    fix="end the recursion by a constant argument (`depth: fg.Const`), or write a loop",
                ) from None  # fmt: skip
            except AttributeError as error:
                _explain(tracer, self.arguments, error)
                raise
        return _close(tracer, self.name, self.declared, scalars, returned, function.__doc__ or "")


def called(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """``function`` of arguments by name, also where it takes some by position only."""
    parameters = inspect.signature(function).parameters.values()
    first = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in values]
    return function(*(values[name] for name in first), **{n: v for n, v in values.items() if n not in first})


def _explain(tracer: Tracer, arguments: Mapping[str, Any], error: AttributeError) -> None:
    """An argument that is no tensor, and is asked for what only tensors have.

    Raises:
        DeclarationError: it says which.
    """
    names = [name for name, given in arguments.items() if given is error.obj]
    if names and hasattr(Value, str(error.name)):
        raise DeclarationError(
            f"{tracer.where}, argument {' or '.join(names)}", given=repr(error.obj),
            expected=f"a tensor: the declaration asks for its {error.name}", fix="pass a tensor",
        ) from error  # fmt: skip


def _where(name: str, declared: str) -> str:
    return f"{name}, declared in {declared}" if declared else name


def _symbolic(tracer: Tracer, scalars: list[Scalar], name: str, given: Any, with_double: bool) -> Any:
    if isinstance(given, TensorSpec):
        dims = tuple(
            None if size == 1 else AxisVar(size, f"dimension {p} of {name}") for p, size in enumerate(given.shape)
        )
        operand = Operand(name, given.dtype, ())
        tracer.operands.append((operand, dims))
        return Value(operand.ref, given.dtype, dims)
    if isinstance(given, ScalarSpec):
        stored = given.dtype
        if stored.is_float:
            stored = dtypes.float64 if with_double else dtypes.float32
        scalars.append(Scalar(name, stored))
        return Value(scalars[-1].ref, dtypes.float32 if stored.is_float else stored, weak=True)
    return given


def _autocast(value: Any, dtype: DType | None) -> Any:
    eligible = isinstance(value, Value) and not value.weak and value.dtype.is_float and value.dtype.size < 8
    return cast(value, dtype) if dtype is not None and eligible else value


class _LocalNames:
    """Reads the local variables of op functions as they return: they name the intermediates (``rstd``)."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def __enter__(self) -> None:
        self.outer: Any = sys.getprofile()
        sys.setprofile(self._on_event)

    def __exit__(self, *_: object) -> None:
        if hasattr(self.outer, "enable"):  # cProfile, which does not let itself be set again
            sys.setprofile(None)
            self.outer.enable()
        else:
            sys.setprofile(self.outer)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and frame.f_code in self.tracer.codes:
            for local, value in frame.f_locals.items():
                if isinstance(value, Value):
                    self.tracer.names[value.expr] = local


def _outputs(tracer: Tracer, returned: Any) -> tuple[list[tuple[Value, Part | None]], str]:
    many = isinstance(returned, (tuple, list))
    items = list(returned) if many else [returned]
    if not items:
        raise _nothing(tracer, "nothing" if many else repr(returned))
    outputs: list[tuple[Value, Part | None]] = []
    for position, item in enumerate(items):
        if isinstance(item, Packed):
            base = f"out_{position}" if many else "out"
            outputs += [(value, Part(base, item.dim, index, len(item.parts))) for index, value in enumerate(item.parts)]
        elif isinstance(plain_number(item), (Value, bool, int, float)):
            outputs.append((lift(item), None))
        else:
            raise _nothing(tracer, f"a {type(item).__name__}")
    return outputs, "tuple" if many else "one"


def _nothing(tracer: Tracer, given: str) -> DeclarationError:
    return DeclarationError(
        tracer.where,
        given=f"{given} returned",
        expected="a symbolic tensor, or a tuple of them",
        fix="return the expression that the op computes",
    )


def _axis_names(tracer: Tracer, outputs: Sequence[tuple[Value, Part | None]]) -> dict[AxisVar, str]:
    """d0, d1, ... after the position in the result (and in the widest operand for axes that are reduced away)."""
    shapes: list[Dims] = [value.dims for value, _ in outputs]
    shapes += sorted((dims for _, dims in tracer.operands), key=len, reverse=True)
    names: dict[AxisVar, str] = {}
    rank = max((len(dims) for dims in shapes), default=0)

    def name(dim: AxisVar, number: int) -> None:
        while f"d{number}" in names.values():
            number += 1
        names.setdefault(dim.find(), f"d{number}")

    for dims in sorted(shapes, key=len, reverse=True):
        for position, dim in enumerate(dims, start=rank - len(dims)):
            if dim is not None:
                name(dim, position)
    for _, over in tracer.reduces:  # what only a product has
        for axis in over:
            name(axis, max(rank, len(names)))
    for _, dims in tracer.distinct:  # of products' results: what nothing else has
        for dim in filter(None, dims):
            name(dim, max(rank, len(names)))
    return names


def _close(tracer: Tracer, name: str, declared: str, scalars: list[Scalar], returned: Any, doc: str) -> Op:
    with tracing(tracer):
        results, kind = _outputs(tracer, returned)
        check_distinct(tracer.where, [*tracer.tensors(), *(("a result", value.dims) for value, _ in results)])
    axis_names = _axis_names(tracer, results)

    def shape(dims: Dims) -> tuple[str | None, ...]:
        return tuple(axis_names[dim.find()] if dim else None for dim in dims)

    final: dict[str, str] = {}
    arguments = {operand.name for operand, _ in tracer.operands if operand.part is None} | {s.name for s in scalars}
    taken = arguments | {f"d_{name}" for name in arguments}  # what their gradients will be called
    for ref, local in [(e, n) for e, n in tracer.names.items() if isinstance(e, Ref)]:
        if ref.name.startswith("@r") or any(o.name == ref.name and o.part for o, _ in tracer.operands):
            final[ref.name] = safe_name(local, taken)
            taken.add(final[ref.name])
    for reduce, _ in tracer.reduces:
        if reduce.name not in final:
            final[reduce.name] = safe_name(BY_KIND[reduce.kind].result, taken)
            taken.add(final[reduce.name])

    def axis(name: str) -> str:
        return axis_names[tracer.sizes[name].find()]

    def rule(node: Expr) -> Expr:
        if isinstance(node, Size) and node.axis in tracer.sizes:
            return Size(axis(node.axis))
        if isinstance(node, Index):
            return Index(axis(node.axis))
        if is_factor(node):
            factor = Factor.of(node)
            pairs = [(axis(own), axis(new)) for own, new in factor.renames]
            return replace(factor, renames=tuple(pair for pair in pairs if pair[0] != pair[1])).node
        return node

    def close(expr: Expr) -> Expr:
        return rename_refs(transform([expr], rule)[expr], final)

    operands = [replace(o, name=final.get(o.name, o.name), shape=shape(dims)) for o, dims in tracer.operands]
    reduces = [
        Reduce(final[r.name], r.kind, close(r.expr), tuple(sorted(axis_names[a.find()] for a in over)))
        for r, over in tracer.reduces
    ]
    outputs = _name_outputs(tracer, results, close, shape, kind, taken)
    local_names = {close(e): n for e, n in tracer.names.items() if not isinstance(e, Ref)}
    scalars, reduces, outputs, local_names = in_double(scalars, reduces, outputs, local_names)
    for output in outputs:
        local_names.pop(output.expr, None)
    taken |= {output.name for output in outputs}
    statements, bound = introduce_lets(_live(reduces, outputs), outputs, local_names, taken | set(final.values()))
    used = tuple(_used_operands(operands, statements, bound))
    return Op(name, "forward", used, tuple(scalars), tuple(statements), tuple(bound), kind, declared, doc)


def _name_outputs(
    tracer: Tracer, results: Sequence[tuple[Value, Part | None]], close: Any, shape: Any, kind: str, taken: set[str]
) -> list[Output]:
    outputs: list[Output] = []
    names = set(taken)
    base = ""
    for position, (value, part) in enumerate(results):
        wanted = "out" if kind == "one" else f"out_{position}"
        local = tracer.names.get(value.expr)
        if local and local not in names and not isinstance(value.expr, Ref):
            wanted = local
        if part:
            if part.index == 0:
                base = safe_name(part.base, names)
            part = replace(part, base=base)
            wanted = f"{base}_{part.index}"
        wanted = safe_name(wanted, names)
        names.add(wanted)
        expr = close(convert(value.expr, value.dtype))
        outputs.append(Output(wanted, expr, value.dtype, shape(value.dims), part))
    return outputs


def _live(reduces: list[Reduce], outputs: Sequence[Output]) -> list[Reduce]:
    """Reductions that some output needs."""
    needed = {ref.name for output in outputs for ref in refs(output.expr)}
    for reduce in reversed(reduces):
        if reduce.name in needed:
            needed |= {ref.name for ref in refs(reduce.expr)}
    return [reduce for reduce in reduces if reduce.name in needed]


def _used_operands(operands: list[Operand], statements: Sequence[Any], outputs: Sequence[Output]) -> list[Operand]:
    """Operands that are read, and arguments that nothing reads (they still are arguments). Not a packed tensor whose
    parts are read instead, nor parts that are not.
    """
    read = {ref.name for item in (*statements, *outputs) for ref in refs(item.expr)}
    packed = {operand.part.base for operand in operands if operand.part}
    return [o for o in operands if o.name in read or (o.part is None and o.name not in packed)]


__all__ = ["ScalarSpec", "Spec", "TensorSpec", "broadcast", "trace"]
