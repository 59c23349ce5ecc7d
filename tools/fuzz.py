"""Random programs (tools/programs) beside torch, many of them; docs/reliability.md says how many there were.

    python -m tools.fuzz --programs 1000                        # called in every mode, on the emulator
    python -m tools.fuzz --programs 5000 --stage evaluators     # every stage, without a compiler
    python -m tools.fuzz --programs 1000 --stage cubins         # compiled for a GPU, without one
    python -m tools.fuzz --programs 2000 --stage gpu --jobs 8   # called in every mode, on the GPU
    python -m tools.fuzz --programs 500 --contract              # a product and a sum in one operation, as on a GPU
    python -m tools.fuzz --programs 500 --long                  # rows that threads, blocks and clusters share
    python -m tools.fuzz --block 412 --stage evaluators         # one block again: a failure repeats itself

Programs come in blocks of 25, and a block has a number: the seed of its programs and of their arguments. ``--record``
adds the run to the page, and the next run takes the blocks behind it. Another version of the generator makes other
programs of the same number.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reliability.md"
EACH = 25
COLUMNS = "| Stage | Blocks | Programs | Refused | Nothing to compare | Wrong | Failed |"
_ROW = re.compile(r"\| (\w+) \| (\d+) to (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|")


@dataclass
class Found:
    """What became of programs.

    Attributes:
        counts: of programs, by outcome.
        failures: by where numbers part or which error it is, the shortest program and what it says.
    """

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Count in what another block found."""
        self.counts += other.counts
        for key, failure in other.failures.items():
            if key not in self.failures or len(failure[0]) < len(self.failures[key][0]):
                self.failures[key] = failure

    @property
    def failed(self) -> bool:
        """Whether any program was wrong, or ended in an error that is no refusal."""
        return bool(self.counts["wrong"] or self.counts["failed"])

    def row(self, stage: str, blocks: Sequence[int]) -> str:
        """A line of the page."""
        names = ("programs", "refused", "nothing to compare", "wrong", "failed")
        numbers = " | ".join(str(self.counts[name]) for name in names)
        return f"| {stage} | {blocks[0]} to {blocks[-1]} | {numbers} |"


def run_block(
    block: int, how: str, most: int, modes: Sequence[str] = (), long: bool = False, kinds: Sequence[str] = ()
) -> Found:
    """The programs of one block."""
    import torch
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from fusegen.core.errors import DeclarationError, DerivativeError
    from tools.program_checks import REFUSED, Unstable, checked
    from tools.program_writer import Program
    from tools.programs import KINDS, LONG_SIZES, SIZES, programs

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = Found()

    def outcome(program: Program) -> tuple[str, str, str]:
        try:
            differences = list(checked(program, block, how, modes))
        except Unstable:
            return "nothing to compare", "", ""
        except Exception as error:
            if isinstance(error, (DeclarationError, DerivativeError)) and REFUSED.search(str(error)):
                return "refused", "", ""
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            return "failed", f"{type(error).__name__} at {where}", "".join(traceback.format_exception(error)[-6:])
        if differences:
            first = differences[0]
            return (
                "wrong",
                f"{first.what.split(' of ')[0]}: {first.stage.split(',')[0]}",
                "\n".join(map(str, differences)),
            )
        return "right", "", ""

    def check(program: Program) -> None:
        name, key, text = outcome(program)
        found.add(
            Found(
                collections.Counter({"programs": 1, name: 1}),
                {f"{name}, {key}": (str(program), f"block {block}\n{text}")} if key else {},
            )
        )

    run = settings(
        max_examples=EACH, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )(given(programs(most=most, sizes=LONG_SIZES if long else SIZES, kinds=[*kinds, *KINDS]))(check))  # fmt: skip
    seed(block)(run)()
    return found


def run_blocks(
    blocks: Sequence[int], how: str, most: int, modes: Sequence[str], long: bool, kinds: Sequence[str], jobs: int,
    seconds: float,
) -> Iterator[Found]:  # fmt: skip
    """Blocks in processes of their own; after so many seconds no further one, so that the first ones are done."""
    work = partial(run_block, how=how, most=most, modes=modes, long=long, kinds=kinds)
    end = time.monotonic() + seconds
    if jobs == 1:
        for block in blocks:
            yield work(block)
            if time.monotonic() > end:
                return
        return
    # A process that dies is an error here, where a Pool of multiprocessing would wait for it. None is replaced
    # (max_tasks_per_child): Python 3.12's executor may stand still then.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(work, block) for block in blocks]
        for done in as_completed(futures):
            if not done.cancelled():
                yield done.result()
            if time.monotonic() > end:
                for future in futures:
                    future.cancel()


def next_block(stage: str, page: str) -> int:
    """The first block that no run on the page has taken."""
    return max((int(row[2]) + 1 for row in _ROW.findall(page) if row[0] == stage), default=0)


def total(stage: str, page: str) -> int:
    """How many programs the runs on the page had."""
    return sum(int(row[3]) for row in _ROW.findall(page) if row[0] == stage)


def recorded(page: str, row: str) -> str:
    """The page with one row more, below the table's others."""
    lines = page.splitlines()
    at = max(i for i, line in enumerate(lines) if line == COLUMNS or _ROW.fullmatch(line))
    at += 1 if lines[at] == COLUMNS else 0  # behind the line below the names of columns
    return "\n".join([*lines[: at + 1], row, *lines[at + 1 :]]) + "\n"


def main() -> int:
    """Run programs, print what was found; 1 if any was wrong or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=500, metavar="N", help="how many (default 500)")
    parser.add_argument(
        "--stage", choices=("evaluators", "interpreted", "compiled", "cubins", "gpu"), default="compiled",
        help="stages' evaluators; calls in every mode, interpreted, on the emulator (the default) or on a GPU; "
        "cubins: interpreted, and compiled for a GPU",
    )  # fmt: skip
    parser.add_argument("--modes", default="", metavar="A,B", help="of calls: 'jvp,vmap' (default: all)")
    parser.add_argument("--kinds", default="", metavar="A,B", help="of statements, to be drawn more often: 'gathered'")
    parser.add_argument("--statements", type=int, default=8, metavar="N", help="of a program, at most (default 8)")
    parser.add_argument("--long", action="store_true", help="dimensions of up to thousands of elements, not of a dozen")
    parser.add_argument("--contract", action="store_true", help="the emulator's compiler makes a*b+c one operation")
    parser.add_argument("--first", type=int, metavar="BLOCK", help="the first block (default: behind the page's)")
    parser.add_argument("--block", type=int, help="this block alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="take no further block after so many")
    parser.add_argument("--record", action="store_true", help="add the run to docs/reliability.md")
    given = parser.parse_args()
    os.environ.setdefault("FUSEGEN_CACHE_DIR", str(PAGE.parents[1] / "build" / "cache"))
    if given.contract:
        os.environ["FUSEGEN_EMULATOR_CONTRACT"] = "1"
    page = PAGE.read_text(encoding="utf-8")
    stage = f"{given.stage}_long" if given.long else given.stage
    first = next_block(stage, page) if given.first is None else given.first
    blocks = range(first, first + -(-given.programs // EACH)) if given.block is None else [given.block]
    modes = [mode for mode in given.modes.split(",") if mode]
    kinds = [kind for kind in given.kinds.split(",") if kind]
    found, start, done = Found(), time.monotonic(), 0
    jobs = min(given.jobs, len(blocks))
    for block in run_blocks(blocks, given.stage, given.statements, modes, given.long, kinds, jobs, given.seconds):
        for key, (program, text) in block.failures.items():
            if key not in found.failures:  # at once: a run that is ended has named what it found
                print(f"---- {key}\n{program}\n{text}\n", flush=True)
        found.add(block)
        done += 1
        if sys.stderr.isatty() or done % 20 == 0:  # in a log too, so that a run that is ended says how far it came
            said = f"{done} of {len(blocks)} blocks, {time.monotonic() - start:.0f} s"
            print(f"\r{said}" if sys.stderr.isatty() else f"{said}: {dict(found.counts)}", file=sys.stderr, flush=True)
    row = found.row(stage, blocks[:done])
    print(f"{COLUMNS}\n{row}\n{total(stage, page) + found.counts['programs']} programs of this stage so far")
    if given.record:
        PAGE.write_text(recorded(page, row), encoding="utf-8")
    return int(found.failed)


if __name__ == "__main__":
    sys.exit(main())
