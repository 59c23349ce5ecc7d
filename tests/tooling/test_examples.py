"""Every example as a user would run it: it ends well, and the figures that it prints are what they should be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DEVICE = os.environ.get("FUSEGEN_TEST_DEVICE", "cpu")
FLOAT = r"(\d[\d.e+-]*)"

# What each prints, and what must hold of the figures in it.
PRINTED: dict[str, tuple[str, Callable[..., bool]]] = {
    "export_op": (r"loaded elsewhere: fusegen\.main__swish\.default", lambda: True),
    "fake_quant": (rf"loss {FLOAT} -> {FLOAT} with (\d+) levels", lambda a, b, n: b < a / 2 and 4 < n <= 16),
    "film_norm": (rf"3 gradients, largest difference from torch {FLOAT}", lambda d: d < 1e-4),
    "focal_loss": (rf"loss {FLOAT}, largest difference of gradients {FLOAT}", lambda a, d: a > 0.1 and d < 1e-6),
    "graph_attention": (
        rf"loss {FLOAT} -> {FLOAT}, largest difference from torch {FLOAT}",
        lambda a, b, d: b < a / 2 and d < 1e-4,
    ),
    "mixture_of_experts": (
        rf"loss {FLOAT} -> {FLOAT}, largest difference from torch {FLOAT}",
        lambda a, b, d: b < a / 2 and d < 1e-4,
    ),
    "optimizer_step": (rf"largest difference from torch.optim.Adam after 10 steps {FLOAT}", lambda d: 0 <= d < 1e-5),
    "seq2seq": (
        rf"fusegen: loss {FLOAT} -> {FLOAT}, a step in {FLOAT} ms\nlargest difference of gradients from torch {FLOAT}",
        lambda a, b, _, d: b < 0.75 * a and d < 1e-5,
    ),
    "swiglu_mlp": (rf"loss {FLOAT} -> {FLOAT}", lambda a, b: b < a / 2),
}


def problem(script: Path, pattern: str, holds: Callable[..., bool]) -> str:
    """What is wrong with an example; nothing if it ends well and prints what it should."""
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), "--device", DEVICE]
    done = subprocess.run(command, capture_output=True, text=True, env=own, cwd=script.parent)
    if done.returncode:
        return f"exit status {done.returncode}: {done.stderr[-2000:]}"
    found = re.fullmatch(pattern, done.stdout.strip())
    if not found:
        return f"it printed {done.stdout!r}"
    return "" if holds(*map(float, found.groups())) else f"wrong figures: {done.stdout!r}"


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_example(name: str) -> None:
    assert problem(EXAMPLES / f"{name}.py", *PRINTED[name]) == ""


def test_every_example_is_run_and_listed() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == set(PRINTED) == set(re.findall(r"\]\((\w+)\.py\)", index))


def test_wrong_examples_are_seen(tmp_path: Path) -> None:
    """One whose gradient has the wrong sign, and one whose update is another."""
    cases = [
        ("fake_quant", "fg.where(is_inside, d_out, 0)", "fg.where(is_inside, -d_out, 0)", "wrong figures"),
        ("optimizer_step", "beta1 * first + (1 - beta1) * grad", "first + (1 - beta1) * grad", "exit status 1"),
    ]
    for name, right, wrong, expected in cases:
        text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        assert right in text
        script = tmp_path / f"{name}.py"
        script.write_text(text.replace(right, wrong), encoding="utf-8")
        assert problem(script, *PRINTED[name]).startswith(expected)
