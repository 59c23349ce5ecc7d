"""How a kernel keeps, combines and hands on the state of a reduction: one place for every kind in core/monoids.

Sums stay plain numbers that are added up, because that is how a colleague would write them; every other kind is a small
struct of fusegen.cuh with ``add``, ``merge`` and ``result``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusegen.core.ir import Reduce, is_call
from fusegen.core.monoids import BY_KIND
from fusegen.generate.names import Names


@dataclass(frozen=True)
class Accumulator:
    """The lines for one reduction.

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
    def state_type(self) -> str:
        """The type that partial results have, in registers and in memory."""
        monoid = BY_KIND[self.reduce.kind]
        of = self.reduce.expr.children[0].dtype.ctype if monoid.located else self.ctype
        return self.ctype if self.is_sum else f"fg::{monoid.state}<{of}>"

    @property
    def variable(self) -> str:
        """What holds the state while the kernel reduces."""
        if self.is_sum:
            return f"{self.stem}_v" if self.results > 1 else self.name
        return f"{self.stem}_state"

    def declare(self) -> str:
        """The state of nothing."""
        if self.in_chains:
            return f"fg::Chains<{self.ctype}> {self.stem}_chains;"
        if self.is_sum:
            vector = f"fg::Vec<{self.ctype}, {self.results}> {self.variable} = {{}};"
            return vector if self.results > 1 else f"{self.ctype} {self.variable} = 0;"
        return f"{self.state_type} {self.variable}{f'[{self.results}]' if self.results > 1 else ''};"

    def add(self, value: str, fast: bool = False) -> str:
        """One more element.

        Args:
            fast: with functions whose last bits do not show in halves.
        """
        takes = is_call(self.reduce.expr, "neg") and value.startswith("-")
        more = f"-= {value[1:]}" if takes else f"+= {value}"
        if self.in_chains:
            return f"{self.stem}_part {more};" if self.per_iteration > 1 else f"{self.stem}_chains.add({value});"
        index = "[k]" if self.results > 1 else ""
        if self.is_sum:
            return f"{self.variable}{index} {more};"
        return f"{self.variable}{index}.{'add_fast' if fast and self.reduce.kind == 'sum_exp' else 'add'}({value});"

    def iteration(self) -> tuple[list[str], list[str]]:
        """The lines before and behind the elements of one iteration."""
        if not self.in_chains or self.per_iteration == 1:
            return [], []
        return [f"{self.ctype} {self.stem}_part = 0;"], [f"{self.stem}_chains.add({self.stem}_part);"]

    @property
    def is_coupled(self) -> bool:
        """Whether its elements are better seen all before the first is taken."""
        return bool(BY_KIND[self.reduce.kind].partner)

    @property
    def counts(self) -> bool:
        """Whether its state has the number of elements, which is told once for many."""
        return self.reduce.kind == "squared_deviation"

    def combine(self, over: str, count: str) -> str:
        """The states of all threads that share the result; ``over`` is block or column."""
        if self.in_chains:
            return f"const {self.ctype} {self.name} = fg::{over}_sum<{count}>({self.stem}_chains.total());"
        how = f"fg::{over}_{'sum' if self.is_sum else 'merge'}<{count}>({self.variable})"
        return f"{how};" if self.results > 1 and not self.is_sum else f"{self.variable} = {how};"

    def result(self, in_vector: bool = False) -> list[str]:
        """The reduction's own name for its value, where the state goes by another."""
        of = f"{self.variable}[k]" if in_vector else self.variable
        if self.is_sum:
            return [f"const {self.ctype} {self.name} = {of};"] if in_vector else []
        return [f"const {self.ctype} {self.name} = {of}.result();"]

    def partner(self, name: str, in_vector: bool = False) -> str:
        """Another reduction of the same elements, whose result the state holds too."""
        of = f"{self.variable}[k]" if in_vector else self.variable
        return f"const {self.ctype} {self.names.variable(name)} = {of}.partner();"

    def store(self, position: str) -> list[str]:
        """The state to its place in the workspace."""
        target = f"{self.stem}_partial"
        if self.results == 1:
            return [f"{target}[{position}] = {self.variable};"]
        if self.is_sum:
            return [f"fg::store_vector<{self.results}>({target} + ({position}), {self.variable});"]
        return [f"for (int k = 0; k < {self.results}; ++k) {target}[{position} + k] = {self.variable}[k];"]

    def merge(self, position: str) -> str:
        """The state at a place in the workspace, taken in."""
        value = f"{self.stem}_partial[{position}]"
        return f"{self.variable} += {value};" if self.is_sum else f"{self.variable}.merge({value});"
