"""Statements of random programs (tools/programs) that read, put and combine elements at places."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tools.program_libraries import SEGMENTS, words
from tools.program_writer import ADD, MUL, Shape, Value, Writer, broadcast

# How a program computes integers below a number: of floats, of bools, of integers and of positions. Floats are compared
# and rounded between the round numbers that they often are, so that their own rounding turns no place into another.
OF_FLOATS = words("floor truncated test chosen either positions so_far running nowhere negative")
OF_AN_AXIS = words("argmax argmin count")
OF_INTEGERS = words("mod quotient clamp narrow")
COMBINED = words("sum mean prod amax amin")


class PlaceStatements(Writer):
    """Of places that arguments tell, that positions tell, and that the program computes itself."""

    def other_sizes(self) -> list[int]:
        """Sizes that no argument has: what indexes along such an axis does not meet what it indexes there."""
        return [size for size in self.sizes if all(size not in a.shape for a in self.arguments)]

    def places(self, shape: Shape, axis: int, high: int, signed: bool = True) -> Value:
        """Integers below ``high`` that the program computes, of as many dimensions as ``shape`` and broadcasting to it;
        of size 1 along the axis where it is reduced.

        Args:
            signed: some may count from the end, or be no place.
        """
        refused = () if signed else ("nowhere", "negative")
        form = self.of([form for form in OF_FLOATS + OF_AN_AXIS + OF_INTEGERS if form not in refused])
        without = (*shape[:axis], 1, *shape[axis + 1 :])

        def meets(v: Value) -> bool:
            is_one = form in OF_AN_AXIS  # whose own size along the axis is none of the result's
            seen = (*v.shape[:axis], 1, *v.shape[axis + 1 :]) if is_one else v.shape
            return len(v.shape) == len(shape) and broadcast(seen, shape) == shape

        kind = "i" if form in OF_INTEGERS else "f"
        v = self.pick(kind, meets) or self.argument(kind, shape)
        test, along = f"{v.at(ADD)} > 0.15", axis - len(shape)
        if form in OF_AN_AXIS:
            kept = tuple(1 if d == axis else size for d, size in enumerate(v.shape))
            if form == "count":
                text = f"lib.minimum(lib.sum({test}, {along}, keepdims=True), {high - 1})"
                return Value(text, "i", kept)
            text = f"lib.{form}({v.text}, {along}, keepdims=True)"
            return Value(text, "i", kept) if v.shape[axis] <= high else Value(f"{text} % {high}", "i", kept, MUL)
        if form in ("either", "nowhere", "negative"):
            one = self.places(without if self.flip() else shape, axis, high, signed=False)
            if form == "negative":
                return Value(f"{one.at(ADD)} - {high}", "i", one.shape, ADD)
            two = self.places(v.shape, axis, high, signed=False).text if form == "either" else "lib.NOWHERE"
            whole = broadcast(v.shape, one.shape) or ()
            return Value(f"lib.where({test}, lib.cast({one.text}, 'int64'), {two})", "i", whole)
        low, index = self.draw(st.integers(0, high - 1)), f"lib.index({v.text}, {along})"
        text, level = {
            "floor": (f"lib.cast(lib.floor({v.at(MUL)} * 2.0 + 0.3), 'int64') % {high}", MUL),
            "truncated": (f"lib.cast(lib.clamp({v.at(MUL)} * 2.0 + 0.3, 0.0, {float(high - 1)}), 'int32')", 10),
            "test": (f"lib.cast({test}, 'int64') % {high}", MUL),
            "chosen": (f"lib.where({test}, {low}, {high - 1})", 10),
            "positions": (f"lib.where({test}, ({index} + 1) % {high}, {high - 1} - {index} % {high})", 10),
            "so_far": (f"lib.running_place({v.text}, {along}) % {high}", MUL),
            "running": (f"lib.running_count({test}, {along}) % {high}", MUL),
            "mod": (f"({v.at(MUL)} * 3 + 1) % {high}", MUL),
            "quotient": (f"{v.at(MUL)} // 2 % {high}", MUL),
            "clamp": (f"lib.clamp({v.text}, 0, {high - 1})", 10),
            "narrow": (f"lib.cast({v.at(MUL)} % {high}, 'uint8')", 10),
        }[form]
        return Value(text, "i", v.shape, level)

    def axis_of(self, kind: str = "f") -> tuple[Value, int] | None:
        """A tensor with elements, and an axis of it."""
        x = self.pick(kind, lambda v: bool(v.shape) and 0 not in v.shape)
        return None if x is None else (x, self.draw(st.integers(0, len(x.shape) - 1)))

    def gathered(self) -> Value | None:
        """Elements, of floats as of integers and bools, at places that the program computes."""
        found, counts = self.axis_of(self.of("fffib")), self.other_sizes()
        if found is None:
            return None
        x, axis = found
        rank, n = len(x.shape), x.shape[axis]
        form = self.of(["along", "along", "vector", "element", "tokens", "window", "turned"])
        if form == "element":
            v = self.pick(where=lambda v: bool(v.shape) and 0 not in v.shape) or self.argument("f", (n,))
            place = self.of([f"lib.argmax({v.text}) % {n}", f"lib.sum({v.at(ADD)} > 0.15) % {n}"])
            return Value(f"lib.take({x.text}, {place}, {axis - rank})", x.kind, (*x.shape[:axis], *x.shape[axis + 1 :]))
        if form == "turned":  # which varies along the axis that it indexes, as positions may
            index = f"lib.index({x.text}, {axis - rank})"
            place = self.of([f"({index} + 1) % {n}", f"{n - 1} - {index}", f"{index} // 2"])
            shape = (n, *[1] * (rank - 1 - axis))
            taken = f"lib.take({x.text}, lib.vector({place}), {axis - rank})" if len(shape) > 1 else ""
            return Value(taken or f"lib.take({x.text}, {place}, {axis - rank})", x.kind, x.shape)
        if form == "tokens":
            free = self.pick(where=lambda v: 0 not in v.shape and not (set(v.shape) - {1}) & set(x.shape))
            shape = free.shape if free and free.shape else tuple(counts[:1])
            whole = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
            if not shape or len(whole) > 4 or math.prod(whole) > self.most_elements:
                return None
            place = self.places(shape, len(shape) - 1, n)
            whole = (*x.shape[:axis], *place.shape, *x.shape[axis + 1 :])
            return Value(f"lib.take({x.text}, {place.text}, {axis - rank})", x.kind, whole)
        count = self.of(counts or [1])
        wide = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        if math.prod(wide) > self.most_elements:
            return None
        if form == "vector":
            place = self.places((count,), 0, n)
            whole = (*x.shape[:axis], *place.shape, *x.shape[axis + 1 :])
            return Value(f"lib.take({x.text}, {place.text}, {axis - rank})", x.kind, whole)
        text, size = self.places((*wide[:axis], 1, *wide[axis + 1 :]) if form == "window" else wide, axis, n), count
        place = text
        if form == "window":  # so many elements from a place on
            place = Value(f"lib.window({text.text}, {axis - rank}, {count}, {n})", "i", wide)
        else:
            size = text.shape[axis]
        whole = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        return Value(f"lib.take_along_axis({x.text}, {place.text}, {axis - rank})", x.kind, whole)

    def scattered(self) -> Value | None:
        """Elements that are put, or combined, at places that the program computes, of themselves too."""
        found = self.axis_of()
        counts = self.other_sizes()
        if found is None or not counts:
            return None
        x, axis = found
        rank, count = len(x.shape), self.of(counts)
        wide = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        if math.prod(wide) > self.most_elements:
            return None
        form = self.of(["scatter_add", "scatter_reduce", "scatter", "index_add", "put"])
        if form in ("index_add", "put"):
            place = self.places((count,), 0, x.shape[axis])
            size = place.shape[0]
        else:
            if not self.flip():
                self.argument("f", wide)  # whose elements tell their own places where it is picked
            place = self.places(wide, axis, x.shape[axis])
            size = place.shape[axis]
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        source = self.vector(shape)
        how = f", {self.of(COMBINED)!r}, {self.flip()}" if form == "scatter_reduce" else ""
        return Value(f"lib.{form}({x.text}, {axis - rank}, {place.text}, {source}{how})", "f", x.shape)

    def classes(self) -> Value | None:
        """Classes and segments whose numbers the program computes."""
        found, counts = self.axis_of(), [size for size in self.other_sizes() if size]
        if found is None or not counts:
            return None
        x, axis = found
        rank, size, n = len(x.shape), x.shape[axis], self.of(counts)
        form = self.of(["one_hot", "hot_floats", "bincount", "weights", "segments"])
        if form in ("one_hot", "hot_floats"):
            place = self.places(x.shape, axis, n, signed=False)
            if rank == 4 or math.prod(place.shape) * n > self.most_elements:
                return None
            hot, shape = f"lib.one_hot({place.text}, {n})", (*place.shape, n)
            return Value(hot, "i", shape) if form == "one_hot" else Value(f"lib.as_float({hot}, {x.text})", "f", shape)
        others = tuple(d for d in range(rank) if d != axis)
        if others and self.flip():  # of the rows themselves, a number for each
            self.values.append(Value(f"lib.mean({x.text}, axis={others}, keepdims=False)", "f", (size,)))
        high = SEGMENTS + 1 if form == "segments" else n
        ids = self.places((size,), 0, high, signed=False)
        if ids.shape != (size,):
            ids = Value(f"{ids.at(ADD)} + 0 * lib.index({x.text}, {axis - rank})", "i", (size,), ADD)
            if axis < rank - 1:
                return None
        if form == "segments":
            how = self.of(["sum", "mean", "prod", "max", "min"])
            return Value(f"lib.segments({x.text}, {ids.text}, {how!r}, {axis - rank})", "f", x.shape)
        weights = f", {self.vector((size,))}" if form == "weights" else ""
        return Value(f"lib.bincount({ids.text}, {n}{weights})", "f" if weights else "i", (n,))

    def placed(self) -> Value | None:
        """Elements at places that an argument tells, or added there: an axis that has another size than all others,
        since one that meets what it indexes is refused."""
        x = self.tensor()
        counts = self.other_sizes()
        if x is None or not counts:
            return None
        axis, count = self.draw(st.integers(0, len(x.shape) - 1)), self.of(counts)
        if not x.shape[axis]:
            return None
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        if math.prod(shape) > self.most_elements:
            return None
        forms = ["take", "take_along_axis", "index_add", "scatter_add", "scatter_reduce", "put"]
        form, rank = self.of(forms), len(shape)
        whole = form in ("take_along_axis", "scatter_add", "scatter_reduce")
        place = self.argument("i", shape if whole else (count,), x.shape[axis]).text
        if form.startswith("take"):
            return Value(f"lib.{form}({x.text}, {place}, {axis - rank})", "f", shape)
        source = (self.pick(where=lambda v: v.shape == shape) or self.argument("f", shape)).text
        how = ""
        if form == "scatter_reduce":
            how = f", {self.of(COMBINED)!r}, {self.flip()}"
        return Value(f"lib.{form}({x.text}, {axis - rank}, {place}, {source}{how})", "f", x.shape)

    def reread(self) -> Value | None:
        """What positions tell: slices with a step, padding, what is turned around. Along an axis of another size than
        all others, or it would meet what it is read of; else it is added up."""
        x = self.pick(where=lambda v: any(size > 1 for size in v.shape))
        if x is None:
            return None
        dim = self.of([d for d, size in enumerate(x.shape) if size > 1])
        axis, size = dim - len(x.shape), x.shape[dim]
        form = self.of(["step", "flip", "constant", "reflect", "replicate", "circular", "cropped"])
        a, b = (self.draw(st.integers(0, min(3, size - 1))) for _ in "ab")
        if form == "cropped":  # what is left goes on anew in front
            a, b, form = min(a, size - b), -b, "circular"
        count = {"step": len(range(a, size, abs(b) + 1)), "flip": size}.get(form, a + size + b)
        text = f"lib.reread({x.text}, {form!r}, {axis}, {a}, {b})"
        is_new = all(count not in each.shape for each in self.arguments) and count not in self.sizes
        shape = (*x.shape[:dim], count if is_new else 1, *x.shape[dim + 1 :])
        if math.prod(shape) > self.most_elements:
            return None
        return Value(text if is_new else f"lib.sum(lib.sin({text}), {axis}, keepdims=True)", "f", shape)

    def segments(self) -> Value | None:
        """What elements of one number are combined to, for each of them; some are in no segment."""
        x = self.tensor()
        if x is None or not x.shape:
            return None
        axis = self.draw(st.integers(0, len(x.shape) - 1))
        ids, how = self.argument("i", (x.shape[axis],)).text, self.of(["sum", "mean", "prod", "max", "min"])
        return Value(f"lib.segments({x.text}, {ids}, {how!r}, {axis - len(x.shape)})", "f", x.shape)
