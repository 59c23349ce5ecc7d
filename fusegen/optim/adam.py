"""Adam and AdamW."""

from __future__ import annotations

from typing import Any

import torch

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


class _Adam(Stepping):
    """The step of both: they differ in ``decoupled_weight_decay``."""

    moments = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def begun(self, group: Any, param: Any) -> dict[str, Any]:
        state = super().begun(group, param)
        count_steps(state, param)
        if "exp_avg" not in state:
            dtype = torch.float32 if has_master(group, param) else None
            for name in self.moments[: 3 if group["amsgrad"] else 2]:
                state[name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
        return state

    def update(
        self, group: dict[str, Any], params: list[Any], grads: list[Any], states: list[dict[str, Any]]
    ) -> None:  # fmt: skip
        device = params[0].device
        lr, (beta1, beta2) = number(group["lr"], device), (number(beta, device) for beta in group["betas"])
        weight_decay = unless_zero(group["weight_decay"], device)
        steps, firsts, seconds = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
        sizes, roots = self._corrections(params)
        run(rules.adam_count, steps, lr, beta1, beta2, out=(steps, sizes, roots))
        also: dict[str, list[Any]] = {}
        if group["amsgrad"]:
            also["max_exp_avg_sq"] = [state["max_exp_avg_sq"] for state in states]
        if has_master(group, params[0]):
            also["master"] = [state[MASTER] for state in states]
        rule = rules.adam_at_random if rounds_at_random(group, params[0]) else rules.adam
        run(
            rule, params, grads, firsts, seconds, sizes, roots, lr, beta1, beta2, float(group["eps"]),
            weight_decay, decoupled=bool(group["decoupled_weight_decay"]), maximize=bool(group["maximize"]),
            out=(params, firsts, seconds, *also.values()), **also,
        )  # fmt: skip

    def _corrections(self, params: list[Any]) -> tuple[list[Any], list[Any]]:
        """Memory for what `rules.adam_count` finds: nothing of it lasts longer than a step, but to make 600 tensors
        takes longer than the step of a small model."""
        made: dict[Any, list[tuple[Any, Any]]] = {}
        if not torch.compiler.is_compiling():  # what is compiled has memory of its own for it
            made = self.__dict__.setdefault("_made_corrections", made)
        taken: dict[Any, int] = {}
        found = []
        for device in (param.device for param in params):
            own, place = made.setdefault(device, []), taken.get(device, 0)
            if place == len(own):
                size, root = torch.empty(2, dtype=torch.float64, device=device).unbind(0)
                own.append((size, root))
            found.append(own[place])
            taken[device] = place + 1
        return [size for size, _ in found], [root for _, root in found]


class Adam(_Adam, torch.optim.Adam):
    """torch.optim.Adam, all tensors in a few launches.

    Arguments, parameter groups and state dicts are torch's, and state dicts load either way. With ``grad`` as it is
    (``maximize``: its negative) and, for ``weight_decay``, ``weight_decay * param`` added to it (with
    ``decoupled_weight_decay`` taken off the parameter instead, as AdamW does)::

        exp_avg    = beta1 * exp_avg + (1 - beta1) * grad
        exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2
        param     -= lr / (1 - beta1^step) * exp_avg / (sqrt(exp_avg_sq / (1 - beta2^step)) + eps)

    ``amsgrad`` takes the largest ``exp_avg_sq`` so far. Half parameters are computed in float32 and rounded once a
    step, as torch's ``fused=True`` does; torch's other implementations round after each operation.

    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015.

    Args:
        params: tensors, or groups, of float dtypes; on the CPU, on GPUs, or DTensors.
        lr: a number, or a tensor with one element on the parameters' device: a CUDA graph then takes new values.
        foreach, fused: which of torch's implementations runs; there is one here, and they are not looked at.
        capturable: steps can always be captured; ``step`` is counted on the parameters' device.
        master_weights: keep float32 copies of half parameters (``master_param`` in the state), and moments in float32.
        stochastic_rounding: half parameters and moments become either of the two numbers beside what was computed, the
            nearer one more often, so that small steps add up on average. The numbers are drawn from torch's generator.

    Raises:
        DeclarationError: ``differentiable=True``; both master weights and stochastic rounding; sparse gradients.
    """

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: tuple[Any, Any] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False, master_weights: bool = False, stochastic_rounding: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, capturable=capturable,
            decoupled_weight_decay=decoupled_weight_decay,
        )  # fmt: skip
        self.settle(master_weights, stochastic_rounding, differentiable)


class AdamW(_Adam, torch.optim.AdamW):
    """torch.optim.AdamW, all tensors in a few launches: `Adam` with the weight decay apart from the gradient,
    ``param *= 1 - lr * weight_decay``.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019. Arguments as `Adam`'s.
    """

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: tuple[Any, Any] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False, foreach: bool | None = None,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
        master_weights: bool = False, stochastic_rounding: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, capturable=capturable)
        self.settle(master_weights, stochastic_rounding, differentiable)
