"""Which Runner an op takes. What products need is imported by the first op that has some: most have none."""

from __future__ import annotations

from collections.abc import Mapping

from fusegen.core.ir import Op
from fusegen.fuse.cuts import is_cut
from fusegen.run.runner import Runner


def runner_of(
    op: Op, sizes: Mapping[str, int] | None = None,
    like: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None, *, by_torch: bool = True,
) -> Runner:  # fmt: skip
    """What runs ``op``, with products or without."""
    if not is_cut(op):
        return Runner(op, sizes or {}, like or {})
    from fusegen.run.chain import ChainRunner

    return ChainRunner(op, sizes or {}, like or {}, by_torch=by_torch)
