"""Steps of stencils, each of the one before: what has grown long is stored before it is read at other places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.core import dtypes
from fusegen.fuse import stored_values
from fusegen.fuse.cuts import is_cut
from fusegen.fuse.products import chain
from fusegen.inspect.passes import shown_passes
from tests.support.modes import MODES
from tests.support.oracles import draw

Step = Callable[[Any], Any]


def diffused(x: Any) -> Any:
    return torch.tanh(x + 0.1 * (x.roll(1, -1) + x.roll(-1, -1) - 2 * x))


def padded(x: Any) -> Any:
    around = F.pad(x, (1, 1))
    return torch.sin(x + 0.1 * (around[..., 2:] * around[..., :-2] - 2 * x))


def inner(x: Any) -> Any:
    return torch.tanh(x[..., 1:-1] + 0.1 * (x[..., 2:] + x[..., :-2] - 2 * x[..., 1:-1]))


def of_an_image(x: Any) -> Any:
    return torch.tanh(0.2 * (x + x.roll(1, -1) + x.roll(-1, -2) + F.pad(x[..., 1:, :], (0, 0, 0, 1), value=0.5)))


def limited(x: Any) -> Any:
    return (x - x.roll(1, -1)).clamp(-1, 1) * 0.9 + 0.1 * x


def smooth(x: Any) -> Any:
    return F.softplus(x - x.roll(1, -1))


def aligned(x: Any) -> Any:
    return torch.logaddexp(x, F.pad(x[..., :-1], (1, 0), value=-1e9)) - 0.3


def of_means(x: Any) -> Any:
    return torch.tanh(x - x.roll(1, -1) + x.mean(-1, keepdim=True))


STEPS: dict[str, tuple[Step, int]] = {
    "rolled": (diffused, 4),
    "padded": (padded, 4),
    "inner": (inner, 4),
    "of an image": (of_an_image, 3),
    "limited": (limited, 3),
    "softplus": (smooth, 3),
    "logaddexp": (aligned, 2),
    "of means": (of_means, 3),
}


def steps(step: Step, count: int) -> Step:
    def after(x: Any) -> Any:
        for _ in range(count):
            x = step(x)
        return x

    return after


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "out", "some")])
@pytest.mark.parametrize("form", STEPS)
def test_steps_are_torchs(form: str, mode: str) -> None:
    if (form, mode) == ("logaddexp", "second"):
        pytest.skip("the gradient's gradient has tens of thousands of operations")
    function = steps(*STEPS[form])
    MODES[mode](fg.op(function, name="steps"), function, [draw(2, 9, 11, seed=3)])


@pytest.mark.emulator
@pytest.mark.parametrize("form", ["rolled", "inner", "of an image", "softplus"])
def test_kernels_of_steps(form: str) -> None:
    function = steps(*STEPS[form])
    x = draw(2, 9, 13, seed=1)
    found, expected = fg.op(function, name="steps")(x), function(x)
    torch.testing.assert_close(found, expected)
    by = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(found, x, by), torch.autograd.grad(expected, x, by))


def shown(step: Step, count: int) -> tuple[str, str]:
    spec = fg.TensorSpec(dtypes.float32, (64, 512))
    forward, backward = shown_passes(fg.op(steps(step, count), name="steps"), (spec,), {})
    return forward.text, backward.text


def heated(x: Any) -> Any:
    return x + 0.1 * (x.roll(1, -1) + x.roll(-1, -1) - 2 * x)


def test_steps_are_one_kernel_as_long_as_memory_takes_longer() -> None:
    """Than what is computed for each place anew: a value that is stored is written and read."""
    for count in (1, 2, 3):
        assert [text.count("__global__") for text in shown(heated, count)] == [1, 1]
    assert [text.count("__global__") for text in shown(diffused, 1)] == [1, 1]
    assert shown(diffused, 2)[0].count("__global__") == 2  # three places of a tanh, or one and a tensor more


def test_each_further_step_is_as_long_as_the_one_before() -> None:
    """Not as long as all before it together."""
    for step in (diffused, padded, inner):
        lines = [sum(text.count("\n") for text in shown(step, count)) for count in (4, 6, 8)]
        assert lines[2] - lines[1] <= 1.5 * (lines[1] - lines[0]) + 100


def laplacian(u: Any) -> Any:
    return u.roll(1, -1) + u.roll(-1, -1) + u.roll(1, -2) + u.roll(-1, -2) - 4 * u


def reaction(a: Any, b: Any) -> Any:
    """Three steps of Gray and Scott's, whose places in two dimensions share little."""
    for _ in range(3):
        r = a * b * b
        a, b = a + 0.1 * laplacian(a) - r + 0.04 * (1 - a), b + 0.05 * laplacian(b) + r - 0.1 * b
    return a, b


@pytest.mark.parametrize("mode", ["no gradients", "all", "jvp"])
def test_steps_of_two_fields_are_torchs(mode: str) -> None:
    MODES[mode](fg.op(reaction, name="reaction"), reaction, [draw(2, 5, 6, seed=1), draw(2, 5, 6, seed=2)])


def test_what_has_many_operations_is_several_kernels() -> None:
    spec = fg.TensorSpec(dtypes.float32, (8, 64, 512))
    forward, backward = shown_passes(fg.op(reaction, name="reaction"), (spec, spec), {})
    assert forward.text.count("__global__") == 3 and forward.text.count("\n") < 500
    assert backward.text.count("__global__") == 4 and backward.text.count("\n") < 2000


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Less is long than usually."""
    monkeypatch.setattr(stored_values, "MOST_PARTS", min(stored_values.MOST_PARTS_BETWEEN))
    for known in (stored_values.with_stored_values, chain):
        known.cache_clear()
    yield
    for known in (stored_values.with_stored_values, chain):
        known.cache_clear()


@pytest.mark.usefixtures("short")
def test_a_result_that_is_read_elsewhere_is_written_once() -> None:
    def both(x: Any) -> Any:
        x = diffused(diffused(x))
        return x, diffused(x)

    x = draw(2, 16, seed=2)
    torch.testing.assert_close(fg.op(both, name="both")(x), both(x))
    spec = fg.TensorSpec(dtypes.float32, (64, 512))
    forward, _ = shown_passes(fg.op(both, name="both"), (spec,), {})
    found = chain(forward.op)
    assert is_cut(forward.op) and found is not None
    first, *others = ([output.name for output in step.outputs] for step in found.fused_ops)
    assert others == [["out_0"], ["out_1"]]
    assert [operand.name for operand in found.intermediates] == first


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("mode", ["all", "jvp", "halves"])
@pytest.mark.parametrize("form", STEPS)
def test_steps_that_are_cut_early_are_torchs(form: str, mode: str) -> None:
    function = steps(STEPS[form][0], min(STEPS[form][1], 3))
    MODES[mode](fg.op(function, name="early"), function, [draw(2, 7, 10, seed=5)])


@pytest.mark.parametrize("form", ["limited", "softplus", "logaddexp"])
def test_gradients_of_what_is_selected_are_reads(form: str) -> None:
    """A difference of selects under one comparison of places has one term in each sum: no pass adds up zeros."""
    step, _ = STEPS[form]
    _, backward = shown(step, 3 if form != "logaddexp" else 1)
    assert "= sum[" not in backward and " added at " not in backward
