"""What every test runs under: the same examples on every machine, and a cache that is nobody's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# "ci" repeats itself; HYPOTHESIS_PROFILE=explore looks for new examples.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

os.environ.setdefault("FUSEGEN_CACHE_DIR", str(Path(__file__).resolve().parent.parent / "build" / "cache"))


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    """FUSEGEN_TEST_DEVICE=cuda runs the suite's torch tensors on a GPU (tools/gpu_check.sh)."""
    device = os.environ.get("FUSEGEN_TEST_DEVICE")
    if device is None:
        yield
        return
    import torch

    torch.set_default_device(device)
    yield
    torch.set_default_device(None)
