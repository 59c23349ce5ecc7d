"""The candidates for a matrix product with what follows it, and the choice of the fastest one.

The default is a product and a kernel of our own behind it. A library that has an epilogue for what follows saves a
pass over memory: cuBLASLt has some (matmul/epilogue), through torch or by an algorithm that was measured
(matmul/libraries/cublaslt_autotune), and cuDNN makes kernels for others (matmul/libraries/cudnn). A bias alone is
always added by the routine that multiplies. Otherwise the candidates are timed once for each GPU, dtype and sizes up
to the next powers of two, and the times are stored on disk. Another candidate, such as a generated kernel, is one more
Library.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, TypeGuard

from fusegen.core.dtypes import DType
from fusegen.core.ir import Const, Op, walk
from fusegen.core.products import contracted_sizes
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Product, Scan, Scatter, names_of
from fusegen.launch.cache import default_cache
from fusegen.launch.checksummed import digest
from fusegen.launch.memo import compiler_digest
from fusegen.matmul.epilogue import Epilogue, activate, match_epilogue
from fusegen.matmul.libraries import cublaslt, cublaslt_autotune, cublaslt_epilogues, cudnn, cudnn_ops
from fusegen.matmul.task import MEASURING, Factors, TransientFailure
from fusegen.matmul.views import MatmulViews
from fusegen.plan.native_step import StepKind, TorchStep, View

OWN, LIBRARY, CUBLASLT = "product and kernel", "cuBLASLt's epilogue", "its fastest algorithm with the epilogue"
CUDNN = "cuDNN's kernel"
REPEATS = 7


@dataclass(frozen=True)
class Library:
    """A routine that multiplies and does what follows.

    Attributes:
        needs_alignment: whether it takes only rows, and a bias, at multiples of 16 bytes.
        heeds_torch: whether it multiplies as torch is set to (``cublaslt_autotune.is_wanted``).
        least: elements of results that it is worth trying for.
        is_considered: for tensors on a device.
        has: an epilogue, in a dtype (by name).
        is_ready: whether it can compute an epilogue of these tensors now.
        run: computes it. If the first try raises RuntimeError or AttributeError, it is no candidate.
        step: the same for the native call path; None where it cannot.
        is_refused: whether it has been asked and never will be ready for such tensors, so that our own kernel is used.
    """

    name: str
    needs_alignment: bool
    heeds_torch: bool
    least: int
    is_considered: Callable[[str], bool]
    has: Callable[[Epilogue, str], bool]
    is_ready: Callable[[Epilogue, Factors], bool]
    run: Callable[[Epilogue, Factors], None]
    step: Callable[[Epilogue, MatmulViews, DType, str], TorchStep | None]
    is_refused: Callable[[Epilogue, MatmulViews, DType, str], bool] = lambda *_: False

    def gains_from(self, rows: int, columns: int) -> bool:
        """Whether results of these sizes, or of others in their bucket, are worth trying for."""
        return _rounded(rows) * _rounded(columns) >= self.least


# Epilogues that torch has, and what a step of the native call path calls them.
_TORCHS: Mapping[str, StepKind] = {"relu": "relu", "gelu": "gelu", "bias": "bias"}


def by_torch(epilogue: Epilogue, given: Factors) -> None:
    """Compute an epilogue that torch has; a bias alone on any device."""
    import torch

    if epilogue.activation == "bias":
        torch.addmm(given.bias, given.left, given.right, out=given.out)
        return
    is_gelu = epilogue.activation == "gelu"
    torch._addmm_activation(given.bias, given.left, given.right, use_gelu=is_gelu, out=given.out)


def torch_has(epilogue: Epilogue, dtype: str) -> bool:
    """Whether torch has an epilogue."""
    return epilogue.activation in _TORCHS and bool(epilogue.bias) and not epilogue.preactivation


def torch_step(epilogue: Epilogue, matmul: MatmulViews, dtype: DType, device: str) -> TorchStep | None:
    """The same for the native call path."""
    bias = View(matmul.views[2].shape[-1:], (1,), 0)
    return matmul.multiply(dtype, _TORCHS[epilogue.activation], (epilogue.bias, bias))


LIBRARIES = (
    Library(
        LIBRARY, False, True, 0, lambda device: device != "cpu", torch_has, lambda epilogue, given: True, by_torch,
        torch_step,
    ),
    Library(
        CUBLASLT, True, False, 0, cublaslt_autotune.is_considered, cublaslt_epilogues.has, cublaslt_epilogues.is_ready,
        cublaslt_epilogues.run, cublaslt_epilogues.step, cublaslt_epilogues.is_refused,
    ),
    Library(
        CUDNN, True, False, cudnn.LEAST, cudnn.is_considered, cudnn_ops.has, cudnn.is_ready, cudnn.run, cudnn.step,
        cudnn.is_refused,
    ),
)  # fmt: skip


def libraries(epilogue: Epilogue, dtype: str, device: str) -> list[Library]:
    """Those that could do it, as torch is set to multiply now."""
    able = [library for library in LIBRARIES if library.is_considered(device) and library.has(epilogue, dtype)]
    return [library for library in able if library.heeds_torch or cublaslt_autotune.is_wanted(dtype)]


# -- which one ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Microseconds of each candidate. One that is absent, not considered, or computes something else has none."""

    times: Mapping[str, float]

    def best(self, candidates: Collection[str]) -> str:
        """The fastest of ``candidates``."""
        return min((name for name in self.times if name in candidates), key=lambda name: self.times[name])

    def __str__(self) -> str:
        return ", ".join(f"{name} {time:.1f} us" for name, time in self.times.items())


_known: dict[tuple[str, ...], Measured] = {}


def _rounded(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def bucket(
    device: str, dtype: str, sizes: Sequence[int], epilogue: Epilogue, candidates: Sequence[Library] | None = None
) -> tuple[str, ...]:
    """What is measured once: sizes count up to the next power of two.

    Args:
        candidates: the libraries that accept the layouts of the tensors; by default all that gain.
    """
    import torch

    if candidates is None:
        candidates = [candidate for candidate in libraries(epilogue, dtype, device) if candidate.gains_from(*sizes[:2])]
    names = [candidate.name for candidate in candidates]

    rounded = [str(_rounded(size)) for size in sizes]
    versions = [str(torch.version.cuda), torch.__version__]
    if CUBLASLT in names:
        versions.append(f"cublaslt {cublaslt.version()}")
    if CUDNN in names:
        versions.append(f"cudnn {cudnn.version()}")
    return (torch.cuda.get_device_name(device), *versions, *names, dtype, epilogue.title, *rounded)


def remembered(key: tuple[str, ...]) -> Measured | None:
    """What was measured for a bucket, here or in another process."""
    if key not in _known:
        found = default_cache().get(_place(key))
        if found is None:
            return None
        _known[key] = Measured(json.loads(found))
    return _known[key]


def _place(key: tuple[str, ...]) -> str:
    return digest("product", compiler_digest(), *key)


def choose(
    key: tuple[str, ...], epilogue: Epilogue, given: Factors, libraries: Sequence[Library], own: Callable[[], Any],
    reduce: Callable[[], Any] = lambda: None,
) -> Library | None:  # fmt: skip
    """The fastest candidate, measured now if it has not been; None is our own, also while a CUDA graph is captured.

    Args:
        reduce: computes what the library leaves to do.
    """
    found = remembered(key) or _measured(key, epilogue, given, libraries, own, reduce)
    if found is None:
        return None
    for library in in_order(found, libraries):
        if library is None or _is_ready(library, epilogue, given):
            return library
    return None


def in_order(measured: Measured, libraries: Sequence[Library]) -> list[Library | None]:
    """The candidates, the fastest first; None is our own."""
    named: dict[str, Library | None] = {OWN: None, **{library.name: library for library in libraries}}
    return [named[name] for name in sorted(measured.times, key=lambda name: measured.times[name]) if name in named]


def _is_ready(library: Library, epilogue: Epilogue, given: Factors) -> bool:
    try:
        return library.is_ready(epilogue, given)
    except TransientFailure:
        return False


def _measured(
    key: tuple[str, ...], epilogue: Epilogue, given: Factors, libraries: Sequence[Library], own: Callable[[], Any],
    reduce: Callable[[], Any],
) -> Measured | None:  # fmt: skip
    """What the tensors' GPU, on the stream that is current there, has measured and will remember; None: not now."""
    import torch

    with torch.cuda.device_of(given.out):
        if torch.cuda.is_current_stream_capturing():
            return None
        with MEASURING:
            found = remembered(key)  # by the thread that this one waited for
            if found is not None:
                return found
            try:
                found = _known[key] = _measure(epilogue, given, libraries, own, reduce)
            except (torch.cuda.OutOfMemoryError, TransientFailure):  # no reason to fail; the next call tries again
                return None
            default_cache().put(_place(key), json.dumps(dict(found.times)).encode())
            return found


def _measure(
    epilogue: Epilogue, given: Factors, libraries: Sequence[Library], own: Callable[[], Any], reduce: Callable[[], Any]
) -> Measured:
    from fusegen.matmul.libraries.stopwatch import Stopwatch

    clock, candidates = Stopwatch(REPEATS, device=given.out.device), {OWN: own}
    where = given.out.dtype, str(given.out.device)
    own()
    some = given.out[:: -(-len(given.out) // _SAMPLED)]
    expected = some.clone()
    for library in libraries:
        if not library.is_ready(epilogue, given) or not _is_right(library, epilogue.canonical, *where):
            continue
        run = partial(_run, library, epilogue, given, reduce)
        if _is_alike(run, some, expected) and _passes_nan(library, epilogue, given):
            candidates[library.name] = run
    return Measured(clock.turns(candidates))


def _run(library: Library, epilogue: Epilogue, given: Factors, reduce: Callable[[], Any]) -> None:
    library.run(epilogue, given)
    reduce()


# Rows of a result in which candidates are compared.
_SAMPLED = 256


def _is_alike(run: Callable[[], Any], out: Any, expected: Any) -> bool:
    """Whether a candidate works for these tensors, too, and gives what our own does, but for rounding."""
    import torch

    try:
        run()
        apart = (out.float() - expected.float()).norm()  # NaN where either has one: the caller's numbers are no test
    except torch.cuda.OutOfMemoryError:
        raise
    except (AttributeError, RuntimeError):
        return False
    return not bool(apart > 0.05 * expected.float().norm())


def _passes_nan(library: Library, epilogue: Epilogue, given: Factors) -> bool:
    """Whether NaN in the bias comes out where the activation lets it: for sizes that suit no fast kernel cuBLASLt has
    others than those that ``_is_right`` has tried."""
    if given.bias is None:
        return True
    bias = given.bias.clone()
    bias[:1] = float("nan")
    library.run(epilogue, replace(given, bias=bias))
    auxiliary = [tensor[..., :1].float() for tensor in given.auxiliary]
    expected = activate(epilogue, bias[:1].float().expand(len(given.out), 1), auxiliary)
    return bool((given.out[:, :1].isnan() == expected.isnan()).all())


# Sums at which an activation is tried: from where most have reached their limits to the other side of it.
_FAR, _ROWS = 20.0, 512
# By how much an activation may be off there, relatively and near zero: halves are rounded twice, and a function that
# a library approximates is good enough for them. In single and double it is as exact as torch's own, or not taken:
# cuBLASLt's gelu is off by 4e-11 in double.
_ROUNDED = {"float16": 2**-9, "bfloat16": 2**-6, "float32": 2**-19, "float64": 2**-48}
_OFF = {"float16": 2**-16, "bfloat16": 2**-16, "float32": 2**-19, "float64": 2**-48}


@functools.cache
def _is_right(library: Library, epilogue: Epilogue, dtype: Any, device: str) -> bool:
    """Whether an epilogue is what we take it for and passes NaN and infinities on, which not every version does."""
    import torch

    generator = torch.Generator(device).manual_seed(0)  # the caller's numbers stay what they would be
    shapes = (_ROWS, 64), (64, 64), (64,)
    x, w, b = (torch.randn(shape, device=device, generator=generator) for shape in shapes)
    x[3, 5], x[7, 0] = float("nan"), float("inf")
    x, w, b = x.to(dtype), w.to(dtype), (4 * b).to(dtype)
    total = x.double() @ w.double() + (b.double() if epilogue.bias else 0.0)
    refs = [ref for _, ref in epilogue.auxiliary]
    auxiliary = [
        4 * torch.randn(shapes[2 if ref.is_row else 0], device=device, generator=generator).to(dtype) for ref in refs
    ]
    if not _is_close(library, epilogue, (x, w, b), total, auxiliary, rtol=0.05, atol=0.5):
        return False
    # Numbers that every dtype has, and every product of a matrix: what then is off, the activation is.
    x, w = torch.zeros_like(x), torch.zeros_like(w)
    x[:, 0], w[0] = torch.linspace(-_FAR, _FAR, _ROWS, device=device).bfloat16(), 1.0
    numbers = [n.value for n in walk([epilogue.function] if epilogue.function else []) if isinstance(n, Const)]
    edges = [float(number) for number in (0, *numbers) if abs(number) < _FAR]  # where it may jump
    x[: len(edges), 0] = torch.tensor(edges, device=device).bfloat16()
    across = torch.linspace(-_FAR, _FAR, shapes[2][0], device=device).bfloat16()  # auxiliary inputs meet all sums
    across[: len(edges)] = across.new_tensor(edges)
    total, whole = x[:, :1].double().expand(-1, 64), x.new_ones(shapes[0])
    auxiliary = [
        (across if at % 2 == 0 else across.flip(0)).to(dtype) * (1 if ref.is_row else whole)
        for at, ref in enumerate(refs)
    ]
    name = str(dtype).removeprefix("torch.")
    return _is_close(library, epilogue, (x, w, 0 * b), total, auxiliary, rtol=_ROUNDED[name], atol=_OFF[name])


def _is_close(
    library: Library, epilogue: Epilogue, given: tuple[Any, Any, Any], total: Any, auxiliary: Sequence[Any],
    rtol: float, atol: float,
) -> bool:  # fmt: skip
    """Whether a library's activation of a product and a bias is that of ``total``, which it is to keep as well."""
    import torch

    x, w, b = given
    out = x.new_empty(total.shape)
    preactivation = torch.empty_like(out) if epilogue.preactivation else None
    factors = Factors(x, w, b if epilogue.bias else None, preactivation, out, tuple(auxiliary))
    try:
        if not library.is_ready(epilogue, factors):
            return False
        library.run(epilogue, factors)
    except (torch.cuda.OutOfMemoryError, TransientFailure):
        raise
    except (AttributeError, RuntimeError):  # a torch without it, or a dtype it does not take
        return False
    pairs = [
        (out, activate(epilogue, total, [tensor.double() for tensor in auxiliary])),
        *([] if preactivation is None else [(preactivation, total)]),
    ]
    return all(torch.allclose(a.double(), b.to(a.dtype).double(), rtol, atol, equal_nan=True) for a, b in pairs)


def _multiplies(step: Op | Product) -> TypeGuard[Product]:
    return isinstance(step, Product) and not isinstance(step, (Scan, Scatter))


def steps_behind(op: Op) -> list[tuple[Product, Op, Epilogue]]:
    """Products and the steps behind them that a library could do at once.

    Where the product itself is read later, by a step or by the backward, the library would keep what the activation
    takes in its place.
    """
    cut, found = chain(op), []
    steps = cut.steps if cut is not None else ()
    for at, (product, step) in enumerate(pairwise(steps)):
        epilogue = match_epilogue(product, step) if _multiplies(product) and isinstance(step, Op) else None
        if epilogue is None:
            continue
        assert isinstance(product, Product) and isinstance(step, Op)
        is_kept = any(output.name == product.result for output in op.outputs)
        if is_kept or any(product.result in names_of(later) for later in steps[at + 2 :]):
            if epilogue.preactivation:
                continue
            epilogue = replace(epilogue, preactivation=product.result)
        found.append((product, step, epilogue))
    return found


def _counts(op: Op, product: Product, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Rows and columns of a product's result, and what it adds up over."""
    own = contracted_sizes(op, sizes)
    *rows, columns = (own[axis] for axis in product.axes)
    return prod(rows), columns, prod(own[axis] for axis in product.over)


def _dtype(product: Product, step: Op) -> str:
    """Of a product's result, by name."""
    return next(operand.dtype.name for operand in step.operands if operand.name == product.result)


def adds_bias(epilogue: Epilogue) -> bool:
    """Whether all that follows is a bias, which the routine that multiplies always adds itself."""
    return epilogue.activation == "bias" and not epilogue.preactivation


def notes(op: Op) -> dict[str, str]:
    """What may happen in the place of the steps behind products, by the product's name."""
    found: dict[str, str] = {}
    for product, step, epilogue in steps_behind(op):
        dtype = _dtype(product, step)
        candidates = " or ".join(_named(library) for library in LIBRARIES if library.has(epilogue, dtype))
        if adds_bias(epilogue):
            found[product.result] = "  in the place of the next step the same routine adds the bias"
        elif candidates:
            where = "in the place of the next step, where it is measured to be faster"
            found[product.result] = f"  on a GPU {candidates} ({epilogue.title}) {where}"
    return found


def measurements(op: Op, sizes: Mapping[str, int]) -> dict[str, str]:
    """What has been measured on torch's current GPU of the candidates for an op's products, by the product's name."""
    found: dict[str, str] = {}
    for product, step, epilogue in steps_behind(op):
        dtype = _dtype(product, step)
        if adds_bias(epilogue) or not any(library.has(epilogue, dtype) for library in LIBRARIES):
            continue
        if not has_gpu():
            found[product.result] = "not measured on this machine: torch sees no GPU"
            continue
        counts = _counts(op, product, sizes)
        measured = remembered(bucket("cuda", dtype, counts, epilogue))
        there = libraries(epilogue, dtype, "cuda")
        candidates = [OWN, *(library.name for library in there if library.gains_from(*counts[:2]))]
        if not there:
            found[product.result] = "not measured on this machine: see `fusegen doctor` for the library"
        elif len(candidates) == 1:
            found[product.result] = f"{OWN}: too few results for {' or '.join(map(_named, there))}"
        elif measured is None:
            found[product.result] = "not measured yet for these sizes"
        else:
            found[product.result] = f"measured: {measured}; best: {measured.best(candidates)}"
    return found


def _named(library: Library) -> str:
    return library.name + (f", for {library.least:,} results or more," if library.least else "")


def has_gpu() -> bool:
    """Whether torch is there and sees one."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def current_gpu() -> int:
    """torch's; 0 where it sees none."""
    if not has_gpu():
        return 0
    import torch

    return torch.cuda.current_device()
