"""tools/bench, rows with matrix products: what they are measured against, and that wrong results are not measured."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from fusegen.core.products import contracted_sizes
from fusegen.fuse.products import chain
from fusegen.fuse.steps import Product
from fusegen.inspect.passes import Pass, shown_passes
from fusegen.matmul.libraries.stopwatch import WallClock
from tests.support.benches import CountingClock
from tools.bench import __main__ as command
from tools.bench import kernels, linear_model, products
from tools.bench.products import MeasuredProduct, WrongResult, verify
from tools.bench.row import BF16, F16
from tools.bench.row_products import Plain, ProductRow, Target
from tools.bench.rows import matching, matching_products
from tools.bench.rows_products import LAYER, LONG, ROWS, _activated, _linear, _mlp, _residual, _scores, _swiglu

T = (24, 16, 32)
SILU = _activated("silu", BF16, *T, targets=LAYER)


def derived(item: Pass) -> tuple[int, int]:
    """Multiplications of a pass's products, and the bytes that the steps between them read and write."""
    whole = chain(item.op)
    assert whole is not None
    sizes = contracted_sizes(item.op, item.layout.sizes)
    flops = sum(prod(sizes[a] for a in (*s.axes, *s.over)) for s in whole.steps if isinstance(s, Product))
    things = [thing for part in whole.fused_ops for thing in (*part.operands, *part.outputs)]
    return flops, sum(prod(sizes[a] for a in thing.shape if a) * thing.dtype.size for thing in things)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_the_plain_products_of_a_row_are_those_that_are_derived(row: ProductRow) -> None:
    """Counted by hand in the rows, and by fusegen from what it derives; of the rest no more than fusegen moves."""
    for which, item in zip(("fwd", "bwd"), shown_passes(row.op, (), row.specs), strict=True):
        flops, moved = derived(item)
        assert sum(plain.operations for plain in row.products[which]) == flops
        if " 1x" not in row.title:  # the bias gradient of one row is the factor as well: written once, not twice
            assert row.floor_bytes(which) <= moved
        if row.op.name == "linear_silu" and " 1x" not in row.title:  # where there is nothing to choose
            assert row.floor_bytes(which) == moved
    assert {m.layout for m in row.products["bwd"]} == {"nn", "tn"}


def test_what_is_compared_takes_turns_in_an_order_that_changes() -> None:
    """Whoever always follows the same one gets the clocks that it leaves."""
    called: list[str] = []
    works = {name: lambda name=name: called.append(name) for name in "abc"}  # type: ignore[misc]
    times = WallClock(40).turns(works)
    assert set(times) == set("abc") and all(time > 0 for time in times.values())
    rounds = [called[i : i + 3] for i in range(3, len(called), 3)]  # after one call of each that does not count
    assert len(rounds) == 40 and all(sorted(one) == list("abc") for one in rounds)
    assert {tuple(one) for one in rounds} == set(permutations("abc"))


def test_plain_products_are_read_as_they_lie() -> None:
    left, right = Plain((5, 4, 6), (5, 4, 3), "tn").sides(torch.float32, "cpu")
    assert (left @ right).shape == (5, 6, 3) and left.stride() == (24, 1, 6)
    assert [Plain((2, 4, 6), (2, 3, 6), "nt").operations, Plain((4, 6), (4, 3), "tn").operations] == [144, 72]


SMALL = [_linear(BF16, *T), SILU, _activated("relu", F16, *T), _mlp("gelu_tanh", F16, *T), _mlp("relu", BF16, *T),
         _mlp("squared_relu", F16, *T), _residual(BF16, *T), _swiglu(BF16, *T),
         _scores(BF16, 2, 8, 4, 8)]  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.title)
def test_rows_and_their_references_compute_the_same(row: ProductRow) -> None:
    verify(row, row.tensors("cpu"))


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> torch.Tensor:
        return d * 1.1


def one_row(x: torch.Tensor) -> torch.Tensor:
    """All right but for one row of many."""
    return torch.cat([x[:1] * 1.5, x[1:]])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda out: out * 1.05, "result 0: differs"), (lambda out: out[:, :1], "result 0: .*not"),
        (lambda out: out * torch.nan, "result 0"), (one_row, "result 0"), (WrongGradient.apply, "gradient 0: differs"),
    ],
)  # fmt: skip
def test_a_wrong_row_fails(change: Any, what: str) -> None:
    row = replace(SILU, reference=lambda *tensors: change(SILU.reference(*tensors)))
    with pytest.raises(WrongResult, match=what):
        verify(row, row.tensors("cpu"))
    run = products.measure([row, SILU], (), CountingClock(), 1e6, "cpu")
    assert list(run.failed) == [row.title] and "WrongResult" in run.failed[row.title]
    assert {m.title for m in run.measured} == {SILU.title}


def test_a_row_takes_turns_with_its_plain_products() -> None:
    run = products.measure([_activated("gelu_tanh", F16, *T, targets=LAYER)], ("torch",), CountingClock(), 1e3, "cpu")
    assert not run.failed
    # fusegen, torch, where there is no gradient cuBLASLt, and the pass's plain products: 4, 7, 10, and 13 + 14.
    assert [(m.which, m.floor, *m.times.values()) for m in run.measured] == [
        ("fwd", 4, 1, 2, 3), ("train", 7, 5, 6), ("bwd", 10, 8, 9), ("step", 27, 11, 12),
    ]  # fmt: skip
    fwd, train, bwd, step = (m.target for m in run.measured if isinstance(m, MeasuredProduct))
    one_pass = 2 * (3 * 24 * 32 + 32) / 1e3
    assert (fwd, train, bwd) == pytest.approx((1.15 * 4, 1.35 * 7, 10 + 1.1 * one_pass))
    assert step == pytest.approx(1.35 * 13 + 14 + 1.1 * one_pass)
    text = products.section(run)
    assert "| plain products | target | fusegen | torch | cuBLASLt | over products | over target |" in text
    assert f"| fwd | 4.0 | {fwd:.1f} | 1.0 | 2.0 | 3.0 | 0.25 | {1 / fwd:.2f} |" in text
    assert "| bwd | 10.0 | " in text and "| 8.0 | 9.0 |  | 0.80 |" in text


def test_what_misses_its_target_or_is_behind_is_listed_with_the_reason() -> None:
    def passed(title: str, which: str, own: float, target: float | None, **peers: float) -> MeasuredProduct:
        return MeasuredProduct(title, which, 50.0, {"fusegen": own, **peers}, target)

    run = kernels.Run(4e12)
    run.measured += [
        passed("linear + gelu fp16 8192x768x3072", "fwd", 80.0, 60.0, torch=90.0),
        passed("linear + relu fp16 8192x768x3072", "fwd", 60.0, 60.0, torch=59.5),
        passed("softmax(q k^T / 8) bf16 16 x 512x64x512", "bwd", 24.0, None, torch=20.0),
        passed("something else", "fwd", 90.0, 60.0),
    ]
    text = products.section(run).partition("and why.")[2]
    gelu, scores, other = text.strip().split("\n\n")[1::2]
    assert gelu == "- linear + gelu fp16 8192x768x3072 fwd: above its target"
    assert scores == "- softmax(q k^T / 8) bf16 16 x 512x64x512 bwd: behind torch by 1.20"
    assert other == "- something else fwd: above its target" and "Not looked into." in text


def test_what_is_slow_is_above_its_target() -> None:
    found = [MeasuredProduct("row", "fwd", 10.0, {"fusegen": 11.0}, target) for target in (None, 10.5, 11.5)]
    assert [(m.slow, m.to_target) for m in found] == [(False, ""), (True, "1.05"), (False, "0.96")]
    run = products.Run(1.0, found, aim="their target")  # type: ignore[arg-type]
    assert run.summary()[0] == "3 passes, 1 above their target, 0 behind a peer"


def test_targets_are_those_that_were_set() -> None:
    targets = {row.title: row.targets for row in ROWS}
    assert LAYER["fwd"] == Target(1.15) and LAYER["train"] == Target(1.35) and LONG["bwd"] == Target(1.03)
    for name in ("gelu_tanh", "silu"):
        assert targets[f"linear + {name} fp16 8192x768x3072"] is LAYER
        assert targets[f"linear + {name} bf16 16384x1024x4096"] is LAYER
        assert targets[f"linear + {name} bf16 8192x4096x14336"] is LONG


def test_who_is_asked_to_compute_a_row() -> None:
    def names(row: ProductRow, *wanted: str, **rest: Any) -> list[str]:
        comparison = products.comparison_of(row, wanted, "cpu", **rest)
        return [*(c.name for c in comparison.implementations), *comparison.left_out]

    relu = _activated("relu", F16, *T)
    assert names(relu, "torch", "QuACK") == ["fusegen", "torch", "cuBLASLt", "QuACK"]
    assert names(relu) == ["fusegen"]
    assert names(SILU, "torch", "Liger", autotune=True) == ["fusegen", "torch"]
    assert names(_swiglu(BF16, *T), "Liger") == ["fusegen", "Liger"]


def test_rows_with_products_are_found_by_that_word() -> None:
    assert matching_products("PRODUCTS") == matching_products(None) == list(ROWS)
    assert matching("products") == []
    assert [row.title for row in matching_products("products.*[+] relu.*fp16")] == ["linear + relu fp16 8192x768x3072"]
    titles = [row.title for row in ROWS]
    assert len(titles) == len(set(titles))
    assert any(row.autotune for row in ROWS) and not all(row.autotune for row in ROWS)


def test_the_page_has_them_and_a_wrong_row_ends_in_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_of(title: str, failed: dict[str, str]) -> Any:
        found = MeasuredProduct(title, "fwd", 10.0, {"fusegen": 11.0}, 12.0)
        return lambda *args, **kwargs: products.Run(4e6, [found], failed)

    monkeypatch.setattr(command, "Stopwatch", WallClock)
    monkeypatch.setattr(kernels, "copy_bandwidth", lambda watch: 4e6)
    monkeypatch.setattr(kernels, "measure", run_of("softmax", {}))
    monkeypatch.setattr(linear_model, "report", lambda *args: ("| eager |", ""))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU")
    page = tmp_path / "page.md"
    monkeypatch.setattr("sys.argv", ["bench", "--parts", "rows,products,model", "--write", str(page)])
    for failed in ({}, {"linear": "wrong"}):
        monkeypatch.setattr(products, "measure", run_of("linear", failed))
        assert command.main() == len(failed)
    text = page.read_text(encoding="utf-8")
    assert "| softmax | fwd | 10.0 | 11.0 | 1.10 |" in text
    assert "## Matrix products" in text and "| linear | fwd | 10.0 | 12.0 | 11.0 | 1.10 | 0.92 |" in text
    assert text.index("| linear |") < text.index("| eager |")


@pytest.mark.emulator
def test_the_model_is_the_same_for_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_model, "STEPS", 1)
    size = linear_model.Size(2, 4, 8, 16)
    found = linear_model.measure(WallClock(1), "cpu", compiled=False, size=size)
    assert [line.variant for line in found.lines] == ["eager", "fusegen"] and not found.left_out
    lines = [linear_model.Line("eager", 0.5, 100, 300), linear_model.Line("fusegen", 2, 80, 200)]
    assert linear_model.table(lines).splitlines()[2:] == [
        "| eager | 100.0 | 1.00 | 300.0 | 1.00 | 0.50 |", "| fusegen | 80.0 | 1.25 | 200.0 | 1.50 | 2.00 |",
    ]  # fmt: skip
    monkeypatch.setattr(linear_model, "layers", lambda x, *rest: linear_model.torch_layers(x * 1.5, *rest))
    found = linear_model.measure(WallClock(1), "cpu", compiled=False, size=size)
    assert re.match("WrongResult: gradient 0", found.left_out["fusegen"])
