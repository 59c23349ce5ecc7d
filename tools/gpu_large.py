"""What only a GPU's memory holds: results of more than 2^31 elements, gradients in place, other libraries' tensors.

Part of tools/gpu_check.sh. Every check compares with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fusegen as fg


@fg.op
def blend(x: Any, y: Any, w: Any) -> Any:
    """Interpolation, exact at both ends."""
    d = y - x
    return fg.where(fg.abs(w) < 0.5, x + w * d, y - (1 - w) * d)


Shapes = tuple[tuple[int, ...], ...]
LARGE: tuple[Shapes, ...] = (((1,), (1,), (2281701379,)), ((1, 3, 3), (253522376, 3, 3), (1, 3, 3)))
# Elements of which a reference is computed at a time, in float64.
CHUNK = 2**26


def check_large(
    shapes: Shapes, device: str = "cuda", function: Callable[..., torch.Tensor] = blend, chunk: int = CHUNK
) -> None:
    """Value and gradients of a blend in bfloat16, every element of them, against torch's in float64, chunk by chunk.

    The cotangent, and the operands that are as large, grow along the first dimension: what is read or added up at
    another place (an index that wraps, a part that is left out) changes every sum by far more than bfloat16 rounds.
    """
    torch.manual_seed(0)
    inputs = [_growing(shape, device).requires_grad_() for shape in shapes]
    result = function(*inputs)
    cotangent = _growing(tuple(result.shape), device)
    gradients = torch.autograd.grad(result, inputs, cotangent)
    sums = [torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes]
    rows = max(1, chunk // max(1, result[:1].numel()))
    for start in range(0, len(result), rows):
        part = slice(start, start + rows)
        pieces = [(t[part] if len(t) > 1 else t).detach().double().requires_grad_() for t in inputs]
        expected = torch.lerp(*pieces)
        torch.testing.assert_close(result[part].double(), expected, rtol=1e-2, atol=1e-5)
        found = torch.autograd.grad(expected, pieces, cotangent[part].double())
        for tensor, gradient, total, piece in zip(inputs, gradients, sums, found, strict=True):
            if len(tensor) == 1:
                total += piece
            else:
                torch.testing.assert_close(gradient[part].double(), piece, rtol=1e-2, atol=1e-5)
    for tensor, gradient, total in zip(inputs, gradients, sums, strict=True):
        assert gradient.shape == tensor.shape
        if len(tensor) == 1:  # sums of terms of one sign, to the precision of bfloat16
            torch.testing.assert_close(gradient.double(), total, rtol=1e-2, atol=0)


def _growing(shape: tuple[int, ...], device: str) -> torch.Tensor:
    """Random numbers from 0 to 1 that are mostly larger towards the end of the first dimension."""
    numbers = torch.rand(shape, device=device, dtype=torch.bfloat16)
    steps = min(shape[0], 4096) if shape else 1
    if steps > 1:
        for i, part in enumerate(numbers.chunk(steps)):
            part.mul_((i + 1) / steps)
    return numbers


def check_other_libraries() -> None:
    """CuPy arrays through their own adapter, JAX arrays through DLPack; results in the caller's library."""
    import cupy
    import jax
    import jax.numpy

    x, y = (cupy.random.rand(33, 70, dtype=cupy.float32) for _ in range(2))
    result = blend(x, y, 0.25)
    assert isinstance(result, cupy.ndarray)
    cupy.testing.assert_allclose(result, x + 0.25 * (y - x), rtol=1e-6)
    with cupy.cuda.Stream():
        cupy.testing.assert_allclose(blend(x, y, 0.25), result)
    a, b = (jax.random.uniform(jax.random.PRNGKey(i), (33, 70)) for i in range(2))
    blended = blend(a, b, 0.25)
    assert isinstance(blended, jax.Array)
    assert float(abs(blended - (a + 0.25 * (b - a))).max()) < 1e-6


def check_repeats() -> None:
    """The same bits a hundred times, while another stream keeps the GPU busy."""
    torch.manual_seed(0)
    x = torch.randn(256, 1, 1, 1, device="cuda", requires_grad=True)
    y = torch.randn(256, 64, 28, 28, device="cuda", requires_grad=True)
    w = torch.rand(64, 1, 28, device="cuda", requires_grad=True)
    cotangent = torch.randn(256, 64, 28, 28, device="cuda")
    first = torch.autograd.grad(blend(x, y, w), (x, y, w), cotangent)
    busy, noise = torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda")
    for _ in range(100):
        with torch.cuda.stream(busy):
            noise @ noise
        again = torch.autograd.grad(blend(x, y, w), (x, y, w), cotangent)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def check_gradients_in_place() -> None:
    """cross_entropy's inplace_backward: the ordinary gradient's bits, its memory saved, and what a step takes."""
    for shape, dtype in (((4096, 128256), torch.bfloat16), ((8191, 50257), torch.bfloat16), ((100000, 1000), None)):
        leaf = torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()
        target = torch.randint(0, shape[1], shape[:1], device="cuda")
        found = {}
        for inplace in (False, True):
            for _ in range(3):
                logits = leaf * 1
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                loss = fg.ops.cross_entropy(logits, target, inplace_backward=inplace)
                (gradient,) = torch.autograd.grad(loss, [logits])
                end.record()
                torch.cuda.synchronize()
                more = torch.cuda.max_memory_allocated() - before
                assert (gradient.data_ptr() == logits.data_ptr()) == inplace
                found[inplace] = gradient, more, start.elapsed_time(end)
                del logits, loss, gradient
        assert torch.equal(found[True][0], found[False][0])
        size = leaf.numel() * leaf.element_size()
        assert found[False][1] >= size and found[True][1] < size / 50
        lines = [f"{more / 2**20:.0f} MiB more, {time:.3f} ms" for _, more, time in found.values()]
        print(f"cross_entropy {list(shape)} {leaf.dtype}, a step: {lines[0]}; with inplace_backward {lines[1]}")


def main() -> None:
    """All of it."""
    check_gradients_in_place()
    check_repeats()
    check_other_libraries()
    for shapes in LARGE:
        check_large(shapes)
        torch.cuda.empty_cache()
    print("more than 2^31 elements, gradients in place, CuPy, JAX, 100 repeats: passed")


if __name__ == "__main__":
    main()
