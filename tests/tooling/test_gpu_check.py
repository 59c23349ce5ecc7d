"""tools/gpu_check.sh: compute-sanitizer watches every kind of kernel that we launch, and none of torch's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fusegen as fg
from fusegen.core.ir import Op
from fusegen.core.scans import FOLDS, LAST, PLACES, RECURRENCES
from fusegen.derive.gradient import gradient
from fusegen.derive.tangent import tangent
from fusegen.derive.training import train
from fusegen.derive.value_and_grad import value_and_gradient
from fusegen.fuse.kernel import kernel_name

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")
FILTERS = re.findall(r"kernel_substring=(\w+)[\s\"]", TEXT)
SCANS = [f"scan_{name}" for names in re.findall(r"for scan in ([\w ]+);", TEXT) for name in names.split()]


@fg.op
def energy(x: Any) -> Any:
    """Of each row."""
    return fg.sum(fg.exp(x), -1)


def derived() -> list[Op]:
    op = energy.trace(fg.TensorSpec(fg.float32, (2, 3)))
    training, backward = train(op, ("x",)), gradient(op, ("x",))
    further = tangent(training.forward, gradient(training.forward, ("x",)))
    return [
        op, backward, tangent(op, backward), further, training.forward, training.backward((0,)),
        value_and_gradient(op, ("x",), (0,)),
    ]  # fmt: skip


@pytest.mark.parametrize("op", derived(), ids=lambda op: op.label)
def test_our_kernels_are_watched(op: Op) -> None:
    assert any(part in kernel_name(op) for part in FILTERS)


def test_scans_of_each_kind_are_watched() -> None:
    assert set(SCANS) == {f"scan_{combine}" for combine in (*FOLDS, *RECURRENCES, LAST, *PLACES)}


@pytest.mark.parametrize(
    "name",
    ["tensor_kernel_scan_innermost_dim", "vectorized_elementwise_kernel", "nvjet_hsh_128x256_64x4", "gemmSN_NN_kernel"],
)
def test_kernels_of_torch_are_not(name: str) -> None:
    assert not any(part in name for part in (*FILTERS, *SCANS))
