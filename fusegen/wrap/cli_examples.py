"""Representative arguments of the library's ops, for the command line and for the goldens in generated/.

An op without an entry gets one shape for all its tensors. 3072 divides by the parts of every packed op and by every
vector width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType

ROWS, COLUMNS = 512, 3072
IMAGES = (8, 3, 256, 256)
MASKS = (8, 1, 256, 256)


@dataclass(frozen=True)
class Example:
    """Arguments of one op: shapes and other dtypes of tensors by parameter, constants and numbers.

    ``positive``: random arguments lie between 0 and 1, where the op is at home (divided by, logarithms taken of).
    """

    shape: tuple[int, ...] = (ROWS, COLUMNS)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, DType] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positive: bool = False


_ROW = (ROWS, COLUMNS)

EXAMPLES: dict[str, Example] = {
    "alpha_blend": Example(IMAGES, {"foreground": IMAGES, "background": IMAGES, "alpha": MASKS}),
    "alpha_over": Example(IMAGES, {"foreground_alpha": MASKS, "background_alpha": MASKS}, positive=True),
    "addcdiv": Example(positive=True),
    "clamp": Example(arguments={"min": -1.0, "max": 1.0}),
    "gaussian_nll_loss": Example(shapes={"var": _ROW}, positive=True),
    "gru_cell": Example(shapes={"hidden": (ROWS, COLUMNS // 3)}),
    "lerp": Example(shapes={"weight": _ROW}),
    "lstm_cell": Example(shapes={"cell": (ROWS, COLUMNS // 4)}),
    "masked_fill": Example(dtypes={"mask": dtypes.bool_}, arguments={"value": 0.0}),
    "prelu": Example(shapes={"weight": (COLUMNS,)}),
    "threshold": Example(arguments={"threshold": 0.1, "value": 20.0}),
    "where": Example(shapes={"input": _ROW, "other": _ROW}, dtypes={"condition": dtypes.bool_}),
}


def example_of(name: str) -> Example:
    """The example of the library's op called ``name``."""
    if name in EXAMPLES:
        return EXAMPLES[name]
    if name.startswith(("bias_", "residual_bias_")):
        numbers = {"threshold": 0.1, "value": 20.0} if name.endswith("threshold") else {}
        return Example(shapes={"bias": (COLUMNS,)}, arguments=numbers)
    return Example()
