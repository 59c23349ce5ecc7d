"""cuDNN's graph interface as far as fusegen calls it, on CPU memory: descriptors are dictionaries, plans are lists.

Its functions are C's (ctypes callbacks), so that Python and the native call path call the same ones. What cuDNN would
answer with undefined behaviour is written down in ``mistakes``, since a callback cannot raise.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.matmul.libraries import cudnn, cudnn_api, stopwatch
from fusegen.matmul.libraries.cudnn_api import FALLBACK, NONDETERMINISTIC, Attribute, Data, Kind, Mode, Type
from fusegen.run import libraries

NOT_SUPPORTED, FAILED = 3000, 5000
WORKSPACE, STREAM = 64, 77
DTYPES = {Data.FLOAT: torch.float32, Data.HALF: torch.float16, Data.BFLOAT16: torch.bfloat16}
ELEMENTS: dict[Type, Any] = {
    Type.HANDLE: ctypes.c_void_p, Type.POINTER: ctypes.c_void_p, Type.DESCRIPTOR: ctypes.c_void_p,
    Type.INT64: ctypes.c_int64, Type.DOUBLE: ctypes.c_double, Type.BOOLEAN: ctypes.c_bool, Type.DATA_TYPE: ctypes.c_int,
    Type.HEURISTIC_MODE: ctypes.c_int, Type.NUMERICAL_NOTE: ctypes.c_int, Type.POINTWISE_MODE: ctypes.c_int,
}  # fmt: skip
A, ONE, D = Attribute, 1, Type.DESCRIPTOR
# What a kind of descriptor may be told: its type, and how many (None: any number). All of it has to be, but OPTIONAL.
ATTRIBUTES: dict[Kind, dict[Attribute, tuple[Type, int | None]]] = {
    Kind.TENSOR: {
        A.DATA_TYPE: (Type.DATA_TYPE, ONE), A.SIZES: (Type.INT64, 3), A.STRIDES: (Type.INT64, 3),
        A.UNIQUE: (Type.INT64, ONE), A.ALIGNMENT: (Type.INT64, ONE), A.VIRTUAL: (Type.BOOLEAN, ONE),
        A.BY_VALUE: (Type.BOOLEAN, ONE),
    },
    Kind.MATMUL: {A.MATMUL_PRECISION: (Type.DATA_TYPE, ONE)},
    Kind.POINTWISE: {
        A.POINTWISE_MODE: (Type.POINTWISE_MODE, ONE), A.POINTWISE_PRECISION: (Type.DATA_TYPE, ONE),
        A.SWISH_BETA: (Type.DOUBLE, ONE),
    },
    Kind.DO_MATMUL: {A.DO_MATMUL: (D, ONE), A.MATMUL_A: (D, ONE), A.MATMUL_B: (D, ONE), A.MATMUL_C: (D, ONE)},
    Kind.DO_POINTWISE: {
        A.DO_POINTWISE: (D, ONE), A.POINTWISE_X: (D, ONE), A.POINTWISE_B: (D, ONE), A.POINTWISE_T: (D, ONE),
        A.POINTWISE_Y: (D, ONE),
    },
    Kind.GRAPH: {A.GRAPH_HANDLE: (Type.HANDLE, ONE), A.GRAPH_OPERATIONS: (D, None)},
    Kind.HEURISTIC: {A.HEURISTIC_GRAPH: (D, ONE), A.HEURISTIC_MODE: (Type.HEURISTIC_MODE, ONE)},
    Kind.PLAN: {A.PLAN_HANDLE: (Type.HANDLE, ONE), A.PLAN_CONFIGURATION: (D, ONE)},
    Kind.PACK: {
        A.PACK_UNIQUE: (Type.INT64, None), A.PACK_POINTERS: (Type.POINTER, None), A.PACK_WORKSPACE: (Type.POINTER, ONE),
    },
    Kind.CONFIGURATION: {}, Kind.ENGINE: {},
}  # fmt: skip
OPTIONAL = {A.VIRTUAL, A.BY_VALUE, A.SWISH_BETA, A.POINTWISE_B, A.POINTWISE_T}
TESTS: dict[Mode, Any] = {Mode.GT: torch.gt, Mode.GE: torch.ge, Mode.LT: torch.lt, Mode.LE: torch.le}
TWO: dict[Mode, Any] = {
    Mode.ADD: torch.add, Mode.SUB: torch.sub, Mode.MUL: torch.mul, Mode.DIV: torch.div, **TESTS
}  # fmt: skip
ONLY: dict[Mode, Any] = {
    Mode.NEG: torch.neg, Mode.ABS: torch.abs, Mode.EXP: torch.exp, Mode.SQRT: torch.sqrt, Mode.RSQRT: torch.rsqrt,
    Mode.TANH: torch.tanh, Mode.SIGMOID: torch.sigmoid, Mode.SOFTPLUS: F.softplus, Mode.SWISH: F.silu,
    Mode.GELU_TANH: functools.partial(F.gelu, approximate="tanh"),
}  # fmt: skip


@dataclass(eq=False)
class Thing:
    """What a descriptor holds; the descriptors that it refers to stay here when they are destroyed, as in cuDNN."""

    kind: Kind
    attributes: dict[Attribute, list[Any]] = field(default_factory=dict)
    is_finished: bool = False

    def __getitem__(self, attribute: Attribute) -> Any:
        (value,) = self.attributes[attribute]
        return value

    def get(self, attribute: Attribute) -> Any:
        return self[attribute] if attribute in self.attributes else None

    @property
    def is_virtual(self) -> bool:
        return bool(self.get(Attribute.VIRTUAL))


class Refused(Exception):
    """cuDNN's way to say that it does not do this."""


class Cudnn:
    """What ``cudnn_api.library`` returns.

    Attributes:
        things: descriptors that have been made and not destroyed, by handle.
        ran: what was computed, one text for each run: "MATMUL ADD,saved SWISH(1.702)".
        streams: on which stream, for each run.
        compiled: how many plans there have been.
        mistakes: how fusegen called it wrong.
        refuses: operations that are in no graph.
        bad_plans: how many of the next plans do not compile.
        notes: of the configurations that heuristics name, in their order, one each.
        fails: the status of a run.
        wrong: what happens to results.
    """

    def __init__(self) -> None:
        self.things: dict[int, Thing] = {}
        self.handles: dict[int, tuple[int, int] | None] = {}
        self.numbers = itertools.count(1000)
        self.ran: list[str] = []
        self.streams: list[int] = []
        self.compiled = 0
        self.mistakes: list[str] = []
        self.refuses: set[Mode] = set()
        self.bad_plans = self.fails = 0
        self.notes: list[list[int]] = [[]]
        self.wrong: Callable[[torch.Tensor], torch.Tensor] = lambda result: result
        number, address, count = ctypes.c_int, ctypes.c_void_p, ctypes.c_int64
        self.cudnnCreate = self._function(self._create, address)
        self.cudnnSetStream = self._function(self._set_stream, address, address)
        self.cudnnBackendCreateDescriptor = self._function(self._make, number, address)
        self.cudnnBackendDestroyDescriptor = self._function(self._destroy, address)
        self.cudnnBackendFinalize = self._function(self._finish, address)
        self.cudnnBackendSetAttribute = self._function(self._tell, address, number, number, count, address)
        self.cudnnBackendGetAttribute = self._function(self._ask, address, number, number, count, address, address)
        self.cudnnBackendExecute = self._function(self._execute, address, address, address)

    def _function(self, does: Callable[..., int | None], *types: Any) -> Any:
        def called(*arguments: int | None) -> int:
            try:
                return does(*(argument or 0 for argument in arguments)) or 0
            except Refused:
                return NOT_SUPPORTED
            except Exception as mistake:
                self.mistakes.append(f"{does.__name__}: {mistake!r}")
                return FAILED

        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(called)

    def _create(self, where: int) -> None:
        handle = ctypes.c_void_p.from_address(where).value = next(self.numbers)
        self.handles[handle] = None

    def _set_stream(self, handle: int, stream: int) -> None:
        assert handle in self.handles
        self.handles[handle] = stream, threading.get_ident()
        time.sleep(0)  # another thread's turn, if it could have one

    def _make(self, kind: int, where: int) -> None:
        made = ctypes.c_void_p.from_address(where).value = next(self.numbers)
        self.things[made] = Thing(Kind(kind))

    def _destroy(self, descriptor: int) -> None:
        del self.things[descriptor]

    # -- telling -------------------------------------------------------------------------------------------------------

    def _tell(self, descriptor: int, attribute: int, type: int, count: int, where: int) -> None:
        thing, attribute, type = self.things[descriptor], Attribute(attribute), Type(type)
        wanted, most = ATTRIBUTES[thing.kind][attribute]
        assert not thing.is_finished and type is wanted and count == (most or count) > 0, (thing, attribute, type)
        values = list((ELEMENTS[type] * count).from_address(where))
        if type is Type.DESCRIPTOR:
            values = [self._finished(value) for value in values]
        elif type is Type.HANDLE:
            assert set(values) <= set(self.handles)
        thing.attributes[attribute] = values

    def _finished(self, descriptor: int) -> Thing:
        found = self.things[descriptor]
        assert found.is_finished, found
        return found

    def _finish(self, descriptor: int) -> None:
        thing = self.things[descriptor]
        missing = set(ATTRIBUTES[thing.kind]) - OPTIONAL - set(thing.attributes)
        assert not thing.is_finished and not missing, (thing.kind, missing)
        check = getattr(self, f"_finish_{thing.kind.name.lower()}", None)
        if check is not None:
            check(thing)
        thing.is_finished = True

    def _finish_tensor(self, tensor: Thing) -> None:
        assert tensor[A.ALIGNMENT] == 16 and all(size > 0 for size in tensor.attributes[A.SIZES])
        assert not tensor.get(A.BY_VALUE) or tensor[A.DATA_TYPE] == Data.FLOAT

    def _finish_do_matmul(self, operation: Thing) -> None:
        a, b, c = (operation[which].attributes[A.SIZES] for which in (A.MATMUL_A, A.MATMUL_B, A.MATMUL_C))
        assert operation[A.DO_MATMUL][A.MATMUL_PRECISION] == Data.FLOAT
        assert a[0] == b[0] == c[0] == 1 and a[2] == b[1] and c[1:] == [a[1], b[2]]

    def _finish_do_pointwise(self, operation: Thing) -> None:
        mode = operation[A.DO_POINTWISE][A.POINTWISE_MODE]
        result = operation[A.POINTWISE_Y]
        assert operation[A.DO_POINTWISE][A.POINTWISE_PRECISION] == Data.FLOAT
        assert (A.POINTWISE_B in operation.attributes) == (mode in TWO or mode == Mode.SELECT)
        assert (A.POINTWISE_T in operation.attributes) == (mode == Mode.SELECT)
        assert (result[A.DATA_TYPE] == Data.BOOLEAN) == (mode in TESTS)
        for which in (A.POINTWISE_X, A.POINTWISE_B, A.POINTWISE_T):
            read = operation.get(which)
            assert read is None or (read[A.DATA_TYPE] == Data.BOOLEAN) == (which is A.POINTWISE_T)

    def _finish_graph(self, graph: Thing) -> None:
        operations = graph.attributes[A.GRAPH_OPERATIONS]
        made: set[Thing] = set()
        for operation in operations:
            assert all(not read.is_virtual or read in made for read in _reads(operation)), "read before it is made"
            made.add(_result(operation))
        assert len({one[A.UNIQUE] for one in _tensors(graph)}) == len(_tensors(graph)), "two tensors of one number"
        pointwise = [one[A.DO_POINTWISE][A.POINTWISE_MODE] for one in operations if one.kind is Kind.DO_POINTWISE]
        if self.refuses & {Mode(mode) for mode in pointwise}:
            raise Refused

    def _finish_heuristic(self, asked: Thing) -> None:
        assert asked[A.HEURISTIC_MODE] == FALLBACK

    def _finish_plan(self, plan: Thing) -> None:
        if self.bad_plans:
            self.bad_plans -= 1
            raise Refused
        self.compiled += 1

    def _finish_pack(self, pack: Thing) -> None:
        assert len(pack.attributes[A.PACK_UNIQUE]) == len(pack.attributes[A.PACK_POINTERS])

    # -- asking --------------------------------------------------------------------------------------------------------

    def _ask(self, descriptor: int, attribute: int, type: int, most: int, count: int, where: int) -> None:
        thing, found = self._finished(descriptor), (ELEMENTS[Type(type)] * most).from_address(where)
        told: Any
        if attribute == A.HEURISTIC_RESULTS:
            told = self.notes[:most]
            for one, notes in zip(found, told, strict=False):
                self._fill(one, {A.HEURISTIC_GRAPH: [thing[A.HEURISTIC_GRAPH]], A.ENGINE_NOTES: notes})
        elif attribute == A.CONFIGURATION_ENGINE:
            told = [thing.attributes[A.ENGINE_NOTES]]
            self._fill(found[0], {A.ENGINE_NOTES: told[0]})
        else:
            told = {A.ENGINE_NOTES: thing.attributes.get(A.ENGINE_NOTES), A.PLAN_WORKSPACE: [WORKSPACE]}[
                Attribute(attribute)
            ]
            assert told is not None
            found[: len(told)] = told
        ctypes.c_int64.from_address(count).value = len(told)

    def _fill(self, descriptor: int, told: dict[Attribute, list[Any]]) -> None:
        thing = self.things[descriptor]
        assert thing.kind in (Kind.CONFIGURATION, Kind.ENGINE) and not thing.is_finished
        thing.attributes, thing.is_finished = told, True

    # -- running -------------------------------------------------------------------------------------------------------

    def _execute(self, handle: int, plan: int, pack: int) -> int:
        set_on = self.handles[handle]
        assert set_on is not None and set_on[1] == threading.get_ident(), "the handle's stream is another thread's"
        if self.fails:
            return self.fails
        told, configuration = self._finished(pack), self._finished(plan)[A.PLAN_CONFIGURATION]
        assert NONDETERMINISTIC not in configuration.attributes[A.ENGINE_NOTES] and told[A.PACK_WORKSPACE]
        graph = configuration[A.HEURISTIC_GRAPH]
        where = dict(zip(told.attributes[A.PACK_UNIQUE], told.attributes[A.PACK_POINTERS], strict=True))
        assert set(where) == {tensor[A.UNIQUE] for tensor in _tensors(graph) if not tensor.is_virtual}
        values = {t: _read(t, where[t[A.UNIQUE]]) for t in _tensors(graph) if not t.is_virtual}
        operations, names = graph.attributes[A.GRAPH_OPERATIONS], []
        for operation in operations:
            result = _result(operation)
            value = _computed(operation, [values[tensor] for tensor in _reads(operation)])
            name = _name(operation)
            if not result.is_virtual:
                is_last = operation is operations[-1]
                _memory(result, where[result[A.UNIQUE]]).copy_(self.wrong(value) if is_last else value)
                name += "" if is_last else ",saved"
            values[result] = value
            names.append(name)
        self.ran.append(" ".join(names))
        self.streams.append(set_on[0])
        return 0


def _reads(operation: Thing) -> list[Thing]:
    places = (A.MATMUL_A, A.MATMUL_B, A.POINTWISE_X, A.POINTWISE_B, A.POINTWISE_T)
    return [operation[place] for place in places if place in operation.attributes]


def _result(operation: Thing) -> Thing:
    found: Thing = operation[A.MATMUL_C if operation.kind is Kind.DO_MATMUL else A.POINTWISE_Y]
    return found


def _tensors(graph: Thing) -> set[Thing]:
    return {t for one in graph.attributes[A.GRAPH_OPERATIONS] for t in (*_reads(one), _result(one))}


def _name(operation: Thing) -> str:
    if operation.kind is Kind.DO_MATMUL:
        return "MATMUL"
    how = operation[A.DO_POINTWISE]
    beta = how.get(A.SWISH_BETA)
    return Mode(how[A.POINTWISE_MODE]).name + (f"({beta})" if beta is not None else "")


def _computed(operation: Thing, given: list[torch.Tensor]) -> torch.Tensor:
    """In float32, but for tests."""
    if operation.kind is Kind.DO_MATMUL:
        return torch.matmul(*given)
    how = operation[A.DO_POINTWISE]
    mode, beta = Mode(how[A.POINTWISE_MODE]), how.get(A.SWISH_BETA)
    if mode is Mode.SELECT:
        return torch.where(given[2], given[0], given[1])
    if beta is not None:
        assert mode is Mode.SWISH
        return given[0] * torch.sigmoid(beta * given[0])
    found: torch.Tensor = (TWO if mode in TWO else ONLY)[mode](*given)
    return found


def _memory(tensor: Thing, address: int) -> torch.Tensor:
    """What lies at an address, as a tensor says."""
    sizes, strides = tensor.attributes[A.SIZES], tensor.attributes[A.STRIDES]
    lies = [stride for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride != 1]
    assert address % 16 == 0 and not any(stride % 8 for stride in lies)
    elements = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    dtype = DTYPES[Data(tensor[A.DATA_TYPE])]
    memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(sizes, strides)


def _read(tensor: Thing, address: int) -> torch.Tensor:
    if tensor.get(A.BY_VALUE):
        return torch.full((1, 1, 1), ctypes.c_float.from_address(address).value)
    return _memory(tensor, address).float()


# -- for tests ---------------------------------------------------------------------------------------------------------


def install(monkeypatch: pytest.MonkeyPatch, gpu: str) -> Cudnn:
    """A fake that is the only library, considered on the CPU for any size.

    Args:
        gpu: whose name no other test has measured anything under.
    """
    fake = Cudnn()
    monkeypatch.setattr(cudnn_api, "library", lambda: fake)
    monkeypatch.setattr(cudnn, "version", lambda: 91900)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
    (entry,) = (library for library in libraries.LIBRARIES if library.name == libraries.CUDNN)
    monkeypatch.setattr(libraries, "LIBRARIES", (replace(entry, is_considered=lambda _: True, least=0),))
    forget()
    return fake


def forget() -> None:
    """What other tests have planned and tried."""
    cudnn._kernels.clear()
    cudnn._alike.clear()
    for cache in (libraries._is_right, cudnn._handles):
        cache.cache_clear()


class Clock:
    """Says how long the candidates take, our own first, and runs them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, own: float = 300.0, library: float = 250.0) -> None:
        self.times, self.measured = (own, library), list[list[str]]()
        monkeypatch.setattr(stopwatch, "Stopwatch", lambda *_, **__: self)

    def turns(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        self.measured.append(list(works))
        for work in works.values():
            work()
        return dict(zip(works, self.times, strict=False))


# -- activations -------------------------------------------------------------------------------------------------------


def quick_gelu(h: torch.Tensor) -> torch.Tensor:
    """h sigmoid(1.702 h)."""
    return h * torch.sigmoid(1.702 * h)


# erf by a polynomial of the sixth degree in its argument's square.
ERF = " MUL" + " MUL ADD" * 6 + " MUL TANH"
# What cuDNN computes behind the product and its bias, and the same by torch.
ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor], str]] = {
    "silu": (fg.ops.silu, F.silu, "SWISH"),
    "silu of another": (lambda h: fg.sigmoid(h - 1) * (h - 1), lambda h: F.silu(h - 1), "SUB SWISH"),
    "quick_gelu": (fg.ops.quick_gelu, quick_gelu, "SWISH(1.702)"),
    "gelu": (lambda h: fg.ops.gelu(h, approximate="tanh"), lambda h: F.gelu(h, approximate="tanh"), "GELU_TANH"),
    "exact gelu": (fg.ops.gelu, F.gelu, "MUL MUL" + ERF + " SUB MUL"),
    "erf": (fg.erf, torch.erf, ERF),
    "tanh": (fg.ops.tanh, torch.tanh, "TANH"),
    "sigmoid": (fg.ops.sigmoid, torch.sigmoid, "SIGMOID"),
    "mish": (fg.ops.mish, F.mish, "SOFTPLUS TANH MUL"),
    "relu6": (fg.ops.relu6, F.relu6, "LE GE SELECT SELECT"),
    "leaky_relu": (lambda h: fg.where(h > 0, h, 0.1 * h), lambda h: F.leaky_relu(h, 0.1), "GT MUL SELECT"),
    "hardswish": (fg.ops.hardswish, F.hardswish, "LE MUL LT ADD MUL DIV SELECT SELECT"),
    "tanhshrink": (fg.ops.tanhshrink, F.tanhshrink, "TANH SUB"),
    "a user's": (
        lambda h: -fg.sqrt(fg.abs(h)) / (1 + fg.exp(-h)), lambda h: -h.abs().sqrt() / (1 + (-h).exp()),
        "ABS SQRT NEG NEG EXP ADD DIV",
    ),
    "a gate of its square": (lambda h: h * fg.sigmoid(h * h), lambda h: h * (h * h).sigmoid(), "MUL SIGMOID MUL"),
    "a bump": (lambda h: fg.rsqrt(1 + h * h), lambda h: (1 + h * h).rsqrt(), "MUL ADD RSQRT"),
}  # fmt: skip
