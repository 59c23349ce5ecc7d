"""What every test runs under: the same examples on every machine, and a cache that is nobody's own."""

from __future__ import annotations

import gc
import os
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fusegen.launch.memo import compiler_digest

# "ci" repeats itself; HYPOTHESIS_PROFILE=explore looks for new examples.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

pytest.register_assert_rewrite("tests.support.call_paths")  # a plugin of some tests, and imported by them first
os.environ.setdefault("FUSEGEN_CACHE_DIR", str(Path(__file__).resolve().parent.parent / "build" / "cache"))
# Most kernels here run once, on a few numbers: what it takes to compile them is what counts.
os.environ.setdefault("FUSEGEN_EMULATOR_DEBUG", "1")
# What torch.compile keeps was derived by the code of its day: graphs of another day's would be refused
# (pytorch/library/derived).
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{os.environ['FUSEGEN_CACHE_DIR']}/inductor-{compiler_digest()[:16]}")
# NVRTC finds what a process before has compiled in the driver's cache, without what the compiler said of it.
os.environ.setdefault("CUDA_CACHE_DISABLE", "1")

# A test process holds thousands of modules, expressions and plans. Going through them every few hundred new objects
# takes time and frees next to nothing; tests of leaks collect by themselves. What is there before the first test is not
# gone through at all (pytest_collection_finish). And torch would ask for a collection after each of its compilations.
gc.set_threshold(100_000, 10, 10)
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

# As many test processes as cores: torch's own threads, a team in each process, would spin for each other's core.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _the_same_random_numbers_every_run(request: pytest.FixtureRequest) -> None:
    """Each test draws its own numbers, and the same in every run, wherever its file lies: a failure repeats itself."""
    test = request.node.nodeid.partition("::")[2]
    seed = zlib.crc32(f"tests/{request.node.path.name}::{test}".encode())
    random.seed(seed)
    for name, function in (("torch", "manual_seed"), ("numpy.random", "seed")):
        if name in sys.modules:
            getattr(sys.modules[name], function)(seed)


def pytest_collection_finish() -> None:
    """Tests take the native call path if this machine can build it; FUSEGEN_NATIVE=0: the one in Python. Processes that
    tests start stay with Python: their caches are empty, and they would build it again.

    Before the first test, so that no test's timeout ends a build.
    """
    if "torch" in sys.modules and "FUSEGEN_NATIVE" not in os.environ:
        from fusegen.native import module as native

        os.environ[native.VARIABLE] = "wait"
        native.module()
    os.environ["FUSEGEN_NATIVE"] = "0"
    gc.collect()
    gc.freeze()  # torch, sympy and all tests stay: collections need not go through them


def _moved(tensor: Any, device: str) -> Any:
    """The tensor on another device: same shape, strides and offset into the same storage."""
    import torch

    storage = tensor.detach().untyped_storage()
    copy = torch.empty(0, dtype=tensor.dtype, device=device)
    moved = storage.to(device=torch.device(device)) if device != "cpu" else storage.cpu()
    return copy.set_(moved, tensor.storage_offset(), tensor.shape, tensor.stride())


@pytest.fixture(autouse=True, scope="session")
def _on_the_gpu() -> None:
    """FUSEGEN_TEST_DEVICE=cuda runs every kernel of the suite on a GPU: tensors go there and back around each launch.

    The tests themselves stay as they are, CPU tensors, generators and all (tools/gpu_check.sh).
    """
    device = os.environ.get("FUSEGEN_TEST_DEVICE")
    if device is None:
        return
    from fusegen.run.runner import Runner

    original = Runner.__call__

    def there_and_back(self: Any, tensors: Any, scalars: Any, framework: Any, out: Any = None) -> list[Any]:
        given = [tensors[name] for name in self.arguments] + [t for t in out or [] if t is not None]
        if framework.name != "torch" or any(t.device.type != "cpu" or t.is_neg() for t in given):
            return original(self, tensors, scalars, framework, out)
        there = {name: _moved(tensors[name], device) for name in self.arguments}
        same = {id(tensors[name]): name for name in self.arguments}
        there_too = {id(t): there[same[id(t)]] if id(t) in same else _moved(t, device) for t in given}
        outs = None if out is None else [None if t is None else there_too[id(t)] for t in out]
        results = original(self, there, scalars, framework, outs)
        back = list(out or [None] * len(results))
        for i, result in enumerate(results):
            if back[i] is None:
                back[i] = _moved(result, "cpu")
            else:
                back[i].data.copy_(result)  # as a kernel writes: autograd is not told
        return back

    Runner.__call__ = there_and_back  # type: ignore[method-assign]
