"""``python -m headgate.cli`` is the command ``headgate``."""

from __future__ import annotations

from headgate.cli import main

main()
