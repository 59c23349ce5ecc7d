"""``@fg.op``: what a declaration becomes. Called with tensors it runs, called inside another op it is inlined."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, overload

from fusegen import intercept
from fusegen.core.errors import DeclarationError, FusegenError
from fusegen.core.ir import Op, names_read
from fusegen.core.recent import Recent
from fusegen.declare.op import SEED, Declaration, is_symbolic
from fusegen.declare.tensor import Tensor
from fusegen.declare.trace import ScalarSpec, Spec, TensorSpec
from fusegen.intercept import compiled_call
from fusegen.plan import decided, entry, frameworks, overlap
from fusegen.plan.seeds import seeded, seeded_by_torch
from fusegen.pytorch.library.handles import token_of
from fusegen.run.runner import Run, Runner, record_runs
from fusegen.run.runners import runner_of

# Parameters and results of a declaration, for type checkers: FusedOp by itself is an op of any.
if TYPE_CHECKING:
    import torch
    from typing_extensions import ParamSpec, TypeVar

    from fusegen.declare.tensor import Foreign, Given, Option, Unknown

    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R_co = ParamSpec("P"), TypeVar("R_co", covariant=True)
_Gradient = TypeVar("_Gradient", bound=Callable[..., Any])

# Runners that an op keeps. Patterns of ranks and dtypes are far fewer; a constant that is another number at each call
# would make them without end.
MOST_RUNNERS = 512


def torch_is_loaded() -> bool:
    """Whether torch has been imported.

    To torch.compile the answer is a constant. It would guard on every entry of ``sys.modules`` otherwise, and its own
    imports add to these while it traces.
    """
    return "torch" in sys.modules


torch_is_loaded._dynamo_marked_constant = True  # type: ignore[attr-defined]


class FusedOp(Generic[P, R_co]):
    """A declared op.

    Call it with tensors of one framework and device (and Python numbers); results are tensors of that framework.
    ``out=`` takes a tensor (or a tuple, for several results) to write into; it may be an argument itself.

    Attributes:
        runs: how calls run, in words, where that is not what ``show`` prints.
    """

    runs = ""
    __name__: str

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self._runners: Recent[tuple[Op, bool, str | None], Any] = Recent(MOST_RUNNERS)
        self._plans: Any = None  # a PlanCache (pytorch/calls)
        self._cached: Any = None  # what calls go to first, as soon as one was remembered
        self.token = token_of(self, declaration.name)
        functools.update_wrapper(self, declaration.function)

    def for_call(self, args: tuple[Any, ...]) -> FusedOp:
        """The op that a call with these positional arguments is one of."""
        return self

    def __repr__(self) -> str:
        declaration = self.declaration
        return f"<fusegen op {declaration.name}{declaration.signature}, declared in {declaration.declared}>"

    @property
    def name(self) -> str:
        return self.declaration.name

    def __reduce__(self) -> str:
        """Pickled and copied by its name, as a function is."""
        return str(getattr(self, "__qualname__", self.name))

    def __deepcopy__(self, memo: Any) -> FusedOp:
        return self

    def __copy__(self) -> FusedOp:
        return self

    # Of a declaration without annotations; with tensors of a framework; in another declaration; with others' arrays.
    @overload
    def __call__(self: FusedOp[P, Unknown], /, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    @overload
    def __call__(self: FusedOp[P, Tensor], /, *args: Given | Option, **kwargs: Given | Option) -> Given: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: FusedOp[P, tuple[Tensor, Tensor]], /, *args: Given | Option, **kwargs: Given | Option
    ) -> tuple[Given, Given]: ...
    @overload
    def __call__(
        self: FusedOp[P, Sequence[Tensor]], /, *args: Given | Option, **kwargs: Given | Option
    ) -> tuple[Given, ...]: ...
    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self: FusedOp[P, Tensor], /, *args: Foreign | Option, **kwargs: Foreign | Option) -> Foreign: ...
    @overload
    def __call__(
        self: FusedOp[P, Sequence[Tensor]], /, *args: Foreign | Option, **kwargs: Foreign | Option
    ) -> tuple[Foreign, ...]: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        # Dynamo knows the answer to this, and reads no further. Each name that it meets is a guard, checked on every
        # compiled call, and a module met in two ways a slow one.
        if torch_is_loaded():
            import torch

            if torch.compiler.is_dynamo_compiling():
                return compiled_call()(self, args, kwargs, True)
        cached = self._cached
        return self._slow_path(args, kwargs) if cached is None or decided.state.anew else cached(args, kwargs)

    def _slow_path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of any kind, decided anew. What was done for torch's tensors is remembered (pytorch/calls)."""
        if is_symbolic(args, kwargs):
            return self.declaration.inline(args, kwargs)
        if intercept.torch_is_unknown():  # what it is at cannot be asked
            return self.call(args, kwargs)
        taken = intercept.torch_function(self, args, kwargs)
        if taken is not NotImplemented:
            return taken
        if intercept.is_traced(self.name, (*args, *kwargs.values())):
            return intercept.dispatcher()(self, args, kwargs)
        return self.call(args, kwargs)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: Any = Ellipsis) -> Any:
        """The op called on tensors of which no dispatcher need know.

        Args:
            autocast: what float tensors are computed with (a DType or None); by default what torch.autocast says.
        """
        given = dict(kwargs)
        out = None if "out" in self.declaration.signature.parameters else given.pop("out", None)
        values = self.declaration.bind(args, given)
        framework, values, back = entry.enter(self.name, values)
        specs, scalars = self._specs(values, framework)
        is_usual = autocast is Ellipsis
        if is_usual:
            asked = self.declaration.autocast is not None
            autocast = framework.autocast(self.declaration, specs, values) if asked else None
        op = self.declaration.trace(specs, autocast)
        if framework.name == "torch" and intercept.torch_is_unknown():
            results = self._unfused(op, values, scalars, out)
        else:
            with record_runs() as runs:
                results = self._run(op, values, scalars, framework, out)
            if decided.state.anew and self._cached is not None:
                self._cached.clear()  # what was decided otherwise before
            if is_usual and framework.name == "torch" and out is None:
                self._remember(args, kwargs, values, scalars, op, runs)
        results = [back(result) for result in results]
        return results[0] if op.result == "one" else tuple(results)

    def _remember(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, Any], scalars: Mapping[str, Any],
        op: Op, runs: Sequence[Run],
    ) -> None:  # fmt: skip
        if self._plans is None or self._plans.is_outdated():
            from fusegen.pytorch.calls.plan_cache import PlanCache

            self._use(PlanCache(self.declaration, self._slow_path))
        runner = self._runners.get((op, True, self.declaration.overwritten(values)))
        if runner is not None:  # not if other threads' calls came between, too many or the first with another gradient
            self._plans.insert(args, kwargs, values, scalars, runs, op.result == "one", runner)

    def _use(self, plans: Any) -> None:
        self._plans, self._cached = plans, plans.call

    def _specs(
        self, values: Mapping[str, Any], framework: frameworks.Framework
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        specs: dict[str, Any] = {}
        scalars: dict[str, Any] = {}
        for name, value in values.items():
            if framework.owns(value):
                try:
                    dtype = framework.dtype(name, value)
                except FusegenError as error:
                    raise error.within(self.name) from None
                specs[name] = TensorSpec(dtype, tuple(value.shape))
            elif self.declaration.is_runtime_number(name, value):
                specs[name] = self.declaration.scalar_spec(name, value)
                scalars[name] = value
            else:
                specs[name] = value
        return specs, scalars

    def _run(
        self, op: Op, values: Mapping[str, Any], scalars: Mapping[str, Any], framework: frameworks.Framework, out: Any
    ) -> list[Any]:
        if not op.operands:
            raise DeclarationError(
                f"{self.name}{self.declaration.signature}", given="no tensor that the op reads",
                expected="at least one tensor", fix="pass tensors; for numbers use Python's math",
            )  # fmt: skip
        overwritten = self.declaration.overwritten(values)
        key = op, framework.name == "torch", overwritten
        runner = self._runners.get(key)
        if runner is None:  # the first of several threads'
            runner = self._runners.setdefault(key, self._new_runner(op, framework, overwritten))
        if out is not None:
            outs = list(out) if isinstance(out, (tuple, list)) else [out]
            return self._into(runner, values, scalars, framework, outs)
        result: list[Any] = (
            runner(values, scalars) if framework.name == "torch" else _plain(runner)(values, scalars, framework)
        )
        return result

    def _unfused(self, op: Op, values: Mapping[str, Any], scalars: Mapping[str, Any], out: Any) -> list[Any]:
        from fusegen.pytorch.library import unfused

        outs = out if out is None or isinstance(out, (tuple, list)) else [out]
        return unfused.call(op, values, scalars, outs)

    def _new_runner(self, op: Op, framework: frameworks.Framework, overwritten: str | None) -> Any:
        if framework.name != "torch":
            return runner_of(op, by_torch=False)
        if overwritten:
            from fusegen.pytorch.autograd.inplace import Overwriting

            return Overwriting(runner_of(op), overwritten=overwritten)
        from fusegen.pytorch.autograd.function import Differentiable

        return Differentiable(runner_of(op))

    def _into(
        self, runner: Any, values: Mapping[str, Any], scalars: Mapping[str, Any], framework: frameworks.Framework,
        outs: list[Any],
    ) -> list[Any]:  # fmt: skip
        plain = _plain(runner)
        count = len({o.base for o in plain.op.outputs})
        if len(outs) != count or not all(framework.owns(t) for t in outs):
            raise DeclarationError(
                f"{self.name}, out=", given=f"{len(outs)} of {', '.join(type(t).__name__ for t in outs)}",
                expected=f"{count} {framework.name} tensor{'s' if count > 1 else ''}", fix="pass one for each result",
            )  # fmt: skip
        if framework.name == "torch":
            intercept.check_no_gradient(self.name, [*values.values(), *outs])
        overlap.check_writable(self.name, outs, framework)
        overlap.check_overlap(self.name, values, outs, framework)
        found: list[Any] = plain(values, scalars, framework, outs)
        overlap.mark_written(outs, framework)
        return found

    # -- looking inside -------------------------------------------------------------------------------------------

    def trace(self, /, *args: Any, **kwargs: Any) -> Op:
        """The Op for these arguments: tensors, ``fg.TensorSpec`` in their place, numbers, constants."""
        values = self.declaration.bind(args, kwargs)
        return self.declaration.trace({name: self._spec(name, value) for name, value in values.items()})

    def _spec(self, name: str, value: Any) -> Spec | Any:
        if isinstance(value, (TensorSpec, ScalarSpec)):
            return value
        if self.declaration.is_runtime_number(name, value):
            return self.declaration.scalar_spec(name, value)
        framework = entry.framework_of(value)
        if framework is None:
            known = entry.described(value)
            return value if known is None else TensorSpec(*known)
        return TensorSpec(framework.dtype(name, value), tuple(value.shape))

    def overload(self, /, *args: Any, **kwargs: Any) -> torch._ops.OpOverload:
        """What such a call is for torch, ``torch.ops.fusegen.lerp.default``; it is registered if it is not yet."""
        from fusegen.pytorch.library.dispatch import overload

        found: torch._ops.OpOverload = overload(self, args, kwargs)
        return found

    def backward(self, /, *args: Any, wanted: Sequence[str] | None = None, **kwargs: Any) -> Op:
        """The Op that computes the gradients of ``wanted`` (by default of every float tensor argument)."""
        from fusegen.derive.gradient import gradient

        op = self.trace(*args, **kwargs)
        floats = dict.fromkeys(o.base for o in op.operands if o.dtype.is_float)
        return gradient(op, tuple(wanted or floats))

    def tangent(self, /, *args: Any, wanted: Sequence[str] | None = None, **kwargs: Any) -> Op:
        """The Op that computes the results' tangents, given those of ``wanted`` (by default of every float tensor)."""
        from fusegen.derive.tangent import tangent

        return tangent(self.trace(*args, **kwargs), self.backward(*args, wanted=wanted, **kwargs))

    # -- overriding the gradient ----------------------------------------------------------------------------------

    def gradient(self, function: _Gradient) -> _Gradient:
        """Decorator: ``function(d_out, *arguments)`` replaces the derived gradient.

        It is declared like an op. It gets the cotangent of each float output, then all of the op's own arguments
        (options too; by name those that it takes by keyword only), and returns one gradient per tensor argument (None
        for none), each of the result's shape: sums over broadcast dimensions are added by fusegen. Use it for
        straight-through estimators. A result is handed over where it is asked for by keyword only, ``*, out`` (of
        several float results ``out_0``, ``out_1``): ``def _(d_out, x, *, out): return d_out * out``.

        Raises:
            DeclarationError: other ops that call this one have been traced.
            DerivativeError: on a call: it takes other arguments, or returns another number of gradients.
        """
        self.declaration.set_gradient(function)
        self._runners.clear()
        self._cached = self._plans = None
        if "_registered" in self.__dict__:
            self.__dict__["_registered"].forget()
        return function

    def show(self, /, *args: Any, which: str | None = None, **kwargs: Any) -> str:
        """Every stage as text: declared, derived, fused, scheduled, CUDA; of forward and backward, or of one pass."""
        from fusegen.inspect.passes import show

        return show(self, args, kwargs, which)

    def emit(self, /, *args: Any, which: str = "forward", **kwargs: Any) -> str:
        """The CUDA text of one pass ("forward", "backward", "double-backward", "tangent") for these arguments."""
        from fusegen.inspect.passes import emit

        return emit(self, args, kwargs, which)


class RandomOp(FusedOp[P, R_co]):
    """A declared op that draws random numbers: each call has a seed, of the framework's own generator or ``seed=``."""

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(declaration)
        self.__signature__ = declaration.signature  # with the seed
        self._drawing: dict[Any, bool] = {}  # whether calls with these constants draw any number

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if torch_is_loaded():
            import torch

            if torch.compiler.is_dynamo_compiling():
                return super().__call__(*args, **seeded_by_torch(args, kwargs))
        if kwargs.get(SEED) is None and not is_symbolic(args, kwargs):
            kwargs = seeded(self.name, args, kwargs) if self._draws(args, kwargs) else {**kwargs, SEED: 0}
        return super().__call__(*args, **kwargs)

    def _draws(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether such a call needs a seed: not where it drops nothing since it is not training, say. Then the
        generator stays where it is, as torch's."""
        positions = tuple((i, a) for i, a in enumerate(args) if isinstance(a, (bool, str, type(None))))
        key = positions, tuple((n, a) for n, a in kwargs.items() if isinstance(a, (bool, str, type(None))))
        found = self._drawing.get(key)
        if found is None:
            try:
                op = self.trace(*args, **kwargs)
            except FusegenError:
                return True  # the call itself says what is wrong
            found = self._drawing[key] = SEED in names_read((*op.statements, *op.outputs))
        return found


class ListOp(FusedOp[P, R_co]):
    """A declared op that takes a list of tensors, ``*xs``: for each number of them it is an op of its own.

    Its tensors are named ``xs_0``, ``xs_1`` and so on.
    """

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(declaration)
        self._ops: dict[int, FusedOp] = {}

    def of(self, count: int) -> FusedOp:
        """The op that takes ``count`` tensors as its list."""
        found = self._ops.get(count)
        kind = RandomOp if self.declaration.random else FusedOp
        return found or self._ops.setdefault(count, kind(self.declaration.of_so_many(count)))

    def for_call(self, args: tuple[Any, ...]) -> FusedOp:
        """The op for so many tensors."""
        return self.of(self.declaration.count_listed(args))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if torch_is_loaded():
            import torch

            if torch.compiler.is_dynamo_compiling():
                given = seeded_by_torch(args, kwargs) if self.declaration.random else kwargs
                return compiled_call()(self, args, given, True)
        return self.for_call(args)(*args, **kwargs)

    def trace(self, /, *args: Any, **kwargs: Any) -> Op:
        """See ``FusedOp.trace``."""
        return self.for_call(args).trace(*args, **kwargs)

    def backward(self, /, *args: Any, wanted: Sequence[str] | None = None, **kwargs: Any) -> Op:
        """See ``FusedOp.backward``."""
        return self.for_call(args).backward(*args, wanted=wanted, **kwargs)

    def tangent(self, /, *args: Any, wanted: Sequence[str] | None = None, **kwargs: Any) -> Op:
        """See ``FusedOp.tangent``."""
        return self.for_call(args).tangent(*args, wanted=wanted, **kwargs)

    def gradient(self, function: _Gradient) -> _Gradient:
        """See ``FusedOp.gradient``: ``function(d_out, *xs)`` returns a gradient for each of them."""
        for op in self._ops.values():
            op.gradient(function)
        return super().gradient(function)

    def show(self, /, *args: Any, which: str | None = None, **kwargs: Any) -> str:
        """See ``FusedOp.show``."""
        return self.for_call(args).show(*args, which=which, **kwargs)

    def emit(self, /, *args: Any, which: str = "forward", **kwargs: Any) -> str:
        """See ``FusedOp.emit``."""
        return self.for_call(args).emit(*args, which=which, **kwargs)


def _plain(runner: Any) -> Runner:
    return runner if isinstance(runner, Runner) else runner.runner


@overload
def op(
    function: Callable[P, R_co], *, name: str | None = None, autocast: str | None = None, random: bool = False,
    check_indices: bool = True,
) -> FusedOp[P, R_co]: ...  # fmt: skip
@overload
def op(
    *, name: str | None = None, autocast: str | None = None, random: bool = False, check_indices: bool = True
) -> Callable[[Callable[P, R_co]], FusedOp[P, R_co]]: ...
def op(
    function: Callable[..., Any] | None = None, *, name: str | None = None, autocast: str | None = None,
    random: bool = False, check_indices: bool = True,
) -> Any:  # fmt: skip
    """Declare an op.

    The function is traced with symbolic tensors under torch's rules for broadcasting, ``axis``/``keepdims`` and dtype
    promotion. What it may use: operators, the functions of ``fusegen`` (``fg.exp``, ``fg.where``, ``fg.sum``, ...),
    other ops, and Python itself as long as it does not ask for the values. It may take a list of tensors, ``*xs``.

    Args:
        autocast: what becomes of float tensors where torch.autocast is on: "float32", "half" (autocast's own dtype),
            "widest" (the widest among them), or None: they stay as they are. Inside another op the other op's counts.
        random: it draws random numbers (``fg.dropout``, ``fg.rand_like``, ...). Each call then has a seed of its own,
            an int64 that is drawn on the tensors' device from the framework's own generator, so that it follows
            ``torch.manual_seed``, checkpoints, CUDA graphs and vmap's ``randomness``. ``seed=`` takes its place: an
            int, or such a tensor. The same seed and shapes are the same numbers, on every device.
        check_indices: an index that is out of range is an error (``fg.PlaceError``). False: kernels do not tell, which
            saves them a few instructions. It reads zero, and writes nothing.

    Raises:
        DeclarationError: the signature has ``**kwargs``, or a default in front of ``*xs``; no such autocast policy; on
            a call: what it does is not possible.
    """
    if function is None:
        return lambda f: op(f, name=name, autocast=autocast, random=random, check_indices=check_indices)
    declaration = Declaration.of(function, name, autocast, random, check_indices)
    if declaration.tensors is not None:
        return ListOp(declaration)
    return RandomOp(declaration) if random else FusedOp(declaration)
