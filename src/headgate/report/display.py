"""Shows a run on the screen while it runs: the live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from headgate.journal.reader import Tail
from headgate.journal.writer import wall_clock_ms
from headgate.report.live import frame
from headgate.report.plain import PlainProgress
from headgate.report.run import Run


class Display:
    """Shows a journal as it grows; a context manager.

    Parameters
    ----------
    console : Console    Output; a terminal shows the live view, anything else plain lines.
    now_ms : callable    The wall clock, ms since 1970.
    planned_s : float, optional    Planned length of the run, in s.
    """

    def __init__(
        self,
        console: Console,
        now_ms: Callable[[], int] = wall_clock_ms,
        *,
        planned_s: float | None = None,
    ) -> None:
        self._planned_s = planned_s
        self._console = console
        self._now_ms = now_ms
        self._run = Run()
        self._tail: Tail | None = None
        self._plain: PlainProgress | None = None
        self._live: Live | None = None
        if console.is_terminal:
            waiting = Text(
                " headgate  starting, and rehearsing a run of 30 s or more", style="cyan"
            )
            self._live = Live(waiting, console=console, auto_refresh=False)
        else:
            self._plain = PlainProgress(self._line, now_ms)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, journal: Path) -> None:
        """Show the journal's new lines; call it a few times a second."""
        if self._plain is not None:
            self._plain.update(journal)
        elif self._live is not None and journal.is_file():
            self._tail = self._tail or Tail(journal)
            for event in self._tail.events():
                self._run.absorb(event)
            width = self._console.width
            view = frame(self._run, now_ms=self._now_ms(), width=width, planned_s=self._planned_s)
            self._live.update(view, refresh=True)

    def _line(self, text: str) -> None:
        """Print one plain line, neither wrapped nor coloured, and at once."""
        self._console.file.write(text + "\n")
        self._console.file.flush()
