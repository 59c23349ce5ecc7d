"""Compiled artefacts by the digest of everything that went into them, on disk and in memory.

One entry is one file, ``<first two digits of key>/<key>-<checksum>``, that holds exactly the data (so a shared
library can be loaded from its path). The checksum is a digest of key and data: a file that is truncated, damaged,
renamed or written by somebody else does not verify and is removed. Writers need no locks, because a file appears under
its name complete or not at all, and every reader checks it. Losing a race costs one compile, never a wrong kernel.

A cache folder that is missing, read-only or full is no error: this process then remembers what it compiled, and
``Cache.describe`` says why. Nor is one that others can write, of which it warns. What is loaded by its path lies where
nobody else can put another file under that path, else in a folder of this process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fusegen.core import locks
from fusegen.core.errors import FusegenError, warn
from fusegen.launch import checksummed
from fusegen.launch.checksummed import digest

__all__ = ["Cache", "Description", "Entry", "default_cache", "digest"]

DEFAULT_LIMIT_BYTES = 1 << 30
MEMORY_LIMIT_BYTES = 128 << 20

# A temporary file this old belongs to a process that died between writing and renaming.
STALE_SECONDS = 3600.0

# How often a file is written again that others evict before it is loaded; then this process has one of its own.
LOAD_TRIES = 3

# Entries live one level down, in a folder that only we create and can read: one that a user made may be for others to
# read, and a new layout takes a new name.
_LAYOUT = "v1"
_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64})")

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One artefact on disk. ``used`` is when it was written or (to the hour) last read, in seconds since the epoch."""

    key: str
    path: Path
    size_bytes: int
    used: float


@dataclass(frozen=True)
class Description:
    """What ``fusegen cache`` and ``fusegen doctor`` show. ``problem`` is None when the folder works."""

    folder: Path
    entries: int
    size_bytes: int
    limit_bytes: int
    memory_entries: int
    memory_bytes: int
    problem: str | None


class _Memory:
    """Least recently used artefacts of this process, bounded; thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.size_bytes = limit_bytes, 0
        self.items: OrderedDict[str, bytes] = OrderedDict()
        self._lock = locks.lock()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            if key in self.items:
                self.items.move_to_end(key)
            return self.items.get(key)

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            self.size_bytes += len(data) - len(self.items.pop(key, b""))
            self.items[key] = data
            while self.size_bytes > self.limit_bytes:
                self.size_bytes -= len(self.items.popitem(last=False)[1])

    def clear(self) -> int:
        with self._lock:
            count = len(self.items)
            self.items.clear()
            self.size_bytes = 0
            return count


class Cache:
    """Artefacts by key, shared by every process that uses ``folder``.

    Args:
        folder: where; by default ``$FUSEGEN_CACHE_DIR``, else the platform's folder for caches.
        limit_bytes: bound on the bytes on disk; by default ``$FUSEGEN_CACHE_LIMIT_MB`` MiB, else 1 GiB.
    """

    def __init__(self, folder: Path | None = None, *, limit_bytes: int | None = None) -> None:
        self.folder = _absolute(folder) if folder is not None else _default_folder()
        self.limit_bytes = _default_limit() if limit_bytes is None else limit_bytes
        self.problem: str | None = None
        self._is_told = False
        self._root = self.folder / _LAYOUT
        self._memory = _Memory(MEMORY_LIMIT_BYTES)
        # The first write always looks at the total: many short processes must not outgrow the bound together.
        self._unswept_bytes = self.limit_bytes

    def get(self, key: str) -> bytes | None:
        """The data put under ``key``, verified; None when there is none or none that can be trusted."""
        name = _name(key)
        data = self._memory.get(name)
        if data is None:
            found = self._find(name)
            if found is None:
                return None
            data = found.data
            self._memory.put(name, data)
        return data

    def put(self, key: str, data: bytes, *, on_disk: bool = True) -> None:
        """Keep ``data`` under ``key``. Never raises for the folder's sake; ``problem`` then says what is wrong.

        Args:
            on_disk: for other processes too.
        """
        name = _name(key)
        self._memory.put(name, data)
        if on_disk:
            self._store(name, data)

    def current(self, key: str) -> bytes | None:
        """The data that lies on disk now: for what other processes write anew."""
        found = self._find(_name(key))
        return None if found is None else found.data

    def path(self, key: str) -> Path | None:
        """A file that holds exactly the data of ``key``. Another process may evict it at any time (see ``load``)."""
        name = _name(key)
        found = self._find(name)
        data = self._memory.get(name) if found is None else found.data
        if data is None:
            return None
        path = self._store(name, data) if found is None else found.path
        if path is not None and not checksummed.is_replaceable(self._root):
            return path
        return checksummed.private_copy(name, data)

    def load(self, key: str, load: Callable[[Path], T]) -> T | None:
        """What ``load`` makes of a file that holds exactly the data of ``key``; None where there is none.

        Where another process evicts the file before ``load`` has opened it, it is written once more. Where it cannot be
        loaded from (a folder that is mounted so), it is from another folder.
        """
        for _ in range(LOAD_TRIES):
            path = self.path(key)
            if path is None:
                return None
            try:
                return load(path)
            except (OSError, ImportError):
                if path.exists():
                    break
        data = self.get(key)
        copy = None if data is None else checksummed.private_copy(_name(key), data)
        return None if copy is None else load(copy)

    @contextlib.contextmanager
    def alone(self, what: str, seconds: float) -> Iterator[bool]:
        """While no other process is at ``what``: whether that is so, after this one has waited for so long."""
        if not self._is_trusted():
            yield False
            return
        with contextlib.suppress(OSError):  # there is no lock then
            checksummed.make_private(self.folder, self._root)
        with checksummed.alone(self._root / f"{what}.lock", seconds) as has_it:
            yield has_it

    def entries(self) -> list[Entry]:
        """What is on disk, most recently used first."""
        found = []
        for item, info in self._files():
            match = _ENTRY.fullmatch(item.name)
            if match:
                found.append(Entry(match[1], Path(item.path), info.st_size, info.st_mtime))
        return sorted(found, key=lambda entry: (-entry.used, entry.key))

    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(entry.size_bytes for entry in self.entries())

    def clear(self) -> int:
        """Remove every entry, on disk and in memory; how many there were."""
        in_memory = self._memory.clear()
        return max(in_memory, sum(checksummed.remove(entry.path) for entry in self.entries()))

    def describe(self) -> Description:
        """The state of the cache; looks at the folder, and says what keeps it from being used."""
        if not self._is_trusted() or not checksummed.is_writable(self.folder):
            self.problem = self.problem or f"{self.folder} is read-only"
        entries, memory = self.entries(), self._memory
        size = sum(entry.size_bytes for entry in entries)
        return Description(
            self.folder, len(entries), size, self.limit_bytes, len(memory.items), memory.size_bytes, self.problem
        )

    # Disk.

    def _is_trusted(self) -> bool:
        """Whether only we can have written what the folder holds; also when it is not there yet."""
        reason = checksummed.untrusted(self.folder, follow=True) or checksummed.untrusted(self._root, follow=False)
        self.problem = reason or self.problem
        return reason is None

    def _find(self, name: str) -> checksummed.Verified | None:
        """The newest file of this key that verifies; those that do not are removed."""
        shard = self._root / name[:2]
        try:
            candidates = [shard / item for item in os.listdir(shard) if item.startswith(name)]
        except OSError:
            return None
        if not candidates or not self._is_trusted():
            return None
        verified = [found for path in candidates if (found := checksummed.read(path, name)) is not None]
        return max(verified, default=None, key=lambda found: found.used_ns)

    def _store(self, name: str, data: bytes) -> Path | None:
        """Write an entry; None, and ``problem`` set, when that is impossible."""
        if not self._is_trusted():
            if not self._is_told:
                self._is_told = True
                warn(f"{self.problem}. Nothing is kept there: each process compiles anew, until FUSEGEN_CACHE_DIR is a "
                     "folder that only you can write.")  # fmt: skip
            return None
        if len(data) > self.limit_bytes:
            self.problem = f"an artefact of {len(data)} bytes is larger than the cache's bound of {self.limit_bytes}"
            return None
        path = self._root / name[:2] / f"{name}-{digest(name, data)}"
        try:
            checksummed.make_private(self.folder, self._root, path.parent)
            for other in os.listdir(path.parent):
                # Before ours appears, so that two writers of one key can never remove each other's.
                if other.startswith(name) and other != path.name:
                    checksummed.remove(path.parent / other)
            checksummed.write(path, data)
        except OSError as error:
            self.problem = f"cannot write to {self.folder}: {error.strerror or error}"
            return None
        self.problem = None
        self._unswept_bytes += len(data)
        if self._unswept_bytes * 16 >= self.limit_bytes:
            self._sweep(keep=path)
        return path

    def _files(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """Every file of ours below the folder; silently fewer while other processes remove some."""
        if not self._is_trusted():
            return
        for shard in checksummed.scan(self._root):
            if len(shard.name) != 2 or not shard.is_dir(follow_symlinks=False):
                continue
            for item in checksummed.scan(shard.path):
                if _ENTRY.fullmatch(item.name) or item.name.startswith(checksummed.TEMPORARY):
                    try:
                        yield item, item.stat(follow_symlinks=False)
                    except OSError:
                        continue

    def _sweep(self, keep: Path) -> None:
        """Remove what dead processes left, and the least recently used entries beyond the bound."""
        self._unswept_bytes = 0
        entries, now = [], time.time()
        for item, info in self._files():
            if not item.name.startswith(checksummed.TEMPORARY):
                entries.append((info.st_mtime_ns, item.path, info.st_size))
            elif now - info.st_mtime > STALE_SECONDS:
                checksummed.remove(item.path)
        total = sum(size for _, _, size in entries)
        if total <= self.limit_bytes:
            return
        for _, path, size in sorted(entries):
            # A little below the bound, so that the next writes need no eviction. A file that another process
            # removed first counts as well: the total was taken before.
            if total <= self.limit_bytes * 0.9:
                return
            if path != str(keep):
                checksummed.remove(path)
                total -= size


@functools.lru_cache(maxsize=8)
def _cache_for(folder: str | None, limit: str | None) -> Cache:
    return Cache()


def default_cache() -> Cache:
    """The cache of this process, made when first asked for; a changed environment gives another."""
    return _cache_for(os.environ.get("FUSEGEN_CACHE_DIR"), os.environ.get("FUSEGEN_CACHE_LIMIT_MB"))


def _absolute(folder: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(os.path.expanduser(folder)))


def _default_folder() -> Path:
    chosen = os.environ.get("FUSEGEN_CACHE_DIR")
    if chosen:
        return _absolute(chosen)
    # Imported here: it costs more than everything else in this module, and a chosen folder does not need it.
    try:
        import platformdirs
    except ImportError:  # installed without dependencies, as on a cluster's fixed image
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusegen"

    return _absolute(platformdirs.user_cache_dir("fusegen"))


def _default_limit() -> int:
    text = os.environ.get("FUSEGEN_CACHE_LIMIT_MB")
    if not text:
        return DEFAULT_LIMIT_BYTES
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise FusegenError(
            "the environment variable FUSEGEN_CACHE_LIMIT_MB",
            given=repr(text),
            expected="a whole number of MiB, such as 512; 0 keeps nothing on disk",
            fix="export FUSEGEN_CACHE_LIMIT_MB=512, or unset it for 1 GiB",
        )
    return int(text) << 20


def _name(key: str) -> str:
    """Keys made by ``digest`` name their files; any other text is digested first."""
    return key if _KEY.fullmatch(key) else digest(key)
