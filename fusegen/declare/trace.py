"""Runs a declaration on symbolic tensors."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from types import CodeType, FrameType
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError, FusegenError
from fusegen.core.ir import Op, Operand, Scalar, walk
from fusegen.declare.axes import AxisVar
from fusegen.declare.build_op import FEW_ELEMENTS, build_op
from fusegen.declare.instances import asked_in
from fusegen.declare.meeting import met_apart
from fusegen.declare.value import FEW_BLOCKS, MOST_BLOCKS, MOST_SLICED, Tracer, Value, cast, tracing


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
    """A Python number given at run time; its value is not part of the trace.

    Attributes:
        value: what it is in the call that is traced, if a declaration that asks for it may have it as a constant.
    """

    dtype: DType
    value: Any = field(default=None, compare=False, repr=False)


Spec = TensorSpec | ScalarSpec


class Asked(Enum):
    """What a declaration asked of the sizes of its arguments: which are 1, which are a few, or all of them."""

    ONES = "ones"
    FEW = "few"
    ALL = "all"

    @classmethod
    def by(cls, tracer: Tracer) -> Asked:
        """What this trace has asked."""
        return cls.ALL if tracer.reads_sizes else cls.FEW if tracer.meets_in_pairs else cls.ONES

    def of(self, shapes: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """What is asked of these shapes."""
        if self is Asked.ALL:
            return tuple(map(tuple, shapes))
        few = FEW_ELEMENTS + 1
        return tuple(tuple(min(size, few) for size in shape) for shape in shapes) if self is Asked.FEW else ()


def trace(
    function: Callable[[Mapping[str, Any]], Any], name: str, declared: str, arguments: Mapping[str, Any],
    codes: set[Any], autocast: DType | None = None, doc: str = "",
) -> tuple[Op, Asked]:  # fmt: skip
    """The Op that ``function`` declares of arguments by name, and what it asked of their sizes: of others it may say
    something else.

    Args:
        arguments: per parameter a TensorSpec, a ScalarSpec, or a compile-time constant that is passed through.
        codes: code objects of ops, whose local variable names become names in the Op.
        autocast: what the function sees float tensors as (not double ones); they are read in their own dtype.
        doc: what the op is for, in the user's words.

    Raises:
        DeclarationError, ShapeError, DtypeError: what the declaration says is not possible, and where.
    """
    first = _Trace(name, declared, arguments, codes, autocast, doc)
    try:
        op = first.run(function)
        if _is_read_whole_and_in_parts(op) and (other := _without_blocks(first, function)) is not None:
            return other, Asked.ALL
        return _smaller(op, first, function), Asked.by(first.tracer)
    except DeclarationError:
        # The axes of a product's result are those of its factors at first: most ops read better so. Then what is added
        # to the result may make two axes of a factor one: a bias that is added to the columns of x @ w, and to those of
        # its transpose. So the declaration is traced once more, with axes of their own for the results of products.
        if not (first.tracer.met_itself and first.tracer.multiplies):
            found = _without_blocks(first, function)
            if found is None:
                raise
            return found, Asked.ALL
        second = _Trace(name, declared, arguments, codes, autocast, doc, separate_product_axes=True)
        try:
            return second.run(function), Asked.by(second.tracer)
        except DeclarationError:
            if not second.tracer.met_itself:
                raise
        raise


def _smaller(op: Op, first: _Trace, function: Callable[[Mapping[str, Any]], Any]) -> Op:
    """The op, or where slices took its tensors apart in many blocks the same with slices that are read at their places,
    if that has less to say. Blocks are best where nothing but blocks is computed (a loop over steps); where the whole
    is as well (``x - x[:, -1:]``, and a norm of it), all of it is computed block by block. Where few blocks along one
    dimension meet places along another (an image that is one pixel wide), each of them says all places: then nothing is
    in blocks, if that has not half as much to say; else blocks are the better ones to read."""
    if not first.tracer.has_fine_blocks or (few := _with_blocks(FEW_BLOCKS, first, function)) is None:
        return op
    if _length(op) < _length(few):
        return op
    shorter, none = min((op, few), key=_length), _with_blocks(0, first, function)
    return none if none is not None and 2 * _length(none) < _length(shorter) else shorter


def _with_blocks(most: int, first: _Trace, function: Callable[[Mapping[str, Any]], Any]) -> Op | None:
    """The op with slices read at their places where they make more blocks than these; None if that is refused."""
    try:
        return replace(first, most_blocks=most).run(function)
    except FusegenError:
        return None


def _without_blocks(first: _Trace, function: Callable[[Mapping[str, Any]], Any]) -> Op | None:
    """An op that is refused for its blocks (two ways along one tensor, blocks of groups), with slices that are read at
    their places instead; None where it has none, or is refused all the same."""
    if not (first.tracer.divisions or first.tracer.wants_blocks):
        return None
    return _with_blocks(0, first, function)


def _is_read_whole_and_in_parts(op: Op) -> bool:
    """Whether some argument is, whose gradient would be a tensor by itself and one in parts."""
    floats = [operand for operand in op.operands if operand.dtype.is_float]
    return any(operand.packed is None and operand.base in {o.base for o in floats if o.packed} for operand in floats)


def _length(op: Op) -> int:
    return sum(1 for _ in walk([item.expr for item in (*op.statements, *op.outputs)]))


@dataclass
class _Trace:
    """One run of a declaration on symbolic tensors (see ``trace``)."""

    name: str
    declared: str
    arguments: Mapping[str, Any]
    codes: set[Any]
    autocast: DType | None
    doc: str
    separate_product_axes: bool = False
    most_blocks: int = MOST_BLOCKS

    def __post_init__(self) -> None:
        given = self.arguments
        self.double = any(isinstance(a, TensorSpec) and a.dtype is dtypes.float64 for a in given.values())
        constants = {key: a for key, a in given.items() if not isinstance(a, (TensorSpec, ScalarSpec))}
        self.tracer = Tracer(
            _where(self.name, self.declared), self.double, codes=self.codes, arguments=frozenset(given),
            constants=constants,
            separate_product_axes=self.separate_product_axes, most_blocks=self.most_blocks,
            apart=met_apart, began=(_Trace.run.__code__,),
        )  # fmt: skip

    def run(self, function: Callable[[Mapping[str, Any]], Any]) -> Op:
        """The Op that it declares."""
        tracer, scalars = self.tracer, list[Scalar]()
        from fusegen.declare import jax_functions, torch_made  # which are made of the language, and this is below it

        with tracing(tracer), torch_made.standing_in(), jax_functions.standing_in(), _LocalNames(tracer):
            values = {key: _symbolic(tracer, scalars, key, given, self.double) for key, given in self.arguments.items()}
            values = {key: _autocast(value, self.autocast) for key, value in values.items()}
            try:
                returned = function(values)
            except RecursionError:
                raise DeclarationError(
                    tracer.where, given="a declaration that calls itself, or others, without end",
                    expected="Python that comes to an end without looking at values",
                    fix="end the recursion by a constant argument (`depth: fg.Const`), or write a loop",
                ) from None  # fmt: skip
            except FusegenError as error:
                raise _with_line(error, self.codes) from None
            except AttributeError as error:
                _explain(tracer, self.arguments, error)
                raise
            except (TypeError, ValueError, RuntimeError) as error:
                if _SYMBOLIC not in str(error):
                    raise
                raise _with_line(_unknown_to_a_library(tracer, error), self.codes) from error
        if tracer.sliced > MOST_SLICED and self.most_blocks > FEW_BLOCKS:
            with suppress(DeclarationError):
                op = replace(self, most_blocks=FEW_BLOCKS).run(function)
                tracer.has_fine_blocks = False  # it is chosen
                return op
        return build_op(tracer, self.name, self.declared, scalars, returned, self.doc)


_LIBRARIES = ("torch", "numpy", "jax")
# How other libraries name what they were given, and do not know.
_SYMBOLIC = f"{Value.__module__}.{Value.__qualname__}"


def _unknown_to_a_library(tracer: Tracer, error: Exception) -> DeclarationError:
    """An error of another library's, which was given a symbolic tensor."""
    said = str(error).partition("\n")[0]
    return DeclarationError(
        tracer.where, given=f"a symbolic tensor, to a function that asks for values: {said:.300}",
        expected="functions of fusegen, torch, NumPy and JAX, under their modules' names: jnp.exp(x)",
        fix="call the language's (fg.exp), or transform the op from outside: torch.func.vmap(op), torch.compile of it",
    ).with_traceback(error.__traceback__)  # fmt: skip


# Where no declaration of a user's is.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_NOT_USERS = tuple(os.path.join(_ROOT, room, "") for room in ("fusegen", "ops", "nn"))
# What of it declares ops, where fusegen is installed.
_OPS = tuple(os.path.join(_ROOT, "fusegen", room, "") for room in ("ops", "nn"))


@functools.cache
def _is_library(file: str) -> bool:
    """Whether local variables in this file are no names that whoever declares an op has chosen: those of the language,
    of torch and NumPy, and of Python's own modules."""
    if file.startswith(_OPS):
        return False
    modules = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    folders = [os.path.join(os.path.dirname(module), "") for module in modules if module]
    is_installed = "site-packages" in file or "dist-packages" in file  # which may lie below Python's own modules
    is_pythons = file.startswith(os.path.join(os.path.dirname(os.__file__), "")) and not is_installed
    return is_pythons or file.startswith((_NOT_USERS[0], *folders))


def _with_line(error: FusegenError, codes: set[Any]) -> FusegenError:
    """The error, which says at which line of the declaration, or of a function that it calls, it was raised."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    first = next((at for at, (code, _) in enumerate(frames) if code in codes), None)
    if first is None or ", line " in error.where:
        return error
    libraries = [getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES]
    others = (*_NOT_USERS, *(os.path.join(os.path.dirname(file), "") for file in libraries if file))
    users = []
    for code, line in frames[first:]:
        if code.co_filename.startswith(others):
            break
        users.append((code, line))
    if not users:  # an op of the library: its lines are not the user's
        return error
    code, line = users[-1]
    found = type(error)(
        error.where + _line(error.where, code, line), given=error.given, expected=error.expected, fix=error.fix
    )
    return found.with_traceback(error.__traceback__)


def _line(where: str, code: CodeType, line: int) -> str:
    """A line, behind ``where``, which may name its file."""
    name = os.path.basename(code.co_filename)
    return f", line {line}" if name in where else f" ({name}, line {line})"


def called(function: Callable[..., Any], values: Mapping[str, Any], listed: Sequence[str] = ()) -> Any:
    """``function`` of arguments by name, also where it takes some by position only, or as ``*xs``: those ``listed``."""
    parameters = inspect.signature(function).parameters.values()
    by_position = [p.name for p in parameters if p.kind < p.VAR_POSITIONAL and (listed or p.kind is p.POSITIONAL_ONLY)]
    first = [*(name for name in by_position if name in values), *listed]
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
        tracer.numbers[name] = given.value
        return Value(scalars[-1].ref, dtypes.float32 if stored.is_float else stored, weak=True)
    return given


def _autocast(value: Any, dtype: DType | None) -> Any:
    eligible = isinstance(value, Value) and not value.weak and value.dtype.is_float and value.dtype.size < 8
    return cast(value, dtype) if dtype is not None and eligible else value


class _LocalNames:
    """Reads the local variables of op functions, and of functions that these call, as they return: they name the
    intermediates (``rstd``). What a called function's arguments are has names where it is called."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.asked = tracer, asked_in()

    def __enter__(self) -> None:
        self.outer: Any = sys.getprofile()
        sys.setprofile(self._on_event)

    def __exit__(self, *_: object) -> None:
        self.asked.leave()
        if hasattr(self.outer, "enable"):  # cProfile, which does not let itself be set again
            sys.setprofile(None)
            self.outer.enable()
        else:
            sys.setprofile(self.outer)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "return":
            if event == "call" and id(frame.f_globals) not in self.asked.seen:
                self.asked.met(frame.f_globals, _is_library(frame.f_code.co_filename))
            return
        code = frame.f_code
        is_op = code in self.tracer.codes
        if is_op:  # the last one to return is the one that is traced
            self.tracer.left_at = _line(self.tracer.where, code, frame.f_lineno)
        if not is_op and _is_library(code.co_filename):
            return
        given = () if is_op else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for local, value in frame.f_locals.items():
            if isinstance(value, Value) and local not in given and value.pending is None:
                self.tracer.names[value.expr] = local
