"""What is checked after each stage: everything legal passes, and each way to break the contract is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusegen as fg
from fusegen import pipeline
from fusegen.core import dtypes
from fusegen.core.declared import Declared, declared_calls
from fusegen.core.ir import (
    Call,
    Const,
    Factor,
    Groups,
    Index,
    Let,
    Op,
    Operand,
    Output,
    PackedBlock,
    Reduce,
    Ref,
    Scalar,
    Size,
    const,
)
from fusegen.declare.check import check_op
from fusegen.fuse.check import check_kernels
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.row_kernel import RowKernel, Stage
from tests.support.oracles import refused

F32, F64 = fg.float32, fg.float64
X = Ref("x", F32)


def spec(*shape: int, dtype: Any = F32) -> fg.TensorSpec:
    return fg.TensorSpec(dtype, shape)


@fg.op
def centered(x: fg.Tensor, w: fg.Tensor) -> fg.Tensor:
    y = x * w
    mean = fg.mean(y, -1, keepdims=True)
    return fg.exp(y - mean) * fg.rsqrt(fg.var(y, -1, keepdims=True) + 1)


def traced() -> Op:
    return centered.trace(spec(3, 5), spec(5))


def changed(op: Op, at: int, **fields: Any) -> Op:
    """``op`` with one of its statements changed."""
    statements = list(op.statements)
    statements[at] = replace(statements[at], **fields)
    return op.with_statements(statements, op.outputs)


def first(op: Op, kind: type) -> int:
    return next(i for i, statement in enumerate(op.statements) if isinstance(statement, kind))


def add(*args: Any, dtype: Any = F32) -> Call:
    return Call("add", args, dtype)


BROKEN_OPS: dict[str, tuple[Callable[[Op], Op], str]] = {
    "an unknown name": (lambda op: changed(op, 0, expr=add(Ref("nobody", F32), X)), "not defined"),
    "a name of another dtype": (lambda op: changed(op, 0, expr=Ref("x", F64)), "another dtype"),
    "used before it is defined": (
        lambda op: op.with_statements(op.statements[::-1], op.outputs), "not defined"
    ),
    "defined twice": (lambda op: changed(op, 1, name="x"), "defined twice"),
    "too few arguments": (lambda op: changed(op, 0, expr=Call("mul", (X,), F32)), "another number of arguments"),
    "two dtypes": (lambda op: changed(op, 0, expr=add(X, const(1, F64))), "dtypes differ"),
    "a select by a float": (lambda op: changed(op, 0, expr=Call("where", (X, X, X), F32)), "by other than a bool"),
    "a comparison that is no bool": (lambda op: changed(op, 0, expr=Call("lt", (X, X), F32)), "comparison"),
    "a half in arithmetic": (
        lambda op: changed(op, 0, expr=Call("cast", (X,), fg.float16)), "nothing is computed in"
    ),
    "a rounding cast of integers": (
        lambda op: changed(op, 0, expr=Call("cast", (Size("d1"),), F32, fg.float16)), "a rounding cast"
    ),
    "a function of floats on integers": (
        lambda op: changed(op, 0, expr=Call("exp", (Size("d1"),), fg.int64)), "of floats on others"
    ),
    "an unknown axis": (lambda op: changed(op, 0, expr=Index("d9")), "no operand has"),
    "an unknown kind": (lambda op: changed(op, first(op, Reduce), kind="middle"), "unknown kind"),
    "an axis that is not there": (lambda op: changed(op, first(op, Reduce), over=("d0", "d7")), "its expression lacks"),
    "an axis reduced twice": (lambda op: changed(op, first(op, Reduce), over=("d1", "d1")), "reduced twice"),
    "a product of one factor": (lambda op: changed(op, first(op, Reduce), kind="dot"), "other than two factors"),
    "a factor outside of a product": (
        lambda op: changed(op, 0, expr=Factor(X, F32)), "only a reduction reads"
    ),
    "an output that lacks an axis": (
        lambda op: op.with_statements(op.statements, [replace(op.outputs[0], shape=("d0", None))]), "lacks an axis"
    ),
    "an output of another dtype": (
        lambda op: op.with_statements(op.statements, [replace(op.outputs[0], dtype=F64)]), "another dtype"
    ),
    "two outputs of one name": (
        lambda op: op.with_statements(op.statements, [*op.outputs, *op.outputs]), "two results of one name"
    ),
    "blocks of two kinds": (
        lambda op: op.with_statements(
            op.statements,
            [replace(op.outputs[0], name=f"out_{i}", packed=PackedBlock("out", 1, i, 2 + i)) for i in (0, 1)],
        ),
        "of two kinds",
    ),
    "one axis twice": (
        lambda op: replace(op, operands=(Operand("x", F32, ("d1", "d1")), *op.operands[1:])), "one axis twice"
    ),
    "groups that are one": (
        lambda op: op.with_statements(op.statements, [replace(op.outputs[0], groups=(Groups(0, (1,)),))]), "groups that"
    ),
    "two arguments of one name": (lambda op: replace(op, operands=(op.operands[0],) * 2), "two arguments of one name"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_OPS)
def test_a_broken_op_is_named(name: str) -> None:
    breaking, text = BROKEN_OPS[name]
    op = traced()
    check_op(op)
    error = refused(lambda: check_op(breaking(op)))
    assert isinstance(error, fg.LegalityError) and text in str(error) and "centered, forward" in str(error)


def marked() -> Declared:
    inner = fg.op(lambda x, by: fg.round(x) * by, name="inner")
    inner.gradient(lambda d_out, x, by: d_out * by)
    op = fg.op(lambda x, by: inner(x, by) + 1, name="marked").trace(spec(3), 0.5)
    return declared_calls(op)[0]


def remade(mark: Declared, **changed: Any) -> Declared:
    fields = {name: getattr(mark, name) for name in ("args", "gradient", "targets", "call", "result")}
    return Declared(**{**fields, **changed})


BROKEN_MARKS: dict[str, tuple[Callable[[Declared], Declared], str]] = {
    "more inputs than it takes": (lambda d: remade(d, args=(*d.args, *d.inputs)), "of other inputs"),
    "an input of another dtype": (
        lambda d: remade(d, args=(d.value, Call("cast", d.inputs[:1], F64), *d.inputs[1:])), "of other inputs"
    ),
    "no cotangent": (lambda d: remade(d, result=1), "a result without a cotangent"),
    "of no input": (lambda d: remade(d, targets=(2,)), "of other than the inputs"),
    "a gradient that is no op": (
        lambda d: remade(d, gradient=replace(d.gradient, operands=d.gradient.operands[1:])), "not defined"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_MARKS)
def test_a_broken_declared_gradient_is_named(name: str) -> None:
    breaking, text = BROKEN_MARKS[name]
    declared = marked()

    def op(mark: Declared) -> Op:
        x, by = Operand("x", F32, ("d0",)), Scalar("by", F32)
        return Op("marked", "forward", (x,), (by,), (), (Output("out", mark, F32, ("d0",)),))

    check_op(op(declared))
    error = refused(lambda: check_op(op(breaking(declared))))
    assert isinstance(error, fg.LegalityError) and text in str(error)


def row_kernels() -> tuple[Op, tuple[Kernel, ...]]:
    compiled = pipeline.compile_op(traced())
    return compiled.lowered, compiled.by_rows[0]


def with_stage(kernel: RowKernel, at: int, **fields: Any) -> RowKernel:
    stages = list(kernel.stages)
    stages[at] = replace(stages[at], **fields)
    return replace(kernel, stages=tuple(stages))


def walked(kernel: RowKernel) -> Stage:
    return kernel.stages[0]


TWIN = Let("twin", const(1, F32))
BROKEN_KERNELS: dict[str, tuple[Callable[[RowKernel], Kernel], str]] = {
    "a let that no walk computes": (lambda k: replace(k, body=()), "not known here"),
    "a reduction that is not taken": (lambda k: with_stage(k, 0, reduces=walked(k).reduces[1:]), "not known here"),
    "once a row what varies along it": (
        lambda k: replace(k, before=(*k.before, *walked(k).lets)), "varies along other axes"
    ),
    "once a row what a walk has computed": (
        lambda k: with_stage(k, 0, lets=(*walked(k).lets, TWIN), after=(TWIN, *walked(k).after)), "defined twice"
    ),
    "an operand that is not read": (lambda k: replace(k, operands=k.operands[1:]), "not known here"),
    "a tensor of other axes": (
        lambda k: replace(k, operands=(replace(k.operands[0], shape=("d0",)), *k.operands[1:])), "or another one"
    ),
    "a tensor of another dtype": (
        lambda k: replace(k, operands=(replace(k.operands[0], dtype=F64), *k.operands[1:])), "or another one"
    ),
    "nothing written": (lambda k: replace(k, pointwise=()), "no kernel writes"),
    "written twice": (
        lambda k: replace(k, pointwise=(*k.pointwise, replace(k.pointwise[0], name="x"))), "there already"
    ),
    "written along other axes": (
        lambda k: replace(k, pointwise=(replace(k.pointwise[0], shape=("d0",)),)), "of other axes"
    ),
    "reduced over what is not walked": (lambda k: replace(k, over=("d7",)), "reduced but not walked"),
    "a partial result of nothing": (
        lambda k: replace(k, partials=(Output("lost", Ref("x", F32), F32, ("groups", "d1")),)), "of no sum"
    ),
    "a name twice": (
        lambda k: replace(k, before=(*k.before, Let("x", Const("1.0", F32)))), "defined twice"
    ),
    "a position that is no operand": (
        lambda k: replace(k, body=(*k.body, Let("at", Call("cast", (Index("d1"),), F32)))), "a position"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_KERNELS)
def test_a_broken_kernel_is_named(name: str) -> None:
    breaking, text = BROKEN_KERNELS[name]
    op, (kernel,) = row_kernels()
    assert isinstance(kernel, RowKernel)
    check_kernels(op, [kernel])
    error = refused(lambda: check_kernels(op, [breaking(kernel)]))
    assert isinstance(error, fg.LegalityError) and text in str(error) and "centered, forward" in str(error)


def test_two_kernels_do_not_share_a_name() -> None:
    op, (kernel,) = row_kernels()
    assert "two kernels of one name" in str(refused(lambda: check_kernels(op, [kernel, kernel])))


def test_one_kernel_alone_leaves_parts_along_an_axis() -> None:
    """Else the axis has two sizes."""
    op = fg.op(lambda x, w: fg.ops.layer_norm(x, (12,), w), name="normed").trace(np.ones((5, 12)), np.ones(12))
    backward = pipeline.backward_op(pipeline.train_op(op, ("x", "w")), (0,))
    first = next(k for kernels in pipeline.compile_op(backward).by_rows for k in kernels if k.partials)
    assert isinstance(first, RowKernel)
    again = [replace(p, name=f"{p.name}_again") for p in first.partials]
    second = replace(first, name="second", partials=tuple(again))
    said = str(refused(lambda: check_kernels(backward, [first, second])))
    assert "a second size of an axis of partial results" in said


def test_a_compile_checks_what_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    # A stage that breaks its contract fails by name before there is text of it.
    monkeypatch.setattr(pipeline, "lower", lambda op: changed(op, 0, expr=add(Ref("nobody", dtypes.float32), X)))
    error = refused(lambda: pipeline.compile_op(replace(traced(), name="another")))
    assert "not defined" in str(error)
