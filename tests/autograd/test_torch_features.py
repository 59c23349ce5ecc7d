"""What torch offers around autograd, with ops in it: checkpoints, hooks, workers, threads, subclasses."""

from __future__ import annotations

import copy
import io
import os
import threading
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, vjp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import fusegen as fg
from fusegen.run.runner import Runner
from tests.support.declarations import lerp, norm, torch_norm
from tests.support.oracles import leaves


def expected(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(torch_norm(x, w).sin().sum(), (x, w))


close = torch.testing.assert_close


# -- what is saved, and when it is computed again --------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    x, w = leaves((4, 3), (3,))
    checkpoint(lambda x, w: norm(x, w).sin(), x, w, use_reentrant=reentrant).sum().backward()
    close((x.grad, w.grad), expected(x, w))


def test_saved_tensors_hooks() -> None:
    x, w = leaves((4, 3), (3,))
    with torch.autograd.graph.save_on_cpu():
        first = torch.autograd.grad(norm(x, w).sin().sum(), (x, w), create_graph=True)
    close(first, expected(x, w))
    second = torch.autograd.grad(sum(g.sin().sum() for g in first), (x, w))
    theirs = torch.autograd.grad(torch_norm(x, w).sin().sum(), (x, w), create_graph=True)
    close(second, torch.autograd.grad(sum(g.sin().sum() for g in theirs), (x, w)))

    def pack(tensor: torch.Tensor) -> bytes:
        torch.save(tensor, buffer := io.BytesIO())
        return buffer.getvalue()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: torch.load(io.BytesIO(packed))):
        out = norm(x, w).sin().sum()
    close(torch.autograd.grad(out, (x, w)), expected(x, w))


def test_a_saved_tensor_that_changes_is_noticed() -> None:
    x, w = leaves((4, 3), (3,))
    hidden = x * 1
    out = norm(hidden, w)
    hidden.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    gate = fg.op(lambda x, y: fg.sigmoid(x + y), name="gate")  # keeps its result instead of two arguments
    out = gate(*leaves((4, 3), (4, 3)))
    total = out.sum()
    with torch.no_grad():
        out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_inference_mode() -> None:
    x, w = leaves((4, 3), (3,))
    with torch.inference_mode():
        inside = norm(x, w)
        assert inside.is_inference() and not inside.requires_grad
    close(norm(inside, inside[0]), torch_norm(inside, inside[0]))
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        norm(inside, w)  # as torch


def test_requires_grad_may_change_between_calls() -> None:
    x, w = (t.detach() for t in leaves((4, 3), (3,)))
    assert not norm(x, w).requires_grad
    assert norm(x.requires_grad_(), w).requires_grad
    close(torch.autograd.grad(norm(x, w).sum(), x), torch.autograd.grad(torch_norm(x, w).sum(), x))
    x.requires_grad_(False)
    close(torch.autograd.grad(norm(x, w.requires_grad_()).sum(), w), torch.autograd.grad(torch_norm(x, w).sum(), w))


def test_a_level_of_transforms_computes_only_its_own_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    op = fg.op(lambda x, y, w: x + w * (y - x), name="blend")
    x, y, w = leaves((4, 3), (4, 3), (4, 3))
    written: list[list[str]] = []
    original = Runner.planned

    def watched(self: Any, *arguments: Any) -> Any:
        written.append([output.name for output in self.op.outputs])
        return original(self, *arguments)

    monkeypatch.setattr(Runner, "planned", watched)
    inner = grad(lambda y: op(x, y, w).sum())(y.detach())
    assert written[-1] == ["d_y"] and torch.equal(inner, w)
    op(x, y, w).sum().backward()
    assert written[-1] == ["d_x", "d_y", "d_w"]


# -- hooks, anomalies, accumulation, threads -------------------------------------------------------------------------


def test_hooks_and_anomaly_mode() -> None:
    x, w = leaves((4, 3), (3,))
    dx, dw = expected(x, w)
    seen: list[Any] = []
    with torch.autograd.detect_anomaly(check_nan=True):
        out = norm(x, w)
        out.register_hook(lambda g: seen.append("result"))
        out.grad_fn.register_prehook(lambda g: seen.append("before"))
        out.grad_fn.register_hook(lambda inputs, outputs: seen.append("after"))
        x.register_hook(lambda g: 2 * g)
        w.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
        out.sin().sum().backward()
    assert sorted(seen) == ["accumulated", "after", "before", "result"]
    close((x.grad, w.grad), (2 * dx, dw))
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
        (norm(x, w) * torch.nan).sum().backward()


def test_gradients_accumulate_in_place_and_in_their_own_layout() -> None:
    x, w = leaves((4, 3), (3,))
    for _ in range(3):
        norm(x, w).sin().sum().backward()
    close((x.grad, w.grad), tuple(3 * g for g in expected(x, w)))


def test_memory_format_is_kept_through_all_derivatives() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    out = fg.ops.silu(x)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    for tensor in (out, first, second):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_many_threads_compile_call_and_walk_one_op() -> None:
    op = fg.op(lambda x: fg.exp(x) * fg.sin(3.25 * x), name="first_met_by_threads")
    x, w = leaves((4, 3), (3,))
    shared = norm(x, w).sin().sum()
    theirs = torch.autograd.grad((torch.exp(x) * torch.sin(3.25 * x)).sum(), x)
    found: list[Any] = []

    def work() -> None:
        found.append(torch.autograd.grad(op(x).sum(), x))
        found.append(torch.autograd.grad(shared, (x, w), retain_graph=True))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    for gradients in found:
        close(gradients, theirs if len(gradients) == 1 else expected(x, w))


# -- copies and workers ----------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.activation, self.normalized = fg.ops.gelu, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.normalized(x, self.weight))  # type: ignore[no-any-return]


def test_modules_that_hold_ops_are_copied_and_saved() -> None:
    block, x = Block(), torch.randn(4, 3)
    torch.save(block, buffer := io.BytesIO())
    buffer.seek(0)
    for other in (copy.deepcopy(block), copy.copy(block), torch.load(buffer, weights_only=False)):
        assert other.activation is fg.ops.gelu and other.normalized is norm
        close(other(x), block(x))


class Rows(Dataset[Any]):
    """Applies ops, with gradients, where its rows are loaded."""

    def __init__(self) -> None:
        self.rows, self.op = torch.arange(6.0).reshape(2, 3), fg.ops.softmax

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index].clone().requires_grad_()
        out = self.op(row, -1)
        return out.detach(), torch.autograd.grad((out * row).sum(), row)[0]


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.skipif(
    "FUSEGEN_TEST_DEVICE" in os.environ, reason="CUDA does not survive a fork, and a spawn is the CPU's"
)
def test_workers(start: str) -> None:
    rows = Rows()
    here = [rows[0], rows[1]]
    fg.ops.softmax(torch.randn(600, 700), -1)  # so many blocks that threads of this process have run some
    there = list(DataLoader(rows, batch_size=None, num_workers=1, multiprocessing_context=start))
    close(there, here)


# -- subclasses and modes --------------------------------------------------------------------------------------------


class Plain(torch.Tensor):
    pass


class Counting(torch.Tensor):
    calls: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Opaque(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def test_subclasses_are_handled_as_torch_does() -> None:
    x = torch.randn(4, 3)
    assert type(lerp(x.as_subclass(Plain), x, 0.5)) is Plain
    assert type(lerp(x, x, x.as_subclass(Plain))) is Plain
    assert type(lerp(torch.nn.Parameter(x), x, 0.5)) is torch.Tensor
    assert type(lerp(x, x, 0.5, out=torch.empty(4, 3).as_subclass(Plain))) is Plain
    leaf = x.as_subclass(Plain).clone().detach().requires_grad_()
    lerp(leaf, x, 0.25).sum().backward()
    close(leaf.grad, torch.full((4, 3), 0.75).as_subclass(type(leaf.grad)))
    lerp(x.as_subclass(Counting), x, 0.5)
    assert Counting.calls[0] is lerp
    with pytest.raises(TypeError, match="no implementation found"):
        lerp(x.as_subclass(Opaque), x, 0.5)


class Dispatching(torch.Tensor):
    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        return torch.zeros(4, 3)


def test_no_kernel_reads_memory_behind_a_dispatching_subclass() -> None:
    x = torch.Tensor._make_subclass(Dispatching, torch.randn(4, 3))
    try:
        lerp(x, torch.randn(4, 3), 0.5)
        assert any("lerp" in name for name in Dispatching.seen)
    except fg.DeviceError as error:
        assert "__torch_dispatch__" in str(error)


def test_function_modes_see_ops() -> None:
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.randn(4, 3)
    with Mode(), torch.device("cpu"):
        close(lerp(x, 2 * x, 0.5), 1.5 * x)
    assert lerp in seen


def test_tensors_that_outlive_their_transform() -> None:
    x, w = (t.detach() for t in leaves((4, 3), (3,)))
    _, pull = vjp(norm, x, w)  # its level is over when the gradient is computed
    close(pull(x), vjp(torch_norm, x, w)[1](x))
    leaked: list[torch.Tensor] = []
    grad(lambda x: (leaked.append(x), norm(x, w).sum())[1])(x)
    close(norm(leaked[0], w), torch_norm(x, w))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
    close(norm(dual, w), torch_norm(x, w))


def test_a_launch_that_torch_would_not_record_is_refused() -> None:
    x, w = leaves((4, 3), (3,))
    out = norm(x, w)
    walk = make_fx(lambda cotangent: torch.autograd.grad(out, x, cotangent, retain_graph=True)[0])
    with pytest.raises(fg.DeviceError, match=r"norm, backward\n  given:    a launch while torch traces"):
        walk(torch.ones_like(out))
    assert torch.autograd.grad(out.sum(), x)[0].shape == x.shape
