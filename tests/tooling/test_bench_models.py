"""How far apart two loss curves may be (tools/bench/models.py): as far as rounding makes them, and no further."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import fusegen as fg
from tools.bench import models

SIZE = models.Size(layers=2, width=16, heads=2, vocabulary=32, batch=4, length=8)


class Model(nn.Module):
    """Embeddings, norms, MLPs and a loss, called as transformers' models are."""

    def __init__(self, size: models.Size = SIZE) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.norms = nn.ModuleList(nn.LayerNorm(size.width) for _ in range(size.layers))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(size.width, 32), nn.GELU(), nn.Linear(32, size.width)) for _ in range(size.layers)
        )
        self.head, self.loss = nn.Linear(size.width, size.vocabulary), nn.CrossEntropyLoss()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        x = self.words(input_ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return Namespace(loss=self.loss(self.head(x)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


def trained(way: str, dtype: str, monkeypatch: pytest.MonkeyPatch, change: Any = None) -> list[float]:
    monkeypatch.setitem(models.MODELS, "small", Model)
    options = Namespace(device="cpu", dtype=dtype, report=False)
    model = models.fresh("small", way, SIZE, options)
    if change is not None:
        change(model)
    found = models.Trained(model)
    for step in range(30):
        found.step(models.sentence(SIZE, step, "cpu"), "cpu")
    return found.losses


def curves(dtype: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Sequence[float]]:
    return {way: trained(way, dtype, monkeypatch) for way in ("eager", *models.NUDGED)}


def wider(model: nn.Module) -> None:
    """Norms that divide by slightly more: what an epsilon of the wrong size would do."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-3 if module.weight.dtype is torch.float32 else 8.0


@pytest.mark.parametrize("dtype", models.DTYPES)
def test_a_patched_model_is_within_what_rounding_explains(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = curves(dtype, monkeypatch)
    eager, allowed = own["eager"], models.allowed(own)
    assert 0 < allowed < (1e-5 if dtype == "float32" else 2e-2)
    swapped = []
    patched = trained("patched", dtype, monkeypatch, lambda model: swapped.append(type(model.norms[0])))
    assert swapped == [fg.nn.LayerNorm]
    assert models.apart(patched, eager) <= allowed
    assert models.apart(trained("patched", dtype, monkeypatch, wider), eager) > allowed


def test_curves_that_drift_are_seen_where_no_step_is_far_off() -> None:
    base = [3.0 - 0.02 * i for i in range(50)]
    noise = {
        way: [b * (1 + 0.004 * (-1) ** (i + k)) for i, b in enumerate(base)] for k, way in enumerate(models.NUDGED)
    }
    allowed = models.allowed({"eager": base, **noise})
    assert models.apart(base, base) == 0 and models.apart(noise[models.NUDGED[0]], base) <= allowed
    assert models.apart([b * 1.012 for b in base], base) > allowed  # four times the largest difference was allowed


def test_a_nudge_moves_weights_to_their_neighbours() -> None:
    model = nn.Linear(64, 64).bfloat16()
    before = model.weight.detach().clone()
    models.nudge(model, 0)
    moved = (model.weight.detach().view(torch.int16).int() - before.view(torch.int16).int()).abs()
    assert set(moved.unique().tolist()) == {0, 1, 2} or set(moved.unique().tolist()) == {0, 1}
    assert 0.3 < (moved > 0).float().mean() < 0.8
