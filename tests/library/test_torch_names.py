"""torch's private names: each that the source uses is in the table and there; without one, ops run, slower."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fusegen as fg
from fusegen import ops
from fusegen.cli import doctor
from fusegen.core.errors import DeviceError
from fusegen.pytorch.library import torch_names
from tests.support.call_paths import DEVICE

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("fusegen", "nn", "ops") for path in (ROOT / folder).rglob("*.py"))
TABLE = {name for names in torch_names.NAMES.values() for name in names} | set(torch_names.ON_GPUS)
OF_PYTHON = {"_fields_", "_getframe", "_at_fork_reinit"}  # private as well, but of ctypes, sys and locks


# -- the table --------------------------------------------------------------------------------------------------------


def is_private(name: str) -> bool:
    """By its name, or because torch calls it an experiment."""
    parts = name.split(".")
    return any(p.startswith("_") and not p.startswith("__") for p in parts) or "experimental" in parts


class Uses(ast.NodeVisitor):
    """Private names of torch in one file: by their full name where it starts with a module of torch's, and else by
    what they are called. Annotations do not count: they are not looked up."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {"self.torch": "torch"}
        self.full: set[str] = set()
        self.last: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "torch":
                self.aliases[alias.asname or "torch"] = alias.name if alias.asname else "torch"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").split(".")[0] == "torch" and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                self.aliases[alias.asname or alias.name] = name
                if is_private(name):
                    self.full.add(name)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for child in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(child)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, root = [node.attr], node.value
        while isinstance(root, ast.Attribute):
            parts, root = [root.attr, *parts], root.value
        if isinstance(root, ast.Name):
            name = ".".join([root.id, *parts])
            for alias, meaning in self.aliases.items():
                if name.startswith(f"{alias}."):
                    name = meaning + name[len(alias) :]
                    if is_private(name):
                        self.full.add(name)
                    return
        elif not isinstance(root, ast.Attribute):
            self.visit(root)
        if isinstance(node.ctx, ast.Load):
            self.last |= {part for part in parts if part.startswith("_") and not part.startswith("__")}


def own_names() -> set[str]:
    """Every name that the source gives to something."""
    found: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.alias):
                found.add(node.asname or node.name)
    return found


def uses() -> tuple[set[str], set[str]]:
    full, last = set[str](), set[str]()
    for path in SOURCES:
        if path.name != "torch_names.py":
            visitor = Uses()
            visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
            full |= visitor.full
            last |= visitor.last
    return full, last


def ends() -> set[str]:
    return {part for name in TABLE for part in name.split(".") if part.startswith("_")}


def test_every_private_name_in_the_source_is_in_the_table() -> None:
    full, last = uses()
    modules = {name for name in full if any(entry.startswith(f"{name}.") for entry in TABLE)}
    assert full - modules - TABLE == set(), "add them to pytorch/library/torch_names.py, and say which use needs them"
    # Of objects that are no module: tensors, modules of layers.
    assert last - own_names() - ends() - OF_PYTHON == set()


def test_nothing_in_the_table_is_left_over() -> None:
    full, last = uses()
    texts = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES if path.name != "torch_names.py")
    for name in TABLE:
        *_, end = name.split(".")
        if "|" in end:
            assert all(f'"{spelled}"' in texts for spelled in end.split("|")), name
        else:
            assert name in full or end in last, f"{name}: nothing asks it"


@pytest.mark.parametrize("use", torch_names.NAMES)
def test_this_torch_has_them(use: str) -> None:
    assert torch_names.missing(use) == ()


def test_what_is_not_there_is_missing() -> None:
    for name in ("torch._C._gone", "torch.Tensor._gone", "torch._gone.by", "torch.nn.Module._gone", "torch.cuda._a|_b"):
        assert not torch_names._has(name)
    for name in ("torch.cuda._gone|_sleep", "torch.nn.Module._forward_hooks", "torch.fx.experimental.proxy_tensor"):
        assert torch_names._has(name)
    assert not torch_names._has("torch.nn.Module._forward_hooks._gone")


# -- without some of them ---------------------------------------------------------------------------------------------


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch that lacks a name, as far as fusegen can tell."""
    monkeypatch.setattr(torch_names, "_has", lambda name: not name.endswith("_is_any_autocast_enabled"))
    torch_names.missing.cache_clear()
    torch_names.warn_once.cache_clear()
    yield
    monkeypatch.undo()
    torch_names.missing.cache_clear()


WITHOUT = """
import sys, warnings
import torch
import fusegen as fg
from fusegen.pytorch.library import torch_names

warnings.simplefilter("ignore")

def wave(x, y, s=0.5, *, k: fg.Const = 2):
    return fg.sin(x) * y * s * k, fg.mean(x * x, -1, keepdims=True) > y

def check():
    x, y = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in ((3, 4), (4,)))
    found, larger = fg.op(wave)(x, y, k=3)
    expected = x.sin() * y * 1.5
    torch.testing.assert_close(found, expected)
    assert torch.equal(larger, (x * x).mean(-1, keepdim=True) > y) and not larger.requires_grad
    mine, theirs = (torch.autograd.grad(result, (x, y), torch.ones_like(expected)) for result in (found, expected))
    torch.testing.assert_close(mine, theirs)

check()
for name in torch_names.NAMES[torch_names.CALLS]:
    path, _, end = name.rpartition(".")
    owner = torch
    for part in path.split(".")[1:]:
        owner = getattr(owner, part)
    try:
        lost = owner.__dict__[end]
        delattr(owner, end)
    except (KeyError, TypeError):  # of a class written in C: as far as fusegen can tell
        lost = None
        real, torch_names._has = torch_names._has, lambda found: found != name
    torch_names.missing.cache_clear()
    try:
        assert torch_names.missing() == (name,), torch_names.missing()
        check()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
    if lost is None:
        torch_names._has = real
    else:
        setattr(owner, end, lost)
torch_names.missing.cache_clear()
check()
print("done")
"""


def test_without_any_of_them_calls_go_the_slow_way() -> None:
    """In a process of its own: what torch imports meanwhile would lack it for good."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False, cwd=ROOT)
    # What torch's own gradients ask nobody can lack.
    failed = [
        line for line in done.stdout.splitlines() if not line.startswith("torch.autograd.forward_ad._current_level")
    ]
    assert failed == ["done"], done.stdout + done.stderr


def call() -> None:
    op, x = fg.op(lambda x: fg.sin(x) * 2.0, name="wave"), torch.randn(3, device=DEVICE)
    torch.testing.assert_close(op(x), x.sin() * 2)


@pytest.mark.usefixtures("unknown")
def test_it_is_said_once() -> None:
    with pytest.warns(fg.FusegenWarning, match=r"it does not know torch \S+, which lacks torch._C._is_any_autocast"):
        call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()
    with pytest.raises(DeviceError, match=r"(?s)calls: torch._C._is_any_autocast_enabled\): ops run as torch's own"):
        torch_names.report()
    finding = doctor._torch_names()
    assert "torch._C._is_any_autocast_enabled" in finding.found and "update fusegen" in finding.fix


def test_doctor_says_that_they_are_there() -> None:
    finding = doctor._torch_names()
    assert finding.found.startswith("all ") and not finding.fix


@pytest.mark.filterwarnings("ignore:fusegen. it does not know")
@pytest.mark.usefixtures("unknown")
class TestUnfused:
    """The slow path: what it computes, refuses and leaves to torch."""

    def test_a_declared_gradient(self) -> None:
        op = fg.op(lambda x, y, s=2.0: (fg.round(x) * y, x > y), name="through")
        op.gradient(lambda d_out, x, y, s: (d_out * y * s, d_out * x))
        x, y = torch.randn(3, 4).requires_grad_(), torch.randn(4).requires_grad_()
        out, larger = op(x, y)
        assert torch.equal(out, x.round() * y) and not larger.requires_grad
        d_x, d_y = torch.autograd.grad(out, (x, y), torch.full_like(out, 3.0), create_graph=True)
        torch.testing.assert_close(d_x, 6.0 * y.expand(3, 4))
        torch.testing.assert_close(d_y, 3.0 * x.sum(0))
        torch.testing.assert_close(torch.autograd.grad(d_x.sum(), y)[0], torch.full((4,), 18.0))

    def test_a_declared_gradient_under_transforms_and_autocast(self) -> None:
        op = fg.op(lambda x, w: fg.round(x) @ w, name="through")
        op.gradient(lambda d_out, x, w: (d_out @ w.mT, x.mT @ d_out))
        x, w = torch.randn(2, 3, 4), torch.randn(4, 5)
        expected = torch.ones(3, 5) @ w.mT

        def total(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = op(x, w)
            return result.sum()

        torch.testing.assert_close(torch.func.vmap(op, in_dims=(0, None))(x, w), x.round() @ w)
        torch.testing.assert_close(torch.func.grad(total)(x[0]), expected)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(x), expected.expand(2, 3, 4))
        leaf = x[0].clone().requires_grad_()
        result = total(leaf)
        with torch.autocast("cpu", torch.bfloat16):
            (gradient,) = torch.autograd.grad(result, leaf)
        torch.testing.assert_close(gradient, expected)

    def test_a_declared_gradient_of_several_results_is_refused(self) -> None:
        op = fg.op(lambda x, y: (x * y, x + y), name="both")
        op.gradient(lambda d_out, d_sum, x, y: (d_out * d_sum, d_out))
        with pytest.raises(fg.DeviceError, match=r"both, with a declared gradient of several results\n.*which lacks"):
            op(torch.randn(3), torch.randn(3))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_librarys_ops(self, dtype: torch.dtype) -> None:
        x, w = torch.randn(2, 6, 3).to(dtype), torch.randn(6).to(dtype)
        given = torch.nn.functional.group_norm(x, 3, w)
        torch.testing.assert_close(ops.group_norm(x, 3, w), given)
        target = torch.randint(3, (12,))
        logits = torch.randn(12, 3).to(dtype)
        expected = torch.nn.functional.cross_entropy(logits, target)
        torch.testing.assert_close(ops.cross_entropy(logits, target), expected)
        rows, weight = torch.randn(12, 8).to(dtype), torch.randn(3, 8).to(dtype)
        expected = torch.nn.functional.cross_entropy(rows @ weight.mT, target)
        torch.testing.assert_close(ops.linear_cross_entropy(rows, weight, target), expected, rtol=0.02, atol=0.02)

    def test_out(self) -> None:
        x, out = torch.randn(3, 4), torch.empty(3, 4)
        double = fg.op(lambda x: x * 2.0, name="double")
        assert double(x, out=out) is out and torch.equal(out, x * 2)
        with pytest.raises(fg.ShapeError, match=r"double, out=\n.*\[4\]\n.*\[3, 4\]"):
            double(x, out=torch.empty(4))

    def test_autocast_counts_by_its_policy(self) -> None:
        x, w = torch.randn(3, 4), torch.randn(4, 5)
        plain, half = (fg.op(lambda x, w: x @ w, name="product", autocast=policy) for policy in (None, "half"))
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(plain(x, w), torch.mm(x.double(), w.double()).float())
            assert half(x, w).dtype is torch.bfloat16

    def test_transforms_are_torchs(self) -> None:
        x, y = torch.randn(2, 3), torch.randn(3)
        op = fg.op(lambda x, y: fg.sin(x) * y, name="wave")
        torch.testing.assert_close(torch.func.vmap(op, in_dims=(0, None))(x, y), x.sin() * y)
        torch.testing.assert_close(torch.func.grad(lambda x: op(x, y).sum())(x), x.cos() * y)
        torch.testing.assert_close(torch.func.jvp(lambda x: op(x, y), (x,), (x,))[1], x.cos() * y * x)

    def test_what_does_not_fit_is_refused_as_ever(self) -> None:
        op = fg.op(lambda x, y: fg.sin(x) * y, name="wave")
        with pytest.raises(fg.ShapeError, match="dimension 1 of x of size 4"):
            op(torch.randn(3, 4), torch.randn(5))
        with pytest.raises(fg.ShapeError, match="dimension"):
            fg.op(lambda x, y: x @ y, name="product")(torch.randn(3, 4), torch.randn(5, 6))
        with pytest.raises(fg.DtypeError, match="complex"):
            op(torch.randn(3, 4).to(torch.complex64), torch.randn(4))


SCRIPT = """
import torch
del torch._C.{name}
import fusegen as fg
@fg.op
def wave(x, y): return fg.sin(x) * y
x = torch.ones(3, requires_grad=True)
wave(x, x).sum().backward()
try:
    wave.overload(x, x)
except fg.DeviceError as error:
    print(error)
"""


def test_without_what_tracing_needs_calls_run_and_tracing_is_refused() -> None:
    script = SCRIPT.format(name="_AutoDispatchBelowAutograd")
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "fusegen's tracing\n" in done.stdout and "which lacks torch._C._AutoDispatchBelowAutograd" in done.stdout
