"""Cached calls in Python, for machines without the native module, which does the same (native/fusegen_native_caller.h).

Each tensor is read once. What was read is the key that a plan is found by, and has the addresses that it is run on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from fusegen.native import module as native
from fusegen.plan import frameworks
from fusegen.plan.backward import separated, views_a_leaf
from fusegen.pytorch.autograd import accumulate_grad
from fusegen.pytorch.calls.cached_call import CachedCall, Parameters
from fusegen.pytorch.replay.modes import autocast, nobody_looks
from fusegen.pytorch.replay.reading import read_into
from fusegen.pytorch.replay.runs import replay_of
from fusegen.run import verify

_is_autocast = torch._C._is_any_autocast_enabled

# (key, tensors, their addresses, numbers) of a call.
Read = tuple[tuple[Any, ...], list[Any], list[int], list[Any]]


class PythonCache:
    """Calls of one op by their keys.

    Args:
        slow_path: called with ``args`` and ``kwargs``, it decides a call, and inserts here what it did.
        most: how many calls to remember.
        stays: also when the native module is there; otherwise the next call takes the slow path, which changes over.
    """

    def __init__(
        self, slow_path: Callable[..., Any], parameters: Parameters, most: int, *, stays: bool = False
    ) -> None:
        self.slow_path, self.parameters, self.most, self.stays = slow_path, parameters, most, stays
        # The oldest goes, asked for or not: core/recent would take a lock and a move with every call.
        self.entries: OrderedDict[Any, _Entry] = OrderedDict()
        self.places = {name: i for i, name in enumerate(parameters.names)}
        self.has_products = False  # of any call so far: plans of products are for one answer to frameworks.Settings

    def __len__(self) -> int:
        return len(self.entries)

    def clear(self) -> None:
        """Forget every call."""
        self.entries.clear()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The op's results for these arguments."""
        # Most often there is no module and nothing to say of it: then no function is called to hear that.
        state = native.state
        if self.stays or not (state.key or (state.problem and not state.has_warned)) or not native.is_found():
            read = self._read(args, kwargs)
            if read is not None:
                key, tensors, addresses, numbers = read
                entry = self.entries.get(key)
                if entry is not None:
                    return entry.call(tensors, addresses, numbers)
        return self.slow_path(args, kwargs)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        """What gives the op's results for these arguments; None for a call that is not known."""
        read = self._read(args, kwargs)
        entry = None if read is None else self.entries.get(read[0])
        return None if read is None or entry is None else partial(entry.call, *read[1:])

    def insert(self, args: tuple[Any, ...], kwargs: dict[str, Any], cached: CachedCall) -> None:
        """Do from now on for calls like this one what was done for it."""
        if not self.has_products and cached.run.runner.settings(frameworks.torch()) is not None:
            self.has_products = True
            self.entries.clear()  # under keys that lack the settings
        read = self._read(args, kwargs)
        if read is not None:
            self.entries[read[0]] = _Entry(cached)
            if len(self.entries) > self.most:
                self.entries.popitem(last=False)

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Read | None:
        """What a call is given; None for one that only the slow path can judge."""
        flags = self.parameters.flags
        if len(args) > len(flags) or not nobody_looks():
            return None
        tensors: list[Any] = []
        addresses: list[int] = []
        numbers: list[Any] = []
        key: list[Any] = []
        recording = torch.is_grad_enabled()
        if self.has_products:
            key.append(frameworks.torch().settings())
        if _is_autocast():
            key.append(autocast())
        if kwargs:
            if not kwargs.keys() <= self.places.keys():
                return None
            key.append(tuple(kwargs))
            flags = (*flags[: len(args)], *(flags[self.places[name]] for name in kwargs))
            args = (*args, *kwargs.values())
        if not read_into(args, flags, recording, key, tensors, addresses, numbers):
            return None
        return tuple(key), tensors, addresses, numbers


class _Entry:
    """A cached call."""

    def __init__(self, cached: CachedCall) -> None:
        self.one, self.visible = cached.one, cached.visible
        self.replay = replay_of(cached.run, cached.inputs, cached.numbers, cached.fixed)
        self.recorder = cached.recorder
        if cached.trained is None:
            return
        self.trained = cached.trained
        self.inputs, self.numbers, self.fixed = cached.inputs, cached.numbers, cached.fixed
        self.arguments, self.kept = cached.trained.forward.arguments, cached.trained.kept
        self.layout, self.shapes = cached.trained.layouts(cached.run.tensors)

    def call(self, tensors: list[Any], addresses: list[int], numbers: list[Any]) -> Any:
        """The results of a call like the first one."""
        if self.recorder is None:
            results: Sequence[Any] = self.replay(tensors, addresses, numbers)
        elif self.recorder.is_cacheable and not verify.is_on():
            given = [tensors[at] for at in self.inputs]
            results = _apply(self, tensors, addresses, numbers, *given)  # type: ignore[no-untyped-call]
        else:
            values = {name: tensors[at] for name, at in zip(self.arguments, self.inputs, strict=True)}
            results = self.recorder(values, self.scalars(numbers))
        if self.one:
            return results[0]
        return tuple(results if len(results) == self.visible else results[: self.visible])

    def scalars(self, numbers: Sequence[Any]) -> Mapping[str, Any]:
        """A call's scalars by name."""
        if not self.numbers:
            return self.fixed
        return {**self.fixed, **{name: numbers[at] for name, at in self.numbers.items()}}


class CachedNode(torch.autograd.Function):
    """forward(entry, tensors, addresses, numbers, *arguments) -> results, those saved for the backward last."""

    @staticmethod
    def forward(
        ctx: Any, entry: _Entry, tensors: list[Any], addresses: list[int], numbers: list[Any], *arguments: Any
    ) -> tuple[Any, ...]:  # fmt: skip
        results = entry.replay(tensors, addresses, numbers)
        ctx.entry, ctx.numbers = entry, numbers
        entry.kept.tell(ctx, arguments, results)
        ctx.apart = [views_a_leaf(argument) for argument in arguments]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        needed, saved = ctx.needs_input_grad[4:], ctx.saved_tensors
        accumulate_into = accumulate_grad.accumulate_into(ctx, needed, (*saved, *cotangents))
        entry, scalars = ctx.entry, ctx.entry.scalars(ctx.numbers)
        trained, layout, shapes = entry.trained, entry.layout, entry.shapes
        found = trained.gradients_for(saved, cotangents, layout, shapes, scalars, needed, accumulate_into)
        return (None, None, None, None, *(separated(found, cotangents, ctx.apart) if any(ctx.apart) else found))


# What torch.autograd.Function.apply does outside of torch.func's transforms, less ten microseconds of inspect.
_apply = super(torch.autograd.Function, CachedNode).apply
