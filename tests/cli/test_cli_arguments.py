"""What ops are called with by the command line: shapes that follow from others, and dtypes by many names."""

from __future__ import annotations

import pytest

import fusegen as fg
from fusegen.cli.arguments import Request, bind, parse_dtype, resolve

# An op, shapes that are asked for, and shapes that follow from them.
FOLLOW: dict[str, tuple[str, list[str], dict[str, tuple[int, ...]]]] = {
    "channels": ("group_norm", ["32,256,56,56"], {"weight": (256,), "bias": (256,)}),
    "channels of other ranks": ("instance_norm", ["32,256,9"], {"weight": (256,)}),
    "channels of rank 2": ("batch_norm", ["32,256"], {"bias": (256,)}),
    "channels with an activation": ("batch_norm_relu", ["4,8,5,5"], {"weight": (8,)}),
    "features": ("layer_norm", ["8,128,96"], {"input": (8, 128, 96), "weight": (96,)}),
    "a linear layer": ("linear_gelu", ["input=8192,768", "weight=100,768"], {"bias": (100,)}),
    "its input": ("linear_gelu", ["weight=100,64"], {"input": (512, 64), "bias": (100,)}),
    "its residual": ("linear_residual", ["input=4,9,768", "weight=100,768"], {"residual": (4, 9, 100)}),
    "a block": ("swiglu_mlp", ["input=64,100"], {"gate": (3072, 100), "down": (100, 3072)}),
    "classes": ("cross_entropy", ["8,10,50"], {"target": (8, 50)}),
    "a head": ("linear_cross_entropy", ["input=64,100", "linear_weight=900,100"], {"target": (64,)}),
    "gates": ("linear_lstm_cell", ["input=64,100", "hidden=64,32"], {"weight_ih": (128, 100), "cell": (64, 32)}),
    "a cell": ("lstm_cell", ["cell=64,32"], {"gates": (64, 128)}),
    "a batch": ("baddbmm", ["batch1=4,10,20", "batch2=4,20,30"], {"input": (4, 10, 30)}),
    "a convolution": ("conv1x1", ["4,32,8,8"], {"weight": (128, 32, 1, 1), "bias": (128,)}),
    "masks": ("alpha_blend", ["4,3,16,16"], {"alpha": (4, 1, 16, 16)}),
    "a formula": ("x * y + b", ["x=5,6", "b=6"], {"y": (5, 6)}),
    "a formula, in another order": ("x * y + b", ["b=6", "x=5,6"], {"y": (5, 6)}),
    "sizes of one": ("x * y + b", ["b=1,6", "x=5,1"], {"y": (5, 6)}),
    "an op without an example": ("maximum", ["other=6"], {"input": (6,)}),
    "all that have none": ("x * y + b", ["b=6", "5,6"], {"x": (5, 6), "y": (5, 6)}),
}


@pytest.mark.parametrize("name", FOLLOW)
def test_shapes_follow_from_those_that_are_asked_for(name: str) -> None:
    text, asked, expected = FOLLOW[name]
    op = resolve(text)
    found = bind(op, Request.parse(asked))
    assert {key: found[key].shape for key in expected} == expected
    assert op.trace(**found).outputs


def test_dtypes_go_by_the_names_that_people_use() -> None:
    meant = {
        "fp16": fg.float16, "half": fg.float16, "bf16": fg.bfloat16, "fp32": fg.float32, "float": fg.float32,
        "torch.float": fg.float32, "double": fg.float64, "long": fg.int64, "int": fg.int32, "bool": fg.bool_,
    }  # fmt: skip
    assert {text: parse_dtype(text) for text in meant} == meant


def test_shapes_that_named_ones_do_not_tell_are_asked_for() -> None:
    with pytest.raises(fg.ShapeError, match=r"--shape x=4,5, y=5,6, which broadcast to no(.|\n)*a shape for b"):
        bind(resolve("x @ y + b"), Request.parse(["x=4,5", "y=5,6"]))
    assert bind(resolve("x @ y"), Request.parse(["x=4,5", "y=5,6"]))["y"].shape == (5, 6)


def test_shapes_that_nobody_asked_for_say_so() -> None:
    with pytest.raises(fg.ShapeError, match=r"--shape NAME=.* is assumed: y=4,5"):
        bind(resolve("x @ y"), Request.parse(["x=4,5"]))
    with pytest.raises(fg.ShapeError, match=r"--shape NAME=.* is assumed: up_bias=6, down_bias=4"):
        bind(resolve("mlp"), Request.parse(["input=8,4", "up=6,4", "down=3,6"]))
