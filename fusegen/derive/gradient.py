"""The backward of an Op, as an Op.

Reverse accumulation over the op's definitions. Inside one definition sympy differentiates the whole expression at
once, so that ``x + w * (y - x)`` gives ``1 - w`` by x; expressions too large for that are cut, and the chain rule runs
over the cuts. Between definitions there is one rule: the adjoint of "lacks an axis" is "sum over that axis".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import reduce as reduce_by
from operator import add
from typing import Any

from fusegen.core import dtypes, scans
from fusegen.core.casts import converted
from fusegen.core.declared import Declared, differentiated
from fusegen.core.dtypes import DType
from fusegen.core.errors import DerivativeError
from fusegen.core.ir import (
    SCAN,
    Axes,
    Call,
    Expr,
    Factor,
    Index,
    Op,
    Operand,
    Output,
    PackedBlock,
    Reduce,
    Ref,
    Size,
    Substitution,
    asked_axes,
    const,
    is_call,
    names_read,
    rebuild,
    refs,
    shaped_axes,
    walk,
    with_carriers,
)
from fusegen.core.products import KIND as DOT
from fusegen.core.products import factors, free_axis
from fusegen.core.products import product as product_of
from fusegen.core.regroupable import marked, unmarked
from fusegen.core.subexpressions import introduce_lets, live_reduces, safe_name
from fusegen.declare.table import apply
from fusegen.derive.guards import common_axes, needs_conditions
from fusegen.derive.invariance import without_idle_extrema
from fusegen.derive.override import declared_gradients, is_linear
from fusegen.derive.products import adjoint
from fusegen.derive.reach import reached
from fusegen.derive.scans import scan_adjoints
from fusegen.derive.simplify import (
    TIDY,
    Condition,
    behind_guards,
    conditions_of,
    either,
    guards_of,
    has_guard,
    is_special,
    is_zero,
    selected,
    selects_apart,
    simplify,
)

# Expressions up to this many operations (counted as a tree) go to sympy whole.
LARGEST_EXPRESSION = 40


class _Cut(Ref):
    """Stands for a subexpression, until its gradient is derived. No operand has its name; ``label`` is for people."""

    __slots__ = ("label",)
    label: str

    def __new__(cls, number: int, dtype: DType) -> _Cut:
        return Expr.__new__(cls, number, dtype)  # type: ignore[return-value]

    def _fill(self, number: int, dtype: DType) -> None:  # type: ignore[override]
        self.label = f"cut{number}"
        super()._fill(f"@{self.label}", dtype)


@dataclass
class _Definition:
    """``ref`` stands for ``expr``, or for its reduction over ``over``. Of what is `Declared`, so is the gradient."""

    ref: Ref
    expr: Expr
    over: tuple[str, ...] = ()
    kind: str = "sum"

    @property
    def label(self) -> str:
        """What names of its gradient are made of."""
        return self.ref.label if isinstance(self.ref, _Cut) else self.ref.name


@dataclass
class _Reverse:
    """State of one reverse accumulation."""

    axes: dict[str, frozenset[str]]
    taken: set[str]
    given: frozenset[str]  # names of operands
    axis_count: int
    terms: dict[Ref, list[tuple[frozenset[str], Expr]]] = field(default_factory=dict)
    reduces: list[Reduce] = field(default_factory=list)
    known: dict[tuple[str, Expr, tuple[str, ...]], Ref] = field(default_factory=dict)
    tidy: dict[Expr, Expr] = field(default_factory=dict)
    names: dict[Expr, str] = field(default_factory=dict)  # of intermediates of declared gradients
    written: set[Expr] = field(default_factory=set)  # what declared gradients say
    along: Axes = field(init=False)

    def __post_init__(self) -> None:
        self.along = Axes(self.axes)

    def contribute(self, expr: Expr, cotangent: Expr, space: frozenset[str], wanted: Set[Ref]) -> None:
        """Add ``cotangent * d(expr)/d(ref)`` to every ref that expr reads; sum over axes the ref lacks."""
        from fusegen.derive.symbolic import partials  # sympy is slow to import, and a cached derivative needs none

        reads = [ref for ref in refs(expr) if ref in wanted and ref.dtype.is_float]
        for ref, partial in partials(expr, reads).items():
            product = cotangent * converted(partial, cotangent.dtype)
            over = space - self.axes[ref.name]
            self.terms.setdefault(ref, []).append((over, product))

    def total(self, ref: Ref, name: str) -> Expr | None:
        """The accumulated adjoint of ``ref``, its sums turned into Reduce statements, called ``name``."""
        result: Expr | None = None
        for over, expr in self._grouped(ref):
            term = converted(self._sum(expr, over, name) if over else expr, ref.dtype)
            result = term if result is None else result + term
        return result

    def terms_of(self, ref: Ref, name: str) -> list[tuple[frozenset[str], Expr]]:
        """The accumulated adjoint of a definition as terms that are multiplied with its partial derivatives one by one,
        and further axes along which each varies: they are summed over where it arrives.

        A select that is zero in one branch stays one, so that what it is multiplied with is selected too: where the
        definition belongs to a branch that is not taken, its derivatives may be infinite. So where all terms are such
        selects they are not added up, and not summed over axes along which their condition varies if a cut lacks them.
        A condition that does not vary along the axes of a sum stays outside of it.
        """
        parts = [
            (over, *self._guards_outside(part, over, key))
            for over, e in self._grouped(ref)
            for key, part in selects_apart(e, self.tidy).items()
        ]
        parts = [(over, key, part) for over, key, part in parts if not is_zero(part)]  # what cancels has no guard
        if any(key is None for _, key, _ in parts):
            total = self.total(ref, name)
            return [] if total is None else [(frozenset(), total)]
        found: dict[tuple[Expr, frozenset[str]], Expr] = {}
        for over, key, part in parts:
            assert key is not None
            late = frozenset[str]()
            if over:
                conditions, value = conditions_of(part)
                varying = [c for c in conditions if over & self.along.of(c[0])]
                whole = [c for c in conditions if c not in varying]  # these hold for the sum as for each element
                inner = selected(value, varying)
                late = over if has_guard(inner) and isinstance(ref, _Cut) else late
                part = selected(inner if late else self._sum(inner, over, name), whole)
                key = (*whole, *varying, key)[0]
            conditions, value = conditions_of(part)
            term = selected(converted(value, ref.dtype), conditions)
            known = found.get((key[0], late))
            found[key[0], late] = term if known is None else simplify([total := known + term], TIDY, self.tidy)[total]
        return [(late, term) for (_, late), term in found.items()]

    def _guards_outside(self, part: Expr, over: frozenset[str], key: Condition | None) -> tuple[Condition | None, Expr]:
        """A term and its outermost condition. Conditions within a choice that do not vary along the axes of the sum go
        around it, since the sum is zero without them; in the sum the choice has its own."""
        if over:
            outside = conditions_of(part)[0]
            whole = guards_of(part, lambda condition: not over & self.along.of(condition[0]))
            further = [condition for condition in whole if condition not in outside]
            if further:
                return further[0], selected(part, further)
        return (part, False) if key is None and has_guard(part) else key, part

    def _grouped(self, ref: Ref) -> list[tuple[frozenset[str], Expr]]:
        """What has been contributed, added up for each set of axes over which it is to be summed, and dtype."""
        grouped: dict[tuple[frozenset[str], str], Expr] = {}
        for over, product in self.terms.get(ref, []):
            product = simplify([product], TIDY, self.tidy)[product]
            key = (over, product.dtype.name)
            grouped[key] = grouped[key] + product if key in grouped else product
        return [(over, grouped[over, name]) for over, name in sorted(grouped, key=lambda key: (sorted(key[0]), key[1]))]

    def _sum(self, expr: Expr, over: frozenset[str], name: str) -> Expr:
        varying = self.along.of(expr)
        for axis in sorted(over - varying):
            expr = expr * converted(Size(axis), expr.dtype)
        over &= varying
        if not over:
            return expr
        # What is read at places has one term in each sum, which kernels see in a sum of nothing else (core/one_term).
        apart = selects_apart(expr, self.tidy)
        parts = [part for key, part in apart.items() if key is not None and _is_of_places(key[0], over)]
        rest = [part for part in apart.values() if part not in parts]
        parts += [reduce_by(add, rest)] if rest else []
        if len(parts) > 1:
            return reduce_by(add, [self._sum(part, over, name) for part in parts])
        return self.reduced("sum", expr, tuple(sorted(over)), name)

    def reduced(self, kind: str, expr: Expr, over: tuple[str, ...], name: str) -> Ref:
        """The result of a reduction: the one that there is already, or a new one."""
        key = (kind, expr, over)
        if key not in self.known:
            reduce = Reduce(safe_name(name, self.taken), kind, expr, over)
            self.taken.add(reduce.name)
            self.reduces.append(reduce)
            self.axes[reduce.name] = self.along.of(expr) - set(over)
            self.known[key] = reduce.ref
        return self.known[key]

    def fresh_axis(self) -> str:
        """A name for an axis that only a product has."""
        self.axis_count += 1
        return f"d{self.axis_count - 1}"

    def through_product(self, definition: _Definition, cotangent: Expr, wanted: Set[Ref]) -> None:
        """Add a product's adjoint to what its factors read."""
        sides = [node for node in definition.expr.children if isinstance(node, Factor)]
        holding = [self._holding_for(side, cotangent) if needs_conditions(side, self.given) else [] for side in sides]
        selects = [side.of((selected(side.expr, conditions),)) for side, conditions in zip(sides, holding, strict=True)]
        for i, (side, other) in enumerate((sides, selects[::-1])):
            if not any(ref in wanted and ref.dtype.is_float for ref in refs(side.expr)):
                continue
            made = adjoint(side, other, cotangent, f"d_{definition.ref.name}", self.axes, self.fresh_axis, first=i == 0)
            found = selected(self.reduced(made.kind, made.expr, made.over, made.name), holding[i])
            self.contribute(side.expr, found, self.along.of(side.expr), wanted)

    def through_scan(self, definition: _Definition, wanted: Set[Ref]) -> None:
        """Add a scan's adjoint to what its values read."""
        taken, name, sums = scans.parts(definition.expr), definition.label, f"d_{definition.label}"
        terms = [self._sum(term, late, sums) if late else term for late, term in self.terms_of(definition.ref, sums)]
        if not terms:
            return

        def scan(made: scans.Scanned) -> Expr:
            stem = name if made.how == replace(taken.how, exclusive=made.how.exclusive) else f"d_{name}"
            return self.reduced(SCAN, made.expr, (), stem)

        cotangent = reduce_by(add, terms)
        for value, made in scan_adjoints(taken, definition.ref, cotangent, scan):
            if any(ref in wanted and ref.dtype.is_float for ref in refs(value)):
                found = made()
                along = self.along.of(found) | self.along.of(value)
                found = selected(found, self._holding(terms, self.along.of(cotangent) - {taken.axis}))
                self.contribute(value, found, along, wanted)

    def _holding_for(self, side: Factor, cotangent: Expr) -> list[Condition]:
        """The conditions without which a product's cotangent is zero for all that an element of a factor is part of.

        Such an element has no gradient there, and it is left out of the other factor's: it may be infinite.
        """
        own = common_axes(side, self.along)  # a condition calls axes as the product does
        return guards_of(cotangent, lambda condition: self.along.of(condition[0]) <= own)

    def through_declared(self, call: Sequence[_Definition], wanted: Set[Ref]) -> None:
        """Add the gradients that were declared for a call, of which these are results, to what its inputs read."""
        results = [_declared(definition) for definition in call]
        first = results[0]
        inner = frozenset[str]().union(*map(self.along.of, first.inputs))
        linear = is_linear(first)
        given: dict[frozenset[str], dict[int, Expr]] = {}
        for definition, result in zip(call, results, strict=True):
            name = f"d_{definition.label}"
            for late, term in self.terms_of(definition.ref, name):
                if late and not (linear and late.isdisjoint(inner)):  # what is declared is of the sum
                    late, term = frozenset(), self._sum(term, late, name)
                terms = given.setdefault(late, {})
                terms[result.result] = terms[result.result] + term if result.result in terms else term
        for late, cotangents in given.items():
            found = declared_gradients(
                first, cotangents, self.axes, self.fresh_axis,
                lambda reduce: self.reduced(reduce.kind, reduce.expr, reduce.over, reduce.name), self.names,
                self.written,
            )  # fmt: skip
            for into, value, summed in found:
                along = self.along.of(value)
                if summed is not None:
                    value = selected(value, self._holding(cotangents.values(), along - summed))
                space = along | self.along.of(into) | late
                self.contribute(into, converted(value, into.dtype), space, wanted)

    def _holding(self, terms: Iterable[Expr], along: frozenset[str]) -> list[Condition]:
        """Conditions along these axes without which all of the terms are zero."""
        found = [guards_of(term, lambda condition: self.along.of(condition[0]) <= along) for term in terms]
        return reduce_by(either, found)

    def count(self, over: Iterable[str], dtype: dtypes.DType) -> Expr:
        """Number of elements along the axes."""
        total: Expr | None = None
        for axis in over:
            total = Size(axis) if total is None else total * Size(axis)
        return converted(const(1, dtype) if total is None else total, dtype)


def _is_of_places(condition: Expr, over: frozenset[str]) -> bool:
    """Whether it compares a place with the position along one of these axes."""
    sides = condition.children if is_call(condition, "eq") else ()
    return any(isinstance(node, Index) and node.axis in over for node in walk(sides))


def _through(definition: _Definition, adjoint: Expr, state: _Reverse) -> Expr:
    """The adjoint of each element that a definition reduces, given that of the result."""
    x, over, result = definition.expr, definition.over, definition.ref
    name = result.name
    if not over or definition.kind == "sum":
        return adjoint
    if definition.kind in ("max", "min"):  # elements that tie share evenly
        hit = apply("eq", x, result)
        ties = state.reduced("sum", apply("where", hit, const(1, x.dtype), const(0, x.dtype)), over, f"ties_{name}")

        def share(value: Expr) -> Expr:  # 0 / 0 where NaN won, as torch; but zero where nobody reads the extremum
            return value if is_zero(value) else apply("where", hit, value / ties, const(0, x.dtype) / ties)

        return behind_guards(adjoint, share)
    if definition.kind == "squared_deviation":
        mean = state.reduced("sum", x, over, f"sum_of_{name}") / state.count(over, x.dtype)
        return adjoint * 2.0 * (x - mean)
    if definition.kind == "sum_exp":  # relative to a maximum that counts as a constant
        maximum = state.reduced("max", x, over, f"top_{name}")
        return adjoint * apply("exp", x - apply("stop_gradient", maximum))
    assert definition.kind == "prod"
    return adjoint * _product_of_others(x, result, over, state)


def _product_of_others(x: Expr, product: Ref, over: tuple[str, ...], state: _Reverse) -> Expr:
    """product / x, and for an element that is zero the product of the rest times that of the other zeros.

    That is zero where there are others, but not its derivatives by them: so it is written as the polynomial that it is,
    in what all zeros add up to, and their squares. (Of four zeros the fourth derivatives would be wrong.)
    """
    one, zero = const(1, x.dtype), const(0, x.dtype)
    is_zero = apply("eq", x, zero)

    def of_zeros(name: str, expr: Expr) -> Ref:
        return state.reduced("sum", apply("where", is_zero, expr, zero), over, f"{name}_{product.name}")

    zeros, total, squares = of_zeros("zeros", one), of_zeros("sum_of_zeros", x), of_zeros("squares_of_zeros", x * x)
    rest = state.reduced("prod", apply("where", is_zero, one, x), over, f"rest_{product.name}")
    others, their_squares = total - x, squares - x * x
    of_others = {
        1: one,
        2: others,
        3: (others * others - their_squares) * const(0.5, x.dtype),
    }  # by Newton's identities
    at_zero: Expr = zero
    for count in sorted(of_others, reverse=True):
        exactly = apply("eq", zeros, const(count, x.dtype))
        at_zero = apply("where", exactly, rest if count == 1 else of_others[count] * rest, at_zero)
    return apply("where", is_zero, at_zero, product / apply("where", is_zero, one, x))


def _definitions(reduces: Sequence[Reduce], outputs: Sequence[Output]) -> tuple[list[_Definition], list[Expr]]:
    """Cut large expressions. Returns the definitions in order of need, and each output in terms of them."""
    cuts = Substitution({})
    sizes: dict[Expr, int] = {}
    walked: set[Expr] = set()  # a root may be cut where another one reads it
    found: list[_Definition] = []
    shared = _shared_and_costly([item.expr for item in (*reduces, *outputs)])

    def cut(root: Expr) -> Expr:
        for node in walk([root], walked, differentiated):
            sizes[node] = 1 + sum(sizes[child] for child in differentiated(node))
            declared = isinstance(node, Declared)
            large = (sizes[node] > LARGEST_EXPRESSION and node is not root) or node in shared or declared
            if large and node.dtype.is_float and node not in cuts.values:
                ref = _Cut(len(cuts.values), node.dtype)
                expr = rebuild(node, tuple(map(cuts.of, node.children)))
                found.append(_Definition(ref, expr))
                cuts.put(node, ref)
            if node in cuts.values:
                sizes[node] = 1
            if node is not root:
                walked.add(node)
        return cuts.of(root)

    for reduce in reduces:
        if reduce.kind == DOT:
            sides = [side.of((cut(side.expr),)) for side in factors(reduce)]
            found.append(_Definition(reduce.ref, product_of("", sides[0], sides[1], ()).expr, reduce.over, DOT))
        elif reduce.kind == SCAN:
            taken = scans.parts(reduce.expr)
            found.append(_Definition(reduce.ref, taken.of(*map(cut, taken.values)).expr, (), SCAN))
        else:
            found.append(_Definition(reduce.ref, cut(reduce.expr), reduce.over, reduce.kind))
    return found, [cut(output.expr) for output in outputs]


def _call_of(definition: _Definition) -> tuple[int, tuple[Expr, ...]]:
    """What the results of one call with a declared gradient have in common."""
    declared = _declared(definition)
    return declared.call, declared.inputs


def _declared(definition: _Definition) -> Declared:
    assert isinstance(definition.expr, Declared)
    return definition.expr


def _shared_and_costly(roots: Sequence[Expr]) -> set[Expr]:
    """Intermediates that are used more than once and contain a special function below their own call.

    Their adjoint is accumulated once (an LSTM's cell state). Shared plain arithmetic is better put in place, because
    sympy then sees what cancels.
    """
    uses = Counter(child for node in walk(roots) for child in node.children) + Counter(roots)
    special: set[Expr] = set()  # what is made of one
    found: set[Expr] = set()
    for node in walk(roots):
        if is_special(node):
            special.add(node)
        elif not special.isdisjoint(node.children):
            special.add(node)
            if uses[node] > 1:
                found.add(node)
    return found


@dataclass(frozen=True)
class GradientNames:
    """What the backward of an op calls the gradients of its results and of its arguments, by their own names.

    A packed tensor and its parts have one each. Usually ``d_x``; with a number where something is called that already,
    as the third derivative's cotangents would be.
    """

    results: Mapping[str, str]
    arguments: Mapping[str, str]

    @classmethod
    def of(cls, op: Op, prefix: str = "d_") -> GradientNames:
        results, arguments = _own_names(op.outputs), _own_names(op.operands)
        taken = {*results, *arguments, *(thing.name for thing in (*op.scalars, *op.expand()[0]))}

        def named(names: Iterable[str]) -> dict[str, str]:
            found = {}
            for name in names:
                found[name] = safe_name(f"{prefix}{name}", taken)
                taken.add(found[name])
            return found

        return cls(named(results), named(arguments))

    def cotangent(self, output: Output) -> Operand:
        """The operand of the backward op that carries the gradient of ``output``."""
        packed = replace(output.packed, base=self.results[output.packed.base]) if output.packed else None
        return Operand(self.results[output.name], output.dtype, output.shape, packed, output.groups)


def _own_names(things: Iterable[Operand | Output]) -> list[str]:
    """Names of tensors and of their parts."""
    return list(dict.fromkeys(name for t in things for name in ([t.packed.base, t.name] if t.packed else [t.name])))


def gradient(
    op: Op, wanted: Sequence[str], given: Sequence[int] | None = None, names: GradientNames | None = None
) -> Op:
    """The backward of ``op``: reads its operands and the cotangents of its outputs, writes the wanted gradients.

    Args:
        wanted: names of arguments (a packed argument by its own name) whose gradients to compute.
        given: positions of the outputs that have a cotangent; None means all float ones. An output without one costs
            nothing.
        names: what to call cotangents and gradients; None: ``d_`` and their own names.

    Returns:
        An Op labelled ``"backward"`` with outputs ``d_<argument>`` of the argument's dtype and shape.

    Raises:
        DerivativeError: a wanted argument is not a float tensor of the op.
    """
    op, loose = unmarked(without_idle_extrema(op))
    reduces, outputs = op.expand()
    positions = [i for i, o in enumerate(outputs) if o.dtype.is_float and (given is None or i in given)]
    targets = _targets(op, wanted)
    names = names or GradientNames.of(op)
    cotangents = [names.cotangent(outputs[i]) for i in positions]
    taken = _names(op, reduces) | {c.name for c in cotangents} | {names.arguments[t.name] for t in targets}
    state = _Reverse(op.axes_of(), taken, frozenset(o.name for o in op.operands), free_axis(op))
    state.axes.update({c.name: frozenset(a for a in c.shape if a) for c in cotangents})
    definitions, roots = _definitions(reduces, outputs)
    state.known = {(d.kind, d.expr, d.over): d.ref for d in definitions if d.over or d.kind == SCAN}
    for definition in definitions:
        state.axes[definition.ref.name] = state.along.of(definition.expr) - set(definition.over)
    calls: dict[Any, list[_Definition]] = {}
    for definition in definitions:
        if isinstance(definition.expr, Declared):
            calls.setdefault(_call_of(definition), []).append(definition)
    leaves = [target.ref for target in targets]
    differentiable = {*leaves, *(definition.ref for definition in definitions)}
    for position, cotangent in zip(positions, cotangents, strict=True):
        space = frozenset(a for a in outputs[position].shape if a)
        start = converted(cotangent.ref, roots[position].dtype)
        state.contribute(roots[position], start, space, differentiable)
    for definition in reversed(definitions):
        name = f"d_{definition.label}"
        if definition.kind == DOT:
            terms = [term for _, term in state.terms_of(definition.ref, name)]
            if terms:
                state.through_product(definition, reduce_by(add, terms), differentiable)
            continue
        if definition.kind == SCAN:
            state.through_scan(definition, differentiable)
            continue
        if isinstance(definition.expr, Declared):
            call = calls[_call_of(definition)]
            if definition is call[0]:  # of the results the first that is needed: all that reads the others comes behind
                state.through_declared(call, differentiable)
            continue
        space = state.along.of(definition.expr)
        for further, term in state.terms_of(definition.ref, name):
            state.contribute(definition.expr, _through(definition, term, state), space | further, differentiable)
    results = [_gradient_output(state, target, names) for target in targets]
    results += _unread_parts(targets, names, {*state.axes, *taken, *(result.name for result in results)})
    return _close(op, loose, definitions, state, results, cotangents)


def _targets(op: Op, wanted: Sequence[str]) -> list[Operand]:
    """The operands whose gradients make up those of ``wanted``: of a packed tensor its parts, or the whole.

    Raises:
        DerivativeError: a wanted argument is not a float tensor of the op, or read as a whole and in parts.
    """
    read = reached(op, range(len(op.outputs)))
    found: list[Operand] = []
    for name in dict.fromkeys(wanted):
        mine = [o for o in op.operands if o.base == name and o.dtype.is_float]
        parts = [o for o in mine if o.packed]
        whole = [o for o in mine if o.packed is None]
        both = bool(whole and parts) and whole[0].name in read and any(o.name in read for o in parts)
        if not mine or both:
            floats = {o.base for o in op.operands if o.dtype.is_float}
            raise DerivativeError(
                f"{op.name}, gradient",
                given=f"the gradient of {name!r}" + (", used both whole and in parts" if both else ""),
                expected=f"a float tensor argument: {', '.join(sorted(floats)) or 'this op has none'}",
                fix="use the parts everywhere, or take the tensor twice, as two arguments"
                if both
                else "ask for the gradients of float arguments only",
            )
        found += whole if whole and (not parts or whole[0].name in read) else parts
    return [operand for operand in op.operands if operand in found]


def _names(op: Op, reduces: Sequence[Reduce]) -> set[str]:
    things = (*op.operands, *op.scalars, *reduces)
    return {thing.name for thing in things}


def _gradient_output(state: _Reverse, target: Operand, names: GradientNames) -> Output:
    name = names.arguments[target.name]
    expr = state.total(target.ref, f"sum_{name}")
    packed = PackedBlock(names.arguments[target.packed.base], *_place(target.packed)) if target.packed else None
    zero = const(0, target.dtype)
    return Output(name, zero if expr is None else expr, target.dtype, target.shape, packed, target.groups)


def _unread_parts(targets: Sequence[Operand], names: GradientNames, taken: set[str]) -> list[Output]:
    """Zeros for blocks of packed arguments that the op does not read, and so does not have as operands."""
    found: list[Output] = []
    there = {(target.packed.base, target.packed.index) for target in targets if target.packed}
    for target in {target.packed.base: target for target in targets if target.packed}.values():
        assert target.packed is not None
        dim, _, count = _place(target.packed)
        for index in range(count):
            if (target.packed.base, index) not in there:
                base = names.arguments[target.packed.base]
                name = safe_name(f"{base}_{index}", taken)
                taken.add(name)
                packed = PackedBlock(base, dim, index, count)
                found.append(Output(name, const(0, target.dtype), target.dtype, target.shape, packed, target.groups))
    return found


def _place(block: PackedBlock) -> tuple[int, int, int]:
    return block.dim, block.index, block.count


def _close(
    op: Op, loose: set[Expr], definitions: list[_Definition], state: _Reverse, results: list[Output],
    cotangents: list[Operand],
) -> Op:  # fmt: skip
    """Put the cuts back in place, simplify, name things, say what may be regrouped, and keep only what is read."""
    back = Substitution({})
    for definition in definitions:
        if isinstance(definition.ref, _Cut):
            back.put(definition.ref, back.of(definition.expr))
    forward, outputs = op.expand()
    reduces = [*forward, *(replace(r, expr=back.of(r.expr)) for r in state.reduces)]
    results = [replace(result, expr=back.of(result.expr)) for result in results]
    called = {back.of(expr): name for expr, name in state.names.items()} | op.names()
    called |= {output.expr: output.name for output in outputs}
    declared = [back.of(expr) for expr in state.written]
    tidy = simplify([*(item.expr for item in (*reduces, *results)), *called, *declared], TIDY, along=state.along)
    # What the op says, and what declared gradients do, is computed in the order in which it is written.
    written = set(walk([tidy[item.expr] for item in (*forward, *outputs)])) - loose
    written.update(tidy[expr] for expr in declared)
    final = marked(tidy.values(), written)
    kept = [replace(r, expr=final[tidy[r.expr]]) for r in reduces]
    results = [replace(r, expr=final[tidy[r.expr]]) for r in results]
    names = {final[tidy[expr]]: name for expr, name in called.items() if isinstance(tidy[expr], Call)}
    statements, bound = introduce_lets(live_reduces(kept, results), results, names, state.taken)
    read = names_read([*statements, *bound])
    given = (*op.operands, *cotangents)
    needed = asked_axes([*statements, *bound]) | shaped_axes(bound)
    operands = with_carriers([o for o in given if o.name in read], given, needed)
    scalars = tuple(s for s in op.scalars if s.name in read)
    further = "double backward" if op.label == "backward" else f"{op.label} of backward"
    label = "backward" if op.is_declared else further
    return Op(op.name, label, tuple(operands), scalars, tuple(statements), tuple(bound), "tuple", op.declared, op.doc)


def operands_read(op: Op) -> tuple[Operand, ...]:
    """The operands that something reads; others only tell sizes."""
    read = names_read([*op.statements, *op.outputs])
    return tuple(operand for operand in op.operands if operand.name in read)
