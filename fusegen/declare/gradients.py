"""Calls of ops whose gradient the user declared: their results carry it (core/declared).

The gradient is traced right behind the function, in the same trace, on symbols that stand for cotangents and arguments:
so its axes are the trace's, wherever the call stands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fusegen.core import dtypes
from fusegen.core.declared import Recorded
from fusegen.core.errors import DerivativeError
from fusegen.core.ir import Index, Ref, Size, call, const
from fusegen.declare.axes import leaves
from fusegen.declare.memory import argument
from fusegen.declare.parts import packed
from fusegen.declare.reductions import reduce
from fusegen.declare.value import CalledWith, Tracer, Value, broadcast, convert, current, lift, plain_number


def with_gradient(
    name: str, declared: str, gradient: Callable[..., Any], values: Mapping[str, Any], returned: Any,
    again: Callable[[Mapping[str, Any]], Any], hidden: Collection[str] = (),
) -> Any:  # fmt: skip
    """What an op's function ``returned`` for these arguments, with the gradient that was declared for the op.

    Args:
        again: what the function returns for other values: for a gradient that asks for results.
        hidden: arguments that ``again`` takes, and the gradient does not.

    Raises:
        DerivativeError: the gradient takes other arguments, or returns another number of gradients.
    """
    tracer = current()
    everywhere = {n: _everywhere(tracer, v) if isinstance(v, Value) else v for n, v in values.items()}
    if any(everywhere[name] is not value for name, value in values.items()):
        values, returned = everywhere, again(everywhere)
    items = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    floats = _float_results(returned)
    own = [name for name in values if name not in hidden]
    tensors = [name for name in own if isinstance(values[name], Value) and not values[name].weak]
    if not floats or not tensors:
        return returned
    arguments = {n: _stand_in(tracer, v, is_number=v.weak) if isinstance(v, Value) else v for n, v in values.items()}
    called_as = "out" if len(floats) == 1 else "out_{}"
    cotangents = {f"d_{called_as}".format(i): _stand_in(tracer, result) for i, result in enumerate(floats)}

    def results() -> dict[str, Value]:
        return {called_as.format(i): result for i, result in enumerate(_float_results(again(arguments)))}

    call = CalledWith(name, declared, cotangents, {n: v for n, v in arguments.items() if isinstance(v, Value)})
    seen = {name: arguments[name] for name in own}
    _record(tracer, call, lambda: _gradients(name, gradient, cotangents, seen, tensors, results))
    tracer.calls.append(call)
    given = [values[name] for name in call.inputs]
    marks = iter([_marked(tracer, value, given, i) for i, value in enumerate(floats)])

    def carrying(item: Any) -> Any:
        if isinstance(item, Value) and item.packed is not None:
            parts, place = item.packed
            return packed([carrying(part) for part in parts], place)
        return next(marks) if _is_value(item) and lift(item).dtype.is_float else item

    found = [carrying(item) for item in items]
    return tuple(found) if isinstance(returned, (tuple, list)) else found[0]


def _float_results(returned: Any) -> list[Value]:
    """The float results among what a function returned, each part of a packed one by itself."""
    items = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    parts = (item.packed[0] if isinstance(item, Value) and item.packed else (item,) for item in items)
    results = [lift(result) for several in parts for result in several if _is_value(result)]
    return [result for result in results if result.dtype.is_float]


def _is_value(item: Any) -> bool:
    return isinstance(plain_number(item), (Value, bool, int, float))


def _everywhere(tracer: Tracer, value: Value) -> Value:
    """An argument that is the same along a dimension (``x.expand(3, 4)``), as one that varies along it: the declared
    gradient has that dimension, which is summed over behind it."""
    expr, varying = value.expr, tracer.axes_of(value.expr)
    for axis in leaves(value.dims):
        if axis not in varying and value.dtype.is_float:
            name = tracer.name_of(axis)
            inside = call("lt", Index(name), Size(name), dtype=dtypes.bool_)
            expr = call("where", inside, expr, const(0, expr.dtype), dtype=expr.dtype)
    return value if expr is value.expr else Value(expr, value.dtype, value.dims, value.weak)


def _stand_in(tracer: Tracer, value: Value, *, is_number: bool = False) -> Value:
    """A symbol of its own for a value: what the gradient's trace begins with."""
    name = tracer.new_name("g")
    tracer.varying[name] = frozenset(tracer.axes_of(value.expr))
    dtype = value.expr.dtype if is_number else value.dtype.compute
    return Value(Ref(name, dtype), value.dtype, value.dims, is_number)


def _record(tracer: Tracer, call: CalledWith, trace: Callable[[], dict[str, Value]]) -> None:
    """Trace a gradient apart from what it is traced within."""
    outer = tracer.reduces, tracer.names, tracer.overwritten
    tracer.reduces, tracer.names, tracer.overwritten = call.reduces, call.names, {}
    try:
        call.gradients = trace()
    finally:
        tracer.reduces, tracer.names, tracer.overwritten = outer


def _marked(tracer: Tracer, value: Value, given: Sequence[Value], result: int) -> Value:
    """A result of the call that was recorded last."""
    expr = Recorded((value.expr, *(argument.expr for argument in given)), len(tracer.calls) - 1, result)
    if value.expr in tracer.names:
        tracer.names[expr] = tracer.names.pop(value.expr)
    return Value(expr, value.dtype, value.dims, value.weak)


def _gradients(
    op: str, gradient: Callable[..., Any], cotangents: Mapping[str, Value], arguments: Mapping[str, Any],
    tensors: Sequence[str], results: Callable[[], Mapping[str, Value]],
) -> dict[str, Value]:  # fmt: skip
    """The gradients of float tensors, each of its tensor's shape."""
    returned = _called(op, gradient, {**cotangents, **arguments}, results)
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    # An argument may be a tensor in one call and a number in another: what is returned for a number goes nowhere.
    numbers = [name for name, value in arguments.items() if name not in tensors and _is_number(value)]
    either = [name for name in arguments if name in tensors or name in numbers]
    if len(found) not in (len(tensors), len(either)):
        also = f", and perhaps for the numbers of this call: {', '.join(numbers)}" if numbers else ""
        raise DerivativeError(
            f"{op}, gradient", given=f"{len(found)} gradients returned",
            expected=f"one for each tensor argument: {', '.join(tensors)}{also}", fix="return None where there is none",
        )  # fmt: skip
    returned_for = dict(zip(tensors if len(found) == len(tensors) else either, found, strict=True))
    pairs = [(name, arguments[name], returned_for[name]) for name in tensors]
    return {n: _sum_to(lift(given), x) for n, x, given in pairs if given is not None and x.dtype.is_float}


def _is_number(value: Any) -> bool:
    given = plain_number(value)
    return value.weak if isinstance(value, Value) else isinstance(given, (int, float)) and not isinstance(given, bool)


def _called(
    op: str, gradient: Callable[..., Any], values: Mapping[str, Any], results: Callable[[], Mapping[str, Value]]
) -> Any:
    """What the user's function returns. It takes values in order, and by name what it says to take so only, which may
    be results of the op: these are traced again, as what its function computes of the arguments."""
    signature = inspect.signature(gradient)
    by_name = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    named = {name: values[name] for name in by_name if name in values}
    if set(by_name) - set(named):
        found = results()
        named |= {name: found[name] for name in by_name if name in found and name not in named}
    ordered = [argument(value, name) for name, value in values.items() if name not in named]
    named = {name: argument(value, name) for name, value in named.items()}
    try:
        signature.bind(*ordered, **named)
    except TypeError as error:
        raise DerivativeError(
            f"{op}, gradient", given=f"{getattr(gradient, '__name__', 'gradient')}{signature}: {error}",
            expected=f"({', '.join(values)})",
            fix="take the cotangent of each float result, then all of the op's own arguments, options too; "
            "by keyword only, after a *, also results: out, or out_0 and so on",
        ) from None  # fmt: skip
    return gradient(*ordered, **named)


def _sum_to(value: Value, like: Value) -> Value:
    """A gradient summed over the dimensions along which its argument was broadcast, in the argument's dtype."""
    broadcast([value, like], "gradient")  # their axes are one from here on
    extra = value.ndim - like.ndim
    if extra > 0:
        value = reduce("sum", value, tuple(range(extra)))
    first = like.ndim - value.ndim
    over = tuple(d for d, dim in enumerate(value.dims) if dim is not None and like.dims[first + d] is None)
    if over:
        value = reduce("sum", value, over, keepdims=True)
    return Value(convert(value.expr, like.dtype), like.dtype, like.dims)
