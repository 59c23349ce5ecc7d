"""fg.accumulate_grad: products added to .grad where they are all that is added, and torch's own way everywhere else."""

import contextlib
import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import fusegen as fg
from fusegen.fuse.products import chain
from fusegen.native import module as native
from fusegen.pytorch.autograd import accumulate_grad as accumulate
from tests.support.call_paths import DEVICE

pytestmark = pytest.mark.native

pytest_plugins = ("tests.support.call_paths",)


@pytest.fixture(autouse=True)
def _engine() -> None:
    """The native module alone knows what torch's engine does with a gradient."""
    if native.awaited() is None:
        pytest.skip(f"no native call path: {native.problem()}")


@fg.op
def plain(x: Any, w: Any) -> Any:
    return x @ w


@fg.op
def sum_of_two(x: Any, v: Any, w: Any) -> Any:
    return x @ v + fg.tanh(x) @ w


@fg.op
def biased(x: Any, w: Any, b: Any) -> Any:
    return fg.tanh(fg.linear(x, w, b))


def halves(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.bfloat16, device=DEVICE)


# The gradient of w is 16 * 16 + 1 = 257, which bfloat16 rounds to 256. On top of -256 that is 1 where the product is
# added, and 0 where it is rounded first: torch's way.
ADDED, TORCHS = 1.0, 0.0


def leaf() -> torch.Tensor:
    w = halves([1.0]).requires_grad_()
    w.grad = halves([-256.0])
    return w


def forward(op: Any, w: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = op(halves([16.0], [1.0]), w)
    return result


def backward(op: Any, w: torch.Tensor, **options: Any) -> float:
    result = forward(op, w)
    with fg.accumulate_grad():
        result.backward(halves([16.0], [1.0]), **options)
    assert w.grad is not None
    return float(w.grad.item())


def test_a_product_is_added_to_what_is_there(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    op, ran = fresh(plain), []
    run = accumulate.run_adding
    monkeypatch.setattr(accumulate, "run_adding", lambda *args, **names: (ran.append(1), run(*args, **names))[1])
    for _ in range(4):  # the slow path, then the recorded plan
        w = leaf()
        grad = w.grad
        assert grad is not None
        version = grad._version
        assert backward(op, w) == ADDED
        assert w.grad is grad and grad._version == version + 1
        w = leaf()
        forward(op, w).backward(halves([16.0], [1.0]))
        assert w.grad is not None and w.grad.item() == TORCHS, "nobody asked for it"
    assert len(ran) in (4, 2), "natively from the third call on"


def test_the_context_ends_and_nests() -> None:
    with fg.accumulate_grad(), contextlib.suppress(ZeroDivisionError), fg.accumulate_grad():
        raise ZeroDivisionError
    w = leaf()
    forward(plain, w).backward(halves([16.0], [1.0]))
    assert w.grad is not None and w.grad.item() == TORCHS
    with fg.accumulate_grad():
        with fg.accumulate_grad():
            pass
        assert backward(plain, leaf()) == ADDED


def on_the_leaf(w: torch.Tensor, seen: list[Any]) -> None:
    w.register_hook(lambda grad: seen.append(grad.item()))


def behind_the_leaf(w: torch.Tensor, seen: list[Any]) -> None:
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append(256.0))


def of_several(w: torch.Tensor, seen: list[Any]) -> None:
    torch.autograd.graph.register_multi_grad_hook([w], lambda grad: seen.append(grad.item()), mode="any")


def node_of(w: torch.Tensor) -> Any:
    return torch.autograd.graph.get_gradient_edge(w).node


def before_the_node(w: torch.Tensor, seen: list[Any]) -> Any:
    node = node_of(w)
    node.register_prehook(lambda grads: seen.append(grads[0].item()))
    return node


def behind_the_node(w: torch.Tensor, seen: list[Any]) -> Any:
    """As Megatron's and FSDP's."""
    node = node_of(w)
    node.register_hook(lambda _, grads: seen.append(grads[0].item()))
    return node


@pytest.mark.parametrize("hook", [on_the_leaf, behind_the_leaf, of_several, before_the_node, behind_the_node])
def test_hooks_see_the_gradient(hook: Callable[..., Any], fresh: Any) -> None:
    op = fresh(plain)
    for _ in range(3):
        w, seen = leaf(), list[Any]()
        alive = hook(w, seen)  # a node lives as long as somebody refers to it
        assert backward(op, w) == TORCHS and seen == [256.0]
        del alive
        assert backward(op, leaf()) == ADDED


def test_a_gradient_that_is_asked_for_is_handed_out(fresh: Any) -> None:
    op = fresh(plain)
    for _ in range(3):
        w = leaf()
        x = halves([16.0], [1.0]).requires_grad_()
        for asked in ([w], [x], [x, w]):
            result = op(x, w)
            with fg.accumulate_grad():
                found = torch.autograd.grad(result, asked, halves([16.0], [1.0]), retain_graph=True)
            assert w.grad is not None and w.grad.item() == -256.0 and x.grad is None
            assert found[-1].shape == asked[-1].shape and (asked[-1] is x or found[-1].item() == 256.0)
        with fg.accumulate_grad():
            result.backward(halves([16.0], [1.0]), retain_graph=True, inputs=[x])
            assert w.grad.item() == -256.0
            result.backward(halves([16.0], [1.0]), inputs=[w])
            assert w.grad.item() == ADDED


def test_where_there_is_nothing_to_add_to(fresh: Any) -> None:
    op = fresh(plain)
    for _ in range(3):
        w = leaf()
        w.grad = None
        assert backward(op, w) == 256.0
        assert w.grad is not None
        w = leaf()
        assert w.grad is not None
        w.grad.requires_grad_()
        assert backward(op, w) == TORCHS
        w = leaf()
        assert backward(op, w, create_graph=True) == TORCHS
        w = leaf()
        assert backward(lambda x, w, op=op: op(x, w * 1.0), w) == TORCHS, "not a leaf's"


def test_a_gradient_that_overlaps_itself_or_is_read(fresh: Any) -> None:
    op = fresh(plain)
    for _ in range(3):
        w = torch.ones(2, 2, device=DEVICE, requires_grad=True)
        grad = torch.ones(2, 2, device=DEVICE)
        w.grad = grad
        x = torch.arange(4.0, device=DEVICE).reshape(2, 2)
        result = op(x, w)
        with fg.accumulate_grad():
            result.backward(grad)  # reads what would be added to
        torch.testing.assert_close(w.grad, 1 + x.mT @ torch.ones_like(x))
        w.grad = torch.ones(4, 4, device=DEVICE)[::2, ::2]  # with holes: torch's way
        result = op(x, w)
        with fg.accumulate_grad():
            result.backward(torch.ones_like(x))
        torch.testing.assert_close(w.grad, 1 + x.mT @ torch.ones_like(x))
        w.grad = torch.ones(2, 2, device=DEVICE).mT
        result = op(x, w)
        with fg.accumulate_grad():
            result.backward(torch.ones_like(x))
        torch.testing.assert_close(w.grad, 1 + x.mT @ torch.ones_like(x))


class Kept(torch.autograd.Function):
    """A user's function, which keeps something under the name that torch's own node has for its leaf."""

    @staticmethod
    def forward(ctx: Any, x: Any, kept: Any) -> Any:
        ctx.variable = kept
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


@pytest.mark.parametrize("kind", ["a leaf", "no leaf", "a name", "nothing"])
def test_a_node_of_a_users_own_is_no_leaf(kind: str, fresh: Any) -> None:
    """What it keeps under torch's names is its own: a node is asked for its type, never for an attribute."""
    op, other = fresh(plain), leaf()
    kept = {"a leaf": other, "no leaf": torch.ones(1, 1, device=DEVICE), "a name": "a name", "nothing": None}[kind]
    for _ in range(4):
        w = leaf()
        other.grad = torch.zeros_like(other)
        assert backward(lambda x, w: op(x, Kept.apply(w, kept)), w) == TORCHS
        assert other.grad.item() == 0
        assert backward(op, leaf()) == ADDED


def test_a_leaf_that_is_none_any_more(fresh: Any) -> None:
    """torch drops the gradient of what requires none since, and refuses that of what another node has made since."""
    op = fresh(plain)
    for _ in range(4):
        w = leaf()
        result = forward(op, w)
        w.requires_grad_(False)
        with fg.accumulate_grad():
            result.backward(halves([16.0], [1.0]))
        assert w.grad is not None and w.grad.item() == -256.0
        w = leaf()
        result = forward(op, w)
        w.requires_grad_(False)
        w.mul_(torch.ones_like(w).requires_grad_())
        assert not w.is_leaf
        with fg.accumulate_grad(), pytest.raises(RuntimeError, match="moved into the graph interior"):
            result.backward(halves([16.0], [1.0]))
        assert backward(op, leaf()) == ADDED


def step(model: Callable[..., Any], batches: list[torch.Tensor], leaves: list[torch.Tensor]) -> None:
    for x in batches:
        result = model(x, *leaves)
        with fg.accumulate_grad():
            torch.autograd.backward(result, torch.ones_like(result).cumsum(0), retain_graph=len(x) == 3)
            if len(x) == 3:
                torch.autograd.backward(result, torch.ones_like(result))


MODELS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear": (lambda ops, x, w, b: ops.biased(x, w, b), [(4, 4), (4,)]),
    "two of one weight": (lambda ops, x, w, b: ops.biased(ops.biased(x, w, b), w, b), [(4, 4), (4,)]),
    "one weight twice in an op": (lambda ops, x, w: ops.sum_of_two(x, w, w), [(4, 4)]),
    "a sum of two": (lambda ops, x, v, w: ops.sum_of_two(x, v, w), [(4, 5), (4, 5)]),
    "also by torch": (lambda ops, x, w: ops.plain(x, w) + torch.sin(x) @ w, [(4, 4)]),
    "checkpoint": (lambda ops, x, w: checkpoint(ops.plain, x, w, use_reentrant=False), [(4, 4)]),
    "a reentrant checkpoint": (lambda ops, x, w: checkpoint(ops.plain, x * w.sum(), w, use_reentrant=True), [(4, 4)]),
}


class Torchs:
    biased = staticmethod(lambda x, w, b: torch.tanh(torch.nn.functional.linear(x, w, b)))
    sum_of_two = staticmethod(lambda x, v, w: x @ v + torch.tanh(x) @ w)
    plain = staticmethod(torch.matmul)


@pytest.mark.parametrize("name", MODELS)
def test_sums_over_batches_are_torchs(name: str, fresh: Any) -> None:
    model, shapes = MODELS[name]
    ours: Any = type("Ours", (), {op.declaration.name: staticmethod(fresh(op)) for op in (plain, sum_of_two, biased)})
    leaves = [torch.randn(shape, dtype=torch.float64, device=DEVICE).requires_grad_() for shape in shapes]
    batches = [torch.randn(n, 4, dtype=torch.float64, device=DEVICE) for n in (2, 2, 3, 0, 2)]
    expected = copy.deepcopy(leaves)
    step(lambda *arguments: model(ours, *arguments), batches, leaves)
    step(lambda *arguments: model(Torchs, *arguments), batches, expected)
    torch.testing.assert_close([w.grad for w in leaves], [w.grad for w in expected])


def test_a_gradient_that_something_reads_is_no_place_to_add() -> None:
    @fg.op
    def both(x: Any, w: Any) -> Any:
        product = x @ w
        return product, product @ w

    x, w = torch.randn(3, 3), torch.randn(3, 3)
    whole = chain(both.trace(x, w))
    assert whole is not None and whole.summable == {"out_1"}
    rounded = chain(fg.op(lambda x, w: fg.cast(x @ w, fg.float64), name="wide").trace(x, w))
    assert rounded is not None and not rounded.summable


def test_threads_of_their_own_are_not_concerned() -> None:
    found: list[float] = []

    def work() -> None:
        w = leaf()
        forward(plain, w).backward(halves([16.0], [1.0]))
        assert w.grad is not None
        found.append(w.grad.item())

    with fg.accumulate_grad():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [TORCHS]


@pytest.mark.cpu
def test_distributed_data_parallel_reduces_whole_gradients(tmp_path: Any) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(halves([1.0]))

        def forward(self, x: torch.Tensor) -> Any:
            return plain(x, self.w)

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(Layer())
        for expected in (256.0, 512.0):  # rounded, reduced
            result = model(halves([16.0], [1.0]))
            with fg.accumulate_grad():
                result.backward(halves([16.0], [1.0]))
            assert model.module.w.grad.item() == expected
    finally:
        torch.distributed.destroy_process_group()


def test_autocast_compiled_code_and_no_native_path(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x, w: plain(x, w) * 1.0, backend="aot_eager", fullgraph=True)
    assert backward(compiled, leaf()) == TORCHS
    rounding = fg.FusedOp(replace(plain.declaration, autocast="half"))
    w = torch.ones(1, 1, device=DEVICE, requires_grad=True)
    w.grad = torch.full_like(w, -256.0)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert backward(lambda x, w: rounding(x.float(), w), w) == TORCHS, "a cast product, which a kernel finishes"
    monkeypatch.setattr(native, "awaited", lambda: None)
    assert backward(plain, leaf()) == TORCHS
