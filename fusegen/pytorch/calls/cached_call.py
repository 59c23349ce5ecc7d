"""What is remembered of a call: which of its arguments went where, and the plan that ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusegen.declare.op import Declaration
from fusegen.pytorch.replay.reading import FLOATS_VARY, INTEGERS_VARY
from fusegen.run.runner import Run

if TYPE_CHECKING:
    from fusegen.pytorch.autograd.function import Differentiable, Trained


@dataclass(frozen=True)
class Parameters:
    """An op's parameters: names, and which Python numbers are values of a call rather than constants of a plan.

    ``fixed`` is how many numbers the declaration had asked for their values when this was read off it. Where it has
    asked for more since, what was recorded before stays right: in such calls it asked for none of them.
    """

    names: tuple[str, ...]
    flags: tuple[int, ...]
    fixed: int = 0

    @classmethod
    def of(cls, declaration: Declaration) -> Parameters:
        """Where the op looks at its arguments itself (``prepare``), every number is a constant: it may be refused."""
        names, fixed = tuple(declaration.signature.parameters), len(declaration.fixed)
        varies = declaration.is_runtime_number
        flags = tuple(FLOATS_VARY * varies(n, 0.5) + INTEGERS_VARY * varies(n, 1) for n in names)
        return cls(names, (0,) * len(names) if declaration.prepare else flags, fixed)

    def is_outdated(self, declaration: Declaration) -> bool:
        """Whether the declaration has asked for more numbers since."""
        return self.fixed != len(declaration.fixed)

    def varies(self, name: str, value: Any) -> bool:
        """Whether an argument is a number that is a value of the call."""
        if not isinstance(value, (bool, int, float)):
            return False
        return bool(self.flags[self.names.index(name)] & (FLOATS_VARY if isinstance(value, float) else INTEGERS_VARY))


@dataclass(frozen=True)
class CachedCall:
    """A call that was decided on the slow path.

    Args:
        run: the run that it consisted of.
        inputs: for each tensor that the run reads, which of the call's tensors it is.
        numbers: for each scalar by name, which of the call's numbers it is.
        fixed: scalars that are the same for all such calls.
        visible: how many results the caller sees.
        one: they are handed back as one tensor rather than a tuple.
        trained: what the call's gradients need, or None.
        recorder: runs the op so that autograd sees it, where there is something to see.
    """

    run: Run
    inputs: tuple[int, ...]
    numbers: Mapping[str, int]
    fixed: Mapping[str, Any]
    visible: int
    one: bool
    trained: Trained | None
    recorder: Differentiable | None = None
