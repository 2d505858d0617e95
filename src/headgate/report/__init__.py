"""Shows a run to people: terminal views, plain lines, pictures, the summary's numbers.

Belongs here: reading journals and showing them, of live and of dead jobs alike. Does not belong
here: anything that needs the engine; no module here imports pyspark. Imports `headgate.journal` and
`headgate.core` only.
"""

from __future__ import annotations

from headgate.report.run import Run
from headgate.report.summary import summary, summary_of
from headgate.report.svg import render_svg

__all__ = ["Run", "render_svg", "summary", "summary_of"]
