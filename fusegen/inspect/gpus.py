"""One table of GPUs: what a roofline needs to know of each.

``memory`` is the vendor's figure (datasheets of the data-centre parts, specification pages of the GeForce cards). A
copy never reaches it: where ``python -m tools.bench`` has run, ``measured`` is the copy bandwidth that it printed;
elsewhere copies are taken to reach the same share of the vendor's figure as on the H200. The same goes for what matrix
products do a second: the vendor's figures are dense, on tensor cores with sums in float32 for halves, without them for
float32 (torch multiplies it exactly unless told otherwise).

What a GPU computes beside that follows from its float32 figure, two operations a lane and clock: as many instructions
as lanes. How many lanes the other units of a multiprocessor have beside these is the CUDA programming guide's table of
throughputs (Arithmetic Instructions), by architecture.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from fusegen.core.dtypes import DType
from fusegen.core.errors import DeviceError
from fusegen.fuse.work import Work

# Microseconds that a kernel takes however small it is: what a second kernel of half a megabyte adds to a call on the
# H200 (docs/performance.md, the small LSTM cell: step less forward). Taken for every GPU, for want of other figures.
LAUNCH_MICROSECONDS = 3.1
# By architecture: lanes of the special functions unit and of the float64 unit for each of float32.
UNITS = {
    "sm_75": (1 / 4, 1 / 32), "sm_80": (1 / 4, 1 / 2), "sm_86": (1 / 8, 1 / 64), "sm_89": (1 / 8, 1 / 64),
    "sm_90": (1 / 8, 1 / 2), "sm_100": (1 / 8, 1 / 2), "sm_120": (1 / 8, 1 / 64),
}  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Args:
        name: as its vendor writes it.
        arch: what kernels are compiled for.
        multiprocessors: how many blocks at least keep all of it busy.
        memory: the vendor's memory bandwidth, TB/s.
        rates: the vendor's operations a second on halves, float32 and float64, in units of 10^12.
        measured: copy bandwidth, bytes read and bytes written together, TB/s; None where nobody measured.
    """

    name: str
    arch: str
    multiprocessors: int
    memory: float
    rates: tuple[float, float, float]
    measured: float | None = None

    @property
    def bandwidth(self) -> float:
        """Copy bandwidth in bytes per microsecond."""
        terabytes = self.memory * COPY_SHARE if self.measured is None else self.measured
        return terabytes * 1e6

    @property
    def source(self) -> str:
        """Where the bandwidth comes from, in words."""
        if self.measured is not None:
            return "copy bandwidth measured by tools/bench"
        return f"{COPY_SHARE:.2f} of the vendor's {self.memory:g} TB/s, the share that a copy reaches on the H200"

    def microseconds(self, size: float, blocks: int | None = None, work: Work | None = None) -> float:
        """Roofline estimate for one kernel that moves ``size`` bytes and computes ``work``, whichever takes longer.

        Fewer blocks than multiprocessors do less at a time.
        """
        share = 1.0 if blocks is None else min(max(blocks, 1), self.multiprocessors) / self.multiprocessors
        arithmetic = 0.0 if work is None else self.arithmetic(work)
        return max(max(size / self.bandwidth, arithmetic) / share, LAUNCH_MICROSECONDS)

    def arithmetic(self, work: Work) -> float:
        """Microseconds in which all multiprocessors together issue so many instructions, each unit those that are its
        own."""
        special, doubles = UNITS[self.arch]
        return max(work.issued, work.special / special, work.doubles / doubles) / self.issued

    @property
    def issued(self) -> float:
        """Instructions of threads in a microsecond."""
        return self.rates[1] / 2 * 1e6

    def operations(self, dtype: DType) -> float:
        """Operations of a matrix product in a microsecond."""
        has_it = dtype.is_half and (dtype.name == "float16" or int(self.arch.removeprefix("sm_")) >= 80)
        halves, single, double = self.rates
        return PRODUCT_SHARE * 1e6 * (halves if has_it else double if dtype.size == 8 else single)


GPUS = {
    "t4": Gpu("NVIDIA T4", "sm_75", 40, 0.320, (65, 8.1, 0.25)),
    "a10": Gpu("NVIDIA A10", "sm_86", 72, 0.600, (125, 31.2, 0.49)),
    "a100-40gb": Gpu("NVIDIA A100 40 GB", "sm_80", 108, 1.555, (312, 19.5, 19.5)),
    "a100": Gpu("NVIDIA A100 80 GB SXM", "sm_80", 108, 2.039, (312, 19.5, 19.5)),
    "l4": Gpu("NVIDIA L4", "sm_89", 58, 0.300, (121, 30.3, 0.47)),
    "l40s": Gpu("NVIDIA L40S", "sm_89", 142, 0.864, (362, 91.6, 1.43)),
    "h100-pcie": Gpu("NVIDIA H100 PCIe", "sm_90", 114, 2.0, (756, 51, 51)),
    "h100": Gpu("NVIDIA H100 SXM", "sm_90", 132, 3.35, (989, 67, 67)),
    "h200": Gpu("NVIDIA H200", "sm_90", 132, 4.8, (989, 67, 67), measured=4.28),
    "b200": Gpu("NVIDIA B200", "sm_100", 148, 8.0, (2250, 75, 37)),
    "rtx3090": Gpu("GeForce RTX 3090", "sm_86", 82, 0.936, (71, 35.6, 0.56)),
    "rtx4090": Gpu("GeForce RTX 4090", "sm_89", 128, 1.008, (165, 82.6, 1.29)),
    "rtx5090": Gpu("GeForce RTX 5090", "sm_120", 170, 1.792, (210, 104.8, 1.64)),
}
COPY_SHARE = 4.28 / 4.8
# Large products of halves do 7e14 operations a second on an H200 (matmul/padding).
PRODUCT_SHARE = 700 / 989


def find_gpu(text: str) -> Gpu:
    """The GPU that ``--gpu`` names.

    Raises:
        DeviceError: the table has no such row; the message names the nearest.
    """
    wanted = text.strip().lower().replace(" ", "").replace("_", "-")
    if wanted in GPUS:
        return GPUS[wanted]
    near = difflib.get_close_matches(wanted, GPUS, n=1, cutoff=0.5)
    raise DeviceError(
        f"--gpu {text}", given=repr(text), expected=", ".join(GPUS),
        fix=f"did you mean {near[0]}?" if near else "pass one of these, or add a row to inspect/gpus.py",
    )  # fmt: skip


def gpu_called(device: str) -> Gpu | None:
    """The row of the GPU whose driver calls it ``device`` ("NVIDIA H100 80GB HBM3"); None where the table has none."""
    letters = "".join(letter for letter in device.lower() if letter.isalnum())
    found = [key for key in GPUS if key.replace("-", "") in letters]
    return GPUS[max(found, key=len)] if found else None
