"""Losses over classes and with a margin: derivatives, accuracy beside torch's, options, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.oracles import check_derivatives, check_no_worse, check_same, draw, gradients, pair, refused

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
MODULES = {"classes", "margins"}


def classes(*shape: int, count: int, ignored: int = 0, index: int = -100) -> torch.Tensor:
    """Class numbers, the first few of them ``index``."""
    target = torch.randint(0, count, shape, generator=torch.Generator().manual_seed(5))
    target.view(-1)[:ignored] = index
    return target


def shares(*shape: int, dim: int = 1) -> torch.Tensor:
    """Probabilities that sum to one along a dimension."""
    return torch.softmax(draw(*shape, seed=6).detach(), dim).requires_grad_()


def signs(*shape: int) -> torch.Tensor:
    return 2.0 * classes(*shape, count=2).double() - 1


# -- derivatives -----------------------------------------------------------------------------------------------------

x34, x342 = draw(3, 4), draw(3, 4, 2)
t3, t32 = classes(3, count=4), classes(3, 2, count=4, ignored=2)
w4 = draw(4, low=0.5, high=2, seed=7)
WHOLE = {"label_smoothing": 0.2, "z_loss": 0.1}
DERIVATIVES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "nll_loss": (lambda x, w: fg.ops.nll_loss(x, t32, w), [x342, w4]),
    "cross_entropy": (lambda x: fg.ops.cross_entropy(x, t3), [x34]),
    "cross_entropy of one": (lambda x: fg.ops.cross_entropy(x, t3[0], z_loss=0.1), [draw(4)]),
    "cross_entropy with all options": (lambda x, w: fg.ops.cross_entropy(x, t32, w, **WHOLE), [x342, w4]),
    "cross_entropy of probabilities": (
        lambda x, t, w: fg.ops.cross_entropy(x, t, w, reduction="sum", label_smoothing=0.2), [x34, shares(3, 4), w4],
    ),
    "margin_ranking_loss": (lambda *a: fg.ops.margin_ranking_loss(*a, signs(6), 0.3), [draw(6), draw(6, seed=1)]),
    "hinge_embedding_loss": (lambda x: fg.ops.hinge_embedding_loss(x, signs(6), 0.7), [draw(6)]),
    "soft_margin_loss": (lambda x: fg.ops.soft_margin_loss(x, signs(6)), [draw(6)]),
    "multilabel_soft_margin_loss": (
        lambda x, t, w: fg.ops.multilabel_soft_margin_loss(x, t, w), [x34, draw(3, 4, low=0.1, high=0.9), w4],
    ),
    "cosine_embedding_loss": (
        lambda *a: fg.ops.cosine_embedding_loss(*a, signs(3), -0.5), [x34, draw(3, 4, seed=1)],
    ),
    "triplet_margin_loss": (
        lambda *a: fg.ops.triplet_margin_loss(*a, margin=5.0, swap=True), [x34, draw(3, 4, seed=1), draw(3, 4, seed=2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(DERIVATIVES))
def test_first_and_second_derivatives(name: str) -> None:
    check_derivatives(*DERIVATIVES[name])


def test_every_op_is_differentiated() -> None:
    mine = {n for n in fg.ops.__all__ if getattr(fg.ops, n).__module__.rpartition(".")[2] in MODULES}
    assert mine == {name.split()[0] for name in DERIVATIVES}


# -- classes, beside torch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("far", [0.0, 50.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_no_worse_than_torchs(far: float, smoothing: float, dtype: torch.dtype) -> None:
    x, target = (far + draw(16, 300)).detach().to(dtype).requires_grad_(), classes(16, count=300, ignored=2)
    check_no_worse(*pair("cross_entropy", target, label_smoothing=smoothing, reduction="none"), [x])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_probabilities_are_no_worse_than_torchs(dtype: torch.dtype) -> None:
    arguments = [a.detach().to(dtype).requires_grad_() for a in (draw(16, 40), shares(16, 40))]
    check_no_worse(*pair("cross_entropy", reduction="none"), arguments)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_options_of_classes(weighted: bool, reduction: str) -> None:
    x, logs = draw(5, 4, 3), torch.log_softmax(draw(5, 4, 3), 1).detach().requires_grad_()
    weight = w4.detach() if weighted else None
    for index in (-100, 2):
        target = classes(5, 3, count=4, ignored=4, index=index)
        options: dict[str, Any] = {"ignore_index": index, "reduction": reduction}
        check_same(*pair("nll_loss", target, weight, **options), [logs])
        for smoothing in (0.0, 0.3, 1.0):
            check_same(*pair("cross_entropy", target, weight, **options, label_smoothing=smoothing), [x])
    for smoothing in (0.0, 0.3):
        options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
        check_same(*pair("cross_entropy", **options), [x, shares(5, 4, 3)])


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1), (3, 1, 2), (0, 4), (3, 4, 0), (2, 4, 3, 2), (2, 3, 1, 1, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_shapes_of_classes(shape: tuple[int, ...], reduction: str) -> None:
    dim = 1 if len(shape) > 1 else 0
    x, probable = draw(*shape), shares(*shape, dim=dim).detach()
    target = classes(*shape[:dim], *shape[dim + 1 :], count=shape[dim])
    for name, given in (("cross_entropy", target), ("cross_entropy", probable), ("nll_loss", target)):
        check_same(*pair(name, given, reduction=reduction), [x])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_all_ignored(name: str, reduction: str) -> None:
    ours, theirs = pair(name, torch.full((3,), -100), reduction=reduction)
    value = ours(x34)
    torch.testing.assert_close(value, theirs(x34), equal_nan=True)
    assert value.isnan().all() == (reduction == "mean")


def test_ignored_rows_may_hold_anything() -> None:
    x = torch.tensor([[NAN, 1.0, 2.0], [INF, 1.0, 2.0], [1.0, 2.0, 3.0]], requires_grad=True)
    target = torch.tensor([-100, -100, 1])
    (loss,), (gradient,) = gradients(pair("cross_entropy", target)[0], [x])
    torch.testing.assert_close(loss, F.cross_entropy(x[2:], target[2:]).detach())
    assert not gradient[:2].any()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_a_class_out_of_range_counts_for_nothing(name: str, reduction: str) -> None:
    for wrong, weight in itertools.product((4, -1, 1 << 40), (None, w4.detach())):
        out_of_range, _ = pair(name, torch.tensor([1, wrong, 3]), weight, reduction=reduction)
        ignoring, _ = pair(name, torch.tensor([1, -100, 3]), weight, reduction=reduction)
        check_same(out_of_range, ignoring, [x34], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_integers_of_any_width(dtype: torch.dtype) -> None:
    torch.testing.assert_close(fg.ops.cross_entropy(x34, t3.to(dtype)), F.cross_entropy(x34, t3))


def test_impossible_classes_and_huge_logits() -> None:
    rows = [[-INF, 1.0, 2.0], [1.0, -INF, -INF], [1e30, -1e30, 0.0], [-INF] * 3, [INF, 0, 0], [NAN, 0, 0], [88, 89, 90]]
    for target in (torch.zeros(7, dtype=torch.int64), torch.full((7,), 2)):
        check_same(*pair("cross_entropy", target, reduction="none"), [torch.tensor(rows, requires_grad=True)])


def test_z_loss() -> None:
    x, target = draw(5, 4), classes(5, count=4, ignored=2)
    z = torch.logsumexp(x, 1) ** 2
    both = F.cross_entropy(x, target, reduction="none") + 0.3 * z * (target >= 0)
    for reduction, expected in (("none", both), ("sum", both.sum()), ("mean", both.sum() / 3)):
        found = fg.ops.cross_entropy(x, target, reduction=reduction, z_loss=0.3)
        torch.testing.assert_close(found, expected)
        ours, theirs = (torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (found, expected))
        torch.testing.assert_close(ours, theirs)


def test_many_classes() -> None:
    x, target = draw(3, 20000, dtype=torch.float32), classes(3, count=20000)
    check_same(*pair("cross_entropy", target), [x])


@pytest.mark.parametrize("layout", ["channels last", "transposed", "sliced"])
def test_layouts(layout: str) -> None:
    x = draw(2, 6, 5, 4).detach()
    laid_out = {
        "channels last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(0, 3).contiguous().transpose(0, 3),
        "sliced": torch.cat([x, x], 1)[:, ::2],
    }
    target = classes(2, 5, 8, count=6)[:, :, ::2]
    check_same(*pair("cross_entropy", target), [laid_out[layout].requires_grad_()])


def test_a_new_number_compiles_nothing() -> None:
    def call(index: int, smoothing: float, size: int) -> torch.Tensor:
        target = classes(size, count=4)
        return fg.ops.cross_entropy(draw(size, 4), target, ignore_index=index, label_smoothing=smoothing)

    call(-100, 0.1, 3)
    before = len(fg.ops.cross_entropy.declaration.traces)
    assert not torch.equal(call(2, 0.3, 7), call(1, 0.2, 7))
    assert len(fg.ops.cross_entropy.declaration.traces) == before


def test_one_number_reads_the_logits_once() -> None:
    """Without smoothing, maximum, sum and the target's logit come from one pass."""
    op = fg.ops.cross_entropy.trace(draw(8, 40), classes(8, count=40))
    reading = [s for s in op.statements if "input" in repr(s)]
    assert {s.over for s in reading if hasattr(s, "over")} == {("d1",)}


# -- margins, beside torch -------------------------------------------------------------------------------------------

EDGES = torch.tensor([-3.0, -1.0, -0.0, 0.0, 0.5, 1.0, 1.0, 3.0, INF])
TARGETS = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 0.0, 1.0])
MARGINS: dict[str, tuple[str, list[torch.Tensor], list[dict[str, Any]]]] = {
    "margin_ranking_loss": ("12t", [EDGES, EDGES.flip(0), TARGETS], [{}, {"margin": 2.0}]),
    "hinge_embedding_loss": ("1t", [EDGES, TARGETS], [{}, {"margin": 0.5}]),
    "soft_margin_loss": ("1t", [EDGES, TARGETS], [{}]),
    "multilabel_soft_margin_loss": (
        "1t", [EDGES[:8].view(2, 4), TARGETS[:8].view(2, 4)], [{}, {"weight": torch.tensor([1.0, 0.0, 2.0, 3.0])}],
    ),
    "cosine_embedding_loss": (
        "12t", [draw(4, 3), draw(4, 3, seed=1), torch.tensor([1.0, -1.0, -1.0, 0.0])], [{}, {"margin": -0.9}],
    ),
    "triplet_margin_loss": (
        "123", [draw(4, 3), draw(4, 3, seed=1), draw(4, 3, seed=2)],
        [{}, {"p": 1.0}, {"p": 3.0, "swap": True, "margin": 4.0}, {"p": INF, "eps": 0.1}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", sorted(MARGINS))
def test_margins(name: str, reduction: str) -> None:
    kinds, arguments, cases = MARGINS[name]
    given = [a.detach().requires_grad_() for kind, a in zip(kinds, arguments, strict=True) if kind != "t"]
    fixed = {"target": arguments[-1]} if kinds.endswith("t") else {}
    for options in cases:
        check_same(*pair(name, **fixed, **options, reduction=reduction), given)


def test_nan_stays() -> None:
    nan, one = torch.tensor([NAN]), torch.ones(1)
    for name in ("margin_ranking_loss", "hinge_embedding_loss", "soft_margin_loss"):
        arguments = (nan, one, one) if name == "margin_ranking_loss" else (nan, -one)
        assert getattr(fg.ops, name)(*arguments).isnan()


def test_unbatched_vectors() -> None:
    a, b, c = draw(5), draw(5, seed=1), draw(5, seed=2)
    check_same(*pair("cosine_embedding_loss", torch.tensor(-1.0, dtype=torch.float64), -0.9), [a, b])
    check_same(*pair("triplet_margin_loss"), [a, b, c])


def test_soft_margin_loss_does_not_overflow() -> None:
    x = torch.tensor([1000.0, -1000.0], requires_grad=True)
    target = torch.tensor([-1.0, 1.0])
    (loss,), (gradient,) = gradients(lambda x: fg.ops.soft_margin_loss(x, target, reduction="sum"), [x])
    assert loss == 2000 and gradient.isfinite().all()
    assert F.soft_margin_loss(x, target, reduction="sum").isinf()


@pytest.mark.parametrize("name", sorted({*MARGINS, "nll_loss", "cross_entropy"}))
@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_deprecated_reductions(name: str) -> None:
    arguments = [a.detach().clamp(-9, 9) for a in MARGINS[name][1]] if name in MARGINS else [x34.detach(), t3]
    for size_average, reduce in itertools.product((None, True, False), (None, True, False)):
        options = {"size_average": size_average, "reduce": reduce, "reduction": "sum"}
        ours, theirs = getattr(fg.ops, name)(*arguments, **options), getattr(F, name)(*arguments, **options)
        torch.testing.assert_close(ours, theirs)


# -- what is refused -------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[..., Any], str, str]] = [
    (lambda x: fg.ops.cross_entropy(x, t3), "shape [3]", "shape [5]: a class number each, or [5, 4]: probabilities"),
    (
        lambda x: fg.ops.nll_loss(x, torch.zeros(5, 1, dtype=torch.int64)),
        "shape [5, 1]",
        "shape [5]: a class number each",
    ),
    (lambda x: fg.ops.nll_loss(x, x), "shape [5, 4]", "shape [5]: a class number each"),
    (lambda x: fg.ops.cross_entropy(x, x.long()), "rank 2 for an input of rank 2", "rank 1"),
    (lambda x: fg.ops.cross_entropy(x, torch.zeros(5)), "float32", "integers: class numbers"),
    (lambda x: fg.ops.nll_loss(x, torch.ones(5, dtype=torch.bool)), "bool", "integers: class numbers"),
    (
        lambda x: fg.ops.cross_entropy(x, classes(5, count=4), torch.ones(3)),
        "shape [3]",
        "shape [4]: one weight a class",
    ),
    (lambda x: fg.ops.cross_entropy(x.long(), classes(5, count=4)), "int64", "a float dtype"),
    (lambda x: fg.ops.cross_entropy(x, classes(5, count=4), reduction="avg"), "reduction='avg'", "one of 'none'"),
    (lambda x: fg.ops.cross_entropy(x, classes(5, count=4), label_smoothing=1.5), "label_smoothing=1.5", "from 0 to 1"),
    (lambda x: fg.ops.triplet_margin_loss(x, x, x, margin=0.0), "margin=0.0", "greater than 0"),
    (lambda x: fg.ops.triplet_margin_loss(x, x, x[0]), "negative of rank 1", "tensors of one rank"),
    (lambda x: fg.ops.margin_ranking_loss(x, x, x[0]), "target of rank 1", "tensors of one rank"),
    (lambda x: fg.ops.cosine_embedding_loss(x, x, x), "ranks [2, 2, 2]", "ranks 2, 2 and 1"),
    (lambda x: fg.ops.soft_margin_loss(x.long(), x), "int64", "a float dtype"),
]


@pytest.mark.parametrize(("call", "given", "expected"), REFUSED)
def test_what_is_refused(call: Callable[..., Any], given: str, expected: str) -> None:
    error = refused(lambda: call(torch.randn(5, 4)))
    assert given in error.given and expected in error.expected and error.fix


def test_a_number_as_variance_is_as_exact_as_the_input() -> None:
    x, target = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    for variance in (0.3, 1e-9):
        found = fg.ops.gaussian_nll_loss(x, target, variance, reduction="none")
        expected = F.gaussian_nll_loss(x, target, variance, reduction="none")
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    assert fg.ops.gaussian_nll_loss(x.half(), target.half(), 0.3).dtype == torch.float16
