"""Instructions that functions and reductions take on a Hopper GPU: what tools/slots.py counted in SASS.

In order: all of them, those for the special functions unit, those for the float64 unit. "half" is float32 where results
are rounded to a half type.
"""

from __future__ import annotations

# By function and by how it is compiled.
SLOTS: dict[str, dict[str, tuple[float, float, float]]] = {
    "acos": {
        "float32": (23, 1, 0),
        "half": (23, 1, 0),
        "float64": (129, 1, 46),
    },
    "acosh": {
        "float32": (42.5, 1, 0),
        "half": (42.5, 1, 0),
        "float64": (162, 3, 64),
    },
    "add_rn": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 1),
    },
    "asin": {
        "float32": (22, 1, 0),
        "half": (22, 1, 0),
        "float64": (63.5, 1, 41.75),
    },
    "asinh": {
        "float32": (41.25, 2, 0),
        "half": (41.25, 2, 0),
        "float64": (168.5, 4, 66),
    },
    "atan": {
        "float32": (18, 1, 0),
        "half": (18, 1, 0),
        "float64": (50.5, 1, 28),
    },
    "atan2": {
        "float32": (47.25, 1, 0),
        "half": (47.25, 1, 0),
        "float64": (121.25, 1, 39),
    },
    "atanh": {
        "float32": (37, 1, 0),
        "half": (37, 1, 0),
        "float64": (162.75, 3, 64),
    },
    "cbrt": {
        "float32": (16, 2, 0),
        "half": (16, 2, 0),
        "float64": (41, 3, 13),
    },
    "ceil": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 0),
    },
    "clamp": {
        "float32": (2, 0, 0),
        "half": (2, 0, 0),
        "float64": (10.25, 0, 6),
        "int32": (3, 0, 0),
        "int64": (10, 0, 0),
    },
    "copysign": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 1),
    },
    "cos": {
        "float32": (34.5, 0, 0),
        "half": (28.75, 0, 0),
        "float64": (54, 0, 17),
    },
    "cosh": {
        "float32": (15, 2, 0),
        "half": (15, 2, 0),
        "float64": (60, 1, 21),
    },
    "digamma": {
        "float32": (406, 7, 142),
        "half": (406, 7, 142),
        "float64": (398.5, 7, 144),
    },
    "div": {
        "float32": (13, 1, 0),
        "half": (8, 1, 0),
        "float64": (23, 1, 8),
    },
    "div_rn": {
        "float32": (13, 1, 0),
        "half": (13, 1, 0),
        "float64": (23, 1, 8),
    },
    "erf": {
        "float32": (20.25, 1, 0),
        "half": (20.25, 1, 0),
        "float64": (82.75, 1, 42),
    },
    "erfc": {
        "float32": (45, 3, 0),
        "half": (15, 2, 0),
        "float64": (167.25, 2, 63.5),
    },
    "erfinv": {
        "float32": (27.75, 2, 0),
        "half": (27.75, 2, 0),
        "float64": (276.25, 2, 96),
    },
    "exp": {
        "float32": (8, 1, 0),
        "half": (5, 1, 0),
        "float64": (33, 0, 18),
    },
    "exp2": {
        "float32": (4, 1, 0),
        "half": (4, 1, 0),
        "float64": (36, 0, 19),
    },
    "exp_clamped": {
        "float32": (9, 1, 0),
        "half": (4, 1, 0),
        "float64": (36, 0, 19),
    },
    "expm1": {
        "float32": (21, 0, 0),
        "half": (17.25, 1, 0),
        "float64": (71, 0, 21),
    },
    "floor": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 0),
    },
    "floor_divide": {
        "float32": (33, 1, 0),
        "half": (33, 1, 0),
        "float64": (336.5, 3, 43),
        "int32": (40, 1, 0),
        "int64": (62.75, 1, 0),
    },
    "fmod": {
        "float32": (23, 1, 0),
        "half": (23, 1, 0),
        "float64": (254.25, 0, 9),
        "int32": (28.75, 1, 0),
        "int64": (38, 1, 0),
    },
    "hypot": {
        "float32": (28.25, 1, 0),
        "half": (28.25, 1, 0),
        "float64": (44.5, 1, 15),
    },
    "int_pow": {
        "int32": (34.25, 0, 0),
        "int64": (59, 0, 0),
    },
    "isfinite": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (2.5, 0, 1),
    },
    "isinf": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (2.5, 0, 1),
    },
    "isnan": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (2.5, 0, 1),
    },
    "lgamma": {
        "float32": (214, 2, 0),
        "half": (214, 2, 0),
        "float64": (178.5, 2, 59),
    },
    "log": {
        "float32": (25, 0, 0),
        "half": (19, 1, 0),
        "float64": (78.25, 1, 30),
    },
    "log10": {
        "float32": (26, 0, 0),
        "half": (19, 1, 0),
        "float64": (80.25, 1, 32),
    },
    "log1p": {
        "float32": (29, 0, 0),
        "half": (18.5, 1, 0),
        "float64": (138.5, 2, 53),
    },
    "log2": {
        "float32": (27, 0, 0),
        "half": (18, 1, 0),
        "float64": (80.25, 1, 32),
    },
    "logsigmoid": {
        "float32": (39, 1, 0),
        "half": (10, 1, 0),
        "float64": (198.25, 2, 74),
    },
    "maximum": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (6, 0, 3.75),
        "int32": (1, 0, 0),
        "int64": (4.5, 0, 0),
    },
    "minimum": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (6, 0, 3.75),
        "int32": (1, 0, 0),
        "int64": (4.5, 0, 0),
    },
    "mul_rn": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 1),
    },
    "ndtri": {
        "float32": (43, 3, 0),
        "half": (43, 3, 0),
        "float64": (435.5, 7, 165),
    },
    "pow": {
        "float32": (91, 1, 0),
        "half": (48.25, 2, 0),
        "float64": (75.5, 0, 15),
    },
    "ratio": {
        "float32": (4, 1, 0),
        "half": (2, 1, 0),
        "float64": (23, 1, 8),
    },
    "remainder": {
        "float32": (25.5, 1, 0),
        "half": (25.5, 1, 0),
        "float64": (258.75, 0, 13),
        "int32": (35, 1, 0),
        "int64": (46.25, 1, 0),
    },
    "round": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 0),
    },
    "rsqrt": {
        "float32": (4, 1, 0),
        "half": (4, 1, 0),
        "float64": (20, 1, 5),
    },
    "sigmoid": {
        "float32": (15, 2, 0),
        "half": (7, 2, 0),
        "float64": (89.5, 1, 29),
    },
    "sign": {
        "float32": (3, 0, 0),
        "half": (3, 0, 0),
        "float64": (6, 0, 2),
        "int32": (4, 0, 0),
        "int64": (5, 0, 0),
    },
    "sin": {
        "float32": (33.75, 0, 0),
        "half": (28, 0, 0),
        "float64": (53.25, 0, 17),
    },
    "sinh": {
        "float32": (23, 2, 0),
        "half": (23, 2, 0),
        "float64": (121.25, 1, 39),
    },
    "softplus": {
        "float32": (39, 1, 0),
        "half": (10, 1, 0),
        "float64": (198.25, 2, 74),
    },
    "sqrt": {
        "float32": (12, 1, 0),
        "half": (4, 1, 0),
        "float64": (26.5, 1, 8),
    },
    "sub_rn": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 1),
    },
    "tan": {
        "float32": (47.25, 1, 0),
        "half": (31.5, 1, 0),
        "float64": (87.75, 1, 32),
    },
    "tanh": {
        "float32": (15, 2, 0),
        "half": (12, 2, 0),
        "float64": (98, 2, 34),
    },
    "trunc": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 0),
    },
    "xlogy": {
        "float32": (35, 0, 0),
        "half": (20.75, 1, 0),
        "float64": (91, 1, 33),
    },
}

# By kind (core/monoids) and by how it is compiled.
REDUCTIONS: dict[str, dict[str, tuple[float, float, float]]] = {
    "first_max": {
        "float32": (12, 0, 0),
        "half": (12, 0, 0),
        "float64": (13, 0, 5),
        "int32": (6, 0, 0),
        "int64": (9, 0, 0),
    },
    "first_min": {
        "float32": (12, 0, 0),
        "half": (12, 0, 0),
        "float64": (13, 0, 5),
        "int32": (6, 0, 0),
        "int64": (9, 0, 0),
    },
    "max": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (5, 0, 3),
        "int32": (0.5, 0, 0),
        "int64": (4, 0, 0),
    },
    "min": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (5, 0, 3),
        "int32": (0.5, 0, 0),
        "int64": (4, 0, 0),
    },
    "prod": {
        "float32": (1, 0, 0),
        "half": (1, 0, 0),
        "float64": (1, 0, 1),
        "int32": (1, 0, 0),
        "int64": (4, 0, 0),
    },
    "squared_deviation": {
        "float32": (3, 0, 0),
        "half": (3, 0, 0),
        "float64": (3, 0, 3),
    },
    "sum_exp": {
        "float32": (9.75, 1, 0),
        "half": (5, 1, 0),
        "float64": (41, 0, 23),
    },
}

# Functions in which threads of a warp may part, and how they are compiled: no read moves across them.
PARTING: dict[str, tuple[str, ...]] = {
    "acos": ("float64",),
    "acosh": ("float32", "half", "float64"),
    "asin": ("float64",),
    "asinh": ("float32", "half", "float64"),
    "atan": ("float64",),
    "atan2": ("float32", "half", "float64"),
    "atanh": ("float32", "half", "float64"),
    "cos": ("float32", "half", "float64"),
    "cosh": ("float64",),
    "digamma": ("float32", "half", "float64"),
    "div": ("float64",),
    "div_rn": ("float64",),
    "erfc": ("float64",),
    "erfinv": ("float32", "half", "float64"),
    "exp": ("float64",),
    "exp2": ("float64",),
    "exp_clamped": ("float64",),
    "expm1": ("float64",),
    "floor_divide": ("float64", "int32", "int64"),
    "fmod": ("float64", "int32", "int64"),
    "hypot": ("float32", "half"),
    "int_pow": ("int32", "int64"),
    "lgamma": ("float32", "half", "float64"),
    "log": ("float64",),
    "log10": ("float64",),
    "log1p": ("float32", "float64"),
    "log2": ("float64",),
    "logsigmoid": ("float32", "float64"),
    "ndtri": ("float32", "half", "float64"),
    "pow": ("float32", "half", "float64"),
    "ratio": ("float64",),
    "remainder": ("float64", "int32", "int64"),
    "rsqrt": ("float64",),
    "sigmoid": ("float64",),
    "sin": ("float32", "half", "float64"),
    "sinh": ("float64",),
    "softplus": ("float32", "float64"),
    "sqrt": ("float64",),
    "tan": ("float32", "half", "float64"),
    "tanh": ("float64",),
    "xlogy": ("float32", "half", "float64"),
}
