"""Epilogues: what a library can compute of a matrix product before it writes the result.

An epilogue is an activation of product + bias, one of cuBLASLt's or any other.
A bias and relu are recognized by their form, gelu's tanh form by what it computes, since it is written in many ways.
Any other function of the sum, and of auxiliary inputs, is kept as an expression, from which cuDNN makes a kernel
(matmul/libraries/cudnn): activations, residuals, gates and masks, and in a backward the derivative of the activation
before.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.ir import (
    Call,
    Const,
    Expr,
    Index,
    Op,
    Operand,
    Output,
    Reduce,
    Ref,
    Size,
    axis_name,
    const,
    refs,
    substitute,
    walk,
)
from fusegen.core.text import expr_text
from fusegen.declare.table import apply, lookup
from fusegen.fuse.steps import Product
from fusegen.launch.checksummed import digest


class AuxiliaryInput(Ref):
    """What an activation is a function of beside the sum.

    Attributes:
        at: its place among them, from 1 on.
        is_row: whether it is one row that all of the result's rows share; else it is as large as the result.
    """

    __slots__ = ("at", "is_row")
    at: int
    is_row: bool

    def __new__(cls, at: int, is_row: bool, dtype: DType) -> AuxiliaryInput:
        return Expr.__new__(cls, at, is_row, dtype)  # type: ignore[return-value]

    def _fill(self, at: int, is_row: bool, dtype: DType) -> None:  # type: ignore[override]
        self.at, self.is_row = at, is_row
        super()._fill(f"row_{at}" if is_row else f"matrix_{at}", dtype)


@dataclass(frozen=True)
class Epilogue:
    """``activation(product + bias)``, with or without the bias, or "bias": the sum alone.

    Attributes:
        activation: "relu", "gelu" (its tanh form), "bias", or the text of another function.
        bias: the operand's name; empty where there is none.
        preactivation: the result that the activation's argument is saved in, for the backward; empty: it is not saved.
        function: the activation as an expression of ARGUMENT and of the auxiliary inputs.
        auxiliary: further operands of the function, in its order: their names, and what the function calls them.
        result: the name of the activation's result, where the step has other results, too.
        reductions: how those are computed from the activation, a bias's gradient for example.
    """

    activation: str
    bias: str = ""
    preactivation: str = ""
    function: Expr | None = None
    auxiliary: tuple[tuple[str, AuxiliaryInput], ...] = ()
    result: str = ""
    reductions: Op | None = None

    @property
    def title(self) -> str:
        """What is measured under one name: "gelu", "gelu without bias, its argument saved"."""
        bias = "" if self.bias else " without bias"
        return (
            self.activation
            + bias
            + ", its argument saved" * bool(self.preactivation)
            + ", then sums" * bool(self.reductions)
        )

    @property
    def canonical(self) -> Epilogue:
        """The same for operands and results of all names, alone: what a library is tried with."""
        auxiliary = tuple((ref.name, ref) for _, ref in self.auxiliary)
        bias, preactivation = "bias" * bool(self.bias), "kept" * bool(self.preactivation)
        return replace(self, bias=bias, preactivation=preactivation, auxiliary=auxiliary, result="", reductions=None)


class _Argument(Ref):
    """The sum that an activation is a function of: no operand, whatever operands are called."""

    __slots__ = ()


ARGUMENT = _Argument("sum", dtypes.float32)
MAX_AUXILIARY = 3
# Operations of an activation that a library is asked about; larger ones were not tried.
MOST_OPERATIONS = 24
# Characters up to which a function's own text is its title.
_SHORT = 60


@functools.lru_cache(maxsize=1024)
def match_epilogue(product: Product, step: Op) -> Epilogue | None:
    """The epilogue that computes exactly what ``step``, the op behind a product, computes."""
    if product.onto or any(thing.groups for thing in (*step.operands, *step.outputs)):
        return None
    return _of_the_sum(product, step) or _of_more(product, step)


def _of_the_sum(product: Product, step: Op) -> Epilogue | None:
    """A function of product + bias, and that sum, or one of the two."""
    others = [operand for operand in step.operands if operand.name != product.result]
    own = [operand for operand in step.operands if operand.name == product.result]
    if step.scalars or any(isinstance(s, Reduce) for s in step.statements) or len(own) != 1 or len(others) > 1:
        return None
    if len(product.axes) < 2 or any(o.packed or o.shape != product.axes for o in step.outputs):
        return None
    if any(o.packed or o.shape != product.axes[-1:] for o in others):
        return None
    if len({thing.dtype for thing in (*step.operands, *step.outputs)}) != 1:
        return None
    if product.bias and others:
        return None
    bias = product.bias or (others[0].name if others else "")
    sums: list[Expr] = [own[0].ref]
    if others:
        sums = [apply("add", own[0].ref, others[0].ref), apply("add", others[0].ref, own[0].ref)]
    written = step.expand()[1]
    preactivation = [o.name for o in written if o.expr in sums]
    activated = [o for o in written if o.expr not in sums]
    if len(activated) == 1 and len(preactivation) < 2:
        activation = _activation(step, product, activated[0], sums)
        function = substitute(activated[0].expr, dict.fromkeys(sums, ARGUMENT))
        if activation == "relu":
            return None if preactivation else Epilogue("relu", bias, function=function)  # cuBLASLt keeps only the signs
        if activation or (_is_of_one(function) and _operations(function) <= MOST_OPERATIONS):
            return Epilogue(activation or _text(function), bias, preactivation[0] if preactivation else "", function)
    return Epilogue("bias", bias) if bias and not product.bias and not activated and len(preactivation) == 1 else None


def _of_more(product: Product, step: Op) -> Epilogue | None:
    """A function of the product and of auxiliary inputs, and sums of its result."""
    reduces, outputs = step.expand()
    whole = [output for output in outputs if output.shape == product.axes]
    if len(whole) != 1 or step.scalars or len(product.axes) < 2:
        return None
    (result,) = whole
    read = {ref.name for ref in refs(result.expr)}
    operands = {operand.name: operand for operand in step.operands if operand.name in read}
    own = operands.pop(product.result, None)
    row = product.axes[-1:]
    if own is None or len(operands) < len(read) - 1 or not 0 < len(operands) <= MAX_AUXILIARY:
        return None
    if any(o.packed or o.shape not in (product.axes, row) for o in operands.values()) or result.packed:
        return None
    if len({thing.dtype for thing in (own, result, *operands.values())}) != 1:
        return None
    called = {o: AuxiliaryInput(at, o.shape == row, o.ref.dtype) for at, o in enumerate(operands.values(), 1)}
    function = substitute(result.expr, {own.ref: ARGUMENT, **{o.ref: ref for o, ref in called.items()}})
    if not 0 < _operations(function) <= MOST_OPERATIONS or any(isinstance(n, (Size, Index)) for n in walk([function])):
        return None
    auxiliary = tuple((operand.name, ref) for operand, ref in called.items())
    found = Epilogue(_text(function), product.bias, function=function, auxiliary=auxiliary)
    if len(outputs) == 1:
        return found
    reductions = _sums(step, result, reduces, [output for output in outputs if output is not result])
    return None if reductions is None else replace(found, result=result.name, reductions=reductions)


def _sums(step: Op, result: Output, reduces: Sequence[Reduce], outputs: Sequence[Output]) -> Op | None:
    """``outputs`` as an op of ``result``, as it has been stored, alone; None where they need more, or all of it."""
    given = Operand(result.name, result.dtype, result.shape)
    known: dict[Expr, Expr] = {result.expr: given.ref}
    mine = [replace(reduce, expr=substitute(reduce.expr, known)) for reduce in reduces]
    written = [replace(output, expr=substitute(output.expr, known)) for output in outputs]
    totals = {reduce.name for reduce in mine}
    inner = {ref.name for reduce in mine for ref in refs(reduce.expr)}
    if inner - totals != {given.name} or any({r.name for r in refs(o.expr)} - totals for o in written):
        return None
    nodes = [node for item in (*mine, *written) for node in walk([item.expr])]
    if any(isinstance(n, Index) or (isinstance(n, Size) and n.axis not in result.shape) for n in nodes):
        return None
    return replace(
        step, label=f"{step.label} sums", operands=(given,), statements=tuple(mine), outputs=tuple(written),
        result="tuple",
    )  # fmt: skip


def activate(epilogue: Epilogue, total: Any, auxiliary: Sequence[Any] = ()) -> Any:
    """An epilogue's activation of a torch tensor and of auxiliary inputs."""
    import torch
    from torch.nn import functional

    if epilogue.activation == "relu":
        return functional.relu(total)
    if epilogue.activation == "gelu":
        return functional.gelu(total, approximate="tanh")
    assert epilogue.function is not None
    known: dict[Expr, Any] = {
        ARGUMENT: total,
        **dict(zip((ref for _, ref in epilogue.auxiliary), auxiliary, strict=True)),
    }
    for node in walk([epilogue.function]):
        if isinstance(node, Const):
            value = ctypes.c_float(float(node.value)).value  # as kernels have it: beyond float32 it is infinite
            known[node] = torch.tensor(value, dtype=torch.float32, device=total.device)
        elif isinstance(node, Call):
            known[node] = lookup(node.function).reference(torch, *[known[argument] for argument in node.args])
    return known[epilogue.function]


def _text(function: Expr) -> str:
    """A short text for a function, which no other has."""
    nodes = list(walk([function]))
    places = {node: place for place, node in enumerate(nodes)}
    sizes: dict[Expr, int] = {}
    for node in nodes:
        sizes[node] = 1 + sum(sizes[child] for child in node.children)
    if sizes[function] <= _SHORT:  # as a tree: what is used again is written again
        text = expr_text(function)
        if len(text) <= _SHORT:
            return text
    fields = [
        f"{node.function} {node.detail_text} {node.dtype} {[places[child] for child in node.args]}"
        if isinstance(node, Call) else repr(node)
        for node in nodes
    ]  # fmt: skip
    return f"a function of {_operations(function)} operations, {digest(*fields)[:12]}"


def _operations(function: Expr) -> int:
    return sum(isinstance(node, Call) for node in walk([function]))


def _is_of_one(function: Expr) -> bool:
    """Whether it is a function of the sum and of nothing else."""
    leaves = {node for node in walk([function]) if isinstance(node, (Ref, Size, Index))}
    return leaves == {ARGUMENT}


def _activation(step: Op, product: Product, output: Output, sums: Sequence[Expr]) -> str:
    for before in sums:
        zero = const(0, before.dtype)
        if output.expr in [apply("where", apply(test, before, zero), zero, before) for test in ("le", "lt")]:
            return "relu"  # of NaN it makes NaN
    return "gelu" if _is_gelu(step, product, output, sums) else ""


# What gelu's tanh form can be written with: analytic functions, so that two which agree on many numbers are one.
_ANALYTIC = frozenset({"add", "sub", "mul", "div", "neg", "powi", "tanh", "sigmoid"})
# And a clamp of the argument itself: two such are one if they agree on many numbers on each side of its bounds.
_BOUNDS = 1, 50


def _is_gelu(step: Op, product: Product, output: Output, sums: Sequence[Expr]) -> bool:
    """Whether ``output`` is gelu of product + bias in its tanh form, tried on many numbers in double precision."""
    nodes = [node for node in walk([output.expr]) if not _is_wide_clamp(node, sums)]
    functions = {node.function for node in nodes if isinstance(node, Call)}
    if not functions <= _ANALYTIC or any(isinstance(node, (Size, Index)) for node in nodes):
        return False
    try:
        import torch
    except ImportError:  # whose tensors the library's epilogues are for
        return False

    from fusegen.declare.reference import reference

    far = torch.logspace(-6, 2, 60, dtype=torch.float64, device="cpu")
    far = torch.cat([far, torch.linspace(0.5, 100, 200, dtype=torch.float64, device="cpu")])
    numbers = torch.cat([-far, torch.zeros_like(far[:1]), far])
    sizes = {axis: len(numbers) if axis == product.axes[-1] else 2 for axis in product.axes}
    given = {operand.name: numbers.expand([sizes[axis] for axis in operand.shape if axis]) for operand in step.operands}
    given[product.result] = given[product.result] * 0.7  # not the bias's
    total = functools.reduce(torch.add, given.values())  # the bias lies along the last axis
    found = reference(_of_any_size(step), given)[[o.name for o in step.outputs].index(output.name)]
    wanted = torch.nn.functional.gelu(total, approximate="tanh")
    return bool(torch.allclose(found, wanted, rtol=1e-9, atol=1e-12))


def _of_any_size(step: Op) -> Op:
    """The step with names for its axes that tell no size (core/ir, ``axis_name``)."""
    names = {axis: axis_name(number) for number, axis in enumerate(step.axes)}

    def shape(of: Sequence[str | None]) -> tuple[str | None, ...]:
        return tuple(axis and names[axis] for axis in of)

    operands = tuple(replace(o, shape=shape(o.shape)) for o in step.operands)
    outputs = tuple(replace(o, shape=shape(o.shape)) for o in step.outputs)
    statements = tuple(
        replace(statement, over=tuple(names[axis] for axis in statement.over))
        if isinstance(statement, Reduce) else statement
        for statement in step.statements
    )  # fmt: skip
    return replace(step, operands=operands, outputs=outputs, statements=statements)


def _is_wide_clamp(node: Expr, sums: Sequence[Expr]) -> bool:
    match node:
        case Call("clamp", (x, Const(least), Const(most))) if x in sums:
            return all(_BOUNDS[0] <= abs(bound) <= _BOUNDS[1] for bound in (least, most))
    return False
