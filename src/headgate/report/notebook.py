"""Shows a query in a notebook, from its journal: a table of the diagnosis and a line of latencies."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from headgate.core.input import shown
from headgate.journal.reader import Tail, read
from headgate.journal.schema import Batch
from headgate.report.diagnose import DiagnosisReader, labelled
from headgate.report.format import ms_text
from headgate.report.limits import DriverSeen
from headgate.report.plot import panels

if TYPE_CHECKING:
    from headgate.report.plot import Figure

_BATCHES = 240
"""Batches in the line of latencies: one per two pixels of its width."""

_WIDTH, _HEIGHT = 480, 48
"""Size of the line of latencies, in pixels."""

_TEXT = 1000
"""Longest text of a row, in characters."""


class NotebookView:
    """Reads a journal as it grows, and shows the query as HTML.

    `journal`: path. Raises `CheckpointError`: there is no journal.
    """

    def __init__(self, journal: str | os.PathLike[str]) -> None:
        self._tail = Tail(journal)
        self._reading = DiagnosisReader()
        self._means_ms: deque[float] = deque(maxlen=_BATCHES)

    def html(self, checkpoint: str, now_ms: int, driver: DriverSeen) -> str:
        """Return the current state of the query.

        `checkpoint`: as commands shall name it. `now_ms`: wall clock, ms since 1970. Raises
        `CheckpointError`: the journal is damaged.
        """
        for event in self._tail.events():
            self._reading.absorb(event)
            if isinstance(event, Batch) and event.latency_ms is not None:
                self._means_ms.append(event.latency_ms.mean)
        diagnosis = self._reading.diagnosis(checkpoint, now_ms, driver)
        state = self._reading.run.slo
        line = _line(list(self._means_ms), None if state is None else state.bound_ms)
        return f'<div class="headgate">{_table(labelled(diagnosis))}{line}</div>'


def text_html(text: str) -> str:
    """Return lines of text as HTML that keeps their columns."""
    return f'<pre class="headgate">{escape(text)}</pre>'


def history_figure(journal: str | os.PathLike[str]) -> Figure:
    """Return a picture of a run: mean latency with the bound, waiting records, and slots, by batch.

    Raises `ConfigError`: matplotlib is not installed; `CheckpointError`: the journal is damaged.
    """
    figure, (latency, waiting, slots) = panels(1, 3)
    batches = [event for event in read(journal) if isinstance(event, Batch)]
    began_ms = batches[0].at_ms if batches else 0
    times_s = [(batch.at_ms - began_ms) / 1000 for batch in batches]
    means = [None if b.latency_ms is None else b.latency_ms.mean / 1000 for b in batches]
    latency.plot(times_s, [float("nan") if mean is None else mean for mean in means])
    if batches and batches[-1].slo is not None:
        latency.axhline(batches[-1].slo.bound_ms / 1000, linestyle="--")
    latency.set(ylabel="mean latency, s")
    waiting.plot(times_s, [batch.backlog + sum(batch.lag.values()) for batch in batches])
    waiting.set(ylabel="records that wait")
    slots.plot(times_s, [batch.slots for batch in batches], drawstyle="steps-post")
    slots.set(ylabel="slots")
    for panel in (latency, waiting, slots):
        panel.set(xlabel="time since the first batch, s", ylim=(0, None))
    return figure


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = [
        f'<tr><th scope="row" style="text-align:left;vertical-align:top">{escape(label)}</th>'
        f'<td style="text-align:left">{escape(shown(text, _TEXT))}</td></tr>'
        for label, text in rows
    ]
    return f"<table>{''.join(cells)}</table>"


def _line(means_ms: Sequence[float], bound_ms: float | None) -> str:
    """Return latency as a line of SVG, with the bound as a dashed line; empty below two batches."""
    if len(means_ms) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    top_ms = max([*means_ms, bound_ms or 0.0, 1.0])
    step = _WIDTH / (len(means_ms) - 1)
    points = " ".join(
        f"{number * step:.1f},{_HEIGHT * (1 - mean / top_ms):.1f}"
        for number, mean in enumerate(means_ms)
    )
    caption = (
        f"mean latency of the last {len(means_ms)} batches: now {ms_text(means_ms[-1])} ms, at most "
        f"{ms_text(max(means_ms))} ms"
    )
    marks: list[Any] = [f'<polyline points="{points}" fill="none" stroke="currentColor"/>']
    if bound_ms is not None:
        caption += f", bound {ms_text(bound_ms)} ms"
        y = _HEIGHT * (1 - bound_ms / top_ms)
        marks.append(
            f'<line x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            'stroke-dasharray="4 4" opacity="0.6"/>'
        )
    return (
        f'<figure style="margin:0.5em 0"><svg role="img" aria-label="{escape(caption)}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" viewBox="0 -1 {_WIDTH} {_HEIGHT + 2}">{"".join(marks)}</svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
