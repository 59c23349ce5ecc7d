"""Recurrent cells on packed gates: blocks are read in place, and gradients written packed.

``NAME_cell`` is the pointwise part of a cell, given the sums of its two products x W_ih^T and h W_hh^T;
``linear_NAME_cell`` is all of it, and takes what torch.NAME_cell takes, the states one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import fusegen as fg

from ._options import limited
from ._shapes import is_symbolic, shapes, sizes, wrong_shape

R = TypeVar("R")


def _of_parts(function: Callable[..., R]) -> Callable[..., R]:
    """``fg.op`` of what is called with the parts of a tensor, however many a checker takes them to be."""
    return fg.op(function)


@fg.op
def lstm_cell(gates: fg.Tensor, cell: fg.Tensor, bias: fg.Tensor = None) -> tuple[fg.Tensor, fg.Tensor]:
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
    _check_bias("lstm_cell", 4, gates=gates, bias=bias)
    result: tuple[fg.Tensor, fg.Tensor] = _lstm(*_plus(fg.split(gates, 4), bias), cell)
    return result


def _check_bias(op: str, count: int, **tensors: Any) -> None:
    """Gates and their bias; a weight there means torch's cell."""
    name, bias = list(tensors.items())[1]
    if bias is not None and bias.ndim != 1:
        raise fg.ShapeError(
            f"{op}, argument {name}", given=shapes(**tensors), expected=f"a bias [{count} H]",
            fix=f"fg.ops.linear_{op} takes input and weights",
        )  # fmt: skip


@_of_parts
def _lstm(i: fg.Tensor, f: fg.Tensor, g: fg.Tensor, o: fg.Tensor, cell: fg.Tensor) -> tuple[fg.Tensor, fg.Tensor]:
    new_cell = fg.sigmoid(f) * cell + fg.sigmoid(i) * fg.tanh(g)
    hidden = fg.sigmoid(o) * fg.tanh(new_cell)
    return hidden, new_cell


@fg.op
def gru_cell(
    input_gates: fg.Tensor, hidden_gates: fg.Tensor, hidden: fg.Tensor, input_bias: fg.Tensor = None,
    hidden_bias: fg.Tensor = None,
) -> fg.Tensor:  # fmt: skip
    """The new hidden state of a GRU step, given its products; with input and weights: linear_gru_cell.

        r = sigmoid(i_r + h_r),  z = sigmoid(i_z + h_z),  n = tanh(i_n + r h_n)
        hidden' = (1 - z) n + z hidden = n + z (hidden - n)

    Args:
        input_gates, hidden_gates: [..., 3 H] each, torch's order r, z, n; apart, because r scales one of them.
        hidden: [..., H].
        input_bias, hidden_bias: [3 H], added to the gates.

    Source: torch.nn.GRUCell; Cho et al., arXiv 1406.1078.
    """
    _check_bias("gru_cell", 3, input_gates=input_gates, input_bias=input_bias)
    _check_bias("gru_cell", 3, hidden_gates=hidden_gates, hidden_bias=hidden_bias)
    return _gru(*_plus(fg.split(input_gates, 3), input_bias), *_plus(fg.split(hidden_gates, 3), hidden_bias), hidden)


@_of_parts
def _gru(
    i_r: fg.Tensor, i_z: fg.Tensor, i_n: fg.Tensor, h_r: fg.Tensor, h_z: fg.Tensor, h_n: fg.Tensor, hidden: fg.Tensor
) -> fg.Tensor:
    r = fg.sigmoid(i_r + h_r)
    z = fg.sigmoid(i_z + h_z)
    n = fg.tanh(i_n + r * h_n)
    return n + z * (hidden - n)


# -- with their products ---------------------------------------------------------------------------------------------


def _checked(count: int) -> Any:
    """The sizes of a cell's tensors, whose weights have a row for each of ``count`` gates."""

    def prepare(op: str, **values: Any) -> dict[str, Any]:
        if is_symbolic(values["input"]):  # called by another op's declaration
            return {}
        for name, rank in {"weight_ih": 2, "weight_hh": 2, "bias_ih": 1, "bias_hh": 1}.items():
            shape = sizes(values[name])
            if shape is not None and (len(shape) != rank or shape[0] % count):
                expected = f"rank {rank}, and a first size that divides by the {count} gates"
                raise wrong_shape(op, name, shape, expected, "check how the gates are packed")
        for name, weight in (("input", "weight_ih"), ("hidden", "weight_hh")):
            shape, matrix = sizes(values[name]), sizes(values[weight])
            if not shape:
                raise wrong_shape(op, name, shape, "[N, features] or [features]", "add the missing dimension")
            if matrix[1] != shape[-1]:
                fits = f"shape [{count} H, {shape[-1]}] for {name} of shape {list(shape)}"
                raise wrong_shape(op, weight, matrix, fits, "transpose it with .mT if it is [in, out]")
        _check_gates(op, count, **values)
        return {}

    return prepare


def _check_gates(op: str, count: int, hidden: Any, **values: Any) -> None:
    """All that has a row for each gate has as many as the hidden state asks for, and the cell its size."""
    state = sizes(hidden)
    rows = count * state[-1]
    expected = f"{rows} = {count} H for hidden of shape {list(state)}"
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        shape = sizes(values[name])
        if shape is not None and shape[0] != rows:
            raise wrong_shape(op, name, shape, f"a first size of {expected}", "check how the gates are packed")
    cell = sizes(values.get("cell"))
    if cell is not None and cell[-1:] != state[-1:]:
        raise wrong_shape(
            op, "cell", cell, f"hidden's shape, {list(state)}", "pass the state that the step before gave"
        )
    batch = sizes(values["input"])[:-1]
    for name, shape in (("hidden", state), ("cell", cell or ())):
        pairs = zip(shape[-2::-1], batch[::-1], strict=False)
        if any(mine != theirs and 1 not in (mine, theirs) for mine, theirs in pairs):
            raise wrong_shape(
                op, name, f"{name}{list(shape)} and input{list(sizes(values['input']))}",
                "the input's sizes in front of the last", "pass a state for each row of the input",
            )  # fmt: skip


@limited(_checked(4), autocast="half")
def linear_lstm_cell(
    input: fg.Tensor, hidden: fg.Tensor, cell: fg.Tensor, weight_ih: fg.Tensor, weight_hh: fg.Tensor,
    bias_ih: fg.Tensor = None, bias_hh: fg.Tensor = None,
) -> tuple[fg.Tensor, fg.Tensor]:  # fmt: skip
    """(hidden, cell) of an LSTM step: torch.lstm_cell with hx as two arguments, hidden and cell.

    lstm_cell(linear(input, weight_ih) + linear(hidden, weight_hh), cell, biases), in one op of two products.

    Args:
        input: [N, I], or [I].
        hidden, cell: [N, H], or [H].
        weight_ih, weight_hh: [4 H, I] and [4 H, H], torch's order i, f, g, o.
        bias_ih, bias_hh: [4 H].

    Source: torch.nn.LSTMCell.
    """
    gates = fg.linear(input, weight_ih, bias_ih) + fg.linear(hidden, weight_hh, bias_hh)
    result: tuple[fg.Tensor, fg.Tensor] = _lstm(*fg.split(gates, 4), cell)
    return result


@limited(_checked(3), autocast="half")
def linear_gru_cell(
    input: fg.Tensor, hidden: fg.Tensor, weight_ih: fg.Tensor, weight_hh: fg.Tensor, bias_ih: fg.Tensor = None,
    bias_hh: fg.Tensor = None,
) -> fg.Tensor:  # fmt: skip
    """The new hidden state of a GRU step: torch.gru_cell.

    gru_cell(linear(input, weight_ih), linear(hidden, weight_hh), hidden, biases), in one op of two products.

    Args:
        input: [N, I], or [I].
        hidden: [N, H], or [H].
        weight_ih, weight_hh: [3 H, I] and [3 H, H], torch's order r, z, n.
        bias_ih, bias_hh: [3 H].

    Source: torch.nn.GRUCell.
    """
    own, recurrent = fg.linear(input, weight_ih, bias_ih), fg.linear(hidden, weight_hh, bias_hh)
    return _gru(*fg.split(own, 3), *fg.split(recurrent, 3), hidden)


def _plus(gates: Sequence[fg.Tensor], bias: fg.Tensor | None) -> Sequence[fg.Tensor]:
    if bias is None:
        return gates
    return [gate + part for gate, part in zip(gates, fg.split(bias, len(gates)), strict=True)]
