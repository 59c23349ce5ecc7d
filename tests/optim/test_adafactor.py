"""``fg.optim.Adafactor`` beside torch's in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from fusegen import optim
from tests.optim.test_optimizers import ALMOST, TOLERANCES, close, copies, give, parameters
from tests.support.call_paths import DEVICE
from tests.support.oracles import refused

SHAPES = [(3, 5), (7,), (1,), (), (2, 3, 4), (200,), (16, 16), (1, 1), (5, 1)]
CASES: dict[str, dict[str, Any]] = {
    "as it comes": {"eps": (1e-6, 1e-3)},
    "with decay": {"lr": 0.05, "weight_decay": 0.1, "eps": (1e-5, 1e-2)},
    "that climbs": {"lr": 2.0, "maximize": True, "beta2_decay": -0.5, "d": 1.5, "eps": (1e-4, 0.1)},
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", CASES)
def test_several_steps(name: str, dtype: torch.dtype) -> None:
    mine = parameters(dtype, SHAPES)
    exact = copies(mine, torch.float64)
    ours, theirs = optim.Adafactor(mine, **CASES[name]), torch.optim.Adafactor(exact, foreach=False, **CASES[name])
    for _ in range(4):
        give(mine, exact)
        ours.step()
        theirs.step()
    close(mine, exact, TOLERANCES[dtype] * (20 if name == "that climbs" else 1))  # by steps of the parameters' size
    for p, q in zip(mine, exact, strict=True):
        state, other = ours.state[p], theirs.state[q]
        assert state.keys() == other.keys() and state["step"].item() == 4 and state["step"].device == p.device
        for key in state.keys() - {"step"}:
            assert (state[key].dtype, state[key].shape) == (dtype, other[key].shape)
            close([state[key]], [other[key]], TOLERANCES[dtype])


def test_the_spacing_of_the_dtype_is_the_least_average() -> None:
    mine = parameters(torch.bfloat16, [(4, 6)])
    exact = copies(mine, torch.float64)
    ours = optim.Adafactor(mine)
    theirs = torch.optim.Adafactor(exact, eps=(torch.finfo(torch.bfloat16).eps, 1e-3))
    for params in (mine, exact):
        params[0].grad = torch.full_like(params[0], 1e-6)
    ours.step()
    theirs.step()
    close(mine, exact, 2**-9)


@pytest.mark.parametrize("forth", [True, False], ids=["from torch", "to torch"])
def test_state_dicts_load_either_way(forth: bool) -> None:
    mine = parameters(shapes=SHAPES)
    kinds: list[Any] = [torch.optim.Adafactor, optim.Adafactor]
    first, second = kinds if forth else kinds[::-1]
    trained = first(mine, lr=0.1)
    give(mine)
    trained.step()
    other = copies(mine)
    loaded = second(other)
    loaded.load_state_dict(copy.deepcopy(trained.state_dict()))
    for _ in range(2):
        give(mine, other)
        trained.step()
        loaded.step()
    close(mine, other, 3e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_master_weights_are_a_step_of_float32(dtype: torch.dtype) -> None:
    mine = parameters(dtype, SHAPES)
    exact = copies(mine, torch.float32)
    eps = (1e-5, 1e-3)
    ours, same = optim.Adafactor(mine, eps=eps, master_weights=True), optim.Adafactor(exact, eps=eps)
    for _ in range(5):
        give(mine, exact)
        ours.step()
        same.step()
    for p, q in zip(mine, exact, strict=True):
        assert all(value.dtype is torch.float32 for value in ours.state[p].values())
        torch.testing.assert_close(ours.state[p]["master_param"], q.detach(), **ALMOST)
        assert torch.equal(p.detach(), ours.state[p]["master_param"].to(dtype))


def test_steps_rounded_at_random_add_up() -> None:
    mine = parameters(torch.bfloat16, [(400,), (30, 20)])
    exact = copies(mine, torch.float32)
    options: dict[str, Any] = {"lr": 1e-4, "eps": (1e-5, 1e-3)}
    ours, same = optim.Adafactor(mine, stochastic_rounding=True, **options), optim.Adafactor(exact, **options)
    for _ in range(40):
        for params in (mine, exact):
            for param in params:
                param.grad = torch.ones_like(param)
        ours.step()
        same.step()
    for p, q in zip(mine, exact, strict=True):
        assert all(value.dtype is torch.float32 for value in ours.state[p].values())
        assert abs(float((p.float() - q).detach().mean())) < 0.1 * 40 * 1e-4


@pytest.mark.parametrize("lr", [0.02, torch.tensor(0.02, device=DEVICE)], ids=["a number", "a tensor"])
def test_a_compiled_step(lr: Any) -> None:
    torch._dynamo.reset()
    mine = parameters(shapes=SHAPES)
    other = copies(mine)
    ours, same = optim.Adafactor(mine, lr=lr, weight_decay=0.1), optim.Adafactor(other, lr=0.02, weight_decay=0.1)
    step = torch.compile(ours.step, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        give(mine, other)
        step()
        same.step()
    close(mine, other, 3e-6)


def test_what_is_refused() -> None:
    (p,) = parameters(shapes=[(3, 4)])
    with pytest.raises(ValueError, match="beta2_decay"):  # torch's own
        optim.Adafactor([p], beta2_decay=1.0)
    refusal = refused(lambda: optim.Adafactor([p], master_weights=True, stochastic_rounding=True))
    assert "one of them" in str(refusal)
