"""Which op the command line means, and what to call it with."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusegen.cli import blame
from fusegen.cli.examples import Example, example_of
from fusegen.cli.formula import formula_op, is_formula
from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError, DtypeError, FusegenError, ShapeError
from fusegen.declare import language, table
from fusegen.declare.op import SEED, Const, Scalar
from fusegen.declare.trace import TensorSpec
from fusegen.fused_op import FusedOp, ListOp

_IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<op>\w+)")
_IN_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<op>\w+)")
# Tensors in a list of which nothing is said, and at most.
LISTED, MOST_LISTED = 3, 1000
_SCALARS = (Const, Scalar, float, int, bool, str)
_SCALAR_TEXTS = frozenset(
    ("Const", "fg.Const", "Scalar", "fg.Scalar", "float", "int", "bool", "str", "float | None", "int | None")
)


def library() -> dict[str, FusedOp]:
    """The ops that ship with fusegen, by name, in alphabetical order."""
    module = importlib.import_module("fusegen.ops")
    found = {name: value for name, value in vars(module).items() if isinstance(value, FusedOp)}
    return dict(sorted(found.items()))


def resolve(text: str, request: Request | None = None) -> FusedOp:
    """The op called ``text``: a name of the library, ``path/file.py:op``, ``package.module:op``, or a formula.

    Args:
        request: of an op that takes a list of tensors, the op for as many as this names.

    Raises:
        DeclarationError: there is none; the message names the nearest.
    """
    op = named(text)
    return op if request is None else of_request(op, request)


def of_request(op: FusedOp, request: Request) -> FusedOp:
    """The op itself; of one that takes a list of tensors, the op for as many as the request names."""
    return op.of(_listed(op, request)) if isinstance(op, ListOp) else op


def _listed(op: ListOp, request: Request) -> int:
    """How many tensors of the list ``*xs`` are asked for: by their names (xs_0), or by names of the caller's own
    for all tensors; else a few."""
    asked = {name for name in (*request.shapes, *request.dtypes, *request.arguments) if name}
    numbers = [int(end) for name in asked if (end := name.removeprefix(f"{op.declaration.tensors}_")).isdecimal()]
    if numbers:
        return min(max(numbers) + 1, MOST_LISTED)
    others = len(asked.difference(op.declaration.signature.parameters)) - len(tensor_parameters(op.of(0)))
    return others if others > 0 else LISTED


def named(text: str) -> FusedOp:
    """As ``resolve``, of any number of tensors in its list."""
    in_file = _IN_FILE.fullmatch(text)
    if in_file:
        return _member(_module_of_file(in_file["file"]), in_file["op"], text)
    in_module = _IN_MODULE.fullmatch(text)
    if in_module:
        return _member(_import(in_module["module"]), in_module["op"], text)
    known = library()
    if text in known or text.replace("-", "_") in known:
        return known.get(text) or known[text.replace("-", "_")]
    if text.endswith(".py"):
        raise _unknown(f"op {text}", "a file, and none of its ops", text, {}, f"name the op: {text}:op")
    if is_formula(text):
        return formula_op(text)
    raise _unknown(f"op {text}", "the library has no op of this name", text, known, "`fusegen list` prints all names")


def _unknown(where: str, given: str, name: str, known: Mapping[str, Any], otherwise: str) -> DeclarationError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    fix = f"did you mean {' or '.join(near)}?" if near else otherwise
    return DeclarationError(
        where, given=given, expected="a name of the library, path/file.py:op, package.module:op, or a formula", fix=fix
    )


def _member(module: Any, name: str, text: str) -> FusedOp:
    known = {key: value for key, value in vars(module).items() if isinstance(value, FusedOp)}
    if name not in known:
        given = f"{name!r} there is no op" if hasattr(module, name) else f"no {name!r} there"
        others = f"its ops are: {', '.join(known)}" if known else "decorate the function with @fg.op"
        raise _unknown(f"op {text}", given, name, known, others)
    return known[name]


def ops_of_file(file: str) -> dict[str, FusedOp]:
    """The ops that a file declares, by name and in its order, each once; not those that it imports.

    Raises:
        DeclarationError: it has none, or cannot be imported.
    """
    module = _module_of_file(file)
    found: dict[int, tuple[str, FusedOp]] = {}
    for name, value in vars(module).items():
        if isinstance(value, FusedOp) and not _is_imported(value, module):
            found.setdefault(id(value), (name, value))
    if not found:
        raise DeclarationError(
            file, given="a file that declares no op", expected="functions with @fg.op in it",
            fix="decorate one with @fg.op; ops that a file imports are named where they are declared",
        )  # fmt: skip
    return dict(found.values())


def _is_imported(op: FusedOp, module: Any) -> bool:
    """Whether the op has its name in another module: that of its function, which may be a factory's, or the library."""
    homes = (getattr(op.declaration.function, "__module__", None), "fusegen.ops")
    others = [sys.modules.get(name or "") for name in homes if name != module.__name__]
    return any(value is op for other in others if other is not None for value in vars(other).values())


def _module_of_file(file: str) -> Any:
    path = Path(file)
    if not path.is_file():
        raise DeclarationError(f"op {file}", given="no such file", expected="a Python file", fix="check the path")
    # A name that depends on the path, so that two files of one name stay apart.
    name = f"fusegen_file_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run as a script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]  # half of it must not be taken for all of it
        raise _broken(file, error) from error
    finally:
        sys.path.pop(0)
    return module


def _import(name: str) -> Any:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error
    finally:
        sys.path.pop(0)


def _broken(name: str, error: BaseException) -> FusegenError:
    """The error of an import, which says at which line of the user's it was raised."""
    at = blame.place(error)
    where = f"importing {name}" + (f", at {at}" if at else "")
    if isinstance(error, FusegenError):
        return error.within(where)
    given, fix = f"{type(error).__name__}: {error}", "run it with python first (--debug shows the traceback)"
    if isinstance(error, SystemExit):
        given, fix = f"a file that ends Python ({given})", 'put what it runs below `if __name__ == "__main__":`'
    return DeclarationError(where, given=given, expected="a module that imports", fix=fix)


# -- arguments -------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    """What the command line says about an op's arguments.

    ``shapes``, ``dtypes`` and ``arguments`` are by parameter name; the empty name is for all tensors.
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, DType] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, shapes: Sequence[str] = (), dtype: Sequence[str] = (), arguments: Sequence[str] = ()) -> Request:
        """From ``NAME=16,3`` or ``16,3``, ``NAME=bf16`` or ``bf16``, and ``NAME=VALUE``."""
        request = cls()
        for text in shapes:
            name, _, sizes = text.rpartition("=")
            _check_new("--shape", name, request.shapes)
            request.shapes[name] = _shape(text, sizes)
        for text in dtype:
            name, _, given = text.rpartition("=")
            _check_new("--dtype", name, request.dtypes)
            request.dtypes[name] = parse_dtype(given)
        for text in arguments:
            name, found, value = text.partition("=")
            if not found:
                raise DeclarationError(
                    f"--arg {text}", given="no value", expected="NAME=VALUE", fix=f"for example --arg {text}=0.5"
                )
            _check_new("--arg", name, request.arguments)
            request.arguments[name] = _value(value)
        return request


def _check_new(option: str, name: str, known: Mapping[str, Any]) -> None:
    if name in known:
        raise DeclarationError(
            f"{option}, given twice", given=f"two for {name}" if name else "two without a name",
            expected="one for each argument, and one without a name for all others",
            fix=f"say whose each is: {option} NAME=...",
        )  # fmt: skip


def parse_dtype(text: str) -> DType:
    """A dtype by its name, its short name or an alias ("bfloat16", "bf16", "half").

    Raises:
        DtypeError: there is none.
    """
    found = dtypes.parse(text)
    if found is None:
        near = difflib.get_close_matches(text.lower(), dtypes.BY_NAME, n=1)
        near = near or difflib.get_close_matches(text.lower(), [*dtypes.BY_SHORT, *dtypes.ALIASES], n=1)
        fix = f"did you mean {dtypes.parse(near[0])}?" if near else "use one of these"
        raise DtypeError(f"--dtype {text}", given=repr(text), expected=", ".join(dtypes.BY_NAME), fix=fix)
    return found


def _shape(text: str, sizes: str) -> tuple[int, ...]:
    items = [item.strip() for item in sizes.split(",") if item.strip()]
    if not all(item.isascii() and item.isdecimal() and len(item) < 19 for item in items):
        raise ShapeError(
            f"--shape {text}", given=repr(sizes), expected="sizes separated by commas, such as x=16,3,244",
            fix="leave it empty for a 0-d tensor: x=",
        )  # fmt: skip
    return tuple(int(item) for item in items)


def _value(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float, str, tuple, type(None))) else text


def tensor_parameters(op: FusedOp) -> list[str]:
    """Parameters that take a tensor if nothing is said: without a default, and not annotated as a number."""
    found = []
    for name, parameter in op.declaration.signature.parameters.items():
        annotation = parameter.annotation
        number = annotation in _SCALAR_TEXTS if isinstance(annotation, str) else annotation in _SCALARS
        if parameter.default is parameter.empty and not number:
            found.append(name)
    return found


def bind(op: FusedOp, request: Request, default: DType = dtypes.float32) -> dict[str, Any]:
    """Keyword arguments for ``op``: TensorSpec for tensors, numbers and constants for the rest.

    What the request leaves open comes from the op's example, made to fit what is asked for (a bias is as long as the
    rows that it is added to); of an op without an example, tensors that have no shape have the one that all named ones
    broadcast to.

    Raises:
        ShapeError: the named ones broadcast to none, or the op does not take what is assumed.
    """
    known = op.declaration.signature.parameters
    example = example_of(op.name) if library().get(op.name) is op else Example()
    request = _renamed(op, request, [*tensor_parameters(op), *example.shapes])
    unknown = [n for n in (*request.shapes, *request.dtypes, *request.arguments) if n and n not in known]
    if unknown:
        raise _unknown_parameter(op, unknown[0])
    left = [name for name in tensor_parameters(op) if name not in {**request.shapes, **request.arguments}]
    example = example.like(request.shapes) if example.shapes else replace(example, shape=_of_all(op, request, left))
    values: dict[str, Any] = {**example.arguments, **request.arguments}
    shapes = {**example.shapes, **request.shapes}
    for name in known:
        if name not in values and (name in tensor_parameters(op) or name in shapes):
            dtype = request.dtypes.get(name) or example.dtypes.get(name) or request.dtypes.get("") or default
            values[name] = TensorSpec(dtype, shapes.get(name, example.shape))
    for name, parameter in known.items():
        if name not in values and parameter.default is parameter.empty:
            values[name] = 1.0
    if op.declaration.random:
        values.setdefault(SEED, TensorSpec(dtypes.int64, ()))
    values = {name: values[name] for name in known if name in values}
    assumed = [
        name for name, value in values.items() if isinstance(value, TensorSpec) and name not in (*request.shapes, SEED)
    ]
    kinds = {*request.dtypes, *example.dtypes}
    floats = [name for name, value in values.items() if isinstance(value, TensorSpec) and name not in (*kinds, SEED)]
    if assumed or floats:
        _check_assumed(op, values, assumed, floats)
    return values


def _of_all(op: FusedOp, request: Request, left: Sequence[str]) -> tuple[int, ...]:
    """The shape of tensors that have none of their own: the one that is asked for without a name, or the one that
    those with a name broadcast to, in whatever order they are named.

    Args:
        left: the tensors that it is of.

    Raises:
        ShapeError: they broadcast to none.
    """
    if "" in request.shapes:
        return request.shapes[""]
    if not request.shapes or not left:
        return example_of(op.name).shape if library().get(op.name) is op else Example().shape
    wanted: list[int] = []
    for shape in request.shapes.values():
        wanted[:0] = [1] * (len(shape) - len(wanted))
        for place, size in enumerate(shape, start=len(wanted) - len(shape)):
            if size != wanted[place] and 1 not in (size, wanted[place]):
                named = ", ".join(f"{name}={','.join(map(str, sizes))}" for name, sizes in request.shapes.items())
                raise ShapeError(
                    f"{op.name}{signature_text(op)}", given=f"--shape {named}, which broadcast to no shape",
                    expected=f"a shape for {' and '.join(left)}",
                    fix=f"say --shape {left[0]}=16,3, or --shape 16,3 for all that have none of their own",
                )  # fmt: skip
            wanted[place] = size if wanted[place] == 1 else wanted[place]
    return tuple(wanted)


def _check_assumed(op: FusedOp, values: Mapping[str, Any], assumed: Sequence[str], floats: Sequence[str]) -> None:
    """Shapes and dtypes that nobody asked for may not fit the op; its own error could not say where they come from.

    Args:
        assumed, floats: tensors whose shape, or dtype, nobody has named.

    Raises:
        ShapeError, DtypeError: they do not.
    """
    shapes = ", ".join(f"{name}={','.join(map(str, values[name].shape))}" for name in assumed)
    fix = f"say --shape NAME=16,3 with sizes that fit: where nothing was said, this is assumed: {shapes}"
    try:
        op.trace(**values)
    except ShapeError as error:
        if not assumed:
            raise
        raise ShapeError(error.where, given=error.given, expected=error.expected, fix=fix) from None
    except DtypeError as error:
        if not floats:
            raise
        dtype = values[floats[0]].dtype
        fix = f"{error.fix}; or say --dtype NAME=bool of a mask, NAME=int64 of indices: {', '.join(floats)}"
        fix += f" {'are' if len(floats) > 1 else 'is'} {dtype} since nothing was said"
        raise DtypeError(error.where, given=error.given, expected=error.expected, fix=fix) from None
    except FusegenError:
        raise
    except (ValueError, IndexError, AssertionError) as error:  # what Python makes of `n, c, h, w = x.shape`
        at = blame.place(error)
        raise ShapeError(
            f"{op.name}, declared in {op.declaration.declared}" + (f", at {at}" if at else ""),
            given=f"{type(error).__name__}: {error}".rstrip(": "), expected="a declaration that takes these shapes",
            fix=fix,
        ) from error  # fmt: skip


def _renamed(op: FusedOp, request: Request, tensors: Sequence[str]) -> Request:
    """Shapes by names of the caller's own (x, y, w) go to the op's tensors in order, if there is one for each."""
    known = list(op.declaration.signature.parameters)
    own = [name for name in known if name in tensors]
    named = [name for name in request.shapes if name]
    if not named or len(named) != len(own) or any(name in known for name in named):
        return request
    names = dict(zip(named, own, strict=True))
    shapes = {names.get(name, name): shape for name, shape in request.shapes.items()}
    kinds = {names.get(name, name): dtype for name, dtype in request.dtypes.items()}
    return Request(shapes, kinds, request.arguments)


def _unknown_parameter(op: FusedOp, name: str) -> DeclarationError:
    known = list(op.declaration.signature.parameters)
    near = difflib.get_close_matches(name, known, n=1)
    return DeclarationError(
        f"{op.name}{signature_text(op)}", given=f"an argument {name!r}", expected=", ".join(known),
        fix=f"did you mean {near[0]}?" if near else "use one of these names",
    )  # fmt: skip


def signature_text(op: FusedOp) -> str:
    """``(input, dim=-1)``: parameters and defaults, without annotations."""
    return _without_annotations(op.declaration.signature)


def _without_annotations(signature: inspect.Signature) -> str:
    plain = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(plain))


def summary(op: FusedOp) -> str:
    """The first line of an op's docstring."""
    return _first_line(op.declaration.function)


def _first_line(function: Callable[..., Any]) -> str:
    lines = (function.__doc__ or "").strip().splitlines()
    return lines[0].strip() if lines else ""


def functions() -> list[tuple[str, str, str]]:
    """What declarations may call as ``fg.NAME``: name, parameters, first line of the docstring."""
    found = []
    for name in sorted(set(language.__all__) - {language.register_function.__name__}):
        function = getattr(language, name)
        if name in language.TABLE_FUNCTIONS:
            given = f"({', '.join(('x', 'ab', 'abc')[table.lookup(name).arity - 1])})"
        else:
            given = _without_annotations(inspect.signature(function))
        found.append((name, given, _first_line(function)))
    return found
