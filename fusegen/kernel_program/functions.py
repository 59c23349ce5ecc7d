"""The device functions that kernel programs invoke: what each needs of the threads around it, and what it changes.

The functions are written in templates/*.cuh. A program may invoke no others: that is how it is known where threads wait
for each other, which arguments come back changed, and what a term is when the program runs without a compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Threads(Enum):
    """Which threads must come to a function together."""

    ANY = "each by itself"
    WARP = "all threads of a warp"
    BLOCK = "all threads of a block"
    CLUSTER = "all threads of a cluster"


@dataclass(frozen=True)
class DeviceFunction:
    """One of them.

    Attributes:
        name: as programs invoke it.
        together: the threads that come to it together. They have all come when the first goes on.
        changes: the first of the arguments that come back changed; None if none do.
        on: those behind that one come back changed as well.
        effect: it is invoked for what it does, not for a value.
        pure: its value follows from its arguments alone, so it is the same wherever these are.
        alternates: it exchanges through two places by turns, so that nobody writes what others still read.
        site: the position of the number among its template's arguments that tells its places in a program apart, each
            of which exchanges through shared memory of its own; None without one.
    """

    name: str
    together: Threads = Threads.ANY
    changes: int | None = None
    on: bool = False
    effect: bool = False
    pure: bool = False
    alternates: bool = False
    site: int | None = None


_WARP, _BLOCK, _CLUSTER = Threads.WARP, Threads.BLOCK, Threads.CLUSTER
_ROWS = (
    # Memory.
    DeviceFunction("*"),
    DeviceFunction("fg::load"),
    DeviceFunction("fg::load_vector"),
    DeviceFunction("fg::load_unaligned"),
    DeviceFunction("fg::load_raw"),
    DeviceFunction("fg::load_raw_across"),
    DeviceFunction("fg::widen"),
    DeviceFunction("fg::gather"),
    DeviceFunction("fg::load_within"),
    DeviceFunction("fg::within"),
    DeviceFunction("fg::no_place"),
    DeviceFunction("fg::load_async", effect=True),
    DeviceFunction("fg::load_async_cached", effect=True),
    DeviceFunction("fg::await_loads", effect=True),
    DeviceFunction("fg::read_again", effect=True),
    DeviceFunction("fg::store", effect=True),
    DeviceFunction("fg::store_vector", effect=True),
    DeviceFunction("fg::store_unaligned", effect=True),
    DeviceFunction("fg::store_share", effect=True),
    DeviceFunction("fg::dynamic_shared"),
    DeviceFunction("fg::behind"),
    # Positions.
    DeviceFunction("fg::take", changes=0),
    DeviceFunction("fg::advance", changes=0, effect=True),
    DeviceFunction("fg::assume_multiple", effect=True),
    DeviceFunction("fg::at_most", pure=True),
    DeviceFunction("fg::to_aligned"),
    DeviceFunction("fg::last_vector_end"),
    DeviceFunction("fg::end_element"),
    DeviceFunction("fg::part_of_segment"),
    DeviceFunction("fg::cluster_rank"),
    DeviceFunction("fg::member_of"),
    # Numbers.
    DeviceFunction("fg::divide_by_count"),
    DeviceFunction("fg::take_updates", effect=True),
    DeviceFunction("fg::combine"),
    # Threads.
    DeviceFunction("__syncthreads", _BLOCK, effect=True),
    DeviceFunction("fg::row_barrier", _BLOCK, effect=True),
    DeviceFunction("fg::wait_for_previous_kernel", effect=True),
    DeviceFunction("fg::block_sum", _BLOCK),
    DeviceFunction("fg::block_merge", _BLOCK),
    DeviceFunction("fg::column_sum", _BLOCK),
    DeviceFunction("fg::column_merge", _BLOCK, changes=0),
    DeviceFunction("fg::row_sum", _BLOCK, changes=0, on=True, effect=True, site=2),
    DeviceFunction("fg::row_merge", _BLOCK, changes=0, on=True, effect=True, site=2),
    DeviceFunction("fg::cluster_sum", _CLUSTER, changes=1, on=True, effect=True, site=1),
    DeviceFunction("fg::cluster_merge", _CLUSTER, changes=1, on=True, effect=True, site=1),
    DeviceFunction("fg::columns_sum", _BLOCK, changes=0, on=True, effect=True, site=2),
    DeviceFunction("fg::columns_maximum", _BLOCK, changes=0, on=True, effect=True, site=2),
    DeviceFunction("fg::columns_merge", _BLOCK, changes=0, on=True, effect=True, site=2),
    DeviceFunction("fg::rows_sum", _BLOCK, changes=0, effect=True),
    DeviceFunction("fg::segment_sum"),
    DeviceFunction("fg::scan_lanes", _WARP, changes=1, on=True, effect=True),
    DeviceFunction("fg::scan_block", _BLOCK, changes=1, on=True, effect=True, alternates=True),
)

FUNCTIONS = {row.name: row for row in _ROWS}
# Members of states (templates/fusegen_reduce.cuh, fusegen_scan.cuh) and of what is no state; those that change it.
MEMBERS = frozenset({"result", "partner", "total", "any"})
CHANGING = frozenset(
    {"add", "add_fast", "see", "saw", "settle", "take", "take_fast", "finish", "merge", "append", "ready"}
)
# Those at which all threads of a cluster come together.
TOGETHER = {"ready": _CLUSTER}
