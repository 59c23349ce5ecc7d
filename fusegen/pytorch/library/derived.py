"""Ops that follow from a call: the forward that saves, its backward, and theirs, under names that a graph can hold.

What torch traces into a graph must be a registered op, also in another process that loads the graph from a cache. So
each op ``NAME`` has beside it ``NAME_forward`` and ``NAME_backward``, which take the tensors of the Op in order, its
runtime numbers, what no tensor tells of sizes and strides, and a text that says which Op it is: the call (kinds of
arguments, which sizes are 1, constants) and the steps from there: "train" for gradients of some arguments, "back" from
some results, "batch" where some arguments have a value for each of many calls, "tangent" given those of some arguments.
Kernels find the Op by that text, and derive it where they see it for the first time.
"""

from __future__ import annotations

import ast
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import Any

import torch

from fusegen import pipeline
from fusegen.core import dtypes
from fusegen.core.declared import without_declared_gradients
from fusegen.core.dtypes import DType
from fusegen.core.errors import DeclarationError
from fusegen.core.ir import Op, Operand, asked_axes, shaped_axes
from fusegen.core.locks import cached_property
from fusegen.core.products import contracted_sizes
from fusegen.core.recent import Recent
from fusegen.core.serialize import op_to_json
from fusegen.core.views import dims_of, rank_of
from fusegen.declare.op import Declaration
from fusegen.declare.trace import ScalarSpec, TensorSpec
from fusegen.derive.batch import batch, is_wide
from fusegen.derive.gradient import GradientNames
from fusegen.derive.tangent import tangent_names
from fusegen.derive.training import Training
from fusegen.distribute.sharding import localized, tied
from fusegen.distribute.stages import staged
from fusegen.plan import backward, frameworks
from fusegen.pytorch.autograd.function import in_memory
from fusegen.pytorch.library import fake
from fusegen.run.runner import Runner
from fusegen.run.runners import runner_of

MOST_RUNNERS = 256
# No parameter can have these names.
AUTOCAST = "autocast to"
IDENTITY = "declared as"


@dataclass
class Derived:
    """An Op and how it came about.

    Args:
        declaration: of the op that was called.
        call: arguments of the call as text (see ``call_text``).
        steps: what was derived from it, in order: methods here, and their arguments.
        op: the result.
        axes: axes whose sizes no operand tells; they are handed over.
        like: results whose strides are handed over, with their ranks: gradients, which lie as their arguments do.
        public: how many results the caller sees; the rest is saved for the backward.
    """

    declaration: Declaration
    call: str
    steps: tuple[tuple[Any, ...], ...]
    op: Op
    axes: tuple[str, ...] = ()
    like: tuple[tuple[str, int], ...] = ()
    public: int = 0
    training: Any = None
    runners: dict[tuple[int, ...], Runner] = field(default_factory=dict)
    children: dict[tuple[Any, ...], Derived] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """What stands in a graph for this Op; the checksum tells a graph that was compiled for another."""
        return json.dumps([json.loads(self.call), *self.steps, zlib.crc32(op_to_json(self.op).encode())])

    @cached_property
    def names(self) -> list[str]:
        """Names of the results, in order."""
        return backward.result_names(self.op)

    @cached_property
    def arguments(self) -> list[str]:
        """Names of the tensors, in order."""
        return list(dict.fromkeys(o.base for o in self.op.operands))

    # -- derivatives ------------------------------------------------------------------------------------------------

    def train(self, wanted: tuple[str, ...]) -> Derived:
        """The forward that saves what the gradients of ``wanted`` will need."""
        return self._child(("train", wanted), lambda: self._train(wanted))

    def back(self, given: tuple[int, ...]) -> Derived | None:
        """The backward from the results (by position) that have a cotangent; None if no argument is reached."""
        found = self._child(("back", given), lambda: self._back(given))
        return found if found.op.outputs else None

    def batch(self, wide: tuple[str, ...]) -> Derived:
        """Many calls in one, of which the arguments ``wide`` have a value each."""
        return self._child(("batch", wide), lambda: self._batch(frozenset(wide)))

    def tangent(self, given: tuple[str, ...]) -> Derived:
        """The tangents of the float results, given those of these arguments."""
        return self._child(("tangent", given), lambda: self._tangent(given))

    def _child(self, step: tuple[Any, ...], make: Any) -> Derived:
        if step not in self.children:
            self.children[step] = make()
        return self.children[step]

    def _train(self, wanted: tuple[str, ...]) -> Derived:
        if not wanted:
            training: Any = Training(self.op, len(self.op.outputs), (), ())
        else:
            training = pipeline.train_op(self.op, wanted)
        return replace(
            self, steps=(*self.steps, ("train", wanted)), op=training.forward, public=len(self.names),
            training=training, runners={}, children={},
        )  # fmt: skip

    def _batch(self, wide: frozenset[str]) -> Derived:
        op = batch(self.op, wide)
        has_calls = is_wide(op)
        like = tuple((name, rank + has_calls[name]) for name, rank in self.like)
        return replace(
            self, steps=(*self.steps, ("batch", tuple(sorted(wide)))), op=op, axes=untold_axes(op), like=like,
            training=None, runners={}, children={},
        )  # fmt: skip

    def _tangent(self, given: tuple[str, ...]) -> Derived:
        found = backward.reading(pipeline.tangent_op(self.op, given), self.op.operands[:1])
        count = len(backward.result_names(found))
        steps = (*self.steps, ("tangent", given))
        return Derived(self.declaration, self.call, steps, found, untold_axes(found), (), count)

    def _back(self, given: tuple[int, ...]) -> Derived:
        pruned = backward.prune_backward(self.training, given, frozenset(self.training.wanted), sharing=False).op
        ranks = {o.base: rank_of(o) for o in pruned.outputs}
        steps = (*self.steps, ("back", given))
        return Derived(
            self.declaration, self.call, steps, pruned, untold_axes(pruned), tuple(ranks.items()), len(ranks)
        )

    @cached_property
    def gradients(self) -> GradientNames:
        return GradientNames.of(self.op)

    @cached_property
    def saved(self) -> tuple[list[str], list[int]]:
        """Arguments, and results by position, that the backward reads."""
        return backward.saved_by(self.training, self.arguments) if self.training.wanted else ([], [])

    @cached_property
    def kept(self) -> backward.Saved:
        """The same by position, and what else a node tells torch."""
        return backward.Saved.of(self.op, self.arguments, self.saved)

    @cached_property
    def differentiable(self) -> list[int]:
        """Results (by position) that have a gradient."""
        return backward.differentiable(self.op)

    @cached_property
    def tangents(self) -> GradientNames:
        return tangent_names(self.op)

    def local(self, which: tuple[Any, ...]) -> Derived:
        """What one process runs (distribute/sharding).

        Args:
            which: the axis that the op goes through in stages, or None; the stage; axes of which the process has a
                piece.
        """
        return self._child(("local", which), lambda: self._local(*which))

    def _local(self, through: str | None, stage: int, *axes: str) -> Derived:
        op = without_declared_gradients(self.op)
        op = localized(op if through is None else staged(op, tied(op, through))[stage], axes)
        names = backward.result_names(op)
        like = tuple((name, rank) for name, rank in self.like if name in names)
        steps = (*self.steps, ("local", (through, stage, *axes)))
        return Derived(self.declaration, self.call, steps, op, untold_axes(op), like, len(names))

    # -- what a graph hands over --------------------------------------------------------------------------------------

    def layout(self, sizes: Mapping[str, Any], strides: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Sizes of ``axes`` and strides of ``like``, one after the other."""
        return [sizes[axis] for axis in self.axes] + [stride for name, _ in self.like for stride in strides[name]]

    def unpack(self, layout: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
        """The inverse of ``layout``."""
        sizes = dict(zip(self.axes, layout, strict=False))
        strides: dict[str, Sequence[Any]] = {}
        at = len(self.axes)
        for name, rank in self.like:
            strides[name] = tuple(layout[at : at + rank])
            at += rank
        return sizes, strides

    def run(self, given: Sequence[torch.Tensor], numbers: Sequence[Any], layout: Sequence[int]) -> list[torch.Tensor]:
        """The results, computed."""
        key = tuple(layout)
        runner = self.runners.get(key)
        if runner is None:
            if len(self.runners) >= MOST_RUNNERS:
                self.runners.clear()
            sizes, strides = self.unpack(key)
            runner = runner_of(self.op, sizes, {name: ((), tuple(s)) for name, s in strides.items()})
            self.runners[key] = runner
        values = dict(zip(self.arguments, given, strict=True))
        scalars = dict(zip((scalar.name for scalar in self.op.scalars), numbers, strict=True))
        return runner(in_memory(values), scalars, frameworks.torch())

    def imagine(self, given: Sequence[torch.Tensor], layout: Sequence[Any]) -> list[torch.Tensor]:
        """Empty tensors like the results."""
        infos = {name: fake.describe(name, t) for name, t in zip(self.arguments, given, strict=True)}
        sizes, strides = self.unpack(layout)
        return fake.results(self.op, infos, sizes, strides)


def untold_axes(op: Op) -> tuple[str, ...]:
    """Axes whose sizes an op needs and no operand tells."""
    carried = set(contracted_sizes(op, {axis: 1 for operand in op.operands for axis in operand.shape if axis}))
    needed = asked_axes((*op.statements, *op.outputs)) | shaped_axes(op.outputs)
    return tuple(sorted(needed - carried))


# -- calls as text ---------------------------------------------------------------------------------------------------

# Constants that no text can carry, by what stands for them: good in this process alone.
_opaque: dict[str, Any] = {}


def call_text(specs: Mapping[str, Any], op: Op, autocast: DType | None, identity: str = "") -> str:
    """Arguments of a call as text: ``{"input": "f32[*,1]", "weight": "number float32", "dim": "is -1"}``.

    A star is any size but 1, 4* one that is read in four parts of more than one element, 4 in parts of one. What
    autocast made of tensors comes first. The identity (pytorch/library/identity) is for torch's caches: graphs of
    another one are as good as long as the checksum holds.
    """
    parts: dict[tuple[str, int], tuple[int, str]] = {}
    for operand in op.operands:
        for dim, count, inner in _divisions(operand):
            known, _ = parts.get((operand.base, dim), (1, ""))
            parts[operand.base, dim] = lcm(known, count), "*" if inner else ""
    first = ({} if autocast is None else {AUTOCAST: autocast.name}) | ({IDENTITY: identity} if identity else {})
    return json.dumps({**first, **{name: _spec_text(name, spec, parts) for name, spec in specs.items()}})


def _divisions(operand: Operand) -> Iterator[tuple[int, int, str | None]]:
    """Dimensions of the tensor that are read in parts or groups, in how many, and the axis along each of these."""
    dims = dims_of(operand)
    counts = {groups.dim: prod(groups.counts) for groups in operand.groups}
    if operand.packed:
        counts[operand.packed.dim] = operand.packed.count * counts.get(operand.packed.dim, 1)
    for dim, count in counts.items():
        yield dim, count, operand.shape[len(dims) - 1 - dims[::-1].index(dim)]


def _spec_text(name: str, spec: Any, parts: Mapping[tuple[str, int], tuple[int, str]]) -> str:
    if isinstance(spec, TensorSpec):
        known = [parts.get((name, d), ("", "*")) for d in range(len(spec.shape))]
        sizes = ["1" if size == 1 else f"{count}{rest}" for size, (count, rest) in zip(spec.shape, known, strict=True)]
        return f"{spec.dtype.short}[{','.join(sizes)}]"
    if isinstance(spec, ScalarSpec):
        return f"number {spec.dtype.name}"
    text = repr(spec)
    if isinstance(spec, float):
        return f"float {text}"
    if isinstance(spec, torch.dtype):
        return f"dtype {text.removeprefix('torch.')}"
    try:
        if ast.literal_eval(text) == spec:
            return f"is {text}"
    except (ValueError, SyntaxError):  # no literal
        pass
    if _opaque.setdefault(text, spec) != spec:
        text = f"{text} ({len(_opaque)})"
        _opaque[text] = spec
    return f"here {text}"


def specs_of(text: str) -> tuple[dict[str, Any], DType | None]:
    """The inverse of ``call_text``: arguments, and what autocast made of tensors. Sizes other than 1 stand for any."""
    values = json.loads(text)
    autocast = values.pop(AUTOCAST, None)
    values.pop(IDENTITY, None)
    specs = {name: _spec(name, value) for name, value in values.items()}
    return specs, None if autocast is None else dtypes.BY_NAME[autocast]


def _spec(name: str, given: str) -> Any:
    kind, _, text = given.partition(" ")
    if kind == "number":
        return ScalarSpec(dtypes.BY_NAME[text])
    if kind == "float":
        return float(text)
    if kind == "dtype":
        return getattr(torch, text)
    if kind == "is":
        return ast.literal_eval(text)
    if kind != "here":
        short, _, sizes = given.rstrip("]").partition("[")
        parsed = [size.partition("*") for size in sizes.split(",") if size]
        shape = [int(count or 1) * (fake.UNKNOWN if star else 1) for count, star, _ in parsed]
        return TensorSpec(dtypes.BY_SHORT[short], tuple(shape))
    if text not in _opaque:
        raise DeclarationError(
            f"argument {name}", given=f"a graph of another process, with the constant {text}",
            expected="constants that text can carry: numbers, strings, tuples, dtypes", fix="compile again here",
        )  # fmt: skip
    return _opaque[text]


def root(declaration: Declaration, call: str, op: Op) -> Derived:
    """The Op of a call, from which others are derived."""
    return Derived(declaration, call, (), op, public=len(backward.result_names(op)))


def find(declaration: Declaration, calls: Recent[str, Derived], text: str) -> Derived:
    """The Op that a graph names.

    Args:
        calls: roots that are known, by their call's text; the root is added.

    Raises:
        DeclarationError: the graph was compiled for another declaration, or by another fusegen.
    """
    call, *steps, checksum = json.loads(text)
    key = json.dumps(call)
    node = calls.get(key)
    if node is None:
        node = calls.setdefault(key, root(declaration, key, declaration.trace(*specs_of(key))))
    for kind, which in steps:
        assert node is not None
        node = getattr(node, kind)(tuple(which))
    if node is None or json.loads(node.text)[-1] != checksum:
        raise DeclarationError(
            f"{declaration.name}, a graph that torch.compile kept", given="a graph of an earlier declaration of the op",
            expected="a graph of the op as it is declared now",
            fix="delete torch's compile cache, or set TORCHINDUCTOR_FORCE_DISABLE_CACHES=1",
        )  # fmt: skip
    return node
