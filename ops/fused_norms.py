"""Normalizations with what stands before and after them, in one op.

``residual_bias_NORM(input, bias, residual, ...)`` is NORM(input + bias + residual, ...), with the norm's own options,
its bias called ``norm_bias``; ``bias`` and ``residual`` may be None. ``return_sum=True`` returns (norm, sum); the sum
is the next layer's residual. ``bias`` broadcasts, [D] for an input [..., D]; group, batch and instance norm's is [C],
along the channels. For softmax and its kin they are a relative position's bias and a mask: what is added to scores.

``NORM_ACTIVATION(input, ...)`` is ACTIVATION(NORM(input, ...)), or ACTIVATION(NORM(input, ...) + residual) where a
``residual`` of the input's shape is given, with the options of both. ``residual_bias_NORM_ACTIVATION`` adds before the
norm: ACTIVATION(NORM(input + bias + residual, ...)).
"""

from __future__ import annotations

from typing import Any

import fusegen as fg

from . import activations as act
from . import channels, distances
from . import norms as norm
from . import softmaxes as soft
from ._options import LibraryOp, limited


def _with_residual(normalize: Any, along: Any = lambda bias, x: bias) -> Any:
    """residual_bias_NORM. ``along`` brings the bias to where it lies."""
    declared = normalize.declaration

    def fused(
        input: fg.Tensor, bias: fg.Tensor, residual: fg.Tensor, norm_bias: fg.Tensor = None, return_sum: bool = False,
        **options: fg.Tensor,
    ) -> fg.Tensor:  # fmt: skip
        total = input if bias is None else input + along(bias, input)
        total = total if residual is None else total + residual
        result = declared.function(total, **options | ({"bias": norm_bias} if "bias" in own else {}))
        out, *updated = result if isinstance(result, tuple) else (result,)
        shown = (out, total) if return_sum else (out,)
        return (*shown, *updated) if return_sum or updated else out

    own = declared.signature.parameters
    first, *options = own.values()
    options = [p.replace(name="norm_bias") if p.name == "bias" else p for p in options]
    parameters = [first, first.replace(name="bias"), first.replace(name="residual"), *options]
    return_sum = first.replace(name="return_sum", kind=first.KEYWORD_ONLY, default=False, annotation="bool")
    its_bias = ", whose bias is ``norm_bias``" if "bias" in own else ""
    formula = f"{normalize.name}(input + bias + residual), options as {normalize.name}'s{its_bias}."
    return _made(f"residual_bias_{normalize.name}", formula, fused, [*parameters, return_sum], normalize, True)


def _then(normalize: Any, activation: Any) -> Any:
    """NORM_ACTIVATION."""
    declared, inner = normalize.declaration, activation.declaration
    names = [name for name in list(inner.signature.parameters)[1:] if name != "inplace"]
    own = declared.signature.parameters
    adds = "residual" not in own  # otherwise it is added before the norm

    def fused(input: fg.Tensor, **options: fg.Tensor) -> fg.Tensor:
        chosen = {name: options.pop(name) for name in names}
        residual = options.pop("residual") if adds else None
        result = declared.function(input, **options)
        out, *others = result if isinstance(result, tuple) else (result,)
        out = inner.function(out if residual is None else out + residual, **chosen)
        return (out, *others) if others else out

    first = next(iter(own.values()))
    keyword = first.KEYWORD_ONLY
    residual = [first.replace(name="residual", kind=keyword, default=None)] if adds else []
    more = [inner.signature.parameters[name].replace(kind=keyword) for name in names]
    formula = f"{activation.name}({normalize.name}(input) + residual), options as theirs; ``residual`` may be None."
    if not adds:
        formula = f"{activation.name}({normalize.name}(input, bias, residual)), options as theirs."
    return _made(
        f"{normalize.name}_{activation.name}", formula, fused, [*own.values(), *residual, *more], normalize, False,
        activation,
    )  # fmt: skip


def _made(
    name: str, doc: str, function: Any, parameters: list[Any], normalize: Any, several: bool,
    activation: Any = None,
) -> Any:  # fmt: skip
    declared = normalize.declaration.signature
    returns = "fg.Tensor | tuple[fg.Tensor, ...]" if several else declared.return_annotation
    signature = declared.replace(parameters=parameters, return_annotation=returns)
    function.__dict__["__signature__"] = signature
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    policy = normalize.declaration.autocast
    if not isinstance(normalize, LibraryOp):
        return limited(autocast=policy, like=activation)(function)
    return limited(normalize.prepare, type(normalize), policy, activation, **normalize.limits)(function)


residual_bias_layer_norm = _with_residual(norm.layer_norm)
residual_bias_rms_norm = _with_residual(norm.rms_norm)
residual_bias_group_norm = _with_residual(channels.group_norm, channels.along)
residual_bias_batch_norm = _with_residual(channels.batch_norm, channels.along)
residual_bias_instance_norm = _with_residual(channels.instance_norm, channels.along)
residual_bias_softmax = _with_residual(soft.softmax)
residual_bias_softmin = _with_residual(soft.softmin)
residual_bias_log_softmax = _with_residual(soft.log_softmax)
residual_bias_logsumexp = _with_residual(soft.logsumexp)
residual_bias_normalize = _with_residual(distances.normalize)

layer_norm_relu = _then(norm.layer_norm, act.relu)
layer_norm_gelu = _then(norm.layer_norm, act.gelu)
layer_norm_silu = _then(norm.layer_norm, act.silu)
rms_norm_relu = _then(norm.rms_norm, act.relu)
rms_norm_gelu = _then(norm.rms_norm, act.gelu)
rms_norm_silu = _then(norm.rms_norm, act.silu)
group_norm_relu = _then(channels.group_norm, act.relu)
group_norm_gelu = _then(channels.group_norm, act.gelu)
group_norm_silu = _then(channels.group_norm, act.silu)
batch_norm_relu = _then(channels.batch_norm, act.relu)
batch_norm_relu6 = _then(channels.batch_norm, act.relu6)
batch_norm_leaky_relu = _then(channels.batch_norm, act.leaky_relu)
batch_norm_gelu = _then(channels.batch_norm, act.gelu)
batch_norm_silu = _then(channels.batch_norm, act.silu)
batch_norm_hardswish = _then(channels.batch_norm, act.hardswish)
instance_norm_relu = _then(channels.instance_norm, act.relu)
instance_norm_gelu = _then(channels.instance_norm, act.gelu)
instance_norm_silu = _then(channels.instance_norm, act.silu)
instance_norm_leaky_relu = _then(channels.instance_norm, act.leaky_relu)

residual_bias_layer_norm_relu = _then(residual_bias_layer_norm, act.relu)
residual_bias_layer_norm_gelu = _then(residual_bias_layer_norm, act.gelu)
residual_bias_layer_norm_silu = _then(residual_bias_layer_norm, act.silu)
residual_bias_rms_norm_relu = _then(residual_bias_rms_norm, act.relu)
residual_bias_rms_norm_gelu = _then(residual_bias_rms_norm, act.gelu)
residual_bias_rms_norm_silu = _then(residual_bias_rms_norm, act.silu)
residual_bias_group_norm_relu = _then(residual_bias_group_norm, act.relu)
residual_bias_group_norm_gelu = _then(residual_bias_group_norm, act.gelu)
residual_bias_group_norm_silu = _then(residual_bias_group_norm, act.silu)
residual_bias_batch_norm_relu = _then(residual_bias_batch_norm, act.relu)
residual_bias_batch_norm_gelu = _then(residual_bias_batch_norm, act.gelu)
residual_bias_batch_norm_silu = _then(residual_bias_batch_norm, act.silu)
residual_bias_instance_norm_relu = _then(residual_bias_instance_norm, act.relu)
residual_bias_instance_norm_gelu = _then(residual_bias_instance_norm, act.gelu)
residual_bias_instance_norm_silu = _then(residual_bias_instance_norm, act.silu)
