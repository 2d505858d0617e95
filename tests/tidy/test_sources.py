"""What every file in the tree must, and must not, contain."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "headgate"
LABORATORY = SOURCE.parents[1] / "lab" / "src" / "headgate_lab"
DEMO = SOURCE.parents[1] / "demo" / "src" / "headgate_demo"
MODULES = sorted([*SOURCE.rglob("*.py"), *DEMO.rglob("*.py"), *LABORATORY.rglob("*.py")])

# Put together from pieces, so that this file is no hit of its own.
REGISTRIES = [
    "pypi" + r"\.org",
    "python" + "hosted",
    "registry" + r"\.npmjs",
    "repo1" + r"\.maven",
    "repo" + r"\.maven",
    "deb" + r"\.debian",
    "archive" + r"\.ubuntu",
]
# A path of one machine: what stands before the slash must not make it part of a longer path.
MACHINE_PATHS = [
    r"(?<![\w.$}/-])" + "/" + name + "/"
    for name in ("root", "work", r"home/[a-z][\w-]*", r"Users/\w+", "opt/wheels")
]
FORBIDDEN = re.compile("|".join(REGISTRIES + MACHINE_PATHS + [r"\.lib" + "rary/"]))
# Documents that a reader of the repository does not have.
PRIVATE = re.compile(
    r"\b("
    + "miss"
    + "ion|design"
    + r"\.md|decision"
    + r" \d+\.\d+|house"
    + "-style|audit"
    + r"\.tsv)\b",
    re.IGNORECASE,
)
UNFINISHED = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + r"X)\b")


@cache
def committed_files() -> tuple[Path, ...]:
    """Every file that is, or would be, committed."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        out = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        names = [name for name in out.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        # No git, or an unpacked archive: everything except what tools write.
        written = {"__pycache__", "build", "dist"}
        relative = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        names = [
            str(path)
            for path in relative
            if not written & set(path.parts)
            and not path.parts[0].startswith((".venv", ".git", "."))
            and not any(part.endswith(".egg-info") for part in path.parts)
        ]
    return tuple(sorted(path for name in names if (path := ROOT / name).is_file()))


def texts() -> list[tuple[Path, str]]:
    found = []
    for path in committed_files():
        try:
            found.append((path.relative_to(ROOT), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue  # a picture or an archive
    return found


def hits(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {match.group()}"
        for path, text in texts()
        if path.name != "LICENSE"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line))
    ]


def module_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_scan_sees_the_tree() -> None:
    names = {str(path.relative_to(ROOT)) for path in committed_files()}
    assert {"pyproject.toml", "Makefile", "tests/tidy/test_sources.py"} <= names


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("see https://" + "pypi" + ".org/simple", True),
        ("cp a " + "/root" + "/b", True),
        ("'" + "/work" + "/main'", True),
        ("the " + "/home" + "/ada/x", True),
        ("spark/" + "work/" + "app-1", False),
        ("docs/root/" + "index", False),
    ],
)
def test_the_pattern_knows_a_machine_path_from_a_relative_one(line: str, wanted: bool) -> None:
    assert bool(FORBIDDEN.search(line)) is wanted


def test_no_registry_address_and_no_path_of_a_machine_is_committed() -> None:
    assert hits(FORBIDDEN) == []


def test_no_sentence_rests_on_a_document_that_is_not_here() -> None:
    # What a paper says is cited by its section, what was decided here by a note of docs/design.
    assert hits(PRIVATE) == []


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("as [3.14 of the miss" + "ion table] has it", True),
        ("(Design" + ".md, section 6)", True),
        ("see decision" + " 3.12", True),
        ("what the emission of a window omits, by permission", False),
        ("docs/design/README.md", False),
    ],
)
def test_a_private_document_is_known_by_its_name(line: str, wanted: bool) -> None:
    assert bool(PRIVATE.search(line)) is wanted


def test_nothing_is_left_unfinished() -> None:
    assert hits(UNFINISHED) == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert (docstring or "").strip(), f"{module_name(path)} has no docstring"


def test_every_package_has_a_charter() -> None:
    packages = {path.parent for path in MODULES}
    assert [str(p.relative_to(ROOT)) for p in packages if not (p / "__init__.py").exists()] == []
