"""What fusegen needs to know of a tensor, per framework; nothing here copies, casts or moves one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError, DeviceError, DtypeError
from fusegen.core.one_term import start
from fusegen.declare.op import Declaration
from fusegen.plan.scatter import scatter_add, scatter_reduce
from fusegen.plan.targets import CpuTarget, GpuTarget, cpu, gpu


@dataclass(frozen=True)
class TensorInfo:
    """Shape and strides in elements, dtype, address modulo 16, device as "cpu" or "cuda:0"."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    alignment: int
    device: str


class Settings(NamedTuple):
    """Torch's settings for products on GPUs. A plan of products holds for one set of them.

    Attributes:
        sums_of_halves: float16 may be added up in float16.
        kept_free: multiprocessors that products leave free, or None.
        cudnn: it may be used.
    """

    sums_of_halves: bool
    kept_free: int | None
    cudnn: bool


class Framework(Protocol):
    """One tensor library."""

    name: str

    def owns(self, value: Any) -> bool: ...
    def dtype(self, name: str, value: Any) -> DType: ...
    def info(self, name: str, value: Any) -> TensorInfo: ...
    def pointer(self, value: Any) -> int: ...
    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: str) -> Any: ...
    def workspace(self, size: int, device: str) -> tuple[Any, int]: ...
    def stream(self, device: str) -> int: ...
    def view(self, value: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any: ...
    def multiply(self, left: Any, right: Any, out: Any) -> None: ...
    def accumulate(self, left: Any, right: Any, out: Any) -> None: ...
    def sorted_keys(self, keys: Any) -> tuple[Any, Any]: ...
    def scatter_add(self, out: Any, places: Any, updates: Any, batch: int, onto: bool) -> None: ...
    def scatter_reduce(self, out: Any, places: Any, updates: Any, batch: int, kind: str) -> None: ...
    def autocast(self, declaration: Declaration, specs: Mapping[str, Any], values: Mapping[str, Any]) -> Any: ...
    def without_autocast(self, device: str) -> AbstractContextManager[Any]: ...
    def settings(self) -> Settings | None: ...


def target_of(device: str) -> CpuTarget | GpuTarget:
    """The target that runs kernels on a device."""
    return cpu() if device == "cpu" else gpu(int(device.partition(":")[2]))


def wrong_dtype(name: str, given: str, fix: str = "cast it to one of these dtypes") -> DtypeError:
    """The error for a tensor whose elements no kernel can read."""
    if "complex" in given:
        fix = "pass its parts as two arguments: .real and .imag (of a conjugate after .resolve_conj())"
    return DtypeError(f"argument {name}", given=given, expected=", ".join(dtypes.BY_NAME), fix=fix)


def wrong_layout(name: str, given: str, fix: str) -> DtypeError:
    """The error for a tensor whose elements do not lie at strides in memory."""
    return DtypeError(f"argument {name}", given=given, expected="elements in memory, at strides", fix=fix)


def _check_layout(name: str, value: Any) -> None:
    if value.is_quantized:
        raise wrong_dtype(name, f"a tensor of {value.dtype}", "make it floats: .dequantize()")
    if value.is_nested:
        raise wrong_layout(name, "a nested tensor", "pad it: .to_padded_tensor(0.0)")
    if str(value.layout) != "torch.strided":
        raise wrong_layout(name, f"a tensor with layout {value.layout}", "make it dense: .to_dense()")


class Torch:
    """PyTorch tensors on the CPU and on CUDA devices."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.dtypes: dict[Any, DType] = {getattr(torch, row.name): row for row in dtypes.BY_NAME.values()}
        self.back = {row: getattr(torch, row.name) for row in dtypes.BY_NAME.values()}

    def owns(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def described(self, name: str, value: Any) -> TensorInfo:
        """What is known of a tensor without memory: sizes and strides may be symbolic, the device may be any."""
        _check_layout(name, value)
        dtype = self.dtypes.get(value.dtype)
        if dtype is None:
            raise wrong_dtype(name, f"a tensor of {value.dtype}")
        return TensorInfo(tuple(value.shape), value.stride(), dtype, 0, str(value.device))

    def dtype(self, name: str, value: Any) -> DType:
        """The dtype; an error for what no kernel could read. The tensor may be one without memory, as under vmap."""
        _check_layout(name, value)
        dtype = self.dtypes.get(value.dtype)
        if dtype is None:
            raise wrong_dtype(name, f"a tensor of {value.dtype}")
        if value.device.type not in ("cpu", "cuda"):
            raise DeviceError(
                f"argument {name}", given=f"a tensor on {value.device}", expected="a CPU or CUDA tensor",
                fix="move it: .to('cuda')",
            )  # fmt: skip
        if value.is_neg():
            given = "a tensor with a lazy negation (the imaginary part of a conjugate)"
            raise wrong_layout(name, given, "negate it in memory: .resolve_neg()")
        if type(value).__torch_dispatch__ is not self.torch.Tensor.__torch_dispatch__:
            raise DeviceError(
                f"argument {name}", given=f"a {type(value).__name__}, whose class defines __torch_dispatch__",
                expected="a plain tensor: reading its memory would bypass what the class does",
                fix="unwrap it yourself, or define __torch_function__ for this op",
            )  # fmt: skip
        return dtype

    def info(self, name: str, value: Any) -> TensorInfo:
        dtype = self.dtype(name, value)
        address = self._address(name, value)
        return TensorInfo(tuple(value.shape), value.stride(), dtype, address % 16, _device_text(value.device))

    def _address(self, name: str, value: Any) -> int:
        """Where the elements are; an error for those that are nowhere: under vmap, torch.func, fake tensors."""
        try:
            address = int(value.data_ptr())
        except RuntimeError:
            address = 0
        if address == 0 and value.numel() > 0:
            raise DeviceError(
                f"argument {name}", given=f"a {type(value).__name__} without memory (vmap, torch.func, fake, or freed)",
                expected="a tensor whose elements are in memory",
                fix="call the op outside the transform; torch.autograd.grad works through it",
            )  # fmt: skip
        return address

    def autocast(self, declaration: Declaration, specs: Mapping[str, Any], values: Mapping[str, Any]) -> DType | None:
        """What the op computes float tensors with where torch.autocast is on (see ``Declaration.cast_to``)."""
        device = next((v.device.type for v in values.values() if self.owns(v)), "cpu")
        if not self.torch.is_autocast_enabled(device):
            return None
        return declaration.cast_to(specs, self.dtypes[self.torch.get_autocast_dtype(device)])

    def without_autocast(self, device: str) -> AbstractContextManager[Any]:
        """A context in which torch's functions compute in the dtypes of what they are given. What an op computes in is
        decided before it runs."""
        kind = device.partition(":")[0]
        return self.torch.autocast(kind, enabled=False) if self.torch.is_autocast_enabled(kind) else nullcontext()

    def settings(self) -> Settings:
        """As they are now: a user may set them between two calls. (torch.backends takes ten times as long to ask.)"""
        c = self.torch._C
        return Settings(
            c._get_cublas_allow_fp16_accumulation(), c._get_sm_carveout_experimental(), c._get_cudnn_enabled()
        )

    def pointer(self, value: Any) -> int:
        return int(value.data_ptr())

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: str) -> Any:
        return self.torch.empty_strided(shape, strides, dtype=self.back[dtype], device=device)

    def workspace(self, size: int, device: str) -> tuple[Any, int]:
        memory = self.torch.empty(size, dtype=self.torch.uint8, device=device)
        return memory, memory.data_ptr()

    def stream(self, device: str) -> int:
        if device == "cpu":
            return 0
        return int(self.stream_of(device)())

    def stream_of(self, device: str) -> Callable[[], int]:
        """What tells the device's current stream, for those who ask again and again: no function of Python's."""
        if device == "cpu":
            return int  # which is 0
        return functools.partial(self.torch._C._cuda_getCurrentRawStream, int(device.partition(":")[2]))

    def view(self, value: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
        return value.detach().as_strided(shape, strides, value.storage_offset() + offset)

    def multiply(self, left: Any, right: Any, out: Any) -> None:
        """``out = left @ right``; precision as torch.backends says."""
        ranks = {2: self.torch.mm, 3: self.torch.bmm}
        ranks.get(out.ndim, self.torch.matmul)(left, right, out=out)

    def accumulate(self, left: Any, right: Any, out: Any) -> None:
        """``out += left @ right``, rounded once; in more than one batch dimension torch has no such routine."""
        if out.ndim == 2:
            out.addmm_(left, right)
        elif out.ndim == 3:
            out.baddbmm_(left, right)
        else:
            out += self.torch.matmul(left, right)

    def multiply_adding(self, bias: Any, left: Any, right: Any, out: Any) -> None:
        """``out = left @ right + bias``, rounded once; in more than one batch dimension torch has no such routine."""
        if out.ndim == 2:
            self.torch.addmm(bias, left, right, out=out)
        elif out.ndim == 3:
            self.torch.baddbmm(bias, left, right, out=out)
        else:
            self.torch.matmul(left, right, out=out)
            out += bias

    def sorted_keys(self, keys: Any) -> tuple[Any, Any]:
        """Keys from the smallest to the largest, and where each has been, as int64: equal ones stay in their order."""
        found, order = self.torch.sort(keys, stable=True)
        return found, order

    def scatter_add(self, out: Any, places: Any, updates: Any, batch: int, onto: bool) -> None:
        """``out[b, places[b, n], r] += updates[b, n, r]``, from zeros unless ``onto``: see plan/scatter."""
        scatter_add(out, places, updates, batch, onto)

    def scatter_reduce(self, out: Any, places: Any, updates: Any, batch: int, kind: str) -> None:
        """The product, maximum or minimum of the updates for each place: see plan/scatter."""
        scatter_reduce(out, places, updates, batch, kind)


def _device_text(device: Any) -> str:
    return "cpu" if device.type == "cpu" else f"cuda:{device.index}"


class _Plain:
    """A library without autocast and without settings for products."""

    def autocast(self, declaration: Declaration, specs: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        return None

    def without_autocast(self, device: str) -> AbstractContextManager[Any]:
        return nullcontext()

    def settings(self) -> None:
        return None


class NumPy(_Plain):
    """NumPy arrays, on the emulator. bfloat16 needs the ml_dtypes package."""

    name = "numpy"

    def __init__(self) -> None:
        import numpy

        self.numpy = numpy

    def owns(self, value: Any) -> bool:
        return isinstance(value, self.numpy.ndarray)

    def dtype(self, name: str, value: Any) -> DType:
        dtype = dtypes.BY_NAME.get(value.dtype.name)
        if not value.dtype.isnative:
            given = f"an array of {value.dtype}, in another machine's byte order"
            raise wrong_dtype(name, given, 'put it in order: .astype(x.dtype.newbyteorder("="))')
        if dtype is None:
            raise wrong_dtype(name, f"an array of {value.dtype}")
        if isinstance(value, self.numpy.ma.MaskedArray):
            raise wrong_layout(name, "a masked array", "fill it: .filled(0.0), and pass the mask as another argument")
        return dtype

    def info(self, name: str, value: Any) -> TensorInfo:
        dtype = self.dtype(name, value)
        if any(stride % value.itemsize for stride in value.strides):
            given = f"an array with strides {value.strides}, no multiples of {value.itemsize} bytes"
            raise wrong_layout(name, given, "copy it: numpy.ascontiguousarray")
        strides = tuple(stride // value.itemsize for stride in value.strides)
        return TensorInfo(value.shape, strides, dtype, self.pointer(value) % 16, "cpu")

    def pointer(self, value: Any) -> int:
        return int(value.ctypes.data)

    def _dtype(self, dtype: DType) -> Any:
        if dtype is dtypes.bfloat16:
            import ml_dtypes

            return ml_dtypes.bfloat16
        return dtype.name

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: str) -> Any:
        order = sorted(range(len(shape)), key=lambda d: -strides[d])
        memory = self.numpy.empty([shape[d] for d in order], dtype=self._dtype(dtype))
        return memory.transpose([order.index(d) for d in range(len(shape))])

    def workspace(self, size: int, device: str) -> tuple[Any, int]:
        memory = self.numpy.empty(size, dtype="uint8")
        return memory, memory.ctypes.data

    def stream(self, device: str) -> int:
        return 0

    def view(self, value: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
        return _strided(self.numpy, value, shape, strides, offset)

    def multiply(self, left: Any, right: Any, out: Any) -> None:
        """``out = left @ right``, accumulated in float32 for half types."""
        exact = out.dtype.name in ("float32", "float64")
        out[...] = left @ right if exact else left.astype("float32") @ right.astype("float32")

    def accumulate(self, left: Any, right: Any, out: Any) -> None:
        """``out += left @ right``."""
        product = self.numpy.empty_like(out)
        self.multiply(left, right, product)
        out += product

    def sorted_keys(self, keys: Any) -> tuple[Any, Any]:
        """As torch's."""
        order = self.numpy.argsort(keys, kind="stable").astype("int64")
        return keys[order], order

    def scatter_add(self, out: Any, places: Any, updates: Any, batch: int, onto: bool) -> None:
        """As torch's."""
        _scatter_add(self.numpy, out, places, updates, batch, onto)

    def scatter_reduce(self, out: Any, places: Any, updates: Any, batch: int, kind: str) -> None:
        """As torch's."""
        combine = {"prod": self.numpy.multiply, "max": self.numpy.maximum, "min": self.numpy.minimum}[kind]
        _combined(self.numpy, out, places, updates, batch, kind, combine.at)


class CuPy(_Plain):
    """CuPy arrays."""

    name = "cupy"

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def owns(self, value: Any) -> bool:
        return isinstance(value, self.cupy.ndarray)

    def dtype(self, name: str, value: Any) -> DType:
        dtype = dtypes.BY_NAME.get(value.dtype.name)
        if dtype is None:
            raise wrong_dtype(name, f"an array of {value.dtype}")
        return dtype

    def info(self, name: str, value: Any) -> TensorInfo:
        dtype = self.dtype(name, value)
        strides = tuple(stride // value.itemsize for stride in value.strides)
        return TensorInfo(value.shape, strides, dtype, value.data.ptr % 16, f"cuda:{value.device.id}")

    def pointer(self, value: Any) -> int:
        return int(value.data.ptr)

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: DType, device: str) -> Any:
        name: Any = dtype.name
        if dtype is dtypes.bfloat16:
            import ml_dtypes

            name = ml_dtypes.bfloat16
        order = sorted(range(len(shape)), key=lambda d: -strides[d])
        with self.cupy.cuda.Device(int(device.partition(":")[2])):
            memory = self.cupy.empty([shape[d] for d in order], dtype=name)
        return memory.transpose([order.index(d) for d in range(len(shape))])

    def workspace(self, size: int, device: str) -> tuple[Any, int]:
        memory = self.empty((size,), (1,), dtypes.uint8, device)
        return memory, memory.data.ptr

    def stream(self, device: str) -> int:
        return int(self.cupy.cuda.get_current_stream().ptr)

    def view(self, value: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
        return _strided(self.cupy, value, shape, strides, offset)

    def multiply(self, left: Any, right: Any, out: Any) -> None:
        """``out = left @ right``."""
        self.cupy.matmul(left, right, out=out)

    def accumulate(self, left: Any, right: Any, out: Any) -> None:
        """``out += left @ right``."""
        out += self.cupy.matmul(left, right)

    def sorted_keys(self, keys: Any) -> tuple[Any, Any]:
        """As torch's: CuPy's sorting is stable."""
        order = self.cupy.argsort(keys).astype("int64")
        return keys[order], order

    def scatter_add(self, out: Any, places: Any, updates: Any, batch: int, onto: bool) -> None:
        """As torch's, but that the order in which a place's numbers are added up is CuPy's, any."""
        _scatter_add(self.cupy, out, places, updates, batch, onto)

    def scatter_reduce(self, out: Any, places: Any, updates: Any, batch: int, kind: str) -> None:
        """Torch's own, since CuPy combines no 64-bit integers so.

        Raises:
            DeclarationError: there is no torch.
        """
        try:
            import torch
        except ImportError:
            raise DeclarationError(
                "fg.scatter, fg.scatter_reduce", given="CuPy arrays, where torch is not installed",
                expected="torch, whose routines combine them", fix="install torch, or add with fg.scatter_add",
            ) from None  # fmt: skip
        result, at, of = (torch.utils.dlpack.from_dlpack(value) for value in (out, places, updates))
        scatter_reduce(result, at, of, batch, kind)


def _scatter_add(library: Any, out: Any, places: Any, updates: Any, batch: int, onto: bool) -> None:
    found = _at_places(library, out, places, updates, batch, "sum", library.add.at)
    out[...] = (out + found if onto else found).astype(out.dtype)


def _combined(
    library: Any, out: Any, places: Any, updates: Any, batch: int, kind: str, combine: Callable[..., None]
) -> None:
    out[...] = _at_places(library, out, places, updates, batch, kind, combine).astype(out.dtype)


def _at_places(
    library: Any, out: Any, places: Any, updates: Any, batch: int, kind: str, combine: Callable[..., None]
) -> Any:
    """For each place the updates for it, combined in a dtype that holds their sums."""
    rows, columns, size = prod(out.shape[:batch]), prod(out.shape[batch + 1 :]), out.shape[batch]
    places = places.reshape(rows, prod(places.shape[batch:])).astype("int64")
    inside = (places >= 0) & (places < size)
    places = places + size * library.arange(rows)[:, None]
    places = library.where(inside, places, rows * size).reshape(-1)
    wide = out.dtype.name if out.dtype.itemsize == 8 else "int64" if out.dtype.kind in "iub" else "float32"
    found = library.full((rows * size + 1, columns), start(kind, dtypes.BY_NAME[wide]), dtype=wide)
    combine(found, places, updates.reshape(len(places), columns).astype(wide))
    return found[:-1].reshape(out.shape)


def _strided(library: Any, value: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """A view of a NumPy or CuPy array; strides and offset in elements."""
    start = value if not offset else _from(library, value, offset)
    return library.lib.stride_tricks.as_strided(start, shape, [s * value.itemsize for s in strides])


def _from(library: Any, value: Any, offset: int) -> Any:
    """The array from the element on that lies ``offset`` elements behind the first in memory."""
    index = []
    for size, stride in zip(value.shape, value.strides, strict=True):
        step = stride // value.itemsize
        at = min(offset // step, size - 1) if step > 0 else 0
        index.append(slice(at, None))
        offset -= at * step
    return value[tuple(index)]


torch = functools.cache(Torch)
numpy = functools.cache(NumPy)
cupy = functools.cache(CuPy)
