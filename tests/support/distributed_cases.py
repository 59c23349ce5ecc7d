"""Cases of tests/support/distributed_run.py: ops on DTensors, against torch on whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.placement_types import _StridedShard

import fusegen as fg
from fusegen import ops

Case = Callable[[DeviceMesh], None]
CASES: dict[int, dict[str, Case]] = {2: {}, 4: {}}
WHOLE = Replicate()
LONG = 40_000  # so long that a row is worth more than the start of another collective


def case(world: int) -> Callable[[Case], Case]:
    """Register a case for so many processes."""

    def registered(function: Case) -> Case:
        CASES[world][function.__name__] = function
        return function

    return registered


@fg.op
def biased_gelu(x, bias):
    """A user's op."""
    return ops.gelu(x + bias)


@fg.op
def silu_mlp(x, up, down):
    """Two matrix products."""
    return ops.silu(x @ up.mT) @ down.mT


def on_every_rank(*shape: int) -> torch.Tensor:
    """The same numbers in every process."""
    return torch.randn(shape, device=device())


def device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def spread(mesh: DeviceMesh, tensor: torch.Tensor, places: Any) -> DTensor:
    """The tensor on the mesh; partial: each process has a share, which is not the same."""
    places = list(places) if isinstance(places, (tuple, list)) else [places]
    if not any(p.is_partial() for p in places):
        return distribute_tensor(tensor, mesh, places, src_data_rank=None)
    (place,) = places
    rank, count = mesh.get_local_rank(), mesh.size()
    share = {"sum": tensor * (rank + 1) * 2 / (count * (count + 1)), "avg": tensor + rank - (count - 1) / 2}
    return DTensor.from_local(share[place.reduce_op], mesh, places, run_check=False)


def check(
    mesh: DeviceMesh, ours: Any, theirs: Any, given: Sequence[tuple[torch.Tensor, Any]], results: Any, gradients: Any,
    collectives: int | None = None,
) -> None:  # fmt: skip
    """Values and gradients are torch's on whole tensors, and lie as they should.

    Args:
        given: tensors, and how they are placed.
        results, gradients: how those of ours must be placed (None: however).
        collectives: how many ours may start, forward and backward.
    """
    plain = [t.clone().requires_grad_(t.is_floating_point()) for t, _ in given]
    dtensors = [spread(mesh, t, places).requires_grad_(t.is_floating_point()) for t, places in given]
    expected = theirs(*plain)
    expected = expected if isinstance(expected, tuple) else (expected,)
    cotangents = [on_every_rank(*e.shape).to(e.dtype) for e in expected]
    with nullcontext() if collectives is None else CommDebugMode() as communication:
        found = ours(*dtensors)
        found = found if isinstance(found, tuple) else (found,)
        placed = [spread(mesh, c, whole(f.placements)) for c, f in zip(cotangents, found, strict=True)]
        mine = torch.autograd.grad(found, [d for d in dtensors if d.requires_grad], placed)
    assert [f.stride() for f in found] == [e.stride() for e in expected]
    theirs_too = torch.autograd.grad(expected, [p for p in plain if p.requires_grad], cotangents)
    for asked, tensors in ((results, found), (gradients, mine)):
        if asked is not None:
            lying = [t.placements[0] if mesh.ndim == 1 else t.placements for t in tensors]
            assert lying == list(asked), lying
    for one, other in zip((*found, *mine), (*expected, *theirs_too), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        torch.testing.assert_close(one.full_tensor(), other, rtol=1e-4, atol=1e-5)
    if collectives is not None:
        assert communication.get_total_counts() == collectives, communication.get_comm_counts()


def whole(places: Sequence[Any]) -> list[Any]:
    return [WHOLE if p.is_partial() else p for p in places]


# -- rules -------------------------------------------------------------------------------------------------------------


@case(2)
def what_is_broadcast_gets_a_partial_gradient(mesh: DeviceMesh) -> None:
    tensors = on_every_rank(5, 6), on_every_rank(5, 6), on_every_rank(6)
    partial = Partial()
    cut = zip(tensors, (Shard(0), Shard(0), WHOLE), strict=True)
    check(mesh, ops.lerp, torch.lerp, list(cut), [Shard(0)], [Shard(0), Shard(0), partial], collectives=0)
    cut = zip(tensors, (Shard(1), Shard(1), Shard(0)), strict=True)
    check(mesh, ops.lerp, torch.lerp, list(cut), [Shard(1)], [Shard(1), Shard(1), Shard(0)], collectives=0)
    cut = zip(tensors[::2], (Shard(0), WHOLE), strict=True)
    theirs = lambda x, b: F.gelu(x + b)  # noqa: E731
    check(mesh, biased_gelu, theirs, list(cut), [Shard(0)], [Shard(0), partial], collectives=0)


@case(2)
def norms_by_rows(mesh: DeviceMesh) -> None:
    tensors = list(zip((on_every_rank(5, 6), on_every_rank(6)), (Shard(0), WHOLE), strict=True))
    wanted = [Shard(0)], [Shard(0), Partial()]
    check(mesh, lambda x, w: ops.rms_norm(x, (6,), w), lambda x, w: F.rms_norm(x, (6,), w), tensors, *wanted, 0)
    check(mesh, lambda x, w: ops.layer_norm(x, (6,), w), lambda x, w: F.layer_norm(x, (6,), w), tensors, *wanted, 0)


@case(2)
def a_coupled_reduction_is_gathered_or_done_in_stages(mesh: DeviceMesh) -> None:
    def norm(function: Any) -> Any:
        return lambda x, w: function(x, w.shape, w)

    few, many = (on_every_rank(5, 6), on_every_rank(6)), (on_every_rank(3, LONG + 1), on_every_rank(LONG + 1))
    short, long = (list(zip(pair, (Shard(1), Shard(0)), strict=True)) for pair in (few, many))
    check(mesh, norm(ops.layer_norm), norm(F.layer_norm), short, None, None)
    check(mesh, norm(ops.layer_norm), norm(F.layer_norm), long, [Shard(1)], [Shard(1), Shard(0)])
    row = [(on_every_rank(LONG + 1), Shard(0))]
    check(mesh, lambda x: ops.softmax(x, 0), lambda x: F.softmax(x, 0), row, [Shard(0)], [Shard(0)], 3)


@case(2)
def sums_and_means_count_all_elements(mesh: DeviceMesh) -> None:
    x = [(on_every_rank(5, 6), Shard(0))]
    check(mesh, lambda x: ops.mean(x, (0, 1)), lambda x: x.mean(), x, [Partial()], None, 0)
    check(mesh, lambda x: ops.sum(x * 1, 1), lambda x: x.sum(1), x, [Shard(0)], None, 0)
    check(mesh, lambda x: ops.amax(x, 0), lambda x: x.amax(0), x, [Partial("max")], [Shard(0)])


@case(2)
def cross_entropy_over_examples_and_over_classes(mesh: DeviceMesh) -> None:
    target = torch.tensor([3, LONG - 1, -100, 0], device=device())
    logits = on_every_rank(4, LONG)
    for *places, sent in ((Shard(0), Shard(0), 2), (Shard(1), WHOLE, 3)):
        given = list(zip((logits, target), places, strict=True))
        check(mesh, ops.cross_entropy, F.cross_entropy, given, [WHOLE], places[:1], sent)


@case(2)
def packed_tensors_are_cut_elsewhere(mesh: DeviceMesh) -> None:
    def swiglu(x: torch.Tensor) -> torch.Tensor:
        gate, value = x.chunk(2, -1)
        return F.silu(gate) * value

    check(mesh, ops.swiglu_packed, swiglu, [(on_every_rank(5, 6), Shard(0))], [Shard(0)], [Shard(0)], 0)
    check(mesh, ops.swiglu_packed, swiglu, [(on_every_rank(5, 6), Shard(1))], [WHOLE], [WHOLE], 2)


@case(2)
def partial_arguments_stay_so_where_the_op_is_linear(mesh: DeviceMesh) -> None:
    x, weight = on_every_rank(5, 6), on_every_rank(6)
    for place in (Partial(), Partial("avg")):
        given = [(x, place), (weight, WHOLE)]
        check(mesh, fg.op(lambda x, w: x * w, name="scaled"), torch.mul, given, [place], None, None)
    check(mesh, ops.gelu, F.gelu, [(x, Partial())], [WHOLE], [WHOLE], 2)


@case(2)
def columns_then_rows(mesh: DeviceMesh) -> None:
    """Tensor parallel, as it follows from a declaration with matrix products."""

    def theirs(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ up.mT) @ down.mT

    given = [(on_every_rank(4, 6), WHOLE), (on_every_rank(8, 6), Shard(0)), (on_every_rank(6, 8), Shard(1))]
    check(mesh, silu_mlp, theirs, given, [Partial()], [Partial(), Shard(0), Shard(1)], 0)


@case(2)
def other_placements_are_made_whole(mesh: DeviceMesh) -> None:
    if torch.__version__ < "2.12":
        return  # torch itself cannot redistribute this one there
    x = on_every_rank(4, 6)
    own, place = x[mesh.get_local_rank() :: 2], _StridedShard(0, split_factor=2)
    found = ops.gelu(DTensor.from_local(own, mesh, [place], run_check=False, shape=x.shape, stride=x.stride()))
    assert found.placements == (WHOLE,)
    torch.testing.assert_close(found.full_tensor(), F.gelu(x))


@case(2)
def gradients_of_gradients(mesh: DeviceMesh) -> None:
    x, bias, direction = on_every_rank(5, 6), on_every_rank(6), on_every_rank(6)

    def slope(function: Any, x: Any, bias: Any, direction: Any) -> Any:
        (gradient,) = torch.autograd.grad(function(x, bias).square().sum(), bias, create_graph=True)
        return torch.autograd.grad((gradient * direction).sum(), (x, bias))

    leaf = [t.clone().requires_grad_() for t in (x, bias)]
    expected = slope(lambda x, b: F.gelu(x + b), *leaf, direction)
    leaf = [spread(mesh, t, p).requires_grad_() for t, p in ((x, Shard(0)), (bias, WHOLE))]
    found = slope(biased_gelu, *leaf, spread(mesh, direction, WHOLE))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.full_tensor(), theirs, rtol=1e-4, atol=1e-5)


@case(2)
def without_gradients(mesh: DeviceMesh) -> None:
    plain = on_every_rank(5, 6)
    x = spread(mesh, plain, Shard(0)).requires_grad_()
    direct = torch.ops.fusegen.gelu.default if ops.gelu.overload(plain) else None
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            for call in (ops.gelu, direct):
                found = call(x)
                assert found.placements == (Shard(0),) and not found.requires_grad
                torch.testing.assert_close(found.full_tensor(), F.gelu(plain))
    assert direct(x).requires_grad
    out = torch.empty_like(x.detach())
    assert ops.gelu(x.detach(), out=out) is out
    torch.testing.assert_close(out.full_tensor(), F.gelu(plain))
    with torch.autocast(device(), torch.bfloat16):
        found = ops.rms_norm(x.detach().bfloat16(), (6,))
    assert found.dtype == torch.float32 and found.placements == (Shard(0),)


@case(2)
def plain_tensors_beside_dtensors(mesh: DeviceMesh) -> None:
    x, bias = on_every_rank(5, 6), on_every_rank(6)
    cut = spread(mesh, x, Shard(0))
    with pytest.raises(fg.DeclarationError, match=r"plain tensors \(bias\) beside DTensors \(x\)\n.*\n.*distribute_te"):
        biased_gelu(cut, bias)
    with implicit_replication():
        found = biased_gelu(cut, bias)
    torch.testing.assert_close(found.full_tensor(), F.gelu(x + bias))
    number = torch.tensor(0.25, device=device())
    torch.testing.assert_close(ops.lerp(cut, cut * 2, number).full_tensor(), torch.lerp(x, x * 2, number))
    with pytest.raises(fg.ShapeError, match="dimension 1 of x of size 6 against dimension 0 of bias of size 5"):
        biased_gelu(cut, spread(mesh, on_every_rank(5), WHOLE))


@case(2)
def random_numbers_are_of_the_whole_tensor(mesh: DeviceMesh) -> None:
    """Shards draw what their elements would have in one piece; without a seed, the first process draws it for all."""

    @fg.op(random=True)
    def dropped(x, p: float = 0.5):
        return fg.dropout(x, p)

    x = torch.ones(8, 16, device=device())
    torch.manual_seed(dist.get_rank())
    for place in (Shard(0), Shard(1), WHOLE):
        leaf = distribute_tensor(x, mesh, [place]).requires_grad_()
        assert torch.equal(dropped(leaf, seed=5).full_tensor(), dropped(x, seed=5))
        out = dropped(leaf)
        out.sum().backward()
        assert leaf.grad is not None and torch.equal(leaf.grad.full_tensor(), out.full_tensor())  # type: ignore[attr-defined]
        assert set(out.full_tensor().unique().tolist()) == {0.0, 2.0}


@case(2)
def compiled(mesh: DeviceMesh) -> None:
    """Also where a process must be told of the whole: a mean's number of elements."""

    def block(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ops.rms_norm(biased_gelu(x, weight), (6,), weight), ops.mean(x, (0, 1))

    def theirs(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.rms_norm(F.gelu(x + weight), (6,), weight), x.mean()

    given = [(on_every_rank(5, 6), Shard(0)), (on_every_rank(6), WHOLE)]
    check(mesh, torch.compile(block, backend="aot_eager", fullgraph=True), theirs, given, [Shard(0), Partial()], None)


@case(2)
def processes_outside_of_the_mesh(mesh: DeviceMesh) -> None:
    alone = DeviceMesh(mesh.device_type, [0])
    x = on_every_rank(3, 4)
    found = ops.gelu(distribute_tensor(x, alone, [Shard(0)], src_data_rank=None))
    assert found.shape == (3, 4) and found.to_local().numel() == (12 if mesh.get_local_rank() == 0 else 0)


# -- four processes ---------------------------------------------------------------------------------------------------


@case(4)
def two_dimensions_and_pieces_without_elements(mesh: DeviceMesh) -> None:
    square = init_device_mesh(mesh.device_type, (2, 2))
    tensors = on_every_rank(5, 6), on_every_rank(5, 6), on_every_rank(6)
    places = [Shard(0), Shard(1)], [Shard(0), Shard(1)], [WHOLE, Shard(0)]
    both = (Shard(0), Shard(1))
    wanted = [both], [both, both, (Partial(), Shard(0))]
    check(square, ops.lerp, torch.lerp, list(zip(tensors, places, strict=True)), *wanted, 0)
    long = on_every_rank(3, LONG + 1), on_every_rank(LONG + 1)
    given = list(zip(long, ([Shard(0), Shard(1)], [WHOLE, Shard(0)]), strict=True))
    wanted = [both], [both, (Partial(), Shard(0))]
    check(
        square, lambda x, w: ops.layer_norm(x, (LONG + 1,), w), lambda x, w: F.layer_norm(x, (LONG + 1,), w), given,
        *wanted,
    )  # fmt: skip
    few = [(on_every_rank(3, 6), Shard(0)), (on_every_rank(6), WHOLE)]  # three rows for four processes
    check(mesh, biased_gelu, lambda x, b: F.gelu(x + b), few, [Shard(0)], [Shard(0), Partial()], 0)
    check(mesh, lambda x: ops.amax(x, 0), lambda x: x.amax(0), few[:1], [Partial("max")], None)
    given = [(on_every_rank(5, 6), [Shard(0), Shard(0)])]
    check(square, lambda x: ops.mean(x, (0, 1)), lambda x: x.mean(), given, [(Partial(), Partial())], None, 0)
