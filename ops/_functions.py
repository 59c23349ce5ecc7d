"""Scalar functions that only the library needs: their derivative is written, because the derived one is worse.

``x / (1 + |x|)`` is derived as a difference that cancels for large x; binary cross entropy's logarithms end at -100,
and torch keeps a gradient where the value no longer changes.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

_apply = fg.table.apply

softsign = fg.register_function(
    "softsign",
    cuda="softsign({0})",
    header="template <typename T> FG_DEVICE T softsign(T x) { return x / (T(1) + fg::abs(x)); }",
    reference=lambda t, x: x / (1 + t.abs(x)),
    derivative=lambda x, y: (1 / _apply("powi", 1 + _apply("abs", x), detail=2),),
    doc="x / (1 + |x|).",
)


def _odds(x: Any) -> Any:
    """x (1 - x), at least 1e-12: what torch divides by."""
    return _apply("maximum", (1 - x) * x, 1e-12 + 0 * x)


log_of_probability = fg.register_function(
    "log_of_probability",
    cuda="log_of_probability({0})",
    header="template <typename T> FG_DEVICE T log_of_probability(T p) { return fg::maximum(T(log(p)), T(-100)); }",
    reference=lambda t, p: t.log(p).clamp(min=-100),
    derivative=lambda p, y: ((1 - p) / _odds(p),),
    doc="max(log(p), -100), for 0 <= p <= 1.",
)

log_of_complement = fg.register_function(
    "log_of_complement",
    cuda="log_of_complement({0})",
    header="template <typename T> FG_DEVICE T log_of_complement(T p) { return fg::maximum(T(log1p(-p)), T(-100)); }",
    reference=lambda t, p: t.log1p(-p).clamp(min=-100),
    derivative=lambda p, y: (-p / _odds(p),),
    doc="max(log(1 - p), -100), for 0 <= p <= 1.",
)
