"""The two places where kernels run, behind one interface: the CPU emulator and a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from fusegen.core import locks
from fusegen.core.errors import CompileError, DeviceError, warn
from fusegen.core.locks import cached_property
from fusegen.core.recent import Recent
from fusegen.core.within import Site
from fusegen.fuse.rows_schedule import Chip
from fusegen.generate.rendered import Rendered, headers, one_file
from fusegen.launch import driver
from fusegen.launch.cache import default_cache
from fusegen.launch.checksummed import digest
from fusegen.launch.compile import cached_cubin
from fusegen.launch.emulator import build as emulator
from fusegen.launch.emulator.kernel import EmulatedKernel, launch_words
from fusegen.launch.program import Allocate, Grid, Runnable
from fusegen.launch.reports import connect, reports

# Kernels that a device has loaded. Beyond that the emulator forgets its oldest. A GPU keeps all: a captured graph may
# launch them, and nobody can tell.
MOST_LOADED = 2048
# Emulated kernels that are compiled as one file.
MOST_TOGETHER = 32


# Kernels of one text may have read for arguments of other names.
Key = tuple[str, str, tuple[Site, ...]]


def key_of(rendered: Rendered, entry: str) -> Key:
    """What a loaded kernel is found by."""
    return rendered.text, entry, rendered.sites


def _warn_of_many(device: str) -> None:
    warn(
        f"{MOST_LOADED} kernels are loaded on {device}, and stay there. If an op is called with ever new values of a "
        "constant, annotate its parameter with fg.Scalar: a new number of a call compiles nothing."
    )


class _OnCpu:
    """An emulated kernel, compiled when it is first asked for. There is one stream: the calling thread.

    It starts when the one before has ended. Whether it could start early (``follows``) matters to the search for races.
    """

    early = False

    def __init__(self, target: CpuTarget, rendered: Rendered, entry: str, follows: bool) -> None:
        self.target, self.rendered, self.entry, self.follows = target, rendered, entry, follows
        self.shared = rendered.shared_of(entry)

    @cached_property
    def kernel(self) -> EmulatedKernel:
        return self.target.kernel(self.rendered, self.entry)

    def prepared(self, grid: Grid, block: Grid, params: int) -> Callable[[int], None]:
        """What runs it, whatever the stream is, and returns when that is done."""
        kernel, mode = self.kernel, self.target.mode
        return lambda stream: kernel.launch(grid, block, params, self.shared, mode, self.follows)

    @property
    def address(self) -> int:
        """Where the kernel is, which begins with its launcher."""
        return self.kernel.address(self.follows)

    def fail(self, code: int, message: str) -> None:
        """Raise what the launcher's code means."""
        self.kernel.fail(code, message)


class CpuTarget:
    """Compiles with the machine's C++ compiler, runs over its cores.

    That compiler's start and the headers take longer than a kernel. So kernels are compiled when one is launched, and
    all with it that were loaded by then: those of an op's further kernels, steps and passes that are planned already.

    Attributes:
        gpu: the GPU's name, by which choices are found that were tuned on one; empty here.
    """

    name = "cpu"
    gpu = ""
    chip = Chip()
    context = None

    def __init__(self) -> None:
        self.mode = emulator.mode_from_environment()
        self._loaded: Recent[Key, EmulatedKernel] = Recent(MOST_LOADED)
        self._wanted: dict[Key, tuple[Rendered, str]] = {}  # loaded, and not compiled
        self._lock = locks.lock()

    def native(self) -> tuple[int, ...]:
        """How the native call path launches here: with the emulator's own arguments."""
        return 0, -1, 0, 0, 0, 0, 0, 0, *launch_words(self.mode)

    def run(self, program: Runnable, values: list[Any], stream: int, allocate: Allocate) -> None:
        """Run a program; there is no context to make current.

        Raises:
            PlaceError: it has read at a place out of range, or a GPU's has before.
        """
        reports.look()
        program.run(values, allocate, stream)

    def load(self, rendered: Rendered, entry: str, declared: str, follows: bool) -> _OnCpu:
        """The kernel, which is compiled when it is launched."""
        key = key_of(rendered, entry)
        if self._loaded.get(key) is None:
            with self._lock:
                self._wanted[key] = rendered, entry
                if len(self._wanted) > MOST_LOADED:  # of so many that nobody launches, each compiles by itself
                    del self._wanted[next(iter(self._wanted))]
        return _OnCpu(self, rendered, entry, follows)

    def kernel(self, rendered: Rendered, entry: str) -> EmulatedKernel:
        """The compiled kernel, from memory, from the cache or freshly compiled.

        Raises:
            CompileError: the compiler rejects it.
            DeviceError: there is no folder that it could be loaded from.
        """
        key = key_of(rendered, entry)
        found = self._loaded.get(key)
        if found is None:
            with self._lock:
                found = self._loaded.get(key)
                if found is None:
                    self._wanted.pop(key, None)
                    found = self._load(rendered, entry)
                    self._loaded.put(key, found)
        return found

    def _load(self, rendered: Rendered, entry: str) -> EmulatedKernel:
        key, cache = self._key(rendered, entry), default_cache()
        why = "no folder to put it in"

        def loaded() -> EmulatedKernel | None:
            sanitize, sites = self.mode.sanitize, rendered.sites
            return cache.load(key, lambda path: EmulatedKernel(path, entry, rendered.text, sanitize, sites=sites))

        try:
            kernel = loaded()
            if kernel is None:
                library = self._build_together(rendered, entry) or self._build({entry: rendered})
                cache.put(key, library)
                kernel = loaded()
        except OSError as error:
            kernel, why = None, str(error)
        if kernel is None:
            raise DeviceError(
                f"kernel {entry}", given=f"a compiled kernel that does not load: {why}",
                expected="a cache folder or a temporary folder that can be written, and that libraries load from",
                fix="set FUSEGEN_CACHE_DIR or TMPDIR to a folder of your own that is not mounted noexec",
            )  # fmt: skip
        return kernel

    def _build_together(self, rendered: Rendered, entry: str) -> bytes | None:
        """A library of the kernel and of others that were loaded, which go into the cache; None if there are none."""
        cache = default_cache()
        together, names = {entry: rendered}, {name for _, name in rendered.entries}
        how = rendered.headers, rendered.cluster_of(entry)
        for key, (other, name) in list(self._wanted.items()):
            if len(together) == MOST_TOGETHER:
                break
            theirs = {of for _, of in other.entries}
            is_new = other in together.values() or not theirs & names  # of two with one name the second waits
            if is_new and (other.headers, other.cluster_of(name)) == how:
                del self._wanted[key]
                if cache.path(self._key(other, name)) is None:
                    together[name] = other
                    names |= theirs
        if len(together) == 1:
            return None
        try:
            library = self._build(together)
        except CompileError:
            return None  # compiled by itself, the one that is at fault says so in its own lines
        for name, other in together.items():
            cache.put(self._key(other, name), library)
        return library

    def _build(self, kernels: Mapping[str, Rendered]) -> bytes:
        """A library of these kernels, by name, which are compiled as one file."""
        (entry, first), *others = kernels.items()
        texts = list(dict.fromkeys(kernels.values()))
        return emulator.build(
            one_file(texts, lines=True) if others else first.text, entry, headers=emulator.headers(),
            barriers=first.barriers, cluster=first.cluster_of(entry), sanitize=self.mode.sanitize,
            races=self.mode.races, others={name: other.barriers for name, other in others},
        )  # fmt: skip

    def _key(self, rendered: Rendered, entry: str) -> str:
        return digest(
            "emulator", rendered.text, entry, emulator.headers_digest(),
            rendered.barriers, rendered.cluster_of(entry), self.mode.instrumented,
            emulator.compiler_identity(), emulator.flags(),
        )  # fmt: skip


class GpuTarget:
    """One device, through its primary context."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.arch = driver.architecture(device)
        self.chip = chip_of(self.arch)
        self.context = driver.Context(device)
        self.early = driver.can_start_early(self.arch)
        self.name, self.gpu = f"cuda:{device}", driver.name(device)
        self._loaded: dict[Key, driver.Function] = {}
        self._lock = locks.lock()

    def load(self, rendered: Rendered, entry: str, declared: str, follows: bool) -> driver.Function:
        """The kernel, from memory, from the cache or freshly compiled."""
        found = self._found(rendered, entry, declared)
        return driver.EarlyFunction(found) if follows and self.early else found

    def _found(self, rendered: Rendered, entry: str, declared: str) -> driver.Function:
        key = key_of(rendered, entry)
        found = self._loaded.get(key)
        if found is None:
            with self._lock:
                found = self._loaded.get(key) or self._load(rendered, entry, declared)
                self._loaded[key] = found
                if len(self._loaded) == MOST_LOADED:
                    _warn_of_many(self.name)
        return found

    def _load(self, rendered: Rendered, entry: str, declared: str) -> driver.Function:
        cubin = cached_cubin(rendered.text, arch=self.arch, headers=headers(), declared=declared, cache=default_cache())
        with self.context:
            found = driver.Function(cubin, entry, rendered.cluster_of(entry), rendered.shared_of(entry))
            if rendered.sites:
                connect(self.device, self.context, found, rendered.sites)
        return found

    def native(self) -> tuple[int, ...]:
        """How the native call path launches here: the driver's functions, and the context they need."""
        names = ("cuLaunchKernel", "cuLaunchKernelEx", "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")
        return 1, self.device, *map(driver.address, names), int(self.context.value or 0), 0, 0, 0, 0

    def run(self, program: Runnable, values: list[Any], stream: int, allocate: Allocate) -> None:
        """Run a program with the device's context current.

        Raises:
            PlaceError: an earlier one has read at a place out of range.
        """
        reports.look()
        if self.context.is_current():
            program.run(values, allocate, stream)
        else:
            with self.context:
                program.run(values, allocate, stream)


# Kilobytes of shared memory that a block can have, where they are not 99 (Ampere's and later chips for graphics).
_SHARED = {70: 96, 72: 96, 75: 64, 80: 163, 87: 163, 90: 227, 100: 227, 103: 227, 110: 227}


def chip_of(arch: str) -> Chip:
    """What row kernels may count on. Clusters have 16 blocks on Hopper and data-centre Blackwell (more than the 8 that
    are portable, allowed when a kernel is loaded), one before. Source: CUDA programming guide, compute capabilities."""
    number = int("".join(c for c in arch if c.isdigit()) or 0)
    cluster = 1 if number < 90 else 16 if number < 110 else 8
    return Chip(cluster, 1024 * _SHARED.get(number, 99 if number > 75 else 48))


@functools.cache
def cpu() -> CpuTarget:
    """The emulator."""
    return CpuTarget()


@functools.cache
def gpu(device: int) -> GpuTarget:
    """The target for a CUDA device."""
    return GpuTarget(device)
