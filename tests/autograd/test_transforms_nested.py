"""torch.func's transforms of one kind inside one another: each level must see what the levels inside it compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import fusegen as fg
from fusegen import ops

pytestmark = pytest.mark.cpu  # what is traced is the same everywhere

Two = Callable[[Tensor, Tensor], Tensor]
Nested = Callable[..., Any]


@fg.op
def pair(x, y, times):
    """Two results, an argument that is broadcast, one of integers."""
    return fg.exp(x) * times * y, fg.sin(y) * x * x


@fg.op
def cube(x):
    return x * x * x


@cube.gradient
def _(d_out, x):
    return 3 * d_out * x * x


def registered(op: Any) -> Callable[..., Any]:
    return lambda *args: op.overload(*args)(*args)


# A function of [3, 4] and [4], made from an op and two more tensors.
FUNCTIONS: dict[str, Callable[[Any, Tensor, Tensor], Two]] = {
    "pair": lambda op, times, _: lambda x, y: sum(result.square().sum() for result in op(x, y, times)),
    "declared gradient": lambda op, *_: lambda x, y: (op(x) * y).sum(),
    "linear": lambda op, _, weight: lambda x, y: op(x * y, weight).square().sum(),
}
OURS = {"pair": pair, "declared gradient": cube, "linear": ops.linear}
TORCH: dict[str, Callable[..., Any]] = {
    "pair": lambda x, y, times: (x.exp() * times * y, y.sin() * x * x),
    "declared gradient": lambda x: x**3,
    "linear": F.linear,
}

# With torch's own sums and products between the levels; v and u are like x and y.
NESTED: dict[str, Nested] = {
    "grad of grad": lambda f, x, y, v, u: grad(lambda x, y: (grad(f)(x, y) * v).sum(), argnums=(0, 1))(x, y),
    "grad of another's grad": lambda f, x, y, v, u: grad(lambda y: (grad(f)(x, y) * v).sum())(y),
    "grad of vjp": lambda f, x, y, v, u: grad(lambda x: (vjp(f, x, y)[1](u[0])[1] * u).sum())(x),
    "jvp of jvp": lambda f, x, y, v, u: jvp(lambda x, y: jvp(f, (x, y), (v, u))[1], (x, y), (v, u)),
    "jacfwd of jacfwd": lambda f, x, y, v, u: jacfwd(jacfwd(f, argnums=1), argnums=(0, 1))(x, y),
    "jacrev of jacrev": lambda f, x, y, v, u: jacrev(jacrev(f), argnums=1)(x, y),
    "hessian": lambda f, x, y, v, u: hessian(f, argnums=1)(x, y),
    "vmap of grad of grad": lambda f, x, y, v, u: vmap(lambda a: grad(lambda x: (grad(f)(x * a, y) * v).sum())(x))(u),
    "vmap of vmap of grad": lambda f, x, y, v, u: vmap(lambda b: vmap(lambda a: grad(f)(x * a, y * b))(u))(u),
    "grad of jvp of grad": lambda f, x, y, v, u: grad(lambda x: (push(grad(f), x, y, v) * v).sum())(x),
    "jvp of grad of jvp": lambda f, x, y, v, u: push(grad(lambda x, y: push(f, x, y, v)), x, y, v),
}
COMPILED = ("grad of grad", "jvp of jvp", "jacfwd of jacfwd", "vmap of grad of grad")


@pytest.fixture(autouse=True)
def _no_cache_of_fake_results() -> Iterator[None]:
    """torch's takes a zero that forward mode knows of, one element for all, for a tensor like others (torch 2.13: its
    own functions fail then, too)."""
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        yield


def push(f: Two, x: Tensor, y: Tensor, v: Tensor) -> Any:
    """The tangent along x."""
    return jvp(lambda x: f(x, y), (x,), (v,))[1]


def check(nested: Nested, name: str, way: str) -> None:
    """All tensors are arguments: a graph holds no others."""
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    given = (x, y, x.sin(), y.cos(), torch.tensor([[2], [3], [5]]), torch.randn(2, 4, dtype=torch.float64))

    def of(op: Any) -> Callable[..., Any]:
        return lambda x, y, v, u, times, weight: nested(FUNCTIONS[name](op, times, weight), x, y, v, u)

    def run(function: Callable[..., Any]) -> Any:
        if way in ("eager", "registered"):
            return function(*given)
        if way == "compiled":
            return torch.compile(function, backend="aot_eager", fullgraph=True)(*given)
        return make_fx(function, tracing_mode=way)(*given)(*given)

    try:
        found = run(of(registered(OURS[name]) if way == "registered" else OURS[name]))
    except Exception:
        try:
            run(of(TORCH[name]))
        except Exception:  # torch 2.9 does not trace what jacfwd does
            pytest.skip(f"torch {torch.__version__} cannot trace this with its own functions")
        raise
    torch.testing.assert_close(found, of(TORCH[name])(*given))


@pytest.mark.parametrize("way", ("eager", "registered", "real", "fake", "symbolic"))
@pytest.mark.parametrize("name", NESTED)
def test_nested(name: str, way: str) -> None:
    check(NESTED[name], "pair", way)


@pytest.mark.parametrize("name", COMPILED)
def test_nested_and_compiled(name: str) -> None:
    check(NESTED[name], "pair", "compiled")


@pytest.mark.parametrize("way", ("eager", "registered", "symbolic"))
@pytest.mark.parametrize("name", ("grad of grad", "jvp of jvp", "grad of jvp of grad", "jvp of grad of jvp"))
@pytest.mark.parametrize("function", ("declared gradient", "linear"))
def test_nested_declared_gradients_and_products(function: str, name: str, way: str) -> None:
    check(NESTED[name], function, way)


@pytest.mark.parametrize("way", ("registered", "real"))
def test_third_order(way: str) -> None:
    def forward(f: Two, x: Tensor, y: Tensor, v: Tensor, u: Tensor) -> Any:
        return push(lambda x, y: push(lambda x, y: push(f, x, y, v), x, y, v), x, y, v)

    def reverse(f: Two, x: Tensor, y: Tensor, v: Tensor, u: Tensor) -> Any:
        return grad(lambda x: (NESTED["grad of grad"](f, x, y, v, u)[0] * v).sum())(x)

    for nested in (forward, reverse):
        check(nested, "declared gradient", way)


@pytest.mark.parametrize("way", ("eager", "registered", "real"))
def test_what_no_grad_hides_is_hidden_from_every_level(way: str) -> None:
    def nested(f: Two, x: Tensor, y: Tensor, v: Tensor, u: Tensor) -> Any:
        def scaled(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                scale = f(x, y)
            return scale * (grad(f)(x, y) * v).sum()

        return grad(scaled)(x, y)

    check(nested, "pair", way)


def test_tangents_that_are_known_to_be_zero() -> None:
    """Forward mode has tensors without memory for these."""
    zero = torch._efficientzerotensor((3, 4), dtype=torch.float64)
    torch.testing.assert_close(cube(zero), torch.zeros(3, 4, dtype=torch.float64))
    weight = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(ops.linear(zero, weight), torch.zeros(3, 2, dtype=torch.float64))
