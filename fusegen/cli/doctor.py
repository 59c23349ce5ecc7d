"""``fusegen doctor``: what was found on this machine, and what to do about what is missing.

It must work exactly when things do not, so every look is on its own and whatever it raises is its answer.
"""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

from fusegen.cli.progress import Bar


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``fix`` is empty where nothing is amiss."""

    name: str
    found: str
    fix: str = ""


def report() -> bool:
    """Print the findings; True when ops can run here, on a GPU or on the CPU."""
    from rich.console import Console
    from rich.table import Table

    findings = []
    with Bar(total=len(LOOKS)) as bar:  # torch alone takes seconds to import
        for look in LOOKS:
            bar.step(look.__name__.strip("_").replace("_", " "))
            findings.append(look())
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for finding in findings:
        mark = "[yellow]--[/yellow]" if finding.fix else "[green]ok[/green]"
        table.add_row(mark, f"[bold]{finding.name}[/bold]", _plain(finding.found))
        if finding.fix:
            table.add_row("", "", f"[dim]fix:[/dim] {_plain(finding.fix)}")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(table)
    works = {finding.name: not finding.fix for finding in findings}
    places = ["the GPU"] * (works["GPU"] and works["NVRTC"]) + ["the CPU"] * works["C++ compiler"]
    console.print(f"\nOps run on {' and '.join(places)}." if places else "\nOps do not run here yet: see the fixes.")
    return bool(places)


def build_call_path() -> None:
    """Build the native call path, also where a build failed before; ``report`` says how it went."""
    from fusegen.native import module as native

    with Bar(total=1) as bar:
        bar.step("building the call path")
        native.build(native.recipe(), again=True)


def installed_version() -> str:
    """The version of the code that runs, and how it is installed where that is not the whole story."""
    from importlib import metadata

    import fusegen

    try:
        built = metadata.version("fusegen")
    except metadata.PackageNotFoundError:
        return f"{fusegen.__version__}, from a source tree"
    stale = f" (installed as {built}: run pip install again)" if built != fusegen.__version__ else ""
    return fusegen.__version__ + stale


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _look(name: str, fix: str) -> Callable[[Callable[[], str]], Callable[[], Finding]]:
    """Decorator: the function says what it found; what it raises is what is wrong."""

    def decorate(function: Callable[[], str]) -> Callable[[], Finding]:
        def look() -> Finding:
            try:
                return Finding(name, function())
            except Exception as error:
                text = getattr(error, "given", "") or f"{type(error).__name__}: {error}"
                return Finding(name, text.splitlines()[0], getattr(error, "fix", "") or fix)

        look.__name__ = function.__name__
        return look

    return decorate


@_look("fusegen", "pip install fusegen")
def _fusegen() -> str:
    return f"{installed_version()}, Python {platform.python_version()} on {platform.system()} {platform.machine()}"


@_look("GPU", "install the NVIDIA driver; without a GPU ops run on the CPU, for looking and testing")
def _gpu() -> str:
    from fusegen.launch import driver

    cuda, count = driver.library(), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if not count.value:
        raise RuntimeError("a driver that offers no device")
    names = []
    for device in range(count.value):
        name = ctypes.create_string_buffer(256)
        cuda.cuDeviceGetName(name, len(name), device)
        names.append(f"{name.value.decode()} ({driver.architecture(device)})")
    return "; ".join(names)


@_look("CuPy", 'pip install "fusegen[cuda13]" (or [cuda12], after your driver)')
def _cupy() -> str:
    if importlib.util.find_spec("cupy_backends") is None:
        raise ModuleNotFoundError("not installed: compiles and launches kernels for GPUs")
    from importlib import metadata

    names = [d.metadata["Name"] for d in metadata.distributions() if (d.metadata["Name"] or "").startswith("cupy")]
    versions = [f"{name} {metadata.version(name)}" for name in sorted(names)]
    return ", ".join(versions) or "found, not installed by pip"


@_look("NVRTC", 'pip install "fusegen[cuda13]" (or [cuda12], after your driver)')
def _nvrtc() -> str:
    from fusegen.launch.compile import nvrtc_version, supported_architectures

    major, minor = nvrtc_version()
    known = supported_architectures()
    return f"{major}.{minor}, compiles for {known[0]} to {known[-1]}; no GPU needed"


@_look("torch", 'pip install "fusegen[torch]"; without it ops take NumPy and CuPy arrays, and have no autograd')
def _torch() -> str:
    import torch

    cuda = f"with CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU"
    return f"{torch.__version__} {cuda}"


@_look("torch's names", "update fusegen, or use a torch that it knows")
def _torch_names() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: nothing to ask it"
    from fusegen.pytorch.library import torch_names

    return torch_names.report()


@_look("cuBLASLt", "torch's own routine does products; PyTorch for CUDA brings cuBLASLt")
def _cublaslt() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: no products to choose algorithms for"
    from fusegen.matmul.libraries import cublaslt

    found = cublaslt.version()
    if not found:
        return "none (it comes with PyTorch for CUDA): torch's own routine does products"
    name = f"{found // 10000}.{found // 100 % 100}.{found % 100}"
    return f"{name}: its epilogues, and the fastest of its algorithms for large products of halves"


@_look("cuDNN", "other candidates do products with activations; PyTorch for CUDA brings cuDNN 9")
def _cudnn() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: no products to fuse"
    from fusegen.matmul.libraries import cudnn, cudnn_api

    found = cudnn.version()
    if found < cudnn_api.OLDEST:
        return "no cuDNN 9 (it comes with PyTorch for CUDA): other candidates do products with activations"
    name = f"{found // 10000}.{found // 100 % 100}.{found % 100}"
    if not cudnn.is_considered("cuda"):
        return f"{name}, switched off (torch.backends.cudnn.enabled): other candidates do products with activations"
    return f"{name}: large products of halves with many an activation as one kernel"


@_look("C++ compiler", "install one: apt install g++, dnf install gcc-c++, xcode-select --install")
def _compiler() -> str:
    from fusegen.launch.emulator.build import compiler, compiler_identity

    return f"{compiler_identity().rpartition(' [')[0]} ({compiler()}); runs kernels on the CPU"


@_look("cache folder", "set FUSEGEN_CACHE_DIR to a folder of your own")
def _cache() -> str:
    from fusegen.launch.cache import default_cache

    state = default_cache().describe()
    if state.problem:
        raise RuntimeError(f"{state.problem}: kernels are compiled anew in every process")
    return f"{state.folder}, {state.entries} entries, {state.size_bytes / 2**20:.1f} MiB"


@_look("call path", "calls take the Python path, which is slower; results are the same")
def _call_path() -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: nothing to build for"
    from fusegen.native import module as native

    return native.report()


LOOKS = (_fusegen, _gpu, _cupy, _nvrtc, _torch, _torch_names, _cublaslt, _cudnn, _compiler, _cache, _call_path)
