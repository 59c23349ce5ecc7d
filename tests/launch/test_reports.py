"""What kernels of a GPU report, and how the host finds it: with memory of this machine in a device's place."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator

import pytest
import torch

import fusegen as fg
from fusegen.launch import reports as module
from fusegen.launch.reports import Reports
from fusegen.native import module as native
from fusegen.plan import targets
from tests.support.call_paths import DEVICE

SITES = ((0, "f, take, index i", True), (3, "f, take, index j", False))


class Device:
    """Writes records as fg::report_place does."""

    def __init__(self, reports: Reports, number: int, sites: tuple[tuple[int, str, bool], ...] = SITES) -> None:
        self.waited = 0
        self.record, self.flag, self.kernel = (
            int.from_bytes(word, "little") for word in _words(reports.words(number, sites, self._wait))
        )

    def _wait(self) -> None:
        self.waited += 1

    def report(self, site: int, place: int, size: int, position: int) -> None:
        record = module._Record.from_address(self.record)
        if record.state:
            return
        record.site, record.kernel, record.place = site, self.kernel, place
        record.size, record.position, record.state = size, position, 2
        ctypes.c_uint32.from_address(self.flag).value = 1


def _words(data: bytes) -> list[bytes]:
    return [data[at : at + 8] for at in range(0, len(data), 8)]


@pytest.fixture
def reports() -> Iterator[Reports]:
    kept: list[ctypes.Array[ctypes.c_char]] = []

    def allocate(size: int) -> int:
        kept.append(ctypes.create_string_buffer(size))
        return ctypes.addressof(kept[-1])

    yield Reports(allocate)
    assert len(kept) == 1


def test_a_record_is_raised_once(reports: Reports) -> None:
    assert reports.address == 0
    device = Device(reports, 0)
    assert device.flag == reports.address != 0
    reports.look()
    device.report(0, -1, 5, 7)
    device.report(3, 9, 5, 8)  # the first stays
    text = r"f, take, index i\n  given:    the place -6, at position 7, along an axis of size 5"
    with pytest.raises(fg.PlaceError, match=text):
        reports.look()
    assert device.waited == 1  # before the record is free
    reports.look()
    device.report(3, -1, 5, 0)
    with pytest.raises(fg.PlaceError, match="index j\n  given:    the place -1, at position 0"):
        reports.look()
    reports.look()


def test_kernels_and_devices_are_told_apart(reports: Reports) -> None:
    first, second, other = Device(reports, 0), Device(reports, 0, ((0, "g, take", False),)), Device(reports, 3)
    assert first.record == second.record != other.record and first.flag == other.flag
    second.report(0, 5, 5, 1)
    with pytest.raises(fg.PlaceError, match="g, take"):
        reports.look()
    other.report(3, 5, 5, 1)
    with pytest.raises(fg.PlaceError, match="index j"):
        reports.look()
    assert (first.waited, second.waited, other.waited) == (0, 1, 1)


def test_a_record_that_is_being_written_is_left(reports: Reports) -> None:
    device = Device(reports, 1)
    record = module._Record.from_address(device.record)
    record.state = 1
    ctypes.c_uint32.from_address(device.flag).value = 1
    reports.look()
    assert record.state == 1
    record.state = 0
    device.report(0, 5, 5, 2)
    with pytest.raises(fg.PlaceError):
        reports.look()


def test_of_threads_one_raises_it(reports: Reports) -> None:
    device, raised = Device(reports, 0), list[Exception]()

    def look() -> None:
        try:
            reports.look()
        except fg.PlaceError as error:
            raised.append(error)

    for turn in range(20):
        device.report(0, 5 + turn, 5, 0)
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(raised) == turn + 1


def test_python_calls_look_before_they_run(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "reports", reports)
    device, op = Device(reports, 0), fg.op(lambda x: x.exp() + 1)
    x = torch.ones(3)
    op(x)
    device.report(0, 5, 5, 2)
    with pytest.raises(fg.PlaceError, match="the place 5, at position 2"):
        fg.op(lambda x: x.exp() + 2)(x)
    torch.testing.assert_close(fg.op(lambda x: x.exp() + 3)(x), x.exp() + 3)


def test_native_calls_look_before_they_run(reports: Reports) -> None:
    built = native.awaited()
    if built is None:
        pytest.skip("there is no native module here")
    device, op = Device(reports, 0), fg.op(lambda x: x.exp() + 1)
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    for _ in range(3):
        op(x).sum().backward()
    try:
        built.watch_reports(reports.address, reports.look)
        for turn in range(3):
            device.report(0, 5, 5, turn)
            with pytest.raises(fg.PlaceError, match=f"the place 5, at position {turn}"):
                op(x)
            torch.testing.assert_close(op(x), x.exp() + 1)
        out = op(x).sum()
        device.report(0, 5, 5, 9)
        with pytest.raises(fg.PlaceError, match="at position 9"):
            out.backward()
    finally:
        built.watch_reports(module.reports.address, module.reports.look)
    op(x)


def test_who_watches_is_told_of_the_memory_and_of_a_fork(reports: Reports) -> None:
    told = list[int]()
    reports.tell(told.append)
    assert told == []
    Device(reports, 0)
    reports.tell(told.append)
    assert told == [reports.address] * 2
    reports.forget()
    assert told[2:] == [0, 0] and reports.address == 0
    reports.look()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_does_not_read_its_parents_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ctypes.create_string_buffer(ctypes.sizeof(module._Memory))
    monkeypatch.setattr(module.reports, "_memory", module._Memory.from_buffer(memory))
    child = os.fork()
    if not child:
        os._exit(0 if module.reports.address == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert module.reports.address == ctypes.addressof(memory)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_graph_reports_too() -> None:
    op, late = fg.op(lambda x, i: fg.take(x, i).sin()), fg.op(lambda x, i: fg.take(x, i) * 2)
    x, i = torch.randn(5, 4, device="cuda"), torch.tensor([0, 4, 2], device="cuda")
    op(x, i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first, second = op(x, i), late(x, i)  # the second is loaded while the graph is captured
    graph.replay()
    fg.check_indices()
    torch.testing.assert_close((first, second), (x[i].sin(), x[i] * 2))
    i[1] = 5
    graph.replay()
    with pytest.raises(fg.PlaceError, match="the place 5, at position 1"):
        fg.check_indices()
    i[1] = 3
    graph.replay()
    fg.check_indices()
    bad = torch.full((1 << 20,), 5, device="cuda")
    op(x, bad)
    torch.cuda.synchronize()
    with pytest.raises(fg.PlaceError, match="the place 5"):
        op(x, i)
    fg.check_indices()
