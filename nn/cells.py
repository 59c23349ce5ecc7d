"""Recurrent cells: two matrix products by torch, everything else of the step in one kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import fusegen as fg

from ._forward import NONE, drop_in


def _batched(module: Any, input: torch.Tensor, *states: torch.Tensor) -> bool:
    """Whether the arguments are [N, features] each; other cases, and wrong ones, are torch's."""
    sizes = [(input.shape[:1], module.input_size), *[(input.shape[:1], module.hidden_size)] * len(states)]
    tensors = (input, *states)
    return all(t.ndim == 2 and t.shape == (*n, size) for t, (n, size) in zip(tensors, sizes, strict=True))


def _zeros(module: Any, input: torch.Tensor) -> torch.Tensor:
    return input.new_zeros(input.shape[0], module.hidden_size)


def _lstm(module: Any, input: torch.Tensor, hx: Any = None) -> Any:
    if input.ndim != 2:
        return nn.LSTMCell.forward(module, input, hx)
    hidden, cell = (_zeros(module, input), _zeros(module, input)) if hx is None else hx
    if not _batched(module, input, hidden, cell):
        return nn.LSTMCell.forward(module, input, hx)
    gates = torch.addmm(F.linear(input, module.weight_ih, module.bias_ih), hidden, module.weight_hh.t())
    return fg.ops.lstm_cell(gates, cell, module.bias_hh)


def _gru(module: Any, input: torch.Tensor, hx: torch.Tensor | None = None) -> Any:
    if input.ndim != 2:
        return nn.GRUCell.forward(module, input, hx)
    hidden = _zeros(module, input) if hx is None else hx
    if not _batched(module, input, hidden):
        return nn.GRUCell.forward(module, input, hx)
    gates = F.linear(input, module.weight_ih), F.linear(hidden, module.weight_hh)
    return fg.ops.gru_cell(*gates, hidden, module.bias_ih, module.bias_hh)


# torch.autocast casts a cell's states as well.
CELLS: dict[type[nn.Module], type[nn.Module]] = {
    nn.LSTMCell: drop_in(nn.LSTMCell, _lstm, "two matrix products and fusegen.ops.lstm_cell.", agrees=NONE),
    nn.GRUCell: drop_in(nn.GRUCell, _gru, "two matrix products and fusegen.ops.gru_cell.", agrees=NONE),
}
