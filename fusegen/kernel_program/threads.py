"""The threads of a launch in lockstep: what statements do, and what terms are (kernel_program/evaluate)."""

from __future__ import annotations

import math
import operator
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusegen.core import dtypes
from fusegen.core.ir import LOCATED, Call
from fusegen.core.locks import cached_property
from fusegen.declare.reference import Evaluation
from fusegen.kernel_program.functions import CHANGING, FUNCTIONS, Threads
from fusegen.kernel_program.memory import Bag, Buffer, Place, Pointer, SharedArray, StateBuffer, require
from fusegen.kernel_program.nodes import (
    AddressOf,
    Assign,
    Binary,
    Choice,
    Convert,
    Declare,
    Do,
    Field,
    For,
    Function,
    If,
    Invoke,
    Item,
    KernelProgram,
    Leave,
    Link,
    Method,
    Not,
    Number,
    Plain,
    ScanState,
    Scope,
    Shared,
    State,
    Statement,
    Symbol,
    Term,
    Together,
    Value,
    Vector,
    returns,
)
from fusegen.kernel_program.scan_states import ScanBuffer, ScanStates

if TYPE_CHECKING:
    import torch

Grid = tuple[int, int, int]
WARP = 32
_IN_MEMORY = (Buffer, StateBuffer, ScanBuffer)
# By their sign in C: "/" divides integers alone, and "&&" and "||" stand between bools, of which each thread has both.
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "^": operator.xor, "&&": operator.and_, "||": operator.or_,
}  # fmt: skip
_FLOATS = frozenset(dtype.ctype for dtype in dtypes.BY_NAME.values() if dtype.is_float)


@dataclass
class _States:
    """The state of a reduction: one a thread, or one for each of a thread's results."""

    bags: list[Bag]


@dataclass
class _ClusterLink:
    """What the blocks of a cluster exchange through, and whether all of them are known to have begun."""

    ready: bool = False


@dataclass(frozen=True)
class Range:
    """The vectors of a block that belong to a segment."""

    first: torch.Tensor
    last: torch.Tensor


class _Expressions(Evaluation):
    """The op's expressions, of what the program's variables hold."""

    def __init__(
        self, torch: Any, sizes: Mapping[str, int], floats: Any, named: Mapping[str, Any], device: Any
    ) -> None:
        self.torch, self.floats, self.axes = torch, floats, ()
        self.sizes, self.device = dict(sizes), device
        self.named, self.fixed = named, {}  # type: ignore[assignment]


class _Named(Mapping[str, Any]):
    """The op's names, read when they are asked for: tensors, also of what a launch is told (how many elements)."""

    def __init__(self, torch: Any, variables: Mapping[str, Term], read: Callable[[Term], Any]) -> None:
        self.torch, self.variables, self.read = torch, variables, read

    def __getitem__(self, name: str) -> Any:
        value = self.read(self.variables[name])
        return self.torch.tensor(value) if type(value) is int else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)


class Lockstep:
    """The threads of some blocks of a launch."""

    def __init__(
        self, program: KernelProgram, grid: Grid, blocks: range, arguments: Mapping[str, Any],
        sizes: Mapping[str, int], floats: Any,
    ) -> None:  # fmt: skip
        import torch

        self.torch, self.program, self.floats = torch, program, floats
        buffers = [a for a in arguments.values() if isinstance(a, Buffer)]
        self.device = buffers[0].values.device if buffers else torch.device("cpu")
        across, rows = program.block
        self.blocks = len(blocks)
        self.count = self.blocks * program.threads
        number = torch.arange(self.count, device=self.device)
        self.thread = number % program.threads  # of its block
        self.block = number // program.threads
        of_grid = self.block + blocks.start
        x, y = of_grid % grid[0], of_grid // grid[0] % grid[1]
        builtin = {
            "threadIdx.x": self.thread % across, "threadIdx.y": self.thread // across,
            "blockIdx.x": x, "blockIdx.y": y, "blockIdx.z": of_grid // (grid[0] * grid[1]),
            "gridDim.x": grid[0], "gridDim.y": grid[1], "gridDim.z": grid[2], "true": True,
        }  # fmt: skip
        self.rank = x % program.cluster
        # A cluster's blocks follow each other along x.
        self.cluster = self.block // program.cluster
        self.warp = self.block * -(-program.threads // WARP) + self.thread // WARP
        self.row = self.block * rows + self.thread // across
        self.column = self.block * across + self.thread % across
        self.meeting = torch.zeros(self.blocks, dtype=torch.int64, device=self.device)
        # Of each function that scans blocks, when its totals were last read: of both places, by block.
        self.totals_read: dict[tuple[int | str, ...], Any] = {}
        given = {name: Pointer(a, 0) if isinstance(a, _IN_MEMORY) else a for name, a in arguments.items()}
        self.scope: ChainMap[str, Any] = ChainMap({}, {**builtin, **given})
        self.functions = dict[str, Function]()
        self.active = number
        self.gone = torch.zeros(self.count, dtype=torch.bool, device=self.device)  # from a loop, or from the kernel
        self.turned = torch.zeros_like(self.gone)  # to the next turn of a loop
        self.leaves = 0  # how often some have gone or turned: till then those that are active stay so
        self.expressions = _Expressions(torch, sizes, floats, _Named(torch, program.variables, self._read), self.device)

    def run(self) -> None:
        """From the first statement to the last."""
        self._all(self.program.body)

    # -- statements -----------------------------------------------------------------------------------------------

    def _all(self, statements: Sequence[Statement]) -> None:
        leaves = 0
        for statement in statements:
            if leaves != self.leaves:
                self.active, leaves = self.active[~(self.gone | self.turned)[self.active]], self.leaves
            if len(self.active):
                self._one(statement)

    def _one(self, statement: Statement) -> None:
        match statement:
            case Declare():
                self._declare(statement)
            case Shared(type=type_, name=name, dims=dims):
                width = (type_.size,) if isinstance(type_, Vector) else ()
                self.scope.maps[0][name] = SharedArray.of(self._nothing(type_, (self.blocks, *dims, *width)), len(dims))
            case Assign(target=target, value=value, operator=sign):
                self._assign(target, self._changed(target, sign, self._read(value)))
            case Do(what=what):
                self._read(what)
            case If(condition=condition, body=body, otherwise=otherwise):
                taken = self._condition(condition)
                for threads, statements in ((self.active[taken], body), (self.active[~taken], otherwise)):
                    with self._only(threads):
                        self._all(statements)
            case For():
                self._loop(statement)
            case Scope(body=body):
                with self._only(self.active):
                    self._all(body)
            case Function(name=name):
                self.functions[name] = statement
            case Leave(how=how):
                (self.turned if how == "continue" else self.gone)[self.active] = True
                self.leaves += 1

    @contextmanager
    def _only(self, threads: torch.Tensor) -> Iterator[None]:
        """Some threads alone, with names of their own."""
        before, self.active, self.scope = self.active, threads, self.scope.new_child()
        try:
            yield
        finally:
            self.active, self.scope = before, self.scope.parents

    def _loop(self, loop: For) -> None:
        left = self.gone.clone()
        with self._only(self.active):
            if loop.type is not None and loop.first is not None:
                self._declare(Declare(loop.type, loop.name, loop.first))
            here = self.active
            while True:
                self.active = self._not_gone(here)
                self.active = self.active[self._condition(loop.condition)] if len(self.active) else self.active
                if not len(self.active):
                    break
                # Who has come to the end stays there while others go on.
                here = self.active
                with self._only(self.active):
                    self._all(loop.body)
                self.turned[here] = False
                self.active = self._not_gone(here)
                step = Number(1) if loop.step is None else loop.step
                if len(self.active):
                    self._assign(Symbol(loop.name), self._read(Symbol(loop.name)) + self._read(step))
        returned = any(returns(s) for s in loop.body)
        self.gone = self.gone if returned else left

    def _not_gone(self, threads: torch.Tensor) -> torch.Tensor:
        return threads[~self.gone[threads]] if self.leaves else threads

    def _declare(self, statement: Declare) -> None:
        name, here, type_ = statement.name, self.scope.maps[0], statement.type
        if isinstance(type_, Link):
            here[name] = _ClusterLink()
            return
        if isinstance(type_, ScanState):
            ctype = type_.ctypes[0]  # ints wrap around as they do on a GPU
            dtype = self.floats if ctype in _FLOATS else self._integers[ctype]
            here[name] = ScanStates.nothing(type_.combine, (self.count, *statement.dims), dtype, self.device)
            return
        if isinstance(type_, State) and type_.kind != "sum":
            here[name] = _States([Bag(type_.kind, self.count, self.device) for _ in range(*(statement.dims or (1,)))])
            return
        if statement.value is not None:
            value = self._read(statement.value)
            if isinstance(value, Pointer):
                at = self._all_of(value.at)
                here[name] = Pointer(value.buffer, self._everywhere(at))
                return
            if isinstance(value, Range):
                here[name] = Range(*(self._everywhere(part) for part in (value.first, value.last)))
                return
            here[name] = self._nothing(type_, (self.count, *self._of(value)), value)
            self._put(name, value)
            return
        width = (type_.size,) if isinstance(type_, Vector) else ()
        zero = statement.zeros or isinstance(type_, State)
        here[name] = self._nothing(type_, (self.count, *statement.dims, *width))
        if zero:
            here[name] = self.torch.zeros_like(here[name])

    def _everywhere(self, value: torch.Tensor) -> torch.Tensor:
        """A position of each active thread, as one of every thread."""
        found = self.torch.zeros(self.count, dtype=self.torch.int64, device=self.device)
        found[self.active] = value
        return found

    def _of(self, value: Any) -> tuple[int, ...]:
        """The shape of a value, of each thread."""
        if not isinstance(value, self.torch.Tensor) or value.ndim == 0:
            return ()
        return tuple(value.shape[1:])

    def _nothing(self, type_: Any, shape: tuple[int, ...], like: Any = None) -> torch.Tensor:
        """What nothing has written yet."""
        if isinstance(like, self.torch.Tensor) and not isinstance(type_, Plain):
            dtype = like.dtype
        elif isinstance(like, self.torch.Tensor) and type_.ctype in ("auto", *_FLOATS):
            dtype = like.dtype if like.is_floating_point() or type_.ctype == "auto" else self.floats
        else:
            dtype = self._dtype(type_.ctype)
        return self.torch.full(shape, math.nan if dtype.is_floating_point else 0, dtype=dtype, device=self.device)

    def _dtype(self, ctype: str) -> Any:
        if ctype in _FLOATS:
            return self.floats
        found = self._integers.get(ctype)
        return self.torch.int64 if found is None or ctype == "int" else found

    @cached_property
    def _integers(self) -> dict[str, Any]:
        """The torch dtypes of what is no float, by their names in C."""
        return {d.ctype: getattr(self.torch, d.name) for d in dtypes.BY_NAME.values() if not d.is_float}

    # -- assignments ----------------------------------------------------------------------------------------------

    def _changed(self, target: Term, sign: str, value: Any) -> Any:
        """What an assignment leaves, given what it is of."""
        if sign == "=":
            return value
        return _OPERATORS[sign.removesuffix("=")](self._read(target), value)

    def _put(self, name: str, value: Any) -> None:
        """A variable's value, of the active threads."""
        holder = next(scope for scope in self.scope.maps if name in scope)
        variable = holder[name]
        if isinstance(value, self.torch.Tensor):
            value = value.to(variable.dtype)
            value = value.expand(len(self.active), *variable.shape[1:]) if value.ndim <= 1 else value
        variable[self.active] = value

    def _assign(self, target: Term, value: Any) -> None:
        """Give a place a value, of the active threads. A state that is assigned has been merged where it is."""
        if isinstance(value, _States) and isinstance(target, Symbol):
            return
        if isinstance(target, Symbol):
            self._put(target.name, value)
            return
        place = self._place(target)
        if isinstance(place, Pointer) and isinstance(place.buffer, StateBuffer):
            (bag,) = value.bags
            place.buffer.write(self._all_of(place.at), bag.taken.of(self.active) if bag.taken.columns else ())
        elif isinstance(value, ScanStates):
            if isinstance(place, Pointer):
                place.buffer.write(self._all_of(place.at), value)
            else:
                variable, index = place
                variable.put(index, value)
        elif isinstance(place, Pointer):
            place.buffer.write(self._all_of(place.at), self._all_of(value))
        elif isinstance(place, Place):
            self._into_shared(place, value, copied=False)
        else:
            variable, index = place
            variable[index] = value.to(variable.dtype) if isinstance(value, self.torch.Tensor) else value

    def _into_shared(self, place: Place, value: Any, copied: bool) -> None:
        meeting = self.meeting[self.block[self.active]]
        value = value if isinstance(value, self.torch.Tensor) else self.torch.tensor(value, device=self.device)
        place.array.write(place.index, self.thread[self.active], meeting, value, copied)

    def _place(self, term: Term) -> Any:
        """Where an element of an array is: a pointer, a place in shared memory, or a variable and an index of it."""
        indices: list[Any] = []
        while isinstance(term, Item):
            indices.insert(0, self._read(term.index))
            term = term.of
        assert isinstance(term, Symbol)
        found = self.scope[term.name]
        if isinstance(found, Pointer):
            (index,) = indices
            return Pointer(found.buffer, self._pointed(found).at + index)
        indices = [self._all_of(index) for index in indices]
        if isinstance(found, SharedArray):
            return Place(found, (self.block[self.active], *indices))
        return found, (self.active, *indices)

    def _pointed(self, pointer: Pointer) -> Pointer:
        """Where the active threads' own pointers are, or a parameter."""
        is_own = isinstance(pointer.at, self.torch.Tensor)
        return Pointer(pointer.buffer, pointer.at[self.active]) if is_own else pointer

    def _all_of(self, value: Any) -> Any:
        """A value of each active thread."""
        value = value if isinstance(value, self.torch.Tensor) else self.torch.tensor(value, device=self.device)
        return value.expand(len(self.active)) if value.ndim == 0 else value

    # -- terms ----------------------------------------------------------------------------------------------------

    def _condition(self, term: Term) -> Any:
        return self._all_of(self._read(term)).to(self.torch.bool)

    def _read(self, term: Term) -> Any:
        """The value that a term has for each active thread, or one for all."""
        match term:
            case Number(value):
                return value
            case Symbol(name):
                found = self.scope[name]
                if isinstance(found, Range):
                    return Range(found.first[self.active], found.last[self.active])
                if isinstance(found, ScanStates):
                    return found.at((self.active,))
                if isinstance(found, Pointer):
                    return self._pointed(found)
                is_variable = isinstance(found, self.torch.Tensor) and found.ndim > 0
                return found[self.active] if is_variable else found
            case Value(expr):
                return self.expressions.evaluate(expr)
            case Binary(sign, left, right):
                return self._binary(sign, self._read(left), self._read(right))
            case Not(condition):
                return ~self._condition(condition)
            case Choice(condition, chosen, otherwise):
                return self._choice(condition, chosen, otherwise)
            case Item():
                return self._element(term)
            case Field(of, name):
                assert name == "value"
                return self._read(of).values
            case Convert(ctype, of):
                value = self._read(of)
                if isinstance(value, self.torch.Tensor):
                    return value.to(self._dtype(ctype))
                return float(value) if ctype in _FLOATS else int(value)
            case AddressOf(of):
                return self._place(of) if isinstance(of, Item) else of
            case Together(of):
                return self._read(of)
            case Invoke():
                return self._invoke(term)
            case Method():
                return self._method(term)
        raise TypeError(f"a term of no kind that is known: {type(term).__name__}")

    def _choice(self, condition: Term, chosen: Term, otherwise: Term) -> Any:
        taken, before = self._condition(condition), self.active
        values = []
        for threads, term in ((before[taken], chosen), (before[~taken], otherwise)):
            self.active = threads
            values.append(self._all_of(self._read(term)) if len(threads) else None)
        self.active = before
        like = next(value for value in values if value is not None)
        found = like.new_empty(len(before))
        for where, value in ((taken, values[0]), (~taken, values[1])):
            if value is not None:
                found[where] = value.to(found.dtype)
        return found

    def _binary(self, sign: str, left: Any, right: Any) -> Any:
        if isinstance(left, Pointer):
            return Pointer(left.buffer, left.at - right if sign == "-" else left.at + right)
        if sign in ("&&", "||"):
            left, right = self._all_of(left), self._all_of(right)
        return _OPERATORS[sign](left, right)

    def _element(self, term: Item) -> Any:
        place = self._place(term)
        if isinstance(place, Pointer):
            return place.buffer.read(self._all_of(place.at))
        if isinstance(place, Place):
            meeting = self.meeting[self.block[self.active]]
            return place.array.read(place.index, self.thread[self.active], meeting)
        variable, index = place
        if isinstance(variable, ScanStates):
            return variable.at(index)
        return _States(self._bags(term)) if isinstance(variable, _States) else variable[index]

    # -- states ---------------------------------------------------------------------------------------------------

    def _bags(self, term: Term) -> list[Bag]:
        """The states that a term names: one, or those of a thread's results."""
        if isinstance(term, Field):
            return self._bags(term.of)
        if isinstance(term, Item):
            number = self._all_of(self._read(term.index))
            require((number == number[0]).all(), "threads take other states of an array at a time")
            return [self._bags(term.of)[int(number[0])]]
        assert isinstance(term, Symbol)
        found = self.scope[term.name]
        assert isinstance(found, _States), term.name
        return found.bags

    def _method(self, term: Method) -> Any:
        if term.function == "ready":
            self.scope[name_of(term.of)].ready = True
            return self._met(self.cluster, self.program.cluster * self.program.threads)
        if term.function == "any":
            part = self._read(term.of)
            return part.first < part.last
        of = self.scope[term.of.name] if isinstance(term.of, Symbol) else None
        if isinstance(of, self.torch.Tensor):  # chains of sums
            if term.function == "total":
                return of[self.active]
            self._assign(term.of, self._read(term.of) + self._read(term.args[0]))
            return None
        if isinstance(self.scope.get(_root(term.of).name), ScanStates):
            return self._of_scan(term)
        (bag,) = self._bags(term.of)
        if term.function in ("result", "partner"):
            return bag.result(self.active, self.floats, partner=term.function == "partner")
        require(term.function in CHANGING, "a member that states do not have", term.function)
        if term.function in ("take", "take_fast"):
            require(bag.settled, "a second walk before what the first has seen is settled")
        if term.function in ("add", "add_fast", "take", "take_fast"):
            bag.taken.put(self.active, self._elements(term.args[0]))
        elif term.function == "see":
            bag.seen.put(self.active, self._elements(term.args[0]))
        elif term.function == "saw":
            bag.count(self.active, int(self._read(term.args[0])))
        elif term.function == "merge":
            self._merge(bag, term.args[0])
        elif term.function == "settle":
            bag.settled = True
        elif term.function == "finish":
            bag.finished = True
        return None

    def _merge(self, bag: Bag, term: Term) -> None:
        """A state takes in another one: a variable, or what a block has left in memory."""
        if isinstance(term, Symbol):
            bag.merge(self._bags(term)[0])
            return
        place = self._place(term)
        assert isinstance(place, Pointer) and isinstance(place.buffer, StateBuffer)
        columns = place.buffer.read(self._all_of(place.at), [self.floats, self.torch.int64])
        if columns[-1].shape[1]:
            bag.taken.put(self.active, columns)

    def _elements(self, term: Term) -> tuple[torch.Tensor, ...]:
        if isinstance(term, Value) and isinstance(term.expr, Call) and term.expr.function == LOCATED:
            found = tuple(self._all_of(self.expressions.evaluate(arg)) for arg in term.expr.args)
            return *found, self.torch.ones_like(found[0], dtype=self.torch.bool)
        value = self._all_of(self._read(term))
        return value, self.torch.ones_like(value, dtype=self.torch.bool)

    def _of_scan(self, term: Method) -> Any:
        """A member of a scan's state."""
        states: ScanStates = self._read(term.of)
        if term.function == "result":
            return states.result()
        require(term.function in ("add", "append"), "a member that a scan's state does not have", term.function)
        args = [self._read(arg) for arg in term.args]
        behind = args[0] if term.function == "append" else states.element(args)
        place = (self.scope[term.of.name], (self.active,)) if isinstance(term.of, Symbol) else self._place(term.of)
        place[0].put(place[1], states.append(behind))
        return None

    # -- threads that come together -------------------------------------------------------------------------------

    def _met(self, groups: torch.Tensor, size: int) -> None:
        """All threads of the groups of active threads are here, and see what the others have written."""
        self._complete(groups, size)
        self.meeting[self.block[self.active].unique()] += 1

    def _complete(self, groups: torch.Tensor, size: int) -> None:
        """All threads of the groups of active threads are here."""
        own = groups[self.active]
        here = self.torch.bincount(own, minlength=int(groups.max()) + 1)
        gone = self.torch.bincount(groups[self.gone], minlength=len(here)) if self.gone.any() else 0
        waited = here[own.unique()]
        require((waited == size).all(), "threads wait for others that do not come", f"{gone}")

    def _summed(self, value: Any, groups: torch.Tensor) -> Any:
        """The sum over each group of active threads, for each of them."""
        value = self._all_of(value)
        total = value.new_zeros(int(groups.max()) + 1, *value.shape[1:])
        total.index_add_(0, groups[self.active], value)
        return total[groups[self.active]]

    def _exchange(self, function: str, args: Sequence[Term], groups: torch.Tensor) -> None:
        """Arguments that are all of a group's from here on."""
        for arg in args:
            if function.endswith("sum") and not isinstance(arg, Field):
                self._assign(arg, self._summed(self._read(arg), groups))
                continue
            for bag in self._bags(arg):
                which = arg.name if isinstance(arg, Field) else ""
                bag.exchange(groups, seen=which != "sum", taken=which != "top")

    # -- functions ------------------------------------------------------------------------------------------------

    def _invoke(self, term: Invoke) -> Any:
        if term.function in self.functions:
            own = self.functions[term.function]
            with self._only(self.active):
                self._declare(Declare(own.type, own.parameter, term.args[0]))
                self._all(own.body)
            return None
        row = FUNCTIONS[term.function]
        if row.together is Threads.WARP:
            self._complete(self.warp, min(WARP, self.program.threads))
        elif row.together is Threads.BLOCK:
            self._met(self.block, self.program.threads)
        elif row.together is Threads.CLUSTER:
            self._met(self.cluster, self.program.cluster * self.program.threads)
        return getattr(self, "_" + term.function.removeprefix("fg::").strip("_").replace("*", "load"))(term)


def _root(term: Term) -> Symbol:
    """The variable that a term is, or is a part of."""
    while isinstance(term, (Item, Field)):
        term = term.of
    assert isinstance(term, Symbol)
    return term


def name_of(term: Term) -> str:
    """The name of a variable."""
    assert isinstance(term, Symbol)
    return term.name
