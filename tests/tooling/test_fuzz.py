"""tools/fuzz: it finds what is wrong, counts what it ran, and goes on where the page ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fusegen import pipeline
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import Output
from fusegen.core.recent import Recent
from tools import fuzz, program_checks

PAGE = f"# Title\n\n{fuzz.COLUMNS}\n|---|---|--:|--:|--:|--:|--:|\n\n## After\n"


def test_a_block_repeats_itself() -> None:
    first, again = (fuzz.run_block(3, "evaluators", 3) for _ in range(2))
    assert first == again and first.counts["programs"] == fuzz.EACH and not first.failed
    assert sum(first.counts.values()) == 2 * fuzz.EACH  # each of them has an outcome


@pytest.mark.parametrize("how", ["evaluators", "interpreted"])
def test_a_wrong_fusion_is_found(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = pipeline.group_by_rows

    def wrong(op: Any) -> Any:
        def moved(output: Output) -> Output:
            return replace(output, expr=output.expr * 1.0001) if output.dtype.is_float else output

        return tuple(
            tuple(replace(kernel, pointwise=tuple(map(moved, kernel.pointwise))) for kernel in kernels)
            for kernels in group(op)
        )

    monkeypatch.setattr(pipeline, "group_by_rows", wrong)
    monkeypatch.setattr(pipeline, "_compiled", Recent(64))
    found = fuzz.run_block(0, how, 2)
    assert found.failed and found.counts["wrong"] > 0
    assert any(key.startswith("wrong, ") and "def program(" in text for key, (text, _) in found.failures.items())


def test_errors_are_failures_and_refusals_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(error: Exception) -> fuzz.Found:
        def raises(*given: Any) -> Any:
            raise error

        monkeypatch.setattr(program_checks, "checked", raises)
        return fuzz.run_block(0, "evaluators", 2)

    refusal = DeclarationError(
        "add", given="two axes: a tensor meets itself along another dimension", expected="", fix=""
    )
    assert check(refusal).counts == Counter(programs=fuzz.EACH, refused=fuzz.EACH)
    other = check(DeclarationError("add", given="nonsense", expected="", fix=""))
    assert other.failed and other.counts["failed"] == fuzz.EACH and "nonsense" in next(iter(other.failures.values()))[1]
    assert check(program_checks.Unstable()).counts["nothing to compare"] == fuzz.EACH


def test_runs_add_up_on_the_page() -> None:
    found = fuzz.Found(Counter(programs=50, right=48, refused=2))
    page = fuzz.recorded(PAGE, found.row("evaluators", range(2)))
    page = fuzz.recorded(page, found.row("gpu", range(2)))
    page = fuzz.recorded(page, found.row("evaluators", range(2, 4)))
    assert page.splitlines()[3:8] == [
        "|---|---|--:|--:|--:|--:|--:|",
        "| evaluators | 0 to 1 | 50 | 2 | 0 | 0 | 0 |",
        "| gpu | 0 to 1 | 50 | 2 | 0 | 0 | 0 |",
        "| evaluators | 2 to 3 | 50 | 2 | 0 | 0 | 0 |",
        "",
    ]
    assert page.endswith("\n\n## After\n")
    assert fuzz.next_block("evaluators", page) == 4 and fuzz.next_block("compiled", page) == 0
    assert fuzz.total("evaluators", page) == 100


def test_the_page_can_be_added_to() -> None:
    page = fuzz.PAGE.read_text(encoding="utf-8")
    block = fuzz.next_block("evaluators", page)
    row = fuzz.Found(Counter(programs=25)).row("evaluators", [block])
    assert fuzz.next_block("evaluators", fuzz.recorded(page, row)) == block + 1
