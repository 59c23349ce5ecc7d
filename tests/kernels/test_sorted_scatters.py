"""Scatters whose updates are sorted, and those whose few lines are split: every layout and kind, however uneven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.dtypes import BY_NAME
from fusegen.core.errors import CompileError, LegalityError
from fusegen.fuse.rows_schedule import Chip
from fusegen.fuse.sorted_scatter_schedule import PART
from fusegen.fuse.steps import Looked, Scatter, Source
from fusegen.inspect.passes import shown_passes
from fusegen.inspect.programs import programs_section
from fusegen.kernel_program.nodes import Do, invoke
from fusegen.run import evaluate, programs, sorted_scatter_step
from fusegen.run import scatter_step as steps
from tests.support.emulated import Racing

BF16, F32, F64, I8, I32, I64 = torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64
Plan = Callable[..., Any]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of plans that calls have used, by name."""
    found: list[str] = []
    original = steps.plan_scatter

    def plan(*given: Any, **named: Any) -> Any:
        found.append(type(planned := original(*given, **named)).__name__)
        return planned

    monkeypatch.setattr(steps, "plan_scatter", plan)
    return found


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Plan scatters by these of scatter_step's functions alone."""
    for name in {"plan_owned_scatter", "plan_split_scatter", "plan_sorted_scatter"} - set(names):
        monkeypatch.setattr(steps, name, lambda *given, **named: None)


def close(found: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    tolerance = {BF16: 1e-2, torch.float16: 2e-3, F32: 2e-5}.get(found.dtype, 1e-11) * scale
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)


def added(x: torch.Tensor, dim: int, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """By an op of its own, which has no plan yet."""
    return fg.op(lambda x, i, s: torch.scatter_add(x, dim, i, s), name="added")(x, i, s)


PLACES = {
    "random": lambda n, size: torch.randint(0, size, (n,)),
    "one": lambda n, size: torch.full((n,), size - 1),
    "two, of which one is rare": lambda n, size: torch.where(torch.arange(n) == n // 2, 0, size // 2),
    "each once": lambda n, size: torch.randperm(size).repeat(-(-n // size))[:n],
    "ends of parts": lambda n, size: (torch.arange(n) // PART) % size,
}


@pytest.mark.emulator
@pytest.mark.parametrize("n", [1, PART - 1, PART, PART + 1, 2 * PART, 5000])
@pytest.mark.parametrize("places", PLACES)
def test_sorted_updates_however_uneven(places: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to three launches, whose runs begin and end anywhere."""
    only(monkeypatch, "plan_sorted_scatter")
    torch.manual_seed(n)
    size = 300
    x, i, s = torch.randn(size), PLACES[places](n, size), torch.randn(n)
    close(added(x, 0, i, s), torch.scatter_add(x.double(), 0, i, s.double()), 10)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [F32, F64, BF16, I8, I32, I64], ids=str)
@pytest.mark.parametrize("size", [200, 300, 40000], ids=["uint8 keys", "int16 keys", "int32 keys"])
def test_dtypes_of_values_and_keys(dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "plan_sorted_scatter")
    torch.manual_seed(size)
    x, s = ((torch.randn(*shape) * 20).to(dtype) for shape in ((size, 5), (3000, 5)))
    i = torch.randint(0, size, (3000,))
    wide = x.double() if dtype.is_floating_point else x
    op = fg.op(lambda x, i, s: torch.index_add(x, 0, i, s), name="rows")
    close(op(x, i, s), torch.index_add(wide, 0, i, s.to(wide.dtype)), 10)


@pytest.mark.emulator
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=str)
def test_lines_columns_and_strides(dim: int, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with places of their own, and columns that share them, wherever these lie."""
    only(monkeypatch, "plan_sorted_scatter")
    torch.manual_seed(dim)
    shape = [5, 7, 6]
    base = torch.randn([shape[d] for d in order] + [2])[..., 0]
    x = base.permute([order.index(d) for d in range(3)])
    shape[dim] = 40
    s, i = torch.randn(shape), torch.randint(0, x.shape[dim], shape)
    expected = torch.scatter_add(x.double(), dim, i, s.double())
    close(added(x, dim, i, s), expected)
    row = torch.randint(0, x.shape[dim], (40,))
    op = fg.op(lambda x, i, s: torch.index_add(x, dim, i, s), name="rows")
    close(op(x, row, s), torch.index_add(x.double(), dim, row, s.double()))
    op = fg.op(lambda x, i, s: torch.index_add(x, 0, i, s), name="wide")
    wide = torch.randn(30, 200) * 9, torch.randint(0, 30, (300,)), torch.randn(300, 200) * 9
    for dtype in (F64, F32, BF16, I8, I64):  # a block's columns fit, whatever they are computed in
        given = wide[0].to(dtype), wide[1], wide[2].to(dtype)
        exact = torch.float64 if dtype.is_floating_point else dtype
        close(op(*given), torch.index_add(given[0].to(exact), 0, given[1], given[2].to(exact)), 10)


@pytest.mark.emulator
def test_products_are_positive_zeros_and_what_has_no_place_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "plan_sorted_scatter")
    x, i = torch.ones(4), torch.tensor([0, 0, 2, 2, 2])
    s = torch.tensor([-0.0, 3.0, 2.0, float("nan"), 1.0])
    op = fg.op(lambda x, i, s: torch.scatter_reduce(x, 0, i, s, "prod", include_self=False), name="multiplied")
    found = op(x, i, s)
    assert found.isnan().tolist() == [False, False, True, False] and found[0] == 0
    loose = fg.op(lambda i, s: fg.scatter_add(fg.zeros((4,)), 0, i, s), name="loose", check_indices=False)
    i, s = torch.tensor([0, 9, -9, 3, 4]), torch.arange(5.0).where(torch.tensor([1, 0, 0, 1, 0]) > 0, torch.nan)
    close(loose(i, s), torch.tensor([0.0, 0.0, 0.0, 3.0]))


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", [F32, BF16, I32, F64], ids=str)
@pytest.mark.parametrize("n", [2048, 3001, 20000])
def test_lines_that_are_split(n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and lines that lie side by side in both ways; the last part has fewer updates, or none."""
    only(monkeypatch, "plan_split_scatter")
    torch.manual_seed(n)
    i = torch.randint(0, 50, (n,))

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape) * 3).to(dtype)

    for dim, x, s in ((0, drawn(50), drawn(n)), (0, drawn(50, 37), drawn(n, 37)), (1, drawn(33, 50), drawn(33, n))):
        op = fg.op(lambda x, i, s, dim=dim: torch.index_add(x, dim, i, s), name="split")
        wide = x.double() if dtype.is_floating_point else x.long()
        close(op(x, i, s), torch.index_add(wide, dim, i, s.to(wide.dtype)).to(dtype).to(wide.dtype), 10)
        own = i if x.dim() == 1 else i.reshape([-1 if d == dim else 1 for d in range(2)]).expand(s.shape).contiguous()
        close(added(x, dim, own, s), torch.scatter_add(wide, dim, own, s.to(wide.dtype)).to(dtype).to(wide.dtype), 10)


@pytest.mark.emulator
@pytest.mark.parametrize("kind", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include", [True, False])
def test_kinds_of_lines_that_are_split(kind: str, include: bool, used: list[str]) -> None:
    torch.manual_seed(3)
    x, i, s = torch.randn(50).double(), torch.randint(0, 48, (60000,)), 1 + torch.randn(60000).double() / 100
    op = fg.op(lambda x, i, s: torch.scatter_reduce(x, 0, i, s, kind, include_self=include), name="reduced")
    close(op(x, i, s), torch.scatter_reduce(x, 0, i, s, kind, include_self=include))
    assert "PlannedSplit" in used


@pytest.mark.emulator
@pytest.mark.parametrize("plan", ["plan_split_scatter", "plan_sorted_scatter"])
def test_gradients_parts_and_the_same_bits_each_time(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the result is a part of a larger tensor."""
    only(monkeypatch, plan)
    torch.manual_seed(1)
    table, i, g = torch.randn(30, 40, requires_grad=True), torch.randint(0, 30, (5000,)), torch.randn(5000, 40)
    op = fg.op(lambda x, i: torch.nn.functional.embedding(i, x) * 2, name="looked_up")
    (first,), (again,) = (torch.autograd.grad(op(table, i), table, g) for _ in range(2))
    (expected,) = torch.autograd.grad(torch.nn.functional.embedding(i, table.double()) * 2, table, g.double())
    close(first, expected.float().double(), 10)
    assert torch.equal(first, again)
    op = fg.op(lambda x, i, s: torch.index_add(x, 0, i, s), name="onto")
    x = torch.randn(31, 40)
    expected = torch.index_add(x[1:].double(), 0, i, g.double())
    out = torch.zeros(32, 41)
    op(x[1:], i, g, out=out[1:-1, 1:])
    close(out[1:-1, 1:], expected, 10)
    assert not out[0].any() and not out[-1].any() and not out[:, 0].any()


@pytest.mark.emulator
@pytest.mark.cpu
def test_the_barrier_of_sorted_updates_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "plan_sorted_scatter")
    target, render = Racing(), sorted_scatter_step.render_runs
    monkeypatch.setattr(sorted_scatter_step, "target_of", lambda device: target)
    monkeypatch.setattr(sorted_scatter_step, "remember", lambda what, key, make: make())
    x, i, s = torch.randn(300, 3), torch.randint(0, 300, (200, 3)), torch.randn(200, 3)
    close(added(x, 0, i, s), torch.scatter_add(x.double(), 0, i, s.double()))

    def without(schedule: Any) -> Any:
        rendered = render(schedule)
        assert rendered.text.count("__syncthreads();") == 1
        return replace(rendered, text=rendered.text.replace("__syncthreads();", ""))

    monkeypatch.setattr(sorted_scatter_step, "render_runs", without)
    with pytest.raises(CompileError, match="lies between"):
        added(x, 0, i, s)


def test_texts_are_shown() -> None:
    """Of parts with what combines them; of sorted updates with what makes keys."""
    tensors = torch.randn(100), torch.randint(0, 100, (10**5,)), torch.randn(10**5)
    op = fg.op(lambda x, i, s: torch.scatter_add(x, 0, i, s), name="added")
    (shown, *_) = shown_passes(op, tensors, {})
    assert [entry.rsplit("_f32")[0] for entry in shown.entries][:2] == ["scatter_parts_sum_i64", "scattered_parts"]
    assert "parts_of_result" in shown.text
    (shown, *_) = shown_passes(op, (torch.randn(10**6), *tensors[1:]), {})
    names = ["scatter_keys_i64_i32", "scatter_runs_sum_onto_i32_f32_f32", "scatter_sums_sum_onto_i32_f32_f32"]
    assert list(shown.entries) == names


def through_programs(op: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """What the kernel programs of an op compute, without a compiler."""
    traced = op.trace(*tensors)
    given = {operand.name: tensor for operand, tensor in zip(traced.operands, tensors, strict=True)}
    (run,) = (run for stage, run in evaluate.stages(traced) if stage == "kernel programs")
    return run(traced, given, {}, {})


@pytest.mark.cpu
@pytest.mark.parametrize("kind", ["sum", "prod", "amax"])
@pytest.mark.parametrize("form", ["plan_owned_scatter", "plan_split_scatter", "plan_sorted_scatter"])
def test_programs_are_run_without_a_compiler(form: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each access is looked at: in a tensor, written once, behind a barrier."""
    if form == "plan_sorted_scatter" and kind == "amax":
        pytest.skip("extrema are not sorted")
    only(monkeypatch, form)
    used: list[str] = []
    plan = programs.plan_scatter

    def noted(*given: Any, **named: Any) -> Any:
        used.append(type(found := plan(*given, **named)).__name__)
        return found

    monkeypatch.setattr(programs, "plan_scatter", noted)
    torch.manual_seed(4)
    for columns, n in ((1, 2500), (33, 2500), (1, 1)):
        if n == 1 and form == "plan_split_scatter":
            continue
        x, s = torch.randn(40, columns).double(), 1 + torch.randn(n, columns).double() / 100
        i = torch.randint(-40, 40, (n, columns))
        op = fg.op(lambda x, i, s: torch.scatter_reduce(x, 0, i, s, kind) * 2, name="reduced")
        (found,) = through_programs(op, x, i, s)
        torch.testing.assert_close(found, torch.scatter_reduce(x, 0, i % 40, s, kind) * 2)
    assert set(used) == {{"owned": "PlannedOwned", "split": "PlannedSplit"}.get(form.split("_")[1], "PlannedSort")}


@pytest.mark.cpu
@pytest.mark.parametrize("form", ["plan_owned_scatter", "plan_sorted_scatter"])
def test_a_program_without_a_barrier_is_found_out(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, form)
    name = "scatter_program" if form == "plan_owned_scatter" else "runs_program"
    made = getattr(programs, name)
    barrier = Do(invoke("__syncthreads"))

    def without(schedule: Any) -> Any:
        program = made(schedule)
        assert barrier in program.body
        return replace(program, body=tuple(statement for statement in program.body if statement != barrier))

    op = fg.op(lambda x, i, s: torch.scatter_add(x, 0, i, s), name="added")
    given = torch.randn(40, 3).double(), torch.randint(0, 40, (300, 3)), torch.randn(300, 3).double()
    through_programs(op, *given)
    monkeypatch.setattr(programs, name, without)
    with pytest.raises(LegalityError, match="barrier"):
        through_programs(op, *given)


@pytest.mark.cpu
def test_a_routine_is_told_places_beyond_2_to_the_31() -> None:
    """What looks at them for it has the axis' size as a parameter: of few updates it had been an int."""
    sizes, looked = {"d0": 2**31 + 5, "d1": 3}, Looked(True, None, ("d1",))
    step = Scatter("y", Source("i", ()), Source("v", ()), ("d0",), ("d1",), axis="d0", kind="max", looked=looked)
    lying = (("int64", "d1"), ("float32", "d1"), ("float32", "d0"))
    tensors = [steps.Buffer(BY_NAME[name], {axis: 1}) for name, axis in lying]
    planned = steps.plan_scatter(step, sizes, tensors, Chip(), follows=False)
    assert isinstance(planned, sorted_scatter_step.PlannedRoutine) and planned.looking is not None
    assert planned.looking.index == "int64_t" and "int64_t size" in planned.kernels[0].text
    assert len(planned.programs) == len(planned.kernels) == 1


@pytest.mark.cpu
def test_programs_are_shown() -> None:
    tensors = torch.randn(10**6), torch.randint(0, 100, (10**5,)), torch.randn(10**5)
    op = fg.op(lambda x, i, s: torch.scatter_add(x, 0, i, s), name="added")
    (shown, *_) = shown_passes(op, tensors, {})
    assert [name for name, _ in shown.programs_between] == list(shown.entries)
    assert "take_updates" in programs_section(shown_passes(op, (tensors[0][:100], *tensors[1:]), {})[0])


FORMS = ("plan_owned_scatter", "plan_split_scatter", "plan_sorted_scatter", "by the framework")


@pytest.mark.emulator
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("index", [I32, I64], ids=str)
def test_places_are_looked_at_where_they_are_read(
    form: str, index: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form says which place is out of range and where it stands, counts from the end, and leaves out what is
    nowhere; sums of bools are the framework's."""
    only(monkeypatch, form)
    n, columns, size = 4000, 33, 30
    torch.manual_seed(2)
    i = torch.randint(-size, size, (n, columns), dtype=index)
    x, s = torch.randn(size, columns), torch.randn(n, columns)
    op = fg.op(lambda x, i, s: torch.scatter_add(x, 0, i, s), name="columns")
    right = torch.scatter_add(x.double(), 0, i.long() % size, s.double())
    close(op(x, i, s), right, 10)
    (shown, *_) = shown_passes(op, (x, i, s), {})
    assert not any("prologue" in entry for entry in shown.entries)
    for value in (size, -size - 1):
        wrong = i.clone()
        wrong[1234, 5] = value
        with pytest.raises(
            fg.PlaceError, match=rf"the place {value}, at position {1234 * columns + 5}, .* size {size}"
        ):
            op(x, wrong, s)
            torch.cuda.synchronize() if torch.cuda.is_available() else None
            op(x, i, s)
    unseen = fg.op(lambda x, i, s: torch.scatter_add(x, 0, i, s), name="unseen", check_indices=False)
    wrong = i.clone()
    wrong[::2] = size
    expected = torch.scatter_add(x.double(), 0, i.long()[1::2] % size, s.double()[1::2])
    close(unseen(x, wrong, s), expected, 10)
    if index is I64:
        wrong[::2] = fg.NOWHERE
        close(op(x, wrong, s), expected, 10)
    row, rows = i[:, 0].contiguous(), fg.op(lambda x, i, s: torch.index_add(x, 1, i, s), name="rows")
    close(rows(x.T, row, s.T), torch.index_add(x.T.double(), 1, row.long() % size, s.T.double()), 10)


@pytest.mark.emulator
@pytest.mark.parametrize("form", FORMS)
def test_an_index_that_several_read_is_looked_at_by_each(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean has a scatter of ones beside that of values; a gather reads at the same places."""
    only(monkeypatch, form)
    torch.manual_seed(2)
    x, i, s = torch.randn(30, 5), torch.randint(-30, 30, (2100, 5)), torch.randn(2100, 5)
    for kind in ("mean", "amax", "prod"):
        op = fg.op(lambda x, i, s, kind=kind: torch.scatter_reduce(x, 0, i % 30, s, kind), name="reduced")
        close(op(x, i, s), torch.scatter_reduce(x.double(), 0, i % 30, s.double(), kind), 100)
    both = fg.op(lambda x, i, s: torch.scatter_add(x, 0, i, s * torch.gather(x, 0, i)), name="both")
    gathered = torch.gather(x, 0, i % 30).double()
    close(both(x, i, s), torch.scatter_add(x.double(), 0, i % 30, s.double() * gathered), 10)
    x, s = (tensor.requires_grad_() for tensor in (x, s))
    found = torch.autograd.grad((both(x, i, s) * 2).square().sum(), (x, s))
    y = torch.scatter_add(x.double(), 0, i % 30, s.double() * torch.gather(x.double(), 0, i % 30))
    expected = torch.autograd.grad((y * 2).square().sum(), (x, s))
    for one, other in zip(found, expected, strict=True):
        close(one / 1000, other.double() / 1000, 100)
