"""The library under torch's own sample inputs: values, gradients, dtypes, shapes and strides are torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import fusegen as fg
from tests.support.opinfo import no_search_for_the_test

__all__ = ["no_search_for_the_test"]  # a fixture

# torch says so where its own chunks do not apply.
pytestmark = pytest.mark.filterwarnings("ignore:linear_cross_entropy. ``options`` ignored")
HALVES = (torch.bfloat16, torch.float16)


def own_name(info: Any) -> str:
    return str(info.name).removeprefix("nn.functional.").removeprefix("linalg.")


# Of complex tensors; and a formula of other ops.
OTHERS = ("complex", "decomposed")
INFOS: dict[str, Any] = {  # torch's OpInfo is untyped
    " ".join([own_name(info), *filter(None, [info.variant_test_name])]): info
    for info in op_db
    if own_name(info) in fg.ops.__all__ and info.variant_test_name not in OTHERS
}
# Random numbers are not torch's own (tests/declare/test_random_numbers.py), and of several results: test_ops_scans.py.
SEVERAL = ("cummax", "cummin")
NAMES = sorted(
    name for name in INFOS if name not in SEVERAL and not getattr(fg.ops, name.partition(" ")[0]).declaration.random
)
# torch's own sample has the condition second, and a table first.
OURS = {name: getattr(fg.ops, name.partition(" ")[0]) for name in NAMES} | {
    "where": lambda a, condition, b: fg.ops.where(condition, a, b),
    "embedding": lambda table, index, **options: fg.ops.embedding(index, table, **options),
    "embedding_bag": lambda table, index, *args, **options: fg.ops.embedding_bag(index, table, *args, **options),
}
# What torch's samples ask for, and no declaration can say: tensors seen as flat, a table that is scaled, a gradient
# that is counted or sparse.
REFUSED = {
    "roll": lambda sample: len(sample.args) < 2 and sample.input.ndim > 1,
    **dict.fromkeys(
        ("embedding", "embedding_bag"),
        lambda sample: bool(sample.kwargs.keys() & {"max_norm", "scale_grad_by_freq", "sparse"}),
    ),
}
# Sums of as many results as there are elements: torch adds them up in double on a CPU.
SUMS = ("cumsum",)
# We broadcast where torch does not, and take numbers where torch wants tensors.
LENIENT = {"masked_fill", "maximum", "minimum"}
# torch multiplies by a sixth that it rounded to float32.
ROUGH = {"hardsigmoid": 1e-7}


def flat(sample: Any) -> list[Any]:
    return [sample.input, *sample.args, *sample.kwargs.values()]


def option(value: Any) -> Any:
    """What makes another kernel: constants by value, tensors and numbers by kind."""
    return value if isinstance(value, (str, bool, type(None))) else type(value).__name__


def pattern(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return value.numel() == 0, tuple(size == 1 for size in value.shape)


def samples(name: str, dtype: torch.dtype, most_patterns: int = 2, requires_grad: bool = False) -> Iterator[Any]:
    """Of torch's samples those that bring a new option or a new broadcast pattern, each of which is compiled."""
    options: set[Any] = set()
    patterns: set[Any] = set()
    for sample in INFOS[name].sample_inputs("cpu", dtype, requires_grad=requires_grad):
        if name in REFUSED and REFUSED[name](sample):
            with pytest.raises(fg.DeclarationError):
                run(OURS[name], sample)
            continue
        own = {(key, option(value)) for key, value in sample.kwargs.items()}
        shapes = tuple(pattern(value) for value in flat(sample))
        if own - options or (shapes not in patterns and len(patterns) < most_patterns):
            options |= own
            patterns.add(shapes)
            yield sample


def run(function: Callable[..., Any], sample: Any) -> torch.Tensor:
    result: torch.Tensor = function(sample.input, *sample.args, **sample.kwargs)
    return result


def doubled(sample: Any) -> Any:
    return sample.transform(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t)


def assert_like(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())


def assert_as_exact(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, sample: Any, name: str = "") -> None:
    """Two oracles: the float64 value, and torch's own error from it in the same dtype.

    Where torch overflows and the exact value does not, ours need not either. A sum may cancel, and torch be lucky: it
    is allowed the rounding of one element.
    """
    if not ours.is_floating_point():
        assert torch.equal(ours, theirs)
        return
    if ours.dtype == torch.float64:  # asked for: then torch's own result is the exact one
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-14, equal_nan=True)
        return
    exact = exact.to(torch.float64)
    finite, both = torch.isfinite(exact), torch.isfinite(exact) & torch.isfinite(theirs)
    torch.testing.assert_close(ours[~finite].double(), theirs[~finite].double(), equal_nan=True, rtol=0, atol=0)
    error = (ours.double() - exact)[finite].abs()
    allowed = (theirs.double() - exact)[both].abs().max() if both.any() else 0
    scale = exact[finite].abs().clamp(min=torch.finfo(ours.dtype).tiny)
    if ours.numel() < sample.input.numel() or name in SUMS:
        scale = scale.clamp(min=sample.input.double().abs().nan_to_num(posinf=0).max() / 2)
    close = error <= 2 * allowed + 4 * torch.finfo(ours.dtype).eps * scale
    assert (close | (ours == theirs)[finite]).all()


@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    ours = OURS[name]
    for sample in samples(name, torch.float32):
        theirs = run(INFOS[name].op, sample)
        result = run(ours, sample)
        assert_like(result, theirs)
        assert_as_exact(result, theirs, run(INFOS[name].op, doubled(sample)), sample, name)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values_in_half_precision(name: str, dtype: torch.dtype) -> None:
    if dtype not in INFOS[name].dtypes:
        pytest.skip("torch's CPU op does not support it")
    sample = max(samples(name, dtype), key=lambda s: s.input.numel())
    theirs = run(INFOS[name].op, sample)
    result = run(OURS[name], sample)
    assert_like(result, theirs)
    assert_as_exact(result, theirs, run(INFOS[name].op, doubled(sample)), sample, name)


@pytest.mark.parametrize("name", [name for name in NAMES if INFOS[name].supports_autograd])
def test_gradients(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for sample in samples(name, torch.float64, 4, requires_grad=True):
        leaves = [t for t in flat(sample) if isinstance(t, torch.Tensor) and t.requires_grad]
        found = []
        for function in (OURS[name], INFOS[name].op):
            result = run(function, sample)
            cotangent = torch.randn(result.shape, generator=generator.manual_seed(1), dtype=result.dtype)
            found.append((result, torch.autograd.grad(result, leaves, cotangent, allow_unused=True)))
        (ours, our_gradients), (theirs, their_gradients) = found
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert_like(ours, theirs)
        for mine, other in zip(our_gradients, their_gradients, strict=True):
            if mine is None or other is None:  # None is a gradient of zero
                assert not torch.any(torch.zeros(()) if mine is None else mine)
                assert not torch.any(torch.zeros(()) if other is None else other)
            else:
                torch.testing.assert_close(mine, other, rtol=ROUGH.get(name, 1e-10), atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in NAMES if INFOS[name].error_inputs_func and name not in LENIENT])
def test_what_torch_refuses_is_refused(name: str) -> None:
    for case in INFOS[name].error_inputs("cpu"):
        sample = case.sample_input
        if sample.input.ndim > 64 or "out of bounds" in case.error_regex:  # torch's own limit; values are not read
            continue
        with pytest.raises((fg.FusegenError, ValueError)):
            run(OURS[name], sample)
