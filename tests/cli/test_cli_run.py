"""What ``fusegen run`` lets pass and what not, which shapes it takes, and what it says while it works."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

import fusegen as fg
from fusegen.cli import run as cli_run
from fusegen.cli.arguments import Request, bind, library
from fusegen.cli.inputs import MOST, Case, elements, sized
from fusegen.cli.run import run_op
from fusegen.declare import table
from tests.support.terminals import read_to_end

DECLARATIONS = """
import fusegen as fg

off = fg.register_function("off_in_cli_run", cuda="({0} + 1)", reference=lambda t, x: x, smooth=False)
drawn = fg.register_function("drawn_in_cli_run", cuda="({0} * 1.0001f)", reference=lambda t, x: x,
    derivative=lambda x, y: (y / y,))

@fg.op
def quantized(x):
    return fg.cast(fg.round(x * 127.0 / fg.amax(fg.abs(x), -1, keepdims=True)), fg.int8)

@fg.op
def one_more(x):
    return fg.cast(off(fg.round(x * 10.0)), fg.int8)

@fg.op
def cancelled(x, y):
    return (1e-5 * x * y + 1.0) - 1.0

@fg.op
def with_a_metric(x):
    return x * x, (x > 0.2).to(x.dtype)

@fg.op
def metric(x):
    return fg.mean((x > 0.2).to(x.dtype))

@fg.op
def cancelled_and_wrong(x):
    return drawn(x) + ((1e-5 * x + 1.0) - 1.0)

@fg.op
def distances(a, b):
    return fg.expand_dims(a, (2, 3, 4)) - fg.expand_dims(b, (0, 1, 4))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("run") / "declared_for_run.py"
    path.write_text(DECLARATIONS, encoding="utf-8")
    yield str(path)
    for name in ("off_in_cli_run", "drawn_in_cli_run"):
        table._rows.pop(name, None)


def run(op: str, *shape: str) -> bool:
    return run_op(op, [], shape, [], "cpu", 0)


@pytest.mark.emulator
def test_rounding_to_whole_numbers_may_tie(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where float32 and float64 round to different sides, and nowhere else."""
    assert run(f"{file}:quantized")
    assert "out: largest error 1 where values reach 127, and rounding makes as much\n" in capsys.readouterr().out
    assert not run(f"{file}:one_more", "64,64")
    assert "out: largest error 1 where values reach" in capsys.readouterr().out


@pytest.mark.emulator
def test_what_cancels_is_as_exact_as_its_terms(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{file}:cancelled", "64,64")
    assert ", and rounding makes as much\n" in capsys.readouterr().out
    assert not run(f"{file}:cancelled_and_wrong", "64,64")
    assert "<-- too large" in capsys.readouterr().out


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["with_a_metric", "metric"])
def test_results_that_no_gradient_reaches(file: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{file}:{name}", "8,8")
    assert "all close" in capsys.readouterr().out


def test_shapes_that_nobody_asked_for_fit(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """512 x 3072 against itself would be ten terabytes."""
    assert run(f"{file}:distances")
    shown = capsys.readouterr()
    assert "a: float32[32, 192]" in shown.out
    assert shown.err == "sizes are 1/16 of the usual, for what is computed of them; see --shape\n"
    assert run(f"{file}:distances", "a=3,4", "b=5,6") and not capsys.readouterr().err


def test_shapes_are_as_large_as_can_be_and_as_asked_for() -> None:
    outer = fg.op(lambda a, b: fg.expand_dims(a, (2, 3)) * b, name="outer")
    found = sized(outer, Request())
    assert MOST / 4**4 < elements(outer, found) <= MOST
    asked = sized(outer, Request(shapes={"": (600, 700)}))
    assert [spec.shape for spec in asked.values()] == [(600, 700)] * 2
    for op in library().values():
        assert sized(op, Request()) == bind(op, Request())


def test_elements_are_those_of_all_that_is_computed() -> None:
    op = fg.op(lambda a, b: fg.sum(fg.expand_dims(a, -1) * b, -1), name="sums")
    specs = {"a": fg.TensorSpec(fg.float32, (5, 7)), "b": fg.TensorSpec(fg.float32, (11,))}
    assert elements(op, specs) == prod((5, 7)) + 11 + prod((5, 7, 11)) + prod((5, 7))
    product = fg.op(lambda a, b: a @ b, name="product")
    square = {name: fg.TensorSpec(fg.float32, (64, 64)) for name in "ab"}
    assert elements(product, square) == 3 * 64 * 64, "what a library multiplies is no space that is walked"


@pytest.mark.emulator
def test_who_waits_is_told(file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_run, "LONG", 100)
    monkeypatch.setattr(cli_run, "PATIENCE", 0.0)
    assert run(f"{file}:cancelled", "8,8")
    shown = capsys.readouterr()
    assert shown.err == "the CPU emulator takes minutes for that; a smaller --shape shows as much\n"
    assert "first call" in shown.out and "then" not in shown.out, "a call that takes long is not made twice"


def in_terminal(*arguments: str) -> str:
    ours, theirs = pty.openpty()
    environment: dict[str, Any] = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    command = [sys.executable, "-c", "from fusegen.cli.main import main; main()", *arguments]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = read_to_end(ours)
    assert process.wait() == 0
    return seen.decode()


@pytest.mark.emulator
def test_a_terminal_shows_what_is_done_and_for_how_long() -> None:
    seen = in_terminal("run", "silu", "--shape", "8,8", "--device", "cpu")
    for step in ("forward, reference", "forward, first call", "backward, first call", "0:00:0"):
        assert step in seen
    assert "all close to the float64 reference" in seen
    assert "fwd, " in in_terminal("bench", "silu", "--shape", "8,8", "--device", "cpu", "--peers", "none")


@pytest.mark.parametrize("along", [1, 3])
def test_places_lie_within_the_axis_that_they_are_along(along: int) -> None:
    """Of one that is read along two axes, within the smaller one."""

    def placed(x: Any, y: Any, i: Any, j: Any, classes: Any) -> Any:
        read = fg.take_along_axis(fg.exp(x), i, -1) + fg.take_along_axis(y, i, -1)
        return fg.scatter_add(fg.tanh(x), -1, j, read), fg.one_hot(classes, 9)

    op = fg.op(placed)
    shapes = [f"x=40,{along}", "y=40,5", "i=40,7", "j=40,7", "classes=400"]
    request = Request.parse(shapes, ["i=int64", "j=int32", "classes=int64"], [])
    case = Case.random(op, bind(op, request), "cpu", 0, None)
    assert [int(case.tensors[name].max()) + 1 for name in ("i", "j", "classes")] == [along, along, 8]
    case.call()
    fg.check_indices()
