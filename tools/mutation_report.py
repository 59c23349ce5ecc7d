"""The page that tools/mutate.py writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tools.mutation_judged import why_equivalent

if TYPE_CHECKING:
    from tools.mutate import Result

_HEAD = """# Mutants

Small changes of the compiler's code, drawn at random, each against the tests that reach it: how many do they see?
Written by `python tools/mutate.py --sample {sample} --seed {seed} --report docs/mutation.md`; `tools/mutants.py` says
what is changed, and what is left out because no result depends on it. A line of code is drawn first, then one of the
changes that it allows. Goldens see any change of printed CUDA, right or wrong: what they alone kill is counted apart.
"""


def page(results: Sequence[Result], seed: int) -> str:
    """The whole page."""
    parts = [
        _HEAD.format(sample=len(results), seed=seed), _totals(results), "## By folder\n", _table(results, "folder"),
        "## By operator\n", _table(results, "operator"), "## Survivors\n", *_survivors(results),
        "## Equivalent\n", *_equivalent(results), "## Killed by goldens alone\n", *_by_goldens(results),
    ]  # fmt: skip
    return "\n".join(parts).rstrip("\n") + "\n"


def reason(result: Result) -> str | None:
    """Why a mutant that is alive counts as the same program."""
    return None if result.outcome == "killed" else why_equivalent(result.path, result.old, result.new)


def _is_alive(result: Result) -> bool:
    return result.outcome != "killed" and reason(result) is None


def _by_goldens_alone(result: Result) -> bool:
    return result.by.startswith("tools/generate")


def _counts(results: Sequence[Result]) -> list[str]:
    killed = [r for r in results if r.outcome == "killed"]
    judged = [r for r in results if r.outcome == "killed" or reason(r) is None]
    share = f"{100 * len(killed) / len(judged):.1f} %" if judged else ""
    goldens = sum(map(_by_goldens_alone, killed))
    numbers = (len(results), len(results) - len(judged), len(killed), goldens, sum(map(_is_alive, results)))
    return [*map(str, numbers), share]


def _table(results: Sequence[Result], name: str) -> str:
    key: Callable[[Result], str] = lambda result: str(getattr(result, name))  # noqa: E731
    rows = [(value, _counts([r for r in results if key(r) == value])) for value in sorted(set(map(key, results)))]
    head = f"| {name} | mutants | equivalent | killed | of these by goldens alone | survived | killed |"
    lines = [head, "|---|---:|---:|---:|---:|---:|---:|", *(f"| {value} | {' | '.join(n)} |" for value, n in rows)]
    return "\n".join([*lines, f"| all | {' | '.join(_counts(results))} |", ""])


def _totals(results: Sequence[Result]) -> str:
    sample, equivalent, killed, goldens, alive, share = _counts(results)
    unfinished = sum(r.outcome == "unfinished" and _is_alive(r) for r in results)
    seconds = sorted(r.seconds for r in results)
    median = seconds[len(seconds) // 2] if seconds else 0
    return (
        f"**{killed} of {int(sample) - int(equivalent)} mutants are killed ({share})**, {goldens} of them by goldens "
        f"alone; {alive} survived, {unfinished} of them before all tests that reach them had run. {equivalent} more "
        f"are no mutants: they mean the same. The median took {median:.0f} s.\n"
    )


def _survivors(results: Sequence[Result]) -> Iterator[str]:
    yield from _listed(sorted((r for r in results if _is_alive(r)), key=lambda r: (r.path, r.line)), _met)


def _met(result: Result) -> str:
    unfinished = " (time was over)" if result.outcome == "unfinished" else ""
    return f"met {result.ran} of {result.of} tests{unfinished}"


def _equivalent(results: Sequence[Result]) -> Iterator[str]:
    found = sorted((r for r in results if reason(r)), key=lambda r: (r.path, r.line))
    yield from _listed(found, lambda result: reason(result) or "")


def _by_goldens(results: Sequence[Result]) -> Iterator[str]:
    found = sorted((r for r in results if _by_goldens_alone(r)), key=lambda r: (r.path, r.line))
    yield from _listed(found, _met)


def _listed(results: Sequence[Result], note: Callable[[Result], str]) -> Iterator[str]:
    for result in results:
        yield f"`{result.path}:{result.line}`, {result.operator}: {note(result)}\n"
        yield f"```diff\n- {result.old}\n+ {result.new}\n```\n"
    if not results:
        yield "None.\n"
