"""Cold and warm first calls: fresh processes, an empty and then a filled cache."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

_COMMON = """
import time, torch
x, y = (torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(2))
w = torch.rand(1024, device="cuda", requires_grad=True)
g = torch.randn(1024, 1024, device="cuda")
(x * y * g).sum().backward(); torch.cuda.synchronize()
x.grad = y.grad = None
start = time.perf_counter()
"""
_OURS = """
import fusegen as fg
imported = time.perf_counter()
@fg.op
def blend(x, y, w):
    d = y - x
    return fg.where(fg.abs(w) < 0.5, x + w * d, y - (1 - w) * d)
"""
_TORCH = """
imported = start
blend = torch.compile(lambda x, y, w: torch.lerp(x, y, w))
"""
_CALL = """
# A scalar loss: backward(g) would have torch itself import sympy, which is no part of either side.
(blend(x, y, w) * g).sum().backward(); torch.cuda.synchronize()
first = time.perf_counter()
a, b = (torch.randn(512, 256, device="cuda", requires_grad=True) for _ in range(2))
v = torch.rand(256, device="cuda", requires_grad=True)
before = time.perf_counter()
blend(a, b, v).sum().backward(); torch.cuda.synchronize()
print(imported - start, first - start, time.perf_counter() - before)
"""

PROCESSES = 3


def _run(code: str, cache: str, bytecode: str) -> list[float]:
    environment = {
        **os.environ,
        "FUSEGEN_CACHE_DIR": cache,
        "TORCHINDUCTOR_CACHE_DIR": cache + "/inductor",
        # NVRTC keeps what it compiles in the driver's cache too: without this, nothing would be compiled again.
        "CUDA_CACHE_PATH": cache + "/cuda",
        # Python's own bytecode, which an installation normally has: some images neither ship nor can write it.
        "PYTHONPYCACHEPREFIX": bytecode,
        # A first call never waits for the native call path; its build would go on in a folder that is gone.
        "FUSEGEN_NATIVE": "0",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return [float(text) for text in done.stdout.split()]


def measure() -> list[tuple[str, float, float, float]]:
    """(what, import, first forward and backward with import, first call of a new shape), seconds.

    Medians of ``PROCESSES`` processes each, that of a cold start with as many caches: one process in some pays for a
    collection of Python's garbage, or for a file that the machine has to read again.
    """
    found = []
    bytecode = tempfile.mkdtemp()
    for name, code in (("fusegen", _OURS), ("torch.compile", _TORCH)):
        program = _COMMON + code + _CALL
        with tempfile.TemporaryDirectory() as cache:
            _run(program, cache, bytecode)  # fills the bytecode, not what is measured
        times: dict[str, list[list[float]]] = {"empty cache": [], "warm cache": []}
        for _ in range(PROCESSES):
            with tempfile.TemporaryDirectory() as cache:
                for state in times:
                    times[state].append(_run(program, cache, bytecode))
        for state, runs in times.items():
            whole = [statistics.median(values) for values in zip(*runs, strict=True)]
            found.append((f"{name}, {state}", *whole))
            numbers = f"import {whole[0]:.3f}  first fwd+bwd {whole[1]:.3f}  new shape {whole[2]:.3f}"
            firsts = sorted(run[1] for run in runs)
            print(f"{found[-1][0]:<28} {numbers}  ({firsts[0]:.3f} to {firsts[-1]:.3f})", flush=True)
    return found
