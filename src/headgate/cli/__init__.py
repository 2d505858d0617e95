"""The command ``headgate``.

Belongs here: what people type (input), the commands (commands; figures has those that simulate),
where output goes (output). Does not belong here: doing the work (scenario, experiments), drawing it
(report). Nothing imports this package.
"""

from __future__ import annotations

import headgate.cli.figures  # noqa: F401 - registers its commands
from headgate.cli.commands import app, main

__all__ = ["app", "main"]
