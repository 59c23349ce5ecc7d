"""Emulated kernels of many calls, compiled in one go: the compiler's start and its headers cost more than a kernel.

Calls are made twice. The first time kernels are recorded instead of compiled, and nothing runs (`interpreted` in
tools/program_checks). Then one library is built of all of them; the second time they run.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusegen.generate.rendered import Rendered, one_file
from fusegen.launch.compile import to_cubin
from fusegen.launch.emulator import build as emulator
from fusegen.launch.emulator.kernel import EmulatedKernel
from fusegen.plan import targets


@dataclass
class Recorded:
    """The kernels that calls asked for."""

    target: targets.CpuTarget
    kernels: dict[tuple[str, str], Rendered] = field(default_factory=dict)

    def build(self, folder: Path) -> None:
        """Compile them, and let the target have them as if it had loaded each.

        Raises:
            CompileError: the compiler rejects one of them.
        """
        for members in self._groups():
            self._build_group(members, folder)

    def check_cubins(self, arch: str) -> None:
        """Compile them for a GPU, here without one.

        Raises:
            CompileError: NVRTC rejects one of them.
        """
        for members in self._groups():
            text, headers = one_file(self._renamed(members)), emulator.headers()
            to_cubin(text, arch=arch, headers=headers, declared=members[0][1])

    def _groups(self) -> Iterable[list[tuple[str, str]]]:
        """What may be in one file."""
        groups: dict[tuple[tuple[str, ...], int], list[tuple[str, str]]] = {}
        for (text, entry), rendered in self.kernels.items():
            groups.setdefault((rendered.headers, rendered.cluster_of(entry)), []).append((text, entry))
        return groups.values()

    def _renamed(self, members: Sequence[tuple[str, str]]) -> list[Rendered]:
        """With names that are no other's in the file."""
        renamed = []
        for number, key in enumerate(members):
            rendered = self.kernels[key]
            text = re.sub(
                rf"\b({rendered.entry}|{rendered.finish or rendered.entry})(_Table)?\b",
                rf"\1_{number}\2",
                rendered.text,
            )
            cluster = rendered.cluster_of(key[1])
            entry = f"{key[1]}_{number}"
            renamed.append(Rendered(text, entry, None, rendered.barriers, rendered.headers, cluster=cluster))
        return renamed

    def _build_group(self, members: Sequence[tuple[str, str]], folder: Path) -> None:
        mode, renamed = self.target.mode, self._renamed(members)
        library = emulator.build(
            one_file(renamed), renamed[0].entry, headers=emulator.headers(),
            barriers=renamed[0].barriers, cluster=renamed[0].cluster, sanitize=mode.sanitize, races=mode.races,
            others={kernel.entry: kernel.barriers for kernel in renamed[1:]},
        )  # fmt: skip
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as file:
            file.write(library)
        for number, (text, entry) in enumerate(members):
            rendered = self.kernels[text, entry]
            kernel = EmulatedKernel(Path(file.name), renamed[number].entry, text, mode.sanitize, rendered.sites)
            self.target._loaded.put(targets.key_of(rendered, entry), kernel)


@contextmanager
def recorded() -> Iterator[Recorded]:
    """Meanwhile kernels of the emulator are recorded where they would be compiled; they must not be launched."""
    target = targets.cpu()
    record, original = Recorded(target), targets.CpuTarget.load

    def load(self: targets.CpuTarget, rendered: Rendered, entry: str, declared: str, follows: bool) -> Any:
        key = targets.key_of(rendered, entry)
        found = original(self, rendered, entry, declared, follows)
        if self._wanted.pop(key, None) is not None:  # which would be compiled with the next one that is launched
            record.kernels[rendered.text, entry] = rendered
        return found

    targets.CpuTarget.load = load  # type: ignore[method-assign]
    try:
        yield record
    finally:
        targets.CpuTarget.load = original  # type: ignore[method-assign]
