"""``fusegen.nn``: the signatures, parameters, state dicts and answers of torch's modules, whatever their options."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fusegen as fg
from fusegen.nn import _forward
from fusegen.nn.cells import CELLS
from fusegen.nn.drop_ins import DROP_INS

BASES = {base.__name__: base for base in (*DROP_INS, *CELLS)}


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def share(*shape: int) -> torch.Tensor:
    return torch.rand(shape) * 0.8 + 0.1


def sign(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape) * 2.0 - 1


def classes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 5, shape)


Maker = Callable[[], tuple[Any, ...]]


def case(*shape: int) -> Maker:
    return lambda: (real(*shape),)


# Arguments of the constructor, and inputs, the first of which gets a gradient.
ONE = case(3, 8)
CASES: dict[str, list[tuple[dict[str, Any], Maker]]] = {
    **{name: [({}, ONE)] for name in BASES},
    "PReLU": [({"num_parameters": 8}, ONE)],
    "Threshold": [({"threshold": 0.1, "value": -3.0}, ONE)],
    "GELU": [({}, ONE), ({"approximate": "tanh"}, ONE)],
    "Softmax": [({"dim": -1}, ONE)],
    "Softmin": [({"dim": -1}, ONE)],
    "LogSoftmax": [({"dim": -1}, ONE)],
    "Softmax2d": [({}, case(2, 3, 2, 2))],
    "LayerNorm": [
        ({"normalized_shape": (8,), "bias": False}, ONE),
        ({"normalized_shape": 8, "elementwise_affine": False, "eps": 0.1}, ONE),
    ],
    "RMSNorm": [({"normalized_shape": 8}, ONE)],
    "GroupNorm": [({"num_groups": 2, "num_channels": 4}, case(3, 4, 5))],
    "BatchNorm1d": [({"num_features": 8}, ONE)],
    "BatchNorm2d": [({"num_features": 3}, case(2, 3, 2, 4))],
    "BatchNorm3d": [({"num_features": 3}, case(2, 3, 2, 2, 2))],
    "InstanceNorm1d": [
        ({"num_features": 3, "affine": True, "track_running_stats": True}, case(2, 3, 8)),
    ],
    "InstanceNorm2d": [({"num_features": 3}, case(3, 2, 4))],
    "InstanceNorm3d": [({"num_features": 3}, case(2, 3, 2, 2, 2))],
    "LSTMCell": [
        ({"input_size": 5, "hidden_size": 4}, lambda: (real(3, 5), (real(3, 4), real(3, 4)))),
        ({"input_size": 5, "hidden_size": 4, "bias": False}, case(3, 5)),
        ({"input_size": 5, "hidden_size": 4}, case(5)),
    ],
    "GRUCell": [
        ({"input_size": 5, "hidden_size": 4}, lambda: (real(3, 5), real(3, 4))),
        ({"input_size": 5, "hidden_size": 4, "bias": False}, case(3, 5)),
    ],
    "CosineSimilarity": [({}, lambda: (real(3, 8), real(3, 8)))],
    "CrossEntropyLoss": [
        ({"reduction": "sum", "label_smoothing": 0.1, "weight": torch.arange(1.0, 6)}, lambda: (real(3, 5), classes(3)))
    ],
    "NLLLoss": [({"ignore_index": 1, "reduction": "none"}, lambda: (real(3, 5), classes(3)))],
    "BCELoss": [({"weight": torch.arange(8.0)}, lambda: (share(3, 8), share(3, 8)))],
    "BCEWithLogitsLoss": [({"pos_weight": torch.arange(8.0)}, lambda: (real(3, 8), share(3, 8)))],
    "KLDivLoss": [({"reduction": "batchmean", "log_target": True}, lambda: (real(3, 8), real(3, 8)))],
    "PoissonNLLLoss": [({"full": True}, lambda: (real(3, 8), share(3, 8)))],
    "GaussianNLLLoss": [({}, lambda: (real(3, 8), real(3, 8), share(3, 8)))],
    "CosineEmbeddingLoss": [({"margin": 0.2}, lambda: (real(3, 8), real(3, 8), sign(3)))],
    "HingeEmbeddingLoss": [({}, lambda: (real(3, 8), sign(3, 8)))],
    "MarginRankingLoss": [({}, lambda: (real(8), real(8), sign(8)))],
    "SoftMarginLoss": [({}, lambda: (real(3, 8), sign(3, 8)))],
    "MultiLabelSoftMarginLoss": [({}, lambda: (real(3, 8), share(3, 8)))],
    "TripletMarginLoss": [({"swap": True}, lambda: (real(3, 8), real(3, 8), real(3, 8)))],
    **{
        name: [({"reduction": reduction}, lambda: (real(3, 8), real(3, 8)))]
        for name, reduction in (("MSELoss", "mean"), ("L1Loss", "sum"), ("SmoothL1Loss", "none"), ("HuberLoss", "mean"))
    },
}


def tensors(values: Any) -> list[torch.Tensor]:
    """Those of a nested tuple, in order."""
    return [values] if isinstance(values, torch.Tensor) else [t for value in values for t in tensors(value)]


def outcome(module: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Results, gradients of the first inputs and of parameters, and what the buffers are then."""
    inputs = copy.deepcopy(inputs)
    leaves = [*tensors(inputs)[:1], *module.parameters()]
    leaves[0].requires_grad_()
    results = tensors(module(*inputs))
    torch.manual_seed(7)
    gradients = torch.autograd.grad(results, leaves, [torch.randn_like(result) for result in results])
    return [*[result.detach() for result in results], *gradients, *[b.clone() for b in module.buffers()]]


@pytest.fixture
def fused_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be computed by torch unnoticed."""

    def refused(name: str, reason: str) -> None:
        raise AssertionError(f"{name} fell back: {reason}")

    def asked(tensor: Any, ask: Any = _forward.taken_over) -> bool:
        assert not ask(tensor)
        return False

    monkeypatch.setattr(_forward, "tell", refused)
    monkeypatch.setattr(_forward, "taken_over", asked)


def test_every_class_is_there_under_its_name() -> None:
    assert BASES.keys() <= set(fg.nn.__all__) and len(BASES) > 50
    for name, base in BASES.items():
        made = getattr(fg.nn, name)
        assert issubclass(made, base) and made is not base and made.__module__ == "fusegen.nn"
        assert inspect.signature(made) == inspect.signature(base)
        assert inspect.signature(made.forward) == inspect.signature(base.forward)
        assert "computed by" in made.__doc__


@pytest.mark.usefixtures("fused_only")
@pytest.mark.parametrize("name", BASES)
def test_as_torch(name: str) -> None:
    for options, make in CASES[name]:
        theirs = BASES[name](**options)
        ours = getattr(fg.nn, name)(**options)
        assert repr(ours) == repr(theirs)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.normal_()
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        ours.load_state_dict(theirs.state_dict())
        inputs = make()
        torch.testing.assert_close(outcome(ours, inputs), outcome(theirs, inputs), rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("fused_only")
def test_running_statistics_in_evaluation() -> None:
    for name, options, shape in (
        ("BatchNorm1d", {"momentum": None}, (4, 3)),
        ("BatchNorm1d", {"track_running_stats": False}, (4, 3)),
        ("InstanceNorm1d", {"track_running_stats": True}, (4, 3, 5)),
    ):
        ours, theirs = getattr(fg.nn, name)(3, **options), getattr(nn, name)(3, **options)
        for _ in range(2):
            x = 3 * torch.randn(shape) + 1
            torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_copies_and_pickles() -> None:
    for name in ("LayerNorm", "GELU", "CrossEntropyLoss"):
        module = getattr(fg.nn, name)(**CASES[name][0][0])
        module.marked = 3
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        for other in (
            copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module)),
            torch.load(file, weights_only=False),
        ):  # fmt: skip
            assert type(other) is type(module) is getattr(fg.nn, name) and other.marked == 3
            torch.testing.assert_close(other.state_dict(), module.state_dict())


# -- inplace=True ----------------------------------------------------------------------------------------------------


def test_in_place_without_a_gradient() -> None:
    for made in (fg.nn.ReLU(inplace=True), fg.nn.LeakyReLU(0.2, inplace=True), fg.nn.Threshold(0.0, -1.0, True)):
        x = torch.randn(3, 8)
        expected = getattr(nn, type(made).__name__).forward(made, x.clone())
        version = x._version
        assert made(x) is x and x._version > version
        torch.testing.assert_close(x, expected)


@pytest.mark.usefixtures("fused_only")
def test_in_place_with_a_gradient() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    hidden = x * 1
    assert fg.nn.ReLU(inplace=True)(hidden) is hidden
    hidden.sum().backward()
    assert torch.equal(x.grad, (x > 0).float())
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        fg.nn.ReLU(inplace=True)(x)
    with torch.no_grad():
        assert fg.nn.ReLU(inplace=True)(x) is x


# -- what ops do not take is computed by torch -----------------------------------------------------------------------


def test_what_ops_refuse_is_computed_by_torch() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    assert torch.equal(fg.nn.Tanh()(x), torch.tanh(x))
    sparse = torch.eye(3).to_sparse()
    assert fg.nn.ReLU()(sparse).is_sparse
    assert fg.nn.LayerNorm(3, device="meta")(torch.empty(2, 3, device="meta")).is_meta
    rows = torch.randn(3, 4)
    torch.testing.assert_close(torch.func.vmap(fg.nn.Softmax(-1))(rows), rows.softmax(-1))
    jacobian = torch.func.jacfwd(fg.nn.Sigmoid())(rows[0])
    torch.testing.assert_close(jacobian, torch.func.jacfwd(nn.Sigmoid())(rows[0]))


def test_calls_that_are_wrong_raise_torchs_error_and_say_ours() -> None:
    with pytest.raises(RuntimeError, match="normalized_shape") as caught:
        fg.nn.LayerNorm(3)(torch.randn(2, 4))
    assert isinstance(caught.value.__context__, fg.ShapeError)
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        fg.nn.BatchNorm1d(3)(torch.randn(3))
    norm = fg.nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.randn(1, 3))
    with pytest.raises(TypeError, match="missing a required argument: 'input'"):
        fg.nn.ReLU()(other=torch.randn(3))


def test_arguments_by_name() -> None:
    x, y = torch.randn(3, 8), torch.rand(3, 8)
    torch.testing.assert_close(fg.nn.PoissonNLLLoss()(log_input=x, target=y), nn.PoissonNLLLoss()(x, y))
    gru, h = fg.nn.GRUCell(8, 8), torch.randn(3, 8)
    torch.testing.assert_close(gru(x, hx=h), nn.GRUCell.forward(gru, x, h))


def test_autocast_chooses_the_dtype() -> None:
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fg.nn.MSELoss()(x, x).dtype is torch.float32
        assert fg.nn.GELU()(x).dtype is torch.bfloat16


@contextlib.contextmanager
def cuda_autocast(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """torch.autocast("cuda"), also where there is none."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


# What torch refuses under autocast, or cannot tell without a device.
UNTOLD = ("BCELoss", "GaussianNLLLoss", "LSTMCell", "GRUCell")


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_on_a_gpu_the_ops_run_and_give_torchs_dtypes(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """For every class, on fake CUDA tensors; LayerNorm shows that ours runs."""
    monkeypatch.setattr(_forward, "tell", lambda *said: pytest.fail(str(said)))

    def on_cuda(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(on_cuda, value))
        kind = dtype if value.is_floating_point() else value.dtype
        return torch.empty(value.shape, dtype=kind, device="cuda")

    def results(kind: type[nn.Module], options: dict[str, Any], make: Maker) -> list[torch.dtype]:
        module, inputs = kind(**options).requires_grad_(False).eval(), make()  # nothing in place: fake CUDA cannot
        with FakeTensorMode():
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    held[name] = (
                        tensor if tensor is None else torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
                    )
            given = on_cuda(inputs)
            with cuda_autocast(), torch.no_grad():
                assert not _forward.autocast_decides(tensors(given)[0])
                return [result.dtype for result in tensors(module(*given))]

    for name in BASES:
        for options, make in CASES[name] if name not in UNTOLD else []:
            assert results(getattr(fg.nn, name), options, make) == results(BASES[name], options, make), name
    monkeypatch.setattr(nn.functional, "layer_norm", lambda *_: pytest.fail("torch's own forward ran"))
    assert results(fg.nn.LayerNorm, {"normalized_shape": 8}, ONE) == [torch.float32]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_on_a_gpu(dtype: torch.dtype) -> None:
    """Results and gradients are torch's, in dtype and, as far as bfloat16 goes, in value."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")

    def on_cuda(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(on_cuda, value))
        return value.to("cuda", dtype if value.is_floating_point() else value.dtype)

    for name in BASES:
        if name == "RMSNorm" and dtype is torch.bfloat16 and torch.__version__ < "2.12":
            continue  # there it gave the input's dtype where weights are float32; from 2.13 on float32, as ours does
        for options, make in CASES[name] if name != "BCELoss" else []:
            ours = getattr(fg.nn, name)(**options).cuda()
            theirs = copy.deepcopy(ours)
            theirs.__class__ = BASES[name]
            inputs = on_cuda(make())
            with torch.autocast("cuda", torch.bfloat16):
                found, expected = (outcome(module, inputs) for module in (ours, theirs))
            assert [t.dtype for t in found] == [t.dtype for t in expected], name
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=0.03, atol=0.03, msg=lambda m, name=name: f"{name}: {m}")


def test_compiled_without_graph_breaks() -> None:
    model = nn.Sequential(fg.nn.LayerNorm(8), nn.Linear(8, 8), fg.nn.GELU(), fg.nn.BatchNorm1d(8))
    x = torch.randn(3, 8)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    exported = torch.export.export(model.eval(), (x,)).module()
    torch.testing.assert_close(exported(x), model(x))
    traced = torch.jit.trace(model, x)
    torch.testing.assert_close(traced(2 * x), model(2 * x))
    torch.testing.assert_close(torch.fx.symbolic_trace(model[:3])(x), model[:3](x))


# -- modules of our own ----------------------------------------------------------------------------------------------


def test_gates() -> None:
    gate, value = torch.randn(3, 8), torch.randn(3, 8)
    both = torch.cat([gate, value], -1)
    for made, activation in (
        (fg.nn.SwiGLU(), nn.functional.silu), (fg.nn.ReGLU(), nn.functional.relu),
        (fg.nn.GeGLU(approximate="tanh"), lambda x: nn.functional.gelu(x, approximate="tanh")),
    ):  # fmt: skip
        torch.testing.assert_close(made(gate, value), activation(gate) * value)
        torch.testing.assert_close(made(both), activation(gate) * value)
    assert repr(fg.nn.GeGLU(approximate="tanh")) == "GeGLU(dim=-1, approximate='tanh')"
    torch.testing.assert_close(fg.nn.QuickGELU()(gate), gate * torch.sigmoid(1.702 * gate))
    torch.testing.assert_close(fg.nn.SquaredReLU()(gate), gate.relu().square())


def test_norms_of_sums() -> None:
    x, residual, bias = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    for made in (fg.nn.AddLayerNorm(8), fg.nn.AddRMSNorm(8, eps=1e-6)):
        base = type(made).__mro__[1]
        normed, total = made(x, residual, bias)
        expected = x + residual + bias
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(normed, base.forward(made, expected))


def test_torch_is_imported_only_with_modules() -> None:
    import subprocess
    import sys

    code = "import sys, fusegen as fg; fg.ops; assert 'torch' not in sys.modules; fg.nn; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_convolution_with_its_activation(rank: int) -> None:
    base, kind = getattr(nn, f"Conv{rank}d"), getattr(fg.nn, f"Conv{rank}dAct")
    options: dict[str, Any] = {"activation": "leaky_relu", "options": {"negative_slope": 0.2}}
    theirs, ours = base(4, 6, 3, padding=1), kind(4, 6, 3, padding=1, **options)
    ours.load_state_dict(theirs.state_dict())
    assert "activation='leaky_relu'" in repr(ours) and repr(pickle.loads(pickle.dumps(ours))) == repr(ours)
    x, residual = real(2, 4, *[5] * rank).requires_grad_(), real(2, 6, *[5] * rank)
    for more in ((), (residual,)):
        expected = nn.functional.leaky_relu(sum(more, theirs(x)), 0.2)
        found, cotangent = ours(x, *more), torch.randn_like(expected)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(ours(x[0], *(r[0] for r in more)), expected[0])
        torch.testing.assert_close(
            torch.autograd.grad(found, [x, *ours.parameters()], cotangent),
            torch.autograd.grad(expected, [x, *theirs.parameters()], cotangent), rtol=1e-4, atol=1e-4,
        )  # fmt: skip


def test_a_convolution_whose_activation_is_unknown() -> None:
    with pytest.raises(fg.DeclarationError, match=r"(?s)Conv2dAct, option activation.*'swish'.*silu"):
        fg.nn.Conv2dAct(4, 6, 3, activation="swish")
    image = real(2, 4, 5, 5).to(memory_format=torch.channels_last)
    found = fg.nn.Conv2dAct(4, 6, 3, bias=False, activation="silu")(image)
    assert found.is_contiguous(memory_format=torch.channels_last)
