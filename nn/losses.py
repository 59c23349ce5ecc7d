"""The loss of Hugging Face's language models: a function that the model holds, not one of its modules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import fusegen as fg

from ._forward import REFUSALS, autocast_decides, taken_over, tell
from .known import NotRecognized, random

Loss = Callable[..., torch.Tensor]


@fg.op
def wide_cross_entropy(
    logits: fg.Tensor, target: fg.Tensor, *, ignore_index: fg.Scalar = -100, reduction: str = "mean"
) -> fg.Tensor:
    """cross_entropy of the logits in float32, for logits [N, C] of any float dtype; no float32 copy of them is made."""
    return fg.ops.cross_entropy(fg.cast(logits, fg.float32), target, ignore_index=ignore_index, reduction=reduction)


class CausalLoss:
    """What ``ForCausalLMLoss`` computes: the cross entropy of each word from those before it, in float32.

    Args:
        own: the function that it stands for, which computes what the op does not take.
    """

    def __init__(self, own: Loss) -> None:
        self.own = own
        self.__name__ = getattr(own, "__name__", "loss")

    def __call__(
        self, logits: torch.Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None,
        ignore_index: int = -100, shift_labels: Any = None, **others: Any,
    ) -> torch.Tensor:  # fmt: skip
        arguments = (logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels)
        if not others and not taken_over(logits) and not autocast_decides(logits):
            try:
                return _causal(*arguments)
            except REFUSALS as refusal:
                tell(self.__name__, str(refusal))
        return self.own(*arguments, **others)


def _causal(
    logits: torch.Tensor, labels: Any, classes: int, count: Any, ignore_index: int, shifted: Any,
    cross_entropy: Loss = wide_cross_entropy,
) -> torch.Tensor:  # fmt: skip
    if shifted is None:
        shifted = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    flat = shifted.reshape(-1).to(logits.device)
    reduction = "mean" if count is None else "sum"
    loss = cross_entropy(logits.reshape(-1, classes), flat, ignore_index=ignore_index, reduction=reduction)
    if count is None:
        return loss
    return loss / (count.to(loss.device) if isinstance(count, torch.Tensor) else count)


def _asks_for_loss(kind: type) -> bool:
    """Whether a model's forward calls its ``loss_function``, which all models of transformers have."""
    forward = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    return "loss_function" in names or bool(re.search("CausalLM|LMHead", kind.__name__))


def fused_loss(module: Any) -> CausalLoss | None:
    """What may take the place of a model's ``loss_function``; None where it has none that is known.

    Raises:
        NotRecognized: it has the name of one that is known, and computes something else.
    """
    kind = type(module)
    if not isinstance(getattr(kind, "loss_function", None), property) or not _asks_for_loss(kind):
        return None
    own = module.loss_function
    if getattr(own, "__name__", "") != "ForCausalLMLoss" or isinstance(own, CausalLoss):
        return None
    words = torch.tensor([[1, 2, -100, 6, 3], [0, 5, 4, -100, 2]], device="cpu")
    for dtype in (torch.float32, torch.bfloat16):
        logits = random(2, 5, 7, dtype=dtype)
        for count in (None, 9):
            expected = _causal(logits.float(), words, 7, count, -100, None, F.cross_entropy)
            if not torch.allclose(own(logits, words, 7, num_items_in_batch=count), expected, rtol=1e-5):
                raise NotRecognized("on random numbers it differs from the shifted cross entropy")
    return CausalLoss(own)
