"""Ops as torch sees them: registered, traced without graph breaks, of any size, with gradients, under autocast."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

import fusegen as fg
from fusegen import ops
from fusegen.declare.op import Declaration
from fusegen.declare.value import plain_number
from fusegen.pytorch.library import dispatch, schema
from fusegen.pytorch.library import registry as library
from tools.opcheck import TESTS, check


@fg.op
def gate(x, y, scale: float = 2.0):
    """A user's op."""
    return scale * x * fg.sigmoid(y)


@fg.op
def both(x, y, *, mode: fg.Const = None):
    """Two results, and a constant that no schema can carry."""
    return (x + y, x - y) if mode is None else (x * y, x / y)


@fg.op
def round_ste(x):
    """Straight through: another gradient than the derived one."""
    return fg.round(x)


@round_ste.gradient
def _(d_out, x):
    return d_out


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def gradients(result: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    results = result if isinstance(result, tuple) else (result,)
    total = torch.stack([r.double().square().sum() for r in results]).sum()
    return list(torch.autograd.grad(total, leaves, materialize_grads=True, allow_unused=True))


def assert_same(function: Callable[..., Any], traced: Callable[..., Any], *leaves: torch.Tensor) -> None:
    expected, found = function(*leaves), traced(*leaves)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, list(leaves)), gradients(expected, list(leaves)))


def strides(results: Any) -> list[tuple[int, ...]]:
    return [r.stride() for r in (results if isinstance(results, tuple) else (results,))]


# -- opcheck ---------------------------------------------------------------------------------------------------------

# One of a kind; tools/opcheck.py checks them all.
KINDS = ["lerp", "gelu", "layer_norm", "batch_norm", "group_norm", "cross_entropy", "lstm_cell", "swiglu_packed",
         "argmax", "where", "linear_gelu", "mlp"]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_opcheck(name: str) -> None:
    found = check(name)
    assert {test: str(found[test]) for test in TESTS} == dict.fromkeys(TESTS, "SUCCESS")


def test_opcheck_of_a_users_op() -> None:
    x, y = leaf(3, 4), leaf(4)
    torch.library.opcheck(gate.overload(x, y), (x, y))
    torch.library.opcheck(gate.overload(x, y, 0.5), (x, y, 0.5))
    torch.library.opcheck(both.overload(x, y, mode="times"), (x, y), {"mode": "times"})
    torch.library.opcheck(round_ste.overload(x), (x,))


def test_opcheck_of_what_is_derived() -> None:
    """The backward op, as it stands in a graph, is an op like any other: with fake results and gradients of its own."""
    x, y = leaf(3, 4), leaf(4)
    graph = make_fx(lambda x, y: torch.autograd.grad(gate(x, y).sum(), (x, y)))(x, y).graph
    (node,) = [n for n in graph.nodes if "gate_backward" in str(n.target)]
    tensors, numbers, layout, text = node.args
    torch.library.opcheck(node.target, ([leaf(3, 4), leaf(4), leaf(3, 4)][: len(tensors)], numbers, layout, text))


# -- names and schemas -----------------------------------------------------------------------------------------------


def test_nothing_is_registered_before_it_is_needed(tmp_path: Path) -> None:
    """In a new process, which also loads an exported program, and ends: torch takes down what was registered."""

    class Block(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.sum(ops.softmax(x, 0), 1)

    torch.export.save(export(Block(), (torch.ones(2, 3),)), tmp_path / "block.pt2")
    code = (
        "import sys, fusegen, fusegen.ops; assert 'torch' not in sys.modules\n"
        "import torch; assert not hasattr(torch.ops.fusegen, 'lerp')\n"
        "fusegen.ops.lerp(torch.ones(2), torch.ones(2), 0.5); assert not hasattr(torch.ops.fusegen, 'lerp')\n"
        "fusegen.register(); assert 'torch._dynamo' not in sys.modules\n"
        "print(torch.ops.fusegen.lerp.default._schema, torch.ops.fusegen.lerp.overloads())\n"
        "x = torch.ones(2); [fusegen.ops.softmax.overload(x, dim) for dim in (None, True)]\n"
        "print(torch.export.load(sys.argv[1]).module()(torch.ones(2, 3)).tolist())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "block.pt2")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    schema, result = run.stdout.splitlines()
    text = 'fusegen::lerp(Tensor input, Tensor end, float weight, *, str _identity="") -> Tensor'
    assert schema == f"{text} ['default', 'weight_Tensor']"
    assert result == "[1.5, 1.5]"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: ops.lerp.overload(x, x, 0.5), "lerp(Tensor input, Tensor end, float weight) -> Tensor"),
        (lambda x: ops.lerp.overload(x, x, x), "lerp.weight_Tensor(Tensor input, Tensor end, Tensor weight) -> Tensor"),
        (
            lambda x: ops.softplus.overload(x, beta=2),
            "softplus(Tensor input, float beta=1., float threshold=20.) -> Tensor",
        ),
        (
            lambda x: ops.sum.overload(x, -1),
            "sum.dim_int(Tensor input, SymInt dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        ),
        (
            lambda x: ops.lstm_cell.overload(x, x),
            "lstm_cell(Tensor gates, Tensor cell, Tensor? bias=None) -> (Tensor, Tensor)",
        ),
        (lambda x: ops.relu.overload(x, inplace=True), "relu(Tensor input) -> Tensor"),
    ],
)  # fmt: skip
def test_schemas(call: Callable[[torch.Tensor], Any], expected: str) -> None:
    found = str(call(torch.ones(2, 2))._schema)
    expected = re.sub(r"\) ->", ', str _identity="") ->' if "*" in expected else ', *, str _identity="") ->', expected)
    assert found.removeprefix("fusegen::") == expected or found == expected


def test_ops_of_one_name_in_two_modules() -> None:
    def make(module: str, factor: float) -> Any:
        namespace: dict[str, Any] = {"__name__": module, "fg": fg}
        exec(f"@fg.op\ndef scaled(x):\n    return x * {factor}", namespace)
        return namespace["scaled"]

    one, two, again = make("first.layers", 2.0), make("second", 3.0), make("second", 4.0)
    x = torch.ones(2)
    names = [op.overload(x).name() for op in (one, two, again)]
    assert names == ["fusegen::first_layers__scaled", "fusegen::second__scaled", "fusegen::second__scaled_2"]
    compiled = torch.compile(lambda x: one(x) + two(x) + again(x), backend="aot_eager", fullgraph=True)
    assert compiled(x).tolist() == [9.0, 9.0]


def test_constants_that_no_schema_carries_are_part_of_the_overload() -> None:
    x = torch.ones(2)
    plain, times = both.overload(x, x), both.overload(x, x, mode=("times", None))
    assert times.name() == f"{plain.name()}_mode_is_times_None"
    compiled = torch.compile(lambda x: both(x, x, mode=("times", None))[0] + both(x, x)[0], backend="eager")
    assert compiled(2 * x).tolist() == [8.0, 8.0]


def test_the_number_of_results_must_be_known() -> None:
    def pair(x: Any) -> Any:
        both = (x, x + 1)
        return both

    op = fg.op(pair)
    with pytest.raises(fg.DeclarationError, match=r"a tuple of 2\n.*\n  fix:      say it: `-> tuple\[fg.Tensor"):
        op.overload(torch.ones(2))(torch.ones(2))


def test_results_are_counted_without_running_anything() -> None:
    declared = fg.op(lambda x: (x, x, x)).declaration
    assert schema.result_count(declared) == 3
    assert schema.result_count(ops.lerp.declaration) == 0
    assert schema.result_count(ops.batch_norm.declaration) == schema.MANY


# -- torch.compile ---------------------------------------------------------------------------------------------------


def test_compile_without_graph_breaks_or_recompiles() -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, cell = ops.lstm_cell(ops.layer_norm(gate(x, w), x.shape[-1:], w, w), x[:, : x.shape[1] // 4])
        return ops.lerp(hidden, cell, 0.3), ops.sum(x, -1), both(x, w)[1]

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, backend=counter, fullgraph=True, dynamic=True)
    assert_same(block, compiled, leaf(3, 8), leaf(8))
    first = counter.frame_count
    for rows, columns in ((5, 8), (6, 12), (7, 16)):
        assert_same(block, compiled, leaf(rows, columns), leaf(columns))
    assert counter.frame_count == first
    assert_same(block, compiled, leaf(1, 8), leaf(8))  # a size of 1 is another pattern
    assert counter.frame_count == first + 1


def test_compile_with_inductor() -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.softmax(ops.gelu(x * 2) + w, -1).t() * 3

    assert_same(block, torch.compile(block, fullgraph=True), leaf(3, 8), leaf(8))


def test_compile_with_numpys_numbers() -> None:
    """They change from call to call without a compilation, which Python's do not."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, by: ops.lerp(x, 3 * x, by), backend=counter, fullgraph=True)
    x = torch.ones(2)
    for by in (0.25, 0.5, 1.0):
        assert compiled(x, np.float32(by)).tolist() == [1 + 2 * by] * 2
    assert counter.frame_count == 1
    assert compiled(x.half(), np.float64(0.5)).dtype == torch.float16
    graph = make_fx(lambda x: gate(x, x, np.float32(0.5)))(x).graph
    assert [n.args[2] for n in graph.nodes if "fusegen" in str(n.target)] == [0.5]


@fg.op
def commutator_and_trace(a, b):  # type: ignore[no-untyped-def]
    product = fg.matmul(fg.transpose(a, 0, 1), b)
    on_diagonal = fg.where(fg.index(product, 0) == fg.index(product, 1), product, 0.0)
    return fg.sum(fg.matmul(a, b) - fg.matmul(b, a)) + fg.sum(on_diagonal)


def test_compile_a_gradient_that_asks_for_positions_along_a_products_own_axis() -> None:
    """No tensor that the gradient reads has the axis of the rows of a.T, as products name it: its size is told."""
    assert_same(
        commutator_and_trace, torch.compile(commutator_and_trace, backend="aot_eager", fullgraph=True),
        leaf(4, 4), leaf(4, 4),
    )  # fmt: skip


def test_compile_what_is_written_in_place() -> None:
    def norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        y = ops.batch_norm(x, mean, var, training=True)
        ops.relu(y, inplace=True)
        return ops.lerp(y, x, 0.5, out=torch.empty_like(y))

    x = torch.randn(5, 3)
    ours, theirs = [torch.zeros(3), torch.ones(3)], [torch.zeros(3), torch.ones(3)]
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, *ours), norm(x, *theirs))
    torch.testing.assert_close(ours, theirs)
    assert ours[0].abs().sum() > 0


@pytest.mark.parametrize("traced", [plain_number, Declaration.bind, dispatch.call, dispatch.resolve, dispatch.into])
def test_what_dynamo_traces_reads_no_dictionary_that_grows(traced: Callable[..., Any]) -> None:
    """Dynamo goes through ``sys.modules`` where traced code reads it, while its own imports add to it: now and then."""
    assert "modules" not in traced.__code__.co_names


def test_compile_says_what_is_wrong() -> None:
    compiled = torch.compile(lambda x: ops.gelu(x), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"gelu\\n  given:    int64\\n  expected: a float dtype"):
        compiled(torch.ones(2, dtype=torch.int64))
    mismatched = torch.compile(lambda x, y: gate(x, y), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="dimension 0 of x of size 3"):
        mismatched(torch.ones(3), torch.ones(4))
    out = torch.compile(lambda x, y: gate(x, x, out=y), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"expected: torch.float32 of shape \[3\]"):
        out(torch.ones(3), torch.ones(3, dtype=torch.float64))


def test_a_graph_of_an_earlier_declaration_is_refused() -> None:
    x = leaf(3)
    graph = make_fx(lambda x: torch.autograd.grad(gate(x, x).sum(), x))(x).graph
    (node,) = [n for n in graph.nodes if "gate_backward" in str(n.target)]
    tensors, numbers, layout, text = node.args
    with pytest.raises(fg.DeclarationError, match=r"a graph of an earlier declaration.*\n.*\n.*compile cache"):
        node.target([x] * len(tensors), numbers, layout, text.replace(text.rpartition(", ")[2], "1]"))


# -- export, make_fx, fake tensors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_a_dynamic_size(strict: bool) -> None:
    class Block(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.softmax(ops.lerp(x, x * 2, 0.25), -1)

    program = export(Block(), (torch.randn(4, 6),), dynamic_shapes=({0: Dim("rows", min=2)},), strict=strict)
    called = [str(node.target) for node in program.graph.nodes if "fusegen" in str(node.target)]
    assert called == ["fusegen.lerp.default", "fusegen.softmax.default"]
    x = torch.randn(9, 6)
    torch.testing.assert_close(program.module()(x), Block()(x))


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_make_fx_through_two_derivatives(mode: str) -> None:
    def twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (first,) = torch.autograd.grad(gate(x, y).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, y))

    x, y = leaf(3, 4), leaf(4)
    graph = make_fx(twice, tracing_mode=mode)(x, y)
    names = [str(node.target).rpartition("__")[2] for node in graph.graph.nodes if "gate" in str(node.target)]
    assert names == ["gate_forward.default"] * 2 + ["gate_backward.default"] * 2
    if mode == "symbolic":
        x, y = leaf(5, 6), leaf(6)
    torch.testing.assert_close(graph(x, y), twice(x, y))


LAYOUTS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "broadcast": lambda: [torch.randn(3, 1, 5), torch.randn(4, 1)],
    "transposed": lambda: [torch.randn(4, 3).t(), torch.randn(4, 3).t()],
    "channels last": lambda: [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(3, 1, 1)],
    "strided": lambda: [torch.randn(4, 6)[:, ::2], torch.randn(3)],
    "expanded": lambda: [torch.randn(4, 1).expand(4, 3), torch.randn(4, 3)],
    "empty": lambda: [torch.randn(0, 3), torch.randn(3)],
    "0-d": lambda: [torch.randn(()), torch.randn(())],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fake_results_are_like_real_ones(layout: str) -> None:
    real = LAYOUTS[layout]()
    expected = both(*real)
    with FakeTensorMode() as mode:
        found = both(*[mode.from_tensor(t) for t in real])
    assert [(f.shape, f.dtype, f.device) for f in found] == [(e.shape, e.dtype, e.device) for e in expected]
    assert strides(found) == strides(expected)
    meta = both(*[t.to("meta") for t in real])
    assert all(m.is_meta for m in meta) and [m.shape for m in meta] == [e.shape for e in expected]


# -- autocast --------------------------------------------------------------------------------------------------------

POLICIES = {
    "softmax": "float32", "layer_norm": "float32", "cross_entropy": "float32", "rms_norm_gelu": "float32",
    "addcmul": "widest", "gelu": None, "batch_norm": None,
}  # fmt: skip


@fg.op(autocast="half")
def product(x, y):
    """What autocast computes in its own dtype."""
    return x * y


def test_autocast_policies_of_the_library() -> None:
    assert {name: getattr(ops, name).declaration.autocast for name in POLICIES} == POLICIES
    with pytest.raises(fg.DeclarationError, match="given:    'bf16'"):
        fg.op(lambda x: x, autocast="bf16")


def test_autocast_eager_registered_and_compiled_agree() -> None:
    def block(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ops.softmax(x, -1), product(y, y), ops.gelu(x)

    x, y = leaf(2, 4, dtype=torch.bfloat16), leaf(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        eager = block(x, y)
        assert [r.dtype for r in eager] == [torch.float32, torch.bfloat16, torch.bfloat16]
        registered = ops.softmax.overload(x, -1)(x, -1), product.overload(y, y)(y, y)
        torch.testing.assert_close(registered, eager[:2], rtol=0, atol=0)
        assert_same(block, torch.compile(block, backend="aot_eager", fullgraph=True), x, y)
    torch.testing.assert_close(eager[0], torch.softmax(x.float(), -1))
    assert gradients(eager[0], [x])[0].dtype == torch.bfloat16
    assert ops.softmax(x, -1).dtype == torch.bfloat16


def test_registered_by_name() -> None:
    assert library.register(gate) == [library.name_of(gate)]
    assert library.name_of(gate).endswith("test_library__gate")


def test_an_op_that_returns_more_results_on_demand() -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, total = ops.residual_bias_layer_norm(x, w, x, (4,), w, return_sum=True)
        return ops.residual_bias_layer_norm(first, None, total, (4,), w), total

    assert_same(block, torch.compile(block, backend="aot_eager", fullgraph=True), leaf(3, 4), leaf(4))


def test_ops_declared_in_a_lambda_or_a_comprehension_have_plain_names() -> None:
    make = lambda factor: fg.op(lambda x: x * factor, name="scale")  # noqa: E731
    made = [make(2.0), *[fg.op(lambda x: x * 2, name="double") for _ in range(2)]]
    for op in made:
        assert op(torch.ones(3, device="meta")).shape == (3,)
        compiled = torch.compile(lambda x: op(x), backend="aot_eager", fullgraph=True)  # noqa: B023
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
        torch._dynamo.reset()
