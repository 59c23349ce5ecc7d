"""GCC's compiler proper as a server: it starts once, reads the precompiled header, and copies of it compile kernels.

Of a small kernel's 80 ms, most are the same for each: the compiler starts, looks at the header, instantiates what that
calls, makes its code generator ready; and the driver finds the programs that it runs. The server has done all of it
before it is copied, and the driver's answer is kept. A small kernel takes 45 ms so, and all that the tests compile a
quarter less.

It is only ever an acceleration. Where it cannot be had (another compiler, another system, a folder mounted noexec), and
for a kernel that it does not compile, there is the way that few kernels are compiled, whose messages users see.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusegen.core import locks, sources
from fusegen.launch.cache import default_cache
from fusegen.launch.checksummed import digest
from fusegen.launch.emulator.precompiled import HEADER, Run

# A server takes as long to start as it saves with some five kernels.
KERNELS_BEFORE_SERVER = 6
# Sizes of clusters have a server each; of more than these the oldest ends.
MOST_SERVERS = 4
# No kernel takes so long. One that does is compiled once more, without a server.
SECONDS = 120.0

SOURCE = "fusegen_compile_server.cpp"
_LIBRARY, _MAIN = "fusegen_compile_server.so", "fusegen_server.cu"
_KERNEL, _ASSEMBLY = "fusegen_kernel.cu", "fusegen_kernel.s"  # as SOURCE names them
_RUNTIME, _OBJECT, _RESULT = "runtime.o", "fusegen_kernel.o", "fusegen_kernel.so"


class Unavailable(Exception):
    """There is no server, or it has no library of a kernel."""


@dataclass(frozen=True)
class Recipe:
    """What a server compiles with, and what else it takes to make a library.

    Attributes:
        compiling: the compiler's driver and its options.
        linking: the same, for what is linked.
        libraries: what a kernel is linked to, besides ``runtime``.
        header: the precompiled header.
        identity: what tells this compiler from others.
    """

    compiling: tuple[str, ...]
    linking: tuple[str, ...]
    libraries: tuple[str, ...]
    header: Path
    runtime: bytes
    identity: str


class CompileServer:
    """One process of the compiler proper, in a folder of its own. Both end with this object.

    Args:
        recipe: how it compiles.
        run: runs a command in a folder.

    Raises:
        Unavailable: it cannot be started.
        OSError: nor can its folder be made.
    """

    def __init__(self, recipe: Recipe, run: Run) -> None:
        self.run, self.pid, self.lock = run, os.getpid(), locks.lock()
        self.folder = Path(tempfile.mkdtemp(prefix="fusegen-"))
        self._removed = weakref.finalize(self, _removed, self.pid, str(self.folder))
        (self.folder / f"{HEADER}.gch").symlink_to(recipe.header)
        (self.folder / _MAIN).write_text(f'#include "{HEADER}"\n#include "{_KERNEL}"\n', encoding="utf-8")
        (self.folder / _RUNTIME).write_bytes(recipe.runtime)
        (self.folder / _LIBRARY).write_bytes(self._library(recipe))
        mapped = f"-ffile-prefix-map={self.folder}=."
        compiler = self._listed([*recipe.compiling, mapped, "-S", "-x", "c++", _MAIN, "-o", _ASSEMBLY])
        self.assemble = self._listed([*recipe.linking, "-c", _ASSEMBLY, "-o", _OBJECT])
        self.link = self._linker(recipe)
        compiler[compiler.index("-o") + 1] = "-"
        self.process = _started(compiler, self.folder)
        self._ended = weakref.finalize(self, _ended, self.pid, self.process)

    def _library(self, recipe: Recipe) -> bytes:
        """What makes a server of a compiler, compiled once for all processes."""
        text, cache = sources.text(f"launch/emulator/{SOURCE}"), default_cache()
        key = digest("emulator", "compile server", recipe.identity, text)
        found = cache.get(key)
        if found is None:
            (self.folder / SOURCE).write_text(text, encoding="utf-8")
            command = [recipe.compiling[0], "-O1", "-shared", "-fPIC", SOURCE, "-o", _LIBRARY, "-ldl"]
            if self.run(command, str(self.folder)).returncode != 0:
                raise Unavailable
            found = (self.folder / _LIBRARY).read_bytes()
            cache.put(key, found)
        return found

    def _listed(self, command: Sequence[str]) -> list[str]:
        """The one program that the driver would run, and its arguments."""
        listed = self.run([*command, "-###"], str(self.folder)).stderr.splitlines()
        programs = [shlex.split(line) for line in listed if line.startswith(" ")]
        if len(programs) != 1 or "-o" not in programs[0]:
            raise Unavailable
        return programs[0]

    def _linker(self, recipe: Recipe) -> list[str]:
        """The linker itself. Its plugin takes a third of its time to load, and nothing here is optimized by it."""
        _, *arguments = self._listed([*recipe.linking, _OBJECT, _RUNTIME, *recipe.libraries, "-o", _RESULT])
        if "-plugin" in arguments:
            at = arguments.index("-plugin")
            del arguments[at : at + 2]
        linker = self.run([recipe.linking[0], "-print-prog-name=ld"], str(self.folder)).stdout.strip()
        return [linker, *(argument for argument in arguments if not argument.startswith("-plugin-opt="))]

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended. In a forked child it has: it is the parent's."""
        return self._ended.alive and self.pid == os.getpid()

    def end(self) -> None:
        """End it, and remove its folder."""
        self._ended()
        self._removed()

    def build(self, name: str, text: str, headers: Mapping[str, str]) -> bytes:
        """A library of a kernel: the functions that the driver makes of it, some of them in another order.

        Args:
            name: of the text's file.
            headers: what else it includes, by name.

        Raises:
            Unavailable: it does not compile, or the server has ended.
            OSError: the folder has gone, or has no room.
        """
        own = text.replace(f'#include "{HEADER}"\n', "\n", 1)  # it has been read
        with self.lock:
            for file, header in headers.items():
                (self.folder / file).write_text(header, encoding="utf-8")
            (self.folder / _KERNEL).write_text(f'#line 1 "{name}"\n{own}', encoding="utf-8")
            self._compile()
            assembly = self.folder / _ASSEMBLY
            written = assembly.read_text(encoding="utf-8")
            assembly.write_text(written.replace(f'"{_MAIN}"', f'"{name}"'), encoding="utf-8")
            for command in (self.assemble, self.link):
                if self.run(command, str(self.folder)).returncode != 0:
                    raise Unavailable
            return (self.folder / _RESULT).read_bytes()

    def _compile(self) -> None:
        to, back = self.process.stdin, self.process.stdout
        assert to is not None and back is not None
        try:
            to.write(b"c")
            answer = back.read(1) if select.select([back], [], [], SECONDS)[0] else b""
        except BrokenPipeError:
            answer = b""
        if answer not in (b"y", b"n"):
            self.end()
        if answer != b"y":
            raise Unavailable


def _started(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "LC_ALL": "C", "LD_PRELOAD": f"./{_LIBRARY}"}
    # Apart from the terminal, whose Ctrl-C is for us.
    return subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder,
        env=environment, start_new_session=True,
    )  # fmt: skip


def _ended(pid: int, process: subprocess.Popen[bytes]) -> None:
    if os.getpid() != pid:
        return
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    process.kill()
    process.wait()


def _removed(pid: int, folder: str) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


# -- those of this process ---------------------------------------------------------------------------------------------

_asked: Counter[Recipe] = Counter()
_servers: dict[Recipe, CompileServer] = {}
_lock = locks.lock()


def build(recipe: Recipe, name: str, text: str, headers: Mapping[str, str], run: Run) -> bytes | None:
    """A library of a kernel by this process's server; None where there is none, or it does not compile."""
    try:
        with _lock:
            server = _server(recipe, run)
        return None if server is None else server.build(name, text, headers)
    except (Unavailable, OSError):
        return None


def _server(recipe: Recipe, run: Run) -> CompileServer | None:
    """The server, once it pays; one that has ended is not started again."""
    _asked[recipe] += 1
    if recipe in _servers and _servers[recipe].pid != os.getpid():
        del _servers[recipe], _asked[recipe]
    if recipe not in _servers and _asked[recipe] == KERNELS_BEFORE_SERVER and sys.platform == "linux":
        while len(_servers) >= MOST_SERVERS:
            _servers.pop(next(iter(_servers))).end()
        _servers[recipe] = CompileServer(recipe, run)
    server = _servers.get(recipe)
    return server if server is not None and server.is_alive else None
