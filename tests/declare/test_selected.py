"""Elements where a mask holds: computed with one by one, added up, put back where they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg

pytestmark = pytest.mark.emulator


def put_back(x: Any, m: Any) -> Any:
    y = x * 1
    y[m] += 1
    y[m] *= x[m].sin()
    y[~m] = x[~m] * 2 - 0.5
    return y


def chosen_by_itself(x: Any, m: Any) -> Any:
    y = torch.zeros_like(x)
    y[x > 0] = torch.exp(x[x > 0])
    return y


def twice_named(x: Any, m: Any) -> Any:
    some = x[m]
    same = some
    some += 1
    return (same * some).sum()


def classes_in_rows(x: Any, m: Any) -> Any:
    scores = x.view(2, 2, 6)
    each = F.nll_loss(scores.log_softmax(-1)[m], scores.argmin(-1)[m], reduction="none")
    return each.mean() + F.cross_entropy(scores[m], scores.argmin(-1)[m], ignore_index=2, reduction="sum")


def written_behind(x: Any, m: Any) -> Any:
    y = x * 1
    y[:, m] *= 2
    y[1, m] = x[1, m].sin()
    y[..., m] += y[..., m].abs()
    return y


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "added up": (lambda x, m: x[m].mean() + (2 - x[m] ** 2).sum() + abs(x[~m]).mean(), (4, 6)),
    "rows": (lambda x, m: x[m].mean() + (x[m] * x[0]).sum(), (4,)),
    "a loss": (lambda x, m: F.smooth_l1_loss(x, x.flip(0), reduction="none")[m].clamp(max=1).mean(), (4, 6)),
    "two of them": (lambda x, m: ((x[m] - x.sin()[m]) ** 2).mean().sqrt(), (4, 6)),
    "torch's words": (lambda x, m: torch.mean(torch.exp(x[m])) * torch.sum(torch.abs(x[m])), (4, 6)),
    "put back": (put_back, (4, 6)),
    "rows put back": (put_back, (4,)),
    "chosen by itself": (chosen_by_itself, (4, 6)),
    "twice named": (twice_named, (4, 6)),
    "torch's function": (lambda x, m: torch.masked_select(x, m[:, None]).mean() + x.masked_select(x > 1).sum(), (4,)),
    "counted": (lambda x, m: x.sum() / x[m].shape[0] + x[m].pow(2).sum() / x[m].numel(), (4,)),
    "along the mask": (lambda x, m: x[m].sum(0) * x[m].amax(0) - x[m].mean(0, keepdim=True) + x[m].std(0), (4,)),
    "along the others": (lambda x, m: x[m].norm(dim=-1).mean() + x[m].var(1, unbiased=False).sum(), (4,)),
    "all at once": (lambda x, m: x[m].max() * x[m].norm() + x[m].logsumexp(0) - x[m].std() + x[m].min(), (4, 6)),
    "a softmax of each": (lambda x, m: x[m].softmax(-1).log().sum(0) + torch.log_softmax(x[m], 1).mean(0), (4,)),
    "a layer of each": (lambda x, m: F.linear(x[m], x.sin()).mean(0) + (x[m] @ x.mT).sum(0), (4,)),
    "a norm of each": (lambda x, m: F.normalize(x[m], dim=-1).sum(0) * F.layer_norm(x[m], (6,)).mean(0), (4,)),
    "a likeness": (lambda x, m: F.cosine_similarity(x[m], x.sin()[m], dim=-1).mean(), (4,)),
    "a loss of those": (lambda x, m: F.mse_loss(x[m], x.sin()[m]) + F.l1_loss(x[m], x.flip(0)[m]), (4, 6)),
    "a loss of rows": (lambda x, m: F.huber_loss(x[m], x.sin()[m], reduction="sum"), (4,)),
    "a divergence": (
        lambda x, m: F.kl_div(x.log_softmax(-1)[m], x.flip(0).softmax(-1)[m], reduction="batchmean"), (4,),
    ),
    "classes": (lambda x, m: F.cross_entropy(x[m], x.argmin(-1)[m], label_smoothing=0.1), (4,)),
    "classes, in rows": (classes_in_rows, (2, 2)),
    "behind a slice": (lambda x, m: x[:, m].sum(1) * x.sin()[1:3, m].mean() + x[0, m].amax(), (6,)),
    "written behind a slice": (written_behind, (6,)),
}  # fmt: skip


EXTREMA = ("along the mask", "all at once", "behind a slice")


@pytest.mark.parametrize("name", CASES)
def test_it_is_torchs(name: str) -> None:
    function, shape = CASES[name]
    x, m = torch.randn(4, 6, dtype=torch.float64, requires_grad=True), torch.rand(shape) > 0.4
    op = fg.op(function, name="selected")
    found, expected = op(x, m), function(x, m)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(op(x, m), expected)
    cotangent = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad(y, x, cotangent) for y in (found, expected))
    torch.testing.assert_close(mine, theirs)
    nobody = torch.zeros_like(m)
    if name in EXTREMA:  # torch refuses those of nobody
        return
    torch.testing.assert_close(op(x, nobody), function(x, nobody), equal_nan=True)


def test_compiled() -> None:
    x, m = torch.randn(4, 6), torch.rand(4, 6) > 0.4
    op = fg.op(put_back)
    compiled = torch.compile(lambda x, m: op(x, m) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, m), 2 * put_back(x, m))


def elsewhere(x: Any, m: Any) -> Any:
    y = x * 1
    y[m] = x[~m]
    return y


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "returned": lambda x, m: x[m],
    "a size": lambda x, m: torch.zeros(x[m].shape[0]),
    "its number asked": lambda x, m: x.sum() if x[m].numel() else x.mean(),
    "along a dimension that is not there": lambda x, m: x[m].sum(1),
    "a softmax": lambda x, m: torch.softmax(x[m], 0).sum(),
    "beside a tensor": lambda x, m: (x[m] + x[0]).sum(),
    "of another mask": lambda x, m: (x[m] + x[~m]).sum(),
    "of a mask turned": lambda x, m: (x[m] + x[m.T]).sum(),
    "put elsewhere": elsewhere,
    "in a function of torch's": lambda x, m: F.triplet_margin_loss(x[m], x[m] * 2, x[m]),
    "in a loss of others": lambda x, m: F.mse_loss(x[m], x[~m]),
    "elsewhere behind a slice": lambda x, m: x[:, m[0]] + x[m[0]],
    "probabilities of classes": lambda x, m: F.cross_entropy(x[m[0]], x.softmax(-1)[m[0]]),
    "along all rows": lambda x, m: F.normalize(x[m[0]], dim=0).sum(),
    "a product with many": lambda x, m: (x[m[0]] @ x[None]).sum(),
    "second": lambda x, m: torch.maximum(x, x[m]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_their_number_is_refused(name: str) -> None:
    with pytest.raises(fg.FusegenError, match=r"x\[mask\]|got an unexpected|takes|a size of|truth|is asked") as caught:
        fg.op(REFUSED[name], name="selected")(torch.randn(4, 4), torch.rand(4, 4) > 0.5)
    assert "test_selected.py" in str(caught.value)


def test_a_mask_of_other_sizes() -> None:
    with pytest.raises(fg.ShapeError, match="mask"):
        fg.op(lambda x, m: x[m].sum(), name="selected")(torch.randn(4, 4), torch.rand(4, 1) > 0.5)
