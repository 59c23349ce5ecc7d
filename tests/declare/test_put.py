"""What is put at indices in several dimensions, and at masks and indices beside slices and ints.

The functions are torch code, run as they stand and as an op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusegen as fg
from tests.support.modes import MODES
from tests.support.oracles import draw, refused

pytestmark = pytest.mark.emulator

LABELS, FEW = torch.tensor([1, 3, 0]), torch.tensor([0, -1])
PAIRS, ROWS = torch.tensor([[0, 1], [2, 3]]), torch.tensor([True, False, True])


def own_class(y: Any, v: Any, i: Any) -> None:
    y[torch.arange(3), i] -= v


def own_class_of_a_result(y: Any, v: Any, i: Any) -> None:
    y[range(3), i] = v * y.sum(1)


def by_lists(y: Any, v: Any, i: Any) -> None:
    y[[0, 2], [1, 1]] *= v[:2]


def in_a_table(y: Any, v: Any, i: Any) -> None:
    y[i % 3, i] = v[:2]


def rows_and_their_elements(y: Any, v: Any, i: Any) -> None:
    y[torch.arange(3)[:, None], torch.stack([i, (i + 1) % 4], 1)] = v[:, None] * 5


def a_column_of_some_rows(y: Any, v: Any, i: Any) -> None:
    y[i, 1] = v[:2]
    y[i, 2:] = y[i, 0].sin()[:, None]


def behind_a_dimension(y: Any, v: Any, i: Any) -> None:
    y[:, i, -1] = v[:2]
    y[0, i] = y[1, i] * 2


def around_a_dimension(y: Any, v: Any, i: Any) -> None:
    y[i, :, i] = v[0] * y[:2, :, 0].clone().sin()


def of_a_view(y: Any, v: Any, i: Any) -> None:
    y.view(2, 12)[torch.arange(2), i] = v[:2]


def a_mask_and_a_column(y: Any, v: Any, m: Any) -> None:
    y[m, 0] = 0.0
    y[m, 2:] = v[:2] * 2


def elements_of_some_rows(y: Any, v: Any, m: Any) -> None:
    y[m, 0] *= v[0]
    y[m, 2:] = y[m, 2:].sin() * 2
    y[m, 1] = y[m, 3] + v[1]


def a_mask_of_columns(y: Any, v: Any, m: Any) -> None:
    y[:, m] = v[0]
    y[1:, m] = v[:2, None]


def added_by_index_put(y: Any, v: Any, i: Any) -> None:
    y.index_put_((i % 2, i), v, accumulate=True)
    y.copy_(torch.index_put(y, (i[1:] % 2,), y[0].clone() * v[0]))


def counted(y: Any, v: Any, i: Any) -> None:
    y.index_put_((i % 2, i % 2), v, accumulate=True)  # two for one place


def added_where_a_mask_holds(y: Any, v: Any, m: Any) -> None:
    y.index_put_((m,), v[0], accumulate=True)


CASES: dict[str, tuple[Callable[..., None], tuple[int, ...], torch.Tensor]] = {
    function.__name__: (function, shape, tensor)
    for function, shape, tensor in (
        (own_class, (3, 4), LABELS), (own_class_of_a_result, (3, 4), LABELS), (by_lists, (3, 4), LABELS),
        (in_a_table, (3, 4), PAIRS), (rows_and_their_elements, (3, 4), LABELS), (a_column_of_some_rows, (3, 4), FEW),
        (behind_a_dimension, (2, 3, 4), FEW), (around_a_dimension, (3, 2, 3), FEW), (of_a_view, (2, 3, 4), FEW),
        (added_by_index_put, (3, 4), LABELS), (counted, (3, 4), LABELS), (added_where_a_mask_holds, (3, 4), ROWS),
        (a_mask_and_a_column, (3, 4), ROWS), (elements_of_some_rows, (3, 4), ROWS), (a_mask_of_columns, (3, 3), ROWS),
    )
}  # fmt: skip


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("arrays", "compiled")])
@pytest.mark.parametrize("name", CASES)
def test_every_mode(name: str, mode: str) -> None:
    if (name, mode) == ("around_a_dimension", "vmap"):
        pytest.skip("torch's vmap refuses the shape of what is put")
    write, shape, at = CASES[name]

    def written(x: Any, v: Any, at: Any) -> Any:
        y = x.sin() * 1
        write(y, v, at)
        return y

    op = fg.op(written)
    MODES[mode](
        lambda x, v, **out: op(x, v, at, **out), lambda x, v: written(x, v, at), [draw(*shape), draw(3, seed=1)]
    )


def test_a_place_out_of_range_in_one_dimension_is_none_of_another_row() -> None:
    def written(x: Any, i: Any) -> Any:
        y = x * 1
        y[torch.arange(3), i] = 0.0
        return y

    x = torch.randn(3, 4)
    with pytest.raises(fg.PlaceError, match="index i"):
        fg.op(written)(x, torch.tensor([0, 4, 1]))
        fg.check_indices()  # a GPU is not waited for


@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 1)])
def test_more_than_is_told_does_not_fit(shape: tuple[int, ...]) -> None:
    def written(x: Any, i: Any, v: Any) -> Any:
        y = x * 1
        y[i, i] = v
        return y

    error = refused(lambda: fg.op(written)(torch.randn(3, 4), torch.tensor([1]), torch.randn(shape)))
    assert isinstance(error, fg.ShapeError) and "that are told" in str(error) and "[a tensor, a tensor] =" in str(error)


def test_dimensions_of_one_element() -> None:
    def written(x: Any, i: Any) -> Any:
        y = x * 1
        y[i, torch.arange(1)] = 3.0
        return y

    for shape in ((1, 4), (1, 1), (3, 1)):
        x, i = torch.randn(shape, dtype=torch.float64), torch.tensor([0])
        torch.testing.assert_close(fg.op(written)(x, i), written(x, i))
