"""One element of what is computed of a row is computed of that element alone: no walk over the row looks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.core import dtypes
from fusegen.inspect.passes import shown_passes
from tests.support.modes import MODES
from tests.support.oracles import draw

Function = Callable[..., Any]


def token_scores(x: Any, y: Any) -> Any:
    return torch.log_softmax(x, -1).gather(1, y.long()[:, None]).squeeze(1)


def smoothed(x: Any, y: Any) -> Any:
    scores = torch.log_softmax(x, -1)
    return (-0.9 * scores.gather(1, y.long()[:, None]).squeeze(1) - 0.1 * scores.mean(-1)).mean()


def poly(x: Any, y: Any) -> Any:
    score = F.log_softmax(x, -1).gather(1, y.long()[:, None])[:, 0]
    return (-score + 2.0 * (1 - score.exp())).mean()


# Arguments are logits and, as floats that are whole, classes.
FORMS: dict[str, tuple[Function, list[tuple[int, ...]], tuple[int, ...]]] = {
    "a token's score": (token_scores, [(5, 70)], (5,)),
    "label smoothing": (smoothed, [(5, 70)], (5,)),
    "a polynomial loss": (poly, [(5, 33)], (5,)),
    "several of a row": (lambda x, y: torch.log_softmax(x, -1).gather(1, y.long()).exp(), [(5, 33)], (5, 3)),
    "down strided rows": (
        lambda x, y: torch.log_softmax(x, 1).gather(1, y.long()[:, None]).squeeze(1), [(2, 34, 4, 5)], (2, 4, 5),
    ),
    "of two operands": (
        lambda x, w, y: (x * w).tanh().gather(1, y.long()[:, None]).squeeze(1) + x.sum(-1), [(5, 33), (33,)], (5,),
    ),
    "of a norm": (
        lambda x, w, y: (F.layer_norm(x, (33,)) * w).gather(1, y.long()[:, None]).squeeze(1), [(5, 33), (33,)], (5,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("compiled", "out", "halves", "some")])
@pytest.mark.parametrize("form", FORMS)
def test_is_torchs(form: str, mode: str) -> None:
    function, shapes, places = FORMS[form]
    classes = torch.randint(0, 33, places, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    given = [*(draw(*shape, seed=i) for i, shape in enumerate(shapes)), classes]
    MODES[mode](fg.op(function, name="picked"), function, given)


@pytest.mark.parametrize("form", ["a token's score", "a polynomial loss", "of two operands"])
def test_no_walk_compares_positions(form: str) -> None:
    function, shapes, places = FORMS[form]
    specs = [fg.TensorSpec(dtypes.float32, shape) for shape in shapes]
    (forward, _) = shown_passes(fg.op(function, name="picked"), (*specs, fg.TensorSpec(dtypes.float32, places)), {})
    assert "x_picked_at" in forward.text and "x_picked +=" not in forward.text


def test_infinities_and_nans_of_other_elements_stay_away() -> None:
    """As torch's: of a row with an infinity the score of another class is what that makes of it."""
    x = torch.randn(4, 40, dtype=torch.float64)
    x[0, 3], x[1, 3], x[2, 5], x[3, :] = float("inf"), float("-inf"), float("nan"), float("-inf")
    y = torch.tensor([3.0, 3.0, 7.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(fg.op(token_scores, name="picked")(x, y), token_scores(x, y), equal_nan=True)
    scaled = fg.op(lambda x, y: (x * 2).gather(1, y.long()[:, None]).squeeze(1) + x.sum(-1) * 0, name="scaled")
    finite = torch.zeros(4, 40, dtype=torch.float64)
    finite[0, 2] = 5.0
    torch.testing.assert_close(scaled(finite, y), (finite * 2).gather(1, y.long()[:, None]).squeeze(1))
