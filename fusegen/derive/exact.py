"""Elements that have the same bits wherever they are computed.

An element is computed anew in each kernel, and often in each walk over a row. Compilers contract a product and a sum
into one operation where they please, and rows regroup products (fuse/hoist). That matters in four places, and there
the arithmetic of elements is told to be done as it is written:

- Elements that are compared with their own maximum or minimum. What differs in its last bit equals its own maximum in
  one place only: no element would get the gradient, or be the one that argmax finds.
- Quotients that are compared, or rounded to integers, where results are halves: divisions are approximate there, and a
  number divided by itself is to be one. Likewise roots, powers and logarithms to base 10 that are rounded to integers
  or compared: the floor of the root of 16 is to be 4, and the root of 9 at most 3. Likewise quotients and functions of
  which a root, a logarithm or an inverse sine is taken: 1 - x / x is not to be negative.
- Elements that are summed, and computed again for what divides by the sum. The gradient of a norm is what is left of a
  row when its own direction is taken out of it: nothing, where one element stands alone. A value whose terms cancel has
  few digits that a contraction does not change, so that nothing would become a number as large as the gradient. Here
  the sums that have a product for a term are not contracted.
- Exponents of a sum of exponentials, computed again for what divides by that sum. The last bit of an exponent of 500
  is the fifth digit of its exponential: where one element has all of a softmax, that much would be left of a gradient
  which is nothing. Here the maximum is not subtracted from a product in one operation either, and quotients are as
  they are written where results are halves.

Kernels of one op call the same functions. Those of an op that is split at matrix products and scans do not, where some
write halves and others floats, and neither do a forward that writes halves and a backward that writes floats: there
the functions that elements of the first and of the last kind call are told apart as well.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from operator import or_

from fusegen.core.casts import is_from_float
from fusegen.core.ir import SCAN, Axes, Call, Const, Expr, Op, Operand, Output, Reduce, is_call, rebuild, refs, walk
from fusegen.core.one_term import of_one_term
from fusegen.core.rewriting import rewritten
from fusegen.core.scans import axis_of, parts
from fusegen.declare.table import AS_WRITTEN, Kind, lookup
from fusegen.derive.reciprocals import least_values

# What gives the same bits wherever it is computed: it rounds nothing.
_EXACT = frozenset({
    "neg", "abs", "where", "minimum", "maximum", "cast", "stop_gradient", "floor", "ceil", "trunc", "round", "sign",
})  # fmt: skip
# What jumps, beside comparisons.
_STEPS = frozenset({"floor", "ceil", "trunc", "round", "sign", "floor_divide", "remainder", "fmod"})
# What reductions add up, or multiply, so that their gradient is a difference with the elements themselves.
_SUMS = frozenset({"sum", "squared_deviation", "prod", "sum_exp"})
# What is linear in each of its arguments, or in all but the first.
_LINEAR = frozenset({"add", "sub", "add_rn", "sub_rn", "neg", "where", "cast", "stop_gradient"})
# What has no product that a sum could be contracted with, beside what is exact.
_NO_PRODUCT = _EXACT - {"neg"} | {"add", "sub"}
# Functions that no rule of algebra puts something else in the place of, whatever is computed beside them.
_ROOTS = frozenset({"log", "sqrt", "rsqrt", "powi"})
# Functions that are whole numbers of many whole numbers, but not as kernels of halves compute them. Their exponentials
# and logarithms to base 2 are.
_WHOLE = frozenset({"sqrt", "pow", "log10"})
# What a compiler contracts, or does otherwise than it is written.
_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})


def compared_extrema(
    reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]]
) -> list[Reduce]:
    """Maxima and minima of what is computed that are compared with their elements.

    Args:
        reduces, outputs: with lets expanded.
        axes: those that each named thing varies along.
    """
    return _comparisons(reduces, outputs, axes)[0]


def _comparisons(
    reduces: Sequence[Reduce], outputs: Sequence[Output], axes: Mapping[str, frozenset[str]]
) -> tuple[list[Reduce], list[Expr]]:
    """The same, and what compares them: elements may be written otherwise there, as of a branch that a choice takes."""
    along = Axes(axes)
    extrema = _computed_extrema(reduces, along)
    if not extrema:
        return [], []
    bits: dict[Expr, int] = {r.ref: 1 << place for place, r in enumerate(extrema)}  # a set of extrema is a number
    reduced: dict[frozenset[str], int] = {}
    for extremum in extrema:
        over = frozenset({axis_of(extremum)} if extremum.kind == SCAN else extremum.over)
        reduced[over] = reduced.get(over, 0) | bits[extremum.ref]
    reads, found = dict[Expr, int](), 0
    comparisons: list[Expr] = []
    for node in walk([item.expr for item in (*reduces, *outputs)]):
        reads[node] = bits.get(node, 0)
        for child in node.children:
            reads[node] |= reads[child]
        if reads[node] and isinstance(node, Call) and _is_step(node):
            varying = along.of(node)
            compared = functools.reduce(or_, [those for over, those in reduced.items() if varying & over], 0)
            found |= reads[node] & compared
            comparisons += [node] if reads[node] & compared else []
    return [r for r in extrema if bits[r.ref] & found], comparisons


def _read_anew(reduces: Iterable[Reduce], along: Axes) -> dict[Expr, Expr]:
    """What elements are of that are read at places: no kernel keeps them, and each computes what it reads."""
    return {reduce.ref: reduce.expr for reduce in reduces if of_one_term(reduce, along)}


def _computed_of(roots: Iterable[Expr], read: Mapping[Expr, Expr]) -> list[Expr]:
    """What expressions are computed of, also where they are read at places."""
    found: dict[Expr, None] = {}
    left = list(roots)
    while left:
        new = list(walk(left, found))
        found |= dict.fromkeys(new)
        left = [read[node] for node in new if node in read]
    return list(found)


def _computed_extrema(reduces: Sequence[Reduce], along: Axes) -> list[Reduce]:
    """Maxima and minima of what rounds somewhere."""
    rounds: dict[Expr, bool] = {}
    found: list[Reduce] = []
    read = _read_anew(reduces, along) if any(map(_is_extremum, reduces)) else {}
    for reduce in reduces:
        if _is_extremum(reduce) or reduce.ref in read:
            for node in walk(_values(reduce), rounds):
                own = isinstance(node, Call) and node.dtype.is_float and node.function not in _EXACT
                rounds[node] = own or any(rounds[child] for child in node.children)
            is_rounded = any(rounds[value] for value in _values(reduce))
            rounds[reduce.ref] = is_rounded and reduce.ref in read
            found += [reduce] if is_rounded and _is_extremum(reduce) else []
    return found


def _is_extremum(reduce: Reduce) -> bool:
    """Whether a reduction is a maximum or a minimum, or all those up to each element."""
    return (parts(reduce.expr).how.combine if reduce.kind == SCAN else reduce.kind) in ("max", "min")


def _values(reduce: Reduce) -> tuple[Expr, ...]:
    """What a reduction takes."""
    return parts(reduce.expr).values if reduce.kind == SCAN else (reduce.expr,)


def _is_step(node: Call) -> bool:
    """Whether a value jumps where what it is of changes by a bit."""
    if node.function == "cast":
        return is_from_float(node)
    row = lookup(node.function)
    return row.kind is Kind.COMPARE or node.function in _STEPS or not (row.builtin or row.smooth)


def summed_for_another(op: Op, gradients: Op, others: Op, *, of_one_kind: bool) -> Callable[[Expr], Expr] | None:
    """What rewrites expressions so that values which ``op`` sums and ``others`` computes again have the same bits.

    Args:
        gradients: an op with the same sums, which says what becomes of them.
        others: an op that reads what ``op`` has summed.
        of_one_kind: whether the kernels of both call the same functions.

    Returns:
        None where there are none.
    """
    reads = _Reads(*gradients.expand())
    summed = [r for r in op.expand()[0] if reads.curved & reads.sums.get(r.ref, 0)]
    if not summed:
        return None
    again = set(walk([item.expr for items in others.expand() for item in items]))
    elements = again.intersection(walk([r.expr for r in summed]))
    exponents = again.intersection(_exponents(summed))
    arithmetic = _rounding(elements, exponents, half=op.is_half or others.is_half)
    functions = set() if of_one_kind else _told_apart(exponents)
    return _Marking(arithmetic, functions).of if arithmetic or functions else None


def elements_of(op: Op, extrema: Container[str]) -> list[Expr]:
    """What the elements of these maxima and minima are computed of."""
    reduces = op.expand()[0]
    values = [value for r in reduces if r.name in extrema for value in _values(r)]
    return _computed_of(values, _read_anew(reduces, Axes(op.axes_of())))


def same_bits(op: Op, extrema: Container[str]) -> Callable[[Expr], Expr] | None:
    """What rewrites ``op``'s expressions so that the elements of these maxima and minima have the same bits in another
    op, which compares them with what this one has found.

    Returns:
        None where they may be computed otherwise there: of an exponential, a tangent or the like, by what else is
        computed beside it (derive/lower).
    """
    nodes = [node for node in elements_of(op, extrema) if node.dtype.is_float]
    calls = [node for node in nodes if isinstance(node, Call)]
    is_plain = all(node.function.removesuffix(AS_WRITTEN) in _ARITHMETIC | _EXACT | _ROOTS for node in calls)
    return _Marking(set(nodes)).of if is_plain else None


def _summed_again(reduces: Sequence[Reduce], outputs: Sequence[Output]) -> tuple[set[Expr], set[Expr]]:
    """What is summed and computed again for what reads that sum, directly or by way of other reductions; and those of
    it that are part of an exponent."""
    reads = _Reads(reduces, outputs)
    if not reads.curved:
        return set(), set()
    within, read_for = defaultdict[Expr, int](int), defaultdict[Expr, int](int)
    for item in (*reduces, *outputs):
        within[item.expr] |= reads.curved & reads.sums.get(item.ref, 0) if isinstance(item, Reduce) else 0
        read_for[item.expr] |= reads.of[item.expr]
    for node in reversed(reads.of):  # each after all that read it
        for child in node.children:
            within[child] |= within[node]
            read_for[child] |= read_for[node]
    again = {node for node in reads.of if within[node] & read_for[node]}
    return again, again.intersection(_exponents(r for r in reduces if reads.curved & reads.sums.get(r.ref, 0)))


class _Reads:
    """Which sums expressions are of. A set of sums is a number, with a bit for each.

    Attributes:
        sums: the bit of each, by its reference.
        of: those that an expression reads, directly or by way of other reductions; children before parents.
        curved: those that something is not linear in: that it divides by, or takes the root of. What is linear in a
            sum moves with an element's last digit by as much as the element does.
    """

    def __init__(self, reduces: Sequence[Reduce], outputs: Sequence[Output]) -> None:
        sums = [r for r in reduces if r.kind in _SUMS and r.expr.dtype.is_float]
        self.sums: dict[Expr, int] = {r.ref: 1 << place for place, r in enumerate(sums)}
        self.of: dict[Expr, int] = {}
        self.curved = 0
        items: Sequence[Reduce | Output] = (*reduces, *outputs) if sums else ()
        for item in items:
            for node in walk([item.expr], self.of):
                self._read(node)
            if isinstance(item, Reduce):
                self.of[item.ref] = self.of[item.expr] | self.sums.get(item.ref, 0)
                if item.kind not in ("sum", "dot"):
                    self.curved |= self.of[item.expr]

    def _read(self, node: Expr) -> None:
        each = [self.of[child] for child in node.children]
        self.of[node] = functools.reduce(or_, each, 0)
        if not isinstance(node, Call) or node.function in _LINEAR:
            return
        if node.function in ("mul", "mul_rn"):
            self.curved |= each[0] & each[1]
        elif node.function in ("div", "div_rn"):
            self.curved |= each[1]
        else:
            self.curved |= self.of[node]


def _is_contracted(node: Expr) -> bool:
    """Whether a compiler may make one operation of a sum and of a product that is a term of it."""
    if not isinstance(node, Call) or node.function not in ("add", "sub") or not node.dtype.is_float:
        return False
    for term in node.args:
        while isinstance(term, Call) and term.function == "neg":
            term = term.args[0]
        if isinstance(term, Call) and term.function not in _NO_PRODUCT and not term.function.endswith(AS_WRITTEN):
            return True
    return False


def as_written(op: Op, *, split: bool = False) -> Op:
    """``op`` with the arithmetic of such elements told apart, everywhere in it.

    Args:
        split: kernels do not know of each other: functions are told apart as well, of what extrema are compared with.
    """
    of_reductions = any(isinstance(s, Reduce) and (_is_extremum(s) or s.kind in _SUMS) for s in op.statements)
    if not of_reductions and not op.is_half:
        return op
    reduces, outputs = op.expand()
    compared, comparisons = _comparisons(reduces, outputs, op.axes_of())
    elements = [*comparisons, *(value for r in compared for value in _values(r))]
    read = _read_anew(reduces, Axes(op.axes_of())) if elements else {}
    exact = {node for node in _computed_of(elements, read) if node.dtype.is_float}
    again, exponents = _summed_again(reduces, outputs)
    functions = _told_apart(exact | exponents) if split else set()
    roots = [item.expr for item in (*reduces, *outputs)]
    exact |= _rounding(again, exponents, half=op.is_half) | set(filter(_is_contracted, _from_maximum(roots)))
    if op.is_half or split:
        near = _beside_edges(roots, op.operands)
        exact |= _quotients_of_steps(roots) | {node for node in near if _is_quotient(node)}
        functions |= _told_apart(near) | _functions_of_steps(roots)
    return rewritten(op, _Marking(exact, functions).of) if exact or functions else op


def _rounding(elements: Iterable[Expr], exponents: Iterable[Expr], *, half: bool) -> set[Expr]:
    """What of the elements of sums, and of exponents among them, would have other last bits in another place."""
    quotients = set(filter(_is_quotient, exponents)) if half else set()
    return {node for node in elements if _is_contracted(node)} | quotients


def _is_quotient(node: Expr) -> bool:
    """Whether kernels of halves divide approximately: not by a number, of elements or another."""
    return is_call(node, "div") and bool(refs(node.args[1]))


def _beside_edges(roots: Sequence[Expr], operands: Sequence[Operand]) -> set[Expr]:
    """What functions are of that have no value on one side of a number, as far as it may come to lie there."""
    edges = {node: edge for node in walk(roots) if isinstance(node, Call) and (edge := _edge_of(node)) is not None}
    least = least_values(edges, operands) if edges else {}
    beside = [node.args[0] for node, edge in edges.items() if not least[node.args[0]] >= edge]
    return {node for node in walk(beside) if node.dtype.is_float}


def _edge_of(node: Call) -> float | None:
    """From where on a function has values; plus infinity where it has none on the other side either."""
    if node.function.removesuffix(AS_WRITTEN) in ("pow", "xlogy"):
        return 0.0
    low, high = lookup(node.function).domain
    return None if low == -math.inf else low if high == math.inf else math.inf


def _told_apart(nodes: Iterable[Expr]) -> set[Expr]:
    """Calls of functions that kernels of halves compute otherwise."""
    return {node for node in nodes if isinstance(node, Call) and lookup(node.function).cuda_half}


def _from_maximum(roots: Iterable[Expr]) -> list[Call]:
    """The differences to a maximum in exponentials."""
    found: list[Call] = []
    for node in walk(roots):
        match node:
            case Call("exp", (Call("sub" | "sub_rn", (_, Call("stop_gradient"))) as difference,)):
                found.append(difference)
    return found


def _exponents(sums: Iterable[Reduce]) -> Iterator[Expr]:
    """What the exponents of sums of exponentials are computed of, also where such a sum is written out."""
    sums = list(sums)
    exponents = [r.expr for r in sums if r.kind == "sum_exp"]
    exponents += [difference.args[0] for difference in _from_maximum(r.expr for r in sums if r.kind != "sum_exp")]
    return walk(exponents)


def _jumps(roots: Sequence[Expr]) -> list[Call]:
    """Steps at numbers that quotients and functions come to: not that at zero, which a sign has."""
    return [node for node in walk(roots) if isinstance(node, Call) and _is_step(node) and node.function != "sign"]


def _quotients_of_steps(roots: Sequence[Expr]) -> set[Expr]:
    """Quotients that something jumps by: 41 / 41 is 1 there, and no less, and so is its floor."""
    return {node for node in walk(child for node in _jumps(roots) for child in node.args) if is_call(node, "div")}


def _functions_of_steps(roots: Sequence[Expr]) -> set[Expr]:
    """Functions that have integers as values, and that something jumps by: the root of 9 is 3 there, not less and not
    more. What is compared with zero alone is as good a last bit further, and functions are dearer than quotients. So is
    what is the same as another value, mostly the extremum of such, and what is compared after other functions, which
    have no integers of it; what is rounded may be about to be a place."""
    jumps = _jumps(roots)
    comparisons = [node for node in jumps if lookup(node.function).kind is Kind.COMPARE]
    rounded = walk(child for node in jumps if node not in comparisons for child in node.args)
    sides = [side for node in comparisons if _tells_integers(node) for side in node.args]
    compared = walk(sides, (), _of_integers)
    return {node for node in (*rounded, *compared) if is_call(node, *_WHOLE)}


def _tells_integers(comparison: Call) -> bool:
    """Whether it may be of an integer, and the next smaller number another one."""
    numbers = [side.value for side in comparison.args if isinstance(side, Const)]
    return any(numbers) if numbers else comparison.function not in ("eq", "ne")


def _of_integers(node: Expr) -> tuple[Expr, ...]:
    """What a value is of that is an integer where all of it are."""
    return node.children if is_call(node, "add", "sub", "mul", *_EXACT) else ()


class _Marking:
    """Expressions in which some calls are done as they are written: the arithmetic of some, the functions of others."""

    def __init__(self, arithmetic: Container[Expr], functions: Container[Expr] = ()) -> None:
        self.arithmetic, self.functions = arithmetic, functions
        self.done: dict[Expr, Expr] = {}

    def of(self, expr: Expr) -> Expr:
        """The expression, rewritten."""
        for node in walk([expr], self.done):
            new = rebuild(node, tuple(self.done[child] for child in node.children))
            is_marked = node in self.functions or (node in self.arithmetic and is_call(node, *_ARITHMETIC))
            if is_marked and isinstance(new, Call):
                new = Call(f"{new.function}{AS_WRITTEN}", new.args, new.dtype, new.detail)
            self.done[node] = new
        return self.done[expr]
