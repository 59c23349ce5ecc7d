"""A step that can go several ways: a matrix product and the part behind it, or a library's routine for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusegen.core.dtypes import DType
from fusegen.matmul.epilogue import Closing, is_row
from fusegen.matmul.padding import suits
from fusegen.matmul.steps import Flat, Step
from fusegen.matmul.task import Factors
from fusegen.matmul.views import Arranged
from fusegen.plan.frameworks import Framework, TensorInfo
from fusegen.plan.layout import row_major
from fusegen.plan.native_step import View
from fusegen.plan.plan import Made
from fusegen.run.kernel_steps import Part
from fusegen.run.libraries import Library, bucket, by_torch, choose, in_order, libraries, remembered, torch_step


@dataclass(frozen=True)
class Either:
    """One product and one part (see ``Either.of``).

    Attributes:
        arranged: the product as if it wrote the activation's result, which is row-major.
        between: the product's own result, where nothing else reads it.
        libraries: those that could do both.
        key: what is measured; () for a bias alone, which is always added by the product.
        rest: what the part does besides, where a library does not do all of it.
    """

    product: Step
    arranged: Arranged
    between: Made | None
    part: Step
    closing: Closing
    dtype: DType
    device: str
    libraries: tuple[Library, ...] = ()
    key: tuple[str, ...] = ()
    rest: Step | None = None

    @classmethod
    def of(
        cls, product: Step, arranged: Arranged, between: Made | None, part: Part, closing: Closing,
        known: Mapping[str, TensorInfo], device: str,
    ) -> Either | None:  # fmt: skip
        """None where the tensors do not lie as any library wants them.

        Args:
            arranged: the product, of two dimensions.
            known: where everything lies.
        """
        (rows, inner), (_, columns) = arranged.views[0].shape, arranged.views[1].shape
        out = closing.result or next(name for name in part.writes if name != closing.kept)
        results = [known[name] for name in (out, closing.kept) if name]
        rows_of = [closing.bias, *(name for name, ref in closing.beside if is_row(ref))]
        biases = [known[name] for name in rows_of if name]
        whole = [name for name, ref in closing.beside if not is_row(ref)]
        if any(t.strides != row_major(t.shape) for t in (*results, *biases, *(known[name] for name in whole))):
            return None
        result = View((rows, columns), (columns, 1), 0)
        lies = list(zip(arranged.views[:2], arranged.names[:2], strict=True))
        lies += [(result, name) for name in (out, closing.kept, *whole) if name]
        is_aligned = all(suits(view, known[name].dtype.size, known[name].alignment) for view, name in lies)
        is_aligned = is_aligned and not any(info.alignment for info in biases)
        (left, right, _), (a, b, _), dtype = arranged.names, arranged.views, results[0].dtype
        arranged = replace(arranged, names=(left, right, out), views=(a, b, result))
        found = cls(product, arranged, between, part, closing, dtype, device)
        if closing.activation == "bias":
            return found
        ways = [
            way for way in libraries(closing, dtype.name, device)
            if (is_aligned or not way.needs_alignment) and way.gains_from(rows, columns)
        ]  # fmt: skip
        key = bucket(device, dtype.name, (rows, columns, inner), closing, ways) if ways else ()
        return replace(found, libraries=tuple(ways), key=key) if ways else None

    @property
    def uses(self) -> set[str]:
        return (self.product.uses | self.part.uses) - ({self.between.name} if self.between else set())

    def run(self, tensors: dict[str, Any], scalars: Mapping[str, Any], framework: Framework) -> None:
        left, right, out = self.arranged.sides(tensors, framework)
        bias, kept = tensors.get(self.closing.bias), tensors.get(self.closing.kept)
        if kept is not None:
            kept = framework.view(kept, out.shape, out.stride(), 0)
        beside = [
            tensors[name] if is_row(ref) else framework.view(tensors[name], out.shape, out.stride(), 0)
            for name, ref in self.closing.beside
        ]
        given = Factors(left, right, bias, kept, out, tuple(beside))
        if not self.key:
            by_torch(self.closing, given)
            return

        def own() -> None:
            mine = tensors
            if self.between is not None:
                mine = {**tensors, self.between.name: self.between.make(framework, str(out.device))}
            self.product.run(mine, scalars, framework)
            self.part.run(mine, scalars, framework)

        def rest() -> None:
            if self.rest is not None:
                self.rest.run(tensors, scalars, framework)

        library = choose(self.key, self.closing, given, self.libraries, own, rest)
        if library is None:
            own()
        else:
            library.run(self.closing, given)
            rest()

    def ways(self) -> list[Library | None] | None:
        """What will be done for tensors of these sizes, in this order where one is not ready; None is our own.

        None of this is known before it has been measured.
        """
        measured = remembered(self.key) if self.key else None
        if measured is None:
            return None
        told = self.closing, self.arranged, self.dtype, self.device
        return [way for way in in_order(measured, self.libraries) if way is None or not way.is_refused(*told)]

    def flat(self, place: int) -> Flat | None:
        told = self.closing, self.arranged, self.dtype, self.device
        ways = self.ways()
        if not self.key:
            step = torch_step(*told)
        elif ways is None:
            return None
        elif ways[0] is None:
            found, part = self.product.flat(place), self.part.flat(place)
            if found is None or part is None:
                return None
            found += part
            found.own += [self.between] if self.between is not None else []
            return found
        else:
            step = ways[0].step(*told)
        if step is None:
            return None
        found, rest = Flat([step]), Flat() if self.rest is None else self.rest.flat(place)
        if rest is not None:
            found += rest
        return None if rest is None else found
