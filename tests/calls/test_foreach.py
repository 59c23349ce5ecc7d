"""``fg.foreach``: an op on lists of tensors, beside the same op called for one tensor after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fusegen as fg
from fusegen import pipeline
from fusegen.fused_op import FusedOp
from fusegen.generate.rendered import headers
from fusegen.launch import cubin, table_program
from fusegen.launch.compile import to_cubin
from fusegen.native import module as native
from fusegen.pytorch.replay import list_reading
from tests.support.call_paths import DEVICE
from tests.support.modes import MODES
from tests.support.oracles import draw, refused
from tools.program_writer import Program, as_tuple
from tools.programs import programs

pytestmark = pytest.mark.emulator


@fg.op
def descend(p: fg.Tensor, g: fg.Tensor, m: fg.Tensor, rate: fg.Scalar, beta: fg.Scalar = 0.9) -> Any:
    """A parameter and its moment, one step later."""
    m = beta * m + (1 - beta) * g
    return p - rate * m, m


@fg.op
def bent(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
    return fg.sin(x) * y + x


@fg.op
def squares(x: fg.Tensor) -> fg.Tensor:
    return fg.sum(x * x)


@fg.op
def peaks(x: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
    return fg.amax(fg.abs(x)), fg.sum(x)


SHAPES = [(3, 5), (7,), (1,), (), (2, 3, 4), (1000,), (64, 64), (1, 1), (0,), (2, 0)]


def tensors(dtype: torch.dtype = torch.float32, shapes: Any = SHAPES) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The grids of launches for many tensors; no op may be called for one."""
    found: list[int] = []
    original = table_program.TableLaunch.run

    def run(self: Any, values: Any, stream: int) -> None:
        found.append(self.grid[0])
        original(self, values, stream)

    monkeypatch.setattr(table_program.TableLaunch, "run", run)
    monkeypatch.setattr(FusedOp, "call", None)
    yield found
    assert found


# -- beside a loop ---------------------------------------------------------------------------------------------------


def _in_lists(op: Any, several: int) -> Any:
    """A function of tensors that calls ``op`` for each of them."""

    def call(*given: torch.Tensor, **named: Any) -> tuple[torch.Tensor, ...]:
        count = len(given) // several
        named = {name: list(out) for name, out in named.items()}
        found = op(*(list(given[i * count : (i + 1) * count]) for i in range(several)), **named)
        return tuple(found)

    return call


@pytest.mark.parametrize("mode", MODES)
def test_in_every_mode(mode: str) -> None:
    def theirs(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.sin(x) * y + x for x, y in zip(xs, ys, strict=True)]

    shapes = [(3, 4), (5,), (2, 1, 3)]
    arguments = [draw(*shape, seed=i) for i, shape in enumerate([*shapes, *shapes])]
    MODES[mode](_in_lists(fg.foreach(bent), 2), _in_lists(theirs, 2), arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_results_have_the_bits_of_a_call_for_each(dtype: torch.dtype) -> None:
    ps, gs, ms = tensors(dtype), tensors(dtype), tensors(dtype)
    expected = [descend(p, g, m, 0.1, beta=0.5) for p, g, m in zip(ps, gs, ms, strict=True)]
    found = fg.foreach(descend)(ps, gs, ms, 0.1, beta=0.5)
    assert isinstance(found, tuple)
    for result, wanted in zip(found, zip(*expected, strict=True), strict=True):
        for ours, theirs in zip(result, wanted, strict=True):
            assert ours.dtype is dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
            assert torch.equal(ours, theirs)


def test_a_list_takes_few_launches(launches: list[int]) -> None:
    ps, gs, ms = tensors(), tensors(), tensors()
    exact = [(beta * m + (1 - beta) * g) for beta in [0.9] for g, m in zip(gs, ms, strict=True)]
    expected = [p - 0.25 * m for p, m in zip(ps, exact, strict=True)]
    assert fg.foreach(descend)(ps, gs, ms, 0.25, out=(ps, ms)) == (ps, ms)
    torch.testing.assert_close(ps, expected)
    torch.testing.assert_close(ms, exact)
    assert len(launches) == 3  # of tensors whose vectors come out even, of others, and of single numbers


def test_of_more_tensors_than_a_table_has_room_for(launches: list[int]) -> None:
    given = [torch.full((1 + i % 7,), float(i), device=DEVICE) for i in range(500)]
    found = fg.foreach(bent)(given, given)
    torch.testing.assert_close(found, [torch.sin(x) * x + x for x in given], rtol=1e-5, atol=1e-4)
    sums = fg.foreach(squares)(given)
    torch.testing.assert_close(sums, [(x * x).sum() for x in given])
    assert len(launches) < 20


def test_everything_is_reduced_in_one_or_two_kernels(launches: list[int]) -> None:
    given = tensors(shapes=[(300_000,), (5000,), (3, 5), (17, 3, 31), (9000,)])
    torch.testing.assert_close(fg.foreach(squares)(given), [(x * x).sum() for x in given])
    high, total = fg.foreach(peaks)(given)
    torch.testing.assert_close(high, [x.abs().amax() for x in given])
    torch.testing.assert_close(total, [x.sum() for x in given], rtol=1e-4, atol=1e-3)
    assert len(launches) <= 16  # whether vectors come out even, and who combines, are texts of their own


def test_results_go_where_they_are_wanted(launches: list[int]) -> None:
    given = tensors(shapes=[(300_000,), (5000,), (3, 5)])
    out = torch.empty(3, device=DEVICE)
    places = list(out.unbind(0))
    assert fg.foreach(squares)(given, out=places) is places
    torch.testing.assert_close(out, torch.stack([(x * x).sum() for x in given]))


LAYOUTS = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t() if x.ndim == 2 else x,
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
    "unaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) if x.numel() else x,
    "expanded": lambda x: x[..., :1].expand(x.shape) if x.ndim and x.numel() else x,
}


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([1, 2, 3, 8, 33, 40]), max_size=3), st.sampled_from(sorted(LAYOUTS)),
            st.sampled_from(sorted(LAYOUTS)), st.sampled_from([torch.float32, torch.bfloat16, torch.int32]),
        ),
        min_size=1, max_size=8,
    ),
    st.booleans(),
)  # fmt: skip
def test_of_any_layout(kinds: list[Any], writes: bool) -> None:
    torch.manual_seed(len(kinds))
    xs, ys = [], []
    for shape, first, second, dtype in kinds:
        x, y = ((3 * torch.randn(shape, device=DEVICE)).to(dtype) for _ in range(2))
        xs.append(LAYOUTS[first](x))
        ys.append(LAYOUTS[second](y))
    expected = [bent(x, y) for x, y in zip(xs, ys, strict=True)]
    out = (
        [LAYOUTS["every other"](e.clone()) if i % 2 else e.clone() for i, e in enumerate(expected)] if writes else None
    )
    found = fg.foreach(bent)(xs, ys, out=out)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype is theirs.dtype
        # One rounding: a compiler may contract products and sums otherwise in a kernel of another text.
        torch.testing.assert_close(ours, theirs, rtol=2 * torch.finfo(ours.dtype).eps, atol=1e-6)


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(
    programs(most=4, kinds=("unary", "binary", "number", "reduce", "several", "integer", "halves")), st.integers(0, 9)
)
def test_random_programs(program: Program, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    calls = [[a.draw(generator) for a in program.arguments] for _ in range(3)]
    numbers = [value for value in calls[0] if not isinstance(value, torch.Tensor)]
    for call in calls:  # what is a number is the same in each call
        left = iter(numbers)
        call[:] = [v.to(DEVICE) if isinstance(v, torch.Tensor) else next(left) for v in call]
    calls[2] = [v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in calls[2]]
    op = program.op()
    try:
        expected = [as_tuple(op(*call)) for call in calls]
    except fg.DeclarationError:
        return  # refused by design (tools/program_checks)
    lists = [list(each) if isinstance(each[0], torch.Tensor) else each[0] for each in zip(*calls, strict=True)]
    found = fg.foreach(op)(*lists)
    found = found if isinstance(found, tuple) else (found,)
    for result, wanted in zip(found, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(result, list(wanted), rtol=0, atol=0, equal_nan=True)


def test_what_is_no_list_is_the_same_for_all(launches: list[int]) -> None:
    xs = tensors(shapes=[(4,), (3, 4), (2, 2, 4), (1,)])
    y = torch.randn(4, device=DEVICE)
    torch.testing.assert_close(fg.foreach(bent)(xs, y), [torch.sin(x) * y + x for x in xs])
    z = torch.tensor(2.0, device=DEVICE)
    torch.testing.assert_close(fg.foreach(bent)(x=xs, y=z), [torch.sin(x) * 2 + x for x in xs])
    torch.testing.assert_close(fg.foreach(bent)(xs, 3.0), [torch.sin(x) * 3 + x for x in xs])


def test_python_and_cpp_read_lists_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = tensors()
    for module in (native.module(), None):
        monkeypatch.setattr(list_reading.native, "module", lambda module=module: module)
        op = fg.op(lambda x: x * 2 + 1, name="fresh")
        for _ in range(2):
            torch.testing.assert_close(fg.foreach(op)(xs), [x * 2 + 1 for x in xs])
        kept = fg.foreach(op)._plans.values()
        assert len(kept) == 1 and not isinstance(kept[0], str)


def test_a_tensor_that_shrinks_where_it_lies_is_another_call() -> None:
    x, out = torch.arange(8.0, device=DEVICE), torch.zeros(8, device=DEVICE)
    double = fg.foreach(fg.op(lambda x: x * 2, name="double"))
    double([x], out=[out])
    smaller, rest = out.clone().fill_(-1.0), x.resize_(3)
    double([rest], out=[smaller[:3]])
    assert smaller.tolist() == [0.0, 2.0, 4.0, -1.0, -1.0, -1.0, -1.0, -1.0]


# -- where the loop runs ---------------------------------------------------------------------------------------------


def test_other_ops_and_frameworks_are_called_one_after_the_other() -> None:
    xs = tensors(shapes=[(3, 4), (2, 5)])
    torch.testing.assert_close(fg.foreach(fg.ops.softmax)(xs, -1), [torch.softmax(x, -1) for x in xs])
    multiplied = fg.op(lambda x, y: x @ y, name="multiplied")
    torch.testing.assert_close(fg.foreach(multiplied)(xs, [x.t() for x in xs]), [x @ x.t() for x in xs])
    arrays = [x.cpu().numpy() for x in xs]
    found = fg.foreach(bent)(arrays, arrays)
    assert all(isinstance(result, np.ndarray) for result in found)
    np.testing.assert_allclose(found[0], np.sin(arrays[0]) * arrays[0] + arrays[0], rtol=1e-6)
    dropped = fg.op(lambda x: fg.dropout(x, 0.5), name="dropped", random=True)
    first, second = fg.foreach(dropped)([torch.ones(1000, device=DEVICE)] * 2)
    assert not torch.equal(first, second)  # each call has a seed of its own
    within = fg.op(lambda x, y: fg.sum(torch.stack(fg.foreach(bent)([x, y], [y, x])), 0), name="within")
    x, y = xs[0], xs[0].cos()
    torch.testing.assert_close(within(x, y), torch.sin(x) * y + x + torch.sin(y) * x + y)


def test_calls_check_themselves() -> None:
    xs = tensors()
    with fg.checked():
        torch.testing.assert_close(fg.foreach(bent)(xs, xs), [torch.sin(x) * x + x for x in xs])


def test_where_calls_meet_in_memory_they_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    original = table_program.TableLaunch.run
    monkeypatch.setattr(
        table_program.TableLaunch, "run", lambda self, *given: together.append(1) or original(self, *given)
    )
    double = fg.foreach(fg.op(lambda x: x * 2, name="double"))
    x = torch.arange(6.0, device=DEVICE)
    double([x, x], out=[x, x])
    assert x.tolist() == [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]
    x = torch.arange(6.0, device=DEVICE)
    double([x[:3], x[3:]], out=[x[3:], x[:3]])  # the second reads what the first has written
    assert x.tolist() == [0.0, 4.0, 8.0, 0.0, 2.0, 4.0]
    x = torch.arange(6.0, device=DEVICE)
    double([x[:3], x[1:4].clone()], out=[x[:3], x[2:5]])  # two results share an element: the last one stays
    assert x.tolist() == [0.0, 2.0, 2.0, 4.0, 6.0, 5.0]
    x = torch.arange(6.0, device=DEVICE)
    fg.foreach(bent)([torch.zeros(1, device=DEVICE)] * 2, x[:1], out=[x[:1], x[1:2]])
    fg.foreach(fg.op(lambda x, by: x + by, name="shifted"))([x[:1], x[1:2]], x[5:], out=[x[5:], x[:1]])
    assert x.tolist() == [5.0, 0.0, 2.0, 3.0, 4.0, 5.0]
    x = torch.arange(6.0, device=DEVICE)
    double([x[:2], x[1:3]], out=[x[:2], torch.empty(2, device=DEVICE)])  # the first writes what the second reads
    double([x[2:4], x[4:]], out=[x[2:4], x[2:4]])
    assert x.tolist() == [0.0, 2.0, 8.0, 10.0, 4.0, 5.0]
    assert not together  # their blocks would run in any order
    columns = torch.arange(6.0, device=DEVICE).reshape(3, 2)
    double([columns[:, 0], columns[:, 1]], out=[columns[:, 0], columns[:, 1]])
    assert columns.flatten().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    x = torch.arange(6.0, device=DEVICE)
    double([x[:3], x[:3]], out=[x[3:], x[:3].clone()])  # both read what neither writes
    assert x.tolist() == [0.0, 1.0, 2.0, 0.0, 2.0, 4.0]
    assert together


def test_autograd_is_told_of_what_is_written() -> None:
    w = torch.ones(3, device=DEVICE, requires_grad=True)
    loss = (w * w).sum()
    with torch.no_grad():
        fg.foreach(bent)([w], [w], out=[w])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(fg.DerivativeError, match="requires a gradient"):
        fg.foreach(bent)([w], [w], out=[w])


# -- what is refused -------------------------------------------------------------------------------------------------


def test_mistakes_are_told_before_anything_is_written() -> None:
    x, y = torch.ones(3, device=DEVICE), torch.ones(4, device=DEVICE)
    many = fg.foreach(bent)
    assert "argument 0: 2 tensors, argument 1: 1 tensors" in str(refused(lambda: many([x, y], [x])))
    assert "no list of tensors" in str(refused(lambda: many(x, y)))
    assert "expected: a list of tensors" in str(refused(lambda: many([x], [y], out=x)))
    assert "declared with @fg.op" in str(refused(lambda: fg.foreach(torch.sin)))
    before = x.clone()
    found = refused(lambda: many([x, x], [x, y], out=[x, x]))
    assert isinstance(found, fg.ShapeError) and "fg.foreach(bent), tensors 1 of the lists" in str(found)
    assert torch.equal(x, before)
    found = refused(lambda: many([x, x], [x, x], out=[x, y]))
    assert isinstance(found, fg.ShapeError)
    assert torch.equal(x, before)
    assert isinstance(refused(lambda: many([x.to_sparse()], [x])), fg.DtypeError)
    assert isinstance(refused(lambda: many([x, "x"], [x, x])), fg.FusegenError)


def test_empty_lists_are_empty() -> None:
    out: list[Any] = []
    assert fg.foreach(bent)([], []) == []
    assert fg.foreach(bent)([], [], out=out) is out


# -- the text --------------------------------------------------------------------------------------------------------


def test_the_kernel_finds_its_tensor_in_a_table() -> None:
    text = _scheduled(bent, *[torch.randn(64)] * 2).rendered.body
    assert "const int member = fg::member_of(table.first_block, blockIdx.x);" in text
    assert "float* out_ptr[" in text and "float* __restrict__ out_ptr = table.out_ptr[member];" in text
    assert text.count("blockIdx") == 2
    assert "of one of the many tensors of a launch" in text


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_table_stays_where_parameters_are(arch: str) -> None:
    x = torch.randn(2**20)
    for op, arguments in ((bent, (x, x)), (descend, (x, x, x, 0.1)), (squares, (x,))):
        kernel = _scheduled(op, *arguments)
        compiled = to_cubin(kernel.rendered.text, arch=arch, headers=headers(), declared=op.name)
        assert not compiled.log
        for entry in filter(None, (kernel.rendered.entry, kernel.rendered.finish)):
            found = cubin.resources(compiled.data, entry)
            assert found.local_bytes == 0  # a copy of it in each thread's memory would be there
            assert 3500 < found.constant_bytes < 4096 + 0x240  # behind what the driver keeps there


def _scheduled(op: Any, *given: Any) -> pipeline.ScheduledKernel:
    """The kernel of a call on tensors of one dimension."""
    traced = op.trace(*given)
    things = (*traced.operands, *traced.outputs)
    buffers = {thing.name: pipeline.Buffer(thing.dtype, {"d0": 1} if thing.shape else {}) for thing in things}
    found = pipeline.plan_in_table(traced, pipeline.Layout({"d0": len(given[0])}, buffers))
    assert found is not None
    return found
