"""``fusegen run --stages``: which stages it runs, and that it names the one at which numbers part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusegen import pipeline
from fusegen.cli.run import run_op
from fusegen.core.errors import LegalityError
from fusegen.core.ir import Output
from fusegen.run import evaluate, programs
from fusegen.run.runner import Runner

pytestmark = pytest.mark.emulator

SHAPES = {
    "rms_norm": ["input=4,12", "weight=12"],
    "swiglu_mlp": ["input=4,6", "gate=8,6", "up=8,6", "down=6,8"],
    "cross_entropy": ["input=4,6", "target=4"],
}


def run(op: str) -> bool:
    return run_op(op, [], SHAPES[op], [], "cpu", 0, stages=True)


@pytest.mark.parametrize("op", SHAPES)
def test_all_stages_agree(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(op)
    said = capsys.readouterr().out
    assert said.endswith("the numbers of all stages agree\n") and "wrong" not in said
    heads = [line for line in said.splitlines() if line.startswith("  ") and not line.startswith("    ")]
    assert heads[-4] == "  forward" and heads[-3].startswith("  forward that saves for the gradients of ")
    assert heads[-2].startswith("  backward of out for ") and heads[-1].startswith("  tangents along ")
    assert said.count("CUDA, on the CPU emulator") == 4 and said.count("derived, as an expression") == 3
    assert said.count("fused, candidate 1 of") == 4
    assert said.count("matrix products") == (4 if op == "swiglu_mlp" else 0)


DECLARED = """
import fusegen as fg

@fg.op
def norm_whose_fusion_is_wrong(x):
    return x * fg.rsqrt(fg.mean(x * x, -1, keepdims=True) + 1e-3)
"""


def test_a_wrong_fusion_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "declared.py"  # an op of its own: what is rendered of it is kept
    path.write_text(DECLARED, encoding="utf-8")
    group = pipeline.group_by_rows

    def wrong(op: Any) -> Any:
        def doubled(output: Output) -> Output:
            return replace(output, expr=output.expr * 2.0)

        return tuple(
            tuple(replace(kernel, pointwise=tuple(map(doubled, kernel.pointwise))) for kernel in kernels)
            for kernels in group(op)
        )

    monkeypatch.setattr(pipeline, "group_by_rows", wrong)
    assert not run_op(f"{path}:norm_whose_fusion_is_wrong", [], ["x=4,12"], [], "cpu", 0, stages=True)
    said = capsys.readouterr().out
    assert "fused, candidate 1 of 3: RowKernel" in said and "<-- result 0 is wrong" in said
    assert said.endswith("numbers part at: forward: fused, candidate 1 of 3: RowKernel\n")


def test_a_wrong_derivative_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pruned = evaluate.prune_backward

    def wrong(*given: Any, **options: Any) -> Any:
        found = pruned(*given, **options)
        first, *rest = found.op.outputs
        op = replace(found.op, outputs=(replace(first, expr=first.expr * 1.001), *rest))
        return replace(found, op=op)

    monkeypatch.setattr(evaluate, "prune_backward", wrong)
    assert not run("rms_norm")
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "numbers part at: backward of out for input, weight: derived, as an expression"


def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    launch = Runner.launch

    def wrong(self: Runner, *given: Any) -> list[Any]:
        results = launch(self, *given)
        results[0][0] += 0.1
        return results

    monkeypatch.setattr(Runner, "launch", wrong)
    assert not run("rms_norm")
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "numbers part at: forward: CUDA, on the CPU emulator"


def test_a_launch_that_is_too_large_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "MOST_THREADS", 64)
    assert run("rms_norm")
    said = capsys.readouterr().out
    assert said.count("too many to run one by one") > 0 and said.endswith("the numbers of all stages agree\n")


def test_a_program_that_is_not_legal_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: Any) -> Any:
        raise LegalityError("a kernel program", given="a write outside", expected="none", fix="report it")

    monkeypatch.setattr(programs, "check_program", refuse)
    assert not run("rms_norm")
    said = capsys.readouterr().out
    assert "a write outside" in said and said.endswith("numbers part at: forward: kernel programs\n")
