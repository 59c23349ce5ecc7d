"""Elements that are compared with their own maximum or minimum have the same bits wherever they are computed.

An element is computed anew in each kernel, and often in each walk over a row. Compilers contract a product and a sum
into one operation where they please, and rows regroup products (fuse/hoist). What differs in its last bit equals its
own maximum in one place only: no element would get the gradient, or be the one that argmax finds. So the arithmetic of
such elements is told to be done as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusegen.core.casts import is_from_float
from fusegen.core.ir import Axes, Call, Expr, Op, Output, Reduce, rebuild, walk
from fusegen.core.subexpressions import rewritten
from fusegen.declare.table import Kind, lookup

# What gives the same bits wherever it is computed: it rounds nothing.
_EXACT = frozenset({
    "neg", "abs", "where", "minimum", "maximum", "cast", "stop_gradient", "floor", "ceil", "trunc", "round", "sign",
})  # fmt: skip
# What jumps, beside comparisons.
_STEPS = frozenset({"floor", "ceil", "trunc", "round", "sign", "floor_divide", "remainder", "fmod"})
# The functions of the table that are done as they are written.
_AS_WRITTEN = {name: f"{name}_rn" for name in ("add", "sub", "mul", "div")}


def compared_extrema(
    reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]]
) -> list[Reduce]:
    """Maxima and minima of what is computed that are compared with their elements.

    Args:
        reduces, outputs: with lets expanded.
        axes: those that each named thing varies along.
    """
    extrema = _computed_extrema(reduces)
    if not extrema:
        return []
    bits: dict[Expr, int] = {r.ref: 1 << place for place, r in enumerate(extrema)}  # a set of extrema is a number
    reduced: dict[frozenset[str], int] = {}
    for extremum in extrema:
        over = frozenset(extremum.over)
        reduced[over] = reduced.get(over, 0) | bits[extremum.ref]
    along, reads, found = Axes(axes), dict[Expr, int](), 0
    for node in walk([item.expr for item in (*reduces, *outputs)]):
        reads[node] = bits.get(node, 0)
        for child in node.children:
            reads[node] |= reads[child]
        if reads[node] and isinstance(node, Call) and _is_step(node):
            for over, those in reduced.items():
                found |= reads[node] & those if along.of(node) & over else 0
    return [r for r in extrema if bits[r.ref] & found]


def _computed_extrema(reduces: Sequence[Reduce]) -> list[Reduce]:
    """Maxima and minima of what rounds somewhere."""
    rounds: dict[Expr, bool] = {}
    found: list[Reduce] = []
    for reduce in reduces:
        if reduce.kind in ("max", "min"):
            for node in walk([reduce.expr], rounds):
                own = isinstance(node, Call) and node.dtype.is_float and node.function not in _EXACT
                rounds[node] = own or any(rounds[child] for child in node.children)
            found += [reduce] if rounds[reduce.expr] else []
    return found


def _is_step(node: Call) -> bool:
    """Whether a value jumps where what it is of changes by a bit."""
    if node.function == "cast":
        return is_from_float(node)
    row = lookup(node.function)
    return row.kind is Kind.COMPARE or node.function in _STEPS or not (row.builtin or row.smooth)


def as_written(op: Op) -> Op:
    """``op`` with the arithmetic of such elements told apart, everywhere in it."""
    if not any(isinstance(s, Reduce) and s.kind in ("max", "min") for s in op.statements):
        return op
    reduces, outputs = op.expand()
    compared = compared_extrema(reduces, outputs, op.axes_of())
    if not compared:
        return op
    exact = {node for node in walk([r.expr for r in compared]) if isinstance(node, Call) and node.dtype.is_float}

    def as_it_is(node: Expr) -> Expr:
        for inner in walk([node], done):
            new = rebuild(inner, tuple(done[child] for child in inner.children))
            if inner in exact and isinstance(new, Call) and new.function in _AS_WRITTEN:
                new = Call(_AS_WRITTEN[new.function], new.args, new.dtype, new.detail)
            done[inner] = new
        return done[node]

    done: dict[Expr, Expr] = {}
    return rewritten(op, as_it_is)
