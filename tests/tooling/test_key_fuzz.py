"""A bounded part of tools/key_fuzz.py: random calls, on every call path that runs plans, give what torch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusegen.native import module as native
from fusegen.pytorch.calls import python_cache
from tools.key_fuzz import KINDS, PATHS, Fuzz, main

pytestmark = pytest.mark.cpu

# torch.compile takes a tenth of a second or more for a call of another kind.
DRAWS = {"compiled": 16}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("path", PATHS)
def test_each_call_finds_its_own_plan(path: str, seed: int) -> None:
    if path != "python" and native.module() is None:
        pytest.skip(f"no native call path: {native.problem()}")
    fuzz = Fuzz(path, seed)
    for _ in range(DRAWS.get(path, 80)):
        fuzz.step()
    assert fuzz.mistakes == [] and fuzz.calls == 3 * DRAWS.get(path, 80)


# Parts of a key in Python, by what they look like.
PARTS: dict[str, Callable[[Any], bool]] = {
    "dtype": lambda part: isinstance(part, torch.dtype),
    "sizes": lambda part: isinstance(part, torch.Size),
    "strides": lambda part: type(part) is tuple and all(type(one) is int for one in part),
    "gradient, and alignment": lambda part: type(part) is int,
    "constants": lambda part: type(part) is tuple and len(part) == 2 and isinstance(part[0], type),
    "names": lambda part: type(part) is tuple and len(part) > 0 and all(type(one) is str for one in part),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_key_that_lacks_something_is_found_out(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = python_cache.PythonCache._read

    def without(self: Any, args: Any, kwargs: Any) -> Any:
        found = read(self, args, kwargs)
        return None if found is None else (tuple(p for p in found[0] if not PARTS[part](p)), *found[1:])

    monkeypatch.setattr(python_cache.PythonCache, "_read", without)
    # What is not in question is the same in all calls: they are more alike then.
    fixed = {"mode": "", "class": "tensor", "dtype": torch.float32, "gradient": False}
    fuzz = Fuzz("python", 1, KINDS[:1], {name: value for name, value in fixed.items() if name not in part})
    failed = ""
    while not fuzz.mistakes and not failed and fuzz.calls < 3000:
        try:
            fuzz.step()
        except (RuntimeError, TypeError) as error:  # another call's plan may not even run
            failed = str(error)
    assert fuzz.mistakes or failed


def test_the_tool_ends_with_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--path", "python", "--seconds", "0.2", "--seed", "1"])
    assert ended.value.code is False or ended.value.code == 0
    assert " calls, 0 wrong" in capsys.readouterr().out
