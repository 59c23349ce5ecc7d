"""Optimizers with torch's names and state dicts that step all tensors of a model in a few launches; clipping of
gradients, and averages of parameters, likewise.

Each is an op of one parameter (``fusegen/optim/rules.py``), called for all of them by ``fg.foreach``. They read each
tensor once and write it where it lies; Adafactor, which needs sums of rows and columns, has launches for each tensor.
Counts of steps live on the parameters' device and nothing waits for it, so that steps can go into a CUDA graph.
"""

from fusegen.optim.adafactor import Adafactor
from fusegen.optim.adam import Adam, AdamW
from fusegen.optim.averages import ema_update_
from fusegen.optim.clipping import clip_grad_norm_
from fusegen.optim.lion import Lion
from fusegen.optim.sgd import SGD

__all__ = ["SGD", "Adafactor", "Adam", "AdamW", "Lion", "clip_grad_norm_", "ema_update_"]
