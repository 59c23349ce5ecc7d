"""The modules, ``fg.nn``. Made by tools/stubs.py of what fusegen is at run time: run it again when that changes."""

# mypy: disable-error-code=override

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import nn

Choice: TypeAlias = str | type | Callable[[str, nn.Module], bool]
Choices: TypeAlias = Choice | Iterable[Choice] | None

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CELU",
    "Conv1dAct",
    "Conv2dAct",
    "Conv3dAct",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "ELU",
    "GELU",
    "GLU",
    "GRUCell",
    "GaussianNLLLoss",
    "GeGLU",
    "GroupNorm",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "Mish",
    "MultiLabelSoftMarginLoss",
    "NLLLoss",
    "PReLU",
    "Patched",
    "PoissonNLLLoss",
    "QuickGELU",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "SquaredReLU",
    "SwiGLU",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "TripletMarginLoss",
    "patch",
]

class Found:
    """One module of the model.

    Args:
        name: its path in the model; "" is the model itself.
        kind: the class that it had.
        computes: the op that computes it now; "" where it was left as it was.
        why: why it was left.
    """
    name: str
    kind: str
    computes: str
    why: str

class AddLayerNorm(nn.LayerNorm):
    """(layer_norm(s), s) for s = input + residual: what stands between two layers of a transformer, in one pass.

    Arguments and parameters are torch.nn.LayerNorm's. ``bias``, of the normalized shape, is added to s as well: that
    of the matrix product which gave ``input``.
    """
    def forward(
        self,
        input: torch.Tensor,
        residual: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

class AddRMSNorm(nn.RMSNorm):
    """(rms_norm(s), s) for s = input + residual + bias; see ``AddLayerNorm``."""
    def forward(
        self,
        input: torch.Tensor,
        residual: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

class BCELoss(nn.BCELoss):
    """torch.nn.BCELoss, computed by fusegen.ops.binary_cross_entropy: -weight (t log(p) + (1 - t) log(1 - p)) for probabilities p; logarithms end at -100.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class BCEWithLogitsLoss(nn.BCEWithLogitsLoss):
    """torch.nn.BCEWithLogitsLoss, computed by fusegen.ops.binary_cross_entropy_with_logits: -weight (pos_weight t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))) for logits x.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class BatchNorm1d(nn.BatchNorm1d):
    """torch.nn.BatchNorm1d, computed by fusegen.ops.batch_norm: (x - mean) / sqrt(variance + eps) weight + bias, a mean and a variance a channel.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class BatchNorm2d(nn.BatchNorm2d):
    """torch.nn.BatchNorm2d, computed by fusegen.ops.batch_norm: (x - mean) / sqrt(variance + eps) weight + bias, a mean and a variance a channel.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class BatchNorm3d(nn.BatchNorm3d):
    """torch.nn.BatchNorm3d, computed by fusegen.ops.batch_norm: (x - mean) / sqrt(variance + eps) weight + bias, a mean and a variance a channel.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class CELU(nn.CELU):
    """torch.nn.CELU, computed by fusegen.ops.celu: x where x > 0, else alpha (exp(x / alpha) - 1). Source: torch.nn.functional.celu; Barron, arXiv 1704.07483.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Conv1dAct(nn.Conv1d):
    """activation(conv(input) + bias + residual) for torch.nn.Conv1d's arguments, parameters, state.

    ``residual``, the second argument of a call, may be left out. The convolution is torch's; what follows it is
    one pass, and so is its backward with the bias's gradient. ``activation`` is a name such as "silu", and
    ``options`` are its keywords.
    """
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "relu",
        options: dict[str, Any] | None = None,
    ) -> None: ...
    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...

class Conv2dAct(nn.Conv2d):
    """activation(conv(input) + bias + residual) for torch.nn.Conv2d's arguments, parameters, state.

    ``residual``, the second argument of a call, may be left out. The convolution is torch's; what follows it is
    one pass, and so is its backward with the bias's gradient. ``activation`` is a name such as "silu", and
    ``options`` are its keywords.
    """
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "relu",
        options: dict[str, Any] | None = None,
    ) -> None: ...
    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...

class Conv3dAct(nn.Conv3d):
    """activation(conv(input) + bias + residual) for torch.nn.Conv3d's arguments, parameters, state.

    ``residual``, the second argument of a call, may be left out. The convolution is torch's; what follows it is
    one pass, and so is its backward with the bias's gradient. ``activation`` is a name such as "silu", and
    ``options`` are its keywords.
    """
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "relu",
        options: dict[str, Any] | None = None,
    ) -> None: ...
    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...

class CosineEmbeddingLoss(nn.CosineEmbeddingLoss):
    """torch.nn.CosineEmbeddingLoss, computed by fusegen.ops.cosine_embedding_loss: 1 - cos where target = 1, max(0, cos - margin) where target = -1, else 0.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class CosineSimilarity(nn.CosineSimilarity):
    """torch.nn.CosineSimilarity, computed by fusegen.ops.cosine_similarity: sum(x1 x2) / (max(|x1|, eps) max(|x2|, eps)) along ``dim``; the two broadcast.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class CrossEntropyLoss(nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, computed by fusegen.ops.cross_entropy: -weight[target] log(softmax(x)[target]) for logits x; "mean" divides by the sum of the weights.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class ELU(nn.ELU):
    """torch.nn.ELU, computed by fusegen.ops.elu: x where x > 0, else alpha (exp(x) - 1). Source: torch.nn.functional.elu; Clevert et al., arXiv 1511.07289.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class GELU(nn.GELU):
    """torch.nn.GELU, computed by fusegen.ops.gelu: x Phi(x), Phi the normal distribution: two different functions.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class GLU(nn.GLU):
    """torch.nn.GLU, computed by fusegen.ops.glu: a sigmoid(b) for the halves a, b of ``input`` along ``dim``. Source: torch.nn.functional.glu.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class GRUCell(nn.GRUCell):
    """torch.nn.GRUCell, computed by two matrix products and fusegen.ops.gru_cell.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class GaussianNLLLoss(nn.GaussianNLLLoss):
    """torch.nn.GaussianNLLLoss, computed by fusegen.ops.gaussian_nll_loss: (log(v) + (input - target)^2 / v) / 2 with v = max(var, eps); ``full`` adds log(2 pi) / 2.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class GeGLU(nn.Module):
    """gelu(gate, approximate) value, for two tensors or for [gate, value] in one along ``dim``.

    No parameters. ``approximate`` is "none" or "tanh". Source: Shazeer, arXiv 2002.05202.
    """
    def __init__(self, dim: int = -1, approximate: str = 'none') -> None: ...
    def forward(self, gate: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor: ...

class GroupNorm(nn.GroupNorm):
    """torch.nn.GroupNorm, computed by fusegen.ops.group_norm: (x - mean) / sqrt(variance + eps) weight + bias, over a sample's channels of one group and all that follows.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Hardshrink(nn.Hardshrink):
    """torch.nn.Hardshrink, computed by fusegen.ops.hardshrink: 0 where |x| <= lambd, else x. Source: torch.nn.functional.hardshrink.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Hardsigmoid(nn.Hardsigmoid):
    """torch.nn.Hardsigmoid, computed by fusegen.ops.hardsigmoid: min(max(x + 3, 0), 6) / 6; gradient 0 at both ends. Source: torch.nn.functional.hardsigmoid.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Hardswish(nn.Hardswish):
    """torch.nn.Hardswish, computed by fusegen.ops.hardswish: x min(max(x + 3, 0), 6) / 6. Source: torch.nn.functional.hardswish; Howard et al., arXiv 1905.02244.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Hardtanh(nn.Hardtanh):
    """torch.nn.Hardtanh, computed by fusegen.ops.hardtanh: min(max(x, min_val), max_val); gradient 0 at both ends. Integers too. Source: torch.nn.functional.hardtanh.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class HingeEmbeddingLoss(nn.HingeEmbeddingLoss):
    """torch.nn.HingeEmbeddingLoss, computed by fusegen.ops.hinge_embedding_loss: x where target = 1, max(0, margin - x) where target = -1, and the sum of both elsewhere.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class HuberLoss(nn.HuberLoss):
    """torch.nn.HuberLoss, computed by fusegen.ops.huber_loss: d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = input - target; times weight.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class InstanceNorm1d(nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d, computed by fusegen.ops.instance_norm: the same for each sample and channel by itself.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class InstanceNorm2d(nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d, computed by fusegen.ops.instance_norm: the same for each sample and channel by itself.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class InstanceNorm3d(nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d, computed by fusegen.ops.instance_norm: the same for each sample and channel by itself.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class KLDivLoss(nn.KLDivLoss):
    """torch.nn.KLDivLoss, computed by fusegen.ops.kl_div: t (log(t) - x) for log-probabilities x; with ``log_target``, exp(t) (t - x).

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class L1Loss(nn.L1Loss):
    """torch.nn.L1Loss, computed by fusegen.ops.l1_loss: weight |input - target|; "mean" divides by the sum of the weights. Source: torch.nn.functional.l1_loss.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class LSTMCell(nn.LSTMCell):
    """torch.nn.LSTMCell, computed by two matrix products and fusegen.ops.lstm_cell.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm, computed by fusegen.ops.layer_norm: (x - mean) rstd weight + bias, with rstd = 1 / sqrt(variance + eps), over the trailing dimensions.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class LeakyReLU(nn.LeakyReLU):
    """torch.nn.LeakyReLU, computed by fusegen.ops.leaky_relu: x where x > 0, else negative_slope x. Source: torch.nn.functional.leaky_relu.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class LogSigmoid(nn.LogSigmoid):
    """torch.nn.LogSigmoid, computed by fusegen.ops.logsigmoid: log(1 / (1 + exp(-x))). Source: torch.nn.functional.logsigmoid.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class LogSoftmax(nn.LogSoftmax):
    """torch.nn.LogSoftmax, computed by fusegen.ops.log_softmax: x - max(x) - log(sum(exp(x - max(x)))) along ``dim``. Source: torch.nn.functional.log_softmax.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class MSELoss(nn.MSELoss):
    """torch.nn.MSELoss, computed by fusegen.ops.mse_loss: weight (input - target)^2; "mean" divides by the sum of the weights. Source: torch.nn.functional.mse_loss.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class MarginRankingLoss(nn.MarginRankingLoss):
    """torch.nn.MarginRankingLoss, computed by fusegen.ops.margin_ranking_loss: max(0, margin - target (input1 - input2)) for a target of 1 where input1 should be larger, else -1.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Mish(nn.Mish):
    """torch.nn.Mish, computed by fusegen.ops.mish: x tanh(log(1 + exp(x))). Source: torch.nn.functional.mish; Misra, arXiv 1908.08681.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class MultiLabelSoftMarginLoss(nn.MultiLabelSoftMarginLoss):
    """torch.nn.MultiLabelSoftMarginLoss, computed by fusegen.ops.multilabel_soft_margin_loss: -mean(weight (t log(sigmoid(x)) + (1 - t) log(sigmoid(-x)))) over the last dimension, one class each.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class NLLLoss(nn.NLLLoss):
    """torch.nn.NLLLoss, computed by fusegen.ops.nll_loss: -weight[target] x[target] for log-probabilities x; "mean" divides by the sum of the weights.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class PReLU(nn.PReLU):
    """torch.nn.PReLU, computed by fusegen.ops.prelu: x where x > 0, else weight x.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Patched:
    """What ``fg.patch`` did to a model: printable as a table, and a context manager that restores it at the end."""
    model: nn.Module
    found: list[Found]
    @property
    def swapped(self) -> dict[str, str]:
        """Of each swapped module, by its path, the op that computes it now."""
    @property
    def left(self) -> dict[str, str]:
        """Of each module that was left as it was, by its path, why. Containers are not listed."""
    def restore(self) -> nn.Module:
        """Give every swapped module its class back; return the model. A second call does nothing.

        Raises:
            DeclarationError: a module's class was changed since, as FSDP2 does; all others are restored.
        """
    def __enter__(self) -> Patched: ...
    def __exit__(self, *_: object) -> None: ...

class PoissonNLLLoss(nn.PoissonNLLLoss):
    """torch.nn.PoissonNLLLoss, computed by fusegen.ops.poisson_nll_loss: exp(x) - t x for log-rates x; without ``log_input``, x - t log(x + eps) for rates.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class QuickGELU(nn.Module):
    """x sigmoid(1.702 x). Source: Hendrycks and Gimpel, arXiv 1606.08415; used in CLIP."""
    def forward(self, input: torch.Tensor) -> torch.Tensor: ...

class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm, computed by fusegen.ops.rms_norm: x rrms (weight_offset + weight), with rrms = 1 / sqrt(mean(x^2) + eps), over the trailing dimensions.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class ReGLU(nn.Module):
    """relu(gate) value, for two tensors or for [gate, value] in one along ``dim``.

    No parameters. Source: Shazeer, arXiv 2002.05202.
    """
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, gate: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor: ...

class ReLU(nn.ReLU):
    """torch.nn.ReLU, computed by fusegen.ops.relu: max(x, 0); gradient 0 at 0. Integers too. Source: torch.nn.functional.relu.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class ReLU6(nn.ReLU6):
    """torch.nn.ReLU6, computed by fusegen.ops.relu6: min(max(x, 0), 6). Source: torch.nn.functional.relu6.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class SELU(nn.SELU):
    """torch.nn.SELU, computed by fusegen.ops.selu: scale elu(x, alpha), alpha = 1.6733, scale = 1.0507. Source: torch.nn.functional.selu; arXiv 1706.02515.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class SiLU(nn.SiLU):
    """torch.nn.SiLU, computed by fusegen.ops.silu: x sigmoid(x). Source: torch.nn.functional.silu; also called swish, arXiv 1710.05941.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Sigmoid(nn.Sigmoid):
    """torch.nn.Sigmoid, computed by fusegen.ops.sigmoid: 1 / (1 + exp(-x)). Integers become float32. Source: torch.sigmoid.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class SmoothL1Loss(nn.SmoothL1Loss):
    """torch.nn.SmoothL1Loss, computed by fusegen.ops.smooth_l1_loss: d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = input - target.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class SoftMarginLoss(nn.SoftMarginLoss):
    """torch.nn.SoftMarginLoss, computed by fusegen.ops.soft_margin_loss: log(1 + exp(-target x)), without overflow. Source: torch.nn.functional.soft_margin_loss.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Softmax(nn.Softmax):
    """torch.nn.Softmax, computed by fusegen.ops.softmax: exp(x - max(x)) / sum(exp(x - max(x))) along ``dim``. Source: torch.nn.functional.softmax.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Softmax2d(nn.Softmax2d):
    """torch.nn.Softmax2d, computed by fusegen.ops.softmax over the channels of [N, C, H, W] or [C, H, W].

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Softmin(nn.Softmin):
    """torch.nn.Softmin, computed by fusegen.ops.softmin: softmax(-x) along ``dim``. Source: torch.nn.functional.softmin.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Softplus(nn.Softplus):
    """torch.nn.Softplus, computed by fusegen.ops.softplus: log(1 + exp(beta x)) / beta, and x itself where beta x > threshold. Source: torch.nn.functional.softplus.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Softshrink(nn.Softshrink):
    """torch.nn.Softshrink, computed by fusegen.ops.softshrink: 0 where |x| <= lambd, else x - sign(x) lambd. Source: torch.nn.functional.softshrink.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Softsign(nn.Softsign):
    """torch.nn.Softsign, computed by fusegen.ops.softsign: x / (1 + |x|). Integers become float32. Source: torch.nn.functional.softsign.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class SquaredReLU(nn.Module):
    """max(x, 0)^2. Source: So et al., Primer, arXiv 2109.08668."""
    def forward(self, input: torch.Tensor) -> torch.Tensor: ...

class SwiGLU(nn.Module):
    """silu(gate) value, for ``SwiGLU()(gate, value)`` or for [gate, value] in one tensor along ``dim``.

    No parameters. Source: Shazeer, arXiv 2002.05202.
    """
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, gate: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor: ...

class Tanh(nn.Tanh):
    """torch.nn.Tanh, computed by fusegen.ops.tanh: (exp(x) - exp(-x)) / (exp(x) + exp(-x)). Integers become float32. Source: torch.tanh.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Tanhshrink(nn.Tanhshrink):
    """torch.nn.Tanhshrink, computed by fusegen.ops.tanhshrink: x - tanh(x). Integers become float32. Source: torch.nn.functional.tanhshrink.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class Threshold(nn.Threshold):
    """torch.nn.Threshold, computed by fusegen.ops.threshold: ``value`` where x <= threshold, else x. Integers too. Source: torch.nn.functional.threshold.

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

class TripletMarginLoss(nn.TripletMarginLoss):
    """torch.nn.TripletMarginLoss, computed by fusegen.ops.triplet_margin_loss: max(0, margin + d(anchor, positive) - d(anchor, negative)).

    Arguments, parameters, buffers, state dict and repr are torch's. What the op does not take (complex, sparse
    or nested tensors, torch.compile, ...) is computed by torch's own forward.
    """

def patch(model: nn.Module, *, only: Choices = None, skip: Choices = None) -> Patched:
    """Compute by fusegen what it can of ``model``, in place; ``print`` the result to see what that is, and why.

    Swapped are modules of exactly those classes of torch.nn that ``fusegen.nn`` has; modules of other libraries that
    are recognized by what they compute: RMS norms, activations and gated MLPs as in Hugging Face's Llama, Gemma and
    GPT-2; and the loss function of transformers' language models. Other functions that a forward calls are out of
    reach. A second call swaps nothing more.

    Args:
        model: any module; its class may be swapped itself.
        only: which modules to consider: patterns of paths (``"*.mlp"``), classes, functions of (path, module), or
            several of these. None: all.
        skip: which to leave, likewise.

    Raises:
        DeclarationError: ``model`` is no module.
    """
