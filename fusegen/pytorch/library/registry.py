"""Ops as torch's dispatcher knows them: ``torch.ops.fusegen.lerp``, with a fake implementation and with gradients.

An eager call on plain tensors does not come by here. Calls do that torch traces, or whose tensors are of another class
(fake, functional, a user's): they must be a call of a registered op to be seen. An overload (pytorch/library/schema.py)
is registered when it is first called for, under a name that follows from the call alone.

The library's ops are called as they are. A user's op has its module in front, ``fusegen::models_layers__swish``, and
the functions it is declared in, so that ops of one name in two modules are two ops.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from fusegen.core import dtypes, locks
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import Op
from fusegen.core.recent import Recent
from fusegen.declare.trace import TensorSpec
from fusegen.pytorch.library import torch_names

torch_names.require(torch_names.CALLS, torch_names.TRACING)

from fusegen.plan import backward, decided
from fusegen.plan import frameworks as fusegen_tensors
from fusegen.pytorch.calls.python_cache import PythonCache
from fusegen.pytorch.library import derived, fake, schema, vmap
from fusegen.pytorch.library.autograd import below_autograd, differentiate
from fusegen.pytorch.library.derived import Derived
from fusegen.pytorch.library.identity import identity
from fusegen.pytorch.library.native_kernels import RegisteredPlans, flags_of
from fusegen.pytorch.replay.reading import FLOATS_VARY, INTEGERS_VARY
from fusegen.run.runner import record_runs

NAMESPACE = "fusegen"
AUTOCAST_DEVICES = ("cpu", "cuda")
MOST_DERIVED = 4096  # Of one op. What an older graph names is derived again.
# Of what is derived, the numbers are values of a call; tensors, layout and text are not (see Registered).
DERIVED_FLAGS = (0, FLOATS_VARY | INTEGERS_VARY, 0, 0)

_torch = torch.library.Library(NAMESPACE, "FRAGMENT")
_lock = locks.reentrant_lock()
_taken: set[str] = set()


def is_plain(values: Sequence[Any]) -> bool:
    """Whether nothing but fusegen has to see a call: no tensor without memory or of another class, no mode."""
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    return not any(
        isinstance(v, torch.Tensor)
        and (v.is_meta or (type(v) is not torch.Tensor and type(v) is not torch.nn.Parameter))
        for v in values
    )


class Registered:
    """One declared op and its overloads."""

    def __init__(self, op: Any, name: str) -> None:
        self.op, self.name = op, name
        self.declaration = op.declaration
        self.count = schema.result_count(self.declaration)
        self.overloads: dict[tuple[str, str], schema.Schema] = {}
        self.calls: Recent[str, Derived] = Recent(MOST_DERIVED)
        self.texts: Recent[str, Derived] = Recent(MOST_DERIVED)
        self.defined: dict[str, tuple[schema.Schema, DType | None]] = {}
        self._sharded: Any = None
        self.plans: dict[str, RegisteredPlans] = {}
        self._identity = ""
        for which in ("forward", "backward"):
            _torch.define(f"{name}_{which}(Tensor[] tensors, Scalar[] numbers, SymInt[] layout, str op) -> Tensor[]",
                          tags=(torch.Tag.pt2_compliant_tag,))  # fmt: skip
            run = partial(self._run_derived, which)
            vmapped = partial(vmap.of_derived, self, f"{name}_{which}")
            self._implement(f"{name}_{which}", run, self._imagine_derived, self._differentiate_derived, vmapped)
            self.plans[which] = RegisteredPlans(f"{name}_{which}", DERIVED_FLAGS)

    def _implement(self, name: str, run: Any, imagine: Any, differentiated: Any, batched: Any) -> None:
        """The kernels in Python, for tensors of all devices; native ones stand before them
        (pytorch/library/native_kernels.py).
        """
        _torch.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", imagine, lib=_torch)
        _torch.impl(name, differentiated, "Autograd")
        _torch.impl(name, batched, "FuncTorchBatched")

    def overload(self, kinds: Mapping[str, str], fixed: Mapping[str, Any]) -> str:
        """The name of the overload for a call, ``lerp.default``; it is registered if it is new."""
        found = schema.schema_of(self.declaration, self.name, kinds, fixed)
        with _lock:
            known = self.overloads.get((found.packet, found.overload))
            if known is None:
                self._define(found)
                self.overloads[found.packet, found.overload] = found
            elif known != found:
                raise DeclarationError(
                    found.packet, given=f"constants {dict(found.fixed)} beside {dict(known.fixed)}",
                    expected="constants that can be told apart by name", fix="declare an op for each",
                )  # fmt: skip
            self._register_dtensor_rules()
        return f"{found.packet}.{found.overload or 'default'}"

    @property
    def identity(self) -> str:
        """What tells the op from an earlier one of its name (pytorch/library/identity)."""
        if not self._identity:
            self._identity = identity(self.declaration)
        return self._identity

    def _register_dtensor_rules(self) -> None:
        """Tell torch what becomes of DTensors, where there can be any. (Else it says itself that it does not know.)"""
        if "torch.distributed.tensor" in sys.modules and not torch_names.missing(torch_names.SHARDING):
            if self._sharded is None:
                from fusegen.pytorch.library.dtensor import Sharded

                self._sharded = Sharded(self, _torch)
            self._sharded.register()

    def _define(self, found: schema.Schema) -> None:
        """The overload, and beside it what autocast turns it into."""
        self._define_as(found.packet, found, None)
        policy = self.declaration.autocast
        if policy is None:
            return
        targets = [dtypes.float16, dtypes.bfloat16] if policy == "half" else [dtypes.float32]
        for target in targets:
            self._define_as(f"{found.packet}_autocast_{target}", found, target)
        for device in AUTOCAST_DEVICES:
            name = f"{found.packet}.{found.overload}".rstrip(".")
            _torch.impl(name, self._autocast(found, device), f"Autocast{device.upper()}")

    def _define_as(self, packet: str, found: schema.Schema, autocast: DType | None) -> None:
        name = f"{packet}.{found.overload}".rstrip(".")
        _torch.define(name + found.text, tags=(torch.Tag.pt2_compliant_tag,))
        self.defined[name] = found, autocast
        is_named = bool(found.fixed or found.spelled)

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_named or schema.IDENTITY in kwargs:
                args, kwargs = (), found.named(args, kwargs)
            if autocast is None and plans.module is None and not torch._C._is_any_autocast_enabled():
                cached = self.op._cached  # the op's own, in Python; what torch sees of a call it has seen
                is_known = isinstance(cached, PythonCache) and not decided.state.anew
                entry = cached.find(args, kwargs) if is_known else None
                return self.packed(self.op.call(args, kwargs) if entry is None else entry())
            return self.packed(self.op.call(args, kwargs, autocast))

        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.no_grad(), record_runs() as runs:
                result = call(*args, **kwargs)
            if plans.has_pending_call():
                given = {**defaults, **found.named(args, kwargs)}
                plans.record_call({name: given[name] for name in (*found.names, schema.IDENTITY)}, runs, result)
            return result

        def imagine(*args: Any, **kwargs: Any) -> Any:
            given = found.named(args, kwargs)
            values = self.declaration.bind((), given)
            op, _, _, tensors = fake.trace_call(self.declaration, values, autocast)
            infos = {name: fake.describe(name, tensor) for name, tensor in tensors.items()}
            results = fake.results(op, infos, {}, {})
            return self.packed(results[0] if op.result == "one" else tuple(results))

        def differentiated(*args: Any, **kwargs: Any) -> Any:
            given = (*args, *kwargs.values())
            if is_plain(given):
                return call(*args, **kwargs)
            self._register_dtensor_rules()
            if not _needs_gradient(given):
                with below_autograd():
                    return dispatched(packet, found.overload)(*args, **kwargs)
            return self.packed(self._differentiate(found.named(args, kwargs), autocast))

        def vmapped(*args: Any, **kwargs: Any) -> Any:
            return vmap.of_call(self, dispatched(packet, found.overload), found, autocast, args, kwargs)

        self._implement(name, run, imagine, differentiated, vmapped)
        arguments = dispatched(packet, found.overload)._schema.arguments
        defaults = found.own({a.name: a.default_value for a in arguments if a.has_default_value()})
        known = len(self.declaration.fixed)
        flags = [*flags_of(self.declaration, found.names, defaults), 0]
        plans = RegisteredPlans(name, flags, lambda: known != len(self.declaration.fixed))
        self.plans[name] = plans

    def _autocast(self, found: schema.Schema, device: str) -> Any:
        """The kernel that torch.autocast calls: it goes on to the overload that computes in the policy's dtype."""

        def cast(*args: Any, **kwargs: Any) -> Any:
            tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
            specs = {str(i): TensorSpec(fake.describe("", t).dtype, ()) for i, t in enumerate(tensors)}
            half = fusegen_tensors.torch().dtypes[torch.get_autocast_dtype(device)]
            target = self.declaration.cast_to(specs, half)
            if target is not None:
                return dispatched(f"{found.packet}_autocast_{target}", found.overload)(*args, **kwargs)
            with torch.autocast(device, enabled=False):
                return dispatched(found.packet, found.overload)(*args, **kwargs)

        return cast

    def packed(self, result: Any) -> Any:
        """A result as the schema has it.

        Raises:
            DeclarationError: it was read off the declaration that there are fewer or more results.
        """
        if self.count == schema.MANY:
            return list(result) if isinstance(result, tuple) else [result]
        found = len(result) if isinstance(result, tuple) else 0
        if found != self.count:
            raise DeclarationError(
                f"{self.op.name}, results", given=f"a tuple of {found}" if found else "one tensor",
                expected=f"{self.count or 'one, no tuple'}: what a call returns must be known before the op is traced",
                fix="say it: `-> tuple[fg.Tensor, fg.Tensor]`, or `-> tuple[fg.Tensor, ...]` if it depends",
            )  # fmt: skip
        return result

    # -- gradients ----------------------------------------------------------------------------------------------------

    def _differentiate(self, given: Mapping[str, Any], autocast: DType | None) -> Any:
        root, tensors, scalars = self._root(given, autocast)
        results = differentiate(self, root, tensors, scalars, [])
        return results[0] if root.op.result == "one" else tuple(results)

    def call_as_derived(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What overload ``name`` computes, through the forward that saves (nothing): there DTensors have a rule."""
        found, autocast = self.defined[name]
        given = found.named(args, kwargs)
        root, tensors, scalars = self._root(given, autocast)
        results = self.call_derived(root, tensors, scalars, [])
        return self.packed(results[0] if root.op.result == "one" else tuple(results))

    def _root(self, given: Mapping[str, Any], autocast: DType | None) -> tuple[Derived, list[Any], dict[str, Any]]:
        """The Op of a call, its tensors in order, and its numbers."""
        values = self.declaration.bind((), given)
        op, specs, scalars, tensors = fake.trace_call(self.declaration, values, autocast)
        root = self.root(op, specs, autocast)
        return root, [tensors[n] for n in root.arguments], scalars

    def root(self, op: Op, specs: Mapping[str, Any], autocast: DType | None) -> Derived:
        """The Op of a call, from which others are derived."""
        call = derived.call_text(specs, op, autocast, self.identity)
        found = self.calls.get(call)
        return found if found is not None else self.calls.setdefault(call, derived.root(self.declaration, call, op))

    def call_derived(
        self, node: Derived, given: Sequence[torch.Tensor], scalars: Mapping[str, Any], layout: Sequence[Any]
    ) -> list[torch.Tensor]:
        """The registered op for something derived, called."""
        backward.check_no_jit_trace(self.op.name)
        self.texts.setdefault(node.text, node)
        last = node.steps[-1][0] if node.steps else "train"
        which = "backward" if last in ("back", "local") else "forward"
        numbers = [scalars[scalar.name] for scalar in node.op.scalars]
        call = dispatched(f"{self.name}_{which}")
        found: list[torch.Tensor] = call(list(given), numbers, list(layout), node.text)
        return found

    def forget(self) -> None:
        """Derive anew what is derived: the op has another gradient."""
        self._identity = ""
        self.calls.clear()
        self.texts.clear()
        for plans in self.plans.values():
            plans.forget()

    def node(self, text: str) -> Derived:
        """What a text in a graph stands for."""
        node = self.texts.get(text)
        if node is None:
            node = self.texts.setdefault(text, derived.find(self.declaration, self.calls, text))
        return node

    def _run_derived(self, which: str, given: Any, numbers: Any, layout: Any, op: str) -> list[torch.Tensor]:
        node, plans = self.node(op), self.plans[which]
        with record_runs() as runs:
            results = node.run(given, numbers, layout)
        if plans.has_pending_call():
            scalars = {scalar.name: i for i, scalar in enumerate(node.op.scalars)}
            plans.record(runs, range(len(given)), scalars, results)
        return results

    def _imagine_derived(self, given: Any, numbers: Any, layout: Any, op: str) -> list[torch.Tensor]:
        return self.node(op).imagine(given, layout)

    def _differentiate_derived(self, given: Any, numbers: Any, layout: Any, op: str) -> list[torch.Tensor]:
        node = self.node(op)
        needed = _needs_gradient(given)
        if not needed and is_plain(given):
            return node.run(given, numbers, layout)
        self._register_dtensor_rules()
        scalars = dict(zip((scalar.name for scalar in node.op.scalars), numbers, strict=True))
        if needed:
            return list(differentiate(self, node, given, scalars, layout))
        with below_autograd():
            return self.call_derived(node, given, scalars, layout)


def dispatched(packet: str, overload: str = "") -> torch._ops.OpOverload:
    """``torch.ops.fusegen.PACKET.OVERLOAD``."""
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.fusegen, packet), overload or "default")
    return found


def _needs_gradient(given: Sequence[Any]) -> bool:
    """Whether autograd has to see a call."""
    tensors = [v for v in given if isinstance(v, torch.Tensor)]
    if any(forward_ad.unpack_dual(t, level=0).tangent is not None for t in tensors):  # a graph's level only C++ knows
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


# -- names -----------------------------------------------------------------------------------------------------------


def registered(op: Any) -> Registered:
    """The op's entry; made when it is first asked for."""
    found: Registered | None = op.__dict__.get("_registered")
    if found is None:
        with _lock:
            found = op.__dict__.get("_registered")
            if found is None:
                name = wanted = name_of(op)
                number = 1
                # Taken if it was declared before (a notebook's cell), or by a function that is called again.
                while _taken & {name, f"{name}_forward", f"{name}_backward"}:
                    number += 1
                    name = f"{wanted}_{number}"
                _taken.update((name, f"{name}_forward", f"{name}_backward"))
                found = op._registered = Registered(op, name)
    return found


def name_of(op: Any) -> str:
    """What an op is called in torch: by its own name in the library, else behind its module and functions."""
    function = op.declaration.function
    module = getattr(function, "__module__", None) or ""
    if module == "fusegen.ops" or module.startswith("fusegen.ops."):
        return str(op.name)
    listed = op.declaration.listed
    of_so_many = "" if listed is None else f"_of_{len(listed)}"
    outer = getattr(function, "__qualname__", "").replace(".<locals>", "").split(".")[:-1]
    name = "_".join([*module.strip("_").split("."), *outer]) + f"__{op.name}{of_so_many}"
    return re.sub(r"\W", "_", name, flags=re.ASCII)  # a schema's names are plain: no <lambda>, no letter beyond ASCII


def register(*ops: Any) -> list[str]:
    """Register ops (all of fusegen.ops if none are named) with torch before they are called.

    A call registers what it needs by itself. Loading a graph that was saved (``torch.export.load``) does not.

    Returns:
        Names below ``torch.ops.fusegen``.

    Raises:
        DeclarationError: an op that takes ``*xs`` is as many ops as there are lengths of it.
    """
    if not ops:
        import importlib

        library = importlib.import_module("fusegen.ops")
        ops = tuple(getattr(library, name) for name in library.__all__)
    for op in ops:
        if op.declaration.tensors is not None:
            raise DeclarationError(
                f"fg.register, {op.name}{op.declaration.signature}", given="an op that takes any number of tensors",
                expected="one that takes so many", fix=f"say how many: fg.register({op.name}.of(3))",
            )  # fmt: skip
        for kinds in schema.usual_kinds(op.declaration):
            registered(op).overload(kinds, {})
    return [registered(op).name for op in ops]
