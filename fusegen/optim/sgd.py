"""Gradient descent, with momentum."""

from __future__ import annotations

from typing import Any

import torch

from fusegen.optim import rules
from fusegen.optim.stepping import MASTER, Stepping, number, run, unless_zero


class SGD(Stepping, torch.optim.SGD):
    """torch.optim.SGD, all tensors in a few launches.

    Arguments, parameter groups and state dicts are torch's, and state dicts load either way. With
    ``weight_decay * param`` added to ``grad`` (``maximize``: to its negative)::

        momentum_buffer = momentum * momentum_buffer + (1 - dampening) * grad    (grad, at the first step)
        param          -= lr * momentum_buffer    (nesterov: lr * (grad + momentum * momentum_buffer))

    Half parameters are computed in float32 and rounded once a step.

    Args:
        params: tensors, or groups, of float dtypes; on the CPU, on GPUs, or DTensors.
        lr: a number, or a tensor with one element on the parameters' device.
        foreach, fused: which of torch's implementations runs; there is one here, and they are not looked at.
        master_weights: keep float32 copies of half parameters (``master_param`` in the state), and momentum in float32.
        stochastic_rounding: as `Adam`'s.

    Raises:
        DeclarationError: ``differentiable=True``; both master weights and stochastic rounding; sparse gradients.
    """

    moments = ("momentum_buffer",)

    def __init__(
        self, params: Any, lr: Any = 1e-3, momentum: float = 0, dampening: float = 0, weight_decay: Any = 0,
        nesterov: bool = False, *, maximize: bool = False, foreach: bool | None = None, differentiable: bool = False,
        fused: bool | None = None, master_weights: bool = False, stochastic_rounding: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)
        self.settle(master_weights, stochastic_rounding, differentiable)

    def kind(self, group: Any, param: Any) -> Any:
        started = self.state.get(param, {}).get("momentum_buffer") is not None
        return *super().kind(group, param), group["momentum"] != 0 and not started

    def update(
        self, group: dict[str, Any], params: list[Any], grads: list[Any], states: list[dict[str, Any]]
    ) -> None:  # fmt: skip
        device = params[0].device
        lr, weight_decay = number(group["lr"], device), unless_zero(group["weight_decay"], device)
        master, at_random, first = self.kind(group, params[0])
        also: dict[str, Any] = {"nesterov": bool(group["nesterov"]), "maximize": bool(group["maximize"])}
        out, buffers = [params], None
        if group["momentum"] != 0:
            also |= {name: number(group[name], device) for name in ("momentum", "dampening")}
            if first:
                also["first"] = True
                for param, state in zip(params, states, strict=True):
                    state["momentum_buffer"] = torch.empty_like(param, dtype=torch.float32 if master else None)
            buffers = [state["momentum_buffer"] for state in states]
            out.append(buffers)
        if master:
            also["master"] = [state[MASTER] for state in states]
            out.append(also["master"])
        rule = rules.sgd_at_random if at_random else rules.sgd
        run(rule, params, grads, buffers, lr, weight_decay=weight_decay, out=out, **also)
