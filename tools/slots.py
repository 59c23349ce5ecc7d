"""How many instructions each function of the table takes: ``python tools/slots.py`` writes fusegen/fuse/slots.py.

Of each function two kernels are compiled for a Hopper GPU, one with a few calls and one with twice as many, and the
instructions of their text are counted: what the second has more is what these calls take, and their loads and stores,
which a kernel without calls tells. So it needs NVRTC, and no GPU. What is not inlined (the slow path of a division) is
there once, and is not counted; what is inlined and seldom taken is.

``--check`` compares with what is written and changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fusegen.core import dtypes  # noqa: E402
from fusegen.core.dtypes import DType  # noqa: E402
from fusegen.core.errors import FusegenError  # noqa: E402
from fusegen.core.ir import Call, Expr, Ref  # noqa: E402
from fusegen.core.monoids import BY_KIND, Monoid  # noqa: E402
from fusegen.declare.table import Function, Kind, apply, rows  # noqa: E402
from fusegen.generate.cexpr import Printer  # noqa: E402
from fusegen.generate.rendered import headers  # noqa: E402
from fusegen.launch.cache import default_cache  # noqa: E402
from fusegen.launch.compile import cached_cubin  # noqa: E402
from fusegen.launch.cubin import Instructions, instructions  # noqa: E402

Counted = tuple[float, float, float]

WRITTEN = ROOT / "fusegen/fuse/slots.py"
ARCH = "sm_90"
FEW = 4
# How a function is compiled: the dtype it computes in, and whether results are rounded to a half type.
WAYS: dict[str, tuple[DType, bool]] = {
    "float32": (dtypes.float32, False), "half": (dtypes.float32, True), "float64": (dtypes.float64, False),
    "int32": (dtypes.int32, False), "int64": (dtypes.int64, False),
}  # fmt: skip
KINDS = (Kind.FLOAT, Kind.NUMERIC, Kind.PREDICATE)
# What is counted by rules of its own (fuse/work), or takes more than numbers.
NOT_MEASURED = frozenset({
    "add", "sub", "mul", "neg", "abs", "powi", "stop_gradient", "factor", "declared", "within", "located", "scanned",
    "recurrence", "polygamma",
})  # fmt: skip
HEADER = '''"""Instructions that functions and reductions take on a Hopper GPU: what tools/slots.py counted in SASS.

In order: all of them, those for the special functions unit, those for the float64 unit. "half" is float32 where results
are rounded to a half type.
"""

from __future__ import annotations

'''


def _kernel(ctype: str, reads: int, body: Sequence[str], writes: int) -> Instructions:
    """A kernel that has read all of ``x`` before its body, and writes all of ``y`` behind it."""
    source = f"""#include "fusegen.cuh"
extern "C" __global__ void probe(const {ctype}* __restrict__ x_ptr, {ctype}* __restrict__ y_ptr) {{
  {ctype} x[{reads}], y[{writes}];
#pragma unroll
  for (int i = 0; i < {reads}; ++i) x[i] = x_ptr[32 * i + threadIdx.x];
{chr(10).join(f"  {line}" for line in body)}
#pragma unroll
  for (int i = 0; i < {writes}; ++i) y_ptr[32 * i + threadIdx.x] = y[i];
}}
"""
    cubin = cached_cubin(
        source, arch=ARCH, headers=headers(), declared="tools/slots.py", cache=default_cache(),
        options=("-DFUSEGEN_COUNTING",),
    )  # fmt: skip
    return instructions(cubin, "probe")


def _more(of: Callable[[int], Instructions]) -> Counted:
    """What each time more takes."""
    few, many = of(FEW), of(2 * FEW)
    return tuple((b - a) / FEW for a, b in zip(_counts(few), _counts(many), strict=True))  # type: ignore[return-value]


def _counts(found: Instructions) -> tuple[int, int, int]:
    return found.issued, found.special, found.doubles


def call(row: Function, dtype: DType, half: bool) -> tuple[Counted, bool]:
    """What a call of a function takes, and whether threads may part in it."""
    args: list[Expr] = [Ref(f"argument{k}", dtype) for k in range(row.arity)]
    expr = apply(row.name, *args)
    if expr.dtype is dtypes.bool_:
        expr = Call("cast", (expr,), dtype)

    def calls(count: int) -> Instructions:
        body = []
        for n in range(count):
            known = {arg: f"x[{row.arity * n + k}]" for k, arg in enumerate(args)}
            body.append(f"y[{n}] = {Printer(half, known=known, each=lambda _: True).text(expr)};")
        return _kernel(dtype.ctype, row.arity * count, body, count)

    # Without a call, one of as many numbers is written and the others are added to it: an instruction each.
    def none(count: int) -> Instructions:
        sums = (" + ".join(f"x[{row.arity * n + k}]" for k in range(row.arity)) for n in range(count))
        body = [f"y[{n}] = {text};" for n, text in enumerate(sums)]
        return _kernel(dtype.ctype, row.arity * count, body, count)

    added = row.arity - 1
    issued, special, doubles = (max(a - b, 0.0) for a, b in zip(_more(calls), _more(none), strict=True))
    issued += added * (2 if dtype is dtypes.int64 else 1)
    return (issued, special, doubles + added * (dtype is dtypes.float64)), calls(FEW).parting > none(FEW).parting


def reduced(monoid: Monoid, dtype: DType, half: bool) -> Counted:
    """An element of a reduction, which is read and taken in."""
    ctype = dtype.ctype
    take = "take_fast" if half else "take"

    def elements(count: int) -> Instructions:
        each = range(count)
        body = [f"fg::{monoid.state}<{ctype}> state;"]
        if monoid.partner:
            counts = [f"state.saw({count});"] if monoid.kind == "squared_deviation" else []
            body += [*(f"state.see(x[{n}]);" for n in each), *counts, "state.settle();"]
            body += [f"state.{take}(x[{n}]);" for n in each]
        else:
            body += [f"state.add(x[{n}]{', threadIdx.x + 256 * ' + str(n) if monoid.located else ''});" for n in each]
        return _kernel(ctype, count, [*body, f"y[0] = {ctype}(state.result());"], 1)

    issued, special, doubles = _more(elements)
    return issued - 1, special, doubles  # less the load


def _table(name: str, of: str, found: Mapping[str, Mapping[str, Counted]]) -> Iterator[str]:
    yield f"# By {of} and by how it is compiled.\n{name}: dict[str, dict[str, tuple[float, float, float]]] = {{\n"
    for key, ways in sorted(found.items()):
        yield f'    "{key}": {{\n'
        for way, counted in ways.items():
            yield f'        "{way}": ({", ".join(f"{count:g}" for count in counted)}),\n'
        yield "    },\n"
    yield "}\n"


def _parting(found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield "# Functions in which threads of a warp may part, and how they are compiled: no read moves across them.\n"
    yield "PARTING: dict[str, tuple[str, ...]] = {\n"
    for name, ways in sorted(found.items()):
        words = ", ".join(f'"{way}"' for way in ways)
        yield f'    "{name}": ({words}{"," if len(ways) == 1 else ""}),\n'
    yield "}\n"


def counted() -> list[Function]:
    """The functions of the table that are compiled to be counted."""
    return [row for row in rows() if row.builtin and row.kind in KINDS and row.name not in NOT_MEASURED]


def text() -> str:
    """What fusegen/fuse/slots.py should be."""
    functions: dict[str, dict[str, Counted]] = {}
    parting: dict[str, list[str]] = {}
    for row in counted():
        for way, (dtype, half) in WAYS.items():
            if dtype.is_float or row.kind is Kind.NUMERIC:
                try:
                    found, parts = call(row, dtype, half)
                except FusegenError:  # it has no such text
                    continue
                functions.setdefault(row.name, {})[way] = found
                if parts:
                    parting.setdefault(row.name, []).append(way)
    reductions: dict[str, dict[str, Counted]] = {}
    for monoid in filter(lambda monoid: monoid.state, BY_KIND.values()):
        ways = {way: how for way, how in WAYS.items() if how[0].is_float or not monoid.partner}
        reductions[monoid.kind] = {way: reduced(monoid, *how) for way, how in ways.items()}
    tables = [*_table("SLOTS", "function", functions), "\n", *_table("REDUCTIONS", "kind (core/monoids)", reductions)]
    return HEADER + "".join([*tables, "\n", *_parting(parting)])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    found = text()
    if arguments.check:
        same = found == WRITTEN.read_text(encoding="utf-8")
        print(f"{WRITTEN.relative_to(ROOT)} is {'what' if same else 'not what'} this compiler's text has")
        return 0 if same else 1
    WRITTEN.write_text(found, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
