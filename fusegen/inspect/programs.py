"""The kernel programs of a pass as people read them (kernel_program/outline)."""

from __future__ import annotations

from fusegen.generate.names import Names, unmarked
from fusegen.generate.render import marked, programs
from fusegen.inspect.passes import Pass, section
from fusegen.kernel_program.outline import outline
from fusegen.pipeline import ScheduledKernel


def programs_section(item: Pass) -> str:
    """The section with what each thread of each kernel does."""
    texts = [_texts(planned) for planned in item.kernels]
    return section(f"{item.op.label}: kernel programs", "\n\n".join(texts))


def _texts(planned: ScheduledKernel) -> str:
    """The programs of one kernel, under the names that its CUDA has."""
    kernel, plan = planned.kernel, planned.schedule
    names = Names(kernel, planned.rendered.headers)
    while not names.settle(marked(kernel, plan, names)):
        continue
    made = zip((kernel.name, kernel.finish), programs(kernel, plan, names), strict=False)
    return "\n\n".join(f"{entry}: {unmarked(outline(program))}" for entry, (_, program) in made)
