"""A ``torch.autograd.Function`` in a declaration: its forward would be traced, and its backward be lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from types import CodeType, FrameType

from fusegen.core.errors import DeclarationError

# Where torch.autograd.Function is.
_FUNCTIONS = os.path.join("torch", "autograd", "function.py")


def check_no_autograd_function(where: str, began: Collection[CodeType]) -> None:
    """Without gradients because a ``torch.autograd.Function`` runs its forward.

    Args:
        began: code objects of the trace itself: what is on the stack behind them is its caller's.

    Raises:
        DeclarationError: its backward would be lost.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in began:
        if frame.f_code.co_name == "apply" and frame.f_code.co_filename.endswith(_FUNCTIONS):
            raise DeclarationError(
                where, given="a torch.autograd.Function in a declaration", expected="expressions, and ops",
                fix="make an op of its forward, and declare its backward: @my_op.gradient",
            )  # fmt: skip
        frame = frame.f_back
