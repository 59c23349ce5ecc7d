"""``fg.foreach(op)``: an op on lists of tensors, all of them in a few launches.

What it means is a loop of calls. Where nobody but the op looks at these (plain torch tensors, nothing to differentiate,
no mode, no transform), the calls are planned together (run/listed): tensors whose kernels have one text share launches,
which get their addresses, sizes and strides in a table (generate/table). Everywhere else the loop runs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusegen.core.errors import DeclarationError, FusegenError, ShapeError
from fusegen.core.recent import Recent
from fusegen.declare.op import SEED, is_symbolic
from fusegen.declare.trace import TensorSpec
from fusegen.fused_op import FusedOp, RandomOp, torch_is_loaded
from fusegen.plan import frameworks, overlap
from fusegen.run import verify
from fusegen.run.listed import Call, ListPlan, Made, plan_calls

if TYPE_CHECKING:
    from fusegen.pytorch.replay.list_reading import ListsRead

# Plans that an op keeps, each for lists of so many tensors of such sizes.
MOST_PLANS = 64


def foreach(op: FusedOp[..., Any]) -> ForEach:
    """``op`` called with lists of tensors: once for each place of the lists, in few launches.

    ``fg.foreach(op)(xs, ys, 0.5)`` computes ``[op(x, y, 0.5) for x, y in zip(xs, ys)]``. An argument that is a list (or
    a tuple) of tensors is taken apart; whatever else is passed goes to every call as it is. An op with several results
    gives a list for each. ``out=`` takes a list to write into (a tuple of lists, for several results), which may be an
    argument: parameters are updated in place. Empty lists give an empty list.

    Tensors may differ in shape, dtype, strides, alignment and device. Those of one device and dtype that lie in memory
    without gaps share launches, however many dimensions they have; a launch gets a table of addresses in the kernel's
    parameters, which has room for some 60 tensors where an op reads and writes seven, for 170 where it takes two. So it
    is for elementwise ops, and for those that reduce all elements to a number (``fg.sum(x * x)``). Other ops, and calls
    that autograd records, torch.compile traces, a mode or a transform sees, are one call after the other. Each call of
    an op that draws random numbers has a seed of its own.

    Args:
        op: an op that was declared with ``@fg.op``, or one of ``fusegen.ops``.

    Raises:
        DeclarationError: ``op`` is none; on a call: no list, ``out=`` that does not fit.
        ShapeError: on a call: lists of several lengths.
    """
    if not isinstance(op, FusedOp):
        raise DeclarationError(
            "fg.foreach", given=f"a {type(op).__name__}", expected="an op, declared with @fg.op",
            fix="declare what is to be done with each tensor: fg.foreach(fg.op(function))",
        )  # fmt: skip
    if is_compiling():  # which keeps nothing
        return ForEach(op)
    found: ForEach | None = op.__dict__.get("_foreach")
    return found if found is not None else op.__dict__.setdefault("_foreach", ForEach(op))


def is_compiling() -> bool:
    """Whether Dynamo traces."""
    if not torch_is_loaded():
        return False
    import torch

    return torch.compiler.is_dynamo_compiling()


@dataclass(frozen=True)
class _Lists:
    """A call's arguments, as the loop passes them on.

    Args:
        count: the length of the lists.
        outs: what each result is written to, or None.
        one: the op has one result: a list is returned rather than a tuple of lists. None: only ``out`` could tell.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    count: int
    outs: tuple[Sequence[Any], ...] | None
    one: bool | None

    def at(self, i: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The i-th call's arguments."""
        kwargs = {name: value[i] if is_list(value) else value for name, value in self.kwargs.items()}
        if self.outs is not None:
            given = tuple(out[i] for out in self.outs)
            kwargs["out"] = given[0] if self.one else given
        return tuple(value[i] if is_list(value) else value for value in self.args), kwargs


class ForEach:
    """An op on lists of tensors (see `foreach`).

    Attributes:
        op: the op that each call is of.
    """

    def __init__(self, op: FusedOp[..., Any]) -> None:
        self.op = op
        self._plans: Recent[Any, tuple[ListPlan, bool] | str] | None = None
        self._parameters: Any = None

    def __repr__(self) -> str:
        return f"fg.foreach({self.op.name})"

    def __call__(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        lists = self._lists(args, kwargs, out)
        if lists.count == 0:
            return out if out is not None else []
        if torch_is_loaded() and not is_compiling():
            found = self._together(lists)
            if found is not None:
                return _returned(found[0], found[1], out)
        results = []
        for i in range(lists.count):
            given, named = lists.at(i)
            results.append(self.op(*given, **named))
        several = isinstance(results[0], tuple)
        return _returned(
            [list(each) for each in zip(*results, strict=True)] if several else [results], not several, out
        )

    def _lists(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> _Lists:
        """The arguments, checked."""
        name = repr(self)
        counts = {f"argument {i}": len(value) for i, value in enumerate(args) if is_list(value)}
        counts |= {f"argument {n}": len(value) for n, value in kwargs.items() if is_list(value)}
        if not counts:
            raise DeclarationError(
                name, given="no list of tensors", expected="lists of tensors, one of each for every call",
                fix=f"pass [x]; for one call use {self.op.name}(...)",
            )  # fmt: skip
        outs, one = None, None
        if out is not None:
            one = is_list(out) and not (len(out) and is_list(out[0]))
            outs = (out,) if one else tuple(out) if isinstance(out, (tuple, list)) else (out,)
            wrong = [type(o).__name__ for o in outs if not isinstance(o, (list, tuple))]
            if wrong:
                raise DeclarationError(
                    f"{name}, out=", given=wrong[0], expected="a list of tensors, for several results a tuple of lists",
                    fix="pass a tensor for every call",
                )  # fmt: skip
            counts |= {f"out[{i}]": len(o) for i, o in enumerate(outs)}
        if len(set(counts.values())) > 1:
            raise ShapeError(
                name, given=", ".join(f"{n}: {count} tensors" for n, count in counts.items()),
                expected="lists of one length",
                fix="pass what is the same for all calls as a tensor or a number, not as a list",
            )  # fmt: skip
        return _Lists(args, kwargs, next(iter(counts.values())), outs, one)

    # -- in few launches ------------------------------------------------------------------------------------------

    def _together(self, lists: _Lists) -> tuple[list[list[Any]], bool] | None:
        """Each result's tensors, and whether there is one result; None for what the loop has to do."""
        declaration = self.op.declaration
        usual = type(self.op) in (FusedOp, RandomOp) and declaration.prepare is None and declaration.overwrites is None
        if not usual or verify.is_on():
            return None
        from fusegen.pytorch.replay import modes

        if not modes.nobody_looks() or (declaration.autocast is not None and any(on for on, _ in modes.autocast())):
            return None
        values = declaration.bind(lists.args, lists.kwargs)
        if isinstance(self.op, RandomOp) and lists.kwargs.get(SEED) is None:
            values[SEED] = self._seeds(lists)
        read = self._read(values, lists)
        if read is None:
            return None
        plans = self._plans = Recent(MOST_PLANS) if self._plans is None else self._plans
        found = plans.get(read.key)
        if found is None:
            found = plans.setdefault(read.key, self._planned(values, lists) or "a loop")
        if isinstance(found, str):
            return None
        plan, one = found
        framework = frameworks.torch()
        if lists.outs is not None:
            if not _is_apart(plan, read, lists.count, len(lists.outs)):
                return None
            results = [list(given) for given in lists.outs]
        else:
            results = _made(plan.results, framework, read.lists[0])
            read.addresses += [framework.pointer(tensor) for given in results for tensor in given]
        plan.run(read.addresses, read.numbers, framework)
        if lists.outs is not None:
            overlap.mark_written([tensor for given in lists.outs for tensor in given], framework)
        return results, one

    def _seeds(self, lists: _Lists) -> Any:
        """A seed for each call, from torch's generator; a number where no call draws."""
        args, kwargs = lists.at(0)
        kwargs.pop("out", None)
        tensors = next(value for value in (*lists.args, *lists.kwargs.values()) if is_list(value))
        if not hasattr(tensors[0], "get_device") or not self.op._draws(args, kwargs):  # type: ignore[attr-defined]
            return 0
        import torch

        drawn = {
            device: iter(torch.randint(-(2**63), 2**63 - 1, (lists.count,), device=device).unbind(0))
            for device in dict.fromkeys(tensor.device for tensor in tensors)
        }
        return [next(drawn[tensor.device]) for tensor in tensors]

    def _read(self, values: Mapping[str, Any], lists: _Lists) -> ListsRead | None:
        """A call, read for its plan; None for what the loop has to do."""
        import torch

        from fusegen.pytorch.calls.cached_call import Parameters
        from fusegen.pytorch.replay.list_reading import ListsRead

        if self._parameters is None or self._parameters.is_outdated(self.op.declaration):
            self._parameters = Parameters.of(self.op.declaration)
        read = ListsRead(lists.count, lists.outs is not None)
        for name, flag in zip(self._parameters.names, self._parameters.flags, strict=True):
            value = values[name]
            if not (read.read_list(value) if is_list(value) else read.read_shared(value, flag)):
                return None
        if not all(read.read_list(given) for given in lists.outs or ()):
            return None
        if torch.is_grad_enabled() and any(tensor.requires_grad for given in read.lists for tensor in given):
            return None
        return read

    def _planned(self, values: Mapping[str, Any], lists: _Lists) -> tuple[ListPlan, bool] | None:
        """The plan of a call, and whether its op has one result; None for what the loop has to do."""
        framework, declaration = frameworks.torch(), self.op.declaration
        known = len(declaration.fixed)
        numbers = {n: v for n, v in values.items() if declaration.is_runtime_number(n, v)}
        tensors = [n for n, v in values.items() if is_list(v) or framework.owns(v)]
        calls = []
        for i in range(lists.count):
            own = {name: value[i] if is_list(value) else value for name, value in values.items()}
            try:
                calls.append(self._call(own, numbers, [out[i] for out in lists.outs] if lists.outs else None))
            except FusegenError as error:
                raise error.within(f"{self!r}, tensors {i} of the lists") from None
        if len(declaration.fixed) > known:  # numbers that are constants from here on
            return self._planned(values, lists)
        ops = [call.op for call in calls]
        counts = {len({o.base for o in op.outputs}) for op in ops}
        if len(counts) > 1 or any(op.result != ops[0].result or not op.operands for op in ops):
            return None
        if lists.outs is not None and counts != {len(lists.outs)}:
            return None  # the op says what is wrong
        plan = plan_calls(calls, tensors, tuple(numbers))
        return None if plan is None else (plan, ops[0].result == "one")

    def _call(self, values: Mapping[str, Any], numbers: Mapping[str, Any], outs: Sequence[Any] | None) -> Call:
        framework, declaration = frameworks.torch(), self.op.declaration
        specs: dict[str, Any] = {}
        infos = {}
        for name, value in values.items():
            if framework.owns(value):
                infos[name] = framework.info(name, value)
                specs[name] = TensorSpec(infos[name].dtype, infos[name].shape)
            else:
                specs[name] = declaration.scalar_spec(name, value) if name in numbers else value
        op = declaration.trace(specs)
        out = None if outs is None else tuple(framework.info(f"out[{i}]", t) for i, t in enumerate(outs))
        return Call(op, infos, out)


def _is_apart(plan: ListPlan, read: ListsRead, count: int, results: int) -> bool:
    """Whether no call writes where another one reads or writes: one after the other they may, together not. A result
    may be its own call's argument, element for element."""
    told = tuple(read.addresses)
    if plan.checked == told:
        return True
    framework, tensors = frameworks.torch(), [tensor for given in read.lists for tensor in given]
    if plan.lies is None:  # which is the same in each call of the plan
        infos = [framework.info("", tensor) for tensor in tensors]
        plan.lies = [(*overlap.extent(info), overlap.layout_of(info)) for info in infos]
    written = len(tensors) - count * results
    spans: list[list[int]] = []
    own: dict[tuple[int, int], list[int]] = {}
    for at, (address, (low, high, layout)) in enumerate(zip(told, plan.lies, strict=True)):
        span = [address + low, address + high, at]
        if at // count in read.shared and count > 1:
            if at % count:  # what all calls read, once
                continue
        else:
            before = own.setdefault((address, at % count), span)
            is_own = before[2] < min(at, written) and plan.lies[before[2]][2] == layout
            pair = before[2] // count, (at - written) // count
            if is_own and pair not in plan.elsewhere:  # the call's own argument
                before[2] = at
                continue
        if low < high:
            spans.append(span)
    spans.sort()
    ends = map(operator.itemgetter(1), spans)
    starts = map(operator.itemgetter(0), itertools.islice(spans, 1, None))
    if any(map(operator.gt, ends, starts)) and _meet(spans, tensors, written):
        return False
    plan.checked = told
    return True


def _meet(spans: Sequence[Sequence[int]], tensors: Sequence[Any], written: int) -> bool:
    """Whether tensors share memory that may do so only if no call writes there.

    Args:
        spans: of memory, in order: where each begins and ends, and which tensor it is of.
        written: the first tensor that is written.
    """
    reached: list[tuple[int, int, int]] = []  # what the sweep over memory is within
    for first, last, at in spans:
        reached = [other for other in reached if other[1] > first]
        for _, _, other in reached:
            if max(at, other) < written:
                continue
            if overlap.overlap(frameworks.torch(), tensors[at], tensors[other]) is not False:
                return True
        reached.append((first, last, at))
    return False


def is_list(value: Any) -> bool:
    """Whether an argument is a list of tensors; a tuple of numbers (``axis=(0, 1)``), or of none, is an option."""
    if type(value) not in (list, tuple):
        return False
    if not value:
        return type(value) is list
    return hasattr(value[0], "dtype") or is_symbolic(tuple(value), {})


def _made(plan: Sequence[tuple[Made, ...]], framework: Any, tensors: Sequence[Any]) -> list[list[Any]]:
    """New tensors for each result, on the devices of the first list's."""
    where = [framework.info("", tensor).device for tensor in tensors]
    made = [
        [framework.empty(shape, strides, dtype, device) for shape, strides, dtype in own]
        for own, device in zip(plan, where, strict=True)
    ]
    return [list(each) for each in zip(*made, strict=True)]


def _returned(results: list[list[Any]], one: bool, out: Any) -> Any:
    if out is not None:
        return out
    return results[0] if one else tuple(results)
