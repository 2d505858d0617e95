"""The command ``headgate``.

Belongs here: what people type (input), the commands (commands), where output goes (output). Does
not belong here: doing the work (scenario), drawing it (report). Nothing imports this package.
"""

from __future__ import annotations

from headgate.cli import operations  # noqa: F401 - registers its commands
from headgate.cli.commands import app, main

__all__ = ["app", "main"]
