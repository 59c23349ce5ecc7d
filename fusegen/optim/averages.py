"""Averages of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fusegen.core.errors import ShapeError
from fusegen.optim import rules
from fusegen.optim.stepping import run


@torch.no_grad()
def ema_update_(averages: Iterable[Any], parameters: Iterable[Any], decay: Any) -> None:
    """Exponential moving averages of parameters, all of them in a few launches, in place::

        average = average + (1 - decay) * (parameter - average)

    Averages may have another dtype than the parameters: float32 ones of bfloat16 parameters lose nothing.

    Args:
        averages: tensors, written in place.
        parameters: as many, of the same shapes.
        decay: a number, or a tensor with one element.

    Raises:
        ShapeError: there are more of one than of the other, or shapes differ.
    """
    averages, parameters = list(averages), list(parameters)
    if len(averages) != len(parameters):
        raise ShapeError(
            "fusegen.optim.ema_update_", given=f"{len(averages)} averages of {len(parameters)} parameters",
            expected="an average for each parameter",
            fix="make them of the same model: [p.detach().clone() for p in model.parameters()]",
        )  # fmt: skip
    if averages:
        run(rules.ema, averages, parameters, decay, out=(averages,))
