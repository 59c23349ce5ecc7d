"""NVRTC without a GPU: what it compiles, what a cubin says about itself, and how a rejected kernel is reported."""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import fusegen as fg
from fusegen.core.errors import CompileError
from fusegen.generate.rendered import headers
from fusegen.inspect.passes import passes
from fusegen.launch import compile as compiler
from fusegen.launch import nvrtc as direct_nvrtc
from fusegen.launch.cache import Cache
from fusegen.launch.compile import cached_cubin, nvrtc_version, supported_architectures, to_cubin
from fusegen.launch.cubin import Resources, resources

DECLARED = "lerp, declared in ops/blends.py:12"
ARCHS = ("sm_75", "sm_80", "sm_90", "sm_90a", "sm_100")

HEADER = """__device__ float twice(float x) {
  return 2.0f * x;
}
"""
KERNEL = """#include "helpers.h"
// Doubles every element: \u00e9t\u00e9.
extern "C" __global__ void twice_forward(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = twice(x[i]);
}
"""
# Two kernels that between them use static and dynamic shared memory, a stack, literals and a subroutine.
HUNGRY = """
extern "C" __global__ void first(float* x, int i) {
  __shared__ float staged[64];
  float local[100];
  for (int j = 0; j < i; j++) local[x[j] > 0 ? j : 2 * j] = x[j];
  staged[threadIdx.x] = x[threadIdx.x] + local[i];
  __syncthreads();
  x[0] = staged[5] * 3.14159265358979;
}
extern "C" __global__ void second(double* x) {
  extern __shared__ double staged_too[];
  staged_too[threadIdx.x] = sin(x[0]);
  __syncthreads();
  x[1] = staged_too[threadIdx.x ^ 5];
}
extern "C" __global__ void third(float* x) { x[0] = 1.0f; }
"""


def compile_kernel(source: str = KERNEL, headers: Mapping[str, str] | None = None, arch: str = "sm_90") -> bytes:
    headers = {"helpers.h": HEADER} if headers is None else headers
    return to_cubin(source, arch=arch, headers=headers, declared=DECLARED).data


def rejected(source: str, headers: Mapping[str, str] | None = None) -> str:
    with pytest.raises(CompileError) as caught:
        compile_kernel(source, headers)
    assert str(caught.value).startswith(DECLARED)
    return str(caught.value)


def test_what_is_there() -> None:
    assert nvrtc_version() >= (12, 0)
    assert {"sm_75", "sm_80", "sm_90"} <= set(supported_architectures())
    assert supported_architectures() == sorted(supported_architectures(), key=lambda arch: int(arch[3:]))


@pytest.mark.parametrize("arch", ARCHS)
def test_compiles_without_a_gpu(arch: str) -> None:
    cubin = compile_kernel(arch=arch)
    assert cubin.startswith(b"\x7fELF") and b"twice_forward" in cubin
    assert cubin == compile_kernel(arch=arch)


def test_a_clean_kernel_leaves_no_log_and_a_warning_is_kept() -> None:
    assert to_cubin(KERNEL, arch="sm_90", headers={"helpers.h": HEADER}, declared=DECLARED).log == ""
    warned = to_cubin("__global__ void k() { int unused; }", arch="sm_90", headers={}, declared=DECLARED)
    assert "unused" in warned.log and "\0" not in warned.log


def test_headers_come_from_memory_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helpers.h").write_text("#error read from disk\n")
    monkeypatch.chdir(tmp_path)
    compile_kernel()
    assert 'could not open source file "helpers.h"' in rejected(KERNEL, {})


def test_threads_compile_at_once() -> None:
    sources = [KERNEL.replace("twice_forward", f"twice_{number}") for number in range(8)]
    alone = [compile_kernel(source) for source in sources]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compile_kernel, sources)) == alone


def said_by_ptxas(log: str, entry: str) -> tuple[int, int, int, int]:
    """Registers, stack, static shared and constant bytes from ``ptxas -v``; older GPUs alone report constants."""
    _, _, about = log.partition(f"Compiling entry function '{entry}'")
    used = next(line for line in about.splitlines() if "Used" in line)

    def number(pattern: str) -> int:
        return sum(int(found) for found in re.findall(pattern, used))

    registers, stack, shared = number(r"Used (\d+) reg"), number(r"(\d+) bytes cumulative"), number(r"(\d+) bytes smem")
    return registers, stack, shared, number(r"(\d+) bytes cmem\[[02]\]")


@pytest.mark.parametrize(("arch", "entry"), [*itertools.product(ARCHS, ("first", "second", "third"))])
def test_resources_agree_with_ptxas(arch: str, entry: str) -> None:
    built = to_cubin(HUNGRY, arch=arch, headers={}, declared=DECLARED, options=("--ptxas-options=-v",))
    found = resources(built.data, entry)
    registers, stack, shared, constant = said_by_ptxas(built.log, entry)
    assert found == Resources(registers, stack, shared, constant or found.constant_bytes)
    assert found.registers > 0 and found.constant_bytes > 0
    if entry == "first":
        assert found.shared_bytes == 256 and found.local_bytes >= 400


@fg.op
def summary(x):  # type: ignore[no-untyped-def]
    return fg.ops.var(x, 0), fg.ops.argmax(x, 0), fg.ops.amin(x, 0), fg.logsumexp(x, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_second_kernels_have_the_shared_memory_that_they_declare(dtype: torch.dtype) -> None:
    # The emulator has no limit: this is what ptxas says.
    (item,) = passes(summary, (torch.empty(4096, 2048, dtype=dtype),), {})
    assert {kernel.schedule.finish for kernel in item.kernels if kernel.schedule.split} == {"block"}
    assert to_cubin(item.text, arch="sm_90", headers=headers(), declared="").data


def test_resources_of_something_else() -> None:
    with pytest.raises(KeyError, match=r"no kernel 'fourth'.*\['first', 'second', 'third'\]"):
        resources(compile_kernel(HUNGRY), "fourth")
    with pytest.raises(ValueError, match="not a cubin"):
        resources(b"", "first")


def test_an_error_quotes_the_lines_and_the_declaration() -> None:
    source = KERNEL.replace("twice(x[i])", "thrice(x[i]) + 1")
    assert rejected(source) == (
        f"""{DECLARED}
  given:    generated CUDA that NVRTC {".".join(map(str, nvrtc_version()))} rejects for sm_90
    kernel.cu:5: identifier "thrice" is undefined
         3 | extern "C" __global__ void twice_forward(const float* x, float* y, int n) {{
         4 |   const int i = blockIdx.x * blockDim.x + threadIdx.x;
         5 |   if (i < n) y[i] = thrice(x[i]) + 1;
           |                     ^
         6 | }}
  expected: C++17 device code that includes no header of the system
  fix:      mend the cuda= or header= of fg.register_function if that text is yours; """
        "else this is a bug in fusegen: report it"
    )


def test_an_error_in_a_header_quotes_the_header() -> None:
    text = rejected(KERNEL, {"helpers.h": HEADER.replace("* x", "* z")})
    assert 'helpers.h:2: identifier "z" is undefined\n' in text
    assert "     2 |   return 2.0f * z;\n           |                 ^\n" in text


def test_a_tab_keeps_its_caret() -> None:
    text = rejected("__global__ void k(float* x) {\n\tx[0] = nothing;\n}\n")
    assert "     2 | \tx[0] = nothing;\n           | \t       ^\n" in text


def test_many_errors_are_counted() -> None:
    text = rejected("__global__ void k() {\n  a();\n  b();\n  c();\n  d();\n  e();\n}\n")
    assert text.count("is undefined") == 3 and "\n    and 2 more\n" in text


def test_a_template_says_who_used_it() -> None:
    source = "template <class T> __device__ T f(T a) { return a.x; }\n__global__ void k(float* x) {\n  f(x[0]);\n}\n"
    assert "detected during instantiation of" in rejected(source)


def test_errors_without_a_line() -> None:
    assert "kernel.cu:2: At end of source" in rejected("__global__ void k() {\n  {}\n")
    assert "Unresolved extern function" in rejected(
        "__device__ int f(int);\n__global__ void k(int* x) { *x = f(*x); }\n"
    )
    assert "Unknown modifier '.such'" in rejected('__global__ void k() { asm("no.such;"); }')


def test_too_much_shared_memory_points_at_the_kernel() -> None:
    source = '// Tiles.\nextern "C" __global__ void tiles(float* x) {\n  __shared__ float tile[99999];\n'
    text = rejected(source + "  tile[threadIdx.x] = *x;\n  __syncthreads();\n  *x = tile[7];\n}\n")
    assert "kernel.cu:2: ptxas error   : Entry function 'tiles' uses too much shared data" in text
    assert "less static shared memory" in text


@pytest.mark.parametrize("arch", ["sm_42", "sm_9", "90", "sm_90z", "compute_90", ""])
def test_an_unknown_architecture_lists_the_known(arch: str) -> None:
    with pytest.raises(CompileError, match=r"(?s)architecture '.*sm_75, sm_80.*fix:"):
        compile_kernel(arch=arch)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(CompileError, match=r"(?s)--nonsense.*remove the option"):
        to_cubin(KERNEL, arch="sm_90", headers={"helpers.h": HEADER}, declared=DECLARED, options=("--nonsense",))


def test_a_missing_compiler_says_what_to_install() -> None:
    code = "import sys; sys.modules['cupy_backends'] = None\n"
    code += "from fusegen.launch import nvrtc; nvrtc.libraries = list\n"
    code += "from fusegen.launch.compile import nvrtc_version\nnvrtc_version()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'fusegen[cuda13]'" in done.stderr and "CompileError" in done.stderr


def test_importing_does_not_load_the_compiler() -> None:
    # The module itself, not what the front of the package imports: hence a package in its place.
    folder = str(Path(compiler.__file__).parent.parent)
    code = "import sys, types; sys.modules['fusegen'] = front = types.ModuleType('fusegen')\n"
    code += f"front.__path__ = [{folder!r}]\n"
    code += "import fusegen.launch.compile\nprint({'cupy', 'cupy_backends', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every compile from now on, by architecture."""
    compiled: list[str] = []
    original = compiler.to_cubin

    def count(source: str, *, arch: str, headers: Mapping[str, str], declared: str, options: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
        compiled.append(arch)
        return original(source, arch=arch, headers=headers, declared=declared, options=options)

    monkeypatch.setattr(compiler, "to_cubin", count)
    return compiled


def test_a_cached_kernel_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = counted(monkeypatch)
    headers = {"helpers.h": HEADER}
    first = cached_cubin(KERNEL, arch="sm_90", headers=headers, declared=DECLARED, cache=Cache(tmp_path))
    again = cached_cubin(KERNEL, arch="sm_90", headers=headers, declared="elsewhere", cache=Cache(tmp_path))
    assert first == again == compile_kernel() and compiled == ["sm_90"]


def test_every_ingredient_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = counted(monkeypatch)
    cache, headers = Cache(tmp_path), {"helpers.h": HEADER}
    same: dict[str, object] = {"source": KERNEL, "arch": "sm_90", "headers": headers, "options": ()}
    changes: list[dict[str, object]] = [
        {},
        {"source": KERNEL + "\n"},
        {"arch": "sm_90a"},
        {"headers": {"helpers.h": HEADER + "\n"}},
        {"headers": {**headers, "unused.h": ""}},
        {"options": ("--use_fast_math",)},
    ]
    for number, change in enumerate(changes, 1):
        for _ in range(2):
            cached_cubin(**{**same, **change}, declared=DECLARED, cache=cache)  # type: ignore[arg-type]
        assert len(compiled) == number, change
    monkeypatch.setattr(compiler, "compiler_identity", lambda: ("another NVRTC",))
    cached_cubin(**same, declared=DECLARED, cache=cache)  # type: ignore[arg-type]
    assert len(compiled) == len(changes) + 1


def test_the_identity_of_the_compiler_follows_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia" / "any" / "lib" / "libnvrtc.so.99"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"one")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for content in (b"one", b"another"):
        library.write_bytes(content)
        compiler.compiler_identity.cache_clear()
        found.append(compiler.compiler_identity())
    compiler.compiler_identity.cache_clear()
    assert found[0] != found[1]


def test_nvrtc_is_called_without_cupy(tmp_path: Path) -> None:
    """To import CuPy's binding takes longer than to compile; and both make the same cubin."""
    code = """
import sys
from fusegen.launch.compile import to_cubin
made = to_cubin(sys.stdin.read(), arch="sm_90", headers={}, declared="x").data
assert not [name for name in sys.modules if name.startswith("cupy")]
print(made.hex())
"""
    source = KERNEL.replace('#include "helpers.h"', HEADER)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    program = nvrtc.createProgram(source, "kernel.cu", [], [])
    nvrtc.compileProgram(program, ("-arch=sm_90", *compiler.DEFAULT_OPTIONS))
    assert bytes.fromhex(done.stdout).rstrip(b"\0") == nvrtc.getCUBIN(program).rstrip(b"\0")
    assert nvrtc_version() == nvrtc.getVersion()
    assert supported_architectures() == [f"sm_{number}" for number in sorted(nvrtc.getSupportedArchs())]


def test_a_library_that_does_not_load_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is newer than the driver is taken only where there is no other."""
    mine = [name for name in direct_nvrtc.libraries() if re.search(r"/libnvrtc\.so\.\d+", name)]
    broken = tmp_path / "libnvrtc.so.99"
    broken.write_bytes(b"no library")
    tried: list[str] = []
    version = nvrtc_version()

    class Libraries:
        @staticmethod
        def CDLL(name: str) -> object:
            if "libnvrtc.so" in name:
                tried.append(name)
            return ctypes.CDLL(name)

        def __getattr__(self, name: str) -> object:
            return getattr(ctypes, name)

    monkeypatch.setattr(direct_nvrtc, "ctypes", Libraries())
    monkeypatch.setattr(direct_nvrtc, "libraries", lambda: [*mine, str(broken)])
    for driver, order in ((99, [str(broken), mine[0]]), (14, mine[:1]), (1, [str(broken), mine[0]])):
        monkeypatch.setattr(direct_nvrtc, "_driver_major", lambda driver=driver: driver)
        tried.clear()
        found = direct_nvrtc.direct.__wrapped__()
        assert found is not None and found.getVersion() == version
        assert tried == order
    monkeypatch.setattr(direct_nvrtc, "libraries", lambda: [str(broken)])
    assert direct_nvrtc.direct.__wrapped__() is None


def test_a_damaged_entry_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = counted(monkeypatch)
    for _ in range(2):
        found = cached_cubin(KERNEL, arch="sm_90", headers={"helpers.h": HEADER}, declared="x", cache=Cache(tmp_path))
        assert found == compile_kernel()
        (entry,) = Cache(tmp_path).entries()
        entry.path.write_bytes(found[:100])
    assert len(compiled) == 2
