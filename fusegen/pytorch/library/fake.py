"""What an op's results are like, without computing them: for fake and meta tensors, of symbolic sizes too.

Of a size it matters only whether it is 1 (that decides the trace) and which sizes are equal (that is broadcasting's own
condition), so under symbolic shapes there are guards on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusegen.core.dtypes import DType
from fusegen.core.errors import ShapeError
from fusegen.core.ir import Op
from fusegen.core.products import contracted_sizes
from fusegen.core.views import dims_of, view_shape
from fusegen.declare.op import Declaration
from fusegen.declare.trace import TensorSpec
from fusegen.matmul.views import check_factors
from fusegen.plan import frameworks
from fusegen.plan.frameworks import TensorInfo
from fusegen.plan.layout import result_layout
from fusegen.plan.plan import common_device

# Stands for a size that nobody knows (unbacked): many parts divide it.
UNKNOWN = 5040

Scalars = dict[str, Any]


def describe(name: str, value: Any) -> TensorInfo:
    """Shape, strides and dtype of a tensor that may have no memory."""
    found: TensorInfo = frameworks.torch().described(name, value)
    return found


def known(value: Any) -> Any:
    """A Python number like ``value``, which may be symbolic: its type is right, and where possible its value."""
    if isinstance(value, torch.SymInt):
        return sample(value)
    if isinstance(value, torch.SymFloat):
        return 1.0
    return bool(value) if isinstance(value, torch.SymBool) else value


def sample(size: Any) -> int:
    """A concrete size that is 1 exactly if ``size`` is."""
    if isinstance(size, int):
        return size
    from torch.fx.experimental import symbolic_shapes  # slow to import, and only symbolic sizes need it

    if symbolic_shapes.guard_or_false(size == 1):
        return 1
    # The size in the call that is being traced; what tells was renamed in torch 2.11.
    name = "optimization_hint" if hasattr(symbolic_shapes, "optimization_hint") else "hint_int"
    hint = int(getattr(symbolic_shapes, name)(size, fallback=UNKNOWN))
    return hint if hint != 1 else UNKNOWN


def trace_call(
    declaration: Declaration, values: Mapping[str, Any], autocast: DType | None
) -> tuple[Op, dict[str, Any], Scalars, dict[str, Any]]:
    """The Op of a call whose tensors may be fake and numbers symbolic.

    Returns:
        The Op; its specs and constants by argument; runtime numbers; tensors.
    """
    specs: dict[str, Any] = {}
    scalars: Scalars = {}
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            info = describe(name, value)
            specs[name] = TensorSpec(info.dtype, tuple(sample(size) for size in info.shape))
            arguments[name] = value
        elif declaration.is_runtime_number(name, known(value)):
            specs[name] = declaration.scalar_spec(name, known(value))
            scalars[name] = value
        else:
            specs[name] = _constant(value)
    before = len(declaration.fixed)
    op = declaration.trace(specs, autocast)
    if len(declaration.fixed) > before:  # numbers that are constants from here on
        return trace_call(declaration, values, autocast)
    return op, specs, scalars, arguments


def _constant(value: Any) -> Any:
    """A constant shapes the trace, so a symbolic one becomes a number (and a guard)."""
    if isinstance(value, (tuple, list)):
        return type(value)(_constant(item) for item in value)
    if isinstance(value, torch.SymInt):
        return int(value)
    return float(value) if isinstance(value, torch.SymFloat) else value


def results(
    op: Op, infos: Mapping[str, TensorInfo], sizes: Mapping[str, Any], like: Mapping[str, Sequence[Any]]
) -> list[torch.Tensor]:
    """Empty tensors of the results' shapes, strides and dtypes, on the arguments' device.

    Args:
        sizes, like: as Runner's; ``like`` has strides only.
    """
    common_device(op, infos, None)
    measured = measure(op, infos, sizes)
    arguments = [infos[name] for name in dict.fromkeys(o.base for o in op.operands)]
    made: dict[str, torch.Tensor] = {}
    for output in op.outputs:
        if output.base in made:
            continue
        shape, strides = result_layout(op, output, measured, arguments, like.get(output.base))
        dtype = frameworks.torch().back[output.dtype]
        made[output.base] = torch.empty_strided(shape, strides, dtype=dtype, device=arguments[0].device)
    return list(made.values())


def measure(op: Op, infos: Mapping[str, TensorInfo], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of the op's axes; those that meet must be equal.

    Raises:
        ShapeError: they are not.
    """
    found = dict(sizes)
    origin: dict[str, str] = {}
    for operand in op.operands:
        base = operand.base
        shape = view_shape(operand, infos[base].shape)
        for d, axis, own in zip(dims_of(operand), operand.shape, shape, strict=True):
            if axis is None:
                continue
            size = found.setdefault(axis, own)
            if size is not own and not _equal(size, own):
                raise ShapeError(
                    f"{op.name}, argument {base}",
                    given=f"dimension {d} of size {own} against {origin.get(axis, 'the result')} of size {size}",
                    expected="equal sizes, or size 1 on one side",
                    fix="reshape one of them so that trailing dimensions line up (shapes are aligned from the right)",
                )
            origin.setdefault(axis, f"dimension {d} of {base}")
    check_factors(op, found)
    return contracted_sizes(op, found)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    from torch.fx.experimental import symbolic_shapes

    if symbolic_shapes.guard_or_true(a == b):  # of sizes that nobody knows it is assumed, and checked at run time
        torch._check(a == b)
        return True
    return False
