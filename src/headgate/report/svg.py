"""Draws one frame of the live view as a picture."""

from __future__ import annotations

import io
import os
import re

from rich.console import Console

from headgate.report.live import frame
from headgate.report.run import Run

_WEB_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)

WIDTH = 118
"""Cells of the picture; the README shows it at full width."""


def render_svg(journal_path: str | os.PathLike[str], *, width: int = WIDTH) -> str:
    """Return the live view at the end of a journal, as SVG text.

    `journal_path` (path): a journal, of a living or a dead job. The picture shows the moment of the
    last event, so that a second drawing is the same. `width`: cells; at least 60.
    """
    run = Run.read(journal_path)
    # No terminal: its environment (TERM=dumb, NO_COLOR, FORCE_COLOR) would change the picture.
    console = Console(record=True, file=io.StringIO(), width=width, force_terminal=False)
    console.print(frame(run, now_ms=run.ended_ms, width=width))
    # Without its web fonts: a picture in a page must fetch nothing.
    return _WEB_FONT.sub("", console.export_svg(title="headgate", unique_id="headgate"))
