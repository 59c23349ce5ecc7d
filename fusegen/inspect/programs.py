"""The kernel programs of a pass as people read them (kernel_program/outline)."""

from __future__ import annotations

from fusegen.generate.names import Names, unmarked
from fusegen.generate.render import marked, programs
from fusegen.inspect.links import Link, Reader
from fusegen.inspect.passes import Pass, section
from fusegen.kernel_program.outline import outline
from fusegen.pipeline import ScheduledKernel


def program_lines(planned: ScheduledKernel) -> list[tuple[str, Link]]:
    """The lines of one kernel's programs, and what each is for."""
    texts, names = _marked(planned)
    reader = Reader(planned, names)
    return [(unmarked(line), reader.link(line)) for line in "\n\n".join(texts).split("\n")]


def programs_section(item: Pass) -> str:
    """The section with what each thread of each kernel does, those of scans and scatters last."""
    texts = [_texts(planned) for planned in item.kernels]
    texts += [f"{entry}: {outline(program)}" for entry, program in item.programs_between]
    return section(f"{item.op.label}: kernel programs", "\n\n".join(texts))


def _texts(planned: ScheduledKernel) -> str:
    """The programs of one kernel, under the names that its CUDA has."""
    return unmarked("\n\n".join(_marked(planned)[0]))


def _marked(planned: ScheduledKernel) -> tuple[list[str], Names]:
    """The programs of one kernel, the op's names in them marked (generate/names)."""
    kernel, plan = planned.kernel, planned.schedule
    names = Names(kernel, planned.rendered.headers)
    while not names.settle(marked(kernel, plan, names)):
        continue
    made = zip((kernel.name, kernel.finish), programs(kernel, plan, names), strict=False)
    return [f"{entry}: {outline(program)}" for entry, (_, program) in made], names
