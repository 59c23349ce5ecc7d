"""Which class of torch.nn is computed by which op: one row each, with the attributes that the op takes as options.

Ops do not look at values, so that nothing waits for the device: where torch's CPU losses refuse a class number or a
probability out of range, these compute (as torch does on a GPU, until its kernel's assertion stops the program).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import fusegen as fg

from ._forward import ANY, NONE, Compute, drop_in

ops = fg.ops

# (class, op, options): the op is called with the module's inputs, and with these attributes by name.
ROWS: list[tuple[type[nn.Module], Any, str]] = [
    (nn.ReLU, ops.relu, ""),
    (nn.ReLU6, ops.relu6, ""),
    (nn.LeakyReLU, ops.leaky_relu, "negative_slope"),
    (nn.PReLU, ops.prelu, "weight"),
    (nn.Hardtanh, ops.hardtanh, "min_val max_val"),
    (nn.Hardsigmoid, ops.hardsigmoid, ""),
    (nn.Hardswish, ops.hardswish, ""),
    (nn.Hardshrink, ops.hardshrink, "lambd"),
    (nn.Softshrink, ops.softshrink, "lambd"),
    (nn.Threshold, ops.threshold, "threshold value"),
    (nn.ELU, ops.elu, "alpha"),
    (nn.CELU, ops.celu, "alpha"),
    (nn.SELU, ops.selu, ""),
    (nn.Softplus, ops.softplus, "beta threshold"),
    (nn.LogSigmoid, ops.logsigmoid, ""),
    (nn.Sigmoid, ops.sigmoid, ""),
    (nn.Tanh, ops.tanh, ""),
    (nn.Tanhshrink, ops.tanhshrink, ""),
    (nn.Softsign, ops.softsign, ""),
    (nn.GELU, ops.gelu, "approximate"),
    (nn.SiLU, ops.silu, ""),
    (nn.Mish, ops.mish, ""),
    (nn.GLU, ops.glu, "dim"),
    (nn.Softmax, ops.softmax, "dim"),
    (nn.Softmin, ops.softmin, "dim"),
    (nn.LogSoftmax, ops.log_softmax, "dim"),
    (nn.LayerNorm, ops.layer_norm, "normalized_shape weight bias eps"),
    (nn.RMSNorm, ops.rms_norm, "normalized_shape weight eps"),
    (nn.GroupNorm, ops.group_norm, "num_groups weight bias eps"),
    (nn.CosineSimilarity, ops.cosine_similarity, "dim eps"),
    (nn.CrossEntropyLoss, ops.cross_entropy, "weight ignore_index reduction label_smoothing"),
    (nn.NLLLoss, ops.nll_loss, "weight ignore_index reduction"),
    (nn.MSELoss, ops.mse_loss, "reduction"),
    (nn.L1Loss, ops.l1_loss, "reduction"),
    (nn.SmoothL1Loss, ops.smooth_l1_loss, "reduction beta"),
    (nn.HuberLoss, ops.huber_loss, "reduction delta"),
    (nn.BCELoss, ops.binary_cross_entropy, "weight reduction"),
    (nn.BCEWithLogitsLoss, ops.binary_cross_entropy_with_logits, "weight pos_weight reduction"),
    (nn.KLDivLoss, ops.kl_div, "reduction log_target"),
    (nn.PoissonNLLLoss, ops.poisson_nll_loss, "log_input full eps reduction"),
    (nn.GaussianNLLLoss, ops.gaussian_nll_loss, "full eps reduction"),
    (nn.CosineEmbeddingLoss, ops.cosine_embedding_loss, "margin reduction"),
    (nn.HingeEmbeddingLoss, ops.hinge_embedding_loss, "margin reduction"),
    (nn.MarginRankingLoss, ops.margin_ranking_loss, "margin reduction"),
    (nn.SoftMarginLoss, ops.soft_margin_loss, "reduction"),
    (nn.MultiLabelSoftMarginLoss, ops.multilabel_soft_margin_loss, "weight reduction"),
    (nn.TripletMarginLoss, ops.triplet_margin_loss, "margin p eps swap reduction"),
]


# What torch.autocast gives another dtype than the op does, or refuses.
OF_AUTOCAST = (nn.PReLU, nn.BCELoss)


def with_options(op: Any, options: str) -> Compute:
    """``op`` of a module's inputs and of the attributes that ``options`` lists."""
    names = tuple(options.split())

    def compute(module: Any, *inputs: Any) -> Any:
        return op(*inputs, **{name: getattr(module, name) for name in names})

    return compute


def in_place(op: Any, options: str, own: Compute) -> Compute:
    """The same for modules with ``inplace``. Where a gradient is wanted, torch's forward writes into the input."""
    compute, names = with_options(op, options), tuple(options.split())

    def either(module: Any, input: torch.Tensor) -> Any:
        if not module.inplace:
            return compute(module, input)
        if torch.is_grad_enabled() and input.requires_grad:
            return own(module, input)
        return op(input, **{name: getattr(module, name) for name in names}, inplace=True)

    return either


def _made(base: type[nn.Module], op: Any, options: str) -> type[nn.Module]:
    can_write = "inplace" in op.declaration.signature.parameters
    compute = in_place(op, options, base.forward) if can_write else with_options(op, options)
    formula = str(op.__doc__).partition("\n")[0]
    agrees = NONE if base in OF_AUTOCAST else ANY
    return drop_in(base, compute, f"fusegen.ops.{op.name}: {formula}", agrees=agrees)


def _softmax_of_channels(module: Any, input: torch.Tensor) -> Any:
    if input.ndim not in (3, 4):
        return nn.Softmax2d.forward(module, input)
    return ops.softmax(input, -3)


def _batch_norm(module: Any, input: torch.Tensor) -> Any:
    """The running statistics and the number of batches move as in torch."""
    module._check_input_dim(input)
    running = module.running_mean, module.running_var
    moves, batches = module.training and module.track_running_stats, module.num_batches_tracked
    momentum = module.momentum
    if momentum is None:
        momentum = 1 / (float(batches) + 1) if moves and batches is not None else 0.0
    from_batch = module.training or (module.running_mean is None and module.running_var is None)
    mean, var = running if moves or not module.training else (None, None)
    result = ops.batch_norm(input, mean, var, module.weight, module.bias, from_batch, momentum, module.eps)
    if moves and batches is not None:
        batches.add_(1)
    return result


def _instance_norm(module: Any, input: torch.Tensor) -> Any:
    from_input = module.training or not module.track_running_stats
    momentum = 0.0 if module.momentum is None else module.momentum
    running = module.running_mean, module.running_var
    return ops.instance_norm(input, *running, module.weight, module.bias, from_input, momentum, module.eps)


_BATCH = "fusegen.ops.batch_norm: (x - mean) / sqrt(variance + eps) weight + bias, a mean and a variance a channel."
_INSTANCE = "fusegen.ops.instance_norm: the same for each sample and channel by itself."

_SOFTMAX = "fusegen.ops.softmax over the channels of [N, C, H, W] or [C, H, W]."

# Of each class of torch.nn, the one that takes its place.
DROP_INS: dict[type[nn.Module], type[nn.Module]] = {row[0]: _made(*row) for row in ROWS}
DROP_INS[nn.Softmax2d] = drop_in(nn.Softmax2d, _softmax_of_channels, _SOFTMAX)
DROP_INS |= {base: drop_in(base, _batch_norm, _BATCH) for base in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)}
DROP_INS |= {
    base: drop_in(base, _instance_norm, _INSTANCE, method="_apply_instance_norm")
    for base in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
}
