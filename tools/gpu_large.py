"""What only a GPU's memory holds: results of more than 2^31 elements, gradients in place, other libraries' tensors.

Part of tools/gpu_check.sh. Every check compares with torch.
"""

from __future__ import annotations

from typing import Any

import torch

import fusegen as fg


@fg.op
def blend(x: Any, y: Any, w: Any) -> Any:
    """Interpolation, exact at both ends."""
    d = y - x
    return fg.where(fg.abs(w) < 0.5, x + w * d, y - (1 - w) * d)


def check_large(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Value and gradients of a blend in bfloat16 whose result has more than 2^31 elements."""
    torch.manual_seed(0)
    inputs = [torch.rand(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for shape in shapes]
    result = blend(*inputs)
    assert result.numel() > 2**31
    for part in (slice(0, 1000), slice(-1000, None)):
        pieces = [t.detach().expand(result.shape).reshape(-1)[part] if t.numel() < 100 else t.detach().view(-1)[part]
                  for t in inputs]  # fmt: skip
        expected = torch.lerp(*(p.float() for p in pieces))
        torch.testing.assert_close(result.view(-1)[part].float(), expected, rtol=1e-2, atol=1e-2)
    gradients = torch.autograd.grad(result, inputs, torch.ones_like(result))
    for gradient, tensor in zip(gradients, inputs, strict=True):
        assert gradient.shape == tensor.shape and bool(torch.isfinite(gradient.view(-1)[-1000:]).all())
    x, y, w = (t.detach() for t in inputs)
    if w.numel() > 2**31:  # the sum of w and of 1 - w, to the precision of bfloat16
        total = w.double().sum() if w.numel() < 2**33 else w.float().sum()
        torch.testing.assert_close(gradients[1].double().view(()), total, rtol=1e-2, atol=0)
        last = gradients[2].view(-1)[-1000:]
        torch.testing.assert_close(last, (y - x).expand(1000).to(last.dtype), rtol=2e-2, atol=2e-2)


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
    check_large(((1,), (1,), (2281701379,)))
    check_large(((1, 3, 3), (253522376, 3, 3), (1, 3, 3)))
    print("more than 2^31 elements, gradients in place, CuPy, JAX, 100 repeats: passed")


if __name__ == "__main__":
    main()
