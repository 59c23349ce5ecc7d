"""torch's functions of random numbers, as expressions of the language (declare/random_numbers)."""

from __future__ import annotations

from typing import Any

from fusegen.core.errors import DeclarationError
from fusegen.declare import random_numbers, reductions
from fusegen.declare.language import stop_gradient
from fusegen.declare.memory import shares
from fusegen.declare.torch_functions import torchs
from fusegen.declare.value import Like, Value, cast, current, elementwise, lift


@torchs("nn.functional.dropout")
@shares("same")
def dropout(input: Like, p: Like = 0.5, training: bool = True, inplace: bool = False) -> Value:
    """``fg.dropout(x, p)``."""
    return lift(input) if isinstance(p, (int, float)) and p == 0 else random_numbers.dropout(input, p, training)


@torchs("dropout")
@shares("same")
def torch_dropout(input: Like, p: Like, train: bool) -> Value:
    """``fg.dropout(x, p)``."""
    return dropout(input, p, train)


@torchs("nn.functional.dropout1d", "nn.functional.dropout2d", "nn.functional.dropout3d")
@shares("same")
def feature_dropout(input: Like, p: Like = 0.5, training: bool = True, inplace: bool = False) -> Value:
    """``fg.dropout`` with one number for each channel."""
    return random_numbers.feature_dropout(input, p, training)


@torchs("nn.functional.alpha_dropout")
@shares("same")
def alpha_dropout(input: Like, p: Like = 0.5, training: bool = False, inplace: bool = False) -> Value:
    """``fg.alpha_dropout(x, p)``."""
    return random_numbers.alpha_dropout(input, p, training)


@torchs("nn.functional.gumbel_softmax")
def gumbel_softmax(logits: Like, tau: Like = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Value:
    """``fg.softmax((x - fg.log(-fg.log(fg.rand_like(x)))) / tau, axis)``; hard: the largest is 1, with its gradient."""
    value = lift(logits)
    waited = elementwise("neg", elementwise("log", random_numbers.rand_like(value)))
    noisy = elementwise("sub", value, elementwise("log", waited))
    soft = reductions.softmax(elementwise("div", noisy, tau), dim)
    if not hard:
        return soft
    row = reductions.index(soft, dim)
    largest = cast(elementwise("eq", row, reductions.argmax(soft, dim, True)), soft.dtype)
    return elementwise("add", elementwise("sub", largest, stop_gradient(soft)), soft)


@torchs("rrelu", "nn.functional.rrelu")
def rrelu(
    input: Like, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Value:  # fmt: skip
    """``fg.where(x > 0, x, x * slope)``, of the slope in the middle; in training each element has one of its own."""
    value = lift(input)
    slope: Like = (lower + upper) / 2
    if training:
        slope = elementwise("add", elementwise("mul", random_numbers.rand_like(value), upper - lower), lower)
    return elementwise("where", elementwise("gt", value, 0), value, elementwise("mul", value, slope))


@torchs("rand_like")
def rand_like(input: Like, *, dtype: Any = None, **options: Any) -> Value:
    """``fg.rand_like(x)``."""
    _only_defaults("rand_like", options)
    return random_numbers.rand_like(input, dtype=dtype)


@torchs("randn_like")
def randn_like(input: Like, *, dtype: Any = None, **options: Any) -> Value:
    """``fg.randn_like(x)``."""
    _only_defaults("randn_like", options)
    return random_numbers.randn_like(input, dtype=dtype)


@torchs("bernoulli")
def bernoulli(input: Like, p: Like | None = None, *, generator: Any = None) -> Value:
    """``fg.bernoulli(x)``; of a number ``p``, a tensor like ``x``."""
    _only_defaults("bernoulli", {"generator": generator})
    value = lift(input)
    if p is None:
        return random_numbers.bernoulli(value)
    full = elementwise("where", elementwise("eq", value, value), p, p)
    return random_numbers.bernoulli(Value(full.expr, full.dtype, value.dims).to(value.dtype))


def _only_defaults(name: str, options: dict[str, Any]) -> None:
    given = {key: value for key, value in options.items() if value is not None and value is not False}
    unknown = given.keys() - {"memory_format"}
    if unknown:
        raise DeclarationError(
            f"{current().where}, {name}", given=", ".join(f"{key}={given[key]!r}" for key in sorted(unknown)),
            expected="a tensor, and a dtype", fix="leave it away: an op draws of the seed of its call",
        )  # fmt: skip
