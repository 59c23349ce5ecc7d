"""How a kernel keeps, combines and hands on the state of a reduction: one place for every kind in core/monoids.

Sums stay plain numbers that are added up, because that is how a colleague would write them; every other kind is a small
struct of fusegen.cuh with ``add``, ``merge`` and ``result``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen.core.ir import Reduce, is_call
from fusegen.core.monoids import BY_KIND
from fusegen.generate.names import Names
from fusegen.generate.params import reduced_type
from fusegen.kernel_program.nodes import (
    Assign,
    Declare,
    Do,
    For,
    Invoke,
    Number,
    Plain,
    State,
    Statement,
    Symbol,
    Term,
    Type,
    Value,
    Vector,
    invoke,
)


@dataclass(frozen=True)
class Accumulator:
    """The statements for one reduction.

    Args:
        reduce: what is reduced.
        names: those of its kernel.
        results: how many neighbouring results a thread owns.
        per_iteration: elements that a thread reduces in each iteration of a long loop; 0 without such a loop.
    """

    reduce: Reduce
    names: Names
    results: int = 1
    per_iteration: int = 0

    @property
    def name(self) -> str:
        """The variable of the result."""
        return self.names.variable(self.reduce.name)

    @property
    def stem(self) -> str:
        return self.names.stem(self.reduce.name)

    @property
    def is_sum(self) -> bool:
        return not BY_KIND[self.reduce.kind].state

    @property
    def in_chains(self) -> bool:
        """Whether it rounds, and a thread takes enough elements for that to show."""
        return self.is_sum and self.per_iteration > 0 and self.reduce.expr.dtype.is_float

    @property
    def ctype(self) -> str:
        """The type of the result."""
        return self.reduce.expr.dtype.ctype

    @property
    def type(self) -> Type:
        """The type that partial results have, in registers and in memory."""
        if self.is_sum:
            return Plain(self.ctype)
        return State(self.reduce.kind, BY_KIND[self.reduce.kind].state, reduced_type(self.reduce))

    @property
    def variable(self) -> str:
        """What holds the state while the kernel reduces."""
        if self.is_sum:
            return f"{self.stem}_v" if self.results > 1 else self.name
        return f"{self.stem}_state"

    def state(self, in_vector: bool = False) -> Term:
        """The state; ``in_vector``: that of the k-th of the results."""
        return Symbol(self.variable).at(Symbol("k")) if in_vector else Symbol(self.variable)

    def declare(self) -> Statement:
        """The state of nothing."""
        if self.in_chains:
            return Declare(State("sum", "Chains", self.ctype), f"{self.stem}_chains")
        if self.is_sum and self.results > 1:
            return Declare(Vector(self.ctype, self.results), self.variable, zeros=True)
        if self.is_sum:
            return Declare(self.type, self.variable, Number(0))
        return Declare(self.type, self.variable, None, (self.results,) if self.results > 1 else ())

    def add(self, value: Value, fast: bool = False) -> Statement:
        """One more element.

        Args:
            fast: with functions whose last bits do not show in halves.
        """
        if self.in_chains and self.per_iteration == 1:
            return Do(Symbol(f"{self.stem}_chains").call("add", value))
        if self.is_sum:
            target = Symbol(f"{self.stem}_part") if self.in_chains else self.state(self.results > 1)
            return plus(target, value)
        add = "add_fast" if fast and self.reduce.kind == "sum_exp" else "add"
        return Do(self.state(self.results > 1).call(add, value))

    def iteration(self) -> tuple[list[Statement], list[Statement]]:
        """What stands before and behind the elements of one iteration."""
        if not self.in_chains or self.per_iteration == 1:
            return [], []
        part = f"{self.stem}_part"
        return [Declare(Plain(self.ctype), part, Number(0))], [
            Do(Symbol(f"{self.stem}_chains").call("add", Symbol(part)))
        ]

    @property
    def is_coupled(self) -> bool:
        """Whether its elements are better seen all before the first is taken."""
        return bool(BY_KIND[self.reduce.kind].partner)

    @property
    def counts(self) -> bool:
        """Whether its state has the number of elements, which is told once for many."""
        return self.reduce.kind == "squared_deviation"

    def combine(self, over: str, template: tuple[int, ...]) -> Statement:
        """The states of all threads that share the result; ``over`` is block or column."""
        if self.in_chains:
            chains = Symbol(f"{self.stem}_chains").call("total")
            return Declare(Plain(self.ctype), self.name, Invoke(f"fg::{over}_sum", template, (chains,)), constant=True)
        how = Invoke(f"fg::{over}_{'sum' if self.is_sum else 'merge'}", template, (self.state(),))
        return Do(how) if self.results > 1 and not self.is_sum else Assign(self.state(), how)

    def result(self, in_vector: bool = False) -> list[Statement]:
        """The reduction's own name for its value, where the state goes by another."""
        if self.is_sum:
            own = Declare(Plain(self.ctype), self.name, self.state(True), constant=True)
            return [own] if in_vector else []
        return [Declare(Plain(self.ctype), self.name, self.state(in_vector).call("result"), constant=True)]

    def partner(self, name: str, in_vector: bool = False) -> Statement:
        """Another reduction of the same elements, whose result the state holds too."""
        of = self.state(in_vector).call("partner")
        return Declare(Plain(self.ctype), self.names.variable(name), of, constant=True)

    def store_one(self, position: Term) -> Statement:
        """The state of the k-th of several results to its place in the workspace."""
        return Assign(Symbol(f"{self.stem}_partial").at(position), self.state(True))

    def store(self, position: Term) -> list[Statement]:
        """The state to its place in the workspace."""
        target = Symbol(f"{self.stem}_partial")
        if self.results == 1:
            return [Assign(target.at(position), self.state())]
        if self.is_sum:
            return [Do(invoke("fg::store_vector", target + position, self.state(), of=(self.results,)))]
        k = Symbol("k")
        each = Assign(target.at(position + k), self.state(True))
        return [For("k", Plain("int"), Number(0), k < self.results, None, (each,), brief=True)]

    def merge(self, position: Term) -> Statement:
        """The state at a place in the workspace, taken in."""
        value = Symbol(f"{self.stem}_partial").at(position)
        return Assign(self.state(), value, "+=") if self.is_sum else Do(self.state().call("merge", value))


def plus(target: Term, value: Value) -> Assign:
    """A sum grown by a value; the opposite of a value is taken off."""
    if is_call(value.expr, "neg") and value.text.startswith("-"):
        return Assign(target, Value(value.expr.args[0], value.text[1:], value.level), "-=")
    return Assign(target, value, "+=")
