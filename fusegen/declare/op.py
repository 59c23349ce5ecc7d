"""A declaration: the user's function, and how a call's arguments become operands, scalars and constants."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError, DtypeError, ShapeError, warn
from fusegen.core.ir import Op
from fusegen.core.products import mismatch
from fusegen.core.recent import Recent
from fusegen.core.views import view_shape
from fusegen.declare.gradients import with_gradient
from fusegen.declare.indexing import own_places
from fusegen.declare.memory import argument, in_own_memory
from fusegen.declare.random_numbers import drawing
from fusegen.declare.tensor import Tensor as Tensor
from fusegen.declare.trace import Asked, ScalarSpec, Spec, TensorSpec, called, trace
from fusegen.declare.value import NumberAsked, Value, current, lift, plain_number

if TYPE_CHECKING:
    from typing import Annotated

    from typing_extensions import TypeVar

    _Kind = TypeVar("_Kind", default=Any)
    Const: TypeAlias = Annotated[_Kind, "fixed when the op is compiled"]
    Scalar: TypeAlias = Tensor | float
else:

    class Const:
        """Annotation of a parameter whose value is fixed when the op is compiled: ``power: fg.Const = 2``.

        ``fg.Const[int]`` says of which type it is, to type checkers.
        """

        def __class_getitem__(cls, kind):
            return cls

    class Scalar:
        """Annotation of a parameter that takes a Python number at run time, whatever its default is."""


_codes: set[Any] = set()  # Code objects of ops: names of their local variables become names in the Op.
AUTOCAST = (None, "float32", "half", "widest")
# Keyword of calls of ops with ``Declaration.overwrites``: that argument's gradient is written over the argument.
INPLACE_BACKWARD = "inplace_backward"
# The argument that random numbers are drawn of.
SEED = "seed"
# Traces that a declaration keeps. Patterns of ranks and dtypes are far fewer; a constant that is another number at
# each call would be traced without end.
MOST_TRACES = 1024
# Values of a number that are constants one after the other, until somebody is told.
MANY_VALUES = 16
# Ops that may call each other in turn. Python's own limit ends an endless declaration too, but wherever it happens to
# be: in a callback of the garbage collector's as well, which leaves errors of other kinds behind.
MOST_NESTED = 100


@dataclass
class Declaration:
    """One declared op.

    Which arguments are what: a tensor is an operand. A float is a runtime scalar. An int or bool is a runtime scalar
    too where its parameter has no default or a float default; otherwise (``axis=-1``, ``keepdims=False``) it is a
    constant of the compiled op, as are None, strings and tuples. ``fg.Const`` and ``fg.Scalar`` overrule this.

    ``autocast`` is what becomes of float tensors (not double ones) where torch.autocast is on: "float32", "half" for
    autocast's own dtype, "widest" for the widest among them; None leaves them alone. The op reads them as they are and
    computes as if they had been cast: nothing is copied.

    ``prepare`` turns a call's arguments into those of the function: it checks sizes, takes views, leaves out.

    ``overwrites`` is the argument whose gradient is written into its own memory by calls with ``inplace_backward=True``
    (pytorch/autograd/inplace).

    ``random`` says that it draws random numbers. Then it has one more argument, ``seed``, which is not the function's:
    an int64 without dimensions, or an int.

    ``check_indices`` says that places out of range are reported (core/within).

    ``fixed`` are numbers that the function has asked for their values (``if alpha > 0``): constants, as if annotated
    ``fg.Const``. ``values_seen`` are those that each has had so far.

    ``listed`` are the names of the arguments that the function takes as ``*xs``, in the declaration for so many of them
    (``of_so_many``); each is what an argument without a default is.
    """

    function: Callable[..., Any]
    name: str
    signature: inspect.Signature
    gradient: Callable[..., Any] | None = None
    autocast: str | None = None
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    overwrites: str | None = None
    traces: Recent[Any, Op] = field(default_factory=lambda: Recent(MOST_TRACES))
    sized: Recent[Any, Asked] = field(default_factory=lambda: Recent(MOST_TRACES))
    inlined: bool = False
    listed: tuple[str, ...] | None = None
    random: bool = False
    check_indices: bool = True
    fixed: set[str] = field(default_factory=set)
    values_seen: dict[str, set[Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, function: Callable[..., Any], name: str | None = None, autocast: str | None = None, random: bool = False,
        check_indices: bool = True,
    ) -> Declaration:  # fmt: skip
        """Read the function's signature.

        Raises:
            DeclarationError: it takes ``**kwargs``, or what has a default in front of ``*xs``; there is no such policy
                for autocast; it draws random numbers, and has an argument ``seed`` of its own.
        """
        if autocast not in AUTOCAST:
            raise DeclarationError(
                "fg.op, autocast=", given=repr(autocast), expected=", ".join(map(repr, AUTOCAST)),
                fix="choose one of these; None leaves tensors as they are",
            )  # fmt: skip
        if not callable(function):
            raise DeclarationError(
                "fg.op", given=repr(function), expected="a Python function", fix="put @fg.op above a def"
            )  # fmt: skip
        name = name or _name_of(function)
        if not isinstance(name, str) or not name.isidentifier():
            raise DeclarationError(
                f"op {name}", given=f"the name {name!r}", expected="a Python identifier: kernels are called so",
                fix="choose another: fg.op(function, name=...)",
            )  # fmt: skip
        try:
            signature = inspect.signature(function)
        except ValueError as error:
            raise DeclarationError(
                f"op {name}", given=str(error), expected="a Python function, whose parameters can be seen",
                fix="put @fg.op above a def",
            ) from None  # fmt: skip
        _check_parameters(name, signature)
        signature = _without_kinds(signature)
        if random:
            signature = _with_seed(name, signature)
        _codes.add(getattr(function, "__code__", None))
        return cls(function, name, signature, autocast=autocast, random=random, check_indices=check_indices)

    @property
    def tensors(self) -> str | None:
        """The parameter ``*xs``, if it has one, and it is not known yet how many tensors it stands for."""
        found = [p.name for p in self.signature.parameters.values() if p.kind is p.VAR_POSITIONAL]
        return found[0] if found else None

    def of_so_many(self, count: int) -> Declaration:
        """The declaration with ``count`` parameters ``xs_0, xs_1, ...`` in place of ``*xs``."""
        before, several, behind = self._around()
        taken, prefix = {p.name for p in (*before, *behind)}, f"{several.name}_"
        while any(f"{prefix}{i}" in taken for i in range(count)):
            prefix += "_"
        listed = tuple(f"{prefix}{i}" for i in range(count))
        each = [several.replace(name=name, kind=several.POSITIONAL_OR_KEYWORD) for name in listed]
        signature = self.signature.replace(parameters=[*before, *each, *behind])
        own: dict[str, Any] = {"traces": Recent(MOST_TRACES), "sized": Recent(MOST_TRACES), "inlined": False}
        return replace(self, signature=signature, listed=listed, **own)

    def count_listed(self, args: tuple[Any, ...]) -> int:
        """How many of a call's positional arguments ``*xs`` stands for."""
        before, _, _ = self._around()
        return max(0, len(args) - len(before))

    def _around(self) -> tuple[list[inspect.Parameter], inspect.Parameter, list[inspect.Parameter]]:
        """The parameters in front of ``*xs``, it, and those behind."""
        parameters = list(self.signature.parameters.values())
        at = next(i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL)
        return parameters[:at], parameters[at], parameters[at + 1 :]

    @property
    def declared(self) -> str:
        """Where the op is declared, as ``ops/blends.py``: file and folder name, nothing of the machine."""
        code = getattr(self.function, "__code__", None)
        if code is None:
            return ""
        path = Path(code.co_filename)
        return path.name if path.parent.name in ("", ".") else f"{path.parent.name}/{path.name}"

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name, defaults filled in.

        Raises:
            DeclarationError: the arguments do not fit the signature.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            plain = [p.replace(annotation=p.empty) for p in self.signature.parameters.values()]
            summary, *_ = (self.function.__doc__ or "").strip().splitlines() or [""]
            fix = "see the signature above" + (f"; the op: {summary}" if summary else "")
            if next(iter(self.signature.parameters), "") == "self":
                fix = "declare it outside the class, with what it reads of self as arguments: an op is no method"
            raise DeclarationError(
                f"{self.name}{inspect.Signature(plain)}", given=str(error), expected="arguments that fit the signature",
                fix=fix,
            ) from None  # fmt: skip
        bound.apply_defaults()
        values = {name: plain_number(value) for name, value in bound.arguments.items()}
        if self.random:
            values[SEED] = self._seed(values[SEED])
        return values if self.prepare is None else self.prepare(values)

    def _seed(self, given: Any) -> Any:
        """What stands for the seed: of a call without one, what says of which kind it will be.

        Raises:
            DtypeError, ShapeError: it is no int64 without dimensions.
        """
        if given is None:
            return TensorSpec(dtypes.int64, ())
        if isinstance(given, int) and not isinstance(given, bool):
            return (given + 2**63) % 2**64 - 2**63  # 64 bits of it
        is_int64 = isinstance(given, Value) or str(getattr(given, "dtype", None)).rpartition(".")[2] == "int64"
        if not is_int64 or len(getattr(given, "shape", (0,))):
            kind = DtypeError if not is_int64 else ShapeError
            shape = list(getattr(given, "shape", ()))
            raise kind(
                f"{self.name}, argument {SEED}", given=f"{getattr(given, 'dtype', type(given).__name__)}{shape}",
                expected="an int, or an int64 tensor without dimensions", fix="pass one, or none for a new seed",
            )  # fmt: skip
        return given

    def is_runtime_number(self, name: str, value: Any) -> bool:
        """Whether this Python number is handed over at run time (see the class)."""
        if not isinstance(value, (bool, int, float)) or name in self.fixed:
            return False
        parameter = self.signature.parameters[name]
        annotation = parameter.annotation
        if annotation in (Const, "fg.Const", "Const"):
            return False
        if annotation in (Scalar, "fg.Scalar", "Scalar", float, "float") or isinstance(value, float):
            return True
        return parameter.default is parameter.empty or isinstance(parameter.default, float)

    def scalar_spec(self, name: str, value: Any) -> ScalarSpec:
        """The dtype a number has in the trace. A parameter that is a float by default stays one when given an int."""
        parameter = self.signature.parameters[name]
        if not isinstance(value, float) and not -(2**63) <= value < 2**63:
            raise DeclarationError(
                f"{self.name}, argument {name}", given=f"an int of {value.bit_length()} bits",
                expected="an int that fits 64 bits", fix="pass a float",
            )  # fmt: skip
        given = None if parameter.annotation in (Scalar, "fg.Scalar", "Scalar") else value
        if isinstance(value, float) or isinstance(parameter.default, float) or parameter.annotation in (float, "float"):
            return ScalarSpec(dtypes.float32, given)
        return ScalarSpec(dtypes.bool_ if isinstance(value, bool) else dtypes.int64, given)

    def trace(self, arguments: Mapping[str, Spec | Any], autocast: DType | None = None) -> Op:
        """The Op for these arguments; traced once per pattern (ranks, dtypes, which sizes are 1, constants), and for
        each shape, or each few of a size, where the declaration looks at those (``Asked``). Numbers that it asks for
        their values are ``fixed`` from then on.

        Args:
            autocast: the dtype that float tensors are computed with (see ``cast_to``).
        """
        pattern = (autocast, *((name, _pattern(value)) for name, value in arguments.items()))
        shapes = tuple(value.shape for value in arguments.values() if isinstance(value, TensorSpec))
        asked_before = self.sized.get(pattern)
        key = (pattern, asked_before.of(shapes)) if asked_before else pattern
        op = self.traces.get(key)
        if op is None or (shapes and _sizes_clash(op, arguments)):
            try:
                op, asked_sizes = trace(
                    self._run, self.name, self.declared, arguments, _codes, autocast, self.function.__doc__ or ""
                )
            except NumberAsked as asked:
                self.fixed |= asked.names
                known = {n: spec for n, spec in arguments.items() if isinstance(spec, ScalarSpec) and n in asked.names}
                return self.trace({**arguments, **{n: spec.value for n, spec in known.items()}}, autocast)
            self._count_values(arguments)
            if asked_sizes is not Asked.ONES:
                self.sized.put(pattern, asked_sizes)
                key = pattern, asked_sizes.of(shapes)
            self.traces.put(key, op)
        return op

    def _count_values(self, arguments: Mapping[str, Any]) -> None:
        """Say so, once, where a number that the function asks for its value is another one at each call."""
        for name in tuple(self.fixed):
            seen = self.values_seen.setdefault(name, set())
            if len(seen) == MANY_VALUES:
                continue
            seen.add(_pattern(arguments.get(name)))
            if len(seen) == MANY_VALUES:
                warn(
                    f"{self.name}, argument {name}: {MANY_VALUES} values so far, and each is compiled anew, for the "
                    f"declaration asks for its value (an `if`, `float()`, a function of math). With fg.where and "
                    f"fusegen's functions (fg.sqrt) it is a number of the call, and compiles once"
                )

    def cast_to(self, arguments: Mapping[str, Any], half: DType) -> DType | None:
        """What the op's policy makes of float tensors under autocast to ``half``; None if nothing."""
        given = {spec.dtype for spec in arguments.values() if isinstance(spec, TensorSpec)}
        found = {dtype for dtype in given if dtype.is_float and dtype.size < 8}
        if self.autocast is None or not found:
            return None
        target = dtypes.float32
        if self.autocast == "half":
            target = half
        elif self.autocast == "widest" and dtypes.float32 not in found:
            return None
        return None if found == {target} else target

    def overwritten(self, values: Mapping[str, Any]) -> str | None:
        """The argument whose memory its gradient takes in a call with these arguments."""
        return self.overwrites if self.overwrites and values[INPLACE_BACKWARD] else None

    def set_gradient(self, function: Callable[..., Any]) -> None:
        """Replace the derived gradient (see ``FusedOp.gradient``).

        Raises:
            DeclarationError: another op's declaration was traced that calls this one.
        """
        if self.inlined:
            raise DeclarationError(
                f"{self.name}, gradient", given="a gradient for an op that other ops call, which have been traced",
                expected="a gradient that is declared before", fix=f"declare it right behind {self.name}",
            )  # fmt: skip
        _codes.add(getattr(function, "__code__", None))
        self.gradient = function
        self.traces.clear()

    def inline(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The op called by another op's declaration: its body is traced in place.

        Raises:
            DeclarationError: the arguments do not fit, or one's memory would be the gradient's.
            RecursionError: more than ``MOST_NESTED`` ops call each other; the trace says what to do.
        """
        arguments = self.bind(args, kwargs)
        if self.overwritten(arguments):
            raise DeclarationError(
                current().where, given=f"a call of {self.name} with {INPLACE_BACKWARD}=True inside another op",
                expected="a call of its own: inside an op there is no memory that a gradient could take",
                fix=f"leave {INPLACE_BACKWARD} away, or call {self.name} outside",
            )  # fmt: skip
        self.inlined = True
        tracer = current()
        if tracer.nested >= MOST_NESTED:
            raise RecursionError
        tracer.nested += 1
        try:
            return self._run(arguments)
        finally:
            tracer.nested -= 1

    def _run(self, values: Mapping[str, Any]) -> Any:
        """What the function returns for symbolic tensors."""
        tracer = current()
        seed, own = (values.get(SEED), True) if self.random else (None, False)
        if isinstance(seed, TensorSpec):  # a call within another op, which draws of that one's, and goes on counting
            seed, own = tracer.seed, False
        if self.random:
            seed = seed if seed is None else lift(seed)
            values = {**values, SEED: seed}
        with drawing(tracer, seed, 0 if own else None) as first:
            returned = self._called(values)
        if self.gradient is None:
            return returned

        def again(others: Mapping[str, Any]) -> Any:
            with drawing(tracer, others.get(SEED) if self.random else None, first):
                return self._called(others)

        given = {name: value for name, value in values.items() if not (name == SEED and value is None)}
        hidden = {SEED} if self.random else set[str]()
        with drawing(tracer, None):  # a gradient draws nothing of its own
            return with_gradient(self.name, self.declared, self.gradient, given, returned, again, hidden)

    def _called(self, values: Mapping[str, Any]) -> Any:
        """The function called with its own arguments."""
        own = {n: argument(value, n) for n, value in values.items() if not (self.random and n == SEED)}
        with nullcontext() if self.check_indices else own_places():
            return in_own_memory(called(self.function, own, self.listed or ()))


def _with_seed(op: str, signature: inspect.Signature) -> inspect.Signature:
    """The signature with the argument ``seed`` in addition."""
    if SEED in signature.parameters:
        raise DeclarationError(
            f"op {op}", given=f"random=True, and an argument {SEED}",
            expected=f"an op that draws random numbers has an argument {SEED}, which it is given anyway",
            fix="call yours otherwise",
        )  # fmt: skip
    own = inspect.Parameter(SEED, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="fg.Scalar")
    return signature.replace(parameters=[*signature.parameters.values(), own])


def _without_kinds(signature: inspect.Signature) -> inspect.Signature:
    """``"fg.Const[int]"``, as text, is fg.Const."""
    kinds = [str(parameter.annotation).partition("[") for parameter in signature.parameters.values()]
    if not any(front in ("fg.Const", "Const") and bracket for front, bracket, _ in kinds):
        return signature
    each = zip(signature.parameters.values(), kinds, strict=True)
    return signature.replace(
        parameters=[p.replace(annotation="fg.Const") if k[0] in ("fg.Const", "Const") else p for p, k in each]
    )


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return "lambda_" if name == "<lambda>" else name


def _check_parameters(op: str, signature: inspect.Signature) -> None:
    """Each parameter is an operand, a scalar or a constant; ``*xs`` is any number of them.

    Raises:
        DeclarationError: ``**kwargs`` is none of these; a default in front of ``*xs``, which no call could leave out.
    """
    parameters = list(signature.parameters.values())
    for at, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_KEYWORD:
            raise DeclarationError(
                f"op {op}", given=f"the parameter {parameter}",
                expected="named parameters, or a list *xs: each is an operand, a scalar or a constant",
                fix="give every argument a name of its own",
            )  # fmt: skip
        optional = [p for p in parameters[:at] if p.default is not p.empty]
        if parameter.kind is parameter.VAR_POSITIONAL and optional:
            raise DeclarationError(
                f"op {op}", given=f"the parameter {optional[0]} in front of {parameter}",
                expected="no defaults in front of a list: with tensors in it, all in front are passed",
                fix=f"put {optional[0].name} behind {parameter}: it is passed by name",
            )  # fmt: skip


def _pattern(value: Any) -> Any:
    """What a trace depends on. It keeps constants themselves, not their text: two functions may print alike."""
    if isinstance(value, TensorSpec):
        return value.pattern
    if isinstance(value, float):
        return type(value), value.hex()  # tells -0.0 from 0.0, and finds NaN again
    if isinstance(value, (tuple, list)):
        return type(value), *(_pattern(item) for item in value)
    if isinstance(value, dict):
        return type(value), *((key, _pattern(item)) for key, item in value.items())
    try:
        hash(value)
    except TypeError:
        raise DeclarationError(
            "a constant argument", given=f"a {type(value).__qualname__}, which has no hash",
            expected="what can be a dictionary's key: numbers, strings, tuples, functions", fix="pass a tuple",
        ) from None  # fmt: skip
    return type(value), value


def _sizes_clash(op: Op, arguments: Mapping[str, Any]) -> bool:
    """Whether these sizes contradict the trace found for their pattern; tracing again then says what is wrong."""
    sizes: dict[str, int] = {}
    for operand in op.operands:
        try:
            shape = view_shape(operand, arguments[operand.base].shape)
        except ShapeError:
            return True
        for axis, size in zip(operand.shape, shape, strict=True):
            if (size == 1) is not (axis is None):  # of a part, or a group: the pattern of the whole does not tell
                return True
            if axis is not None and sizes.setdefault(axis, size) != size:
                return True
    return mismatch(op, sizes) is not None


def is_symbolic(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call's arguments come from a declaration that is being traced."""
    return any(isinstance(value, Value) for value in (*args, *kwargs.values()))
