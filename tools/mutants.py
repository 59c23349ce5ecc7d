"""Mutants of the compiler: where a small change can be made to its code, and a random sample of such changes.

What Python's code has in general comes from cosmic-ray: operators, comparisons, constants, conditions, loops. What only
this code has is below: terms of sums and adjoints, axes of reductions, guards, barriers, and everything in templates.

What cannot change a result is left out by rule: docstrings, annotations, imports, decorators, ``raise`` and ``assert``,
what errors, warnings and comments of kernels say, how text is indented, comments, preprocessor lines, and lines of
headers that a GPU alone compiles, or the emulator alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

FOLDERS = ("fusegen/derive", "fusegen/fuse", "fusegen/generate", "templates")


@dataclass(frozen=True, order=True)
class Site:
    """One change that can be made to a file."""

    path: str
    line: int
    operator: str
    change: Callable[[str], str | None] = field(compare=False)


@dataclass(frozen=True)
class Mutant:
    """A changed file.

    Attributes:
        old: the lines that it replaces.
        new: what stands in their place.
    """

    path: str
    line: int
    operator: str
    old: str
    new: str
    text: str

    @property
    def key(self) -> str:
        """What tells it from others, wherever its lines have moved to."""
        return f"{self.path}: {self.old} => {self.new}"

    @property
    def folder(self) -> str:
        """The part of the compiler that it is of."""
        return next(folder for folder in FOLDERS if self.path.startswith(folder))


def files(root: Path) -> Iterator[str]:
    """Every file that is mutated, below ``root``."""
    for folder in FOLDERS:
        for path in sorted((root / folder).iterdir()):
            if path.name != "__init__.py" and (path.name.endswith((".py", ".cu.j2", ".cuh"))):
                yield path.relative_to(root).as_posix()


def sites(path: str, text: str) -> list[Site]:
    """Every change that can be made to a file."""
    found = [*_of_python(path, text), *_library(path, text)] if path.endswith(".py") else list(_of_text(path, text))
    return sorted(found, key=lambda site: (site.line, site.operator))


def sample(root: Path, size: int, seed: int) -> list[Mutant]:
    """So many mutants: lines are drawn first, then one change of each, so that a line counts as much as any other."""
    drawn: list[tuple[str, str, list[Site]]] = []
    for path in files(root):
        text = (root / path).read_text(encoding="utf-8")
        lines = text.splitlines()
        by_line: dict[int, list[Site]] = {}
        for site in sites(path, text):
            by_line.setdefault(site.line, []).append(site)
        seen: dict[str, int] = {}
        for line, choices in sorted(by_line.items()):
            words = lines[line - 1].strip()
            seen[words] = seen.get(words, 0) + 1
            drawn.append((_rank(seed, path, words, seen[words]), text, choices))
    found: list[Mutant] = []
    for rank, text, choices in sorted(drawn, key=lambda item: item[0]):
        ranked = sorted((_rank(seed, rank, site.operator, i), site) for i, site in enumerate(choices))
        made = next((made for _, site in ranked if (made := apply(site, text))), None)
        if made is not None:
            found.append(made)
        if len(found) == size:
            break
    return found


def _rank(*words: object) -> str:
    """A place in an order at random, whatever else is in it: a sample stays what it was where the code did."""
    return sha256(repr(words).encode()).hexdigest()


def apply(site: Site, text: str) -> Mutant | None:
    """The mutant, or None where the change gives the same program, or none."""
    changed = site.change(text)
    if changed is None or changed == text or (site.path.endswith(".py") and not _is_another(text, changed)):
        return None
    old, new = _lines_that_differ(text, changed)
    return Mutant(site.path, site.line, site.operator, old, new, changed)


def _is_another(text: str, changed: str) -> bool:
    try:
        return ast.dump(ast.parse(text)) != ast.dump(ast.parse(changed))
    except SyntaxError:
        return False


def _lines_that_differ(text: str, changed: str) -> tuple[str, str]:
    before, after = text.split("\n"), changed.split("\n")
    start = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    if start == len(before) - end:  # something has come in: show before what
        end -= 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    return " ".join(line.strip() for line in old), " ".join(line.strip() for line in new)


def _replacing(start: int, end: int, by: str) -> Callable[[str], str]:
    return lambda text: text[:start] + by + text[end:]


# -- Python: where nothing is changed ----------------------------------------------------------------------------------


class _Source:
    """A module's text and its tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = text.splitlines()
        self.kept = [self.span(node) for node in _fixed(self.tree)]

    def at(self, line: int, column: int) -> int:
        """The place in the text; ``column`` counts bytes, as ast does."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        where: Any = node
        return self.at(where.lineno, where.col_offset), self.at(where.end_lineno, where.end_col_offset)

    def code(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def is_kept(self, place: int) -> bool:
        return any(start <= place < end for start, end in self.kept)


@cache
def _source(text: str) -> _Source:
    return _Source(text)


def _fixed(tree: ast.Module) -> Iterator[ast.AST]:
    """What no result depends on."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(returns=returns, decorator_list=decorators):
                yield from (*decorators, *([returns] if returns else []))
            case ast.ClassDef(decorator_list=decorators):
                yield from decorators
            case ast.arg(annotation=ast.AST() as annotation) | ast.AnnAssign(annotation=annotation):
                yield annotation
            case _ if _is_fixed(node):
                yield node


def _is_fixed(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Raise() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=function):
            return _name(function).endswith(("Error", "warn", "TypeVar", "cast"))
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.JoinedStr():
            return _is_prose(node)
    return _is_alias_of_types(node)


def _is_prose(node: ast.JoinedStr) -> bool:
    """Words for people: comments of kernels, messages."""
    text = "".join(part.value for part in node.values if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return len(re.findall(r"\b[a-z]{2,} [a-z]{2,}\b", text)) > 1


def _is_alias_of_types(node: ast.AST) -> bool:
    """``Shape = tuple[int, ...]``, ``Placement = Whole | Shard``"""
    if not isinstance(node, ast.Assign):
        return False
    value = node.value
    if isinstance(value, ast.Subscript):
        return _name(value.value) in ("tuple", "dict", "list", "Callable", "Mapping", "Sequence")
    return _name(node.targets[0])[:1].isupper() and _is_union(value)


def _is_union(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return all(_name(side)[:1].isupper() or _is_union(side) for side in (node.left, node.right))
    return False


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# -- Python: the library's operators -----------------------------------------------------------------------------------

# Of cosmic-ray's operators those that a person's slip could be; a decorator less or another exception is none.
_LIBRARY = re.compile(
    r"ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Mul|Mod_FloorDiv|Pow_Mul|BitOr_BitAnd|BitAnd_BitOr)"
    r"|ReplaceUnaryOperator_(USub_UAdd|Not_.*|Delete_.*)|ReplaceUnaryOperator_Delete.*"
    r"|AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceBreakWithContinue"
    r"|ReplaceContinueWithBreak|NumberReplacer|ZeroIterationForLoop"
)


def _library(path: str, text: str) -> Iterator[Site]:
    """What cosmic-ray can change."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    source = _source(text)
    nodes = list(ast_nodes(get_ast(text)))
    provider = OperatorProvider()
    for name in sorted(filter(_LIBRARY.fullmatch, provider)):
        operator = provider[name]()
        places = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(places):
            # parso counts characters
            if not source.is_kept(source.starts[line - 1] + column):
                change = lambda text, o=operator, n=occurrence: mutate_code(text, o, n)  # noqa: E731
                yield Site(path, line, _plain(name), change)


def _plain(name: str) -> str:
    """An operator of the library's in words of the report."""
    if "Comparison" in name:
        pair = name.partition("_")[2]
        return "bound" if pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt") else "negated comparison"
    known = {
        "AddNot": "negated condition", "NumberReplacer": "constant", "ZeroIterationForLoop": "no iterations",
        "ReplaceTrueWithFalse": "constant", "ReplaceFalseWithTrue": "constant", "ReplaceAndWithOr": "and, or",
        "ReplaceOrWithAnd": "and, or", "ReplaceBreakWithContinue": "break, continue",
        "ReplaceContinueWithBreak": "break, continue",
    }  # fmt: skip
    return known.get(name, "sign" if "Unary" in name else "operator")


# -- Python: what this code has ----------------------------------------------------------------------------------------


def _of_python(path: str, text: str) -> Iterator[Site]:
    source = _source(text)
    # Python 3.11 does not know where things stand in an f-string.
    within = {
        id(inner) for node in ast.walk(source.tree) if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)
    }
    for node in ast.walk(source.tree):
        if not hasattr(node, "lineno") or id(node) in within:
            continue
        for operator, start, end, by in _changes(source, node):
            if not source.is_kept(start):
                line = text.count("\n", 0, start) + 1
                yield Site(path, line, operator, _replacing(start, end, by))


Change = tuple[str, int, int, str]
# What holds the axes of a reduction, wherever one is handed on.
_AXES = ("over",)
# Functions whose arguments are of one kind and not to be exchanged, and how many come before those. Anything else
# exchanged is an error of types, which every test finds.
_ORDERED = {"apply": 1, "zip": 0, "range": 0, "multiply": 0, "Call": 1}
_COMMUTE = ("add", "mul", "eq", "ne", "and", "or", "maximum", "minimum")


def _changes(source: _Source, node: ast.AST) -> Iterator[Change]:
    start, end = source.span(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.BitOr, ast.BitAnd)):
        yield "term", start, end, source.code(node.left)
        if not isinstance(node.op, ast.Sub):
            yield "term", start, end, source.code(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)):
        yield "swapped operands", start, end, _swapped(source, node, node.left, node.right)
    if isinstance(node, ast.Call) and (skipped := _ORDERED.get(_name(node.func))) is not None:
        commutes = isinstance(node.args[0], ast.Constant) and node.args[0].value in _COMMUTE
        for first, second in pairwise(node.args[skipped:] if not commutes else []):
            yield "swapped operands", start, end, _swapped(source, node, first, second)
    if isinstance(node, (ast.If, ast.IfExp)):
        for value in ("True", "False"):
            yield "guard", *source.span(node.test), value
    if isinstance(node, ast.comprehension):
        return
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        for test in (test for generator in node.generators for test in generator.ifs):
            yield "guard", *source.span(test), "True"
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        yield from _shorter(source, node)
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        yield "statement", start, end, "pass"
    if isinstance(node, ast.AugAssign):
        yield "statement", start, end, "pass"
    if isinstance(node, ast.Name) and node.id in _AXES and isinstance(node.ctx, ast.Load):
        yield "axis", start, end, f"type({node.id})(sorted({node.id})[1:])"
    if isinstance(node, ast.FunctionDef):
        yield from _early(source, node)


def _swapped(source: _Source, node: ast.AST, first: ast.AST, second: ast.AST) -> str:
    start, end = source.span(node)
    (a, b), (c, d) = source.span(first), source.span(second)
    text = source.text
    return text[start:a] + text[c:d] + text[b:c] + text[a:b] + text[d:end]


def _shorter(source: _Source, node: ast.Tuple | ast.List | ast.Set) -> Iterator[Change]:
    """Without one of its elements; empty ones and those of one element become errors of their own."""
    if len(node.elts) < 2:
        return
    for i, element in enumerate(node.elts):
        others = [source.code(other) for other in node.elts if other is not element]
        start, end = source.span(node)
        opening = source.text[start] if source.text[start] in "([{" else ""
        closing = {"(": ")", "[": "]", "{": "}"}.get(opening, "")
        comma = "," if isinstance(node, ast.Tuple) and len(others) == 1 else ""
        if i == 0 or not isinstance(element, ast.Starred):
            yield "element", start, end, f"{opening}{', '.join(others)}{comma}{closing}"


def _early(source: _Source, node: ast.FunctionDef) -> Iterator[Change]:
    """A function that returns at once what it may return."""
    returns = ast.unparse(node.returns) if node.returns else ""
    values = [value for kind, value in (("None", "None"), ("bool", "False"), ("bool", "True")) if kind in
              [part.strip() for part in returns.split("|")]]  # fmt: skip
    body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if not body or (returns == "None" and len(body) < 2):
        return
    start = source.span(body[0])[0]
    for value in values:
        indent = " " * body[0].col_offset
        yield "early return", start, start, f"return {value}\n{indent}"


# -- templates and headers ---------------------------------------------------------------------------------------------

_WAITS = re.compile(
    r"(?<![\w:.])(?:fg::|link\.)?"
    r"(?:__sync\w+|cluster_arrive|cluster_wait|ready|receive|await_loads|wait_for_previous_kernel)\([^;{}]*\);"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\{#.*?#\}|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE)
_OPERAND = r"(?:[\w.:]+(?:<[^<>;]*>)?(?:\([^()]*\)|\[[^\[\]]*\])*)"
# Regular expression, operator, replacements of the whole match.
_TEXT: list[tuple[str, str, list[str]]] = [
    (r" < ", "bound", [" <= ", " >= "]),
    (r" <= ", "bound", [" < ", " > "]),
    (r" > ", "bound", [" >= ", " <= "]),
    (r" >= ", "bound", [" > ", " < "]),
    (r" == ", "negated comparison", [" != "]),
    (r" != ", "negated comparison", [" == "]),
    (r" && ", "and, or", [" || "]),
    (r" \|\| ", "and, or", [" && "]),
    (r"(?<=[ (])!(?=\w)", "negated condition", [""]),
    (r" \+ ", "operator", [" - "]),
    (r" - ", "operator", [" + "]),
    (r" \* ", "operator", [" / "]),
    (r" / ", "operator", [" * "]),
    (r" % ", "operator", [" / "]),
    (r" \+= ", "operator", [" -= ", " = "]),
    (rf"(?<=[=(,] ){_OPERAND} [+*] (?=[\w(])", "term", [""]),
    (rf"(?<=[\w)\]]) [+*-] {_OPERAND}(?=[;,)])", "term", [""]),
    (rf"(?<!fabsf\()(?<![\w.])({_OPERAND}) [-/] ({_OPERAND})(?=[;,)])", "swapped operands", [r"SWAP - "]),
    (rf"(?<=\()(?<!maximum\()(?<!minimum\()({_OPERAND}), ({_OPERAND})(?=[,)])", "swapped operands", ["SWAP, "]),
    (r"(?<![\w.])(?<!nest\()\d+(?![\w.])", "constant", ["+1", "-1"]),
    (r"(?<![\w.])(?:true|false)(?!\w)", "constant", ["NOT"]),
]
_CONDITION = re.compile(r"(?<!\w)(?:if|while) \(")
_STATEMENT = re.compile(rf"(?m)(?:^|(?<=[{{;)] )) *({_OPERAND} (?:[-+*|^&]?=) [^;{{}}]*;|{_OPERAND}\([^;{{}}]*\);)")
_JINJA = re.compile(r"\{%-? *(?:el)?if (.*?) *-?%\}")
_BLOCK = re.compile(r"\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
_TERNARY = re.compile(r'("[^"{}]*"|[\w.]+) if ([^{}]+?) else ("[^"{}]*"|[\w.]+)')


def _of_text(path: str, text: str) -> Iterator[Site]:
    """Changes of CUDA text, and of the template's own language in it."""
    kept = [match.span() for match in _COMMENT.finditer(text)]
    kept += [(match.start(), match.end()) for match in re.finditer(r"template <[^;{}]*?> (?=\w)", text)]
    kept += _for_one_alone(text)
    seen: set[tuple[int, int, str]] = set()
    for operator, start, end, by in _text_changes(text):
        if any(a <= start < b for a, b in kept) or (start, end, by) in seen:
            continue
        seen.add((start, end, by))
        yield Site(path, text.count("\n", 0, start) + 1, operator, _replacing(start, end, by))


def _text_changes(text: str) -> Iterator[Change]:
    for match in _WAITS.finditer(text):
        yield "barrier", *match.span(), ";"
    for match in _CONDITION.finditer(text):
        end = _closing(text, match.end())
        yield "guard", match.end(), end, "true"
        yield "guard", match.end(), end, "false"
    for match in _STATEMENT.finditer(text):
        if not _WAITS.fullmatch(match[1]):
            yield "statement", *match.span(1), ";"
    for match in _JINJA.finditer(text):
        for value in ("true", "false"):
            yield "guard", *match.span(1), value
    for match in _TERNARY.finditer(text):
        yield "guard", *match.span(), match[1]
        yield "guard", *match.span(), match[3]
    blocks = [match.span() for match in _BLOCK.finditer(text)]
    for pattern, operator, replacements in _TEXT:
        for match in re.finditer(pattern, text):
            if operator == "operator" and any(a < match.start() < b for a, b in blocks):
                continue  # lists and texts, which have a sum and nothing else
            for by in replacements:
                yield operator, *match.span(), _replacement(match, by)


def _replacement(match: re.Match[str], by: str) -> str:
    if by in ("+1", "-1"):
        return str(int(match[0]) + int(by))
    if by == "NOT":
        return "false" if match[0] == "true" else "true"
    if by.startswith("SWAP"):
        (a, b), (c, d) = match.span(1), match.span(2)
        between = match.string[b:c]
        return match.string[c:d] + between + match.string[a:b] + match.string[d : match.end()]
    return by


def _closing(text: str, start: int) -> int:
    """Where the parenthesis ends that opened before ``start``."""
    depth = 1
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)


def _for_one_alone(text: str) -> list[tuple[int, int]]:
    """What a GPU alone compiles, which nothing here executes, and what the emulator has in its place."""
    found: list[tuple[int, int]] = []
    alone: list[bool] = []  # of the conditions around a line
    place = 0
    for line in text.splitlines(keepends=True):
        word = line.strip()
        if word.startswith("#if"):
            alone.append("defined(FUSEGEN_EMULATOR) ||" not in word)  # older GPUs have that, too
        elif word.startswith(("#else", "#elif")):
            alone[-1] = True
        elif word.startswith("#endif"):
            alone.pop()
        if any(alone):
            found.append((place, place + len(line)))
        place += len(line)
    return found
