"""What tests/distribute/test_distributed.py runs in several processes: as many as each WORLD says, one group after the
other.

    python -m tests.support.distributed_run FOLDER WORLD [WORLD ...]

On the CPU with gloo; with FUSEGEN_TEST_DEVICE=cuda and a GPU for each process, on those with NCCL.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.support import distributed_models
from tests.support.distributed_cases import CASES

assert distributed_models.case  # its cases are registered
TIMEOUT = timedelta(seconds=60)


def main(rank: int, world: int, folder: Path) -> None:
    """Run the cases for ``world`` processes; what became of each is written to a file of this process."""
    torch.set_num_threads(1)
    on_gpus = os.environ.get("FUSEGEN_TEST_DEVICE") == "cuda" and torch.cuda.device_count() >= world
    if on_gpus:
        torch.cuda.set_device(rank)
    backend, store = "nccl" if on_gpus else "gloo", f"file://{folder}/store{world}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, timeout=TIMEOUT)
    mesh = init_device_mesh("cuda" if on_gpus else "cpu", (world,))
    for name, function in CASES[world].items():
        torch.manual_seed(0)
        start = time.perf_counter()
        outcome = "passed"
        try:
            function(mesh)
        except BaseException:
            outcome = traceback.format_exc()
        with open(folder / f"{world}.{rank}.txt", "a", encoding="utf-8") as file:
            file.write(f"{name}\0{outcome}\1")
        if rank == 0:
            print(f"{time.perf_counter() - start:6.2f} s  {backend}, {world} processes: {name}", flush=True)
        if outcome != "passed":
            os._exit(1)  # the others notice, wherever they wait
        dist.barrier()
    dist.destroy_process_group()


def launch(world: int, folder: Path) -> None:
    """Start processes and wait for them. They are forks: what is imported here they need not import again."""
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                main(rank, world, folder)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    for count in sys.argv[2:]:
        launch(int(count), Path(sys.argv[1]))
