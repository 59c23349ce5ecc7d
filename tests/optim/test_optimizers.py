"""``fg.optim`` beside torch's optimizers in float64, as close as rounding to each dtype lets."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import optim
from fusegen.fused_op import FusedOp
from fusegen.launch import table_program
from fusegen.optim import rules
from tests.support.call_paths import DEVICE
from tests.support.oracles import refused

SHAPES = [(3, 5), (7,), (1,), (), (2, 3, 4), (1000,), (16, 16), (1, 1), (0,)]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"lr": 0.02}),
    "adamw that climbs": ("AdamW", {"maximize": True, "weight_decay": 0.3, "betas": (0.8, 0.99), "eps": 1e-5}),
    "adamw amsgrad": ("AdamW", {"lr": 0.02, "amsgrad": True}),
    "adamw without decay": ("AdamW", {"lr": 0.02, "weight_decay": 0.0}),
    "adam": ("Adam", {"lr": 0.02}),
    "adam with decay": ("Adam", {"weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    "adam, decoupled": ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd with decay": ("SGD", {"lr": 0.1, "weight_decay": 0.2, "maximize": True}),
    "sgd with momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
}
# A compiler may contract products and sums otherwise in a kernel of another text.
ALMOST = {"rtol": 1e-6, "atol": 1e-7}


def parameters(dtype: torch.dtype = torch.float32, shapes: Any = SHAPES) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE).to(dtype).requires_grad_() for shape in shapes]


def copies(params: list[torch.Tensor], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    return [p.detach().to(dtype or p.dtype, copy=True).requires_grad_() for p in params]


def give(*models: list[torch.Tensor]) -> None:
    """The same gradients to all."""
    for params in zip(*models, strict=True):
        grad = torch.randn_like(params[0])
        for param in params:
            param.grad = grad.to(param.dtype).clone()


def close(ours: list[torch.Tensor], exact: list[torch.Tensor], tolerance: float) -> None:
    for mine, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), other.double(), rtol=tolerance, atol=tolerance)


# What a step loses is what rounding a parameter and its moments loses.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 0.05, torch.float16: 6e-3}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", CASES)
def test_several_steps(name: str, dtype: torch.dtype) -> None:
    kind, options = CASES[name]
    mine = parameters(dtype)
    exact = copies(mine, torch.float64)
    ours, theirs = getattr(optim, kind)(mine, **options), getattr(torch.optim, kind)(exact, foreach=False, **options)
    assert isinstance(ours, type(theirs))
    for _ in range(4):
        give(mine, exact)
        ours.step()
        theirs.step()
    close(mine, exact, TOLERANCES[dtype])
    assert all(p.dtype is dtype for p in mine)
    for p, q in zip(mine, exact, strict=True):
        state, other = ours.state[p], theirs.state[q]
        assert state.keys() == other.keys()
        for key, value in state.items():
            assert value.device == p.device
            if key == "step":
                assert value.item() == other[key].item() == 4
            else:
                assert value.dtype is dtype and value.shape == p.shape
                close([value], [other[key]], TOLERANCES[dtype])


def _lion_steps(params: list[torch.Tensor], state: dict[int, torch.Tensor], lr: float, decay: float) -> None:
    for i, p in enumerate(params):
        m, g = state.setdefault(i, torch.zeros_like(p)), p.grad
        assert g is not None
        with torch.no_grad():
            p.mul_(1 - lr * decay).sub_(lr * torch.sign(0.9 * m + (1 - 0.9) * g))
            m.mul_(0.99).add_((1 - 0.99) * g)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("maximize", [False, True])
def test_lion(dtype: torch.dtype, maximize: bool) -> None:
    mine = parameters(dtype)
    exact = copies(mine, torch.float64)
    ours, state = optim.Lion(mine, lr=0.01, weight_decay=0.1, maximize=maximize), dict[int, torch.Tensor]()
    for _ in range(4):
        give(mine, exact)
        for q in exact if maximize else []:
            assert q.grad is not None
            q.grad.neg_()
        ours.step()
        _lion_steps(exact, state, 0.01, 0.1)
    if dtype in (torch.float32, torch.float64):
        close(mine, exact, TOLERANCES[dtype])
    else:  # a sign may be another one where what it is of is rounded
        apart = torch.cat([(p.double() - q).abs().flatten() for p, q in zip(mine, exact, strict=True)])
        assert (apart > TOLERANCES[dtype]).double().mean() < 0.01 and apart.max() < 0.02 + TOLERANCES[dtype]
    assert ours.state[mine[0]].keys() == {"exp_avg"}


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The launches for many tensors; nothing is called for one."""
    found: list[str] = []
    original = table_program.TableLaunch.run

    def run(self: Any, values: Any, stream: int) -> None:
        found.append(repr(self.loaded))
        original(self, values, stream)

    monkeypatch.setattr(table_program.TableLaunch, "run", run)
    monkeypatch.setattr(FusedOp, "call", None)
    yield found


def test_a_step_takes_few_launches(launches: list[str]) -> None:
    mine = parameters(torch.bfloat16, [(8, 16 + i % 3) for i in range(60)])
    give(mine)
    optimizer = optim.AdamW(mine)
    optimizer.step()
    # Counts; parameters whose vectors come out even and others: 50 fit a launch.
    assert len(launches) <= 5
    launches.clear()
    optim.ema_update_([p.detach().float() for p in mine], mine, 0.9)
    assert 0 < len(launches) <= 3


# -- groups, closures, missing gradients ----------------------------------------------------------------------------


def test_groups_have_options_of_their_own() -> None:
    mine = parameters()
    exact = copies(mine)

    def groups(params: list[torch.Tensor]) -> list[dict[str, Any]]:
        return [{"params": params[:3], "lr": 0.1, "weight_decay": 0.0}, {"params": params[3:], "betas": (0.5, 0.6)}]

    ours, theirs = optim.AdamW(groups(mine), lr=0.01), torch.optim.AdamW(groups(exact), lr=0.01)
    for _ in range(3):
        give(mine, exact)
        ours.step()
        theirs.step()
        ours.param_groups[1]["lr"] *= 0.5  # as schedules do
        theirs.param_groups[1]["lr"] *= 0.5
    close(mine, exact, 3e-6)


def test_parameters_without_a_gradient_stay_and_start_late() -> None:
    mine = parameters()
    exact = copies(mine)
    for kind, options in (("AdamW", {}), ("SGD", {"momentum": 0.9, "dampening": 0.5})):
        ours, theirs = getattr(optim, kind)(mine, **options), getattr(torch.optim, kind)(exact, **options)
        for step in range(4):
            give(mine, exact)
            for params in (mine, exact):
                for param in params[: max(0, 4 - 2 * step)]:
                    param.grad = None
            ours.step()
            theirs.step()
        close(mine, exact, 3e-6)
    for param in mine:
        param.grad = None
    before = copies(mine)
    ours.step()
    close(mine, before, 0.0)


def test_a_closure_computes_the_loss_with_gradients() -> None:
    (x,) = parameters(shapes=[(5,)])
    optimizer = optim.SGD([x], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    start = x.detach().clone()
    loss = optimizer.step(closure)
    torch.testing.assert_close(loss, (start * start).sum())
    torch.testing.assert_close(x.detach(), start * 0.8)


def test_a_schedule_drives_it() -> None:
    mine = parameters()
    exact = copies(mine)
    ours, theirs = optim.AdamW(mine, lr=0.1), torch.optim.AdamW(exact, lr=0.1)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 5) for o in (ours, theirs)]
    for _ in range(5):
        give(mine, exact)
        for optimizer, schedule in zip((ours, theirs), schedules, strict=True):
            optimizer.step()
            schedule.step()
    close(mine, exact, 3e-6)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Lion"])
def test_the_learning_rate_may_be_a_tensor(kind: str) -> None:
    mine = parameters()
    other = copies(mine)
    rate = torch.tensor(0.05, device=DEVICE)
    ours, same = (
        getattr(optim, kind)(mine, lr=rate, weight_decay=0.1),
        getattr(optim, kind)(other, lr=0.05, weight_decay=0.1),
    )
    for step in range(3):
        give(mine, other)
        rate.fill_(0.05 / (step + 1))
        for group in same.param_groups:
            group["lr"] = 0.05 / (step + 1)
        ours.step()
        same.step()
    close(mine, other, 3e-6)


def test_mixed_dtypes_and_layouts() -> None:
    mine = [
        torch.randn(4, 6, device=DEVICE).t().requires_grad_(),
        torch.randn(8, device=DEVICE).bfloat16().requires_grad_(),
        torch.randn(3, device=DEVICE, dtype=torch.float64).requires_grad_(),
        torch.randn(10, device=DEVICE)[1:].detach().requires_grad_(),
        torch.randn(4, 4, 2, device=DEVICE)[..., 0].detach().requires_grad_(),
        torch.randn(2, 3, 4, 5, device=DEVICE).to(memory_format=torch.channels_last).requires_grad_(),
    ]  # fmt: skip
    exact = copies(mine, torch.float64)
    ours, theirs = optim.AdamW(mine, lr=0.1), torch.optim.AdamW(exact, lr=0.1)
    for _ in range(3):
        give(mine, exact)
        ours.step()
        theirs.step()
    close(mine, exact, 0.05)
    wide = [(p, q) for p, q in zip(mine, exact, strict=True) if p.dtype is not torch.bfloat16]
    close([p for p, _ in wide], [q for _, q in wide], 3e-6)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Lion"])
def test_a_compiled_step(kind: str) -> None:
    torch._dynamo.reset()
    mine = parameters()
    exact = copies(mine)
    options: dict[str, Any] = {"weight_decay": 0.1, **({"momentum": 0.9} if kind == "SGD" else {})}
    ours, same = getattr(optim, kind)(mine, **options), getattr(optim, kind)(exact, **options)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step() -> None:
        optim.clip_grad_norm_(mine, 1.0)
        ours.step()

    for _ in range(3):
        give(mine, exact)
        optim.clip_grad_norm_(exact, 1.0)
        step()
        same.step()
    close(mine, exact, 3e-6)


def test_a_compiled_step_rounds_at_random() -> None:
    torch._dynamo.reset()
    mine = parameters(torch.bfloat16, [(500,)])
    optimizer = optim.AdamW(mine, lr=1e-4, stochastic_rounding=True)
    start = mine[0].detach().clone()
    step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    for _ in range(20):
        mine[0].grad = torch.ones_like(start)
        step()
    moved = (mine[0].detach().float() - start.float()).mean()
    assert -0.004 < float(moved) < -0.0005


# -- state dicts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("forth", [True, False], ids=["from torch", "to torch"])
def test_state_dicts_load_either_way(name: str, forth: bool) -> None:
    kind, options = CASES[name]
    mine = parameters()
    other = copies(mine)
    kinds: list[Callable[..., torch.optim.Optimizer]] = [getattr(torch.optim, kind), getattr(optim, kind)]
    first, second = kinds if forth else kinds[::-1]
    trained = first(mine, **options)
    for _ in range(2):
        give(mine)
        trained.step()
    other = copies(mine)
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    loaded = second(other, lr=0.5)
    loaded.load_state_dict(torch.load(file))
    assert loaded.param_groups[0]["lr"] == trained.param_groups[0]["lr"]
    for _ in range(2):
        give(mine, other)
        trained.step()
        loaded.step()
    close(mine, other, 3e-6)


def test_copies_go_on_alike() -> None:
    mine = parameters()
    optimizer = optim.AdamW(mine, master_weights=True)
    give(mine)
    optimizer.step()
    other = copy.deepcopy(optimizer)
    params = other.param_groups[0]["params"]
    give(mine, params)
    optimizer.step()
    other.step()
    close(mine, params, 0.0)
    assert other.param_groups[0]["master_weights"]


# -- master weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "options"), [
    ("AdamW", {"lr": 1e-3}), ("AdamW", {"lr": 1e-3, "amsgrad": True}), ("Adam", {"weight_decay": 0.1}),
    ("SGD", {"lr": 1e-3, "momentum": 0.9}), ("Lion", {"lr": 1e-4, "weight_decay": 0.1}),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_master_weights_are_a_step_of_float32(kind: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    mine = [*parameters(dtype), *parameters(torch.float32, [(5,)])]
    exact = copies(mine, torch.float32)
    ours, same = getattr(optim, kind)(mine, master_weights=True, **options), getattr(optim, kind)(exact, **options)
    for _ in range(5):
        give(mine, exact)
        ours.step()
        same.step()
    for p, q in zip(mine[:-1], exact, strict=False):
        state = ours.state[p]
        assert all(value.dtype is torch.float32 for value in state.values())
        torch.testing.assert_close(state["master_param"], q.detach(), **ALMOST)
        assert torch.equal(p.detach(), state["master_param"].to(dtype))
    assert "master_param" not in ours.state[mine[-1]]
    torch.testing.assert_close(mine[-1], exact[-1], **ALMOST)

    again = copies(mine)
    loaded = getattr(optim, kind)(again, master_weights=True, **options)
    loaded.load_state_dict(copy.deepcopy(ours.state_dict()))
    give(mine, again)
    ours.step()
    loaded.step()
    for p, q in zip(mine, again, strict=True):
        assert torch.equal(p, q)
        for key, value in ours.state[p].items():
            assert torch.equal(value, loaded.state[q][key]) and value.dtype is loaded.state[q][key].dtype


def test_master_weights_keep_what_a_half_would_lose() -> None:
    (p,) = parameters(torch.bfloat16, [(100,)])
    start = p.detach().clone()
    optimizer = optim.SGD([p], lr=1e-4, master_weights=True)
    for _ in range(200):
        p.grad = torch.ones_like(p)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[p]["master_param"], start.float() - 0.02, rtol=1e-4, atol=1e-5)


# -- rounded at random ----------------------------------------------------------------------------------------------


@fg.op(random=True)
def bfloats(x: fg.Tensor) -> fg.Tensor:
    return rules.rounded_at_random(x, fg.bfloat16)


@fg.op(random=True)
def halves(x: fg.Tensor) -> fg.Tensor:
    return rules.rounded_at_random(x, fg.float16)


@pytest.mark.parametrize(("op", "dtype"), [(bfloats, torch.bfloat16), (halves, torch.float16)])
def test_rounding_at_random_keeps_the_mean(op: Any, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    exact = [1 + eps / 8, -3.3, 1 - eps / 16, 2 - eps / 3, -1 - eps / 5, 0.001, 1.0, 0.0, 0.75 + eps / 4]
    for number in torch.tensor(exact):
        x = number.expand(20_000).contiguous().to(DEVICE)
        found = op(x).float()
        below, above = found.min(), found.max()
        assert below <= number <= above and len(found.unique()) <= 2
        gap = float(above - below)
        assert gap <= 2 * eps * abs(float(number)) and abs(float((found - x).mean())) < 0.02 * gap + 1e-12
        assert (gap == 0) == (float(number.to(dtype)) == float(number))
    odd = torch.tensor([math.inf, -math.inf, math.nan, 1e-30 if dtype is torch.float16 else 0.0], device=DEVICE)
    torch.testing.assert_close(op(odd), odd.to(dtype), equal_nan=True)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Lion"])
def test_steps_rounded_at_random_are_near_those_of_float32(kind: str, launches: list[str]) -> None:
    mine = [*parameters(torch.bfloat16, [(100,), (33, 7), (64, 64)]), *parameters(torch.float32, [(8,)])]
    exact = copies(mine, torch.float32)
    options: dict[str, Any] = {"lr": 1e-4, **({"momentum": 0.9} if kind == "SGD" else {})}
    ours, same = getattr(optim, kind)(mine, stochastic_rounding=True, **options), getattr(optim, kind)(exact, **options)
    for _ in range(60):
        for params in (mine, exact):
            for param in params:
                param.grad = torch.ones_like(param)
        ours.step()
        same.step()
    assert launches
    distance = 60 * 1e-4 * (5 if kind == "SGD" else 1)  # a half that is rounded to the nearest would stay where it is
    for p, q in zip(mine[:3], exact, strict=False):
        assert p.dtype is torch.bfloat16 and all(v.dtype is p.dtype for k, v in ours.state[p].items() if k != "step")
        # A walk: sixty times a number beside, the chance of which adds up to the distance over the gap, at most 2^-6.
        assert float((p - q).detach().abs().max()) < 8 * math.sqrt(distance * 2**-6)
    moved = torch.cat([(p.float() - q.float()).flatten() for p, q in zip(mine[:3], exact, strict=False)])
    assert abs(float(moved.mean())) < 0.2 * distance
    torch.testing.assert_close(mine[3], exact[3], **ALMOST)


def test_each_tensor_draws_its_own_numbers() -> None:
    xs = [torch.full((500,), 1.001, device=DEVICE) for _ in range(3)]
    torch.manual_seed(3)
    first = fg.foreach(bfloats)(xs)
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    torch.manual_seed(3)
    again = fg.foreach(bfloats)(xs)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    one = fg.foreach(bfloats)(xs, seed=7)
    assert torch.equal(one[0], one[1]) and torch.equal(one[0], bfloats(xs[0], seed=7))


# -- what is refused ------------------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    (p,) = parameters(shapes=[(3,)])
    assert "differentiable=True" in str(refused(lambda: optim.Adam([p], differentiable=True)))
    assert "sparse" in str(refused(_sparse_step))
    assert "one of them" in str(refused(lambda: optim.SGD([p], master_weights=True, stochastic_rounding=True)))
    for wrong in ({"lr": -1.0}, {"betas": (0.9, 1.0)}, {"weight_decay": -0.1}):
        assert str(next(iter(wrong.values()))) in str(refused(lambda wrong=wrong: optim.Lion([p], **wrong)))
    with pytest.raises(ValueError, match="Invalid learning rate"):  # torch's own
        optim.AdamW([p], lr=-1.0)
    with pytest.raises(ValueError, match="empty parameter list"):
        optim.SGD([])
    z = torch.zeros(2, dtype=torch.complex64, device=DEVICE, requires_grad=True)
    z.grad = torch.ones_like(z)
    assert isinstance(refused(optim.SGD([z], lr=0.1).step), fg.DtypeError)


def _sparse_step() -> None:
    table = torch.randn(4, 2, device=DEVICE, requires_grad=True)
    torch.nn.functional.embedding(torch.tensor([1, 2], device=DEVICE), table, sparse=True).sum().backward()
    optim.AdamW([table]).step()
