"""Implements the command ``headgate``.

Belongs here: the parsing of the command line (input), the commands (commands; simulate holds the
commands that simulate, operations those of the person on call, adoption those that move a job to or from
plain Spark, cluster those that check a cluster, fleet those about many jobs, metrics those for Prometheus
and the page, extensions those that other distributions add), the output and its gates (output, answer,
gate). Does not belong here: doing the work (scenario), drawing it (report). Nothing of this distribution
imports this package.
"""

from __future__ import annotations

from headgate.cli import (  # noqa: F401 - registers
    adoption,
    cluster,
    extensions,
    fleet,
    metrics,
    operations,
    simulate,
)
from headgate.cli.commands import app, main

extensions.load(app)

__all__ = ["app", "main"]
