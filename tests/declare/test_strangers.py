"""What somebody writes who knows torch, NumPy and Python, and not yet fusegen: it works, or says what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fusegen as fg

X = torch.linspace(-1.0, 2.0, 12).view(4, 3)
KEPT: list[Any] = []


def run(body: Callable[..., Any], *arguments: Any, name: str = "made") -> Any:
    return fg.op(body, name=name)(*(arguments or (X,)))


def assign(x: Any) -> Any:
    x[0] = 1.0
    return x


def keep(x: Any) -> Any:
    KEPT.append(x * 2)
    return x


def use(x: Any) -> Any:
    return x + KEPT[0]


def endless(x: Any) -> Any:
    return ENDLESS(x) * 2


ENDLESS = fg.op(endless)


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([X, X[:2]], layout=layout)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


# what is done, and patterns for what was given and how to mend it.
REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "torch's function": (lambda: run(lambda x: torch.sort(x, 0)), "torch.sort of a symbolic", "outside the op"),
    "torch's function of windows": (
        lambda: run(lambda x: F.fold(x, 2, 1)), "torch.nn.functional.fold of", "outside the op",
    ),
    "torch's function of a grid": (
        lambda: run(lambda x: F.grid_sample(x, x)), "torch.nn.functional.grid_sample of", "pixels around",
    ),
    "a function of two": (
        lambda: run(lambda x: torch.special.gammainc(x, x)), "torch.special.gammainc of", r"fg\.register_function",
    ),
    "a transform": (lambda: run(lambda x: torch.fft.rfft(x)), "torch.fft.rfft of", "between two ops"),
    "complex numbers": (lambda: run(lambda x: torch.polar(x, x)), "torch.polar of", "two tensors"),
    "a function of another kind": (lambda: run(lambda x: F.ctc_loss(x, x, 1, 1)), "ctc_loss of", "outside the op"),
    "torch's function of a tensor": (lambda: run(lambda x: X + x), "a torch.Tensor inside", "pass"),
    "NumPy's function": (lambda: run(lambda x: np.modf(x)), "numpy.modf of a symbolic", "fusegen list"),
    "NumPy's array": (lambda: run(lambda x: np.ones(3) * x), "a numpy.ndarray inside", "pass it to the op"),
    "a tensor's method": (lambda: run(lambda x: x.sort()), r"\.sort of", "outside the op"),
    "its strides": (lambda: run(lambda x: x * x.stride()[0]), r"\.stride of", "every device and layout"),
    "its value": (lambda: run(lambda x: x * x.sum().item()), r"\.item of", "no values yet"),
    "its device": (lambda: run(lambda x: x.cuda()), r"\.cuda of", "every device"),
    "a method that writes": (lambda: run(lambda x: x.add_(1)), "argument x, which is written to", r"x\.clone"),
    "an item": (lambda: run(lambda x: x[None, x > 0]), r"x\[None, a tensor\] of x", r"fg\.where"),
    "an element that is not there": (lambda: run(lambda x: x[None, 7]), "element 7 of dimension 0", "check the size"),
    "too many keys": (lambda: run(lambda x: x[0, 0, 0, 0]), "4 keys for x", "leave some away"),
    "a step to nowhere": (lambda: run(lambda x: x[..., ::0]), "a step of 0", "leave it out"),
    "a slice by an argument": (lambda: run(lambda x: x[..., : x.sum()]), "x\\[..., :a tensor\\] of x", r"fg\.Const"),
    "an element": (lambda: run(lambda x: x if 1.0 in x else -x), "an element", r"fg\.any"),
    "an assignment": (lambda: run(assign), "argument x, which is written to", r"x\.clone"),
    "Python's round": (lambda: run(lambda x: round(x)), "Python's round", r"fg\.round"),
    "torch's keyword": (lambda: run(lambda x: fg.sum(x, dims=1)), "argument 'dims'", "call it so"),
    "torch's keyword of a method": (lambda: run(lambda x: x.log_softmax(dims=1)), "argument 'dims'", "call it so"),
    "a keyword of a function": (lambda: run(lambda x: fg.exp(value=x)), "argument 'value'", "call it so"),
    "an axis that is a float": (lambda: run(lambda x: fg.sum(x, 1.0)), "axis 1.0", "count"),
    "keepdims as the axis": (lambda: run(lambda x: fg.sum(x, True)), "axis True", "count"),
    "two axes of an index": (lambda: run(lambda x: fg.index(x, (0, 1))), r"axis=\(0, 1\)", "one axis"),
    "half a part": (lambda: run(lambda x: fg.split(x, 1.5)[0]), "1.5 parts of x", "split"),
    "a split without an axis": (lambda: run(lambda x: fg.split(x, 3, None)[0]), "axis=None", "one axis"),
    "nothing side by side": (lambda: run(lambda x: fg.concat([])), "0 parts", "expand_dims"),
    "an order that is text": (lambda: run(lambda x: fg.polygamma("2>(x); evil(", x)), "n='2>", "order"),
    "a negative order": (lambda: run(lambda x: fg.polygamma(-1, x)), "n=-1", "order"),
    "text to compute with": (lambda: run(lambda x, y: x + y, X, "a"), "'a', which is computed", "Python's if"),
    "an op as a method": (lambda: run(lambda self, x: x), "missing a required argument", "no method"),
    "text in the declaration": (lambda: run(lambda x: x + "a"), "a str inside", "numbers only"),
    "a word that is nearly one": (lambda: run(lambda x: x.sigmiod()), r"\.sigmiod of", "did you mean sigmoid"),
    "parts of different sizes and a number": (
        lambda: run(lambda x: fg.concat((x, fg.mean(x, 1, keepdims=True), 1.0))), r"x\[4, 3\] and \[4, 1\]", "the size",
    ),
    "T of three dimensions": (lambda: run(lambda x: x.T, torch.ones(2, 3, 4)), r"x\[2, 3, 4\], of rank 3", r"\.mT"),
    "matrices that do not fit": (lambda: run(lambda x, y: x @ y, X, torch.ones(5, 6)), r"x\[4, 3\] @", r"\[k, n\]"),
    "an int of 71 bits": (lambda: run(lambda n: n + 2**70, torch.arange(3)), "71 bits", "float"),
    "an int beyond floats": (lambda: run(lambda x: x + 10**400), "1329 bits", "float"),
    "integers to a negative power": (lambda: run(lambda n: n**-1, torch.arange(3)), "int64", r"fg\.float32"),
    "infinity as an integer": (lambda: run(lambda x: x > fg.cast(math.inf, fg.int32)), "inf", "float"),
    "a value of another trace": (lambda: (run(keep), run(use)), "another trace", "argument"),
    "a declaration that calls itself": (lambda: ENDLESS(X), "without end", "constant"),
    "a name that is a number": (lambda: run(lambda x: x, name=5), "the name 5", "another"),  # type: ignore[arg-type]
    "a class": (lambda: fg.op(dict), "no signature", "above a def"),
    "a masked array": (lambda: run(lambda x: x * 2, np.ma.array([1.0, 2.0], mask=[0, 1])), "a masked array", "filled"),
    "a sparse tensor": (lambda: run(lambda x: x * 2, X.to_sparse()), "sparse_coo", "to_dense"),
    "a nested tensor": (lambda: run(lambda x: x * 2, nested(torch.strided)), "a nested tensor", "to_padded_tensor"),
    "a jagged tensor": (lambda: run(lambda x: x * 2, nested(torch.jagged)), "a nested tensor", "to_padded_tensor"),
    "a quantized tensor": (lambda: run(lambda x: x * 2, quantized()), "torch.qint8", "dequantize"),
    "a lazy negation": (
        lambda: run(lambda x: x * 2, torch.view_as_complex(torch.ones(4, 2)).conj().imag), "negation", "resolve_neg",
    ),
    "another byte order": (lambda: run(lambda x: x * 2, X.numpy().astype(">f4")), "byte order", "newbyteorder"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's about nested and quantized tensors
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_explained(name: str) -> None:
    call, given, fix = REFUSED[name]
    with pytest.raises(fg.FusegenError) as caught:
        call()
    assert re.search(given, caught.value.given), caught.value
    assert re.search(fix, caught.value.fix), caught.value


def test_an_argument_that_does_not_fit_is_named() -> None:
    with pytest.raises(fg.DeclarationError, match=r"(?s)argument y, line \d+\n.*None, which is computed with"):
        run(lambda x, y: x + y, X, None)
    with pytest.raises(fg.DtypeError, match=r"gelu, argument input\n.*complex64"):
        fg.ops.gelu(torch.ones(2, dtype=torch.complex64))


def test_functions_of_ones_own_that_do_not_compile() -> None:
    wrong = fg.register_function("stranger_wrong", cuda="not_a_function({0})", reference=lambda _, x: x)
    with pytest.raises(fg.CompileError, match=r"(?s)['\"]not_a_function['\"].*fix: +mend the cuda="):
        run(lambda x: wrong(x))


def test_unknown_names_are_explained() -> None:
    for name, hint in (("sigmiod", "fg.sigmoid?"), ("sigmoyd", "fg.sigmoid?"), ("sort", "list --functions")):
        with pytest.raises(AttributeError, match=re.escape(hint)):
            getattr(fg, name)
    assert not hasattr(fg, "__wrapped__")


def test_unknown_attributes_are_attribute_errors() -> None:
    """So that ``hasattr``, and libraries that look for their protocols, get an answer."""
    seen: list[bool] = []
    run(lambda x: seen.append(hasattr(x, "sort")) or hasattr(x, "__array_interface__") or x)
    assert seen == [False]


def test_numpys_scalars_are_numbers() -> None:
    scale = fg.op(lambda x, k: x * k, name="scale")
    for number in (np.float32(0.5), np.float64(3.0), np.int64(3), np.float32(0.25), np.bool_(True)):
        torch.testing.assert_close(scale(X, number), X * number.item())
    array = np.linspace(0, 1, 6, dtype=np.float32)
    np.testing.assert_array_equal(scale(array, np.float32(3.0)), array * 3)
    for body in (lambda x: np.float32(2) * x, lambda x: x * np.int64(2), lambda x: np.float64(2) * x):
        torch.testing.assert_close(run(body), 2 * X)
    torch.testing.assert_close(run(lambda x: fg.where(np.float32(0.5) < x, x, np.int8(0))), X.where(X > 0.5, 0.0))
    torch.testing.assert_close(run(lambda x: fg.sum(x, np.int64(1))), X.sum(1))
    torch.testing.assert_close(run(lambda x: (x, np.float32(2)))[1], torch.tensor(2.0))


def test_functions_are_methods_as_torchs_are() -> None:
    torch.testing.assert_close(run(lambda x: x.exp().sum(-1) + x.clamp(0.0, 1.0).amax()), X.exp().sum(-1) + 1)


def test_arguments_by_position_only() -> None:
    def ahead(x, /, y, *, k=2.0):  # type: ignore[no-untyped-def]
        return x * y + k

    inner = fg.op(ahead)
    torch.testing.assert_close(inner(X, X), X * X + 2)
    torch.testing.assert_close(run(lambda a: inner(a, y=a, k=3.0)), X * X + 3)


def test_pythons_dtypes() -> None:
    assert run(lambda x: (x.to(float), x.to(int)))[0].dtype is torch.float64
    torch.testing.assert_close(run(lambda x: x.to(int)), X.to(int))


def test_names_longer_than_file_names() -> None:
    space: dict[str, Any] = {"fg": fg}
    long = "ä" * 300
    exec(f"def many(x):\n    {long} = fg.sum(x, 0)\n    return fg.sum(x * {long}), fg.sum({long} * x, 1)\n", space)
    op = fg.op(space["many"], name=long)
    torch.testing.assert_close(op(X)[1], (X * X.sum(0)).sum(1))
    code = [line.partition("//")[0] for line in op.emit(X).splitlines()]
    assert "".join(code).isascii(), "NVRTC knows no other letters"


def test_sums_of_many_terms() -> None:
    def series(x: Any) -> Any:
        total = x
        for k in range(700):
            total = total + 1e-3 * k * x
        return total

    def fibonacci(x: Any) -> Any:
        a, b = x, 0.5 * x
        for _ in range(60):
            a, b = b, a + b
        return b

    x = X.double()
    torch.testing.assert_close(run(series, x), series(x))
    torch.testing.assert_close(run(fibonacci, x), fibonacci(x))


def test_rows_of_long_expressions_and_of_shared_products() -> None:
    def long(x: Any, lib: Any) -> Any:
        y = x - lib.amax(x, -1, keepdims=True)
        for k in range(250):
            y = y * 1.001 + 1e-3 * k
        return y / lib.sum(y * y, -1, keepdims=True)

    def shared(x: Any, lib: Any) -> Any:
        a, b = x - lib.amax(x, -1, keepdims=True), 1 + 0.01 * x
        for _ in range(24):
            a, b = b, a * b
        return b / lib.sum(b * b, -1, keepdims=True)

    x = X.double() + 0.1
    for body in (long, shared):
        expected = body(x, torch)
        torch.testing.assert_close(run(lambda x, body=body: body(x, fg), x), expected, equal_nan=True)
