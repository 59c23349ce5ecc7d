"""Kernel programs: what is legal of them, what they compute without a compiler, and that nothing in them is idle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.cli.show import show_op
from fusegen.core import ir
from fusegen.core.dtypes import float32
from fusegen.core.errors import LegalityError
from fusegen.core.ir import Op
from fusegen.fuse import rows_schedule, strided_rows
from fusegen.generate.builder import Builder
from fusegen.kernel_program.check import check_program
from fusegen.kernel_program.evaluate import run
from fusegen.kernel_program.functions import FUNCTIONS
from fusegen.kernel_program.memory import Buffer
from fusegen.kernel_program.nodes import (
    BREAK,
    RETURN,
    THREAD,
    Assign,
    Declare,
    Do,
    For,
    Function,
    If,
    Invoke,
    KernelProgram,
    Leave,
    Method,
    Number,
    Plain,
    Scope,
    Shared,
    Statement,
    Symbol,
    Value,
    inside,
    invoke,
)
from fusegen.kernel_program.text import text
from fusegen.run import evaluate
from fusegen.run.programs import run_programs
from tests.support.emulated import HEADERS

pytestmark = pytest.mark.cpu
INT, FLOAT = Plain("int"), Plain("float")
X, Y, N, AT = map(Symbol, ("x_ptr", "y_ptr", "n", "at"))


# -- what is legal --------------------------------------------------------------------------------------------------


def program(*body: Statement, block: tuple[int, int] = (64, 1), cluster: int = 1) -> KernelProgram:
    return KernelProgram(("x_ptr", "y_ptr", "n"), {"x": Symbol("x")}, block, cluster, body)


def exchange(site: int = 0) -> Statement:
    return Do(invoke("fg::row_sum", Symbol("total"), of=(64, 1, site)))


TOTAL = Declare(FLOAT, "total", Number(0))
ILLEGAL = {
    "a name that is not declared here": [Assign(Symbol("total"), Number(0))],
    "a name that is not declared here, behind its scope": [Scope((TOTAL,)), Assign(Symbol("total"), Number(0))],
    "a name declared twice in a scope": [TOTAL, TOTAL],
    "a constant that is assigned": [replace(TOTAL, constant=True), Assign(Symbol("total"), Number(1))],
    "a function that the table does not have": [Do(invoke("fg::no_such_function"))],
    "a member that states do not have": [TOTAL, Do(Symbol("total").call("no_such_member"))],
    "a name of the op that nothing holds": [Declare(FLOAT, "y", Value(ir.Ref("y", float32), "y", 10))],
    "a name that is not declared here, of a variable": [Declare(FLOAT, "y", Value(ir.Ref("x", float32), "x", 10))],
    "threads that wait for others which may not come": [If(THREAD < 32, (Do(invoke("__syncthreads")),))],
    "threads that wait for others which may not come, as some have left": [
        If(THREAD >= N, (RETURN,), brief=True), Do(invoke("__syncthreads")),
    ],
    "threads that wait for others which may not come, as some are done": [
        TOTAL, For("at", INT, THREAD, AT < N, Number(64), (exchange(), exchange(1))),
    ],
    "threads that wait for others which may not come, by a variable": [
        Declare(INT, "mine", Number(0)), Assign(Symbol("mine"), THREAD),
        If(Symbol("mine") > 0, (Do(invoke("__syncthreads")),)),
    ],
    "two exchanges at one place": [TOTAL, exchange(), exchange()],
    "an exchange that its own next turn may overtake": [
        TOTAL, For("row", INT, Symbol("blockIdx.x"), Symbol("row") < N, Symbol("gridDim.x"), (exchange(),)),
    ],
    "a break outside of a loop": [BREAK],
}  # fmt: skip


@pytest.mark.parametrize("what", ILLEGAL)
def test_what_is_illegal_is_refused(what: str) -> None:
    with pytest.raises(LegalityError, match=what.partition(",")[0]):
        check_program(program(*ILLEGAL[what]), "a kernel")


def test_what_is_like_it_is_legal() -> None:
    row = Symbol("row")
    body = (exchange(), Do(invoke("__syncthreads")), If(THREAD.equals(0), (Assign(Y.at(row), Symbol("total")),)))
    loop = For("row", INT, Symbol("blockIdx.x"), row < N, Symbol("gridDim.x"), body)
    walk = For("at", INT, THREAD, AT < N, Number(64), (If(AT >= N, (BREAK,), brief=True),))
    check_program(program(TOTAL, walk, loop, Scope((TOTAL,))), "a kernel")


# -- what memory forbids --------------------------------------------------------------------------------------------

TILE = Shared(FLOAT, "tile", (64,))
OTHER = Number(63) - THREAD
FORBIDDEN: dict[str, list[Statement]] = {
    "reads outside": [Declare(FLOAT, "x", invoke("fg::load", X + 1 + THREAD), constant=True)],
    "writes outside": [Do(invoke("fg::store", Y + 1 + THREAD, Number(0)))],
    "written twice": [Do(invoke("fg::store", Y + THREAD % 2, Number(0)))],
    "only read": [Do(invoke("fg::store", X + THREAD, Number(0)))],
    "does not suit it": [If(THREAD < 8, (Declare(FLOAT, "x", invoke("fg::load_vector", X + THREAD, of=(4,))),))],
    "before a barrier lies behind its write": [
        TILE, Assign(Symbol("tile").at(THREAD), Number(1)), Declare(FLOAT, "x", Symbol("tile").at(OTHER)),
    ],
    "before a barrier lies behind its read": [
        TILE, Assign(Symbol("tile").at(THREAD), Number(1)), Do(invoke("__syncthreads")),
        Declare(FLOAT, "x", Symbol("tile").at(OTHER)), Assign(Symbol("tile").at(THREAD), Number(2)),
    ],
    "two threads write one element": [TILE, Assign(Symbol("tile").at(Number(0)), Number(1))],
    "do not come": [If(THREAD < 32, (Do(invoke("__syncthreads")),))],
}  # fmt: skip


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_memory_forbids_is_an_error(what: str) -> None:
    arguments = {
        "x_ptr": Buffer("x", torch.zeros(64), 4), "n": 64,
        "y_ptr": Buffer("y", torch.zeros(64), 4, written=torch.zeros(64, dtype=torch.int64)),
    }  # fmt: skip
    with pytest.raises(LegalityError, match=what):
        run(program(*FORBIDDEN[what]), (1, 1, 1), arguments, {}, torch.float64)


def test_functions_of_the_table_are_those_of_the_headers() -> None:
    headers = "\n".join(HEADERS.values())
    for name in set(FUNCTIONS) - {"*", "__syncthreads"}:
        own = name.removeprefix("fg::")
        assert f" {own}(" in headers or f"FG_COLUMNS({own}, " in headers, name


# -- what they compute ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A function of torch code, and the shapes of what it is called with."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    gradients: bool = False

    @cache  # noqa: B019 - cases live as long as this module
    def op(self) -> tuple[Op, dict[str, torch.Tensor], list[torch.Tensor], dict[str, int]]:
        """The op that is run, what it is given, and what it should give."""
        torch.manual_seed(0)
        tensors = [torch.randn(shape, dtype=torch.float64) for shape in self.shapes]
        op = fg.op(self.function).trace(*tensors)
        named = dict(zip((operand.base for operand in op.operands), tensors, strict=True))
        sizes = evaluate.all_sizes(op, named, {})
        if not self.gradients:
            return op, named, evaluate.meaning(op, named, {}, {}), sizes
        draw = torch.randn_like
        found = evaluate.backward(op, tuple(named), [0], named, {}, sizes, draw)
        assert found is not None
        given = found.given(found.roots)
        return found.op, given, found.expected(found.roots), evaluate.all_sizes(found.op, given, found.sizes)

    def differs(self) -> bool:
        """Whether programs, as they are made now, give something else."""
        op, given, expected, sizes = self.op()
        found = run_programs(op, given, {}, sizes)
        return any(not torch.allclose(a, b, 1e-9, 1e-9, equal_nan=True) for a, b in zip(found, expected, strict=True))


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), w, b)


CASES = {
    "vectors": Case(lambda x, y: x * torch.sigmoid(y), ((5, 12), (5, 12))),
    "vectors, the last one short": Case(lambda x, y: x * torch.sigmoid(y), ((5, 13), (13,))),
    "elements": Case(lambda x, y: x + y, ((6, 33), (6, 1))),
    "tiled transpose": Case(lambda x, y: x.t() * y, ((40, 60), (60, 40))),
    "tiled transposes": Case(lambda x, y: x.transpose(1, 2) * y, ((2, 40, 70), (2, 70, 40))),
    "full reduction": Case(lambda x: torch.sum(x * x), ((70, 33),)),
    "serial": Case(lambda x: x.exp().sum(0), ((7, 70000),)),
    "column": Case(lambda x, w: (x * w).exp().sum(0), ((70, 64), (64,))),
    "column, split": Case(lambda x: x.sum(0), ((2101, 48),)),  # an odd piece: its last row has no neighbour
    "column, states": Case(lambda x: torch.prod(x, 0), ((301, 48),)),
    "line, split": Case(lambda x: x.sum(-1), ((3, 30000),)),
    "rows": Case(softmax, ((5, 100),)),
    "rows, unaligned": Case(lambda x, w, b: layer_norm(x + 1e6, w, b), ((6, 97), (97,), (97,))),
    "rows, two walks": Case(lambda x: (x + 1e6).var(-1), ((6, 96),)),
    "rows, clusters": Case(softmax, ((2, 2560),)),
    "rows, chunked": Case(lambda x: torch.logsumexp(x, -1), ((3, 3001),)),
    "rows, split": Case(lambda x: torch.logsumexp(x, -1), ((2, 4100),)),
    "rows, persistent": Case(layer_norm, ((40, 96), (96,), (96,)), gradients=True),
    "rows, persistent and staged": Case(layer_norm, ((40, 512), (512,), (512,)), gradients=True),
    "rows, persistent and unaligned": Case(layer_norm, ((40, 97), (97,), (97,)), gradients=True),
    "rows, segments": Case(lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 8, 8), (4,), (4,)), gradients=True),
    "rows, slices": Case(lambda x, s: (x * s).softmax(-1), ((3, 40, 64), (3, 1, 64)), gradients=True),
    "rows, picked": Case(lambda x: -torch.log_softmax(x, -1)[:, 3], ((5, 40),)),
    "strided rows": Case(lambda x: torch.softmax(x, 1), ((2, 19, 44),)),
    "strided rows, shared": Case(lambda x: F.normalize(x, dim=1), ((2, 150, 44),), gradients=True),
    "strided rows, deviations": Case(lambda x: (x + 1e6).std(1, keepdim=True) * x, ((2, 21, 40),)),
    "places": Case(lambda x: x.argmax(-1), ((4, 300),)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few blocks of few threads, which loop over several rows."""
    monkeypatch.setattr(rows_schedule, "ONE_BLOCK_THREADS", 64)
    monkeypatch.setattr(rows_schedule, "CLUSTER_BLOCK_THREADS", 64)
    monkeypatch.setattr(rows_schedule, "PERSISTENT_THREADS", 64)
    monkeypatch.setattr(rows_schedule, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(rows_schedule, "CHUNKED_BLOCK_BYTES", 32 * 1024)
    monkeypatch.setattr(rows_schedule, "CLUSTERED", {})
    monkeypatch.setattr(strided_rows, "MULTIPROCESSORS", 1)
    monkeypatch.setattr(strided_rows, "SUMMING_BLOCKS", 1)


@pytest.mark.parametrize("name", CASES)
def test_programs_compute_what_the_op_means(name: str) -> None:
    assert not CASES[name].differs()


def test_programs_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show_op("softmax", "forward", ["64,2048"], ["bf16"], [], "h200", False, print, program=True)
    shown = capsys.readouterr().out
    section = shown[shown.index("== forward: kernel programs") : shown.index("== forward: cost")]
    assert "softmax_forward_bf16: " in section and "for k from 0 while k < 8:" in section
    assert re.search(r"row_merge<\d+, \d+, 0>\(\w+\)  # all threads of a block come here together", section)
    assert "exp(input - " in section and not re.search("[\U000f0000-\U000f007f]|fg::", section)


# -- nothing in them is idle ----------------------------------------------------------------------------------------

# What an evaluator does not know: hints to the compiler, and the kernel before, which has ended here.
UNKNOWN = {"fg::read_again", "fg::wait_for_previous_kernel", "fg::assume_multiple"}


def variants(body: tuple[Statement, ...]) -> Iterator[tuple[str, tuple[Statement, ...]]]:
    """The statements, each time with one thing less or otherwise; and what that is."""
    for at, statement in enumerate(body):
        before, behind = body[:at], body[at + 1 :]
        for what, others in changed(statement):
            yield what, (*before, *others, *behind)


def writes(body: tuple[Statement, ...]) -> bool:
    """Whether statements write results."""
    names = [s.what.function for s in body if isinstance(s, Do) and isinstance(s.what, Invoke)]
    return any(name.startswith("fg::store") for name in names) or any(writes(inside(s)) for s in body if inside(s))


def changed(statement: Statement) -> Iterator[tuple[str, tuple[Statement, ...]]]:
    match statement:
        case Do(what=Invoke(function=name) | Method(function=name)) if name not in UNKNOWN:
            yield f"without {name}", ()
        case Assign(target=target, value=value) if "_rest" not in text(target) + text(value):  # digits beyond doubles
            yield f"without {text(target)} {statement.operator} {text(statement.value)}", ()
        case If(condition=condition, body=body):
            if writes(body):
                yield f"whether or not {condition}", body
            if not isinstance(body[0], Leave):  # nothing that does not happen is lost by it
                yield f"never, though {condition}", statement.otherwise
    if isinstance(statement, (If, For, Scope, Function)):
        for what, body in variants(statement.body):
            yield what, (replace(statement, body=body),)


def programs_of(case: Case, monkeypatch: pytest.MonkeyPatch) -> list[KernelProgram]:
    found, made = list[KernelProgram](), Builder.made

    def noted(builder: Builder, *given: Any, **named: Any) -> KernelProgram:
        found.append(made(builder, *given, **named))
        return found[-1]

    assert not case.differs()  # and texts, for which programs are made as well, are known from here on
    with monkeypatch.context() as patch:
        patch.setattr(Builder, "made", noted)
        assert not case.differs()
    return found


def is_found_out(case: Case, number: int, other: KernelProgram, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a case notices that its program of that number is another one."""
    made, numbers = Builder.made, iter(range(10**6))

    def changed(builder: Builder, *given: Any, **named: Any) -> KernelProgram:
        program = made(builder, *given, **named)
        return other if next(numbers) == number else program

    with monkeypatch.context() as patch:
        patch.setattr(Builder, "made", changed)
        try:
            return case.differs()
        except (LegalityError, RuntimeError, IndexError, KeyError, TypeError):
            return True


@pytest.mark.parametrize("name", CASES)
def test_no_statement_is_idle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, kept = CASES[name], list[str]()
    for number, own in enumerate(programs_of(case, monkeypatch)):
        for what, body in variants(own.body):
            if not is_found_out(case, number, replace(own, body=body), monkeypatch):
                kept.append(what)
    assert not kept, "\n".join(kept)
