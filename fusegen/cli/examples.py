"""Representative arguments of the library's ops, for the command line and for the goldens in generated/.

An op without an entry gets one shape for all its tensors. 3072 divides by the parts of every packed op and by every
vector width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fusegen.core import dtypes
from fusegen.core.dtypes import DType

ROWS, COLUMNS = 512, 3072
IMAGES = (8, 3, 256, 256)
MASKS = (8, 1, 256, 256)


@dataclass(frozen=True)
class Example:
    """Arguments of one op: shapes and other dtypes of tensors by parameter, constants and numbers.

    ``positive``: random arguments lie between 0 and 1, where the op is at home (divided by, logarithms taken of).
    ``channels``: other tensors follow the first dimensions of a larger one, [N, C, ...], rather than the last.
    ``packed``: a size that is a whole number of others put together, and the size of one (the gates of a cell).
    """

    shape: tuple[int, ...] = (ROWS, COLUMNS)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, DType] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positive: bool = False
    channels: bool = False
    packed: tuple[int, int] = (0, 0)

    def like(self, given: Mapping[str, tuple[int, ...]]) -> Example:
        """The same where some tensors have other shapes ("" is all that have none of their own): sizes that are equal
        here are equal there, and what is left open stays as it is.
        """
        follows: dict[int, tuple[int, ...]] = {1: (1,)}
        for name, shape in given.items():
            self._compare(self.shapes.get(name, self.shape), shape, follows)
        whole, part = self.packed
        for a, b, times, over in ((whole, part, whole, part), (part, whole, part, whole)):
            if whole and a not in follows and len(follows.get(b, ())) == 1:
                follows[a] = (follows[b][0] * times // over,)

        def following(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(new for size in sizes for new in follows.get(size, (size,)))

        shapes = {name: given.get(name, following(sizes)) for name, sizes in self.shapes.items()}
        arguments = {n: following(v) if n == "normalized_shape" else v for n, v in self.arguments.items()}
        return replace(self, shape=given.get("", following(self.shape)), shapes=shapes, arguments=arguments)

    def _compare(self, old: tuple[int, ...], new: tuple[int, ...], follows: dict[int, tuple[int, ...]]) -> None:
        """Note what becomes of each size; dimensions that only one of the two has belong to the first one."""
        more = len(new) - len(old)
        pairs: list[tuple[int, tuple[int, ...]]]
        if self.channels:
            pairs = list(zip(old, [(size,) for size in new], strict=False))
            if more > 0 and len(old) == 2:
                pairs[0] = (old[0], (new[0], *new[2:]))
        else:
            last = min(len(old), len(new)) - (more > 0)
            pairs = [(size, ()) for size in old[: max(-more, 0)]]
            pairs += [(old[0], new[: more + 1])] if more > 0 and old else []
            pairs += [(a, (b,)) for a, b in zip(old[len(old) - last :], new[len(new) - last :], strict=True)]
        for size, sizes in pairs:
            follows.setdefault(size, sizes)


_ROW = (ROWS, COLUMNS)
_CLASSES = Example(shapes={"target": (ROWS,)}, dtypes={"target": dtypes.int64}, channels=True)
_FEATURES = {"weight": (COLUMNS,), "bias": (COLUMNS,)}
_CHANNELS = {"weight": (64,), "bias": (64,)}
_IMAGE = (8, 64, 56, 56)

_WIDE = (COLUMNS, 768)
_BLOCK = {"input": (ROWS, 768), "gate": _WIDE, "up": _WIDE, "down": (768, COLUMNS)}
_STATE = (ROWS, 768)
_LINEAR = {"input": (ROWS, 768), "weight": _WIDE, "bias": (COLUMNS,)}

EXAMPLES: dict[str, Example] = {
    "addmm": Example(shapes={"mat1": (ROWS, 768), "mat2": (768, COLUMNS)}, arguments={"beta": 1.0, "alpha": 1.0}),
    "alpha_blend": Example(IMAGES, {"foreground": IMAGES, "background": IMAGES, "alpha": MASKS}),
    "alpha_over": Example(IMAGES, {"foreground_alpha": MASKS, "background_alpha": MASKS}, positive=True),
    "addcdiv": Example(positive=True),
    "baddbmm": Example(
        (8, 56, 64), {"input": (8, 56, 48), "batch2": (8, 64, 48)}, arguments={"beta": 1.0, "alpha": 1.0}
    ),
    "batch_norm": Example(
        _IMAGE, _CHANNELS, arguments={"running_mean": None, "running_var": None, "training": True}, channels=True
    ),
    "binary_cross_entropy": Example(positive=True),
    "conv1x1": Example(_IMAGE, {"weight": (128, 64, 1, 1), "bias": (128,)}, channels=True),
    "cosine_embedding_loss": Example(shapes={"target": (ROWS,)}),
    "cross_entropy": _CLASSES,
    "clamp": Example(arguments={"min": -1.0, "max": 1.0}),
    **dict.fromkeys(("cummax", "cummin", "cumprod", "cumsum"), Example(arguments={"dim": -1})),
    "embedding": Example(shapes={"weight": (ROWS, COLUMNS), "input": (8, 64)}, dtypes={"input": dtypes.int64}),
    "embedding_bag": Example(
        shapes={"weight": (ROWS, COLUMNS), "input": (64, 8)}, dtypes={"input": dtypes.int64}, arguments={"mode": "sum"}
    ),
    "flip": Example(arguments={"dims": (-1,)}),
    "gather": Example(shapes={"index": (ROWS, 64)}, dtypes={"index": dtypes.int64}, arguments={"dim": -1}),
    "gaussian_nll_loss": Example(shapes={"var": _ROW}, positive=True),
    "gru_cell": Example(shapes={"hidden": (ROWS, COLUMNS // 3)}, packed=(COLUMNS, COLUMNS // 3)),
    "group_norm": Example(_IMAGE, _CHANNELS, arguments={"num_groups": 32}, channels=True),
    "index_add": Example(
        shapes={"index": (64,), "source": (64, COLUMNS)},
        dtypes={"index": dtypes.int64},
        arguments={"dim": 0, "alpha": 1.0},
    ),
    "index_copy": Example(
        shapes={"index": (64,), "source": (64, COLUMNS)}, dtypes={"index": dtypes.int64}, arguments={"dim": 0}
    ),
    "index_select": Example(shapes={"index": (64,)}, dtypes={"index": dtypes.int64}, arguments={"dim": 0}),
    "instance_norm": Example(_IMAGE, _CHANNELS, channels=True),
    "kl_div": Example(positive=True),
    "layer_norm": Example(shapes=_FEATURES, arguments={"normalized_shape": (COLUMNS,)}),
    "lerp": Example(shapes={"weight": _ROW}),
    "linear": Example(shapes=_LINEAR),
    "linear_cross_entropy": Example(
        shapes={"input": (ROWS, 768), "linear_weight": _WIDE, "target": (ROWS,)}, dtypes={"target": dtypes.int64}
    ),
    "linear_gru_cell": Example(
        shapes={"input": (ROWS, 768), "hidden": (ROWS, 1024), "weight_ih": _WIDE, "weight_hh": (COLUMNS, 1024)},
        packed=(COLUMNS, 1024),
    ),
    "linear_lstm_cell": Example(
        shapes={
            "input": (ROWS, 1024),
            "hidden": _STATE,
            "cell": _STATE,
            "weight_ih": (COLUMNS, 1024),
            "weight_hh": _WIDE,
        },
        packed=(COLUMNS, 768),
    ),
    "linear_residual": Example(shapes={**_LINEAR, "residual": _ROW}),
    "log_softmax": Example(arguments={"dim": -1}),
    "logcumsumexp": Example(arguments={"dim": -1}),
    "logsumexp": Example(arguments={"dim": -1}),
    "lstm_cell": Example(shapes={"cell": (ROWS, COLUMNS // 4)}, packed=(COLUMNS, COLUMNS // 4)),
    "masked_fill": Example(dtypes={"mask": dtypes.bool_}, arguments={"value": 0.0}),
    "matmul": Example(shapes={"input": (ROWS, 768), "other": (768, COLUMNS)}),
    "mlp": Example(shapes={**_BLOCK, "up_bias": (COLUMNS,), "down_bias": (768,)}),
    "nll_loss": _CLASSES,
    "pad": Example(arguments={"pad": (1, 1), "value": 0.0}),
    "prelu": Example(shapes={"weight": (COLUMNS,)}, channels=True),
    "rms_norm": Example(shapes={"weight": (COLUMNS,)}, arguments={"normalized_shape": (COLUMNS,)}),
    "roll": Example(arguments={"shifts": 1, "dims": -1}),
    **{
        name: Example(
            shapes={"index": (64, COLUMNS), "src": (64, COLUMNS)},
            dtypes={"index": dtypes.int64},
            arguments={"dim": 0} | ({"reduce": "amax"} if name == "scatter_reduce" else {}),
        )
        for name in ("scatter", "scatter_add", "scatter_reduce")
    },
    "softmax": Example(arguments={"dim": -1}),
    "softmin": Example(arguments={"dim": -1}),
    "take_along_dim": Example(shapes={"indices": (ROWS, 64)}, dtypes={"indices": dtypes.int64}, arguments={"dim": -1}),
    "threshold": Example(arguments={"threshold": 0.1, "value": 20.0}),
    "vector_norm": Example(arguments={"dim": -1}),
    "where": Example(shapes={"input": _ROW, "other": _ROW}, dtypes={"condition": dtypes.bool_}),
}


def example_of(name: str) -> Example:
    """The example of the library's op called ``name``."""
    if name in EXAMPLES:
        return EXAMPLES[name]
    norm = next((n for n in EXAMPLES if n.endswith("_norm") and f"{n}_" in f"{name}_"), None)
    if norm is not None:  # layer_norm_gelu, residual_bias_layer_norm
        own = EXAMPLES[norm]
        before = {"bias": own.shapes["weight"], "residual": own.shape} if name.startswith("residual_") else {}
        return replace(own, shapes={**own.shapes, **before})
    if name.startswith("residual_bias_") and name.removeprefix("residual_bias_") in EXAMPLES:  # softmax and its kin
        return replace(EXAMPLES[name.removeprefix("residual_bias_")], shapes={"bias": (COLUMNS,)})
    numbers = {"threshold": 0.1, "value": 20.0} if name.endswith("threshold") else {}
    if name.startswith(("bias_", "residual_bias_")):
        return Example(shapes={"bias": (COLUMNS,)}, arguments=numbers)
    if name.startswith("linear_"):
        return Example(shapes=_LINEAR, arguments=numbers)
    if name.endswith("_mlp"):
        return Example(shapes=_BLOCK)
    return Example()
