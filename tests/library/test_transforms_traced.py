"""torch.func's transforms of ops that torch traces (pytorch/library/vmap, pytorch/library/autograd): one registered op
a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import fusegen as fg
from fusegen import ops

pytestmark = pytest.mark.cpu  # what is traced is the same everywhere


@fg.op
def gate(x, y, scale: float = 2.0):
    return scale * x * fg.sigmoid(y)


@fg.op
def scaled_norm(x, weight, *, eps=1e-5):
    return x * fg.rsqrt(fg.mean(x * x, -1, keepdims=True) + eps) * weight


@fg.op
def straight(x):
    """Another gradient than the derived one."""
    return fg.round(x) * x


@straight.gradient
def _(d_out, x):
    return 3 * d_out * x


def block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return scaled_norm(gate(x, y), y)


def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return block(x, y).square().sum()


# Of [3, 4] and [4].
TRANSFORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "vmap": lambda x, y: vmap(block, in_dims=(0, None))(x, y),
    "vmap, another dimension": lambda x, y: vmap(block, in_dims=(1, None), out_dims=1)(x.t(), y[:, None] * y),
    "grad": lambda x, y: grad(loss, argnums=(0, 1))(x, y),
    "vmap of grad": lambda x, y: vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None))(x, y),
    "grad of vmap": lambda x, y: grad(lambda x, y: vmap(loss, in_dims=(0, None))(x, y).sum(), argnums=(0, 1))(x, y),
    "vjp": lambda x, y: vjp(block, x, y)[1](x),
    "jvp": lambda x, y: jvp(block, (x, y), (x.cos(), y.cos())),
    "jvp of grad": lambda x, y: jvp(grad(loss), (x, y), (x.cos(), y.cos())),
    "jacrev": lambda x, y: jacrev(block)(x, y),
    "jacfwd": lambda x, y: jacfwd(block, argnums=1)(x, y),
    "hessian": lambda x, y: hessian(loss, argnums=1)(x, y),
    "vmap of a declared gradient": lambda x, y: vmap(grad(lambda x: straight(x).sum()))(x),
    "a declared gradient of vmap": lambda x, y: grad(lambda x: vmap(straight)(x).square().sum())(x),
    "jvp of a declared gradient": lambda x, y: jvp(straight, (x,), (x.cos(),)),
}
# The derivative of torch's own square fixes the sizes.
SPECIALIZED = ("jvp of grad", "hessian")
COMPILED = ("vmap", "vmap of grad", "jvp", "jacrev", "hessian", "a declared gradient of vmap")


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_make_fx(name: str) -> None:
    function = TRANSFORMS[name]
    x, y = inputs()
    graph = make_fx(function, tracing_mode="symbolic")(x, y)
    assert any("fusegen" in str(node.target) for node in graph.graph.nodes)
    torch.testing.assert_close(graph(x, y), function(x, y))
    if name not in SPECIALIZED:
        more = torch.cat([x, x.cos()])
        torch.testing.assert_close(graph(more, y), function(more, y))


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    x, y = inputs()
    compiled = torch.compile(TRANSFORMS[name], backend="aot_eager", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), TRANSFORMS[name](x, y))


def test_gradients_through_compiled_vmap() -> None:
    """Autograd outside, vmap inside."""
    x, y = (tensor.requires_grad_() for tensor in inputs())
    compiled = torch.compile(TRANSFORMS["vmap"], backend="aot_eager", fullgraph=True)
    cotangent = torch.randn(3, 4, dtype=torch.float64)
    found, expected = (torch.autograd.grad(f(x, y), (x, y), cotangent) for f in (compiled, TRANSFORMS["vmap"]))
    torch.testing.assert_close(found, expected)


def test_vmap_is_one_call_of_a_registered_op() -> None:
    x, y = inputs()
    graph = make_fx(TRANSFORMS["vmap"])(x, y)
    assert len([node for node in graph.graph.nodes if "fusegen" in str(node.target)]) == 2
    batched = vmap(gate.overload(x, y), in_dims=(0, None))
    torch.testing.assert_close(batched(x, y), vmap(gate, in_dims=(0, None))(x, y))


def test_vmap_of_ops_with_several_results_and_on_views() -> None:
    x, y = torch.randn(3, 2, 8), torch.randn(3, 2, 2)
    two = make_fx(lambda x, y: vmap(ops.lstm_cell)(x, y))(x, y)(x, y)
    torch.testing.assert_close(two, vmap(ops.lstm_cell)(x, y))
    image = torch.randn(3, 2, 4, 5)  # declared on views of its arguments: call by call, as torch's fallback
    many = make_fx(lambda x: vmap(lambda x: ops.group_norm(x, 2))(x))(image)(image)
    torch.testing.assert_close(many, torch.nn.functional.group_norm(image.flatten(0, 1), 2).view(image.shape))
    total = make_fx(lambda x: vmap(lambda x: ops.residual_bias_layer_norm(x, None, x, (8,), return_sum=True))(x))(x)
    torch.testing.assert_close(total(x)[1], 2 * x)


def test_linearize() -> None:
    x, y = inputs()
    result, push = linearize(block, x, y)
    torch.testing.assert_close((result, push(x.cos(), y.cos())), jvp(block, (x, y), (x.cos(), y.cos())))


def test_ensembles() -> None:
    """functional_call under vmap, as torch's tutorial on model ensembling."""
    module = fg.nn.LayerNorm(4).double()
    weights = {"weight": torch.randn(3, 4, dtype=torch.float64), "bias": torch.randn(3, 4, dtype=torch.float64)}
    x, _ = inputs()

    def ensemble(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda w, x: functional_call(module, w, (x,)), in_dims=(0, None))(weights, x)

    torch.testing.assert_close(make_fx(ensemble)(weights, x)(weights, x), ensemble(weights, x))


def test_forward_mode_of_a_registered_op() -> None:
    x, y = inputs()
    registered = gate.overload(x, y)
    assert torch.func.grad(lambda x: registered(x, y).square().sum())(x).shape == x.shape
    for function in (lambda x: registered(x, y), lambda x: gate(x, y)):
        torch.testing.assert_close(jvp(function, (x,), (x,))[1], gate(x, y))
