"""cuBLASLt as far as fusegen calls it, on CPU memory: descriptors are dictionaries.

Its functions are C's (ctypes callbacks), so that Python and the native call path call the same ones. What cuBLASLt
would answer with undefined behaviour is written down in ``mistakes``, since a callback cannot raise.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusegen.matmul.libraries import cublaslt, cublaslt_api, cublaslt_autotune, stopwatch
from fusegen.matmul.libraries.cublaslt_api import (
    COMPUTED_IN_FLOAT32,
    REDUCED_AS_COMPUTED,
    CublasLtEpilogue,
    HeuristicResult,
    MatmulDescAttr,
    MatmulPrefAttr,
)
from fusegen.run import libraries

NOT_SUPPORTED, FAILED = 15, 14
DTYPES = {2: torch.float16, 14: torch.bfloat16}
DESC_SIZES = {
    MatmulDescAttr.TRANSPOSED_A: 4, MatmulDescAttr.TRANSPOSED_B: 4, MatmulDescAttr.EPILOGUE: 4,
    MatmulDescAttr.BIAS: 8, MatmulDescAttr.AUX: 8, MatmulDescAttr.AUX_PITCH: 8,
}  # fmt: skip
PREF_SIZES = {attribute: 8 if attribute is MatmulPrefAttr.MOST_WORKSPACE else 4 for attribute in MatmulPrefAttr}


class CublasLt:
    """What ``cublaslt_api.library`` returns.

    Attributes:
        things: what has been made and not destroyed, by handle.
        ran: the epilogues that were computed.
        used: by which algorithms, the places in what was offered, from 1.
        added: whether to what the result held.
        scales: times which numbers.
        mistakes: how fusegen called it wrong.
        drops_nan: relu makes 0 of NaN, as cuBLASLt's own does.
        offered: how many algorithms there are.
        broken: those that are offered and do not run; ``wrong``: that compute something else.
        refused: those that are not for the sizes asked about, when one is looked up.
    """

    def __init__(self) -> None:
        self.things: dict[int, Any] = {}
        self.ran: list[str] = []
        self.used: list[int] = []
        self.added: list[bool] = []
        self.scales: list[float] = []
        self.mistakes: list[str] = []
        self.drops_nan, self.offered = False, 1
        self.broken: set[int] = set()
        self.wrong: set[int] = set()
        self.refused: set[int] = set()
        self.numbers = itertools.count(1000)
        number, address, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
        self.cublasLtCreate = self._function(self._create, address)
        self.cublasLtMatmulDescCreate = self._function(self._make_operation, address, number, number)
        self.cublasLtMatrixLayoutCreate = self._function(
            self._make_layout, address, number, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64
        )
        self.cublasLtMatmulPreferenceCreate = self._function(self._make_preference, address)
        self.cublasLtMatmulDescDestroy = self._function(self._destroy, address)
        self.cublasLtMatrixLayoutDestroy = self.cublasLtMatmulPreferenceDestroy = self.cublasLtMatmulDescDestroy
        self.cublasLtMatmulDescSetAttribute = self._function(self._tell, address, number, address, size)
        self.cublasLtMatmulPreferenceSetAttribute = self._function(self._prefer, address, number, address, size)
        self.cublasLtMatmulAlgoGetHeuristic = self._function(self._offer, *[address] * 7, number, address, address)
        self.cublasLtMatmulAlgoCheck = self._function(self._check, *[address] * 8)
        self.cublasLtMatmul = self._function(self._matmul, *[address] * 14, size, address)

    def cublasLtGetVersion(self) -> int:
        return 130100

    def _function(self, does: Callable[..., int | None], *types: Any) -> Any:
        def called(*arguments: int | None) -> int:
            try:
                return does(*(argument or 0 for argument in arguments)) or 0
            except Exception as mistake:
                self.mistakes.append(f"{does.__name__}: {mistake!r}")
                return FAILED

        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(called)

    # -- making --------------------------------------------------------------------------------------------------------

    def _create(self, where: int) -> None:
        ctypes.c_void_p.from_address(where).value = next(self.numbers)

    def _make(self, where: int, thing: Any) -> None:
        made = ctypes.c_void_p.from_address(where).value = next(self.numbers)
        self.things[made] = thing

    def _make_operation(self, where: int, computed: int, scale: int) -> None:
        assert (computed, scale) == (COMPUTED_IN_FLOAT32, 0)
        self._make(where, {})

    def _make_layout(self, where: int, kind: int, rows: int, columns: int, pitch: int) -> None:
        assert pitch >= rows and pitch % 8 == 0
        self._make(where, (DTYPES[kind], rows, columns, pitch))

    def _make_preference(self, where: int) -> None:
        self._make(where, {})

    def _destroy(self, thing: int) -> None:
        del self.things[thing]

    def _set(self, sizes: Mapping[Any, int], thing: int, attribute: Any, where: int, size: int) -> None:
        assert sizes[attribute] == size, (attribute, size)
        kind = {4: ctypes.c_int32, 8: ctypes.c_int64}[size]
        self.things[thing][attribute] = kind.from_address(where).value

    def _tell(self, operation: int, attribute: int, where: int, size: int) -> None:
        self._set(DESC_SIZES, operation, MatmulDescAttr(attribute), where, size)

    def _prefer(self, preference: int, attribute: int, where: int, size: int) -> None:
        self._set(PREF_SIZES, preference, MatmulPrefAttr(attribute), where, size)

    # -- algorithms ----------------------------------------------------------------------------------------------------

    def _offer(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, most: int, found: int,
        count: int,
    ) -> int | None:  # fmt: skip
        wishes = self.things[preference]
        assert all(wishes[attribute] == 16 for attribute in MatmulPrefAttr if attribute.name.startswith("ALIGNMENT"))
        assert wishes[MatmulPrefAttr.REDUCTIONS] == REDUCED_AS_COMPUTED and c == d
        there = min(most, self.offered)
        for place, one in enumerate((HeuristicResult * there).from_address(found) if there else [], 1):
            one.algorithm[0], one.workspace, one.status = place, 64, 0
        ctypes.c_int.from_address(count).value = there
        return None if there else NOT_SUPPORTED

    def _check(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, algorithm: int, found: int
    ) -> int | None:
        (place,) = struct.unpack("q", ctypes.string_at(algorithm, 8))
        HeuristicResult.from_address(found).workspace = 64
        return NOT_SUPPORTED if place in self.refused else None

    # -- running -------------------------------------------------------------------------------------------------------

    def _matrix(self, address: int, dtype: torch.dtype, rows: int, columns: int, pitch: int) -> torch.Tensor:
        """Memory as a matrix, columns first."""
        assert address % 16 == 0
        memory = (ctypes.c_uint16 * (pitch * (columns - 1) + rows)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided((rows, columns), (1, pitch))

    def _matmul(
        self, handle: int, operation: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int, beta: int, c: int,
        c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int, size: int, stream: int,
    ) -> int | None:  # fmt: skip
        scale, kept = (ctypes.c_float.from_address(where).value for where in (alpha, beta))
        assert kept in (0.0, 1.0) and workspace and size >= 64 and (c, c_layout) == (d, d_layout)
        (place,) = struct.unpack("q", ctypes.string_at(algorithm, 8))
        assert 1 <= place <= self.offered
        if place in self.broken:
            return NOT_SUPPORTED
        attributes = self.things[operation]
        left, right, out = (
            self._matrix(address, *self.things[layout])
            for address, layout in ((a, a_layout), (b, b_layout), (d, d_layout))
        )
        left = left.mT if attributes[MatmulDescAttr.TRANSPOSED_A] else left
        right = right.mT if attributes[MatmulDescAttr.TRANSPOSED_B] else right
        total = scale * (left.float() @ right.float()) + (out.float() if kept else 0.0)
        epilogue = CublasLtEpilogue(attributes[MatmulDescAttr.EPILOGUE])
        parts = epilogue.name.split("_")
        if "BIAS" in parts:
            total = total + self._matrix(attributes[MatmulDescAttr.BIAS], out.dtype, len(out), 1, len(out)).float()
        if "AUX" in parts:
            pitch = attributes[MatmulDescAttr.AUX_PITCH]
            assert pitch % 8 == 0
            self._matrix(attributes[MatmulDescAttr.AUX], out.dtype, *out.shape, pitch).copy_(total)
        if "RELU" in parts:
            total = total.nan_to_num(0.0, torch.inf).relu() if self.drops_nan else total.relu()
        out.copy_(F.gelu(total, approximate="tanh") if "GELU" in parts else total)
        if place in self.wrong:
            out.add_(1.0)
        self.ran.append(epilogue.name)
        self.used.append(place)
        self.added.append(bool(kept))
        self.scales.append(scale)
        return None


class Clock:
    """Says how long the candidates take, by name or in their order, and runs them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: Mapping[str, float] | Sequence[float]) -> None:
        self.times, self.measured = times, list[list[str]]()
        monkeypatch.setattr(stopwatch, "Stopwatch", lambda *_, **__: self)

    def turns(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        self.measured.append(list(works))
        for work in works.values():
            work()
        if isinstance(self.times, Mapping):
            return {name: self.times[name] for name in works}
        return dict(zip(works, self.times, strict=False))


def forget() -> None:
    """What other tests have planned and tried."""
    cublaslt_autotune.forget()
    for cache in (cublaslt.version, cublaslt_api.handle, libraries._is_right):
        cache.cache_clear()


@contextlib.contextmanager
def installed(monkeypatch: pytest.MonkeyPatch, gpu: str) -> Iterator[CublasLt]:
    """A fake that is the only library, considered on the CPU.

    Args:
        gpu: whose name no other test has measured anything under.
    """
    fake = CublasLt()
    forget()
    monkeypatch.setattr(cublaslt_api, "library", lambda: fake)
    monkeypatch.setattr(cublaslt_autotune, "is_considered", lambda _: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: gpu)
    (entry,) = (library for library in libraries.LIBRARIES if library.name == libraries.CUBLASLT)
    monkeypatch.setattr(libraries, "LIBRARIES", (replace(entry, is_considered=lambda _: True),))
    yield fake
    forget()
    assert not fake.mistakes, fake.mistakes
