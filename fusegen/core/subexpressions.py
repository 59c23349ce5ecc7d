"""Common subexpressions become lets, and so do pieces of long ones: the one place where expressions get names."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fusegen.core.ir import (
    LOCATED,
    RECURRENCE,
    SCANNED,
    Call,
    Const,
    Expr,
    Factor,
    Let,
    Output,
    Reduce,
    Ref,
    Rewriting,
    Statement,
    is_call,
    substitute,
    walk,
)

# What C++, CUDA and the C library reserve: no variable of generated CUDA is called so.
_RESERVED_WORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class "
    "co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto half if "
    "inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq threadIdx blockIdx blockDim gridDim warpSize y0 y1 j0 j1 jn yn gamma signgam "
    "index time abs min max exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt pow sin cos tan asin acos atan "
    "atan2 sinh cosh tanh asinh acosh atanh hypot erf erfc erfinv normcdfinv lgamma floor ceil trunc rint fmod "
    "copysign exp10 sincos rsqrtf exp10f sincosf assert errno math_errhandling stdin stdout stderr linux unix"
)
_RESERVED = frozenset(_RESERVED_WORDS.split())
# Macros of the C++ headers that the emulator includes (NAN, EOF, INT_MAX, M_PIf), and of ours.
_MACRO = re.compile(r"[A-Z][A-Z0-9_]{2,}|M_[A-Z0-9]\w*|_[A-Z].*|fusegen_.*")
# What templates call variables of kernels. An intermediate that is called so has another name in some kernels
# (generate/names); where it has that from the start, a kernel's header calls it as its code does.
_OF_KERNELS = (
    "bf16 fg load store at k n e block thread lane warp grid col rows cols tile part first next group row segment "
    "segments segment_size share shares until turn split splits rest result inside begin end chunk piece matrix m "
    "main line"
)
OF_KERNELS = frozenset(_OF_KERNELS.split())


def is_reserved(name: str) -> bool:
    """Whether ``name`` means something wherever generated CUDA is compiled."""
    return name in _RESERVED or "__" in name or _MACRO.fullmatch(name) is not None


def ascii_name(name: str) -> str:
    """The name with code points for the letters outside ASCII, which Python allows, g++ too, and NVRTC does not."""
    return name if name.isascii() else "".join(c if c.isascii() else f"u{ord(c):x}" for c in name)


def safe_name(wanted: str, taken: Iterable[str], counts: dict[str, int] | None = None) -> str:
    """``wanted``, or ``wanted_2`` and so on where that is taken or means something in CUDA.

    Args:
        counts: how far each name has been counted by calls before, of which ``taken`` only grows.
    """
    taken = taken if isinstance(taken, (set, frozenset)) else set(taken)
    base = wanted if wanted.isascii() and wanted.isidentifier() and not keyword.iskeyword(wanted) else "value"
    base = base.strip("_").replace("__", "_") or "value"
    name = f"{base}_" if base in _RESERVED or base in OF_KERNELS else base
    count = 1
    if name in taken and counts:
        count = counts.get(base, 1)
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    if counts is not None:
        counts[base] = count
    return name


# Characters of one printed expression; with the name it is given and the indent, a line of CUDA stays below 120.
WIDEST = 72


def introduce_lets(
    reduces: list[Reduce], outputs: list[Output], names: dict[Expr, str], taken: Iterable[str],
    late: Iterable[Reduce] = (), apart: Iterable[Expr] = (),
) -> tuple[list[Statement], list[Output]]:  # fmt: skip
    """Name what the declaration named, what is used more than once, and pieces of what is too long for a line.

    Args:
        reduces, outputs: with lets expanded; reduces in an order that respects their dependencies.
        names: what the declaration calls an intermediate; those become lets even when used once.
        taken: names of operands, scalars and outputs.
        late: reductions that are complete only where outputs are written: what reads them is named nowhere before.
        apart: expressions that become lets even when used once.

    Returns:
        The statements, each after those it reads, and the outputs in terms of them.
    """
    output_names = {o.expr: o.name for o in reversed(outputs)}
    late_refs: set[Expr] = {reduce.ref for reduce in late}
    binder = _Binder([*reduces, *outputs], names, set(taken), output_names, late_refs, frozenset(apart))
    for reduce in reduces:
        binder.statements.append(replace(reduce, expr=binder.bind(reduce.expr, at_root=False)))
    bound = [replace(output, expr=binder.bind(output.expr, at_root=True)) for output in outputs]
    return binder.statements, bound


class _Binder:
    """State of one ``introduce_lets``: the statements so far, and which expressions they hold."""

    def __init__(
        self, items: Sequence[Reduce | Output], names: dict[Expr, str], taken: set[str],
        output_names: dict[Expr, str], late: set[Expr], apart: frozenset[Expr],
    ) -> None:  # fmt: skip
        roots = [item.expr for item in items]
        self.uses = Counter(child for node in walk(roots) for child in node.children) + Counter(roots)
        self.names, self.output_names, self.late, self.apart = names, output_names, late, apart
        self.taken = taken | {item.name for item in items}
        self.values: dict[Expr, Expr] = {}
        self.declared: dict[Expr, Expr] = {}
        self.widths: dict[Expr, int] = {}
        self.statements: list[Statement] = []
        self.counts: dict[str, int] = {}

    def bind(self, root: Expr, at_root: bool) -> Expr:
        """``root`` in terms of lets, which are made on the way; ``at_root``: it gets a name anyway."""
        for node in walk([root], self.values):  # what has a name is done, and all below it
            if not self.late.isdisjoint(node.children):
                self.late.add(node)
            if isinstance(node, Call):
                self._shorten(node)
                once_here = at_root and node is root and self.uses[node] < 2
                wanted = node in self.names or node in self.apart or (self.uses[node] > 1 and not _trivial(node))
                if not once_here and wanted and _may_be_named(node) and node not in self.late:
                    self._name(node)
            self.widths[node] = self._width(node)
        return substitute(root, self.values)

    def _shorten(self, node: Call) -> None:
        """Name the widest arguments until the rest fits a line."""
        calls = [arg for arg in dict.fromkeys(node.args) if _may_be_named(arg) and arg not in self.values]
        calls = [arg for arg in calls if arg not in self.late]
        for arg in sorted(calls, key=lambda a: -self.widths[a]):
            if self._width(node) <= WIDEST:
                return
            if isinstance(arg, Call) and arg.children and self.widths[arg] > WIDEST // 4:
                self._name(arg)
                self.widths[arg] = self._width(arg)

    def _name(self, node: Call) -> None:
        wanted = self.names.get(node) or describe([self.declared.get(arg, arg) for arg in node.args], node.function)
        name = self.output_names.get(node) or safe_name(wanted, self.taken, self.counts)
        self.taken.add(name)
        children = tuple(substitute(child, self.values) for child in node.args)
        let = Let(name, node.of(children))
        self.statements.append(let)
        self.values[node] = let.ref
        if node in self.names or node in self.output_names:
            self.declared[node] = let.ref

    def _width(self, node: Expr) -> int:
        """About how many characters ``node`` takes in CUDA text."""
        node = self.values.get(node, node)
        if is_call(node, "stop_gradient"):  # which prints as its argument alone
            return self.widths[node.args[0]]
        if isinstance(node, Call):
            around = 2 if node.function in OPERATORS else len(node.function) + len("fg::fast_()")
            return around + sum(self.widths[arg] + 1 for arg in node.args)
        return len(node.name) if isinstance(node, Ref) else len(repr(node.value)) + 1 if isinstance(node, Const) else 4


def _may_be_named(node: Expr) -> bool:
    """Factors, and what multiplies two, stay in their product (core/products), pairs in their reduction or scan."""
    if not isinstance(node, Call) or isinstance(node, Factor) or node.function in (LOCATED, SCANNED, RECURRENCE):
        return False
    return not any(isinstance(arg, Factor) for arg in node.args)


def _trivial(node: Call) -> bool:
    """Not worth a name: a sign or a conversion of something that already has one."""
    return (
        node.function in ("neg", "cast", "stop_gradient") and node.detail is None and not isinstance(node.args[0], Call)
    )


# Calls that print as an infix or prefix operator.
OPERATORS = frozenset({
    "add", "sub", "mul", "div", "neg", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "where",
})  # fmt: skip

_VERBS = {
    "add": "sum", "sub": "diff", "mul": "prod", "div": "ratio", "powi": "power", "where": "chosen", "neg": "minus",
    "lt": "below", "le": "below", "gt": "above", "ge": "above", "eq": "same", "ne": "differs",
    "logical_and": "both", "logical_or": "any", "cast": "as",
}  # fmt: skip


def describe(args: Sequence[Expr], function: str) -> str:
    """A name for an intermediate that the declaration did not name: what it is, and of what (``exp_x``)."""
    verb = _VERBS.get(function, function)
    named = [arg.name for arg in args if isinstance(arg, Ref)]
    plain = verb if function in _VERBS else f"{verb}_value"
    name = "_".join([verb, *named[:2]]) if named else plain
    return name if len(name) <= 24 else plain


def live_reduces(reduces: Sequence[Reduce], outputs: Sequence[Output]) -> list[Reduce]:
    """The reductions that some output needs, in order of need."""
    exprs = {reduce.name: reduce.expr for reduce in reduces}
    walked: set[Expr] = set()
    needed: set[str] = set()
    stack = [output.expr for output in outputs]
    while stack:
        for node in walk([stack.pop()], walked):
            walked.add(node)
            if isinstance(node, Ref) and node.name in exprs and node.name not in needed:
                needed.add(node.name)
                stack.append(exprs[node.name])
    return [reduce for reduce in reduces if reduce.name in needed]


class Renaming(Rewriting):
    """Expressions with the named things called otherwise.

    Args:
        names: new names by old ones; what is not among these keeps its own.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(self._renamed)
        self.names = names

    def _renamed(self, node: Expr) -> Expr:
        return Ref(self.names.get(node.name, node.name), node.dtype) if isinstance(node, Ref) else node
