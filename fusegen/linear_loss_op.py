"""Ops that are a linear layer and a loss of its rows: with torch's tensors they take a chunk of rows at a time."""

from __future__ import annotations

from typing import Any, ClassVar

from fusegen import intercept
from fusegen.fused_op import FusedOp, torch_is_loaded
from fusegen.plan import entry


class LinearLossOp(FusedOp):
    """An op whose declaration is ``total(rows(input @ linear_weight.mT, linear_bias, target, ...), ...)``.

    The declaration takes input [..., K], linear_weight [N, K], linear_bias [N] or None, target (a part for each row of
    the input), reduction, and what else ``rows`` takes. It runs as it stands, with the logits of all rows in memory,
    where it is differentiated twice, forwards or under a transform, inside other ops, in what torch traces (but
    torch.compile breaks its graph here, where it may), and on other libraries' arrays. Else see linear_loss.

    Attributes:
        rows: logits [M, N], and arguments of the declaration by name, to a loss for each row.
        total: loss, target (None if it holds probabilities), weight, ignore_index, the number of classes, reduction
            and the result's dtype to the result.
        chunk: a constant that says how many rows to take at a time, if there is one; None in it: as many as suit.
    """

    rows: ClassVar[Any]
    total: ClassVar[Any]
    chunk: ClassVar[str | None] = None
    runs = """torch's tensors go a chunk of rows at a time (linear_loss): its logits, its losses and their gradient
in one kernel and the same memory, its part of the other gradients by products. All logits never exist at
once. What follows has them in memory: so it runs where a gradient is differentiated again, in forward mode
and under transforms, and on NumPy's and CuPy's arrays."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if torch_is_loaded():
            import torch

            if torch.compiler.is_dynamo_compiling():
                from fusegen.pytorch.library.dynamo import one_graph, outside

                if not one_graph(self.name):
                    return outside(self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: Any = Ellipsis) -> Any:
        if "out" in kwargs:
            return super().call(args, kwargs, autocast)
        values = self.declaration.bind(args, kwargs)
        framework = entry.framework_of(values["input"])
        if framework is None or framework.name != "torch" or intercept.torch_is_unknown():
            return super().call(args, kwargs, autocast)
        from fusegen import linear_loss

        if not linear_loss.is_plain(values):
            return super().call(args, kwargs, autocast)
        specs, _ = self._specs(values, framework)
        asked = framework.autocast(self.declaration, specs, values) if autocast is Ellipsis else autocast
        if self.chunk is not None:
            specs[self.chunk] = None  # what is traced does not depend on it
        if specs["input"].dtype.size == 8:  # which autocast leaves alone
            asked = None
        return linear_loss.run(self, self.declaration.trace(specs, asked), values, asked, autocast is Ellipsis)

    def _remember(self, *_: Any) -> None:
        """The call paths launch one program, whose logits are whole."""
