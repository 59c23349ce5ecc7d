"""Functions of torch and NumPy in declarations: each that the table has, under torch's own sample inputs."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

import fusegen as fg
from fusegen.core.ir import Reduce
from fusegen.declare import torch_names
from tests.support.opinfo import no_search_for_the_test
from tools import torch_functions as page

__all__ = ["no_search_for_the_test"]  # a fixture

KNOWN = {name: entry for entry in torch_names.table() for name in entry.names if not name.startswith("Tensor.")}
INFOS = {
    f"{info.name} {info.variant_test_name}".strip(): info
    for info in op_db
    if info.name in KNOWN
    and info.name != "empty_like"
    and not info.variant_test_name.startswith(("complex", "decomposed"))
}
# torch's samples of these ask for what no declaration can say, too: parts of several sizes, views that move data,
# random numbers, statistics that are updated, matrices' norms, flat positions.
PARTLY = (
    "adaptive_", "avg_pool", "max_pool", "interpolate", "pixel_",
    "alpha_dropout", "batch_norm", "bernoulli", "broadcast_to", "cat", "chunk", "dropout", "flatten", "instance_norm",
    "narrow", "norm nuc", "rand_like", "randn_like", "reshape", "roll", "split", "stack", "unflatten",
    "take_along_dim", "embedding", "one_hot", "diagflat", "ravel", "repeat_interleave", "scaled_dot",
    "searchsorted", "tensor_split", "multi_margin_loss", "combinations", "linalg.matrix_power",
    "bincount", "masked_select", "rrelu",
)  # fmt: skip
# Products are of floats, and what is made of them; bounds of bools are none.
FLOATS = (
    "addbmm",
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "dot",
    "inner",
    "linalg.multi_dot",
    "linear",
    "matmul",
    "mm",
    "mv",
    "vdot",
    "local_response_norm",
    "clamp_max",
    "clamp_min",
)
MOST = 4


@dataclass(frozen=True)
class Place:
    """Where a tensor stands among a sample's arguments."""

    at: int


def taken_apart(sample: Any) -> tuple[list[torch.Tensor], Callable[..., Any]]:
    """The tensors of a sample, and ``call(function, tensors)`` of the same arguments."""
    tensors: list[torch.Tensor] = []

    def places(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Place(len(tensors) - 1)
        several = isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value)
        return [places(v) for v in value] if several else value

    args = [places(value) for value in (sample.input, *sample.args)]
    kwargs = {name: places(value) for name, value in sample.kwargs.items()}

    def call(function: Callable[..., Any], given: Any) -> Any:
        def filled(value: Any) -> Any:
            if isinstance(value, Place):
                return given[value.at]
            return [filled(v) for v in value] if isinstance(value, list) else value

        return function(*map(filled, args), **{name: filled(value) for name, value in kwargs.items()})

    return tensors, call


def listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def as_op(function: Callable[..., Any], call: Callable[..., Any], tensors: list[torch.Tensor]) -> list[Any]:
    """The results of an op that calls the function."""
    found = listed(fg.op(lambda *xs: call(function, xs), name="torchs")(*tensors))
    fg.check_indices()  # a GPU is not waited for
    return found


def samples(name: str, dtype: torch.dtype, requires_grad: bool = False) -> Iterator[tuple[Any, Any, list[Any]]]:
    """Tensors of each of the first samples, the call, and torch's results."""
    for at, sample in enumerate(INFOS[name].sample_inputs("cpu", dtype, requires_grad=requires_grad)):
        if at == MOST:
            return
        tensors, call = taken_apart(sample)
        try:
            theirs = listed(call(INFOS[name].op, tensors))
        except NotImplementedError:  # of torch's, for its own sample
            continue
        yield tensors, call, theirs


def is_refused(name: str, error: fg.FusegenError) -> bool:
    short = name.removeprefix("nn.functional.")
    return short.startswith(PARTLY) or (short in FLOATS and isinstance(error, fg.DtypeError))


def assert_same(ours: list[Any], theirs: list[Any], tolerance: float) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert a == b


@pytest.mark.parametrize("name", sorted(INFOS))
def test_values_and_gradients_are_torchs(name: str) -> None:
    info = INFOS[name]
    dtype = torch.float64 if torch.float64 in info.dtypes else torch.int64
    done = 0
    for tensors, call, theirs in samples(name, dtype, requires_grad=info.supports_autograd and dtype.is_floating_point):
        try:
            ours = as_op(info.op, call, tensors)
        except fg.FusegenError as error:
            assert is_refused(name, error)
            continue
        done += 1
        assert_same(ours, theirs, 1e-8)
        leaves = [tensor for tensor in tensors if tensor.requires_grad]
        for a, b in zip(ours, theirs, strict=True):
            if not (isinstance(b, torch.Tensor) and b.requires_grad):
                continue
            cotangent = torch.randn_like(b)
            found, wanted = (
                torch.autograd.grad(r, leaves, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True)
                for r in (a, b)
            )
            for mine, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-7, equal_nan=True)
    assert done or is_refused(name, fg.DtypeError("", given="", expected="", fix=""))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", sorted(INFOS))
def test_dtypes_are_torchs(name: str, dtype: torch.dtype) -> None:
    if dtype not in INFOS[name].dtypes:
        pytest.skip("torch's CPU op does not support it")
    # Scores of attention are rounded to the dtype, as torch does where it does not fuse them. torch's addbmm rounds
    # behind each of its products, of which one is left here.
    rounds = name.endswith(("attention", "addbmm"))
    tolerance = (2e-1 if rounds else 2e-2) if dtype is torch.bfloat16 else 1e-5
    for tensors, call, theirs in samples(name, dtype):
        try:
            assert_same(as_op(INFOS[name].op, call, tensors), theirs, tolerance)
        except fg.FusegenError as error:
            assert is_refused(name, error)
        else:
            return


@pytest.mark.parametrize("name", sorted(name for name, info in INFOS.items() if info.method_variant))
def test_methods_are_torchs(name: str) -> None:
    method = getattr(INFOS[name].method_variant, "__name__", "")
    if not method.isidentifier():
        pytest.skip("torch's test says it by a lambda")
    for tensors, call, theirs in samples(name, torch.float64 if torch.float64 in INFOS[name].dtypes else torch.int64):
        try:
            ours = as_op(lambda x, *args, **kwargs: getattr(x, method)(*args, **kwargs), call, tensors)
        except fg.FusegenError as error:
            assert is_refused(name, error)
        else:
            assert_same(ours, theirs, 1e-8)


def test_every_name_is_torchs() -> None:
    for entry in torch_names.table():
        for name in entry.names:
            held: Any = torch
            for part in name.split("."):
                held = getattr(held, part, None)
            assert held is not None or name == "Tensor.astype", name
        if entry.numpy:  # one at least: NumPy has renamed some
            assert any(
                callable(operator.attrgetter(name)(np)) for name in entry.numpy if hasattr(np, name) or "." in name
            )


# -- functions of torch code, as they stand ----------------------------------------------------------------------------


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    e = torch.exp(x - x.max(dim=dim, keepdim=True).values)
    return e / e.sum(dim=dim, keepdim=True)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / torch.sqrt(var + eps) * w + b


def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return w * h.to(x.dtype)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return F.silu(a) * b


def focal_loss(x: torch.Tensor, t: torch.Tensor, gamma: float = 2.0) -> torch.Tensor:
    p, t = torch.sigmoid(x), t.sigmoid()
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    return (loss * (1 - (p * t + (1 - p) * (1 - t))) ** gamma).mean()


def masked(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return F.softmax(x.masked_fill(m > 1, float("-inf")), dim=-1)


def sizes(x: torch.Tensor) -> torch.Tensor:
    b, n = x.shape
    assert x.dim() == 2 and len(x.shape) == x.ndim and x.numel() == b * n
    return x.sum(-1) / x.shape[-1] + x.size(0) * x.mean((0, 1)) + (x.square().sum() / x.numel()).sqrt()


def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[:, None, :] * y[None] + x.unsqueeze(1)[..., :] - y[None, ...]


def cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sum(1) / torch.clamp(x.norm(dim=1) * y.norm(p=2, dim=1), min=1e-8)


def huber(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    d = (x - y).abs()
    return torch.where(d < 1, 0.5 * d * d, d - 0.5).mean()


def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.linear(x, w)).log1p()


def standardized(x: torch.Tensor) -> torch.Tensor:
    std, mean = torch.std_mean(x, dim=0, unbiased=False)
    return (x - mean) / std.clamp(min=1e-3)


def by_dtype(x: torch.Tensor) -> torch.Tensor:
    h = x.double() if x.dtype == torch.float32 else x.float()
    return torch.zeros_like(x) + h.type_as(x) + torch.ones_like(h).to(torch.float64)


def contrastive(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = F.normalize(x, dim=-1), F.normalize(y, dim=-1)
    return -torch.log_softmax(torch.matmul(x, y.t()) / 0.1, dim=-1).mean()


def heads_normed(x: torch.Tensor) -> torch.Tensor:
    h = x.view(*x.shape[:-1], 2, -1)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
    return h.reshape(x.shape)


def causal(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return torch.softmax(scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf")), dim=-1)


def along_others(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(1).expand(-1, y.shape[0], -1).to(y) * len(y)


def packed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.exp(x), y.detach() * 2], dim=-1)


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, k.tanh(), is_causal=True)


def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.einsum("id,jd->ij", x, y) + torch.einsum("...d,jd,d->...j", x, y, x[0])


def differences(x: torch.Tensor) -> torch.Tensor:
    return torch.diff(x, n=2) * torch.trapezoid(x, dim=1)[:, None] + x.unfold(1, 3, 1).sum(-1)


def statistics(x: torch.Tensor) -> torch.Tensor:
    return torch.cov(x) * torch.corrcoef(x * x) + torch.linalg.matrix_norm(x, 1) + torch.diagonal(x, 1).sum()


def repeated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    heads = torch.hstack([x, y[:1].repeat(x.shape[0], 1)]).repeat_interleave(2, dim=1)
    return torch.cdist(heads, heads.flip(0).exp())


TORCH_CODE = {
    f.__name__: (f, shapes)
    for f, *shapes in (
        (gelu, (4, 6)), (softmax, (4, 6)), (layer_norm, (4, 6), (6,), (6,)), (rms_norm, (4, 6), (6,)),
        (swiglu, (4, 6)), (focal_loss, (4, 6), (4, 6)), (masked, (4, 6), (4, 6)), (sizes, (4, 6)),
        (outer, (4, 6), (5, 6)), (cosine, (4, 6), (4, 6)), (huber, (4, 6), (4, 6)), (mlp, (4, 6), (5, 6)),
        (standardized, (4, 6)), (by_dtype, (4, 6)), (contrastive, (4, 6), (5, 6)), (heads_normed, (4, 6)),
        (attention, (4, 6), (5, 6)), (summed, (4, 6), (5, 6)), (differences, (4, 6)), (statistics, (4, 6)),
        (repeated, (4, 6), (5, 6)), (causal, (4, 6), (5, 6)), (along_others, (4, 6), (5, 6)), (packed, (4, 6), (4, 6)),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH_CODE)
def test_torch_code_is_an_op_as_it_stands(name: str) -> None:
    function, shapes = TORCH_CODE[name]
    op = fg.op(function)
    for more in (0, 3):  # a second size, of which the first one's trace says nothing
        given = [torch.randn(*(s + more * (d < len(shape) - 1) for d, s in enumerate(shape))) for shape in shapes]
        if name in ("layer_norm", "rms_norm"):
            given[1:] = [torch.randn(shape) for shape in shapes[1:]]
        leaves, others = ([t.clone().requires_grad_() for t in given] for _ in range(2))
        ours, theirs = op(*leaves), function(*others)
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)
        cotangent = torch.randn_like(theirs)
        found, wanted = (
            torch.autograd.grad(r, inputs, cotangent, allow_unused=True, materialize_grads=True)
            for r, inputs in ((ours, leaves), (theirs, others))
        )
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_sizes_that_meet_tensors_are_those_of_every_call() -> None:
    """The kernel is one for all sizes: what is divided by is a parameter of it."""
    op = fg.op(lambda x: x.sum(-1) / x.shape[-1], name="mean_by_hand")
    for n in (6, 8, 10):
        x = torch.randn(4, n, dtype=torch.float64)
        torch.testing.assert_close(op(x), x.mean(-1))
    texts = {str(op.trace(x=torch.empty(4, n))) for n in (6, 8, 10)}
    assert len(texts) == 1


def test_numbers_made_of_sizes_are_this_calls() -> None:
    op = fg.op(lambda q: q / math.sqrt(q.shape[-1]) + q.shape[0] // 2, name="scaled")
    for shape in ((4, 6), (5, 9)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(op(x), x / math.sqrt(shape[-1]) + shape[0] // 2)


def test_sizes_of_arguments_that_are_read_in_blocks() -> None:
    def gated(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return a * b * x.shape[-1] + x.shape[0] + a.sum() / x.numel()

    op = fg.op(gated)
    for shape in ((4, 6), (3, 10)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(op(x), gated(x))


def scaled_by_constant(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.abs().amax(-1, keepdim=True)
    return x / scale


def test_what_is_without_gradients_in_torch_is_so_in_an_op() -> None:
    op = fg.op(scaled_by_constant)
    with torch.no_grad():  # which the first call's trace does not remember
        op(torch.randn(4, 6, dtype=torch.float64))
    x, y = (torch.linspace(-2, 3, 24, dtype=torch.float64).view(4, 6).requires_grad_() for _ in range(2))
    cotangent = torch.linspace(1, 2, 24, dtype=torch.float64).view(4, 6)
    (found,), (wanted,) = (
        torch.autograd.grad(f(leaf), leaf, cotangent) for f, leaf in ((op, x), (scaled_by_constant, y))
    )
    torch.testing.assert_close(found, wanted)


def test_a_backward_is_derived_whatever_is_on_when_it_is_first_asked_for() -> None:
    """A declared gradient is traced within torch's backward, where gradients are off."""
    op = fg.op(lambda x: fg.round(x) * x, name="rounded")
    op.gradient(lambda d_out, x: d_out * fg.round(x))
    outer = fg.op(lambda x: op(x * 2) * x, name="outer")
    x = torch.linspace(0.3, 2.2, 6, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(outer(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, 2 * (2 * x).round() * x + (2 * x).round() * 2 * x)


def test_an_autograd_function_would_lose_its_backward() -> None:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.round(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    with pytest.raises(fg.DeclarationError, match=r"@my_op\.gradient"):
        fg.op(lambda x: Straight.apply(x * 3), name="straight")(torch.randn(3))


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "var", "std", "norm", "any"])
def test_no_dimension_named_is_what_it_is_in_torch(name: str) -> None:
    x = torch.randn(4, 6, dtype=torch.float64)
    given = {"dim": ()}
    ours = fg.op(lambda x: getattr(x, name)(**given), name="reduced")(x)
    torch.testing.assert_close(ours, getattr(x, name)(**given))
    for dtype in (torch.int32, torch.float32):
        counts = x.long()
        ours = fg.op(lambda x, dtype=dtype: x.sum(dtype=dtype), name="summed")(counts)
        torch.testing.assert_close(ours, counts.sum(dtype=dtype))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(4, 3),
        lambda x: x.view(2, 6).sum(0) + x.view(6, 2).sum(1),
        lambda x: (x * 2).view(6, 2).view(4, 3).exp(),
        lambda x: x.view(2, 2, 3) + x.view(4, 3)[:2].view(1, 2, 3),
        lambda x: x.reshape(12)[1:].sum() + x.view(4, 3).softmax(-1),
        lambda x: x.data * x.mH.mT + x.H.T * x.adjoint().T * x.real,
    ],
)
def test_any_shape_of_as_many_elements(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    found, expected = fg.op(function, name="reshaped")(x), function(x)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


# -- NumPy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: np.exp(x) + np.maximum(x, y) - np.absolute(y),
        lambda x, y: np.sum(x * y, axis=-1) + np.mean(x, axis=-1) * np.var(y, axis=-1),
        lambda x, y: np.where(x > y, np.power(x, 2), np.arctan2(x, y)),
        lambda x, y: np.std(x, axis=0, ddof=1, keepdims=True) + np.max(y, axis=0) - np.amin(x, 0),
        lambda x, y: np.clip(x, -0.5, 0.5) + np.expand_dims(np.prod(y, axis=1), 1) + np.float64(2) * x,
        lambda x, y: np.concatenate((np.tanh(x), y), axis=1),
        lambda x, y: (
            np.swapaxes(x, 0, 1) + np.matmul(np.swapaxes(y, 0, 1), x)[..., :4].sum() * 0
            if isinstance(x, np.ndarray)
            else np.swapaxes(x, 0, 1) + np.sum(np.matmul(np.swapaxes(y, 0, 1), x)) * 0
        ),
        lambda x, y: np.linalg.norm(x, axis=1) + np.log1p(np.square(y)).sum(axis=1),
        lambda x, y: np.fmax(x, y) * np.sinc(x) + np.roll(x, 2, axis=1) * np.flip(y, axis=0) - np.fliplr(x),
        lambda x, y: np.dot(x, np.swapaxes(y, 0, 1)) * np.inner(x, y) + np.einsum("ij,kj->ik", x, y, optimize=True),
        lambda x, y: np.nansum(x, axis=1) + np.nanmean(y, axis=1) + np.trace(x) * np.isclose(x, y).sum(axis=1),
        lambda x, y: np.transpose(x) + np.transpose(y[None], (2, 1, 0))[..., 0] + np.matrix_transpose(x),
        lambda x, y: np.vstack([x, y]) * np.hstack([x[:, 0], y[:, 0]])[:, None] + np.repeat(x, 2, axis=0),
        lambda x, y: np.tile(x, 2) + np.column_stack([x, y]) + np.sum(np.dstack([x, y])) * np.repeat(x[0], 2),
        lambda x, y: np.pad(x, ((0, 0), (1, 2))) + np.pad(y, [(0, 0), (2, 1)], mode="edge") + np.pad(x[0], (1, 2)),
        lambda x, y: np.pad(x, 1, constant_values=2.0)[1:-1] + np.pad(y, 1, "wrap")[1:-1],
        lambda x, y: np.select([x > 1, y > 0], [x, x * y], 0.5) + np.shape(x)[0] + np.size(y, 1) + np.ndim(x),
        lambda x, y: np.diff(x, axis=1) + np.diff(y, axis=-1, prepend=y[:, :1])[:, 1:] + np.kron(x[:, :1], y[:1, :5]),
        lambda x, y: np.outer(x[:, 0], y[0]) + np.kron(x[:2, :2], y[:2, :3]) + np.outer(x[:1, :4], y[1:2]),
        lambda x, y: np.diag(np.diag(x), 2) + np.diag(y[:, :4], -1).sum() + np.sum(np.diagonal(x, 1)),
        lambda x, y: np.ptp(x, axis=1) * np.nanmax(y, axis=1) - np.nanmin(x, axis=1) + np.nanprod(y, axis=-1),
        lambda x, y: np.average(x, axis=0) + np.average(x, 0, np.abs(y)) + np.average(x, axis=0, weights=y[:, 0] ** 2),
        lambda x, y: np.interp(x, np.cumsum(np.abs(y[0])), y[1]) + np.interp(x, np.cumsum(x[0] ** 2), y[1], 0, 1),
        lambda x, y: np.trapezoid(x, axis=1) * np.cov(y, ddof=0)[0] + np.corrcoef(x)[1],
        lambda x, y: (
            np.cross(x[:, :3], y[:, 3:]) + np.split(y, [2], 1)[1][:, :3] + np.array_split(x, 4, axis=1)[1][:, :1]
        ),
        lambda x, y: np.tensordot(x, y, axes=((0,), (0,))),
        lambda x, y: np.meshgrid(x[0], y[:, 0])[0] + np.sum(np.meshgrid(x[0], y[:, 0], indexing="ij")[0]),
    ],
)
def test_functions_of_numpy(function: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 6)), rng.standard_normal((4, 6))
    np.testing.assert_allclose(fg.op(function, name="numpys")(x, y), function(x, y), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.maximum(other=y) + torch.minimum(input=x, other=y),
        lambda x, y: x.permute(dims=(1, 0)) + torch.permute(y, dims=(1, 0)),
        lambda x, y: torch.atan2(x, other=y) + torch.exp(input=y),
    ],
)
def test_arguments_by_torchs_names(function: Callable[..., Any]) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    torch.testing.assert_close(fg.op(function, name="named")(x, y), function(x, y))


# -- dtypes, devices, and what is made of no tensor -------------------------------------------------------------------

MADE: dict[str, Callable[[Any], Any]] = {
    "limits": lambda x: x.masked_fill(x > 0.5, torch.finfo(x.dtype).min) + torch.finfo(x.dtype).eps,
    "limits of integers": lambda x: x * 0 + torch.iinfo(torch.int16).max,
    "a number": lambda x: x * torch.tensor(0.5, device=x.device, dtype=x.dtype) + torch.tensor(2.0),
    "a number of a number": lambda x: x * torch.tensor(3) + torch.tensor(True),
    "like another": lambda x: torch.zeros_like(x, device=x.device, dtype=x.dtype) + torch.full_like(x, 3.0) * x,
    "of its dtype": lambda x: (
        x + x.new_zeros(()) + x.new_ones((1,)) + x.new_full(x.shape[1:], 2.0) + x.new_tensor(0.25)
    ),
    "positions": lambda x: x * torch.arange(x.shape[-1], device=x.device, dtype=x.dtype),
    "of a shape": lambda x: x + torch.zeros(x.shape[-1]) + torch.ones(x.shape) + torch.full((x.size(0), 1), 0.5),
    "a diagonal": lambda x: x[:, :4] + torch.eye(4) - 2 * x[:, :4] * torch.eye(4, dtype=torch.bool),
    "a product with one": lambda x: x @ torch.eye(6, 4, device=x.device, dtype=x.dtype) * 2,
    "numbers between two": lambda x: x * torch.linspace(-1.5, 2, 6) + torch.linspace(3, 4, 1, dtype=x.dtype),
    "powers between two": lambda x: x * torch.logspace(-2, 1, 6) + torch.logspace(0, 2, 6, base=2.0, dtype=x.dtype),
    "a mask": lambda x: torch.where(torch.arange(x.shape[-1]) < 3, x, torch.tensor(-math.inf)).softmax(-1),
    "the same device": lambda x: x.to(x.device).to(device=x.device, dtype=torch.float64).to(x.device, torch.float32),
    "a dtype's words": lambda x: x * (2 if x.dtype.is_floating_point and not x.dtype.is_complex else 3),
    "a dtype's size": lambda x: x * x.dtype.itemsize if x.is_floating_point() and x.dtype.is_signed else x,
    "another dtype": lambda x: torch.softmax(x.double(), -1, dtype=x.dtype) + torch.sum(x, -1, True, dtype=x.dtype),
}


@pytest.mark.parametrize("name", sorted(MADE))
def test_what_torch_makes_of_no_tensor(name: str) -> None:
    function, x = MADE[name], torch.randn(4, 6)
    before = torch.zeros, torch.finfo
    ours, theirs = fg.op(function, name="made")(x), function(x)
    torch.testing.assert_close(ours, theirs)
    assert (torch.zeros, torch.finfo) == before


def test_other_threads_have_torchs_own_meanwhile() -> None:
    found: list[Any] = []

    def traced(x: Any) -> Any:
        worker = threading.Thread(target=lambda: found.extend([torch.zeros(2), torch.finfo(torch.float16).eps]))
        worker.start()
        worker.join()
        return x + torch.zeros(2)

    fg.op(traced)(torch.ones(2))
    assert torch.equal(found[0], torch.zeros(2)) and found[1] == torch.finfo(torch.float16).eps


# -- what is refused, and where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: torch.sort(x, 0), "torch.sort of a symbolic tensor"),
        (lambda x: x.reshape(3, -1), "16 elements"),
        (lambda x: x.expand(3, 8, -1), "of a dimension of size 1 any"),
        (lambda x: x.to("cuda"), "for every device"),
        (lambda x: x if x.device.type == "cuda" else -x, "ask the argument, outside the op"),
        (lambda x: x if x.device == torch.device("cpu") else -x, "a comparison of a symbolic tensor's device"),
        (lambda x: x + torch.zeros(4, device="cpu"), "device='cpu'"),
        (lambda x: x + torch.zeros(4, requires_grad=True), "requires_grad=True"),
        (lambda x: x + torch.tensor([1.0] * 65), "pass the tensor as an argument"),
        (lambda x: x + torch.rand(4, device=x.device), "Tensor inside the declaration"),
        (lambda x: torch.randn_like(x), r"@fg\.op\(random=True\)"),
        (lambda x: x + torch.randint_like(x, 4), "pass random numbers as an argument"),
        (lambda x: x.add_(1), "argument x, which is written to"),
        (lambda x: torch.exp(x, out=torch.empty(3)), "a result that is returned"),
        (lambda x: F.dropout(x, 0.5), r"@fg\.op\(random=True\)"),
        (lambda x: x[x > 0], "how many there are, only values tell"),
        (lambda x: torch.where(x > 0), "a condition alone"),
        (lambda x: torch.linalg.inv(x), "do it outside, between two ops"),
        (lambda x: x.quantile(0.5), "do it outside the op"),
        (lambda x: torch.histc(x), "fg.bincount"),
        (lambda x: x if torch.equal(x, x) else -x, "fg.all"),
        (lambda x: torch.special.i0(x), "fg.register_function"),
        (lambda x: F.conv2d(x[None, None], x[None, None]), "outside the op"),
        (lambda x: torch.linalg.matrix_norm(x, "nuc"), "singular values"),
        (lambda x: torch.einsum("ii->i", x[1:]), "dimensions of one size"),
        (lambda x: torch.einsum("ij->k", x), "a letter for each dimension"),
        (lambda x: torch.cross(x, x, dim=0), "three elements along"),
        (lambda x: x.unfold(0, 5, 1), "from 1 to 4 elements"),
        (lambda x: x.repeat(2), "a number for each dimension"),
        (lambda x: x.repeat_interleave(2), "name dim="),
        (lambda x: torch.outer(x, x), r"use x\[:, None\] \* y"),
        (lambda x: torch.searchsorted(x[0], x, sorter=x), "sort before"),
        (lambda x: x.sum(dims=0), "unexpected keyword argument 'dims'"),
        (lambda x: torch.mm(x, x[None]), "rank 2"),
        (lambda x: torch.exp(x) + torch.randperm(4), "Tensor inside the declaration"),
        (lambda x: np.sort(x), "numpy.sort"),
        (lambda x: fg.concat(x, x), r"fg\.concat\(\[a, b\], axis\)"),
        (lambda x: torch.func.vmap(torch.exp)(x), "transform the op from outside"),
        (lambda x: np.asarray(x), "NumPy's functions take it"),
        (lambda x: x + (x == None), "is None"),  # noqa: E711
        (lambda x: np.stack([x, x], 0) + np.vander(x[0]), r"numpy\.vander"),
        (lambda x: x.maximum(others=x), "unexpected keyword argument 'others'"),
    ],
)
def test_what_cannot_be_said_is_refused_where_it_stands(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(fg.FusegenError, match=says) as caught:
        fg.op(function, name="refused")(torch.randn(4, 4))
    assert "test_torch_functions.py" in str(caught.value)


def test_an_error_names_the_line() -> None:
    def two_lines(x: Any) -> Any:
        y = torch.exp(x)
        return torch.fft.fft(y)

    line = two_lines.__code__.co_firstlineno + 2
    with pytest.raises(fg.DeclarationError, match=f"line {line}"):
        fg.op(two_lines)(torch.randn(4))


def test_a_line_of_torchs_own_is_none_of_the_declarations() -> None:
    function: Any = lambda x: F.dropout(x, 0.5)  # noqa: E731
    line = function.__code__.co_firstlineno
    with pytest.raises(fg.DeclarationError, match=f"test_torch_functions.py, line {line}"):
        fg.op(function, name="dropped")(torch.randn(4))


def test_the_library_is_found_under_its_names() -> None:
    assert fg.gelu is fg.ops.gelu
    with pytest.raises(AttributeError, match=r"did you mean fg\.exp"):
        fg.expp  # noqa: B018


def test_the_page_is_printed_from_the_table() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text()


# -- einsum ------------------------------------------------------------------------------------------------------------

SIZES = dict(zip("bcdehijknostw", (2, 6, 5, 2, 3, 5, 4, 3, 2, 4, 4, 3, 4), strict=True))
PRODUCTS = (
    "bti,io->bto", "io,bti->bto", "btc,ts->bsc", "bd,hde->bhe", "nchw,oc->nohw", "bij,jk->bik", "bij,bjk->bik",
    "bhid,bhjd->bhij", "bnhd,de->bnhe", "ij,kj->ki", "bij,jk,ki->bi", "bthd,hde->bte", "bthd,dhe->bte", "nchw,ochw->no",
    "bijk,bijo->bko", "iji,jk->ik",
)  # fmt: skip
SUMS = ("bi,i->b", "i,io->o", "ij,ijk->ik", "bii->b", "iij->ji", "ii,jj->ij", "i,iii,i->")


@pytest.mark.parametrize("equation", [*PRODUCTS, *SUMS])
def test_einsum_multiplies_matrices_where_it_can(equation: str) -> None:
    inputs = equation.split("->")[0].split(",")
    given = [torch.randn([SIZES[c] for c in own], dtype=torch.float64, requires_grad=True) for own in inputs]
    names = ", ".join("xyz"[: len(inputs)])
    function = eval(f"lambda {names}: torch.einsum({equation!r}, {names})", {"torch": torch})
    op = fg.op(function, name="contracted")
    kinds = [s.kind for s in op.trace(*given).statements if isinstance(s, Reduce)]
    assert ("dot" in kinds) == (equation in PRODUCTS)
    out, expected = op(*given), function(*given)
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(result, given, cotangent) for result in (out, expected))
    torch.testing.assert_close(mine, theirs)


ONES = {
    "ij,jk->ik": ((3, 4), (1, 2)), "ij,kj->ki": ((3, 1), (2, 4)), "bij,bjk->bik": ((2, 3, 4), (1, 1, 5)),
    "ij,j->": ((3, 4), (1,)), "ij,ij->ij": ((3, 1), (1, 4)), "ij,jk,kl->il": ((3, 1), (4, 1), (5, 2)),
}  # fmt: skip


@pytest.mark.parametrize("equation", ONES)
def test_einsum_broadcasts_what_it_adds_up(equation: str) -> None:
    """A dimension of size 1 is that of all others, also where matrix products would have none of it."""
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ONES[equation]]
    out = fg.op(lambda *xs: torch.einsum(equation, *xs), name="broadcast")(*given)
    expected = torch.einsum(equation, *given)
    torch.testing.assert_close(out, expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(result, given, cotangent) for result in (out, expected))
    torch.testing.assert_close(mine, theirs)


SUMMED = {
    "ij->i": 1, "ij->": 1, "ij,jk->": 2, "ij,jk->ik": 2, "ij,ij->i": 2,
}  # fmt: skip


@pytest.mark.parametrize("equation", SUMMED)
def test_einsum_of_integers_has_the_dtype_of_its_sums(equation: str) -> None:
    """torch adds up what one tensor alone has in int64; NumPy's sums stay in the dtype."""
    sizes = {"i": 3, "j": 4, "k": 5}
    inputs = equation.split("->")[0].split(",")
    given = [torch.full([sizes[c] for c in own], 200, dtype=torch.uint8) for own in inputs]
    found = fg.op(lambda *xs: torch.einsum(equation, *xs), name="torchs")(*given)
    torch.testing.assert_close(found, torch.einsum(equation, *given))
    arrays = [tensor.numpy() for tensor in given]
    by_numpy = fg.op(lambda *xs: np.einsum(equation, *xs), name="numpys")(*arrays)
    np.testing.assert_array_equal(by_numpy, np.einsum(equation, *arrays))
    assert by_numpy.dtype == np.uint8


# -- edges that torch's samples do not have ----------------------------------------------------------------------------


@pytest.mark.parametrize("function", [torch.fmax, torch.fmin])
def test_a_tie_of_numbers_gives_all_of_its_gradient_to_the_first(function: Any) -> None:
    nan = math.nan
    x = torch.tensor([1.0, 2.0, nan, 3.0, nan, 2.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1.0, 3.0, 1.0, nan, nan, 2.0], dtype=torch.float64, requires_grad=True)
    cotangent = torch.arange(1.0, 7.0, dtype=torch.float64)
    ours, theirs = fg.op(lambda x, y: function(x, y), name="torchs")(x, y), function(x, y)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    mine, wanted = (torch.autograd.grad(result, [x, y], cotangent) for result in (ours, theirs))
    torch.testing.assert_close(mine, wanted)


def test_bytes_are_floats_before_they_are_computed_with() -> None:
    x = torch.tensor([0, 1], dtype=torch.uint8)
    found = fg.op(lambda x: torch.special.ndtri(x), name="torchs")(x)
    torch.testing.assert_close(found, torch.special.ndtri(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_weights_of_a_covariance_decide_its_dtype(dtype: torch.dtype) -> None:
    x, weights = torch.randn(2, 5).to(dtype), torch.rand(5)
    found = fg.op(lambda x, w: torch.cov(x, aweights=w), name="torchs")(x, weights)
    torch.testing.assert_close(found, torch.cov(x, aweights=weights))


def test_no_differences_put_nothing_beside() -> None:
    x = torch.randn(3, 4)
    found = fg.op(lambda x, y: torch.diff(x, 0, 0, y, append=y), name="torchs")(x, torch.randn(3, 4))
    assert torch.equal(found, x)


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
def test_what_is_scaled_has_the_room_of_the_result(name: str) -> None:
    """A number of 16 bits is scaled in the 32 of the sum; one of halves beside floats in floats."""
    function = getattr(torch, name)
    wide, narrow = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([20000, -3], dtype=torch.int16)
    first, second = (narrow, wide) if name == "rsub" else (wide, narrow)
    found = fg.op(lambda x, y: function(x, y, alpha=2))(first, second)
    expected = function(first, second, alpha=2)
    assert found.dtype is expected.dtype and torch.equal(found, expected)
    floats, halves = torch.randn(5), torch.randn(5).half() * 3e4
    first, second = (halves, floats) if name == "rsub" else (floats, halves)
    torch.testing.assert_close(
        fg.op(lambda x, y: function(x, y, alpha=3.0))(first, second), function(first, second, alpha=3.0)
    )


@pytest.mark.parametrize("as_numbers", [False, True])
def test_attention_to_nothing_is_zero_and_has_no_gradient(as_numbers: bool) -> None:
    """What a mask of padding leaves nothing of; a softmax of it alone is NaN."""
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    given = torch.zeros(3, 3, dtype=torch.float64).masked_fill(~mask, -math.inf) if as_numbers else mask

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v.tanh(), attn_mask=mask).exp()

    leaves = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    ours, theirs = fg.op(attend)(*leaves, given), attend(*leaves, given)
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn_like(theirs)
    first, second = (torch.autograd.grad(out, leaves, cotangent, create_graph=True) for out in (ours, theirs))
    torch.testing.assert_close(first, second)
    mine, other = (torch.autograd.grad([g.sin().sum() for g in found], leaves) for found in (first, second))
    torch.testing.assert_close(mine, other)
