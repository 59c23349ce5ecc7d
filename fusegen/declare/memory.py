"""Memory that symbolic tensors share, as torch's would: what is written to one of them, the others see.

A declaration has no memory. A tensor that is written to is another expression from then on (``write``), and so are
views of it, and what it is a view of: each follows from the one that was written when it is next asked (``Later``).
Whether tensors share memory is said where views are made (``shared``); everything else is in memory of its own.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fusegen.core.errors import DeclarationError, DtypeError, ShapeError
from fusegen.core.ir import Call, Expr, Ref, is_call
from fusegen.declare.value import Tracer, Value, broadcast, cast, current, is_grad_off, lift, plain_number, shape_of

F = TypeVar("F", bound=Callable[..., Any])
# What a tensor that follows from another one has when it is asked for it.
WAITING = ("expr", "dims", "packed")
# So many writes may wait for each other; then the first ones are done.
MOST_WAITING = 16


class Later:
    """A tensor that follows from what was written, and is made when it is asked for.

    Attributes:
        depth: how many others it waits for, one behind the other.
    """

    def __init__(self, make: Callable[[], Value], *made_of: Value) -> None:
        self.make = make
        self.made: Value | None = None
        self.depth = 1 + max((value.pending.depth for value in made_of if value.pending is not None), default=0)

    def value(self) -> Value:
        """What it is: gradients flow through it wherever it is asked for."""
        if self.made is None:
            was_off = is_grad_off()
            if was_off:
                sys.modules["torch"].set_grad_enabled(True)
            try:
                self.made = self.make()
            finally:
                if was_off:
                    sys.modules["torch"].set_grad_enabled(False)
        return self.made


class Rows(Later):
    """A tensor of which single elements along one dimension were written, one after the other: ``y[t] = ...``.

    Attributes:
        base: the tensor before.
        rows: what was written, by position.
    """

    def __init__(self, base: Value, dim: int, rows: Mapping[int, Value]) -> None:
        super().__init__(lambda: _writes().with_rows(base, dim, rows), base)
        self.base, self.dim, self.rows = base, dim, rows


@dataclass(frozen=True)
class View:
    """How a tensor follows from another one in whose memory it is.

    Attributes:
        base: the other one.
        again: makes it of that one.
        put: the other one, where this one has become something else; None: it cannot be told.
        certain: whether they share memory in any case; torch copies some tensors as they lie.
        hidden: it was made without gradients.
        row: the dimension and the position, if it is all elements there.
        key: what ``base`` was indexed with.
    """

    base: Value
    again: Callable[[Value], Value]
    put: Callable[[Value, Value], Value] | None = None
    certain: bool = True
    hidden: bool = False
    row: tuple[int, int] | None = None
    key: Any = None


def _writes() -> Any:
    """What is assigned to items, made of the language, to which this belongs."""
    return importlib.import_module("fusegen.declare.writes")


def shared(base: Value, found: Value, again: Callable[[Value], Value], **options: Any) -> Value:
    """``found``, which is in the memory of ``base`` from now on; see ``View`` for the others."""
    if not base.weak and not _is_in(found, base):
        found.viewed = View(base, again, hidden=is_grad_off(), **options)
        base.viewers = [*filter(_is_there, base.viewers or ()), weakref.ref(found)]
    return found


def _is_there(value: weakref.ref[Value]) -> bool:
    return value() is not None


def _is_in(value: Value, base: Value) -> bool:
    """Whether it is known to be in the memory of another one already."""
    while value is not base and value.viewed is not None:
        value = value.viewed.base
    return value is base


def fresh(value: Value) -> Value:
    """The same in memory of its own."""
    return Value(value.expr, value.dtype, value.dims, value.weak, None if is_grad_off() else value.packed)


def shares(how: str, put: Callable[..., Value] | None = None) -> Callable[[F], F]:
    """Say of a function whether what it gives is in the memory of its first argument, which is the rule elsewhere not.

    Args:
        how: "view", another shape of it; "perhaps", one that torch copies as tensors lie; "parts", parts along ``dim``;
            "read", something else that follows from it; "each", each result in that of one argument; "same", what the
            function itself says.
        put: ``put(x, new, *others)`` is the argument where the result has become ``new``, of "read".
    """

    def say(function: F) -> F:
        function.__dict__["shares"], function.__dict__["put"] = how, put
        return function

    return say


def viewing(function: Callable[..., Any], how: str) -> Callable[..., Any]:
    """A function of the language with what it says of memory."""

    @functools.wraps(function)
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return in_memory(call, (x, *args), kwargs, function(x, *args, **kwargs))

    return shares(how)(call)


def in_memory(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Any) -> Any:
    """What a function gives: in memory of its own, or in that of its first argument if it says so (``shares``)."""
    how = getattr(function, "shares", None)
    base = args[0] if args else next(iter(kwargs.values()), None)
    if how == "same":
        return found
    if how == "each" and isinstance(found, tuple):
        return tuple(_each(function, args, kwargs, part, number) for number, part in enumerate(found))
    if how is None or not isinstance(base, Value):
        return _own(found, (*args, *kwargs.values()))
    if how == "parts":
        return _parts(function, args, kwargs, found)
    if not isinstance(found, Value):
        return _own(found, args)

    def again(other: Value) -> Value:
        return lift(_of_another(function, args, kwargs, other))

    if how == "perhaps":
        return shared(base, fresh(found), again, certain=False)
    put: Callable[..., Value] | None = getattr(function, "put", None)
    if how in ("view", "each"):
        return shared(base, found, again, put=_shape_back(base, found))
    return shared(base, found, again, put=put and (lambda x, new: put(x, new, *args[1:], **kwargs)))


def _each(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Value, number: int
) -> Value:  # fmt: skip
    bases = [*args[0]] if len(args) == 1 and isinstance(args[0], (tuple, list)) else [*args]
    if not isinstance(bases[number], Value):
        return found

    def again(other: Value) -> Value:
        made = function(*bases[:number], other, *bases[number + 1 :], **kwargs)
        return lift(made[number] if isinstance(made, tuple) else made)

    return shared(bases[number], fresh(found) if found is bases[number] else found, again)


def _own(found: Any, args: Iterable[Any]) -> Any:
    """Results in memory of their own."""
    if isinstance(found, Value):
        is_other = found.viewed is None and not found.owner and all(found is not value for value in args)
        return found if is_other else fresh(found)
    if isinstance(found, (tuple, list)):
        known = [*args, *(item for value in args if isinstance(value, (tuple, list)) for item in value)]
        items = [_own(item, known) for item in found]
        return type(found)(*items) if hasattr(found, "_fields") else type(found)(items)
    return found


def in_own_memory(returned: Any) -> Any:
    """What a function returns: no argument, and no view of one."""
    return _own(returned, ())


def _shape_back(base: Value, found: Value) -> Callable[[Value, Value], Value]:
    """Dimensions where they were: of those that have only changed places, by these; else as they are counted."""
    axes = {dim.find(): place for place, dim in enumerate(found.dims) if dim is not None}
    places = [axes.get(dim.find(), -1) if dim is not None else None for dim in base.dims]
    if -1 in places or len(axes) != sum(place is not None for place in places):
        return lambda x, new: importlib.import_module("fusegen.declare.torch_functions").reshape(new, *x.sizes)
    return lambda x, new: Value(
        new.expr, new.dtype, tuple(None if place is None else new.dims[place] for place in places)
    )


def _parts(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Any) -> Any:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    (_, base), *_ = bound.arguments.items()
    dim = bound.arguments["dim"] if "dim" in bound.arguments else bound.arguments["axis"]
    dim, at, parts = plain_number(dim) % base.ndim, 0, list[Value]()
    for part in found:
        own, number = (fresh(part) if part is base else part), len(parts)
        if own.ndim < base.ndim:
            key, row, size = (*[slice(None)] * dim, at), (dim, at), 1
        else:
            size = own.dims[dim].find().size if own.dims[dim] is not None else 1
            key, row = (*[slice(None)] * dim, slice(at, at + size)), None
        at += size
        parts.append(
            shared(base, own, _part_again(function, args, kwargs, number), put=_put_item(key), row=row, key=key)
        )
    return tuple(parts)


def _part_again(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int
) -> Callable[[Value], Value]:
    return lambda x: lift(_of_another(function, args, kwargs, x)[number])


def _of_another(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], x: Value) -> Any:
    """The same call with another first argument."""
    return function(x, *args[1:], **kwargs) if args else function(**{**kwargs, next(iter(kwargs)): x})


def _put_item(key: Any) -> Callable[[Value, Value], Value]:
    return lambda x, new: _writes().put_item(x, key, new)


def got(x: Value, key: Any, item: Callable[[Value, Any], Value]) -> Value:
    """``x[key]``, of ints, slices, None and ``...`` in the memory of ``x``."""
    if not is_plain(key):
        return lift(_own(item(x, key), [x]))
    row, written = _row(x, key), x.pending
    if isinstance(written, Rows) and row is not None and row[0] == written.dim:
        before = written.base
        found = fresh(written.rows[row[1]]) if row[1] in written.rows else item(_copy(before), key)
    else:
        found = item(x, key)
    return shared(x, found, lambda other: item(other, key), put=_put_item(key), row=row, key=key)


def is_plain(key: Any) -> bool:
    """Whether a key is of ints, slices, None and ``...`` alone."""
    keys = key if isinstance(key, tuple) else (key,)
    return all(k is None or k is Ellipsis or isinstance(k, slice) or _is_int(k) for k in keys)


def _is_int(key: Any) -> bool:
    number = plain_number(key)
    return isinstance(number, int) and not isinstance(number, bool)


def is_all(key: Any) -> bool:
    """Whether a key leaves a dimension as it is."""
    return key is Ellipsis or (isinstance(key, slice) and key.start is key.stop is key.step is None)


def _row(x: Value, key: Any) -> tuple[int, int] | None:
    """The dimension and the position, where a key is one position in one dimension."""
    keys = key if isinstance(key, tuple) else (key,)
    ints = [number for number, k in enumerate(keys) if _is_int(k)]
    others = [k for k in keys if not _is_int(k) and not is_all(k)]
    if len(ints) != 1 or others:
        return None
    while isinstance(x.pending, Rows):  # what is written row by row is not made for this
        x = x.pending.base
    (at,) = ints
    dim = x.ndim - len(keys) + at if any(k is Ellipsis for k in keys[:at]) else at
    if not 0 <= dim < x.ndim:
        return None
    axis, place = x.dims[dim], int(plain_number(keys[at]))
    size = axis.find().size if axis is not None else 1
    return (dim, place % size) if -size <= place < size else None


def argument(value: Any, name: str) -> Any:
    """What a function sees of an argument, which is its caller's: not written to but by ``x += y``."""
    if not isinstance(value, Value) or value.weak:
        return value
    own = _copy(value)
    own.owner = name
    return own


def _copy(value: Value) -> Value:
    """The same as it is now, whatever is written later."""
    own = object.__new__(Value)
    own.tracer, own.dtype, own.weak = value.tracer, value.dtype, value.weak
    own.viewed, own.viewers, own.owner, own.pending = None, None, "", value.pending
    if value.pending is None:
        own.expr, own.dims, own.packed = value.expr, value.dims, value.packed
    elif value.pending.depth > MOST_WAITING:
        settle(own)
    return own


def settle(value: Value) -> None:
    """Make a tensor that follows from what was written."""
    later = value.pending
    assert later is not None
    found = later.value()
    value.pending = None
    value.expr, value.dims, value.packed = found.expr, found.dims, found.packed
    if value.viewed is not None and value.viewed.hidden and value.dtype.is_float:
        value.expr = Call("stop_gradient", (value.expr,), value.expr.dtype)


def _wait(value: Value, later: Later) -> None:
    if value.pending is None:
        for name in WAITING:
            delattr(value, name)
    value.pending = later


# -- writing -----------------------------------------------------------------------------------------------------------


def write(target: Value, new: Any, what: str, *, to_own: bool = False) -> Value:
    """``target``, which is ``new`` from now on, in its shape and dtype, and so are all that share its memory.

    Args:
        to_own: an argument is a copy: what a caller passed is not written (``x += y``).

    Raises:
        DeclarationError: it is an argument; gradients are off, and would flow through what was there.
        DtypeError, ShapeError: ``new`` does not fit.
    """
    root = _check(target, what, to_own)
    value = _fitting(target, new, what)
    if is_grad_off() and value.dtype.is_float and _flows(current(), [target.expr]):
        raise DeclarationError(
            f"{current().where}, {what}", given=f"{shape_of(target)}, which is written to without gradients",
            expected="a tensor that needs none: torch would compute with the new numbers, and the old gradient",
            fix="write x + (new - x).detach(), outside of torch.no_grad()",
        )  # fmt: skip
    if root.owner and not current().nested:
        current().overwritten[root.owner] = value.expr
    target.pending = None
    target.expr, target.dims, target.packed = value.expr, value.dims, value.packed
    now = _copy(target)
    _follow(target, now)
    child = target
    while child.viewed is not None:
        base = child.viewed.base
        _wait(base, _put_back(child.viewed, _copy(base), now))
        now = _copy(base)
        _follow(base, now, child)
        child = base
    return target


def turn(target: Value, found: Value, what: str) -> Value:
    """``target``, which is its own view ``found`` from now on: ``x.unsqueeze_(0)``. Nothing is written, so views of it
    and what it is a view of stay what they are.

    Raises:
        DeclarationError: it is an argument, whose shape is its caller's.
    """
    if target.owner:
        _check(target, what, to_own=False)
    view = found.viewed
    if view is None or view.base is not target:
        return target  # it was of this shape
    before = _copy(target)  # the same memory in the shape that it had
    before.viewed, before.viewers = target.viewed, target.viewers
    if before.viewed is not None:
        base = before.viewed.base
        base.viewers = [_instead(there, target, before) for there in base.viewers or ()]
    for there in before.viewers or ():
        other = there()
        if other is not None and other.viewed is not None:
            other.viewed = replace(other.viewed, base=before)
    target.pending = None
    target.expr, target.dims, target.packed = found.expr, found.dims, found.packed
    target.viewed, target.viewers = replace(view, base=before), None
    before.viewers = [*(before.viewers or ()), weakref.ref(target)]
    turned: Value = target
    return turned


def _instead(there: weakref.ref[Value], target: Value, before: Value) -> weakref.ref[Value]:
    """A reference to what has taken a tensor's place."""
    return weakref.ref(before) if there() is target else there


def _check(target: Value, what: str, to_own: bool) -> Value:
    """What a tensor is a view of in the end."""
    where, at = f"{current().where}, {what}", target
    while at.viewed is not None:
        at = at.viewed.base
    if at.owner and not to_own:
        raise DeclarationError(
            where, given=f"argument {at.owner}, which is written to",
            expected="what the declaration has computed itself",
            fix=f"compute with {at.owner}.clone(), return the result, and pass out= to the op to write it somewhere",
        )  # fmt: skip
    return at


def _fitting(target: Value, new: Any, what: str) -> Value:
    value, where = lift(new), f"{current().where}, {what}"
    if value.dtype.category > target.dtype.category:
        raise DtypeError(
            where, given=f"{value.dtype}, written to {target.dtype}", expected="a dtype that it holds, as torch has it",
            fix=f"cast it: .to(fg.{target.dtype}), or compute a new tensor: x = x + y",
        )  # fmt: skip
    if value.weak or value.dtype is not target.dtype:
        value = cast(value, target.dtype)
    same, value = current().apart([target, value], what)
    dims = broadcast([same, value], what)
    if [dim is None for dim in dims] != [dim is None for dim in target.dims]:
        raise ShapeError(
            where, given=f"{shape_of(value)}, written to {shape_of(target)}", expected="what broadcasts to its shape",
            fix="compute a new tensor: x = x + y",
        )  # fmt: skip
    known = len(dims) == value.ndim and all(a is None or b is not None for a, b in zip(dims, value.dims, strict=True))
    return Value(value.expr, value.dtype, dims, packed=value.packed if known else None)


def _flows(tracer: Tracer, exprs: Iterable[Expr]) -> bool:
    """Whether a gradient flows into what is there."""
    reduced = {reduce.name: reduce.expr for reduce, _ in tracer.reduces}
    stack, seen = [*exprs], set[Expr]()
    while stack:
        node = stack.pop()
        if node in seen or (is_call(node, "stop_gradient")):
            continue
        seen.add(node)
        if isinstance(node, Ref) and node.name not in reduced and node.dtype.is_float:
            return True
        stack += [reduced[node.name]] if isinstance(node, Ref) and node.name in reduced else node.children
    return False


def _follow(base: Value, now: Value, but: Value | None = None) -> None:
    """Views of a tensor that has become ``now``."""
    for there in base.viewers or ():
        value = there()
        if value is not None and value is not but:
            assert value.viewed is not None
            _wait(value, _again(value.viewed, now))
            _follow(value, _copy(value))


def _again(view: View, now: Value) -> Later:
    return Later(lambda: view.again(now) if view.certain else _unknown(), now)


def _put_back(view: View, before: Value, now: Value) -> Later:
    put = view.put
    if not view.certain or put is None:
        return Later(_unknown)
    if view.row is None:
        return Later(lambda: put(before, now), before, now)
    dim, at = view.row
    known = before.pending
    if isinstance(known, Rows) and known.dim == dim:
        return Rows(known.base, dim, {**known.rows, at: now})
    return Rows(before, dim, {at: now})


def _unknown() -> Value:
    raise DeclarationError(
        current().where, given="a tensor that was written to by way of another one, or was not: that depends on how "
        "tensors lie (reshape, contiguous), or is beside the gradients (detach)", expected="what it is in any case",
        fix="use .view(...) where memory is shared, and .clone() where it is not",
    )  # fmt: skip


def check_written(tracer: Tracer, results: Iterable[Expr]) -> None:
    """What was written to an argument is among the results, or something that they are made of.

    Raises:
        DeclarationError: it would be lost.
    """
    if not tracer.overwritten:
        return
    reduced = {reduce.name: reduce.expr for reduce, _ in tracer.reduces}
    stack, seen = [*results], set[Expr]()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [reduced[node.name]] if isinstance(node, Ref) and node.name in reduced else node.children
    lost = [name for name, expr in tracer.overwritten.items() if expr not in seen]
    if lost:
        raise DeclarationError(
            tracer.where, given=f"argument {' and '.join(lost)}, written to by +=, of which no result is made",
            expected="a result: what a caller has passed is not written", fix="return it, and pass out= to the op",
        )  # fmt: skip
