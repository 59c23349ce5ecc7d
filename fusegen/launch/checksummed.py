"""Files that can be trusted: only we can write them, they appear complete, and a checksum is in their name."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Part: TypeAlias = "str | bytes | bool | int | float | Sequence[Part] | Mapping[str, Part] | None"

TEMPORARY = ".new-"

# Reading refreshes a file's age at most this often, so that a warm start writes nothing.
TOUCH_SECONDS = 3600.0


def digest(*parts: Part) -> str:
    """SHA-256 over ``parts``, each with its type and length: ("ab", "c"), ("a", "bc") and (b"ab", "c") all differ."""
    hasher = hashlib.sha256()
    for chunk in _chunks(parts):
        hasher.update(chunk)
    return hasher.hexdigest()


def _chunks(part: Part) -> Iterator[bytes]:
    if isinstance(part, Mapping):
        yield b"m%d:" % len(part)
        for name in sorted(part):
            yield from _chunks(name)
            yield from _chunks(part[name])
    elif isinstance(part, (tuple, list)):
        yield b"t%d:" % len(part)
        for item in part:
            yield from _chunks(item)
    elif isinstance(part, (bytes, str)) or part is None or isinstance(part, (bool, int, float)):
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        yield b"%s%d:" % (type(part).__name__.encode(), len(data))
        yield data
    else:
        raise TypeError(f"digest() takes text, bytes, numbers, None and nests of these, not {type(part).__name__}")


@dataclass(frozen=True)
class Verified:
    """An entry whose checksum is right."""

    path: Path
    data: bytes
    used_ns: int


def untrusted(folder: Path, *, follow: bool) -> str | None:
    """Why entries below ``folder`` cannot be trusted. A user may link to a cache folder; we never link inside it."""
    try:
        link, info = os.lstat(folder), os.stat(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot use {folder}: {error.strerror or error}"
    if not stat.S_ISDIR(info.st_mode):
        return f"{folder} is not a folder"
    if stat.S_ISLNK(link.st_mode) and not follow:
        return f"{folder} is a symbolic link that fusegen did not make"
    if not (_is_ours(link) and _is_ours(info)):
        return f"{folder} belongs to another user"
    is_sticky = follow and info.st_mode & stat.S_ISVTX  # others may not rename our one folder in it
    if _others_may_write(info) and not is_sticky:
        return f"{folder} can be written by other users: chmod go-w {folder}"
    return None


def is_replaceable(folder: Path) -> bool:
    """Whether others could put something else under a path in here, by what they may write above it. Then a file that
    was opened can be trusted, and a path that is opened again cannot."""
    real = Path(os.path.realpath(folder))
    for above in (folder, *folder.parents, real, *real.parents):
        try:
            link, info = os.lstat(above), os.stat(above)
        except OSError:
            return True
        if any(not _is_ours(one) and one.st_uid for one in (link, info)):  # whose owner is another user, and not root
            return True
        if _others_may_write(info) and not info.st_mode & stat.S_ISVTX:  # sticky: others may not rename what is ours
            return True
    return False


def _is_ours(info: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or info.st_uid == os.geteuid()


def _others_may_write(info: os.stat_result) -> bool:
    if os.name != "posix":
        return False
    by_group = info.st_mode & stat.S_IWGRP and not _is_own_group(info.st_gid)
    return bool(by_group or info.st_mode & stat.S_IWOTH)


@functools.cache
def _is_own_group(number: int) -> bool:
    """Whether nobody else is in a group: many systems give every user one of the user's name, and then let it write."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    is_first = (group.gr_gid, group.gr_name) == (user.pw_gid, user.pw_name)
    return is_first and set(group.gr_mem) <= {user.pw_name}


def is_writable(folder: Path) -> bool:
    """Whether the folder can be written, or created where it is missing."""
    nearest = next((there for there in (folder, *folder.parents) if there.exists()), folder)
    return os.access(nearest, os.W_OK | os.X_OK)


def make_private(*folders: Path) -> None:
    """Create folders, each in the one before, readable by us alone. One by one, as makedirs' mode is the last one's."""
    if not folders[-1].is_dir():
        for folder in folders:
            os.makedirs(folder, mode=0o700, exist_ok=True)


@contextlib.contextmanager
def alone(path: Path, seconds: float) -> Iterator[bool]:
    """While this process has the lock ``path``: whether it does, after it has waited for so long.

    The system gives the lock back when a process ends. Where files cannot be locked, or something else than a file of
    ours lies there, nobody has it.
    """
    try:
        import fcntl

        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except (ImportError, OSError):
        yield False
        return
    try:
        info, end = os.fstat(handle), time.monotonic() + seconds
        has_it = False
        while not has_it and stat.S_ISREG(info.st_mode) and _is_ours(info):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_it = True
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EINTR) or time.monotonic() > end:
                    break
                time.sleep(0.05)
        yield has_it
    finally:
        os.close(handle)


def scan(folder: str | Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda item: item.name)
    except OSError:
        return []


def remove(path: str | Path) -> bool:
    """Remove a file; whether that worked (another process may have been first)."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def read(path: Path, name: str) -> Verified | None:
    """The entry, if it is a plain file of ours with the right checksum; else the file is removed."""
    try:
        # Not blocking: somebody may have left a pipe there.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ELOOP:  # A symbolic link. Anything else, such as too many open files, is no verdict.
            remove(path)
        return None
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(handle)
        trusted = stat.S_ISREG(info.st_mode) and _is_ours(info) and not _others_may_write(info)
        data = file.read() if trusted else b""
    if not trusted or path.name != f"{name}-{digest(name, data)}":
        remove(path)
        return None
    if time.time() - info.st_mtime > TOUCH_SECONDS:
        with contextlib.suppress(OSError):  # A read-only folder has no evictions either.
            os.utime(path)
    return Verified(path, data, info.st_mtime_ns)


def write(path: Path, data: bytes) -> None:
    """Make ``path`` appear complete or not at all."""
    temporary = path.parent / f"{TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def private_copy(name: str, data: bytes) -> Path | None:
    """A file of this process alone, for when the cache folder cannot be used."""
    try:
        path = Path(_private_folder(os.getpid())) / f"{name}-{digest(name, data)}"
        if not path.exists():
            write(path, data)
        return path
    except OSError:
        return None


@functools.lru_cache(maxsize=1)
def _private_folder(process: int) -> str:
    """A temporary folder that goes away with the process; a forked child gets its own, and leaves its parent's."""
    import atexit
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="fusegen-")

    def leave() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(leave)
    return folder
