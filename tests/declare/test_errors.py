"""A wrong call or declaration says where, what was given, what was expected and how to fix it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fusegen as fg
from fusegen.core.errors import FusegenError


@fg.op
def blend(x, y, w=0.5):  # type: ignore[no-untyped-def]
    return x + w * (y - x)


def made(body: Callable[..., Any]) -> Any:
    return fg.op(body, name="made")


X = torch.ones(4, 3)
HERE = re.escape("/".join(Path(__file__).parts[-2:]))
Call = Callable[[], Any]


def real_tensor() -> Any:
    return made(lambda x: x + X)(X)


def real_index() -> Any:
    places = torch.zeros(X.shape, dtype=torch.int64)
    return made(lambda x: x.gather(-1, places))(X)


# what is done, the error's class, the built-in one it also is, and a pattern for given, expected and fix.
WRONG: dict[str, tuple[Call, type[Exception], type[Exception], str, str, str]] = {
    "too few arguments": (
        lambda: blend(X),
        fg.DeclarationError,
        TypeError,
        "missing a required argument: 'y'",
        "fit the signature",
        "signature above",
    ),
    "unknown argument": (
        lambda: blend(X, X, weight=1),
        fg.DeclarationError,
        TypeError,
        "unexpected keyword argument 'weight'",
        "fit",
        "signature",
    ),
    "no tensor": (lambda: blend(1.0, 2.0), fg.DeclarationError, TypeError, "no tensor", "at least one", "pass tensors"),
    "a flag in a tensor's place": (
        lambda: fg.ops.linear(X, X, True),
        fg.DeclarationError,
        TypeError,
        "True",
        "a tensor: the declaration asks for its dtype",
        "pass a tensor",
    ),
    "nothing in a tensor's place": (
        lambda: made(lambda x, y: x + y.mT)(X, None),
        fg.DeclarationError,
        TypeError,
        "None",
        "a tensor: the declaration asks for its mT",
        "pass a tensor",
    ),
    "batches of two sizes": (
        lambda: fg.ops.baddbmm(X, X[None].expand(2, 4, 3), X[None].mT),
        fg.ShapeError,
        ValueError,
        r"batch1\[2, 4, 3\] and batch2\[1, 3, 4\]",
        "of one size",
        "fg.ops.matmul",
    ),
    "a sparse tensor": (
        lambda: blend(X.to_sparse(), X),
        fg.DtypeError,
        TypeError,
        "layout torch.sparse_coo",
        "elements in memory",
        "to_dense",
    ),
    "several frameworks": (
        lambda: blend(X, np.ones(3)),
        fg.DeclarationError,
        TypeError,
        "x: torch, y: numpy",
        "one framework",
        "torch.from_dlpack",
    ),
    "shapes that do not broadcast": (
        lambda: blend(X, torch.ones(4)),
        fg.ShapeError,
        ValueError,
        "dimension 0 of y of size 4 against dimension 1 of x of size 3",
        "equal sizes, or size 1",
        "aligned from the right",
    ),
    "a bias of another size, behind a product": (
        lambda: made(lambda x, y: x @ y.mT + fg.expand_dims(fg.sum(y, 0), 0))(X, torch.ones(5, 3)),
        fg.ShapeError,
        ValueError,
        re.escape(
            "dimension 0 of y of size 5 against dimension 1 of y of size 3: "
            "[4, 5] (of x[4, 3] and y[5, 3]) and [1, 3] (of y[5, 3])"
        ),
        "equal sizes, or size 1",
        "aligned from the right",
    ),
    "an argument against what others become": (
        lambda: fg.op(lambda a, b, c, d, e: fg.tanh(a * b + c * d) * e, name="made")(X, X[0], X, X[:, :1], X.mT),
        fg.ShapeError,
        ValueError,
        re.escape("[4, 3] (of a[4, 3], b[3], c[4, 3] and others) and e[3, 4]"),
        "equal sizes, or size 1",
        "aligned from the right",
    ),
    "a transposed argument, and a part of one": (
        lambda: made(lambda x, y: x.mT + fg.split(y, 3)[0])(X, torch.ones(3, 9)),
        fg.ShapeError,
        ValueError,
        re.escape("[3, 4] (of x[4, 3]) and [3, 3] (of y[3, 9])"),
        "equal sizes, or size 1",
        "aligned from the right",
    ),
    "an axis that does not exist": (
        lambda: made(lambda x: fg.sum(x, 2))(X),
        fg.ShapeError,
        ValueError,
        "axis 2 of a tensor of rank 2",
        "from -2 to 1",
        "count",
    ),
    "an axis that is no number": (
        lambda: made(lambda x: fg.sum(x, ("a",)))(X),
        fg.ShapeError,
        ValueError,
        "axis 'a'",
        "an int from -2 to 1",
        "count",
    ),
    "an axis twice": (
        lambda: made(lambda x: fg.sum(x, (1, -1)))(X),
        fg.ShapeError,
        ValueError,
        r"axes \(1, -1\)",
        "each axis once",
        "repeated",
    ),
    "a real index inside": (
        real_index,
        fg.DeclarationError,
        TypeError,
        "a torch.Tensor inside the declaration",
        "symbolic tensors",
        "argument",
    ),
    "a real tensor inside": (
        real_tensor,
        fg.DeclarationError,
        TypeError,
        "a torch.Tensor inside the declaration",
        "symbolic",
        "as an argument",
    ),
    "the truth of a symbolic tensor": (
        lambda: made(lambda x: x if x > 0 else -x)(X),
        fg.DeclarationError,
        TypeError,
        "the truth of",
        "no values yet",
        "fg.where",
    ),
    "math's function": (
        lambda: made(lambda x: math.exp(x))(X),
        fg.DeclarationError,
        TypeError,
        "the float value of",
        "no values",
        "instead of math's",
    ),
    "an item": (lambda: made(lambda x: x[x])(X), fg.DeclarationError, TypeError, r"x\[a tensor\] of", "", "fg.where"),
    "a long loop": (
        lambda: made(lambda x: sum(x))(torch.ones(300, 2)),
        fg.DeclarationError,
        TypeError,
        "a loop over 300 elements",
        "at most 256",
        "the whole tensor",
    ),
    "the length": (
        lambda: made(lambda x: len(fg.sum(x)))(X),
        fg.DeclarationError,
        TypeError,
        "the length of",
        "",
        "without dimensions",
    ),
    "an index": (lambda: made(lambda x: [1][x])(X), fg.DeclarationError, TypeError, "the int value of", "", "fg.Const"),
    "nothing returned": (
        lambda: made(lambda x: None)(X),
        fg.DeclarationError,
        TypeError,
        "nothing returned",
        "symbolic",
        "return",
    ),
    "None among results": (
        lambda: made(lambda x: (x, None))(X),
        fg.DeclarationError,
        TypeError,
        "None returned",
        "symbolic",
        "leave None away",
    ),
    "a dict returned": (
        lambda: made(lambda x: {"y": x})(X),
        fg.DeclarationError,
        TypeError,
        "a dict returned",
        "symbolic",
        "a tuple of its values",
    ),
    "a tuple in a tuple": (
        lambda: made(lambda x: (x, (x, x)))(X),
        fg.DeclarationError,
        TypeError,
        "a tuple returned",
        "symbolic",
        "one tuple of all",
    ),
    "an empty tuple": (
        lambda: made(lambda x: ())(X),
        fg.DeclarationError,
        TypeError,
        "nothing returned",
        "symbolic",
        "return",
    ),
    "text returned": (
        lambda: made(lambda x: "x")(X),
        fg.DeclarationError,
        TypeError,
        "a str returned",
        "symbolic",
        "return",
    ),
    "an array returned": (
        lambda: made(lambda x: np.arange(3))(X),
        fg.DeclarationError,
        TypeError,
        "a ndarray returned",
        "symbolic",
        "return",
    ),
    "bits of floats": (
        lambda: made(lambda x: x & 1)(X),
        fg.DtypeError,
        TypeError,
        "float32",
        "integers or bools",
        r"\.to\(fg.int64\)",
    ),
    "minus of bools": (lambda: made(lambda x: -(x > 0))(X), fg.DtypeError, TypeError, "bool", "torch refuses", "~x"),
    "power of bools": (
        lambda: made(lambda x: (x > 0) ** (x > 1))(X),
        fg.DtypeError,
        TypeError,
        "bool",
        "torch refuses",
        r"\.to\(fg.int64\)",
    ),
    "mean of integers": (
        lambda: made(fg.mean)(torch.ones(3, dtype=torch.int64)),
        fg.DtypeError,
        TypeError,
        "int64",
        "a float dtype",
        r"\.to\(fg.float32\)",
    ),
    "where without a condition": (
        lambda: made(lambda x: fg.where(x, x, x))(X),
        fg.DtypeError,
        TypeError,
        "float32",
        "a bool condition",
        "x != 0",
    ),
    "an unknown dtype": (
        lambda: made(lambda x: x.to("float8"))(X),
        fg.DtypeError,
        TypeError,
        "'float8'",
        "bfloat16",
        "cast",
    ),
    "complex numbers": (
        lambda: blend(X, X.to(torch.complex64)),
        fg.DtypeError,
        TypeError,
        "a tensor of torch.complex64",
        "float16",
        "parts",
    ),
    "complex arrays": (
        lambda: blend(np.ones(3), np.ones(3, dtype=np.complex64)),
        fg.DtypeError,
        TypeError,
        "an array of complex64",
        "float16",
        "parts",
    ),
    "too many arguments of a function": (
        lambda: made(lambda x: fg.exp(x, x))(X),
        fg.DeclarationError,
        TypeError,
        "2 arguments",
        "1",
        "fusegen list",
    ),
    "a split that does not come out even": (
        lambda: made(lambda x: fg.split(x, 2)[0])(X),
        fg.ShapeError,
        ValueError,
        r"dimension 1 of x\[4, 3\] of size 3 in 2 parts",
        "divides by 2",
        "packed",
    ),
    "out of another shape": (
        lambda: blend(X, X, out=torch.ones(3, 4)),
        fg.ShapeError,
        ValueError,
        r"float32 of shape \[3, 4\]",
        r"shape \[4, 3\]",
        "out=",
    ),
    "out of another dtype": (
        lambda: blend(X, X, out=X.double()),
        fg.ShapeError,
        ValueError,
        "float64 of shape",
        "never broadcast, resized or cast",
        "out=",
    ),
    "out that would have to broadcast": (
        lambda: blend(torch.ones(3), X, out=torch.ones(3)),
        fg.ShapeError,
        ValueError,
        r"shape \[3\]",
        r"shape \[4, 3\]",
        "out=",
    ),
    "out that is expanded": (
        lambda: blend(X, X, out=torch.ones(1, 3).expand(4, 3)),
        fg.ShapeError,
        ValueError,
        r"shape \[4, 3\] with strides \[0, 1\]",
        "addresses",
        "fresh",
    ),
    "out that overlaps an argument": (
        lambda: blend(X, X, out=torch.ones(13)[1:].view(4, 3)) is not None and _overlapping(),
        fg.ShapeError,
        ValueError,
        "partly overlaps argument x",
        "memory of its own",
        "fresh",
    ),
    "two tensors as out of one result": (
        lambda: blend(X, X, out=(X.clone(), X.clone())),
        fg.DeclarationError,
        TypeError,
        "2 of Tensor, Tensor",
        "1 torch tensor",
        "each",
    ),
}


def _overlapping() -> Any:
    memory = torch.ones(13)
    return blend(memory[:12].view(4, 3), X, out=memory[1:].view(4, 3))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_and_declarations_are_explained(name: str) -> None:
    call, kind, builtin, given, expected, fix = WRONG[name]
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert isinstance(error, FusegenError) and isinstance(error, builtin)
    assert re.search(given, error.given), error
    assert re.search(expected, error.expected), error
    assert re.search(fix, error.fix), error
    assert str(error).splitlines()[1:] and all(
        line.startswith(("  given:    ", "  expected: ", "  fix:      ")) for line in str(error).splitlines()[1:4]
    )


def test_what_is_no_result_is_refused_at_its_line() -> None:
    def first(x: Any) -> Any:
        return x + 1

    def second(x: Any) -> Any:
        y = made(first)(x)
        return {"y": y}

    with pytest.raises(fg.DeclarationError, match=f"test_errors.py, line {second.__code__.co_firstlineno + 2}"):
        made(second)(X)


def test_errors_of_a_declaration_say_where_it_is() -> None:
    with pytest.raises(fg.ShapeError) as caught:
        made(lambda x: fg.sum(x, 5))(X)
    assert re.match(rf"made, declared in {HERE}, sum, line \d+$", caught.value.where)


def test_a_pattern_that_worked_before_fails_with_the_same_words() -> None:
    blend(X, torch.ones(3))
    for _ in range(2):
        with pytest.raises(fg.ShapeError, match=r"size 3 against|size 5 against"):
            blend(X, torch.ones(5))
    blend(X, torch.ones(3))


def test_functions_of_the_language_outside_an_op() -> None:
    with pytest.raises(fg.DeclarationError, match=r"called outside an op"):
        fg.exp(1.0)
    with pytest.raises(fg.DeclarationError, match=r"called outside an op"):
        fg.sum(2.0)


def test_signatures_without_names() -> None:
    with pytest.raises(fg.DeclarationError, match=r"the parameter y=1 in front of \*xs"):
        fg.op(lambda x, y=1, *xs: xs[0])
    with pytest.raises(fg.DeclarationError, match=r"the parameter \*\*xs"):
        fg.op(lambda **xs: xs["a"])


def test_a_failed_declaration_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        made(lambda x: x * (1 // 0))(X)
    with pytest.raises(fg.DeclarationError, match=r"called outside an op"):
        fg.exp(1.0)
    assert torch.equal(blend(X, X), X)


def test_gradients_that_do_not_exist() -> None:
    with pytest.raises(fg.DerivativeError, match="gradient of 'n'"):
        made(lambda x, n: x * n).backward(X, torch.ones(3, dtype=torch.int64), wanted=("n",))


def test_unknown_functions_suggest_the_nearest() -> None:
    with pytest.raises(fg.DeclarationError, match=r"did you mean 'sigmoid'"):
        fg.table.lookup("sigmiod")
