"""Tensors that come by DLPack: JAX's where it is installed, and a library of two classes where it is not."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fusegen as fg


@fg.op
def blend(x, y):  # type: ignore[no-untyped-def]
    return x * y + 1


class Lent:
    """A tensor of a library that lends its memory."""

    __module__ = "lender.arrays"

    def __init__(self, array: Any, dtype: str = "", problem: str = "") -> None:
        self.array, self.dtype, self.problem = array, dtype or str(array.dtype), problem

    def __dlpack__(self, **options: Any) -> Any:
        if self.problem:
            raise RuntimeError(self.problem)
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.dtype == "gone":
            raise TypeError("no buffer")
        return (1, 0)


class Traced:
    """What stands for a tensor while a function is traced: it answers to every name, as some do."""

    __module__ = "jax._src"
    dtype = "float32"

    def __dlpack__(self) -> Any:
        raise TypeError("traced")

    def __dlpack_device__(self) -> Any:
        raise TypeError("traced")


@pytest.fixture(autouse=True)
def lender(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("lender")
    module.from_dlpack = lambda array: Lent(np.from_dlpack(array))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lender", module)


def message(kind: type[Exception], *arguments: Any) -> str:
    with pytest.raises(fg.FusegenError) as caught:
        blend(*arguments)
    assert type(caught.value) is kind
    return str(caught.value)


X = np.arange(4, dtype=np.float32)


@pytest.mark.emulator
def test_memory_is_borrowed_and_results_are_lent_back() -> None:
    found = blend(Lent(X), Lent(X))
    assert isinstance(found, Lent) and (found.array == X * X + 1).all()


def test_what_cannot_be_borrowed_is_named() -> None:
    text = message(fg.DtypeError, Lent(X), Lent(X, "bfloat16", "Unsupported dtype in DLTensor.\nat some line"))
    assert "blend, argument y\n" in text
    assert "an array of bfloat16 of lender, which numpy cannot borrow: Unsupported dtype in DLTensor.\n" in text
    assert "fix:      pass numpy.asarray(x), which copies nothing, or another dtype" in text
    text = message(fg.DtypeError, Lent(X, "float8_e4m3fn", "never asked"), Lent(X))
    assert "blend, argument x\n" in text and "an array of float8_e4m3fn" in text and "cast it" in text


def test_what_has_no_memory_is_named() -> None:
    text = message(fg.DeviceError, Lent(X), Lent(X, "gone"))
    assert "blend, argument y\n" in text and "a Lent of lender, which does not say where it is: no buffer" in text
    assert "neither deleted nor donated" in text


@pytest.mark.parametrize("how", ["by its class", "by what it lacks"])
def test_what_is_traced_is_said_to_be(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced()
    if how == "by its class":
        monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(core=SimpleNamespace(Tracer=Traced)))  # type: ignore[arg-type]
    else:
        monkeypatch.delattr(Traced, "__dlpack_device__")
    text = message(fg.DeviceError, traced, traced)
    assert "a Traced of jax, which has no elements while it traces" in text
    assert "outside of jit, grad and vmap, or in a function for jax.pure_callback" in text


def test_libraries_are_not_mixed() -> None:
    assert "tensors of lender, numpy" in message(fg.DeclarationError, Lent(X), X)
    assert "tensors of jax, lender" in message(fg.DeclarationError, Lent(X), Traced())


# -- JAX itself ------------------------------------------------------------------------------------------------------


@pytest.mark.emulator
def test_jax() -> None:
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):  # where it has a GPU, other words are said of its arrays
        check_jax(jax)


def check_jax(jax: Any) -> None:
    x = jax.numpy.arange(4.0)
    assert isinstance(blend(x, x), jax.Array) and (blend(x, x) == x * x + 1).all()
    for traced in (jax.jit(blend), jax.vmap(blend), jax.make_jaxpr(blend), jax.grad(lambda x, y: blend(x, y).sum())):
        with pytest.raises(fg.DeviceError, match="Tracer of jax, which has no elements while it traces"):
            traced(x, x)
    found = jax.jit(lambda x: jax.pure_callback(blend, jax.ShapeDtypeStruct(x.shape, x.dtype), x, x))(x)
    assert (found == x * x + 1).all(), "the way that the error names"
    half = x.astype(jax.numpy.bfloat16)
    assert "an array of bfloat16 of jax, which numpy cannot borrow" in message(fg.DtypeError, half, half)
    assert (blend(*[np.asarray(half)] * 2).astype(np.float32) == np.asarray(x * x + 1)).all(), "and here too"
    assert "an array of int4" in message(fg.DtypeError, *[x.astype(jax.numpy.int4)] * 2)
    gone = x + 1
    gone.delete()
    assert "neither deleted nor donated" in message(fg.DeviceError, gone, x)
    assert "tensors of jax, numpy" in message(fg.DeclarationError, x, X)
