"""Ops under torch.func and in forward mode: what torch gives for the formula, in every composition."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

import fusegen as fg
from fusegen.core.ir import refs
from fusegen.core.text import op_text
from fusegen.derive.batch import batch
from fusegen.derive.gradient import gradient
from fusegen.derive.tangent import tangent
from fusegen.run.runner import Runner
from tests.support.declarations import lerp, norm, torch_norm
from tests.support.oracles import randn

Function = Callable[..., Any]


@fg.op
def cell(gates, c0):  # type: ignore[no-untyped-def]
    i, f, g = fg.split(gates, 3)
    c = c0 * fg.sigmoid(f) + fg.sigmoid(i) * fg.tanh(g)
    return fg.tanh(c), c


def torch_cell(gates: torch.Tensor, c0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, g = gates.chunk(3, -1)
    c = c0 * torch.sigmoid(f) + torch.sigmoid(i) * torch.tanh(g)
    return torch.tanh(c), c


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def scalar(function: Function) -> Function:
    return lambda *arguments: function(*arguments).sin().sum()


# -- compositions ----------------------------------------------------------------------------------------------------

BOTH = (0, 1)
TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: grad(scalar(f), BOTH),
    "vjp": lambda f: lambda x, w: vjp(f, x, w)[1](x.cos()),
    "jvp": lambda f: lambda x, w: jvp(f, (x, w), (x.cos(), w.cos())),
    "jvp along one argument": lambda f: lambda x, w: jvp(lambda w: f(x, w), (w,), (w.cos(),)),
    "vmap": lambda f: vmap(f, (0, None)),
    "jacrev": lambda f: jacrev(f, BOTH),
    "jacfwd": lambda f: jacfwd(f, BOTH),
    "hessian": lambda f: hessian(scalar(f), BOTH),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(scalar(f), BOTH), BOTH),
    "jvp of jvp": lambda f: lambda x, w: jvp(lambda x: jvp(lambda x: f(x, w), (x,), (x.cos(),)), (x,), (x.sin(),)),
    "grad of grad": lambda f: grad(lambda x, w: grad(scalar(f))(x, w).sin().sum(), BOTH),
    "vmap of grad": lambda f: vmap(grad(scalar(f), BOTH), (0, None)),
    "grad of vmap": lambda f: grad(lambda x, w: vmap(f, (0, None))(x, w).sin().sum(), BOTH),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    transform = TRANSFORMS[name]
    arguments = randn(4, 3), randn(3)
    same(transform(norm)(*arguments), transform(torch_norm)(*arguments))


def test_transforms_of_what_autograd_records() -> None:
    def gradients(f: Function) -> Any:
        x, w = (t.clone().requires_grad_() for t in arguments)
        per_sample = vmap(grad(scalar(f), BOTH), (0, None))(x, w)
        return torch.autograd.grad(sum(g.sin().sum() for g in per_sample) + vmap(f, (0, None))(x, w).sum(), (x, w))

    arguments = randn(4, 3), randn(3)
    same(gradients(norm), gradients(torch_norm))


def test_a_gradient_is_computed_for_the_level_that_asks() -> None:
    """Outside, the weight requires a gradient; inside only x. Neither level loses its own or gets the other's."""
    x, w = randn(4, 3), randn(3).requires_grad_()
    ours, theirs = (grad(lambda x, f=f: scalar(f)(x, w))(x) for f in (norm, torch_norm))
    same(ours, theirs)
    same(torch.autograd.grad(ours.sum(), w), torch.autograd.grad(theirs.sum(), w))
    with torch.no_grad():
        same(grad(scalar(norm))(x, w), theirs.detach())


class Model(torch.nn.Module):
    def __init__(self, normalized: Function, activation: Function) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, dtype=torch.float64)
        self.weight = torch.nn.Parameter(randn(3))
        self.normalized, self.activation = normalized, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.normalized(self.linear(x), self.weight))  # type: ignore[no-any-return]


def test_per_sample_gradients_and_ensembles_of_modules() -> None:
    ours = Model(norm, fg.ops.silu)
    theirs = Model(torch_norm, F.silu)
    theirs.load_state_dict(ours.state_dict())
    x, parameters = randn(5, 3), dict(ours.named_parameters())

    def per_sample(model: Model) -> Any:
        return vmap(grad(lambda p, x: functional_call(model, p, (x,)).sin().sum()), (None, 0))(parameters, x)

    same(per_sample(ours), per_sample(theirs))
    models = [copy.deepcopy(ours) for _ in range(3)]
    stacked, _ = stack_module_state(models)
    outputs = vmap(lambda p, x: functional_call(ours, p, (x,)), (0, None))(stacked, x)
    same(outputs, torch.stack([model(x) for model in models]))


# -- vmap ------------------------------------------------------------------------------------------------------------


def test_batching_is_one_more_axis() -> None:
    op = batch(lerp.trace(randn(2, 3), randn(3), randn(2, 1)), frozenset({"y"}))
    assert op_text(op) == (
        "lerp, forward\n"
        "  in   x: float64[D1, D2]\n"
        "  in   y: float64[D0, D2]\n"
        "  in   w: float64[D1, 1]\n"
        "  out  out = x + w * (y - x) : float64[D0, D1, D2]"
    )
    op = batch(norm.trace(randn(2, 3), randn(3)), frozenset({"weight"}))
    (total,) = op.expand()[0]
    assert (total.over, op.axes_of()[total.name]) == (("d2",), {"d1"}), "one sum for all calls"


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 0), (-1, 1)], ids=str)
def test_dimensions_in_and_out(dims: tuple[int | None, ...]) -> None:
    gates, c0 = randn(2, 6), randn(2)
    given = [
        t if d is None else torch.stack([t, t.sin(), t.cos()], 0).movedim(0, d)
        for t, d in zip((gates, c0), dims, strict=True)
    ]
    ours, theirs = (vmap(f, dims, (1, 0))(*given) for f in (cell, torch_cell))
    same(ours, theirs)
    cotangents = tuple(t.cos() for t in theirs)
    same(*(vjp(vmap(f, dims, (1, 0)), *given)[1](cotangents) for f in (cell, torch_cell)))


def test_nested_vmap() -> None:
    x, y, w = randn(5, 3), randn(4, 3), randn(4)
    dims = (0, None, None), (None, 0, 0)
    ours, theirs = (vmap(vmap(f, dims[0]), dims[1])(x, y, w) for f in (lerp, torch.lerp))
    same(ours, theirs)
    both = [
        vmap(vmap(grad(lambda *a, f=f: f(*a).sum(), (0, 2)), dims[0]), dims[1])(x, y, w) for f in (lerp, torch.lerp)
    ]
    same(*both)


def test_batches_of_one_and_of_none() -> None:
    x, w = randn(4, 3), randn(3)
    for size in (1, 0):
        result, pull = vjp(vmap(norm, (0, None)), randn(size, 4, 3), w)
        assert result.shape == (size, 4, 3)
        assert pull(result)[1].shape == (3,) and bool((pull(result)[1] != 0).all()) == (size == 1)
    same(vmap(norm)(x[None], w[None]), torch_norm(x, w)[None])


def test_what_does_not_depend_on_the_batch_is_computed_once() -> None:
    op = fg.op(lambda x, n, y: (x * y, n + 1, fg.exp(y), y > 0), name="partly")
    x, n, y = randn(4, 3), torch.arange(3), randn(3)
    seen = vmap(op, (0, None, None), (0, None, None, None))(x, n, y)
    same(seen[0], x * y)
    same(seen[1:], (n + 1, y.exp(), y > 0))


def test_calls_read_their_arguments_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    x = randn(3, 4, 5)
    read: list[tuple[int, tuple[int, ...]]] = []
    original = Runner.__call__

    def watched(self: Any, tensors: Any, *rest: Any) -> Any:
        read.extend((tensor.data_ptr(), tensor.stride()) for tensor in tensors.values())
        return original(self, tensors, *rest)

    monkeypatch.setattr(Runner, "__call__", watched)
    same(vmap(fg.op(lambda x: x * 2, name="doubled"), 2, 2)(x), x * 2)
    assert read == [(x.data_ptr(), (1, 20, 5))]


# -- forward mode ----------------------------------------------------------------------------------------------------


def test_tangents_read_as_a_person_would_write_them() -> None:
    op = lerp.trace(randn(2, 3), randn(3), randn(2, 1))
    found = lerp.tangent(randn(2, 3), randn(3), randn(2, 1))
    assert (found.label, found.outputs[0].name) == ("tangent", "t_out")
    assert op_text(found).splitlines()[-1] == (
        "  out  t_out = t_x * (1 - w) + t_w * (y - x) + t_y * w : float64[D0, D1]"
    )
    assert not found.statements, "no sum: broadcasting is the absence of an axis in this direction too"
    op = lerp.trace(randn(3), randn(2, 3), randn(3))
    sizes = {o.name for o in tangent(op, gradient(op, ("x",))).operands}
    assert sizes == {"t_x", "w", "y"}, "an axis of the result that nothing read has takes its size from an argument"
    alone = tangent(op, gradient(op, ("w",)))
    assert {ref.name for ref in refs(alone.outputs[0].expr)} == {"t_w", "x", "y"}


TIES = torch.tensor([[1.0, 3, 3, 2], [2, 0, 5, 1], [0, 0, 1, 2], [4, 4, 4, 4]], dtype=torch.float64)
LIBRARY: dict[str, tuple[Function, Function, Any]] = {
    "amax, ties": (fg.ops.amax, torch.amax, lambda: (TIES, 1)),
    "prod, zeros": (fg.ops.prod, torch.prod, lambda: (TIES, 1)),
    "logsumexp": (fg.ops.logsumexp, torch.logsumexp, lambda: (randn(4, 3), 1)),
    "softmax": (fg.ops.softmax, torch.softmax, lambda: (randn(4, 3), -1)),
    "layer_norm": (fg.ops.layer_norm, F.layer_norm, lambda: (randn(4, 3), (3,), randn(3), randn(3))),
    "cross_entropy": (fg.ops.cross_entropy, F.cross_entropy, lambda: (randn(4, 3), torch.tensor([0, 2, 1, 1]))),
    "cell": (cell, torch_cell, lambda: (randn(4, 6), randn(4, 2))),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_forward_and_batched(name: str) -> None:
    ours, theirs, make = LIBRARY[name]
    arguments = make()
    floats = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and a.is_floating_point()]
    primals = tuple(arguments[i] for i in floats)
    tangents = tuple(t.cos() for t in primals)

    def of(function: Function) -> Function:
        return lambda *given: function(*[given[floats.index(i)] if i in floats else a for i, a in enumerate(arguments)])

    same(*(jvp(of(f), primals, tangents) for f in (ours, theirs)))
    dims = (0, *[None] * (len(primals) - 1))
    many = torch.stack([primals[0], primals[0].flip(0), 2 * primals[0]])
    same(*(vmap(of(f), dims)(many, *primals[1:]) for f in (ours, theirs)))


def test_dual_tensors() -> None:
    op = fg.op(lambda x, n, y: (x * n, n + 1, fg.exp(y), x > 0), name="mixed")
    x, n, y = randn(2, 3).requires_grad_(), torch.arange(3), randn(3)
    with forward_ad.dual_level():
        results = op(forward_ad.make_dual(x, x.detach().cos()), n, y)
        tangents = [forward_ad.unpack_dual(result).tangent for result in results]
        same(tangents[0], x.detach().cos() * n)
        assert tangents[1] is None and tangents[3] is None
        assert tangents[2] is None or not tangents[2].any()
        out = norm(forward_ad.make_dual(x, x.detach().cos()), y)
        expected = torch_norm(forward_ad.make_dual(x, x.detach().cos()), y)
        ours, theirs = (forward_ad.unpack_dual(t).tangent for t in (out, expected))
        same(ours, theirs)
        same(*(torch.autograd.grad(t.sin().sum(), x) for t in (ours, theirs)))
        with torch.no_grad():
            same(forward_ad.unpack_dual(norm(forward_ad.make_dual(x, x.cos()), y)).tangent, theirs.detach())
    assert forward_ad._current_level < 0
    same(norm(x.detach(), y), torch_norm(x.detach(), y))


def test_a_tangent_of_zeros() -> None:
    steps = fg.op(lambda x, y: (fg.floor(x), y + 1), name="steps")
    x = randn(2, 3)
    out, along = jvp(lambda x: steps(x, x.detach()), (x,), (x,))
    same(along, (torch.zeros(2, 3, dtype=x.dtype), torch.zeros(2, 3, dtype=x.dtype)))
    same(out[0], x.floor())


def test_tangents_in_half_precision_keep_dtype_and_memory_format() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    _, along = jvp(fg.ops.silu, (x,), (x,))
    exact = jvp(F.silu, (x.double(),), (x.double(),))[1]
    assert along.dtype is torch.bfloat16 and along.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(along.double(), exact, rtol=1e-2, atol=1e-2)


def test_per_sample_gradients_keep_the_memory_format() -> None:
    x = torch.randn(6, 2, 3, 4, 5).transpose(2, 4)  # each of six is dense, dimensions 2, 1, 4, 3 slow to fast
    gradients = vmap(grad(lambda x: fg.ops.silu(x).sum()))(x)
    assert gradients.stride() == x.stride()


# -- a gradient of one's own -----------------------------------------------------------------------------------------


@fg.op
def scaled(x, y, z, *, scale=2.0):  # type: ignore[no-untyped-def]
    return scale * x * y, 5 * z


@scaled.gradient
def _(d_product, d_five, x, y, z, scale):  # type: ignore[no-untyped-def]
    return scale * d_product * y, 3 * scale * d_product * x, 5 * d_five  # by y three times too much


class Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any, y: Any, z: Any) -> Any:
        return 2 * x * y, 5 * z

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, d_product: Any, d_five: Any) -> Any:
        x, y, _ = ctx.saved_tensors
        return 2 * d_product * y, (6 * d_product * x).sum_to_size(y.shape), 5 * d_five

    @staticmethod
    def jvp(ctx: Any, t_x: Any, t_y: Any, t_z: Any) -> Any:
        x, y, _ = ctx.saved_tensors
        return 2 * t_x * y + 6 * x * t_y, 5 * t_z


def total(results: Any) -> torch.Tensor:
    return torch.stack([result.sin().sum() for result in results]).sum()


ALL, CALLS = (0, 1, 2), (0, None, None)
OVERRIDDEN: dict[str, Callable[[Function], Function]] = {
    "jvp": lambda f: lambda x, *rest: jvp(f, (x[0], *rest), (x[0].cos(), *(t.cos() for t in rest))),
    "vmap": lambda f: vmap(f, CALLS),
    "grad of vmap": lambda f: grad(lambda *given: total(vmap(f, CALLS)(*given)), ALL),
    "of one result": lambda f: grad(lambda *given: total(vmap(f, CALLS)(*given)[1:]), ALL),
    "vmap of grad": lambda f: vmap(grad(lambda *given: total(f(*given)), ALL), CALLS),
    "grad of nested vmap": lambda f: grad(lambda x, y, z: total(vmap(vmap(f, (0, None, 0)), CALLS)(x, y, z)), ALL),
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_transforms_use_the_declared_gradient(name: str) -> None:
    arguments = randn(3, 2, 4), randn(4), randn(2, 4)
    ours, theirs = (OVERRIDDEN[name](f)(*arguments) for f in (scaled, Scaled.apply))
    same(ours, theirs)


def test_a_declared_gradient_that_is_no_transposed_derivative() -> None:
    clipped = fg.op(lambda x: x * 1, name="clipped")
    clipped.gradient(lambda d_out, x: fg.clamp(d_out, -1, 1))
    assert vmap(grad(lambda x: 5 * clipped(x).sum()))(randn(2, 3)).tolist() == [[1.0] * 3] * 2
    with pytest.raises(fg.DerivativeError, match="not linear in d_out"):
        jvp(clipped, (randn(3),), (randn(3),))


# -- torch's own checks, and its older vmap --------------------------------------------------------------------------


def test_gradcheck_in_every_mode() -> None:
    x, w = randn(2, 3).requires_grad_(), randn(3).requires_grad_()
    everything = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert gradcheck(norm, (x, w), **everything)
    assert gradcheck(norm, (x, w), fast_mode=True, **everything)
    waves = fg.op(lambda x: x * fg.sin(x), name="waves")
    assert gradgradcheck(waves, (x,), check_fwd_over_rev=True, check_batched_grad=True)


def test_batched_cotangents() -> None:
    x, w, cotangents = randn(4, 3).requires_grad_(), randn(3).requires_grad_(), randn(5, 4, 3)
    found = []
    for f in (norm, torch_norm):
        first = torch.autograd.grad(f(x, w), (x, w), cotangents, is_grads_batched=True, create_graph=True)
        found.append((first, torch.autograd.grad(sum(g.sin().sum() for g in first), (x, w))))
    same(*found)
    for strategy in ("reverse-mode", "forward-mode"):
        same(*(
            torch.autograd.functional.jacobian(f, (x, w), vectorize=True, strategy=strategy) for f in (norm, torch_norm)
        ))  # fmt: skip
    nested = torch._vmap_internals._vmap
    a, b = randn(2, 5, 4, 3), randn(5, 3)
    same(*(nested(nested(f, (0, 0)), (0, None))(a, b) for f in (norm, torch_norm)))


# -- refused ---------------------------------------------------------------------------------------------------------


def test_out_takes_no_part_in_transforms() -> None:
    x, out = randn(3), randn(3)
    with pytest.raises(fg.DerivativeError, match=r"torch\.func or of forward mode"):
        vmap(lambda x: lerp(x, x, 0.5, out=out))(randn(2, 3))
    with forward_ad.dual_level(), pytest.raises(fg.DerivativeError, match="forward mode"):
        lerp(forward_ad.make_dual(x, x), x, 0.5, out=out)


def test_shapes_are_those_of_one_call() -> None:
    with pytest.raises(fg.ShapeError, match=r"size 3.*size 4|size 4.*size 3"):
        vmap(lerp, (0, None, None))(randn(2, 3), randn(4), 0.5)
