"""How ops spread over processes, without processes: the rules, and that pieces put together are the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import ops
from fusegen.core.ir import Op
from fusegen.core.views import axis_sizes, whole_shape
from fusegen.declare.check import check_op
from fusegen.declare.reference import Evaluation
from fusegen.derive.gradient import gradient
from fusegen.distribute.placing import Decision, Tensor, decide
from fusegen.distribute.sharding import (
    REPLICATE,
    UNCUT,
    Cut,
    Other,
    Partial,
    Placement,
    Shard,
    cut,
    local_shard,
    localized,
    numbers,
    results,
    tied,
)
from fusegen.distribute.stages import staged
from fusegen.pytorch.library import derived, fake
from tests.matmul import test_products
from tools.opcheck import case_of

Tensors = dict[str, torch.Tensor]


def spec(*shape: int, dtype: Any = fg.float32) -> fg.TensorSpec:
    return fg.TensorSpec(dtype, shape)


# -- rules -------------------------------------------------------------------------------------------------------------


def text(places: Mapping[str, Placement] | None) -> str:
    if places is None:
        return "no"
    short = {Shard: lambda p: f"S{p.dim}", Partial: lambda p: p.kind}
    return " ".join(f"{name}:{short[type(p)](p) if type(p) in short else 'whole'}" for name, p in places.items())


def rule(op: Op, axis: str) -> str:
    axes = tied(op, axis)
    found = results(op, axes)
    return "no" if found is None else f"{text(cut(op.operands, axes))} -> {text(found)}"


TARGET = spec(4, dtype=fg.int64)
RULES = [
    ("lerp", (spec(4, 8), spec(8), spec(4, 1)), {
        "d0": "input:S0 end:whole weight:S0 -> out:S0",
        "d1": "input:S1 end:S0 weight:whole -> out:S1",
    }, {
        "d0": "input:S0 end:whole weight:S0 d_out:S0 -> d_input:S0 d_end:sum d_weight:S0",
        "d1": "input:S1 end:S0 weight:whole d_out:S1 -> d_input:S1 d_end:S0 d_weight:sum",
    }),
    ("layer_norm", (spec(4, 8), (8,), spec(8), spec(8)), {
        "d0": "input:S0 weight:whole bias:whole -> out:S0", "d1": "no",
    }, {
        "d0": "input:S0 weight:whole d_out:S0 -> d_input:S0 d_weight:sum d_bias:sum", "d1": "no",
    }),
    ("softmax", (spec(4, 8), 1), {"d0": "input:S0 -> out:S0", "d1": "no"}, {}),
    ("sum", (spec(3, 4, 8), (0, 2)), {
        "d0": "input:S0 -> out:sum", "d1": "input:S1 -> out:S0", "d2": "input:S2 -> out:sum",
    }, {}),
    ("mean", (spec(4, 8), 0), {"d0": "input:S0 -> out:sum", "d1": "input:S1 -> out:S0"}, {}),
    ("amax", (spec(4, 8), 0), {"d0": "input:S0 -> out:max"}, {"d0": "no"}),
    ("prod", (spec(4, 8), 0), {"d0": "no", "d1": "input:S1 -> out:S0"}, {}),
    ("cross_entropy", (spec(4, 8), TARGET), {"d0": "no", "d1": "no"}, {}),
    ("swiglu_packed", (spec(4, 8),), {"d0": "input:S0 -> out:S0", "d1": "no"},
     {"d0": "input:S0 d_out:S0 -> d_input:S0", "d1": "no"}),
    ("lstm_cell", (spec(4, 32), spec(4, 8)), {
        "d0": "cell:S0 gates:S0 -> hidden:S0 new_cell:S0", "d1": "no",
    }, {}),
]  # fmt: skip


def test_cumulative_sums_are_of_whole_rows() -> None:
    """A process knows nothing of what stands before its shard."""
    op = fg.op(lambda x: fg.cumsum(fg.exp(x), 1) * 2, name="running")
    forward = {"d0": "x:S0 -> out:S0", "d1": "no"}
    assert {axis: rule(op.trace(spec(4, 8)), axis) for axis in forward} == forward
    assert not staged(op.trace(spec(4, 8)), frozenset({"d1"}))
    backward = {"d0": "x:S0 d_out:S0 -> d_x:S0", "d1": "no"}
    assert {axis: rule(op.backward(spec(4, 8)), axis) for axis in backward} == backward


@pytest.mark.parametrize(("name", "arguments", "forward", "backward"), RULES, ids=[row[0] for row in RULES])
def test_rules(name: str, arguments: Any, forward: dict[str, str], backward: dict[str, str]) -> None:
    op = getattr(ops, name)
    for expected, traced in ((forward, op.trace), (backward, op.backward)):
        if expected:
            found = traced(*arguments)
            assert {axis: rule(found, axis) for axis in expected} == expected


@pytest.mark.parametrize(
    ("function", "partial", "expected"),
    [
        (lambda x, y: x * y, {"x": "sum"}, "out:sum"),
        (lambda x, y: x * y, {"x": "sum", "y": "sum"}, "no"),
        (lambda x, y: x * y, {"x": "max"}, "no"),
        (lambda x, y: y / x, {"x": "sum"}, "no"),
        (lambda x, y: -x / y, {"x": "avg"}, "out:avg"),
        (lambda x, y: x - y, {"x": "sum", "y": "sum"}, "out:sum"),
        (lambda x, y: x + y, {"x": "sum"}, "no"),
        (lambda x, y: y - x, {"x": "avg"}, "out:avg"),
        (lambda x, y: x + y, {"x": "max"}, "out:max"),
        (lambda x, y: y - x, {"x": "max"}, "no"),
        (lambda x, y: fg.where(y > 0, x, 0.0), {"x": "sum"}, "out:sum"),
        (lambda x, y: fg.where(y > 0, x, 1.0), {"x": "sum"}, "no"),
        (lambda x, y: fg.where(x > 0, y, 0.0), {"x": "sum"}, "no"),
        (lambda x, y: fg.exp(x) + y, {"y": "sum"}, "no"),
        (lambda x, y: fg.sum(x, 0) * y, {"x": "sum"}, "out:sum"),
        (lambda x, y: fg.amax(x, 0) + y, {"x": "max"}, "out:max"),
        (lambda x, y: fg.amax(x, 0) + y, {"x": "sum"}, "no"),
        (lambda x, y: fg.cast(x, fg.int32) + 0 * fg.cast(y, fg.int32), {"x": "sum"}, "no"),
    ],
)
def test_what_stays_partial(function: Any, partial: dict[str, str], expected: str) -> None:
    op = fg.op(function, name="f").trace(spec(4), spec(4))
    found = results(op, UNCUT, partial)
    assert text(found) == expected


def test_a_partial_value_meets_nothing_that_is_cut() -> None:
    op = fg.op(lambda x: fg.sum(x, 0) * x, name="f").trace(spec(4, 8))
    assert rule(op, "d0") == "no" and rule(op, "d1") == "x:S1 -> out:S1"
    op = fg.op(lambda x: fg.sum(fg.sum(x, 0) * x, 0), name="f").trace(spec(4, 8))
    assert rule(op, "d0") == "no"


def test_an_axis_that_is_there_twice_is_not_cut() -> None:
    op = ops.swiglu.trace(spec(4, 8), spec(4, 8))
    twice = op.operands[0].__class__("gate", fg.float32, ("d1", "d1"))
    assert cut([twice, op.operands[1]], frozenset(["d1"])) is None


def test_pieces() -> None:
    """As torch.chunk makes them, so that the last may lack elements, or be empty."""
    assert [local_shard(5, [(2, r)]) for r in range(2)] == [(3, 0), (2, 3)]
    assert [local_shard(3, [(4, r)]) for r in range(4)] == [(1, 0), (1, 1), (1, 2), (0, 3)]
    assert [local_shard(5, [(2, a), (2, b)]) for a in range(2) for b in range(2)] == [(2, 0), (1, 2), (1, 3), (1, 4)]


# -- a choice ----------------------------------------------------------------------------------------------------------


def choice(op: Op, mesh: Sequence[int], **given: tuple[tuple[int, ...], Any]) -> Decision:
    tensors = {}
    for name, (shape, places) in given.items():
        tensors[name] = Tensor(shape, 4 * torch.Size(shape).numel(), tuple(places))
    return decide(op, tensors, mesh)


S0, S1, SUM = Shard(0), Shard(1), Partial("sum")


def test_what_is_whole_stays_whole() -> None:
    op = ops.swiglu.trace(spec(4, 8), spec(4, 8))
    found = choice(op, (2,), gate=((4, 8), [REPLICATE]), value=((4, 8), [REPLICATE]))
    assert found.axes == (UNCUT,) and found.results == {"out": (REPLICATE,)}
    found = choice(op, (2,), gate=((4, 8), [REPLICATE]), value=((4, 8), [S1]))
    assert found.axes == ({"d1"},) and found.arguments == {"gate": (S1,), "value": (S1,)}


def test_the_larger_tensor_stays_where_it_is() -> None:
    op = ops.lerp.trace(spec(4, 8), spec(8), 0.5)
    found = choice(op, (2,), input=((1000, 2000), [S0]), end=((2000,), [S0]))
    assert found.arguments == {"input": (S0,), "end": (REPLICATE,)}


def test_layouts_that_are_not_known_are_undone() -> None:
    op = ops.gelu.trace(spec(4, 8))
    assert choice(op, (2, 2), input=((4, 8), [Other(), S0])).arguments == {"input": (REPLICATE, S0)}


def test_each_dimension_of_a_mesh_for_itself() -> None:
    op = ops.lerp.backward(spec(4, 8), spec(4, 8), spec(8))
    both = ((4, 8), [S0, S1])
    found = choice(op, (2, 2), input=both, end=both, weight=((8,), [REPLICATE, S0]), d_out=both)
    assert found.axes == ({"d0"}, {"d1"}) and found.results["d_weight"] == (SUM, S0)


def test_stages_where_a_gather_would_move_more() -> None:
    op = ops.softmax.trace(spec(4, 8), 1)
    assert choice(op, (2,), input=((4, 8), [S1])).arguments == {"input": (REPLICATE,)}
    found = choice(op, (2,), input=((4, 100_000), [S1]))
    assert found.through == "d1" and len(found.stages) == 3 and found.results["out"] == (S1,)
    both = choice(op, (2, 2), input=((4, 100_000), [S0, S1]))
    assert both.axes == ({"d0"}, {"d1"}) and both.results["part_top"] == (S0, Partial("max"))


def test_positions_can_be_ruled_out() -> None:
    op = ops.cross_entropy.trace(spec(4, 8), TARGET)
    given = {"input": Tensor((4, 100_000), 1_600_000, (S1,)), "target": Tensor((4,), 32, (REPLICATE,))}
    assert decide(op, given, (2,)).through == "d1"
    assert decide(op, given, (2,), positions=False).axes == (UNCUT,)


def test_a_stage_is_found_by_its_text() -> None:
    """As a graph that torch.compile kept names it."""
    declaration = ops.cross_entropy.declaration
    op = ops.cross_entropy.trace(spec(4, 8), TARGET)
    specs = {"input": spec(4, 8), "target": TARGET}
    values = {name: p.default for name, p in declaration.signature.parameters.items() if name not in specs}
    call = derived.call_text({**values, **specs, "ignore_index": fg.ScalarSpec(fg.int64)}, op, None)
    root = derived.find(declaration, {}, derived.Derived(declaration, call, (), op, public=1).text)
    for stage in range(3):
        local = root.local(("d1", stage, "d1"))
        assert derived.find(declaration, {}, local.text).op == local.op


# -- pieces put together -----------------------------------------------------------------------------------------------


def evaluate(op: Op, tensors: Tensors, scalars: Mapping[str, Any], sizes: Mapping[str, int]) -> Tensors:
    """What an op computes, exactly; ``sizes`` of axes that no tensor tells."""
    evaluation = Evaluation(torch, op, tensors, scalars, torch.float64)
    evaluation.sizes = {**sizes, **evaluation.sizes}
    names = dict.fromkeys(o.base for o in op.outputs)
    return dict(zip(names, evaluation.run(), strict=True))


def sizes_of(op: Op, tensors: Tensors) -> dict[str, int]:
    return axis_sizes(op, {name: tensor.shape for name, tensor in tensors.items()})


def put_together(parts: Sequence[torch.Tensor], place: Placement) -> torch.Tensor:
    if isinstance(place, Shard):
        return torch.cat(list(parts), place.dim)
    if isinstance(place, Partial):
        reduce = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[place.kind]
        return reduce(torch.stack(list(parts)), 0)
    for part in parts:
        torch.testing.assert_close(part, parts[0], rtol=0, atol=0, equal_nan=True)
    return parts[0]


def in_pieces(stages: Sequence[Op], axes: Cut, tensors: Tensors, scalars: Any, sizes: Any, count: int = 2) -> Tensors:
    """What processes compute that have a piece of ``axes`` each."""
    places = {name: place for stage in stages for name, place in (cut(stage.operands, axes) or {}).items()}
    own_axes = sorted(axes & sizes.keys())
    spans = [local_shard(sizes[own_axes[0]], [(count, rank)]) for rank in range(count)]
    here: list[Tensors] = [dict(tensors) for _ in spans]
    for own, (size, first) in zip(here, spans, strict=True):
        for name, tensor in tensors.items():
            place = places.get(name)
            own[name] = tensor.narrow(place.dim, first, size) if isinstance(place, Shard) else tensor
    whole: Tensors = {}
    for stage in stages:
        local = localized(stage, own_axes)
        check_op(local)
        handed = [scalar.name for scalar in local.scalars[len(stage.scalars) :]]
        found = results(stage, axes)
        assert found is not None
        made = []
        for own, (size, first) in zip(here, spans, strict=True):
            wanted = zip(handed, numbers(stage, own_axes), strict=True)
            extra = {name: sizes[a] if kind == "size" else first for name, (kind, a) in wanted}
            made.append(evaluate(local, own, {**scalars, **extra}, {**sizes, **dict.fromkeys(own_axes, size)}))
        for name, place in found.items():
            whole[name] = put_together([one[name] for one in made], place)
            for own, one in zip(here, made, strict=True):
                own[name] = one[name] if isinstance(place, Shard) else whole[name]
    return whole


def passes(function: Any, arguments: Mapping[str, Any]) -> Iterator[tuple[Op, Tensors, dict[str, Any]]]:
    """An op's forward and backward."""
    declaration = function.declaration
    op, _, scalars, tensors = fake.trace_call(declaration, declaration.bind((), arguments), None)
    tensors = {key: tensor.detach() for key, tensor in tensors.items()}
    yield op, tensors, scalars
    floats = tuple(dict.fromkeys(o.base for o in op.operands if o.dtype.is_float))
    if not floats:
        return
    backward = gradient(op, floats)
    sizes = sizes_of(op, tensors)
    for operand in backward.operands:
        base = operand.base
        if base not in tensors:
            tensors[base] = torch.randn(whole_shape(operand, sizes), dtype=torch.float64)
    names = {operand.base for operand in backward.operands}
    yield backward, {name: tensor for name, tensor in tensors.items() if name in names}, scalars


def check_pieces(function: Any, arguments: Mapping[str, Any]) -> tuple[int, int, set[str]]:
    """Forward and backward cut along each axis, in one go and in stages. How often each was; which axes never were."""
    ways, never = [0, 0], set()
    for op, tensors, given in passes(function, arguments):
        scalars = {scalar.name: given[scalar.name] for scalar in op.scalars}
        sizes = sizes_of(op, tensors)
        expected = evaluate(op, tensors, scalars, sizes)
        for axis in sizes:
            axes = tied(op, axis)
            one_go, stages = results(op, axes), staged(op, axes)
            if one_go is None and not stages:
                never.add(axis)
            for way, chosen in enumerate(([op] if one_go is not None else [], stages)):
                if chosen:
                    ways[way] += 1
                    found = in_pieces(chosen, axes, tensors, scalars, sizes)
                    what = f"{op.name}, {op.label}, {sorted(axes)}, {len(chosen)} stages"
                    torch.testing.assert_close(
                        {key: found[key] for key in expected}, expected, rtol=1e-9, atol=1e-10, equal_nan=True,
                        msg=lambda message, what=what: f"{what}: {message}",
                    )  # fmt: skip
    return ways[0], ways[1], never


NOWHERE = {
    *("cummax", "cummin", "cumprod", "cumsum", "logcumsumexp"),  # along their axis
    *("flip", "pad", "roll"),  # whose places positions tell
    "crelu",
    "geglu_packed",
    "glu",
    "gru_cell",
    "linear_gru_cell",
    "linear_lstm_cell",
    "lstm_cell",
    "prod",
    "reglu_packed",
    "swiglu_packed",
    *(name for name in ops.__all__ if "group_norm" in name),  # channels are in groups, which pieces need not respect
}


def test_pieces_of_the_whole_library_put_together() -> None:
    """Pieces are of unequal sizes."""
    in_one_go, in_stages, uncut = 0, 0, set()
    for name in ops.__all__:
        case = case_of(name)
        one_go, stages, never = check_pieces(case.op, case.arguments)
        in_one_go, in_stages = in_one_go + one_go, in_stages + stages
        uncut |= {name} if never else set()
    assert uncut == NOWHERE
    assert in_one_go > 400 and in_stages > 100


PRODUCTS = [
    (test_products.mlp, ((5, 6), (4, 6), (4,), (6, 4), (6,)), set()),
    (test_products.gated, ((5, 6), (4, 6), (4, 6), (3, 4)), set()),
    (test_products.attention, ((3, 5, 4), (3, 3, 4), (3, 3, 4)), set()),
    (test_products.norm_linear, ((5, 6), (6,), (4, 6)), set()),
    (test_products.gram, ((5, 6), (5, 5)), {"d0", "d1"}),  # rows and columns would be
    (test_products.self_attention, ((5, 6), (6, 4), (6, 4)), {"d0"}),
    (test_products.twice, ((5, 6), (6, 6)), {"d1", "d2"}),  # a matrix that would be cut both ways
]


@pytest.mark.parametrize(("function", "shapes", "never"), PRODUCTS, ids=[row[0].name for row in PRODUCTS])
def test_pieces_of_matrix_products(function: Any, shapes: Any, never: set[str]) -> None:
    names = function.declaration.signature.parameters
    arguments = {n: torch.randn(shape, dtype=torch.float64) for n, shape in zip(names, shapes, strict=True)}
    assert check_pieces(function, arguments)[2] == never


def test_rules_of_matrix_products() -> None:
    """Columns, then rows: nothing is sent before the sum of the results, as tensor parallel layers do it."""
    op = test_products.gated.trace(spec(5, 6), spec(4, 6), spec(4, 6), spec(3, 4))
    axis = op.operands[1].shape[0]
    assert rule(op, axis) == "x:whole gate:S0 up:S0 down:S1 -> out:sum"
    assert rule(op, op.operands[0].shape[1]) == "no"  # what is summed goes into a sigmoid
