"""What the library is measured against: finite differences, float64, and torch's own op in the same dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import fusegen as fg

Function = Callable[..., Any]


def draw(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0, dtype: Any = torch.float64) -> torch.Tensor:
    """Numbers between low and high that require a gradient; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    values = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    return values.to(dtype).requires_grad_()


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int | None = None) -> torch.Tensor:
    """Normal numbers: those of the seed, or the test's next ones."""
    return leaves(shape, dtype=dtype, seed=seed)[0].detach()


def leaves(
    *shapes: Sequence[int],
    dtype: torch.dtype = torch.float64,
    drawn: torch.dtype = torch.float64,
    seed: int | None = None,
) -> list[torch.Tensor]:
    """Normal numbers that require a gradient, drawn in one dtype and rounded to another."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return [torch.randn(tuple(s), dtype=drawn, generator=generator).to(dtype).requires_grad_() for s in shapes]


def outputs_of(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def cotangents_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Non-constant, the same for the same shapes."""
    return [draw(*output.shape, seed=10 + i).detach().to(output.dtype) for i, output in enumerate(outputs)]


def gradients(function: Function, arguments: Sequence[Any]) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """The results, and the gradients of those arguments that require one (zeros where there is none)."""
    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    outputs = outputs_of(function(*arguments))
    found = torch.autograd.grad(outputs, leaves, cotangents_of(outputs), allow_unused=True, materialize_grads=True)
    return tuple(o.detach() for o in outputs), list(found)


def check_derivatives(function: Function, arguments: Sequence[torch.Tensor]) -> None:
    """First and second derivatives against finite differences, in float64.

    Of one or two arguments every element of the second derivative; of more, products of it with three directions, all
    gradients at once: a double backward for each subset of them would be as many kernels to compile. A mistake is seen
    where any of the directions has anything of it, and these have all elements, and differ in which are large.
    """
    assert torch.autograd.gradcheck(function, arguments)
    outputs = outputs_of(function(*arguments))
    cotangents = [draw(*output.shape, seed=10 + i) for i, output in enumerate(outputs)]
    if len(arguments) <= 2:
        assert torch.autograd.gradgradcheck(function, arguments, cotangents, atol=1e-4)
        return

    for seed in (20, 40, 60):
        directions = [draw(*argument.shape, seed=seed + i).detach() for i, argument in enumerate(arguments)]

        def gradient_along(*given: torch.Tensor, directions: Sequence[torch.Tensor] = directions) -> torch.Tensor:
            inputs, cotangents = given[: len(arguments)], given[len(arguments) :]
            found = torch.autograd.grad(
                outputs_of(function(*inputs)), inputs, cotangents, create_graph=True, materialize_grads=True
            )
            return torch.stack([(g * v).sum() for g, v in zip(found, directions, strict=True)]).sum()

        assert torch.autograd.gradcheck(gradient_along, (*arguments, *cotangents), atol=1e-4)


def exactly(arguments: Sequence[Any]) -> list[Any]:
    """The arguments with every float in float64."""
    floats = [isinstance(a, torch.Tensor) and a.is_floating_point() for a in arguments]
    return [
        a.detach().double().requires_grad_(a.requires_grad) if is_float else a
        for a, is_float in zip(arguments, floats, strict=True)
    ]


def check_no_worse(ours: Function, theirs: Function, arguments: Sequence[Any]) -> None:
    """Values and gradients are no further from the float64 ones than one and a half times torch's own, plus an ulp."""
    found, reference = gradients(ours, arguments), gradients(theirs, arguments)
    exact = gradients(theirs, exactly(arguments))
    triples = zip((*found[0], *found[1]), (*reference[0], *reference[1]), (*exact[0], *exact[1]), strict=True)
    for position, (mine, other, truth) in enumerate(triples):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        error, allowed = (mine.double() - truth).abs(), (other.double() - truth).abs().max()
        ulp = torch.finfo(mine.dtype).eps * truth.abs()
        worst = (error - ulp).max()
        assert worst <= 1.5 * allowed, f"result {position}: {error.max():.3g} off, torch {allowed:.3g}"


def check_same(ours: Function, theirs: Function, arguments: Sequence[Any], **tolerances: float) -> None:
    """Values and gradients agree."""
    found, expected = gradients(ours, arguments), gradients(theirs, arguments)
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerances)


def check_is_torchs(function: Function, given: Sequence[torch.Tensor], name: str) -> None:
    """Values and gradients of an op called ``name`` are torch's, which writes into copies; values also where no
    gradient is asked for."""
    leaves, op = [x for x in given if x.requires_grad], fg.op(function, name=name)
    found, expected = op(*given), function(*(x * 1 if x.requires_grad else x for x in given))
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(op(*given), expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(y, leaves, cotangent) for y in (found, expected))
    torch.testing.assert_close(mine, theirs)


def pair(name: str, *fixed: Any, **options: Any) -> tuple[Function, Function]:
    """Our op and torch's as functions of their first arguments, the others given."""

    def call(function: Function, *tensors: Any) -> Any:
        return function(*tensors, *fixed, **options)

    theirs = getattr(F, name, None) or getattr(torch, name)
    return functools.partial(call, getattr(fg.ops, name)), functools.partial(call, theirs)


def refused(call: Function) -> fg.FusegenError:
    """The error that the call raises."""
    try:
        call()
    except fg.FusegenError as error:
        return error
    raise AssertionError("not refused")
