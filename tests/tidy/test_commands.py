"""Commands are documented: those of the command line and those of make."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "headgate"

TARGETS = [
    "run",
    "test",
    "check",
    "unit",
    "spark",
    "laws",
    "mutants",
    "thorough",
    "bench",
    "docs",
    "lock",
]


def commands(group: Any, prefix: str = "headgate") -> Iterator[str]:
    """Yield every command below `group` as a user types it."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}"


def test_every_command_is_documented() -> None:
    from typer.main import get_command

    from headgate.cli import app

    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages if page.exists())
    text = re.sub(r"\s+", " ", text)
    found = list(commands(get_command(app)))
    assert found
    missing = [name for name in found if not re.search(re.escape(name) + r"\b", text)]
    assert missing == []


def test_make_help_names_every_target() -> None:
    out = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for target in TARGETS:
        assert re.search(rf"make {target}\s+\S", out), target
