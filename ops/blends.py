"""Blends of two tensors: interpolation, compositing, moving averages."""

from __future__ import annotations

import fusegen as fg

from ._options import floats


@fg.op
def lerp(input: fg.Tensor, end: fg.Tensor, weight: float) -> fg.Tensor:
    """input + weight (end - input); the three broadcast, ``weight`` may be a number.

    From |weight| = 1/2 on it is computed from the other end, end - (1 - weight) (end - input), so that weight 0 gives
    ``input`` and weight 1 gives ``end`` to the last bit. Source: torch.lerp.
    """
    d = floats("lerp", end) - floats("lerp", input)
    return fg.where(fg.abs(weight) < 0.5, input + weight * d, end - (1 - weight) * d)


@fg.op
def alpha_blend(foreground: fg.Tensor, background: fg.Tensor, alpha: float) -> fg.Tensor:
    """``foreground`` over an opaque ``background``: alpha foreground + (1 - alpha) background; the three broadcast.

    Source: Porter and Duff, Compositing Digital Images, SIGGRAPH 1984.
    """
    return lerp(background, foreground, alpha)


@fg.op
def alpha_over(
    foreground: fg.Tensor, foreground_alpha: fg.Tensor, background: fg.Tensor, background_alpha: fg.Tensor
) -> tuple[fg.Tensor, fg.Tensor]:
    """Porter and Duff's "over" for straight (not premultiplied) colours; returns (colour, alpha). All broadcast.

        alpha  = fa + ba (1 - fa)
        colour = (fa foreground + ba (1 - fa) background) / alpha, and 0 where alpha = 0

    Source: Porter and Duff, Compositing Digital Images, SIGGRAPH 1984.
    """
    behind = background_alpha * (1 - foreground_alpha)
    alpha = foreground_alpha + behind
    colour = fg.where(alpha == 0, 0, (foreground_alpha * foreground + behind * background) / alpha)
    return colour, alpha


@fg.op
def ema_update(average: fg.Tensor, value: fg.Tensor, weight: float = 0.001) -> fg.Tensor:
    """average + weight (value - average): an exponential moving average with decay 1 - weight.

    It takes the weight of the new value rather than the decay, because 1 - 0.999 loses three digits in float32. Written
    in place with ``out=average``. Source: Polyak and Juditsky, SIAM J. Control Optim. 30 (4), 1992.
    """
    return average + weight * (value - average)
