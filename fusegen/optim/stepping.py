"""What all optimizers do around their rule: which parameters step, what lies where, master weights, state dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusegen.core.errors import DeclarationError, DeviceError
from fusegen.foreach_op import foreach
from fusegen.fused_op import FusedOp

MASTER = "master_param"
_HALVES = (torch.float16, torch.bfloat16)


class Stepping(torch.optim.Optimizer):
    """An optimizer whose group steps by one op (`update`)."""

    # State of a parameter's own size, which with master weights is float32.
    moments: tuple[str, ...] = ()

    def settle(self, master_weights: bool, stochastic_rounding: bool, differentiable: bool = False) -> None:
        """Note fusegen's own options; called at the end of ``__init__``.

        Raises:
            DeclarationError: a step is to be differentiated; what is rounded at random has master weights.
        """
        if differentiable:
            raise DeclarationError(
                f"fusegen.optim.{type(self).__name__}", given="differentiable=True",
                expected="steps that no gradient flows through",
                fix="use torch.optim's, whose steps autograd can record",
            )  # fmt: skip
        if master_weights and stochastic_rounding:
            raise DeclarationError(
                f"fusegen.optim.{type(self).__name__}", given="master_weights=True, stochastic_rounding=True",
                expected="one of them: a parameter with a float32 copy loses nothing when it is rounded",
                fix="leave stochastic_rounding away",
            )  # fmt: skip
        own = {"master_weights": bool(master_weights), "stochastic_rounding": bool(stochastic_rounding)}
        self.defaults |= own
        for group in self.param_groups:
            group |= {name: value for name, value in own.items() if name not in group}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # of torch's optimizer
            for name in ("master_weights", "stochastic_rounding"):
                group.setdefault(name, self.defaults.get(name, False))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for all parameters that have a gradient.

        Args:
            closure: computes the loss again, and its gradients.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_kind: dict[Any, list[Any]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    self._check(param)
                    by_kind.setdefault(self.kind(group, param), []).append(param)
            for params in by_kind.values():
                states = [self.begun(group, param) for param in params]
                self.update(group, params, [param.grad for param in params], states)
        return loss

    def _check(self, param: Any) -> None:
        where, there = getattr(param, "placements", None), getattr(param.grad, "placements", None)
        if where != there:
            raise DeviceError(
                f"fusegen.optim.{type(self).__name__}", given=f"a gradient placed as {there} of a parameter as {where}",
                expected="a gradient placed as its parameter",
                fix="redistribute it: param.grad = param.grad.redistribute(placements=param.placements)",
            )  # fmt: skip
        if param.grad.is_sparse:
            raise DeclarationError(
                f"fusegen.optim.{type(self).__name__}", given="a sparse gradient", expected="dense gradients",
                fix="use torch.optim.SparseAdam for it, or an embedding with sparse=False",
            )  # fmt: skip

    def kind(self, group: Mapping[str, Any], param: Any) -> Any:
        """What parameters have in common that step by one form of the op."""
        return has_master(group, param), rounds_at_random(group, param)

    def begun(self, group: Mapping[str, Any], param: Any) -> dict[str, Any]:
        """The state of a parameter, made at its first step."""
        state: dict[str, Any] = self.state[param]
        if has_master(group, param) and MASTER not in state:
            state[MASTER] = param.detach().float()
        return state

    def update(
        self, group: dict[str, Any], params: list[Any], grads: list[Any], states: list[dict[str, Any]]
    ) -> None:  # fmt: skip
        """Step parameters of a group, all of one kind."""
        raise NotImplementedError

    # -- state dicts ----------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, of this optimizer or of torch's of its name.

        torch rounds what it loads to the parameters' dtype. What belongs to master weights stays float32.
        """
        super().load_state_dict(state_dict)
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for number, param in zip(saved["params"], group["params"], strict=True):
                given, own = state_dict["state"].get(number), self.state.get(param)
                if given is None or own is None or not has_master(group, param):
                    continue
                for name in (MASTER, *self.moments):
                    if isinstance(given.get(name), torch.Tensor):
                        own[name] = given[name].to(device=param.device, dtype=torch.float32).clone()


def count_steps(state: dict[str, Any], param: Any) -> None:
    """Have a count of steps on the parameter's device, where torch may have counted on the CPU."""
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
    elif state["step"].device != param.device:
        state["step"] = state["step"].to(param.device)


def has_master(group: Mapping[str, Any], param: Any) -> bool:
    """Whether a float32 copy of a parameter is kept: of halves only."""
    return bool(group.get("master_weights")) and param.dtype in _HALVES


def rounds_at_random(group: Mapping[str, Any], param: Any) -> bool:
    """Whether a parameter and its moments are rounded at random: halves without a float32 copy."""
    return bool(group.get("stochastic_rounding")) and param.dtype in _HALVES and not has_master(group, param)


def run(op: FusedOp[..., Any], *args: Any, out: Sequence[list[Any]], **kwargs: Any) -> None:
    """``op`` for all tensors of lists, on what this process has of DTensors."""
    named = {name: local(value) for name, value in kwargs.items()}
    foreach(op)(*(local(value) for value in args), out=tuple(local(tensors) for tensors in out), **named)


def local(tensors: Any) -> Any:
    """What this process has of a list of DTensors; all else as it is.

    Raises:
        DeviceError: a part of a sum, which no rule may be applied to.
    """
    if type(tensors) is not list or not any(hasattr(tensor, "_local_tensor") for tensor in tensors):
        return tensors
    for tensor in tensors:
        if any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
            raise DeviceError(
                "fusegen.optim", given="a DTensor with a Partial placement", expected="sharded or replicated tensors",
                fix="add it up first: grad.redistribute(placements=param.placements)",
            )  # fmt: skip
    return [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]


def number(value: Any, device: Any) -> Any:
    """An option as an op takes it: a float, or a tensor without dimensions where the parameters are.

    A tensor on the CPU is read; one on a GPU is not, since that would wait for it.
    """
    if not isinstance(value, torch.Tensor):
        return float(value)
    if value.device.type == "cpu" and device.type != "cpu":
        return value.item()
    return value.reshape(())


def unless_zero(value: Any, device: Any) -> Any:
    """The same, or None for a number that is zero: what it multiplies is then left out."""
    return None if not isinstance(value, torch.Tensor) and value == 0 else number(value, device)
