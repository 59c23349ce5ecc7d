"""Matrix products on a GPU's own tensors: the native call path, sizes rounded up, streams and CUDA graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.wrap import native
from fusegen.wrap.chain import ChainRunner
from tests.test_products import mlp, torch_mlp

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def arguments(rows: int, width: int, hidden: int, dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = (rows, width), (hidden, width), (hidden,), (width, hidden), (width,)
    scales = 1.0, width**-0.5, 1.0, hidden**-0.5, 1.0
    return [
        (torch.randn(shape, device="cuda") * scale).to(dtype).requires_grad_()
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def results(function: Callable[..., Any], given: Sequence[torch.Tensor], cotangent: torch.Tensor) -> list[torch.Tensor]:
    out = function(*given)
    return [out, *torch.autograd.grad(out, given, cotangent.to(out.dtype))]


def errors(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[float]:
    pairs = zip(found, exact, strict=True)
    return [float((f.double() - e).norm() / e.norm()) for f, e in pairs]


# Rounded up: 1025 x 1027 @ 1027 x 4099 and the like pay.
SIZES = [(64, 96, 128), (33, 17, 41), (1025, 1027, 4099), (1024, 1024, 4098)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_worse_than_torch_and_the_same_every_time(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    given, op = arguments(*sizes, dtype), fg.FusedOp(mlp.declaration)
    cotangent = torch.randn(sizes[:2], device="cuda").to(dtype)
    exact = results(torch_mlp, [t.detach().double().requires_grad_() for t in given], cotangent)
    found = [results(op, given, cotangent) for _ in range(4)]
    torchs = errors(results(torch_mlp, given, cotangent), exact)
    for error, theirs in zip(errors(found[0], exact), torchs, strict=True):
        assert error <= 2 * theirs + 4 * torch.finfo(dtype).eps
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, found[0], strict=True))


def test_calls_like_an_earlier_one_run_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    ran: list[str] = []
    launch = ChainRunner.launch
    monkeypatch.setattr(ChainRunner, "launch", lambda self, *args: (ran.append(self.op.label), launch(self, *args))[1])
    for sizes in SIZES:
        op, given = fg.FusedOp(mlp.declaration), arguments(*sizes, torch.bfloat16)
        cotangent = torch.randn(sizes[:2], device="cuda").bfloat16()
        ran.clear()
        for _ in range(5):
            results(op, given, cotangent)
        assert ran == ["forward", "backward", "backward"], sizes


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_streams_and_cuda_graphs(sizes: tuple[int, int, int]) -> None:
    """cuBLAS has a workspace for each stream; a graph keeps what its products and copies need."""
    given, op = arguments(*sizes, torch.bfloat16), fg.FusedOp(mlp.declaration)
    cotangent = torch.randn(sizes[:2], device="cuda").bfloat16()
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for _ in range(3):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(results(op, given, cotangent))
    torch.cuda.synchronize()
    expected = found[0]
    assert all(torch.equal(a, b) for each in found for a, b in zip(each, expected, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results(op, given, cotangent)
    for value in captured:
        value.detach().zero_()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


def classified(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    labels = torch.arange(len(x), device=x.device) % len(w)
    found: torch.Tensor = fg.ops.linear_cross_entropy(x, w, labels, linear_bias=b, reduction="sum")
    return found


SWITCHED: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": lambda x, w, b: fg.ops.matmul(x, w.mT) + b,
    "linear": lambda x, w, b: fg.ops.linear(x, w, b),
    "linear_relu": lambda x, w, b: fg.ops.linear_relu(x, w, b),
    "linear_gelu": lambda x, w, b: fg.ops.linear_gelu(x, w, b, approximate="tanh"),
    "linear_cross_entropy": classified,
}


@pytest.mark.parametrize("name", SWITCHED)
def test_tf32_is_used_exactly_where_torchs_switch_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call does what the switch says then, calls that are remembered too; TF32 has 11 bits, float32 24."""
    function = SWITCHED[name]
    given = arguments(512, 768, 320, torch.float32)[:3]
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    cotangent = torch.ones_like(function(*given))
    exact = results(function, [t.detach().double().requires_grad_() for t in given], cotangent)
    for allowed in (False, True, False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        for _ in range(3):
            out, d_x, d_w, _ = errors(results(function, given, cotangent), exact)
            if name != "linear_cross_entropy":  # whose errors cancel in the sum
                assert (out > 2e-5) == allowed
            if name != "linear_relu":  # whose gradient jumps
                assert (min(d_x, d_w) > 2e-5) == allowed


@pytest.mark.parametrize("classes", [1001, 2053])
def test_a_vocabulary_that_is_no_multiple_of_8(classes: int) -> None:
    rows, width = 4096, 512
    x = torch.randn(rows, width, device="cuda").bfloat16().requires_grad_()
    w = (torch.randn(classes, width, device="cuda") / width**0.5).bfloat16().requires_grad_()
    labels = torch.randint(0, classes, (rows,), device="cuda")

    def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, w), labels)

    exact = results(theirs, [t.detach().double().requires_grad_() for t in (x, w)], x.new_tensor(0.7))
    found = results(lambda x, w: fg.ops.linear_cross_entropy(x, w, labels), (x, w), x.new_tensor(0.7))
    torchs = errors(results(theirs, (x, w), x.new_tensor(0.7)), exact)
    for error, other in zip(errors(found, exact), torchs, strict=True):
        assert error <= 1.5 * other + 2**-8
