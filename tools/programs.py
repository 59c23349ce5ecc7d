"""Random programs over what a declaration may say, as Python source, and what torch makes of the same source.

A program is a function of tensors and numbers. Its text calls ``lib``, which is `Ours` (fusegen's language and library)
where it is declared, and `Theirs` (torch) where it is the oracle (tools/program_libraries). Values are bound to a name
or written out at each use: both are drawn, because what is named and what is shared decides where a compiler cuts
expressions.

The strategy is hypothesis', so that a program that fails shrinks to a few tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tools.program_libraries import words
from tools.program_places import PlaceStatements
from tools.program_writer import ADD, AND, MUL, NEG, POWER, Program, Value, broadcast, mentions

# Functions of one float tensor: the name alone, or a text with it in places that ask for a level.
UNARY = {
    **dict.fromkeys(words(
        "sin cos tanh sigmoid square abs erf softplus logsigmoid atan asinh relu silu gelu mish elu softsign "
        "hardswish leaky_relu squared_relu quick_gelu floor sign selu celu tanhshrink softshrink hardtanh "
        "round"
    ), ""),
    "exp": "lib.exp(lib.minimum({0}, 2.0))", "log": "lib.log(lib.square({0}) + 0.5)",
    "sqrt": "lib.sqrt(lib.square({0}) + 0.5)", "rsqrt": "lib.rsqrt(lib.abs({0}) + 0.5)", "cube": "{power} ** 3",
    "gelu_tanh": "lib.gelu({0}, approximate='tanh')", "reciprocal": "1.0 / (lib.square({0}) + 1.0)",
    "stop": "lib.stop_gradient({0})", "log1p": "lib.log1p(lib.square({0}))", "expm1": "lib.expm1(lib.tanh({0}))",
    "noisy": "lib.noisy({0})", "neg": "-{neg}",
    "clamp": "lib.clamp({0}, -0.7, 0.9)", "rounded": "lib.as_float(lib.cast({0}, 'bfloat16'), {0})",
}  # fmt: skip
_UNARY_LEVELS = {"cube": POWER, "neg": NEG, "reciprocal": MUL}
# Of two that broadcast.
BINARY = {
    "add": ("{a6} + {b7}", ADD), "sub": ("{a6} - {b7}", ADD), "mul": ("{a7} * {b8}", MUL),
    "div": ("{a7} / (lib.square({b}) + 1.0)", MUL), "pow": ("(lib.abs({a}) + 0.5) ** lib.tanh({b})", POWER),
    "frozen": ("{a7} * lib.stop_gradient({b})", MUL), "atan2": ("lib.atan2({a}, lib.square({b}) + 0.5)", 10),
    "hypot": ("lib.hypot({a}, lib.abs({b}) + 1.0)", 10), "lerp": ("lib.lerp({a}, {b}, lib.sigmoid({b}))", 10),
    "smooth": ("lib.smooth({a}, {b})", 10), "swiglu": ("lib.swiglu({a}, {b})", 10),
    "bent": ("lib.bent({a}, {b})", 10), "total": ("lib.total({a}, {b}, {a})", 10),
    "minimum": ("lib.minimum({a}, {b})", 10), "maximum": ("lib.maximum({a}, {b})", 10),
    "select": ("lib.where({a4} > {b4}, {a}, {b})", 10), "select_zero": ("lib.where({a4} > {b4}, {b}, 0.0)", 10),
    "rest": ("{a7} % (lib.square({b}) + 0.7)", MUL),
    "guarded": ("lib.guarded({a}, {b})", 10), "less": ("lib.where({a4} <= {b4}, 0.5, {b})", 10),
}  # fmt: skip
REDUCE = words("sum mean amax amin var std norm logsumexp prod norm1 norm_inf var0")
ROWS = words(
    "softmax log_softmax layer_norm rms_norm center softmin normalize standardize masked_softmax guarded_rows "
    "chosen_rows written_softmax guarded_extremum guarded_call chosen_joint topped pairs "
    "steep_softmax steep_log_softmax"
)
PAIRED = words("mse_loss l1_loss huber_loss smooth_l1_loss bce kl_div cosine")
INTEGER = words(
    "index compare masked any argmax count mod times isfinite hit both wide ints bytes quotient order place"
)
NUMBERS = (-2.0, -0.5, 0.25, 0.5, 1.5, 2.0, 3.0)
SIZES = (2, 3, 4, 5, 7, 8, 12)
# Rows of a warp and of a block, some that no vector divides; as many as fit into MOST_ELEMENTS.
LONG_SIZES = (2, 3, 16, 64, 129, 1000, 4097)
MOST_ELEMENTS = 4096


def _interleaved(first: str, second: str) -> str:
    """Elements of two tensors in turns along the last dimension."""
    parts = ", ".join(f"lib.expand_dims({part}, -1)" for part in (first, second))
    return f"lib.flatten(lib.concat([{parts}], -1), -2, -1)"


@dataclass
class _Statements(PlaceStatements):
    """All statements."""

    def unary(self) -> Value | None:
        x, name = self.pick(), self.of(list(UNARY))
        if x is None:
            return None
        text = (UNARY[name] or f"lib.{name}({{0}})").format(x.text, power=x.at(10), neg=x.at(NEG))
        return Value(text, "f", x.shape, _UNARY_LEVELS.get(name, 10))

    def number(self) -> Value | None:
        x = self.pick()
        if x is None:
            return None
        scalars = [a.name for a in self.arguments if a.kind == "s"]
        c = self.of([*NUMBERS, *scalars, *(f"(1 - {s})" for s in scalars)])
        form, level = self.of([
            ("{c} * {m8}", MUL), ("{m} * {c}", MUL), ("{c} - {s}", ADD), ("{m} / 1.7", MUL), ("{c} + {s}", ADD),
            ("{m} * lib.size({x}, None)", MUL), ("{m} / lib.size({x}, None)", MUL),
        ])  # fmt: skip
        text = form.format(c=c, m=x.at(MUL), m8=x.at(NEG), s=x.at(MUL), x=x.text)
        return Value(text, "f", x.shape, level)

    def binary(self) -> Value | None:
        x, name = self.pick(), self.of(list(BINARY))
        if x is None:
            return None
        y = self.meeting(x)
        form, level = BINARY[name]
        text = form.format(
            a=x.text, b=y.text, a4=x.at(4), b4=y.at(4), a6=x.at(ADD), a7=x.at(MUL), b7=y.at(MUL), b8=y.at(NEG)
        )
        return Value(text, "f", broadcast(x.shape, y.shape) or (), level)

    def reduce(self) -> Value | None:
        x, name = self.tensor(), self.of(REDUCE)
        if x is None:
            return None
        text, dropped, kept = self.axes(x)
        keepdims, argument, options = self.of([True, True, False]), x.text, ""
        count = math.prod(x.shape) // max(1, math.prod(kept))
        if name in ("var", "std", "var0"):
            options = f", correction={0 if count < 2 or name == 'var0' else 1}"
        if name == "prod":
            argument = f"1.0 + 0.1 * lib.tanh({x.text})"
        if name in ("norm1", "norm_inf"):
            options = f", ord={'1' if name == 'norm1' else 'float(chr(105) + chr(110) + chr(102))'}"
        call = {"norm1": "norm", "norm_inf": "norm", "var0": "var"}.get(name, name)
        shape = kept if keepdims else dropped
        return Value(f"lib.{call}({argument}, axis={text}{options}, keepdims={keepdims})", "f", shape)

    def rows(self) -> Value | None:
        x, name = self.tensor(), self.of(ROWS)
        if x is None:
            return None
        axis = self.of([-1, -1, 0, len(x.shape) - 1])
        mean = f"lib.mean({x.text}, {axis}, keepdims=True)"
        if name == "center":
            return Value(f"{x.at(ADD)} - {mean}", "f", x.shape, ADD)
        if name == "pairs":
            apart = f"lib.tanh(lib.expand_dims({x.text}, -1) - lib.expand_dims({x.text}, -2))"
            return Value(f"lib.sum({apart}, {self.of([-1, -2])})", "f", x.shape)
        if name == "standardize":
            rstd = f"lib.rsqrt(lib.var({x.text}, {axis}, correction=0, keepdims=True) + 0.01)"
            return Value(f"({x.at(ADD)} - {mean}) * {rstd}", "f", x.shape, MUL)
        if name in (
            "guarded_rows",
            "chosen_rows",
            "chosen_joint",
            "written_softmax",
            "guarded_extremum",
            "guarded_call",
            "topped",
        ):
            return Value(f"lib.{name}({x.text})", "f", x.shape)
        if name.startswith("steep_"):  # of which one element has nearly all
            return Value(f"lib.{name.removeprefix('steep_')}({x.at(MUL)} * 50.0, {axis})", "f", x.shape)
        if name == "masked_softmax":
            mask = self.meeting(x, "b")
            whole = broadcast(x.shape, mask.shape) or ()
            axis = axis if axis < 0 else len(whole) - 1
            return Value(f"lib.softmax(lib.where({mask.text}, {x.text}, -1e30), {axis})", "f", whole)
        if name in ("layer_norm", "rms_norm"):
            n = x.shape[-1:]
            options = [self.vector(n) for _ in range(self.draw(st.integers(0, 2 if name == "layer_norm" else 1)))]
            return Value(f"lib.{name}({', '.join([x.text, str(n), *options])}, eps=0.001)", "f", x.shape)
        dim = f"dim={axis}" if name == "normalize" else str(axis)
        return Value(f"lib.{name}({x.text}, {dim})", "f", x.shape)

    def product(self) -> Value | None:
        """Of matrices, of vectors, of what has a side of one; the other factor is a value or a further argument."""
        x = self.tensor()
        if x is None:
            return None
        if len(x.shape) == 1 or self.draw(st.integers(0, 3)) == 3:
            return self.by_vector(x)
        m, k = x.shape[-2:]
        y = self.pick(where=lambda v: len(v.shape) > 1 and k in v.shape[-2:] and v is not x)
        if y is not None and self.flip():
            text, (inner, n) = (y.at(NEG), y.shape[-2:]) if y.shape[-2] == k else (f"{y.at(10)}.mT", y.shape[:-3:-1])
            batch = broadcast(x.shape[:-2], y.shape[:-2])
            if batch is not None and inner == k and math.prod((*batch, m, n)) <= self.most_elements:
                return Value(f"{x.at(MUL)} @ {text}", "f", (*batch, m, n), MUL)
        n = self.of([*(s for s in self.sizes if s not in x.shape), 1])
        form = self.of(["matmul", "linear", "linear_bias", "guarded"])
        if form == "guarded":
            text = f"lib.guarded_product({x.text}, {self.argument('f', (k, n)).text})"
            return Value(text, "f", (*x.shape[:-1], n))
        if form == "matmul":
            return Value(f"{x.at(MUL)} @ {self.argument('f', (k, n)).text}", "f", (*x.shape[:-1], n), MUL)
        bias = f", {self.vector((n,))}" if form == "linear_bias" else ""
        return Value(f"lib.linear({x.text}, {self.argument('f', (n, k)).text}{bias})", "f", (*x.shape[:-1], n))

    def topped_product(self) -> Value | None:
        """A product behind an extremum: one step takes it, and another hands its gradient to the elements."""
        x = self.tensor()
        if x is None or len(x.shape) < 2 or self.in_blocks:
            return None
        n = self.of([size for size in self.sizes if size not in x.shape] or [1])
        factor = self.argument("f", (x.shape[-1], n))
        return Value(f"lib.topped_product({x.text}, {factor.text})", "f", (*x.shape[:-1], n))

    def by_vector(self, x: Value) -> Value:
        """A product whose one factor is a vector, on either side."""
        if len(x.shape) > 1 and self.flip():
            return Value(f"{self.vector(x.shape[-2:-1], MUL)} @ {x.at(NEG)}", "f", (*x.shape[:-2], x.shape[-1]), MUL)
        return Value(f"{x.at(MUL)} @ {self.vector(x.shape[-1:], NEG)}", "f", x.shape[:-1], MUL)

    def turned(self) -> Value | None:
        """Two dimensions in the other order."""
        x = self.tensor(2)
        return None if x is None else Value(f"{x.at(10)}.mT", "f", (*x.shape[:-2], *x.shape[:-3:-1]))

    def integer(self) -> Value | None:
        """Integers and bools, and floats that they choose."""
        x = self.tensor()
        if x is None:
            return None
        rank = len(x.shape)
        form, axis = self.of(INTEGER), self.draw(st.integers(-rank, -1))
        kept = tuple(1 if d == axis % rank else s for d, s in enumerate(x.shape))
        kinds = {
            "masked": "b",
            "count": "b",
            "mod": "i",
            "times": "i",
            "hit": "i",
            "bytes": "i",
            "quotient": "i",
            "order": "i",
        }
        other = self.meeting(x, kinds.get(form, "f"))
        whole = broadcast(x.shape, other.shape) or ()
        if form == "index":
            return Value(f"{x.at(MUL)} * lib.as_float(lib.index({x.text}, {axis}), {x.text})", "f", x.shape, MUL)
        if form == "compare":
            sign = self.of(["<", "<=", ">", ">="])
            return Value(f"({x.at(AND)} {sign} {other.at(AND)})", "b", whole)
        if form == "both":
            both = f"({x.at(AND)} > 0.1) {self.of('&|^')} "
            text = f"({both}~({other.at(AND)} < 0.3))" if self.flip() else f"~({both}({other.at(AND)} < 0.3))"
            return Value(text, "b", whole)
        if form == "masked":
            return Value(f"lib.where({other.text}, {x.text}, {self.of(NUMBERS)})", "f", whole)
        if form == "any":
            text, _, kept = self.axes(x)
            return Value(f"lib.{self.of(['any', 'all'])}({x.at(AND)} > 0.5, axis={text}, keepdims=True)", "b", kept)
        if form == "argmax":
            return Value(f"lib.{self.of(['argmax', 'argmin'])}({x.text}, {axis}, keepdims=True)", "i", kept)
        if form == "count":
            text, _, kept = self.axes(other) if other.shape else ("None", (), ())
            return Value(f"lib.sum({other.text}, axis={text}, keepdims=True)", "i", kept)
        if form == "mod":
            return Value(f"({other.at(MUL)} * 3 + 1) % 4", "i", other.shape, MUL)
        if form == "place":
            return self.places(x.shape, axis % rank, self.of(self.sizes[::-1]) or 1, signed=False)
        if form == "quotient":
            return Value(f"{other.at(MUL)} // 2 - {other.at(MUL)} % 3", "i", other.shape, ADD)
        if form == "order":
            more = self.pick("i", lambda v: broadcast(v.shape, other.shape) == other.shape) or other
            sign = self.of(["<", ">=", "==", "!="])
            return Value(f"({other.at(AND)} {sign} {more.at(AND)} % 4)", "b", other.shape)
        if form == "times":
            return Value(f"{x.at(MUL)} * {other.at(NEG)}", "f", whole, MUL)
        if form == "isfinite":
            return Value(f"lib.isfinite({x.text})", "b", x.shape)
        if form == "wide":  # two that meet in a shape that neither has
            return Value(f"lib.expand_dims({x.text}, -1)", "f", (*x.shape, 1)) if rank < 4 else None
        if form == "bytes":
            byte = f"lib.byte({other.text})" if self.flip() else f"300 - lib.byte({other.text})"
            return Value(f"{x.at(MUL)} * lib.as_float({byte}, {x.text})", "f", whole, MUL)
        if form == "ints":
            i = self.meeting(x, "i")
            name = self.of(["amax", "amin", "sum"])
            text, _, kept = self.axes(i) if i.shape else ("None", (), ())
            return Value(f"lib.{name}({i.text}, axis={text}, keepdims=True)", "i", kept)
        hit = f"lib.where(lib.index({x.text}, {axis}) == {other.at(ADD)}, {x.text}, 0.0)"
        kept = tuple(1 if d == len(whole) + axis else s for d, s in enumerate(whole))
        return Value(f"lib.sum({hit}, {axis}, keepdims=True)", "f", kept)

    def library(self) -> Value | None:
        """Losses, and norms of channels."""
        x = self.tensor()
        if x is None:
            return None
        form = self.of([*PAIRED, "cross_entropy", "batch_norm", "instance_norm", "group_norm"])
        reduction = self.of(["none", "mean", "sum"])
        rank, shape = len(x.shape), x.shape if reduction == "none" else ()
        if form == "cosine":
            return Value(f"lib.cosine_similarity({x.text}, {self.like(x).text}, dim=-1)", "f", x.shape[:-1])
        if form == "kl_div":
            both = f"lib.log_softmax({x.text}, -1), lib.softmax({self.like(x).text}, -1)"
            return Value(f"lib.kl_div({both}, reduction={reduction!r})", "f", shape)
        if form in PAIRED:
            y = self.like(x).text
            name, other = ("binary_cross_entropy_with_logits", f"lib.sigmoid({y})") if form == "bce" else (form, y)
            return Value(f"lib.{name}({x.text}, {other}, reduction={reduction!r})", "f", shape)
        if form == "cross_entropy" and rank > 1 and x.shape[1]:
            target = self.argument("i", (x.shape[0], *x.shape[2:]), x.shape[1])
            shape = target.shape if reduction == "none" else ()
            return Value(f"lib.cross_entropy({x.text}, {target.text}, reduction={reduction!r})", "f", shape)
        if form == "batch_norm" and rank > 1 and math.prod(x.shape) > x.shape[1]:
            weight = f", {self.vector(x.shape[1:2])}" if self.flip() else ""
            return Value(f"lib.batch_norm({x.text}, None, None{weight}, training=True, eps=0.01)", "f", x.shape)
        if form == "instance_norm" and rank > 2 and math.prod(x.shape[2:]) > 1:
            return Value(f"lib.instance_norm({x.text}, eps=0.01)", "f", x.shape)
        if form == "group_norm" and rank > 1 and x.shape[1]:
            groups, channels = self.groups(x.shape[1]), x.shape[1:2]
            if x.shape[1] // groups * math.prod(x.shape[2:]) > 1:
                weights = [self.vector(channels) for _ in range(self.draw(st.integers(0, 2)))]
                text = f"lib.group_norm({', '.join([x.text, str(groups), *weights])}, eps=0.01)"
                return Value(text, "f", x.shape)
        return None

    def within(self) -> Value | None:
        """Within groups of a dimension, which then is as it was."""
        x = self.tensor()
        if x is None:
            return None
        axis = self.draw(st.integers(0, len(x.shape) - 1))
        groups = f"lib.unflatten({x.text}, {axis}, ({self.groups(x.shape[axis])}, -1))"
        inner = self.of([
            f"lib.softmax({groups}, {axis + 1})", f"{groups} - lib.mean({groups}, {axis + 1}, keepdims=True)",
            f"{groups} * lib.amax({groups}, {axis}, keepdims=True)", f"lib.total({groups}, {groups})",
        ])  # fmt: skip
        return Value(f"lib.flatten({inner}, {axis}, {axis + 1})", "f", x.shape)

    def several(self) -> Value | None:
        """An op of a list of tensors."""
        x = self.pick()
        if x is None:
            return None
        found, shape = [x], x.shape
        for _ in range(self.draw(st.integers(0, 3))):
            found.append(self.meeting(Value("", "f", shape)))
            shape = broadcast(shape, found[-1].shape) or ()
        return Value(f"lib.total({', '.join(v.text for v in found)})", "f", shape)

    def joint(self) -> None:
        """An op of two results, with one declared gradient for both."""
        x = self.tensor()
        if x is not None:
            self.unpack(f"lib.joint({x.text})", "f", x.shape)

    def parts(self) -> None:
        """Equal parts of an argument that nothing reads as a whole, as it is or through a view."""
        texts = "\n".join([*self.lines, *(v.text for v in self.values if v.text not in self.names)])
        whole = [a for a in self.arguments if a.kind == "f" and any(s % 2 == 0 for s in a.shape)]
        whole = [a for a in whole if not mentions(texts, a.name)]
        if not whole:
            return
        x = self.of(whole)
        views = [Value(x.name, "f", x.shape)]
        if len(x.shape) > 1:
            views.append(Value(f"{x.name}.mT", "f", (*x.shape[:-2], *x.shape[:-3:-1])))
        if len(x.shape) < 4:
            views.append(Value(f"lib.expand_dims({x.name}, 0)", "f", (1, *x.shape)))
        view = self.of(views)
        dim = self.of([d for d, size in enumerate(view.shape) if size % 2 == 0][::-1])
        self.values = [v for v in self.values if v.text != x.name]
        halved = tuple(s // 2 if d == dim else s for d, s in enumerate(view.shape))
        self.unpack(f"lib.split({view.text}, 2, {dim - len(view.shape)})", "f", halved)

    def halves(self) -> Value | None:
        """Halves or other parts of whatever has been computed, and what they are put together to: once, since an
        argument has blocks along one dimension only."""
        x = self.pick(where=lambda v: any(s % 2 == 0 and s for s in v.shape))
        if x is None or not self.in_blocks or self.has_blocks:
            return None
        self.has_blocks = True
        dim = self.of([d for d, size in enumerate(x.shape) if size % 2 == 0 and size][::-1])
        axis, size = dim - len(x.shape), x.shape[dim]
        halved = tuple(s // 2 if d == dim else s for d, s in enumerate(x.shape))
        form = self.of(["split", "turned", "both", "slice", "rolled", "interleaved", "every two"])
        if form == "every two" and axis == -1:
            pair = f"{x.at(10)}[..., 1::2]", f"{x.at(10)}[..., ::2]"
            return Value(f"{x.at(ADD)} + {_interleaved(*pair)}", "f", x.shape, ADD)
        if form in ("slice", "rolled") and axis == -1:
            at = self.draw(st.integers(1, size - 1)) if size <= max(SIZES) else size // 2
            first, rest = f"{x.at(10)}[..., :{at}]", f"{x.at(10)}[..., {at}:]"
            if form == "rolled":
                return Value(f"lib.concat([{rest}, {first}], -1)", "f", x.shape)
            return Value(rest, "f", (*x.shape[:-1], size - at))
        self.unpack(f"lib.split({x.text}, 2, {axis})", "f", halved)
        first, second = (value.text for value in self.values[-2:])
        if form == "interleaved" and axis == -1:
            return Value(_interleaved(first, f"lib.sin({second})"), "f", x.shape)
        if form == "turned":  # as a rotary embedding has it
            return Value(f"{x.at(ADD)} + lib.concat([-{second}, {first}], {axis})", "f", x.shape, ADD)
        return Value(f"lib.concat([{first}, lib.sin({second})], {axis})", "f", x.shape) if form == "both" else None

    def running(self) -> Value | None:
        """What is combined of all elements before each, or behind it."""
        x = self.tensor()
        if x is None or not x.shape:
            return None
        axis, reverse = self.draw(st.integers(0, len(x.shape) - 1)) - len(x.shape), self.draw(st.booleans())
        how = self.of(["sum", "sum", "prod", "max", "min", "logsumexp", "recurrence"])
        if how == "recurrence":
            other = self.pick(where=lambda v: v.shape == x.shape) or x
            return Value(f"lib.recurrence({other.text}, {x.text}, {axis}, {reverse})", "f", x.shape)
        if how in ("sum", "prod"):
            exclusive = self.draw(st.booleans())
            return Value(f"lib.running({x.text} * 0.5, {axis}, {how!r}, {reverse}, {exclusive})", "f", x.shape)
        return Value(f"lib.running({x.text} * 0.5, {axis}, {how!r}, {reverse})", "f", x.shape)

    def spread(self) -> Value | None:
        """A sum along an axis that no argument has."""
        x = self.tensor()
        if x is None:
            return None
        count = self.draw(st.integers(1, 4))
        return Value(f"lib.spread({x.text}, {count})", "f", x.shape)

    def two(self) -> None:
        """An op of two results."""
        x = self.pick()
        if x is not None:
            self.unpack(f"lib.two({x.text})", "f", x.shape)

    def returned(self) -> Program:
        """The program that returns its last value, and sometimes others."""
        made = [v for v in self.values if v.text not in self.names] or self.values[:1]
        outputs = [made[-1]]
        for _ in range(self.draw(st.integers(0, 2))):
            another = self.of(made)
            if another not in outputs:
                outputs.append(another)
        first = outputs[0]
        if first.kind == "f" and first.shape and not self.has_blocks and self.draw(st.integers(0, 5)) == 5:
            other = self.pick(where=lambda v: v.shape == first.shape) or first
            outputs[0] = Value(f"lib.concat([{first.text}, {other.text}], -1)", "f", first.shape)
        body = "\n".join([*self.lines, f"    return {', '.join(v.text for v in outputs)}"])
        return Program(body, tuple(a for a in self.arguments if mentions(body, a.name)), len(outputs))


KINDS = (
    "unary", "unary", "binary", "binary", "binary", "reduce", "reduce", "rows", "rows", "number", "library", "parts",
    "two", "product", "topped_product", "turned", "integer", "integer", "within", "several", "joint", "halves",
    "halves", "placed", "placed", "running", "spread", "segments", "reread", "gathered", "gathered", "scattered",
    "classes",
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn, *, sizes: Sequence[int] = SIZES, most: int = 8, kinds: Sequence[str] = KINDS) -> Program:
    """Programs of up to ``most`` statements over tensors of up to four dimensions.

    Args:
        sizes: that dimensions may have, besides 1.
        kinds: of statements.
    """
    rank = draw(st.integers(1, 4))
    chosen = draw(st.permutations(list(sizes)))
    full = tuple(sorted(chosen[:rank], reverse=draw(st.booleans())))
    most_elements = max(MOST_ELEMENTS, 3 * max(sizes))
    while math.prod(full) > most_elements:
        full = full[1:]
    writer = _Statements(draw, tuple(sizes), most_elements, in_blocks=draw(st.integers(0, 3)) == 3)
    writer.argument("f", full)
    for _ in range(draw(st.integers(0, 3))):
        kept = full[draw(st.integers(0, len(full))) :]
        writer.argument("f", tuple(1 if draw(st.integers(0, 3)) == 3 else size for size in kept))
    if draw(st.integers(0, 3)) == 3:
        writer.argument("s", ())
    for _ in range(draw(st.integers(1, most))):
        made = getattr(writer, writer.of(kinds))()
        if made is not None:
            writer.bind(made)
    return writer.returned()
