"""The lists of mutants: how they are read, checked and dealt out.

To add one: a table ``[["file below src/headgate"]]`` (elsewhere ``headgate_demo/...`` or
``headgate_lab/...``) in the list that fits, with the fields of `Mutant`; then ``make mutants
ARGS="--only word"``. Name the smallest test that fails, and none on Spark if another does: each part has
room for one. A line of the sources that changes takes its mutants along; one that no longer applies is
an error.
"""

from __future__ import annotations

import datetime
import difflib
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = {"headgate": "src", "headgate_demo": "demo/src", "headgate_lab": "lab/src"}
"""The directory of each distribution's package."""
PARTS = 20
"""Of the lists; each commit runs one."""


@dataclass(frozen=True)
class Mutant:
    """One line of headgate, changed so that it is wrong."""

    file: str
    """Below src/headgate, or ``headgate_demo/...``, ``headgate_lab/...``."""
    old: str
    """Text that is there exactly once; lines around the changed one only to make it so."""
    new: str
    test: str
    """Which must fail, as pytest names it."""
    breaks: str
    """What is no longer true."""
    spark: bool = False
    """Whether its test starts Spark, as few should."""
    hangs: bool = False
    """Whether no end of the test counts as its failure."""
    survives: str = ""
    """Why no test can kill it, if none can; empty otherwise."""

    @property
    def path(self) -> str:
        """The file as it is imported: below the directory of its distribution."""
        return self.file if self.file.startswith("headgate_") else f"headgate/{self.file}"

    @property
    def name(self) -> str:
        """File and meaning, for people."""
        return f"{self.file}: {self.breaks}"


def read(folder: Path = HERE) -> list[Mutant]:
    """Return all mutants of all lists, in the order they are written."""
    return [
        Mutant(file=file, **entry)
        for path in sorted(folder.glob("*.toml"))
        if path.name != "equivalent.toml"
        for file, entries in tomllib.loads(path.read_text(encoding="utf-8")).items()
        for entry in entries
    ]


def applied(mutant: Mutant, text: str) -> str:
    """Return a file's text with the mutant in it.

    Raises
    ------
    ValueError    Its old text is not there exactly once, or more than one line would change.
    """
    if text.count(mutant.old) != 1:
        msg = f"{mutant.name}: its old text is there {text.count(mutant.old)} times, not once"
        raise ValueError(msg)
    changed = text.replace(mutant.old, mutant.new)
    marks = [line[0] for line in difflib.ndiff(text.splitlines(), changed.splitlines())]
    if marks.count("-") != 1 or marks.count("+") > 1:
        msg = f"{mutant.name}: it must change or remove one line"
        raise ValueError(msg)
    return changed


def parts(listed: Sequence[Mutant]) -> list[list[Mutant]]:
    """Deal mutants out to hands, those on Spark and the others each in turn."""
    hands: list[list[Mutant]] = [[] for _ in range(PARTS)]
    for kind in (True, False):
        for index, mutant in enumerate(m for m in listed if m.spark == kind):
            hands[index % PARTS].append(mutant)
    return hands


def number_of_commit(root: Path) -> tuple[int, str]:
    """Return the number that says what a commit tries, and its meaning: the next commit has the next."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        if git("rev-parse", "--is-shallow-repository") == "false":
            count = int(git("rev-list", "--count", "HEAD"))
            return count, f"commit number {count}"
    except (OSError, subprocess.CalledProcessError):
        pass  # not a checkout
    day = datetime.datetime.now(datetime.UTC).timetuple().tm_yday
    return day, f"day {day} of the year"
