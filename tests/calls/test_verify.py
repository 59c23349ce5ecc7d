"""``fg.checked``: right calls pass, on every path; what is wrong is found, and the stage named where it went wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fusegen as fg
from fusegen import pipeline
from fusegen.core.ir import Output
from fusegen.plan.frameworks import Torch
from fusegen.run import verify
from fusegen.run.runner import Runner
from tests.support.oracles import draw, refused

pytestmark = pytest.mark.emulator


def norm(x: Any, w: Any) -> Any:
    centered = x * w - fg.mean(x * w, -1, keepdims=True)
    return centered * fg.rsqrt(fg.mean(centered * centered, -1, keepdims=True) + 1e-3), fg.amax(x, -1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_right_calls_pass(dtype: torch.dtype) -> None:
    op = fg.op(norm)
    x, w = (t.detach().to(dtype).requires_grad_() for t in (draw(6, 33), draw(33, seed=1)))
    with fg.checked():
        for _ in range(2):
            y, top = op(x, w)
            first = torch.autograd.grad((y * y).sum() + top.sum(), (x, w), create_graph=True)
            torch.autograd.grad(first[0].square().sum(), (x, w))
        torch.func.jvp(lambda x: op(x, w.detach())[0], (x.detach(),), (torch.ones_like(x),))
        torch.func.vmap(lambda x: op(x, w.detach())[0])(x.detach())


def test_every_kind_of_op_passes() -> None:
    linear = fg.op(lambda x, w, b: fg.ops.gelu(fg.linear(x, w, b)))
    given = [draw(*shape, seed=i).detach().half().requires_grad_() for i, shape in enumerate([(5, 16), (8, 16), (8,)])]

    @fg.op
    def rounded(x: fg.Tensor) -> fg.Tensor:
        return fg.round(x)

    rounded.gradient(lambda d_out, x: d_out)
    with fg.checked():
        linear(*given).sum().backward()
        rounded(draw(5, 3)).sum().backward()  # a declared gradient is whatever it is
        out = draw(5, 3).detach()
        fg.op(lambda x: x * 2 + fg.sum(x))(out.clone(), out=out)
        doubled = fg.op(lambda x: fg.exp(x))
        same = draw(7).detach()
        expected = same.exp()
        doubled(same, out=same)
        torch.testing.assert_close(same, expected)
        fg.op(lambda x: fg.where(x > 0, fg.sqrt(x), 0))(np.linspace(-1, 1, 9, dtype=np.float32))
        fg.ops.cross_entropy(draw(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])).backward()


@pytest.mark.parametrize("function", [lambda x, y: x // y * x, lambda x, y: x % y * x, lambda x, y: fg.fmod(x, y) * x])
def test_derivatives_through_quotients_floors_pass(function: Any) -> None:
    """torch's floor_divide, which they were compared with, has no derivative."""
    x, y = draw(7), draw(7, low=0.5, high=1.5, seed=1)
    with fg.checked():
        first = torch.autograd.grad(fg.op(function)(x, y).sin().sum(), (x, y), create_graph=True)
        torch.autograd.grad(sum(gradient.sin().sum() for gradient in first), (x, y))


def test_a_wrong_kernel_is_found_and_the_stages_before_it_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    op, launch = fg.op(norm, name="norm_with_a_wrong_kernel"), Runner.launch

    def wrong(self: Runner, *given: Any) -> list[Any]:
        results = launch(self, *given)
        results[0][2, 3] += 0.01
        return results

    x, w = draw(4, 8).detach(), draw(8, seed=1).detach()
    op(x, w)  # cached by the call path before
    op(x, w)
    monkeypatch.setattr(Runner, "launch", wrong)
    with fg.checked():
        error = refused(lambda: op(x, w))
    text = str(error)
    assert isinstance(error, fg.CheckError) and isinstance(error, ArithmeticError)
    assert "norm_with_a_wrong_kernel, forward, result out_0" in text and "out_0[2, 3] = " in text
    assert "x: float64[4, 8]" in text and "stage: CUDA: the stages before it agree" in text
    op(x, w)  # outside, nobody looks


def test_a_wrong_fusion_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    op, group = fg.op(norm, name="norm_with_a_wrong_fusion"), pipeline.group_by_rows

    def wrong(op: Any) -> Any:
        def doubled(output: Output) -> Output:
            return replace(output, expr=output.expr * 2.0)

        return tuple(
            tuple(replace(kernel, pointwise=tuple(map(doubled, kernel.pointwise))) for kernel in kernels)
            for kernels in group(op)
        )

    monkeypatch.setattr(pipeline, "group_by_rows", wrong)
    with fg.checked():
        text = str(refused(lambda: op(draw(4, 8).detach(), draw(8, seed=1).detach())))
    assert "stage: fused, candidate 1 of" in text


def test_a_wrong_derivative_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    op, train = fg.op(lambda x: fg.sin(x) * x, name="sine_with_a_wrong_derivative"), pipeline.train

    def wrong(op: Any, wanted: tuple[str, ...]) -> Any:
        training = train(op, wanted)
        (output,) = training.forward.outputs[:1]
        other = replace(output, expr=output.expr + op.operands[0].ref)
        return replace(training, forward=training.forward.with_statements(training.forward.statements, [other]))

    monkeypatch.setattr(pipeline, "train", wrong)
    x = draw(5)
    with fg.checked():
        y = op(x)  # x more than it should be: what the trained forward says, its kernel computes
    monkeypatch.setattr(pipeline, "backward_op", lambda training, given: train(op.trace(x), ("x",)).backward(given))
    with fg.checked():
        error = refused(lambda: y.sum().backward())
    assert "the gradient of x" in str(error) and "stage: derived" in str(error)


def test_what_rounding_explains_is_no_error() -> None:
    # Sums that cancel, comparisons at their edge, and exponentials of large numbers.
    @fg.op
    def touchy(x: fg.Tensor) -> tuple[fg.Tensor, ...]:
        far = x + 1e4
        return fg.sum(far - 1e4, -1), far > 1e4 + 0.25, fg.floor(x * 3), fg.exp(x * 30), fg.var(far, -1)

    with fg.checked():
        touchy((torch.arange(4096, dtype=torch.float32).reshape(8, 512) / 1024) - 2)


def test_too_many_elements_are_said_not_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "MOST_ELEMENTS", 10)
    with fg.checked(), pytest.warns(fg.FusegenWarning, match="not checked, for its tensors have 48 elements"):
        fg.op(lambda x: x * 2)(draw(24).detach())


def test_a_process_checks_itself_by_the_environment(tmp_path: Any) -> None:
    script = """if 1:
        import torch, fusegen as fg
        from fusegen.run.runner import Runner
        launch = Runner.launch
        def wrong(self, *given):
            results = launch(self, *given)
            results[0] += 1
            return results
        Runner.launch = wrong
        try:
            fg.op(lambda x: fg.exp(x))(torch.ones(3))
        except fg.CheckError:
            print("found")
    """
    for asked, printed in (("1", "found\n"), ("0", "")):
        environment = {**os.environ, "FUSEGEN_CHECK": asked}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == printed


def test_what_is_added_to_a_gradient_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(op: Any, grad: float) -> torch.Tensor:
        x, w = draw(6, 4).detach(), draw(4, 3, seed=1).detach().requires_grad_()
        w.grad = torch.full_like(w, grad)
        result = op(x, w)
        with fg.checked(), fg.accumulate_grad():
            result.backward(torch.ones_like(result))
        assert w.grad is not None
        torch.testing.assert_close(w.grad, x.sum(0)[:, None].expand(4, 3) + grad)
        return w.grad

    for grad in (0.0, 1e6):
        trained(fg.op(lambda x, w: x @ w, name="added"), grad)
    original = Torch.accumulate

    def wrong(self: Any, *sides: Any) -> None:
        original(self, *sides)
        sides[-1].add_(1e-3)

    monkeypatch.setattr(Torch, "accumulate", wrong)
    with pytest.raises(fg.CheckError, match="result d_w"):
        trained(fg.op(lambda x, w: x @ w, name="added"), 1.0)
