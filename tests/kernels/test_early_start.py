"""Kernels of a program that start while the one before drains: what their text says, and how they are launched."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen import pipeline
from fusegen.fuse.rows_schedule import Chip
from fusegen.inspect.cost import pass_cost
from fusegen.inspect.gpus import GPUS
from fusegen.inspect.passes import Pass, passes, stages
from fusegen.launch import driver
from fusegen.plan import targets
from tests.support.goldens import emitted

WAIT = "fg::wait_for_previous_kernel();"
KERNEL = re.compile(r"^void \w+\((?P<parameters>[^{]*)\{\n(?P<body>.*?)^}", re.MULTILINE | re.DOTALL)
POINTER = re.compile(r"(?P<const>const )?\w[\w:<>, ]*\* (?P<restrict>__restrict__ )?(?P<name>\w+)[,)]")


@fg.op
def mixed(x: Any, y: Any, w: Any) -> Any:
    return x + w * (y - x)


@fg.op
def apart(x: Any, y: Any) -> Any:
    return x + 1, y * 2


@fg.op
def tall(x: Any) -> Any:
    return fg.sum(x, axis=0)


def backward(*shapes: tuple[int, ...]) -> Pass:
    return passes(mixed, tuple(fg.TensorSpec(fg.float32, shape) for shape in shapes), {}, "backward")[-1]


HOPPER = Chip()
THREE_SUMS = (16, 1, 1, 1), (16, 3, 244, 244), (3, 1, 244)


def problems(text: str) -> list[str]:
    """What is wrong with the kernels of one program, in launch order."""
    kernels = list(KERNEL.finditer(text))
    found, written = [], set()
    for place, kernel in enumerate(kernels):
        name, lines = kernel[0].split("(")[0], [line.strip() for line in kernel["body"].splitlines()]
        behind_a_product = re.search(r"_(epilogue|between_\d+)_", name)
        # Scans stand behind all others in a text, the first step's too: those that wait do so first.
        waits = WAIT in kernel["body"] if "scan_" in name else place or behind_a_product
        expected = [WAIT] if waits else []
        if lines[: len(expected)] != expected or kernel[0].count("_kernel") != len(expected):
            found.append(f"{name} begins with {lines[:2]}, not {expected}")
        pointers = list(POINTER.finditer(kernel["parameters"]))
        if "scan_" in name:  # what it reads and writes has the same names in all scans
            early = [p["name"] for p in pointers if waits and p["const"] and p["restrict"]]
            found += [f"{name}: {pointer} may not be read early" for pointer in early]
            continue
        found += [
            f"{name}: {p['name']} may not be read early" for p in pointers if p["restrict"] and p["name"] in written
        ]
        written |= {p["name"] for p in pointers if not p["const"]}
    return found


def test_every_kernel_waits_for_the_one_before() -> None:
    assert len(emitted()) > 300
    assert {path: found for path, text in emitted().items() if (found := problems(text))} == {}


def test_the_check_of_texts_sees_what_is_missing() -> None:
    text = backward(*THREE_SUMS).text
    assert len(KERNEL.findall(text)) > 2 and not problems(text)
    assert any("begins with" in problem for problem in problems(text.replace(f"  {WAIT}\n", "", 1)))
    unsafe = re.sub(r"const float\* (sum_\w+_ptr)", r"const float* __restrict__ \1", text)
    assert problems(unsafe) and all("read early" in problem for problem in problems(unsafe))


def test_a_kernel_by_itself_does_not_wait() -> None:
    specs = tuple(fg.TensorSpec(fg.float32, (64,)) for _ in range(3))
    assert "_kernel" not in passes(mixed, specs, {}, "forward")[-1].text


@dataclass
class Noting:
    """A target that notes what it is asked to load."""

    chip: Chip = HOPPER
    asked: list[tuple[str, bool]] = field(default_factory=list)

    def load(self, rendered: Any, entry: str, declared: str, follows: bool) -> Any:
        self.asked.append((entry, follows))


def followers(item: Pass) -> list[tuple[str, bool]]:
    target = Noting()
    pipeline.build(item.op, item.layout, target)
    return target.asked


def test_only_launches_behind_another_one_of_the_program_follow() -> None:
    first, *others = [follows for _, follows in followers(backward(*THREE_SUMS))]
    assert not first and len(others) > 1 and all(others)
    (summed,) = passes(tall, (fg.TensorSpec(fg.float32, (65536, 64)),), {}, "forward")
    assert followers(summed) == [("tall_forward_f32", False), ("tall_forward_f32_finish", True)]


def test_a_launch_of_nothing_is_not_there_to_be_followed() -> None:
    for first, expected in ((4, [False, True]), (0, [False])):
        specs = tuple(fg.TensorSpec(fg.float32, (size,)) for size in (first, 8))
        (item,) = passes(apart, specs, {}, "forward")
        assert [follows for _, follows in followers(item)] == expected
        # Its text waits where it may start early, and nowhere else.
        launched = [planned for planned in item.kernels if not planned.launch.empty]
        assert [WAIT in planned.rendered.body for planned in launched] == expected
        assert ("drains" in "".join(stages(item))) is any(expected)


def test_show_says_which_kernels_start_early() -> None:
    item = backward(*THREE_SUMS)
    early = re.findall(r"starts while (\w+) drains \(programmatic dependent launch\)", "".join(stages(item)))
    assert early == ["mixed_backward_f32_d_y", "mixed_backward_f32_d_x"]
    assert "drains" not in "".join(stages(item.on(["sm_80"])))
    (summed,) = passes(tall, (fg.TensorSpec(fg.float32, (65536, 64)),), {}, "forward")
    first, finish = pass_cost(summed, GPUS["h200"]).kernels
    assert "drains" not in first.why
    assert finish.why.endswith("starts while tall_forward_f32 drains (programmatic dependent launch)")


def test_show_says_which_kernels_start_behind_a_product() -> None:
    """The kernel that is shown before it has ended long ago: a product stands between them."""
    halves = fg.op(lambda x, w: fg.exp(fg.exp(x) @ w), name="halves")
    (item,) = passes(halves, (fg.TensorSpec(fg.float32, (64, 64)),) * 2, {}, "forward")
    assert re.findall(r"starts while (.+) drains", "".join(stages(item))) == ["the matrix product before it"]
    before, behind = (kernel.why for kernel in pass_cost(item, GPUS["h200"]).kernels)
    assert "drains" not in before and "the matrix product before it drains" in behind


# -- the driver's side ------------------------------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What cuLaunchKernelEx is called with, read as the bytes that CUDA's header describes."""
    seen: list[dict[str, Any]] = []

    def launch_ex(config: int, function: int, params: int, extra: int | None) -> int:
        numbers = (ctypes.c_uint * 14).from_address(config)
        stream, attributes = (ctypes.c_uint64.from_address(config + at).value for at in (32, 40))
        attribute = (ctypes.c_uint * 3).from_address(attributes)
        seen.append({
            "grid": tuple(numbers[:3]), "block": tuple(numbers[3:6]), "shared": numbers[6], "stream": stream,
            "count": numbers[12], "attribute": attribute[0], "value": attribute[2], "function": function,
            "params": params, "extra": extra,
        })  # fmt: skip
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    monkeypatch.setattr(driver, "library", lambda: SimpleNamespace(cuLaunchKernelEx=kind(launch_ex)))
    return seen


def loaded() -> driver.Function:
    kernel = driver.Function.__new__(driver.Function)
    kernel._module, kernel._function, kernel._entry = ctypes.c_void_p(7), ctypes.c_void_p(2**40 + 1), "sums"
    kernel.shared = 4096
    return kernel


def test_a_launch_is_what_the_driver_expects(launches: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    launch = loaded().prepared((5, 6, 1), (32, 8, 1), 2**41)
    for stream in (2**42, 0):
        launch(stream)
        seen = launches.pop()
        assert (seen["grid"], seen["block"], seen["shared"], seen["count"]) == ((5, 6, 1), (32, 8, 1), 4096, 0)
        assert (seen["function"], seen["params"], seen["extra"]) == (2**40 + 1, 2**41, None)
        assert seen["stream"] == stream
    given: list[Any] = []
    old = SimpleNamespace(cuLaunchKernel=lambda *arguments: given.append(arguments) or 0)  # CUDA before 11.8
    monkeypatch.setattr(driver, "library", lambda: old)
    kernel = loaded()
    kernel.prepared((5, 6, 1), (32, 8, 1), 2**41)(7)
    assert given == [(kernel._function, 5, 6, 1, 32, 8, 1, 4096, 7, 2**41, None)]


def test_an_early_launch_is_what_the_driver_expects(launches: list[dict[str, Any]]) -> None:
    kernel = loaded()
    early = driver.EarlyFunction(kernel)
    assert (kernel.early, early.early, early.address, early.shared) == (False, True, 2**40 + 1, 4096)
    expected = {
        "grid": (5, 6, 1), "block": (32, 8, 1), "shared": 4096, "count": 1, "attribute": 6, "value": 1,
        "function": 2**40 + 1, "params": 2**41, "extra": None,
    }  # fmt: skip
    launch = early.prepared((5, 6, 1), (32, 8, 1), 2**41)
    for stream in (2**42, 2**43, 0):
        launch(stream)
        assert launches.pop() == {**expected, "stream": stream}


@pytest.mark.parametrize(
    ("arch", "version", "possible"),
    [("sm_90", 12030, True), ("sm_90", 12020, False), ("sm_120", 13000, True), ("sm_89", 13000, False)],
)  # fmt: skip
def test_which_gpus_and_drivers_start_kernels_early(
    arch: str, version: int, possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_version(found: Any) -> int:
        found._obj.value = version
        return 0

    monkeypatch.setattr(driver, "library", lambda: SimpleNamespace(cuDriverGetVersion=get_version))
    assert driver.can_start_early(arch) is possible


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
def test_early_kernels_see_what_the_ones_before_wrote(captured: bool) -> None:
    """Inputs change from call to call, so that a workspace read too early is the one of the call before."""
    if not torch.cuda.is_available() or not targets.gpu(0).early:
        pytest.skip("needs a GPU and a driver that start kernels early")
    known = fg.FusedOp(mixed.declaration)
    x, y, w = (torch.randn(shape, device="cuda").requires_grad_() for shape in THREE_SUMS)
    cotangent = torch.randn_like(y)
    scale = torch.ones((), device="cuda")
    busy = torch.cuda.Stream()

    def call() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(known(x, y, w), (x, y, w), cotangent * scale)

    expected = [d.clone() for d in call()]
    call()  # natively, if the module is there
    graph = torch.cuda.CUDAGraph()
    if captured:
        with torch.cuda.graph(graph):
            results = call()
    for turn in range(200):
        scale.fill_(2.0 ** (turn % 8 - 4))  # a power of two: the sums scale with it exactly
        with torch.cuda.stream(busy):
            torch.randn(1 << 20, device="cuda").sin_()
        if captured:
            graph.replay()
        else:
            results = call()
        for found, one in zip(results, expected, strict=True):
            assert torch.equal(found, one * scale), f"call {turn}"
