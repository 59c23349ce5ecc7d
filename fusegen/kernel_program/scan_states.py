"""What scans hold, when kernel programs run without a compiler: in a thread, or in memory.

A state is what the structs of templates/fusegen_scan.cuh hold, in the dtype that the run computes in. Results of a scan
are made of which elements come before which: a thread that puts states together in another order has other results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusegen.core.dtypes import BY_NAME
from fusegen.core.scans import AFFINE, LAST, LOGADDEXP, PLACES, RECURRENCES, SEGMENTS, neutral
from fusegen.kernel_program.memory import require

if TYPE_CHECKING:
    import torch


@dataclass
class ScanStates:
    """The states of a scan, a tensor for each of their fields.

    Attributes:
        combine: what is combined.
        values: the results: of places, the extrema that stand there.
        others: of recurrences, the product of the factors, or whether there is no other beginning; of places, where
            they are; of the last element, whether there is one. None where a state is its value.
    """

    combine: str
    values: torch.Tensor
    others: torch.Tensor | None = None

    @classmethod
    def nothing(cls, combine: str, shape: tuple[int, ...], dtype: Any, device: Any) -> ScanStates:
        """Those that have no element yet."""
        import torch

        start = neutral(PLACES.get(combine, combine), BY_NAME[str(dtype).removeprefix("torch.")])
        values = torch.full(shape, start, dtype=dtype, device=device)
        if combine in PLACES:
            return cls(combine, values, torch.full(shape, -1, device=device))
        if combine in (LAST, *RECURRENCES):
            return cls(combine, values, torch.full(shape, combine != LAST, dtype=dtype, device=device))
        return cls(combine, values)

    def at(self, index: tuple[Any, ...]) -> ScanStates:
        """Some of them."""
        return ScanStates(self.combine, self.values[index], None if self.others is None else self.others[index])

    def put(self, index: tuple[Any, ...], states: ScanStates) -> None:
        """Replace some of them."""
        self.values[index] = states.values
        if self.others is not None and states.others is not None:
            self.others[index] = states.others

    def element(self, args: list[Any]) -> ScanStates:
        """What `add` adds, as states like these: an element of each."""
        import torch

        args = [arg if isinstance(arg, torch.Tensor) else torch.tensor(arg) for arg in args]
        values, others = args[-1], None
        if self.others is not None:
            if self.combine in PLACES:
                values, others = args
            elif self.combine == LAST:
                others = torch.ones_like(self.others)
            else:
                others = args[0].to(self.others.dtype)
            others = others.to(self.others.dtype).expand_as(self.others)
        return ScanStates(self.combine, values.to(self.values.dtype).expand_as(self.values), others)

    def append(self, behind: ScanStates) -> ScanStates:
        """What these hold, and behind that what others do."""
        import torch

        x, y, combine = self.values, behind.values, self.combine
        if self.others is None or behind.others is None:
            return ScanStates(combine, _FOLDS[combine](torch, x, y))
        before, others = self.others, behind.others
        if combine in PLACES:
            wins = (others >= 0) & ((y != y) | (y >= x if combine == "argmax" else y <= x))
            return ScanStates(combine, y.where(wins, x), others.where(wins, before))
        if combine == LAST:
            return ScanStates(combine, y.where(others != 0, x), others.where(others != 0, before))
        if combine == SEGMENTS:
            goes_on = others != 0
            return ScanStates(combine, y + x.where(goes_on, torch.zeros_like(x)), before.where(goes_on, others))
        assert combine == AFFINE
        nothing = (x == 0) & others.isinf()
        return ScanStates(combine, torch.zeros_like(x).where(nothing, others * x) + y, before * others)

    def result(self) -> Any:
        """What they come to."""
        return self.others if self.combine in PLACES else self.values


_FOLDS = {
    "sum": lambda t, x, y: x + y,
    "prod": lambda t, x, y: x * y,
    "max": lambda t, x, y: t.maximum(x, y),
    "min": lambda t, x, y: t.minimum(x, y),
    LOGADDEXP: lambda t, x, y: t.logaddexp(x, y),
}


@dataclass
class ScanBuffer:
    """The states of a scan in memory.

    Attributes:
        written: which of them a thread has left there.
    """

    name: str
    states: ScanStates
    written: torch.Tensor

    @classmethod
    def of(cls, name: str, states: ScanStates) -> ScanBuffer:
        """Room for such states, of which nothing has left one."""
        import torch

        if states.values.is_floating_point():
            states.values.fill_(math.nan)
        return cls(name, states, torch.zeros(len(states.values), dtype=torch.bool, device=states.values.device))

    def read(self, at: torch.Tensor) -> ScanStates:
        """Those at these places."""
        self._inside(at)
        require(self.written[at].all(), "a state is read that nothing has left", self.name)
        return self.states.at((at,))

    def write(self, at: torch.Tensor, states: ScanStates) -> None:
        """Those of some threads, each for the first time."""
        self._inside(at)
        once = not self.written[at].any() and len(at.unique()) == len(at)
        require(once, "a state that is written twice", self.name)
        self.states.put((at,), states)
        self.written[at] = True

    def _inside(self, at: torch.Tensor) -> None:
        outside = at[(at < 0) | (at >= len(self.written))]
        require(not len(outside), "a state outside of memory", f"{self.name}[{outside[:1].tolist()}]")
