"""What people read: the goldens, their freshness and their format, and that it is what runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.cli.arguments import library, resolve
from fusegen.core.errors import DerivativeError
from fusegen.generate.rendered import PREAMBLE, headers, one_file
from fusegen.inspect.passes import passes
from fusegen.launch.cache import default_cache
from fusegen.launch.compile import cached_cubin, supported_architectures
from fusegen.plan.targets import CpuTarget, chip_of
from tests.support.goldens import emitted, load_tool

ROOT = Path(__file__).resolve().parents[2]
# What every architecture gets is compiled of these, which are scheduled in many ways, and of a part of the library that
# is another one for each.
SCHEDULED = ("batch_norm", "layer_norm", "residual_bias_group_norm_gelu", "softmax")


@pytest.fixture
def tool(tmp_path: Path) -> ModuleType:
    """tools/generate.py, writing to a folder of its own."""
    module = load_tool()
    module.FOLDER = tmp_path / "generated"  # type: ignore[attr-defined]
    module.FOLDER.mkdir()
    return module


@pytest.mark.parametrize("seed", ["0", "1"])
def test_goldens_are_fresh_whatever_the_hash_seed(seed: str, tmp_path: Path) -> None:
    # Each process starts with an empty cache, so nothing is remembered from the other one.
    environment = {**os.environ, "PYTHONHASHSEED": seed, "FUSEGEN_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(ROOT / "tools" / "generate.py"), "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "generated/ is what the compiler makes\n"), done.stdout + done.stderr


def test_the_tool_writes_once_and_then_nothing(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["gelu"]) == 0
    names = sorted(path.name for path in (tool.FOLDER / "gelu").iterdir())
    assert names == [
        "backward.bfloat16.cu", "backward.float32.cu", "forward.bfloat16.cu", "forward.float32.cu", "stages.txt",
    ]  # fmt: skip
    assert tool.main(["gelu"]) == 0
    assert tool.main(["gelu", "--check"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "5 texts and digests of generated/ changed", "0 texts and digests of generated/ changed",
        "generated/ is what the compiler makes",
    ]  # fmt: skip


def test_the_check_names_what_is_stale_missing_and_orphaned(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tool.main(["gelu"])
    folder = tool.FOLDER / "gelu"
    stale = folder / "forward.float32.cu"
    stale.write_text(stale.read_text(encoding="utf-8").replace("__global__", "__device__"))
    (folder / "backward.float32.cu").unlink()
    (folder / "forward.int8.cu").write_text("")
    capsys.readouterr()
    assert tool.main(["gelu", "--check"]) == 1
    report = capsys.readouterr().out
    assert "missing  generated/gelu/backward.float32.cu" in report
    assert re.search(r"stale    generated/gelu/forward.float32.cu: 2 lines differ\n( .*\n)*    -.*__device__", report)
    assert "orphan   generated/gelu/forward.int8.cu" in report
    assert "\nBring it up to date: python tools/generate.py\n" in report
    tool.main(["gelu"])
    assert tool.check(["gelu"]) == []
    assert not (folder / "forward.int8.cu").exists()


def test_digests_of_what_is_not_shown(tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool.main(["mish", "silu"])
    assert not (tool.FOLDER / "mish").exists()
    file = tool.FOLDER / tool.DIGESTS
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 10 and lines == sorted(lines, key=lambda line: line.split("  ")[1])
    changed = ["0" * 16 + lines[0][16:], *lines[2:], lines[1].replace("backward", "sideways")]
    file.write_text("".join(changed), encoding="utf-8")
    capsys.readouterr()
    assert tool.main(["--check", "mish"]) == 1
    assert capsys.readouterr().out.splitlines()[:3] == [
        "stale    mish/backward.bfloat16.cu, in generated/digests.txt",
        "missing  mish/backward.float32.cu, in generated/digests.txt",
        "orphan   mish/sideways.float32.cu, in generated/digests.txt",
    ]
    assert tool.check(["silu"]) == []
    tool.main(["mish"])
    assert file.read_text(encoding="utf-8").splitlines(keepends=True) == lines and tool.check(["mish", "silu"]) == []
    tool.main(["mish", "--into", str(tmp_path / "texts")])
    text = (tmp_path / "texts" / "mish" / "forward.float32.cu").read_text(encoding="utf-8")
    assert f"{tool.digest(text)}  mish/forward.float32.cu\n" in lines


def test_two_ops_of_each_module_are_shown(tool: Any) -> None:
    families: dict[str, list[str]] = {}
    for name in library():
        families.setdefault(resolve(name).declaration.function.__module__, []).append(name)
    shown = {module: sorted(tool.SHOWN.intersection(names)) for module, names in families.items()}
    assert {len(found) - min(2, len(families[module])) for module, found in shown.items()} == {0}, shown
    assert set(library()) >= tool.SHOWN and tool.LONG.keys() | tool.IMAGES.keys() | tool.SHORT.keys() <= tool.SHOWN


def test_a_golden_shows_how_rows_of_a_block_are_added_up() -> None:
    """Statements that no golden has may be wrong unnoticed."""
    text = (ROOT / "generated" / "layer_norm" / "backward.short.float32.cu").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.startswith("  fg::rows_sum<")]) > 1


def test_an_op_that_left_the_library_leaves_orphans(tool: Any) -> None:
    (tool.FOLDER / "gone").mkdir()
    (tool.FOLDER / "gone" / "stages.txt").write_text("")
    assert tool.orphans({}, []) == ["gone/stages.txt"]
    assert tool.orphans({}, ["silu"]) == []


@pytest.mark.cpu  # needs the clang-format of the development environment
def test_clang_format_changes_nothing(tmp_path: Path) -> None:
    files = [ROOT / "templates" / "fusegen.cuh"]
    for path in emitted():
        files.append(tmp_path / path.replace("/", "."))
        files[-1].write_text(emitted()[path], encoding="utf-8")
    tool = Path(sys.executable).parent / "clang-format"
    command = [str(tool), "--dry-run", "-Werror", f"--style=file:{ROOT / '.clang-format'}", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


def test_lines_fit_and_every_golden_says_how_to_print_it() -> None:
    for path, text in emitted().items():
        lines = text.splitlines()
        assert [line for line in lines if len(line) > 120] == [], path
        assert lines[0].startswith((f"// fusegen emit {path.partition('/')[0]} --which ", "// Operands ")), path


def test_every_op_is_emitted() -> None:
    assert {path.partition("/")[0] for path in emitted()} | {"matmul"} == set(library())


# So many that a slow machine compiles each within a test's time.
PARTS = 4


def compiled(texts: dict[str, str], arch: str) -> list[str]:
    """What the compiler says of those texts that it refuses."""

    def compile_one(path: str) -> str | None:
        try:
            cached_cubin(texts[path], arch=arch, headers=headers(), declared=path, cache=default_cache())
        except fg.CompileError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(2) as pool:
        return [error for error in pool.map(compile_one, texts) if error]


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_emitted_compiles(part: int) -> None:
    """Every text, for the architecture that it was made for, as far as the compiler here knows that one."""
    paths = sorted(emitted())[part::PARTS]
    of = {path: (re.findall(r"\.(sm_\d+)\.", path) or ["sm_90"])[0] for path in paths}
    for arch in sorted(set(of.values()) & set(supported_architectures())):
        assert compiled({path: emitted()[path] for path in paths if of[path] == arch}, arch) == []


OTHERS = [arch for arch in supported_architectures() if int(arch[3:]) >= 75 and arch != "sm_90"]


@pytest.mark.parametrize("arch", OTHERS)
def test_what_other_architectures_get_compiles(arch: str) -> None:
    """Scheduled for them, where that makes a difference."""
    tool, names = load_tool(), sorted(library())
    part = names[2 * OTHERS.index(arch) :: 2 * len(OTHERS)]
    texts = {path: text for name in {*SCHEDULED, *part} for path, text in tool.cuda(name, arch)}
    own = {path: text for path, text in texts.items() if ".long." not in path or f".{arch}." in path}
    assert len(own) > 30
    assert compiled(own, arch) == []


def test_every_kind_of_gpu_has_goldens_of_its_own_where_rows_are_long() -> None:
    tool = load_tool()
    kinds = {chip_of(arch) for arch in tool.KINDS}
    assert len(kinds) == len(tool.KINDS)
    assert {chip_of(arch) for arch in supported_architectures() if int(arch[3:]) >= 75} <= kinds
    long = {path for path in emitted() if ".long." in path}
    for arch in ("sm_75", "sm_80", "sm_86", "sm_90", "sm_110"):
        assert [path for path in long if f".{arch}." in path], arch
    texts = [emitted()[path].partition("#include")[2] for path in long]
    assert len(set(texts)) == len(texts) == len(long)
    before = [text for path, text in emitted().items() if re.search(r"\.long\.sm_[78]", path)]
    assert before and not [text for text in before if "cluster" in text.lower()]  # what no chip before Hopper has


# -- what is shown is what runs --------------------------------------------------------------------------------------


@fg.op
def norm(x, weight, *, eps=1e-6):
    rstd = fg.rsqrt(fg.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * rstd * weight


@fg.op
def cell(gates, c):
    keep, new = fg.split(gates, 2)
    c_next = fg.sigmoid(keep) * c + fg.sigmoid(new) * fg.tanh(new)
    return fg.tanh(c_next), c_next


@fg.op
def blend(x, y, w):
    return x + w * (y - x)


def tensor(*shape: int, transposed: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    x = torch.randn(shape[::-1] if transposed else shape, generator=generator)
    return (x.t() if transposed else x).requires_grad_()


CASES = {
    "norm": (norm, lambda: [tensor(6, 64), tensor(64)]),
    "packed": (cell, lambda: [tensor(6, 128), tensor(6, 64)]),
    "transposed": (blend, lambda: [tensor(64, 48), tensor(64, 48, transposed=True), tensor(64, 48)]),
    "broadcast": (blend, lambda: [tensor(4, 1, 8), tensor(4, 6, 8), tensor(6, 1)]),
    "odd": (blend, lambda: [tensor(7, 5)[1:], tensor(7, 5)[1:], tensor(6, 5)]),
}


@pytest.mark.cpu
@pytest.mark.emulator
@pytest.mark.parametrize("case", CASES)
def test_the_text_that_is_shown_is_the_text_that_runs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, make = CASES[case]
    args = make()
    for i, leaf in enumerate(args):
        if not leaf.is_leaf:
            args[i] = leaf.detach().requires_grad_()
    ran: dict[str, list[str]] = {}
    load = CpuTarget.load

    def record(self: CpuTarget, rendered: Any, *rest: Any) -> Any:
        ran.setdefault(label, []).append(rendered.text)
        return load(self, rendered, *rest)

    monkeypatch.setattr(CpuTarget, "load", record)
    label = "forward"
    with torch.no_grad():
        results = op(*args)
    results = results if isinstance(results, tuple) else (results,)
    results = op(*args)
    label = "backward"
    cotangents = [torch.ones_like(r) for r in (results if isinstance(results, tuple) else (results,))]
    torch.autograd.grad(results, args, cotangents)
    shown = passes(op, tuple(args), {}, "backward")
    for found, name in zip(shown, ("forward", "backward"), strict=True):
        texts = {item.rendered.text for item in found.kernels}
        assert texts <= set(ran[name]), f"{name} was not run as shown:\n{found.text}\nran:\n" + "\n".join(ran[name])


def test_real_tensors_and_specs_of_their_shape_print_the_same() -> None:
    x, weight = tensor(6, 64), tensor(64)
    specs = fg.TensorSpec(fg.float32, (6, 64)), fg.TensorSpec(fg.float32, (64,))
    assert norm.show(x, weight) == norm.show(*specs)
    assert norm.emit(x, weight, which="backward") == norm.emit(*specs, which="backward")


def test_strides_of_real_tensors_count() -> None:
    x = torch.zeros(64, 48)
    assert "tiled transpose: y is contiguous along another axis" in blend.emit(x, torch.zeros(48, 64).t(), x)
    assert "tiled transpose" not in blend.emit(x, x, x)


def test_only_gradients_that_are_required_are_shown() -> None:
    x, y = torch.zeros(8, 8), torch.zeros(8, 8, requires_grad=True)
    text = blend.emit(x, y, x, which="backward")
    assert "d_y" in text
    assert "d_x" not in text


def test_show_has_every_stage_in_order() -> None:
    text = re.sub(r"into \d+ kernels?", "into kernels", norm.show(tensor(6, 64), tensor(64)))
    assert re.findall(r"^== (.*?) =+$", text, re.MULTILINE) == [
        "declared", "forward: traced", "forward: fused into kernels", "forward: scheduled", "forward: CUDA",
        "backward: derived", "backward: fused into kernels", "backward: scheduled", "backward: CUDA",
    ]  # fmt: skip


def test_the_backward_of_the_backward() -> None:
    text = blend.emit(*[fg.TensorSpec(fg.float32, (8, 8))] * 3, which="double-backward")
    assert "blend_double_backward_f32" in text


def test_what_has_no_gradient_says_so() -> None:
    n = fg.TensorSpec(fg.int32, (8,))
    with pytest.raises(DerivativeError, match=r"(?s)blend, backward.*no float result of a float.*fix: .*forward"):
        blend.emit(n, n, n, which="backward")
    with pytest.raises(DerivativeError, match=r"(?s)which='sideways'.*'forward', 'backward', 'double-backward'"):
        blend.emit(n, n, n, which="sideways")
    assert "backward" not in blend.show(n, n, n)


def test_one_file_includes_and_defines_things_once() -> None:
    twice = fg.register_function(
        "twice_for_the_file", cuda="twice_for_the_file({0})", reference=lambda t, x: 2 * x,
        derivative=lambda x, y: (y / x,),
        header="__device__ inline float twice_for_the_file(float x) { return x + x; }",
    )  # fmt: skip

    @fg.op
    def doubled(x, w):
        return twice(x) * twice(w)

    specs = fg.TensorSpec(fg.float32, (64, 64)), fg.TensorSpec(fg.float32, (64,))
    kernels = [kernel.rendered for item in passes(doubled, specs, {}, "backward") for kernel in item.kernels]
    text = one_file(kernels)
    assert text.startswith(PREAMBLE)
    assert text.count(PREAMBLE.strip()) == 1
    assert text.count("__device__ inline float twice_for_the_file") == 1
    assert [text.count(f"void {kernel.entry}(") for kernel in kernels] == [1] * len(kernels)
    assert len(kernels) > 1
    assert one_file(kernels[:1]) == kernels[0].text == doubled.emit(*specs)


def test_long_expressions_are_cut_and_keep_their_value() -> None:
    @fg.op
    def long(first_operand, second_operand):
        a, b = first_operand, second_operand
        wave = fg.exp(a * b + a) * fg.sin(b - a * a)
        return wave + fg.tanh(a + 2 * b) / (fg.abs(b) + 3) - fg.cos(a) * fg.sigmoid(b * b + a)

    spec = fg.TensorSpec(fg.float64, (16,))
    for which in ("forward", "backward"):
        assert max(map(len, long.emit(spec, spec, which=which).splitlines())) <= 120
    a, b = (torch.linspace(-1, 1, 16, dtype=torch.float64) + i for i in (0, 0.25))
    expected = torch.exp(a * b + a) * torch.sin(b - a * a) + torch.tanh(a + 2 * b) / (b.abs() + 3)
    torch.testing.assert_close(long(a, b), expected - a.cos() * torch.sigmoid(b * b + a), rtol=1e-14, atol=1e-14)


def test_a_vector_is_stored_where_one_term_says() -> None:
    """NVRTC stored 16 bytes word by word where the pointer was a sum of several terms (docs/design.md)."""
    stores = [call for text in emitted().values() for call in re.findall(r"store_vector<\d>\(.*", text)]
    wrong = [call for call in stores if re.match(r"store_vector<\d>\(\w+ \+ \w+( \*[^,]*)? \+ ", call)]
    assert len(stores) > 1000 and not wrong
