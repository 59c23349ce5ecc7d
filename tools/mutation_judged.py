"""Mutants that no test can kill, judged by hand: each says why the program means the same."""

from __future__ import annotations

_NO_AXIS = "it is asked for named axes alone, and None is none of them"
# By file, then (what stood there, what stands there now): why nobody can tell them apart.
EQUIVALENT: dict[str, dict[tuple[str, str], str]] = {
    "fusegen/derive/products.py": {
        (
            "lacking = sorted((result_axes | other_axes) - own, key=axis_order)",
            "lacking = sorted((other_axes) - own, key=axis_order)",
        ): "a product's result varies along axes of its two factors and no others",
    },
    "fusegen/derive/symbolic.py": {
        (
            'above.append(apply("pow", convert(base), convert(exponent)))',
            'above.append(apply("pow", convert(exponent), convert(base)))',
        ): "never reached: sympy is given whole powers and square roots; other functions are opaque to it",
    },
    "fusegen/fuse/row_kernel.py": {
        (
            "axes = {o.name: frozenset(a for a in o.shape if a) for o in kernel.operands}",
            "axes = {o.name: frozenset(a for a in o.shape if True) for o in kernel.operands}",
        ): _NO_AXIS,
    },
    "fusegen/fuse/rows.py": {
        (
            "operands = [frozenset(a for a in o.shape if a) for o in op.operands]",
            "operands = [frozenset(a for a in o.shape if True) for o in op.operands]",
        ): _NO_AXIS,
    },
    "templates/fusegen_reduce.cuh": {
        ("word[words - 1] = 0;", "word[words - 1] = 1;"): "what lies behind a state in its last word is never read",
    },
    "templates/fusegen_vector.cuh": {
        ("if (i + N <= n) {", "if (false) {"): "elements are then accessed one by one: the same values",
    },
    "fusegen/fuse/schedule.py": {
        ("LEAST_BLOCK_WIDTH = 8", "LEAST_BLOCK_WIDTH = 9"): (
            "it is compared with 32, 16 and 8, and never asked for otherwise"
        ),
    },
}


def why_equivalent(path: str, old: str, new: str) -> str | None:
    """The reason, where somebody has judged the mutant to be none."""
    return EQUIVALENT.get(path, {}).get((old, new))
