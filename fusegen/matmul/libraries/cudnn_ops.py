"""What cuDNN can compute: a function of a product's sum as operations of its graphs (matmul/libraries/cudnn)."""

from __future__ import annotations

from fusegen.core import dtypes
from fusegen.core.ir import Call, Const, Expr, const, is_call, substitute, walk
from fusegen.matmul.epilogue import MOST_OPERATIONS, Epilogue
from fusegen.matmul.libraries.cudnn_api import Data, Mode

TYPES = {"float16": Data.HALF, "bfloat16": Data.BFLOAT16}
# Rows of the function table that cuDNN has; "where" is made of a comparison and a selection.
MODES = {
    "add": Mode.ADD, "sub": Mode.SUB, "mul": Mode.MUL, "div": Mode.DIV, "neg": Mode.NEG, "abs": Mode.ABS,
    "exp": Mode.EXP, "sqrt": Mode.SQRT, "rsqrt": Mode.RSQRT, "tanh": Mode.TANH, "sigmoid": Mode.SIGMOID,
    "softplus": Mode.SOFTPLUS, "gt": Mode.GT, "ge": Mode.GE, "lt": Mode.LT, "le": Mode.LE, "where": Mode.SELECT,
}  # fmt: skip
COMPARISONS = frozenset({"gt", "ge", "lt", "le"})
# Beside other tensors these cost more than the pass that is saved: silu's derivative 143 us where a product, 61 us, and
# our kernel take 98, relu's 70.
SLOW = frozenset({"sigmoid", "exp", "softplus"})
# erf(x) = tanh(x p(x^2)) to 1.4e-7 in float32. p's coefficients, from the constant on, are fitted to atanh(erf(x)) / x
# for the least largest error up to x = 4.1, beyond which both are 1. cuDNN's own erf takes longer than a pass of ours:
# behind fp16 8192 x 768 x 3072 (60 us) gelu takes 111 us so, 84 by these operations, and 91 as product and kernel.
ERF = (
    1.1283797054711426, 0.10276548143781682, -0.00018438364535886247, -0.0006257196155881462, 8.971260359815099e-05,
    -5.985693401953342e-06, 1.5896038441097115e-07,
)  # fmt: skip


def has(epilogue: Epilogue, dtype: str) -> bool:
    """Whether cuDNN has all that an activation is made of. relu costs cuBLASLt nothing."""
    if epilogue.function is None or epilogue.activation == "relu" or dtype not in TYPES:
        return False
    if epilogue.activation == "gelu":
        return True
    function = in_its_operations(epilogue.function)
    nodes = list(walk([function]))
    calls = [node for node in nodes if isinstance(node, Call)]
    is_known = all((call.function in MODES and call.detail is None) or power(call) for call in calls)
    is_float = all(node.dtype is dtypes.float32 for node in nodes if not _is_test(node))
    tested = [child for call in calls for child in call.args[call.function == "where" :] if _is_test(child)]
    if epilogue.auxiliary and any(is_call(node, *SLOW) for node in read(function)):
        return False
    return is_known and is_float and not tested and len(calls) <= MOST_OPERATIONS


def in_its_operations(function: Expr) -> Expr:
    """The function with what cuDNN lacks, or is slow at, made of other operations."""
    while (call := _error_function(function)) is not None:
        function = substitute(function, {call: _erf(call.args[0], call.function == "erfc")})
    return function


def _error_function(function: Expr) -> Call | None:
    calls = (node for node in walk([function]) if is_call(node, "erf", "erfc"))
    return next((call for call in calls if call.dtype is dtypes.float32), None)


def _erf(x: Expr, complement: bool) -> Expr:
    def call(name: str, *args: Expr) -> Expr:
        return Call(name, args, dtypes.float32)

    def number(value: float) -> Expr:
        return const(value, dtypes.float32)

    square = call("mul", x, x)
    found = number(ERF[-1])
    for coefficient in reversed(ERF[:-1]):
        found = call("add", call("mul", found, square), number(coefficient))
    found = call("tanh", call("mul", x, found))
    return call("sub", number(1.0), found) if complement else found


def power(node: Call) -> int:
    """n of x^n, where n is 2 or 3, which are multiplications; else 0."""
    return node.detail if node.function == "powi" and isinstance(node.detail, int) and node.detail in (2, 3) else 0


def _is_test(node: Expr) -> bool:
    return is_call(node, *COMPARISONS)


def swish(node: Expr) -> tuple[Expr, float] | None:
    """x and b of x * sigmoid(b * x), which cuDNN has as one operation, at half the time of a sigmoid by itself."""
    for x, gate in (node.args, node.args[::-1]) if is_call(node, "mul") else ():
        match gate:
            case Call("sigmoid", (inner,)) if inner is x:
                return x, 1.0
            case Call("sigmoid", (Call("mul", (Const(scale), y) | (y, Const(scale))),)) if y is x:
                return x, float(scale)
    return None


def read(function: Expr) -> list[Expr]:
    """All that has to be computed, each behind what it reads."""
    found: dict[Expr, None] = {}

    def visit(node: Expr) -> None:
        gated = swish(node)
        for child in (gated[0],) if gated is not None else node.children:
            if child not in found:
                visit(child)
        found[node] = None

    visit(function)
    return list(found)
