"""linear_cross_entropy, in several chunks of rows: values, gradients, memory, and where all logits exist after all."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import fusegen as fg
from fusegen import linear_loss
from fusegen.matmul.libraries.stopwatch import WallClock
from fusegen.ops.linear_losses import _by_aspect
from tests.support.oracles import check_no_worse, draw, gradients, refused
from tools.bench.linear_loss import measure

TOKENS, HIDDEN, CLASSES = 12, 8, 11
HALVES = (torch.bfloat16, torch.float16)
OURS: Callable[..., Any] = fg.ops.linear_cross_entropy

x, weight, bias = draw(TOKENS, HIDDEN), draw(CLASSES, HIDDEN, seed=1), draw(CLASSES, seed=2)
class_weight = draw(CLASSES, low=0.1, seed=3).detach()
target = torch.randint(0, CLASSES, (TOKENS,), generator=torch.Generator().manual_seed(4))
target[[2, 7]] = -100
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "weights": {"weight": class_weight},
    "smoothing": {"label_smoothing": 0.2, "ignore_index": 0},
    "everything": {"weight": class_weight, "label_smoothing": 0.3},
}


@pytest.fixture(autouse=True)
def chunks_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three chunks, the last one of two rows."""
    monkeypatch.setattr(linear_loss, "rows_per_chunk", lambda rows, classes, size: min(5, max(rows, 1)))


def theirs(x: Any, matrix: Any, target: Any, *, linear_bias: Any = None, z_loss: float = 0.0, **options: Any) -> Any:
    """Torch's, on all logits; rows in as many dimensions as there are."""
    logits, shape = F.linear(x, matrix, linear_bias), x.shape[:-1]
    probable = target.is_floating_point()
    target = target if probable else target.long()
    logits = logits.reshape(-1, logits.shape[-1])
    options = {"weight": None} | options
    if options["weight"] is not None:
        options["weight"] = options["weight"].to(x.dtype)
    loss = F.cross_entropy(logits, target.reshape(-1, *target.shape[len(shape) :]), **options)
    if z_loss:
        counted = torch.ones(len(logits)) if probable else (target != -100).reshape(-1)
        squares = z_loss * torch.logsumexp(logits, -1) ** 2 * counted
        loss = loss + (squares if loss.ndim else squares.sum() / (counted.sum() if "reduction" not in options else 1))
    return loss.reshape(shape) if options.get("reduction") == "none" else loss


def same(arguments: list[Any], options: dict[str, Any], with_bias: bool = True, target: Any = target) -> None:
    """Values and gradients are torch's."""

    def call(function: Any) -> Callable[..., Any]:
        def called(*tensors: Any) -> Any:
            given = {"linear_bias": tensors[2], **options} if with_bias else options
            return function(tensors[0], tensors[1], target, **given)

        return called

    expected = gradients(call(theirs), arguments)
    torch.testing.assert_close(gradients(call(OURS), arguments), expected, equal_nan=True)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_options_are_torchs(reduction: str, name: str) -> None:
    classes = target.clamp(min=OPTIONS[name].get("ignore_index", -100))
    same([x, weight, bias], {"reduction": reduction, **OPTIONS[name]}, target=classes)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_further_options(reduction: str) -> None:
    options = {} if reduction == "mean" else {"reduction": reduction}
    same([x, weight, bias], {"z_loss": 0.01, **options})
    shares = torch.softmax(draw(TOKENS, CLASSES, seed=5), -1).detach()
    same([x, weight], {"weight": class_weight, **options}, False, shares)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_every_subset_of_gradients(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in itertools.product([False, True], repeat=3):
        if any(wanted):
            arguments = [t.detach().requires_grad_(w) for t, w in zip((x, weight, bias), wanted, strict=True)]
            same(arguments, {"reduction": reduction})
    multiplied = []
    monkeypatch.setattr(torch, "mm", lambda *a, _mm=torch.mm, **k: multiplied.append(1) or _mm(*a, **k))
    with torch.no_grad():
        OURS(x, weight, target)
    assert len(multiplied) == 3  # the logits of each chunk
    OURS(x, weight.detach(), target).backward(inputs=[x])
    assert len(multiplied) == 3 + 6


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_types_are_no_worse_than_torchs(dtype: torch.dtype, reduction: str) -> None:
    given = [draw(40, 64, dtype=dtype), draw(300, 64, seed=1, low=-0.3, high=0.3, dtype=dtype), draw(300, dtype=dtype)]
    classes = torch.randint(0, 300, (40,))

    def call(function: Any) -> Callable[..., Any]:
        return lambda x, w, b: function(x, w, classes, linear_bias=b, reduction=reduction)

    check_no_worse(call(OURS), call(theirs), given)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_classes_beyond_a_multiple_of_8_go_by_themselves(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_loss, "pays", lambda *_: True)
    given = [draw(40, 64, dtype=torch.bfloat16), draw(301, 64, seed=1, low=-0.3, high=0.3, dtype=torch.bfloat16)]
    classes = torch.randint(0, 301, (40,))
    assert linear_loss._ranges(*given) == [slice(0, 296), slice(296, 301)]
    assert linear_loss._ranges(given[0], given[1][:296]) == [slice(0, 296)]
    assert linear_loss._ranges(given[0].float(), given[1].float()) == [slice(0, 301)]
    read = []
    product = torch.mm

    def watched(left: Any, right: Any, *, out: Any) -> Any:
        read.append((right.shape[1], out.stride(0)))
        return product(left, right, out=out)

    monkeypatch.setattr(torch, "mm", watched)
    check_no_worse(
        lambda x, w: OURS(x, w, classes, reduction=reduction),
        lambda x, w: theirs(x, w, classes, reduction=reduction), given,
    )  # fmt: skip
    assert {(296, 304), (5, 304)} <= set(read) <= {(296, 304), (5, 304), (64, 64)}  # the last: the input's gradient


def test_the_weights_gradient_stays_within_float16() -> None:
    """Many rows of one class: their sum overflows before it is divided by their number."""
    x, weight = torch.full((600, 8), 200.0, dtype=torch.float16), torch.zeros(4, 8, dtype=torch.float16)
    weight.requires_grad_()
    OURS(x, weight, torch.zeros(600, dtype=torch.int64)).backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad[:, 0], torch.tensor([-150, 50, 50, 50]).half(), rtol=2e-2, atol=0)


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (2, 1, 3), (), (0,), (3, 0), (1,), (6,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    rows = draw(*shape, HIDDEN)
    classes = torch.randint(0, CLASSES, shape)
    for reduction in ("mean", "none"):
        same([rows, weight, bias], {"reduction": reduction}, target=classes)
    same([rows[..., :0], weight[:, :0], bias], {}, target=classes)


def test_operands_that_do_not_lie_side_by_side() -> None:
    rows, matrix = draw(4, 3, HIDDEN).transpose(0, 1), draw(HIDDEN, CLASSES, seed=1).mT
    same([rows, matrix, bias], {}, target=target.reshape(4, 3).mT)
    same([x[::2], weight[:, ::2].repeat(1, 2), bias], {}, target=target[::2].int())


def test_rows_that_begin_between_two_vectors() -> None:
    given = [draw(7, 16, dtype=torch.bfloat16), draw(2051, 16, seed=1, dtype=torch.bfloat16)]
    classes = torch.randint(0, 2051, (7,))
    check_no_worse(lambda x, w: OURS(x, w, classes), lambda x, w: theirs(x, w, classes), given)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_ignored(reduction: str) -> None:
    same([x, weight, bias], {"reduction": reduction}, target=torch.full((TOKENS,), -100))


def test_derivatives_of_any_kind() -> None:
    """Those that take all logits, too."""
    small = [draw(6, 3), draw(4, 3, seed=1), draw(4, seed=2)]
    classes = torch.tensor([0, 3, -100, 1, 2, 2])
    for reduction in ("mean", "none"):

        def call(x: Any, w: Any, b: Any, reduction: str = reduction) -> Any:
            return OURS(x, w, classes, linear_bias=b, reduction=reduction, label_smoothing=0.1)

        assert torch.autograd.gradcheck(call, small, check_batched_grad=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, small)


def test_derivatives_under_transforms() -> None:
    found = torch.func.grad(lambda w: OURS(x.detach(), w, target))(weight.detach())
    (expected,) = torch.autograd.grad(theirs(x, weight, target), [weight])
    torch.testing.assert_close(found, expected)
    shares, factors = draw(TOKENS, CLASSES, low=0), class_weight.clone().requires_grad_()
    for given in ((shares, class_weight), (shares.detach(), factors)):
        leaves = [t for t in given if t.requires_grad]
        found = torch.autograd.grad(OURS(x, weight, given[0], weight=given[1]), leaves)
        torch.testing.assert_close(found, torch.autograd.grad(theirs(x, weight, given[0], weight=given[1]), leaves))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_backward(reduction: str) -> None:
    loss, expected = OURS(x, weight, target, reduction=reduction), theirs(x, weight, target, reduction=reduction)
    for seed in range(3):
        cotangent = draw(*loss.shape, seed=seed).detach()
        found = torch.autograd.grad(loss, [x, weight], cotangent, retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(expected, [x, weight], cotangent, retain_graph=True))


def test_checkpointed() -> None:
    (expected,) = torch.autograd.grad(theirs(torch.tanh(x), weight, target), [x])
    loss = checkpoint(lambda x: OURS(torch.tanh(x), weight, target), x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(loss, [x])[0], expected)


def test_saved_tensors_are_watched() -> None:
    rows = x.detach().clone().requires_grad_() * 1
    loss = OURS(rows, weight, target)
    with torch.no_grad():
        rows.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_multiplies_in_half_and_adds_up_in_float32(reduction: str) -> None:
    given = [t.detach().float().requires_grad_() for t in (x, weight, bias)]
    found = []
    for function in (OURS, theirs):
        with torch.autocast("cpu", torch.bfloat16):
            loss = function(given[0], given[1], target, linear_bias=given[2], reduction=reduction)
        first = torch.autograd.grad(loss.sum(), given, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(loss.sum(), given), first, rtol=0, atol=0)
        found.append((loss, *first))
    torch.testing.assert_close(found[0], found[1], rtol=2e-2, atol=3e-2)
    rounded = [t.detach().bfloat16().float() for t in given[:2]]
    exact = theirs(rounded[0], rounded[1], target, linear_bias=given[2], reduction=reduction)
    torch.testing.assert_close(found[0][0], exact.detach(), rtol=0, atol=2e-2)
    with torch.autocast("cpu", torch.bfloat16):
        halves = [t.detach().bfloat16() for t in (x, weight)]
        assert OURS(*halves, target, reduction=reduction).dtype is theirs(*halves, target).dtype is torch.float32
        same([x, weight], {"weight": class_weight.float(), "reduction": reduction}, with_bias=False)


def test_compiled_code_calls_it_between_two_graphs() -> None:
    graphs = []

    def backend(module: Any, _: Any) -> Any:
        graphs.append(module)
        return module.forward

    def step(x: Any) -> Any:
        return OURS(torch.tanh(x), weight, target) * 2

    compiled = torch.compile(step, backend=backend)
    torch.testing.assert_close(compiled(x), 2 * theirs(torch.tanh(x), weight, target))
    assert len(graphs) == 2


@pytest.mark.emulator
def test_numpy_arrays() -> None:
    found = OURS(x.detach().numpy(), weight.detach().numpy(), target.numpy())
    np.testing.assert_allclose(found, theirs(x, weight, target).detach().numpy())


def test_inside_another_op() -> None:
    @fg.op
    def doubled(x: Any, w: Any, t: Any) -> Any:
        return 2 * fg.ops.linear_cross_entropy(x, w, t)

    torch.testing.assert_close(doubled(x, weight, target), 2 * theirs(x, weight, target))


# -- memory ----------------------------------------------------------------------------------------------------------


def allocations(call: Callable[[], Any]) -> Iterator[int]:
    """Sizes in bytes of what the call allocates through torch, as the profiler sees it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    stack = list(profile.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack += event.children
        size = getattr(event.extra_fields, "alloc_size", 0)
        if size > 0:
            yield size


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.cpu
def test_the_logits_never_exist(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, hidden, classes = 256, 8, 1000
    monkeypatch.setattr(linear_loss, "rows_per_chunk", lambda *_: 16)
    given = [draw(rows, hidden, dtype=torch.float32), draw(classes, hidden, seed=1, dtype=torch.float32)]
    labels, whole = torch.randint(0, classes, (rows,)), rows * classes * 4

    def step(function: Any) -> None:
        function(*given, labels, reduction=reduction).sum().backward()

    step(OURS)
    sizes = list(allocations(lambda: step(OURS)))
    assert sizes.count(whole // 16) in (1, 2) and max(sizes) == whole // 16  # one for each walk over the chunks
    assert max(allocations(lambda: step(theirs))) >= whole


def test_chunks_take_less_than_a_tenth_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    choose = linear_loss.rows_per_chunk
    assert choose(8192, 128256, 2) == 768 < 8192 / 10
    assert choose(4096, 32000, 2) == 1024
    assert [choose(rows, 128256, 2) for rows in (0, 1, 100, 300)] == [1, 1, 100, 256]
    assert choose(4000, 10, 8) == 4000
    assert choose(1 << 20, 128256, 2) == 4096


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int]]:
    """How many rows each product of a call with these options takes."""
    taken: list[int] = []
    product = torch.mm

    def watched(left: Any, right: Any, **kwargs: Any) -> Any:
        taken.append(len(left))
        return product(left, right, **kwargs)

    def called(options: Any) -> list[int]:
        taken.clear()
        with torch.no_grad():
            OURS(x, weight, target, options=options)
        return taken

    monkeypatch.setattr(torch, "mm", watched)
    return called


def test_options_say_how_many_rows_a_chunk_has(chunks: Callable[[Any], list[int]]) -> None:
    for options, expected in ((None, [5, 5, 2]), (7, [7, 5]), (100, [TOKENS]), (1, [1] * TOKENS)):
        assert chunks(options) == expected, options


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="a torch without them")
def test_options_may_be_torchs(chunks: Callable[[Any], list[int]]) -> None:
    torchs = torch.nn.LinearCrossEntropyOptions
    for options, expected in (
        (torchs(), [5, 5, 2]), (torchs(batch_chunk_size=4), [4, 4, 4]), (torchs(chunking_method=None), [TOKENS]),
        (torchs(chunking_method="aspect_ratio"), [8, 4]), (torchs(chunking_method="aspect_ratio:4"), [2] * 6),
    ):  # fmt: skip
        assert chunks(options) == expected, options
    choose = torchs(chunking_method="aspect_ratio:2")._compute_batch_chunk_size
    for rows, columns, classes in ((8192, 4096, 128256), (1000, 64, 50257), (7, 100, 3)):
        assert min(_by_aspect("aspect_ratio:2", rows, columns, classes), rows) == choose(rows, columns, classes)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_do_not_depend_on_the_chunk(reduction: str) -> None:
    def call(function: Any, **options: Any) -> Callable[..., Any]:
        return lambda x, w, b: function(x, w, target, linear_bias=b, reduction=reduction, **options)

    expected = gradients(call(theirs), [x, weight, bias])
    for rows in (1, 3, TOKENS):
        torch.testing.assert_close(gradients(call(OURS, options=rows), [x, weight, bias]), expected)
    assert torch.autograd.gradgradcheck(call(OURS, options=3), [x, weight, bias])


@pytest.mark.parametrize("options", [0, -1, True, 2.0, "aspect_ratio"], ids=str)
def test_options_that_are_none(options: Any) -> None:
    message = str(refused(lambda: OURS(x, weight, target, options=options)))
    assert "option options" in message and "number of rows" in message and repr(options) in message


@pytest.mark.cpu
def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    measure((12, 8, 11), [5], WallClock(1), "cpu")
    told = capsys.readouterr().out
    assert all(name in told for name in ("fusegen, options=5", "torch, chunked", "Liger", "loss alone"))


# -- errors ----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    for call, words in (
        (lambda: OURS(x, weight.mT, target), "linear_weight.*shape \\[8, 11\\].*classes, 8"),
        (lambda: OURS(x, weight, target[:5]), "target.*shape \\[5\\].*\\[12\\]: a class number"),
        (lambda: OURS(x, weight, target, linear_bias=x), "linear_bias.*one number a class"),
        (lambda: OURS(x, weight, target.float()), "target.*float32.*integers"),
        (lambda: OURS(x, weight.float(), target), "matmul.*and float32.*as torch"),
        (lambda: OURS(x, weight, target, reduction="total"), "reduction='total'"),
        (lambda: OURS(x, weight, target, label_smoothing=2.0), "label_smoothing=2.0"),
        (lambda: OURS(x, weight, torch.rand(TOKENS, CLASSES), ignore_index=1), "ignore_index.*probabilities"),
        (lambda: OURS(x[0], weight[:, None], target), "input.*shape \\[8\\].*\\[N, 8\\] beside a weight"),
        (lambda: OURS(x, weight[:, None], target, linear_bias=weight[:, 0]), "linear_bias.*without the last"),
    ):
        with pytest.raises(fg.FusegenError, match=f"(?s){words}"):
            call()
    assert isinstance(refused(lambda: OURS(x.long(), weight, target)), fg.DtypeError)


@pytest.mark.cpu
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_whole_graph_has_it_with_all_logits(reduction: str) -> None:
    """It says so once, and what takes less memory."""
    from fusegen.pytorch.library import dynamo

    dynamo._tell.cache_clear()
    graphs = []

    def backend(module: Any, given: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(module)
        return aot_eager(module, given)

    def step(function: Any, x: Any, w: Any) -> Any:
        return function(torch.tanh(x), w, target, reduction=reduction) * 2

    compiled = torch.compile(lambda x, w: step(OURS, x, w), backend=backend, fullgraph=True)
    with pytest.warns(UserWarning, match="(?s)linear_cross_entropy.*logits of all rows.*without fullgraph=True"):
        found = compiled(x, weight)
    expected = step(theirs, x, weight)
    torch.testing.assert_close(found, expected)
    cotangent = torch.randn_like(expected)
    gradients = [torch.autograd.grad(result, (x, weight), cotangent) for result in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert len(graphs) == 1
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again = torch.compile(lambda x, w: step(OURS, x, w), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(again(x, weight), expected)


@pytest.mark.cpu
def test_a_strict_export_has_it() -> None:
    class Head(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> Any:
            return OURS(x, w, target)

    given = x.detach(), weight.detach()
    exported = torch.export.export(Head(), given, strict=True).module()
    torch.testing.assert_close(exported(*given), theirs(*given, target))
