"""A bar for whoever waits for a command: what it does, how much of it is done, and how long that took."""

from __future__ import annotations

import sys
from typing import Any


class Bar:
    """Steps of a command, one after the other; on a terminal alone, and gone when they are done.

    Args:
        total: how many steps there are, at most.
    """

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        # Colours may be forced on in a pipe (FORCE_COLOR): rich then takes it for a terminal, and a log would fill up.
        console = Console(stderr=True)
        columns = (
            SpinnerColumn(), TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(),
        )  # fmt: skip
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not sys.stderr.isatty(),
            redirect_stdout=sys.stdout.isatty(), redirect_stderr=True,  # lines appear above the bar, but not in a pipe
        )  # fmt: skip
        self._task = self._progress.add_task("", total=total)
        self._begun = False

    def step(self, what: str) -> None:
        """``what`` is done from now on, and what was done before is done."""
        self._progress.update(self._task, description=what[:24], advance=1 if self._begun else 0, refresh=True)
        self._begun = True

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()
