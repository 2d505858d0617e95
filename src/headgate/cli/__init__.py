"""The command ``headgate``.

Belongs here: what people type (input), the commands (commands; figures has those that simulate,
operations those of somebody on call, cluster what looks at a cluster, fleet those about many jobs),
where output goes (output, answer). Does not belong here: doing the work (scenario, experiments),
drawing it (report). Nothing imports this package.
"""

from __future__ import annotations

from headgate.cli import cluster, figures, fleet, operations  # noqa: F401 - registers their commands
from headgate.cli.commands import app, main

__all__ = ["app", "main"]
