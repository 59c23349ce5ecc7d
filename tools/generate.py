"""Writes the goldens: the CUDA and every stage of the library's ops, for people to read and for tests to compare.

python tools/generate.py [OP ...]            write generated/<op>/<pass>.<dtype>.cu and generated/<op>/stages.txt, or
                                             of ops that are not shown their digests in generated/digests.txt
python tools/generate.py --check [OP ...]    fail if they are not what the compiler makes now, and say what differs
python tools/generate.py --into FOLDER       write all texts, those that have a digest too, into another folder
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fusegen.cli.arguments import Request, bind, library, resolve
from fusegen.core import dtypes
from fusegen.core.dtypes import DType
from fusegen.core.errors import FusegenError
from fusegen.declare.op import SEED
from fusegen.declare.trace import TensorSpec
from fusegen.fused_op import FusedOp
from fusegen.inspect.passes import Pass, backward_of, differentiable, passes
from fusegen.plan.frameworks import TensorInfo
from fusegen.plan.layout import row_major

# The ops whose texts are kept for people to read, two of each module of ops/. Of all others a digest is kept: it says
# whether their texts are what they were.
SHOWN = frozenset({
    "lerp", "alpha_over", "gelu", "prelu", "bias_gelu", "residual_bias_silu", "lstm_cell", "linear_gru_cell",
    "batch_norm", "group_norm", "cross_entropy", "nll_loss", "normalize", "cosine_similarity", "layer_norm_gelu",
    "residual_bias_group_norm_gelu", "geglu", "swiglu_packed", "kl_div", "sigmoid_focal_loss", "linear_gelu",
    "linear_residual", "linear_cross_entropy", "mse_loss", "huber_loss", "triplet_margin_loss", "hinge_embedding_loss",
    "mlp", "swiglu_mlp", "layer_norm", "rms_norm", "where", "clamp", "matmul", "addmm", "var", "argmax", "softmax",
    "logsumexp", "dropout", "feature_dropout", "gather", "scatter", "cumsum", "logcumsumexp",
})  # fmt: skip
DIGESTS = "digests.txt"
FOLDER = Path(__file__).resolve().parent.parent / "generated"
DTYPES = (dtypes.float32, dtypes.bfloat16)
# Ways to lie in memory, each shown once, on lerp: shapes of input, end and weight, strides where they are not
# row-major, and how many bytes the first argument lies off an address that vectors could use.
PATTERNS: dict[str, tuple[list[tuple[int, ...]], dict[int, tuple[int, ...]], int]] = {
    "broadcast": ([(16, 1, 1, 1), (16, 3, 244, 244), (3, 1, 244)], {}, 0),
    "transposed": ([(1024, 512)] * 3, {1: (1, 1024)}, 0),
    "strided": ([(1024, 512)] * 3, {0: (2048, 2), 2: (516, 1)}, 0),
    "unaligned": ([(1024, 512)] * 3, {}, 4),
    "channels_last": ([(8, 64, 56, 56), (8, 64, 56, 56), (64, 1, 1)], dict.fromkeys((0, 1), (200704, 1, 3584, 64)), 0),
    "index64": ([(65536, 65536), (65536, 65536), (65536,)], {}, 0),
    "scalar": ([(512, 3072), (512, 3072)], {}, 0),
}
# Ops of rows whose rows also lie side by side, as the classes of an image's pixels do: shapes of their tensors, and
# arguments.
IMAGES: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, int]]] = {
    "softmax": ({"input": (8, 19, 512, 512)}, {"dim": 1}),
    "normalize": ({"input": (8, 256, 64, 64)}, {"dim": 1}),
    "cross_entropy": ({"input": (8, 19, 512, 512), "target": (8, 512, 512)}, {}),
}
# Rows that kinds of GPUs keep on chip in different ways, or not at all: shapes of their tensors, and arguments.
LONG: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "softmax": ({"input": (64, 65536)}, {"dim": -1}),
    "layer_norm": (
        {"input": (64, 16384), "weight": (16384,), "bias": (16384,)}, {"normalized_shape": (16384,)},
    ),
}  # fmt: skip
# Rows so short that a block takes several at a time, and adds up what these have of sums over rows. Their backward is
# shown, in float32: shapes of its forward's tensors, and arguments.
SHORT: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "layer_norm": ({"input": (65536, 64), "weight": (64,), "bias": (64,)}, {"normalized_shape": (64,)}),
}
# An architecture of each kind: those whose row kernels can count on the same (`launch.targets.chip_of`).
KINDS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_107", "sm_110", "sm_120")


def files(names: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """(path, text) of all that is made of the named ops, by default of the library: each stage, and the CUDA."""
    for name in names or library():
        op = resolve(name)
        yield f"{name}/stages.txt", op.show(**bind(op, Request()))
        yield from cuda(name)


def digest(text: str) -> str:
    """Whether a text is another one, in 16 letters."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def goldens(names: Sequence[str] = ()) -> tuple[dict[str, str], dict[str, str]]:
    """What is kept of the named ops: texts of those that are shown, and digests of the others' texts, by path."""
    texts, digests = {}, {}
    for path, text in files(names):
        if path.partition("/")[0] in SHOWN:
            texts[path] = text
        else:
            digests[path] = digest(text)
    return texts, digests


def kept_digests() -> dict[str, str]:
    """The digests that are written down, by path."""
    file = FOLDER / DIGESTS
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {path: found for found, path in (line.split("  ", 1) for line in lines)}


def cuda(name: str, arch: str = "sm_90") -> Iterator[tuple[str, str]]:
    """(path below generated/, text) of the CUDA of one op, scheduled for an architecture."""
    op = resolve(name)
    for dtype in DTYPES:
        yield from _each(op, Request(), dtype, arch)
    if name == "lerp":
        yield from _patterns(op)
    if name in IMAGES:
        yield from _images(op, arch)
    for dtype in DTYPES if name in LONG else ():
        yield from _long(op, dtype)
    if name in SHORT:
        shapes, options = SHORT[name]
        texts = _each(op, Request(shapes, arguments=options), dtypes.float32, arch, ".short")
        yield from (found for found in texts if found[0].startswith(f"{name}/backward"))


def _each(op: FusedOp, request: Request, dtype: DType, arch: str, path: str = "", how: str = "") -> Iterator[
    tuple[str, str]
]:  # fmt: skip
    """The passes of an op, each under the command that prints it."""
    arguments = bind(op, request, dtype)
    specs = {n: v for n, v in arguments.items() if isinstance(v, TensorSpec) and n != SEED}
    told = (*specs, *_defaults(op), SEED)
    options = [f"--arg {n}={v}" for n, v in arguments.items() if n not in told]
    for item in passes(op, (), arguments, "backward" if _has_backward(op, arguments) else "forward"):
        if not (item.kernels or item.between):  # a matrix product and nothing else
            continue
        which = item.op.label
        shapes = [f"--shape {n}={','.join(map(str, s.shape))}" for n, s in specs.items()]
        kinds = [f"--dtype {n}={s.dtype}" for n, s in specs.items() if s.dtype is not dtype]
        command = ["fusegen emit", op.name, f"--which {which}", f"--dtype {dtype}", *kinds, *shapes, *options]
        if how:
            command.append(how)
        yield f"{op.name}/{which}{path}.{dtype}.cu", _commented(command) + item.on([arch]).text


def _long(op: FusedOp, dtype: DType) -> Iterator[tuple[str, str]]:
    """What kinds of GPUs get of long rows; of those that get the same, the first."""
    shapes, options = LONG[op.name]
    seen: set[str] = set()
    for arch in KINDS:
        request = Request(shapes, arguments=options)
        for path, text in _each(op, request, dtype, arch, f".long.{arch}", f"--arch {arch}"):
            body = text.partition('#include "fusegen.cuh"')[2]
            if body not in seen:
                yield path, text
            seen.add(body)


def _defaults(op: FusedOp) -> set[str]:
    parameters = op.declaration.signature.parameters
    return {name for name, parameter in parameters.items() if parameter.default is not parameter.empty} - {"min", "max"}


def _has_backward(op: FusedOp, arguments: dict[str, object]) -> bool:
    return bool(differentiable(op.trace(**arguments)))


def _commented(command: Sequence[str]) -> str:
    """The command line that prints the same, above the text; continued where it is long."""
    joined = " ".join(part.replace(" ", "\0") for part in command)  # an option and its value stay together
    lines = textwrap.wrap(joined, 115, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(f"// {line}" for line in lines).replace(" \\\n", "\n").replace("\0", " ") + "\n"


def _patterns(op: FusedOp) -> Iterator[tuple[str, str]]:
    for pattern, (shapes, strides, misaligned) in PATTERNS.items():
        for dtype in DTYPES:
            for item in _laid_out(op, dtype, shapes, strides, misaligned):
                how = f"// Operands {pattern}: see PATTERNS in tools/generate.py\n"
                yield f"{op.name}/{item.op.label}.{pattern}.{dtype}.cu", how + item.text


def _images(op: FusedOp, arch: str) -> Iterator[tuple[str, str]]:
    shapes, options = IMAGES[op.name]
    for dtype in DTYPES:
        for item in passes(op, (), bind(op, Request(shapes, arguments=options), dtype), "backward"):
            how = "// Operands with rows side by side: see IMAGES in tools/generate.py\n"
            yield f"{op.name}/{item.op.label}.images.{dtype}.cu", how + item.on([arch]).text


def _laid_out(
    op: FusedOp, dtype: DType, shapes: Sequence[tuple[int, ...]], strides: dict[int, tuple[int, ...]], misaligned: int
) -> list[Pass]:
    names = list(op.declaration.signature.parameters)
    infos = {
        names[i]: TensorInfo(shape, strides.get(i, row_major(shape)), dtype, 0 if i else misaligned, "cpu")
        for i, shape in enumerate(shapes)
    }
    specs = {name: TensorSpec(dtype, info.shape) for name, info in infos.items()}
    arguments = {name: specs.get(name, 0.25) for name in names}
    forward = Pass.of(op.trace(**arguments), infos, {}, {})
    return [forward, backward_of(forward)]


def write(names: Sequence[str]) -> int:
    """Bring generated/ up to date; how many texts and digests changed."""
    made, digests = goldens(names)
    changed = sum(_put(FOLDER / path, text) for path, text in made.items())
    for path in orphans(made, names):
        (FOLDER / path).unlink()
        changed += 1
    for folder in sorted(FOLDER.iterdir()):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    before = kept_digests()
    after = {path: found for path, found in before.items() if not _is_of(path, names)} | digests
    _put(FOLDER / DIGESTS, "".join(f"{found}  {path}\n" for path, found in sorted(after.items())))
    return changed + sum(before.get(path) != after.get(path) for path in before.keys() | after.keys())


def _put(target: Path, text: str) -> bool:
    """Write a file, unless it is so already."""
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8", newline="\n")
    return True


def _is_of(path: str, names: Sequence[str]) -> bool:
    """Whether a path is of one of the named ops; of any where none is named."""
    return not names or path.partition("/")[0] in names


def orphans(made: dict[str, str], names: Sequence[str]) -> list[str]:
    """Files below generated/ that nothing makes any more."""
    found = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())
    return [path for path in found if "/" in path and _is_of(path, names) and path not in made]


def check(names: Sequence[str], most_lines: int = 12) -> list[str]:
    """What is stale, as lines for people; empty when nothing is."""
    made, digests = goldens(names)
    report: list[str] = []
    for path, text in made.items():
        target = FOLDER / path
        if not target.exists():
            report.append(f"missing  generated/{path}")
            continue
        found = target.read_text(encoding="utf-8")
        if found != text:
            lines = list(
                difflib.unified_diff(found.splitlines(), text.splitlines(), "written", "made now", "", "", 1, "")
            )
            changed = sum(line[:1] in "+-" for line in lines[2:])
            report.append(f"stale    generated/{path}: {changed} lines differ")
            if sum(line.startswith("    ") for line in report) < 5 * most_lines:
                report += [f"    {line}" for line in lines[2 : 2 + most_lines]]
    report += [f"orphan   generated/{path}" for path in orphans(made, names)]
    kept = {path: found for path, found in kept_digests().items() if _is_of(path, names)}
    for path in sorted(kept.keys() | digests.keys()):
        if kept.get(path) != digests.get(path):
            what = "missing" if path not in kept else "orphan " if path not in digests else "stale  "
            report.append(f"{what}  {path}, in generated/{DIGESTS}")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 1 where --check finds something."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ops", nargs="*", metavar="OP", help="names of the library; all of it by default")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail when a file is stale, missing or orphaned"
    )
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="all texts, into another folder")
    given = parser.parse_args(arguments)
    try:
        if given.into:
            texts = dict(files(given.ops))
            for path, text in texts.items():
                _put(given.into / path, text)
            print(f"{len(texts)} texts are in {given.into}")
            return 0
        if not given.check:
            print(f"{write(given.ops)} texts and digests of generated/ changed")
            return 0
        report = check(given.ops)
    except FusegenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(report) or "generated/ is what the compiler makes")
    if report:
        print("\nBring it up to date: python tools/generate.py")
        print(
            "What has a digest alone, beside another commit's: python tools/generate.py --into FOLDER, in both; diff -r"
        )
    return 1 if report else 0


if __name__ == "__main__":
    sys.exit(main())
