"""Functions as cuDNN's operations: what it lacks, or is slow at, made of other ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusegen.core import dtypes
from fusegen.core.ir import Call, Const, Ref, walk
from fusegen.matmul.libraries.cudnn_ops import in_its_operations

INF, NAN = float("inf"), float("nan")
X = Ref("x", dtypes.float32)


def call(name: str, x: Any) -> Call:
    return Call(name, (x,), dtypes.float32)


def evaluated(function: Any, x: torch.Tensor) -> torch.Tensor:
    """A function of x, by torch in float32."""
    if isinstance(function, Const):
        return torch.tensor(float(function.value))
    if function is X:
        return x
    return getattr(torch, function.function)(*(evaluated(argument, x) for argument in function.args))


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_error_functions(name: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 100_001), torch.tensor([0.0, 1e30, -1e30, INF, -INF, NAN])])
    rewritten = in_its_operations(call(name, X))
    found = evaluated(rewritten, x)
    torch.testing.assert_close(found, getattr(torch, name)(x.double()).float(), rtol=0, atol=2e-7, equal_nan=True)
    assert {node.function for node in walk([rewritten]) if isinstance(node, Call)} <= {"mul", "add", "sub", "tanh"}


def test_one_inside_another() -> None:
    rewritten = in_its_operations(call("erf", call("erfc", X)))
    x = torch.linspace(-3, 3, 101)
    torch.testing.assert_close(evaluated(rewritten, x), torch.erf(torch.erfc(x)), rtol=0, atol=5e-7)


def test_doubles_are_left_alone() -> None:
    wide = Call("erf", (Ref("x", dtypes.float64),), dtypes.float64)
    assert in_its_operations(wide) is wide
