"""``loss(x @ weight.mT, ...)`` for a loss of rows, without the logits of all rows ever existing.

A chunk of rows at a time: their logits, then their losses and, in the same pass and into the same memory, the gradient
of the logits; then that chunk's part of the gradients of x (its rows) and of the weight (added up). Three products in
all. For that the cotangent of a row's loss must be known before the backward, up to a factor that all rows share: so
it is where losses are summed or averaged, and the backward only scales. Where it is not (``reduction="none"``, a second
backward), the backward computes the logits again, chunk by chunk.

Nothing waits for the device, so that all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._C import _functorch
from torch.autograd import forward_ad

from fusegen import pipeline
from fusegen.core.dtypes import DType, float32
from fusegen.core.ir import Op
from fusegen.declare import language as _language
from fusegen.declare.op import Const
from fusegen.declare.value import cast
from fusegen.derive.gradient import GradientNames
from fusegen.fused_op import op
from fusegen.matmul.libraries.cublaslt import WORKSPACE
from fusegen.matmul.libraries.cublaslt_autotune import multiply
from fusegen.matmul.padding import MULTIPLE, pays, up
from fusegen.matmul.task import Factors
from fusegen.plan import frameworks
from fusegen.plan.plan import common_device
from fusegen.pytorch.autograd.legacy_vmap import is_legacy_batched
from fusegen.run.runner import Runner

language: Any = _language  # its functions are made from a table

# A chunk's logits take at most this share of the memory of all rows' logits: 3/32 leaves the rest of a tenth to other
# buffers, products' workspace among them. 8192 x 128256 in bfloat16 (2.1 GB) go in chunks of 768 rows (197 MB), 11
# of them, with 4 MB for products.
SHARE, WORKSPACE_SHARE = 3 / 32, 1 / 256
# Below these a chunk saves memory that nobody misses and costs time: a product of few rows waits for the weight, which
# it reads whole. 4096 x 32000 in bfloat16 (262 MB) go in 4 chunks of 1024 rows (66 MB).
LEAST_BYTES, LEAST_ROWS = 64 << 20, 256
# Beyond this products gain nothing. 65536 rows go in 16 chunks.
MOST_ROWS = 4096
# Rows come in whole tiles of a matrix product.
TILE = 128


def rows_per_chunk(rows: int, classes: int, size: int) -> int:
    """Rows of one chunk, with so many classes of ``size`` bytes each."""
    row = max(classes * size, 1)
    fitting = int(max(rows * row * SHARE, LEAST_BYTES)) // row
    return min(max(fitting // TILE * TILE, LEAST_ROWS), MOST_ROWS, max(rows, 1))


@dataclass(frozen=True)
class Scale:
    """Powers of two that gradients are held times of, where float16 needs them: 1 / 8192 of a probability is nothing to
    it, and the sum of 8192 numbers may be infinite.

    Attributes:
        logits: of the gradient of the logits: the number of rows, which a mean divides by, up to what leaves room.
        weight: a further one of the gradient of the weight: one over a square root of the number of rows. Many rows
            add up to the gradient of a frequent class, few to that of a rare one.
    """

    logits: float = 1.0
    weight: float = 1.0

    @classmethod
    def of(cls, product: torch.dtype, rows: int, is_mean: bool) -> Scale:
        """For so many rows of a product in this dtype."""
        if product is not torch.float16:
            return cls()
        bits = rows.bit_length()
        return cls(2.0 ** min(bits, 15) if is_mean else 1.0, 2.0 ** -(bits // 2))


@dataclass(frozen=True)
class Rows:
    """What a call computes of the logits.

    Attributes:
        product: the dtype that x and the weight are multiplied in.
        op: logits and ``others`` to a row's loss.
        others: tensors that all rows share, and numbers.
        total: computes the call's result from the losses and ``options``.
        target: has a part for each row.
        reduction: torch's word for it.
        chunk: rows of one chunk; None: as many as ``rows_per_chunk`` says.
    """

    product: torch.dtype
    op: Any
    others: Mapping[str, Any]
    total: Any
    options: Mapping[str, Any]
    target: torch.Tensor
    reduction: str
    chunk: int | None = None

    @property
    def uniform(self) -> bool:
        """Whether the losses' cotangents are known before the backward, but for a factor."""
        return self.reduction != "none"

    @property
    def scale(self) -> Scale:
        """What gradients are held times of."""
        return Scale.of(self.product, len(self.target), self.reduction == "mean")

    def factors(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two as they are multiplied: copies where autocast says so."""
        return x.to(self.product), weight.to(self.product)

    def arguments(self, logits: torch.Tensor, bias: torch.Tensor | None, part: slice) -> dict[str, Any]:
        """Those of ``op``, for some rows."""
        return {"logits": logits, "linear_bias": bias, "target": self.target[part], **self.others}

    def result(self, losses: torch.Tensor) -> torch.Tensor:
        """The call's."""
        found: torch.Tensor = self.total(loss=losses, **self.options)
        return found

    def cotangents(self, losses: torch.Tensor) -> torch.Tensor:
        """The losses' cotangents where the result's is 1. They depend on no loss, so the losses need not be written."""
        values = {"loss": losses, **self.options}
        gradient, cotangent = _gradient(self.total.trace(**values), "loss")
        one = losses.new_ones((), dtype=frameworks.torch().back[self.options["dtype"]])
        found = torch.empty_like(losses)
        if len(losses):
            sizes = tuple((axis, len(losses)) for axis in gradient.outputs[0].shape if axis)
            _launch(gradient, {**values, cotangent: one}, [found], sizes)
        return found


def is_plain(values: Mapping[str, Any]) -> bool:
    """Whether a call can go in chunks: tensors with memory, and no derivatives but gradients of the linear layer."""
    given = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return False
    if forward_ad._current_level >= 0 or any(map(is_legacy_batched, given.values())):
        return False
    layer = {"input", "linear_weight", "linear_bias"}
    return not (torch.is_grad_enabled() and any(t.requires_grad for name, t in given.items() if name not in layer))


def run(loss: Any, traced: Op, values: Mapping[str, Any], autocast: DType | None, eager: bool) -> torch.Tensor:
    """A ``LinearLossOp``'s result, computed in chunks.

    Args:
        traced: its declaration for these arguments.
        autocast: what the product is computed in; None: the input's dtype.
        eager: under autocast the result is float32, as torch's losses are.
    """
    framework = frameworks.torch()
    infos = {name: framework.info(name, v) for name, v in values.items() if isinstance(v, torch.Tensor)}
    device = common_device(traced, infos, None)
    x, weight, target, reduction = (values[n] for n in ("input", "linear_weight", "target", "reduction"))
    product = result = autocast or framework.dtypes[x.dtype]
    if eager and product.size < 8 and torch.is_autocast_enabled(x.device.type):
        result = float32
    shape = x.shape[:-1]
    flat = x.reshape(prod(shape), x.shape[-1])
    target = target.reshape(len(flat), *target.shape[len(shape) :])
    others = [n for n in loss.rows.declaration.signature.parameters if n not in ("logits", "linear_bias", "target")]
    options = {
        "target": None if target.is_floating_point() else target, "weight": values["weight"], "classes": len(weight),
        "ignore_index": values["ignore_index"], "reduction": reduction, "dtype": result,
    }  # fmt: skip
    rows = Rows(
        framework.back[product], loss.rows, {name: values[name] for name in others}, loss.total, options, target,
        reduction, None if loss.chunk is None else values[loss.chunk],
    )  # fmt: skip
    with framework.without_autocast(device):
        if torch.is_grad_enabled():
            found: torch.Tensor = _Chunked.apply(rows, flat, weight, values["linear_bias"])  # type: ignore[no-untyped-call]
        else:
            found = rows.result(_losses(rows, *rows.factors(flat, weight), values["linear_bias"]))
    return found if rows.uniform else found.reshape(shape)


# -- a loop over the chunks ------------------------------------------------------------------------------------------


def _ranges(x: torch.Tensor, weight: torch.Tensor) -> list[slice]:
    """Classes that products take one after the other: a multiple of 8, which cuBLAS's fast kernels for halves ask for
    (matmul/padding), and the few that are left. So the weight needs no copy that is rounded up.
    """
    classes, left = len(weight), len(weight) % MULTIPLE
    sizes = (len(x), weight.shape[1], classes)
    if left and x.element_size() == 2 and pays(str(x.device), sizes, 1, 0, 3):
        return [slice(0, classes - left), slice(classes - left, classes)]
    return [slice(0, classes)]


def _chunks(
    rows: Rows, x: torch.Tensor, weight: torch.Tensor, ranges: Sequence[slice]
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Which rows, and their logits, which all take the same memory; its rows are aligned."""
    count = rows.chunk or rows_per_chunk(len(x), len(weight), x.element_size())
    workspace = _workspace(x, weight)
    memory = x.new_empty(min(count, len(x)), up(len(weight)) if len(ranges) > 1 else len(weight))
    for begin in range(0, len(x), count):
        part = slice(begin, min(begin + count, len(x)))
        logits = memory[: part.stop - begin, : len(weight)]
        for some in ranges:
            multiply(Factors(x[part], weight[some].mT, None, None, logits[:, some]), workspace=workspace)
        yield part, logits


def _workspace(x: torch.Tensor, weight: torch.Tensor) -> int:
    """The most bytes that a product may take besides: a power of two, so that calls of like sizes agree."""
    share = len(x) * len(weight) * x.element_size() * WORKSPACE_SHARE
    return min(1 << int(share).bit_length() >> 1, WORKSPACE)


def _losses(rows: Rows, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Each row's loss."""
    losses = _one_a_row(x)
    for part, logits in _chunks(rows, x, weight, _ranges(x, weight)):
        values = rows.arguments(logits, bias, part)
        _launch(rows.op.trace(**values), values, [losses[part]])
    return losses


def _losses_and_gradients(
    rows: Rows, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, cotangents: torch.Tensor | None,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:  # fmt: skip
    """The same, and gradients of x, the weight and the bias (unrounded) where they are wanted, times their scales.

    Cotangents of the losses are those for a result whose own is 1 where none are given.

    Chunks' parts of the weight's gradient are added up in its own dtype: a float32 sum would take about as much memory
    as all logits (as many rows as a weight has columns are usual). A product accumulates in float32, so the sum is
    rounded once a chunk and not once; such errors add up like their square root.
    """
    losses = _one_a_row(x)
    scale = rows.scale
    cotangents = rows.cotangents(losses) if cotangents is None else cotangents
    cotangents = cotangents * scale.logits if scale.logits != 1.0 else cotangents
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format) if wanted[0] else None
    d_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if wanted[1] else None
    d_bias = losses.new_zeros(len(weight)) if wanted[2] else None
    if d_weight is not None and not len(x):
        d_weight.zero_()
    ops: dict[int, tuple[Op, str]] = {}
    ranges, workspace = _ranges(x, weight), _workspace(x, weight)
    for part, logits in _chunks(rows, x, weight, ranges):
        values = rows.arguments(logits, bias, part)
        if len(logits) not in ops:  # all chunks but the last are of one size
            ops[len(logits)] = _with_gradient(rows.op.trace(**values), "logits")
        joint, cotangent = ops[len(logits)]
        _launch(joint, {**values, cotangent: cotangents[part]}, [losses[part], logits])
        for some in ranges:
            mine = logits[:, some]
            if d_x is not None:
                multiply(Factors(mine, weight[some], None, None, d_x[part]), adds=some.start > 0, workspace=workspace)
            if d_weight is not None:
                product = Factors(mine.mT, x[part], None, None, d_weight[some])
                multiply(product, adds=part.start > 0, scale=scale.weight, workspace=workspace)
        if d_bias is not None:
            _into(add_rows, {"total": d_bias, "rows": logits}, d_bias)
    return losses, [d_x, d_weight, d_bias]


def _one_a_row(x: torch.Tensor) -> torch.Tensor:
    framework = frameworks.torch()
    return x.new_empty(len(x), dtype=framework.back[framework.dtypes[x.dtype].compute])


@functools.lru_cache(maxsize=256)
def _with_gradient(traced: Op, wanted: str) -> tuple[Op, str]:
    """The op's result and the gradient of one argument; what the result's cotangent is called."""
    cotangent = GradientNames.of(traced).cotangent(traced.outputs[0])
    return pipeline.value_and_grad_op(traced, (wanted,), (0,)), cotangent.name


@functools.lru_cache(maxsize=256)
def _gradient(traced: Op, wanted: str) -> tuple[Op, str]:
    """The gradient of one argument by itself; what the result's cotangent is called."""
    cotangent = GradientNames.of(traced).cotangent(traced.outputs[0])
    return pipeline.gradient_op(traced, (wanted,), (0,)), cotangent.name


@functools.lru_cache(maxsize=256)
def _runner(traced: Op, sizes: tuple[tuple[str, int], ...]) -> Runner:
    return Runner(traced, dict(sizes))


def _launch(
    traced: Op, values: Mapping[str, Any], out: Sequence[torch.Tensor], sizes: tuple[tuple[str, int], ...] = ()
) -> None:
    """Write the op's results into ``out``, without autograd's knowledge; ``sizes`` are of axes that no operand has."""
    scalars = {scalar.name: values[scalar.name] for scalar in traced.scalars}
    _runner(traced, sizes)(values, scalars, frameworks.torch(), out)


def _into(what: Any, values: dict[str, Any], out: torch.Tensor) -> torch.Tensor:
    _launch(what.trace(**values), values, [out])
    return out


@op
def add_rows(total: Any, rows: Any) -> Any:
    """The bias's gradient: what all rows add up to."""
    return total + language.sum(cast(rows, total.dtype), 0)


@op
def scaled(gradient: Any, cotangent: Any, scale: float, dtype: Const) -> Any:
    """A gradient for a result with cotangent 1, for any; ``scale``: what it is held times of."""
    return cast(gradient * (cotangent / scale), dtype)


# -- the node of autograd's graph ------------------------------------------------------------------------------------


class _Chunked(torch.autograd.Function):
    """forward(rows, x, weight, bias) -> result."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, x: Any, weight: Any, bias: Any) -> torch.Tensor:
        wanted = ctx.needs_input_grad[1:]
        ctx.rows, ctx.wanted, ctx.is_spent = rows, wanted, False
        gradients: list[torch.Tensor | None] = [None, None, None]
        factors = rows.factors(x, weight)
        if rows.uniform and any(wanted):
            losses, gradients = _losses_and_gradients(rows, *factors, bias, None, wanted)
        else:
            losses = _losses(rows, *factors, bias)
        ctx.save_for_backward(x, weight, bias, rows.target, *gradients)
        return rows.result(losses)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> tuple[Any, ...]:
        rows: Rows = ctx.rows
        x, weight, bias, _, *gradients = ctx.saved_tensors
        if torch.is_grad_enabled() or is_legacy_batched(cotangent) or _functorch.is_functorch_wrapped_tensor(cotangent):
            return None, *_by_ordinary_ops(ctx, x, weight, bias, cotangent)
        if ctx.is_spent or not rows.uniform:
            given = None if rows.uniform else cotangent.to(_one_a_row(x[:0]).dtype)
            with frameworks.torch().without_autocast(x.device.type):
                _, gradients = _losses_and_gradients(rows, *rows.factors(x, weight), bias, given, ctx.wanted)
        ctx.is_spent = True  # the gradients are finished where they are
        d_x, d_weight, d_bias = gradients
        shared, scale = cotangent if rows.uniform else None, rows.scale
        d_weight = _finished(d_weight, shared, scale.logits * scale.weight, weight)
        return None, _finished(d_x, shared, scale.logits, x), d_weight, _finished(d_bias, shared, scale.logits, bias)


def _finished(gradient: Any, cotangent: Any, scale: float, like: Any) -> Any:
    """A gradient times the result's cotangent, without its scale; in its own memory if it has ``like``'s dtype."""
    if gradient is None or (cotangent is None and scale == 1.0 and gradient.dtype is like.dtype):
        return gradient
    cotangent = gradient.new_ones((), dtype=torch.float32) if cotangent is None else cotangent
    values = {"gradient": gradient, "cotangent": cotangent, "scale": scale, "dtype": like.dtype}
    return _into(
        scaled, values, gradient if gradient.dtype is like.dtype else torch.empty_like(gradient, dtype=like.dtype)
    )


def _by_ordinary_ops(ctx: Any, x: Any, weight: Any, bias: Any, cotangent: Any) -> list[Any]:
    """Gradients that can be differentiated, or many at once: with the logits of all rows in memory."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad(), frameworks.torch().without_autocast(x.device.type):
        left, right = ctx.rows.factors(x, weight)
        losses = ctx.rows.op(**ctx.rows.arguments(torch.mm(left, right.mT), bias, slice(None)))
        leaves = [t for t, wanted in zip((x, weight, bias), ctx.wanted, strict=True) if wanted]
        found = iter(torch.autograd.grad(ctx.rows.result(losses), leaves, cotangent, create_graph=create_graph))
    return [next(found) if wanted else None for wanted in ctx.wanted]
