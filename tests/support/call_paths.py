"""Ops with an empty call path, of both kinds, for the tests of pytorch/calls (a plugin of theirs: it has a
fixture).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.native import module as native
from fusegen.plan import targets
from fusegen.pytorch.calls import plan_cache, python_cache
from tests.support.declarations import lerp, norm

DEVICE = os.environ.get("FUSEGEN_TEST_DEVICE", "cpu")


@fg.op
def shifted(x, *, by: fg.Const = 0.0, axes: fg.Const = (), scale=1.0):  # type: ignore[no-untyped-def]
    return scale * (fg.sum(x, axes) if axes else x) + by


@fg.op
def both(x, y):  # type: ignore[no-untyped-def]
    return fg.sin(x) * y, x > y, x * y


class Counted(fg.FusedOp):
    """An op that counts its slow-path calls."""

    decided = 0

    def _slow_path(self, args: Any, kwargs: Any) -> Any:
        self.decided += 1
        return super()._slow_path(args, kwargs)


@pytest.fixture(params=["python", "native"])
def fresh(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Counted]]:
    """Makes an op with an empty call path of one kind. Tensors are made where kernels run, on a GPU too: those that the
    suite's own fixture takes there and back are different ones for every call."""
    if request.param == "native" and native.module() is None:
        pytest.skip(f"no native call path: {native.problem()}")

    def make(op: fg.FusedOp) -> Counted:
        made = Counted(op.declaration)
        made._use(plan_cache.PlanCache(op.declaration, made._slow_path, in_python=request.param == "python"))
        return made

    with torch.device(DEVICE) if DEVICE != "cpu" else contextlib.nullcontext():
        yield make


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels whose native launch reports a failed assertion."""
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, *[ctypes.c_void_p] * 4, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64, ctypes.c_int,
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
    )  # fmt: skip

    def launch(*arguments: Any) -> int:
        ctypes.memmove(arguments[9], b"thread 3: x > 0\0", 16)
        return 2

    function = kind(launch)
    entry = ctypes.cast(function, ctypes.c_void_p)  # which begins with its launcher
    monkeypatch.setattr(targets._OnCpu, "address", ctypes.addressof(entry))
    yield


def is_native(op: Any) -> bool:
    return not isinstance(op._cached, python_cache.PythonCache)


def same(a: Any, b: Any) -> None:
    for x, y in zip(*(r if isinstance(r, tuple) else (r,) for r in (a, b)), strict=True):
        assert x.dtype is y.dtype and x.stride() == y.stride() and x.requires_grad == y.requires_grad
        assert torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(), y.nan_to_num())
        assert torch.equal(torch.signbit(x), torch.signbit(y))


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape) for shape in shapes]


def misaligned(size: int) -> torch.Tensor:
    return torch.randn(size + 1)[1:]


CALLS: dict[str, tuple[Any, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "plain": (lerp, lambda: (tuple(tensors((4, 4), (4, 4), (4, 4))), {})),
    "broadcast": (lerp, lambda: (tuple(tensors((4, 4), (4,), (4, 1))), {})),
    "misaligned": (lerp, lambda: ((misaligned(16), misaligned(16), 0.5), {})),
    "turned": (lerp, lambda: ((torch.randn(4, 6).t(), torch.randn(6, 4), 0.5), {})),
    "spread": (lerp, lambda: ((torch.randn(4, 8)[:, ::2], torch.randn(4), 0.5), {})),
    "expanded": (lerp, lambda: ((torch.randn(4, 1).expand(4, 4), torch.randn(4), 0.5), {})),
    "other dtypes": (lerp, lambda: ((torch.randn(4).half(), torch.randn(4).double(), 2), {})),
    "empty": (lerp, lambda: ((torch.randn(0, 3), torch.randn(3), 0.5), {})),
    "no dimensions": (lerp, lambda: ((torch.randn(()), torch.randn(()), 0.5), {})),
    "an int": (lerp, lambda: ((torch.randn(4), torch.randn(4), 2), {})),
    "a bool": (lerp, lambda: ((torch.randn(4), torch.randn(4), True), {})),
    "an infinite float": (lerp, lambda: ((torch.zeros(4), torch.ones(4), 1e300), {})),
    "NaN": (lerp, lambda: ((torch.randn(4), torch.randn(4), math.nan), {})),
    "negative zero": (lerp, lambda: ((-torch.zeros(4), torch.randn(4), -0.0), {})),
    "by name": (lerp, lambda: ((torch.randn(4),), {"w": 0.5, "y": torch.randn(4)})),
    "the same twice": (lerp, lambda: ((x := torch.randn(4), x, x), {})),
    "constants": (shifted, lambda: ((torch.randn(4, 3),), {"by": 2.0, "axes": (0,), "scale": 3})),
    "rows": (norm, lambda: ((torch.randn(3, 8), torch.randn(8)), {"eps": 1e-3})),
    "several results": (both, lambda: (tuple(tensors((3, 4), (4,))), {})),
}
