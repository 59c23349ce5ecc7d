"""Whether results may be written where a call says so: memory that two tensors share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fusegen.core.errors import DeclarationError, ShapeError
from fusegen.plan import frameworks

# Remainders to go through for whether tensors overlap. Views of one tensor leave one or two; odd strides could leave as
# many as there are elements.
TRIED = 4096


def check_writable(op: str, outs: Sequence[Any], framework: frameworks.Framework) -> None:
    """A read-only NumPy array stays what it is."""
    if framework.name == "numpy" and not all(out.flags.writeable for out in outs):
        raise DeclarationError(
            f"{op}, out=", given="a read-only array", expected="an array that can be written",
            fix="pass a fresh array",
        )  # fmt: skip


def mark_written(outs: Sequence[Any], framework: frameworks.Framework) -> None:
    """Tell autograd, so that a backward that had saved one of these tensors refuses instead of reading new values."""
    if framework.name == "torch":
        import torch

        torch.autograd.graph.increment_version([out for out in outs if not out.is_inference()])


def check_overlap(op: str, values: Mapping[str, Any], outs: Sequence[Any], framework: frameworks.Framework) -> None:
    """An output may be an argument, element for element. It may not overlap one otherwise: threads run in any order."""
    for i, out in enumerate(outs):
        met = [found for other in outs[:i] if (found := overlap(framework, out, other)) is not False]
        if met:
            raise ShapeError(
                f"{op}, out=", given=f"two outputs {'' if any(met) else 'that may be '}in the same memory",
                expected="memory of its own for each", fix="pass fresh tensors",
            )  # fmt: skip
        for name, value in values.items():
            if not framework.owns(value) or _identical(framework, out, value):
                continue
            found = overlap(framework, out, value)
            if found is not False:
                how = "partly overlaps" if found else "may partly overlap"
                raise ShapeError(
                    f"{op}, out=", given=f"memory that {how} argument {name}",
                    expected="the argument itself (same shape and strides), or memory of its own",
                    fix="pass a fresh tensor",
                )  # fmt: skip


def _identical(framework: frameworks.Framework, one: Any, other: Any) -> bool:
    """Whether each element lies where the other's does. The stride of a dimension of size 1 leads nowhere."""
    a, b = framework.info("out", one), framework.info("out", other)
    return layout_of(a) == layout_of(b) and framework.pointer(one) == framework.pointer(other)


def layout_of(info: frameworks.TensorInfo) -> tuple[Any, ...]:
    """What tensors of one address have in common where each element of one is that element of the other."""
    steps = zip(info.shape, info.strides, strict=True)
    return info.shape, info.dtype.size, tuple(stride for size, stride in steps if size > 1)


def overlap(framework: frameworks.Framework, one: Any, other: Any) -> bool | None:
    """Whether a byte belongs to both tensors; None where that takes too long to find out."""
    (first, last), (start, end) = span(framework, one), span(framework, other)
    if first == last or start == end or first >= end or start >= last:
        return False
    # A byte of one is some steps above its first, a byte of the other some steps below its last. They are the same byte
    # where the steps together lead from that first to that last.
    most: Counter[int] = Counter()
    for value in (one, other):
        info = framework.info("out", value)
        most[1] += info.dtype.size - 1
        for size, stride in zip(info.shape, info.strides, strict=True):
            most[abs(stride) * info.dtype.size] += size - 1
    return _goes_far(end - 1 - first, sorted(most.items(), reverse=True))


def _goes_far(distance: int, steps: Sequence[tuple[int, int]]) -> bool | None:
    """Whether steps, long to short and of each at most so many, add up to a distance; None: there are many to try."""
    left = {distance}
    reach = sum(step * most for step, most in steps)
    for step, most in steps:
        if step == 0:
            continue
        reach -= step * most  # of all shorter ones: what they cannot go, this one has to
        counts = {rest: range(max(0, -((reach - rest) // step)), min(most, rest // step) + 1) for rest in left}
        if sum(map(len, counts.values())) > TRIED:
            return None
        left = {rest - count * step for rest, some in counts.items() for count in some}
    return 0 in left


def span(framework: frameworks.Framework, value: Any) -> tuple[int, int]:
    """First address, and one past the last."""
    start, (low, high) = framework.pointer(value), extent(framework.info("out", value))
    return start + low, start + high


def extent(info: frameworks.TensorInfo) -> tuple[int, int]:
    """The same in bytes from where the tensor's first element is."""
    if 0 in info.shape:
        return 0, 0
    reach = [(size - 1) * stride for size, stride in zip(info.shape, info.strides, strict=True)]
    low = sum(r for r in reach if r < 0) * info.dtype.size
    high = (sum(r for r in reach if r > 0) + 1) * info.dtype.size
    return low, high
