"""Writes the stubs: what type checkers and editors read of the names that fusegen makes at run time.

python tools/stubs.py            write declare/tensor.pyi, _language.pyi, _ops.pyi and _nn.pyi below fusegen/
python tools/stubs.py --check    fail if they are not what fusegen is now, and say which
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fusegen as fg
from fusegen.declare import language, torch_names
from fusegen.declare.tensor import Tensor
from fusegen.declare.value import Value, cast
from fusegen.fused_op import FusedOp

ROOT = Path(__file__).resolve().parent.parent
HEADER = '"""{} Made by tools/stubs.py of what fusegen is at run time: run it again when that changes."""\n\n'
# Calls that take less than what they override.
LENIENT = "# mypy: disable-error-code=override\n\n"

# -- the language ----------------------------------------------------------------------------------------------------

# What the functions of the language say of their arguments, as their callers know it.
WORDS = {"Value": "Tensor", "Packed": "Tensor", "Like": "Number"}
TYPES = {"dtype": {"Any": "DTypeLike | None"}}
# torch's names of arguments, which are taken as well.
TORCHS = {"axis": "dim", "keepdims": "keepdim"}
OPERANDS = {
    **dict.fromkeys(("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"), "Number"),
    **dict.fromkeys(("and", "or", "xor", "lshift", "rshift"), "Tensor | int"),
    "matmul": "Tensor",
}
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
UNARY = ("neg", "pos", "abs", "invert")
# What class Value has by itself, or as a property.
OWN = '''
    dtype: DType
    """The dtype torch would give it."""
    dims: Dims
    """An axis for each dimension, None where its size is one: for the library's own checks."""
    weak: bool
    """Whether it is a number, which has no dtype of its own."""

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
    @property
    def device(self) -> Any:
        """What stands for the device of this call's tensors: it may be handed on."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the tensors of this call, which are ints, and of any call where they are computed with."""
    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the tensors of this call, for checks. A declaration that reads them is traced for each shape."""
    @property
    def mT(self) -> Tensor:
        """Its last two dimensions exchanged."""
    @property
    def T(self) -> Tensor:
        """A matrix transposed."""
    def to(self, dtype: DTypeLike | Tensor, /, **options: Any) -> Tensor:
        """In another dtype (fusegen's, torch's or NumPy's, a name, or another tensor's); to a half type it rounds."""
    def __len__(self) -> int: ...
    def __getitem__(self, key: Key | tuple[Key, ...], /) -> Tensor:
        """``x[:, None]``, ``x[0]``, ``x[..., :4]``, ``x[i]``: dimensions, elements, blocks, places of a tensor."""
'''
BESIDE = '''
Number: TypeAlias = Tensor | float
Key: TypeAlias = int | slice | EllipsisType | Tensor | None
Axis: TypeAlias = int | Sequence[int] | None
DTypeLike: TypeAlias = DType | str | torch.dtype | np.dtype[Any] | type[object]

class Cumulative(NamedTuple):
    """What ``cummax`` and ``cummin`` return."""

    values: Tensor
    indices: Tensor

class HasShape(Protocol):
    """What every library's arrays have, and symbolic tensors do not."""

    @property
    def shape(self) -> Any: ...
    @property
    def ndim(self) -> int: ...
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

class Unknown:
    """What no declaration returns, unless it does not say."""

# A call's tensors are all of one kind, and so are its results: NumPy's, those of a declaration, or torch's (the class
# itself: a parameter's result is no parameter). Other libraries' arrays are what they are.
Array = TypeVar("Array", NDArray[Any], Tensor, torch.Tensor)
Given = TypeVar("Given", NDArray[Any], torch.Tensor)
Foreign = TypeVar("Foreign", bound=HasShape)
# What else a call may be given: numbers, and constants of any kind.
Option: TypeAlias = (
    float | str | None | Sequence[object] | DType | torch.dtype | np.dtype[Any] | Callable[..., object]
)
'''


def tensor() -> str:
    """The class of symbolic tensors with all their operators and methods, and the types of what a call is given."""
    text = HEADER.format("What a declaration's tensors can do.")
    text += "import builtins\nfrom collections.abc import Callable, Iterator, Sequence\n"
    text += (
        "from types import EllipsisType\nfrom typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, overload\n\n"
    )
    text += "import numpy as np\nimport torch\nfrom numpy.typing import NDArray\n\n"
    text += "from fusegen.core.dtypes import DType\nfrom fusegen.declare.axes import Dims\n\n"
    text += "class Tensor:\n" + _quoted(Tensor.__doc__, 4) + OWN
    for name, other in OPERANDS.items():
        for side in ("", "r"):
            text += f"    def __{side}{name}__(self, other: {other}, /) -> Tensor: ...\n"
    for name in COMPARISONS:
        ignored = "  # type: ignore[override]" if name in ("eq", "ne") else ""
        text += f"    def __{name}__(self, other: Number, /) -> Tensor: ...{ignored}\n"
    text += "    def __setitem__(self, key: Any, value: Tensor | float, /) -> None: ...\n"
    text += "    def __hash__(self) -> int: ...\n    def __iter__(self) -> Iterator[Tensor]: ...\n"
    text += "".join(f"    def __{name}__(self) -> Tensor: ...\n" for name in UNARY)
    made = {name: _spoken(name, getattr(Value, name), method=True) for name in methods()}
    made |= {name: _torchs(name) for name in torch_names.methods() if name not in made and name.isidentifier()}
    text += "".join(made[name] for name in sorted(made) if not name.startswith("_"))
    return _with_builtins(text) + BESIDE


def _with_builtins(text: str) -> str:
    """``int``, ``float`` and ``bool`` are methods of the class: as types they are said to be Python's."""
    names = r"(?<![\w.])(int|float|bool)\b(?!\()"
    quoted = False
    lines = []
    for line in text.splitlines(keepends=True):
        is_doc = quoted or line.lstrip().startswith('"""')
        quoted ^= line.count('"""') % 2 == 1
        kept = is_doc or line.startswith(("from", "import"))
        lines.append(line if kept else re.sub(rf"(?<!def ){names}", r"builtins.\1", line))
    return "".join(lines)


# What torch's methods return that do not return a tensor, or not always.
RETURNS = {
    "size": "Any", "dim": "int", "ndimension": "int", "numel": "int", "nelement": "int", "is_floating_point": "bool",
    "max": "Any", "min": "Any", "aminmax": "tuple[Tensor, Tensor]", "chunk": "tuple[Tensor, ...]",
    "split": "tuple[Tensor, ...]", "unbind": "tuple[Tensor, ...]",
}  # fmt: skip


def _torchs(name: str) -> str:
    """A method that symbolic tensors have because torch's have it, with its arguments."""
    entry = torch_names.method_of(name)
    assert entry is not None
    function, doc = entry.function, entry.function.__doc__
    op = re.fullmatch(r"``fg\.ops\.(\w+)``\.", doc or "")
    signature = getattr(fg.ops, op[1]).declaration.signature if op else inspect.signature(function)

    def type_of(parameter: inspect.Parameter) -> str:
        text, lacks = str(parameter.annotation), parameter.default is None and "None" not in str(parameter.annotation)
        word = _replaced(text.replace("fg.", ""), WORDS | {"Tensor": "Number", "Scalar": "Number"})
        word = CONSTANTS.get(parameter.name, "Any") if word == "Const" else word
        return word + " | None" * (lacks and word != "Any")

    parameters = [p for p in list(signature.parameters.values())[1:] if p.name not in ("inplace", "inplace_backward")]
    return _def(name, ["self", *_listed(parameters, type_of)], RETURNS.get(name, "Tensor"), doc, 4)


def methods() -> list[str]:
    """Functions of the language that symbolic tensors have as methods."""
    return sorted(n for n, m in vars(Value).items() if not n.startswith("_") and callable(m) and n != "to")


def spoken() -> str:
    """The functions that declarations call as ``fg.NAME``."""
    text = HEADER.format("The language of declarations.")
    text += "from collections.abc import Callable, Sequence\nfrom typing import Any, overload\n\n"
    text += "from fusegen.declare.tensor import Axis, Cumulative, DTypeLike, Number, Tensor\n\n"
    functions = {"cast": cast, **{name: getattr(language, name) for name in language.__all__}}
    return text + "".join(_spoken(name, function) for name, function in sorted(functions.items()))


def _spoken(name: str, function: Callable[..., Any], method: bool = False) -> str:
    signature = inspect.signature(function)
    words = WORDS | ({"Any": "DTypeLike"} if name == "cast" else {})
    parameters = list(signature.parameters.values())[1 if method else 0 :]
    returns, indent = _replaced(signature.return_annotation, words), 4 if method else 0

    def made(parameters: Sequence[inspect.Parameter], doc: str | None) -> str:
        listed = _listed(parameters, lambda p: _replaced(p.annotation, words | TYPES.get(p.name, {})))
        return _def(name, ["self", *listed] if method else listed, returns, doc, indent)

    torchs = [p.replace(name=TORCHS.get(p.name, p.name)) for p in parameters]
    if torchs == parameters:
        return made(parameters, function.__doc__)
    first = next(at for at, p in enumerate(torchs) if p.name in TORCHS.values())
    torchs[first:] = [p.replace(kind=p.KEYWORD_ONLY) for p in torchs[first:]]
    overload = f"{' ' * indent}@overload\n"
    return overload + made(parameters, function.__doc__) + overload + made(torchs, None)


# -- the library -----------------------------------------------------------------------------------------------------

# What an option without a more telling annotation may be.
CONSTANTS = {
    "correction": "float", "dim": "int | Sequence[int]", "dims": "int | Sequence[int]", "dtype": "DTypeLike",
    "normalized_shape": "Sequence[int | None]", "num_groups": "int", "options": "object", "ord": "float",
    "p": "float", "pad": "Sequence[int]", "padding_idx": "int", "shifts": "int | Sequence[int]", "unbiased": "bool",
}  # fmt: skip
# Arguments without a default that may be None.
MAY_LACK = ("bias", "residual", "running_mean", "running_var")


def ops() -> str:
    """The library: each op with a call of its own, and the methods of all."""
    text = HEADER.format("The library, ``fg.ops``.") + LENIENT
    text += "from collections.abc import Sequence\nfrom typing import Literal, overload\n\n"
    text += "from fusegen.declare.tensor import Array, DTypeLike, Foreign, Tensor\n"
    text += "from fusegen.fused_op import FusedOp\nfrom fusegen.linear_loss_op import LinearLossOp\n\n"
    names = sorted(fg.ops.__all__)
    text += "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"
    return text + "".join(_op(name, getattr(fg.ops, name)) for name in names)


def _op(name: str, op: FusedOp[..., Any]) -> str:
    parameters = op.declaration.signature.parameters
    several = re.fullmatch(r"tuple\[(.*)\]", str(op.declaration.signature.return_annotation))
    count = several[1].count(",") + 1 if several else 1
    result = "tuple[Tensor, ...]" if several else "Tensor"
    base = "LinearLossOp" if isinstance(op, fg.LinearLossOp) else f"FusedOp[..., {result}]"
    text, doc = f"\nclass _{name}({base}):\n", op.__doc__
    sums = (None, False, True) if "return_sum" in parameters else (None,)
    for kind in ("Array", "Foreign"):
        for returns_sum in sums[len(sums) > 1 :]:
            text += _call(list(parameters.values()), kind, 2 if returns_sum else count, returns_sum, doc)
            doc = None
    return text + f"{name}: _{name}\n" + _quoted(op.__doc__, 0)


def _call(
    parameters: Sequence[inspect.Parameter], kind: str, count: int, returns_sum: bool | None, doc: str | None
) -> str:
    first = parameters[0].name

    def type_of(parameter: inspect.Parameter) -> str:
        if parameter.name == "return_sum":
            return f"Literal[{returns_sum}]"
        if parameter.name == "out":
            return f"{kind} | None" if count == 1 else f"Sequence[{kind}] | None"
        text, lacks = str(parameter.annotation), parameter.default is None or "None" in str(parameter.annotation)
        word = text.replace("| None", "").strip().rpartition(".")[2]
        known = {"Tensor": kind if parameter.name == first else f"{kind} | float", "float": f"{kind} | float"}
        known |= {"Scalar": f"{kind} | float", "Const": CONSTANTS.get(parameter.name, "")}
        lacks = lacks or (parameter.name in MAY_LACK and word == "Tensor")
        return known.get(word, word) + (" | None" if lacks else "")

    if returns_sum:  # without a default: it has to be said
        parameters = [p.replace(default=p.empty) if p.name == "return_sum" else p for p in parameters]
    out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
    returns = kind if count == 1 else f"tuple[{', '.join([kind] * count)}]"
    listed = _listed([*parameters, out], type_of)
    return "    @overload\n" + _def("__call__", ["self", *listed], returns, doc, 4)


# -- modules ---------------------------------------------------------------------------------------------------------


# Methods with underscores that callers see.
NEEDED = ("__init__", "__enter__", "__exit__")
# Torch's arguments, and two more.
CONVOLUTION = """    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "relu",
        options: dict[str, Any] | None = None,
    ) -> None: ...
    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...
"""


def nn() -> str:
    """The modules: those of torch's names take torch's arguments, and are torch's classes to whoever asks."""
    text = HEADER.format("The modules, ``fg.nn``.") + LENIENT
    text += "from collections.abc import Callable, Iterable\nfrom typing import Any, TypeAlias\n\n"
    text += "import torch\nfrom torch import nn\n\n"
    text += "Choice: TypeAlias = str | type | Callable[[str, nn.Module], bool]\n"
    text += "Choices: TypeAlias = Choice | Iterable[Choice] | None\n\n"
    names = sorted({*fg.nn.__all__} - {"patch"})
    text += "__all__ = [\n" + "".join(f'    "{name}",\n' for name in sorted(fg.nn.__all__)) + "]\n"
    text += _class(sys.modules[fg.nn.patch.__module__].Found)
    text += "".join(_class(getattr(fg.nn, name)) for name in names)
    signature = inspect.signature(fg.nn.patch)
    listed = _listed(list(signature.parameters.values()), lambda p: str(p.annotation))
    return text + "\n" + _def("patch", listed, str(signature.return_annotation), fg.nn.patch.__doc__, 0)


def _class(made: type) -> str:
    """A class: torch's arguments and attributes where it is a subclass of torch's, and what it has of its own."""
    bases = [base for base in made.__mro__ if base.__module__.startswith("torch.")]
    text = f"\nclass {made.__name__}{f'(nn.{bases[0].__name__})' if bases else ''}:\n" + _quoted(made.__doc__, 4)
    if made.__name__.endswith("Act"):
        return text + CONVOLUTION
    ours = [base for base in reversed(made.__mro__) if base.__module__.startswith("fusegen.")]
    if "fusegen_base" in vars(made):  # the same arguments as torch's
        return text
    members = {name: member for base in ours for name, member in vars(base).items()}
    if dataclasses.is_dataclass(made):
        del members["__init__"]
        text += "".join(f"    {f.name}: {f.type}\n" for f in dataclasses.fields(made) if not f.name.startswith("_"))
    for name, member in members.items():
        if isinstance(member, property):
            text += "    @property\n" + _method(name, member.fget)
        elif inspect.isfunction(member) and name in (*NEEDED, *filter(str.isalpha, members)):
            text += _method(name, member)
    return text


def _method(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    listed = _listed(list(signature.parameters.values())[1:], lambda p: str(p.annotation))
    return _def(name, ["self", *listed], str(signature.return_annotation), function.__doc__, 4)


# -- text ------------------------------------------------------------------------------------------------------------


def _quoted(doc: str | None, indent: int) -> str:
    """A docstring, its lines indented."""
    text = inspect.cleandoc(doc or "").replace("\\", "\\\\").replace('"""', r"\"\"\"")
    text += "\n" if "\n" in text else " " if text.endswith('"') else ""
    return textwrap.indent(f'"""{text}"""', " " * indent) + "\n"


def _replaced(annotation: Any, words: Mapping[str, str]) -> str:
    """An annotation's text in other words."""
    return re.sub(r"\b[A-Za-z]\w*\b", lambda found: words.get(found[0], found[0]), str(annotation))


def _listed(parameters: Sequence[inspect.Parameter], type_of: Callable[[inspect.Parameter], str]) -> list[str]:
    """Parameters as a ``def`` lists them."""
    found: list[str] = []
    before = None
    for parameter in parameters:
        kind = parameter.kind
        if before is kind.POSITIONAL_ONLY and kind is not before:
            found.append("/")
        if kind is kind.KEYWORD_ONLY and before not in (kind, kind.VAR_POSITIONAL):
            found.append("*")
        star = {kind.VAR_POSITIONAL: "*", kind.VAR_KEYWORD: "**"}.get(kind, "")
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        found.append(f"{star}{parameter.name}: {type_of(parameter)}{default}")
        before = kind
    return [*found, "/"] if before is not None and before is before.POSITIONAL_ONLY else found


def _default(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else "..."


def _def(name: str, parameters: Sequence[str], returns: str, doc: str | None, indent: int) -> str:
    """A function of a stub, in as many lines as it takes."""
    space, tail = " " * indent, ":\n" if doc else ": ...\n"
    line = f"{space}def {name}({', '.join(parameters)}) -> {returns}"
    if len(line) + len(tail) > 121:
        each = "".join(f"{space}    {parameter},\n" for parameter in parameters)
        line = f"{space}def {name}(\n{each}{space}) -> {returns}"
    return line + tail + (_quoted(doc, indent + 4) if doc else "")


FILES: dict[str, Callable[[], str]] = {
    "fusegen/declare/tensor.pyi": tensor, "fusegen/_language.pyi": spoken, "fusegen/_ops.pyi": ops,
    "fusegen/_nn.pyi": nn,
}  # fmt: skip


def main() -> int:
    """Write the stubs, or say which are not what they should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = 0
    for name, make in FILES.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale += 1
            print(f"{name} {'is not what fusegen is now: run tools/stubs.py' if check else 'written'}")
            if not check:
                path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
