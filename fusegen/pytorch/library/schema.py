"""Which torch schema a call of an op has: ``lerp(Tensor input, Tensor end, float weight) -> Tensor``.

A declaration says little about types: a parameter may take a tensor in one call and a number in the next. So an op has
one overload for each kind of call. The plain one, ``default``, has the types that annotations and defaults suggest;
others are named by what differs: ``lerp.weight_Tensor``, ``sum.dim_int``. A constant that no schema can carry (a
function, nested tuples) makes an op of its own, and is part of its name. Overloads of one name always differ in types:
torch confuses those that do not, and crashes when it takes them down at exit.

Behind its own arguments each overload takes what compiled code says of the op (pytorch/library/identity), which changes
nothing.
"""

from __future__ import annotations

import dis
import inspect
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fusegen.core.errors import DeclarationError
from fusegen.core.subexpressions import ascii_name, safe_name
from fusegen.declare.op import INPLACE_BACKWARD, Declaration

# What a schema calls each kind of argument. Ints are SymInt: a constant one is made concrete when it is looked at.
TYPES = {
    "Tensor": "Tensor", "bool": "bool", "int": "SymInt", "float": "float", "str": "str", "ints": "SymInt[]",
    "dtype": "ScalarType",
}  # fmt: skip
# What else each type takes: a float parameter takes an int, as torch's do.
ACCEPTED = {
    "Tensor": {"Tensor"}, "bool": {"bool"}, "SymInt": {"int"}, "float": {"float", "int"}, "str": {"str"},
    "SymInt[]": {"ints"}, "ScalarType": {"dtype"}, "Scalar": {"float", "int", "bool"},
}  # fmt: skip
# Parameters that say how a call is carried out, not what it computes: an overload is always the functional one.
HIDDEN = ("inplace", INPLACE_BACKWARD)
# The argument behind an op's own.
IDENTITY = "_identity"
# Results of an op whose number is not known before it is traced.
MANY = -1


@dataclass(frozen=True)
class Schema:
    """One overload: its names, what torch is given behind them, its arguments, and constants that are part of it.

    Attributes:
        spelled: arguments whose names a schema cannot have, and what they are called there: ("α", "u3b1").
    """

    packet: str
    overload: str
    text: str
    names: tuple[str, ...]
    fixed: tuple[tuple[str, Any], ...]
    spelled: tuple[tuple[str, str], ...] = ()

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a call of the overload by name, its own constants among them, and no identity."""
        given = {**dict(zip(self.names, args, strict=False)), **self.own(kwargs), **dict(self.fixed)}
        given.pop(IDENTITY, None)
        return given

    def own(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same by the declaration's own names."""
        back = {spelled: name for name, spelled in self.spelled}
        return {back.get(name, name): value for name, value in kwargs.items()}

    def theirs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by the declaration's names as a call of the overload takes them."""
        there, fixed = dict(self.spelled), dict(self.fixed)
        return {there.get(name, name): value for name, value in given.items() if name not in fixed}


def schema_of(declaration: Declaration, name: str, kinds: Mapping[str, str], fixed: Mapping[str, Any]) -> Schema:
    """The overload of op ``name`` for a call.

    Args:
        kinds: what was passed, by parameter: a key of TYPES, "none", or "other" for what no schema can carry.
        fixed: the constants of kind "other".

    Raises:
        DeclarationError: an argument that is no parameter.
    """
    parameters = declaration.signature.parameters
    for given in kinds:
        if given not in parameters:
            raise DeclarationError(
                f"{declaration.name}{declaration.signature}", given=f"an argument {given}",
                expected="arguments that fit the signature", fix="see the signature above",
            )  # fmt: skip
    parts: list[str] = []
    names: list[str] = []
    differing: list[str] = []
    constants: list[str] = [name]
    names_there = spelled(parameters)
    baked: dict[str, Any] = {}
    optional = False  # after one with a default, every positional parameter needs one
    for parameter in parameters.values():
        kind, called = kinds.get(parameter.name), names_there.get(parameter.name, parameter.name)
        if parameter.name in HIDDEN:
            baked[parameter.name] = parameter.default
            continue
        plain, may_lack = _plain(parameter)
        default = _default(parameter, plain)
        if kind == "other" or (kind is None and default is None and parameter.default is not parameter.empty):
            baked[parameter.name] = fixed.get(parameter.name, parameter.default)
            if kind == "other":
                constants.append(f"{called}_is_{_label(baked[parameter.name])}")
            continue
        if kind is not None and not (may_lack if kind == "none" else kind in ACCEPTED[plain]):
            differing.append(f"{called}_{'None' if kind == 'none' else kind}")
            plain, may_lack, default = TYPES.get(kind, "Tensor"), kind == "none" or optional, None
        if default is None and optional and parameter.kind is not parameter.KEYWORD_ONLY:
            may_lack, default = True, "None"
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        optional = optional or default is not None
        names.append(parameter.name)
        parts.append(f"{plain}{'?' if may_lack else ''} {called}{f'={default}' if default is not None else ''}")
    parts += [*([] if "*" in parts else ["*"]), f'str {IDENTITY}=""']
    overload = "_".join(differing)
    returns = {MANY: "Tensor[]", 0: "Tensor"}.get(
        count := result_count(declaration), f"({', '.join(['Tensor'] * count)})"
    )
    text = f"({', '.join(parts)}) -> {returns}"
    return Schema("_".join(constants), overload, text, tuple(names), tuple(baked.items()), tuple(names_there.items()))


def spelled(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Names for parameters with letters that torch's parser of schemas does not take, which no other parameter has."""
    found: dict[str, str] = {}
    for name in parameters:
        if not name.isascii():
            found[name] = safe_name(ascii_name(name), {*parameters, *found.values()})
    return found


def usual_kinds(declaration: Declaration) -> list[dict[str, str]]:
    """Kinds of calls to expect: the plain one; tensors for numbers, and an int for several, one by one and all."""
    other = {"float": "Tensor", "Scalar": "Tensor", "SymInt[]": "int"}
    parameters = declaration.signature.parameters.values()
    found = {p.name: other[plain] for p in parameters if (plain := _plain(p)[0]) in other}
    kinds = [{}, *({name: kind} for name, kind in found.items())]
    return [*kinds, found] if len(found) > 1 else kinds


def _plain(parameter: inspect.Parameter) -> tuple[str, bool]:
    """The type that annotation and default suggest, and whether None is fine too."""
    annotation, default = parameter.annotation, parameter.default
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    may_lack = default is None or "None" in text
    word = text.replace("| None", "").replace("None |", "").strip().rpartition(".")[2]
    if word in ("Tensor", "bool", "str", "float", "int"):
        return TYPES[word], may_lack
    if word == "Scalar":
        return "Scalar", may_lack
    for kind, types in (("bool", bool), ("int", int), ("float", float), ("str", str), ("ints", (tuple, list))):
        if isinstance(default, types):
            return TYPES[kind], may_lack
    if word == "Const":
        unknown = "ScalarType" if parameter.name == "dtype" else "SymInt[]"
        if default is None:
            return unknown, True
        return ("SymInt[]" if parameter.name.endswith("shape") else "SymInt"), may_lack
    return "Tensor", may_lack


def _default(parameter: inspect.Parameter, plain: str) -> str | None:
    """The default as a schema writes it; None if there is none, or none that it can write."""
    value = parameter.default
    if value is None:
        return "None"
    if isinstance(value, bool):
        return str(value) if plain in ("bool", "Scalar") else None
    if isinstance(value, int) and plain in ("SymInt", "float", "Scalar"):
        return repr(float(value) if plain == "float" else value)
    if isinstance(value, float) and plain in ("float", "Scalar"):
        return repr(value) if abs(value) < float("inf") else None
    if isinstance(value, str) and plain == "str" and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if isinstance(value, (tuple, list)) and plain == "SymInt[]" and all(type(item) is int for item in value):
        return f"[{', '.join(map(repr, value))}]"
    return None


def _label(value: Any) -> str:
    """A constant as part of a name; with a checksum where the text says not everything."""
    text = getattr(value, "__qualname__", None) or repr(value)
    short = re.sub(r"\W+", "_", text).strip("_")
    return short if len(short) <= 24 and not callable(value) else f"{short[:24]}_{zlib.crc32(text.encode()):08x}"


def result_count(declaration: Declaration) -> int:
    """How many results: 0 for a tensor, n for a tuple of n, MANY where it depends on the arguments.

    Read off the annotation ``-> tuple[...]``, or else off what the function returns: ``return a, b`` is a tuple of two.
    """
    text = _returns(declaration)
    if "tuple" in text:
        inside = re.fullmatch(r"tuple\[(.*)\]", text)
        return MANY if inside is None or "..." in text else inside.group(1).count(",") + 1
    return _returned(declaration.function)


def says_tuple(declaration: Declaration) -> bool:
    """Whether the annotation says that it is a tuple, however many there are."""
    return re.fullmatch(r"tuple\[.*\]", _returns(declaration)) is not None


def _returns(declaration: Declaration) -> str:
    annotation = declaration.signature.return_annotation
    return annotation if isinstance(annotation, str) else str(annotation)


@lru_cache(maxsize=1024)
def _returned(function: Callable[..., Any]) -> int:
    """The same, read off the code: what stands before each ``return``, or jumps to it."""
    code = getattr(function, "__code__", None)
    steps = [] if code is None else list(dis.get_instructions(code))
    found: set[int] = set()
    for at, step in enumerate(steps):
        if step.opname == "RETURN_VALUE":
            jumps = [i for i, other in enumerate(steps) if other.opcode in _JUMPS and other.argval == step.offset]
            before = [steps[i - 1] for i in ([] if at - 1 in jumps else [at]) + jumps]
            found |= {_tuple_length(instruction) for instruction in before}
    return found.pop() if len(found) == 1 else MANY if found else 0


_JUMPS = {code for name, code in dis.opmap.items() if name.startswith("JUMP_") and "IF" not in name}


def _tuple_length(made_by: dis.Instruction) -> int:
    if made_by.opname == "BUILD_TUPLE":
        return made_by.arg or 0
    return MANY if made_by.opname in ("LIST_TO_TUPLE", "CALL_INTRINSIC_1") else 0
