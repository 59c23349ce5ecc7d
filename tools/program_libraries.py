"""Two libraries with the same words, which random programs (tools/programs) call: fusegen's own, and torch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import fusegen as fg
from fusegen.declare import philox


def words(text: str) -> tuple[str, ...]:
    """Names that a text has."""
    return tuple(text.split())


LIBRARY = frozenset(
    words(
        "relu silu gelu mish elu softsign hardswish leaky_relu squared_relu quick_gelu selu celu tanhshrink "
        "softshrink hardtanh layer_norm rms_norm softmin normalize swiglu glu lerp mse_loss l1_loss "
        "huber_loss cross_entropy batch_norm instance_norm group_norm binary_cross_entropy_with_logits "
        "kl_div cosine_similarity smooth_l1_loss"
    )
)


@fg.op
def _smooth(a: Any, b: Any) -> Any:
    """An op of the user's own, called within others."""
    inner = a * fg.sigmoid(b)
    return inner + fg.tanh(inner) * 0.5


@fg.op
def _two(a: Any) -> Any:
    """The same with two results."""
    return fg.sin(a), fg.cos(a) * 2.0


def _guarded(a: Any, b: Any) -> Any:
    """Nothing where a is not positive, whatever b is; the root and the logarithm have no value there."""
    root = fg.sqrt(a)
    return fg.where(a > 0.1, root * fg.log(a) + fg.tanh(root * b) * fg.rsqrt(a), 0)


def _guarded_rows(a: Any) -> Any:
    """Rows of a mean that is not positive are nothing; the sum that is read elsewhere has no value there."""
    mean = fg.mean(a, -1, keepdims=True)
    total = fg.sum(fg.sqrt(mean) * a, -1, keepdims=True)
    return fg.where(mean > 0.1, fg.tanh(total * a) * fg.log(mean), 0)


def _chosen_rows(a: Any) -> Any:
    """Each branch reads a sum that has no value where the other is taken."""
    mean = fg.mean(a, -1, keepdims=True)
    above = fg.sum(fg.sqrt(mean) * a, -1, keepdims=True)
    below = fg.sum(fg.log(0.3 - mean) * a, -1, keepdims=True)
    return fg.where(mean > 0.1, fg.tanh(above * a), fg.sin(below * a))


def _root(a: Any) -> Any:
    """Which rows are taken, and the root of their means: the others have none."""
    mean = fg.mean(a, -1, keepdims=True)
    return mean > 0.1, fg.sqrt(mean)


def _guarded_extremum(a: Any) -> Any:
    """An extremum, and a norm that is one, of rows without a value."""
    taken, root = _root(a)
    y = root * a
    norm = fg.norm(y, ord=float("inf"), axis=-1, keepdims=True)
    return fg.where(taken, fg.sin(y - fg.amin(y, -1, keepdims=True)) * a / (norm + fg.amax(y, -1, keepdims=True)), 0)


def _guarded_call(a: Any) -> Any:
    """Declared gradients of what has no value, and lacks an axis: also for some elements of a row alone."""
    taken, root = _root(a)
    inner = _bent(root, a)
    return fg.where(taken, fg.sin(inner) + _straight(root * 4) * a, 0) * fg.where(
        taken & (a > 0), _bent(root, root), 0.5
    )


def _guarded_product(a: Any, m: Any) -> Any:
    """A matrix product of rows that have no value."""
    taken, root = _root(a)
    y = (fg.log(root) * a) @ m
    return fg.where(taken, fg.sin(y) * y, 0)


def _topped(a: Any) -> Any:
    """Rows times their largest element, of which functions of halves have other last bits than those of floats."""
    return a * fg.amax(fg.sin(a) * fg.sigmoid(a), -1, keepdims=True)


def _written_softmax(a: Any) -> Any:
    """Not the library's."""
    e = fg.exp(a - fg.amax(a, -1, keepdims=True))
    return e / fg.sum(e, -1, keepdims=True)


@fg.op
def _total(*xs: Any) -> Any:
    """An op of a list of tensors."""
    first, *rest = xs
    for i, x in enumerate(rest):
        first = first * 0.5 + x * (i + 1)
    return first


# What is declared is not what would be derived, and is linear in its cotangents: so it has further derivatives.
_bent = fg.op(lambda a, b: fg.tanh(a) * b, name="bent")
_bent.gradient(lambda d_out, a, b: (d_out * (b + fg.sin(a)), d_out * a * 0.5))
_straight = fg.op(lambda a: fg.round(a), name="straight")
_straight.gradient(lambda d_out, a: d_out)
_joint = fg.op(lambda a: (a * 2.0, a - fg.mean(a, -1, keepdims=True)), name="joint")
_joint.gradient(lambda d_first, d_second, a: d_first * fg.cos(a) + fg.mean(d_second * a, -1, keepdims=True))


def _chosen_joint(a: Any) -> Any:
    """Gradients that sum cotangents along a row, of which some elements are chosen, and of what is chosen again."""
    a = fg.where(a > -0.5, a, 0) * fg.sin(a)
    first, second = _joint(a)
    chosen = fg.where(a > 0.1, fg.sin(first) * second, 0.5)
    again, _ = _joint(chosen)
    return fg.where(a > 0.1, fg.cos(again), chosen)


_dropped = fg.op(lambda a: fg.dropout(a, 0.3) + 0.125 * fg.rand_like(a, dtype=fg.float32), name="dropped", random=True)
SEED = 7


# Of the numbers from 0 to 4 that programs have, the last is that of no segment.
SEGMENTS = 4
# A sum of exponentials up to each element is computed of all pairs where a dimension is no longer.
MOST_TERMS = 64


def _spread(x: Any, count: int) -> Any:
    steps = fg.arange(1, count + 1, dtype=x.dtype)
    return fg.sum(fg.sin(fg.expand_dims(x, -1) * steps) * 0.5, -1)


def _segments(x: Any, ids: Any, how: str, axis: int) -> Any:
    found = getattr(fg, f"segment_{how}")(x, ids, SEGMENTS, axis)
    return fg.take(found, fg.where(ids < SEGMENTS, fg.cast(ids, fg.int64), fg.NOWHERE), axis)


def _reread(x: Any, form: str, axis: int, a: int, b: int) -> Any:
    """A slice with a step, all turned around, or with more in front and behind: what positions tell."""
    if form == "step":
        return x[(slice(None),) * (x.ndim + axis) + (slice(a, None, b + 1),)]
    return fg.ops.flip(x, axis) if form == "flip" else fg.ops.pad(x, (0, 0) * (-1 - axis) + (a, b), form)


def _running(x: Any, axis: int, how: str, reverse: bool, exclusive: bool = False) -> Any:
    if how in ("sum", "prod"):
        return (fg.cumsum if how == "sum" else fg.cumprod)(x, axis, reverse=reverse, exclusive=exclusive)
    if how == "logsumexp":
        return fg.logcumsumexp(x, axis, reverse=reverse)
    return (fg.cummax if how == "max" else fg.cummin)(x, axis, reverse=reverse).values


def _window(place: Any, axis: int, count: int, n: int) -> Any:
    """So many places from one on, around the end of ``n``."""
    return (fg.arange(count)[(slice(None),) + (None,) * (-1 - axis)] + place) % n


def _recurrence(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    return fg.linear_recurrence(fg.sigmoid(a), b, axis, reverse=reverse)


class Ours:
    """fusegen's functions, by the names that programs use."""

    noisy = staticmethod(lambda x: _dropped(x, seed=SEED))

    smooth, two, guarded = staticmethod(_smooth), staticmethod(_two), staticmethod(_guarded)
    guarded_rows, chosen_rows = staticmethod(_guarded_rows), staticmethod(_chosen_rows)
    guarded_extremum, guarded_call = staticmethod(_guarded_extremum), staticmethod(_guarded_call)
    guarded_product = staticmethod(_guarded_product)
    written_softmax, topped = staticmethod(_written_softmax), staticmethod(_topped)
    topped_product = staticmethod(lambda a, m: _topped(a) @ m)
    total, bent, joint = staticmethod(_total), staticmethod(_bent), staticmethod(_joint)
    chosen_joint = staticmethod(_chosen_joint)
    cast = staticmethod(fg.cast)
    put, spread, segments = staticmethod(fg.index_copy), staticmethod(_spread), staticmethod(_segments)
    reread = staticmethod(_reread)
    running, recurrence = staticmethod(_running), staticmethod(_recurrence)
    running_place = staticmethod(lambda x, axis: fg.cummax(x, axis).indices)
    running_count, window = staticmethod(fg.cumsum), staticmethod(_window)
    vector = staticmethod(lambda i: i[(slice(None),) + (0,) * (i.ndim - 1)])
    scatter_reduce = staticmethod(
        lambda x, axis, places, source, how, include_self: fg.scatter_reduce(
            x, axis, places, source, how, include_self=include_self
        )
    )
    as_float = staticmethod(lambda x, like: fg.cast(x, like.dtype))
    byte = staticmethod(lambda i: fg.clamp(fg.cast(i, "uint8"), 0, 2) + fg.cast(i, "uint8"))

    def __getattr__(self, name: str) -> Any:
        return getattr(fg.ops, name) if name in LIBRARY else getattr(fg, name)


def _all(axis: Any, x: Any) -> Any:
    return tuple(range(x.ndim)) if axis is None else axis


def _reduced(function: Callable[..., Any], **names: str) -> Callable[..., Any]:
    """A reduction of torch's that takes ``axis`` and ``keepdims``."""

    def call(x: Any, axis: Any = None, keepdims: bool = False, **options: Any) -> Any:
        return function(x, dim=_all(axis, x), keepdim=keepdims, **options)

    return call


def _prod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    dims = sorted((d % x.ndim for d in ((axis,) if isinstance(axis, int) else _all(axis, x))), reverse=True)
    for dim in dims:
        x = torch.prod(x, dim, keepdim=keepdims)
    return x


def _torch_concat(parts: Any, axis: int = -1) -> Any:
    """Parts that broadcast along the other dimensions."""
    others = torch.broadcast_shapes(*(part.select(axis, 0).shape for part in parts))
    place = axis % (len(others) + 1)
    whole = [part.expand(*others[:place], part.shape[axis], *others[place:]) for part in parts]
    return torch.cat(whole, place)


def _torch_places(places: Any, n: int) -> tuple[Any, Any]:
    """Places from 0 on, and which are none."""
    places = places.long()
    return torch.where(places < 0, places + n, places).clamp(min=0), places == fg.NOWHERE


def _torch_take(x: Any, places: Any, axis: int) -> Any:
    at, none = _torch_places(places, x.shape[axis])
    taken = torch.index_select(x, axis, at.reshape(-1)).movedim(axis, -1)
    taken = torch.where(none.reshape(-1), torch.zeros((), dtype=x.dtype), taken)
    before = axis % x.ndim
    taken = taken.reshape((*taken.shape[:-1], *places.shape))
    return taken.movedim(tuple(range(x.ndim - 1, taken.ndim)), tuple(range(before, before + places.ndim)))


def _torch_take_along_axis(x: Any, places: Any, axis: int) -> Any:
    at, none = _torch_places(places, x.shape[axis])
    return torch.where(none, torch.zeros((), dtype=x.dtype), torch.take_along_dim(x, at, axis))


def _torch_index_add(x: Any, axis: int, places: Any, source: Any) -> Any:
    own, updates, hits = _torch_hits(x, axis, places, source)
    return (own + torch.where(hits, updates, torch.zeros((), dtype=updates.dtype)).sum(-1)).movedim(-1, axis)


def _torch_hits(x: Any, axis: int, places: Any, source: Any) -> tuple[Any, Any, Any]:
    """``x`` with the axis last; for each of its elements the updates along one more dimension, and which are for it."""
    at, none = _torch_places(places, x.shape[axis])
    places = torch.where(none, -1, at)
    x, source = x.movedim(axis, -1), source.movedim(axis, -1)
    hits = places[..., None, :] == torch.arange(x.shape[-1])[:, None]
    return x, source[..., None, :].expand(*x.shape, -1), hits.expand(*x.shape, -1)


def _torch_logcumsumexp(x: Any, axis: int) -> Any:
    """torch's own has a forward mode that loses half of the digits where terms are small (5e-7 of the largest)."""
    if x.shape[axis] > MOST_TERMS:
        return torch.logcumsumexp(x, axis)
    terms = x.movedim(axis, -1)[..., None, :].expand(*[-1] * (x.ndim - 1), x.shape[axis], -1)
    behind = torch.ones(terms.shape[-2:], dtype=torch.bool).triu(1)
    return terms.masked_fill(behind, -math.inf).logsumexp(-1).movedim(-1, axis)


def _torch_running(x: Any, axis: int, how: str, reverse: bool, exclusive: bool = False) -> Any:
    functions: dict[str, Callable[..., Any]] = {
        "sum": torch.cumsum, "prod": torch.cumprod, "logsumexp": _torch_logcumsumexp,
        "max": lambda x, axis: torch.cummax(x, axis).values, "min": lambda x, axis: torch.cummin(x, axis).values,
    }  # fmt: skip
    found = functions[how](x.flip(axis) if reverse else x, axis)
    if exclusive:
        start = torch.full_like(found.narrow(axis, 0, 1), 0.0 if how == "sum" else 1.0)
        found = torch.cat([start, found.narrow(axis, 0, x.shape[axis] - 1)], axis)
    return found.flip(axis) if reverse else found


def _torch_recurrence(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    state, found = torch.zeros_like(b.select(axis, 0)), []
    for t in range(b.shape[axis]):
        t = b.shape[axis] - 1 - t if reverse else t
        state = torch.sigmoid(a.select(axis, t)) * state + b.select(axis, t)
        found.append(state)
    return torch.stack(found[::-1] if reverse else found, axis)


def _torch_put(x: Any, axis: int, places: Any, source: Any) -> Any:
    """The last update for a place, where there is one."""
    own, updates, hits = _torch_hits(x, axis, places, source)
    last = torch.where(hits, torch.arange(hits.shape[-1]), -1).amax(-1, keepdim=True)
    found = updates.gather(-1, last.clamp(min=0))[..., 0]
    return torch.where(last[..., 0] >= 0, found, own).movedim(-1, axis)


def _torch_scatter_reduce(x: Any, axis: int, places: Any, source: Any, how: str, include_self: bool) -> Any:
    """torch's own has no forward mode for products, and another gradient where ``x`` ties that is not to count."""
    own, updates, hits = _torch_hits(x, axis, places.movedim(axis, -1), source)
    is_put, count = hits.any(-1), hits.sum(-1)
    nothing = {"prod": 1.0, "amax": -math.inf, "amin": math.inf}.get(how, 0.0)
    terms = torch.where(hits, updates, nothing)
    if include_self:
        terms, count = torch.cat([own[..., None], terms], -1), count + 1
    folds: dict[str, Callable[..., Any]] = {"prod": torch.prod, "amax": torch.amax, "amin": torch.amin}
    found = folds.get(how, torch.sum)(terms, -1)
    found = found / torch.where(is_put, count, 1) if how == "mean" else found
    return torch.where(is_put, found, own).movedim(-1, axis)


def _torch_spread(x: Any, count: int) -> Any:
    return (torch.sin(x[..., None] * torch.arange(1, count + 1).to(x.dtype)) * 0.5).sum(-1)


def _torch_segments(x: Any, ids: Any, how: str, axis: int) -> Any:
    """Each element beside all: combined are those of its number."""
    own = x.movedim(axis, -1)
    alike = (ids[:, None] == ids) & (ids < SEGMENTS)
    nothing = {"prod": 1.0, "max": -math.inf, "min": math.inf}.get(how, 0.0)
    terms = torch.where(alike, own[..., None, :], nothing)
    folds: dict[str, Callable[..., Any]] = {"prod": torch.prod, "max": torch.amax, "min": torch.amin}
    found = folds.get(how, torch.sum)(terms, -1)
    found = found / alike.sum(-1).clamp(min=1) if how == "mean" else found
    return torch.where(ids < SEGMENTS, found, 0).movedim(-1, axis)


def _torch_reread(x: Any, form: str, axis: int, a: int, b: int) -> Any:
    n = x.shape[axis]
    read = {"step": range(a, n, abs(b) + 1), "flip": range(n - 1, -1, -1)}.get(form, range(-a, n + b))
    at = torch.tensor([*read], dtype=torch.int64)
    if form == "reflect":
        at = n - 1 - (n - 1 - at.abs()).abs()
    at = {"replicate": at.clamp(0, n - 1), "circular": at % (n + min(b, 0))}.get(form, at)
    is_there = ((at >= 0) & (at < n)).reshape(-1, *[1] * (-1 - axis))
    return torch.where(is_there, torch.index_select(x, axis, at.clamp(0, n - 1)), 0.0)


def _torch_noisy(a: Any) -> Any:
    """What ``_dropped`` draws: a number is of its element's place along the axes that are no broadcast ones."""
    long = [size for size in a.shape if size != 1] or [1]
    column, line = torch.arange(long[-1]), torch.arange(math.prod(long[:-1])).reshape(*long[:-1], 1)
    kept, added = (philox.uniform(torch, SEED, torch.tensor(n), line, column).reshape(a.shape) for n in (0, 2))
    return torch.where(kept >= 0.3, a * (1 / (1 - 0.3)), 0.0) + 0.125 * added.to(a.dtype)


def _torch_guarded(a: Any, b: Any) -> Any:
    # As torch's users write it: a value that the branch could take stands in where it is not taken.
    taken = a > 0.1
    safe = torch.where(taken, a, 1.0)
    root = torch.sqrt(safe)
    return torch.where(taken, root * torch.log(safe) + torch.tanh(root * b) * torch.rsqrt(safe), 0.0)


def _torch_guarded_rows(a: Any) -> Any:
    mean = torch.mean(a, -1, keepdim=True)
    taken = mean > 0.1
    safe = torch.where(taken, mean, 1.0)
    total = torch.sum(torch.sqrt(safe) * a, -1, keepdim=True)
    return torch.where(taken, torch.tanh(total * a) * torch.log(safe), 0.0)


def _torch_chosen_rows(a: Any) -> Any:
    mean = torch.mean(a, -1, keepdim=True)
    taken = mean > 0.1
    above = torch.sum(torch.sqrt(torch.where(taken, mean, 1.0)) * a, -1, keepdim=True)
    below = torch.sum(torch.log(torch.where(taken, 1.0, 0.3 - mean)) * a, -1, keepdim=True)
    return torch.where(taken, torch.tanh(above * a), torch.sin(below * a))


def _torch_root(a: Any) -> Any:
    mean = torch.mean(a, -1, keepdim=True)
    return mean > 0.1, torch.sqrt(torch.where(mean > 0.1, mean, 1.0))


def _torch_guarded_extremum(a: Any) -> Any:
    taken, root = _torch_root(a)
    y = root * a
    norm = torch.amax(torch.abs(y), -1, keepdim=True) + torch.amax(y, -1, keepdim=True)
    norm = torch.where(taken, norm, 1.0)
    return torch.where(taken, torch.sin(y - torch.amin(y, -1, keepdim=True)) * a / norm, 0.0)


def _torch_guarded_call(a: Any) -> Any:
    taken, root = _torch_root(a)
    inner = Theirs.bent(root, a)
    straight = root * 4 + (torch.round(root * 4) - root * 4).detach()
    chosen = torch.where(taken & (a > 0), Theirs.bent(root, root), 0.5)
    return torch.where(taken, torch.sin(inner) + straight * a, 0.0) * chosen


def _torch_topped(a: Any) -> Any:
    return a * torch.amax(torch.sin(a) * torch.sigmoid(a), -1, keepdim=True)


def _torch_guarded_product(a: Any, m: Any) -> Any:
    taken, root = _torch_root(a)
    y = (torch.log(root) * a) @ m
    return torch.where(taken, torch.sin(y) * y, 0.0)


def _torch_total(first: Any, *rest: Any) -> Any:
    for i, x in enumerate(rest):
        first = first * 0.5 + x * (i + 1)
    return first


class _Bent(torch.autograd.Function):
    """What ``_bent`` declares."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Any, b: Any) -> Any:
        return torch.tanh(a) * b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (a, b), (d,) = ctx.saved_tensors, cotangents
        return (d * (b + torch.sin(a))).sum_to_size(a.shape), (d * a * 0.5).sum_to_size(b.shape)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (a, b), (t, u) = ctx.saved_tensors, tangents
        return (0 if t is None else t * (b + torch.sin(a))) + (0 if u is None else u * a * 0.5)


class _Joint(torch.autograd.Function):
    """What ``_joint`` declares."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Any) -> Any:
        return a * 2.0, a - a.mean(-1, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (a,), (first, second) = ctx.saved_tensors, cotangents
        return first * torch.cos(a) + (second * a).mean(-1, keepdim=True)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (a,), (t,) = ctx.saved_tensors, tangents
        return t * torch.cos(a), a * t.mean(-1, keepdim=True)


def _torch_chosen_joint(a: Any) -> Any:
    a = torch.where(a > -0.5, a, 0.0) * torch.sin(a)
    first, second = Theirs.joint(a)
    chosen = torch.where(a > 0.1, torch.sin(first) * second, 0.5)
    again, _ = Theirs.joint(chosen)
    return torch.where(a > 0.1, torch.cos(again), chosen)


class Theirs:
    """torch's, by the same names. Floats are doubles throughout."""

    total, bent, joint = staticmethod(_torch_total), staticmethod(_Bent.apply), staticmethod(_Joint.apply)
    chosen_joint = staticmethod(_torch_chosen_joint)
    where = staticmethod(lambda c, a, b: torch.where(c, _tensor(a), _tensor(b)))
    minimum = staticmethod(lambda a, b: torch.minimum(_tensor(a), _tensor(b)))
    maximum = staticmethod(lambda a, b: torch.maximum(_tensor(a), _tensor(b)))
    sum, mean, amax, amin = (staticmethod(_reduced(f)) for f in (torch.sum, torch.mean, torch.amax, torch.amin))
    var, std = staticmethod(_reduced(torch.var)), staticmethod(_reduced(torch.std))
    any, all = staticmethod(_reduced(torch.any)), staticmethod(_reduced(torch.all))
    logsumexp, prod = staticmethod(_reduced(torch.logsumexp)), staticmethod(_prod)
    norm = staticmethod(
        lambda x, ord=2, axis=None, keepdims=False: torch.linalg.vector_norm(x, ord, _all(axis, x), keepdims)
    )
    argmax = staticmethod(lambda x, axis=None, keepdims=False: torch.argmax(x, axis, keepdims))
    argmin = staticmethod(lambda x, axis=None, keepdims=False: torch.argmin(x, axis, keepdims))
    stop_gradient = staticmethod(lambda x: x.detach())
    expand_dims = staticmethod(torch.unsqueeze)
    softplus = staticmethod(lambda x: torch.logaddexp(x, torch.zeros((), dtype=x.dtype)))
    split = staticmethod(lambda x, count, axis=-1: torch.chunk(x, count, axis))
    concat = staticmethod(_torch_concat)
    noisy = staticmethod(_torch_noisy)
    smooth = staticmethod(lambda a, b: a * torch.sigmoid(b) + torch.tanh(a * torch.sigmoid(b)) * 0.5)
    two = staticmethod(lambda a: (torch.sin(a), torch.cos(a) * 2.0))
    guarded, guarded_rows = staticmethod(_torch_guarded), staticmethod(_torch_guarded_rows)
    chosen_rows = staticmethod(_torch_chosen_rows)
    guarded_extremum, guarded_call = staticmethod(_torch_guarded_extremum), staticmethod(_torch_guarded_call)
    guarded_product = staticmethod(_torch_guarded_product)
    written_softmax = staticmethod(lambda x: torch.softmax(x, -1))
    topped = staticmethod(_torch_topped)
    topped_product = staticmethod(lambda a, m: _torch_topped(a) @ m)
    rms_norm = staticmethod(lambda x, shape, w=None, eps=1e-5: F.rms_norm(x, shape, w, eps))
    swiglu = staticmethod(lambda a, b: F.silu(a) * b)
    squared_relu = staticmethod(lambda x: F.relu(x) ** 2)
    quick_gelu = staticmethod(lambda x: x * torch.sigmoid(1.702 * x))
    lerp = staticmethod(lambda x, y, w: x + w * (y - x))
    as_float = staticmethod(lambda x, like: x.to(torch.float64))
    byte = staticmethod(lambda i: i.to(torch.uint8).clamp(0, 2) + i.to(torch.uint8))
    take, take_along_axis = staticmethod(_torch_take), staticmethod(_torch_take_along_axis)
    NOWHERE, arange = fg.NOWHERE, staticmethod(torch.arange)
    window = staticmethod(
        lambda place, axis, count, n: (torch.arange(count).reshape(-1, *[1] * (-1 - axis)) + place) % n
    )
    vector = staticmethod(lambda i: i.reshape(-1))
    running_place = staticmethod(lambda x, axis: torch.cummax(x, axis).indices)
    running_count = staticmethod(torch.cumsum)
    index_add = staticmethod(_torch_index_add)
    scatter_add = staticmethod(lambda x, axis, places, s: _torch_index_add(x, axis, places.movedim(axis, -1), s))
    scatter = staticmethod(lambda x, axis, places, s: _torch_put(x, axis, places.movedim(axis, -1), s))
    one_hot = staticmethod(lambda i, n: F.one_hot(i.long(), n))
    bincount = staticmethod(
        lambda i, n, w=None: _torch_index_add(
            torch.zeros(n, dtype=torch.int64 if w is None else w.dtype),
            0,
            i,
            torch.ones_like(i.long()) if w is None else w,
        )
    )
    running, recurrence = staticmethod(_torch_running), staticmethod(_torch_recurrence)
    spread, segments = staticmethod(_torch_spread), staticmethod(_torch_segments)
    reread = staticmethod(_torch_reread)
    put, scatter_reduce = staticmethod(_torch_put), staticmethod(_torch_scatter_reduce)

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name, None) or getattr(torch, name)

    @staticmethod
    def index(x: Any, axis: int) -> Any:
        axis %= max(x.ndim, 1)
        return torch.arange(x.shape[axis]).reshape([-1] + [1] * (x.ndim - 1 - axis)) if x.ndim else torch.tensor(0)

    @staticmethod
    def size(x: Any, axis: Any = None) -> int:
        return math.prod(x.shape[d] for d in ((axis,) if isinstance(axis, int) else _all(axis, x)))

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """Rounded as the declaration says, where gradients are not; floats go on in double."""
        rounded = x.detach().to(getattr(torch, dtype))
        return x + (rounded.to(torch.float64) - x.detach()) if rounded.is_floating_point() else rounded


def _tensor(x: Any) -> Any:
    return x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)
