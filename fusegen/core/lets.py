"""Common subexpressions become lets: the one place where an op's expressions get names."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from fusegen.core.ir import Call, Expr, Let, Output, Reduce, Ref, Statement, substitute, transform, walk

# Names that generated CUDA uses itself or that C++ reserves: a variable of the declaration never takes one as it is.
_RESERVED = frozenset(
    "auto bool break case catch char class const continue default delete do double else enum explicit export extern "
    "false float for friend goto half if inline int long mutable namespace new operator private protected public "
    "register restrict return short signed sizeof static struct switch template this throw true try typedef typename "
    "union unsigned using virtual void volatile while bf16 asm and or not xor fg load store i k n e block thread lane "
    "warp grid row col rows cols tile split splits rest result inside begin end chunk piece matrix m main y0 y1 j0 j1 jn yn "
    "gamma signgam index time abs min max exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt pow sin cos tan asin acos "
    "atan atan2 sinh cosh tanh asinh acosh atanh hypot erf erfc erfinv lgamma floor ceil trunc rint fmod copysign exp10 "
    "sincos rsqrtf exp10f sincosf assert".split()
)


def safe_name(wanted: str, taken: Iterable[str]) -> str:
    """``wanted``, or ``wanted_2`` and so on where that is taken or means something in CUDA."""
    taken = set(taken)
    base = wanted if wanted.isascii() and wanted.isidentifier() and not keyword.iskeyword(wanted) else "value"
    base = base.strip("_").replace("__", "_") or "value"
    name = f"{base}_" if base in _RESERVED else base
    count = 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


def introduce_lets(
    reduces: list[Reduce], outputs: list[Output], names: dict[Expr, str], taken: Iterable[str]
) -> tuple[list[Statement], list[Output]]:
    """Name what the declaration named and what is used more than once; order everything by need.

    Args:
        reduces, outputs: with lets expanded; reduces in an order that respects their dependencies.
        names: what the declaration calls an intermediate; those become lets even when used once.
        taken: names of operands, scalars and outputs.
    """
    roots = [item.expr for item in (*reduces, *outputs)]
    uses = Counter(child for node in walk(roots) for child in node.children) + Counter(roots)
    used_names = set(taken) | {item.name for item in (*reduces, *outputs)}
    output_names = {output.expr: output.name for output in reversed(outputs)}
    values: dict[Expr, Expr] = {}
    statements: list[Statement] = []

    def bind(root: Expr, at_root: bool) -> Expr:
        for node in walk([root]):
            if not isinstance(node, Call) or node in values or (at_root and node is root and uses[node] < 2):
                continue
            if node in names or (uses[node] > 1 and not _trivial(node)):
                name = output_names.get(node) or safe_name(names.get(node) or describe(node), used_names)
                used_names.add(name)
                children = tuple(substitute(child, values) for child in node.args)
                statements.append(Let(name, Call(node.function, children, node.dtype, node.detail)))
                values[node] = statements[-1].ref
        return substitute(root, values)

    for reduce in reduces:
        statements.append(replace(reduce, expr=bind(reduce.expr, at_root=False)))
    bound = [replace(output, expr=bind(output.expr, at_root=True)) for output in outputs]
    return statements, bound


def _trivial(node: Call) -> bool:
    """Not worth a name: a sign or a conversion of something that already has one."""
    return node.function in ("neg", "cast", "barrier") and not node.detail and not isinstance(node.args[0], Call)


_VERBS = {
    "add": "sum", "sub": "diff", "mul": "prod", "div": "ratio", "powi": "power", "where": "chosen", "neg": "minus",
    "lt": "below", "le": "below", "gt": "above", "ge": "above", "eq": "same", "ne": "differs",
    "logical_and": "both", "logical_or": "any", "cast": "as",
}  # fmt: skip


def describe(node: Call) -> str:
    """A name for an intermediate that the declaration did not name: what it is, and of what (``exp_x``)."""
    verb = _VERBS.get(node.function, node.function)
    named = [arg.name for arg in node.args if isinstance(arg, Ref)]
    plain = verb if node.function in _VERBS else f"{verb}_value"
    name = "_".join([verb, *named[:2]]) if named else plain
    return name if len(name) <= 24 else plain


def rename_refs(expr: Expr, names: dict[str, str]) -> Expr:
    """``expr`` with the named things called otherwise."""

    def rule(node: Expr) -> Expr:
        return Ref(names.get(node.name, node.name), node.dtype) if isinstance(node, Ref) else node

    return transform([expr], rule)[expr]
