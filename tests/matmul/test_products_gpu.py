"""Matrix products on a GPU's own tensors: the native call path, sizes rounded up, streams and CUDA graphs."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.matmul.libraries import cudnn
from fusegen.native import module as native
from fusegen.run import libraries
from fusegen.run.chain import ChainRunner
from fusegen.run.libraries import CUDNN, OWN, Measured
from tests.matmul.test_products import mlp, torch_residual

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
    exact = results(torch_residual, [t.detach().double().requires_grad_() for t in given], cotangent)
    found = [results(op, given, cotangent) for _ in range(4)]
    torchs = errors(results(torch_residual, given, cotangent), exact)
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


ACTIVATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu, "gelu": lambda h: F.gelu(h, approximate="tanh"), "quick_gelu": lambda h: h * (1.702 * h).sigmoid(),
    "tanh": torch.tanh, "mish": F.mish, "relu6": F.relu6, "hardswish": F.hardswish,
}  # fmt: skip


class Nowhere:
    """A cache that keeps nothing: what is pretended here is not remembered."""

    def get(self, key: str) -> None:
        return None

    def put(self, key: str, value: bytes) -> None:
        pass


@pytest.fixture
def by_cudnn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """cuDNN's kernel is the fastest wherever it is right; the candidates that were measured."""
    if not cudnn.version():
        pytest.skip("no cuDNN")
    found: list[str] = []
    measure = libraries._measure

    def measured(*args: Any) -> Measured:
        candidates = dict.fromkeys(measure(*args).times, 2.0)
        found.extend(candidates)
        return Measured({OWN: 3.0, **candidates, **({CUDNN: 1.0} if CUDNN in candidates else {})})

    monkeypatch.setattr(libraries, "_measure", measured)
    monkeypatch.setattr(libraries, "_known", {})
    monkeypatch.setattr(libraries, "default_cache", Nowhere)
    return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ACTIVATED)
def test_activations_by_cudnn(by_cudnn: list[str], name: str, dtype: torch.dtype, bias: bool) -> None:
    x, w, b, *_ = arguments(2056, 520, 2048, dtype)
    given = [x, w, b][: 2 + bias]
    options = {"approximate": "tanh"} if name == "gelu" else {}
    op = fg.FusedOp(getattr(fg.ops, f"linear_{name}").declaration)
    function, cotangent = ACTIVATED[name], torch.randn(2056, 2048, device="cuda").to(dtype)

    def torchs(*tensors: torch.Tensor) -> torch.Tensor:
        return function(F.linear(*tensors))

    exact = results(torchs, [t.detach().double().requires_grad_() for t in given], cotangent)
    found = [results(lambda *tensors: op(*tensors, **options), given, cotangent) for _ in range(3)]
    for error, theirs in zip(errors(found[0], exact), errors(results(torchs, given, cotangent), exact), strict=True):
        assert error <= 2 * theirs + 4 * torch.finfo(dtype).eps
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, found[0], strict=True))
    with torch.no_grad():
        first = op(*given, **options)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = op(*given, **options)
        captured.zero_()
        graph.replay()
        with torch.cuda.stream(torch.cuda.Stream()):
            elsewhere = op(*given, **options)
        torch.cuda.synchronize()
    assert torch.equal(captured, first) and torch.equal(elsewhere, first)
    assert CUDNN in by_cudnn


def torchs_mlp(activation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def function(*tensors: torch.Tensor) -> torch.Tensor:
        x, w, b, u, c = tensors if len(tensors) == 5 else (*tensors[:2], None, tensors[2], None)
        return F.linear(activation(F.linear(x, w, b)), u, c)

    return function


def by_name(activation: str) -> Callable[..., torch.Tensor]:
    def function(*tensors: torch.Tensor) -> torch.Tensor:
        given = tensors if len(tensors) == 5 else (*tensors[:2], None, tensors[2], None)
        found: torch.Tensor = fg.ops.mlp(*given, activation=activation)
        return found

    return function


def dropped(h: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return torch.where(r > 0, h, 0.0) * 1.25


# Two layers with an activation between them, and the same by torch.
BESIDE = {
    "relu": (by_name("relu"), torchs_mlp(F.relu)),
    "squared_relu": (by_name("squared_relu"), torchs_mlp(lambda h: F.relu(h) ** 2)),
    "tanh": (by_name("tanh"), torchs_mlp(torch.tanh)),
    "leaky_relu": (by_name("leaky_relu"), torchs_mlp(F.leaky_relu)),
    "gelu_tanh": (by_name("gelu_tanh"), torchs_mlp(lambda h: F.gelu(h, approximate="tanh"))),
}  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", BESIDE)
def test_derivatives_by_cudnn(by_cudnn: list[str], name: str, dtype: torch.dtype, bias: bool) -> None:
    given = arguments(2056, 520, 2048, dtype)
    if not bias:
        given = [given[0], given[1], given[3]]
    op, reference = BESIDE[name]
    cotangent = torch.randn(2056, 520, device="cuda").to(dtype)
    exact = results(reference, [t.detach().double().requires_grad_() for t in given], cotangent)
    found = [results(op, given, cotangent) for _ in range(4)]
    torchs = errors(results(reference, given, cotangent), exact)
    for error, theirs in zip(errors(found[0], exact), torchs, strict=True):
        assert error <= 2 * theirs + 4 * torch.finfo(dtype).eps
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(again, found[0], strict=True))
    if name != "gelu_tanh" or bias:  # whose derivative is left to our kernel
        assert CUDNN in by_cudnn


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_residuals_and_masks_by_cudnn(by_cudnn: list[str], dtype: torch.dtype) -> None:
    x, w, b, *_ = arguments(2056, 520, 2048, dtype)
    rest = torch.randn(2056, 2048, device="cuda").to(dtype).requires_grad_()
    for op, reference in (
        (
            fg.op(lambda x, w, r, b: fg.linear(x, w, b) + r, name="residual"),
            lambda x, w, r, b: F.linear(x, w, b) + r,
        ),
        (
            fg.op(lambda x, w, r, b: fg.where(r > 0, fg.linear(x, w, b), 0) * 1.25 + 0 * r, name="dropped"),
            lambda x, w, r, b: dropped(F.linear(x, w, b), r) + 0 * r,
        ),
    ):  # fmt: skip
        op, given = fg.FusedOp(op.declaration), (x, w, rest, b)
        cotangent, measured = torch.randn_like(rest), len(by_cudnn)
        exact = results(reference, [t.detach().double().requires_grad_() for t in given], cotangent)
        found = [results(op, given, cotangent) for _ in range(3)]
        torchs = errors(results(reference, given, cotangent), exact)
        for error, theirs in zip(errors(found[0], exact)[:2], torchs, strict=False):
            assert error <= 2 * theirs + 4 * torch.finfo(dtype).eps
        assert all(torch.equal(a, b) for again in found for a, b in zip(again, found[0], strict=True))
        with torch.no_grad():
            first, graph = op(*given), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = op(*given)
            captured.zero_()
            graph.replay()
        assert torch.equal(captured, first) and CUDNN in by_cudnn[measured:]


def test_threads_run_cudnns_kernels_at_once(by_cudnn: list[str]) -> None:
    x, w, b, *_ = (t.detach() for t in arguments(4096, 512, 1024, torch.float16))
    op, wrong = fg.FusedOp(fg.ops.linear_silu.declaration), []
    expected = op(x, w, b)

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(op(x, w, b), expected):
                    wrong.append(1)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and CUDNN in by_cudnn
