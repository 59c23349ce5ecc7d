"""Every stage of an op run without a compiler: what `pipeline` makes of an Op, from expressions to fused kernels.

Every stage computes the same results: the Op itself, the Op rewritten, the Op cut at its matrix products, and each
candidate of fused kernels. An Op is run by the reference (declare/reference), kernels are run by their interpreter
(fuse/interpret). Ops that are derived from an op are compared with automatic differentiation of what that one means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusegen import pipeline
from fusegen.core.declared import without_declared_gradients
from fusegen.core.dtypes import BY_NAME, float32
from fusegen.core.ir import Expr, Op, Operand, Output, Tensorlike, refs
from fusegen.core.one_term import start
from fusegen.core.products import contracted_sizes
from fusegen.core.scans import LAST, How
from fusegen.core.views import axis_sizes, block_shape, view_shape
from fusegen.declare.reference import REDUCTIONS, packed, reference
from fusegen.declare.scan_reference import scanned
from fusegen.derive.batch import NEW, batch, is_wide, shifted_sizes
from fusegen.derive.gradient import GradientNames
from fusegen.derive.tangent import tangent_names
from fusegen.fuse.interpret import interpret
from fusegen.fuse.kernel import Kernel
from fusegen.fuse.products import chain
from fusegen.fuse.scans import element, neighbour, running
from fusegen.fuse.steps import Chain, Product, Scan, Scatter
from fusegen.plan.backward import prune_backward, reading, result_names
from fusegen.run.programs import run_programs, run_scan, run_scatter

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, Any]
Numbers = Mapping[str, Any]
Sizes = Mapping[str, int]
Evaluate = Callable[[Op, Tensors, Numbers, Sizes], "list[torch.Tensor]"]
Draw = Callable[[Any], Any]
# The same, and in which dtype all floats are computed: float64 for None.
_Evaluate = Callable[[Op, Tensors, Numbers, Sizes, Any], "list[torch.Tensor]"]

_Scanning = Callable[[Chain, Scan, Tensors, Numbers, Sizes, Any], "dict[str, torch.Tensor]"]
_Scattering = Callable[[Chain, Scatter, Tensors, Sizes, Any], "torch.Tensor | None"]


def meaning(op: Op, tensors: Tensors, numbers: Numbers, sizes: Sizes, floats: Any = None) -> list[torch.Tensor]:
    """What the op computes: the first stage, with which the others are compared."""
    return reference(op, tensors, numbers, floats, sizes)


def stages(op: Op, stored: bool = False) -> Iterator[tuple[str, Evaluate]]:
    """Of each further stage its name, and the function that runs it.

    Args:
        stored: floats are as wide as kernels compute with, and what lies between kernels is rounded to its dtype, as
            memory does; float64 everywhere if not.
    """
    cut = chain(op)
    ops = cut.fused_ops if cut else [op]
    if cut:
        yield f"cut at {cut.text}", _runs(meaning, stored)
    compiled = [pipeline.compile_op(part) for part in ops]
    if any(found.lowered != without_declared_gradients(found.op) for found in compiled):
        yield "rewritten to call fewer special functions", _runs(_lowered, stored)
    count = max((len(_candidates(found)) for found in compiled), default=0)
    for number in range(count):
        kinds = {type(kernel).__name__ for found in compiled for kernel in _candidate(found, number)}
        yield f"fused, candidate {number + 1} of {count}: {', '.join(sorted(kinds))}", _runs(_fused(number), stored)
    yield "kernel programs", _runs(run_programs, stored, _scan_programs, _scatter_programs)


def _lowered(op: Op, tensors: Tensors, numbers: Numbers, sizes: Sizes, floats: Any) -> list[torch.Tensor]:
    return reference(pipeline.compile_op(op).lowered, tensors, numbers, floats, sizes)


def _candidate(compiled: pipeline.Compiled, number: int) -> Sequence[Kernel]:
    candidates = _candidates(compiled)
    return candidates[min(number, len(candidates) - 1)]


def _candidates(compiled: pipeline.Compiled) -> list[tuple[Kernel, ...]]:
    return list(compiled.candidates())


def _fused(number: int) -> _Evaluate:
    def evaluate(op: Op, tensors: Tensors, numbers: Numbers, sizes: Sizes, floats: Any) -> list[torch.Tensor]:
        compiled = pipeline.compile_op(op)
        return interpret(_candidate(compiled, number), compiled.lowered, tensors, numbers, floats, sizes)

    return evaluate


def _runs(
    evaluate: _Evaluate, stored: bool, scan: _Scanning | None = None, scatter: _Scattering | None = None
) -> Evaluate:
    """Of an op with matrix products, ``evaluate`` runs the ops between them.

    Args:
        scan: runs its scans; the reference does if not given. ``scatter``: its scatters.
    """
    scans = scan or _scan

    def run(op: Op, tensors: Tensors, numbers: Numbers, sizes: Sizes) -> list[torch.Tensor]:
        import torch

        computed = {thing.dtype.compute for thing in (*op.operands, *op.outputs) if thing.dtype.is_float}
        floats = torch.float32 if stored and computed == {float32} else None
        cut = chain(op)
        if cut is None:
            return evaluate(op, tensors, numbers, sizes, floats)
        known: dict[str, Any] = dict(tensors)
        sizes = all_sizes(op, tensors, sizes)
        dtypes = {thing.name: getattr(torch, thing.dtype.name) for thing in (*cut.op.outputs, *cut.intermediates)}
        for step in cut.steps:
            if isinstance(step, Scan):
                made = scans(cut, step, known, numbers, sizes, floats)
            elif isinstance(step, Product):
                found = scatter(cut, step, known, sizes, floats) if scatter and isinstance(step, Scatter) else None
                made = {step.result: _multiply(cut, step, known, sizes) if found is None else found}
            else:  # several steps may write blocks of one packed result
                alone = replace(step, outputs=tuple(replace(output, packed=None) for output in step.outputs))
                results = evaluate(alone, known, numbers, sizes, floats)
                made = dict(zip((output.name for output in step.outputs), results, strict=True))
                made |= _joined(step, made, known, cut)
            known |= (
                {name: value.to(dtypes[name]) for name, value in made.items() if name in dtypes} if stored else made
            )
        return packed(op, known)

    return run


def _joined(step: Op, made: Tensors, known: Tensors, cut: Chain) -> dict[str, torch.Tensor]:
    """Tensors between steps of which this one has written blocks, perhaps some, beside those that others have."""
    found: dict[str, torch.Tensor] = {}
    bases = {operand.name for operand in cut.intermediates}
    for output in step.outputs:
        if output.packed and output.packed.base in bases:
            block, value = output.packed, made[output.name]
            size = value.shape[block.dim]
            if block.base not in found:
                shape = [n * block.count if dim == block.dim else n for dim, n in enumerate(value.shape)]
                found[block.base] = known[block.base].clone() if block.base in known else value.new_zeros(shape)
            found[block.base].narrow(block.dim, block.index * size, size).copy_(value)
    return found


def sizes_of(op: Op, tensors: Tensors) -> dict[str, int]:
    """The sizes of the axes of an op's operands."""
    return axis_sizes(op, {name: tensor.shape for name, tensor in tensors.items()})


def _things(cut: Chain) -> dict[str, Tensorlike]:
    return {thing.name: thing for thing in (*cut.op.operands, *cut.op.outputs, *cut.intermediates)}


def _sides(cut: Chain, step: Product, known: Tensors) -> list[tuple[torch.Tensor, list[str]]]:
    """What a step reads, each with its axes."""
    sides: list[tuple[torch.Tensor, list[str]]] = []
    for source in step.reads:
        thing = _things(cut)[source.name]
        tensor = _block(thing, known)
        own = [(axis, size) for axis, size in zip(thing.shape, tensor.shape, strict=True) if axis]
        sides.append((tensor.reshape([size for _, size in own]), [source.name_of(axis) for axis, _ in own]))
    return sides


def _as_it_lies(found: torch.Tensor, axes: Sequence[str], thing: Tensorlike) -> torch.Tensor:
    """A result along these axes, in its tensor's shape."""
    lies = [axis for axis in thing.shape if axis]
    found = found.permute([axes.index(axis) for axis in lies])
    return found.reshape(block_shape(thing, dict(zip(lies, found.shape, strict=True))))


def _multiply(cut: Chain, step: Product, known: Tensors, sizes: Sizes) -> torch.Tensor:
    """One matrix product or scatter, with what it is added to and what is added to it."""
    import torch

    sides = _sides(cut, step, known)
    if isinstance(step, Scatter):
        found = _scatter(step, *sides[0], *sides[1], sizes)
    else:
        numbers: dict[str, int] = {}
        terms: list[Any] = []
        for tensor, axes in sides:
            terms += [tensor.to(torch.float64), [numbers.setdefault(axis, len(numbers)) for axis in axes]]
        found = torch.einsum(*terms, [numbers[axis] for axis in step.axes])
    if step.bias:
        found = found + _block(_things(cut)[step.bias], known).reshape(-1)
    found = _as_it_lies(found, step.axes, _things(cut)[step.result])
    if isinstance(step, Scatter) and step.base:
        found = found + known[step.base]
    return known[step.result] + found if step.onto else found


def _block(thing: Tensorlike, known: Tensors) -> torch.Tensor:
    """What of a tensor a step reads, in the shape that its axes have."""
    tensor: torch.Tensor = known[thing.base]
    shape = view_shape(thing, tensor.shape)
    if packed := thing.packed:
        size = tensor.shape[packed.dim] // packed.count
        tensor = tensor.narrow(packed.dim, packed.index * size, size)
    return tensor.reshape(shape)


def _scan(
    cut: Chain, step: Scan, known: Tensors, numbers: Numbers, sizes: Sizes, floats: Any
) -> dict[str, torch.Tensor]:
    """What a scan writes.

    Args:
        floats: in which dtype elements are computed, as where they are compared with an extremum of theirs.
    """
    import torch

    shape, dim = [sizes[axis] for axis in step.axes], step.axes.index(step.axis)
    tensors: dict[str, torch.Tensor] = {}
    for place, (source, of) in enumerate(_sides(cut, step, known)):
        source = source.permute([of.index(axis) for axis in step.axes if axis in of])
        sizes_of_source = [n if axis in of else 1 for axis, n in zip(step.axes, shape, strict=True)]
        source = source.reshape(sizes_of_source).expand(shape)
        tensors[element(place)] = source
        for way in (-1, 1):
            how = How(LAST, reverse=way > 0, exclusive=True)
            tensors[neighbour(element(place), way)] = scanned(torch, how, [source.contiguous()], dim)

    def computed(exprs: Sequence[Expr]) -> Sequence[torch.Tensor]:
        read = {ref.name: ref.dtype for ref in refs(*exprs) if ref.name in tensors}
        operands = tuple(Operand(name, dtype, step.axes) for name, dtype in read.items())
        outputs = tuple(Output(f"value{i}", e, e.dtype, step.axes) for i, e in enumerate(exprs))
        op = Op("scan", "values", operands, step.scalars, (), outputs)
        given = {name: tensors[name] for name in read}
        return reference(op, given, numbers, floats, {axis: sizes[axis] for axis in step.axes})

    values = [value.double() if value.is_floating_point() else value for value in computed(step.values)]
    for _, how in step.results:
        tensors[running(how)] = scanned(torch, how, values, dim)
    found = computed([output.expr for output in step.outputs])
    things = _things(cut)
    return {
        output.name: _as_it_lies(value, step.axes, things[output.name])
        for output, value in zip(step.outputs, found, strict=True)
    }


def _scan_programs(
    cut: Chain, step: Scan, known: Tensors, numbers: Numbers, sizes: Sizes, floats: Any
) -> dict[str, torch.Tensor]:
    """The same by the scan's kernel programs."""
    things = _things(cut)
    dtypes = [things[source.name].dtype for source in step.sources]
    tensors = [(dtype, *side) for dtype, side in zip(dtypes, _sides(cut, step, known), strict=True)]
    found = run_scan(step, tensors, numbers, sizes, floats)
    return {
        output.name: _as_it_lies(value, step.axes, things[output.name])
        for output, value in zip(step.outputs, found, strict=True)
    }


def _scatter_programs(cut: Chain, step: Scatter, known: Tensors, sizes: Sizes, floats: Any) -> torch.Tensor | None:
    """The same as `_multiply` by the scatter's kernel programs; None where it has none."""
    things = _things(cut)
    places, updates, *_ = _sides(cut, step, known)
    tensors = [(things[step.left.name].dtype, *places), (things[step.right.name].dtype, *updates)]
    result = things[step.result]
    base = None
    if step.base or step.onto:
        thing = things[step.base or step.result]
        lies = [axis for axis in thing.shape if axis]
        base = _block(thing, known).reshape([sizes[axis] for axis in lies]).permute([lies.index(a) for a in step.axes])
    found = run_scatter(step, tensors, (result.dtype, base), sizes, floats)
    return None if found is None else _as_it_lies(found, step.axes, result)


def _scatter(
    step: Scatter, places: torch.Tensor, at: Sequence[str], updates: torch.Tensor, of: Sequence[str], sizes: Sizes
) -> torch.Tensor:  # fmt: skip
    """One scatter, term by term.

    Args:
        at, of: the axes of places and of updates.
    """
    import torch

    axes = [*step.over, *(axis for axis in step.axes if axis != step.axis)]

    def wide(tensor: torch.Tensor, own: Sequence[str]) -> torch.Tensor:
        tensor = tensor.permute([own.index(axis) for axis in axes if axis in own])
        shape = [sizes[axis] for axis in axes]
        return tensor.reshape([n if axis in own else 1 for axis, n in zip(axes, shape, strict=True)]).expand(shape)

    updates = updates.double() if updates.is_floating_point() else updates  # halves are added up as floats
    if step.looked and step.looked.wraps:
        places = torch.where(places < 0, places.long() + sizes[step.axis], places.long())
    places, updates = wide(places, at), wide(updates, of)
    dims, begin = tuple(range(len(step.over))), start(step.kind, BY_NAME[str(updates.dtype).removeprefix("torch.")])
    fold = REDUCTIONS[step.kind]
    found = [fold(torch, torch.where(places == n, updates, begin), dims).squeeze(dims) for n in range(sizes[step.axis])]
    empty = updates.sum(dims)[None][:0]
    kept = [step.axis, *axes[len(step.over) :]]
    stacked = torch.stack(found) if found else empty
    return stacked.permute([kept.index(axis) for axis in step.axes])


# -- ops that follow from an op ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Followed:
    """An op that was derived from another one, and what it should compute.

    Attributes:
        label: what it is of the other op: "forward that saves for x, w", "backward of out for x, w".
        op: the derived op.
        given: its tensors, of those that `roots` names.
        expected: its results, of the same, by torch's automatic differentiation of what the other op means.
        roots: tensors by name: the other op's, and cotangents or tangents.
        public: how many results are the other op's own; what is kept behind them may be NaN where nobody reads it.
    """

    label: str
    op: Op
    given: Callable[[Tensors], dict[str, Any]]
    expected: Callable[[Tensors], list[torch.Tensor]]
    roots: Tensors
    sizes: Sizes
    public: int | None = None


def of_results(op: Op, wanted: Collection[str]) -> Op:
    """``op`` with these of its results alone: the others have no cotangent, so that they read nothing either."""
    return replace(op, outputs=tuple(output for output in op.outputs if output.base in wanted))


def all_sizes(op: Op, tensors: Tensors, sizes: Sizes) -> dict[str, int]:
    """Of every axis: those of the op's operands, and of what only its products have."""
    return contracted_sizes(op, {**sizes, **sizes_of(op, tensors)})


def trained(op: Op, wanted: tuple[str, ...], tensors: Tensors, numbers: Numbers, sizes: Sizes) -> Followed:
    """The forward that saves what the gradients of ``wanted`` need."""
    forward = pipeline.train_op(op, wanted).forward
    public = len(result_names(op))

    def expected(roots: Tensors) -> list[torch.Tensor]:
        saved = meaning(forward, roots, numbers, sizes)[public:]  # what it saves is its own business
        return [*meaning(op, roots, numbers, sizes), *saved]

    label = f"forward that saves for the gradients of {', '.join(wanted)}"
    return Followed(label, forward, dict, expected, tensors, sizes, public)


def backward(
    op: Op, wanted: tuple[str, ...], given: Sequence[int], tensors: Tensors, numbers: Numbers, sizes: Sizes, draw: Draw
) -> Followed | None:
    """The backward for the results (by position, saved ones behind the op's) that have a cotangent; None where nothing
    is to be computed.

    Args:
        draw: makes a cotangent like a tensor.
    """
    import torch

    training = pipeline.train_op(op, wanted)
    names, forward = result_names(training.forward), training.forward
    pruned = prune_backward(training, given, frozenset(wanted), sharing=False)
    if not pruned.op.outputs:
        return None
    called = GradientNames.of(forward)
    results = dict(zip(names, meaning(forward, tensors, numbers, sizes), strict=True))
    cotangents = {called.results[names[i]]: draw(results[names[i]]) for i in given}
    arguments = {called.arguments[name]: name for name in wanted}
    sought = [arguments[name] for name in result_names(pruned.op)]

    def inputs(roots: Tensors) -> dict[str, Any]:
        found = dict(zip(names, meaning(forward, roots, numbers, sizes), strict=True))
        return {**found, **roots}

    differentiated = of_results(forward, [names[i] for i in given])

    def expected(roots: Tensors) -> list[torch.Tensor]:
        leaves = {name: roots[name].detach().to(torch.float64).requires_grad_() for name in sought}
        results = meaning(differentiated, {**roots, **leaves}, numbers, sizes)
        found = dict(zip(result_names(differentiated), results, strict=True))
        pairs = [(found[names[i]], roots[called.results[names[i]]]) for i in given]
        pairs = [(result, cotangent) for result, cotangent in pairs if result.requires_grad]
        return list(
            torch.autograd.grad(
                [result for result, _ in pairs], list(leaves.values()), [cotangent for _, cotangent in pairs],
                allow_unused=True, materialize_grads=True,
            )
        )  # fmt: skip

    label = f"backward of {', '.join(names[i] for i in given)} for {', '.join(sought)}"
    return Followed(label, pruned.op, inputs, expected, {**tensors, **cotangents}, sizes)


def forward_mode(
    op: Op, along: tuple[str, ...], tensors: Tensors, numbers: Numbers, sizes: Sizes, draw: Draw
) -> Followed:
    """The tangents of all float results, given those of ``along``."""
    import torch

    called = tangent_names(op)
    tangents = {called.arguments[name]: draw(tensors[name]) for name in along}
    found = pipeline.tangent_op(op, along)
    own = {called.results[name]: name for name in result_names(op)}
    wanted = [own[name] for name in result_names(found)]

    def expected(roots: Tensors) -> list[torch.Tensor]:
        def function(*values: Any) -> Any:
            results = meaning(op, {**roots, **dict(zip(along, values, strict=True))}, numbers, sizes)
            found = dict(zip(result_names(op), results, strict=True))
            return tuple(found[name] for name in wanted)

        primals = tuple(roots[name].to(torch.float64) for name in along)
        found: Any = torch.func.jvp(function, primals, tuple(roots[called.arguments[name]] for name in along))[1]
        return list(found)

    label = f"tangents along {', '.join(along)}"
    return Followed(label, reading(found, op.operands[:1]), dict, expected, {**tensors, **tangents}, sizes)


def batched(
    op: Op, wide: frozenset[str], count: int, tensors: Tensors, numbers: Numbers, sizes: Sizes, draw: Draw
) -> Followed:
    """``count`` calls in one, of which the arguments ``wide`` have a value each."""
    import torch

    found = batch(op, wide)
    roots = {name: torch.stack([draw(t) for _ in range(count)]) if name in wide else t for name, t in tensors.items()}

    def expected(roots: Tensors) -> list[torch.Tensor]:
        calls = [
            meaning(op, {name: t[i] if name in wide else t for name, t in roots.items()}, numbers, sizes)
            for i in range(count)
        ]
        return [
            torch.stack(each) if has_calls else each[0]
            for has_calls, each in zip(is_wide(found).values(), zip(*calls, strict=True), strict=True)
        ]

    more = {**shifted_sizes(sizes), NEW: count}
    return Followed(f"{count} calls with {', '.join(sorted(wide))} each", found, dict, expected, roots, more)
