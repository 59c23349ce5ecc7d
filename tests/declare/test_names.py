"""Names of arguments and variables, and functions that users add to the language."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import pipeline
from fusegen.core.recent import Recent
from fusegen.declare import table

pytestmark = pytest.mark.emulator


# -- names -----------------------------------------------------------------------------------------------------------


def test_local_variables_show_up_in_the_op() -> None:
    @fg.op
    def named(x):  # type: ignore[no-untyped-def]
        rstd = fg.rsqrt(fg.mean(x * x, -1, keepdims=True))
        shifted = x * rstd + 1
        return shifted * fg.exp(shifted)

    names = [statement.name for statement in named.trace(torch.ones(2, 3)).statements]
    assert "rstd" in names and "shifted" in names


def standardized(values):  # type: ignore[no-untyped-def]
    mean = fg.mean(values, -1, keepdims=True)
    rstd = fg.rsqrt(fg.var(values, -1, correction=0, keepdims=True) + 1e-5)
    return (values - mean) * rstd


def test_local_variables_of_functions_that_it_calls_do_too() -> None:
    @fg.op
    def named(x, w):  # type: ignore[no-untyped-def]
        ours = fg.abs(x) + 1
        return torch.tanh(standardized(ours)) * w

    names = [statement.name for statement in named.trace(torch.ones(2, 3), torch.ones(3)).statements]
    assert {"mean", "rstd", "ours"} <= set(names)
    assert "values" not in names  # where it is called it is ours
    library = [s.name for s in fg.ops.layer_norm.trace(torch.ones(2, 3), (3,)).statements]
    assert {"mean", "rstd"} <= set(library)


def test_the_innermost_name_gives_way_to_the_outer_one() -> None:
    def inner(x):  # type: ignore[no-untyped-def]
        one = fg.exp(x)
        return one

    @fg.op
    def named(x):  # type: ignore[no-untyped-def]
        other = inner(x)
        return other * fg.sin(other)

    assert [statement.name for statement in named.trace(torch.ones(2, 3)).statements] == ["other"]


# What generated CUDA, C++, its headers and fusegen itself call things.
_HOSTILE = (
    "n i j k m e fg half bf16 char short new default public operator template_ float_ exp sum rest row col j0 j1 n1 D0 "
    "D1 d0 x_v x_ptr x_stride0 x_tile out out_ptr threadIdx blockIdx NAN INFINITY M_PI d_out d_other other_v total "
    "_R _Reserved ___"
)
HOSTILE = _HOSTILE.split()


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_will_do_for_an_argument(name: str) -> None:
    space: dict[str, Any] = {"language": fg}
    exec(
        f"def hostile({name}, other, factor=2.0):\n    return language.tanh({name}) * other + factor * {name},"
        f" language.sum({name} * other, -1), language.sum({name}, 0)\n",
        space,
    )
    op = fg.op(space["hostile"])
    a, b = (torch.randn(20, 24, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def check(a: torch.Tensor, b: torch.Tensor) -> None:
        expected = (torch.tanh(a) * b + 2 * a, (a * b).sum(-1), a.sum(0))
        for ours, theirs in zip(op(a, b), expected, strict=True):
            torch.testing.assert_close(ours, theirs)

    check(a, b.detach().t().contiguous().t())
    gradients = torch.autograd.grad(op(a, b)[0].sum(), (a, b))
    torch.testing.assert_close(gradients, torch.autograd.grad((torch.tanh(a) * b + 2 * a).sum(), (a, b)))


@pytest.mark.parametrize("name", [n for n in HOSTILE if n != "fg"])
def test_any_name_will_do_for_a_local_variable_and_a_number(name: str) -> None:
    space: dict[str, Any] = {"fg": fg}
    exec(
        f"def local(x, w):\n    {name} = fg.tanh(x) * w\n    other_one = {name} * {name}\n"
        f"    return other_one + fg.sum({name}, -1, keepdims=True)\n"
        f"def number(x, {name}):\n    return x * {name} + fg.tanh({name} * x)\n",
        space,
    )
    x, w = torch.randn(5, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    y = torch.tanh(x) * w
    torch.testing.assert_close(fg.op(space["local"])(x, w), y * y + y.sum(-1, keepdim=True))
    torch.testing.assert_close(fg.op(space["number"])(x, 0.7), x * 0.7 + torch.tanh(0.7 * x))


@fg.op
def blend(x: fg.Tensor, y: fg.Tensor, α: float = 0.5, *, σ: float = 1.0, ß: fg.Tensor | None = None) -> fg.Tensor:
    """(α x + (1 - α) y) / σ, and ß more."""
    μ = α * x + (1 - α) * y
    return μ / σ if ß is None else μ / σ + ß


def blended(x: torch.Tensor, y: torch.Tensor, alpha: float = 0.5, sigma: float = 1.0, more: Any = 0.0) -> torch.Tensor:
    return (alpha * x + (1 - alpha) * y) / sigma + more


def test_letters_beyond_ascii_are_names_for_torch_too() -> None:
    x, y, more = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    expected = blended(x, y, 0.3, 2.0, more)
    for call in (blend, torch.compile(blend, backend="aot_eager", fullgraph=True)):
        found = call(x, y, α=0.3, σ=2.0, ß=more)
        torch.testing.assert_close(found, expected)
        gradients = torch.autograd.grad(found, (x, y, more), torch.ones_like(found), retain_graph=True)
        wanted = torch.autograd.grad(expected, (x, y, more), torch.ones_like(found), retain_graph=True)
        torch.testing.assert_close(gradients, wanted)
    overload = blend.overload(x, y, 0.3, σ=2.0)
    for _ in range(3):
        torch.testing.assert_close(
            overload(x, y, 0.3, **{overload._schema.arguments[3].name: 2.0}), blended(x, y, 0.3, 2.0)
        )
    torch.library.opcheck(overload, (x, y, 0.3))
    mapped = torch.func.vmap(lambda x: overload(x, y[0], 0.3))(x)
    torch.testing.assert_close(mapped, blended(x, y[0], 0.3))


def test_parts_of_an_argument_do_not_take_another_arguments_name() -> None:
    @fg.op
    def parts(x, x_0, x_1):  # type: ignore[no-untyped-def]
        return fg.split(x, 2)[0] * x_0 + fg.split(x, 2)[1] * x_1

    x, a, b = torch.randn(3, 8), torch.randn(3, 4), torch.randn(3, 4)
    torch.testing.assert_close(parts(x, a, b), x[:, :4] * a + x[:, 4:] * b)


def test_kept_intermediates_do_not_take_a_gradients_name() -> None:
    @fg.op
    def kept(x, w):  # type: ignore[no-untyped-def]
        d_w = fg.sum(x * w, axis=-1, keepdims=True)
        d_x = fg.exp(x)
        return d_w * d_x * w

    x, w = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(kept, (x, w)) and torch.autograd.gradgradcheck(kept, (x, w))


def test_an_argument_called_as_anothers_gradient() -> None:
    op = fg.op(lambda x, d_x, d_out: fg.sin(x) * d_x + d_out * d_x, name="confusing")
    inputs = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(op, inputs) and torch.autograd.gradgradcheck(op, inputs)


# -- new functions ---------------------------------------------------------------------------------------------------


def unregister(*names: str) -> None:
    for name in names:
        table._rows.pop(name, None)


def test_functions_can_be_added_with_a_derivative_with_sympys_or_with_none() -> None:
    try:
        sinc = fg.register_function(
            "test_sin_twice", cuda="sin{f}(2 * {0})", reference=lambda t, x: t.sin(2 * x),
            derivative=lambda x, y: (2 * fg.table.apply("cos", 2 * x),),
        )  # fmt: skip
        cube = fg.register_function(
            "test_cube", cuda="test_cube({0})", sympy=lambda sp, x: x**3 + sp.exp(x),
            reference=lambda t, x: x**3 + t.exp(x),
            header="template <typename T> FG_DEVICE T test_cube(T x) { return x * x * x + T(exp(x)); }",
        )  # fmt: skip
        step = fg.register_function("test_step", cuda="floor{f}({0})", reference=lambda t, x: t.floor(x), smooth=False)
        x = torch.randn(7, dtype=torch.float64, requires_grad=True)
        op = fg.op(lambda x: (sinc(x), cube(x), step(x)), name="added")
        for ours, theirs in zip(op(x), (torch.sin(2 * x), x**3 + torch.exp(x), torch.floor(x)), strict=True):
            torch.testing.assert_close(ours, theirs)
        smooth = fg.op(lambda x: sinc(x) * cube(x), name="added_smooth")
        assert torch.autograd.gradcheck(smooth, (x,)) and torch.autograd.gradgradcheck(smooth, (x,))
        (gradient,) = torch.autograd.grad(op(x)[2].sum(), x)
        assert not gradient.any(), "without a derivative a function is a step"
        with pytest.raises(fg.DeclarationError, match="rename it, for example my_test_step"):
            fg.register_function("test_step", cuda="{0}", reference=lambda t, x: x)
        with pytest.raises(fg.DeclarationError, match="already stands in the function table"):
            fg.register_function("exp", cuda="{0}", reference=lambda t, x: x)
    finally:
        unregister("test_sin_twice", "test_cube", "test_step")


def test_what_is_derived_with_a_users_function_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row that a user registered means does not show in its name."""
    found: Recent[Any, Any] = Recent(8)
    monkeypatch.setattr(pipeline, "_backwards", found)
    spec = fg.TensorSpec(fg.float32, (3,))
    try:
        doubled = fg.register_function(
            "test_doubled", cuda="(2 * {0})", reference=lambda t, x: 2 * x, derivative=lambda x, y: (x * 0 + 2,)
        )
        for function, count in ((doubled, 0), (fg.sin, 1)):
            op = fg.op(lambda x, function=function: function(x), name="of_a_function")
            pipeline.backward_op(pipeline.train_op(op.trace(spec), ("x",)), (0,))
            assert len(found) == count
    finally:
        unregister("test_doubled")


@pytest.mark.parametrize(
    ("cuda", "reference"),
    [
        ("{0} + 1", lambda x: x + 1),
        ("{0}", lambda x: x),
        ("-{0}", lambda x: -x),
        ("2 * {0}", lambda x: 2 * x),
        ("sin{f}(2 * {0})", lambda x: torch.sin(2 * x)),
        ("sin{f}({0}) + 1", lambda x: torch.sin(x) + 1),
        ("{0} / (1 + fabs{f}( {0} ))", lambda x: x / (1 + x.abs())),
        ("sin{f}({0}) * cos{f}({0})", lambda x: torch.sin(x) * torch.cos(x)),
        ("{0} > 0 ? {0} : 0", lambda x: torch.where(x > 0, x, 0)),
        ("fmax{f}({0}, 1) - fmin{f}(-{0}, 1)", lambda x: x.clamp(min=1) - (-x).clamp(max=1)),
        ("test_tanh({0})", torch.tanh),
    ],
)
def test_text_means_the_same_wherever_it_stands(cuda: str, reference: Callable[..., Any]) -> None:
    header = "template <class T> FG_DEVICE T test_tanh(T x) { return tanh(x); }" if "test_tanh" in cuda else ""
    name = f"test_text_{zlib.crc32(cuda.encode())}"
    try:
        own = fg.register_function(name, cuda=cuda, reference=lambda t, x: reference(x), header=header)
        x, y = torch.linspace(-2, 2, 9, dtype=torch.float64), torch.linspace(1, 3, 9, dtype=torch.float64)
        op = fg.op(lambda x, y: (2 * own(x), own(x - y) * own(x), y - own(-x) / y, -own(x)), name="texts")
        wanted = 2 * reference(x), reference(x - y) * reference(x), y - reference(-x) / y, -reference(x)
        for found, expected in zip(op(x, y), wanted, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    finally:
        unregister(name)


@pytest.mark.parametrize("cuda", ["pow{f}({0}, {1})", "sin{g}({0})", "sin({0", "{x}"])
def test_text_that_asks_for_what_there_is_not(cuda: str) -> None:
    with pytest.raises(fg.DeclarationError, match=r"register_function\('test_asks'\)"):
        fg.register_function("test_asks", cuda=cuda, reference=lambda t, x: x)
    assert "test_asks" not in table._rows
