"""Adafactor."""

from __future__ import annotations

from typing import Any

import torch

from fusegen.core.errors import DeclarationError
from fusegen.optim import rules
from fusegen.optim.stepping import (
    MASTER,
    Stepping,
    count_steps,
    has_master,
    number,
    rounds_at_random,
    run,
    unless_zero,
)


class Adafactor(Stepping, torch.optim.Adafactor):
    """torch.optim.Adafactor, a few launches for each tensor.

    Of a gradient with two dimensions or more the average of squares is kept for rows and for columns alone. Arguments,
    parameter groups and state dicts are torch's, and state dicts load either way. With ``rms(x) = sqrt(mean(x^2))``
    and ``decay = step^beta2_decay``::

        row_var += decay * (mean(grad^2, -1) - row_var)
        col_var += decay * (mean(grad^2, -2) - col_var)
        update   = grad / max(sqrt(row_var * col_var / max(mean(row_var, -2), eps1)), eps1)
        param   -= lr * weight_decay * param
        param   -= max(eps2, rms(param)) * min(lr, 1 / sqrt(step)) / max(1, rms(update) / d) * update

    Here ``rms(param)`` is that before the decay. Vectors and numbers keep the whole average, ``variance``. Half
    parameters are computed in float32 and rounded once a step, where torch rounds after each operation; steps are
    counted on the parameters' device, and nothing waits for it.

    Source: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018.

    Args:
        params: tensors, or groups, of float dtypes; on the CPU, on GPUs, or DTensors that are replicated.
        lr: a number, or a tensor with one element on the parameters' device.
        eps: ``eps1`` and ``eps2``; None is the spacing of the parameter's dtype at one.
        foreach: as torch's; it is not looked at.
        master_weights: keep float32 copies of half parameters (``master_param`` in the state), and averages in float32.
        stochastic_rounding: as `Adam`'s, of parameters; averages are kept in float32.

    Raises:
        ValueError: numbers that torch refuses.
        DeclarationError: both master weights and stochastic rounding; sparse gradients; DTensors that are sharded,
            since the averages are of whole rows and columns.
    """

    moments = ("row_var", "col_var", "variance")

    def __init__(
        self, params: Any, lr: Any = 1e-2, beta2_decay: float = -0.8, eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0, weight_decay: float = 0.0, *, foreach: bool | None = None, maximize: bool = False,
        master_weights: bool = False, stochastic_rounding: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, beta2_decay, eps, d, weight_decay, maximize=maximize)
        self.settle(master_weights, stochastic_rounding)

    def _check(self, param: Any) -> None:
        super()._check(param)
        if any(placement.is_shard() for placement in getattr(param, "placements", ())):
            raise DeclarationError(
                "fusegen.optim.Adafactor", given=f"a parameter placed as {param.placements}",
                expected="plain or replicated parameters: averages are of whole rows and columns",
                fix="use fg.optim.AdamW or Lion for sharded parameters",
            )  # fmt: skip

    def kind(self, group: Any, param: Any) -> Any:
        return *super().kind(group, param), param.dim() > 1, param.dtype

    def begun(self, group: Any, param: Any) -> dict[str, Any]:
        state = super().begun(group, param)
        if "step" not in state:
            is_float = has_master(group, param) or rounds_at_random(group, param)
            like = param.detach().float() if is_float else param.detach()
            if param.dim() > 1:
                state["row_var"] = torch.zeros_like(like[..., :1])
                state["col_var"] = torch.zeros_like(like[..., :1, :])
            else:
                state["variance"] = torch.zeros_like(like, memory_format=torch.preserve_format)
        count_steps(state, param)
        return state

    def update(
        self, group: dict[str, Any], params: list[Any], grads: list[Any], states: list[dict[str, Any]]
    ) -> None:  # fmt: skip
        first = params[0]
        lr, weight_decay = number(group["lr"], first.device), unless_zero(group["weight_decay"], first.device)
        eps1, eps2 = group["eps"]
        eps1 = torch.finfo(first.dtype).eps if eps1 is None else float(eps1)
        names = [name for name in self.moments if name in states[0]]
        averages: list[Any] = [[state[name] for state in states] for name in names]
        rows, columns = averages if len(averages) > 1 else (averages[0], None)
        steps = [state["step"] for state in states]
        run(
            rules.adafactor_averages, grads, rows, columns, steps, float(group["beta2_decay"]),
            out=(*averages, steps),
        )  # fmt: skip
        also = {"master": [state[MASTER] for state in states]} if has_master(group, first) else {}
        rule = rules.adafactor_at_random if rounds_at_random(group, first) else rules.adafactor
        run(
            rule, params, grads, rows, columns, steps, lr, float(group["d"]), eps1, float(eps2), weight_decay,
            maximize=bool(group["maximize"]), out=(params, *also.values()), **also,
        )  # fmt: skip
