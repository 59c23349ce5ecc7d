"""Equal blocks of intermediates, as a trace has them; none is left when the Op is built (declare/blocks).

Axes are named as the rest of the trace names them: by names of the tracer's, then by those of the Op.
"""

from __future__ import annotations

from fusegen.core.ir import Call, Expr


class Part(Call):
    """Block ``index`` of ``count`` of an expression along the axis ``whole``; ``part`` is the axis of a block, None of
    size one."""

    __slots__ = ("count", "index", "part", "whole")
    whole: str
    part: str | None
    index: int
    count: int

    def __new__(cls, expr: Expr, whole: str, part: str | None, index: int, count: int) -> Part:
        return Expr.__new__(cls, expr, whole, part, index, count)  # type: ignore[return-value]

    def _fill(self, expr: Expr, whole: str, part: str | None, index: int, count: int) -> None:  # type: ignore[override]
        self.whole, self.part, self.index, self.count = whole, part, index, count
        super()._fill("part", (expr,), expr.dtype, None)

    def of(self, args: tuple[Expr, ...]) -> Part:
        return Part(args[0], self.whole, self.part, self.index, self.count)


class Joined(Call):
    """Blocks with the axis ``part``, one behind the other along the axis ``whole``."""

    __slots__ = ("part", "whole")
    whole: str
    part: str | None

    def __new__(cls, blocks: tuple[Expr, ...], whole: str, part: str | None) -> Joined:
        return Expr.__new__(cls, blocks, whole, part)  # type: ignore[return-value]

    def _fill(self, blocks: tuple[Expr, ...], whole: str, part: str | None) -> None:  # type: ignore[override]
        self.whole, self.part = whole, part
        super()._fill("joined", blocks, blocks[0].dtype, None)

    def of(self, args: tuple[Expr, ...]) -> Joined:
        return Joined(args, self.whole, self.part)
