"""Normalizations of channels, which lie along dimension 1: batch, instance and group norm, as torch's.

``weight``, ``bias`` and running statistics are of size C for an input [N, C, ...], and may be of a wider dtype than the
input, whose dtype the result has. Statistics are those of ops/norms.py.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from ._options import LibraryOp, floats, limited
from ._shapes import is_symbolic, product, same_sizes, sizes, wrong_shape
from .norms import scaled, standardized

NOT_NEGATIVE = ("a number that is at least 0", lambda eps, **_: eps >= 0)


def along(tensor: Any, x: fg.Tensor) -> Any:
    """``tensor``, whose last dimension is the channels of ``x``, as it broadcasts with x; None stays None."""
    return None if tensor is None else fg.expand_dims(tensor, tuple(range(2 - x.ndim, 0)))


def _check_channels(op: str, values: dict[str, Any], nothing: bool = False) -> tuple[int, ...]:
    """The input's shape, where what belongs to channels is of their number; ``nothing``: [0] will do, as [0, 0]."""
    shape: tuple[int, ...] = sizes(values["input"])
    if nothing and shape == (0,):
        shape = (0, 0)
    if len(shape) < 2:
        raise wrong_shape(op, "input", shape, "at least 2 dimensions: [N, C, ...]", "add the missing dimension")
    for name in ("weight", "bias", "norm_bias", "running_mean", "running_var"):
        same_sizes(op, name, values.get(name), (shape[1],), "one number a channel")
    same_sizes(op, "residual", values.get("residual"), sizes(values["input"]), "the input's")
    return shape


def _check_count(op: str, shape: tuple[int, ...], count: int) -> None:
    """Statistics are taken of more than one value."""
    if count == 1:
        raise wrong_shape(
            op, "input", shape, "more than one value to take the variance of (as torch)",
            "pass more elements, or for batch_norm running statistics with training=False",
        )  # fmt: skip


# -- batch and instance norm -----------------------------------------------------------------------------------------


class RunningOp(LibraryOp):
    """An op that returns its results (two with ``return_sum``, else one), and with running statistics their new values,
    which are then written into them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        count = 2 if kwargs.get("return_sum") else 1
        if not isinstance(result, tuple) or len(result) == count:
            return result
        shown, updated = result[:count], result[count:]
        values = self.declaration.signature.bind(*args, **kwargs).arguments
        empty = 0 in tuple(shown[0].shape)  # statistics of nothing move nothing, as torch
        for name, value in () if empty else zip(("running_mean", "running_var"), updated, strict=True):
            running = values[name]
            if hasattr(running, "copy_"):
                running.copy_(value.detach())
            else:
                running[...] = value
        return shown if count > 1 else shown[0]


def _check_running(op: str, values: dict[str, Any], from_input: bool) -> None:
    """Both running statistics or none; and where they change, memory to write into."""
    given = [values[name] for name in ("running_mean", "running_var") if values[name] is not None]
    symbolic = is_symbolic(values["input"])
    if len(given) == 1 or not (given or from_input):
        expected, fix = "running_mean and running_var, or None and None to use the input's", "pass both, or neither"
    elif given and from_input and symbolic:
        expected = "None and None inside an op's declaration: there is no memory yet that could be updated"
        fix = "return the statistics from the op, and update them outside"
    elif given and from_input and not all(hasattr(t, "copy_") or hasattr(t, "__setitem__") for t in given):
        expected, fix = "tensors that can be updated in place", "pass None and None, and update them yourself"
    else:
        return
    kinds = ", ".join(f"{name}: {type(values[name]).__name__}" for name in ("running_mean", "running_var"))
    raise fg.DeclarationError(f"{op}, running statistics", given=kinds, expected=expected, fix=fix)


def _prepare_batch_norm(op: str, **values: Any) -> dict[str, Any]:
    _check_running(op, values, values["training"])
    if sizes(values["input"]) is not None:
        shape = _check_channels(op, values, nothing=True)  # as torch's
        if values["training"]:
            _check_count(op, shape, shape[0] * product(shape[2:]))
    return {}


def _prepare_instance_norm(op: str, **values: Any) -> dict[str, Any]:
    _check_running(op, values, values["use_input_stats"])
    if sizes(values["input"]) is not None:
        shape = _check_channels(op, values)
        if values["use_input_stats"]:
            _check_count(op, shape, product(shape[2:]))
    return {}


def _by_running(x: fg.Tensor, running_mean: Any, running_var: Any, eps: float) -> Any:
    return (x - along(running_mean, x)) * fg.rsqrt(along(running_var, x) + eps)


def _moved(running: Any, value: fg.Tensor, momentum: float) -> fg.Tensor:
    return fg.cast(running + momentum * (value - running), running.dtype)


@limited(_prepare_batch_norm, RunningOp, eps=NOT_NEGATIVE)
def batch_norm(
    input: fg.Tensor, running_mean: fg.Tensor, running_var: fg.Tensor, weight: fg.Tensor = None,
    bias: fg.Tensor = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> fg.Tensor | tuple[fg.Tensor, ...]:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) weight + bias, a mean and a variance a channel.

    With ``training`` they are the batch's, and running statistics, where given, move towards them in place:
    r + momentum (s - r), the variance's s with n - 1 for n. Otherwise they are the running statistics.

    Source: torch.nn.functional.batch_norm; Ioffe and Szegedy, arXiv 1502.03167.
    """
    x, axes = floats("batch_norm", input), (0, *range(2, input.ndim))
    y = standardized(x, axes, eps) if training else _by_running(x, running_mean, running_var, eps)
    out = fg.cast(scaled(y, along(weight, x), along(bias, x)), x.dtype)
    if not training or running_mean is None:
        return out
    return out, _moved(running_mean, fg.mean(x, axes), momentum), _moved(running_var, fg.var(x, axes), momentum)


@limited(_prepare_instance_norm, RunningOp, eps=NOT_NEGATIVE)
def instance_norm(
    input: fg.Tensor, running_mean: fg.Tensor = None, running_var: fg.Tensor = None, weight: fg.Tensor = None,
    bias: fg.Tensor = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> fg.Tensor | tuple[fg.Tensor, ...]:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) weight + bias, over all but the first two dimensions of [N, C, ...].

    Running statistics, where given, move in place as batch_norm's, towards the samples' average. Without
    ``use_input_stats`` they are what normalizes.

    Source: torch.nn.functional.instance_norm; Ulyanov, Vedaldi, Lempitsky, arXiv 1607.08022.
    """
    x, axes = floats("instance_norm", input), tuple(range(2, input.ndim))
    y = standardized(x, axes, eps) if use_input_stats else _by_running(x, running_mean, running_var, eps)
    out = fg.cast(scaled(y, along(weight, x), along(bias, x)), x.dtype)
    if not use_input_stats or running_mean is None:
        return out
    mean, variance = fg.mean(x, (0, *axes)), fg.mean(fg.var(x, axes), 0)
    return out, _moved(running_mean, mean, momentum), _moved(running_var, variance, momentum)


# -- group norm ------------------------------------------------------------------------------------------------------


def _prepare_group_norm(op: str, **values: Any) -> dict[str, Any]:
    groups = values["num_groups"]
    if sizes(values["input"]) is not None:
        shape = _check_channels(op, values)
        if not isinstance(groups, int) or groups < 1 or shape[1] % groups:
            raise wrong_shape(
                op, "num_groups", f"{groups!r} for an input of shape {list(shape)}",
                f"a number of groups that divides {shape[1]} channels", "choose a divisor",
            )  # fmt: skip
        _check_count(op, shape, shape[0] * product(shape[2:]) * (shape[1] // groups))
    return {}


@limited(_prepare_group_norm, autocast="float32")
def group_norm(
    input: fg.Tensor, num_groups: fg.Const, weight: fg.Tensor = None, bias: fg.Tensor = None, eps: float = 1e-5
) -> fg.Tensor:
    """(x - mean) / sqrt(variance + eps) weight + bias, over a sample's channels of one group and all that follows.

    Source: torch.nn.functional.group_norm; Wu and He, arXiv 1803.08494.
    """
    x = floats("group_norm", input)
    groups = fg.unflatten(x, 1, (num_groups, -1))
    y = fg.flatten(standardized(groups, tuple(range(2, groups.ndim)), eps), 1, 2)
    return fg.cast(scaled(y, along(weight, x), along(bias, x)), x.dtype)
