"""The library that ships with fusegen: ``fg.ops.NAME``. Declarations only; each says its formula and its source."""

from __future__ import annotations

from .activations import (
    celu,
    crelu,
    elu,
    gelu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    quick_gelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softshrink,
    softsign,
    squared_relu,
    tanh,
    tanhshrink,
    threshold,
)
from .bias import FUSED as _BIASED
from .bias import bias_add
from .blends import (
    alpha_blend,
    alpha_over,
    ema_update,
    lerp,
)
from .cells import (
    gru_cell,
    linear_gru_cell,
    linear_lstm_cell,
    lstm_cell,
)
from .channels import (
    batch_norm,
    group_norm,
    instance_norm,
)
from .classes import (
    cross_entropy,
    nll_loss,
)
from .distances import (
    cosine_similarity,
    normalize,
    vector_norm,
)
from .fused_norms import (
    batch_norm_gelu,
    batch_norm_hardswish,
    batch_norm_leaky_relu,
    batch_norm_relu,
    batch_norm_relu6,
    batch_norm_silu,
    group_norm_gelu,
    group_norm_relu,
    group_norm_silu,
    instance_norm_gelu,
    instance_norm_leaky_relu,
    instance_norm_relu,
    instance_norm_silu,
    layer_norm_gelu,
    layer_norm_relu,
    layer_norm_silu,
    residual_bias_batch_norm,
    residual_bias_batch_norm_gelu,
    residual_bias_batch_norm_relu,
    residual_bias_batch_norm_silu,
    residual_bias_group_norm,
    residual_bias_group_norm_gelu,
    residual_bias_group_norm_relu,
    residual_bias_group_norm_silu,
    residual_bias_instance_norm,
    residual_bias_instance_norm_gelu,
    residual_bias_instance_norm_relu,
    residual_bias_instance_norm_silu,
    residual_bias_layer_norm,
    residual_bias_layer_norm_gelu,
    residual_bias_layer_norm_relu,
    residual_bias_layer_norm_silu,
    residual_bias_log_softmax,
    residual_bias_logsumexp,
    residual_bias_normalize,
    residual_bias_rms_norm,
    residual_bias_rms_norm_gelu,
    residual_bias_rms_norm_relu,
    residual_bias_rms_norm_silu,
    residual_bias_softmax,
    residual_bias_softmin,
    rms_norm_gelu,
    rms_norm_relu,
    rms_norm_silu,
)
from .gated import (
    geglu,
    geglu_packed,
    glu,
    reglu,
    reglu_packed,
    swiglu,
    swiglu_packed,
)
from .likelihoods import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    gaussian_nll_loss,
    kl_div,
    poisson_nll_loss,
    sigmoid_focal_loss,
)
from .linear import FUSED as _LINEAR
from .linear import conv1x1, linear, linear_residual
from .linear_losses import (
    linear_cross_entropy,
)
from .losses import (
    huber_loss,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
)
from .margins import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multilabel_soft_margin_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from .mlps import (
    geglu_mlp,
    mlp,
    reglu_mlp,
    swiglu_mlp,
)
from .norms import (
    layer_norm,
    rms_norm,
)
from .pointwise import (
    addcdiv,
    addcmul,
    clamp,
    masked_fill,
    maximum,
    minimum,
    where,
)
from .products import (
    addmm,
    baddbmm,
    matmul,
)
from .reductions import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    mean,
    prod,
    std,
    sum,
    var,
)
from .softmaxes import (
    log_softmax,
    logsumexp,
    softmax,
    softmin,
)

# bias_NAME, residual_bias_NAME and linear_NAME for each elementwise activation.
globals().update(_BIASED | _LINEAR)

__all__ = [
    "addcdiv", "addcmul", "addmm", "all", "alpha_blend", "alpha_over", "amax", "amin", "any", "argmax", "argmin",
    "baddbmm", "batch_norm", "batch_norm_gelu", "batch_norm_hardswish", "batch_norm_leaky_relu", "batch_norm_relu",
    "batch_norm_relu6", "batch_norm_silu", "bias_add", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "celu", "clamp", "conv1x1", "cosine_embedding_loss", "cosine_similarity", "crelu", "cross_entropy", "elu",
    "ema_update", "gaussian_nll_loss", "geglu", "geglu_mlp", "geglu_packed", "gelu", "glu", "group_norm",
    "group_norm_gelu", "group_norm_relu", "group_norm_silu", "gru_cell", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "hinge_embedding_loss", "huber_loss", "instance_norm", "instance_norm_gelu", "instance_norm_leaky_relu",
    "instance_norm_relu", "instance_norm_silu", "kl_div", "l1_loss", "layer_norm", "layer_norm_gelu", "layer_norm_relu",
    "layer_norm_silu", "leaky_relu", "lerp", "linear", "linear_cross_entropy", "linear_gru_cell", "linear_lstm_cell",
    "linear_residual", "log_softmax", "logsigmoid", "logsumexp", "lstm_cell", "margin_ranking_loss", "masked_fill",
    "matmul", "maximum", "mean", "minimum", "mish", "mlp", "mse_loss", "multilabel_soft_margin_loss", "nll_loss",
    "normalize", "poisson_nll_loss", "prelu", "prod", "quick_gelu", "reglu", "reglu_mlp", "reglu_packed", "relu",
    "relu6", "residual_bias_batch_norm", "residual_bias_batch_norm_gelu", "residual_bias_batch_norm_relu",
    "residual_bias_batch_norm_silu", "residual_bias_group_norm", "residual_bias_group_norm_gelu",
    "residual_bias_group_norm_relu", "residual_bias_group_norm_silu", "residual_bias_instance_norm",
    "residual_bias_instance_norm_gelu", "residual_bias_instance_norm_relu", "residual_bias_instance_norm_silu",
    "residual_bias_layer_norm", "residual_bias_layer_norm_gelu", "residual_bias_layer_norm_relu",
    "residual_bias_layer_norm_silu", "residual_bias_log_softmax", "residual_bias_logsumexp", "residual_bias_normalize",
    "residual_bias_rms_norm", "residual_bias_rms_norm_gelu", "residual_bias_rms_norm_relu",
    "residual_bias_rms_norm_silu", "residual_bias_softmax", "residual_bias_softmin", "rms_norm", "rms_norm_gelu",
    "rms_norm_relu", "rms_norm_silu", "selu", "sigmoid", "sigmoid_focal_loss", "silu", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "squared_relu", "std", "sum",
    "swiglu", "swiglu_mlp", "swiglu_packed", "tanh", "tanhshrink", "threshold", "triplet_margin_loss", "var",
    "vector_norm", "where",
]  # fmt: skip
__all__ += [*_BIASED, *_LINEAR]
