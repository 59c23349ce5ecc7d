"""What one step makes of one parameter, as ops. The optimizers call them for lists (``fg.foreach``).

Half types are computed in float32 and rounded once, when they are stored: to the nearest number, or at random. A
parameter's master weight, where there is one, takes its place in the arithmetic, and the parameter is that rounded.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg


@fg.op
def adam_count(step: Any, lr: Any, beta1: Any, beta2: Any) -> tuple[fg.Tensor, ...]:
    """``step + 1``, and what Adam's corrections make of the learning rate and of the second moment's root.

    In float64: ``1 - beta2 ** step`` is the difference of two numbers that are nearly the same.
    """
    step = step + 1
    t = fg.cast(step, fg.float64)
    return step, lr / (1 - beta1**t), fg.rsqrt(1 - beta2**t)


@fg.op
def adam(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any, size: Any, root: Any, lr: Any, beta1: Any, beta2: Any,
    eps: Any, weight_decay: Any = None, max_exp_avg_sq: Any = None, master: Any = None, decoupled: fg.Const = False,
    maximize: fg.Const = False,
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """Adam's step: the parameter, both moments, and of what is there the largest second moment and the master weight.

    ``exp_avg = beta1 * exp_avg + (1 - beta1) * grad``, ``exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2``,
    ``param -= size * exp_avg / (sqrt(exp_avg_sq) * root + eps)``.
    """
    weight = param if master is None else master
    grad = -grad if maximize else grad
    if weight_decay is not None and decoupled:
        weight = weight * (1 - lr * weight_decay)
    elif weight_decay is not None:
        grad = grad + weight_decay * weight
    first = beta1 * exp_avg + (1 - beta1) * grad
    second = beta2 * exp_avg_sq + (1 - beta2) * grad * grad
    largest = second if max_exp_avg_sq is None else fg.maximum(max_exp_avg_sq, second)
    weight = weight - size * first / (fg.sqrt(largest) * root + eps)
    results = [weight.to(param.dtype), first.to(exp_avg.dtype), second.to(exp_avg_sq.dtype)]
    results += [] if max_exp_avg_sq is None else [largest.to(max_exp_avg_sq.dtype)]
    return (*results, *([] if master is None else [weight.to(master.dtype)]))


@fg.op
def sgd(
    param: Any, grad: Any, momentum_buffer: Any, lr: Any, momentum: Any = None, dampening: Any = None,
    weight_decay: Any = None, master: Any = None, first: fg.Const = False, nesterov: fg.Const = False,
    maximize: fg.Const = False,
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """The step of gradient descent: the parameter, and of what is there the momentum and the master weight.

    ``momentum_buffer = momentum * momentum_buffer + (1 - dampening) * grad``, the first time ``grad``;
    ``param -= lr * momentum_buffer``, with Nesterov's momentum ``lr * (grad + momentum * momentum_buffer)``.
    """
    weight = param if master is None else master
    grad = -grad if maximize else grad
    grad = grad if weight_decay is None else grad + weight_decay * weight
    results = []
    if momentum_buffer is not None:
        moved = grad if first else momentum * momentum_buffer + (1 - dampening) * grad
        results.append(moved.to(momentum_buffer.dtype))
        grad = grad + momentum * moved if nesterov else moved
    weight = weight - lr * grad
    return (weight.to(param.dtype), *results, *([] if master is None else [weight.to(master.dtype)]))


@fg.op
def lion(
    param: Any, grad: Any, exp_avg: Any, lr: Any, beta1: Any, beta2: Any, weight_decay: Any = None,
    master: Any = None, maximize: fg.Const = False,
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """Lion's step: the parameter, the moment, and the master weight where there is one.

    ``param -= lr * (sign(beta1 * exp_avg + (1 - beta1) * grad) + weight_decay * param)``, then
    ``exp_avg = beta2 * exp_avg + (1 - beta2) * grad``. Source: Chen et al., Symbolic Discovery of Optimization
    Algorithms, 2023, algorithm 2.
    """
    weight = param if master is None else master
    grad = -grad if maximize else grad
    direction = fg.sign(beta1 * exp_avg + (1 - beta1) * grad)
    weight = weight if weight_decay is None else weight * (1 - lr * weight_decay)
    weight = weight - lr * direction
    results = weight.to(param.dtype), (beta2 * exp_avg + (1 - beta2) * grad).to(exp_avg.dtype)
    return results if master is None else (*results, weight.to(master.dtype))


@fg.op
def adafactor_averages(
    grad: Any, row_var: Any, col_var: Any, step: Any, beta2_decay: Any
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """Adafactor's averages of squares of rows and of columns, and ``step + 1``. Without ``col_var`` the first one is of
    each square."""
    t = step + 1
    decay, square = _as_exact_as(grad, t) ** beta2_decay, grad * grad
    of_rows = square if col_var is None else fg.mean(square, -1, keepdims=True)
    rows = (row_var + decay * (of_rows - row_var)).to(row_var.dtype)
    if col_var is None:
        return rows, t
    columns = col_var + decay * (fg.mean(square, -2, keepdims=True) - col_var)
    return rows, columns.to(col_var.dtype), t


def _as_exact_as(tensor: Any, step: Any) -> Any:
    return fg.cast(step, fg.float64 if tensor.dtype is fg.float64 else fg.float32)


def _rms(x: Any) -> Any:
    return fg.sqrt(fg.mean(x * x))


@fg.op
def adafactor(
    param: Any, grad: Any, row_var: Any, col_var: Any, step: Any, lr: Any, d: Any, eps1: Any, eps2: Any,
    weight_decay: Any = None, master: Any = None, maximize: fg.Const = False,
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """Adafactor's step, of averages that know the gradient: the parameter, and the master weight where there is one.

    See `fusegen.optim.Adafactor`.
    """
    weight = param if master is None else master
    estimate = row_var
    if col_var is not None:
        estimate = row_var * col_var / fg.maximum(fg.mean(row_var, -2, keepdims=True), eps1)
    update = (-grad if maximize else grad) * fg.rsqrt(fg.maximum(estimate, eps1 * eps1))
    size = fg.maximum(_rms(weight), eps2) * fg.minimum(fg.rsqrt(_as_exact_as(grad, step)), lr)
    size = size / fg.maximum(_rms(update) / d, 1.0)
    weight = weight if weight_decay is None else weight * (1 - lr * weight_decay)
    weight = weight - size * update
    return (weight.to(param.dtype), *([] if master is None else [weight.to(master.dtype)]))


# -- rounded at random: for half tensors without master weights --------------------------------------------------------

# Steps of a half type beside its numbers, less than one and more than half of each, as a share of the number.
_BESIDE = {fg.bfloat16: 0.6 * 2.0**-7, fg.float16: 0.6 * 2.0**-10}


def rounded_at_random(value: Any, dtype: Any) -> Any:
    """A float32 value as one of its two neighbours of a half type, the nearer one more often: on average it is kept.

    The nearest number and the one on the value's other side; numbers below the smallest normal one become the nearest.
    """
    nearest = fg.cast(fg.cast(value, dtype), fg.float32)
    left = value - nearest
    other = fg.cast(fg.cast(nearest + fg.sign(left) * fg.abs(nearest) * _BESIDE[dtype], dtype), fg.float32)
    return fg.cast(fg.where(fg.rand_like(value) * fg.abs(other - nearest) < fg.abs(left), other, nearest), dtype)


def _in_float32(*tensors: Any) -> tuple[Any, ...]:
    return tuple(None if tensor is None else fg.cast(tensor, fg.float32) for tensor in tensors)


def _like(found: Any, *tensors: Any) -> tuple[Any, ...]:
    """What is found, rounded to the dtypes of the tensors that it is stored in."""
    stored = [tensor for tensor in tensors if tensor is not None]
    return tuple(rounded_at_random(value, tensor.dtype) for value, tensor in zip(found, stored, strict=True))


@fg.op(random=True)
def adam_at_random(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any, size: Any, root: Any, lr: Any, beta1: Any, beta2: Any,
    eps: Any, weight_decay: Any = None, max_exp_avg_sq: Any = None, decoupled: fg.Const = False,
    maximize: fg.Const = False,
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """`adam` in float32, its results rounded at random."""
    weight, slope, first, second, largest = _in_float32(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq)
    numbers = size, root, lr, beta1, beta2, eps, weight_decay
    found = adam(weight, slope, first, second, *numbers, largest, None, decoupled, maximize)
    return _like(found, param, exp_avg, exp_avg_sq, max_exp_avg_sq)


@fg.op(random=True)
def sgd_at_random(
    param: Any, grad: Any, momentum_buffer: Any, lr: Any, momentum: Any = None, dampening: Any = None,
    weight_decay: Any = None, first: fg.Const = False, nesterov: fg.Const = False, maximize: fg.Const = False,
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """`sgd` in float32, its results rounded at random."""
    weight, slope, moved = _in_float32(param, grad, momentum_buffer)
    found = sgd(weight, slope, moved, lr, momentum, dampening, weight_decay, None, first, nesterov, maximize)
    return _like(found, param, momentum_buffer)


@fg.op(random=True)
def lion_at_random(
    param: Any, grad: Any, exp_avg: Any, lr: Any, beta1: Any, beta2: Any, weight_decay: Any = None,
    maximize: fg.Const = False,
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """`lion` in float32, its results rounded at random."""
    found = lion(*_in_float32(param, grad, exp_avg), lr, beta1, beta2, weight_decay, None, maximize)
    return _like(found, param, exp_avg)


@fg.op(random=True)
def adafactor_at_random(
    param: Any, grad: Any, row_var: Any, col_var: Any, step: Any, lr: Any, d: Any, eps1: Any, eps2: Any,
    weight_decay: Any = None, maximize: fg.Const = False,
) -> tuple[fg.Tensor, ...]:  # fmt: skip
    """`adafactor` in float32, its result rounded at random."""
    numbers = row_var, col_var, step, lr, d, eps1, eps2, weight_decay
    return _like(adafactor(*_in_float32(param, grad), *numbers, None, maximize), param)


# -- averages and clipping -------------------------------------------------------------------------------------------


@fg.op
def ema(average: Any, param: Any, decay: Any) -> Any:
    """``average + (1 - decay) * (param - average)``."""
    return (average + (1 - decay) * (param - average)).to(average.dtype)


@fg.op
def power_sum(grad: Any, power: fg.Const, wide: fg.Const = False) -> Any:
    """What each gradient adds to the norm: the sum of ``|grad|^power``, or the largest ``|grad|`` for None."""
    size = fg.abs(fg.cast(grad, fg.float64 if wide else fg.float32))
    if power is None:
        return fg.amax(size)
    return fg.sum(size * size if power == 2 else size if power == 1 else size**power)


@fg.op
def norm_of_sums(sums: Any, max_norm: Any, power: fg.Const) -> tuple[fg.Tensor, ...]:
    """The norm of all gradients, and what they are multiplied by: ``min(1, max_norm / (norm + 1e-6))``."""
    norm = fg.maximum(fg.amax(sums), 0) if power is None else fg.sum(sums)  # of no elements it is zero
    norm = fg.sqrt(norm) if power == 2 else norm if power in (None, 1) else norm ** (1 / power)
    return norm, fg.minimum(max_norm / (norm + 1e-6), 1.0)


@fg.op
def scale(grad: Any, factor: Any) -> Any:
    """``grad * factor``."""
    return (grad * factor).to(grad.dtype)
