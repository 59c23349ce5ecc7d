"""Whatever a stage makes up has a name of its own, whatever the declaration calls its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fusegen as fg
from fusegen.core.ir import Op
from fusegen.declare.check import check_op
from fusegen.derive.batch import batch
from fusegen.derive.exact import as_written
from fusegen.derive.gradient import gradient
from fusegen.derive.lower import lower
from fusegen.derive.tangent import tangent
from fusegen.derive.training import train
from fusegen.derive.value_and_grad import value_and_gradient
from fusegen.distribute.sharding import tied
from fusegen.distribute.stages import staged
from fusegen.fuse.check import check_kernels
from fusegen.fuse.group import group, group_by_rows

SHAPES = ((6, 5), (6, 5), (5,))
# Of three arguments: what is rewritten, kept, cut, compared and shared.
BODIES = {
    "softmax": "fg.softmax(a * b, -1) * c",
    "norm": "(a - fg.mean(a, -1, keepdims=True)) * fg.rsqrt(fg.var(a, -1, keepdims=True) + 1) * c + b",
    "gates": "a * fg.tanh(fg.softplus(b)) + c * (1 + fg.tanh(b)) + fg.sigmoid(b) * fg.exp(-b)",
    "extremum": "fg.where(a * b == fg.amax(a * b, -1, keepdims=True), fg.exp(a) * c, 0) + fg.exp(a)",
    "loss": "fg.logsumexp(a, -1) - fg.sum(a * b * c, -1) + fg.prod(b + 2, -1)",
    "long": "fg.sin(a * b) * fg.cos(a + c) * fg.exp(fg.sin(a * b)) / (1 + fg.exp(fg.cos(b) * c) + fg.log(2 + a * a))",
    "sums": "fg.sum(a * b, 0) * c + fg.sum(fg.exp(a), 0) * fg.sum(b * fg.exp(a), 0)",
}


def declared(body: str, names: tuple[str, ...]) -> Op:
    """The op with its arguments called so."""
    space: dict[str, Any] = {"language": fg}
    for old, new in zip("abc", names, strict=True):
        body = re.sub(rf"(?<![\w.]){old}(?!\w)", new, body)
    exec(f"def op({', '.join(names)}):\n    return {body.replace('fg.', 'language.')}\n", space)
    traced: Op = fg.op(space["op"]).trace(*(fg.TensorSpec(fg.float32, shape) for shape in SHAPES))
    return traced


def _floats(op: Op) -> tuple[str, ...]:
    return tuple(operand.name for operand in op.operands)


def trained(op: Op) -> list[Op]:
    training = train(op, _floats(op))
    return [training.forward, training.backward((0,))]


STAGES: dict[str, Callable[[Op], list[Op]]] = {
    "lowered": lambda op: [lower(op), as_written(lower(op))],
    "gradient": lambda op: [gradient(op, _floats(op))],
    "trained": trained,
    "tangent": lambda op: [tangent(op, gradient(op, _floats(op)))],
    "joint": lambda op: [value_and_gradient(op, _floats(op), (0,))],
    "batched": lambda op: [batch(op, frozenset(_floats(op)[:2]))],
    "staged": lambda op: [made for axis in ("d0", "d1") for made in staged(op, tied(op, axis))],
}


def things(op: Op) -> Iterator[str]:
    yield from (thing.name for thing in (*op.operands, *op.scalars, *op.statements, *op.outputs))


def kernels(op: Op) -> Iterator[str]:
    """Checks them all, and gives the names of what they hand each other."""
    lowered = as_written(lower(op))
    for candidate in (group(lowered), *group_by_rows(lowered)):
        check_kernels(lowered, candidate)
        for kernel in candidate:
            names = [item.name for item in (*kernel.tensors, *kernel.written, *kernel.partials)]
            assert len(set(names)) == len(names)
            yield from names


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("body", BODIES)
def test_an_argument_called_like_something_that_a_stage_makes_up(body: str, stage: str) -> None:
    made = STAGES[stage](declared(BODIES[body], ("a", "b", "c")))
    for name in sorted({name for op in made for name in things(op)} - set("abc")):
        for op in STAGES[stage](declared(BODIES[body], (name, "b", "c"))):
            check_op(op)


@pytest.mark.parametrize("body", BODIES)
def test_an_argument_called_like_something_that_kernels_hand_on(body: str) -> None:
    for name in sorted(set(kernels(declared(BODIES[body], ("a", "b", "c")))) - set("abc")):
        list(kernels(declared(BODIES[body], (name, "b", "c"))))
