"""Losses of a linear layer's result, which a language model's head is: the logits of all rows never exist at once.

Called with torch's tensors, such an op goes a chunk of rows at a time (``fg.LinearLossOp``): beside the arguments and
their gradients it takes at most a tenth of the memory of all logits.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from ._options import LibraryOp, limited, reduced
from ._shapes import needed, product, same_sizes, shapes, sizes, wrong_shape
from .classes import class_losses, cross_entropy, weight_of_target
from .linear import affine, linear


@fg.op(name="linear_cross_entropy_rows")
def _rows(
    logits: fg.Tensor, linear_bias: fg.Tensor, target: fg.Tensor, weight: fg.Tensor, ignore_index: fg.Scalar,
    label_smoothing: fg.Tensor, z_loss: fg.Tensor,
) -> fg.Tensor:  # fmt: skip
    """The loss of each row of logits, in float32 for half types."""
    x = logits if linear_bias is None else logits + linear_bias
    x = fg.cast(x, x.dtype.compute)
    options = ignore_index, label_smoothing, z_loss
    loss, _ = class_losses("linear_cross_entropy", x, target, weight, *options, 1)
    return loss


@fg.op(name="linear_cross_entropy_total")
def _total(
    loss: fg.Tensor, target: fg.Tensor, weight: fg.Tensor, ignore_index: fg.Scalar, classes: fg.Scalar,
    reduction: fg.Const, dtype: fg.Const,
) -> fg.Tensor:  # fmt: skip
    """The losses as they are, their sum, or their mean; ``target``: class numbers, or None for probabilities."""
    share = None if target is None else (target != ignore_index) & (target >= 0) & (target < classes)
    if target is not None and weight is not None:
        hit = fg.index(fg.expand_dims(weight, 0), 1) == fg.expand_dims(target, 1)
        share = weight_of_target(fg.expand_dims(weight, 0), hit, share, 1)
    return fg.cast(reduced("linear_cross_entropy", loss, reduction, weight=share), dtype)


class LinearCrossEntropy(fg.LinearLossOp, LibraryOp):
    """Cross entropy of a linear layer's rows."""

    rows, total, chunk = _rows, _total, "options"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        matrix = args[1] if len(args) > 1 else kwargs.get("linear_weight")
        if getattr(matrix, "ndim", 2) > 2 and not fg.is_symbolic(args, kwargs):
            return _of_positions(**self.declaration.bind(args, kwargs))
        return super().__call__(*args, **kwargs)


def _of_positions(
    input: Any, linear_weight: Any, target: Any, linear_bias: Any, weight: Any,
    reduction: str, ignore_index: fg.Scalar, label_smoothing: Any, z_loss: Any, options: Any,
) -> Any:  # fmt: skip
    """A weight [C, ..., K] gives each row classes at several positions: logits [N, C, ...], which are all in memory."""
    flat = None if linear_bias is None else linear_bias.reshape(-1)
    logits = linear(input, linear_weight.reshape(-1, linear_weight.shape[-1]), flat)
    return cross_entropy(
        logits.reshape(-1, *linear_weight.shape[:-1]), target, weight, reduction=reduction, ignore_index=ignore_index,
        label_smoothing=label_smoothing or 0.0, z_loss=z_loss or 0.0,
    )  # fmt: skip


def _check_positions(
    op: str, shape: tuple[int, ...], matrix: tuple[int, ...], given: tuple[int, ...], values: dict[str, Any]
) -> None:
    if len(shape) != 2 or shape[-1] != matrix[-1]:
        raise wrong_shape(
            op, "input", shape, f"shape [N, {matrix[-1]}] beside a weight of shape {list(matrix)}",
            "flatten the dimensions before the last, or pass a weight [classes, K]",
        )  # fmt: skip
    same_sizes(op, "linear_bias", values["linear_bias"], matrix[:-1], "the weight's without the last")
    if given == (*shape[:-1], *matrix[:-1]) and values["ignore_index"] is not None:
        raise _no_ignore_index(op, values["ignore_index"])


def _no_ignore_index(op: str, given: Any) -> fg.DeclarationError:
    return fg.DeclarationError(
        f"{op}, option ignore_index", given=f"{given} with a target of probabilities", expected="None (as torch)",
        fix="leave it out, or pass class numbers",
    )  # fmt: skip


def _prepare(op: str, **values: Any) -> dict[str, Any]:
    """Sizes that fit. Options that are zero are left out of the kernel."""
    shape, matrix, given = sizes(values["input"]), sizes(values["linear_weight"]), sizes(values["target"])
    if shape and matrix is not None and given is not None:
        check = _check_positions if len(matrix) > 2 else _check_sizes
        check(op, shape, matrix, given, values)
    changed: dict[str, Any] = {name: None for name in ("label_smoothing", "z_loss") if values[name] == 0}
    changed |= {"options": _rows_at_a_time(op, values["options"], shape, matrix)}
    return changed | ({"ignore_index": -100} if values["ignore_index"] is None else {})


def _rows_at_a_time(op: str, options: Any, shape: Any, matrix: Any) -> int | None:
    """How many ``options`` ask for, at most as many as there are; None: as many as suit, or sizes are not known."""
    is_count = type(options) is int and options > 0
    if not (options is None or is_count or hasattr(options, "batch_chunk_size")):
        raise fg.DeclarationError(
            f"{op}, option options", given=repr(options),
            expected="a positive number of rows to take at a time, torch.nn.LinearCrossEntropyOptions, or None",
            fix="leave it out: then a chunk's logits take less than a tenth of the memory of all",
        )  # fmt: skip
    if options is None or not shape or matrix is None or len(matrix) != 2:
        return None
    rows = product(shape[:-1])
    count: Any = options if is_count else options.batch_chunk_size
    if count is None and options.chunking_method == "auto":
        return None
    if count is None and options.chunking_method is not None:
        count = _by_aspect(options.chunking_method, rows, matrix[1], matrix[0])
    return int(max(1, rows if count is None else min(count, rows)))


def _by_aspect(method: str, rows: int, columns: int, classes: int) -> int:
    """Torch's "aspect_ratio:N": logits of as much memory as the input, their rows a power of two; an N-th of that."""
    wanted = -(-rows // max(-(-classes // max(columns, 1)), 1))
    return int((1 << max(wanted - 1, 0).bit_length()) // int(method.partition(":")[2] or 1))


def _check_sizes(
    op: str, shape: tuple[int, ...], matrix: tuple[int, ...], given: tuple[int, ...], values: dict[str, Any]
) -> None:
    if len(matrix) != 2 or matrix[1] != shape[-1]:
        raise wrong_shape(
            op, "linear_weight", matrix, f"shape [classes, {shape[-1]}] for an input of shape {list(shape)}",
            "pass it as nn.Linear's weight, [out, in]",
        )  # fmt: skip
    for name in ("linear_bias", "weight"):
        same_sizes(op, name, values[name], matrix[:1], f"one number a class of linear_weight {list(matrix)}")
    shares = (*shape[:-1], matrix[0])
    if given not in (shape[:-1], shares):
        raise wrong_shape(
            op, "target", given, f"shape {list(shape[:-1])}: a class number each, or {list(shares)}: probabilities",
            f"pass one target for each row of the input {list(shape)}",
        )  # fmt: skip
    if given == shares and values["ignore_index"] is not None:
        raise _no_ignore_index(op, values["ignore_index"])


@limited(
    _prepare,
    LinearCrossEntropy,
    label_smoothing=("a number from 0 to 1", lambda label_smoothing, **_: 0 <= label_smoothing <= 1),
    autocast="half",
)
def linear_cross_entropy(
    input: fg.Tensor, linear_weight: fg.Tensor, target: fg.Tensor, *, linear_bias: fg.Tensor = None,
    weight: fg.Tensor = None, reduction: str = "mean", ignore_index: fg.Scalar = None, label_smoothing: float = 0.0,
    z_loss: float = 0.0, options: fg.Const = None,
) -> fg.Tensor:  # fmt: skip
    """cross_entropy(x W^T + b, target) for an input x [..., K], W [classes, K] and class numbers [...].

    A weight [C, d1, ..., K] makes logits [N, C, d1, ...] of rows [N, K], which are all in memory at once (as torch's).

    Arguments are cross_entropy's; the result is of the input's dtype, and float32 under autocast. The logits exist a
    chunk of rows at a time, and so does their gradient. Where losses are added up the gradients are computed with
    the loss, and a backward only scales them; with reduction="none", and in a second backward, the logits are computed
    again. They exist in full where a gradient is differentiated again, under forward mode and torch.func, where
    gradients of ``weight`` or of probabilities are asked for, with NumPy and CuPy. torch.compile breaks its graph here,
    or has all logits in memory with fullgraph=True.

    The weight's gradient is added up over chunks in its own dtype: in half types it is rounded once a chunk.
    ``options`` says how many rows a chunk has: a number, or torch's LinearCrossEntropyOptions, of which the
    batch_chunk_size is taken, else the chunking_method ("auto": as without; what it says of accuracy changes nothing).
    Without it a chunk's logits take less than a tenth of the memory of all; more rows take more of it, and less time.

    Source: torch.nn.functional.linear_cross_entropy; by chunks of rows: Hsu et al. (Liger), arXiv 2410.10989.
    """
    needed("linear_cross_entropy", input=input, linear_weight=linear_weight, target=target)
    if input.ndim == 0 or linear_weight.ndim != 2:
        raise wrong_shape(
            "linear_cross_entropy", "linear_weight", shapes(input=input, linear_weight=linear_weight),
            "an input [..., in] and a weight [classes, in]", "pass it as nn.Linear's weight, [out, in]",
        )  # fmt: skip
    logits = affine("linear_cross_entropy", input=input, linear_weight=linear_weight, linear_bias=linear_bias)
    options = ignore_index, label_smoothing, z_loss
    loss, divisor = class_losses("linear_cross_entropy", logits, target, weight, *options, logits.ndim - 1)
    return fg.cast(reduced("linear_cross_entropy", loss, reduction, weight=divisor), input.dtype)
