"""Matrix products inside ops: values, every gradient and its gradient, against torch; how they are split into steps."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.core.ir import Op
from fusegen.core.products import products
from fusegen.declare.reference import reference
from fusegen.derive.training import train
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Product
from fusegen.matmul.epilogue import Epilogue, match_epilogue
from fusegen.native import module as native
from fusegen.plan.frameworks import torch as torch_framework
from fusegen.run import autotuned_step, libraries
from fusegen.run.chain import ChainRunner
from tests.support import products as products_in_torch
from tests.support.oracles import check_same
from tests.support.products import halved


@fg.op
def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    h = fg.linear(x, w1, b1)
    return x + fg.linear(h * fg.sigmoid(h), w2, b2)


def torch_residual(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return x + products_in_torch.mlp(F.silu, x, w1, b1, w2, b2)


@fg.op
def gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    g = x @ gate.mT
    return (g * fg.sigmoid(g) * (x @ up.mT)) @ down.mT


def torch_swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return products_in_torch.gated(F.silu, x, gate, None, up, None) @ down.mT


@fg.op
def attention(q: Any, k: Any, v: Any) -> Any:
    return fg.softmax((q @ k.mT) * 0.5, -1) @ v


def torch_attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax((q @ k.mT) * 0.5, -1) @ v


@fg.op
def norm_linear(x: Any, scale: Any, w: Any) -> Any:
    mean = fg.mean(x, -1, keepdims=True)
    rstd = fg.rsqrt(fg.var(x, -1, 0, keepdims=True) + 1e-5)
    return fg.linear((x - mean) * rstd * scale, w)


def torch_norm_linear(x: Any, scale: Any, w: Any) -> Any:
    return F.linear(F.layer_norm(x, x.shape[-1:], scale), w)


@fg.op
def twice(x: Any, w: Any) -> Any:
    return x @ w @ w + x


@fg.op
def with_product(x: Any, w: Any) -> Any:
    y = x @ w
    return y, fg.tanh(y), fg.logsumexp(y, -1)


def torch_with_product(x: Any, w: Any) -> Any:
    return x @ w, torch.tanh(x @ w), torch.logsumexp(x @ w, -1)


@fg.op
def exp_product(x: Any, w: Any) -> Any:
    return fg.exp(x @ w)


def torch_exp_product(x: Any, w: Any) -> Any:
    return torch.exp(x @ w)


@fg.op
def product_twice(x: Any, w: Any) -> Any:
    return x @ w * fg.tanh(x @ w)


@fg.op
def transposed(x: Any, w: Any) -> Any:
    return fg.tanh(x.mT @ w)


@fg.op
def self_attention(x: Any, wq: Any, wk: Any) -> Any:
    return fg.softmax((x @ wq) @ (x @ wk).mT, -1) @ x + x


def torch_self_attention(x: Any, wq: Any, wk: Any) -> Any:
    return torch.softmax((x @ wq) @ (x @ wk).mT, -1) @ x + x


@fg.op
def gram(x: Any, mask: Any) -> Any:
    return x @ x.mT * mask


def heads(*shape: int) -> torch.Tensor:
    """[batch, heads, length, size] as attention has it: a transposed view."""
    return halved(*shape).transpose(1, 2)


CASES: dict[str, tuple[Any, Any, list[torch.Tensor]]] = {
    "mlp": (mlp, torch_residual, [halved(3, 4), halved(5, 4), halved(5), halved(4, 5), halved(4)]),
    "mlp of rank 3": (mlp, torch_residual, [halved(2, 3, 4), halved(5, 4), halved(5), halved(4, 5), halved(4)]),
    "mlp of one sequence": (mlp, torch_residual, [halved(1, 3, 4), halved(5, 4), halved(5), halved(4, 5), halved(4)]),
    "mlp of one row": (mlp, torch_residual, [halved(1, 4), halved(5, 4), halved(5), halved(4, 5), halved(4)]),
    "gated": (gated, torch_swiglu, [halved(3, 4), halved(6, 4), halved(6, 4), halved(4, 6)]),
    "attention": (attention, torch_attention, [heads(2, 3, 2, 4), heads(2, 5, 2, 4), heads(2, 5, 2, 6)]),
    "norm in front": (norm_linear, torch_norm_linear, [halved(3, 4), halved(4), halved(5, 4)]),
    "twice the same": (twice, lambda x, w: x @ w @ w + x, [halved(3, 4), halved(4, 4)]),
    "the product too": (with_product, torch_with_product, [halved(3, 4), halved(4, 5)]),
    "left transposed": (transposed, lambda x, w: torch.tanh(x.mT @ w), [halved(3, 4), halved(3, 5)]),
    "batch on the right": (exp_product, torch_exp_product, [halved(3, 4), halved(2, 4, 5)]),
    "batches that broadcast": (exp_product, torch_exp_product, [halved(2, 1, 3, 4), halved(5, 4, 2)]),
    "an outer product": (exp_product, torch_exp_product, [halved(3, 1), halved(1, 5)]),
    "an outer product, twice": (product_twice, lambda x, w: x @ w * torch.tanh(x @ w), [halved(3, 1), halved(1, 5)]),
    "vectors": (exp_product, torch_exp_product, [halved(4), halved(4)]),
    "a column": (exp_product, torch_exp_product, [halved(3, 4), halved(4)]),
    "a tensor against itself": (self_attention, torch_self_attention, [halved(2, 3, 4), halved(4, 2), halved(4, 2)]),
    "rows times rows": (gram, lambda x, mask: x @ x.mT * mask, [halved(3, 4), halved(3, 3)]),
    "a row": (exp_product, torch_exp_product, [halved(4), halved(2, 4, 5)]),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name: str) -> None:
    function, expected, arguments = CASES[name]
    own = [a.detach().requires_grad_() for a in arguments]
    theirs = [a.detach().requires_grad_() for a in arguments]
    mine, wanted = function(*own), expected(*theirs)
    mine = mine if isinstance(mine, tuple) else (mine,)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    torch.testing.assert_close(mine, wanted)
    cotangents = [torch.randn_like(w) for w in wanted]
    found = torch.autograd.grad(mine, own, cotangents)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, theirs, cotangents))


@pytest.mark.parametrize("name", CASES)
def test_derivatives_by_finite_differences(name: str) -> None:
    function, _, arguments = CASES[name]
    own = [a.detach().clone().requires_grad_() for a in arguments]
    assert torch.autograd.gradcheck(function, own, check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, own)


@pytest.mark.parametrize("name", ["mlp of rank 3", "attention", "norm in front"])
def test_the_reference_is_the_declaration(name: str) -> None:
    function, expected, arguments = CASES[name]
    op = function.trace(*arguments)
    given = dict(zip([o.name for o in op.operands], arguments, strict=True))
    torch.testing.assert_close(reference(op, given), [expected(*arguments)])


def steps(op: Op) -> list[str]:
    """What each step is: a product, or the results of an op."""
    whole = chain(op)
    assert whole is not None
    return ["@" if isinstance(s, Product) else " ".join(o.name for o in s.outputs) for s in whole.steps]


def passes(function: Any, arguments: list[torch.Tensor]) -> list[list[str]]:
    """The steps of the forward that saves, and of the backward."""
    from fusegen.inspect import passes as inspect

    found = inspect.passes(function, tuple(a.requires_grad_() for a in arguments), {}, "backward")
    return [steps(item.op) for item in found]


def test_a_linear_layer_with_activation_is_its_products_and_a_pass_each() -> None:
    @fg.op
    def layer(x: Any, w: Any, b: Any) -> Any:
        return fg.tanh(fg.linear(x, w, b))

    forward, backward = passes(layer, [halved(3, 4), halved(5, 4), halved(5)])
    assert forward == ["@", "out"]
    assert backward[1:] == ["@", "@"] and set(backward[0].split()) >= {"d_b"}


def test_two_layers_take_no_further_pass() -> None:
    forward, backward = passes(mlp, CASES["mlp"][2])
    assert len(forward) == 4 and forward.count("@") == 2
    assert len(backward) == 7 and backward.count("@") == 4


def test_products_keep_the_dtype_they_are_stored_in() -> None:
    x, w = torch.randn(3, 4, dtype=torch.bfloat16), torch.randn(4, 5, dtype=torch.bfloat16)
    op = exp_product.trace(x, w)
    assert [p.kind for p in products(op)] == ["dot"]
    torch.testing.assert_close(exp_product(x, w), torch.exp(x @ w))


def test_wrong_products_say_both_shapes() -> None:
    with pytest.raises(fg.ShapeError, match=r"(?s)x\[3, 4\] @ w\[5, 6\].*4 against 5"):
        exp_product(halved(3, 4), halved(5, 6))
    exp_product(halved(3, 4), halved(4, 6))
    with pytest.raises(fg.ShapeError, match="4 against 5"):  # the pattern is known by now
        exp_product(halved(3, 4), halved(5, 6))
    with pytest.raises(fg.DtypeError, match="float64"):
        exp_product(halved(3, 4), halved(4, 6).float())
    with pytest.raises(fg.DtypeError, match="floats"):
        exp_product(halved(3, 4).long(), halved(4, 6).long())


def test_a_tensor_meets_its_own_transpose() -> None:
    @fg.op
    def symmetric(x: Any) -> Any:
        return x @ x.mT + (x @ x.mT).mT

    x = halved(3, 4)
    torch.testing.assert_close(symmetric(x), 2 * x @ x.mT)


def contrastive(q: Any, k: Any) -> Any:
    return fg.logsumexp(q @ k.mT, 1) - fg.sum(q * k, 1)


def tied(x: Any, w: Any, b: Any) -> Any:
    return fg.linear(fg.linear(x, w, b) + b, w, b) @ w * b


def torchs_tied(x: Any, w: Any, b: Any) -> Any:
    return F.linear(F.linear(x, w, b) + b, w, b) @ w * b


@pytest.mark.parametrize("batch", [(), (2,)])
def test_factors_whose_axes_meet_behind_their_product(batch: tuple[int, ...]) -> None:
    # q and k meet element by element, so that their rows are one axis, and each other's rows in the product.
    arguments = [halved(*batch, 3, 4).requires_grad_() for _ in range(2)]
    if not batch:
        check_same(fg.op(contrastive), lambda q, k: torch.logsumexp(q @ k.mT, 1) - (q * k).sum(1), arguments)
    shapes = ((*batch, 3, 4), (4, 4), (4,))
    check_same(fg.op(tied), torchs_tied, [halved(*shape).requires_grad_() for shape in shapes])


def test_a_factor_meets_its_own_sum_along_another_axis() -> None:
    def mixed(q: Any, k: Any) -> Any:
        return torch.logsumexp(q @ k.mT, 1) - q * q.sum(0)[:, None]

    check_same(fg.op(mixed), mixed, [halved(4, 4).requires_grad_() for _ in range(2)])


def test_what_meets_rows_times_rows_must_fit() -> None:
    gram(halved(5, 4), halved(5, 5))
    for mask in (halved(5, 3), halved(3, 5), halved(4, 4)):
        with pytest.raises(fg.ShapeError, match="size 5 against"):
            gram(halved(5, 4), mask)


@pytest.mark.cpu
def test_calls_like_an_earlier_one_run_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.module() is None:
        pytest.skip("no native call path")
    ran: list[str] = []
    launch = ChainRunner.launch
    monkeypatch.setattr(ChainRunner, "launch", lambda self, *args: (ran.append(self.op.label), launch(self, *args))[1])
    op = fg.FusedOp(mlp.declaration)
    arguments = [a.detach().float().requires_grad_() for a in CASES["mlp of rank 3"][2]]
    theirs = [a.detach().requires_grad_() for a in arguments]
    for _ in range(4):
        result, expected = op(*arguments), torch_residual(*theirs)
        torch.testing.assert_close(result, expected)
        cotangent = torch.randn_like(expected)
        found = torch.autograd.grad(result, arguments, cotangent)
        torch.testing.assert_close(found, torch.autograd.grad(expected, theirs, cotangent))
    assert ran == ["forward", "backward", "backward"]  # a native node's first backward teaches it the others


def test_what_lies_between_steps_goes_when_it_is_no_longer_read() -> None:
    runner = ChainRunner(attention.trace(*CASES["attention"][2]))
    infos = {name: torch_framework().info(name, t) for name, t in zip("qkv", CASES["attention"][2], strict=True)}
    plan = runner.plan_for(infos, None)
    assert [names for names in plan.freed if names] and plan.freed[0] == ()
    plan.build_native_program()
    assert plan.program is not None and all(0 <= t.first < t.last for t in plan.intermediates)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        (lambda h: fg.ops.relu(h), "relu"),
        (lambda h: fg.where(h < 0, 0.0, h), "relu"),
        (lambda h: fg.where(h > 0, h, 0.0), "where(sum > 0, sum, 0)"),  # of NaN it makes 0
        (lambda h: fg.ops.relu6(h), "where(sum <= 0, 0, where(sum >= 6, 6, sum))"),
        (lambda h: fg.minimum(fg.maximum(h, -50.0), 50.0), "minimum(maximum(sum, -50), 50)"),
        (lambda h: fg.where(h != h, 0.0, h), "where(sum != sum, 0, sum)"),
        (lambda h: fg.where(fg.index(h, -1) > 99, 0.0, h), None),
        (lambda h: 0.5 * h * (1 + fg.tanh(0.7978845608028654 * (h + 0.044715 * h * h * h))), "gelu"),
        (lambda h: fg.ops.gelu(h, approximate="tanh"), "gelu"),
        (lambda h: h * fg.sigmoid(h), "sum * sigmoid(sum)"),
        (lambda h: fg.maximum(h, 0.1), "maximum(sum, 0.1)"),
        (lambda h: h, "bias"),
        (lambda h: h + 1e-6, "sum + 1e-06"),
    ],
)
def test_the_librarys_epilogues_are_known_by_what_they_compute(spelled: Any, name: str | None) -> None:
    op = fg.op(lambda x, w, b: spelled(fg.linear(x, w, b)), name="layer")
    whole = chain(op.trace(halved(3, 4), halved(5, 4), halved(5)))
    assert whole is not None
    product, part = whole.steps
    assert isinstance(product, Product) and isinstance(part, Op)
    found = match_epilogue(product, part)
    assert (found and found.activation) == name


def test_relu_keeps_its_result_and_not_the_product() -> None:
    op = fg.op(lambda x, w, b: fg.ops.relu(fg.linear(x, w, b)), name="layer")
    arguments = [halved(3, 4), halved(5, 4), halved(5)]
    training = train(op.trace(*arguments), ("x", "w", "b"))
    assert [o.name for o in training.forward.outputs] == ["out"]
    x, w, b = arguments
    b[0] = torch.nan  # asks for no gradient where torch.relu has none
    own, theirs = ([a.detach().requires_grad_() for a in (x, w, b)] for _ in range(2))
    result, expected = op(*own), torch.relu(F.linear(*theirs))
    torch.testing.assert_close(result, expected, equal_nan=True)
    cotangent = torch.randn_like(expected)
    found = torch.autograd.grad(result, own, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(expected, theirs, cotangent), equal_nan=True)


def test_a_softmax_behind_a_product_keeps_its_result_and_not_the_product() -> None:
    op = fg.op(lambda q, k, mask: fg.softmax((q @ k.mT) * 0.125 + mask, -1), name="scores")
    mask = halved(3, 4)
    mask[1, 2] = -torch.inf
    arguments = [halved(2, 3, 5), halved(2, 4, 5), mask]
    training = train(op.trace(*arguments), ("q", "k", "mask"))
    assert [o.name for o in training.forward.outputs] == ["out"]
    own, theirs = ([a.detach().requires_grad_() for a in arguments] for _ in range(2))
    result, expected = op(*own), torch.softmax(theirs[0] @ theirs[1].mT * 0.125 + theirs[2], -1)
    torch.testing.assert_close(result, expected)
    cotangent = torch.randn_like(expected)
    found = torch.autograd.grad(result, own, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(expected, theirs, cotangent))


def test_a_bias_alone_is_added_by_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of halves any bias is (tests/matmul/test_product_biases.py)."""
    dtype = torch.float64
    added: list[str] = []
    run = autotuned_step.by_torch
    monkeypatch.setattr(
        autotuned_step, "by_torch", lambda closed, given: (added.append(closed.activation), run(closed, given))
    )
    op = fg.op(lambda x, w, b: fg.linear(x, w, b), name="layer")
    x, w, b = (a.to(dtype) for a in (halved(2, 3, 4), halved(5, 4), halved(5)))
    torch.testing.assert_close(op(x, w, b), F.linear(x, w, b))
    assert added == ["bias"]
    wide = halved(5, 2).to(dtype)[:, 0]  # not side by side: a kernel adds it
    torch.testing.assert_close(op(x, w, wide), F.linear(x, w, wide))
    assert added == ["bias"]


@pytest.mark.cpu
def test_show_says_which_ways_have_been_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = fg.op(lambda x, w, b: fg.ops.relu(fg.linear(x, w, b)), name="layer")
    op = layer.trace(halved(3, 4), halved(5, 4), halved(5))
    sizes = dict(zip([axis for o in op.operands for axis in o.shape], [3, 4, 5, 4, 5], strict=True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert list(libraries.measurements(op, sizes).values()) == ["not measured on this machine: torch sees no GPU"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "some GPU")
    assert "not measured yet" in "".join(libraries.measurements(op, sizes).values())
    relu, own = Epilogue("relu", "b"), libraries.Measured({libraries.OWN: 2.0, libraries.LIBRARY: 1.0})
    key = libraries.bucket("cuda:0", "float64", (3, 5, 4), relu)
    monkeypatch.setitem(libraries._known, key, own)
    told = "product and kernel 2.0 us, cuBLASLt's epilogue 1.0 us; best: cuBLASLt's epilogue"
    assert told in "".join(libraries.measurements(op, sizes).values())
    given = libraries.Factors(None, None, None, None, None)
    assert libraries.choose(key, relu, given, libraries.LIBRARIES[:1], lambda: None) is libraries.LIBRARIES[0]
    assert libraries.choose(key, relu, given, [], lambda: None) is None


def check_plain(function: Any, expected: Any, *arguments: torch.Tensor) -> None:
    for _ in range(2):  # the second time by the plan that the first one recorded
        torch.testing.assert_close(function(*arguments), expected(*arguments))


def test_a_bias_that_lies_otherwise_is_added_by_a_kernel() -> None:
    turned = fg.op(lambda x, w, b: (x @ w).mT + b, name="turned")
    for columns in (4, 5):
        check_plain(turned, lambda x, w, b: (x @ w).mT + b, halved(4, 3), halved(3, columns), halved(4))
    added = fg.op(lambda x, w, b: x @ w + b, name="added")
    torchs = lambda x, w, b: x @ w + b  # noqa: E731
    check_plain(added, torchs, halved(3), halved(3, 2, 5).permute(1, 0, 2), halved(5))
    check_plain(added, torchs, halved(2, 4, 3), halved(2, 3, 5), halved(5))
    check_plain(added, torchs, halved(4, 3).half(), halved(3, 5).half(), halved(5).float())
    check_plain(added, torchs, halved(4, 3).float(), halved(3, 5).float(), halved(5))
    with torch.device("meta"):
        check_plain(added, torchs, *CASES["an outer product"][2], random_on_cpu(5))


def random_on_cpu(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, device="cpu")


def test_empty_results_are_not_taken_for_arguments() -> None:
    out = torch.empty(0, 4)
    assert fg.ops.matmul(torch.randn(0, 3), torch.randn(3, 4), out=out) is out


def test_out_beside_options_that_are_no_tensors() -> None:
    x, w, b, out = halved(3, 4), halved(5, 4), halved(5), torch.zeros(3, 5, dtype=torch.float64)
    assert fg.ops.linear_gelu(x, w, b, approximate="tanh", out=out) is out
    torch.testing.assert_close(out, F.gelu(F.linear(x, w, b), approximate="tanh"))
    square = halved(3, 3)
    with pytest.raises(fg.ShapeError, match="argument weight, which a later step may still read"):
        fg.ops.linear_gelu(halved(3, 3), square, approximate="tanh", out=square)


def test_a_result_with_an_axis_of_its_own_is_shown() -> None:
    assert "gram" in gram.show(halved(3, 4), halved(3, 3)) and "@" in gram.show(halved(3, 4), halved(3, 3))


@pytest.mark.cpu
def test_the_precision_of_float32_products_is_torchs_switch_at_each_call() -> None:
    """On CPUs that have bfloat16 products, "medium" uses them; elsewhere nothing changes, for torch neither."""
    a, b, bias = torch.randn(64, 256), torch.randn(256, 64), torch.randn(64)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "medium", "highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            for _ in range(2):
                assert torch.equal(fg.ops.matmul(a, b), torch.mm(a, b))
                assert torch.equal(fg.ops.linear(a, b.mT, bias), torch.addmm(bias, a, b))
    finally:
        torch.set_float32_matmul_precision(before)
