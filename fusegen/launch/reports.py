"""Places out of range that kernels of a GPU have reported, in memory of the host that the GPU writes.

A kernel that reads where a tensor says looks at each place anyway (core/within). Of one that is out of range it leaves
a record, one a device: the first stays until it has been raised. The host looks at one word of its own memory before
each call, so that nothing waits for the device; the error comes with a later call, or with `check_indices`. The
emulator needs none of this: its calls raise by themselves.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

from fusegen.core import locks
from fusegen.core.errors import PlaceError
from fusegen.core.within import Site, out_of_range
from fusegen.launch import driver

_WRITTEN = 2
# The variable of a module that says where its reports go.
SYMBOL = "fusegen_place_reports"


class _Record(ctypes.Structure):
    """``fg::PlaceReport`` of templates/fusegen_places.cuh."""

    _fields_ = (
        ("state", ctypes.c_uint32), ("site", ctypes.c_int32), ("kernel", ctypes.c_int64), ("place", ctypes.c_int64),
        ("size", ctypes.c_int64), ("position", ctypes.c_int64),
    )  # fmt: skip


class _Memory(ctypes.Structure):
    """What devices write: whether there is any record, and the record of each."""

    _fields_ = (("flag", ctypes.c_uint32), ("_pad", ctypes.c_uint32 * 15), ("records", _Record * driver.MOST_DEVICES))


class Reports:
    """The records of all devices, and what the numbers in them mean.

    Args:
        allocate: gives memory that every device can write at the address that the host has for it.
    """

    def __init__(self, allocate: Callable[[int], int]) -> None:
        self._allocate = allocate
        self._memory: _Memory | None = None
        self._kernels: list[tuple[Site, ...]] = []
        self._waits: dict[int, Callable[[], None]] = {}
        self._lock = locks.lock()
        self._watchers: list[Callable[[int], None]] = []

    def words(self, device: int, sites: tuple[Site, ...], wait: Callable[[], None]) -> bytes:
        """What the module of a kernel is told (``fg::PlaceReports``): where its device's record is, and who it is.

        Args:
            wait: waits until the device has done everything.
        """
        with self._lock:
            if self._memory is None:
                self._memory = _Memory.from_address(self._allocate(ctypes.sizeof(_Memory)))
                for watch in self._watchers:
                    watch(self.address)
            self._waits[device] = wait
            self._kernels.append(sites)
            record = ctypes.addressof(self._memory.records[device])
            return bytes((ctypes.c_int64 * 3)(record, self.address, len(self._kernels) - 1))

    @property
    def address(self) -> int:
        """Where the word is that is not 0 while there are records; 0 where no kernel has been loaded that makes any."""
        return 0 if self._memory is None else ctypes.addressof(self._memory)

    def tell(self, watch: Callable[[int], None]) -> None:
        """Call ``watch`` with that address as soon as there is one."""
        with self._lock:
            self._watchers.append(watch)
            if self.address:
                watch(self.address)

    def forget(self) -> None:
        """In a forked child: the memory is the parent's."""
        self._memory = None
        for watch in self._watchers:
            watch(0)

    def look(self) -> None:
        """Raise the error for a record, once.

        Raises:
            PlaceError: there is one.
        """
        if self._memory is not None and self._memory.flag:
            self._take(self._memory)

    def wait(self) -> None:
        """The same, when all that devices were given to do is done.

        Raises:
            PlaceError: there is one.
        """
        for wait in list(self._waits.values()):
            wait()
        self.look()

    def _take(self, memory: _Memory) -> None:
        with self._lock:
            written = [device for device, record in enumerate(memory.records) if record.state == _WRITTEN]
            memory.flag = 0
        for device in written:
            self._waits[device]()  # others of the same kernel do not report again, when the record is free
        found = None
        with self._lock:
            for device in written:
                record = memory.records[device]
                if found is None and record.state == _WRITTEN:
                    found = self._error(record)
                record.state = 0
            memory.flag = 0
        if found is not None:
            raise found

    def _error(self, record: _Record) -> PlaceError:
        site = next(site for site in self._kernels[record.kernel] if site[0] == record.site)
        return out_of_range(site, record.place, record.size, record.position)


reports = Reports(driver.allocate_for_devices)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reports.forget)


def check_indices() -> None:
    """Wait for the GPUs, and raise the error of an index that was out of range, if there was one.

    On a GPU a call does not wait for its kernel: the error of a place that it found out of range is raised by a later
    call of any op, or here. On the CPU the call itself raises it. Every error is raised once.

    Raises:
        PlaceError: a tensor that says where to read or write named a place that is out of range.
    """
    reports.wait()


def connect(device: int, context: driver.Context, function: driver.Function, sites: Sequence[Site]) -> None:
    """Tell a kernel that may report places where to. Its device's context is current."""

    def wait() -> None:
        with context:
            driver.synchronize()

    function.set_global(SYMBOL, reports.words(device, tuple(sites), wait))
