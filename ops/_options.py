"""What torch's arguments ask for beside mathematics: ``inplace=``, ``reduction=``, dtypes, limits of options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import fusegen as fg

P = ParamSpec("P")
R = TypeVar("R")


class LibraryOp(fg.FusedOp):
    """An op that takes torch's ``inplace=`` and looks at its arguments on every call, before anything runs.

    ``inplace=True`` writes the result into the first argument, which must not need a gradient (see ``out=``).
    ``inplace_backward=True`` writes the first argument's gradient into its memory (see
    fusegen/pytorch/autograd/inplace).

    Args:
        limits: per option, what it must be in words, and the test of it. It is passed all options by name.
        prepare: is passed all arguments by name and returns those that the declaration gets instead.
    """

    def __init__(self, declaration: Any, limits: dict[str, tuple[str, Any]], prepare: Any = None) -> None:
        super().__init__(declaration)
        names = list(declaration.signature.parameters)
        self.limits, self.prepare = limits, prepare
        codes = {name: holds.__code__ for name, (_, holds) in limits.items()}
        # What each limit is about, and what else its test asks for.
        self.reads = {n: (n, *(v for v in code.co_varnames[: code.co_argcount] if v != n)) for n, code in codes.items()}
        self.at = names.index("inplace") if "inplace" in names else -1
        declaration.overwrites = names[0] if "inplace_backward" in names else None
        if limits or prepare:
            declaration.prepare = self._prepared

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("inplace") or (0 < self.at < len(args) and args[self.at]):
            return self._inplace(self.declaration.bind(args, kwargs))
        return super().__call__(*args, **kwargs)

    def _prepared(self, values: dict[str, Any]) -> dict[str, Any]:
        for name, (expected, holds) in self.limits.items():
            read = self.reads[name]
            wrong = [option for option in read if not _may_be_option(values[option])]
            if not wrong and all(is_number(values[option]) for option in read) and not holds(**values):
                wrong = [name]
            for option in wrong:
                raise fg.DeclarationError(
                    f"{self.name}, option {option}", given=f"{option}={values[option]!r}",
                    expected=expected if option == name else "a number",
                    fix="pass a number" + " in that range" * (option == name),
                )  # fmt: skip
        return values if self.prepare is None else values | self.prepare(self.name, **values)

    def _inplace(self, values: dict[str, Any]) -> Any:
        values = {name: value for name, value in values.items() if not isinstance(value, fg.TensorSpec)}  # no seed
        target, *rest = values.values()
        if fg.is_symbolic((target, *rest), {}):
            raise fg.DeclarationError(
                f"{self.name}, option inplace", given="inplace=True inside an op's declaration",
                expected="inplace=False: there is no memory yet that could be written", fix="use the value it returns",
            )  # fmt: skip
        names = list(values)[1:]
        return super().__call__(target, **dict(zip(names, rest, strict=True)) | {"inplace": False}, out=target)


class RandomLibraryOp(LibraryOp, fg.RandomOp):
    """One that draws random numbers."""


class limited:
    """Decorator: ``@fg.op`` for an op with torch's ``inplace=`` or with limited options (see ``LibraryOp``).

    Args:
        kind: the subclass of LibraryOp to make.
        autocast: see ``fg.op``.
        like: an op whose options this one has as well, so that its limits hold too.
    """

    def __init__(
        self, prepare: Any = None, kind: type[LibraryOp] = LibraryOp, autocast: str | None = None,
        like: Any = None, **limits: tuple[str, Any],
    ) -> None:  # fmt: skip
        self.prepare, self.kind, self.autocast = prepare, kind, autocast
        self.limits = limits | getattr(like, "limits", {})

    def __call__(self, function: Callable[P, R]) -> fg.FusedOp[P, R]:
        declaration = fg.op(function, autocast=self.autocast, random=issubclass(self.kind, fg.RandomOp)).declaration
        made: fg.FusedOp[Any, Any] = self.kind(declaration, self.limits, self.prepare)
        return cast("fg.FusedOp[P, R]", made)


library_op = limited()


def is_number(value: Any) -> bool:
    """Whether this is a number of Python's, not one that a declaration gets at run time."""
    return isinstance(value, (bool, int, float))


def _may_be_option(value: Any) -> bool:
    """None, a number of any kind, a tensor of any library, or what stands for one in a declaration."""
    return value is None or hasattr(value, "dtype") or hasattr(value, "__float__")


def floats(name: str, x: fg.Tensor) -> fg.Tensor:
    """``x``, which must be a float tensor: torch refuses integers there too."""
    if not x.dtype.is_float:
        raise fg.DtypeError(
            name, given=f"{x.dtype}", expected="a float dtype (as torch)", fix="cast it: x.to(torch.float32)"
        )
    return x


def numbers(name: str, x: fg.Tensor) -> fg.Tensor:
    """``x``, which must not be a bool tensor: torch refuses those there too."""
    if x.dtype is fg.bool_:
        raise fg.DtypeError(
            name, given="bool", expected="a float or integer dtype (as torch)", fix="cast it: x.to(torch.float32)"
        )
    return x


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor, and neither a number of Python's nor one that a call passes."""
    return x is not None and not is_number(x) and not x.weak


def broadcast_first(*tensors: fg.Tensor) -> tuple[fg.Tensor, ...]:
    """Tensors as some losses of torch's take them, which broadcast before dtypes are promoted: one without dimensions
    counts as much as the others."""
    wide = next((x for x in tensors if is_tensor(x) and x.ndim), None)
    return tuple(x if wide is None or not is_tensor(x) or x.ndim else x.expand_as(wide) for x in tensors)


def among(number: Any, x: fg.Tensor) -> Any:
    """A number that takes the place of elements of ``x``, in their dtype if they are integers or bools.

    Beside a float number all of them would be floats on the way, which do not hold every integer.
    """
    return number if x.dtype.is_float else fg.cast(number, x.dtype)


def choose(name: str, option: str, given: Any, allowed: tuple[str, ...]) -> Any:
    """``given``, which must be one of ``allowed``."""
    if given not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise fg.DeclarationError(
            f"{name}, option {option}",
            given=f"{option}={given!r}",
            expected=f"one of {choices}",
            fix="pass one of these",
        )
    return given


def reduced(
    name: str, loss: fg.Tensor, reduction: str, size_average: bool | None = None, reduce: bool | None = None,
    weight: fg.Tensor | None = None,
) -> fg.Tensor:  # fmt: skip
    """``loss`` as it is, summed, or averaged (over ``weight`` where one is given).

    ``size_average`` and ``reduce`` are torch's deprecated way to say the same; either of them overrules ``reduction``.
    """
    if size_average is not None or reduce is not None:
        everything = reduce is None or reduce
        reduction = "none" if not everything else "mean" if size_average is None or size_average else "sum"
    if choose(name, "reduction", reduction, ("none", "mean", "sum")) == "none":
        return loss
    if reduction == "sum":
        return fg.sum(loss)
    total: fg.Tensor = fg.sum(loss)
    return fg.mean(loss) if weight is None else total / fg.sum(weight)
