"""The two places where kernels run, behind one interface: the CPU emulator, and a GPU through CuPy's driver binding.

Only ``cupy_backends`` is imported, not CuPy itself: 5 ms instead of half a second.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

from fusegen.core.errors import DeviceError
from fusegen.generate.render import Rendered, headers, template_text
from fusegen.launch import emulator
from fusegen.launch.cache import default_cache
from fusegen.launch.compile import cached_cubin
from fusegen.launch.emulator import EmulatedKernel
from fusegen.launch.program import Grid
from fusegen.launch.sealed import digest


class _OnCpu:
    """An emulated kernel. There is one stream: the calling thread."""

    def __init__(self, kernel: EmulatedKernel, mode: emulator.Mode) -> None:
        self.kernel, self.mode = kernel, mode

    def launch(self, grid: Grid, block: Grid, params: int, stream: int) -> None:
        self.kernel.launch(grid, block, params, 0, self.mode)


class CpuTarget:
    """Compiles with the machine's C++ compiler, runs over its cores."""

    name = "cpu"

    def __init__(self) -> None:
        self.mode = emulator.mode_from_environment()
        self._loaded: dict[tuple[str, str], _OnCpu] = {}
        self._lock = threading.Lock()

    def load(self, rendered: Rendered, entry: str, declared: str) -> _OnCpu:
        """The kernel, from memory, from the cache or freshly compiled."""
        found = self._loaded.get((rendered.text, entry))
        if found is None:
            with self._lock:
                found = self._loaded.get((rendered.text, entry)) or self._load(rendered, entry)
                self._loaded[rendered.text, entry] = found
        return found

    def _load(self, rendered: Rendered, entry: str) -> _OnCpu:
        from importlib import resources

        sanitize = self.mode.sanitize
        key = digest(
            "emulator", rendered.text, entry, template_text("fusegen.cuh"), template_text("fusegen_emulator.h"),
            rendered.barriers, sanitize, emulator.compiler_identity(), emulator.FLAGS,
        )  # fmt: skip
        cache = default_cache()
        if cache.get(key) is None:
            with resources.as_file(resources.files("fusegen.templates").joinpath("fusegen.cuh")) as header:
                folder = Path(header).parent
                library = emulator.build(
                    rendered.text, entry, headers_dir=folder, barriers=rendered.barriers, sanitize=sanitize
                )
            cache.put(key, library)
        path = cache.path(key)
        if path is None:
            raise DeviceError(
                f"kernel {entry}", given="no folder that a compiled kernel could be loaded from",
                expected="a writable cache folder, or a writable temporary folder",
                fix="set FUSEGEN_CACHE_DIR to a folder of your own",
            )  # fmt: skip
        return _OnCpu(EmulatedKernel(path, entry, rendered.barriers), self.mode)


class _OnGpu:
    """A kernel in one device's memory."""

    def __init__(self, driver: Any, module: int, function: int) -> None:
        self._launch, self.module, self.function = driver.launchKernel, module, function

    def launch(self, grid: Grid, block: Grid, params: int, stream: int) -> None:
        self._launch(self.function, *grid, *block, 0, stream, params, 0)


class GpuTarget:
    """One device. Its primary context, which torch and CuPy use too, must be current when kernels are loaded."""

    def __init__(self, device: int) -> None:
        from cupy_backends.cuda.api import driver, runtime

        self.device, self._driver, self._runtime = device, driver, runtime
        major = runtime.deviceGetAttribute(75, device)  # cudaDevAttrComputeCapabilityMajor
        minor = runtime.deviceGetAttribute(76, device)
        self.arch = f"sm_{major}{minor}"
        self.name = f"cuda:{device}"
        self._loaded: dict[tuple[str, str], _OnGpu] = {}
        self._lock = threading.Lock()

    def load(self, rendered: Rendered, entry: str, declared: str) -> _OnGpu:
        """The kernel, from memory, from the cache or freshly compiled."""
        found = self._loaded.get((rendered.text, entry))
        if found is None:
            with self._lock:
                found = self._loaded.get((rendered.text, entry)) or self._load(rendered, entry, declared)
                self._loaded[rendered.text, entry] = found
        return found

    def _load(self, rendered: Rendered, entry: str, declared: str) -> _OnGpu:
        cubin = cached_cubin(
            rendered.text, arch=self.arch, headers=headers(), declared=declared, cache=default_cache()
        )
        with self.current():
            module = self._driver.moduleLoadData(cubin)
            return _OnGpu(self._driver, module, self._driver.moduleGetFunction(module, entry))

    def current(self) -> _Current:
        return _Current(self._runtime, self.device)

    def ensure_context(self) -> None:
        """Make the device's context current in a thread that has none (a fresh Python thread)."""
        if not self._driver.ctxGetCurrent():
            self._runtime.setDevice(self.device)
            self._runtime.free(0)


class _Current:
    """Context manager: the device is current inside."""

    def __init__(self, runtime: Any, device: int) -> None:
        self._runtime, self._device = runtime, device

    def __enter__(self) -> None:
        self._before = self._runtime.getDevice()
        self._runtime.setDevice(self._device)
        self._runtime.free(0)

    def __exit__(self, *_: object) -> None:
        self._runtime.setDevice(self._before)


@functools.cache
def cpu() -> CpuTarget:
    return CpuTarget()


@functools.cache
def gpu(device: int) -> GpuTarget:
    """The target for a CUDA device.

    Raises:
        DeviceError: CuPy is missing.
    """
    try:
        return GpuTarget(device)
    except ImportError as error:
        raise DeviceError(
            "fusegen", given=f"CUDA tensors, and no CuPy ({error})", expected="CuPy, which loads and launches kernels",
            fix='pip install "fusegen[cuda13]" (or [cuda12], after your driver)',
        ) from None  # fmt: skip


