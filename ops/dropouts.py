"""Dropout, with torch's names, arguments and defaults, its backward drawing the same numbers again.

Each call has a seed from torch's generator of the tensor's device, or ``seed=``. Numbers are not torch's own: its seed
drops other elements there. What is dropped has no influence, NaN and infinity neither (torch multiplies them by 0).
"""

from __future__ import annotations

import fusegen as fg

from ._options import RandomLibraryOp, floats, limited

PROBABILITY = "a probability, from 0 to 1", lambda p, **_: 0 <= p <= 1


@limited(kind=RandomLibraryOp, p=PROBABILITY)
def dropout(input: fg.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> fg.Tensor:
    """x / (1 - p) where a random number is at least p, else 0. Source: torch.nn.functional.dropout."""
    return fg.dropout(floats("dropout", input), p, training)


@limited(kind=RandomLibraryOp, p=PROBABILITY)
def feature_dropout(input: fg.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> fg.Tensor:
    """dropout of whole channels: one number for each of the first two dimensions.

    Source: torch.nn.functional.dropout1d, dropout2d and dropout3d.
    """
    return fg.feature_dropout(floats("feature_dropout", input), p, training)


@limited(kind=RandomLibraryOp, p=PROBABILITY)
def alpha_dropout(input: fg.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> fg.Tensor:
    """a where(kept, x, m) + b, with mean 0 and variance 1 behind a SELU; m is what a SELU tends to at minus infinity.

    a = 1 / sqrt((1 - p) (1 + p m^2)), b = -a p m. Source: torch.nn.functional.alpha_dropout.
    """
    return fg.alpha_dropout(floats("alpha_dropout", input), p, training)
