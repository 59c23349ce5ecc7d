"""What a declaration reads in windows and at several places at once, and the small tensors that it writes down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusegen as fg
from tests.support.oracles import check_is_torchs, check_same, draw

pytestmark = pytest.mark.emulator


def local_maxima(x: Any) -> Any:
    return x * (F.max_pool2d(x, 3, stride=1, padding=1) == x).float()


def sobel(x: Any) -> Any:
    kernel = torch.tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=x.dtype, device=x.device)
    return (F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1) * kernel).sum((-1, -2))


def standardized(x: Any) -> Any:
    mean = torch.tensor([0.485, 0.456, 0.406])[None, :, None, None]
    return (x - mean) / torch.as_tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)


def pinball(x: Any) -> Any:
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=x.dtype)
    error = x[..., None] - levels
    return torch.maximum(levels * error, (levels - 1) * error).mean()


def squeezed(x: Any) -> Any:
    return x * F.adaptive_avg_pool2d(x, 1).sigmoid() + F.adaptive_max_pool2d(x, (1, None))


IMAGE = (2, 3, 6, 4)
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "standardized": (standardized, [IMAGE]),
    "squeezed": (squeezed, [IMAGE]),
    "an average that overlaps": (lambda x: F.avg_pool2d(x, 3, 1, 1), [IMAGE]),
    "an average of what is there": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [IMAGE]),
    "a maximum whose elements tie": (lambda x: F.max_pool2d(x.relu(), 2), [IMAGE]),
    "a maximum that overlaps": (lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGE]),
    "an average over the end": (lambda x: F.avg_pool2d(x, (4, 3), 2, 1, ceil_mode=True), [IMAGE]),
    "an average over the end, of what is there": (
        lambda x: F.avg_pool2d(x, 2, (4, 3), 1, ceil_mode=True, count_include_pad=False), [IMAGE],
    ),
    "a last window that would begin behind the end": (lambda x: F.avg_pool1d(x, 2, 4, 1, ceil_mode=True), [(2, 3, 7)]),
    "a maximum over the end": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), [IMAGE]),
    "a maximum of every other": (lambda x: F.max_pool2d(x, (3, 2), 1, 1, dilation=(2, 1)), [IMAGE]),
    "a power's mean": (lambda x: F.lp_pool2d(x.abs() + 0.1, 3.0, (2, 3), ceil_mode=True), [IMAGE]),
    "windows as columns": (lambda x, w: w @ F.unfold(x, (3, 2), padding=1, stride=(1, 2)), [IMAGE, (5, 18)]),
    "columns of every other": (lambda x: F.unfold(x[0], 2, dilation=(2, 1)).sin(), [IMAGE]),
    "local maxima": (local_maxima, [IMAGE]),
    "sobel": (sobel, [IMAGE]),
    "pixels of channels": (lambda x: F.pixel_shuffle(x, 2).sin(), [(2, 12, 3, 5)]),
    "channels of pixels": (lambda x: F.pixel_unshuffle(x, 2) * 2, [IMAGE]),
    "what was averaged, enlarged": (lambda x: x - F.interpolate(F.avg_pool2d(x, 2), scale_factor=2), [IMAGE]),
    "to a size": (lambda x: F.interpolate(x, size=(12, 2)) * 2, [IMAGE]),
    "blocks along a diagonal": (lambda x, y: torch.block_diag(x, y.sin(), x[0]), [(3, 4), (2, 2)]),
    "combinations": (lambda x, y: torch.cartesian_prod(x, y.exp()), [(3,), (4,)]),
    "as many dimensions": (lambda x, y: torch.tensordot(x, y, ([0, 2], [2, 0])), [(2, 3, 4), (4, 5, 2)]),
    "pinball": (pinball, [(4, 6)]),
    "a matrix of numbers": (lambda x: x @ torch.tensor([[1.0, 0.5], [0.25, 2], [3, 4]], dtype=x.dtype), [(4, 3)]),
    "numbers of all kinds": (lambda x: torch.where(torch.tensor([True, False, True]), x, 0) + torch.tensor([1, 2, 3]),
                             [(4, 3)]),
    "its elements": (lambda x: x * torch.tensor([1.5, 2.5])[1] + sum(torch.tensor([1, 2])), [(4, 3)]),
    "what is no list": (lambda x: x * (2 if torch.is_tensor(x) and not torch.is_tensor(2.0) else 3), [(4, 3)]),
}  # fmt: skip


def check(function: Callable[..., Any], given: list[torch.Tensor]) -> None:
    check_is_torchs(function, given, "images")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_is_torchs(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    check(function, [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes])


PLACES: dict[str, tuple[Callable[..., Any], tuple[int, ...], list[tuple[int, ...]]]] = {
    "one of each row": (lambda x, i: x.log_softmax(-1)[torch.arange(x.shape[0]), i], (3, 3), [(3,)]),
    "of what it meets": (lambda x, i: x[torch.arange(5), i] + x.sum(1) + i, (5, 6), [(5,)]),
    "pairs": (lambda x, i, j: x[i, j] * 2, (5, 6), [(7,), (7,)]),
    "behind a batch": (lambda x, i, j: x[:, i, j], (2, 5, 6), [(7,), (7,)]),
    "apart": (lambda x, i, j: x[i, :, j], (5, 3, 6), [(7,), (7,)]),
    "apart by a new dimension": (lambda x, i, j: x[i, None, :, j], (5, 3, 6), [(7,), (7,)]),
    "apart by an element": (lambda x, i, j: x[i, 2, j] + x[i, -1][:, 0], (5, 6, 4), [(7,), (7,)]),
    "that broadcast": (lambda x, i, j: x[i, j, 1:], (5, 6, 4), [(3, 1), (4,)]),
    "three": (lambda x, i, j, k: x[i, j, k].sin(), (5, 6, 4), [(7,), (7,), (7,)]),
    "of a single row": (lambda x, i, j: x[i, j * 0], (5, 1, 4), [(7,), (7,)]),
    "the same for both": (lambda x, i: x[i, i] * x[i[:, None], i], (5, 5), [(5,)]),
    "from the end": (lambda x, i, j: x[i - 3, -j - 1], (5, 6), [(7,), (7,)]),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_in_several_dimensions(name: str) -> None:
    function, shape, indices = PLACES[name]
    places = [torch.randint(0, 3, size) for size in indices]
    check(function, [torch.randn(shape, dtype=torch.float64, requires_grad=True), *places])


def test_compiled_and_mapped() -> None:
    x, i = torch.randn(4, 5, 6, requires_grad=True), torch.randint(0, 6, (4, 5))
    op = fg.op(lambda x, i: x[torch.arange(5), i] * torch.tensor([1.0, 2, 3, 4, 5]), name="picked")
    torch.testing.assert_close(torch.vmap(op)(x, i), torch.vmap(op.declaration.function)(x, i))
    compiled = torch.compile(lambda x: op(x, i[0]) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x[0]), 2 * op.declaration.function(x[0], i[0]))


def test_what_is_out_of_range_is_told() -> None:
    with pytest.raises(fg.PlaceError, match="index i"):
        fg.op(lambda x, i: x[torch.arange(3), i], name="picked")(torch.randn(3, 4), torch.tensor([0, 4, 1]))
        fg.check_indices()  # a GPU is not waited for


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "windows of two sizes": (lambda x: F.adaptive_avg_pool2d(x, 4), "windows of one size"),
    "no pixels to take windows of": (lambda x: F.adaptive_avg_pool2d(x[..., :0], 1), "some pixels each"),
    "places of maxima": (lambda x: F.max_pool2d(x, 2, return_indices=True), "leave return_indices away"),
    "no image": (lambda x: F.max_pool2d(x[0, 0], 2), "channels and 2 dimensions"),
    "between pixels": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "nearest"),
    "no multiple": (lambda x: F.interpolate(x, scale_factor=1.5), "a whole multiple"),
    "channels that are no squares": (lambda x: F.pixel_shuffle(x, 2), "divides by 4"),
    "a long list": (lambda x: x * torch.tensor([0.5] * 65), "64 numbers at most"),
    "lists of several lengths": (lambda x: x * torch.tensor([[1.0], [2.0, 3.0]]), "lists of one length"),
    "tensors in a list": (lambda x: x * torch.tensor([x.sum(), 1.0]), "torch.stack"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_said_is_explained(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(fg.FusegenError, match=said) as caught:
        fg.op(function, name="images")(torch.randn(IMAGE))
    assert "line " in str(caught.value)


def edges(x: Any) -> Any:
    p = F.pad(x, (1, 1, 1, 1), mode="replicate")
    right, left = (
        p[:, :-2, 2:] + 2 * p[:, 1:-1, 2:] + p[:, 2:, 2:],
        p[:, :-2, :-2] + 2 * p[:, 1:-1, :-2] + p[:, 2:, :-2],
    )
    upper, lower = (
        p[:, 2:, :-2] + 2 * p[:, 2:, 1:-1] + p[:, 2:, 2:],
        p[:, :-2, :-2] + 2 * p[:, :-2, 1:-1] + p[:, :-2, 2:],
    )
    return torch.sqrt((right - left) ** 2 + (upper - lower) ** 2 + 1e-6)


@pytest.mark.parametrize(("height", "width"), [(6, 1), (1, 6), (6, 2)])
def test_few_pixels_beside_many_have_no_more_to_say(height: int, width: int) -> None:
    """Blocks along one dimension, each of which would say all places along the other: 14000 lines of one backward."""
    x = draw(3, height, width)
    assert fg.op(edges, name="edges").emit(x, which="backward").count("\n") < 2000
    check_same(fg.op(edges, name="edges"), edges, [x])


def laplacian(u: Any) -> Any:
    return u[1:-1, 2:] + u[1:-1, :-2] + u[2:, 1:-1] + u[:-2, 1:-1] - 4 * u[1:-1, 1:-1]


def biharmonic(u: Any) -> Any:
    return laplacian(laplacian(u)).square()


@pytest.mark.parametrize("shape", ((6, 7), (14, 14), (5, 9)))
def test_ways_to_one_element_read_it_once(shape: tuple[int, int]) -> None:
    """Slices of slices meet in 13 elements: 422 reads of one backward's kernel were too many for a compiler."""
    u = draw(*shape)
    text = fg.op(biharmonic).emit(u, which="backward")
    assert text.count("fg::gather(") < 100 and text.count("\n") < 2000
    check_same(fg.op(biharmonic), biharmonic, [u])


def edge_lengths(x: Any) -> Any:
    p = F.pad(x[None], (1, 1, 1, 1), mode="replicate")[0]
    right = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    down = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    return (right**2 + down**2 + 1e-6).sqrt()


@pytest.mark.parametrize("shape", ((5, 6), (7, 5)))
def test_ways_to_one_element_at_a_border_read_it_once(shape: tuple[int, int]) -> None:
    """Where the place is held in, and in blocks of columns, whose sizes are added to places."""
    x = draw(*shape)
    assert fg.op(edge_lengths).emit(x, which="backward").count("fg::gather(") < 150
    check_same(fg.op(edge_lengths), edge_lengths, [x])


def test_numbers_that_are_written_down_are_rounded_once() -> None:
    """To the dtype that is named: a float32 on the way is 1e-8 of each, and other integers from 2^24 on."""

    def function(x: Any) -> Any:
        weights = torch.tensor([0.1, 0.2, 0.7], dtype=x.dtype)
        counts = torch.tensor([16777217.0, -2.5, 3.0], dtype=torch.int64)
        return x * weights, x + x.new_tensor([[1 / 3], [0.3]]), weights[counts % 3], counts

    x = draw(2, 3).detach()
    torch.testing.assert_close(fg.op(function, name="written")(x), function(x), rtol=1e-15, atol=0)
