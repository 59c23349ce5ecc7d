"""A function of ours beside one of torch's in every mode in which torch calls functions of float tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.func import jvp, vmap

from tests.support.oracles import check_no_worse, gradients, outputs_of

Function = Callable[..., Any]
Check = Callable[[Function, Function, Sequence[torch.Tensor]], None]


def _same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(tuple(found), tuple(expected))


def _without_gradients(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    for _ in range(2):  # the second call knows the way
        with torch.no_grad():
            _same(outputs_of(ours(*given)), outputs_of(theirs(*given)))


def _all(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    for _ in range(2):
        (found, first), (expected, second) = gradients(ours, given), gradients(theirs, given)
        _same((*found, *first), (*expected, *second))


def _some(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    for wanted in range(len(given)):
        some = [t if i == wanted else t.detach() for i, t in enumerate(given)]
        _same(_gradients_of_all(ours, some), _gradients_of_all(theirs, some))


def _gradients_of_all(
    function: Function, given: Sequence[torch.Tensor], create_graph: bool = False
) -> Sequence[torch.Tensor]:
    """Of what the results add up to, bent so that it has further derivatives."""
    total = torch.stack([(result * (i + 1)).sin().sum() for i, result in enumerate(outputs_of(function(*given)))]).sum()
    leaves = [t for t in given if t.requires_grad]
    return torch.autograd.grad(total, leaves, create_graph=create_graph, allow_unused=True, materialize_grads=True)


def _second(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    def twice(function: Function) -> Sequence[torch.Tensor]:
        first = _gradients_of_all(function, given, create_graph=True)
        total = torch.stack([(g * (i + 1)).sin().sum() for i, g in enumerate(first)]).sum()
        return torch.autograd.grad(total, given, allow_unused=True, materialize_grads=True)

    _same(twice(ours), twice(theirs))


def _forward_mode(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    points = tuple(t.detach() for t in given)
    along = tuple(t.cos() for t in points)
    _same(_flat(jvp(ours, points, along)), _flat(jvp(theirs, points, along)))


def _flat(pair: tuple[Any, Any]) -> tuple[torch.Tensor, ...]:
    return (*outputs_of(pair[0]), *outputs_of(pair[1]))


def _vmap(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    several = [torch.stack([t.detach(), t.detach().cos(), t.detach() * 0.5]) for t in given]
    for dims in (tuple(0 for _ in given), tuple(0 if i == 0 else None for i in range(len(given)))):
        args = [s if d == 0 else t.detach() for s, t, d in zip(several, given, dims, strict=True)]
        _same(outputs_of(vmap(ours, dims)(*args)), outputs_of(vmap(theirs, dims)(*args)))


def _compiled(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    torch._dynamo.reset()
    graph = torch.compile(lambda *args: ours(*args), fullgraph=True, backend="aot_eager")
    (found, first), (expected, second) = gradients(graph, given), gradients(theirs, given)
    _same((*found, *first), (*expected, *second))


def _halves(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    check_no_worse(ours, theirs, [t.detach().bfloat16().requires_grad_() for t in given])


def _arrays(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    found = outputs_of(ours(*(t.detach().numpy() for t in given)))
    assert all(isinstance(result, np.ndarray) for result in found)
    _same(map(torch.from_numpy, found), (t.detach() for t in outputs_of(theirs(*given))))


def _out(ours: Function, theirs: Function, given: Sequence[torch.Tensor]) -> None:
    expected = [t.detach() for t in outputs_of(theirs(*given))]
    outs = tuple(torch.full_like(t, 7) for t in expected)
    ours(*(t.detach() for t in given), out=outs if len(outs) > 1 else outs[0])
    _same(outs, expected)


MODES: dict[str, Check] = {
    "no gradients": _without_gradients, "all": _all, "some": _some, "second": _second, "jvp": _forward_mode,
    "vmap": _vmap, "compiled": _compiled, "halves": _halves, "arrays": _arrays, "out": _out,
}  # fmt: skip
