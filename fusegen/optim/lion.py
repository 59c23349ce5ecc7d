"""Lion."""

from __future__ import annotations

from typing import Any

import torch

from fusegen.core.errors import DeclarationError
from fusegen.optim import rules
from fusegen.optim.stepping import MASTER, Stepping, has_master, number, rounds_at_random, run, unless_zero


class Lion(Stepping):
    """Lion (evolved sign momentum), all tensors in a few launches::

        param  -= lr * (sign(beta1 * exp_avg + (1 - beta1) * grad) + weight_decay * param)
        exp_avg = beta2 * exp_avg + (1 - beta2) * grad

    Half parameters are computed in float32 and rounded once a step. The state is ``exp_avg``.

    Source: Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, algorithm 2.

    Args:
        params: tensors, or groups, of float dtypes; on the CPU, on GPUs, or DTensors.
        lr: a number, or a tensor with one element on the parameters' device.
        betas: for the update, and for the average that is kept.
        maximize: climb instead.
        master_weights: keep float32 copies of half parameters (``master_param`` in the state), and a float32 moment.
        stochastic_rounding: as `Adam`'s.

    Raises:
        DeclarationError: a negative ``lr`` or ``weight_decay``, betas beyond 0 and 1; both master weights and
            stochastic rounding; sparse gradients.
    """

    moments = ("exp_avg",)

    def __init__(
        self, params: Any, lr: Any = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0, *,
        maximize: bool = False, master_weights: bool = False, stochastic_rounding: bool = False,
    ) -> None:  # fmt: skip
        wrong = [
            f"{name}={value}"
            for name, value, right in (
                ("lr", lr, isinstance(lr, torch.Tensor) or lr >= 0),
                ("betas", betas, all(0 <= beta < 1 for beta in betas)),
                ("weight_decay", weight_decay, weight_decay >= 0),
            )
            if not right
        ]
        if wrong:
            raise DeclarationError(
                "fusegen.optim.Lion", given=", ".join(wrong),
                expected="lr and weight_decay of at least 0, betas of at least 0 and below 1",
                fix="maximize=True climbs",
            )  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})
        self.settle(master_weights, stochastic_rounding)

    def begun(self, group: Any, param: Any) -> dict[str, Any]:
        state = super().begun(group, param)
        if "exp_avg" not in state:
            dtype = torch.float32 if has_master(group, param) else None
            state["exp_avg"] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
        return state

    def update(
        self, group: dict[str, Any], params: list[Any], grads: list[Any], states: list[dict[str, Any]]
    ) -> None:  # fmt: skip
        device = params[0].device
        lr, (beta1, beta2) = number(group["lr"], device), (number(beta, device) for beta in group["betas"])
        weight_decay = unless_zero(group["weight_decay"], device)
        averages = [state["exp_avg"] for state in states]
        also = {"master": [state[MASTER] for state in states]} if has_master(group, params[0]) else {}
        rule = rules.lion_at_random if rounds_at_random(group, params[0]) else rules.lion
        run(
            rule, params, grads, averages, lr, beta1, beta2, weight_decay,
            maximize=bool(group["maximize"]), out=(params, averages, *also.values()), **also,
        )  # fmt: skip
