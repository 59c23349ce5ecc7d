"""The few driver calls that loading and launching needs, straight from libcuda.

CuPy's binding has them too, but its first use imports all of CuPy: a quarter of a second, more than everything else in
a warm start together. CuPy stays the owner of CuPy arrays.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from fusegen.core.errors import DeviceError

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_PORTABLE_CLUSTER_BLOCKS = 8
_MOST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_EARLY_START = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_EARLY_START_IN_GRAPHS = 12030  # the first driver that captures such launches into graphs: CUDA 12.3

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_PORTABLE, _MAPPED = 1, 2  # CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP
MOST_DEVICES = 64
_LONGEST_NAME = 256

Grid = tuple[int, int, int]


@functools.cache
def library() -> Any:
    """libcuda, initialized.

    Raises:
        DeviceError: there is no NVIDIA driver, or it does not start.
    """
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            cuda = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        raise DeviceError(
            "fusegen", given="no NVIDIA driver (libcuda.so.1)", expected="the driver that CUDA tensors need",
            fix="install the NVIDIA driver, or use CPU tensors: the emulator runs the same CUDA",
        )  # fmt: skip
    unsigned, pointer = ctypes.c_uint, ctypes.c_void_p
    cuda.cuLaunchKernel.argtypes = [pointer, *[unsigned] * 7, pointer, pointer, pointer]
    if hasattr(cuda, "cuLaunchKernelEx"):  # from CUDA 11.8 on
        cuda.cuLaunchKernelEx.argtypes = [pointer, pointer, pointer, pointer]
    _check(cuda, cuda.cuInit(0), "cuInit")
    return cuda


def _check(cuda: Any, code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise DeviceError(
            f"CUDA driver, {what}", given=f"error {code}: {(text.value or b'unknown').decode()}", expected="success",
            fix="if an earlier kernel failed, run under compute-sanitizer to find it; else see `fusegen doctor`",
        )  # fmt: skip


def architecture(device: int) -> str:
    """The device's architecture, as "sm_90"."""
    cuda = library()
    numbers = []
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        _check(cuda, cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device), "cuDeviceGetAttribute")
        numbers.append(value.value)
    return f"sm_{numbers[0]}{numbers[1]}"


def name(device: int) -> str:
    """What the vendor calls the device, as "NVIDIA H200"."""
    text = ctypes.create_string_buffer(_LONGEST_NAME)
    _check(library(), library().cuDeviceGetName(text, len(text), device), "cuDeviceGetName")
    return text.value.decode(errors="replace")


def can_start_early(arch: str) -> bool:
    """Whether a kernel can be launched so that it starts before the one ahead of it ends (``EarlyFunction``)."""
    version = ctypes.c_int()
    _check(library(), library().cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
    return int(arch.removeprefix("sm_")) >= 90 and version.value >= _EARLY_START_IN_GRAPHS


def address(name: str) -> int:
    """Where a function of the driver is; 0 where the driver is too old to have it."""
    function = getattr(library(), name, None)
    return 0 if function is None else int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class Context:
    """A device's primary context, the one torch and CuPy use. ``with`` makes it current where it is not."""

    def __init__(self, device: int) -> None:
        self._cuda = library()
        self._handle = ctypes.c_void_p()
        _check(self._cuda, self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._handle), device), "retain context")
        self.value = self._handle.value
        self._current = self._cuda.cuCtxGetCurrent

    def is_current(self) -> bool:
        current = ctypes.c_void_p()
        self._current(ctypes.byref(current))
        return current.value == self.value

    def __enter__(self) -> None:
        _check(self._cuda, self._cuda.cuCtxPushCurrent_v2(self._handle), "push context")

    def __exit__(self, *_: object) -> None:
        popped = ctypes.c_void_p()
        _check(self._cuda, self._cuda.cuCtxPopCurrent_v2(ctypes.byref(popped)), "pop context")


class _CaptureGoesOn:
    """``with``: calls that a capture of this thread forbids, but that have nothing to do with its stream."""

    def __enter__(self) -> None:
        self._exchange(_RELAXED)

    def __exit__(self, *_: object) -> None:
        self._exchange(self._before)

    def _exchange(self, mode: int) -> None:
        given = ctypes.c_int(mode)
        _check(library(), library().cuThreadExchangeStreamCaptureMode(ctypes.byref(given)), "exchange capture modes")
        self._before = given.value


def allocate_for_devices(size: int) -> int:
    """The address of zeros in memory of the host that every device can write there. It is never freed."""
    cuda, found = library(), ctypes.c_void_p()
    with _CaptureGoesOn():
        code = cuda.cuMemHostAlloc(ctypes.byref(found), ctypes.c_size_t(size), _PORTABLE | _MAPPED)
    _check(cuda, code, "allocate pinned memory")
    assert found.value is not None
    ctypes.memset(found.value, 0, size)
    return found.value


def synchronize() -> None:
    """Wait until the current context has done everything. What went wrong there is a later call's to tell."""
    with _CaptureGoesOn():
        library().cuCtxSynchronize()


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute with a number for its value."""

    _fields_ = (("id", ctypes.c_uint), ("_pad", ctypes.c_uint), ("value", ctypes.c_int), ("_rest", ctypes.c_char * 60))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


class Function:
    """A kernel in a device's memory. Its context must be current when it is loaded and launched.

    Args:
        cluster: blocks in a cluster of the kernel. It is compiled in, so launches do not mention it, but more than
            every GPU with clusters promises must be allowed.
        shared: bytes of shared memory that each launch asks for.
    """

    early = False
    _attributes: tuple[_Attribute, ...] = ()

    def __init__(self, cubin: bytes, entry: str, cluster: int = 1, shared: int = 0) -> None:
        cuda = library()
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(cuda, cuda.cuModuleLoadData(ctypes.byref(self._module), cubin), f"load {entry}")
        name = entry.encode()
        _check(cuda, cuda.cuModuleGetFunction(ctypes.byref(self._function), self._module, name), f"find {entry}")
        if cluster > _PORTABLE_CLUSTER_BLOCKS:
            code = cuda.cuFuncSetAttribute(self._function, _NON_PORTABLE_CLUSTER, 1)
            _check(cuda, code, f"allow {entry} clusters of {cluster} blocks")
        if shared:
            code = cuda.cuFuncSetAttribute(self._function, _MOST_DYNAMIC_SHARED, shared)
            _check(cuda, code, f"give {entry} {shared} bytes of shared memory")
        self.shared = shared
        self._entry = entry

    def prepared(self, grid: Grid, block: Grid, params: int) -> Callable[[int], None]:
        """What enqueues it on a stream; ``params`` is the address of the table of argument addresses."""
        cuda, function = library(), self._function
        if hasattr(cuda, "cuLaunchKernelEx"):  # of four arguments: half the time that eleven take through ctypes
            attributes = (_Attribute * 1)(*self._attributes)
            configuration = _Configuration(grid, block, self.shared, None, attributes, len(self._attributes))
            address, enqueue = ctypes.addressof(configuration), cuda.cuLaunchKernelEx

            def launch(stream: int) -> None:
                configuration.stream = stream
                code = enqueue(address, function, params, None)
                if code:
                    self.fail(code)

            return launch

        def launch_with_arguments(stream: int) -> None:
            code = cuda.cuLaunchKernel(function, *grid, *block, self.shared, stream, params, None)
            if code:
                self.fail(code)

        return launch_with_arguments

    def set_global(self, name: str, value: bytes) -> None:
        """Write a variable of the kernel's module, before the kernel is launched. Another stream may be captured."""
        cuda, at, size, stream = library(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p()
        code = cuda.cuModuleGetGlobal_v2(ctypes.byref(at), ctypes.byref(size), self._module, name.encode())
        _check(cuda, code, f"find {name} of {self._entry}")
        with _CaptureGoesOn():
            _check(cuda, cuda.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING), "create a stream")
            code = cuda.cuMemcpyHtoDAsync_v2(at, value, ctypes.c_size_t(len(value)), stream)
            code = code or cuda.cuStreamSynchronize(stream)
            cuda.cuStreamDestroy_v2(stream)
            _check(cuda, code, f"write {name} of {self._entry}")

    @property
    def address(self) -> int:
        """The driver's handle of the kernel."""
        return int(self._function.value or 0)

    def fail(self, code: int, message: str = "") -> None:
        """Raise what a launch's code means."""
        _check(library(), code, f"launch {self._entry}")


class EarlyFunction(Function):
    """A kernel in one place of a program, behind another: it may start while that one drains, and waits for its end
    by itself (``fg::wait_for_previous_kernel``). CUDA calls this programmatic dependent launch.
    """

    early = True
    _attributes = (_Attribute(_EARLY_START, 0, 1),)

    def __init__(self, function: Function) -> None:
        self._module, self._function, self._entry = function._module, function._function, function._entry
        self.shared = function.shared
