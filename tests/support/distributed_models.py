"""Cases of tests/support/distributed_run.py: DDP, FSDP2 and tensor parallelism of models, against one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import fusegen as fg
from fusegen import ops, optim
from tests.support.distributed_cases import WHOLE, case, device, on_every_rank


class Model(nn.Module):
    """A small model; its middle is torch's functions or ours."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.up, self.gate, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm, self.act = nn.LayerNorm(6), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(x))
        if self.fused:
            return x + self.down(ops.swiglu(self.gate(x), self.up(x)))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def made(fused: bool) -> Model:
    torch.manual_seed(7)
    return Model(fused).to(device())


def losses(model: nn.Module, batches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The loss of a few steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    found = []
    for batch in batches:
        loss = (model(batch) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return found


def compare_training(mesh: DeviceMesh, wrap: Callable[[nn.Module], nn.Module], patched: bool) -> None:
    """Losses are those of one process that sees all batches."""
    torch.manual_seed(8)
    batches = [on_every_rank(4, 6) for _ in range(4)]
    rank, count = mesh.get_local_rank(), mesh.size()
    expected = losses(made(False), batches)
    model = made(not patched)
    if patched:
        assert len(fg.patch(model).swapped) == 2
    found = losses(wrap(model), [batch.chunk(count)[rank] for batch in batches])
    for mine, theirs in zip(found, expected, strict=True):
        dist.all_reduce(mine)
        torch.testing.assert_close(mine / count, theirs, rtol=1e-4, atol=1e-5)


@case(2)
def data_parallel(mesh: DeviceMesh) -> None:
    for patched in (True, False):
        compare_training(mesh, nn.parallel.DistributedDataParallel, patched)


@case(2)
def fully_sharded(mesh: DeviceMesh) -> None:
    def sharded(model: nn.Module) -> nn.Module:
        for layer in (model.up, model.gate, model.down):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    for patched in (True, False):
        compare_training(mesh, sharded, patched)


class Block(nn.Module):
    """What is parallelized: a norm over rows in pieces, gate and up by columns, down by rows."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.gate, self.up, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
        self.between = ops.swiglu if fused else lambda gate, up: F.silu(gate) * up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return self.down(self.between(self.gate(x), self.up(x)))


COLUMNS = {"input_layouts": Shard(0), "use_local_output": False}
PLAN = {
    "norm": SequenceParallel(sequence_dim=0), "gate": ColwiseParallel(**COLUMNS), "up": ColwiseParallel(**COLUMNS),
    "down": RowwiseParallel(),
}  # fmt: skip


def blocks() -> list[Block]:
    """The block with torch's functions, and the one with ours and a patched norm; the same parameters."""
    made = []
    for fused in (False, True):
        torch.manual_seed(7)
        made.append(Block(fused).to(device()))
    fg.patch(made[1])
    return made


@case(2)
def tensor_parallel(mesh: DeviceMesh) -> None:
    """The patched norm, and our op between the products, see DTensors."""
    torch.manual_seed(8)
    batches = [on_every_rank(4, 6) for _ in range(3)]
    theirs, ours = blocks()
    expected = losses(theirs, batches)
    with torch.no_grad():
        normed = parallelize_module(ours, mesh, PLAN).norm(distribute_tensor(batches[0], mesh, [WHOLE]))
        assert normed.placements == (Shard(0),)
    for mine, other in zip(losses(ours, batches), expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@case(4)
def fully_sharded_tensor_parallel(mesh: DeviceMesh) -> None:
    torch.manual_seed(8)
    batches = [on_every_rank(4, 6) for _ in range(3)]
    theirs, ours = blocks()
    expected = losses(theirs, batches)
    square = init_device_mesh(mesh.device_type, (2, 2), mesh_dim_names=("data", "tensor"))
    model = fully_shard(parallelize_module(ours, square["tensor"], PLAN), mesh=square["data"])
    rank = square.get_local_rank("data")
    for mine, other in zip(losses(model, [b.chunk(2)[rank] for b in batches]), expected, strict=True):
        dist.all_reduce(mine)
        torch.testing.assert_close(mine / 4, other, rtol=1e-4, atol=1e-5)


@case(2)
def optimizers(mesh: DeviceMesh) -> None:
    """Steps, clipping and averages of DTensors are those of whole ones; a gradient that lies otherwise is refused."""
    placed = [((5, 6), Shard(0)), ((4, 6), Shard(1)), ((7,), WHOLE), ((1,), Shard(0)), ((8, 8), Shard(0))]
    for kind, options in (("AdamW", {}), ("SGD", {"momentum": 0.9, "lr": 0.1}), ("Lion", {"weight_decay": 0.1})):
        whole = [on_every_rank(*shape).requires_grad_() for shape, _ in placed]
        mine = [
            nn.Parameter(distribute_tensor(w.detach().clone(), mesh, [place], src_data_rank=None))
            for w, (_, place) in zip(whole, placed, strict=True)
        ]
        averages = [param.detach().clone() for param in mine]
        ours, same = getattr(optim, kind)(mine, **options), getattr(optim, kind)(whole, **options)
        for norm in (2.0, float("inf")):
            for param, other, (shape, place) in zip(mine, whole, placed, strict=True):
                other.grad = on_every_rank(*shape)
                param.grad = distribute_tensor(other.grad.clone(), mesh, [place], src_data_rank=None)
            expected = optim.clip_grad_norm_(whole, 0.5, norm)
            torch.testing.assert_close(optim.clip_grad_norm_(mine, 0.5, norm), expected)
            ours.step()
            same.step()
        before = [average.full_tensor().clone() for average in averages]
        optim.ema_update_(averages, mine, 0.75)
        for param, other, average, start in zip(mine, whole, averages, before, strict=True):
            torch.testing.assert_close(param.full_tensor(), other)
            torch.testing.assert_close(average.full_tensor(), start * 0.75 + other.detach() * 0.25)
        state = ours.state[mine[0]]
        assert all(value.placements == (Shard(0),) for key, value in state.items() if key != "step")
    mine[4].grad = distribute_tensor(on_every_rank(8, 8), mesh, [Shard(1)], src_data_rank=None)
    with pytest.raises(fg.DeviceError, match="a gradient placed as its parameter"):
        ours.step()
    _adafactor(mesh)


def _adafactor(mesh: DeviceMesh) -> None:
    """Averages are of whole rows and columns, which processes have of what is replicated."""
    whole = [on_every_rank(*shape).requires_grad_() for shape in ((5, 6), (7,))]
    mine = [nn.Parameter(distribute_tensor(w.detach().clone(), mesh, [WHOLE], src_data_rank=None)) for w in whole]
    ours, same = optim.Adafactor(mine), optim.Adafactor(whole)
    for param, other in zip(mine, whole, strict=True):
        other.grad = on_every_rank(*other.shape)
        param.grad = distribute_tensor(other.grad.clone(), mesh, [WHOLE], src_data_rank=None)
    ours.step()
    same.step()
    for param, other in zip(mine, whole, strict=True):
        torch.testing.assert_close(param.full_tensor(), other)
    split = nn.Parameter(distribute_tensor(on_every_rank(4, 6), mesh, [Shard(0)], src_data_rank=None))
    split.grad = torch.zeros_like(split)
    with pytest.raises(fg.DeclarationError, match="whole rows and columns"):
        optim.Adafactor([split]).step()
