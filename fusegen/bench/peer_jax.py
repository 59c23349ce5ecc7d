"""An Op in JAX, jitted: what XLA makes of it.

The op's expressions are evaluated with jax.numpy, by the same table of functions that the reference uses; the ops of
``NAMESAKES`` are written as JAX's users write them. JAX launches on streams of its own, so its times are those of calls
back to back by the wall clock. The backward is one jitted vjp, which recomputes what it needs of the forward.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fusegen.core.dtypes import DType
from fusegen.core.errors import FusegenError
from fusegen.core.ir import Call, Const, Expr, Factor, Index, Op, Operand, Output, Reduce, Ref, Size, walk
from fusegen.core.views import block_shape, view_shape
from fusegen.declare.table import lookup
from fusegen.matmul.libraries.stopwatch import Clock

if TYPE_CHECKING:
    import torch


@cache
def load_jax() -> Any:
    """JAX, told to leave memory for others and to keep 64-bit dtypes. ImportError where there is none."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax


@dataclass(frozen=True)
class InJax:
    """An implementation (bench/comparison): ``function`` takes and gives JAX arrays."""

    function: Callable[..., Any]
    name: str = "JAX"

    def results(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """What it computes, as torch tensors."""
        import torch.utils.dlpack

        jax = load_jax()
        found = jax.block_until_ready(jax.jit(self._forward)(*self._borrowed(inputs)))
        return tuple(torch.utils.dlpack.from_dlpack(result) for result in found)

    def time(self, clock: Clock, inputs: Sequence[torch.Tensor], which: str) -> float:
        """Microseconds of one pass, calls back to back."""
        jax = load_jax()
        arrays = self._borrowed(inputs)
        work: Callable[[], Any]
        if which == "fwd":
            compiled = jax.jit(self._forward)
            work = lambda: compiled(*arrays)  # noqa: E731
        else:
            work = self._gradients(jax, arrays, [t.requires_grad for t in inputs], which)
        return clock.back_to_back(work, jax.block_until_ready)

    def _forward(self, *arrays: Any) -> tuple[Any, ...]:
        returned = self.function(*arrays)
        return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)

    def _borrowed(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        jax = load_jax()
        return [jax.dlpack.from_dlpack(t.detach().contiguous()) for t in inputs]

    def _gradients(self, jax: Any, arrays: Sequence[Any], wanted: Sequence[bool], which: str) -> Callable[[], Any]:
        """A call of the jitted vjp; for a step, of results and gradients together."""

        def of_wanted(*some: Any) -> tuple[Any, ...]:
            rest = iter(some)
            results = self._forward(*[next(rest) if w else a for w, a in zip(wanted, arrays, strict=True)])
            return tuple(r for r in results if jax.numpy.issubdtype(r.dtype, jax.numpy.floating))

        def both(some: Sequence[Any], cotangents: Any) -> Any:
            results, pull = jax.vjp(of_wanted, *some)
            return (results if which == "step" else (), pull(cotangents))

        some = [a for w, a in zip(wanted, arrays, strict=True) if w]
        key = jax.random.PRNGKey(0)
        cotangents = tuple(jax.random.normal(key, r.shape, r.dtype) for r in jax.eval_shape(of_wanted, *some))
        compiled = jax.jit(both)
        return lambda: compiled(some, cotangents)


def in_jax(op: Op, names: Sequence[str], options: Mapping[str, Any]) -> InJax:
    """``op`` as an implementation.

    Args:
        names: which argument each tensor is, in order.
        options: every other argument of the call, by name.
    """
    if op.name in NAMESAKES:
        own = NAMESAKES[op.name]
        return InJax(lambda *arrays: own(load_jax(), dict(zip(names, arrays, strict=True)), **options))
    scalars = {scalar.name: options[scalar.name] for scalar in op.scalars}
    return InJax(lambda *arrays: _Evaluation(load_jax(), op, dict(zip(names, arrays, strict=True)), scalars).run())


# -- ops that JAX has ------------------------------------------------------------------------------------------------


def _softmax(jax: Any, tensors: Mapping[str, Any], dim: int | None = None, **_: Any) -> Any:
    (x,) = tensors.values()
    return jax.nn.softmax(x.astype(_wide(jax, x)), axis=-1 if dim is None else dim).astype(x.dtype)


def _layer_norm(jax: Any, tensors: Mapping[str, Any], eps: float = 1e-5, **_: Any) -> Any:
    jnp, (x, *rest) = jax.numpy, tensors.values()
    wide = x.astype(_wide(jax, x))
    axes = tuple(range(-rest[0].ndim, 0)) if rest else (-1,)
    centered = wide - jnp.mean(wide, axes, keepdims=True)
    y = centered * jax.lax.rsqrt(jnp.mean(jnp.square(centered), axes, keepdims=True) + eps)
    for combine, parameter in zip((jnp.multiply, jnp.add), rest, strict=False):
        y = combine(y, parameter.astype(y.dtype))
    return y.astype(x.dtype)


def _rms_norm(jax: Any, tensors: Mapping[str, Any], eps: float | None = None, **_: Any) -> Any:
    jnp, (x, *rest) = jax.numpy, tensors.values()
    wide = x.astype(_wide(jax, x))
    axes = tuple(range(-rest[0].ndim, 0)) if rest else (-1,)
    small = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    y = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axes, keepdims=True) + small)
    return (y * rest[0].astype(y.dtype) if rest else y).astype(x.dtype)


def _cross_entropy(jax: Any, tensors: Mapping[str, Any], **_: Any) -> Any:
    x, target = tensors.values()
    logits = jax.nn.log_softmax(x.astype(_wide(jax, x)), axis=-1)
    return -jax.numpy.mean(jax.numpy.take_along_axis(logits, target[:, None], axis=-1)).astype(x.dtype)


NAMESAKES: dict[str, Callable[..., Any]] = {
    "softmax": _softmax, "layer_norm": _layer_norm, "rms_norm": _rms_norm, "cross_entropy": _cross_entropy,
}  # fmt: skip


def _wide(jax: Any, x: Any) -> Any:
    return x.dtype if x.dtype.itemsize > 2 else jax.numpy.float32


# -- any op ----------------------------------------------------------------------------------------------------------

# Rows of the function table whose reference asks a tensor for more than JAX's arrays have.
_CALLS: dict[str, Callable[..., Any]] = {
    "stop_gradient": lambda jax, x: jax.lax.stop_gradient(x),
    "cbrt": lambda jax, x: jax.numpy.cbrt(x),
    "logsigmoid": lambda jax, x: jax.nn.log_sigmoid(x),
    "softplus": lambda jax, x: jax.nn.softplus(x),
    "log_of_probability": lambda jax, p: jax.numpy.clip(jax.numpy.log(p), -100),
    "log_of_complement": lambda jax, p: jax.numpy.clip(jax.numpy.log1p(-p), -100),
}
# Torch's names where jax.numpy, jax.nn, jax.lax and jax.scipy.special have others.
_RENAMED = {
    "clamp": "clip", "lgamma": "gammaln", "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift",
}  # fmt: skip


def _sum_exp(jnp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    return jnp.sum(jnp.exp(x - jnp.max(x, axes, keepdims=True)), axes, keepdims=True)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda jnp, x, axes: jnp.sum(x, axes, keepdims=True, dtype=x.dtype),
    "prod": lambda jnp, x, axes: jnp.prod(x, axes, keepdims=True, dtype=x.dtype),
    "max": lambda jnp, x, axes: jnp.max(x, axes, keepdims=True),
    "min": lambda jnp, x, axes: jnp.min(x, axes, keepdims=True),
    "squared_deviation": lambda jnp, x, axes: jnp.sum(
        jnp.square(x - jnp.mean(x, axes, keepdims=True)), axes, keepdims=True
    ),
    "sum_exp": _sum_exp,
}


class _AsTorch:
    """JAX under torch's names, as far as the references of the function table call them."""

    def __init__(self, jax: Any) -> None:
        import jax.scipy.special as special

        self._homes = (jax.numpy, jax.nn, jax.lax, special)

    def __getattr__(self, name: str) -> Any:
        wanted = _RENAMED.get(name, name)
        for home in self._homes:
            if hasattr(home, wanted):
                return getattr(home, wanted)
        raise AttributeError(f"JAX has no {name}")


class _Evaluation:
    """One call, while JAX traces it. Every value has a dimension per axis of the op, of size one where it lacks it."""

    def __init__(self, jax: Any, op: Op, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> None:
        self.jax, self.jnp, self.op, self.axes = jax, jax.numpy, op, op.axes
        self.torch = _AsTorch(jax)
        self.sizes: dict[str, int] = {}
        self.named: dict[str, Any] = {}
        for operand in op.operands:
            self.named[operand.name] = self._aligned(operand, arrays[operand.base])
        for scalar in op.scalars:
            self.named[scalar.name] = self.jnp.asarray(scalars[scalar.name], scalar.dtype.compute.name)

    def run(self) -> tuple[Any, ...]:
        for statement in self.op.statements:
            value = self._evaluate(statement.expr)
            if isinstance(statement, Reduce):
                value = self._reduce(statement, value)
            self.named[statement.name] = value
        results: dict[str, Any] = {}
        for output in self.op.outputs:
            results.setdefault(output.base, []).append((output, self._placed(output)))
        return tuple(self._packed(blocks) for blocks in results.values())

    def _packed(self, blocks: list[tuple[Output, Any]]) -> Any:
        first = blocks[0][0].packed
        if first is None:
            return blocks[0][1]
        ordered = sorted(blocks, key=lambda block: block[0].packed.index if block[0].packed else 0)
        return self.jnp.concatenate([value for _, value in ordered], axis=first.dim)

    def _aligned(self, operand: Operand, array: Any) -> Any:
        packed, shape = operand.packed, view_shape(operand, array.shape)
        if packed is not None:
            size = array.shape[packed.dim] // packed.count
            array = self.jax.lax.slice_in_dim(array, packed.index * size, (packed.index + 1) * size, axis=packed.dim)
        array = array.astype(operand.dtype.compute.name)
        own = [axis for axis in operand.shape if axis is not None]
        self.sizes.update({axis: size for axis, size in zip(operand.shape, shape, strict=True) if axis is not None})
        array = array.reshape([self.sizes[axis] for axis in own])
        array = array.transpose([own.index(axis) for axis in self.axes if axis in own])
        return array.reshape([self.sizes[axis] if axis in own else 1 for axis in self.axes])

    def _placed(self, output: Output) -> Any:
        own = [axis for axis in output.shape if axis is not None]
        value = self._evaluate(output.expr)
        value = self.jnp.broadcast_to(value, [self.sizes[axis] if axis in own else 1 for axis in self.axes])
        value = value.reshape([self.sizes[axis] for axis in self.axes if axis in own])
        kept = [axis for axis in self.axes if axis in own]
        value = value.transpose([kept.index(axis) for axis in own])
        return value.reshape(block_shape(output, self.sizes)).astype(output.dtype.name)

    def _evaluate(self, root: Expr) -> Any:
        values: dict[Expr, Any] = {}
        for node in walk([root]):
            values[node] = self._node(node, values)
        return values[root]

    def _node(self, node: Expr, values: Mapping[Expr, Any]) -> Any:
        if isinstance(node, Const):
            return self.jnp.asarray(node.value, node.dtype.name)
        if isinstance(node, Ref):
            return self.named[node.name]
        if isinstance(node, Size):
            return self.jnp.asarray(self.sizes[node.axis], node.dtype.name)
        if isinstance(node, Index):
            shape = [self.sizes[axis] if axis == node.axis else 1 for axis in self.axes]
            return self.jnp.arange(self.sizes[node.axis], dtype=node.dtype.name).reshape(shape)
        assert isinstance(node, Call)
        args = [values[arg] for arg in node.args]
        if node.function == "cast":
            value = args[0].astype(node.detail.name) if isinstance(node.detail, DType) else args[0]
            return value.astype(node.dtype.name)
        if node.function in _CALLS:
            return _CALLS[node.function](self.jax, *args)
        if isinstance(node, Factor):
            return args[0]
        return lookup(node.function).reference(self.torch, *args, *([] if node.detail is None else [node.detail]))

    def _reduce(self, reduce: Reduce, value: Any) -> Any:
        rule = _REDUCTIONS.get(reduce.kind)
        if rule is None:
            raise FusegenError(
                f"{self.op.name}, in JAX", given=f"a reduction of kind {reduce.kind!r}",
                expected=", ".join(_REDUCTIONS), fix="add its rule to bench/peer_jax.py",
            )  # fmt: skip
        axes = tuple(position for position, axis in enumerate(self.axes) if axis in reduce.over)
        full = [self.sizes[axis] if p in axes else value.shape[p] for p, axis in enumerate(self.axes)]
        return rule(self.jnp, self.jnp.broadcast_to(value, full), axes)
