"""Writes docs/torch_functions.md: which function of torch is which expression of the language, from the one table.

python tools/torch_functions.py
"""

from __future__ import annotations

from pathlib import Path

from fusegen.declare import torch_names

PAGE = Path(__file__).resolve().parent.parent / "docs" / "torch_functions.md"
HEAD = """# Functions of torch, NumPy and JAX in a declaration

A function of torch code is an op as it stands, wherever the language can say what it does: `@fg.op` above it is all.
NumPy's functions have their own arguments here (`np.sum(x, axis=-1, keepdims=True)`).
This page is printed by `tools/torch_functions.py` from the table that declarations use
(fusegen/declare/torch_names.py). Functions that torch has sample inputs for are compared with torch under these
(tests/declare/test_torch_functions.py).

- `dim` and `keepdim`, `axis` and `keepdims` mean the same everywhere.
- `x.shape`, `x.size()` and `x.numel()` are ints of this call: Python may test them and count with them, and what it
  computes becomes part of the compiled op. Where a size meets a tensor (`x.sum(-1) / x.shape[-1]`) it stays a size.
- `x[:, None]`, `x.unsqueeze(1)`, `x.mT`, `x.permute(...)`: views cost nothing. `view` and `reshape` take dimensions
  apart and put them together again. `chunk`, `split`, `x[0]` and `x[:, 1:3]` take equal blocks, where there are few of
  them; other slices are read at their places. `x[i]` of a tensor of integers reads rows where it tells, `x[i, j]`
  elements; a place that is out of range is an error.
- `x.max(dim)` and `x.min(dim)`: elements that tie share the gradient of `values` evenly, as those of `torch.amax` do.
  torch's own gives all of it to one of them.
- `x.dtype` is fusegen's: it compares equal to torch's of the same name (`==`, `in (torch.float16, ...)`), and
  `torch.finfo(x.dtype)` takes it. It is none to `is`, to sets and to dicts.
- `torch.is_tensor(x)` and `isinstance(x, torch.Tensor)` are True in a declaration; `type(x) is torch.Tensor` is not.
- `torch.zeros`, `ones`, `full`, `arange`, `eye`, `linspace`, `logspace` and `torch.tensor([0.5, 2])`, of 64 numbers at
  most, make tensors that no memory holds; `x.device` may be handed to them, and says nothing of itself.
- `with torch.no_grad():` is `fg.stop_gradient` of what is computed within. `torch.autocast` within a declaration is not
  seen: autocast is the op's (`fg.op(autocast=...)`).
- `h.mul_(2)`, `y[..., 0] = a`, `y[mask] = 0`, `h += y` and `F.relu(h, inplace=True)` write what the declaration has
  computed, and all that shares memory with it sees it, as in torch: views, other names, what it is a view of. An
  argument is its caller's: methods and items of one are refused, `x += y` and `inplace=True` write a copy of it.
- A `torch.autograd.Function` is refused: declare the gradient of an op instead.
- Products are of floats: `matmul` of integers is refused.
- `jax.numpy` has NumPy's functions here (`jnp.sum(x, axis=-1)`), and `jax.nn`, `jax.lax` and `jax.scipy.special` have
  JAX's that the language can say. Call them by their modules' names: after `from jax.numpy import exp` it is JAX's own,
  which is refused. A function in `jax.jit`, `vmap` or `grad` is, too: transform what calls the op.

What is not here is refused. The error says where, and what comes nearest.

| torch | NumPy | in fusegen |
|---|---|---|
"""


def text() -> str:
    """The page."""
    lines = []
    for entry in torch_names.table():
        names = ", ".join(f"`{_written(name)}`" for name in entry.names)
        numpys = ", ".join(f"`{name}`" for name in entry.numpy)
        meaning = " ".join((entry.function.__doc__ or "").split()).replace("``", "`").removesuffix(".")
        lines.append(f"| {names} | {numpys} | {meaning} |\n")
    return HEAD + "".join(lines)


def _written(name: str) -> str:
    place, _, last = name.rpartition(".")
    return f"x.{last}" if place == "Tensor" else name.replace("nn.functional.", "F.")


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
