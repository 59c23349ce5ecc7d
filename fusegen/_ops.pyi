"""The library, ``fg.ops``. Made by tools/stubs.py of what fusegen is at run time: run it again when that changes."""

# mypy: disable-error-code=override

from collections.abc import Sequence
from typing import Literal, overload

from fusegen.declare.tensor import Array, DTypeLike, Foreign, Tensor
from fusegen.fused_op import FusedOp
from fusegen.linear_loss_op import LinearLossOp

__all__ = [
    "addcdiv",
    "addcmul",
    "addmm",
    "all",
    "alpha_blend",
    "alpha_dropout",
    "alpha_over",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "baddbmm",
    "batch_norm",
    "batch_norm_gelu",
    "batch_norm_hardswish",
    "batch_norm_leaky_relu",
    "batch_norm_relu",
    "batch_norm_relu6",
    "batch_norm_silu",
    "bias_add",
    "bias_celu",
    "bias_elu",
    "bias_gelu",
    "bias_hardshrink",
    "bias_hardsigmoid",
    "bias_hardswish",
    "bias_hardtanh",
    "bias_leaky_relu",
    "bias_logsigmoid",
    "bias_mish",
    "bias_quick_gelu",
    "bias_relu",
    "bias_relu6",
    "bias_selu",
    "bias_sigmoid",
    "bias_silu",
    "bias_softplus",
    "bias_softshrink",
    "bias_softsign",
    "bias_squared_relu",
    "bias_tanh",
    "bias_tanhshrink",
    "bias_threshold",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "clamp",
    "conv1x1",
    "cosine_embedding_loss",
    "cosine_similarity",
    "crelu",
    "cross_entropy",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dropout",
    "elu",
    "ema_update",
    "embedding",
    "embedding_bag",
    "feature_dropout",
    "flip",
    "gather",
    "gaussian_nll_loss",
    "geglu",
    "geglu_mlp",
    "geglu_packed",
    "gelu",
    "glu",
    "group_norm",
    "group_norm_gelu",
    "group_norm_relu",
    "group_norm_silu",
    "gru_cell",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "index_add",
    "index_copy",
    "index_select",
    "instance_norm",
    "instance_norm_gelu",
    "instance_norm_leaky_relu",
    "instance_norm_relu",
    "instance_norm_silu",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "layer_norm_gelu",
    "layer_norm_relu",
    "layer_norm_silu",
    "leaky_relu",
    "lerp",
    "linear",
    "linear_celu",
    "linear_cross_entropy",
    "linear_elu",
    "linear_gelu",
    "linear_gru_cell",
    "linear_hardshrink",
    "linear_hardsigmoid",
    "linear_hardswish",
    "linear_hardtanh",
    "linear_leaky_relu",
    "linear_logsigmoid",
    "linear_lstm_cell",
    "linear_mish",
    "linear_quick_gelu",
    "linear_relu",
    "linear_relu6",
    "linear_residual",
    "linear_selu",
    "linear_sigmoid",
    "linear_silu",
    "linear_softplus",
    "linear_softshrink",
    "linear_softsign",
    "linear_squared_relu",
    "linear_tanh",
    "linear_tanhshrink",
    "linear_threshold",
    "log_softmax",
    "logcumsumexp",
    "logsigmoid",
    "logsumexp",
    "lstm_cell",
    "margin_ranking_loss",
    "masked_fill",
    "matmul",
    "maximum",
    "mean",
    "minimum",
    "mish",
    "mlp",
    "mse_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "pad",
    "poisson_nll_loss",
    "prelu",
    "prod",
    "quick_gelu",
    "reglu",
    "reglu_mlp",
    "reglu_packed",
    "relu",
    "relu6",
    "residual_bias_batch_norm",
    "residual_bias_batch_norm_gelu",
    "residual_bias_batch_norm_relu",
    "residual_bias_batch_norm_silu",
    "residual_bias_celu",
    "residual_bias_elu",
    "residual_bias_gelu",
    "residual_bias_group_norm",
    "residual_bias_group_norm_gelu",
    "residual_bias_group_norm_relu",
    "residual_bias_group_norm_silu",
    "residual_bias_hardshrink",
    "residual_bias_hardsigmoid",
    "residual_bias_hardswish",
    "residual_bias_hardtanh",
    "residual_bias_instance_norm",
    "residual_bias_instance_norm_gelu",
    "residual_bias_instance_norm_relu",
    "residual_bias_instance_norm_silu",
    "residual_bias_layer_norm",
    "residual_bias_layer_norm_gelu",
    "residual_bias_layer_norm_relu",
    "residual_bias_layer_norm_silu",
    "residual_bias_leaky_relu",
    "residual_bias_log_softmax",
    "residual_bias_logsigmoid",
    "residual_bias_logsumexp",
    "residual_bias_mish",
    "residual_bias_normalize",
    "residual_bias_quick_gelu",
    "residual_bias_relu",
    "residual_bias_relu6",
    "residual_bias_rms_norm",
    "residual_bias_rms_norm_gelu",
    "residual_bias_rms_norm_relu",
    "residual_bias_rms_norm_silu",
    "residual_bias_selu",
    "residual_bias_sigmoid",
    "residual_bias_silu",
    "residual_bias_softmax",
    "residual_bias_softmin",
    "residual_bias_softplus",
    "residual_bias_softshrink",
    "residual_bias_softsign",
    "residual_bias_squared_relu",
    "residual_bias_tanh",
    "residual_bias_tanhshrink",
    "residual_bias_threshold",
    "rms_norm",
    "rms_norm_gelu",
    "rms_norm_relu",
    "rms_norm_silu",
    "roll",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "selu",
    "sigmoid",
    "sigmoid_focal_loss",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "squared_relu",
    "std",
    "sum",
    "swiglu",
    "swiglu_mlp",
    "swiglu_packed",
    "take_along_dim",
    "tanh",
    "tanhshrink",
    "threshold",
    "triplet_margin_loss",
    "var",
    "vector_norm",
    "where",
]

class _addcdiv(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        tensor1: Array | float,
        tensor2: Array | float,
        *,
        value: Array | float = 1,
        out: Array | None = None,
    ) -> Array:
        """input + value tensor1 / tensor2; the three broadcast. Source: torch.addcdiv."""
    @overload
    def __call__(
        self,
        input: Foreign,
        tensor1: Foreign | float,
        tensor2: Foreign | float,
        *,
        value: Foreign | float = 1,
        out: Foreign | None = None,
    ) -> Foreign: ...
addcdiv: _addcdiv
"""input + value tensor1 / tensor2; the three broadcast. Source: torch.addcdiv."""

class _addcmul(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        tensor1: Array | float,
        tensor2: Array | float,
        *,
        value: Array | float = 1,
        out: Array | None = None,
    ) -> Array:
        """input + value tensor1 tensor2; the three broadcast. Integers too. Source: torch.addcmul."""
    @overload
    def __call__(
        self,
        input: Foreign,
        tensor1: Foreign | float,
        tensor2: Foreign | float,
        *,
        value: Foreign | float = 1,
        out: Foreign | None = None,
    ) -> Foreign: ...
addcmul: _addcmul
"""input + value tensor1 tensor2; the three broadcast. Integers too. Source: torch.addcmul."""

class _addmm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        mat1: Array | float,
        mat2: Array | float,
        *,
        beta: Array | float = 1,
        alpha: Array | float = 1,
        out: Array | None = None,
    ) -> Array:
        """beta input + alpha (mat1 @ mat2) for matrices; ``input`` broadcasts. What has a factor of 0 counts as 0.

        With factors of 1, a bias ``input`` [N] of half type is added before the product is rounded, as torch does. Else the
        product is rounded to the dtype of its factors first, and the result again (torch.addmm rounds once).

        Source: torch.addmm.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        mat1: Foreign | float,
        mat2: Foreign | float,
        *,
        beta: Foreign | float = 1,
        alpha: Foreign | float = 1,
        out: Foreign | None = None,
    ) -> Foreign: ...
addmm: _addmm
"""beta input + alpha (mat1 @ mat2) for matrices; ``input`` broadcasts. What has a factor of 0 counts as 0.

With factors of 1, a bias ``input`` [N] of half type is added before the product is rounded, as torch does. Else the
product is rounded to the dtype of its factors first, and the result again (torch.addmm rounds once).

Source: torch.addmm.
"""

class _all(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """Whether no element is zero: a bool, of uint8 a uint8. Source: torch.all."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
all: _all
"""Whether no element is zero: a bool, of uint8 a uint8. Source: torch.all."""

class _alpha_blend(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        foreground: Array,
        background: Array | float,
        alpha: Array | float,
        *,
        out: Array | None = None,
    ) -> Array:
        """``foreground`` over an opaque ``background``: alpha foreground + (1 - alpha) background; the three broadcast.

        Source: Porter and Duff, Compositing Digital Images, SIGGRAPH 1984.
        """
    @overload
    def __call__(
        self,
        foreground: Foreign,
        background: Foreign | float,
        alpha: Foreign | float,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
alpha_blend: _alpha_blend
"""``foreground`` over an opaque ``background``: alpha foreground + (1 - alpha) background; the three broadcast.

Source: Porter and Duff, Compositing Digital Images, SIGGRAPH 1984.
"""

class _alpha_dropout(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        p: Array | float = 0.5,
        training: bool = False,
        inplace: bool = False,
        *,
        seed: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """a where(kept, x, m) + b, with mean 0 and variance 1 behind a SELU; m is what a SELU tends to at minus infinity.

        a = 1 / sqrt((1 - p) (1 + p m^2)), b = -a p m. Source: torch.nn.functional.alpha_dropout.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        p: Foreign | float = 0.5,
        training: bool = False,
        inplace: bool = False,
        *,
        seed: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
alpha_dropout: _alpha_dropout
"""a where(kept, x, m) + b, with mean 0 and variance 1 behind a SELU; m is what a SELU tends to at minus infinity.

a = 1 / sqrt((1 - p) (1 + p m^2)), b = -a p m. Source: torch.nn.functional.alpha_dropout.
"""

class _alpha_over(FusedOp[..., tuple[Tensor, ...]]):
    @overload
    def __call__(
        self,
        foreground: Array,
        foreground_alpha: Array | float,
        background: Array | float,
        background_alpha: Array | float,
        *,
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]:
        """Porter and Duff's "over" for straight (not premultiplied) colours; returns (colour, alpha). All broadcast.

            alpha  = fa + ba (1 - fa)
            colour = (fa foreground + ba (1 - fa) background) / alpha, and 0 where alpha = 0

        Source: Porter and Duff, Compositing Digital Images, SIGGRAPH 1984.
        """
    @overload
    def __call__(
        self,
        foreground: Foreign,
        foreground_alpha: Foreign | float,
        background: Foreign | float,
        background_alpha: Foreign | float,
        *,
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
alpha_over: _alpha_over
"""Porter and Duff's "over" for straight (not premultiplied) colours; returns (colour, alpha). All broadcast.

    alpha  = fa + ba (1 - fa)
    colour = (fa foreground + ba (1 - fa) background) / alpha, and 0 where alpha = 0

Source: Porter and Duff, Compositing Digital Images, SIGGRAPH 1984.
"""

class _amax(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int] = ...,
        keepdim: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """Largest element; NaN wins, elements that tie share the gradient evenly. Source: torch.amax."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int] = ...,
        keepdim: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
amax: _amax
"""Largest element; NaN wins, elements that tie share the gradient evenly. Source: torch.amax."""

class _amin(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int] = ...,
        keepdim: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """Smallest element; NaN wins, elements that tie share the gradient evenly. Source: torch.amin."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int] = ...,
        keepdim: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
amin: _amin
"""Smallest element; NaN wins, elements that tie share the gradient evenly. Source: torch.amin."""

class _any(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """Whether an element is not zero, NaN included: a bool, of uint8 a uint8. Source: torch.any."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
any: _any
"""Whether an element is not zero, NaN included: a bool, of uint8 a uint8. Source: torch.any."""

class _argmax(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """Position of the largest element, the first of several; NaN wins. Source: torch.argmax."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
argmax: _argmax
"""Position of the largest element, the first of several; NaN wins. Source: torch.argmax."""

class _argmin(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """Position of the smallest element, the first of several; NaN wins. Source: torch.argmin."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
argmin: _argmin
"""Position of the smallest element, the first of several; NaN wins. Source: torch.argmin."""

class _baddbmm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        batch1: Array | float,
        batch2: Array | float,
        *,
        beta: Array | float = 1,
        alpha: Array | float = 1,
        out: Array | None = None,
    ) -> Array:
        """beta input + alpha (batch1 @ batch2) for batches of matrices; see ``addmm``.

        Products of half types are rounded to that dtype before anything is added. Source: torch.baddbmm.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        batch1: Foreign | float,
        batch2: Foreign | float,
        *,
        beta: Foreign | float = 1,
        alpha: Foreign | float = 1,
        out: Foreign | None = None,
    ) -> Foreign: ...
baddbmm: _baddbmm
"""beta input + alpha (batch1 @ batch2) for batches of matrices; see ``addmm``.

Products of half types are rounded to that dtype before anything is added. Source: torch.baddbmm.
"""

class _batch_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        out: Array | None = None,
    ) -> Array:
        """(x - mean) / sqrt(variance + eps) weight + bias, a mean and a variance a channel.

        With ``training`` they are the batch's, and running statistics, where given, move towards them in place:
        r + momentum (s - r), the variance's s with n - 1 for n. Otherwise they are the running statistics.

        Source: torch.nn.functional.batch_norm; Ioffe and Szegedy, arXiv 1502.03167.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
batch_norm: _batch_norm
"""(x - mean) / sqrt(variance + eps) weight + bias, a mean and a variance a channel.

With ``training`` they are the batch's, and running statistics, where given, move towards them in place:
r + momentum (s - r), the variance's s with n - 1 for n. Otherwise they are the running statistics.

Source: torch.nn.functional.batch_norm; Ioffe and Szegedy, arXiv 1502.03167.
"""

class _batch_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
batch_norm_gelu: _batch_norm_gelu
"""gelu(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _batch_norm_hardswish(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """hardswish(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
batch_norm_hardswish: _batch_norm_hardswish
"""hardswish(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _batch_norm_leaky_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        negative_slope: Array | float = 0.01,
        out: Array | None = None,
    ) -> Array:
        """leaky_relu(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        negative_slope: Foreign | float = 0.01,
        out: Foreign | None = None,
    ) -> Foreign: ...
batch_norm_leaky_relu: _batch_norm_leaky_relu
"""leaky_relu(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _batch_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """relu(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
batch_norm_relu: _batch_norm_relu
"""relu(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _batch_norm_relu6(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """relu6(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
batch_norm_relu6: _batch_norm_relu6
"""relu6(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _batch_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """silu(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
batch_norm_silu: _batch_norm_silu
"""silu(batch_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _bias_add(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """input + bias. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_add: _bias_add
"""input + bias. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_celu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        alpha: Array | float = 1.0,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """celu(input + bias), options as celu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        alpha: Foreign | float = 1.0,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_celu: _bias_celu
"""celu(input + bias), options as celu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_elu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        alpha: Array | float = 1.0,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """elu(input + bias), options as elu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        alpha: Foreign | float = 1.0,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_elu: _bias_elu
"""elu(input + bias), options as elu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        approximate: str = 'none',
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """gelu(input + bias), options as gelu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        approximate: str = 'none',
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_gelu: _bias_gelu
"""gelu(input + bias), options as gelu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_hardshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        lambd: Array | float = 0.5,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """hardshrink(input + bias), options as hardshrink's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        lambd: Foreign | float = 0.5,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_hardshrink: _bias_hardshrink
"""hardshrink(input + bias), options as hardshrink's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_hardsigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """hardsigmoid(input + bias), options as hardsigmoid's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_hardsigmoid: _bias_hardsigmoid
"""hardsigmoid(input + bias), options as hardsigmoid's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_hardswish(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """hardswish(input + bias), options as hardswish's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_hardswish: _bias_hardswish
"""hardswish(input + bias), options as hardswish's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_hardtanh(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        min_val: Array | float = -1.0,
        max_val: Array | float = 1.0,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """hardtanh(input + bias), options as hardtanh's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        min_val: Foreign | float = -1.0,
        max_val: Foreign | float = 1.0,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_hardtanh: _bias_hardtanh
"""hardtanh(input + bias), options as hardtanh's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_leaky_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        negative_slope: Array | float = 0.01,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """leaky_relu(input + bias), options as leaky_relu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        negative_slope: Foreign | float = 0.01,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_leaky_relu: _bias_leaky_relu
"""leaky_relu(input + bias), options as leaky_relu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_logsigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """logsigmoid(input + bias), options as logsigmoid's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_logsigmoid: _bias_logsigmoid
"""logsigmoid(input + bias), options as logsigmoid's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_mish(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """mish(input + bias), options as mish's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_mish: _bias_mish
"""mish(input + bias), options as mish's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_quick_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """quick_gelu(input + bias), options as quick_gelu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_quick_gelu: _bias_quick_gelu
"""quick_gelu(input + bias), options as quick_gelu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """relu(input + bias), options as relu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_relu: _bias_relu
"""relu(input + bias), options as relu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_relu6(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """relu6(input + bias), options as relu6's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_relu6: _bias_relu6
"""relu6(input + bias), options as relu6's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_selu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """selu(input + bias), options as selu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_selu: _bias_selu
"""selu(input + bias), options as selu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_sigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """sigmoid(input + bias), options as sigmoid's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_sigmoid: _bias_sigmoid
"""sigmoid(input + bias), options as sigmoid's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """silu(input + bias), options as silu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_silu: _bias_silu
"""silu(input + bias), options as silu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_softplus(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        beta: Array | float = 1.0,
        threshold: Array | float = 20.0,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """softplus(input + bias), options as softplus's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        beta: Foreign | float = 1.0,
        threshold: Foreign | float = 20.0,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_softplus: _bias_softplus
"""softplus(input + bias), options as softplus's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_softshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        lambd: Array | float = 0.5,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """softshrink(input + bias), options as softshrink's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        lambd: Foreign | float = 0.5,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_softshrink: _bias_softshrink
"""softshrink(input + bias), options as softshrink's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_softsign(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """softsign(input + bias), options as softsign's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_softsign: _bias_softsign
"""softsign(input + bias), options as softsign's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_squared_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """squared_relu(input + bias), options as squared_relu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_squared_relu: _bias_squared_relu
"""squared_relu(input + bias), options as squared_relu's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_tanh(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """tanh(input + bias), options as tanh's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_tanh: _bias_tanh
"""tanh(input + bias), options as tanh's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_tanhshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, bias: Array | float | None, *, dim: int = -1, out: Array | None = None) -> Array:
        """tanhshrink(input + bias), options as tanhshrink's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_tanhshrink: _bias_tanhshrink
"""tanhshrink(input + bias), options as tanhshrink's. A bias of rank 1 lies along ``dim`` of the input."""

class _bias_threshold(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        threshold: Array | float,
        value: Array | float,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """threshold(input + bias), options as threshold's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        threshold: Foreign | float,
        value: Foreign | float,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
bias_threshold: _bias_threshold
"""threshold(input + bias), options as threshold's. A bias of rank 1 lies along ``dim`` of the input."""

class _binary_cross_entropy(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        weight: Array | float | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """-weight (t log(p) + (1 - t) log(1 - p)) for probabilities p; logarithms end at -100.

        Source: torch.nn.functional.binary_cross_entropy, whose gradient (p - t) / max(p (1 - p), 1e-12) is kept.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        weight: Foreign | float | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
binary_cross_entropy: _binary_cross_entropy
"""-weight (t log(p) + (1 - t) log(1 - p)) for probabilities p; logarithms end at -100.

Source: torch.nn.functional.binary_cross_entropy, whose gradient (p - t) / max(p (1 - p), 1e-12) is kept.
"""

class _binary_cross_entropy_with_logits(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        weight: Array | float | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        pos_weight: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """-weight (pos_weight t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))) for logits x.

        Computed as (1 - t) x - (1 + (pos_weight - 1) t) logsigmoid(x).
        Source: torch.nn.functional.binary_cross_entropy_with_logits.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        weight: Foreign | float | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        pos_weight: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
binary_cross_entropy_with_logits: _binary_cross_entropy_with_logits
"""-weight (pos_weight t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))) for logits x.

Computed as (1 - t) x - (1 + (pos_weight - 1) t) logsigmoid(x).
Source: torch.nn.functional.binary_cross_entropy_with_logits.
"""

class _celu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        alpha: Array | float = 1.0,
        inplace: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """x where x > 0, else alpha (exp(x / alpha) - 1). Source: torch.nn.functional.celu; Barron, arXiv 1704.07483."""
    @overload
    def __call__(
        self,
        input: Foreign,
        alpha: Foreign | float = 1.0,
        inplace: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
celu: _celu
"""x where x > 0, else alpha (exp(x / alpha) - 1). Source: torch.nn.functional.celu; Barron, arXiv 1704.07483."""

class _clamp(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        min: Array | float | None = None,
        max: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """min(max(x, min), max), max winning where the bounds cross; bounds are numbers or tensors, and broadcast.

        The gradient passes where min <= x <= max, the bounds included. Source: torch.clamp.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        min: Foreign | float | None = None,
        max: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
clamp: _clamp
"""min(max(x, min), max), max winning where the bounds cross; bounds are numbers or tensors, and broadcast.

The gradient passes where min <= x <= max, the bounds included. Source: torch.clamp.
"""

class _conv1x1(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        activation: str = 'identity',
        out: Array | None = None,
    ) -> Array:
        """activation(sum_c input[n, c, ...] weight[o, c] + bias[o]): a convolution with a window of one element.

        Args:
            input: [N, C, ...]; read as it lies, nothing is unfolded. Images that are channels_last have such results.
            weight: [O, C], or [O, C, 1, ...] of the input's rank, as convolutions have it.
            activation: a name of this library, with its default options, or "gelu_tanh".

        Source: torch.nn.functional.conv2d; Lin et al., arXiv 1312.4400.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        activation: str = 'identity',
        out: Foreign | None = None,
    ) -> Foreign: ...
conv1x1: _conv1x1
"""activation(sum_c input[n, c, ...] weight[o, c] + bias[o]): a convolution with a window of one element.

Args:
    input: [N, C, ...]; read as it lies, nothing is unfolded. Images that are channels_last have such results.
    weight: [O, C], or [O, C, 1, ...] of the input's rank, as convolutions have it.
    activation: a name of this library, with its default options, or "gelu_tanh".

Source: torch.nn.functional.conv2d; Lin et al., arXiv 1312.4400.
"""

class _cosine_embedding_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input1: Array,
        input2: Array | float,
        target: Array | float,
        margin: Array | float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """1 - cos where target = 1, max(0, cos - margin) where target = -1, else 0.

        cos = sum(input1 input2) / sqrt((|input1|^2 + 1e-12) (|input2|^2 + 1e-12)) over the last dimension, of inputs [N, D]
        and a target [N], or of inputs [D] and a target of rank 0. Source: torch.nn.functional.cosine_embedding_loss.
        """
    @overload
    def __call__(
        self,
        input1: Foreign,
        input2: Foreign | float,
        target: Foreign | float,
        margin: Foreign | float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
cosine_embedding_loss: _cosine_embedding_loss
"""1 - cos where target = 1, max(0, cos - margin) where target = -1, else 0.

cos = sum(input1 input2) / sqrt((|input1|^2 + 1e-12) (|input2|^2 + 1e-12)) over the last dimension, of inputs [N, D]
and a target [N], or of inputs [D] and a target of rank 0. Source: torch.nn.functional.cosine_embedding_loss.
"""

class _cosine_similarity(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        x1: Array,
        x2: Array | float,
        dim: int = 1,
        eps: Array | float = 1e-08,
        *,
        out: Array | None = None,
    ) -> Array:
        """sum(x1 x2) / (max(|x1|, eps) max(|x2|, eps)) along ``dim``; the two broadcast.

        The gradient passes the maxima unchanged. Source: torch.nn.functional.cosine_similarity.
        """
    @overload
    def __call__(
        self,
        x1: Foreign,
        x2: Foreign | float,
        dim: int = 1,
        eps: Foreign | float = 1e-08,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
cosine_similarity: _cosine_similarity
"""sum(x1 x2) / (max(|x1|, eps) max(|x2|, eps)) along ``dim``; the two broadcast.

The gradient passes the maxima unchanged. Source: torch.nn.functional.cosine_similarity.
"""

class _crelu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, dim: int = 1, *, out: Array | None = None) -> Array:
        """[max(x, 0), max(-x, 0)] side by side along ``dim``, which doubles. Source: Shang et al., arXiv 1603.05201."""
    @overload
    def __call__(self, input: Foreign, dim: int = 1, *, out: Foreign | None = None) -> Foreign: ...
crelu: _crelu
"""[max(x, 0), max(-x, 0)] side by side along ``dim``, which doubles. Source: Shang et al., arXiv 1603.05201."""

class _cross_entropy(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        weight: Array | float | None = None,
        size_average: bool | None = None,
        ignore_index: Array | float = -100,
        reduce: bool | None = None,
        reduction: str = 'mean',
        label_smoothing: Array | float = 0.0,
        *,
        z_loss: Array | float = 0.0,
        inplace_backward: bool = False,
        out: Array | None = None,
    ) -> Array:
        """-weight[target] log(softmax(x)[target]) for logits x; "mean" divides by the sum of the weights.

        With ``label_smoothing`` s the target's share is 1 - s + s / C and each other class's s / C. A float target of the
        input's shape holds probabilities: -sum(weight target log(softmax(x))) over classes, and "mean" divides by the
        number of elements without the classes' dimension. ``z_loss`` adds z_loss log(sum(exp(x)))^2 to each element's loss.

        With ``inplace_backward`` the backward writes the logits' gradient into the logits' own memory: no second tensor of
        their size exists. They must be what an op computed, in memory that nothing reads afterwards; who saved them gets
        torch's error; a second backward, or one to be differentiated, gets fusegen's. Under torch.compile, torch.func,
        forward mode and activation checkpointing the gradient is an ordinary one.

        Source: torch.nn.functional.cross_entropy; Szegedy et al., arXiv 1512.00567; z_loss: Chowdhery et al., arXiv
        2204.02311.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        weight: Foreign | float | None = None,
        size_average: bool | None = None,
        ignore_index: Foreign | float = -100,
        reduce: bool | None = None,
        reduction: str = 'mean',
        label_smoothing: Foreign | float = 0.0,
        *,
        z_loss: Foreign | float = 0.0,
        inplace_backward: bool = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
cross_entropy: _cross_entropy
"""-weight[target] log(softmax(x)[target]) for logits x; "mean" divides by the sum of the weights.

With ``label_smoothing`` s the target's share is 1 - s + s / C and each other class's s / C. A float target of the
input's shape holds probabilities: -sum(weight target log(softmax(x))) over classes, and "mean" divides by the
number of elements without the classes' dimension. ``z_loss`` adds z_loss log(sum(exp(x)))^2 to each element's loss.

With ``inplace_backward`` the backward writes the logits' gradient into the logits' own memory: no second tensor of
their size exists. They must be what an op computed, in memory that nothing reads afterwards; who saved them gets
torch's error; a second backward, or one to be differentiated, gets fusegen's. Under torch.compile, torch.func,
forward mode and activation checkpointing the gradient is an ordinary one.

Source: torch.nn.functional.cross_entropy; Szegedy et al., arXiv 1512.00567; z_loss: Chowdhery et al., arXiv
2204.02311.
"""

class _cummax(FusedOp[..., tuple[Tensor, ...]]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        *,
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]:
        """The largest of x[0], ..., x[i] along ``dim``, and where it stands: the last of several. NaN wins.

        The gradient goes to that element. Source: torch.cummax.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        *,
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
cummax: _cummax
"""The largest of x[0], ..., x[i] along ``dim``, and where it stands: the last of several. NaN wins.

The gradient goes to that element. Source: torch.cummax.
"""

class _cummin(FusedOp[..., tuple[Tensor, ...]]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        *,
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]:
        """The smallest of x[0], ..., x[i] along ``dim``, and where it stands: the last of several. NaN wins.

        The gradient goes to that element. Source: torch.cummin.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        *,
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
cummin: _cummin
"""The smallest of x[0], ..., x[i] along ``dim``, and where it stands: the last of several. NaN wins.

The gradient goes to that element. Source: torch.cummin.
"""

class _cumprod(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        *,
        dtype: DTypeLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """x[0] * ... * x[i] along ``dim``; ``dtype``: the input is cast first. Source: torch.cumprod.

        Gradients of any order divide by nothing, so elements may be zero.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        *,
        dtype: DTypeLike | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
cumprod: _cumprod
"""x[0] * ... * x[i] along ``dim``; ``dtype``: the input is cast first. Source: torch.cumprod.

Gradients of any order divide by nothing, so elements may be zero.
"""

class _cumsum(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        *,
        dtype: DTypeLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """x[0] + ... + x[i] along ``dim``; ``dtype``: the input is cast first. Source: torch.cumsum."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        *,
        dtype: DTypeLike | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
cumsum: _cumsum
"""x[0] + ... + x[i] along ``dim``; ``dtype``: the input is cast first. Source: torch.cumsum."""

class _dropout(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        p: Array | float = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        seed: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """x / (1 - p) where a random number is at least p, else 0. Source: torch.nn.functional.dropout."""
    @overload
    def __call__(
        self,
        input: Foreign,
        p: Foreign | float = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        seed: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
dropout: _dropout
"""x / (1 - p) where a random number is at least p, else 0. Source: torch.nn.functional.dropout."""

class _elu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        alpha: Array | float = 1.0,
        inplace: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """x where x > 0, else alpha (exp(x) - 1). Source: torch.nn.functional.elu; Clevert et al., arXiv 1511.07289."""
    @overload
    def __call__(
        self,
        input: Foreign,
        alpha: Foreign | float = 1.0,
        inplace: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
elu: _elu
"""x where x > 0, else alpha (exp(x) - 1). Source: torch.nn.functional.elu; Clevert et al., arXiv 1511.07289."""

class _ema_update(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        average: Array,
        value: Array | float,
        weight: Array | float = 0.001,
        *,
        out: Array | None = None,
    ) -> Array:
        """average + weight (value - average): an exponential moving average with decay 1 - weight.

        It takes the weight of the new value rather than the decay, because 1 - 0.999 loses three digits in float32. Written
        in place with ``out=average``. Source: Polyak and Juditsky, SIAM J. Control Optim. 30 (4), 1992.
        """
    @overload
    def __call__(
        self,
        average: Foreign,
        value: Foreign | float,
        weight: Foreign | float = 0.001,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
ema_update: _ema_update
"""average + weight (value - average): an exponential moving average with decay 1 - weight.

It takes the weight of the new value rather than the decay, because 1 - 0.999 loses three digits in float32. Written
in place with ``out=average``. Source: Polyak and Juditsky, SIAM J. Control Optim. 30 (4), 1992.
"""

class _embedding(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        padding_idx: int | None = None,
        max_norm: Array | float | None = None,
        norm_type: Array | float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """weight[input]: a row of the table for each number; the row ``padding_idx`` has no gradient.

        Neither ``max_norm``, ``scale_grad_by_freq`` nor ``sparse``. Source: torch.nn.functional.embedding.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        padding_idx: int | None = None,
        max_norm: Foreign | float | None = None,
        norm_type: Foreign | float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
embedding: _embedding
"""weight[input]: a row of the table for each number; the row ``padding_idx`` has no gradient.

Neither ``max_norm``, ``scale_grad_by_freq`` nor ``sparse``. Source: torch.nn.functional.embedding.
"""

class _embedding_bag(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        offsets: Array | float | None = None,
        max_norm: Array | float | None = None,
        norm_type: Array | float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = 'mean',
        sparse: bool = False,
        per_sample_weights: Array | float | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """The sum, mean or maximum of the rows weight[input] of each bag; 0 of a bag of none.

        The rows of a matrix ``input`` are bags. Those of a vector begin at ``offsets``; with ``include_last_offset`` the
        last of these is where the last bag ends. A sum may be weighted. The row ``padding_idx`` counts for nothing. Rows
        that tie share a maximum's gradient. Neither ``max_norm``, ``scale_grad_by_freq`` nor ``sparse``.

        Source: torch.nn.functional.embedding_bag.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        offsets: Foreign | float | None = None,
        max_norm: Foreign | float | None = None,
        norm_type: Foreign | float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = 'mean',
        sparse: bool = False,
        per_sample_weights: Foreign | float | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
embedding_bag: _embedding_bag
"""The sum, mean or maximum of the rows weight[input] of each bag; 0 of a bag of none.

The rows of a matrix ``input`` are bags. Those of a vector begin at ``offsets``; with ``include_last_offset`` the
last of these is where the last bag ends. A sum may be weighted. The row ``padding_idx`` counts for nothing. Rows
that tie share a maximum's gradient. Neither ``max_norm``, ``scale_grad_by_freq`` nor ``sparse``.

Source: torch.nn.functional.embedding_bag.
"""

class _feature_dropout(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        p: Array | float = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        seed: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """dropout of whole channels: one number for each of the first two dimensions.

        Source: torch.nn.functional.dropout1d, dropout2d and dropout3d.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        p: Foreign | float = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        seed: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
feature_dropout: _feature_dropout
"""dropout of whole channels: one number for each of the first two dimensions.

Source: torch.nn.functional.dropout1d, dropout2d and dropout3d.
"""

class _flip(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, dims: int | Sequence[int], *, out: Array | None = None) -> Array:
        """input in the other order along these dimensions. Source: torch.flip."""
    @overload
    def __call__(self, input: Foreign, dims: int | Sequence[int], *, out: Foreign | None = None) -> Foreign: ...
flip: _flip
"""input in the other order along these dimensions. Source: torch.flip."""

class _gather(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        index: Array | float,
        *,
        sparse_grad: bool = False,
        out: Array | None = None,
    ) -> Array:
        """out[i][j][k] = input[index[i][j][k]][j][k] for dim 0, in the shape of the index; likewise along other dimensions.

        Source: torch.gather.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        index: Foreign | float,
        *,
        sparse_grad: bool = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
gather: _gather
"""out[i][j][k] = input[index[i][j][k]][j][k] for dim 0, in the shape of the index; likewise along other dimensions.

Source: torch.gather.
"""

class _gaussian_nll_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        var: Array | float,
        full: bool = False,
        eps: Array | float = 1e-06,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """(log(v) + (input - target)^2 / v) / 2 with v = max(var, eps); ``full`` adds log(2 pi) / 2.

        ``var`` is a number, or a tensor of the input's shape, with a last dimension of 1, or without the last dimension.
        Its gradient passes the maximum unchanged. Source: torch.nn.functional.gaussian_nll_loss.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        var: Foreign | float,
        full: bool = False,
        eps: Foreign | float = 1e-06,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
gaussian_nll_loss: _gaussian_nll_loss
"""(log(v) + (input - target)^2 / v) / 2 with v = max(var, eps); ``full`` adds log(2 pi) / 2.

``var`` is a number, or a tensor of the input's shape, with a last dimension of 1, or without the last dimension.
Its gradient passes the maximum unchanged. Source: torch.nn.functional.gaussian_nll_loss.
"""

class _geglu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        gate: Array,
        value: Array | float,
        approximate: str = 'none',
        *,
        out: Array | None = None,
    ) -> Array:
        """gelu(gate, approximate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""
    @overload
    def __call__(
        self,
        gate: Foreign,
        value: Foreign | float,
        approximate: str = 'none',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
geglu: _geglu
"""gelu(gate, approximate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""

class _geglu_mlp(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        gate: Array | float,
        up: Array | float,
        down: Array | float,
        gate_bias: Array | float | None = None,
        up_bias: Array | float | None = None,
        down_bias: Array | float | None = None,
        *,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """linear(geglu(linear(input, gate), linear(input, up)), down), options as geglu's.

        Biases follow the weights that they belong to. Source: Shazeer, arXiv 2002.05202.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        gate: Foreign | float,
        up: Foreign | float,
        down: Foreign | float,
        gate_bias: Foreign | float | None = None,
        up_bias: Foreign | float | None = None,
        down_bias: Foreign | float | None = None,
        *,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
geglu_mlp: _geglu_mlp
"""linear(geglu(linear(input, gate), linear(input, up)), down), options as geglu's.

Biases follow the weights that they belong to. Source: Shazeer, arXiv 2002.05202.
"""

class _geglu_packed(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, dim: int = -1, approximate: str = 'none', *, out: Array | None = None) -> Array:
        """gelu(gate, approximate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int = -1,
        approximate: str = 'none',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
geglu_packed: _geglu_packed
"""gelu(gate, approximate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""

class _gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, approximate: str = 'none', *, out: Array | None = None) -> Array:
        """x Phi(x), Phi the normal distribution: two different functions.

        ``approximate="none"``: x erfc(-x / sqrt(2)) / 2, which keeps its digits in the negative tail, where 1 + erf(x)
        cancels. ``approximate="tanh"``: x (1 + tanh(u)) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3); from
        |x| = 32 on that sigmoid is 0 or 1 whatever the cube. Source: torch.nn.functional.gelu; arXiv 1606.08415.
        """
    @overload
    def __call__(self, input: Foreign, approximate: str = 'none', *, out: Foreign | None = None) -> Foreign: ...
gelu: _gelu
"""x Phi(x), Phi the normal distribution: two different functions.

``approximate="none"``: x erfc(-x / sqrt(2)) / 2, which keeps its digits in the negative tail, where 1 + erf(x)
cancels. ``approximate="tanh"``: x (1 + tanh(u)) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3); from
|x| = 32 on that sigmoid is 0 or 1 whatever the cube. Source: torch.nn.functional.gelu; arXiv 1606.08415.
"""

class _glu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, dim: int = -1, *, out: Array | None = None) -> Array:
        """a sigmoid(b) for the halves a, b of ``input`` along ``dim``. Source: torch.nn.functional.glu."""
    @overload
    def __call__(self, input: Foreign, dim: int = -1, *, out: Foreign | None = None) -> Foreign: ...
glu: _glu
"""a sigmoid(b) for the halves a, b of ``input`` along ``dim``. Source: torch.nn.functional.glu."""

class _group_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        num_groups: int,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        out: Array | None = None,
    ) -> Array:
        """(x - mean) / sqrt(variance + eps) weight + bias, over a sample's channels of one group and all that follows.

        Source: torch.nn.functional.group_norm; Wu and He, arXiv 1803.08494.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        num_groups: int,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
group_norm: _group_norm
"""(x - mean) / sqrt(variance + eps) weight + bias, over a sample's channels of one group and all that follows.

Source: torch.nn.functional.group_norm; Wu and He, arXiv 1803.08494.
"""

class _group_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        num_groups: int,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(group_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        num_groups: int,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
group_norm_gelu: _group_norm_gelu
"""gelu(group_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _group_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        num_groups: int,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """relu(group_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        num_groups: int,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
group_norm_relu: _group_norm_relu
"""relu(group_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _group_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        num_groups: int,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """silu(group_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        num_groups: int,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
group_norm_silu: _group_norm_silu
"""silu(group_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _gru_cell(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input_gates: Array,
        hidden_gates: Array | float,
        hidden: Array | float,
        input_bias: Array | float | None = None,
        hidden_bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """The new hidden state of a GRU step, given its products; with input and weights: linear_gru_cell.

            r = sigmoid(i_r + h_r),  z = sigmoid(i_z + h_z),  n = tanh(i_n + r h_n)
            hidden' = (1 - z) n + z hidden = n + z (hidden - n)

        Args:
            input_gates, hidden_gates: [..., 3 H] each, torch's order r, z, n; apart, because r scales one of them.
            hidden: [..., H].
            input_bias, hidden_bias: [3 H], added to the gates.

        Source: torch.nn.GRUCell; Cho et al., arXiv 1406.1078.
        """
    @overload
    def __call__(
        self,
        input_gates: Foreign,
        hidden_gates: Foreign | float,
        hidden: Foreign | float,
        input_bias: Foreign | float | None = None,
        hidden_bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
gru_cell: _gru_cell
"""The new hidden state of a GRU step, given its products; with input and weights: linear_gru_cell.

    r = sigmoid(i_r + h_r),  z = sigmoid(i_z + h_z),  n = tanh(i_n + r h_n)
    hidden' = (1 - z) n + z hidden = n + z (hidden - n)

Args:
    input_gates, hidden_gates: [..., 3 H] each, torch's order r, z, n; apart, because r scales one of them.
    hidden: [..., H].
    input_bias, hidden_bias: [3 H], added to the gates.

Source: torch.nn.GRUCell; Cho et al., arXiv 1406.1078.
"""

class _hardshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, lambd: Array | float = 0.5, *, out: Array | None = None) -> Array:
        """0 where |x| <= lambd, else x. Source: torch.nn.functional.hardshrink."""
    @overload
    def __call__(self, input: Foreign, lambd: Foreign | float = 0.5, *, out: Foreign | None = None) -> Foreign: ...
hardshrink: _hardshrink
"""0 where |x| <= lambd, else x. Source: torch.nn.functional.hardshrink."""

class _hardsigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, inplace: bool = False, *, out: Array | None = None) -> Array:
        """min(max(x + 3, 0), 6) / 6; gradient 0 at both ends. Source: torch.nn.functional.hardsigmoid."""
    @overload
    def __call__(self, input: Foreign, inplace: bool = False, *, out: Foreign | None = None) -> Foreign: ...
hardsigmoid: _hardsigmoid
"""min(max(x + 3, 0), 6) / 6; gradient 0 at both ends. Source: torch.nn.functional.hardsigmoid."""

class _hardswish(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, inplace: bool = False, *, out: Array | None = None) -> Array:
        """x min(max(x + 3, 0), 6) / 6. Source: torch.nn.functional.hardswish; Howard et al., arXiv 1905.02244."""
    @overload
    def __call__(self, input: Foreign, inplace: bool = False, *, out: Foreign | None = None) -> Foreign: ...
hardswish: _hardswish
"""x min(max(x + 3, 0), 6) / 6. Source: torch.nn.functional.hardswish; Howard et al., arXiv 1905.02244."""

class _hardtanh(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        min_val: Array | float = -1.0,
        max_val: Array | float = 1.0,
        inplace: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """min(max(x, min_val), max_val); gradient 0 at both ends. Integers too. Source: torch.nn.functional.hardtanh."""
    @overload
    def __call__(
        self,
        input: Foreign,
        min_val: Foreign | float = -1.0,
        max_val: Foreign | float = 1.0,
        inplace: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
hardtanh: _hardtanh
"""min(max(x, min_val), max_val); gradient 0 at both ends. Integers too. Source: torch.nn.functional.hardtanh."""

class _hinge_embedding_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        margin: Array | float = 1.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """x where target = 1, max(0, margin - x) where target = -1, and the sum of both elsewhere.

        Source: torch.nn.functional.hinge_embedding_loss.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        margin: Foreign | float = 1.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
hinge_embedding_loss: _hinge_embedding_loss
"""x where target = 1, max(0, margin - x) where target = -1, and the sum of both elsewhere.

Source: torch.nn.functional.hinge_embedding_loss.
"""

class _huber_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        reduction: str = 'mean',
        delta: Array | float = 1.0,
        weight: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = input - target; times weight.

        "mean" divides by the number of elements, weights or not. Source: torch.nn.functional.huber_loss.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        reduction: str = 'mean',
        delta: Foreign | float = 1.0,
        weight: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
huber_loss: _huber_loss
"""d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = input - target; times weight.

"mean" divides by the number of elements, weights or not. Source: torch.nn.functional.huber_loss.
"""

class _index_add(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        index: Array | float,
        source: Array | float,
        *,
        alpha: Array | float = 1,
        out: Array | None = None,
    ) -> Array:
        """input with alpha source[i] added at index[i] along ``dim``, for dim 0; in one order, the same bits each time.

        Source: torch.index_add.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        index: Foreign | float,
        source: Foreign | float,
        *,
        alpha: Foreign | float = 1,
        out: Foreign | None = None,
    ) -> Foreign: ...
index_add: _index_add
"""input with alpha source[i] added at index[i] along ``dim``, for dim 0; in one order, the same bits each time.

Source: torch.index_add.
"""

class _index_copy(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        index: Array | float,
        source: Array | float,
        *,
        out: Array | None = None,
    ) -> Array:
        """input with source[i] in place of what is at index[i] along ``dim``, for dim 0.

        Of several for one place the last one counts, and has the gradient. Source: torch.index_copy.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        index: Foreign | float,
        source: Foreign | float,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
index_copy: _index_copy
"""input with source[i] in place of what is at index[i] along ``dim``, for dim 0.

Of several for one place the last one counts, and has the gradient. Source: torch.index_copy.
"""

class _index_select(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        index: Array | float,
        *,
        out: Array | None = None,
    ) -> Array:
        """input at the places of a vector along ``dim``. Source: torch.index_select."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        index: Foreign | float,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
index_select: _index_select
"""input at the places of a vector along ``dim``. Source: torch.index_select."""

class _instance_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        out: Array | None = None,
    ) -> Array:
        """(x - mean) / sqrt(variance + eps) weight + bias, over all but the first two dimensions of [N, C, ...].

        Running statistics, where given, move in place as batch_norm's, towards the samples' average. Without
        ``use_input_stats`` they are what normalizes.

        Source: torch.nn.functional.instance_norm; Ulyanov, Vedaldi, Lempitsky, arXiv 1607.08022.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
instance_norm: _instance_norm
"""(x - mean) / sqrt(variance + eps) weight + bias, over all but the first two dimensions of [N, C, ...].

Running statistics, where given, move in place as batch_norm's, towards the samples' average. Without
``use_input_stats`` they are what normalizes.

Source: torch.nn.functional.instance_norm; Ulyanov, Vedaldi, Lempitsky, arXiv 1607.08022.
"""

class _instance_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(instance_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
instance_norm_gelu: _instance_norm_gelu
"""gelu(instance_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _instance_norm_leaky_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        negative_slope: Array | float = 0.01,
        out: Array | None = None,
    ) -> Array:
        """leaky_relu(instance_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        negative_slope: Foreign | float = 0.01,
        out: Foreign | None = None,
    ) -> Foreign: ...
instance_norm_leaky_relu: _instance_norm_leaky_relu
"""leaky_relu(instance_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _instance_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """relu(instance_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
instance_norm_relu: _instance_norm_relu
"""relu(instance_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _instance_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """silu(instance_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
instance_norm_silu: _instance_norm_silu
"""silu(instance_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _kl_div(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        log_target: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """t (log(t) - x) for log-probabilities x; with ``log_target``, exp(t) (t - x).

        ``reduction="batchmean"`` divides the sum by the size of dimension 0: the divergence itself. "mean" divides by the
        number of elements. Source: torch.nn.functional.kl_div.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        log_target: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
kl_div: _kl_div
"""t (log(t) - x) for log-probabilities x; with ``log_target``, exp(t) (t - x).

``reduction="batchmean"`` divides the sum by the size of dimension 0: the divergence itself. "mean" divides by the
number of elements. Source: torch.nn.functional.kl_div.
"""

class _l1_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        weight: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """weight |input - target|; "mean" divides by the sum of the weights. Source: torch.nn.functional.l1_loss."""
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        weight: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
l1_loss: _l1_loss
"""weight |input - target|; "mean" divides by the sum of the weights. Source: torch.nn.functional.l1_loss."""

class _layer_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        out: Array | None = None,
    ) -> Array:
        """(x - mean) rstd weight + bias, with rstd = 1 / sqrt(variance + eps), over the trailing dimensions.

        ``normalized_shape`` are their sizes; None stands for any size, and inside another op's declaration only their
        number counts. ``weight`` and ``bias`` have that shape. Source: torch.nn.functional.layer_norm; Ba, Kiros, Hinton,
        arXiv 1607.06450.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
layer_norm: _layer_norm
"""(x - mean) rstd weight + bias, with rstd = 1 / sqrt(variance + eps), over the trailing dimensions.

``normalized_shape`` are their sizes; None stands for any size, and inside another op's declaration only their
number counts. ``weight`` and ``bias`` have that shape. Source: torch.nn.functional.layer_norm; Ba, Kiros, Hinton,
arXiv 1607.06450.
"""

class _layer_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(layer_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
layer_norm_gelu: _layer_norm_gelu
"""gelu(layer_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _layer_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """relu(layer_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
layer_norm_relu: _layer_norm_relu
"""relu(layer_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _layer_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """silu(layer_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
layer_norm_silu: _layer_norm_silu
"""silu(layer_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _leaky_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        negative_slope: Array | float = 0.01,
        inplace: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """x where x > 0, else negative_slope x. Source: torch.nn.functional.leaky_relu."""
    @overload
    def __call__(
        self,
        input: Foreign,
        negative_slope: Foreign | float = 0.01,
        inplace: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
leaky_relu: _leaky_relu
"""x where x > 0, else negative_slope x. Source: torch.nn.functional.leaky_relu."""

class _lerp(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, end: Array | float, weight: Array | float, *, out: Array | None = None) -> Array:
        """input + weight (end - input); the three broadcast, ``weight`` may be a number.

        From |weight| = 1/2 on it is computed from the other end, end - (1 - weight) (end - input), so that weight 0 gives
        ``input`` and weight 1 gives ``end`` to the last bit. Source: torch.lerp.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        end: Foreign | float,
        weight: Foreign | float,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
lerp: _lerp
"""input + weight (end - input); the three broadcast, ``weight`` may be a number.

From |weight| = 1/2 on it is computed from the other end, end - (1 - weight) (end - input), so that weight 0 gives
``input`` and weight 1 gives ``end`` to the last bit. Source: torch.lerp.
"""

class _linear(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """input @ weight.mT + bias for a weight [out, in], or [in]. Source: torch.nn.functional.linear.

        float32 is multiplied in TF32 exactly if torch does so: torch.backends.cuda.matmul.allow_tf32.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear: _linear
"""input @ weight.mT + bias for a weight [out, in], or [in]. Source: torch.nn.functional.linear.

float32 is multiplied in TF32 exactly if torch does so: torch.backends.cuda.matmul.allow_tf32.
"""

class _linear_celu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        alpha: Array | float = 1.0,
        out: Array | None = None,
    ) -> Array:
        """celu(input @ weight.mT + bias), options as celu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        alpha: Foreign | float = 1.0,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_celu: _linear_celu
"""celu(input @ weight.mT + bias), options as celu's."""

class _linear_cross_entropy(LinearLossOp):
    @overload
    def __call__(
        self,
        input: Array,
        linear_weight: Array | float,
        target: Array | float,
        *,
        linear_bias: Array | float | None = None,
        weight: Array | float | None = None,
        reduction: str = 'mean',
        ignore_index: Array | float | None = None,
        label_smoothing: Array | float = 0.0,
        z_loss: Array | float = 0.0,
        options: object | None = None,
        out: Array | None = None,
    ) -> Array:
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
    @overload
    def __call__(
        self,
        input: Foreign,
        linear_weight: Foreign | float,
        target: Foreign | float,
        *,
        linear_bias: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        reduction: str = 'mean',
        ignore_index: Foreign | float | None = None,
        label_smoothing: Foreign | float = 0.0,
        z_loss: Foreign | float = 0.0,
        options: object | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_cross_entropy: _linear_cross_entropy
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

class _linear_elu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        alpha: Array | float = 1.0,
        out: Array | None = None,
    ) -> Array:
        """elu(input @ weight.mT + bias), options as elu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        alpha: Foreign | float = 1.0,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_elu: _linear_elu
"""elu(input @ weight.mT + bias), options as elu's."""

class _linear_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(input @ weight.mT + bias), options as gelu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_gelu: _linear_gelu
"""gelu(input @ weight.mT + bias), options as gelu's."""

class _linear_gru_cell(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        hidden: Array | float,
        weight_ih: Array | float,
        weight_hh: Array | float,
        bias_ih: Array | float | None = None,
        bias_hh: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """The new hidden state of a GRU step: torch.gru_cell.

        gru_cell(linear(input, weight_ih), linear(hidden, weight_hh), hidden, biases), in one op of two products.

        Args:
            input: [N, I], or [I].
            hidden: [N, H], or [H].
            weight_ih, weight_hh: [3 H, I] and [3 H, H], torch's order r, z, n.
            bias_ih, bias_hh: [3 H].

        Source: torch.nn.GRUCell.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        hidden: Foreign | float,
        weight_ih: Foreign | float,
        weight_hh: Foreign | float,
        bias_ih: Foreign | float | None = None,
        bias_hh: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_gru_cell: _linear_gru_cell
"""The new hidden state of a GRU step: torch.gru_cell.

gru_cell(linear(input, weight_ih), linear(hidden, weight_hh), hidden, biases), in one op of two products.

Args:
    input: [N, I], or [I].
    hidden: [N, H], or [H].
    weight_ih, weight_hh: [3 H, I] and [3 H, H], torch's order r, z, n.
    bias_ih, bias_hh: [3 H].

Source: torch.nn.GRUCell.
"""

class _linear_hardshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        lambd: Array | float = 0.5,
        out: Array | None = None,
    ) -> Array:
        """hardshrink(input @ weight.mT + bias), options as hardshrink's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        lambd: Foreign | float = 0.5,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_hardshrink: _linear_hardshrink
"""hardshrink(input @ weight.mT + bias), options as hardshrink's."""

class _linear_hardsigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """hardsigmoid(input @ weight.mT + bias), options as hardsigmoid's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_hardsigmoid: _linear_hardsigmoid
"""hardsigmoid(input @ weight.mT + bias), options as hardsigmoid's."""

class _linear_hardswish(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """hardswish(input @ weight.mT + bias), options as hardswish's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_hardswish: _linear_hardswish
"""hardswish(input @ weight.mT + bias), options as hardswish's."""

class _linear_hardtanh(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        min_val: Array | float = -1.0,
        max_val: Array | float = 1.0,
        out: Array | None = None,
    ) -> Array:
        """hardtanh(input @ weight.mT + bias), options as hardtanh's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        min_val: Foreign | float = -1.0,
        max_val: Foreign | float = 1.0,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_hardtanh: _linear_hardtanh
"""hardtanh(input @ weight.mT + bias), options as hardtanh's."""

class _linear_leaky_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        negative_slope: Array | float = 0.01,
        out: Array | None = None,
    ) -> Array:
        """leaky_relu(input @ weight.mT + bias), options as leaky_relu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        negative_slope: Foreign | float = 0.01,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_leaky_relu: _linear_leaky_relu
"""leaky_relu(input @ weight.mT + bias), options as leaky_relu's."""

class _linear_logsigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """logsigmoid(input @ weight.mT + bias), options as logsigmoid's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_logsigmoid: _linear_logsigmoid
"""logsigmoid(input @ weight.mT + bias), options as logsigmoid's."""

class _linear_lstm_cell(FusedOp[..., tuple[Tensor, ...]]):
    @overload
    def __call__(
        self,
        input: Array,
        hidden: Array | float,
        cell: Array | float,
        weight_ih: Array | float,
        weight_hh: Array | float,
        bias_ih: Array | float | None = None,
        bias_hh: Array | float | None = None,
        *,
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]:
        """(hidden, cell) of an LSTM step: torch.lstm_cell with hx as two arguments, hidden and cell.

        lstm_cell(linear(input, weight_ih) + linear(hidden, weight_hh), cell, biases), in one op of two products.

        Args:
            input: [N, I], or [I].
            hidden, cell: [N, H], or [H].
            weight_ih, weight_hh: [4 H, I] and [4 H, H], torch's order i, f, g, o.
            bias_ih, bias_hh: [4 H].

        Source: torch.nn.LSTMCell.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        hidden: Foreign | float,
        cell: Foreign | float,
        weight_ih: Foreign | float,
        weight_hh: Foreign | float,
        bias_ih: Foreign | float | None = None,
        bias_hh: Foreign | float | None = None,
        *,
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
linear_lstm_cell: _linear_lstm_cell
"""(hidden, cell) of an LSTM step: torch.lstm_cell with hx as two arguments, hidden and cell.

lstm_cell(linear(input, weight_ih) + linear(hidden, weight_hh), cell, biases), in one op of two products.

Args:
    input: [N, I], or [I].
    hidden, cell: [N, H], or [H].
    weight_ih, weight_hh: [4 H, I] and [4 H, H], torch's order i, f, g, o.
    bias_ih, bias_hh: [4 H].

Source: torch.nn.LSTMCell.
"""

class _linear_mish(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """mish(input @ weight.mT + bias), options as mish's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_mish: _linear_mish
"""mish(input @ weight.mT + bias), options as mish's."""

class _linear_quick_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """quick_gelu(input @ weight.mT + bias), options as quick_gelu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_quick_gelu: _linear_quick_gelu
"""quick_gelu(input @ weight.mT + bias), options as quick_gelu's."""

class _linear_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """relu(input @ weight.mT + bias), options as relu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_relu: _linear_relu
"""relu(input @ weight.mT + bias), options as relu's."""

class _linear_relu6(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """relu6(input @ weight.mT + bias), options as relu6's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_relu6: _linear_relu6
"""relu6(input @ weight.mT + bias), options as relu6's."""

class _linear_residual(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None,
        residual: Array | float | None,
        mask: Array | float | None = None,
        p: Array | float = 0.0,
        *,
        out: Array | None = None,
    ) -> Array:
        """residual + linear(input, weight, bias), or residual + mask linear(...) / (1 - p): after a dropout of rate ``p``.

        ``mask``, of the result's shape, is 1 (or True) for what is kept. What ends the blocks of a transformer.
        Source: Vaswani et al., arXiv 1706.03762.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        mask: Foreign | float | None = None,
        p: Foreign | float = 0.0,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_residual: _linear_residual
"""residual + linear(input, weight, bias), or residual + mask linear(...) / (1 - p): after a dropout of rate ``p``.

``mask``, of the result's shape, is 1 (or True) for what is kept. What ends the blocks of a transformer.
Source: Vaswani et al., arXiv 1706.03762.
"""

class _linear_selu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """selu(input @ weight.mT + bias), options as selu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_selu: _linear_selu
"""selu(input @ weight.mT + bias), options as selu's."""

class _linear_sigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """sigmoid(input @ weight.mT + bias), options as sigmoid's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_sigmoid: _linear_sigmoid
"""sigmoid(input @ weight.mT + bias), options as sigmoid's."""

class _linear_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """silu(input @ weight.mT + bias), options as silu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_silu: _linear_silu
"""silu(input @ weight.mT + bias), options as silu's."""

class _linear_softplus(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        beta: Array | float = 1.0,
        threshold: Array | float = 20.0,
        out: Array | None = None,
    ) -> Array:
        """softplus(input @ weight.mT + bias), options as softplus's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        beta: Foreign | float = 1.0,
        threshold: Foreign | float = 20.0,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_softplus: _linear_softplus
"""softplus(input @ weight.mT + bias), options as softplus's."""

class _linear_softshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        lambd: Array | float = 0.5,
        out: Array | None = None,
    ) -> Array:
        """softshrink(input @ weight.mT + bias), options as softshrink's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        lambd: Foreign | float = 0.5,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_softshrink: _linear_softshrink
"""softshrink(input @ weight.mT + bias), options as softshrink's."""

class _linear_softsign(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """softsign(input @ weight.mT + bias), options as softsign's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_softsign: _linear_softsign
"""softsign(input @ weight.mT + bias), options as softsign's."""

class _linear_squared_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """squared_relu(input @ weight.mT + bias), options as squared_relu's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_squared_relu: _linear_squared_relu
"""squared_relu(input @ weight.mT + bias), options as squared_relu's."""

class _linear_tanh(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """tanh(input @ weight.mT + bias), options as tanh's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_tanh: _linear_tanh
"""tanh(input @ weight.mT + bias), options as tanh's."""

class _linear_tanhshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """tanhshrink(input @ weight.mT + bias), options as tanhshrink's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_tanhshrink: _linear_tanhshrink
"""tanhshrink(input @ weight.mT + bias), options as tanhshrink's."""

class _linear_threshold(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        weight: Array | float,
        bias: Array | float | None = None,
        *,
        threshold: Array | float,
        value: Array | float,
        out: Array | None = None,
    ) -> Array:
        """threshold(input @ weight.mT + bias), options as threshold's."""
    @overload
    def __call__(
        self,
        input: Foreign,
        weight: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        threshold: Foreign | float,
        value: Foreign | float,
        out: Foreign | None = None,
    ) -> Foreign: ...
linear_threshold: _linear_threshold
"""threshold(input @ weight.mT + bias), options as threshold's."""

class _log_softmax(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """x - max(x) - log(sum(exp(x - max(x)))) along ``dim``. Source: torch.nn.functional.log_softmax."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
log_softmax: _log_softmax
"""x - max(x) - log(sum(exp(x - max(x)))) along ``dim``. Source: torch.nn.functional.log_softmax."""

class _logcumsumexp(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, dim: int | Sequence[int], *, out: Array | None = None) -> Array:
        """log(exp(x[0]) + ... + exp(x[i])) along ``dim``, relative to the running maximum. Source: torch.logcumsumexp.

        Infinite where torch's is; no gradient flows there, where torch's is NaN.
        """
    @overload
    def __call__(self, input: Foreign, dim: int | Sequence[int], *, out: Foreign | None = None) -> Foreign: ...
logcumsumexp: _logcumsumexp
"""log(exp(x[0]) + ... + exp(x[i])) along ``dim``, relative to the running maximum. Source: torch.logcumsumexp.

Infinite where torch's is; no gradient flows there, where torch's is NaN.
"""

class _logsigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, *, out: Array | None = None) -> Array:
        """log(1 / (1 + exp(-x))). Source: torch.nn.functional.logsigmoid."""
    @overload
    def __call__(self, input: Foreign, *, out: Foreign | None = None) -> Foreign: ...
logsigmoid: _logsigmoid
"""log(1 / (1 + exp(-x))). Source: torch.nn.functional.logsigmoid."""

class _logsumexp(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        keepdim: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """log(sum(exp(x))) over ``dim``, an int or several, as max(x) + log(sum(exp(x - max(x)))); integers as floats.

        Infinite where torch's is; no gradient flows there, where torch's is NaN. Source: torch.logsumexp.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        keepdim: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
logsumexp: _logsumexp
"""log(sum(exp(x))) over ``dim``, an int or several, as max(x) + log(sum(exp(x - max(x)))); integers as floats.

Infinite where torch's is; no gradient flows there, where torch's is NaN. Source: torch.logsumexp.
"""

class _lstm_cell(FusedOp[..., tuple[Tensor, ...]]):
    @overload
    def __call__(
        self,
        gates: Array,
        cell: Array | float,
        bias: Array | float | None = None,
        *,
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]:
        """(hidden, cell) of an LSTM step, given the sum of its products; with input and weights: linear_lstm_cell.

            i, f, g, o = gates + bias
            cell'   = sigmoid(f) cell + sigmoid(i) tanh(g)
            hidden' = sigmoid(o) tanh(cell')

        Args:
            gates: [..., 4 H], torch's order i, f, g, o: the sum of both products.
            cell: [..., H].
            bias: [4 H], the sum of both biases; its gradient comes with the backward.

        Source: torch.nn.LSTMCell; Hochreiter and Schmidhuber, Neural Computation 9 (8), 1997.
        """
    @overload
    def __call__(
        self,
        gates: Foreign,
        cell: Foreign | float,
        bias: Foreign | float | None = None,
        *,
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
lstm_cell: _lstm_cell
"""(hidden, cell) of an LSTM step, given the sum of its products; with input and weights: linear_lstm_cell.

    i, f, g, o = gates + bias
    cell'   = sigmoid(f) cell + sigmoid(i) tanh(g)
    hidden' = sigmoid(o) tanh(cell')

Args:
    gates: [..., 4 H], torch's order i, f, g, o: the sum of both products.
    cell: [..., H].
    bias: [4 H], the sum of both biases; its gradient comes with the backward.

Source: torch.nn.LSTMCell; Hochreiter and Schmidhuber, Neural Computation 9 (8), 1997.
"""

class _margin_ranking_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input1: Array,
        input2: Array | float,
        target: Array | float,
        margin: Array | float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """max(0, margin - target (input1 - input2)) for a target of 1 where input1 should be larger, else -1.

        Source: torch.nn.functional.margin_ranking_loss.
        """
    @overload
    def __call__(
        self,
        input1: Foreign,
        input2: Foreign | float,
        target: Foreign | float,
        margin: Foreign | float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
margin_ranking_loss: _margin_ranking_loss
"""max(0, margin - target (input1 - input2)) for a target of 1 where input1 should be larger, else -1.

Source: torch.nn.functional.margin_ranking_loss.
"""

class _masked_fill(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, mask: Array | float, value: Array | float, *, out: Array | None = None) -> Array:
        """``value`` where ``mask``, else ``input``, in the input's dtype. Source: torch.Tensor.masked_fill."""
    @overload
    def __call__(
        self,
        input: Foreign,
        mask: Foreign | float,
        value: Foreign | float,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
masked_fill: _masked_fill
"""``value`` where ``mask``, else ``input``, in the input's dtype. Source: torch.Tensor.masked_fill."""

class _matmul(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, other: Array | float, *, out: Array | None = None) -> Array:
        """input @ other over the last two dimensions, batched over those before, which broadcast.

        A tensor of one dimension is a row on the left and a column on the right. float32 is multiplied in TF32 exactly if
        torch.matmul does so: torch.backends.cuda.matmul.allow_tf32. Source: torch.matmul.
        """
    @overload
    def __call__(self, input: Foreign, other: Foreign | float, *, out: Foreign | None = None) -> Foreign: ...
matmul: _matmul
"""input @ other over the last two dimensions, batched over those before, which broadcast.

A tensor of one dimension is a row on the left and a column on the right. float32 is multiplied in TF32 exactly if
torch.matmul does so: torch.backends.cuda.matmul.allow_tf32. Source: torch.matmul.
"""

class _maximum(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, other: Array | float, *, out: Array | None = None) -> Array:
        """The larger of the two; NaN wins, a tie shares the gradient. Source: torch.maximum."""
    @overload
    def __call__(self, input: Foreign, other: Foreign | float, *, out: Foreign | None = None) -> Foreign: ...
maximum: _maximum
"""The larger of the two; NaN wins, a tie shares the gradient. Source: torch.maximum."""

class _mean(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """Sum of the elements over their number; ``dtype``: the input is cast first. Source: torch.mean."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
mean: _mean
"""Sum of the elements over their number; ``dtype``: the input is cast first. Source: torch.mean."""

class _minimum(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, other: Array | float, *, out: Array | None = None) -> Array:
        """The smaller of the two; NaN wins, a tie shares the gradient. Source: torch.minimum."""
    @overload
    def __call__(self, input: Foreign, other: Foreign | float, *, out: Foreign | None = None) -> Foreign: ...
minimum: _minimum
"""The smaller of the two; NaN wins, a tie shares the gradient. Source: torch.minimum."""

class _mish(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, inplace: bool = False, *, out: Array | None = None) -> Array:
        """x tanh(log(1 + exp(x))). Source: torch.nn.functional.mish; Misra, arXiv 1908.08681."""
    @overload
    def __call__(self, input: Foreign, inplace: bool = False, *, out: Foreign | None = None) -> Foreign: ...
mish: _mish
"""x tanh(log(1 + exp(x))). Source: torch.nn.functional.mish; Misra, arXiv 1908.08681."""

class _mlp(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        up: Array | float,
        up_bias: Array | float,
        down: Array | float,
        down_bias: Array | float,
        activation: str = 'gelu',
        *,
        out: Array | None = None,
    ) -> Array:
        """linear(activation(linear(input, up, up_bias)), down, down_bias): the block of a transformer.

        ``activation`` is a name of this library, with its default options, or "gelu_tanh".
        Source: Vaswani et al., arXiv 1706.03762.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        up: Foreign | float,
        up_bias: Foreign | float,
        down: Foreign | float,
        down_bias: Foreign | float,
        activation: str = 'gelu',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
mlp: _mlp
"""linear(activation(linear(input, up, up_bias)), down, down_bias): the block of a transformer.

``activation`` is a name of this library, with its default options, or "gelu_tanh".
Source: Vaswani et al., arXiv 1706.03762.
"""

class _mse_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        weight: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """weight (input - target)^2; "mean" divides by the sum of the weights. Source: torch.nn.functional.mse_loss."""
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        weight: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
mse_loss: _mse_loss
"""weight (input - target)^2; "mean" divides by the sum of the weights. Source: torch.nn.functional.mse_loss."""

class _multilabel_soft_margin_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        weight: Array | float | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """-mean(weight (t log(sigmoid(x)) + (1 - t) log(sigmoid(-x)))) over the last dimension, one class each.

        Source: torch.nn.functional.multilabel_soft_margin_loss.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        weight: Foreign | float | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
multilabel_soft_margin_loss: _multilabel_soft_margin_loss
"""-mean(weight (t log(sigmoid(x)) + (1 - t) log(sigmoid(-x)))) over the last dimension, one class each.

Source: torch.nn.functional.multilabel_soft_margin_loss.
"""

class _nll_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        weight: Array | float | None = None,
        size_average: bool | None = None,
        ignore_index: Array | float = -100,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """-weight[target] x[target] for log-probabilities x; "mean" divides by the sum of the weights.

        Source: torch.nn.functional.nll_loss.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        weight: Foreign | float | None = None,
        size_average: bool | None = None,
        ignore_index: Foreign | float = -100,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
nll_loss: _nll_loss
"""-weight[target] x[target] for log-probabilities x; "mean" divides by the sum of the weights.

Source: torch.nn.functional.nll_loss.
"""

class _normalize(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        p: float = 2.0,
        dim: int | Sequence[int] = 1,
        eps: Array | float = 1e-12,
        *,
        out: Array | None = None,
    ) -> Array:
        """x / max(|x|_p, eps), the norm over ``dim``; it has no gradient where it is less than eps.

        torch's ``out`` goes by keyword, as every op's does.

        Source: torch.nn.functional.normalize.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        p: float = 2.0,
        dim: int | Sequence[int] = 1,
        eps: Foreign | float = 1e-12,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
normalize: _normalize
"""x / max(|x|_p, eps), the norm over ``dim``; it has no gradient where it is less than eps.

torch's ``out`` goes by keyword, as every op's does.

Source: torch.nn.functional.normalize.
"""

class _pad(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        pad: Sequence[int],
        mode: str = 'constant',
        value: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """input with ``pad[0]`` elements in front of its last dimension and ``pad[1]`` behind, and so on for those before.

        They are the number ``value``, or the input's: turned around its ends ("reflect"), its ends ("replicate"), or what
        follows if it goes on anew ("circular"). Negative widths cut off. Source: torch.nn.functional.pad.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        pad: Sequence[int],
        mode: str = 'constant',
        value: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
pad: _pad
"""input with ``pad[0]`` elements in front of its last dimension and ``pad[1]`` behind, and so on for those before.

They are the number ``value``, or the input's: turned around its ends ("reflect"), its ends ("replicate"), or what
follows if it goes on anew ("circular"). Negative widths cut off. Source: torch.nn.functional.pad.
"""

class _poisson_nll_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: Array | float = 1e-08,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """exp(x) - t x for log-rates x; without ``log_input``, x - t log(x + eps) for rates.

        ``full`` adds Stirling's t log(t) - t + log(2 pi t) / 2 where t > 1. Source: torch.nn.functional.poisson_nll_loss.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: Foreign | float = 1e-08,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
poisson_nll_loss: _poisson_nll_loss
"""exp(x) - t x for log-rates x; without ``log_input``, x - t log(x + eps) for rates.

``full`` adds Stirling's t log(t) - t + log(2 pi t) / 2 where t > 1. Source: torch.nn.functional.poisson_nll_loss.
"""

class _prelu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, weight: Array | float, *, out: Array | None = None) -> Array:
        """x where x > 0, else weight x.

        ``weight`` is one number, or one per channel: of size C for an input [N, C, ...]. Source: torch.nn.functional.prelu.
        """
    @overload
    def __call__(self, input: Foreign, weight: Foreign | float, *, out: Foreign | None = None) -> Foreign: ...
prelu: _prelu
"""x where x > 0, else weight x.

``weight`` is one number, or one per channel: of size C for an input [N, C, ...]. Source: torch.nn.functional.prelu.
"""

class _prod(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """Product along one dimension, or of all elements; ``dtype``: the input is cast first. Source: torch.prod.

        First, second and third gradients are right for any zeros; of four in one product the fourth gradient is zero.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
prod: _prod
"""Product along one dimension, or of all elements; ``dtype``: the input is cast first. Source: torch.prod.

First, second and third gradients are right for any zeros; of four in one product the fourth gradient is zero.
"""

class _quick_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, *, out: Array | None = None) -> Array:
        """x sigmoid(1.702 x). Source: Hendrycks and Gimpel, arXiv 1606.08415; used in CLIP."""
    @overload
    def __call__(self, input: Foreign, *, out: Foreign | None = None) -> Foreign: ...
quick_gelu: _quick_gelu
"""x sigmoid(1.702 x). Source: Hendrycks and Gimpel, arXiv 1606.08415; used in CLIP."""

class _reglu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, gate: Array, value: Array | float, *, out: Array | None = None) -> Array:
        """relu(gate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""
    @overload
    def __call__(self, gate: Foreign, value: Foreign | float, *, out: Foreign | None = None) -> Foreign: ...
reglu: _reglu
"""relu(gate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""

class _reglu_mlp(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        gate: Array | float,
        up: Array | float,
        down: Array | float,
        gate_bias: Array | float | None = None,
        up_bias: Array | float | None = None,
        down_bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """linear(reglu(linear(input, gate), linear(input, up)), down), options as reglu's.

        Biases follow the weights that they belong to. Source: Shazeer, arXiv 2002.05202.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        gate: Foreign | float,
        up: Foreign | float,
        down: Foreign | float,
        gate_bias: Foreign | float | None = None,
        up_bias: Foreign | float | None = None,
        down_bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
reglu_mlp: _reglu_mlp
"""linear(reglu(linear(input, gate), linear(input, up)), down), options as reglu's.

Biases follow the weights that they belong to. Source: Shazeer, arXiv 2002.05202.
"""

class _reglu_packed(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, dim: int = -1, *, out: Array | None = None) -> Array:
        """relu(gate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""
    @overload
    def __call__(self, input: Foreign, dim: int = -1, *, out: Foreign | None = None) -> Foreign: ...
reglu_packed: _reglu_packed
"""relu(gate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""

class _relu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, inplace: bool = False, *, out: Array | None = None) -> Array:
        """max(x, 0); gradient 0 at 0. Integers too. Source: torch.nn.functional.relu."""
    @overload
    def __call__(self, input: Foreign, inplace: bool = False, *, out: Foreign | None = None) -> Foreign: ...
relu: _relu
"""max(x, 0); gradient 0 at 0. Integers too. Source: torch.nn.functional.relu."""

class _relu6(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, inplace: bool = False, *, out: Array | None = None) -> Array:
        """min(max(x, 0), 6). Source: torch.nn.functional.relu6."""
    @overload
    def __call__(self, input: Foreign, inplace: bool = False, *, out: Foreign | None = None) -> Foreign: ...
relu6: _relu6
"""min(max(x, 0), 6). Source: torch.nn.functional.relu6."""

class _residual_bias_batch_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """batch_norm(input + bias + residual), options as batch_norm's, whose bias is ``norm_bias``."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_batch_norm: _residual_bias_batch_norm
"""batch_norm(input + bias + residual), options as batch_norm's, whose bias is ``norm_bias``."""

class _residual_bias_batch_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(residual_bias_batch_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_batch_norm_gelu: _residual_bias_batch_norm_gelu
"""gelu(residual_bias_batch_norm(input, bias, residual)), options as theirs."""

class _residual_bias_batch_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """relu(residual_bias_batch_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_batch_norm_relu: _residual_bias_batch_norm_relu
"""relu(residual_bias_batch_norm(input, bias, residual)), options as theirs."""

class _residual_bias_batch_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """silu(residual_bias_batch_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None,
        running_var: Array | float | None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        training: bool = False,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None,
        running_var: Foreign | float | None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        training: bool = False,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_batch_norm_silu: _residual_bias_batch_norm_silu
"""silu(residual_bias_batch_norm(input, bias, residual)), options as theirs."""

class _residual_bias_celu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        alpha: Array | float = 1.0,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """celu(input + bias + residual), options as celu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        alpha: Foreign | float = 1.0,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_celu: _residual_bias_celu
"""celu(input + bias + residual), options as celu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_elu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        alpha: Array | float = 1.0,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """elu(input + bias + residual), options as elu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        alpha: Foreign | float = 1.0,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_elu: _residual_bias_elu
"""elu(input + bias + residual), options as elu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        approximate: str = 'none',
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """gelu(input + bias + residual), options as gelu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        approximate: str = 'none',
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_gelu: _residual_bias_gelu
"""gelu(input + bias + residual), options as gelu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_group_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        num_groups: int,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """group_norm(input + bias + residual), options as group_norm's, whose bias is ``norm_bias``."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        num_groups: int,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        num_groups: int,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        num_groups: int,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_group_norm: _residual_bias_group_norm
"""group_norm(input + bias + residual), options as group_norm's, whose bias is ``norm_bias``."""

class _residual_bias_group_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        num_groups: int,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(residual_bias_group_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        num_groups: int,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        num_groups: int,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        num_groups: int,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_group_norm_gelu: _residual_bias_group_norm_gelu
"""gelu(residual_bias_group_norm(input, bias, residual)), options as theirs."""

class _residual_bias_group_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        num_groups: int,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """relu(residual_bias_group_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        num_groups: int,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        num_groups: int,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        num_groups: int,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_group_norm_relu: _residual_bias_group_norm_relu
"""relu(residual_bias_group_norm(input, bias, residual)), options as theirs."""

class _residual_bias_group_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        num_groups: int,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """silu(residual_bias_group_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        num_groups: int,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        num_groups: int,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        num_groups: int,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_group_norm_silu: _residual_bias_group_norm_silu
"""silu(residual_bias_group_norm(input, bias, residual)), options as theirs."""

class _residual_bias_hardshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        lambd: Array | float = 0.5,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """hardshrink(input + bias + residual), options as hardshrink's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        lambd: Foreign | float = 0.5,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_hardshrink: _residual_bias_hardshrink
"""hardshrink(input + bias + residual), options as hardshrink's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_hardsigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """hardsigmoid(input + bias + residual), options as hardsigmoid's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_hardsigmoid: _residual_bias_hardsigmoid
"""hardsigmoid(input + bias + residual), options as hardsigmoid's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_hardswish(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """hardswish(input + bias + residual), options as hardswish's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_hardswish: _residual_bias_hardswish
"""hardswish(input + bias + residual), options as hardswish's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_hardtanh(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        min_val: Array | float = -1.0,
        max_val: Array | float = 1.0,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """hardtanh(input + bias + residual), options as hardtanh's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        min_val: Foreign | float = -1.0,
        max_val: Foreign | float = 1.0,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_hardtanh: _residual_bias_hardtanh
"""hardtanh(input + bias + residual), options as hardtanh's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_instance_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """instance_norm(input + bias + residual), options as instance_norm's, whose bias is ``norm_bias``."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_instance_norm: _residual_bias_instance_norm
"""instance_norm(input + bias + residual), options as instance_norm's, whose bias is ``norm_bias``."""

class _residual_bias_instance_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(residual_bias_instance_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_instance_norm_gelu: _residual_bias_instance_norm_gelu
"""gelu(residual_bias_instance_norm(input, bias, residual)), options as theirs."""

class _residual_bias_instance_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """relu(residual_bias_instance_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_instance_norm_relu: _residual_bias_instance_norm_relu
"""relu(residual_bias_instance_norm(input, bias, residual)), options as theirs."""

class _residual_bias_instance_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """silu(residual_bias_instance_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        running_mean: Array | float | None = None,
        running_var: Array | float | None = None,
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        use_input_stats: bool = True,
        momentum: Array | float = 0.1,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        running_mean: Foreign | float | None = None,
        running_var: Foreign | float | None = None,
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        use_input_stats: bool = True,
        momentum: Foreign | float = 0.1,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_instance_norm_silu: _residual_bias_instance_norm_silu
"""silu(residual_bias_instance_norm(input, bias, residual)), options as theirs."""

class _residual_bias_layer_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """layer_norm(input + bias + residual), options as layer_norm's, whose bias is ``norm_bias``."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_layer_norm: _residual_bias_layer_norm
"""layer_norm(input + bias + residual), options as layer_norm's, whose bias is ``norm_bias``."""

class _residual_bias_layer_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(residual_bias_layer_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_layer_norm_gelu: _residual_bias_layer_norm_gelu
"""gelu(residual_bias_layer_norm(input, bias, residual)), options as theirs."""

class _residual_bias_layer_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """relu(residual_bias_layer_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_layer_norm_relu: _residual_bias_layer_norm_relu
"""relu(residual_bias_layer_norm(input, bias, residual)), options as theirs."""

class _residual_bias_layer_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """silu(residual_bias_layer_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        norm_bias: Array | float | None = None,
        eps: Array | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        norm_bias: Foreign | float | None = None,
        eps: Foreign | float = 1e-05,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_layer_norm_silu: _residual_bias_layer_norm_silu
"""silu(residual_bias_layer_norm(input, bias, residual)), options as theirs."""

class _residual_bias_leaky_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        negative_slope: Array | float = 0.01,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """leaky_relu(input + bias + residual), options as leaky_relu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        negative_slope: Foreign | float = 0.01,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_leaky_relu: _residual_bias_leaky_relu
"""leaky_relu(input + bias + residual), options as leaky_relu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_log_softmax(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """log_softmax(input + bias + residual), options as log_softmax's."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_log_softmax: _residual_bias_log_softmax
"""log_softmax(input + bias + residual), options as log_softmax's."""

class _residual_bias_logsigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """logsigmoid(input + bias + residual), options as logsigmoid's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_logsigmoid: _residual_bias_logsigmoid
"""logsigmoid(input + bias + residual), options as logsigmoid's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_logsumexp(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        dim: int | Sequence[int],
        keepdim: bool = False,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """logsumexp(input + bias + residual), options as logsumexp's."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        dim: int | Sequence[int],
        keepdim: bool = False,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        dim: int | Sequence[int],
        keepdim: bool = False,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        dim: int | Sequence[int],
        keepdim: bool = False,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_logsumexp: _residual_bias_logsumexp
"""logsumexp(input + bias + residual), options as logsumexp's."""

class _residual_bias_mish(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """mish(input + bias + residual), options as mish's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_mish: _residual_bias_mish
"""mish(input + bias + residual), options as mish's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_normalize(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        p: float = 2.0,
        dim: int | Sequence[int] = 1,
        eps: Array | float = 1e-12,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """normalize(input + bias + residual), options as normalize's."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        p: float = 2.0,
        dim: int | Sequence[int] = 1,
        eps: Array | float = 1e-12,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        p: float = 2.0,
        dim: int | Sequence[int] = 1,
        eps: Foreign | float = 1e-12,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        p: float = 2.0,
        dim: int | Sequence[int] = 1,
        eps: Foreign | float = 1e-12,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_normalize: _residual_bias_normalize
"""normalize(input + bias + residual), options as normalize's."""

class _residual_bias_quick_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """quick_gelu(input + bias + residual), options as quick_gelu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_quick_gelu: _residual_bias_quick_gelu
"""quick_gelu(input + bias + residual), options as quick_gelu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """relu(input + bias + residual), options as relu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_relu: _residual_bias_relu
"""relu(input + bias + residual), options as relu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_relu6(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """relu6(input + bias + residual), options as relu6's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_relu6: _residual_bias_relu6
"""relu6(input + bias + residual), options as relu6's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_rms_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """rms_norm(input + bias + residual), options as rms_norm's."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_rms_norm: _residual_bias_rms_norm
"""rms_norm(input + bias + residual), options as rms_norm's."""

class _residual_bias_rms_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(residual_bias_rms_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        return_sum: Literal[False] = False,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        return_sum: Literal[True],
        approximate: str = 'none',
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_rms_norm_gelu: _residual_bias_rms_norm_gelu
"""gelu(residual_bias_rms_norm(input, bias, residual)), options as theirs."""

class _residual_bias_rms_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """relu(residual_bias_rms_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_rms_norm_relu: _residual_bias_rms_norm_relu
"""relu(residual_bias_rms_norm(input, bias, residual)), options as theirs."""

class _residual_bias_rms_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """silu(residual_bias_rms_norm(input, bias, residual)), options as theirs."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_rms_norm_silu: _residual_bias_rms_norm_silu
"""silu(residual_bias_rms_norm(input, bias, residual)), options as theirs."""

class _residual_bias_selu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """selu(input + bias + residual), options as selu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_selu: _residual_bias_selu
"""selu(input + bias + residual), options as selu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_sigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """sigmoid(input + bias + residual), options as sigmoid's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_sigmoid: _residual_bias_sigmoid
"""sigmoid(input + bias + residual), options as sigmoid's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """silu(input + bias + residual), options as silu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_silu: _residual_bias_silu
"""silu(input + bias + residual), options as silu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_softmax(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """softmax(input + bias + residual), options as softmax's."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_softmax: _residual_bias_softmax
"""softmax(input + bias + residual), options as softmax's."""

class _residual_bias_softmin(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[False] = False,
        out: Array | None = None,
    ) -> Array:
        """softmin(input + bias + residual), options as softmin's."""
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[True],
        out: Sequence[Array] | None = None,
    ) -> tuple[Array, Array]: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[False] = False,
        out: Foreign | None = None,
    ) -> Foreign: ...
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        return_sum: Literal[True],
        out: Sequence[Foreign] | None = None,
    ) -> tuple[Foreign, Foreign]: ...
residual_bias_softmin: _residual_bias_softmin
"""softmin(input + bias + residual), options as softmin's."""

class _residual_bias_softplus(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        beta: Array | float = 1.0,
        threshold: Array | float = 20.0,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """softplus(input + bias + residual), options as softplus's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        beta: Foreign | float = 1.0,
        threshold: Foreign | float = 20.0,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_softplus: _residual_bias_softplus
"""softplus(input + bias + residual), options as softplus's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_softshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        lambd: Array | float = 0.5,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """softshrink(input + bias + residual), options as softshrink's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        lambd: Foreign | float = 0.5,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_softshrink: _residual_bias_softshrink
"""softshrink(input + bias + residual), options as softshrink's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_softsign(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """softsign(input + bias + residual), options as softsign's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_softsign: _residual_bias_softsign
"""softsign(input + bias + residual), options as softsign's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_squared_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """squared_relu(input + bias + residual), options as squared_relu's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_squared_relu: _residual_bias_squared_relu
"""squared_relu(input + bias + residual), options as squared_relu's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_tanh(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """tanh(input + bias + residual), options as tanh's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_tanh: _residual_bias_tanh
"""tanh(input + bias + residual), options as tanh's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_tanhshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """tanhshrink(input + bias + residual), options as tanhshrink's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_tanhshrink: _residual_bias_tanhshrink
"""tanhshrink(input + bias + residual), options as tanhshrink's. A bias of rank 1 lies along ``dim`` of the input."""

class _residual_bias_threshold(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        bias: Array | float | None,
        residual: Array | float | None,
        threshold: Array | float,
        value: Array | float,
        *,
        dim: int = -1,
        out: Array | None = None,
    ) -> Array:
        """threshold(input + bias + residual), options as threshold's. A bias of rank 1 lies along ``dim`` of the input."""
    @overload
    def __call__(
        self,
        input: Foreign,
        bias: Foreign | float | None,
        residual: Foreign | float | None,
        threshold: Foreign | float,
        value: Foreign | float,
        *,
        dim: int = -1,
        out: Foreign | None = None,
    ) -> Foreign: ...
residual_bias_threshold: _residual_bias_threshold
"""threshold(input + bias + residual), options as threshold's. A bias of rank 1 lies along ``dim`` of the input."""

class _rms_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        out: Array | None = None,
    ) -> Array:
        """x rrms (weight_offset + weight), with rrms = 1 / sqrt(mean(x^2) + eps), over the trailing dimensions.

        ``normalized_shape`` as layer_norm's. ``eps=None`` is 2^-23, and 2^-52 for float64. ``weight_offset=1`` is Gemma's
        (1 + weight). Source: torch.nn.functional.rms_norm; Zhang and Sennrich, arXiv 1910.07467.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        out: Foreign | None = None,
    ) -> Foreign: ...
rms_norm: _rms_norm
"""x rrms (weight_offset + weight), with rrms = 1 / sqrt(mean(x^2) + eps), over the trailing dimensions.

``normalized_shape`` as layer_norm's. ``eps=None`` is 2^-23, and 2^-52 for float64. ``weight_offset=1`` is Gemma's
(1 + weight). Source: torch.nn.functional.rms_norm; Zhang and Sennrich, arXiv 1910.07467.
"""

class _rms_norm_gelu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        residual: Array | float | None = None,
        approximate: str = 'none',
        out: Array | None = None,
    ) -> Array:
        """gelu(rms_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        residual: Foreign | float | None = None,
        approximate: str = 'none',
        out: Foreign | None = None,
    ) -> Foreign: ...
rms_norm_gelu: _rms_norm_gelu
"""gelu(rms_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _rms_norm_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """relu(rms_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
rms_norm_relu: _rms_norm_relu
"""relu(rms_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _rms_norm_silu(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        normalized_shape: Sequence[int | None],
        weight: Array | float | None = None,
        eps: Array | float | None = None,
        *,
        weight_offset: Array | float = 0.0,
        residual: Array | float | None = None,
        out: Array | None = None,
    ) -> Array:
        """silu(rms_norm(input) + residual), options as theirs; ``residual`` may be None."""
    @overload
    def __call__(
        self,
        input: Foreign,
        normalized_shape: Sequence[int | None],
        weight: Foreign | float | None = None,
        eps: Foreign | float | None = None,
        *,
        weight_offset: Foreign | float = 0.0,
        residual: Foreign | float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
rms_norm_silu: _rms_norm_silu
"""silu(rms_norm(input) + residual), options as theirs; ``residual`` may be None."""

class _roll(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        shifts: int | Sequence[int],
        dims: int | Sequence[int] | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """out[i] = input[(i - shift) mod n] along each of these dimensions.

        Without ``dims`` the input must be a vector: torch sees others as flat. Source: torch.roll.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        shifts: int | Sequence[int],
        dims: int | Sequence[int] | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
roll: _roll
"""out[i] = input[(i - shift) mod n] along each of these dimensions.

Without ``dims`` the input must be a vector: torch sees others as flat. Source: torch.roll.
"""

class _scatter(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        index: Array | float,
        src: Array | float | None = None,
        *,
        value: Array | float | None = None,
        reduce: str | None = None,
        out: Array | None = None,
    ) -> Array:
        """input with src[i][j] in place of what is at [index[i][j]][j], for dim 0; ``src`` is a tensor, or a number.

        Of several for one place the last one counts, and has the gradient. With ``reduce`` they are added ("add") or
        multiplied ("multiply") with what is there. ``value`` is another name of a number. Source: torch.scatter.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        index: Foreign | float,
        src: Foreign | float | None = None,
        *,
        value: Foreign | float | None = None,
        reduce: str | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
scatter: _scatter
"""input with src[i][j] in place of what is at [index[i][j]][j], for dim 0; ``src`` is a tensor, or a number.

Of several for one place the last one counts, and has the gradient. With ``reduce`` they are added ("add") or
multiplied ("multiply") with what is there. ``value`` is another name of a number. Source: torch.scatter.
"""

class _scatter_add(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        index: Array | float,
        src: Array | float,
        *,
        out: Array | None = None,
    ) -> Array:
        """input with src[i][j] added at [index[i][j]][j], for dim 0; in one order, the same bits each time.

        Source: torch.scatter_add.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        index: Foreign | float,
        src: Foreign | float,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
scatter_add: _scatter_add
"""input with src[i][j] added at [index[i][j]][j], for dim 0; in one order, the same bits each time.

Source: torch.scatter_add.
"""

class _scatter_reduce(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int],
        index: Array | float,
        src: Array | float,
        reduce: str,
        *,
        include_self: bool = True,
        out: Array | None = None,
    ) -> Array:
        """input combined with src[i][j] at [index[i][j]][j], for dim 0, by "sum", "mean", "prod", "amax" or "amin".

        Without ``include_self`` what the input has there does not count. Elements that tie share an extremum's gradient.
        Source: torch.scatter_reduce.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int],
        index: Foreign | float,
        src: Foreign | float,
        reduce: str,
        *,
        include_self: bool = True,
        out: Foreign | None = None,
    ) -> Foreign: ...
scatter_reduce: _scatter_reduce
"""input combined with src[i][j] at [index[i][j]][j], for dim 0, by "sum", "mean", "prod", "amax" or "amin".

Without ``include_self`` what the input has there does not count. Elements that tie share an extremum's gradient.
Source: torch.scatter_reduce.
"""

class _selu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, inplace: bool = False, *, out: Array | None = None) -> Array:
        """scale elu(x, alpha), alpha = 1.6733, scale = 1.0507. Source: torch.nn.functional.selu; arXiv 1706.02515."""
    @overload
    def __call__(self, input: Foreign, inplace: bool = False, *, out: Foreign | None = None) -> Foreign: ...
selu: _selu
"""scale elu(x, alpha), alpha = 1.6733, scale = 1.0507. Source: torch.nn.functional.selu; arXiv 1706.02515."""

class _sigmoid(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, *, out: Array | None = None) -> Array:
        """1 / (1 + exp(-x)). Integers become float32. Source: torch.sigmoid."""
    @overload
    def __call__(self, input: Foreign, *, out: Foreign | None = None) -> Foreign: ...
sigmoid: _sigmoid
"""1 / (1 + exp(-x)). Integers become float32. Source: torch.sigmoid."""

class _sigmoid_focal_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        inputs: Array,
        targets: Array | float,
        alpha: Array | float = 0.25,
        gamma: Array | float = 2.0,
        reduction: str = 'none',
        *,
        out: Array | None = None,
    ) -> Array:
        """a (1 - q)^gamma bce, where q = sigmoid(x) if t = 1 and 1 - sigmoid(x) if t = 0, and bce = -log(q).

        a = alpha t + (1 - alpha) (1 - t); a negative ``alpha`` means no such weight.
        Source: torchvision.ops.sigmoid_focal_loss; Lin et al., arXiv 1708.02002.
        """
    @overload
    def __call__(
        self,
        inputs: Foreign,
        targets: Foreign | float,
        alpha: Foreign | float = 0.25,
        gamma: Foreign | float = 2.0,
        reduction: str = 'none',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
sigmoid_focal_loss: _sigmoid_focal_loss
"""a (1 - q)^gamma bce, where q = sigmoid(x) if t = 1 and 1 - sigmoid(x) if t = 0, and bce = -log(q).

a = alpha t + (1 - alpha) (1 - t); a negative ``alpha`` means no such weight.
Source: torchvision.ops.sigmoid_focal_loss; Lin et al., arXiv 1708.02002.
"""

class _silu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, inplace: bool = False, *, out: Array | None = None) -> Array:
        """x sigmoid(x). Source: torch.nn.functional.silu; also called swish, arXiv 1710.05941."""
    @overload
    def __call__(self, input: Foreign, inplace: bool = False, *, out: Foreign | None = None) -> Foreign: ...
silu: _silu
"""x sigmoid(x). Source: torch.nn.functional.silu; also called swish, arXiv 1710.05941."""

class _smooth_l1_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        beta: Array | float = 1.0,
        *,
        out: Array | None = None,
    ) -> Array:
        """d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = input - target.

        Source: torch.nn.functional.smooth_l1_loss; Girshick, Fast R-CNN, arXiv 1504.08083.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        beta: Foreign | float = 1.0,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
smooth_l1_loss: _smooth_l1_loss
"""d^2 / (2 beta) where |d| < beta, else |d| - beta / 2, with d = input - target.

Source: torch.nn.functional.smooth_l1_loss; Girshick, Fast R-CNN, arXiv 1504.08083.
"""

class _soft_margin_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        target: Array | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """log(1 + exp(-target x)), without overflow. Source: torch.nn.functional.soft_margin_loss."""
    @overload
    def __call__(
        self,
        input: Foreign,
        target: Foreign | float,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
soft_margin_loss: _soft_margin_loss
"""log(1 + exp(-target x)), without overflow. Source: torch.nn.functional.soft_margin_loss."""

class _softmax(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """exp(x - max(x)) / sum(exp(x - max(x))) along ``dim``. Source: torch.nn.functional.softmax."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
softmax: _softmax
"""exp(x - max(x)) / sum(exp(x - max(x))) along ``dim``. Source: torch.nn.functional.softmax."""

class _softmin(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """softmax(-x) along ``dim``. Source: torch.nn.functional.softmin."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: DTypeLike | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
softmin: _softmin
"""softmax(-x) along ``dim``. Source: torch.nn.functional.softmin."""

class _softplus(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        beta: Array | float = 1.0,
        threshold: Array | float = 20.0,
        *,
        out: Array | None = None,
    ) -> Array:
        """log(1 + exp(beta x)) / beta, and x itself where beta x > threshold. Source: torch.nn.functional.softplus."""
    @overload
    def __call__(
        self,
        input: Foreign,
        beta: Foreign | float = 1.0,
        threshold: Foreign | float = 20.0,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
softplus: _softplus
"""log(1 + exp(beta x)) / beta, and x itself where beta x > threshold. Source: torch.nn.functional.softplus."""

class _softshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, lambd: Array | float = 0.5, *, out: Array | None = None) -> Array:
        """0 where |x| <= lambd, else x - sign(x) lambd. Source: torch.nn.functional.softshrink."""
    @overload
    def __call__(self, input: Foreign, lambd: Foreign | float = 0.5, *, out: Foreign | None = None) -> Foreign: ...
softshrink: _softshrink
"""0 where |x| <= lambd, else x - sign(x) lambd. Source: torch.nn.functional.softshrink."""

class _softsign(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, *, out: Array | None = None) -> Array:
        """x / (1 + |x|). Integers become float32. Source: torch.nn.functional.softsign."""
    @overload
    def __call__(self, input: Foreign, *, out: Foreign | None = None) -> Foreign: ...
softsign: _softsign
"""x / (1 + |x|). Integers become float32. Source: torch.nn.functional.softsign."""

class _squared_relu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, *, out: Array | None = None) -> Array:
        """max(x, 0)^2. Source: So et al., Primer, arXiv 2109.08668."""
    @overload
    def __call__(self, input: Foreign, *, out: Foreign | None = None) -> Foreign: ...
squared_relu: _squared_relu
"""max(x, 0)^2. Source: So et al., Primer, arXiv 2109.08668."""

class _std(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int] | None = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        out: Array | None = None,
    ) -> Array:
        """sqrt(var(x)); no gradient flows where that is 0, as in torch. Arguments as var's. Source: torch.std."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int] | None = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
std: _std
"""sqrt(var(x)); no gradient flows where that is 0, as in torch. Arguments as var's. Source: torch.std."""

class _sum(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """Sum of the elements; ``dtype``: the input is cast first. Source: torch.sum."""
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
sum: _sum
"""Sum of the elements; ``dtype``: the input is cast first. Source: torch.sum."""

class _swiglu(FusedOp[..., Tensor]):
    @overload
    def __call__(self, gate: Array, value: Array | float, *, out: Array | None = None) -> Array:
        """silu(gate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""
    @overload
    def __call__(self, gate: Foreign, value: Foreign | float, *, out: Foreign | None = None) -> Foreign: ...
swiglu: _swiglu
"""silu(gate) value; the two broadcast. Source: Shazeer, arXiv 2002.05202."""

class _swiglu_mlp(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        gate: Array | float,
        up: Array | float,
        down: Array | float,
        gate_bias: Array | float | None = None,
        up_bias: Array | float | None = None,
        down_bias: Array | float | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """linear(swiglu(linear(input, gate), linear(input, up)), down), options as swiglu's.

        Biases follow the weights that they belong to. Source: Shazeer, arXiv 2002.05202.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        gate: Foreign | float,
        up: Foreign | float,
        down: Foreign | float,
        gate_bias: Foreign | float | None = None,
        up_bias: Foreign | float | None = None,
        down_bias: Foreign | float | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
swiglu_mlp: _swiglu_mlp
"""linear(swiglu(linear(input, gate), linear(input, up)), down), options as swiglu's.

Biases follow the weights that they belong to. Source: Shazeer, arXiv 2002.05202.
"""

class _swiglu_packed(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, dim: int = -1, *, out: Array | None = None) -> Array:
        """silu(gate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""
    @overload
    def __call__(self, input: Foreign, dim: int = -1, *, out: Foreign | None = None) -> Foreign: ...
swiglu_packed: _swiglu_packed
"""silu(gate) value for ``input`` = [gate, value] along ``dim``; the result is half as long there."""

class _take_along_dim(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        indices: Array | float,
        dim: int | Sequence[int] | None = None,
        *,
        out: Array | None = None,
    ) -> Array:
        """input at a place for each element along ``dim``; the other dimensions broadcast.

        Without ``dim`` both are seen as flat, and so is the result. Source: torch.take_along_dim.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        indices: Foreign | float,
        dim: int | Sequence[int] | None = None,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
take_along_dim: _take_along_dim
"""input at a place for each element along ``dim``; the other dimensions broadcast.

Without ``dim`` both are seen as flat, and so is the result. Source: torch.take_along_dim.
"""

class _tanh(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, *, out: Array | None = None) -> Array:
        """(exp(x) - exp(-x)) / (exp(x) + exp(-x)). Integers become float32. Source: torch.tanh."""
    @overload
    def __call__(self, input: Foreign, *, out: Foreign | None = None) -> Foreign: ...
tanh: _tanh
"""(exp(x) - exp(-x)) / (exp(x) + exp(-x)). Integers become float32. Source: torch.tanh."""

class _tanhshrink(FusedOp[..., Tensor]):
    @overload
    def __call__(self, input: Array, *, out: Array | None = None) -> Array:
        """x - tanh(x). Integers become float32. Source: torch.nn.functional.tanhshrink."""
    @overload
    def __call__(self, input: Foreign, *, out: Foreign | None = None) -> Foreign: ...
tanhshrink: _tanhshrink
"""x - tanh(x). Integers become float32. Source: torch.nn.functional.tanhshrink."""

class _threshold(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        threshold: Array | float,
        value: Array | float,
        inplace: bool = False,
        *,
        out: Array | None = None,
    ) -> Array:
        """``value`` where x <= threshold, else x. Integers too. Source: torch.nn.functional.threshold."""
    @overload
    def __call__(
        self,
        input: Foreign,
        threshold: Foreign | float,
        value: Foreign | float,
        inplace: bool = False,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
threshold: _threshold
"""``value`` where x <= threshold, else x. Integers too. Source: torch.nn.functional.threshold."""

class _triplet_margin_loss(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        anchor: Array,
        positive: Array | float,
        negative: Array | float,
        margin: Array | float = 1.0,
        p: float = 2.0,
        eps: Array | float = 1e-06,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Array | None = None,
    ) -> Array:
        """max(0, margin + d(anchor, positive) - d(anchor, negative)).

        d(a, b) = |a - b + eps|_p is a distance over the last dimension. With ``swap`` the smaller of d(anchor, negative)
        and d(positive, negative) counts.
        Source: torch.nn.functional.triplet_margin_loss; Balntas et al., BMVC 2016.
        """
    @overload
    def __call__(
        self,
        anchor: Foreign,
        positive: Foreign | float,
        negative: Foreign | float,
        margin: Foreign | float = 1.0,
        p: float = 2.0,
        eps: Foreign | float = 1e-06,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = 'mean',
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
triplet_margin_loss: _triplet_margin_loss
"""max(0, margin + d(anchor, positive) - d(anchor, negative)).

d(a, b) = |a - b + eps|_p is a distance over the last dimension. With ``swap`` the smaller of d(anchor, negative)
and d(positive, negative) counts.
Source: torch.nn.functional.triplet_margin_loss; Balntas et al., BMVC 2016.
"""

class _var(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        input: Array,
        dim: int | Sequence[int] | None = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        out: Array | None = None,
    ) -> Array:
        """sum((x - mean(x))^2) / max(n - correction, 0), correction 1 unless given; ``unbiased=False`` says 0.

        In one pass, without cancellation. Source: torch.var.
        """
    @overload
    def __call__(
        self,
        input: Foreign,
        dim: int | Sequence[int] | None = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
var: _var
"""sum((x - mean(x))^2) / max(n - correction, 0), correction 1 unless given; ``unbiased=False`` says 0.

In one pass, without cancellation. Source: torch.var.
"""

class _vector_norm(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        x: Array,
        ord: float = 2,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """(sum |x|^ord)^(1 / ord) over ``dim`` (None: over all).

        The largest |x| for infinity, the smallest for -infinity, the number of nonzeros for 0. ``dtype``: the input is cast
        first, to a wider one. Source: torch.linalg.vector_norm.
        """
    @overload
    def __call__(
        self,
        x: Foreign,
        ord: float = 2,
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: Foreign | None = None,
    ) -> Foreign: ...
vector_norm: _vector_norm
"""(sum |x|^ord)^(1 / ord) over ``dim`` (None: over all).

The largest |x| for infinity, the smallest for -infinity, the number of nonzeros for 0. ``dtype``: the input is cast
first, to a wider one. Source: torch.linalg.vector_norm.
"""

class _where(FusedOp[..., Tensor]):
    @overload
    def __call__(
        self,
        condition: Array,
        input: Array | float,
        other: Array | float,
        *,
        out: Array | None = None,
    ) -> Array:
        """``input`` where ``condition``, else ``other``; the three broadcast. Source: torch.where."""
    @overload
    def __call__(
        self,
        condition: Foreign,
        input: Foreign | float,
        other: Foreign | float,
        *,
        out: Foreign | None = None,
    ) -> Foreign: ...
where: _where
"""``input`` where ``condition``, else ``other``; the three broadcast. Source: torch.where."""
