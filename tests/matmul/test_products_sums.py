"""Products that add up: each adds to what those before it left, without a pass over memory for the sum."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import fusegen as fg
from fusegen.core.ir import Op
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Product
from fusegen.inspect.passes import passes
from fusegen.native import module as native
from fusegen.run.chain import ChainRunner
from tests.support import products
from tests.support.products import halved


@fg.op
def two(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a @ b + c @ d


@fg.op
def three(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return (a @ b) @ c + (a @ c + d @ e)


@fg.op
def factor(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return (a @ b + c @ d) @ e


@fg.op
def read_again(a: Any, b: Any, c: Any, d: Any) -> Any:
    total = a @ b + c @ d
    return total, fg.tanh(total)


CASES: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "two": (two, [halved(3, 4), halved(4, 5), halved(3, 2), halved(2, 5)]),
    "one inside": (three, [halved(3, 4), halved(4, 4), halved(4, 5), halved(3, 2), halved(2, 5)]),
    "a factor": (factor, [halved(3, 4), halved(4, 5), halved(3, 2), halved(2, 5), halved(5, 3)]),
    "read again": (read_again, [halved(3, 4), halved(4, 5), halved(3, 2), halved(2, 5)]),
    "batches": (two, [halved(2, 3, 4), halved(2, 4, 5), halved(2, 3, 2), halved(2, 2, 5)]),
    "batches that broadcast": (two, [halved(2, 1, 3, 4), halved(6, 4, 5), halved(2, 6, 3, 2), halved(2, 5)]),
    "batches that lie apart": (
        two,
        [halved(3, 2, 6, 4).mT, halved(6, 3, 2, 5).permute(1, 2, 0, 3), halved(3, 2, 4, 2), halved(3, 2, 2, 5)],
    ),
    "transposes": (two, [halved(4, 3).mT, halved(5, 4).mT, halved(2, 3).mT, halved(2, 5)]),
    "nothing contracted": (two, [halved(3, 4), halved(4, 5), halved(3, 0), halved(0, 5)]),
    "nothing contracted first": (two, [halved(3, 0), halved(0, 5), halved(3, 2), halved(2, 5)]),
    "no rows": (two, [halved(0, 4), halved(4, 5), halved(0, 2), halved(2, 5)]),
}


def plain(function: Any) -> Callable[..., Any]:
    """A declaration as torch runs it."""
    written: Callable[..., Any] = function.declaration.function
    return written if function is not read_again else lambda a, b, c, d: (a @ b + c @ d, torch.tanh(a @ b + c @ d))


def sums(op: Op) -> list[str]:
    """The steps of an op: "=" and "+=" for products, else the results of a pass."""
    whole = chain(op)
    assert whole is not None
    return [
        ("+=" if s.onto else "=") if isinstance(s, Product) else " ".join(o.name for o in s.outputs)
        for s in whole.steps
    ]


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name: str) -> None:
    function, arguments = CASES[name]
    expected = plain(function)
    op = fg.FusedOp(function.declaration)
    own, theirs = ([a.detach().requires_grad_() for a in arguments] for _ in range(2))
    for _ in range(3):  # the slow path, then the recorded plan
        results, wanted = op(*own), expected(*theirs)
        torch.testing.assert_close(results, wanted)
        results, wanted = (r if isinstance(r, tuple) else (r,) for r in (results, wanted))
        cotangents = [torch.randn_like(w) for w in wanted]
        found = torch.autograd.grad(results, own, cotangents)
        torch.testing.assert_close(found, torch.autograd.grad(wanted, theirs, cotangents))


@pytest.mark.parametrize("name", ["one inside", "a factor"])
def test_derivatives_by_finite_differences(name: str) -> None:
    function, arguments = CASES[name]
    own = [a.detach().clone().requires_grad_() for a in arguments]
    assert torch.autograd.gradcheck(function, own, check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, own)


def test_a_sum_takes_no_pass() -> None:
    def steps(name: str) -> list[str]:
        function, arguments = CASES[name]
        return sums(function.trace(*arguments))

    assert steps("two") == steps("batches that broadcast") == ["=", "+="]
    assert steps("one inside") == ["=", "=", "+=", "+="]
    assert steps("a factor") == ["=", "+=", "="]
    assert steps("read again") == ["=", "+=", "out_1"]


def test_what_else_is_read_or_lies_otherwise_is_added_up_by_a_pass() -> None:
    a, b, c, d = CASES["two"][1]

    def steps(function: Callable[..., Any], *arguments: torch.Tensor) -> list[str]:
        return sums(fg.op(function, name="summed").trace(*arguments))

    def doubled(a: Any, b: Any) -> Any:
        product = a @ b
        return product + product

    def with_part(a: Any, b: Any, c: Any, d: Any) -> Any:
        product = a @ b
        return product + c @ d, fg.exp(product)

    half = [t.half() for t in (a, b, c, d)]
    halves_read_again = read_again.trace(*half)
    assert steps(doubled, a, b) == ["=", "out"], "one product twice"
    assert steps(lambda a, b, c, d: a @ b + c @ d + 1.0, a, b, c, d) == ["=", "=", "out"]
    assert steps(lambda a, b, c, d: fg.tanh(a @ b + c @ d), a, b, c, d) == ["=", "=", "out"]
    assert steps(with_part, a, b, c, d) == ["=", "=", "out_0 out_1"]
    assert steps(lambda a, b, c, d: a @ b + c @ d, a, b, c[0], d) == ["=", "=", "out"], "a row for all rows"
    assert steps(lambda a, b, c, d: fg.cast(a @ b + c @ d, fg.float32), *half) == ["=", "=", "out"]
    assert sums(halves_read_again) == ["=", "=", "total out_1"], "tanh reads the sum before it is rounded"


@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}], ids=str)
def test_the_backward_of_a_gated_mlp_has_no_pass_for_its_inputs_gradient(options: dict[str, str]) -> None:
    x, gate, up, down = halved(3, 4), halved(6, 4), halved(6, 4), halved(4, 6)
    op = fg.ops.geglu_mlp if options else fg.ops.swiglu_mlp
    assert [s for s in products.steps(op, [t.requires_grad_() for t in (x, gate, up, down)], "backward") if s != "@"]
    backward = passes(op, (x, gate, up, down), {}, "backward")[1].op
    found = sums(backward)
    assert found.count("=") == 5 and found.count("+=") == 1 and len(found) == 7, found


@pytest.mark.cpu
def test_no_kernel_runs_for_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    ran: list[str] = []
    launch = ChainRunner.launch
    monkeypatch.setattr(ChainRunner, "launch", lambda self, *args: (ran.append(self.op.label), launch(self, *args))[1])
    op = fg.FusedOp(two.declaration)
    for _ in range(3):
        arguments = [torch.randn_like(t) for t in CASES["two"][1]]
        torch.testing.assert_close(op(*arguments), plain(two)(*arguments))
    assert ran == ["forward"], "natively from the second call on"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_sum_of_halves_is_at_least_as_exact_as_torchs(dtype: torch.dtype) -> None:
    arguments = [halved(*shape).to(dtype) for shape in ((32, 64), (64, 48), (32, 24), (24, 48))]
    exact = plain(two)(*(t.double() for t in arguments))
    ours, torchs = ((found.double() - exact).square().mean() for found in (two(*arguments), plain(two)(*arguments)))
    assert ours <= torchs * 1.01
    integers = [torch.randint(-3, 4, t.shape).to(dtype) for t in arguments]
    assert torch.equal(two(*integers), plain(two)(*(t.double() for t in integers)).to(dtype))


def test_nan_and_infinities_are_added() -> None:
    a, b, c, d = (t.clone() for t in CASES["two"][1])
    a[0, 0], c[1, 1] = torch.nan, torch.inf
    torch.testing.assert_close(two(a, b, c, d), plain(two)(a, b, c, d), equal_nan=True)


def test_out_must_not_be_a_factor() -> None:
    a, b, c, d = (halved(4, 4) for _ in range(4))
    for place in (b, d):
        with pytest.raises(fg.ShapeError, match="may still read"):
            two(a, b, c, d, out=place)
    out = torch.full((4, 4), torch.nan, dtype=torch.float64)
    torch.testing.assert_close(two(a, b, c, d, out=out), plain(two)(a, b, c, d))


def test_other_libraries_add_up() -> None:
    for dtype in ("float32", "float16"):
        arguments = [t.numpy().astype(dtype) for t in CASES["batches"][1]]
        wanted = plain(two)(*(t.astype("float64") for t in arguments))
        numpy.testing.assert_allclose(two(*arguments), wanted, rtol=1e-2, atol=1e-2)


def test_show_says_which_products_are_added() -> None:
    text = two.show(*CASES["two"][1])
    assert "out[D0, D3] = a" in text and "out[D0, D3] += c" in text and "forward: fused into 0 kernels" in text


def test_a_bias_behind_a_sum_is_not_added_by_its_last_product() -> None:
    def biased(a: Any, b: Any, c: Any, d: Any, bias: Any, e: Any) -> Any:
        total = a @ b + c @ d
        return total + bias, total @ e

    op = fg.op(biased, name="biased_sum")
    arguments = *CASES["two"][1], halved(5), halved(5, 2)
    torch.testing.assert_close(op(*arguments), biased(*arguments))
    assert "the same routine adds the bias" not in op.show(*arguments)
