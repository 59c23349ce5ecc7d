"""The store of compiled artefacts: nothing untrusted comes out of it, and no folder is bad enough to make it raise."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusegen as fg
from fusegen.core.errors import FusegenError, FusegenWarning
from fusegen.core.recent import Recent
from fusegen.launch import cache as cache_module
from fusegen.launch import checksummed
from fusegen.launch.cache import Cache, default_cache, digest
from fusegen.launch.emulator.kernel import EmulatedKernel
from fusegen.plan import targets

FUSEGEN = str(Path(cache_module.__file__).parent.parent)
KEY = digest("a kernel")
DATA = b"\x7fELF" + bytes(range(256)) * 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def file_of(folder: Path, key: str = KEY) -> Path:
    (path,) = [entry.path for entry in Cache(folder).entries() if entry.key == key]
    return path


def test_digest_separates_parts_and_types() -> None:
    parts = [
        ("ab", "c"), ("a", "bc"), ("abc",), (b"ab", "c"), (("ab", "c"),), (["ab"], "c"), ({"ab": "c"},), (),
        (1,), (1.0,), (True,), ("1",), (None,), ("None",), ("",), ("", ""), (("a",), ("b",)), (("a", "b"),),
    ]  # fmt: skip
    assert len({digest(*part) for part in parts}) == len(parts)


def test_digest_ignores_the_order_of_a_mapping_only() -> None:
    assert digest({"a": "1", "b": "2"}) == digest({"b": "2", "a": "1"})
    assert digest({"a": "1", "b": "2"}) != digest({"a": "2", "b": "1"})
    with pytest.raises(TypeError, match="not set"):
        digest({"a"})  # type: ignore[arg-type]


def test_data_comes_back_in_another_process(folder: Path) -> None:
    Cache(folder).put(KEY, DATA)
    code = "import sys; from fusegen.launch.cache import Cache; from pathlib import Path\n"
    code += "sys.stdout.buffer.write(Cache(Path(sys.argv[1])).get(sys.argv[2]) or b'')"
    done = subprocess.run([sys.executable, "-c", code, folder, KEY], capture_output=True, check=True)
    assert done.stdout == DATA


def test_path_holds_exactly_the_data(folder: Path) -> None:
    cache = Cache(folder)
    assert cache.path(KEY) is None
    cache.put(KEY, DATA)
    path = cache.path(KEY)
    assert path is not None and path.read_bytes() == DATA
    assert folder in path.parents


def test_a_key_may_be_any_text(folder: Path) -> None:
    Cache(folder).put("../../etc/passwd", DATA)
    assert Cache(folder).get("../../etc/passwd") == DATA
    assert [path.name for path in folder.parent.iterdir()] == ["cache"]


def test_a_later_put_replaces(folder: Path) -> None:
    Cache(folder).put(KEY, DATA)
    Cache(folder).put(KEY, b"newer")
    assert Cache(folder).get(KEY) == b"newer"
    assert len(Cache(folder).entries()) == 1


@pytest.mark.skipif(os.name != "posix", reason="permissions as in POSIX")
def test_files_and_folders_are_private(folder: Path) -> None:
    old = os.umask(0)
    try:
        Cache(folder).put(KEY, DATA)
    finally:
        os.umask(old)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert set(modes.values()) == {0o600, 0o700}
    assert [path for path, mode in modes.items() if mode == 0o600] == [file_of(folder)]


DAMAGE = {"truncated": DATA[:-1], "empty": b"", "longer": DATA + b"\0", "one bit": bytes([DATA[0] ^ 1]) + DATA[1:]}


def spoil(path: Path, how: str) -> None:
    if how in DAMAGE:
        path.write_bytes(DAMAGE[how])
    elif how == "writable by others":
        path.chmod(0o666)
    elif how == "a link":
        path.symlink_to(path.rename(path.parent / "target"))
    else:
        path.unlink()
        os.mkfifo(path)


@pytest.mark.skipif(os.name != "posix", reason="permissions as in POSIX")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("how", [*DAMAGE, "writable by others", "a link", "a pipe"])
def test_a_spoilt_entry_is_removed_and_written_anew(folder: Path, how: str) -> None:
    Cache(folder).put(KEY, DATA)
    path = file_of(folder)
    spoil(path, how)
    assert Cache(folder).get(KEY) is None
    assert not os.path.lexists(path)
    assert Cache(folder).path(KEY) is None
    Cache(folder).put(KEY, DATA)
    assert Cache(folder).get(KEY) == DATA


def test_an_entry_under_another_key_is_not_trusted(folder: Path) -> None:
    Cache(folder).put(KEY, DATA)
    path, other = file_of(folder), digest("another kernel")
    moved = path.parent.parent / other[:2] / path.name.replace(KEY, other)
    moved.parent.mkdir(mode=0o700, exist_ok=True)
    path.rename(moved)
    assert Cache(folder).get(other) is None
    assert not moved.exists()


def test_a_file_of_another_user_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache(folder).put(KEY, DATA)
    path = file_of(folder)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(checksummed, "_is_ours", lambda info: not stat.S_ISREG(info.st_mode))
    assert Cache(folder).get(KEY) is None


def works_in_memory(cache: Cache, problem: str) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA
    path = cache.path(KEY)
    assert path is not None and path.read_bytes() == DATA and cache.folder not in path.parents
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert cache.entries() == []
    described = cache.describe()
    assert described.problem is not None and problem in described.problem
    assert (described.entries, described.memory_entries, described.memory_bytes) == (0, 1, len(DATA))


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        monkeypatch.setattr(checksummed, "_is_ours", lambda info: False)
    works_in_memory(Cache(folder), "belongs to another user")
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_link_planted_inside_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (folder / "v1").symlink_to(target)
    works_in_memory(Cache(folder), "symbolic link")
    assert list(target.iterdir()) == []


def test_a_user_may_link_to_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    Cache(folder).put(KEY, DATA)
    assert Cache(folder).get(KEY) == DATA


@pytest.mark.parametrize(("where", "mode"), [(".", 0o777), (".", 0o770), ("v1", 0o777), ("v1", 0o1777)])
def test_a_folder_that_others_can_write_is_refused(
    folder: Path, where: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "v1").mkdir(parents=True)
    (folder / where).chmod(mode)
    monkeypatch.setattr(checksummed, "_is_own_group", lambda group: False)
    cache = Cache(folder)
    with pytest.warns(FusegenWarning, match="can be written by other users: chmod go-w .*FUSEGEN_CACHE_DIR") as told:
        works_in_memory(cache, "written by other users")
        cache.put(digest("another kernel"), DATA)
    assert len(told) == 1
    (folder / where).chmod(0o755)
    cache.put(KEY, DATA)
    assert cache.describe().problem is None and Cache(folder).get(KEY) == DATA


def test_a_folder_where_others_may_only_add_is_not_refused(folder: Path) -> None:
    """As /tmp."""
    folder.mkdir()
    folder.chmod(0o1777)
    Cache(folder).put(KEY, DATA)
    assert Cache(folder).get(KEY) == DATA and Cache(folder).describe().problem is None


def test_a_group_that_nobody_else_is_in_may_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the umask is 002 and every user has a group."""
    import grp
    import pwd

    folder.mkdir()
    folder.chmod(0o775)
    user = pwd.getpwuid(os.geteuid())
    members: list[str] = []
    named = [user.pw_name]
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((named[0], "x", user.pw_gid, members)))
    for name, others, is_trusted in ((user.pw_name, [], True), ("staff", [], False), (user.pw_name, ["eve"], False)):
        named[0], members[:] = name, others
        checksummed._is_own_group.cache_clear()
        assert (checksummed.untrusted(folder, follow=True) is None) is is_trusted
    checksummed._is_own_group.cache_clear()


def planted(folder: Path, name: str, target: Path) -> None:
    """A link where fusegen is going to write."""
    target.write_text("precious")
    os.makedirs(folder / "v1", mode=0o700)
    (folder / "v1" / name).symlink_to(target)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_lock_follows_no_link_and_changes_no_file(folder: Path, tmp_path: Path) -> None:
    planted(folder, "build.lock", tmp_path / "victim")
    with Cache(folder).alone("build", 0.0) as has_it:
        assert not has_it
    assert (tmp_path / "victim").read_text() == "precious"
    for content in ("", "not empty"):
        lock = folder / "v1" / "build.lock"
        lock.unlink()
        lock.write_text(content)
        with Cache(folder).alone("build", 0.0) as has_it:
            assert has_it
        assert lock.read_text() == content
    lock.unlink()
    os.mkfifo(lock)
    with Cache(folder).alone("build", 0.0) as has_it:
        assert not has_it
    assert stat.S_IMODE(lock.stat().st_mode) & 0o077 == 0 or lock.is_fifo()


@pytest.mark.skipif(os.name != "posix", reason="permissions as in POSIX")
def test_a_lock_is_private_and_a_wait_for_it_ends(folder: Path) -> None:
    old = os.umask(0)
    try:
        with Cache(folder).alone("build", 0.0) as first, Cache(folder).alone("build", 0.2) as second:
            assert first and not second
    finally:
        os.umask(old)
    with Cache(folder).alone("build", 0.0) as again:
        assert again
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert modes == {folder: 0o700, folder / "v1": 0o700, folder / "v1" / "build.lock": 0o600}
    folder.chmod(0o777)
    with Cache(folder).alone("build", 0.0) as has_it:
        assert not has_it


@pytest.mark.skipif(os.name != "posix", reason="permissions as in POSIX")
@pytest.mark.parametrize("how", ["a parent", "a link's folder"])
def test_what_is_loaded_lies_where_nobody_else_can_put_another_file(tmp_path: Path, how: str) -> None:
    """Its bytes are verified when they are read, and the loader reads them again."""
    shared = tmp_path / "shared"
    shared.mkdir()
    folder = shared / "cache"
    if how == "a link's folder":
        (tmp_path / "mine").mkdir()
        folder.symlink_to(tmp_path / "mine")
    Cache(folder).put(KEY, DATA)
    shared.chmod(0o1777)
    path = Cache(folder).path(KEY)
    assert path is not None and folder in path.parents
    shared.chmod(0o777)
    path = Cache(folder).path(KEY)
    assert path is not None and shared not in path.parents and path.read_bytes() == DATA
    assert Cache(folder).get(KEY) == DATA and Cache(folder).describe().problem is None


@pytest.mark.skipif(os.name != "posix", reason="permissions as in POSIX")
def test_a_file_that_is_swapped_between_check_and_load_is_not_loaded(folder: Path) -> None:
    """By somebody who may write the folder, or one above it."""
    Cache(folder).put(KEY, DATA)
    place = file_of(folder)

    def load(path: Path) -> bytes:
        (folder / "v1").rename(folder / "gone")
        place.parent.mkdir(parents=True)
        place.write_bytes(b"evil")
        return path.read_bytes()

    for shared in (folder, folder.parent):
        shared.chmod(0o777)
        cache = Cache(folder)
        cache._memory.put(KEY, DATA)  # what was compiled before there was a reason to read it
        assert cache.load(KEY, load) == DATA
        shutil.rmtree(folder / "v1")
        (folder / "gone").rename(folder / "v1")
        shared.chmod(0o700)


@pytest.mark.parametrize("times", [1, 2, 3, 10])
def test_a_file_that_is_evicted_before_it_is_loaded_is_written_again(folder: Path, times: int) -> None:
    cache, seen = Cache(folder), []
    cache.put(KEY, DATA)

    def load(path: Path) -> bytes:
        seen.append(path)
        if len(seen) <= times and folder in path.parents:
            Cache(folder).clear()
        return path.read_bytes()

    assert cache.load(KEY, load) == DATA
    assert len(seen) == min(times, cache_module.LOAD_TRIES) + 1
    assert cache.load(digest("another kernel"), load) is None


def test_a_file_that_does_not_load_where_it_is_lies_elsewhere(folder: Path) -> None:
    """As in a folder that is mounted noexec."""
    cache = Cache(folder)
    cache.put(KEY, DATA)

    def load(path: Path) -> bytes:
        if folder in path.parents:
            raise OSError("failed to map segment from shared object")
        return path.read_bytes()

    assert cache.load(KEY, load) == DATA

    def never(path: Path) -> bytes:
        raise OSError("no library")

    with pytest.raises(OSError, match="no library"):
        cache.load(KEY, never)


def test_what_other_processes_write_anew_is_read_anew(folder: Path) -> None:
    cache = Cache(folder)
    assert cache.current(KEY) is None
    cache.put(KEY, b"old")
    Cache(folder).put(KEY, b"new")
    assert cache.get(KEY) == b"old" and cache.current(KEY) == b"new"


def test_a_folder_that_cannot_exist(folder: Path) -> None:
    folder.write_text("a file")
    works_in_memory(Cache(folder), "not a folder")
    works_in_memory(Cache(folder / "below"), "Not a directory")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that refuses even root")
def test_a_folder_that_cannot_be_made() -> None:
    works_in_memory(Cache(Path("/proc/fusegen")), "cannot write")


def test_a_read_only_folder_still_serves_what_it_holds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache(folder).put(KEY, DATA)
    old = time.time() - 10 * checksummed.TOUCH_SECONDS
    os.utime(file_of(folder), (old, old))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("write", "make_private"):
        monkeypatch.setattr(checksummed, name, refuse)
    monkeypatch.setattr(os, "utime", refuse)
    cache, other = Cache(folder), digest("another kernel")
    assert cache.get(KEY) == DATA
    cache.put(other, b"more")
    assert cache.get(other) == b"more"
    assert "Read-only" in str(cache.describe().problem)


FULL = """
import resource, signal, sys
from pathlib import Path
from fusegen.launch.cache import Cache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
cache = Cache(Path(sys.argv[1]))
cache.put(sys.argv[2], bytes(4000))
assert cache.get(sys.argv[2]) == bytes(4000)
assert "cannot write" in cache.describe().problem, cache.describe()
"""


@pytest.mark.skipif(os.name != "posix", reason="resource limits")
def test_a_full_disk_leaves_nothing_behind(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", FULL, folder, KEY], check=True)
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_the_problem_goes_away_with_its_cause(folder: Path) -> None:
    folder.write_text("a file")
    cache = Cache(folder)
    cache.put(KEY, DATA)
    folder.unlink()
    cache.put(KEY, DATA)
    assert cache.describe().problem is None
    assert Cache(folder).get(KEY) == DATA


def test_the_least_recently_used_go_first(folder: Path) -> None:
    cache = Cache(folder, limit_bytes=10_000)
    keys = [digest(number) for number in range(10)]
    for age, key in zip(range(10, 0, -1), keys, strict=True):
        cache.put(key, bytes(1000))
        stamp = time.time() - age * 2 * checksummed.TOUCH_SECONDS
        os.utime(file_of(folder, key), (stamp, stamp))
    assert Cache(folder).get(keys[0]) is not None  # Reading the oldest makes it the youngest.
    cache.put(digest("one more"), bytes(1000))
    left = {entry.key for entry in cache.entries()}
    assert left == {keys[0], *keys[3:], digest("one more")}
    assert cache.size_bytes() == 9000


def test_reading_writes_at_most_once_an_hour(folder: Path) -> None:
    Cache(folder).put(KEY, DATA)
    path = file_of(folder)
    for age, touched in ((checksummed.TOUCH_SECONDS / 2, False), (checksummed.TOUCH_SECONDS * 2, True)):
        stamp = time.time() - age
        os.utime(path, (stamp, stamp))
        Cache(folder).get(KEY)
        assert (path.stat().st_mtime > stamp + 1) is touched


def test_an_artefact_beyond_the_bound_stays_in_memory(folder: Path) -> None:
    works_in_memory(Cache(folder, limit_bytes=100), "larger than the cache's bound")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(cache_module, "MEMORY_LIMIT_BYTES", 5000)
    folder.write_text("a file")
    cache = Cache(folder)
    keys = [digest(number) for number in range(8)]
    for key in keys:
        cache.put(key, bytes(1000))
        cache.get(keys[0])
    assert [key for key in keys if cache.get(key) is not None] == [keys[0], *keys[4:]]
    cache.put(KEY, bytes(6000))
    assert cache.get(KEY) is None


def test_what_a_dead_process_left_is_swept_when_old(folder: Path) -> None:
    Cache(folder).put(KEY, DATA)
    shard = file_of(folder).parent
    for name, age in (("young", 0.0), ("old", 2 * cache_module.STALE_SECONDS)):
        left = shard / f"{checksummed.TEMPORARY}{name}"
        left.write_bytes(DATA)
        os.utime(left, (time.time() - age, time.time() - age))
    assert len(Cache(folder).entries()) == 1
    Cache(folder).put(digest("another kernel"), DATA)
    assert not (shard / f"{checksummed.TEMPORARY}old").exists()
    assert (shard / f"{checksummed.TEMPORARY}young").exists()


def test_a_crash_before_the_rename_leaves_no_entry(folder: Path) -> None:
    code = "import os, sys; from fusegen.launch.cache import Cache; from pathlib import Path\n"
    code += "os.replace = lambda *_: os._exit(9)\nCache(Path(sys.argv[1])).put(sys.argv[2], b'x' * 100)"
    assert subprocess.run([sys.executable, "-c", code, folder, KEY]).returncode == 9
    (left,) = [path for path in folder.rglob("*") if path.is_file()]
    assert left.name.startswith(checksummed.TEMPORARY)
    assert Cache(folder).get(KEY) is None and Cache(folder).entries() == []


def test_clear_leaves_foreign_files(folder: Path) -> None:
    cache = Cache(folder)
    cache.put(KEY, DATA)
    note = file_of(folder).parent / "note.txt"
    note.write_text("mine")
    assert cache.clear() == 1
    assert cache.get(KEY) is None and cache.size_bytes() == 0 and note.exists()


def content(number: int) -> bytes:
    return digest(number).encode() * (number % 40 + 1)


def worker(folder: Path, limit: int, seed: int, results: multiprocessing.Queue[str]) -> None:
    """Puts and gets 400 times what the other processes put and get; reports the first wrong byte."""
    wrong, cache = "", Cache(folder, limit_bytes=limit)
    for step in range(400):
        number = (seed * 7 + step * 13) % 60
        if step % 20 == 0:
            cache = Cache(folder, limit_bytes=limit)
        found = cache._find(digest(number))
        if found is None:
            cache.put(digest(number), content(number))
        elif found.data != content(number):
            wrong = f"{number}: {found.data!r}"
        if step % 100 == 99 and seed == 0:
            cache.clear()
    results.put(wrong or str(cache.problem))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("limit", [1 << 20, 20_000])
def test_eight_processes_at_once(folder: Path, limit: int) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    workers = [context.Process(target=worker, args=(folder, limit, seed, results)) for seed in range(8)]
    for process in workers:
        process.start()
    reports = [results.get(timeout=100) for _ in workers]
    for process in workers:
        process.join()
    assert reports == ["None"] * 8
    assert list(folder.rglob(f"{checksummed.TEMPORARY}*")) == []
    assert Cache(folder).size_bytes() <= limit * 1.5
    assert all(Cache(folder).get(entry.key) is not None for entry in Cache(folder).entries())


def test_threads_share_one_cache(folder: Path) -> None:
    cache = Cache(folder)

    def turn(step: int) -> bool:
        cache.put(digest(step % 20), content(step % 20))
        return cache.get(digest(step % 20)) == content(step % 20)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(turn, range(400)))
    assert len(cache.entries()) == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.timeout(20)
def test_a_fork_while_a_lock_is_held(folder: Path) -> None:
    cache = Cache(folder)
    with cache._memory._lock:
        child = os.fork()
        if child == 0:
            # A child that waits forever dies of this, and does not outlive the test.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            cache.put(KEY, DATA)
            os._exit(cache.get(KEY) != DATA)
    assert os.waitpid(child, 0)[1] == 0


def test_the_environment_chooses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(folder))
    monkeypatch.setenv("FUSEGEN_CACHE_LIMIT_MB", "3")
    cache = default_cache()
    assert (cache.folder, cache.limit_bytes) == (folder, 3 << 20)
    assert default_cache() is cache
    monkeypatch.delenv("FUSEGEN_CACHE_LIMIT_MB")
    assert default_cache().limit_bytes == 1 << 30
    monkeypatch.setenv("FUSEGEN_CACHE_LIMIT_MB", "lots")
    with pytest.raises(FusegenError, match=r"'lots'(.|\n)*whole number of MiB"):
        default_cache()


def test_the_default_folder_is_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUSEGEN_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert Cache().folder == tmp_path / "fusegen"


def test_importing_loads_no_more_than_needed() -> None:
    # The module itself, not what the front of the package imports: hence a package in its place.
    code = "import sys, types; sys.modules['fusegen'] = front = types.ModuleType('fusegen')\n"
    code += f"front.__path__ = [{FUSEGEN!r}]; before = set(sys.modules)\n"  # an installation's hooks import more
    code += "import fusegen.launch.cache; print({'platformdirs', 'tempfile', 'numpy'} & (set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.fixture
def op(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An op that no process has compiled, and nothing in memory."""
    monkeypatch.setenv("FUSEGEN_CACHE_DIR", str(folder))
    monkeypatch.setattr(targets.cpu(), "_loaded", Recent(8))
    return fg.op(lambda x: fg.tanh(x) * 3.0, name="evicted")


@pytest.mark.cpu
def test_a_call_whose_kernel_is_evicted_as_it_is_loaded(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = []

    def load(path: Path, *build: Any, **more: Any) -> EmulatedKernel:
        if not cleared:
            cleared.append(Cache(default_cache().folder).clear())
        return EmulatedKernel(path, *build, **more)

    monkeypatch.setattr(targets, "EmulatedKernel", load)
    assert op(np.zeros(3, np.float32)).tolist() == [0.0] * 3 and cleared[0] > 0


@pytest.mark.cpu
def test_a_call_whose_kernel_loads_from_nowhere(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path, *build: Any, **more: Any) -> EmulatedKernel:
        raise OSError("failed to map segment from shared object")

    monkeypatch.setattr(targets, "EmulatedKernel", load)
    with pytest.raises(fg.DeviceError, match=r"failed to map segment(.|\n)*not mounted noexec"):
        op(np.zeros(3, np.float32))


@pytest.mark.cpu
def test_a_kernel_on_disk_is_read_once_to_be_loaded(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the system, which reads it by its path."""
    seen: list[str] = []
    verified, read_bytes = checksummed.read, Path.read_bytes
    op(np.zeros(3, np.float32))
    monkeypatch.setattr(targets.cpu(), "_loaded", Recent(8))
    monkeypatch.setattr(default_cache(), "_memory", cache_module._Memory(2**20))
    monkeypatch.setattr(checksummed, "read", lambda path, name: seen.append(path.name) or verified(path, name))
    monkeypatch.setattr(Path, "read_bytes", lambda path: seen.append(path.name) or read_bytes(path))
    again = fg.op(lambda x: fg.tanh(x) * 3.0, name="evicted")
    assert again(np.zeros(3, np.float32)).tolist() == [0.0] * 3
    libraries = [name for name in seen if b"\x7fELF" in read_bytes(next(default_cache().folder.rglob(name)))[:4]]
    assert len(libraries) == 1
