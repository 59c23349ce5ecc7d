"""torch.library.opcheck over the whole library, as a table: tools/opcheck.py [NAME ...].

Four tests an op: the schema tells the truth, gradients are registered, fake results are like real ones, and AOTAutograd
with dynamic shapes gives eager's results and gradients. Arguments are those of fusegen/cli/examples.py, made tiny.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import torch

import fusegen as fg
from fusegen.cli import arguments as cli_ops
from fusegen.cli.examples import example_of
from fusegen.cli.inputs import POSITIVE, Case
from fusegen.pytorch.library.dispatch import resolve

TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
# What the sizes of the examples become; parts of packed arguments and groups of channels still divide them.
TINY = {512: 2, 3072: 12, 1024: 4, 768: 3, 64: 4, 56: 3, 256: 5, 32: 2, 8: 2}


def tiny(value: Any) -> Any:
    """An example's shape or argument with small sizes."""
    if isinstance(value, fg.TensorSpec):
        return fg.TensorSpec(value.dtype, tiny(value.shape))
    if isinstance(value, tuple):
        return tuple(tiny(item) for item in value)
    return TINY.get(value, value) if type(value) is int and value > 7 else value


def case_of(name: str) -> Case:
    """An op with tiny random arguments that require gradients where they can."""
    op = getattr(fg.ops, name)
    specs = {n: tiny(value) for n, value in cli_ops.bind(op, cli_ops.Request()).items()}
    case = Case.random(op, specs, "cpu", 0, POSITIVE if example_of(name).positive else None)
    return case.requiring(tuple(n for n, t in case.tensors.items() if t.is_floating_point()))


def check(name: str, tests: tuple[str, ...] = TESTS) -> dict[str, Any]:
    """Per test SUCCESS, or the exception."""
    case = case_of(name)
    overload, given = resolve(case.op, (), case.arguments)
    packet, _, which = overload.partition(".")
    checked = getattr(getattr(torch.ops.fusegen, packet), which)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, Any] = torch.library.opcheck(checked, (), given, test_utils=tests, raise_exception=False)
    return {"overload": overload, **found}


def main() -> int:
    """Check the named ops, or all."""
    failed = 0
    for name in sys.argv[1:] or fg.ops.__all__:
        start = time.perf_counter()
        try:
            found = check(name)
        except Exception as error:  # the table goes on: a tool for people
            found = {"overload": name, "call": error}
        bad = {test: error for test, error in found.items() if test != "overload" and error != "SUCCESS"}
        failed += bool(bad)
        taken = time.perf_counter() - start
        print(f"{found['overload']:55s} {'FAILED' if bad else 'ok':7s} {taken:5.1f} s", flush=True)
        for test, reason in bad.items():
            print(f"    {test}: {type(reason).__name__}: {str(reason)[:600]}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
