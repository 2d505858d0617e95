"""Pages that list what the code has list all of it, and nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
NOTES = sorted((DOCS / "design").glob("*.md"))


def rows(page: str, heading: str) -> dict[str, str]:
    """Return first cell -> last cell of the table under the first line that is `heading`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    _, found, after = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no line {heading!r}"
    cells = []
    for line in after.splitlines():
        if line.startswith("|"):
            cells.append([cell.strip() for cell in line.strip("|").split("|")])
        elif cells:
            break
    return {row[0].strip("`"): row[-1] for row in cells[2:]}


def test_the_guide_lists_every_option() -> None:
    from headgate.engines.spark.options import OPTIONS

    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(headgate\.[A-Za-z.]+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert listed.keys() == OPTIONS.keys()
    for key, option in OPTIONS.items():
        shown = listed[key].strip("`")
        default = None if shown in ("none", "measured") else option.value_of(shown)
        assert option.default == default, key


def test_the_guide_lists_every_setting() -> None:
    from headgate.engines.spark.session import SETTINGS

    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    assert {s.key for s in SETTINGS if f"| `{s.key}` |" not in text} == set()


def test_the_guide_names_every_method_of_writer_and_query() -> None:
    from headgate.engines.spark.query import Query
    from headgate.engines.spark.writer import Writer

    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    public = {n for of in (Writer, Query) for n in vars(of) if not n.startswith("_")}
    public -= {"explain", "runId"}  # Spark's own, for its own plan and run
    assert {name for name in public if not re.search(rf"`{name}\b", text)} == set()


CLAIMS = [
    line.strip("|").split("|")
    for line in (DOCS / "papers.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "`headgate." in line
]


@pytest.mark.parametrize("cells", CLAIMS, ids=lambda cells: cells[2].strip(" `"))
def test_every_claim_has_its_function_and_its_test(cells: list[str]) -> None:
    dotted, test = (cell.strip(" `") for cell in cells[2:])
    assert resolved(dotted) is not None
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def resolved(dotted: str) -> Any:
    """Return what a dotted name names: a module's attribute, or one of a class."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(dotted)


def test_papers_makes_claims() -> None:
    assert len(CLAIMS) > 5


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_a_design_note_asks_chooses_rejects_and_can_be_wrong(note: Path) -> None:
    text = note.read_text(encoding="utf-8")
    assert text.startswith(f"# {note.name[:4]} ")
    for part in ("**Question.**", "**Choice.**", "**Rejected.**", "**We would know it is wrong**"):
        assert part in text


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
