"""Pages that list what the code has list all of it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
]
NOTES = sorted((DOCS / "design").glob("[0-9]*.md"))


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
    from headgate.spark.settings.options import OPTIONS

    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(headgate\.[A-Za-z.]+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert listed.keys() == OPTIONS.keys()
    for key, option in OPTIONS.items():
        shown = listed[key].strip("`")
        default = None if shown in ("none", "measured") else option.value_of(shown)
        assert option.default == default, key


def test_the_guide_lists_every_setting() -> None:
    from headgate.spark.cluster.session import SETTINGS

    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    assert {s.key for s in SETTINGS if f"| `{s.key}` |" not in text} == set()


def test_the_guide_names_every_method_of_writer_and_query() -> None:
    from headgate.spark.api.query import Query
    from headgate.spark.api.writer import Writer

    text = (DOCS / "guide.md").read_text(encoding="utf-8")
    public = {n for of in (Writer, Query) for n in vars(of) if not n.startswith("_")}
    public -= {"explain", "runId"}  # Spark's own, for its own plan and run
    assert {name for name in public if not re.search(rf"`{name}\b", text)} == set()


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_a_design_note_asks_chooses_rejects_and_can_be_wrong(note: Path) -> None:
    text = note.read_text(encoding="utf-8")
    assert text.startswith(f"# {note.name[:4]} ")
    for part in ("**Question.**", "**Choice.**", "**Rejected.**", "**We would know it is wrong**"):
        assert part in text


def test_the_index_lists_each_design_note_once_by_its_title() -> None:
    text = (DOCS / "design" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[(.+)\]\((\S+)\)$", text, re.MULTILINE)
    titles = [(n.read_text(encoding="utf-8").splitlines()[0].removeprefix("# "), n) for n in NOTES]
    assert sorted(listed) == sorted((title, note.name) for title, note in titles)


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\]\([^)]*\)|[^\w\- ]", "", heading).lower() for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def test_links_to_headings_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        links = re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text(encoding="utf-8"))
        for target, heading in links:
            other = page.parent / target if target else page
            if other.suffix == ".md" and heading not in anchors(other):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{heading}")
    assert broken == []


def test_the_runbook_has_each_alert_each_cause_and_each_state() -> None:
    from headgate.loop.loop import LoopState
    from headgate.metrics import rules
    from headgate.report.limits import Limit

    alerts = set(re.findall(r"- alert: (\w+)", rules.text()))
    causes = set(re.findall(r"``([a-z ]+)``", (Limit.__doc__ or "").partition("why :")[0]))
    assert {"HeadgateSLOBurn", "driver", "nothing"} <= alerts | causes
    wanted = alerts | causes | {str(state) for state in LoopState}
    headings = re.findall(r"^### (.*)$", (DOCS / "runbook.md").read_text(encoding="utf-8"), re.M)
    assert sorted(headings) == sorted(wanted)
    linked = set(re.findall(r"docs/runbook.md#(\w+)", rules.text()))
    assert linked == {alert.lower() for alert in alerts}
