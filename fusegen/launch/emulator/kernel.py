"""A kernel compiled for the emulator: loads it, launches it, and turns what its launcher reports into exceptions."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import weakref
from functools import cache
from pathlib import Path

from fusegen.core.errors import CompileError
from fusegen.core.within import Site, out_of_range
from fusegen.launch import places
from fusegen.launch.emulator import build
from fusegen.launch.emulator.build import Mode

_MESSAGE_BYTES = 2048
_NATURAL = Mode()

# Fiber stacks that launches leave for each other; as many as the header's kStackSlots. Sanitized ones are larger. Where
# races are looked for, as many shadows of memory follow them.
_STACK_SLOTS = {
    mode.instrumented: (ctypes.c_void_p * (128 if mode.races else 64))()
    for mode in (Mode(), Mode(sanitize=True), Mode(races=True), Mode(sanitize=True, races=True))
}

# Of an entry: grid, block, arguments, bytes of shared memory, `launch_words`, room for a message and its bytes.
_Launcher = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint * 3, ctypes.c_uint * 3, ctypes.c_void_p, ctypes.c_size_t,
    ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
)  # fmt: skip

_RACE, _MISPLACED, _MISALIGNED = 5, 6, 7
# What the launcher's codes mean: (expected, fix).
_FAILURES = {
    1: (
        "every live thread of a block reaches the same __syncthreads(), every live lane of a mask the same collective",
        "move the barrier or collective out of the divergent branch, or build with barriers=True",
    ),
    2: ("every assertion holds", "print the kernel with show() and follow the named thread"),
    3: (
        "memory for the stacks of a block's threads",
        "launch smaller blocks or fewer workers (" + build.WORKERS_VARIABLE + ")",
    ),
    4: (
        "threads of a cluster that call cluster_arrive() and cluster_wait() in turn, outside of divergent branches, "
        "and store_remote() only after a first such pair and before a last one",
        "put the missing call where every thread of every block of the cluster passes, and let no block return before",
    ),
    _RACE: (
        "accesses to the same bytes by two threads, one of them to write, in an order that barriers or waits enforce",
        "put the missing barrier or wait between the two, or give each thread bytes of its own",
    ),
    _MISALIGNED: (
        "an address that is a multiple of what is accessed at once: a GPU refuses others",
        "shift the vector to such an address, or access its elements",
    ),
}


@cache
def _load_math() -> None:
    """Load what kernels call and name no library for: the C library's mathematical functions, where nobody has."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # musl has them in its one library
            ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)


class EmulatedKernel:
    """A library that `build.build` made, ready to launch. It is unloaded when nobody has the kernel any more.

    Args:
        library: where it is.
        entry: name of the kernel.
        source: the text that it was built from, for reports that quote it.
        sanitized: as it was built.
        sites: which of its reads and writes report places out of range (core/within).
    """

    def __init__(
        self, library: Path, entry: str, source: str = "", sanitized: bool = False,
        sites: tuple[Site, ...] = (),
    ) -> None:  # fmt: skip
        self.sites = sites
        self.entry, self.path, self.source, self.sanitized = entry, library, source, sanitized
        # Loading an instrumented library into a process without the runtime would end the process.
        if self.sanitized and not build.sanitizer_is_loaded():
            raise _not_preloaded(entry)
        _load_math()
        self._library = ctypes.CDLL(str(library))
        if not self.sanitized:  # whose reports name lines of it
            weakref.finalize(self, _unload, self._library._handle).atexit = False
        names = [f"fusegen_emulated_{entry}", f"fusegen_emulated_early_{entry}"]
        self._entries = [ctypes.c_void_p.in_dll(self._library, name) for name in names]
        self._launcher = _Launcher(self._entries[0].value or 0)
        self.cluster = int(self._library.fusegen_emulated_cluster())
        self.instrumented = Mode(self.sanitized, races=bool(self._library.fusegen_emulated_races())).instrumented

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        params: int,
        shared_bytes: int = 0,
        mode: Mode = _NATURAL,
        early: bool = False,
    ) -> None:
        """Run the grid and return when it is done; other Python threads run meanwhile.

        Args:
            grid: blocks in x, y, z.
            block: threads per block in x, y, z.
            params: address of a ``void*[]``; element i points at the value of argument i, as in cuLaunchKernel.
            shared_bytes: size of ``fusegen_dynamic_shared()``.
            mode: order, workers, and what the library must be instrumented for.
            early: on a GPU it may start before the launch before it has ended; for those who look for races.

        Raises:
            CompileError: a launch the hardware would refuse, a barrier that some threads miss, a failed assertion.
            PlaceError: it has ended, and a place that a tensor told was out of range.
        """
        self._check(grid, block, shared_bytes, mode)
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        code = self._launcher(
            self.address(early), (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), params, shared_bytes,
            mode.shuffle is not None, (mode.shuffle or 0) % 2**64, mode.workers or _cores(),
            _STACK_SLOTS[self.instrumented], message, _MESSAGE_BYTES,
        )  # fmt: skip
        if code:
            self.fail(code, message.value.decode(errors="replace"))

    def address(self, early: bool = False) -> int:
        """Where the library has the kernel, and first its launcher, for callers that are not Python."""
        return ctypes.addressof(self._entries[early])

    def fail(self, code: int, message: str) -> None:
        """Raise what the launcher's code means."""
        if code == _MISPLACED:
            number, *numbers = map(int, message.split())
            raise out_of_range(next(site for site in self.sites if site[0] == number), *numbers)
        expected, fix = _FAILURES[code]
        if code in (_RACE, _MISALIGNED):
            message = places.explained(message, self.path, self.source, self.entry, build.run_compiler)
        raise CompileError(f"kernel {self.entry}, on the CPU emulator", given=message, expected=expected, fix=fix)

    def _check(self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, mode: Mode) -> None:
        if mode.instrumented and mode.instrumented != self.instrumented:
            wanted = f"{mode.instrumented.replace(',', '=True,')}=True"
            raise CompileError(
                f"kernel {self.entry}, on the CPU emulator",
                given=f"Mode({wanted}) and a library built without",
                expected=f"a library built with {wanted}",
                fix=f"build(..., {wanted}); {mode.instrumented} must be part of the cache key",
            )
        threads = block[0] * block[1] * block[2]
        within = all(1 <= size <= most for size, most in zip(grid, (2**31 - 1, 65535, 65535), strict=True))
        within = within and all(1 <= size <= most for size, most in zip(block, (1024, 1024, 64), strict=True))
        if not within or threads > 1024 or not 0 <= shared_bytes <= 227 * 1024:
            raise CompileError(
                f"kernel {self.entry}, on the CPU emulator",
                given=f"grid {grid}, block {block} ({threads} threads), {shared_bytes} bytes of dynamic shared memory",
                expected="grid up to (2147483647, 65535, 65535), block up to (1024, 1024, 64) and 1024 threads, "
                "at most 227 KiB of shared memory: what the GPU takes",
                fix="nothing to compute is no launch; else split the work differently in fuse/schedule",
            )
        if grid[0] % self.cluster:
            raise CompileError(
                f"kernel {self.entry}, on the CPU emulator",
                given=f"grid {grid}, whose x is no multiple of {self.cluster}",
                expected=f"whole clusters: the kernel declares FUSEGEN_CLUSTER({self.cluster}), of neighbours in x",
                fix=f"round x up to {-(-grid[0] // self.cluster) * self.cluster} and let the blocks beyond take part "
                "in cluster barriers without work, or choose another cluster size",
            )


def _unload(handle: int) -> None:
    """What ``ctypes`` has no name for."""
    unload = ctypes.CDLL(None).dlclose
    unload.argtypes = [ctypes.c_void_p]
    unload(handle)


def launch_words(mode: Mode) -> tuple[int, int, int, int]:
    """A launcher's arguments after grid, block and parameters: shuffle, seed, workers, address of the stack slots."""
    seed = (mode.shuffle or 0) % 2**64
    signed = seed - 2**64 if seed >= 2**63 else seed
    workers = mode.workers or _cores()
    return int(mode.shuffle is not None), signed, workers, ctypes.addressof(_STACK_SLOTS[mode.instrumented])


def _not_preloaded(entry: str) -> CompileError:
    settings = " ".join(f"{name}={value}" for name, value in build.sanitizer_environment().items())
    return CompileError(
        f"kernel {entry}, on the CPU emulator with sanitizers",
        given="a process that started without the AddressSanitizer runtime",
        expected="the runtime loaded before Python",
        fix=f"start Python so: {settings} python ...",
    )


@cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
