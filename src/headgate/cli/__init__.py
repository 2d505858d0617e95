"""The command ``headgate``.

Belongs here: what people type (input), the commands (commands; simulate has those that simulate,
operations those of somebody on call, carrying what moves a job, cluster what looks at a cluster, fleet
those about many jobs, demo what a try needs, extensions what other distributions add), where output
goes (output, answer).
Does not belong here: doing the work (scenario), drawing it (report). Nothing of this distribution
imports this package.
"""

from __future__ import annotations

from headgate.cli import (  # noqa: F401 - registers
    carrying,
    cluster,
    demo,
    extensions,
    fleet,
    operations,
    simulate,
)
from headgate.cli.commands import app, main

extensions.load(app)

__all__ = ["app", "main"]
