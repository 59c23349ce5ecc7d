"""Gradients that are the cotangent as it is, or that of another argument: autograd gets that tensor itself, on every
call path and in graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.cli.main import main
from fusegen.native import module as native
from fusegen.pytorch.calls import native_cache
from tests.support.call_paths import DEVICE, Counted, fresh
from tests.support.oracles import check_derivatives, draw, leaves

__all__ = ["fresh"]


@fg.op
def residual(x, r, *, factor=2.0):  # type: ignore[no-untyped-def]
    return fg.tanh(x * factor) + r


@fg.op
def total(x, y):  # type: ignore[no-untyped-def]
    return x + y


@fg.op
def normed(x, r):  # type: ignore[no-untyped-def]
    s = x + r
    return s * fg.rsqrt(fg.mean(s * s, -1, keepdims=True) + 1e-5)


@fg.op
def split_sum(x, r):  # type: ignore[no-untyped-def]
    return fg.sin(x) + r, r * 2, x * r


@fg.op
def spent(x, y, *, inplace_backward=False):  # type: ignore[no-untyped-def]
    return x + fg.exp(y)


spent.declaration.overwrites = "x"


REFERENCES = {
    "residual": lambda x, y: torch.tanh(2 * x) + y, "total": lambda x, y: x + y,
    "normed": lambda x, y: torch.nn.functional.rms_norm(x + y, (8,), eps=1e-5),
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Python code is asked for backwards: a native plan asks nobody."""
    calls: list[Any] = []
    original = native_cache.NativeBackward.__call__
    monkeypatch.setattr(native_cache.NativeBackward, "__call__", lambda *args: calls.append(args) or original(*args))
    return calls


@contextlib.contextmanager
def counted(count: int, asked: list[Any]) -> Iterator[None]:
    before = len(asked)
    yield
    if native.module() is not None:
        assert len(asked) - before == count


def test_the_cotangent_itself_again_and_again(fresh: Any) -> None:
    known = fresh(residual)
    for factor in (0.5, 1.0, 3.0):
        x, r = leaves((3, 8), (3, 8))
        cotangent = torch.randn_like(x)
        ours = torch.autograd.grad(known(x, r, factor=factor), (x, r), cotangent)
        theirs = torch.autograd.grad(torch.tanh(x * factor) + r, (x, r), cotangent)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
        assert ours[1].data_ptr() == cotangent.data_ptr() != ours[0].data_ptr()
    assert known.decided == 1


def test_nothing_is_left_to_compute(fresh: Any) -> None:
    known = fresh(total)
    for _ in range(3):
        x, y = leaves((3, 8), (3, 8))
        cotangent = torch.randn_like(x)
        for gradient in torch.autograd.grad(known(x, y), (x, y), cotangent):
            assert gradient.data_ptr() == cotangent.data_ptr()
    assert known.decided == 1


def test_what_something_is_taken_off_is_a_term(fresh: Any) -> None:
    def shifted(x: Any, w: Any, y: Any) -> Any:
        return (x + w) - 0.69 - y

    known = fresh(fg.op(shifted))
    for _ in range(3):
        inputs = leaves((3, 8), (8,), (3, 8))
        cotangent = torch.randn(3, 8, dtype=inputs[0].dtype)
        ours = torch.autograd.grad(known(*inputs), inputs, cotangent)
        for a, b in zip(ours, torch.autograd.grad(shifted(*inputs), inputs, cotangent), strict=True):
            torch.testing.assert_close(a, b)
        assert ours[0].data_ptr() == cotangent.data_ptr() != ours[2].data_ptr()
    assert known.decided == 1


def test_what_no_gradient_flows_through_reads_nothing(fresh: Any) -> None:
    """A straight-through estimator: in front of it is a row's extremum, and rounding."""

    def quantized(x: Any) -> Any:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        return x + (torch.round(x / scale) * scale - x).detach()

    known = fresh(fg.op(quantized))
    for _ in range(3):
        (x,) = leaves((3, 8))
        cotangent = torch.randn_like(x)
        (ours,) = torch.autograd.grad(known(x), (x,), cotangent)
        assert ours.data_ptr() == cotangent.data_ptr()
    assert known.decided == 1


def test_an_extremum_through_which_a_gradient_flows_is_read(fresh: Any) -> None:
    def lowered(x: Any) -> Any:
        return x - x.amax(-1, keepdim=True) + (x * 2).detach()

    known = fresh(fg.op(lowered))
    (x,) = leaves((3, 8))
    cotangent = torch.randn_like(x)
    (ours,) = torch.autograd.grad(known(x), (x,), cotangent)
    (theirs,) = torch.autograd.grad(lowered(x), (x,), cotangent)
    torch.testing.assert_close(ours, theirs)
    assert ours.data_ptr() != cotangent.data_ptr()


@pytest.mark.cpu  # counts calls, which the suite's way of taking tensors to a GPU and back makes more of
@pytest.mark.parametrize("op", [residual, total, normed], ids=lambda op: op.name)
def test_native_backwards_ask_python_once(op: Any, asked: list[Any]) -> None:
    known = Counted(op.declaration)
    x, y = leaves((3, 8), (3, 8))
    with counted(1, asked):
        for _ in range(3):
            known(x, y).backward(torch.randn(3, 8))
    with counted(1, asked):  # a layout of its own
        for _ in range(3):
            known(x, y).sum().backward()


def test_the_terms_of_a_sum_share_a_gradient(fresh: Any) -> None:
    known = fresh(normed)
    for _ in range(3):
        x, r = leaves((3, 8), (3, 8))
        cotangent = torch.randn_like(x)
        ours = torch.autograd.grad(known(x, r), (x, r), cotangent)
        theirs = torch.autograd.grad(torch.nn.functional.rms_norm(x + r, (8,), eps=1e-5), (x, r), cotangent)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
        assert ours[0].data_ptr() == ours[1].data_ptr() != cotangent.data_ptr()
        (alone,) = torch.autograd.grad(known(x, r.detach()), (x,), cotangent)
        torch.testing.assert_close(alone, theirs[0])
    assert known.decided == 2


def test_added_gradients_are_not_shared(fresh: Any) -> None:
    known = fresh(fg.op(lambda x, v, w: x @ (v + w), name="two_weights"))
    x, v, w = leaves((4, 3), (3, 5), (3, 5))
    for _ in range(3):
        with fg.accumulate_grad():
            known(x, v, w).sum().backward()
    expected = 3 * (x.detach().T @ torch.ones_like(x[:, :1]).expand(4, 5))
    torch.testing.assert_close(v.grad, expected)
    torch.testing.assert_close(w.grad, expected)
    assert v.grad.data_ptr() != w.grad.data_ptr()


@pytest.mark.parametrize("op", [total, normed], ids=lambda op: op.name)
def test_leaves_get_memory_of_their_own(op: Any, fresh: Any) -> None:
    known = fresh(op)
    with torch.device(DEVICE):
        kept = torch.randn(3, 8, dtype=torch.float64)
    for cotangent in (kept, None):
        x, y = leaves((3, 8), (3, 8))
        for _ in range(2):
            result = known(x, y)
            result.backward(cotangent) if cotangent is not None else result.sum().backward()
        assert len({t.data_ptr() for t in (x.grad, y.grad, kept)}) == 3
        a, b = (t.detach().requires_grad_() for t in (x, y))
        expected = torch.ones_like(x) if cotangent is None else cotangent
        (expected,) = torch.autograd.grad(op(a, b), (a,), 2 * expected)
        x.grad.zero_()  # type: ignore[union-attr]
        torch.testing.assert_close(y.grad, expected)


@pytest.mark.parametrize("op", [total, normed, residual], ids=lambda op: op.name)
def test_views_of_leaves_get_memory_of_their_own(op: Any, fresh: Any) -> None:
    # Who holds a tensor is what torch looks at before it takes one for .grad, and each view of one is a new one.
    known, reference = fresh(op), REFERENCES[op.name]
    a, b = leaves((24,), (24,))
    cotangent = torch.randn_like(a).view(3, 8)
    kept = cotangent.clone()
    for _ in range(3):
        known(a.view(3, 8), b.view(3, 8)).backward(cotangent)
    assert len({t.untyped_storage().data_ptr() for t in (a.grad, b.grad, cotangent)}) == 3  # type: ignore[union-attr]
    assert torch.equal(cotangent, kept)
    p, q = (t.detach().requires_grad_() for t in (a, b))
    expected = torch.autograd.grad(reference(p.view(3, 8), q.view(3, 8)), (p, q), 3 * cotangent)
    torch.testing.assert_close((a.grad, b.grad), expected)


@pytest.mark.parametrize("op", [total, normed], ids=lambda op: op.name)
@pytest.mark.parametrize("inside", [False, True])
def test_compiled_code_has_gradients_of_its_own(op: Any, inside: bool) -> None:
    # A graph cannot look where they go; torch's own addition has this wrong there too.
    a, b = (torch.randn(24, requires_grad=True) for _ in range(2))
    function = (lambda a, b: op(a.view(3, 8), b.view(3, 8))) if inside else op
    compiled, cotangent = torch.compile(function, backend="aot_eager", fullgraph=True), torch.randn(3, 8)
    for _ in range(2):
        compiled(*((a, b) if inside else (a.view(3, 8), b.view(3, 8)))).backward(cotangent)
    p, q = (t.detach().view(3, 8).requires_grad_() for t in (a, b))
    expected = torch.autograd.grad(REFERENCES[op.name](p, q), (p, q), 2 * cotangent)
    for leaf, gradient in zip((a, b), expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient.view(24))


def test_sums_over_broadcasts_are_not_shared(fresh: Any) -> None:
    known = fresh(fg.op(lambda x, b, c: fg.tanh(x + b + c), name="two_biases"))
    for _ in range(2):
        x, b, c = leaves((3, 8), (8,), (8,))
        found = torch.autograd.grad(known(x, b, c).sum(), (b, c))
        assert found[0].data_ptr() != found[1].data_ptr()
        torch.testing.assert_close(*found)


def test_equal_gradients_of_what_is_no_sum_are_not_shared(fresh: Any) -> None:
    known = fresh(fg.op(lambda x, y: fg.sin(x) * 2 + (x + y) * 3 + (y - x), name="no_sum"))
    for _ in range(2):
        x, y = leaves((3, 8), (3, 8))
        found = torch.autograd.grad(known(x, y).sum(), (x, y))
        assert found[0].data_ptr() != found[1].data_ptr()
    double = fresh(fg.op(lambda x, y: x * 2 + y * 2, name="two_products"))
    x, y = leaves((3, 8), (3, 8))
    found = torch.autograd.grad(double(x, y).sum(), (x, y))
    assert found[0].data_ptr() != found[1].data_ptr()


def test_one_tensor_twice_and_one_of_two_needed(fresh: Any) -> None:
    known = fresh(total)
    for _ in range(2):
        x, y = leaves((3, 8), (3, 8))
        cotangent = torch.randn_like(x)
        (gradient,) = torch.autograd.grad(known(x, x), (x,), cotangent)
        torch.testing.assert_close(gradient, 2 * cotangent)
        (gradient,) = torch.autograd.grad(known(x, y.detach()), (x,), cotangent)
        assert gradient.data_ptr() == cotangent.data_ptr()
        (gradient,) = torch.autograd.grad(known(x, y), (y,), cotangent)
        assert gradient.data_ptr() == cotangent.data_ptr()


def test_only_what_has_the_argument_s_shape_and_dtype(fresh: Any) -> None:
    known = fresh(total)
    for _ in range(2):
        x, y = leaves((3, 8), (8,))
        cotangent = torch.randn_like(x)
        found = torch.autograd.grad(known(x, y), (x, y), cotangent)
        assert found[0].data_ptr() == cotangent.data_ptr()
        torch.testing.assert_close(found[1], cotangent.sum(0))
        half = y.detach().to(torch.bfloat16).expand(3, 8).contiguous().requires_grad_()
        (gradient,) = torch.autograd.grad(known(x, half), (half,), cotangent)
        torch.testing.assert_close(gradient, cotangent.to(torch.bfloat16))


def test_results_that_have_no_cotangent(fresh: Any) -> None:
    known = fresh(split_sum)
    for used in ((0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)) * 2:
        x, r = leaves((4,), (4,))
        ours, theirs = known(x, r), (torch.sin(x) + r, r * 2, x * r)
        cotangents = [torch.randn_like(x) for _ in used]
        found, expected = (
            torch.autograd.grad([results[i] for i in used], (x, r), cotangents, allow_unused=True)
            for results in (ours, theirs)
        )
        for a, b in zip(found, expected, strict=True):
            assert (a is None) == (b is None)
            torch.testing.assert_close(a, b) if a is not None else None
        assert (found[1] is not None and found[1].data_ptr() == cotangents[0].data_ptr()) == (used == (0,))


@pytest.mark.parametrize("op", [residual, total, normed, split_sum], ids=lambda op: op.name)
def test_second_derivatives(op: Any) -> None:
    check_derivatives(op, [draw(3, 4, seed=seed) for seed in range(2)])


@pytest.mark.parametrize("op", [residual, total, normed], ids=lambda op: op.name)
def test_in_graphs_and_transforms(op: Any) -> None:
    x, y, cotangent = (torch.randn(3, 8) for _ in range(3))
    reference = REFERENCES[op.name]

    def gradients(function: Any) -> Any:
        given = [t.clone().requires_grad_() for t in (x, y)]
        return torch.autograd.grad(function(*given) * 2, given, cotangent)

    expected = gradients(reference)
    compiled = torch.compile(lambda x, y: op(x, y), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled), expected)
    _, pull = torch.func.vjp(op, x, y)
    torch.testing.assert_close(tuple(pull(2 * cotangent)), expected)
    each = torch.func.vmap(lambda x, y, c: torch.func.vjp(op, x, y)[1](c))(x, y, 2 * cotangent)
    torch.testing.assert_close(tuple(each), expected)


def test_registered_ops_pass_torch_s_checks() -> None:
    x, y = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    (name,) = fg.register(total)
    torch.library.opcheck(getattr(torch.ops.fusegen, name).default, (x, y))


def test_in_the_place_of_an_argument() -> None:
    x, y = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    cotangent = torch.randn(3, 8)
    found = torch.autograd.grad(spent(x * 1, y, inplace_backward=True), (x, y), cotangent)
    torch.testing.assert_close(found, (cotangent, cotangent * y.detach().exp()))


def test_what_is_shown() -> None:
    x, r = (torch.randn(3, 8, requires_grad=True) for _ in range(2))
    assert "the same tensor: d_r = d_out" in residual.show(x, r)
    text = residual.emit(x, r, which="backward")
    assert "//   d_r = d_out, the same tensor" in text and "d_r_ptr" not in text and "d_x_ptr" in text
    nothing = total.emit(x, r, which="backward")
    assert (
        "d_x = d_out, the same tensor" in nothing
        and "d_y = d_out, the same tensor" in nothing
        and "__global__" not in nothing
    )
    assert "fused into 0 kernels" in total.show(x, r)
    once = normed.emit(x, r, which="backward")
    assert "d_r = d_x, the same tensor" in once and "d_r_ptr" not in once and "d_x_ptr" in once


def test_the_command_line_where_nothing_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["show"], ["emit", "--which", "backward", "--arch", "sm_90"]):
        with contextlib.suppress(SystemExit):
            main([arguments[0], "x + y", *arguments[1:]])
        told = capsys.readouterr()
        assert "d_y = d_out" in told.out and "error" not in told.err, told.err
