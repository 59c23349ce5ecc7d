"""Steps of an op that are no ops, in words: products, scatters and scans."""

from __future__ import annotations

from fusegen.core.ir import Ref
from fusegen.core.text import expr_text, shape_text
from fusegen.fuse.scans import running
from fusegen.fuse.steps import Product, Scan, Scatter

# What scans do with elements, in words.
SCAN_VERBS = {
    "sum": "added up", "prod": "multiplied", "max": "maximum", "min": "minimum",
    "argmax": "where the maximum stands", "argmin": "where the minimum stands", "last": "as they are",
    "logaddexp": "logsumexp", "affine": "as factors and terms",
    "segments": "as conditions and terms, added up",
}  # fmt: skip


def product_text(step: Product) -> str:
    """``P[D0, D1] = x(d2 -> d4) @ w(d3 -> d4) over [D4]``; a factor's axes as the product calls them.

    ``+=`` for one that is added to the products before it.
    """
    if isinstance(step, Scan):
        return _scan_text(step)
    if isinstance(step, Scatter):
        result, sign = f"{step.result}{shape_text(step.axes)}", "+=" if step.onto else "="
        sign += f" {step.base} +" * bool(step.base)
        where = f"at {step.left.name} along {step.axis.upper()}, over {shape_text(step.over)}"
        verb = {"sum": "added", "prod": "multiplied", "max": "maximum", "min": "minimum"}[step.kind]
        if step.moves:
            return f"{result} {sign} {step.right.name}, each at the place of its own number along {step.axis.upper()}"
        return f"{result} {sign} {step.right.name} {verb} {where}"
    sides = []
    for source in (step.left, step.right):
        moved = ", ".join(f"{own} -> {new}" for own, new in source.renames)
        sides.append(f"{source.name}({moved})" if moved else source.name)
    sign = "+=" if step.onto else "="
    bias = f" + {step.bias}" * bool(step.bias)
    return f"{step.result}{shape_text(step.axes)} {sign} {' @ '.join(sides)} over {shape_text(step.over)}{bias}"


def _scan_text(step: Scan) -> str:
    """``running = x added up along D1; out[D0, D1] = running * y``; without the first where that is all."""
    what = " and ".join(expr_text(step.named(value)) for value in step.values)
    way = " from the end" * step.how.reverse + ", without the element itself" * step.how.exclusive
    found, outputs = list[str](), {output.expr: output for output in reversed(step.outputs)}
    for name, how in step.results:
        ref = next((ref for ref in outputs if isinstance(ref, Ref) and ref.name == running(how)), None)
        left = f"{outputs.pop(ref).name}{shape_text(step.axes)}" if ref else name
        found.append(f"{left} = {what} {SCAN_VERBS[how.combine]} along {step.axis.upper()}{way}")
    written = [output for output in step.outputs if output.expr in outputs]
    found += [f"{o.name}{shape_text(step.axes)} = {expr_text(step.named(o.expr))}" for o in written]
    return "; ".join(found)
