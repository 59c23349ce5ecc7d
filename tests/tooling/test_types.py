"""What type checkers and editors see of fusegen: types, signatures and docstrings of everything that people call."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fusegen as fg
from fusegen.declare import torch_names
from fusegen.declare.value import Value
from tools import stubs

ROOT = Path(__file__).resolve().parents[2]
TORCH, TENSOR = "torch._tensor.Tensor", "fusegen.declare.tensor.Tensor"
# Versions of NumPy differ in what they call its shape.
NUMPY = "numpy.ndarray[..., numpy.dtype[Any]]"

DECLARED = """
from __future__ import annotations

import numpy as np
import torch

import fusegen as fg
from fusegen.ops import gelu


@fg.op
def gate(x: fg.Tensor, *, beta: float = 1.0) -> fg.Tensor:
    return x * fg.sigmoid(beta * x) + x.exp().sum(-1, keepdims=True)


@fg.op(name="moments", autocast="float32")
def moments(x: fg.Tensor, scale: fg.Scalar, axis: fg.Const[int] = -1) -> tuple[fg.Tensor, fg.Tensor]:
    mean = fg.mean(x, axis, keepdims=True)
    return mean, fg.square(x - mean).sum(axis) * scale


@fg.op
def several(x: fg.Tensor, how: fg.Const) -> list[fg.Tensor]:
    return [x, x] if how == "twice" else [x]


@gate.gradient
def gate_gradient(d_out: fg.Tensor, x: fg.Tensor, *, beta: float) -> fg.Tensor:
    return d_out * x * beta


def inside(x: fg.Tensor) -> None:
    reveal_type(-x / 2 + 3.0)
    reveal_type(2**x <= 1)
    reveal_type((x != 0) & ~fg.isnan(x))
    reveal_type(x @ x.mT)
    reveal_type(x.ndim)
    reveal_type(x.dtype)
    reveal_type(x.to(torch.bfloat16).clamp(0, 1))
    reveal_type(fg.split(x, 2))
    reveal_type(fg.where(x > 0, x, 0))
    reveal_type(gate(x, beta=2.0))
    reveal_type(moments(x, 2.0))
    reveal_type(fg.ops.lstm_cell(x, x))


def applied(op: fg.FusedOp[..., fg.Tensor], x: torch.Tensor) -> torch.Tensor:
    return op(x)


x, array = torch.ones(3, 4), np.ones((3, 4), np.float32)
reveal_type(several(x, "twice"))
reveal_type(gate)
reveal_type(moments)
reveal_type(gate(x))
reveal_type(gate(torch.nn.Parameter(x), beta=0.5))
reveal_type(gate(array))
reveal_type(moments(x, 2.0, axis=0))
reveal_type(torch.compile(gate)(x))
reveal_type(applied(gate, x))
reveal_type(gate.emit(x, which="backward"))
reveal_type(gate.trace(x))
reveal_type(gelu(x, approximate="tanh"))
reveal_type(fg.ops.clamp(x, min=0, max=x))
reveal_type(fg.ops.softmax(array, -1))
reveal_type(fg.ops.lstm_cell(x, x))
reveal_type(fg.ops.residual_bias_layer_norm(x, None, x, (4,)))
reveal_type(fg.ops.residual_bias_layer_norm(x, None, x, [4], return_sum=True))
reveal_type(fg.ops.gelu.emit(x))
reveal_type(fg.nn.LayerNorm(4).eps)
reveal_type(fg.nn.AddLayerNorm(4).forward(x, x))
with fg.patch(torch.nn.GELU(), skip="*.mlp") as patched:
    reveal_type(patched.swapped)
"""
ONE, TWO = f"[x: {TENSOR}, *, beta: float =], {TENSOR}", f"tuple[{TENSOR}, {TENSOR}]"
REVEALED = [
    *[TENSOR] * 4, "int", "fusegen.core.dtypes.DType", TENSOR, f"tuple[{TENSOR}, ...]", TENSOR, TENSOR, TWO, TWO,
    f"tuple[{TORCH}, ...]", f"fusegen.fused_op.FusedOp[{ONE}]",
    f"fusegen.fused_op.FusedOp[[x: {TENSOR}, scale: {TENSOR} | float, axis: int =], {TWO}]",
    TORCH, TORCH, NUMPY, f"tuple[{TORCH}, {TORCH}]", TORCH, TORCH, "str", "fusegen.core.ir.Op", TORCH, TORCH, NUMPY,
    f"tuple[{TORCH}, {TORCH}]", TORCH, f"tuple[{TORCH}, {TORCH}]", "str", "float", f"tuple[{TORCH}, {TORCH}]",
    "dict[str, str]",
]  # fmt: skip

WRONG = {
    'fg.exp("a")': "arg-type",
    "fg.exp(x, x)": "call-arg",
    "fg.nope": "attr-defined",
    "fg.ops.nope": "attr-defined",
    "fg.nn.Nope": "attr-defined",
    "fg.sum(x, dims=-1)": "call-overload",
    'x["a"]': "index",
    "[y for y in x]": None,
    "x.backward()": "attr-defined",
    'x + "a"': "operator",
    "fg.ops.gelu(t, aproximate='tanh')": "call-overload",
    "fg.ops.gelu(t, approximate=3)": "call-overload",
    "fg.ops.gelu('a')": "call-overload",
    "fg.ops.layer_norm(t)": "call-overload",
    "silu(object())": "call-overload",
    "silu(x, 3)": "call-overload",
    "silu(x, nope=3)": "call-overload",
    "silu.nope": "attr-defined",
    "silu(t).nope": "attr-defined",
    "fg.op(3)": "call-overload",
    "fg.register(3)": "arg-type",
    "fg.nn.LayerNorm()": "call-arg",
}
HEAD = """
import numpy as np
import torch
import fusegen as fg
x: fg.Tensor
t = torch.ones(3)
@fg.op
def silu(x: fg.Tensor) -> fg.Tensor:
    return x
"""
# An annotation for values of any kind.
OF_ANY_TYPE = {"Const"}
PUBLIC = sorted(name for name in dir(fg) if name in fg.__all__ or name in ("accumulate_grad", "nn", "ops", "patch"))


def test_types_are_what_people_are_told(tmp_path: Path) -> None:
    """One program with what is right, one with what is wrong, and every public name."""
    (tmp_path / "declared.py").write_text(DECLARED)
    (tmp_path / "wrong.py").write_text(HEAD + "\n".join(WRONG))
    (tmp_path / "public.py").write_text("import fusegen as fg\n" + "".join(f"reveal_type(fg.{n})\n" for n in PUBLIC))
    names = ("declared", "wrong", "public")
    pytest.importorskip("mypy")
    # The settings and the cache of `make lint`; the files are a user's.
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", *(str(tmp_path / f"{n}.py") for n in names)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"MYPYPATH": path}, capture_output=True, text=True)
    found: dict[str, list[tuple[int, str, str]]] = {name: [] for name in names}
    for line in done.stdout.splitlines():
        if match := re.match(r".*?(\w+)\.py:(\d+): (note|error): (.*)", line):
            found[match[1]].append((int(match[2]), match[3], match[4]))
    assert done.returncode == 1, done.stdout + done.stderr

    assert [message for _, kind, message in found["declared"] if kind == "error"] == []
    types = [message.partition('"')[2].rstrip('"') for _, _, message in found["declared"]]
    assert [re.sub(r"ndarray\[.*?, numpy\.dtype", "ndarray[..., numpy.dtype", text) for text in types] == REVEALED

    first = HEAD.count("\n") + 1
    codes = {line: message.rpartition("[")[2].rstrip("]") for line, kind, message in found["wrong"] if kind == "error"}
    assert {text: codes.get(first + at) for at, text in enumerate(WRONG)} == WRONG

    revealed = {PUBLIC[line - 2]: message.partition('"')[2].rstrip('"') for line, _, message in found["public"]}
    assert sorted(revealed) == PUBLIC
    assert {name for name, type_ in revealed.items() if type_ == "Any"} <= OF_ANY_TYPE
    spoken = {name for name in PUBLIC if name in fg.declare.language.__all__} - {"register_function"}
    assert {name: revealed[name] for name in spoken if not re.search(r"-> .*Tensor", revealed[name])} == {}
    assert {name: revealed[name] for name in spoken if re.search(r"(?<!numpy\.dtype\[)\bAny\b", revealed[name])} == {}


@pytest.mark.parametrize("name", stubs.FILES)
def test_stubs_are_what_fusegen_is_now(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == stubs.FILES[name](), "run tools/stubs.py"


def test_stubs_know_the_operators() -> None:
    module = ast.parse((ROOT / "fusegen/declare/tensor.pyi").read_text(encoding="utf-8"))
    (made,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Tensor")
    typed = {node.name for node in made.body if isinstance(node, ast.FunctionDef)}
    numbers = {name for name in dir(int) if re.match(r"__r?(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor)__", name)}
    assert numbers | {"__lt__", "__eq__", "__neg__", "__matmul__", "exp", "sum", "mT", "to"} <= typed
    # What a declaration cannot ask of a tensor, type checkers refuse as well.
    refused = {"__bool__", "__float__", "__int__", "__index__"}
    assert not refused & typed
    assert {name for name in typed if not hasattr(Value, name)} <= {*torch_names.methods()}
    own = {name for name in vars(Value) if name.isidentifier() and not name.startswith("_")}
    memory = {"owner", "packed", "pending", "viewed", "viewers"}
    assert own - typed <= {"device", "dims", "dtype", "expr", "tracer", "weak"} | memory


def test_public_names_have_docstrings() -> None:
    assert {name for name in PUBLIC if not inspect.getdoc(getattr(fg, name))} == set()
    assert {name for name in fg.ops.__all__ if not inspect.getdoc(getattr(fg.ops, name))} == set()
    assert {name for name in fg.nn.__all__ if not inspect.getdoc(getattr(fg.nn, name))} == set()


def test_names_complete() -> None:
    assert {"exp", "op", "Tensor", "nn", "ops", "patch", "accumulate_grad"} <= set(dir(fg))
    assert set(fg.ops.__all__) <= set(dir(fg.ops)) and set(fg.nn.__all__) <= set(dir(fg.nn))
    code = "import fusegen as fg, sys; assert {'ops', 'nn'} <= set(dir(fg)); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_signatures() -> None:
    assert str(inspect.signature(fg.exp)) == "(x: 'Like', /) -> 'Value'"
    assert list(inspect.signature(fg.where).parameters) == ["condition", "a", "b"]
    assert list(inspect.signature(fg.sum).parameters) == ["x", "axis", "keepdims", "dtype"]
    assert list(inspect.signature(fg.ops.layer_norm).parameters) == [
        "input", "normalized_shape", "weight", "bias", "eps",
    ]  # fmt: skip
    for name in fg.ops.__all__:
        op = getattr(fg.ops, name)
        assert inspect.signature(op) == op.declaration.signature and op.__doc__ == op.declaration.function.__doc__
