"""What the emulator's tests share: kernels written by hand, and a target that looks for races."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from fusegen.core.errors import CompileError
from fusegen.fuse.rows_schedule import Chip
from fusegen.launch.emulator import build as emulator
from fusegen.launch.emulator.build import Mode
from fusegen.launch.emulator.kernel import EmulatedKernel
from fusegen.plan.targets import CpuTarget

ROOT = Path(__file__).resolve().parents[2]
HEADERS = emulator.headers()
MODES = [Mode(), Mode(workers=1), Mode(shuffle=0), Mode(shuffle=12345, workers=3)]
_FOLDER = TemporaryDirectory(prefix="fusegen-test-")


@cache
def kernel(
    source: str, barriers: bool = True, sanitize: bool = False, races: bool = False, cluster: int = 1
) -> EmulatedKernel:
    """Compile and load the kernel named ``k``; in the tests' sources, KERNEL stands for its long prefix."""
    text = '#include "fusegen_emulator.h"\n' + source.replace("KERNEL", 'extern "C" __global__ void k')
    library = emulator.build(
        text, "k", headers=HEADERS, barriers=barriers, cluster=cluster, sanitize=sanitize, races=races
    )
    # A name of its own: threads may build at once.
    with NamedTemporaryFile(dir=_FOLDER.name, suffix=".so", delete=False) as file:
        file.write(library)
    return EmulatedKernel(Path(file.name), "k", text, sanitize)


def launch(function: EmulatedKernel, grid: Any, block: Any, *arguments: Any, **options: Any) -> None:
    """Pack arrays as pointers and ctypes scalars as they are; sizes may be one number."""
    grid, block = [size if isinstance(size, tuple) else (size, 1, 1) for size in (grid, block)]
    values = [ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arguments]
    params = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
    function.launch(grid, block, ctypes.addressof(params), **options)


class Racing(CpuTarget):
    """Looks for races, whatever the environment says."""

    def __init__(self, chip: Chip | None = None) -> None:
        super().__init__()
        self.chip, self.mode = chip or self.chip, Mode(races=True)


def failure(source: str, *arguments: Any, block: int = 64, barriers: bool = True, **options: Any) -> str:
    with pytest.raises(CompileError) as caught:
        launch(kernel(source, barriers), 1, block, *arguments, **options)
    return str(caught.value)
