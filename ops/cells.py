"""The pointwise parts of recurrent cells, on packed gates: blocks are read in place, and gradients written packed.

What is left of a cell are two matrix products, x W_ih^T and h W_hh^T.
"""

from __future__ import annotations

import fusegen as fg


@fg.op
def lstm_cell(gates: fg.Tensor, cell: fg.Tensor, bias: fg.Tensor = None) -> tuple[fg.Tensor, fg.Tensor]:
    """(hidden, cell) of an LSTM step.

        i, f, g, o = gates + bias
        cell'   = sigmoid(f) cell + sigmoid(i) tanh(g)
        hidden' = sigmoid(o) tanh(cell')

    Args:
        gates: [..., 4 H], torch's order i, f, g, o: the sum of both products.
        cell: [..., H].
        bias: [4 H], the sum of both biases; its gradient comes with the backward.

    Source: torch.nn.LSTMCell; Hochreiter and Schmidhuber, Neural Computation 9 (8), 1997.
    """
    i, f, g, o = _plus(fg.split(gates, 4), bias)
    new_cell = fg.sigmoid(f) * cell + fg.sigmoid(i) * fg.tanh(g)
    hidden = fg.sigmoid(o) * fg.tanh(new_cell)
    return hidden, new_cell


@fg.op
def gru_cell(
    input_gates: fg.Tensor, hidden_gates: fg.Tensor, hidden: fg.Tensor, input_bias: fg.Tensor = None,
    hidden_bias: fg.Tensor = None,
) -> fg.Tensor:  # fmt: skip
    """The new hidden state of a GRU step.

        r = sigmoid(i_r + h_r),  z = sigmoid(i_z + h_z),  n = tanh(i_n + r h_n)
        hidden' = (1 - z) n + z hidden = n + z (hidden - n)

    Args:
        input_gates, hidden_gates: [..., 3 H] each, torch's order r, z, n; apart, because r scales one of them.
        hidden: [..., H].
        input_bias, hidden_bias: [3 H], added to the gates.

    Source: torch.nn.GRUCell; Cho et al., arXiv 1406.1078.
    """
    i_r, i_z, i_n = _plus(fg.split(input_gates, 3), input_bias)
    h_r, h_z, h_n = _plus(fg.split(hidden_gates, 3), hidden_bias)
    r = fg.sigmoid(i_r + h_r)
    z = fg.sigmoid(i_z + h_z)
    n = fg.tanh(i_n + r * h_n)
    return n + z * (hidden - n)


def _plus(gates: fg.Tensor, bias: fg.Tensor) -> fg.Tensor:
    if bias is None:
        return gates
    return [gate + part for gate, part in zip(gates, fg.split(bias, len(gates)), strict=True)]
