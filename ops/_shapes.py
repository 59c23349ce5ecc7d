"""What torch asks of shapes, checked on every call before anything runs.

A trace knows only which sizes are 1, so that a new shape is no new trace; what sizes must be is checked here, on the
tensors. Inside another op's declaration it is checked on the sizes that the call's tensors have there: a declaration
that calls ops with such checks is traced for each shape, and finds its kernels.
"""

from __future__ import annotations

from typing import Any

import fusegen as fg


def is_symbolic(tensor: Any) -> bool:
    """Whether it is a value of a declaration that is being traced."""
    return hasattr(tensor, "dims")


def sizes(tensor: Any) -> Any:
    """The shape as a tuple of ints; None of what is no tensor, or a nested one, which is refused later."""
    if is_symbolic(tensor):
        return None if tensor.weak else tensor.sizes
    shape = None if getattr(tensor, "is_nested", False) else getattr(tensor, "shape", None)
    return None if shape is None else tuple(shape)


def size(dim: Any) -> int:
    """The size of a dimension of a declaration's tensor where it is traced."""
    return dim.size if dim else 1


def shapes(**tensors: Any) -> str:
    """``input[2, 3] and weight[5, 4]``: sizes that a declaration's tensors have where it is traced."""
    return " and ".join(f"{name}{list(map(size, t.dims))}" for name, t in tensors.items())


def needed(op: str, **tensors: Any) -> None:
    """These arguments of a declaration must be tensors."""
    for name, tensor in tensors.items():
        if not hasattr(tensor, "dims"):
            raise fg.DeclarationError(
                f"{op}, argument {name}", given=repr(tensor), expected="a tensor", fix="pass a tensor"
            )


def wrong_shape(op: str, name: str, given: Any, expected: str, fix: str) -> fg.FusegenError:
    """The error of an argument of the wrong shape."""
    shown = f"shape {list(given)}" if isinstance(given, tuple) else str(given)
    return fg.ShapeError(f"{op}, argument {name}", given=shown, expected=expected, fix=fix)


def same_sizes(op: str, name: str, tensor: Any, expected: tuple[int, ...], what: str) -> None:
    """An optional ``tensor`` must have exactly the ``expected`` shape, which is ``what``."""
    given = sizes(tensor)
    if given is not None and given != expected:
        as_many = product(given) == product(expected)
        fix = f"reshape it: {name}.reshape({list(expected)})" if as_many else "pass one of that shape"
        raise wrong_shape(op, name, given, f"shape {list(expected)}: {what}", fix)


def trailing(op: str, input: Any, normalized_shape: Any) -> tuple[int, ...]:
    """``normalized_shape`` as a tuple, which must be the input's trailing sizes.

    Raises:
        DeclarationError: it is no sequence of ints.
        ShapeError: it is empty, or other sizes.
    """
    if isinstance(normalized_shape, (int, str)) or not hasattr(normalized_shape, "__len__"):
        raise fg.DeclarationError(
            f"{op}, argument normalized_shape", given=f"{normalized_shape!r}",
            expected="a tuple of the input's trailing sizes", fix="pass input.shape[-1:] for the last dimension",
        )  # fmt: skip
    wanted, shape = tuple(normalized_shape), sizes(input)
    if not wanted:
        raise wrong_shape(op, "normalized_shape", (), "at least one size", "pass input.shape[-1:]")
    if shape is not None and None not in wanted and shape[-len(wanted) :] != wanted:
        known = f"{list(wanted)} for an input of shape {list(shape)}"
        expected = f"its trailing sizes, such as {list(shape[-len(wanted) :])}"
        raise wrong_shape(op, "normalized_shape", known, expected, f"pass input.shape[-{len(wanted)}:]")
    return wanted


def not_empty(op: str, input: Any, dim: Any) -> None:
    """There must be something to choose from along ``dim`` (an int, several, or None for all)."""
    shape = sizes(input)
    if shape is None or 0 not in shape:
        return
    rank = len(shape)
    chosen = range(rank) if dim is None or dim == () else (dim,) if isinstance(dim, int) else tuple(dim)
    empty = [d for d in chosen if -rank <= d < rank and shape[d] == 0]
    if empty:
        raise wrong_shape(
            op, "input", f"shape {list(shape)}, where dimension {empty[0]} has no elements",
            "elements in every reduced dimension (as torch)", "reduce other dimensions, or handle empty tensors apart",
        )  # fmt: skip


def view(tensor: Any, shape: tuple[int, ...]) -> Any:
    """``tensor`` with one dimension split in two, which is a view of it whatever its strides are; None stays None."""
    if tensor is None:
        return None
    return fg.TensorSpec(tensor.dtype, shape) if isinstance(tensor, fg.TensorSpec) else tensor.reshape(shape)


def product(factors: tuple[int, ...]) -> int:
    """The product of some sizes."""
    total = 1
    for factor in factors:
        total *= factor
    return total
