"""The kernel programs of scans: what is legal of them, what they compute, and that nothing in them is idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

import fusegen as fg
from fusegen.cli.show import show_op
from fusegen.core.dtypes import float32
from fusegen.core.errors import LegalityError
from fusegen.core.ir import Index, Ref, Scalar, call
from fusegen.core.scans import AFFINE, LAST, LOGADDEXP, PLACES, SEGMENTS, How
from fusegen.declare.scan_reference import scanned
from fusegen.declare.table import apply
from fusegen.fuse.scan_schedule import ScanProgram, ScanSchedule
from fusegen.fuse.scans import element, neighbour, running
from fusegen.generate import scan_programs
from fusegen.kernel_program import evaluate as evaluator
from fusegen.kernel_program.check import check_program
from fusegen.kernel_program.memory import Buffer
from fusegen.kernel_program.nodes import (
    CONTINUE,
    THREAD,
    Assign,
    Declare,
    Do,
    For,
    If,
    KernelProgram,
    Number,
    Plain,
    ScanState,
    Statement,
    Symbol,
    count,
    invoke,
)
from fusegen.kernel_program.scan_states import ScanBuffer, ScanStates
from fusegen.run import evaluate, programs
from tests.kernels.test_kernel_programs import variants
from tests.kernels.test_scan_kernels import (
    COMBINES,
    HOWS,
    SHAPES,
    dense,
    drawn,
    dtype_of,
    exactly,
    program_of,
    step_of,
    turned,
)

pytestmark = pytest.mark.cpu
INT, SUM = Plain("int"), ScanState("sum", "ScanSum", ("float",))
OWN, BEFORE, CARRY, PLACE, N, AT = map(Symbol, ("own", "before", "carry", "place", "n", "at"))


# -- what is legal ----------------------------------------------------------------------------------------------------

STATES = (
    Declare(SUM, "own", dims=(1,)), Declare(SUM, "before", dims=(1,)), Declare(SUM, "carry"),
    Declare(INT, "place", Number(0)),
)  # fmt: skip
OF_BLOCK = Do(invoke("fg::scan_block", OWN, BEFORE, CARRY, PLACE, of=(2, 1)))
OF_LANES = Do(invoke("fg::scan_lanes", OWN, BEFORE, CARRY, of=(32, 1)))


def program(*body: Statement) -> KernelProgram:
    return KernelProgram(("y_ptr", "n"), {}, (64, 1), 1, body)


ILLEGAL = {
    "a continue outside of a loop": [CONTINUE],
    "threads that wait for others which may not come, lanes": [*STATES, If(THREAD < 32, (OF_LANES,))],
    "threads that wait for others which may not come, a block": [*STATES, If(THREAD < 32, (OF_BLOCK,))],
    "threads that wait for others which may not come, as some go on": [
        *STATES, count("at", 2, [If(THREAD < AT, (CONTINUE,), brief=True), OF_BLOCK]),
    ],
    "threads that wait for others which may not come, by what is the least of two": [
        *STATES, If(invoke("fg::at_most", THREAD, N) < N, (OF_BLOCK,)),
    ],
    "a constant that is assigned": [*STATES[:3], replace(STATES[3], constant=True), OF_BLOCK],
    "a name that is not declared here": [*STATES[:3], OF_BLOCK],
}  # fmt: skip


@pytest.mark.parametrize("what", ILLEGAL)
def test_what_is_illegal_is_refused(what: str) -> None:
    with pytest.raises(LegalityError, match=what.partition(",")[0]):
        check_program(program(*ILLEGAL[what]), "a kernel")


def test_what_is_like_it_is_legal() -> None:
    """Totals alternate between two places, so the next turn of a loop overtakes nobody."""
    at_most = invoke("fg::at_most", Symbol("blockIdx.x"), N)
    loop = For("tile", INT, Number(0), Symbol("tile") < at_most, None, (OF_BLOCK,))
    skipped = count("at", 2, [If(THREAD < AT, (CONTINUE,), brief=True)])
    check_program(program(*STATES, skipped, loop, OF_LANES), "a kernel")


def result() -> Buffer:
    return Buffer("y", torch.zeros(64), 4, written=torch.zeros(64, dtype=torch.int64))


def test_continue_goes_to_the_next_turn_and_no_further() -> None:
    """Of 0 to 5 each thread adds up those that are not its number; then all write."""
    total = Symbol("total")
    body = (
        Declare(INT, "total", Number(0)),
        count("at", 6, [If(AT.equals(THREAD), (CONTINUE,), brief=True), Assign(total, AT, "+=")]),
        Do(invoke("fg::store", Symbol("y_ptr") + THREAD, total)),
    )
    y = result()
    evaluator.run(program(*body), (1, 1, 1), {"y_ptr": y, "n": 64}, {}, torch.float64)
    assert y.values.tolist() == [15 - i if i < 6 else 15 for i in range(64)]


def test_what_memory_forbids_is_an_error() -> None:
    def run(*body: Statement) -> None:
        totals = ScanBuffer.of("totals", ScanStates.nothing("sum", (8,), torch.float64, "cpu"))
        own = KernelProgram(("totals", "n"), {}, (64, 1), 1, (*STATES, *body))
        evaluator.run(own, (1, 1, 1), {"totals": totals, "n": 64}, {}, torch.float64)

    total, first = Symbol("totals").at(THREAD % 8), THREAD < 8
    run(If(first, (Assign(total, CARRY), Assign(OWN.at(0), total))), OF_BLOCK)
    with pytest.raises(LegalityError, match="a state is read that nothing has left"):
        run(If(first, (Assign(CARRY, total),)))
    with pytest.raises(LegalityError, match="a state that is written twice"):
        run(Assign(total, CARRY))
    with pytest.raises(LegalityError, match="a state outside of memory"):
        run(If(first, (Assign(Symbol("totals").at(THREAD + 1), CARRY),)))
    with pytest.raises(LegalityError, match="threads wait for others that do not come"):
        run(If(THREAD < 33, (OF_LANES,)))
    with pytest.raises(LegalityError, match="a block of other warps"):
        run(Do(replace(OF_BLOCK.what, template=(4, 1))))  # type: ignore[type-var]
    again = Assign(PLACE, Number(0))
    with pytest.raises(LegalityError, match="totals are written while others read them"):
        run(OF_BLOCK, again, OF_BLOCK)
    run(OF_BLOCK, again, Do(invoke("__syncthreads")), OF_BLOCK, OF_BLOCK)


# -- what they compute ------------------------------------------------------------------------------------------------


def side(value: torch.Tensor, axes: Sequence[str]) -> tuple[torch.Tensor, list[str]]:
    """A tensor without what it lacks, its axes as they lie in memory."""
    own = sorted((d for d in range(value.ndim) if value.stride(d)), key=lambda d: -value.stride(d))
    lacking = [d for d in range(value.ndim) if d not in own]
    return value.permute([*own, *lacking])[(..., *[0] * len(lacking))], [axes[d] for d in own]


def computed(
    program: ScanProgram, axis: int, values: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """What programs make of these tensors."""
    step = step_of(program, axis, values, outs)
    tensors = [(dtype_of(value), *side(value, step.axes)) for value in values]
    return programs.run_scan(step, tensors, {}, dict(zip(step.axes, outs[0].shape, strict=True)))


def check_values(how: How, shape: str, dtype: torch.dtype) -> None:
    sizes, axis, lies, _ = SHAPES[shape]
    values = drawn(how.combine, sizes, turned if lies is turned else dense, dtype)
    if not dtype.is_floating_point:
        values = [(3 * value).to(dtype) for value in drawn(how.combine, sizes, dense, torch.float64)]
    out = torch.empty(sizes, dtype=torch.int64 if how.combine in PLACES else dtype)
    (found,) = computed(
        program_of(how, dtype_of(out if dtype is torch.int32 else values[-1]).compute), axis, values, [out]
    )
    expected = exactly(how, axis, values, out.double() if out.is_floating_point() else out)
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(shape: str, combine: str) -> None:
    for how in HOWS:
        check_values(replace(how, combine=combine), shape, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("combine", COMBINES)
def test_every_dtype(combine: str, dtype: torch.dtype) -> None:
    if combine in (LOGADDEXP, AFFINE, SEGMENTS) and not dtype.is_floating_point:
        return  # logarithms and recurrences are of floats
    for shape in ("a block", "columns in parts", "elements"):
        check_values(How(combine, exclusive=dtype.is_floating_point), shape, dtype)


def test_infinities_and_nan() -> None:
    x = torch.randn(3, 2000).round()
    x[0, 700], x[0, 900], x[1, 5:9] = float("inf"), float("nan"), float("-inf")
    for combine in ("max", "argmin", LOGADDEXP, LAST):
        for how in (How(combine), How(combine, reverse=True)):
            out = torch.empty(x.shape, dtype=torch.int64 if combine in PLACES else torch.float64)
            (found,) = computed(program_of(how, float32), 1, [x], [out])
            torch.testing.assert_close(found, exactly(how, 1, [x], out), equal_nan=True)


def test_an_overflow_of_factors_beside_nothing_counts_for_nothing() -> None:
    factors, terms = torch.full((1, 4096), 1e200, dtype=torch.float64), torch.zeros(1, 4096, dtype=torch.float64)
    terms[0, -2] = 1
    (found,) = computed(program_of(How(AFFINE), dtype_of(terms)), 1, [factors, terms], [terms])
    assert found[0, -2:].tolist() == [1, 1e200] and not found[0, :-2].any()


OPS = {
    "cumsum": lambda x: fg.cumsum(x * x, -1) * x,
    "cumsum of a part": lambda x: fg.cumsum(x[:, 2:], 0),
    "cumprod": lambda x: fg.cumprod(1 + x / 9, 1),
    "logcumsumexp": lambda x: fg.logcumsumexp(x, 0),
    "cummax": lambda x: torch.cummax(x, 1).values * 2,
    "two": lambda x: fg.cumsum(fg.cumsum(x, -1).exp(), 0),
}


@pytest.mark.parametrize("name", OPS)
def test_the_stage_of_programs_runs_scans_and_their_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, shown = scan_programs.scan_program, list[str]()

    def noted(schedule: ScanSchedule, stage: str) -> KernelProgram:
        shown.append(stage)
        return made(schedule, stage)

    monkeypatch.setattr(programs, "scan_program", noted)
    torch.manual_seed(0)
    x = torch.randn(7, 40, dtype=torch.float64)
    op = fg.op(OPS[name]).trace(x)
    sizes = evaluate.all_sizes(op, {"x": x}, {})
    found = evaluate.backward(op, ("x",), [0], {"x": x}, {}, sizes, torch.randn_like)
    assert found is not None
    given = found.given(found.roots)
    of_gradient = evaluate.all_sizes(found.op, given, found.sizes)
    for own, tensors, of, expected in (
        (op, {"x": x}, sizes, evaluate.meaning(op, {"x": x}, {}, sizes)),
        (found.op, given, of_gradient, found.expected(found.roots)),
    ):
        before = len(shown)
        results = dict(evaluate.stages(own))["kernel programs"](own, tensors, {}, of)
        assert len(shown) > before
        for one, other in zip(results, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_number_of_the_call_is_read() -> None:
    x, scale = torch.randn(4, 50, dtype=torch.float64), Scalar("scale", float32)
    value = apply("mul", Ref(element(0), float32), scale.ref)
    how = How()
    program = ScanProgram.of("b", how, float32, [value], [how], [Ref(running(how), float32)])
    step = replace(step_of(program, 1, [x], [x.float()]), values=(value,), scalars=(scale,))
    (found,) = programs.run_scan(step, [(float32, x, ("a", "b"))], {"scale": 3.0}, {"a": 4, "b": 50})
    torch.testing.assert_close(found, (3 * x).cumsum(1))


def test_launches_are_not_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MOST_THREADS", 63)
    with pytest.raises(programs.TooManyThreads, match="1 blocks of 64 threads"):
        check_values(How(), "a vector that ends early", torch.float32)


def test_programs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show_op("cumsum", "forward", ["2,70000"], ["f32"], ["dim=-1"], "h200", False, print, program=True)
    shown = capsys.readouterr().out
    section = shown[shown.index("== forward: kernel programs") : shown.index("== forward: cost")]
    assert "scan_sum_totals_f32: 256 threads a block" in section and "scan_sum_f32: 256 threads a block" in section
    assert "scan_block<8, 4>(own, before, carry, place)  # all threads of a block come here together" in section
    assert "continue" in section and "fg::" not in section


def test_a_warp_comes_together_where_lanes_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    show_op("cumsum", "forward", ["50,300"], ["f32"], ["dim=-1"], "h200", False, print, program=True)
    assert "scan_lanes<32, 3>(own, before, carry)  # all threads of a warp come here" in capsys.readouterr().out


# -- nothing in them is idle ------------------------------------------------------------------------------------------


def around(reverse: bool) -> ScanProgram:
    """Sums of a product, and what is made of them, of positions, and of elements next to one another."""
    x, y, z = (Ref(element(place), float32) for place in range(3))
    before, behind = (Ref(neighbour(element(place), way), float32) for place, way in ((0, -1), (2, 1)))
    how, here = How("sum", reverse), call("cast", Index("b"), dtype=float32)
    total = Ref(running(how), float32)
    return ScanProgram.of("b", how, float32, [x * y], [how], [total * before + total, behind * z - here, total])


@dataclass(frozen=True)
class Case:
    """A scan of tensors whose sizes leave something over at every loop."""

    sizes: tuple[int, ...]
    axis: int
    reverse: bool = False

    def differs(self) -> bool:
        """Whether programs, as they are made now, give something else than is meant."""
        torch.manual_seed(0)
        x, y, z = (torch.randn(self.sizes, dtype=torch.float64) for _ in range(3))
        z = z.narrow(self.axis, 0, 1).expand(self.sizes) if len(self.sizes) > 2 else z
        outs = [torch.zeros(self.sizes)] * 3
        found = computed(around(self.reverse), self.axis, [x, y, z], outs)
        total = scanned(torch, How("sum", self.reverse), [x * y], self.axis)
        before = scanned(torch, How(LAST, exclusive=True), [x], self.axis)
        behind = scanned(torch, How(LAST, reverse=True, exclusive=True), [z], self.axis)
        here = torch.arange(self.sizes[self.axis]).reshape([-1 if d == self.axis else 1 for d in range(x.ndim)])
        expected = [total * before + total, behind * z - here, total]
        return any(not torch.allclose(a, b, 1e-9, 1e-9) for a, b in zip(found, expected, strict=True))


CASES = {
    "a thread a row": Case((300, 4), 1),
    "lanes": Case((5, 3, 40), 2, reverse=True),
    "a warp": Case((9, 300), 1),
    "a block": Case((3, 5000), 1),
    "a vector that ends early": Case((1001,), 0, reverse=True),
    "parts": Case((2, 17003), 1),
    "elements": Case((6, 333), 1),
    "columns": Case((2, 51, 16), 1),
    "columns in parts": Case((3, 320, 8), 1, reverse=True),
    "columns of elements": Case((33, 9), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_no_statement_is_idle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, made, kept = CASES[name], scan_programs.scan_program, list[str]()
    own = dict[str, KernelProgram]()

    def noted(schedule: ScanSchedule, stage: str) -> KernelProgram:
        own[stage] = made(schedule, stage)
        return own[stage]

    monkeypatch.setattr(programs, "scan_program", noted)
    assert not case.differs()
    assert len(own) == 1 + ("parts" in name)
    for stage, whole in own.items():
        for what, body in variants(whole.body):
            other = {**own, stage: replace(whole, body=body)}
            monkeypatch.setattr(programs, "scan_program", lambda _, stage, other=other: other[stage])
            try:
                found_out = case.differs()
            except (LegalityError, RuntimeError, IndexError, KeyError, TypeError):
                found_out = True
            if not found_out:
                kept.append(f"{stage}: {what}")
    assert not kept, "\n".join(kept)
