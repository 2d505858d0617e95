"""Runs the command ``headgate`` as ``python -m headgate.cli``."""

from __future__ import annotations

from headgate.cli import main

main()
