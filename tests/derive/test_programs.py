"""Random programs of the whole language (tools/programs), in every mode and through every stage, beside torch."""

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import fusegen as fg
from fusegen.core.errors import DeclarationError
from fusegen.declare.value import Value
from fusegen.derive.exact import as_written
from fusegen.fuse import products, scatter_schedule
from fusegen.run import evaluate, owned_scatter_step, scatter_step
from tools.batched import recorded
from tools.program_checks import (
    COMPILED,
    CUBINS,
    EVALUATORS,
    GPU,
    INTERPRETED,
    REFUSED,
    Calls,
    Expected,
    Stages,
    Unstable,
    checked,
    interpreted,
)
from tools.program_libraries import Theirs, words
from tools.program_writer import Argument, Program
from tools.programs import KINDS, programs

# Blocks of programs, each block with numbers of its own: tools/fuzz.py takes the further ones.
BLOCKS, EACH = 25, 20
# On a CPU also through the evaluators of every stage, one right behind the other: what is derived is derived once.
CHECKS = (GPU,) if os.environ.get("FUSEGEN_TEST_DEVICE") == "cuda" else (COMPILED, EVALUATORS)


def _drawn(block: int, check: Callable[[Program], None], kinds: Sequence[str] = KINDS) -> None:
    """Call ``check`` with each program of a block, and with ever shorter ones where it fails."""
    run = given(programs(kinds=kinds))(check)
    run = settings(
        max_examples=EACH, database=None, deadline=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(run)  # fmt: skip
    seed(block)(run)()


def _right(program: Program, block: int, *checks: str) -> None:
    for how in checks:
        try:
            found = list(checked(program, block, how))
        except Unstable:
            continue
        except DeclarationError as error:
            if not REFUSED.search(str(error)):
                raise
            continue
        assert not found, f"{program}\n" + "\n".join(map(str, found))


@pytest.mark.timeout(900)  # a program that fails is made shorter, try by try
@pytest.mark.parametrize("block", range(BLOCKS))
def test_in_every_mode_and_at_every_stage(block: int) -> None:
    _drawn(block, lambda program: _right(program, block, *CHECKS))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["split", "sorted", "routine"])
def test_every_form_of_a_scatter(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of programs are small, and threads own their lines otherwise."""
    for other in {"owned", "split", "sorted"} - {form}:
        monkeypatch.setattr(scatter_step, f"plan_{other}_scatter", lambda *given, **named: None)
    for module in (owned_scatter_step, scatter_schedule):
        monkeypatch.setattr(module, "FEW_UPDATES", 1)
    monkeypatch.setattr(owned_scatter_step, "_SIDE_BY_SIDE", 2)
    used: set[str] = set()
    plan = scatter_step.plan_scatter
    monkeypatch.setattr(scatter_step, "plan_scatter", lambda *given, **named: _noted(plan(*given, **named), used))
    _drawn(100, lambda program: _right(program, 100, CHECKS[0]), ("scattered", "gathered"))
    assert {"split": "PlannedSplit", "sorted": "PlannedSort", "routine": "PlannedRoutine"}[form] in used


def _noted(planned: Any, used: set[str]) -> Any:
    used.add(type(planned).__name__)
    return planned


# What is handed places, or numbers of classes, and which of its arguments they are.
PLACED = {
    "take": 1, "take_along_axis": 1, "scatter": 2, "scatter_add": 2, "scatter_reduce": 2, "index_add": 2, "put": 2,
    "segments": 1, "one_hot": 0, "bincount": 0,
}  # fmt: skip
# How programs come to them.
COMPUTED = words(
    "floor argmax argmin running_count running_place index clamp cast where window NOWHERE sum minimum // uint8"
)


@pytest.mark.cpu
def test_places_that_a_program_computes_are_drawn() -> None:
    """Each of them, by every way to compute them."""
    kinds = ("gathered", "scattered", "classes")
    assert set(kinds) <= set(KINDS)
    handed: set[str] = set()
    texts: list[str] = []

    def look(program: Program) -> None:
        generator = torch.Generator().manual_seed(0)
        arguments = [a.draw(generator) for a in program.arguments]

        class Watching(Theirs):
            def __getattribute__(self, name: str) -> Any:
                function = super().__getattribute__(name)

                def watched(*given: Any) -> Any:
                    if all(given[PLACED[name]] is not argument for argument in arguments):
                        handed.add(name)
                        texts.append(program.body)
                    return function(*given)

                return watched if name in PLACED else function

        program.function(Watching())(*arguments)

    for block in range(10):
        _drawn(block, look, kinds)
    assert handed == set(PLACED)
    assert [word for word in COMPUTED if not any(word in text for text in texts)] == []


# Rows that are not taken have no value in any of these.
GUARDED = {
    "an extremum": "lib.guarded_extremum(x0)", "declared gradients": "lib.guarded_call(x0)",
    "a product": "lib.guarded_product(x0, x1)", "a sum": "lib.guarded_rows(x0)",
}  # fmt: skip


@pytest.mark.cpu
@pytest.mark.parametrize("name", GUARDED)
def test_the_oracle_compares_what_is_guarded(name: str) -> None:
    """Its own derivatives are finite, so that NaN of ours would be a difference, not nothing to compare."""
    shapes = {"x0": (4, 5), "x1": (5, 3)}
    arguments = tuple(Argument(x, "f", shape) for x, shape in shapes.items() if x in GUARDED[name])
    program = Program(f"    return {GUARDED[name]}", arguments, 1)
    stages = Stages(program, 0)
    assert not list(stages.run())
    op = program.op().trace(*stages.values.values())
    assert (stages.values["x0"].mean(-1) < 0).any()
    wanted = tuple(stages.values)
    found = evaluate.backward(op, wanted, [0], stages.tensors, {}, {}, stages.draw)
    assert found is not None
    expected = Expected.of(found.expected, found.roots)
    wrong = [torch.full_like(value, torch.nan) for value in expected.values]
    assert len(list(expected.differences("", "", wanted, wrong))) == len(wanted)


@pytest.mark.parametrize("split", [True, False], ids=["as it is", "without what is tested"])
def test_halves_that_functions_round_otherwise_are_found(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is stored is rounded to halves: an element that misses its extremum is no rounding."""
    monkeypatch.setattr(products, "as_written", lambda op, **how: as_written(op, split=split))
    products.chain.cache_clear()
    program = Program(
        "    return lib.topped_product(x0, x1)", (Argument("x0", "f", (4, 7)), Argument("x1", "f", (7, 3))), 1
    )
    found = list(Calls(program, 0).halves())
    products.chain.cache_clear()
    assert [str(difference).partition(":")[0] for difference in found] == ([] if split else ["halves"])


@pytest.mark.cpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", range(3))
def test_a_gpus_compiler_takes_them(block: int) -> None:
    _drawn(block, lambda program: _right(program, block, CUBINS))


@pytest.mark.cpu
@pytest.mark.parametrize("width", [2, 33, 8192])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_a_gpus_compiler_takes_vectors_of_every_two_dtypes(axis: int | None, width: int) -> None:
    """Also those of less than a word: two bools beside two doubles."""

    def masked(x: Value, mask: Value) -> Value:
        chosen = fg.where(mask != 0, x, -3.0)
        return chosen if axis is None else fg.softmax(chosen, axis)

    op = fg.op(masked)
    integers = [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64]
    floats = [torch.float16, torch.float32, torch.float64]
    with recorded() as kernels, interpreted(0, planned=True):
        for dtype, other in itertools.product(floats, integers + floats):
            x = torch.randn(3, width).to(dtype).requires_grad_()
            y = op(x, (torch.rand(3, width) > 0.5).to(other))
            torch.autograd.grad(y, x, torch.randn_like(y))
    kernels.check_cubins("sm_90")


@pytest.mark.cpu
@pytest.mark.parametrize(
    "body",
    [
        "    return lib.square(lib.amax(x @ y, axis=(-1,), keepdims=True))",
        "    return lib.tanh(lib.softmax(lib.where(b, x, -1e30), 1) * z)",
    ],
    ids=["a product and its maximum", "a number and what was kept"],
)
def test_what_is_kept_is_interpreted_as_kernels_know_it(body: str) -> None:
    """What is compared, or subtracted, was rounded alike: to halves in memory, to float32 between kernels."""
    shapes = {"x": (7, 2), "y": (2, 3), "z": (2,), "b": (7, 2)}
    given = tuple(Argument(name=n, kind="b" if n == "b" else "f", shape=shape) for n, shape in shapes.items())
    for number in range(6):
        found = list(checked(Program(body, given, 1), number, INTERPRETED, ("halves",)))
        assert not found, "\n".join(map(str, found))


def test_partial_results_of_one_value_are_written_each() -> None:
    """Sums over segments of a row are complete where they are written: what reads them has no name before."""
    norm = "lib.batch_norm(x0, None, None, x1, training=True, eps=0.01)"
    wave = f"lib.erf(lib.group_norm({norm}, 1, eps=0.01))"
    body = f"    return {wave} / (lib.square({wave}) + 1.0), x1 @ x1, {norm}"
    arguments = Argument("x0", "f", (8, 4, 3, 2), 5), Argument("x1", "f", (4,), 5)
    _right(Program(body, arguments, 3), 1693, EVALUATORS)


def test_a_sum_that_a_kernel_takes_in_keeps_its_name() -> None:
    """A value of the kernel, made when it was fused, had the name of a sum that the kernel was to take in later."""
    spread = "lib.var(lib.cosine_similarity(q0, x0, dim=-1), axis=(0, 1, 2), correction=1, keepdims=True)"
    body = f"""    p0, q0 = lib.two(x0)
    v1 = lib.total({spread}, q0, {spread})
    v2 = {spread} - v1
    return v2, {spread}, lib.softmin(q0, -1)"""
    _right(Program(body, (Argument("x0", "f", (4, 5, 7, 8), 5),), 3), 4999, EVALUATORS)


def test_vectors_of_what_is_read_at_one_place() -> None:
    """Results in vectors, of operands that none of their axes moves."""
    body = """    a = lib.mean(lib.sin(lib.sin(x)), axis=(1,), keepdims=False)
    return lib.bincount(i // 2 % 1000, 1000, a), a"""
    _right(Program(body, (Argument("x", "f", (1, 2), 5), Argument("i", "i", (1,), 5)), 2), 12004, *CHECKS)


def test_rows_of_one_number_have_no_deviation() -> None:
    """Nor a gradient by it, whatever rounding does to their sum."""
    body = """    a = lib.softplus(x)
    return lib.std(lib.minimum(y, x), axis=(-1,), correction=1, keepdims=False), a, a @ x.mT"""
    arguments = Argument("x", "f", (12, 7, 3), 5), Argument("y", "f", (12, 7, 1), 5)
    _right(Program(body, arguments, 3), 4939, EVALUATORS)


def test_a_gradient_that_cancels_adds_nothing() -> None:
    """Zero times a derivative that is infinite in the branch that is not taken would be NaN."""
    chosen = "lib.hardswish(lib.chosen_rows(x1))"
    body = f"""    u = lib.smooth({chosen}, {chosen}) * x3
    return (u - lib.mean(u, 0, keepdims=True)) * u"""
    arguments = Argument("x1", "f", (3, 4), 5), Argument("x3", "f", (4,), 5)
    _right(Program(body, arguments, 1), 14, EVALUATORS)


def test_a_step_that_a_scatter_spares_a_result_keeps_nothing_of_it() -> None:
    """What was computed for it alone read a sum that no step leaves any more."""
    body = "    return lib.index_add(x0, -1, i1, x1), lib.segments(x0, i0, 'prod', -1)"
    arguments = (
        Argument("x0", "f", (2,), 5), Argument("i0", "i", (2,), 5), Argument("i1", "i", (3,), 2),
        Argument("x1", "f", (3,), 5),
    )  # fmt: skip
    _right(Program(body, arguments, 2), 7, EVALUATORS)


def test_expressions_read_what_a_launch_is_told() -> None:
    """How many elements there are is no tensor, and a cast asked it for its dtype."""
    body = """    p, q = lib.joint(lib.tanh(x))
    return lib.running(q * 0.5, -1, 'max', False)"""
    _right(Program(body, (Argument("x", "f", (5,), 5),), 1), 69643, EVALUATORS)
