"""An op's cache of calls: what the slow path decided for one call is done again for calls like it, without deciding.

The cache stands before an op. It turns a call's arguments into a key of everything that a plan depends on. For a key it
knows, it runs the plan; for others it asks the op, on the slow path, and the op says what it did. There are two caches
with the same rules: Python's (python_cache) and the native one (native/fusegen_native_caller.h, native_cache), which
takes over when it is there. A call that neither can judge (``out=``, tensor subclasses, transforms) always takes the
slow path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusegen.declare.op import Declaration
from fusegen.native import module as native
from fusegen.pytorch.autograd.function import Differentiable
from fusegen.pytorch.calls.cached_call import CachedCall, Parameters
from fusegen.pytorch.calls.native_cache import native_plan
from fusegen.pytorch.calls.python_cache import PythonCache
from fusegen.pytorch.replay.reading import TENSORS
from fusegen.run.runner import MOST_PLANS, Run


class PlanCache:
    """An op's cache: native where the module is there, in Python elsewhere.

    Args:
        in_python: stay in Python even where the native module is there.

    Attributes:
        call: what to call first, with a call's ``args`` and ``kwargs``.
    """

    def __init__(self, declaration: Declaration, slow_path: Callable[..., Any], *, in_python: bool = False) -> None:
        self.declaration = declaration
        self.parameters, self.prepared = Parameters.of(declaration), declaration.prepare is not None
        self.in_python = in_python
        self.module = None if in_python else native.module()
        if self.module is None:
            self.call: Any = PythonCache(slow_path, self.parameters, MOST_PLANS, stays=in_python)
        else:
            places = {name: i for i, name in enumerate(self.parameters.names)}
            self.call = self.module.Caller(slow_path, places, self.parameters.flags, MOST_PLANS)

    def is_outdated(self) -> bool:
        """Whether the native module has arrived since, or numbers have become constants."""
        arrived = self.module is None and not self.in_python and native.module() is not None
        return arrived or self.parameters.is_outdated(self.declaration)

    def insert(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any], scalars: Mapping[str, Any],
        runs: Sequence[Run], one: bool, runner: Differentiable,
    ) -> None:  # fmt: skip
        """Remember what the slow path did, unless that was more than one program on the call's own tensors.

        Args:
            values: arguments by name as the op's declaration got them.
            scalars: Python numbers among them that are handed over at run time.
            runs: what ran (``run.record_runs``).
            one: the result is one tensor rather than a tuple.
            runner: what ran it.
        """
        if len(runs) != 1 or any(runs[0].tensors[name] is not values[name] for name in runs[0].runner.arguments):
            return
        (run,) = runs
        if self.module is not None and run.plan.program is None:
            return
        trained = next((t for t in runner.trained.values() if t.forward is run.runner and t.training.wanted), None)
        if trained is not None and self.module is not None and not runner.is_cacheable:
            return
        named = [*zip(self.parameters.names, args, strict=False), *kwargs.items()]
        inputs = self._inputs(run, [(name, value) for name, value in named if type(value) in TENSORS], values)
        if inputs is None:
            return
        varying = [name for name, value in named if self.parameters.varies(name, value)]
        numbers = {name: i for i, name in enumerate(varying)}
        fixed = {name: value for name, value in scalars.items() if name not in numbers}
        visible = trained.public if trained is not None else len(run.results)
        recorder = runner if trained is not None else None
        cached = CachedCall(run, inputs, numbers, fixed, visible, one, trained, recorder)
        self.call.insert(args, kwargs, cached if self.module is None else native_plan(self.module, cached))

    def _inputs(self, run: Run, given: Sequence[tuple[str, Any]], values: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Which of the call's tensors the run's are. Where the op looks at its arguments itself, what it passed on
        shows only in their identity, so a tensor may not be there twice."""
        wanted = run.runner.arguments
        if not self.prepared:
            names = [name for name, _ in given]
            return tuple(map(names.index, wanted)) if set(wanted) <= set(names) else None
        found = [id(value) for _, value in given]
        asked = [id(values[name]) for name in wanted]
        if len(set(found)) < len(found) or not set(asked) <= set(found):
            return None
        return tuple(map(found.index, asked))
